"""Generated batches of calls against a small model of what must become of each call.

The model knows nothing of tasks or scopes. It plays time forward call by call: who is admitted, how each body ends and
when, and what a failure that is to be raised does to the rest. Times are whole numbers, and every event has a time of
its own unless two calls are meant to end together, so the outcome doesn't depend on the order inside one pass.
"""

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
    RunConfig,
    Runner,
    ToolContext,
    ToolExecution,
    tool,
)
from agentloop import records as r
from agentloop.items import ToolOutput
from agentloop.testing import ScriptedModel, call, normal, say

End = Literal["return", "raise", "cancel", "hang"]
TIMEOUT = 7

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


@attrs.frozen
class Wanted:
    """One call: of which tool, how long its body takes, and how that ends. `key` tells idempotent calls apart."""

    kind: int
    delay: int
    end: End
    key: int


@attrs.frozen
class Batch:
    """One turn's calls under one configuration."""

    kinds: tuple[Kind, ...]
    calls: tuple[Wanted, ...]
    cap: int | None
    shared: int
    sequential: bool


KINDS = st.builds(
    Kind,
    raises=st.sampled_from([False, False, False, True]),
    timeout=st.booleans(),
    serial=st.sampled_from([None, None, "s", "t"]),
    exclusive=st.sampled_from([False, False, False, True]),
    idempotent=st.booleans(),
    capacity=st.booleans(),
)
CALLS = st.builds(
    Wanted,
    kind=st.integers(0, 2),
    delay=st.integers(0, 4),
    end=st.sampled_from(["return", "return", "return", "raise", "cancel", "hang"]),
    key=st.integers(0, 1),
)


@st.composite
def batches(draw: st.DrawFn, *, raising: bool = True) -> Batch:
    """Return a batch whose calls all end: what hangs has a timeout."""
    kinds = draw(st.tuples(KINDS, KINDS, KINDS))
    if not raising:
        kinds = tuple(attrs.evolve(kind, raises=False) for kind in kinds)  # type: ignore[assignment]
    calls = draw(st.lists(CALLS, min_size=1, max_size=7))
    ending = [
        attrs.evolve(one, end="return") if one.end == "hang" and not kinds[one.kind].timeout else one for one in calls
    ]
    return Batch(
        kinds,
        tuple(ending),
        draw(st.sampled_from([None, None, 1, 2, 3])),
        draw(st.integers(1, 2)),
        draw(st.sampled_from([False, False, False, True])),
    )


# ---------------------------------------------------------------------------------------------- the model


def _receipt(batch: Batch, index: int) -> tuple[int, int] | None:
    """Equal calls of an idempotent tool: the body is decided by the key's first call."""
    one = batch.calls[index]
    return (one.kind, one.key) if batch.kinds[one.kind].idempotent else None


def arguments(batch: Batch, index: int) -> dict[str, int]:
    """Return a call's arguments; of an idempotent tool equal calls have equal ones."""
    one = batch.calls[index]
    return {"n": one.key if batch.kinds[one.kind].idempotent else 100 + index}


@attrs.define
class Played:
    """What the model says of a batch."""

    statuses: list[str]
    started: set[int]
    raised: int | None
    took: float


