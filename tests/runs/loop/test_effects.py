"""The door of a run says what is asked: an application's effects can answer without calling `do`."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.agents import Run, make_agent
from kit.results import find_records

from agentloop import Agent, RunConfig, tool
from agentloop import records as r
from agentloop.abc import ReplayingEffects, TimedEffects
from agentloop.abc.effects import CallModel, CallTool
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage
from agentloop.model_events import ModelResponse
from agentloop.run._live_effects import LiveEffects
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing import FunctionModel, call, say


class Noted(LiveEffects):
    """The live effects, with the effects of models and bodies kept, and answered where *answer* does."""

    def __init__(self, answer: Callable[[Any], Any] = lambda effect: None) -> None:
        self.kept: list[Any] = []
        self._answer = answer

    async def perform(self, effect: Any) -> Any:
        """Keep *effect*, and answer it or do it."""
        if isinstance(effect, CallModel | CallTool):
            self.kept.append(effect)
            answer = self._answer(effect)
            if answer is not None:
                return answer
        return await super().perform(effect)


class Timed(Noted):
    """Effects with a clock of their own that look at each record."""

    def wall(self) -> float:
        """Return a fixed time."""
        return 7.0

    def expect(self, record: r.Record) -> r.Record | None:
        """Keep each record as it is."""
        return record


@tool
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_the_door_says_which_body_and_which_request_is_asked_for(run_mode: Run) -> None:
    """A call's effect has its tool, arguments, key and context; a model's has the request, the agent and the model."""
    effects = Noted()
    agent = make_agent([double], call("double", {"n": 4}, call_id="c"), say("done"))
    result = await run_mode(agent, "go", run_config=RunConfig(effects=effects))
    first, body, second = effects.kept
    assert (type(first), first.turn, first.attempt, first.agent) == (CallModel, 1, 1, agent.name)
    assert first.model is agent.model
    assert [item.text for item in first.request.items] == ["go"]
    assert second.turn == 2
    (started,) = find_records(result, r.CallStarted)
    assert (body.tool, body.arguments, body.nested) == ("double", started.arguments, False)
    assert body.idempotency_key == started.idempotency_key(result.records[0].run_id) == body.context.idempotency_key


async def test_effects_may_answer_without_the_body_and_the_model(run_mode: Run) -> None:
    """What `perform` returns is the result."""

    def answer(effect: Any) -> Any:
        if isinstance(effect, CallTool):
            return f"{effect.tool} of {effect.arguments}"
        return ModelResponse((AssistantMessage("cached"),)) if effect.turn == 2 else None

    agent = make_agent([double], call("double", {"n": 4}, call_id="c"), say("never"))
    result = await run_mode(agent, "go", run_config=RunConfig(effects=Noted(answer)))
    assert result.final_output == "cached"
    assert result.calls[0].outcome.output == 'double of {"n": 4}'


async def test_agent_tools_are_told_apart(run_mode: Run) -> None:
    """The records of a nested run go to the same log, so effects must know which bodies are runs."""
    inner = Agent("inner", model=FunctionModel(lambda request: say("in")))
    effects = Noted()
    agent = make_agent([inner.as_tool("ask", "Ask.")], call("ask", {"input": "x"}, call_id="c"), say("out"))
    await run_mode(agent, "go", run_config=RunConfig(effects=effects))
    assert [(one.path, one.nested) for one in effects.kept if isinstance(one, CallTool)] == [((), True)]
    assert [one.agent for one in effects.kept if isinstance(one, CallModel)] == [agent.name, "inner", agent.name]


async def test_a_request_whose_answer_was_shown_in_part_is_not_repeated(run_mode: Run) -> None:
    """Effects that answer by themselves say so, as the model's own stream would."""

    def answer(effect: Any) -> Any:
        effect.note_shown()
        raise ModelTransportError("busy", status=503)

    agent = make_agent([], say("never"), model_settings=ModelSettings(retry=ModelRetrySettings(3)))
    effects = Noted(answer)
    with pytest.raises(ModelTransportError):
        await run_mode(agent, "go", run_config=RunConfig(effects=effects))
    assert len(effects.kept) == 1


async def test_a_clock_and_a_comparison_are_optional_parts_of_effects(run_mode: Run) -> None:
    """Records have the time of the effects' clock, where they have one."""
    timed = Timed()
    assert isinstance(timed, TimedEffects)
    assert isinstance(timed, ReplayingEffects)
    assert not isinstance(Noted(), TimedEffects | ReplayingEffects)
    result = await run_mode(make_agent([], say("done")), "go", run_config=RunConfig(effects=timed))
    assert {record.at for record in result.records} == {7.0}
