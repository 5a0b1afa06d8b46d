"""A failed search gives the smallest script and tape it can find, and a text that a person can read."""

from typing import Any

import anyio.lowlevel
import attrs
import pytest
from testing.till import agent as till

from agentloop import Agent, GuardrailFunctionOutput, RunHooks, handoff, input_guardrail, tool
from agentloop import testing as t
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage
from agentloop.sessions import MemorySession
from agentloop.testing import call, fail, reason, respond, say, wait
from agentloop.testing.simulation._findings import FindingJudge
from agentloop.testing.simulation._shrink import shrunk
from agentloop.testing.simulation._timeline import script_as_code, timeline

DONE = say("done")


@tool
async def step(n: int) -> int:
    """Take two steps."""
    await anyio.lowlevel.checkpoint()
    return n


inner: Agent[Any, Any] = Agent("inner", tools=[step])
outer: Agent[Any, Any] = Agent("outer", tools=[step, inner.as_tool()])


def smallest(world: t.World, check: Any) -> t.WorldRun:
    """Return the run that the finding of *check* in *world* is made small to."""
    judge = FindingJudge(check)
    finding = judge(t.run_one(world))
    assert finding is not None
    best, runs = shrunk(finding, judge)
    assert runs > 0
    return best.run


# ---------------------------------------------------------------------------------------------- small


def test_script_is_made_as_small_as_the_fault_allows() -> None:
    """Steps, calls, nested scripts and behaviours that have no part in it go."""

    async def answers(body: t.Body) -> int:
        return 7

    world = t.World(
        agent=outer,
        script=[
            [call("step", {"n": 1}, call_id="a"), call("inner", {"input": "x"}, call_id="b")],
            [call("step", {"n": 2}, call_id="c"), call("inner", {"input": "y"}, call_id="d")],
            DONE,
        ],
        nested={"b": [[call("step", {"n": 3}), call("step", {"n": 4})], say("b")], "d": [say("d")]},
        behaviors={"c": answers, "elsewhere": answers},
    )

    def check(r: t.WorldRun) -> None:
        deep = [body.arguments for body in r.bodies if body.path == ("b",)]
        assert '{"n": 4}' not in deep

    run = smallest(world, check)
    assert script_as_code(run.world.script or ()) == "[[call('inner', {'input': 'x'}, call_id='b')], say('done')]"
    assert script_as_code(run.world.nested["b"]) == "[[call('step', {'n': 4})], say('b')]"
    assert set(run.world.nested) == {"b"}
    assert run.world.behaviors == {}


def test_tape_is_made_as_small_as_the_fault_allows() -> None:
    """A single number that isn't zero is left: the place where the order matters."""
    script = [[call("step", {"n": n}, call_id=f"c{n}") for n in range(3)], DONE]

    def check(r: t.WorldRun) -> None:
        order = [body.call_id for body in sorted(r.bodies, key=lambda body: body.ended or 0)]
        assert order.index("c2") > order.index("c0"), order

    world = t.World(agent=outer, script=script, tape=[5, 4, 3, 2, 5, 1, 4, 2])
    run = smallest(world, check)
    assert [number for number in run.tape if number] == [1]
    assert len(run.bodies) == 2


def test_another_fault_is_not_taken_for_the_one_that_was_found() -> None:
    """A smaller script that fails for want of an answer says nothing about the check."""

    def check(r: t.WorldRun) -> None:
        assert r.result is not None
        assert r.result.final_output != "done"

    run = smallest(t.World(agent=outer, script=[call("step", {"n": 1}), call("step", {"n": 2}), DONE]), check)
    assert script_as_code(run.world.script or ()) == "[say('done')]"
    assert run.error is None


def test_finding_of_a_world_without_a_script_keeps_its_agent() -> None:
    """A world without a script has only its tape to make small."""

    def make() -> Agent[Any, Any]:
        return Agent(
            "own", model=t.ScriptedModel([[call("step", {"n": 1}), call("step", {"n": 2})], DONE]), tools=[step]
        )

    def check(r: t.WorldRun) -> None:
        assert r.executions("step") < 2

    with pytest.raises(t.ExplorationFailure, match=r"explore\(make, None, check, tape=\[\], backends=\['asyncio'\]\)"):
        t.explore(make, None, check, order="steps")


# ---------------------------------------------------------------------------------------------- readable


