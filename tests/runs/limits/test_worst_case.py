"""Requests whose worst case would pass a limit: refused before they are made, also while others are under way."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from kit.agents import Run, look, script_agent
from kit.results import read_requests

from agentloop import Agent, ModelSettings, RequestUsage, RunConfig, Runner, UsageLimitExceeded, UsageLimits, UserError
from agentloop import testing as t
from agentloop.abc import Model
from agentloop.items import ToolCall
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelInfo
from agentloop.models import FallbackModel, WrapperModel
from agentloop.testing import FunctionModel, ScriptedModel, call, respond, say
from agentloop.testing.replaying import replay

SETTINGS = ModelSettings(max_tokens=100)


def usage(tokens: int) -> RequestUsage:
    """Return the usage of a request of *tokens* in all, ten of them output."""
    return RequestUsage(input_tokens=tokens - 10, output_tokens=10, total_tokens=tokens)


def cost(name: str, used: RequestUsage) -> int:
    """Return the price of a request: its output."""
    return used.output_tokens


def looking(**fields: Any) -> Agent[Any, Any]:
    """Return an agent that calls a tool, then answers: each request for 50 tokens."""
    steps = [respond(ToolCall("c1", "look", "{}"), usage=usage(50)), say("done", usage(50))]
    return script_agent("a", *steps, tools=[look], model_settings=SETTINGS, **fields)


@pytest.mark.scenario("LM-02")
@pytest.mark.parametrize(
    ("limits", "requests", "words"),
    [
        ({"cost": 99}, 0, "cost 0 and at most 100 more, of 99"),
        ({"cost": 109}, 1, "cost 10 and at most 100 more, of 109"),
        ({"cost": 110}, 2, None),
        ({"output_tokens": 99}, 0, "output_tokens 0 and at most 100 more, of 99"),
        ({"output_tokens": 110}, 2, None),
        ({"input_tokens": 5}, 0, "input_tokens 0 and at most"),
        ({"total_tokens": 160}, 1, "total_tokens 50 and at most"),
        ({"total_tokens": 1000}, 2, None),
    ],
    ids=str,
)
async def test_a_request_that_could_pass_a_limit_is_not_made(
    run_mode: Run, limits: Any, requests: int, words: str | None
) -> None:
    """Input as counted or estimated, and the whole of `max_tokens`."""
    agent, config = looking(), RunConfig(limits=UsageLimits(worst_case=True, **limits), price=cost)
    if words is None:
        assert (await run_mode(agent, "go", run_config=config)).final_output == "done"
    else:
        with pytest.raises(UsageLimitExceeded, match=f"could be exceeded: {words}"):
            await run_mode(agent, "go", run_config=config)
    assert len(read_requests(agent)) == requests


@pytest.mark.scenario("LM-02")
async def test_without_it_the_limit_may_be_passed(run_mode: Run) -> None:
    """As before: a request under way is never cut."""
    config = RunConfig(limits=UsageLimits(cost=11), price=cost)
    result = await run_mode(looking(), "go", run_config=config)
    assert result.cost == 20


@pytest.mark.scenario("LM-02")
async def test_an_answer_of_any_length_is_refused(run_mode: Run) -> None:
    """Nobody knows its worst case."""
    agent = script_agent("a", say("done"))
    with pytest.raises(UserError, match="agent 'a' may be: give its ModelSettings a max_tokens"):
        await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(cost=9, worst_case=True), price=cost))
    assert read_requests(agent) == []


PRICES = {"cheap": 1, "dear": 3}


def cost_by_name(name: str, used: RequestUsage) -> int:
    """Return the price of a request to a model of `PRICES`: there is no other."""
    return PRICES[name] * used.output_tokens


class Unnamed(FunctionModel):
    """A model whose name is in its `info` alone; its answers name it."""

    info = ModelInfo("p", "dear")


class Named(FunctionModel):
    """A model of the name *name*."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda request: say("done", usage(50)))
        self.name = name


