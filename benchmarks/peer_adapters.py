"""The same scripted agent in several libraries: one tool, and a model that calls it so often in so many turns.

Each library is imported by its own function alone, so this module works where only one of them is installed. The model
is the library's own kind of model, without a network, and sleeps for zero seconds once per request; nothing is traced.
A tool's error ends the run where the library can do that, as each function says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

Body = Callable[[int], Awaitable[str]]
Run = Callable[[], Awaitable[object]]
Maker = Callable[[int, int, Body], Run]

Option = Literal["timeout", "hooks", "journal", "stream"]
"""What an agent is made with, one at a time: a tool's timeout of 30 seconds; a hook before and one after each call,
which wait once; what a run is kept in (in memory, so that no disk is measured); a stream of which every event is read.
"""
SECONDS = 30.0

_turn: ContextVar[list[int]] = ContextVar("turn")
"""The number of requests that the current run has made, in a list that the tasks of the run share."""


async def _next_turn() -> int:
    counter = _turn.get()
    counter[0] += 1
    await asyncio.sleep(0)
    return counter[0] - 1


async def _drain(events: Any) -> None:
    async for _ in events:
        pass


async def _wait(*_: Any, **__: Any) -> None:
    """Do as a hook that waits once."""
    await asyncio.sleep(0)


def _counted(run: Run) -> Run:
    async def counted() -> object:
        _turn.set([0])
        return await run()

    return counted


def agentloop(turns: int, calls: int, body: Body, cap: int | None = None, option: Option | None = None) -> Run:
    """A tool's error ends the run: `failure_error_function=None`."""
    from agentloop import Agent, RunConfig, RunHooks, Runner, ToolExecution, tool
    from agentloop.abc import Model
    from agentloop.items import AssistantMessage, ToolCall
    from agentloop.journal import MemoryJournal
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

    @tool(failure_error_function=None, timeout=SECONDS if option == "timeout" else None)
    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    class Waiting(RunHooks):
        on_tool_start = on_tool_end = staticmethod(_wait)  # type: ignore[assignment]

    execution = ToolExecution(max_function_tool_concurrency=cap, max_calls_per_turn=None)
    agent, config = Agent("a", model=Scripted(), tools=[work]), RunConfig(tool_execution=execution)
    hooks = Waiting() if option == "hooks" else None

    async def streamed() -> None:
        async with Runner.run_streamed(agent, "go", max_turns=None, run_config=config) as stream:
            await _drain(stream)

    if option == "stream":
        return streamed
    if option == "journal":
        return lambda: Runner.run(agent, "go", max_turns=None, run_config=config, journal=MemoryJournal())
    return lambda: Runner.run(agent, "go", max_turns=None, run_config=config, hooks=hooks)


def openai_agents(turns: int, calls: int, body: Body, cap: int | None = None, option: Option | None = None) -> Run:
    """A tool's error ends the run: `failure_error_function=None`."""
    from agents import (
        Agent,
        Model,
        ModelResponse,
        RunConfig,
        RunHooks,
        Runner,
        ToolExecutionConfig,
        Usage,
        function_tool,
    )
    from openai.types.responses import (
        Response,
        ResponseCompletedEvent,
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

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

        async def stream_response(self, *_: Any, **__: Any) -> Any:
            found = await self.get_response()
            fixed: Any = {"id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True}
            response = Response(output=found.output, tool_choice="auto", tools=[], **fixed)
            yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=response)

    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    class Waiting(RunHooks):  # type: ignore[misc]
        on_tool_start = on_tool_end = staticmethod(_wait)

    limit = {"timeout": SECONDS} if option == "timeout" else {}
    tools: list[Any] = [function_tool(work, failure_error_function=None, **limit)]
    execution = ToolExecutionConfig(max_function_tool_concurrency=cap)
    config = RunConfig(tracing_disabled=True, tool_execution=execution)
    agent = Agent(name="a", model=Scripted(), tools=tools)
    if option == "stream":
        return _counted(
            lambda: _drain(Runner.run_streamed(agent, "go", max_turns=turns + 2, run_config=config).stream_events())
        )
    hooks = Waiting() if option == "hooks" else None
    return _counted(lambda: Runner.run(agent, "go", max_turns=turns + 2, run_config=config, hooks=hooks))


def pydantic_ai(turns: int, calls: int, body: Body, option: Option | None = None) -> Run:
    """A tool's error ends the run, as is usual there."""
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.capabilities import Hooks
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    async def streamed(messages: Any, info: Any) -> Any:
        response = await answer(messages, info)
        for n, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                yield part.content
            else:
                yield {n: DeltaToolCall(part.tool_name, '{"x": 1}', tool_call_id=part.tool_call_id)}

    async def before(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        await _wait()
        return args

    async def after(ctx: Any, *, call: Any, tool_def: Any, args: Any, result: Any) -> Any:
        await _wait()
        return result

    async def answer(messages: Any, info: Any) -> ModelResponse:
        turn = await _next_turn()
        if turn == turns:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("work", {"x": 1}, tool_call_id=f"c{turn}_{n}") for n in range(calls)])

    async def work(x: int) -> str:
        """Work."""
        return await body(x)

    hooks = [Hooks(before_tool_execute=before, after_tool_execute=after)] if option == "hooks" else None
    model, limit = FunctionModel(answer, stream_function=streamed), SECONDS if option == "timeout" else None
    agent: Any = Agent(model, tools=[work], tool_timeout=limit, capabilities=hooks)
    limits = UsageLimits(request_limit=None)

    async def read() -> None:
        async with agent.run_stream_events("go", usage_limits=limits) as events:
            await _drain(events)

    return _counted(read if option == "stream" else lambda: agent.run("go", usage_limits=limits))


