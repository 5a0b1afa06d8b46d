"""Generated batches of calls against a small model of what must become of each call.

The model knows nothing of tasks or scopes. It plays time forward: who is admitted, how each body ends and when, and
what a failure that is to be raised does to the rest. Each body's length is a power of two of its own, so every chain of
calls ends at a moment of its own, and no outcome depends on the order inside one moment.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Literal

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from agentloop import (
    Agent,
    AgentLoopError,
    Capacity,
    FunctionTool,
    Rate,
    RunConfig,
    Runner,
    ToolContext,
    ToolExecution,
    tool,
)
from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop.items import ToolOutput
from agentloop.testing import ScriptedModel, call, normal, say

End = Literal["return", "raise", "cancel", "native", "hang"]
STATUS: dict[End, str] = {
    "return": "succeeded",
    "raise": "failed",
    "cancel": "cancelled",
    "native": "cancelled",
    "hang": "timed_out",
}

# ---------------------------------------------------------------------------------------------- what is generated


@attrs.frozen
class Kind:
    """One tool: its policies and limits."""

    raises: bool = False
    """Whether a failure ends the run."""
    timeout: bool = False
    serial: str | None = None
    exclusive: bool = False
    idempotent: bool = False
    capacity: bool = False
    rate: bool = False


@attrs.frozen
class Wanted:
    """One call: of which tool, how its body ends, and whether the model asks for it twice.

    `key` tells calls of an idempotent tool apart.
    """

    kind: int
    end: End
    key: int
    twice: bool


@attrs.frozen
class Batch:
    """One turn's calls under one configuration; a body takes 2 to the power of its length, in seconds."""

    kinds: tuple[Kind, ...]
    calls: tuple[Wanted, ...]
    lengths: tuple[int, ...]
    cap: int | None
    shared: int
    rate: int
    sequential: bool

    def kind(self, index: int) -> Kind:
        """Return the tool of a call."""
        return self.kinds[self.calls[index].kind]

    def timeout(self, kind: int) -> int:
        """Return a tool's timeout: longer than all bodies together, and seven of one shorter than one of the next."""
        return 1 << (8 + 4 * kind)

    def receipt(self, index: int) -> tuple[int, int] | None:
        """Return what equal calls of an idempotent tool have in common."""
        one = self.calls[index]
        return (one.kind, one.key) if self.kind(index).idempotent else None

    def argument(self, index: int) -> int:
        """Return a call's argument; of an idempotent tool equal calls have equal ones."""
        return self.calls[index].key if self.kind(index).idempotent else 100 + index


KINDS = st.builds(
    Kind,
    raises=st.sampled_from([False, False, False, True]),
    timeout=st.booleans(),
    serial=st.sampled_from([None, None, "s", "t"]),
    exclusive=st.sampled_from([False, False, False, True]),
    idempotent=st.booleans(),
    capacity=st.booleans(),
    rate=st.sampled_from([False, False, True]),
)
CALLS = st.builds(
    Wanted,
    kind=st.integers(0, 2),
    end=st.sampled_from(["return", "return", "return", "return", "raise", "cancel", "native", "hang"]),
    key=st.integers(0, 1),
    twice=st.sampled_from([False, False, False, True]),
)
MOST = 7
PER = 1 << 24
"""The window of the rate: longer than everything else together."""


@st.composite
def batches(draw: st.DrawFn, *, clock: bool, raising: bool) -> Batch:
    """Return a batch whose calls all end: what hangs has a timeout. Without a *clock* nothing hangs."""
    kinds = tuple(draw(KINDS) for _ in range(3))
    if not clock:
        kinds = tuple(attrs.evolve(kind, timeout=False, rate=False) for kind in kinds)
    if not raising:
        kinds = tuple(attrs.evolve(kind, raises=False) for kind in kinds)
    calls = draw(st.lists(CALLS, min_size=1, max_size=MOST))
    return Batch(
        kinds=kinds,
        calls=tuple(
            attrs.evolve(one, end="return") if one.end == "hang" and not kinds[one.kind].timeout else one
            for one in calls
        ),
        lengths=tuple(draw(st.permutations(range(MOST)))),
        cap=draw(st.sampled_from([None, None, 1, 2, 3])),
        shared=draw(st.integers(1, 2)),
        rate=draw(st.integers(1, 3)),
        sequential=draw(st.sampled_from([False, False, False, True])),
    )


# ---------------------------------------------------------------------------------------------- the model


