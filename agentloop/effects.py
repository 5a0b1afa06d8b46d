"""The effects of a run: everything it does to the world, as values that pass one door.

Core and shell decide *what* happens; `Effects.perform` decides *whether it happens here*: live it calls `do`, a replay
answers from a journal, a durable engine makes a step of it. What identifies an effect (path, turn, call id, attempt)
is beside the `do` that does it.
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
    """One body of one call."""

    path: tuple[str, ...]
    call_id: str
    attempt: int
    do: Do


@attrs.frozen
class Guard:
    """One guardrail function. `call_id` is given for a tool's."""

    path: tuple[str, ...]
    stage: Literal["input", "output", "tool_input", "tool_output"]
    name: str
    call_id: str | None
    do: Do


@attrs.frozen
class CallCallback:
    """One question to the application: `is_enabled`, instructions, an error text, a filter …"""

    path: tuple[str, ...]
    what: str
    key: str
    do: Do


@attrs.frozen
class LoadSession:
    """Reading the session's items."""

    path: tuple[str, ...]
    do: Do


@attrs.frozen
class SaveSession:
    """Writing a turn's items to the session."""

    path: tuple[str, ...]
    do: Do


@attrs.frozen
class Sleep:
    """Waiting, in seconds."""

    seconds: float


@attrs.frozen
class Now:
    """The wall clock, in seconds."""


@attrs.frozen
class NewId:
    """A fresh id."""


@attrs.frozen
class Random:
    """A number in [0, 1)."""


Effect: TypeAlias = (
    CallModel | CallTool | Guard | CallCallback | LoadSession | SaveSession | Sleep | Now | NewId | Random
)