def langgraph(turns: int, calls: int, body: Body, option: Option | None = None) -> Run:
    """A tool's error ends the run: `handle_tool_errors=False`. The agent is the ready-made one of `langgraph`."""
    import warnings

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver

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
        saver = InMemorySaver() if option == "journal" else None
        graph = create_react_agent(Scripted(), ToolNode([work], handle_tool_errors=False), checkpointer=saver)
    config: Any = {"recursion_limit": 2 * turns + 5}
    threads, given = itertools.count(), {"messages": [("user", "go")]}
    if option == "stream":
        return _counted(lambda: _drain(graph.astream(given, config)))
    return _counted(lambda: graph.ainvoke(given, {**config, "configurable": {"thread_id": str(next(threads))}}))


def strands(turns: int, calls: int, body: Body, option: Option | None = None) -> Run:
    """A tool's error is an output for the model; there is no way to end the run by it. Each run has its own agent."""
    from strands import Agent, tool
    from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent
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

    def make() -> Any:
        agent = Agent(model=Scripted(), tools=[work], callback_handler=None)
        if option == "hooks":
            for event in (BeforeToolCallEvent, AfterToolCallEvent):
                agent.hooks.add_callback(event, _wait)
        return agent

    return _counted(lambda: _drain(make().stream_async("go")) if option == "stream" else make().invoke_async("go"))


def agent_framework(turns: int, calls: int, body: Body, option: Option | None = None) -> Run:
    """A tool's error is an output for the model."""
    from agent_framework import (
        Agent,
        BaseChatClient,
        ChatResponse,
        Content,
        FunctionInvocationLayer,
        Message,
        function_middleware,
        tool,
    )

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

    @function_middleware
    async def around(context: Any, call_next: Any) -> None:
        await _wait()
        await call_next()
        await _wait()

    agent = Agent(client, tools=[work], middleware=[around] if option == "hooks" else None)
    return _counted(lambda: agent.run("go"))


def google_adk(turns: int, calls: int, body: Body, option: Option | None = None) -> Run:
    """A tool's error ends the run, as is usual there. Each run has a session, in memory, and is a stream, always."""
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

    hooks: Any = {"before_tool_callback": _wait, "after_tool_callback": _wait} if option == "hooks" else {}
    agent = LlmAgent(name="a", model=Scripted(model="scripted"), tools=[work], **hooks)
    runner = InMemoryRunner(agent, app_name="a")
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
OPTIONS: dict[str, tuple[Option, ...]] = {
    "agentloop": ("timeout", "hooks", "journal", "stream"),
    "openai-agents": ("timeout", "hooks", "stream"),
    "pydantic-ai": ("timeout", "hooks", "stream"),
    "langgraph": ("journal", "stream"),
    "strands-agents": ("hooks", "stream"),
    "agent-framework": ("hooks",),
    "google-adk": ("hooks", "journal", "stream"),
}
"""The options that a library has, of those that are compared. Its maker takes them as `option`."""
DISTRIBUTIONS = {
    "agentloop": "agentloop-anyio",
    "pydantic-ai": "pydantic-ai-slim",
    "agent-framework": "agent-framework-core",
    "locus": "locus-sdk",
}
