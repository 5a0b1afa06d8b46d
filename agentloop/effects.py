"""The effects of a run: everything it does to the world, as values that pass one door.

Core and engine decide *what* happens; `Effects.perform` decides *whether it happens here*: live effects call `do`, a
replay answers from a journal, a durable engine makes a step of it. The other fields (path, turn, call id, attempt)
identify the effect. Does not know how an effect is performed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import attrs

Do: TypeAlias = Callable[[], Awaitable[Any]]


@attrs.frozen
class CallModel:
    """One attempt of a model call."""

    path: tuple[str, ...]
    turn: int
    attempt: int
    do: Do


@attrs.frozen
class CallTool:
    """One attempt of a call's body."""

    path: tuple[str, ...]
    call_id: str
    attempt: int
    do: Do


@attrs.frozen
class Guard:
    """One call of a guardrail function. `call_id` is set for the two tool stages, else None."""

    path: tuple[str, ...]
    stage: Literal["input", "output", "tool_input", "tool_output"]
    name: str
    call_id: str | None
    do: Do


@attrs.frozen
class CallCallback:
    """One call of an application's callback: `is_enabled`, instructions, an error text, a filter …"""

    path: tuple[str, ...]
    what: str
    key: str
    do: Do


@attrs.frozen
class LoadSession:
    """One read of the session's items."""

    path: tuple[str, ...]
    do: Do


@attrs.frozen
class SaveSession:
    """One write of a turn's items to the session."""

    path: tuple[str, ...]
    do: Do


@attrs.frozen
class Sleep:
    """A wait of `seconds` seconds."""

    seconds: float


@attrs.frozen
class Now:
    """A look at the wall clock; the result is in seconds."""


@attrs.frozen
class NewId:
    """A fresh id."""


@attrs.frozen
class Random:
    """A random number in [0, 1)."""


Effect: TypeAlias = (
    CallModel | CallTool | Guard | CallCallback | LoadSession | SaveSession | Sleep | Now | NewId | Random
)
