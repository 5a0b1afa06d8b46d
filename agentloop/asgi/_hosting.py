"""Runs that continue without their clients: each is a task of the host's nursery, with a journal and a feed.

Theory. A run has one owner, its task here; requests only read its feed. The id of a run names its journal. A run is
*live* from the moment at which its id is claimed until its journal is closed; `_live` has an entry for exactly that
time, so that of two requests that want to resume one run the second is refused. Across processes the journal itself
decides: its first append takes the lock, or finds that another process has written.

States of a live run: claimed (its journal is being read; `feed` and `stream` are None), ready (both are set, the
verdicts become durable), under way (`decided` is set, readers have the feed), over (the feed is closed, the entry is
gone; later readers use the journal).

Invariants: the task of a run raises nothing but a BaseException of the application. Leaving the host's block cancels
every run and waits for it, which its cleanup deadline bounds.

Decisions:

`agentloop.asgi` speaks ASGI and nothing else, so one code serves every framework and both event loops; the price is
some 150 lines for a bounded body, a JSON answer and the client's end. Rejected: an extra for each framework, which
would be the same code in four forms; and a library of server-sent events, since the format is three fields, and what
is hard is whose task holds the run.

The ASGI callable holds the run's block, and a second task waits for `http.disconnect`. Rejected: an async generator
around the block, the usual form of a streaming response. The generator is closed by another task, or by the garbage
collector, and its nursery with it: on trio that corrupts the nursery, on asyncio the run is not joined.

A run that continues without its client belongs to the nursery of the application, never to the request that began it,
and has a journal. Its events are one list, and a client is a position in that list; so a client that is slow, late or
back again is the same case, and the run waits for none of them. Only signals have a queue for each client, bounded,
and the first thing to be dropped. Rejected: a queue of all events for each client, whose bound would have to slow the
run or lose what is recorded.

Events that follow from records have ids, `RECORD.INDEX`, and one pure function makes them, for a run under way and
for a log that is read (`_core/record_events.py`). A record may make several events, so its number alone would not be
enough. Rejected: a counter of sent events, which a second process couldn't know, and events stored beside the log,
which would be a second log. A client is shown an event when its record is appended, which may be a moment before it
is durable; bodies still start after that. If the process dies in that moment, the client's last id is refused, and it
reads the run from the beginning. To wait for the disk before each event would delay every one by a sync.

A log of ten thousand records takes a tenth of a second to decode, fold, and turn into events. That is done on the
event loop, a hundred records at a time (`_common/turns.py`), with the turns of other tasks between: no one waited
longer than 2 ms for a log that kept all clients waiting for 50, and a client that leaves stops it. Resuming its run
folds it once more, in one step: about 16 ms for ten thousand records. Rejected: a worker thread, which can't be
cancelled, would call an application's codec outside its loop, and holds the interpreter's lock for 5 ms at a time.

A paused run has one taker. With a journal the journal decides, since its first append needs the lock and an unchanged
end; otherwise a store gives each state to one caller. A state in the client's hands is sealed, but a seal alone can
be used twice, so the server keeps a ticket for each. Two runs of one process that hold the same journal object share
its lock, so a run claims the object first, from before it reads until its last record: reading takes turns with other
tasks, and both would do what is due. Rejected: remembering the states that were used, which a restart would forget:
then a call would be approved twice.

The verdicts of one request count together or not at all, and they become durable as the last thing before the run is
resumed: when they fit its calls, the agents fit the log, and the options are right. A verdict in the log of a run
that nothing resumes would leave the run neither waiting nor under way. On a run under way they are tried on a copy of
its state first; there is no wait between that and the run itself. Rejected: an answer that names the verdicts that
were given, since a client can't take one back.

A journal has as long to close as the run had to clean up. Rejected: to wait for it without a limit, as a store whose
server is gone would then keep the whole application from ending.

The error that a client sees has a type and a fixed sentence, but for errors about the library's own limits: messages
of exceptions quote addresses, paths and credentials, and no pattern finds all of them.

AG-UI is offered as a second form of the stream, since its library is well kept: types generated from the protocol's
own schema, one dependency (pydantic), and since 1.0 interrupts with answers, which carry approvals. What it lacks is
what the library's own form is for: ids to read on by, calls that settle at once rather than in order, secrets that
are marked. So it isn't a replacement. Rejected: believing a client's instructions, a state that the application
doesn't share, or tools that it doesn't name: then the page would decide what the agent does.

Servers end differently. uvicorn cancels open requests after a timeout that is off by default; hypercorn on asyncio
waits for them without a limit from Python 3.12 on. So `AgentApp.stop` ends all streams when the server begins to end,
instead of relying on the lifespan, which comes too late there.

`AgentApp.resume_all` resumes only runs whose journal has no end, or a pause that has its verdicts. A run that was
cancelled is left, unless the application asks for those too: the end of the application and a client's request write
the same record, and a run that its user has stopped must not begin again by itself. Rejected: that the entered
application resumes by itself, since the context and the options of the runs are the caller's to give.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import attrs
from anyio.abc import TaskGroup

from agentloop._common.turns import collect_in_turns
from agentloop.abc import Journal
from agentloop.agents import Agent
from agentloop.asgi._feed import Feed, position_after
from agentloop.asgi._http import HTTPRefusal
from agentloop.asgi._journals import RunJournals
from agentloop.asgi._response import log_failure
from agentloop.asgi._writer import describe_pause
from agentloop.config import RunConfig
from agentloop.exceptions import JournalError, UserError
from agentloop.exceptions._public import describe_summary
from agentloop.journal._closing import close_in_time
from agentloop.journal._states import is_name
from agentloop.run import Runner
from agentloop.state import RunState

if TYPE_CHECKING:
    from agentloop.events import Event
    from agentloop.run._stream import RunStream

Options: TypeAlias = Mapping[str, Any]
Decide: TypeAlias = Callable[[RunState], None]
"""Gives verdicts or answers on a state. Raises `HTTPRefusal`."""
USUAL_GRACE = RunConfig().tool_execution.cleanup_grace
"""The seconds that a store has for what must be done after a cancellation, too."""


@attrs.define(eq=False)
class WebRun:
    """A run that is under way in this process; of a run that ends with its client, `feed` stays None."""

    id: str
    stream: RunStream[Any] | None = None
    feed: Feed | None = None
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    """The scope of the run's own task, if it has one."""
    owner: str | None = None
    """The owner of the run, as its log says; known once it has a stream."""
    input: str | None = None
    """The text that the run was begun with in this process, which its stream can say only after a moment."""
    cleanup_grace: float = USUAL_GRACE
    """The seconds that the journal has for its closing: as many as the clean-up of the run."""
    decided: anyio.Event = attrs.field(factory=anyio.Event)
    """Set when it is known who can read the run: it has a feed, ends with its client, or is no more live."""
    _cancelled_by: list[str | None] = attrs.field(factory=list, init=False)
    """The owners who have cancelled the run before its own was known."""

    def begin(self, stream: RunStream[Any], given: object, options: Options) -> None:
        """Note the stream of the run, which was *given* its input or a state, and *options*.

        A run that was cancelled before is cancelled now.
        """
        self.stream = stream
        self.input = given if isinstance(given, str) else None
        config = options.get("run_config")
        self.owner = given.owner if isinstance(given, RunState) else config and config.owner
        if config is not None:
            self.cleanup_grace = config.tool_execution.cleanup_grace
        if any(self.owner in (None, owner) for owner in self._cancelled_by):
            stream.cancel()

    def cancel(self, owner: str | None) -> None:
        """Cancel the run, as soon as it has begun; one that has not is cancelled if it turns out to be *owner*'s."""
        if self.stream is not None:
            self.stream.cancel()
        else:
            self._cancelled_by.append(owner)