@attrs.define
class Player:
    """Plays one batch in whole seconds."""

    batch: Batch
    now: float = 0
    waiting: list[int] = attrs.field(factory=list)
    running: dict[int, float] = attrs.field(factory=dict)
    status: dict[int, str] = attrs.field(factory=dict)
    started: set[int] = attrs.field(factory=set)
    passed: dict[int, int] = attrs.field(factory=dict)
    receipts: set[tuple[int, int]] = attrs.field(factory=set)

    def play(self) -> Played:
        for segment in self._segments():
            self.waiting = list(segment)
            while self.waiting or self.running:
                self._admit()
                if not self.running:
                    continue
                self.now = min(self.running.values())
                ended = sorted(index for index, at in self.running.items() if at == self.now)
                failed = [index for index in ended if self._end(index)]
                if failed:
                    return self._stop(failed)
        return Played(self._statuses(), self.started, None, self.now)

    def _segments(self) -> list[list[int]]:
        segments: list[list[int]] = [[]]
        for index, one in enumerate(self.batch.calls):
            alone = self.batch.sequential or self.batch.kinds[one.kind].exclusive
            if alone:
                segments += [[index], []]
            else:
                segments[-1].append(index)
        return segments

    def _admit(self) -> None:
        asked: set[tuple[int, int]] = set()
        groups: set[str] = set()
        for index in list(self.waiting):
            kind = self.batch.kinds[self.batch.calls[index].kind]
            key = _receipt(self.batch, index)
            if key is not None:
                if key in self.receipts:
                    self.status[index] = "replayed"
                    self.waiting.remove(index)
                    continue
                if key in asked or any(_receipt(self.batch, other) == key for other in self.running):
                    continue  # an equal call goes first, and this one holds nothing meanwhile
                asked.add(key)
            if kind.serial in groups or not self._room(kind):
                if kind.serial is not None:
                    groups.add(kind.serial)
                continue
            self.waiting.remove(index)
            self.started.add(index)
            self.running[index] = self.now + self._length(index)

    def _room(self, kind: Kind) -> bool:
        kinds = [self.batch.kinds[self.batch.calls[index].kind] for index in self.running]
        if self.batch.cap is not None and len(kinds) >= self.batch.cap:
            return False
        if kind.serial is not None and any(other.serial == kind.serial for other in kinds):
            return False
        return not kind.capacity or sum(other.capacity for other in kinds) < self.batch.shared

    def _length(self, index: int) -> float:
        return TIMEOUT if self.batch.calls[index].end == "hang" else self.batch.calls[index].delay

    def _end(self, index: int) -> bool:
        """Settle a call whose time has come; True if its failure ends the run."""
        one = self.batch.calls[index]
        del self.running[index]
        self.status[index] = {"return": "succeeded", "raise": "failed", "cancel": "cancelled", "hang": "timed_out"}[
            one.end
        ]
        key = _receipt(self.batch, index)
        if key is not None and one.end == "return":
            self.receipts.add(key)
        # A timeout is told the model whatever the failure function is.
        return self.batch.kinds[one.kind].raises and one.end in ("raise", "cancel")

    def _stop(self, failed: Sequence[int]) -> Played:
        first = min(failed, key=lambda index: (self.batch.calls[index].end == "cancel", index))
        return Played(self._statuses(), self.started, first, self.now)

    def _statuses(self) -> list[str]:
        return [self.status.get(index, "cancelled") for index in range(len(self.batch.calls))]


# ---------------------------------------------------------------------------------------------- the real thing


class Bodies:
    """The tools of a batch, and what was seen of their bodies."""

    def __init__(self, batch: Batch, *, clock: bool) -> None:
        self.batch = batch
        self._clock = clock
        self._shared = Capacity(batch.shared, "shared")
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
        return tool(
            name=f"t{number}",
            serial=kind.serial,
            exclusive=kind.exclusive,
            idempotent=kind.idempotent,
            capacity=[self._shared] if kind.capacity else [],
            timeout=(TIMEOUT if self._clock else 0.001) if kind.timeout else None,
            **options,
        )(body)

    async def _run(self, ctx: ToolContext[Any], index: int) -> str:
        one = self.batch.calls[index]
        if self._clock:
            await anyio.sleep(one.delay)
        else:
            for _ in range(one.delay):
                await anyio.lowlevel.checkpoint()
        match one.end:
            case "raise":
                raise ValueError(f"no {index}")
            case "cancel":
                ctx.cancel_call(ctx.tool_call_id, f"gave up {index}")
                await anyio.lowlevel.checkpoint()
            case "hang":
                await anyio.sleep_forever()
        return f"t{one.kind} {arguments(self.batch, index)['n']}"

    def _enter(self, index: int, kind: Kind) -> None:
        self.started.append(index)
        beside = [self.batch.kinds[self.batch.calls[other].kind] for other in self.running]
        if self.batch.cap is not None and len(beside) >= self.batch.cap:
            self.faults.append(f"{index}: past the cap")
        if kind.serial is not None and any(other.serial == kind.serial for other in beside):
            self.faults.append(f"{index}: its serial group is busy")
        if beside and (kind.exclusive or self.batch.sequential or any(other.exclusive for other in beside)):
            self.faults.append(f"{index}: not alone")
        if kind.capacity and sum(other.capacity for other in beside) >= self.batch.shared:
            self.faults.append(f"{index}: past the capacity")
        key = _receipt(self.batch, index)
        if key is not None and key in [_receipt(self.batch, other) for other in self.running]:
            self.faults.append(f"{index}: an equal call is running")
        self.running.append(index)


