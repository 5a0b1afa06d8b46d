"""The effects of a run: everything it does to the world, as values that pass one door.

Core and engine decide *what* happens; `Effects.perform` decides *whether it happens here*: live effects call `do`, a
replay answers from a journal, a durable engine makes a step of it. The other fields (path, turn, call id, attempt)
identify the effect. Does not know how an effect is performed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from agentloop._common.values import Value

Do: TypeAlias = Callable[[], Awaitable[Any]]


class CallModel(Value, frozen=True):
    """One attempt of a model call."""

    path: tuple[str, ...]
    turn: int
    attempt: int
    do: Do


class CallTool(Value, frozen=True):
    """One attempt of a call's body."""

    path: tuple[str, ...]
    call_id: str
    attempt: int
    do: Do


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


class Now(Value, frozen=True):
    """A look at the wall clock; the result is in seconds."""


class NewId(Value, frozen=True):
    """A fresh id."""


class Random(Value, frozen=True):
    """A random number in [0, 1)."""


Effect: TypeAlias = (
    CallModel | CallTool | Guard | CallCallback | LoadSession | SaveSession | Sleep | Now | NewId | Random
)
