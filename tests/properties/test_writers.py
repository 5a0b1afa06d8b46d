"""Verdicts, cancellations and inputs at every moment of a run, from the run's own process and from others.

Whatever is accepted, whoever gives it and whenever: the log can be read, its judges are content, no body runs twice,
and none runs that was rejected or cancelled before. What is refused leaves the log as it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import anyio.lowlevel
import attrs
import pytest
from exploration.invariants import check
from hypothesis import event, given, settings
from hypothesis import strategies as st

from agentloop import Agent, Runner, RunState, StateError, UserError, tool
from agentloop import records as r
from agentloop._storage.state_codec import line_encoder
from agentloop.exceptions import JournalError
from agentloop.journal import FileJournal
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say
from agentloop.testing.invariants._observation import Observation

pytestmark = pytest.mark.real_clock
REFUSED = (StateError, UserError, JournalError)

# ---------------------------------------------------------------------------------------------- what is generated


@attrs.frozen
class Act:
    """What somebody does to the run: a verdict, a cancellation of one call, or more input. Its values may be wrong."""

    kind: Literal["approve", "reject", "cancel", "input"]
    place: tuple[tuple[str, ...], str]
    options: dict[str, Any] = attrs.field(factory=dict, hash=False)

    def decide(self, decided: Any) -> None:
        """Do it to a state, or give its verdict to a stream."""
        call_id = self.place[1]
        match self.kind:
            case "approve":
                options = {name: value for name, value in self.options.items() if name != "message"}
                decided.approve(call_id, **options)
            case "reject":
                options = {name: value for name, value in self.options.items() if name != "arguments"}
                decided.reject(call_id, **options)
            case "input":
                decided.add_input(self.options.get("message") or "more")
            case "cancel":
                raise StateError("only a run under way cancels one call")

    def do(self, stream: Any) -> None:
        """Do it to a run under way."""
        if self.kind == "cancel":
            path, call_id = self.place
            stream.cancel_call(call_id, self.options.get("message"), path=path)
        elif self.kind != "input":
            self.decide(stream)


WAITING = [((), "p1"), ((), "p2"), (("dig",), "n1")]
PLACES = [*WAITING, *WAITING, ((), "s1"), ((), "dig"), ((), "other"), (("dig",), "p1")]
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "by": st.sampled_from([None, "ann", "bob", 5]),
        "always": st.sampled_from([True, False, "yes", 1]),
        "message": st.sampled_from([None, "no", 7, "\ud800"]),
        "arguments": st.sampled_from([None, {"label": "edited"}, {"label": 5}, "{", 3]),
        "replace": st.booleans(),
    },
)
ACTS = st.builds(
    Act,
    kind=st.sampled_from(["approve", "approve", "reject", "cancel", "input"]),
    place=st.sampled_from(PLACES),
    options=st.just({}) | OPTIONS,
)


@attrs.frozen
class Story:
    """A run and what happens to it.

    `live` are acts by the number of the event after which they are done. At each pause two people have read the log;
    then each does what `desks` says, one after the other. `cut` is how many records a crash leaves of the first run
    segment, if there is one.
    """

    live: dict[int, Act] = attrs.field(hash=False)
    desks: tuple[tuple[tuple[Act, ...], tuple[Act, ...]], ...]
    cut: int | None


STORIES = st.builds(
    Story,
    live=st.dictionaries(st.integers(8, 30), ACTS, max_size=5),
    desks=st.lists(
        st.tuples(st.lists(ACTS, max_size=3).map(tuple), st.lists(ACTS, max_size=2).map(tuple)), max_size=3
    ).map(tuple),
    cut=st.none() | st.integers(1, 40),
)

# ---------------------------------------------------------------------------------------------- the run


class Bench:
    """An agent whose calls wait for verdicts, run, and nest; and what its bodies did."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        body = self._body
        free, gated = tool(name="free")(body), tool(name="gated", needs_approval=True)(body)
        inner: Agent[Any, Any] = Agent("inner", model=FunctionModel(self._inner), tools=[gated])
        self.agent: Agent[Any, Any] = Agent(
            "outer", model=FunctionModel(self._outer), tools=[free, gated, inner.as_tool("dig")]
        )

    async def _body(self, label: str) -> str:
        self.ran.append(label)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        return label

    def _outer(self, request: ModelRequest) -> Any:
        if request.turn > 1:
            return say("over")
        named = [call("gated", {"label": one}, one) for one in ("p1", "p2")]
        return [*named, call("free", {"label": "s1"}, "s1"), call("dig", {"input": "go"}, "dig")]

    def _inner(self, request: ModelRequest) -> Any:
        return say("dug") if request.turn > 1 else [call("gated", {"label": "n1"}, "n1")]