@attrs.frozen
class Ran:
    """What a run of a batch left."""

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
        call(f"t{one.kind}", arguments(batch, index), str(index)) for index, one in enumerate(batch.calls)
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
    """What holds of every log, whatever the timing."""
    assert bodies.faults == []
    assert bodies.running == []
    count = len(batch.calls)
    settled = [record.call_id for record in ran.records if isinstance(record, r.CallSettled)]
    assert sorted(settled, key=int) == [str(index) for index in range(count)], "one ending for each call"
    started = [int(record.call_id) for record in ran.records if isinstance(record, r.CallStarted)]
    assert len(set(started)) == len(started), "a call starts once"
    assert sorted(started) == sorted(bodies.started)
    for group in {kind.serial for kind in batch.kinds} - {None}:
        order = [index for index in started if batch.kinds[batch.calls[index].kind].serial == group]
        if not any(batch.kinds[batch.calls[index].kind].idempotent for index in order):
            assert order == sorted(order), "a serial group starts in model order"
    released = [int(record.call_id) for record in ran.records if isinstance(record, r.ItemReleased)]
    assert released == sorted(released), "outputs are released in model order"
    outputs = [int(item.call_id) for item in ran.items if isinstance(item, ToolOutput)]
    assert outputs == sorted(outputs)
    for event_ in ran.calls:
        outcome = event_.outcome
        assert (outcome.started_at is None) == (int(event_.call.call_id) not in started)
        if outcome.status == "replayed":
            assert outcome.output == f"{event_.call.name} {arguments(batch, int(event_.call.call_id))['n']}"


def check_against(batch: Batch, played: Played, bodies: Bodies, ran: Ran) -> None:
    """What the model says."""
    assert ran.statuses == played.statuses
    assert set(bodies.started) == played.started
    if played.raised is None:
        assert ran.error is None
        return
    event("a failure ended the run")
    assert ran.error is not None
    assert f" {played.raised}" in str(ran.error)
    for settled in ran.calls:
        index = int(settled.call.call_id)
        if index not in played.started:
            assert settled.outcome.cancelled_by == "sibling" or settled.outcome.status == "replayed"


def unique_ends(batch: Batch) -> bool:
    """Whether no two of the running calls of the model end in one moment, and nothing ends when it begins."""
    player = Player(batch)
    seen: list[float] = []
    ending = player._end

    def end(index: int) -> bool:
        seen.append(player.now)
        return ending(index)

    player_type: Any = player
    object.__setattr__(player_type, "_end", end) if not hasattr(player_type, "__slots__") else None
    return len(set(seen)) == len(seen)


# ---------------------------------------------------------------------------------------------- the properties


@pytest.mark.slow
@pytest.mark.backends("trio-virtual")
@settings(max_examples=150)
@given(batch=batches(), streamed=st.booleans())
async def test_a_batch_does_what_the_model_says_at_the_time_it_says(batch: Batch, streamed: bool) -> None:
    """Statuses, who started, who is raised and how long all took, exactly, on a virtual clock."""
    played = Player(batch).play()
    bodies = Bodies(batch, clock=True)
    ran = await run(batch, bodies, streamed=streamed)
    check_log(batch, bodies, ran)
    check_against(batch, played, bodies, ran)
    assert math.isclose(ran.took, played.took, abs_tol=1e-6)


@pytest.mark.slow
@settings(max_examples=60)
@given(batch=batches(raising=False), streamed=st.booleans())
async def test_a_batch_that_is_told_the_model_does_the_same_without_a_clock(batch: Batch, streamed: bool) -> None:
    """Bodies that only pass checkpoints: the statuses are the model's on every backend, whatever the order."""
    played = Player(batch).play()
    bodies = Bodies(batch, clock=False)
    ran = await run(batch, bodies, streamed=streamed)
    check_log(batch, bodies, ran)
    check_against(batch, played, bodies, ran)


def _timeless(batch: Batch) -> bool:
    """Whether who runs doesn't depend on which of two equal calls comes first in time."""
    return not any(batch.kinds[one.kind].timeout for one in batch.calls)


@pytest.mark.slow
@settings(max_examples=40)
@given(batch=batches(raising=False))
def test_streamed_plain_trio_and_asyncio_logs_have_one_normal_form(batch: Batch) -> None:
    """Four runs of one batch, one normal form."""
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
