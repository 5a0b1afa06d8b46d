"""The limit on a run's turns: what counts, what is raised, and what may take the error's place."""

from typing import Any

import attrs
import pytest
from kit.agents import Run, look, script_agent
from kit.results import describe, find_records, read_outputs, read_requests, read_statuses
from kit.watching import RunHookLog

from agentloop import (
    Agent,
    Allow,
    ErrorHandlerResult,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    Runner,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import ModelTransportError, UserTypeError, UserValueError
from agentloop.guardrails import tool_input_guardrail
from agentloop.items import AssistantMessage, ToolOutput
from agentloop.sessions import MemorySession
from agentloop.testing import call, fail, say


@attrs.frozen
class Answer:
    number: int


def looking(turns: int, *more: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that calls a tool in each of *turns* turns."""
    return script_agent(
        "a", *(call("look", call_id=f"c{n}") for n in range(1, turns + 1)), *more, tools=[look], **fields
    )


@pytest.mark.scenario("MT-01")
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_limit_lets_that_many_model_calls_happen(run_mode: Run, limit: int) -> None:
    """The model call after the limit raises instead; a run that needs no more calls completes."""
    agent = looking(limit + 1)
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_mode(agent, "go", max_turns=limit)
    assert str(caught.value) == f"Max turns ({limit}) exceeded"
    assert caught.value.max_turns == limit
    assert len(read_requests(agent)) == limit
    assert (await run_mode(looking(limit - 1, say("done")), "go", max_turns=limit)).final_output == "done"


@pytest.mark.scenario("MT-01")
async def test_limit_is_ten_where_none_is_given(run_mode: Run) -> None:
    """The default limit is ten, as in the signature."""
    agent = looking(11)
    with pytest.raises(MaxTurnsExceeded, match=r"\(10\)"):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 10


@pytest.mark.scenario("MT-02")
async def test_retries_do_not_count(run_mode: Run) -> None:
    """A turn is one logical model call."""
    settings = ModelSettings(retry=ModelRetrySettings(2, initial_delay=0.0, jitter=False))
    gone = ModelTransportError("gone", status=503)
    agent = looking(0, fail(gone), fail(gone), call("look"), say("done"), model_settings=settings)
    result = await run_mode(agent, "go", max_turns=2)
    assert result.final_output == "done"
    assert len(read_requests(agent)) == 4
    assert [record.turn for record in find_records(result, r.TurnStarted)] == [1, 2]


@pytest.mark.scenario("MT-02")
async def test_handoffs_and_tools_do_not_count(run_mode: Run) -> None:
    """A turn counts once, with any number of handoffs and tools in it."""
    second = script_agent("b", [call("look", call_id=f"d{n}") for n in range(5)], say("done"), tools=[look])
    first = script_agent(
        "a",
        [*(call("look", call_id=f"c{n}") for n in range(5)), call("transfer_to_b")],
        tools=[look],
        handoffs=[second],
    )
    result = await run_mode(first, "go", max_turns=3)
    assert result.final_output == "done"
    assert read_statuses(result) == ["succeeded"] * 10


@pytest.mark.scenario("MT-03")
async def test_none_is_no_limit(run_mode: Run) -> None:
    """A run with None makes more turns than the default ten."""
    result = await run_mode(looking(14, say("done")), "go", max_turns=None)
    assert result.final_output == "done"
    assert len(result.raw_responses) == 15


async def test_limit_that_is_none_of_a_count_is_refused(run_mode: Run) -> None:
    """The error names the argument."""
    agent = looking(1)
    with pytest.raises(UserValueError, match="max_turns"):
        await run_mode(agent, "go", max_turns=0)
    with pytest.raises(UserTypeError, match="max_turns"):
        await run_mode(agent, "go", max_turns="3")


# -- the handler


@pytest.mark.scenario("MT-04", "LX-75")
@pytest.mark.parametrize("kind", ["value", "result", "async"])
async def test_handler_s_output_ends_the_run(run_mode: Run, kind: str) -> None:
    """The run completes with the handler's output in its place; the handler receives error, data and context."""
    seen: list[Any] = []
    trace = RunHookLog()
    session = MemorySession()

    def handler(data: Any) -> Any:
        seen.append((str(data.error), read_outputs(data.run_data.new_items), data.context))
        return "that's all" if kind == "value" else ErrorHandlerResult("that's all")

    async def async_handler(data: Any) -> Any:
        return handler(data)

    handlers = {"max_turns": async_handler if kind == "async" else handler}
    agent = looking(2)
    result = await run_mode(
        agent, "go", max_turns=1, error_handlers=handlers, context="app", hooks=trace, session=session
    )
    assert result.final_output == "that's all"
    assert result.status == "completed"
    assert seen == [("Max turns (1) exceeded", {"c1": "seen"}, "app")]
    added = ["call:look#c1", "output:seen#c1", "says:that's all"]
    assert describe(result.new_items) == added
    assert describe(result.to_input_list()) == ["user:go", *added]
    assert describe(await session.get_items()) == ["user:go", *added]
    assert trace.lines[-2:] == ["agent_end a", "run_end completed"]
    assert trace.args_of("agent_end")[2] == "that's all"
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("MT-04")
@pytest.mark.parametrize("given", [Answer(7), {"number": 7}])
async def test_handler_s_output_is_made_typed(run_mode: Run, given: Any) -> None:
    """The history has the handler's output in the form in which the model would have said it."""
    agent = looking(1, output_type=Answer)
    result = await run_mode(agent, "go", max_turns=1, error_handlers={"max_turns": lambda data: given})
    assert result.final_output == Answer(7)
    assert result.new_items[-1] == AssistantMessage('{"number": 7}')


@pytest.mark.scenario("MT-04")
async def test_handler_s_output_that_does_not_fit_is_refused(run_mode: Run) -> None:
    """The error names type and fault, and it has the run's data."""
    agent = looking(1, output_type=Answer)
    with pytest.raises(UserTypeError, match="number") as caught:
        await run_mode(agent, "go", max_turns=1, error_handlers={"max_turns": lambda data: {"number": "many"}})
    assert caught.value.run_data is not None
    assert read_outputs(caught.value.run_data.new_items) == {"c1": "seen"}


@pytest.mark.scenario("MT-04")
async def test_handler_s_output_may_stay_out_of_the_history(run_mode: Run) -> None:
    """Items and session end with the run's own items."""
    session = MemorySession()
    handlers = {"max_turns": lambda data: ErrorHandlerResult("that's all", include_in_history=False)}
    result = await run_mode(looking(1), "go", max_turns=1, error_handlers=handlers, session=session)
    assert result.final_output == "that's all"
    assert describe(result.new_items) == ["call:look#c1", "output:seen#c1"]
    assert describe(await session.get_items()) == ["user:go", "call:look#c1", "output:seen#c1"]


@pytest.mark.scenario("LX-75")
async def test_handler_that_gives_none_lets_the_error_go_on(run_mode: Run) -> None:
    """A handler that gives None lets the error leave, and one that raises replaces it."""
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(looking(1), "go", max_turns=1, error_handlers={"max_turns": lambda data: None})

    def broken(data: Any) -> Any:
        raise LookupError("no words")

    with pytest.raises(LookupError, match="no words"):
        await run_mode(looking(1), "go", max_turns=1, error_handlers={"max_turns": broken})


async def test_handlers_are_checked_when_given(run_mode: Run) -> None:
    """The names of handlers are checked, and that they can be called."""
    with pytest.raises(UserValueError, match="'max_turn'"):
        await run_mode(looking(1), "go", error_handlers={"max_turn": lambda data: None})
    with pytest.raises(UserTypeError, match="max_turns"):
        await run_mode(looking(1), "go", error_handlers={"max_turns": "text"})


# -- what there was


@pytest.mark.scenario("MT-05")
async def test_error_has_what_was_done(run_mode: Run) -> None:
    """The error has items, calls, responses, usage and the tools' guardrail results."""

    @tool_input_guardrail
    async def check(data: Any) -> Any:
        return Allow("fine")

    guarded = tool(name="look", description="Look.", tool_input_guardrails=[check])(lambda: "seen")
    agent = looking(3)
    agent.tools = [guarded]
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_mode(agent, "go", max_turns=2, context="app")
    data = caught.value.run_data
    assert data is not None
    assert describe(data.new_items) == ["call:look#c1", "output:seen#c1", "call:look#c2", "output:seen#c2"]
    assert read_statuses(data) == ["succeeded", "succeeded"]
    assert [(found.call.call_id, found.output) for found in data.tool_input_guardrail_results] == [
        ("c1", Allow("fine")),
        ("c2", Allow("fine")),
    ]
    assert len(data.raw_responses) == 2
    assert data.usage.requests == 2
    assert data.last_agent is agent
    assert data.context == "app"
    assert describe(data.input) == ["user:go"]


@pytest.mark.scenario("MT-06")
async def test_stream_delivers_what_was_created_before_it_raises() -> None:
    """The stream delivers every item of the turns that were made, then the run's end."""
    agent = looking(3)
    events: list[Any] = []
    async with Runner.run_streamed(agent, "go", max_turns=2) as stream:
        await stream.finished()  # nothing was read before the run had failed
        with pytest.raises(MaxTurnsExceeded):
            async for event in stream:
                events.append(event)
    created = [event.item for event in events if isinstance(event, ev.ItemCreated)]
    assert describe(created) == ["call:look#c1", "output:seen#c1", "call:look#c2", "output:seen#c2"]
    assert [item.call_id for item in created if isinstance(item, ToolOutput)] == ["c1", "c2"]
    assert isinstance(events[-1], ev.RunEnded)
    assert events[-1].status == "failed"
