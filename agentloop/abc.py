"""The edges as protocols: what a run asks of a model, a session, a journal, instruments.

Implement one of these and the runtime can't tell it from the library's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import attrs

from agentloop.effects import Effect
from agentloop.items import Item, ToolCall
from agentloop.model_events import ModelEvent, ModelRequest
from agentloop.records import Record
from agentloop.settings import ModelSettings
from agentloop.spans import Span, Trace

__all__ = [
    "Codec",
    "Effects",
    "Instrument",
    "Journal",
    "LateResult",
    "Model",
    "ModelProvider",
    "OutputStore",
    "ReplaceableSession",
    "SealingJournal",
    "Session",
    "SpanSource",
    "StillRunning",
]


@runtime_checkable
class Model(Protocol):
    """A model. A provider writes `stream`; entering and leaving do nothing unless it overrides them.

    Who makes a model enters it (`async with`); one that is used without being entered is entered by each run for the
    run's duration. `holds_resources` says that this is costly (a connection pool, a child process) and earns a warning.
    """

    holds_resources: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it can be asked as it is; False while it must be entered first."""
        return True

    @property
    def default_settings(self) -> ModelSettings:
        """The settings an agent has that was given this model and no settings of its own."""
        return ModelSettings()

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Ask the model. Entering sends the request; leaving closes the response, also when cancelled.

        The iterator gives the events of one response, exactly one `ResponseDone`, last.

        Raises:
            ModelTransportError: the model wasn't reached or answered with an error.
            ModelBehaviorError: the response breaks the protocol, or ended without its last event.
        """
        ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return None


@runtime_checkable
class ModelProvider(Protocol):
    """Gives models by name. Owns what they share; entering and leaving do nothing unless overridden."""

    def get_model(self, name: str) -> Model:
        """Return the model called *name* (without the provider's prefix).

        Raises:
            UserError: if the name is unknown, or something it needs is missing; says what to do.
        """
        ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return None


@runtime_checkable
class Session(Protocol):
    """The items of a conversation that outlives its runs. A call that is cancelled has done all of its work or none."""

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest *limit* items in chronological order; None = all of them."""
        ...

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append *items*: all of them, side by side, or none."""
        ...

    async def pop_item(self) -> Item | None:
        """Remove the latest item and return it; None where there is none."""
        ...

    async def clear(self) -> None:
        """Remove everything."""
        ...


@runtime_checkable
class ReplaceableSession(Session, Protocol):
    """A session whose items can be exchanged in one step, which compaction asks for."""

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        """Put *items* in the place of all items, if these still are *expect* (as `get_items()` gave them).

        Raises:
            SessionConflict: if the session has changed; it is left as it is.
        """
        ...


@runtime_checkable
class Journal(Protocol):
    """The log of one run, durable: what has been appended is there after a crash of the process.

    A record is JSON text of one object, in bytes and without a line break; a journal keeps it and doesn't look inside.

    It has one writer at a time. An object that something else has overtaken, by appending after what this one last read
    or wrote, appends no more. Who makes a journal closes it.
    """

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records*: after a crash all of them are there, side by side, or none. Returns when they are durable.

        A journal may have policies for what durable means; its own documentation says what each can lose.

        Cancellation: before the writing has begun nothing is done. Writing that has begun is finished, and so is this
            call: the cancellation shows at the next checkpoint. Cancelled natively on asyncio it raises at once, the
            writing finishes all the same, and whatever is asked of the journal next waits for it.

        Raises:
            JournalError: if they couldn't be made durable, something else writes this journal, or it is closed. Whether
                they are there is then open until the journal is read by a new object; this one takes no more.
        """
        ...

    async def read(self) -> list[bytes]:
        """Return every record appended so far, as it was given, in order. A batch that a crash cut off isn't there.

        Raises:
            JournalError: if what stands there isn't what was written.
        """
        ...

    async def aclose(self) -> None:
        """Let go of the journal, when the call in progress is over. Does nothing the second time.

        Raises:
            JournalError: if something appended before couldn't be made durable after all; it is closed nevertheless.
        """
        ...


class OutputStore(Protocol):
    """Takes the outputs that are too long for the model."""

    def put(self, call: ToolCall, data: str) -> str | Awaitable[str]:
        """Keep *data*, the whole output of *call*, and return what the model is told to find it by."""
        ...


class Codec(Protocol):
    """Seals what must not be read from a journal or a state: encryption of your own, with its keys."""

    def seal(self, data: bytes) -> bytes:
        """Return *data* in a form that only `open` can read."""
        ...

    def open(self, sealed: bytes) -> bytes:
        """Return what was sealed.

        Raises:
            Exception: any, if it wasn't sealed by this codec or was changed.
        """
        ...


@runtime_checkable
class SealingJournal(Journal, Protocol):
    """A journal that was given a codec, which the run uses for what is marked secret; None where it wasn't."""

    @property
    def codec(self) -> Codec | None:
        """What seals the secrets of the run; the journal itself doesn't use it."""
        ...


class Effects(Protocol):
    """The one door of a run's side effects."""

    async def perform(self, effect: Effect) -> Any:
        """Do *effect*, or answer as it was answered before; raises what it raises."""
        ...


@attrs.frozen(kw_only=True)
class StillRunning:
    """A call that outlives its run's cleanup deadline.

    `age` is seconds since its body started, or, where it hasn't, since the call was admitted.
    """

    path: tuple[str, ...]
    call: ToolCall
    age: float
    stack: str


@attrs.frozen(kw_only=True)
class LateResult:
    """What came of a body after its outcome was decided: an abandoned thread's end, a late value or error."""

    path: tuple[str, ...]
    call: ToolCall
    value: Any = attrs.field(default=None, repr=False)
    error: BaseException | None = attrs.field(default=None, repr=False)


class SpanSource(Protocol):
    """Makes spans of records; handed to the shell by whoever puts a run together."""

    def record(self, record: Record) -> None:
        """Fold one record."""
        ...

    def call_span(self, path: tuple[str, ...], call_id: str) -> Span | None:
        """Return the open span of one call."""
        ...


class Instrument:
    """Watches runs. Override what you need; methods are sync; one that raises is logged once and never fails a run."""

    def on_record(self, record: Record) -> None:
        """Called with every record as it is appended."""

    def on_trace_start(self, trace: Trace) -> None:
        """Called when a run begins a trace of its own."""

    def on_trace_end(self, trace: Trace) -> None:
        """Called when the run that began a trace has ended."""

    def on_span_start(self, span: Span) -> None:
        """Called when a piece of work begins."""

    def on_span_end(self, span: Span) -> None:
        """Called when a piece of work has ended."""

    def on_still_running(self, report: StillRunning) -> None:
        """Called once a second for each call that outlives the cleanup deadline."""

    def on_late_result(self, report: LateResult) -> None:
        """Called when something comes of a body after its outcome was decided."""