@attrs.define
class Player:
    """Plays one batch. What is left in it afterwards is what must have become of each call."""

    batch: Batch
    now: float = 0
    status: dict[int, str] = attrs.field(factory=dict)
    started: set[int] = attrs.field(factory=set)
    raised: int | None = None
    _waiting: list[int] = attrs.field(factory=list)
    _running: dict[int, float] = attrs.field(factory=dict)
    _leaders: dict[tuple[int, int], int] = attrs.field(factory=dict)
    _followers: dict[tuple[int, int], list[int]] = attrs.field(factory=dict)
    _receipts: set[tuple[int, int]] = attrs.field(factory=set)
    _starts: list[float] = attrs.field(factory=list)

    def play(self) -> "Player":
        """Play to the end: of all calls, or of the run by a failure."""
        for segment in self._segments():
            for index in segment:
                self._arrive(index)
            self._admit()
            while (self._running or self._waiting) and self.raised is None:
                self.now = min([*self._running.values(), *self._openings()])
                for index in sorted(index for index, at in self._running.items() if at == self.now):
                    self._end(index)
                if self.raised is None:
                    self._admit()
            if self.raised is not None:
                break
        return self

    @property
    def statuses(self) -> list[str]:
        """Return every call's status; what has none was cancelled with the batch."""
        return [self.status.get(index, "cancelled") for index in range(len(self.batch.calls))]

    def _segments(self) -> list[list[int]]:
        segments: list[list[int]] = [[]]
        for index in range(len(self.batch.calls)):
            if self.batch.sequential or self.batch.kind(index).exclusive:
                segments += [[index], []]
            else:
                segments[-1].append(index)
        return segments

    def _arrive(self, index: int) -> None:
        key = self.batch.receipt(index)
        if key is not None and key in self._receipts:
            self.status[index] = "replayed"
        elif key is not None and key in self._leaders:
            self._followers.setdefault(key, []).append(index)
        else:
            if key is not None:
                self._leaders[key] = index
            self._waiting.append(index)

    def _admit(self) -> None:
        groups: set[str | None] = set()
        for index in list(self._waiting):
            kind = self.batch.kind(index)
            if kind.serial in groups - {None} or not self._room(kind):
                groups.add(kind.serial)  # no call of the group passes the one that waits
                continue
            self._waiting.remove(index)
            self.started.add(index)
            hangs = self.batch.calls[index].end == "hang"
            length = self.batch.timeout(self.batch.calls[index].kind) if hangs else 1 << self.batch.lengths[index]
            self._running[index] = self.now + length
            if kind.rate:
                self._starts.append(self.now)

    def _openings(self) -> list[float]:
        """Return the times at which the rate's window admits a waiting call."""
        if not any(self.batch.kind(index).rate for index in self._waiting):
            return []
        return [start + PER for start in self._starts if start + PER > self.now]

    def _room(self, kind: Kind) -> bool:
        kinds = [self.batch.kind(index) for index in self._running]
        if self.batch.cap is not None and len(kinds) >= self.batch.cap:
            return False
        if kind.serial is not None and any(other.serial == kind.serial for other in kinds):
            return False
        if kind.rate and len([start for start in self._starts if start + PER > self.now]) >= self.batch.rate:
            return False
        return not kind.capacity or sum(other.capacity for other in kinds) < self.batch.shared

    def _end(self, index: int) -> None:
        del self._running[index]
        end, key = self.batch.calls[index].end, self.batch.receipt(index)
        self.status[index] = STATUS[end]
        # The model is shown a timeout, also when other failures end the run.
        if self.batch.kind(index).raises and end in ("raise", "cancel", "native"):
            self.raised = index
        elif key is not None:
            self._leader_ended(key, succeeded=end == "return")

    def _leader_ended(self, key: tuple[int, int], *, succeeded: bool) -> None:
        del self._leaders[key]
        followers = self._followers.pop(key, [])
        if succeeded:
            self._receipts.add(key)
        for follower in followers:
            self._arrive(follower)


# ---------------------------------------------------------------------------------------------- the real thing


