"""The edges as protocols: models, sessions, journals, stores of outputs and memory, codecs, effects and instruments.

An application may implement any of them; the runtime treats its object like the library's own. Definitions only: does
not know about runs, the engine or any implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from agentloop._common.values import Value
from agentloop.abc.effects import Effect
from agentloop.events import CustomEvent
from agentloop.items import Item, ToolCall
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.records import Record
from agentloop.settings import ModelSettings
from agentloop.spans import RunOpening, Span, Trace

__all__ = [
    "ApprovalEffects",
    "Codec",
    "Effects",
    "Instrument",
    "Journal",
    "LateResult",
    "LeasedJournal",
    "MemoryStore",
    "Model",
    "ModelProvider",
    "OutputStore",
    "ReplaceableSession",
    "ReplayingEffects",
    "SealingJournal",
    "Session",
    "SpanSource",
    "StillRunning",
    "TimedEffects",
]


@runtime_checkable
class Model(Protocol):
    """A model. An implementation writes `stream`; entering and leaving do nothing unless overridden.

    The owner is the code that makes the model: it enters it (`async with`) and leaves it. If the owner did not enter
    it, each run enters it for its own duration. `holds_resources` is True if that is costly (a connection pool, a child
    process); a run that has to enter such a model logs a warning.
    """

    holds_resources: bool = False

    @property
    def is_open(self) -> bool:
        """True if `stream` can be called now; False while the model must be entered first."""
        return True

    @property
    def default_settings(self) -> ModelSettings:
        """The settings of an agent that has this model and no settings of its own."""
        return ModelSettings()

    @property
    def info(self) -> ModelInfo:
        """The model's identity in logs and spans: by default the class's name, and `name` if the model has one."""
        kind = type(self).__name__
        return ModelInfo(kind, str(getattr(self, "name", None) or kind))

    @property
    def features(self) -> frozenset[ModelFeature]:
        """The features of the model's provider beyond the answer to one request; by default none.

        A run that needs a feature which is not in it raises `UserError` before the request: a model that leaves out
        the part it doesn't know would answer without the earlier conversation, the tool or the prompt.
        """
        return frozenset()

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Return one attempt of *request* as a context manager: entering sends it, leaving closes the response.

        The iterator gives the events of one response, with exactly one `ResponseDone` as the last of them.

        Cancellation: leaving closes the response after a cancellation, too.

        Raises:
            ModelTransportError: if the model wasn't reached or answered with an error.
            ModelBehaviorError: if the response breaks the protocol or ends without its last event.
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
    """A source of models by name. Owns the resources they share; entering and leaving do nothing unless overridden."""

    def get_model(self, name: str) -> Model:
        """Return the model called *name* (without the provider's prefix).

        Raises:
            UserError: if the name is unknown or needs something that is missing; the text says how to correct that.
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
    """The items of a conversation that outlives its runs.

    Cancellation: a cancelled call has done all of its work or none of it.
    """

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest *limit* items in chronological order; None = all of them."""
        ...

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append *items*: all of them as one unbroken sequence, or none."""
        ...

    async def pop_item(self) -> Item | None:
        """Remove the latest item and return it; return None if the session is empty."""
        ...

    async def clear(self) -> None:
        """Remove all items."""
        ...


@runtime_checkable
class ReplaceableSession(Session, Protocol):
    """A session whose items can be replaced in one step. Compaction needs one."""

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        """Replace all items by *items*, if the session still equals *expect*, the earlier result of `get_items()`.

        Raises:
            SessionConflict: if the session has changed since; its items stay unchanged.
        """
        ...


@runtime_checkable
class MemoryStore(Protocol):
    """Text files that outlive runs, as those of `agentloop.bundles.Memory`. Each scope has its own, and no others.

    A path has at most 8 names with `/` between them and at neither end. The names have at most 100 printable characters
    and 255 bytes, and aren't hidden. No file is also a folder, and no two differ in a manner only that some file system
    doesn't know: capitals, composed letters, dots or spaces at the end. `Memory` gives a store no other change, and the
    library's own stores refuse others by a UserValueError. A scope is any printable text that isn't empty.
    `agentloop.testing.conformance.MemoryConformance` tests a store.

    Cancellation: a cancelled call has done all of its work or none of it.
    """

    async def load(self, scope: str) -> Mapping[str, str]:
        """Return the texts of all files of *scope* by their paths; none if nothing was ever stored."""
        ...

    async def change(self, scope: str, changes: Mapping[str, str | None], *, expect: Mapping[str, str]) -> None:
        """Write the texts of *changes* to their paths, and remove the files of those with None: all, or none.

        The changes are made only if the files of *scope* still equal *expect*, the result of `load`, and no other
        change of the scope can be made in between. They are durable when this returns. Removing a file that isn't
        there does nothing.

        Raises:
            MemoryConflict: if the files have changed since; this then changes nothing.
        """
        ...


@runtime_checkable
class Journal(Protocol):
    """The durable log of one run: appended records survive a crash of the process.

    A record is the JSON text of one object, as bytes without a line break. A journal stores the bytes and does not read
    them.

    A journal has one writer at a time. If another writer has appended after the last record that this object read or
    wrote, this object appends no more. The owner is the code that makes the journal: it closes it.
    """

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records* and return once they are durable.

        After a crash the journal holds all of them, as one unbroken sequence, or none. A journal may offer several
        policies of durability; its own documentation says which records each of them can lose.

        Cancellation: before the write has begun, nothing is written. A write that has begun runs to its end, and this
            call returns normally: the cancellation is raised at the next checkpoint. A native cancellation on asyncio
            raises at once; the write still runs to its end, and the next operation on the journal waits for it.

        Raises:
            JournalError: if the records couldn't be made durable, another writer uses this journal, or it is closed.
                Only a new object that reads the journal can then find out whether it holds them; this object accepts
                no more records.
        """
        ...

    async def read(self) -> list[bytes]:
        """Return all records appended so far, unchanged and in order. A batch that a crash cut off is left out.

        Raises:
            JournalError: if the stored data differs from the data that was written.
        """
        ...

    async def aclose(self) -> None:
        """Close the journal once the call in progress is over. The second call does nothing.

        Raises:
            JournalError: if records appended before couldn't be made durable; the journal is closed all the same.
        """
        ...


class OutputStore(Protocol):
    """A store for outputs that are too long for the model."""

    def put(self, call: ToolCall, data: str) -> str | Awaitable[str]:
        """Store *data*, the whole output of *call*, and return the reference that the model receives in its place."""
        ...


class Codec(Protocol):
    """Encryption of the application's own, with its keys, for secrets in a journal or a state."""

    def seal(self, data: bytes) -> bytes:
        """Return *data* in a form that only `open` can read."""
        ...

    def open(self, sealed: bytes) -> bytes:
        """Return the data that *sealed* was made from.

        Raises:
            Exception: of any class, if this codec did not seal it or it was changed since.
        """
        ...


@runtime_checkable
class SealingJournal(Journal, Protocol):
    """A journal that may have a codec, with which the run seals the values marked secret."""

    @property
    def codec(self) -> Codec | None:
        """The codec for the run's secrets, or None. The run uses it; the journal itself does not."""
        ...


@runtime_checkable
class LeasedJournal(Journal, Protocol):
    """A journal whose writer has its run for a time only: another worker may continue the run after that.

    `append` refuses a writer whose time is over. It can't help a writer that is stopped behind it and wakes too late,
    so the run asks once more in the step that starts a body.
    """

    def check_lease(self) -> None:
        """Return if the writer still has the run. Never waits.

        Raises:
            JournalError: if it hasn't. The run then appends no more.
        """
        ...


class Effects(Protocol):
    """The one door of a run's side effects: every effect is a value that passes `perform`."""

    def perform(self, effect: Effect) -> Awaitable[Any]:
        """Perform *effect* and return its result, or return its earlier result. Errors of the effect propagate.

        Write it as an `async def`. It is awaited at once.
        """
        ...


@runtime_checkable
class TimedEffects(Effects, Protocol):
    """Effects with their own wall clock: the times of a run's records come from it."""

    def wall(self) -> float:
        """Return the time in seconds since the epoch. Called for every record; never waits."""
        ...


@runtime_checkable
class ApprovalEffects(Effects, Protocol):
    """Effects of an engine that makes a run's log anew from a history, maybe with other definitions than before.

    An approval that was asked for holds all the same, so they remember which calls have waited for one.
    """

    def was_asked(self, path: tuple[str, ...], call: ToolCall) -> bool:
        """Tell whether *call*, of the run at *path*, has waited for an approval in the history. Never waits."""
        ...

    def note_asked(self, path: tuple[str, ...], call: ToolCall) -> None:
        """Note that *call* waits for an approval. Called once its request is in the log; never waits."""
        ...


@runtime_checkable
class ReplayingEffects(Effects, Protocol):
    """Effects that compare a run's records with recorded ones.

    The bodies of background calls aren't performed, because their results are among the recorded inputs; but by those
    that have a true attribute `performs_background`.

    They may have a method `find_state_error(path)`, which returns the StateError by which the recorded run at *path*
    ends next, or None: a run that ended because something was lacking then ends so again.
    """

    def expect(self, record: Record) -> Record | None:
        """Return the record to append in place of *record*, or None to append nothing. Never waits."""
        ...


class StillRunning(Value, frozen=True, kw_only=True):
    """A call that outlives its run's cleanup deadline.

    `age` is the seconds since its body started, or since the call was admitted if its body never started. `stack` is
    text.
    """

    path: tuple[str, ...]
    call: ToolCall
    age: float
    stack: str


class LateResult(Value, frozen=True, kw_only=True):
    """A body's result after its outcome was decided: the end of an abandoned thread, a late value or a late error."""

    _unshown = frozenset({"value", "error"})

    path: tuple[str, ...]
    call: ToolCall
    value: Any = None
    error: BaseException | None = None


class SpanSource(Protocol):
    """A maker of spans from records. `agentloop.run` creates it and gives it to the run's log."""

    def record(self, record: Record) -> None:
        """Fold one record."""
        ...

    def call_span(self, path: tuple[str, ...], call_id: str) -> Span | None:
        """Return the open span of one call, or None if it has none."""
        ...

    def note_request(self, path: tuple[str, ...], request: ModelRequest) -> None:
        """Tell what the request holds whose record was just folded; *path* is that of its run."""
        ...


class Instrument:
    """An observer of runs that cannot change them. Override the methods you need.

    Methods are sync. If one raises, the error is logged once, and no run fails because of it.

    Example:
        from agentloop import Agent, RunConfig, Runner
        from agentloop.testing import ScriptedModel, say

        class CountRecords:
            count = 0

            def on_record(self, record):
                self.count += 1

        counter = CountRecords()
        config = RunConfig(instruments=[counter])
        Runner.run_sync(Agent("a", model=ScriptedModel([say("hi")])), "go", run_config=config)
        print(counter.count > 0)  # True
    """

    wants_requests: bool = False
    """True to have in the spans what each request holds, too: `data["instructions"]`, `data["input"]` and
    `data["definitions"]` of a model's span and, of its first request, of an agent's; and of the last answer the
    `data["output"]` and `data["finish_reason"]` of the agent's and the run's. It costs a pass over the history for each
    request."""

    def on_record(self, record: Record) -> None:
        """Called with every record as it is appended."""

    def on_run_open(self, opening: RunOpening) -> None:
        """Called right before the first record of each run segment, where spans are made; not for nested runs.

        A tracing system that gives spans ids of its own begins the run's span here and calls `opening.identify`, so
        that the log has the ids, and a later run segment can link to this one. Not called in a workflow of Temporal,
        whose code must do the same when it is replayed.
        """

    def on_trace_start(self, trace: Trace) -> None:
        """Called when a run begins its own trace."""

    def on_trace_end(self, trace: Trace) -> None:
        """Called when the run that began a trace has ended."""

    def on_span_start(self, span: Span) -> None:
        """Called when a piece of work begins, in the task that does it.

        So a context variable that is set here is set for what the task does: of a call, for the tool's body.
        """

    def on_span_end(self, span: Span) -> None:
        """Called when a piece of work has ended."""

    def on_custom_event(self, event: CustomEvent, span: Span | None) -> None:
        """Called with each event that a body emits (`ToolContext.emit`); *span* is its call's.

        None if the run makes no spans: no instrument has a method for them, or tracing is disabled.
        """

    def on_still_running(self, report: StillRunning) -> None:
        """Called once a second for each call that outlives the cleanup deadline."""

    def on_late_result(self, report: LateResult) -> None:
        """Called when something comes of a body after its outcome was decided."""
