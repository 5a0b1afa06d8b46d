"""The same scripted agent in several libraries: one tool, and a model that calls it so often in so many turns.

Each library is imported by its own function alone, so this module works where only one of them is installed. The model
is the library's own kind of model, without a network, and sleeps for zero seconds once per request; nothing is traced.
A tool's error ends the run where the library can do that, as each function says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

Body = Callable[[int], Awaitable[str]]
Run = Callable[[], Awaitable[object]]
Maker = Callable[[int, int, Body], Run]

_turn: ContextVar[list[int]] = ContextVar("turn")
"""The number of requests that the current run has made, in a list that the tasks of the run share."""


async def _next_turn() -> int:
    counter = _turn.get()
    counter[0] += 1
    await asyncio.sleep(0)
    return counter[0] - 1


def _counted(run: Run) -> Run:
    async def counted() -> object:
        _turn.set([0])
        return await run()

    return counted


def agentloop(turns: int, calls: int, body: Body, cap: int | None = None) -> Run:
    """A tool's error ends the run: `failure_error_function=None`."""
    from agentloop import Agent, RunConfig, Runner, ToolExecution, tool
    from agentloop.abc import Model
    from agentloop.items import AssistantMessage, ToolCall
    from agentloop.model_events import ModelRequest, ResponseDone

    answers = [
        ResponseDone([ToolCall(f"c{turn}_{n}", "work", '{"x": 1}') for n in range(calls)]) for turn in range(turns)
    ]
    answers.append(ResponseDone([AssistantMessage("done")]))

    class Answer:
        def __init__(self, turn: int) -> None:
            self.turn: int | None = turn

        async def __aenter__(self) -> Answer:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        def __aiter__(self) -> Answer:
            return self

        async def __anext__(self) -> ResponseDone:
            if self.turn is None:
                raise StopAsyncIteration
            turn, self.turn = self.turn, None
            await asyncio.sleep(0)
            return answers[turn]

    class Scripted(Model):
        def stream(self, request: ModelRequest) -> Any:
            return Answer(request.turn - 1)

    @tool(failure_error_function=None)
    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    execution = ToolExecution(max_function_tool_concurrency=cap, max_calls_per_turn=None)
    agent, config = Agent("a", model=Scripted(), tools=[work]), RunConfig(tool_execution=execution)
    return lambda: Runner.run(agent, "go", max_turns=None, run_config=config)


def openai_agents(turns: int, calls: int, body: Body, cap: int | None = None) -> Run:
    """A tool's error ends the run: `failure_error_function=None`."""
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, ToolExecutionConfig, Usage, function_tool
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            turn = await _next_turn()
            output: list[Any] = [
                ResponseFunctionToolCall(
                    arguments='{"x": 1}', call_id=f"c{turn}_{n}", name="work", type="function_call"
                )
                for n in range(calls)
            ]
            if turn == turns:
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                output = [
                    ResponseOutputMessage(id="m", role="assistant", status="completed", type="message", content=[text])
                ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    tools: list[Any] = [function_tool(work, failure_error_function=None)]
    execution = ToolExecutionConfig(max_function_tool_concurrency=cap)
    config = RunConfig(tracing_disabled=True, tool_execution=execution)
    agent = Agent(name="a", model=Scripted(), tools=tools)
    return _counted(lambda: Runner.run(agent, "go", max_turns=turns + 2, run_config=config))


def pydantic_ai(turns: int, calls: int, body: Body) -> Run:
    """A tool's error ends the run, as is usual there."""
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    async def answer(messages: Any, info: Any) -> ModelResponse:
        turn = await _next_turn()
        if turn == turns:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("work", {"x": 1}, tool_call_id=f"c{turn}_{n}") for n in range(calls)])

    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    agent, limits = Agent(FunctionModel(answer), tools=[work]), UsageLimits(request_limit=None)
    return _counted(lambda: agent.run("go", usage_limits=limits))