class Bodies:
    """The tools of a batch, and what was seen of their bodies."""

    def __init__(self, batch: Batch, *, clock: bool) -> None:
        self.batch = batch
        self._clock = clock
        self._shared = Capacity(batch.shared, "shared")
        self._rate = Rate(batch.rate, PER, "rate")
        self.running: list[int] = []
        self.started: list[int] = []
        self.faults: list[str] = []

    def tools(self) -> list[FunctionTool]:
        """Return one tool for each kind."""
        return [self._tool(index, kind) for index, kind in enumerate(self.batch.kinds)]

    def _tool(self, number: int, kind: Kind) -> FunctionTool:
        async def body(ctx: ToolContext[Any], n: int) -> str:
            index = int(ctx.tool_call_id)
            self._enter(index, kind)
            try:
                return await self._run(ctx, index)
            finally:
                self.running.remove(index)

        options: dict[str, Any] = {"failure_error_function": None} if kind.raises else {}
        if kind.timeout and self._clock:
            options["timeout"] = self.batch.timeout(number)
        return tool(
            name=f"t{number}",
            serial=kind.serial,
            exclusive=kind.exclusive,
            idempotent=kind.idempotent,
            capacity=[*([self._shared] if kind.capacity else []), *([self._rate] if kind.rate else [])],
            **options,
        )(body)

    async def _run(self, ctx: ToolContext[Any], index: int) -> str:
        one = self.batch.calls[index]
        if one.end != "hang" and self._clock:
            await anyio.sleep(1 << self.batch.lengths[index])
        elif one.end != "hang":
            for _ in range(self.batch.lengths[index]):
                await anyio.lowlevel.checkpoint()
        match one.end:
            case "raise":
                raise ValueError(f"no {index}")
            case "cancel":
                ctx.cancel_call(ctx.tool_call_id, f"gave up {index}")
                await anyio.lowlevel.checkpoint()
            case "native":
                # Raised by hand it is the tool's own on both backends.
                raise asyncio.CancelledError(f"gave up {index}")
            case "hang":
                await anyio.sleep_forever()
        return f"t{one.kind} {self.batch.argument(index)}"

    def _enter(self, index: int, kind: Kind) -> None:
        self.started.append(index)
        beside = [self.batch.kind(other) for other in self.running]
        if self.batch.cap is not None and len(beside) >= self.batch.cap:
            self.faults.append(f"{index}: past the cap")
        if kind.serial is not None and any(other.serial == kind.serial for other in beside):
            self.faults.append(f"{index}: its serial group is busy")
        if beside and (kind.exclusive or self.batch.sequential or any(other.exclusive for other in beside)):
            self.faults.append(f"{index}: not alone")
        if kind.capacity and sum(other.capacity for other in beside) >= self.batch.shared:
            self.faults.append(f"{index}: past the capacity")
        key = self.batch.receipt(index)
        if key is not None and key in [self.batch.receipt(other) for other in self.running]:
            self.faults.append(f"{index}: an equal call is running")
        self.running.append(index)


@attrs.frozen
class Ran:
    """The result of a batch's run."""

    records: Sequence[r.Record]
    calls: Sequence[Any]
    error: AgentLoopError | None
    items: Sequence[Any]
    took: float

    @property
    def statuses(self) -> list[str]:
        return [settled.outcome.status for settled in self.calls]


async def run(batch: Batch, bodies: Bodies, *, streamed: bool) -> Ran:
    """Run *batch* as the one turn of an agent that then says that it is done."""
    asked = [
        call(f"t{one.kind}", {"n": batch.argument(index)}, str(index))
        for index, one in enumerate(batch.calls)
        for _ in range(2 if one.twice else 1)
    ]
    agent: Agent[Any, Any] = Agent("guide", model=ScriptedModel([asked, say("done")]), tools=bodies.tools())
    mode: Any = "sequential" if batch.sequential else None
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=batch.cap, mode=mode))
    began = anyio.current_time()
    try:
        if streamed:
            async with Runner.run_streamed(agent, "go", run_config=config) as stream:
                async for _ in stream:
                    pass
            result: Any = stream.result
        else:
            result = await Runner.run(agent, "go", run_config=config)
        error = None
    except AgentLoopError as raised:
        result, error = raised.run_data, raised
    return Ran(result.records, result.calls, error, result.new_items, anyio.current_time() - began)


