"""Type parameters that have defaults for type checkers: a bare `Agent`, `FunctionTool` or `ToolContext` is one of any.

`typing` has defaults from Python 3.13 on. `typing_extensions`, which has them for all, is read by type checkers alone:
they bring its types along, so that nothing has to be installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    ContextT = TypeVar("ContextT", default=Any)
    ContextT_co = TypeVar("ContextT_co", default=Any, covariant=True)
    ContextT_contra = TypeVar("ContextT_contra", default=Any, contravariant=True)
    OutputT = TypeVar("OutputT", default=Any)
    BodyP = ParamSpec("BodyP", default=...)
else:
    from typing import ParamSpec, TypeVar

    ContextT = TypeVar("ContextT")
    ContextT_co = TypeVar("ContextT_co", covariant=True)
    ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
    OutputT = TypeVar("OutputT")
    BodyP = ParamSpec("BodyP")

__all__ = ["BodyP", "ContextT", "ContextT_co", "ContextT_contra", "OutputT"]