def test_timeline_tells_everything_that_happens_in_order() -> None:
    """The timeline shows guardrails, nested runs and their paths, failures, handoffs, sessions, and choices."""

    @input_guardrail
    async def polite(ctx: Any, agent: Any, items: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, False)

    class Waiting(RunHooks):  # so that a body ends before its call settles
        async def on_tool_end(self, *_: Any) -> None:
            await anyio.lowlevel.checkpoint()

    second: Agent[Any, Any] = Agent("second")
    first: Agent[Any, Any] = Agent(
        "first", tools=[inner.as_tool(), step], handoffs=[handoff(second)], input_guardrails=[polite]
    )
    script = [
        [reason("hm"), call("inner", {"input": "x" * 200}, call_id="b"), call("step", {"n": 1}, call_id="s")],
        call("transfer_to_second", call_id="h"),
        DONE,
    ]
    world = t.World(
        agent=first,
        script=script,
        nested={"b": [say("b")]},
        options={"session": MemorySession, "hooks": Waiting},
        tape=[1] * 9,
    )
    run = t.run_one(world)
    assert run.error is None, run.error
    told = timeline(run)
    for line in (
        "run of first starts",
        "input guardrail polite: passed",
        "turn 1: the model is asked",
        "Reasoning; calls inner",
        "[b] run of inner starts",
        "[b] the model: says 'b'",
        's step starts {"n": 1}',
        "s body returned",
        "b inner succeeded: b",
        "hands over by transfer_to_second (h)",
        "first hands over to second",
        "items are in the session",
        "run ends: completed",
        "- the schedule lets go on: ",
    ):
        assert line in told, told
    assert max(map(len, told.splitlines())) < 220


def test_timeline_tells_failures_verdicts_and_cancellations() -> None:
    """The timeline says what was the matter with each."""

    @tool(needs_approval=True)
    async def pay() -> str:
        raise ValueError("no money")

    payer: Agent[Any, Any] = Agent("payer", tools=[pay])
    script = [[call("pay", call_id="p"), call("pay", call_id="q")], fail(ModelTransportError("gone"))]
    verdicts = (t.Verdict(call_id="p"), t.Verdict(call_id="q", approved=False))
    told = timeline(t.run_one(t.World(agent=payer, script=script, verdicts=verdicts)))
    for line in (
        "p pay waits for a verdict",
        "run ends: interrupted",
        "p is approved",
        "q is rejected",
        "run goes on",
        "p body raised",
        "p pay failed: Tool pay failed with: ValueError(no money)",
        "the model call failed: ModelTransportError(gone)",
        "run ends: failed (ModelTransportError(gone))",
    ):
        assert line in told, told
    script = [call("look"), DONE]
    cancelled = timeline(t.run_one(t.World(agent=till, script=script, cancel=t.CancelAt(6), context=list)))
    assert "- the caller cancels (step 6)" in cancelled
    assert "run ends: cancelled" in cancelled


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([say("hi")], "[say('hi')]"),
        ([[call("a"), say("b")]], "[[call('a'), say('b')]]"),
        ([call("b", "{broken", call_id="x", namespace="n")], "[call('b', '{broken', call_id='x', namespace='n')]"),
        ([call("a", "[1]")], "[call('a', '[1]')]"),
        ([fail(ValueError("no")), wait(2)], "[fail(ValueError('no')), wait(2)]"),
        ([timeline], "[timeline]"),
    ],
)
def test_script_is_printed_as_the_code_that_makes_it(steps: Any, code: str) -> None:
    """A reader can copy the printed code and has the script."""
    assert script_as_code(steps) == code


def test_whole_items_of_a_script_are_printed_as_they_are() -> None:
    """The repr of an item shows all that it holds."""
    assert "AssistantMessage" in script_as_code([respond(AssistantMessage("hi"))])


def test_repeating_line_names_what_must_be_given_again() -> None:
    """The line has nested scripts in full, context and options by name, and the order where it isn't the usual one."""

    def check(r: t.WorldRun) -> None:
        assert not r.executions("step")

    world = t.World(
        agent=outer,
        script=[call("inner", {"input": "x"}, call_id="b"), DONE],
        nested={"b": [call("step", {"n": 1}), say("b")]},
        context=list,
        options={"max_turns": 5},
        order="gate",
    )
    with pytest.raises(t.ExplorationFailure) as found:
        t.explore_world(world, check, streamed=True, backends=["trio"])
    assert str(found.value).splitlines()[-1].strip() == (
        "explore(outer, [call('inner', {'input': 'x'}, call_id='b'), say('done')], check, tape=[], "
        "nested={'b': [call('step', {'n': 1}), say('b')]}, context=list, options=options, streamed=True, "
        "backends=['trio'], order='gate')"
    )
    again = attrs.evolve(world, tape=found.value.run.tape)
    with pytest.raises(t.ExplorationFailure):
        t.explore_world(again, check, tape=again.tape, streamed=True, backends=["trio"])
    assert t.explore_world(again, None, tape=[], backends=["trio"]).schedules == 1
