"""Type parameters that have defaults for type checkers: a bare `Agent`, `FunctionTool` or `ToolContext` is one of any.

`typing` has defaults from Python 3.13 on. `typing_extensions`, which has them for all, is read by type checkers only:
they bring its types along, so that nothing has to be installed.

Decisions:

`Agent[ContextT, OutputT]`: the agent's context is inferred from its tools, its output from `output_type`.
`tests/typing` checks with both type checkers what they must accept and what they must refuse; each decision here is
the one that both can follow.

* A tool consumes a context, so `FunctionTool` is contravariant in it, and a context that is only read is covariant. A
  tool for a base class or a protocol serves more agents than one. Rejected: an invariant tool, which finds as much
  and refuses these.
* A tool that asks for no context is a `FunctionTool[Any]`. Rejected: `FunctionTool[object]`, which would be exact:
  mypy makes a `list[object]` of a list with both kinds of tools, and no parameter accepts that. An agent takes
  `FunctionTool[ContextT] | FunctionTool[object]`, without which pyright takes the `Any` of one tool for all of them.
  The constructor of `Agent` is attrs', and described by overloads: by inference only an agent without tools and
  `output_type` has no type. The rest of its options are listed once, in a `TypedDict`. Type parameters have defaults,
  so that a bare `Agent` or `FunctionTool` in an annotation means one of any. `typing` has them from 3.13 on; checkers
  read those of `typing_extensions`, which need not be installed. Rejected: no defaults. A parameter for
  `FunctionTool` would then be an error in every strictly checked application that names the class.
* A type that checkers can't read from a value, a union for instance, is `Any` or the declared one. mypy believes a
  declaration that contradicts `output_type`; pyright doesn't.
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
