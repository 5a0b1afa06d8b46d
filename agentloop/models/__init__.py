"""Models: the protocol that a provider implements, and the models that come with the library.

`OpenAIChatModel` and `LocalModel` are imported at first use. Any object with `Model`'s methods is a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentloop.abc import Model, ModelProvider
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
    ToolDefinition,
)

if TYPE_CHECKING:
    from agentloop.models.local import LocalModel
    from agentloop.models.openai_chat import OpenAIChatModel

__all__ = [
    "ArgumentsDelta",
    "ItemDone",
    "LocalModel",
    "Model",
    "ModelEvent",
    "ModelProvider",
    "ModelRequest",
    "OpenAIChatModel",
    "OutputSchema",
    "Raw",
    "ReasoningDelta",
    "ResponseDone",
    "ResponseStarted",
    "TextDelta",
    "ToolDefinition",
]

_LAZY = {"LocalModel": "local", "OpenAIChatModel": "openai_chat"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