MODELS: dict[str, Callable[[], tuple[Model, int]]] = {
    "named": lambda: (Named("cheap"), 100),
    "unnamed": lambda: (Unnamed(lambda request: say("done", usage(50).replace(model="dear"))), 300),
    "several": lambda: (FallbackModel([Named("cheap"), Named("dear")]), 300),
    "the dearest first": lambda: (FallbackModel([Named("dear"), Named("cheap")]), 300),
    "wrapped": lambda: (WrapperModel(FallbackModel([Named("cheap"), Named("dear")])), 300),
    "lists in a list": lambda: (FallbackModel([Named("cheap"), FallbackModel([Named("dear")])]), 300),
}


@pytest.mark.scenario("LM-02")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("room", [-1, 0])
async def test_the_worst_case_is_of_the_dearest_model_that_may_answer(run_mode: Run, make: Any, room: int) -> None:
    """Each is priced under the name under which its answer is; `prices` knows no other."""
    model, worst = make()
    agent = Agent("a", model=model, model_settings=SETTINGS)
    config = RunConfig(limits=UsageLimits(cost=worst + room, worst_case=True), price=cost_by_name)
    if room < 0:
        with pytest.raises(UsageLimitExceeded, match=f"cost 0 and at most {worst} more"):
            await run_mode(agent, "go", run_config=config)
    else:
        assert (await run_mode(agent, "go", run_config=config)).final_output == "done"


@pytest.mark.scenario("LM-02")
async def test_requests_under_way_count_with_their_worst_case(run_mode: Run) -> None:
    """Of two nested runs at once only one may ask, where there is room for one; later there is room again."""
    entered, most = 0, 0

    async def ask(request: Any) -> Any:
        nonlocal entered, most
        entered += 1
        most = max(most, entered)
        await anyio.sleep(0.01)
        entered -= 1
        return say("inside", usage(50))

    inner = Agent("inner", model=FunctionModel(ask), model_settings=SETTINGS)
    tool = inner.as_tool(failure_error_function=lambda ctx, error: str(error))
    steps = [[call("inner", {"input": "x"}, call_id=f"c{n}") for n in (1, 2)], say("done", usage(50))]
    outer = Agent("outer", model=ScriptedModel(steps), tools=[tool], model_settings=SETTINGS)
    config = RunConfig(limits=UsageLimits(cost=150, worst_case=True), price=cost)
    result = await run_mode(outer, "go", run_config=config)
    assert most == 1
    outputs = sorted(str(one.outcome.output)[:30] for one in result.calls)
    assert outputs == ["Usage limit could be exceeded:", "inside"]
    assert result.final_output == "done"


@pytest.mark.scenario("LM-02", "LM-04")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_model_may_answer_at_the_limit(backend: Any) -> None:
    """Its last request is made whatever it may take; a replay follows."""
    limits = UsageLimits(cost=109, worst_case=True)
    agent, config = looking(), RunConfig(limits=limits, price=cost, at_limit="answer")
    result = Runner.run_sync(agent, "go", run_config=config)
    assert (result.final_output, result.stop_reason) == ("done", "usage_limits")
    assert read_requests(agent)[-1].tools == ()
    assert replay(result, agent, backend=backend, run_config=config).result is not None


@pytest.mark.scenario("LM-02")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("limits", [{"cost": 99}, {"cost": 109}, {"output_tokens": 99}], ids=str)
def test_a_refusal_is_replayed(backend: Any, limits: Any) -> None:
    """The log says what the request could have cost."""
    agent, config = looking(), RunConfig(limits=UsageLimits(worst_case=True, **limits), price=cost)
    journal = MemoryJournal()
    with pytest.raises(UsageLimitExceeded):
        Runner.run_sync(agent, "go", run_config=config, journal=journal)
    replayed = replay(journal, agent, backend=backend, run_config=config)
    assert isinstance(replayed.error, UsageLimitExceeded)


@pytest.mark.scenario("LM-02")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_can_be_cancelled_at_every_step(streamed: bool) -> None:
    """What is held is given back."""
    config = RunConfig(limits=UsageLimits(cost=500, worst_case=True), price=cost)
    agent = Agent("a", tools=[look], model_settings=SETTINGS)
    steps = [call("look", call_id="c"), say("done")]
    t.kill_sweep(agent, steps, streamed=streamed, options={"run_config": config})
