"""Type checkers know the types of agents, runs and streams. Checked, never run."""

from typing import Any, Literal, assert_type

import attrs

from agentloop import (
    Agent,
    Handoff,
    OutputType,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    RunStream,
    Runtime,
    handoff,
    open_runtime,
)
from agentloop.events import CallSettled, Event, TextDelta
from agentloop.guardrails import ToolGuardrailResult
from agentloop.items import Item
from agentloop.outcomes import CallOutcome
from agentloop.tools import FunctionTool


@attrs.frozen
class Weather:
    city: str
    degrees: float


@attrs.frozen
class Application:
    user: str


agent: Agent[Application, Weather] = Agent("reporter", output_type=Weather)
loose: Agent[Application, list[str]] = Agent("lister", output_type=OutputType(list[str], strict=False))


def agents_keep_their_parameters() -> None:
    """Copies are agents of the same types, or of the output they are given; tools made of agents have their context."""
    assert_type(agent.clone(name="other"), Agent[Application, Weather])
    assert_type(agent.clone(output_type=Application), Agent[Application, Application])
    assert_type(agent.as_tool("ask"), FunctionTool[Application])
    assert_type(agent.as_tool("ask", idempotent=True, serial="desk", timeout=5), FunctionTool[Application])
    agent.as_tool("ask", idempotent="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.as_tool("ask", idempotnet=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.as_tool("ask", kind="custom")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(handoff(agent), Handoff)
    front: Agent[Application, str] = Agent("front", handoffs=[agent, handoff(loose)], tools=[loose.as_tool()])
    assert_type(front.name, str)


def agents_need_no_parameters() -> None:
    """The output is text, or what `output_type` says; without tools the context is anything."""
    assert_type(Agent("guide"), Agent[Any, str])
    assert_type(Agent("guide", instructions="Be brief.", model="local:"), Agent[Any, str])
    assert_type(Agent("guide", output_type=None), Agent[Any, str])
    assert_type(Agent("guide", output_type=str), Agent[Any, str])
    assert_type(Agent("guide", output_type=Weather), Agent[Any, Weather])
    assert_type(Agent("guide", output_type=list[Weather]), Agent[Any, list[Weather]])
    assert_type(Agent("guide", output_type=OutputType(Weather, strict=True)), Agent[Any, Weather])
    assert_type(Agent("guide", output_type=OutputType(dict[str, int], strict=False)), Agent[Any, dict[str, int]])
    bare: list[Agent] = [Agent("guide"), agent, loose]
    assert_type(bare[0], Agent[Any, Any])


def types_that_are_no_classes_are_declared() -> None:
    """A checker can't read a union or a choice from a value: it is anything, or what the declaration says."""
    assert_type(Agent("guide", output_type=Weather | None), Agent[Any, Any])
    declared: Agent[Application, Literal["yes", "no"]] = Agent("guide", output_type=Literal["yes", "no"])
    assert_type(Runner.run_sync(declared, "Rain?").final_output, Literal["yes", "no"])


def wrong_agents_are_found() -> None:
    """Options that don't exist or don't fit, what is given by position, and an output that is not what was declared."""
    Agent("guide", tool=[])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Agent("guide", "Be brief.")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Agent("guide", model=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    # mypy takes the output from the declaration here, since it takes any object for a type that may be none of a class.
    _other: Agent[Any, str] = Agent("guide", output_type=Weather)  # pyright: ignore[reportAssignmentType]


async def run_gives_what_the_agent_says() -> None:
    """The result has the type of the agent's output; the context must be the agent's."""
    result = await Runner.run(agent, "Weather?", context=Application("Ada"), run_config=RunConfig())
    assert_type(result, RunResult[Weather])
    assert_type(result.final_output, Weather)
    assert_type((await Runner.run(Agent("guide"), "Hi.")).final_output, str)
    assert_type(result.final_output_as(Weather), Weather)
    assert_type(result.to_input_list(), list[Item])
    assert_type(result.calls[0].outcome, CallOutcome)
    assert_type(result.to_state(), RunState)
    assert_type(result.last_agent, Agent[Any, Any])
    assert_type(result.tool_input_guardrail_results, tuple[ToolGuardrailResult, ...])
    result.to_state().approved("call_1")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert_type(Runner.run_sync(loose, "Cities?", backend="trio"), RunResult[list[str]])
    await Runner.run(agent, "Weather?", context="Ada")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    Runner.run_sync(agent, "Weather?", backend="curio")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def stream_gives_events_and_the_result() -> None:
    """An event narrows by its class, and every event has a path and a turn."""
    stream = Runner.run_streamed(agent, "Weather?", context=Application("Ada"))
    assert_type(stream, RunStream[Weather])
    async with stream as entered:
        assert_type(entered, RunStream[Weather])
        async for event in entered:
            assert_type(event, Event)
            assert_type(event.path, tuple[str, ...])
            assert_type(event.turn, int)
            if isinstance(event, TextDelta):
                assert_type(event.text, str)
            elif isinstance(event, CallSettled):
                assert_type(event.outcome, CallOutcome)
                assert_type(entered.cancel_call(event), bool)
        entered.cancel("after_turn")
        entered.cancel("soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(stream.result, RunResult[Weather])
    assert_type(stream.result.final_output, Weather)
    assert_type(stream.error, BaseException | None)
    assert_type(stream.current_agent, Agent[Any, Any])


async def runtime_is_entered() -> None:
    """`open_runtime` gives the runtime."""
    async with open_runtime(max_threads=4) as runtime:
        assert_type(runtime, Runtime)
