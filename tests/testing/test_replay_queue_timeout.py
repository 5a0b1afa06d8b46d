"""Replay of runs whose calls wait for room, for an equal call or for their segment, and are skipped in the end."""

from itertools import product
from typing import Any

import anyio
import attrs
import pytest
from testing.recording import OneClock
from testing.test_replay_runs import comes_out_the_same, scripted

from agentloop import Agent, Capacity, Rate, RunConfig, Runner, ToolExecution, tool
from agentloop.exceptions import ReplayDivergence
from agentloop.records import CallSettled
from agentloop.testing import call, say
from agentloop.testing.fixtures import VirtualClock
from agentloop.testing.replaying import replay

QUEUE_TIMEOUT = 0.6
TURNS = (
    "aab",  # an equal call waits for the first, and leads when that one has failed
    "abbab",  # several do, on both sides of other calls
    "bab",  # the first waits for room itself
    "a.b.a",  # calls that no other call answers stand between
    "a?a",  # a call waits for a verdict: the others have been settled in an earlier segment
    "??a",
    "ai",  # a nested run has equal calls that wait for the same room
    "iiab",
)
"""By its letters, the calls of a turn: equal ones of an idempotent tool, or of other tools."""
ENDS = ("returns", "raises", "times out")


def waiting_agent(turn: str, end: str, after: float, limits: dict[str, Any], **options: Any) -> Agent[Any, Any]:
    """Return an agent whose first equal calls, of `a`, come to their *end* *after* some time; all have *limits*."""

    async def work(kind: str) -> str:
        """Do something for a while."""
        if kind != "a":
            await anyio.sleep(0.2)
        elif end == "times out":
            with anyio.CancelScope(shield=True):
                await anyio.sleep(after)
            await anyio.sleep_forever()
        else:
            await anyio.sleep(after)
            if end == "raises":
                raise ValueError(kind)
        return kind

    timeout = after - 0.05 if end == "times out" else None
    tools = [
        tool(name="equal", idempotent=True, timeout=timeout, **limits)(work),
        tool(name="other", **limits)(work),
        tool(name="asked", needs_approval=True, **limits)(work),
    ]
    nested = [call("equal", {"kind": "a"}, id_) for id_ in ("i1", "i2")]
    nested.append(call("other", {"kind": "b"}, "i3"))
    inner = Agent("inner", tools=tools[:2], model=scripted(nested, say("inner done")))
    names = {".": "other", "?": "asked"}
    calls = [
        call("inner", {"input": "go"}, f"c{n}")
        if letter == "i"
        else call(names.get(letter, "equal"), {"kind": letter}, f"c{n}")
        for n, letter in enumerate(turn, 1)
    ]
    return Agent("a", tools=[*tools, inner.as_tool()], model=scripted(calls, say("done")), **options)


ROOMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rate": ({"capacity": Rate(1, 4.0)}, {}),
    "two by rate": ({"capacity": Rate(2, 4.0)}, {}),
    "capacity": ({"capacity": Capacity(1, "desk")}, {}),
    "capacity and rate": ({"capacity": (Capacity(1, "desk"), Rate(1, 4.0))}, {}),
    "serial": ({"serial": "group"}, {}),
    "serial, by rate": ({"serial": "group", "capacity": Rate(1, 4.0)}, {}),
    "exclusive, by rate": ({"exclusive": True, "capacity": Rate(1, 4.0)}, {}),
    "sequential, by rate": ({"capacity": Rate(1, 4.0)}, {"tool_execution": "sequential"}),
}
"""What the calls wait for: their limits, and the options of their agent."""


QUICK = ("rate",)
"""The rooms that are looked at in each run of the tests; each takes seconds."""


@pytest.mark.parametrize(
    "room", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ROOMS]
)
def test_skipped_calls_are_replayed_in_their_order_whatever_they_waited_for(room: str) -> None:
    """The first call ends before, at or after the queue's timeout, so that equal calls wait for room from then on."""
    skipped = 0
    for turn, end, after in product(TURNS, ENDS, (0.3, QUEUE_TIMEOUT, 0.9)):
        limits, options = ROOMS[room]
        starts = iter((0.0, 60.0))  # both clocks begin at 0, and a rate remembers

        async def in_segments(agent: Agent[Any, Any], config: RunConfig, starts: Any = starts) -> None:
            await anyio.sleep(next(starts))
            live = attrs.evolve(config, effects=OneClock())
            result = await Runner.run(agent, "go", run_config=live)
            while result.status == "interrupted":
                state = result.to_state()
                for request in list(state.interruptions):
                    state.approve(request)
                config.instruments[0].records.extend(state.records[len(result.records) :])  # type: ignore[attr-defined]
                result = await Runner.run(agent, state, run_config=live)

        config = RunConfig(tool_execution=ToolExecution(queue_timeout=QUEUE_TIMEOUT))
        agent = waiting_agent(turn, end, after, limits, **options)
        replays = comes_out_the_same(agent, config=config, run=in_segments, start=VirtualClock().run)
        settled = [one.outcome.status for one in replays[0].records if isinstance(one, CallSettled)]
        skipped += settled.count("skipped")
    assert skipped >= len(TURNS)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("after", [0.3, QUEUE_TIMEOUT])
def test_a_replay_without_the_queue_timeout_diverges_at_the_first_skipped_call(after: float, backend: Any) -> None:
    """No call can be skipped any more: the divergence says so, whether or not another record came just before."""
    agent = waiting_agent("aab", "raises", after, {"capacity": Rate(1, 4.0)})
    config = RunConfig(tool_execution=ToolExecution(queue_timeout=QUEUE_TIMEOUT), effects=OneClock())
    records = VirtualClock().run(lambda: Runner.run(agent, "go", run_config=config)).records
    skipped = [n for n, one in enumerate(records) if isinstance(one, CallSettled) and one.outcome.status == "skipped"]
    with pytest.raises(ReplayDivergence, match=r"queue_timeout|no such record") as raised:
        replay(records, agent, run_config=RunConfig(), backend=backend)
    assert raised.value.n == skipped[0]
