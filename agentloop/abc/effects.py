"""The effects of a run: everything it does to the world, as values that pass one door.

Core and engine decide *what* happens; `Effects.perform` decides *whether it happens here*: live effects call `do`, a
replay answers from a journal, a durable engine makes a step of it. The path, turn, call id and attempt identify the
effect; the other fields say what is asked. Does not know how an effect is performed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from agentloop._common.values import Value
from agentloop.model_events import ModelRequest

Do: TypeAlias = Callable[[], Awaitable[Any]]


class CallModel(Value, frozen=True):
    """One attempt of a model call. Its result is a `ModelResponse`.

    Effects that answer without `do` call `note_shown` if a part of the answer had been shown to a consumer before the
    attempt failed: then it isn't repeated.
    """

    path: tuple[str, ...]
    turn: int
    attempt: int
    do: Do
    request: ModelRequest
    agent: str
    """The agent's key in the run's graph."""
    model: Any
    """The `Model` object that is asked."""
    note_shown: Callable[[], None]


class CallTool(Value, frozen=True):
    """One attempt of a call's body. Its result is the value of the body."""

    path: tuple[str, ...]
    call_id: str
    attempt: int
    do: Do
    tool: str
    """The tool's name."""
    arguments: str
    """The JSON text with which the body is called."""
    nested: bool
    """True if the body is a nested run of an agent tool. Its records go to the same log, so *do* has to run them."""
    definition: Any
    """The `FunctionTool`."""
    find_context: Callable[[], Any]
    """Returns `context`."""

    @property
    def context(self) -> Any:
        """The call's `ToolContext`, made at its first use: few bodies take one."""
        return self.find_context()

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this call, after a crash, too."""
        key: str = self.context.idempotency_key
        return key


class Guard(Value, frozen=True):
    """One call of a guardrail function. `call_id` is set for the two tool stages, else None."""

    path: tuple[str, ...]
    stage: Literal["input", "output", "tool_input", "tool_output"]
    name: str
    call_id: str | None
    do: Do


class CallCallback(Value, frozen=True):
    """One call of an application's callback: `is_enabled`, instructions, an error text, a filter …"""

    path: tuple[str, ...]
    what: str
    key: str
    do: Do


class LoadSession(Value, frozen=True):
    """One read of the session's items."""

    path: tuple[str, ...]
    do: Do


class SaveSession(Value, frozen=True):
    """One write of a turn's items to the session."""

    path: tuple[str, ...]
    do: Do


class Sleep(Value, frozen=True):
    """A wait of `seconds` seconds."""

    seconds: float


class AwaitInput(Value, frozen=True):
    """A wait, before the run ends, for the result of a background call, or for another input that comes before it."""

    path: tuple[str, ...]
    do: Do


class Now(Value, frozen=True):
    """A look at the wall clock; the result is in seconds."""


class NewId(Value, frozen=True):
    """A fresh id."""


class Random(Value, frozen=True):
    """A random number in [0, 1)."""


Effect: TypeAlias = (
    CallModel | CallTool | Guard | CallCallback | LoadSession | SaveSession | AwaitInput | Sleep | Now | NewId | Random
)