@attrs.frozen
class StoredEvents:
    """A run that is not under way, as its journal has it: the events that a client wants, and the frames after them."""

    events: list[tuple[str, Event]]
    final: tuple[dict[str, Any], ...]


class RunHost:
    """The runs of one application. Owned by it; entered for the time in which runs may continue without clients."""

    def __init__(self, agent: Agent[Any, Any], journals: RunJournals | None, most: int) -> None:
        self._agent = agent
        self._journals = journals
        self._most = most
        self._live: dict[str, WebRun] = {}
        self._released = anyio.Event()
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> RunHost:
        if self._group is not None:
            raise UserError("the application has been entered already")
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Cancel every run, and wait for its end."""
        assert self._group is not None
        group, self._group = self._group, None
        group.cancel_scope.cancel()
        if not isinstance(exc, anyio.get_cancelled_exc_class()):
            exc_type = exc = tb = None  # an error of the block would come back wrapped in a group
        await group.__aexit__(exc_type, exc, tb)  # noqa: ASYNC102 - its tasks are being cancelled

    def cancel(self) -> None:
        """Cancel every run that has its own task. (The nursery's scope holds the application's block, too.)"""
        for live in self._live.values():
            live.scope.cancel()

    async def wait_until_empty(self) -> None:
        """Wait until no run is live."""
        while self._live:
            await self._released.wait()

    # -- who is live

    def claim(self, run: str) -> WebRun:
        """Enter the run *run* as live; `release` ends that.

        Raises:
            HTTPRefusal: it is live already (409), or too many are (503).
        """
        if run in self._live:
            raise HTTPRefusal(409, "The run is under way.")
        if len(self._live) >= self._most:
            raise HTTPRefusal(503, "Too many runs are under way: try again later.")
        live = self._live[run] = WebRun(run)
        return live

    def release(self, live: WebRun) -> None:
        """Note that the run is over."""
        if self._live.get(live.id) is live:  # else its client has resumed it meanwhile
            del self._live[live.id]
            live.decided.set()
            released, self._released = self._released, anyio.Event()
            released.set()

    def find(self, run: str) -> WebRun | None:
        """Return the run *run* if it is live."""
        return self._live.get(run)

    async def find_decided(self, run: str) -> WebRun | None:
        """Return the run *run* if it is live; wait while its journal is being read, to be resumed or not."""
        while (live := self.find(run)) is not None and not live.decided.is_set():
            await live.decided.wait()
        return live

    # -- runs in their own tasks

    def open_journal(self, run: str) -> Journal:
        """Return the journal of the run *run*.

        Raises:
            HTTPRefusal: there can be none (404).
        """
        if self._journals is None or not is_name(run):
            raise HTTPRefusal(404, "There is no such run.")
        return self._journals.journal(run)

    async def prepare(self, live: WebRun, given: str | RunState, opened: Journal, options: Options) -> None:
        """Make the claimed run *live* ready for `start`; nothing runs yet. The events of a long log take many turns.

        Args:
            live: The run.
            given: The input, or the state to resume.
            opened: Its journal.
            options: `RunOptions` without a journal.

        Raises:
            UserError: the options are wrong, or the host has not been entered. The run is still claimed.
            StateError: the state can't be resumed. The run is still claimed.
        """
        events = await collect_in_turns(given.events()) if isinstance(given, RunState) else ()
        if self._group is None:
            raise UserError("runs that continue without clients need the application's lifespan: `async with app:`")
        live.feed = Feed(events)
        live.begin(Runner.run_streamed(self._agent, given, journal=opened, **options), given, options)

    def start(self, live: WebRun, opened: Journal) -> Feed:
        """Start the run that is ready, in its own task, which closes its journal; return its feed."""
        feed = live.feed
        assert self._group is not None
        assert live.stream is not None
        assert feed is not None
        live.decided.set()
        self._group.start_soon(self._host, live, live.stream, feed, opened, name=f"agentloop web run {live.id}")
        return feed

    @asynccontextmanager
    async def claimed(self, run: str) -> AsyncIterator[tuple[WebRun, Journal]]:
        """Claim the run *run*, and give its journal; if the block raises, close that and release the run.

        Raises:
            HTTPRefusal: as for `claim` and `open_journal`.
        """
        live = self.claim(run)
        journal: Journal | None = None
        try:
            journal = self.open_journal(run)
            yield live, journal
        except BaseException:
            await self.give_up(live, journal)  # noqa: ASYNC102 - shielded there
            raise

    async def give_up(self, live: WebRun, journal: Journal | None) -> None:
        """Close the journal of a run that is over, and release the run. Harmless the second time.

        Raises:
            JournalError: as for `close_journal`.
        """
        try:
            if journal is not None:
                await close_journal(journal, live.id, live.cleanup_grace)
        finally:
            self.release(live)

    async def _host(self, live: WebRun, stream: RunStream[Any], feed: Feed, journal: Journal) -> None:
        """Run to the end; the feed gets every event, also those that a cancelled stream has dropped."""
        final: tuple[dict[str, Any], ...] = ()
        try:
            with live.scope:
                async with stream:
                    async for event in stream:
                        feed.add(stream.last_event_id, event)
                for number, event in stream.state.events(feed.last_id):
                    feed.add(number, event)
                if stream.result.interruptions:
                    final = (describe_pause(stream.result.interruptions, live.id),)
        except Exception as error:
            final = ({"type": "error", "error": log_failure(error)},)
        finally:
            try:
                await self.give_up(live, journal)  # noqa: ASYNC102 - shielded there
            except Exception as error:
                final = final or ({"type": "error", "error": log_failure(error)},)
            feed.close(final)

    # -- runs that are not live

    async def load(self, journal: Journal) -> RunState:
        """Return the state in *journal*.

        Raises:
            HTTPRefusal: no run has written to it (404).
            JournalError: it is damaged.
            StateError: the agents don't fit it.
        """
        return _found(await RunState._find_in(self._agent, journal))

    async def load_stored(self, run: str) -> RunState:
        """Return the state of a run that is not live.

        Raises:
            HTTPRefusal: there is no such run (404).
            StateError, JournalError: what is stored can't be read.
        """
        return _found(await self.find_stored(run))

    async def find_stored(self, run: str) -> RunState | None:
        """Return the state of a run that is not live, or None if no run has written to its journal.

        Raises:
            HTTPRefusal: there can be no such run (404).
            StateError, JournalError: what is stored can't be read.
        """
        journal = self.open_journal(run)
        try:
            return await RunState._find_in(self._agent, journal)
        finally:
            await close_journal(journal, run)  # noqa: ASYNC102 - shielded there

    async def read(self, run: str, after: str | None, check_owner: Callable[[str | None], None]) -> StoredEvents:
        """Return the events of a run that is not live, those after the id *after*; a long log takes many turns.

        Raises:
            HTTPRefusal: there is no such run (404) or event (409).
            StateError, JournalError: what is stored can't be read.
        """
        state = await self.load_stored(run)
        check_owner(state.owner)
        events = await collect_in_turns(state.events())
        return StoredEvents(events[0 if after is None else position_after(events, after) :], _describe_end(state, run))


def _found(state: RunState | None) -> RunState:
    if state is None:
        raise HTTPRefusal(404, "There is no such run.")
    return state


async def close_journal(journal: Journal, run: str, seconds: float = USUAL_GRACE) -> None:
    """Close the journal of the run *run*, also after a cancellation.

    Raises:
        JournalError: as for `Journal.aclose`, or it has not closed within *seconds*.
    """
    if not await close_in_time(journal, seconds):
        raise JournalError(f"the journal of web run {run} did not close within {seconds:g} s: {journal!r}")


def _describe_end(state: RunState, run: str) -> tuple[dict[str, Any], ...]:
    """Return the frames after the last event of a run that is not live in this process."""
    if state.status is None:
        return ({"type": "detached"},)
    if state.interruptions:
        return (describe_pause(state.interruptions, run),)
    return () if state.error is None else ({"type": "error", "error": describe_summary(state.error)},)


async def append_given(journal: Journal, state: RunState) -> None:
    """Append what was given on *state*, which makes this process the only one that resumes the run.

    Raises:
        HTTPRefusal: another process does (409).
    """
    try:
        await state.append_to(journal)
    except JournalError as error:
        raise HTTPRefusal(409, "The run is under way elsewhere, or its journal takes nothing.") from error