async def read(bench: Bench, path: Path) -> RunState:
    """Return the state of the log, which every process must be able to read."""
    async with FileJournal(path) as journal:
        return await RunState.from_journal(bench.agent, journal)


async def try_to(act: Act, decided: Any, do: Callable[[Any], None]) -> bool:
    """Do *act*; return False if it was refused, which must leave the log of *decided* as it was."""
    before = len(decided.records if isinstance(decided, RunState) else decided.state.records)
    try:
        do(decided)
    except REFUSED:
        assert len(decided.records if isinstance(decided, RunState) else decided.state.records) == before
        event(f"{act.kind} refused")
        return False
    event(f"{act.kind} accepted")
    return True


async def visit_desks(bench: Bench, path: Path, desks: tuple[tuple[Act, ...], tuple[Act, ...]]) -> None:
    """Let two processes read the log, and then write what they have decided: the second one has lost the race."""
    read_by = []
    for acts in desks:
        journal = FileJournal(path)
        state = await RunState.from_journal(bench.agent, journal)
        read_by.append((journal, state, len(state.records), acts))
    won = False
    for journal, state, known, acts in read_by:
        for act in acts:
            await try_to(act, state, act.decide)
        lines = list(map(line_encoder(None), state.records[known:]))
        try:
            await journal.append(lines)
        except JournalError:
            assert won, "nobody else has written"
        else:
            assert not (won and lines), "two writers have continued from one record"
            won = won or bool(lines)
        await journal.aclose()


async def go_on(bench: Bench, path: Path, given: Any, live: dict[int, Act]) -> Any:
    """Run one segment with the acts of the run's own process."""
    async with FileJournal(path, fsync="never") as journal:
        if given is None:
            given = await RunState.from_journal(bench.agent, journal)
        async with Runner.run_streamed(bench.agent, given, journal=journal) as stream:
            count = 0
            async for _ in stream:
                if (act := live.get(count)) is not None:
                    await try_to(act, stream, act.do)
                count += 1
        return stream.result


async def cut_off(path: Path, keep: int) -> Path:
    """Return the path of a log of which a crash has left the header and the first *keep* records."""
    async with FileJournal(path) as journal:
        lines = await journal.read()
    after = path.with_suffix(".cut")
    async with FileJournal(after) as journal:
        await journal.append([bytes(line) for line in lines[: keep + 1]])
    return after


def judge(state: RunState, ran: list[str], crashes: tuple[int, ...]) -> None:
    """Check the log and the bodies of a run that is over."""
    records = tuple(state.records)
    check(Observation(records=records, crashes=crashes))
    own = [label for label in ran if label != "edited"]
    assert crashes or len(own) == len(set(own)), "a body ran twice"
    begun: set[tuple[Any, str]] = set()
    ended: dict[tuple[Any, str], str] = {}
    for record in records:
        match record:
            case r.CallStarted():
                place = (record.path, record.call_id)
                assert place not in ended, f"{place} was {ended[place]}, and started"
                begun.add(place)
            case r.CancelRequested(call_id=str(call_id)) if (record.path, call_id) not in begun:
                ended[record.path, call_id] = "cancelled"
            case r.VerdictGiven() if ended.get((record.path, record.call_id)) != "cancelled":
                ended.pop((record.path, record.call_id), None)
                if not record.approved:
                    ended[record.path, record.call_id] = "rejected"
            case _:
                pass


@given(story=STORIES)
@settings(max_examples=40)
@pytest.mark.slow
@pytest.mark.scenario("SM-01", "SM-02", "SM-03")
async def test_no_writer_makes_a_log_that_cannot_be_read(story: Story) -> None:
    """The log is read after each step, by a process that knows nothing but the file."""
    bench = Bench()
    crashes: tuple[int, ...] = ()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.journal")
        result = await go_on(bench, path, "go", story.live)
        if story.cut is not None:
            path = await cut_off(path, story.cut)
            if (state := await read(bench, path)).status is None:
                crashes = (len(state.records),)
        for desks in (*story.desks, (), ()):
            state = await read(bench, path)
            if state.status == "completed":
                break
            await visit_desks(bench, path, desks or ((), ()))
            state = await read(bench, path)
            if crashes and state.status is None:
                crashes = (len(state.records),)
            result = await go_on(bench, path, None, {})
        while result.status == "interrupted":
            state = await read(bench, path)
            known = len(state.records)
            for request in state.interruptions:
                state.approve(request)
            async with FileJournal(path) as journal:
                await journal.append(list(map(line_encoder(None), state.records[known:])))
            result = await go_on(bench, path, None, {})
        final = await read(bench, path)
    assert final.status == "completed"
    judge(final, bench.ran, crashes)
