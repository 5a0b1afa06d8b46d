"""Generated runs that pause: in any order of verdicts, each approved body runs once, each rejected never.

A run is a few turns of calls, some of which go to an agent tool with a turn of its own. At each pause some of the
waiting calls get a verdict; the run resumes from the state itself, from its JSON, or from its journal.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import anyio
import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from agentloop import Agent, RunConfig, Runner, RunResult, RunState, ToolExecution, tool
from agentloop.items import Item, ToolCall, ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say

Verdict = Literal["approve", "reject", "edit"]
Place = tuple[tuple[str, ...], str]

# ---------------------------------------------------------------------------------------------- what is generated


@attrs.frozen
class Wanted:
    """One call: of a tool that waits or doesn't, or of the agent tool, whose run makes the calls of *nested*."""

    gated: bool
    nested: tuple["Wanted", ...] = ()
    verdict: Verdict = "approve"
    steps: int = 0
    """Scheduler passes its body takes."""


LEAVES = st.builds(
    Wanted,
    gated=st.booleans(),
    verdict=st.sampled_from(["approve", "approve", "reject", "edit"]),
    steps=st.integers(0, 3),
)
AGENT_CALLS = st.builds(
    Wanted, gated=st.sampled_from([False, False, True]), nested=st.lists(LEAVES, min_size=1, max_size=3).map(tuple)
)
TURNS = st.lists(st.lists(LEAVES | AGENT_CALLS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3)


@attrs.frozen
class Plan:
    """The turns of a run, how many bodies may run at once, and where each later entry comes from.

    `picks` say for each pause what of all that waits is decided on, and in which order; after the last one, all of it.
    """

    turns: tuple[tuple[Wanted, ...], ...]
    cap: int | None
    way: Literal["direct", "json", "journal"]
    picks: tuple[int, ...]

    def calls(self) -> Iterator[tuple[Place, Wanted]]:
        """Give every call of the tree with its place, those of rejected agent tools included."""
        for turn, calls in enumerate(self.turns):
            for index, wanted in enumerate(calls):
                name = f"t{turn}c{index}"
                yield ((), name), wanted
                for inner, one in enumerate(wanted.nested):
                    yield ((name,), f"n{inner}"), one

    def at(self, place: Place) -> Wanted:
        """Return the call at a place."""
        return dict(self.calls())[place]


PLANS = st.builds(
    Plan,
    turns=TURNS.map(tuple),
    cap=st.sampled_from([1, 2, None]),
    way=st.sampled_from(["direct", "json", "journal"]),
    picks=st.lists(st.integers(0, 1 << 16), max_size=12).map(tuple),
)


def picked(waiting: Sequence[Any], pick: int | None) -> list[Any]:
    """Return what is decided on, in its order; *pick* is read as digits of ever smaller bases."""
    if pick is None:
        return list(waiting)
    pick, count = divmod(pick, len(waiting) + 1)
    left = list(waiting)
    chosen: list[Any] = []
    while len(chosen) < count:
        pick, place = divmod(pick, len(left))
        chosen.append(left.pop(place))
    return chosen


# ---------------------------------------------------------------------------------------------- the agents


def check_shown(items: Sequence[Item]) -> None:
    """Check what a model is shown: after each batch of calls their outputs, each once and in the calls' order."""
    due: list[str] = []
    for item in items:
        if isinstance(item, ToolCall):
            due.append(item.call_id)
        elif isinstance(item, ToolOutput):
            assert due, f"an output of {item.call_id} that no call waits for"
            assert item.call_id == due.pop(0)
    assert not due, f"calls without an output: {due}"


class Bench:
    """The agents of a plan, and what their bodies did: by the label in their arguments."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ran: list[str] = []
        self.shown: list[tuple[str, dict[str, Any]]] = []
        body = self._body
        open_tool = tool(name="free")(body)
        held_tool = tool(name="gated", needs_approval=True)(body)
        inner: Agent[Any, Any] = Agent("inner", model=FunctionModel(self._inner), tools=[open_tool, held_tool])
        self.agent: Agent[Any, Any] = Agent(
            "outer",
            model=FunctionModel(self._outer),
            tools=[open_tool, held_tool, inner.as_tool("dig"), inner.as_tool("dig_gated", needs_approval=True)],
        )

    async def _body(self, label: str, steps: int) -> str:
        self.ran.append(label)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        return f"did {label}"

    def _call(self, place: Place, wanted: Wanted) -> Any:
        if wanted.nested:
            return call("dig_gated" if wanted.gated else "dig", {"input": place[1]}, place[1])
        label = "/".join((*place[0], place[1]))
        return call("gated" if wanted.gated else "free", {"label": label, "steps": wanted.steps}, place[1])

    def _outer(self, request: ModelRequest) -> Any:
        turn = self._seen("", request)
        if turn >= len(self.plan.turns):
            return say("over")
        return [self._call(((), f"t{turn}c{index}"), one) for index, one in enumerate(self.plan.turns[turn])]

    def _inner(self, request: ModelRequest) -> Any:
        [path] = request.path
        if self._seen(path, request):
            return say(f"dug {path}")
        wanted = self.plan.at(((), path))
        return [self._call(((path,), f"n{index}"), one) for index, one in enumerate(wanted.nested)]

    def _seen(self, who: str, request: ModelRequest) -> int:
        """Check what the model is shown, keep it, and return how many batches it has had."""
        check_shown(request.items)
        outputs = {item.call_id: item.output for item in request.items if isinstance(item, ToolOutput)}
        self.shown.append((who, outputs))
        return len({call_id.partition("c")[0] for call_id in outputs}) if not who else bool(outputs)


# ---------------------------------------------------------------------------------------------- the runs


async def run_through(plan: Plan) -> tuple[Bench, RunResult[Any], set[Place]]:
    """Run *plan* to its end over all its pauses; return also which calls had to be approved."""
    bench = Bench(plan)
    journal = MemoryJournal() if plan.way == "journal" else None
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=plan.cap))
    result = await Runner.run(bench.agent, "go", run_config=config, journal=journal)
    decided: set[Place] = set()
    picks = list(plan.picks)
    entries = 1
    while result.status == "interrupted":
        state: RunState = result.to_state()
        assert RunState.from_json(bench.agent, json.loads(json.dumps(state.to_json()))) == state
        if plan.way == "json":
            state = RunState.from_string(bench.agent, state.to_string())
        elif journal is not None:
            state = await RunState.from_journal(bench.agent, journal)
        assert state.interruptions == result.interruptions
        waiting = list(result.interruptions)
        assert waiting
        chosen = picked(waiting, picks.pop(0) if picks else None)
        for request in chosen:
            decided.add(decide(plan, state, request, decided))
        before = len(bench.shown)
        result = await Runner.run(bench.agent, state, run_config=config, journal=journal)
        if not chosen:
            assert len(bench.shown) == before
            assert set(result.interruptions) == set(waiting)
        entries += 1
    event(f"{min(entries, 6)} entries")
    return bench, result, decided


def decide(plan: Plan, state: RunState, request: Any, decided: set[Place]) -> Place:
    """Give the verdict that the plan has for what *request* asks, which is asked once."""
    place = (request.path, request.call.call_id)
    assert place not in decided, f"{place} was asked about again"
    wanted = plan.at(place)
    assert wanted.gated
    match wanted.verdict:
        case "reject":
            state.reject(request, message="no")
        case "edit" if not wanted.nested:
            label = "/".join((*place[0], place[1]))
            state.approve(request, arguments={"label": f"{label}!", "steps": wanted.steps})
        case _:
            state.approve(request)
    return place


def expected_bodies(plan: Plan) -> list[str]:
    """Return the labels of the bodies that run in the end."""
    labels = []
    for (path, call_id), wanted in plan.calls():
        if wanted.nested or (wanted.gated and wanted.verdict == "reject"):
            continue
        label = "/".join((*path, call_id))
        labels.append(f"{label}!" if wanted.gated and wanted.verdict == "edit" else label)
    return sorted(labels)


def expected_output(place: Place, wanted: Wanted) -> str:
    """Return what the model is shown of a call in the end."""
    if wanted.nested:
        return f"dug {place[1]}"
    if wanted.gated and wanted.verdict == "reject":
        return "no"
    label = "/".join((*place[0], place[1]))
    return f"did {label}!" if wanted.gated and wanted.verdict == "edit" else f"did {label}"


@pytest.mark.slow
@given(plan=PLANS)
@settings(max_examples=40)
@pytest.mark.scenario("AP-03", "AP-14", "NA-04")
async def test_every_verdict_has_its_one_consequence_whatever_the_order(plan: Plan) -> None:
    """Bodies, outputs, questions and what the models see are those of the plan; nothing is asked or done twice."""
    bench, result, decided = await run_through(plan)
    assert (result.status, result.final_output) == ("completed", "over")
    assert sorted(bench.ran) == expected_bodies(plan)
    assert decided == {place for place, wanted in plan.calls() if wanted.gated}
    places = dict(plan.calls())
    finals: dict[str, dict[str, Any]] = dict(bench.shown)
    for (path, call_id), wanted in places.items():
        who = path[0] if path else ""
        assert finals[who][call_id] == expected_output((path, call_id), wanted)
    assert len(bench.shown) == len(plan.turns) + 1 + 2 * sum(bool(one.nested) for one in places.values())
    assert result.usage.requests == len(bench.shown)
