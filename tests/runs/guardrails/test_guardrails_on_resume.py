"""Input guardrails of a run that resumes with another list: a pass belongs to the guardrail, not to its place."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from kit.agents import Run, make_agent, make_gated_tool, script_turns
from kit.results import find_records
from kit.resuming import Pauses, approve, copy_state, in_every_way, make_journal

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunState,
    input_guardrail,
)
from agentloop import records as r
from agentloop.exceptions import ModelTransportError
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, fail, say

PASSED = GuardrailFunctionOutput("fine")


class Guards:
    """Makes guardrails that note their names, and what they are given; those in *held* never come to an answer."""

    def __init__(self, held: Sequence[str] = (), tripping: Sequence[str] = ()) -> None:
        self.asked: list[str] = []
        self.given: list[list[str]] = []
        self.held = set(held)
        self.tripping = tripping
        self.waiting = anyio.Event()

    def __call__(self, name: str, *, parallel: bool = True, mark: str | None = None) -> Any:
        mark = mark or name

        async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            self.asked.append(mark)
            self.given.append([item.text for item in given])
            if mark in self.held:
                self.waiting.set()
                await anyio.sleep_forever()
            return GuardrailFunctionOutput(None, tripwire_triggered=mark in self.tripping)

        return input_guardrail(judge, name=name, run_in_parallel=parallel)

    def config(self, names: str, **options: Any) -> RunConfig:
        """Return a configuration with a guardrail for each letter of *names*."""
        return RunConfig(input_guardrails=[self(name, **options) for name in names])


def paying(*names: str, guards: Guards, ran: list[Any] | None = None) -> Agent[Any, Any]:
    """Return an agent that pays once it may, with guardrails of its own."""
    tools = [make_gated_tool([] if ran is None else ran, "pay")]
    return make_agent(tools, call("pay", {"n": 1}, "p1"), input_guardrails=[guards(name) for name in names])


LISTS = ["", "a", "b", "ab", "ba", "abc", "cab", "aab", "c"]


@pytest.mark.scenario("RP-09", "GI-10")
@pytest.mark.parametrize("after", LISTS)
@pytest.mark.parametrize("before", ["", "a", "ab", "aa"])
@in_every_way
async def test_input_that_was_accepted_is_judged_by_nobody_again(
    run_mode: Run, before: str, after: str, way: str
) -> None:
    """No guardrail of the new list judges the accepted input again; nor does the agent's own at its new place."""
    guards, ran = Guards(), []
    agent = paying("m", guards=guards, ran=ran)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=guards.config(before))
    assert sorted(guards.asked) == sorted(before + "m")
    result = await pauses.resume(agent, paused, approve(), run_config=guards.config(after))
    assert result.final_output == "done"
    assert sorted(guards.asked) == sorted(before + "m")
    assert ran == [("pay", 1)]


async def cut_in_judgement(run: Run, guards: Guards, agent: Agent[Any, Any], config: RunConfig) -> RunState:
    """Run until a guardrail is held, cancel, and return the state that is left, stored and read again."""
    journal = MemoryJournal()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await guards.waiting.wait()
                await anyio.wait_all_tasks_blocked()
                scope.cancel()

            group.start_soon(cancel)
            await run(agent, "go", run_config=config, journal=journal)
    guards.held.clear()
    guards.asked.clear()
    return await RunState.from_journal(agent, journal)


@pytest.mark.scenario("RP-09")
@pytest.mark.parametrize("parallel", [False, True], ids=["blocking", "parallel"])
@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ("ab", "b"),
        ("ba", "b"),
        ("b", "b"),
        ("a", ""),
        ("", ""),
        ("abc", "bc"),
        ("cab", "bc"),
        ("cba", "bc"),
        ("c", "c"),
        ("aab", "ab"),
        ("bab", "bb"),
    ],
)
async def test_of_input_that_was_not_accepted_who_has_passed_it_is_not_asked_again(
    run_mode: Run, parallel: bool, after: str, wanted: str
) -> None:
    """`a` has passed when the run is cut, `b` has not: all guardrails of the new list but `a` are asked."""
    guards = Guards(held="b")
    agent = Agent("guide", model=script_turns(say("done")))
    state = await cut_in_judgement(run_mode, guards, agent, guards.config("ab", parallel=parallel))
    result = await run_mode(agent, state, run_config=guards.config(after, parallel=parallel))
    assert result.final_output == "done"
    assert sorted(guards.asked) == sorted(wanted)
    assert all(given == ["go"] for given in guards.given)


@pytest.mark.scenario("RP-09")
async def test_guardrails_of_one_name_are_told_apart_by_their_order(run_mode: Run) -> None:
    """The first of them has passed, the second hasn't; a guardrail before them in the list changes nothing."""
    guards = Guards(held=["second"])
    agent = Agent("guide", model=script_turns(say("done")))
    pair = [guards("g", mark="first"), guards("g", mark="second")]
    state = await cut_in_judgement(run_mode, guards, agent, RunConfig(input_guardrails=pair))
    result = await run_mode(agent, state, run_config=RunConfig(input_guardrails=[guards("x"), *pair]))
    assert sorted(guards.asked) == ["second", "x"]
    settled = [(one.guardrail, one.nth) for one in find_records(result, r.GuardrailSettled)]
    assert sorted(settled) == [("g", 0), ("g", 1), ("x", 0)]