def langgraph(turns: int, calls: int, body: Body) -> Run:
    """A tool's error ends the run: `handle_tool_errors=False`. The agent is the ready-made one of `langgraph`."""
    import warnings

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langgraph.prebuilt import ToolNode, create_react_agent

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

        def _generate(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
            turn = await _next_turn()
            wanted = [{"name": "work", "args": {"x": 1}, "id": f"c{turn}_{n}"} for n in range(calls)]
            message = AIMessage("done") if turn == turns else AIMessage("", tool_calls=wanted)
            return ChatResult(generations=[ChatGeneration(message=message)])

    @tool
    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = create_react_agent(Scripted(), ToolNode([work], handle_tool_errors=False))
    config: Any = {"recursion_limit": 2 * turns + 5}
    return _counted(lambda: graph.ainvoke({"messages": [("user", "go")]}, config))


def strands(turns: int, calls: int, body: Body) -> Run:
    """A tool's error is an output for the model; there is no way to end the run by it. Each run has its own agent."""
    from strands import Agent, tool
    from strands.models import Model

    class Scripted(Model):
        def update_config(self, **_: Any) -> None:
            return None

        def get_config(self) -> Any:
            return {"model_id": "scripted"}

        def structured_output(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def stream(self, *_: Any, **__: Any) -> Any:
            turn = await _next_turn()
            yield {"messageStart": {"role": "assistant"}}
            if turn == turns:
                yield {"contentBlockDelta": {"delta": {"text": "done"}}}
                yield {"contentBlockStop": {}}
                yield {"messageStop": {"stopReason": "end_turn"}}
                return
            for n in range(calls):
                yield {"contentBlockStart": {"start": {"toolUse": {"name": "work", "toolUseId": f"c{turn}_{n}"}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"x": 1}'}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}

    @tool
    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    return _counted(lambda: Agent(model=Scripted(), tools=[work], callback_handler=None).invoke_async("go"))


def agent_framework(turns: int, calls: int, body: Body) -> Run:
    """A tool's error is an output for the model."""
    from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool

    class Scripted(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc,type-arg]
        def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
            return self._answer()

        async def _answer(self) -> Any:
            turn = await _next_turn()
            wanted = [Content.from_function_call(f"c{turn}_{n}", "work", arguments='{"x": 1}') for n in range(calls)]
            contents = [Content.from_text("done")] if turn == turns else wanted
            return ChatResponse(messages=[Message(role="assistant", contents=contents)])

    @tool
    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    client = Scripted(function_invocation_configuration={"max_iterations": turns + 2})
    agent = Agent(client, tools=[work])
    return _counted(lambda: agent.run("go"))


def google_adk(turns: int, calls: int, body: Body) -> Run:
    """A tool's error ends the run, as is usual there. Each run has its own session, in memory."""
    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Scripted(BaseLlm):
        async def generate_content_async(self, *_: Any, **__: Any) -> Any:
            turn = await _next_turn()
            wanted = [
                types.Part(function_call=types.FunctionCall(id=f"c{turn}_{n}", name="work", args={"x": 1}))
                for n in range(calls)
            ]
            parts = [types.Part(text="done")] if turn == turns else wanted
            yield LlmResponse(content=types.Content(role="model", parts=parts))

    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    runner = InMemoryRunner(LlmAgent(name="a", model=Scripted(model="scripted"), tools=[work]), app_name="a")
    message, config = types.Content(role="user", parts=[types.Part(text="go")]), RunConfig(max_llm_calls=0)

    async def run() -> object:
        session = await runner.session_service.create_session(app_name="a", user_id="u")
        asked = runner.run_async(user_id="u", session_id=session.id, new_message=message, run_config=config)
        return [event async for event in asked]

    return _counted(run)


def locus(turns: int, calls: int, body: Body, cap: int | None = None) -> Run:
    """A tool's error is given to the model, as is usual there. No bound of bodies or equal steps is reached."""
    from locus import Agent, tool
    from locus.core.messages import Message, ToolCall
    from locus.models.base import ModelResponse

    class Scripted:
        async def complete(self, messages: Any, tools: Any = None, **_: Any) -> Any:
            turn = await _next_turn()
            if turn == turns:
                return ModelResponse(message=Message.assistant(content="done"), stop_reason="end_turn")
            wanted = [ToolCall(id=f"c{turn}_{n}", name="work", arguments={"x": 1}) for n in range(calls)]
            return ModelResponse(message=Message.assistant(tool_calls=wanted), stop_reason="tool_calls")

        async def stream(self, messages: Any, tools: Any = None, **_: Any) -> Any:
            raise NotImplementedError
            yield

    @tool
    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    agent = Agent(
        model=Scripted(),
        tools=[work],
        max_iterations=turns + 2,
        max_concurrency=cap or max(calls, 1),
        tool_loop_threshold=1_000_000,
    )
    return _counted(lambda: agent.arun("go"))


PEERS: dict[str, tuple[str, Maker]] = {
    "agentloop": ("agentloop", agentloop),
    "openai-agents": ("agents", openai_agents),
    "pydantic-ai": ("pydantic_ai", pydantic_ai),
    "langgraph": ("langgraph", langgraph),
    "strands-agents": ("strands", strands),
    "agent-framework": ("agent_framework", agent_framework),
    "google-adk": ("google.adk", google_adk),
    "locus": ("locus.agent", locus),
}
"""By name: the module to look for, and how the agent is made."""
CAPPED: dict[str, Maker] = {
    "agentloop": partial(agentloop, cap=10),
    "openai-agents": partial(openai_agents, cap=10),
    "locus": partial(locus, cap=10),
}
"""Those that can bound the bodies at once within a run, at ten."""
DISTRIBUTIONS = {
    "agentloop": "agentloop-anyio",
    "pydantic-ai": "pydantic-ai-slim",
    "agent-framework": "agent-framework-core",
    "locus": "locus-sdk",
}