def check_log(batch: Batch, bodies: Bodies, ran: Ran) -> None:
    """Assert the properties that every log has, at any timing."""
    assert bodies.faults == []
    assert bodies.running == []
    count = len(batch.calls)
    settled = [record.call_id for record in ran.records if isinstance(record, r.CallSettled)]
    assert sorted(settled, key=int) == [str(index) for index in range(count)], "one ending for each call"
    started = [int(record.call_id) for record in ran.records if isinstance(record, r.CallStarted)]
    assert len(set(started)) == len(started), "a call starts once"
    assert sorted(started) == sorted(bodies.started)
    for group in {kind.serial for kind in batch.kinds} - {None}:
        order = [index for index in started if batch.kind(index).serial == group]
        # A call that waited for an equal one that failed comes after those that didn't wait.
        order = [index for index in order if not batch.kind(index).idempotent]
        assert order == sorted(order), "a serial group starts in model order"
    fold = RunFold()
    for record in ran.records:
        fold.apply(record)
    released = [int(item.call_id) for item in fold.new_items if isinstance(item, ToolOutput)]
    assert released == sorted(released), "outputs are released in model order"
    outputs = [int(item.call_id) for item in ran.items if isinstance(item, ToolOutput)]
    assert outputs == sorted(outputs)
    for event_ in ran.calls:
        outcome = event_.outcome
        assert (outcome.started_at is None) == (int(event_.call.call_id) not in started)
        if outcome.status == "replayed":
            assert outcome.output == f"{event_.call.name} {batch.argument(int(event_.call.call_id))}"


def check_against(batch: Batch, played: Player, bodies: Bodies, ran: Ran) -> None:
    """Assert that the run did as the model of the batch says."""
    assert ran.statuses == played.statuses
    assert set(bodies.started) == played.started
    if played.raised is None:
        assert ran.error is None
        return
    event("a failure ended the run")
    assert ran.error is not None
    assert f" {played.raised}" in str(ran.error)
    for settled in ran.calls:
        if int(settled.call.call_id) not in played.started and settled.outcome.status != "replayed":
            assert settled.outcome.cancelled_by == "sibling"


# ---------------------------------------------------------------------------------------------- the properties


@pytest.mark.slow
@pytest.mark.backends("trio-virtual")
@settings(max_examples=150)
@given(batch=batches(clock=True, raising=True), streamed=st.booleans())
async def test_a_batch_does_what_the_model_says_at_the_time_it_says(batch: Batch, streamed: bool) -> None:
    """On a virtual clock, statuses, started calls, the raised failure and the time taken are exactly the model's."""
    played = Player(batch).play()
    bodies = Bodies(batch, clock=True)
    ran = await run(batch, bodies, streamed=streamed)
    check_log(batch, bodies, ran)
    check_against(batch, played, bodies, ran)
    assert math.isclose(ran.took, played.now, abs_tol=1e-6)


@pytest.mark.slow
@settings(max_examples=60)
@given(batch=batches(clock=False, raising=False), streamed=st.booleans())
async def test_a_batch_that_is_told_the_model_does_the_same_without_a_clock(batch: Batch, streamed: bool) -> None:
    """Bodies only pass checkpoints: in any order and on every backend, the statuses are the model's."""
    played = Player(batch).play()
    bodies = Bodies(batch, clock=False)
    ran = await run(batch, bodies, streamed=streamed)
    check_log(batch, bodies, ran)
    check_against(batch, played, bodies, ran)


@pytest.mark.slow
@settings(max_examples=60)
@given(batch=batches(clock=False, raising=True), streamed=st.booleans())
async def test_whatever_the_timing_the_first_failure_by_class_and_place_is_raised(batch: Batch, streamed: bool) -> None:
    """Of the failures that came to be, errors precede cancellations, then model order decides; the others are notes."""
    bodies = Bodies(batch, clock=False)
    ran = await run(batch, bodies, streamed=streamed)
    check_log(batch, bodies, ran)
    failed = [
        (settled.outcome.status == "cancelled", int(settled.call.call_id))
        for settled in ran.calls
        if batch.kind(int(settled.call.call_id)).raises
        and (settled.outcome.status == "failed" or settled.outcome.cancelled_by in ("tool", "caller"))
    ]
    if not failed:
        assert ran.error is None
        return
    assert ran.error is not None
    _, index = min(failed)
    assert f" {index}" in str(ran.error)
    assert len(getattr(ran.error, "__notes__", [])) == len(failed) - 1


@pytest.mark.slow
@settings(max_examples=40)
@given(batch=batches(clock=False, raising=False))
def test_streamed_plain_trio_and_asyncio_logs_have_one_normal_form(batch: Batch) -> None:
    """Four runs of one batch have one normal form."""
    forms = []
    for backend in ("trio", "asyncio"):
        for streamed in (False, True):
            bodies = Bodies(batch, clock=False)

            async def once(bodies: Bodies = bodies, streamed: bool = streamed) -> Ran:
                return await run(batch, bodies, streamed=streamed)

            forms.append(normal(anyio.run(once, backend=backend).records))
    assert forms[0] == forms[1]
    assert forms[2] == forms[3]
    assert forms[0] == forms[2]