@pytest.mark.scenario("RP-09")
@pytest.mark.parametrize("parallel", [False, True], ids=["blocking", "parallel"])
async def test_a_log_that_breaks_off_anywhere_leaves_passes_with_their_guardrails(
    run_mode: Run, parallel: bool
) -> None:
    """The resumed list is reversed and longer: a pass stays, and a new guardrail is asked until all have passed."""
    agent = Agent(
        "guide", model=script_turns(call("pay", {"n": 1}, "p1"), say("done")), tools=[make_gated_tool([], "pay")]
    )
    journal = MemoryJournal()
    first = Guards()
    paused = await run_mode(agent, "go", run_config=first.config("abc", parallel=parallel), journal=journal)
    lines = await journal.read()
    assert paused.status == "interrupted"
    for kept in range(2, len(lines) + 1):
        state = await RunState.from_journal(agent, await make_journal(lines[:kept]))
        passed = {one.guardrail for one in state.records if isinstance(one, r.GuardrailSettled)}
        guards = Guards()
        again = await run_mode(agent, state, run_config=guards.config("ncba", parallel=parallel))
        assert again.status == "interrupted"
        wanted = set("abcn") - passed if len(passed) < 3 else set()
        assert (sorted(guards.asked), kept) == (sorted(wanted), kept)


@pytest.mark.scenario("RP-09")
async def test_a_model_that_could_not_be_reached_leaves_the_input_accepted(run_mode: Run) -> None:
    """The guardrails have passed the input before, so none is asked again, and no new one is."""
    guards = Guards()
    agent = Agent("guide", model=ScriptedModel([fail(ModelTransportError("down", status=400)), say("done")]))
    with pytest.raises(ModelTransportError) as caught:
        await run_mode(agent, "go", run_config=guards.config("ab", parallel=False))
    assert caught.value.run_data is not None
    state = copy_state(RunState(agent, caught.value.run_data.records), agent)
    result = await run_mode(agent, state, run_config=guards.config("xba", parallel=False))
    assert result.final_output == "done"
    assert sorted(guards.asked) == ["a", "b"]


@pytest.mark.scenario("RP-09", "GI-10")
async def test_added_input_is_judged_once_by_all_and_the_first_input_by_nobody_again(run_mode: Run) -> None:
    """The guardrails judge the added input alone; they don't judge it again when the model was not reached."""
    guards = Guards()
    down = fail(ModelTransportError("down", status=400))
    agent = Agent("guide", model=ScriptedModel([down, down, down, say("done")]))
    state: Any = "go"
    for names, added, asked in (("ab", None, "ab"), ("ba", "more", "ab"), ("bac", None, "")):
        if added is not None:
            state.add_input(added)
        guards.asked.clear()
        guards.given.clear()
        with pytest.raises(ModelTransportError) as caught:
            await run_mode(agent, state, run_config=guards.config(names, parallel=False))
        assert caught.value.run_data is not None
        state = copy_state(RunState(agent, caught.value.run_data.records), agent)
        assert sorted(guards.asked) == sorted(asked)
        assert all(given == [added or "go"] for given in guards.given)
    assert (await run_mode(agent, state)).final_output == "done"


@pytest.mark.scenario("RP-09")
async def test_input_added_before_the_first_was_accepted_is_judged_by_itself(run_mode: Run) -> None:
    """All guardrails judge the added input; of the first input those that have not passed it yet."""
    guards = Guards(held="b")
    agent = Agent("guide", model=script_turns(say("done")))
    state = await cut_in_judgement(run_mode, guards, agent, guards.config("ab", parallel=False))
    guards.given.clear()
    state.add_input("more")
    result = await run_mode(agent, state, run_config=guards.config("ab", parallel=False))
    assert result.final_output == "done"
    assert sorted(guards.asked) == ["a", "b", "b"]
    assert guards.given == [["more"], ["more"], ["go"]]


@pytest.mark.scenario("RP-09")
async def test_a_guardrail_that_is_asked_again_can_still_trip(run_mode: Run) -> None:
    """The guardrail that had not passed when the run was cut trips in the resumed run."""
    guards = Guards(held="b", tripping="b")
    agent = Agent("guide", model=script_turns(say("done")))
    state = await cut_in_judgement(run_mode, guards, agent, guards.config("ab"))
    with pytest.raises(InputGuardrailTripwireTriggered, match="b tripped"):
        await run_mode(agent, state, run_config=guards.config("ba"))


@pytest.mark.scenario("RP-09")
async def test_a_nested_run_keeps_its_passes(run_mode: Run) -> None:
    """The nested agent's guardrail keeps its pass, also at the new place a configuration gives it."""
    guards = Guards()
    inner = paying("m", guards=guards)
    agent = make_agent([inner.as_tool("ask", "asks")], call("ask", {"input": "x"}, "c1"))
    paused = await run_mode(agent, "go")
    assert guards.asked == ["m"]
    state = copy_state(paused.to_state(), agent)
    state.approve("p1")
    result = await Runner.run(agent, state, run_config=guards.config("xy"))
    assert result.final_output == "done"
    assert guards.asked == ["m"]
