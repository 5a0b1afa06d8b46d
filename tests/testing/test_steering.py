"""Worlds whose application adds input, takes it back and answers calls: when, what a replay does, what is judged."""

from typing import Any

import pytest

from agentloop import Agent, GuardrailFunctionOutput, RunConfig, ask_user, input_guardrail, tool
from agentloop import records as r
from agentloop.testing import ExternalAnswer, Steering, Verdict, World, call, check, replay, run, run_one, say
from agentloop.testing.simulation.event_loop import BACKENDS


@tool
async def look() -> str:
    """Look."""
    return "a cat"


@tool(needs_approval=True)
async def paint() -> str:
    """Paint."""
    return "painted"


ASK = {"question": "Which colour?"}


def artist() -> Agent[Any, Any]:
    return Agent("artist", tools=[ask_user(), look, paint])


async def pass_all(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass every input."""
    return GuardrailFunctionOutput()


def judging_agent() -> Agent[Any, Any]:
    return Agent("artist", input_guardrails=[input_guardrail(pass_all)])


def tape_of(run_number: int) -> tuple[int, ...]:
    """Return a tape that differs for each number: the moments of what is given follow it."""
    return tuple(run_number >> place & 1 for place in range(8))


@pytest.mark.scenario("PE-05")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("order", ["gate", "passes", "steps"])
def test_a_replay_gives_each_answer_before_the_run_would_pause_for_it(streamed: bool, order: Any) -> None:
    """The answer comes live as the last thing before the pause, beside a sibling, at the pause, or never."""
    kept = set()
    for number in range(4):
        for calls in ([("ask_user", ASK)], [("look", {}), ("ask_user", ASK)], [("ask_user", ASK), ("look", {})]):
            made = [call(name, given, call_id=f"{name}_1") for name, given in calls]
            answer = ExternalAnswer(call_id="ask_user_1", value="red", live=number != 3)
            world = World(
                agent=artist,
                script=[made, say("done")],
                answers=[answer],
                order=order,
                tape=tape_of(number),
                slow_reader=number % 3 == 0,
            )
            for backend in ("asyncio", "trio"):
                seen = run_one(world, backend=backend, streamed=streamed)  # type: ignore[arg-type]
                assert seen.result is not None
                assert seen.result.status == "completed"
                check(seen)
                kept.add(seen.entries)
                again = replay(seen.records, artist(), backend="trio" if backend == "asyncio" else "asyncio")
                assert again.records == seen.records
    assert 2 in kept
    assert (1 in kept) == (streamed and order != "gate")


@pytest.mark.slow
@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("order", ["gate", "passes", "steps"])
def test_an_input_is_shown_once_wherever_it_comes(order: Any) -> None:
    """At each event of the run, with each moment and tape: it is shown once, or refused, and a replay is equal."""
    script = [[call("look", {}, call_id="c1"), call("paint", {}, call_id="c2")], say("Here."), say("Here again.")]
    refused = 0
    for after in range(9):
        world = World(
            agent=artist,
            script=script,
            verdicts=[Verdict(call_id="c2")],
            steering=[Steering(id="hint", text="In red.", after=after, when="idle" if after % 2 else "turn")],
            order=order,
            tape=tape_of(after),
            slow_reader=after % 3 == 0,
        )
        for seen in run(world).runs:
            check(seen)
            assert seen.acknowledged in ((), ("hint",))
            shown = [one.id for one in seen.records if isinstance(one, r.InputShown)]
            assert shown == list(seen.acknowledged)
            refused += not shown
            assert replay(seen.records, artist()).records == seen.records
    assert refused > 0


@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("judged", [False, True], ids=["as it comes", "judged"])
@pytest.mark.parametrize("order", ["passes", "steps"])
def test_a_replay_looks_into_the_inbox_when_the_run_did(order: Any, judged: bool) -> None:
    """Two inputs come while a run that went on for an input waits for its reader: one for its end, one for the turn."""
    texts = ("first", "idle", "turn")
    orders = set()
    for after in range(3, 7):
        moments = (0, after, after)
        given = [
            Steering(id=text, text=text, after=moment, when="turn" if text == "turn" else "idle")
            for text, moment in zip(texts, moments, strict=True)
        ]
        world = World(
            agent=judging_agent if judged else artist,
            script=[say(str(number)) for number in range(4)],
            steering=given,
            options={"run_config": RunConfig(stream_buffer=1)},
            order=order,
            slow_reader=True,
        )
        for backend in BACKENDS:
            seen = run_one(world, backend=backend, streamed=True)
            check(seen)
            orders.add(tuple(one.id for one in seen.records if isinstance(one, r.InputShown)))
            for other in BACKENDS:
                assert replay(seen.records, world.agent(), backend=other).records == seen.records
    assert ("first", "turn", "idle") in orders


def test_what_was_taken_back_is_not_shown() -> None:
    """An input and its withdrawal, and the same id a second time: it is refused, and the run is none the wiser."""
    steering = [
        Steering(id="hint", text="In red.", when="idle"),
        Steering(id="hint", text=None),
        Steering(id="hint", text="In red."),
        Steering(id="other", text=None),
    ]
    for seen in run(World(agent=artist, script=[say("Here.")], steering=steering), modes=["streamed"]).runs:
        check(seen)
        assert seen.acknowledged == ("hint",)
        kinds = [type(one) for one in seen.records]
        assert [kinds.count(one) for one in (r.InputAdded, r.InputWithdrawn, r.InputShown)] == [1, 1, 0]
