"""Programs in which every piece of application code that a run calls is a point, at which the sweep may raise.

A point is one call of one callback, hook, protocol method or instrument. Points are counted as a run comes to them, so
that a sweep over their numbers raises out of everything the application can hand in, whenever the run calls it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import attrs
from kit.watching import SpanWatch

from agentloop import (
    Agent,
    AgentHooks,
    Allow,
    GuardrailFunctionOutput,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunResult,
    ToolContext,
    ToolExecution,
    ToolsToFinalOutput,
    UsageLimits,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.abc import Instrument, Model
from agentloop.exceptions import ModelTransportError
from agentloop.guardrails import tool_input_guardrail, tool_output_guardrail
from agentloop.items import AssistantMessage, HostedToolCall, Refusal
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, respond, say
from agentloop.usage import RequestUsage

USAGE = RequestUsage(input_tokens=3, output_tokens=2)


@attrs.define
class Points:
    """Counts what a run calls of the application, and raises *error* at the *at*-th of these calls.

    With *again* it raises at every later one as well; with *waits* callbacks that may be async are, and raise after a
    checkpoint.
    """

    at: int | None = None
    error: BaseException | None = None
    again: bool = False
    waits: bool = False
    names: list[str] = attrs.field(factory=list)
    watch: SpanWatch = attrs.field(factory=SpanWatch)
    ended: bool = False
    """Whether the log held the run's last record when the error was raised: the record can't tell of that any more."""

    def reach(self, name: str) -> None:
        """Come to the point *name*."""
        place = len(self.names)
        self.names.append(name)
        if self.at is None or self.error is None or place < self.at or (place > self.at and not self.again):
            return
        if place == self.at:
            self.ended = any(isinstance(one, r.RunEnded) and not one.path for one in self.watch.records)
        raise self.error

    async def arrive(self, name: str) -> None:
        """Come to the point *name* in async code."""
        if self.waits:
            await anyio.lowlevel.checkpoint()
        self.reach(name)

    def fn(self, name: str, answer: Any = None) -> Callable[..., Any]:
        """Return a callback that comes to the point *name* and gives *answer*, or what that gives for the arguments."""

        def give(*args: Any) -> Any:
            self.reach(name)
            return answer(*args) if callable(answer) else answer

        async def give_late(*args: Any) -> Any:
            await self.arrive(name)
            return answer(*args) if callable(answer) else answer

        return give_late if self.waits else give

    def sync(self, name: str, answer: Any = None) -> Callable[..., Any]:
        """Return such a callback that is never async."""

        def give(*args: Any) -> Any:
            self.reach(name)
            return answer

        return give


class PointInstrument(Instrument):
    """An instrument each of whose methods is a point."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def on_record(self, record: Any) -> None:
        self._points.reach(f"on_record {type(record).__name__}")

    def on_trace_start(self, trace: Any) -> None:
        self._points.reach("on_trace_start")

    def on_trace_end(self, trace: Any) -> None:
        self._points.reach("on_trace_end")

    def on_span_start(self, span: Any) -> None:
        self._points.reach("on_span_start")

    def on_span_end(self, span: Any) -> None:
        self._points.reach("on_span_end")


def hooks_of(points: Points, base: type) -> Any:
    """Return hooks of *base* whose every method is a point."""

    def method(name: str) -> Any:
        async def hook(self: Any, *args: Any) -> None:
            await points.arrive(f"{base.__name__}.{name}")

        return hook

    names = [name for name in vars(base) if name.startswith("on_")]
    return type(f"Point{base.__name__}", (base,), {name: method(name) for name in names})()


class PointModel(ScriptedModel):
    """A scripted model with points around its stream and between the events of it."""

    def __init__(self, points: Points, *steps: Any) -> None:
        super().__init__(steps)
        self._points = points

    def stream(self, request: Any) -> Any:
        self._points.reach("Model.stream")
        return self._around(super().stream(request))

    @asynccontextmanager
    async def _around(self, stream: Any) -> AsyncIterator[Any]:
        await self._points.arrive("Model.stream enter")
        async with stream as events:
            yield self._between(events)
        await self._points.arrive("Model.stream exit")

    async def _between(self, events: Any) -> AsyncIterator[Any]:
        async for event in events:
            await self._points.arrive("Model.stream event")
            yield event


class OpenedModel(PointModel):
    """A model that the run enters and leaves."""

    @property
    def is_open(self) -> bool:
        return False

    async def __aenter__(self) -> Any:
        await self._points.arrive("Model enter")
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._points.arrive("Model exit")


class PointSession(MemorySession):
    """A session whose methods are points, before they do anything and after."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self._points = points

    async def get_items(self, limit: int | None = None) -> Any:
        await self._points.arrive("Session.get_items")
        return await super().get_items(limit)

    async def add_items(self, items: Any) -> None:
        await self._points.arrive("Session.add_items")
        await super().add_items(items)
        await self._points.arrive("Session.add_items done")


class PointJournal(MemoryJournal):
    """A journal whose methods are points, before they do anything and after."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self._points = points

    async def append(self, records: Any) -> None:
        await self._points.arrive("Journal.append")
        await super().append(records)
        await self._points.arrive("Journal.append done")

    async def read(self) -> Any:
        await self._points.arrive("Journal.read")
        return await super().read()


class PointPolicy:
    """A policy that allows everything."""

    def __init__(self, points: Points) -> None:
        self.decide = points.fn("policy", Allow())


class PointStore:
    """An output store."""

    def __init__(self, points: Points) -> None:
        self.put = points.fn("output_store", "stored")


class PointProvider:
    """A model provider of one model."""

    def __init__(self, points: Points, model: Model) -> None:
        self._points = points
        self._model = model

    def get_model(self, name: str) -> Model:
        self._points.reach("ModelProvider.get_model")
        return self._model


def guardrails_of(points: Points) -> dict[str, Any]:
    """Return guardrails of all four kinds, by the names of the fields that take them."""
    passed = GuardrailFunctionOutput(None, False)
    return {
        "input_guardrails": [
            input_guardrail(points.fn("input_guardrail", passed), name="before", run_in_parallel=False),
            input_guardrail(points.fn("input_guardrail beside", passed), name="beside"),
            input_guardrail(points.fn("input_guardrail beside", passed), name="beside too"),
        ],
        "output_guardrails": [
            output_guardrail(points.fn("output_guardrail", passed), name=name) for name in ("one", "two")
        ],
        "tool_input_guardrails": [tool_input_guardrail(points.fn("tool_input_guardrail", Allow()), name="in")],
        "tool_output_guardrails": [tool_output_guardrail(points.fn("tool_output_guardrail", Allow()), name="out")],
    }


def config_of(points: Points, **fields: Any) -> RunConfig:
    """Return a configuration that the points' watch and their instrument are part of, the watch first."""
    return RunConfig(instruments=(points.watch, PointInstrument(points)), **fields)


Options = dict[str, Any]
Program = Callable[[Points], tuple[Agent[Any, Any], Any, Options]]


def calls(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run with every callback of tools, siblings at work beside each, and a resource."""
    guards = guardrails_of(points)
    tool_guards = {name: guards[name] for name in ("tool_input_guardrails", "tool_output_guardrails")}

    @asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        await points.arrive("resource enter")
        yield "held"
        await points.arrive("resource exit")

    @tool(
        is_enabled=points.fn("is_enabled", True),
        needs_approval=points.fn("needs_approval", False),
        cost=points.sync("cost", Decimal("0.01")),
        custom_data_extractor=points.fn("custom_data_extractor", {"n": 1}),
        **tool_guards,
    )
    async def work(ctx: ToolContext[Any], n: int) -> str:
        """Work."""
        await points.arrive("body")
        await ctx.resource(resource)
        await ctx.report(n)
        await points.arrive("body, later")
        return "x" * 40

    @tool
    async def slow() -> str:
        """Take long, and clean up."""
        try:
            await anyio.sleep(1)
        finally:
            await points.arrive("body, at its end")
        return "slept"

    @tool(failure_error_function=points.fn("failure_error_function", "it failed"), **tool_guards)
    async def fails() -> str:
        """Fail."""
        raise ValueError("broken")

    @tool(timeout=0.1, timeout_error_function=points.fn("timeout_error_function", "too slow"))
    async def late() -> str:
        """Take too long."""
        await anyio.sleep(60)
        return "never"

    turn = [
        call("work", {"n": 1}, call_id="c1"),
        call("work", {"n": 2}, call_id="c2"),
        call("slow", call_id="c3"),
        call("fails", call_id="c4"),
        call("late", call_id="c5"),
        call("unknown", call_id="c6"),
        respond(HostedToolCall("web_search_call", {}, "ws", "completed")),
    ]
    agent: Agent[Any, Any] = Agent(
        "calls",
        instructions=points.fn("instructions", "Be brief."),
        model="any",
        tools=[work, slow, fails, late],
        hooks=hooks_of(points, AgentHooks),
        tool_use_behavior=points.fn("tool_use_behavior", ToolsToFinalOutput(is_final=False)),
        input_guardrails=guards["input_guardrails"],
        output_guardrails=guards["output_guardrails"],
    )
    model = OpenedModel(points, turn, say("done", usage=USAGE))
    config = config_of(
        points,
        model_provider=PointProvider(points, model),
        policies=[PointPolicy(points)],
        tool_error_formatter=points.fn("tool_error_formatter", "no such tool"),
        tool_not_found_behavior="tell_model",
        call_model_input_filter=points.fn("call_model_input_filter", lambda data: data),
        stop_when=points.fn("stop_when", False),
        output_store=PointStore(points),
        tool_execution=ToolExecution(max_output_chars=30, max_function_tool_concurrency=4),
        limits=UsageLimits(cost=Decimal(10)),
        price=points.sync("price", Decimal("0.1")),
        hosted_price=points.sync("hosted_price", Decimal("0.1")),
    )
    return agent, "go", {"run_config": config, "hooks": hooks_of(points, RunHooks)}


def kept(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run with a session and a journal, a handoff, and agent tools with callbacks of their own."""

    @tool
    async def deep() -> str:
        """Work, far down."""
        await points.arrive("nested body")
        return "deep"

    inner: Agent[Any, Any] = Agent(
        "inner",
        instructions=points.fn("nested instructions", "Be brief."),
        model=PointModel(points, *([call("deep", call_id="d1"), say("inner is done")] * 2)),
        tools=[deep],
        hooks=hooks_of(points, AgentHooks),
    )
    asked = inner.as_tool(
        parameters=dict[str, int],
        input_builder=points.fn("input_builder", "go"),
        custom_output_extractor=points.fn("custom_output_extractor", lambda result: result.final_output),
        on_stream=points.fn("on_stream"),
        session=PointSession(points),
    )
    second: Agent[Any, Any] = Agent("second", model=PointModel(points, say("done")), hooks=hooks_of(points, AgentHooks))
    over = handoff(
        second,
        on_handoff=points.fn("on_handoff"),
        input_filter=points.fn("input_filter", lambda data: data),
        is_enabled=points.fn("handoff is_enabled", True),
    )
    turn = [call("inner", "{}", call_id="c1"), call("deep", call_id="c2")]
    agent: Agent[Any, Any] = Agent(
        "kept",
        model=PointModel(points, turn, call("transfer_to_second", call_id="c3")),
        tools=[asked, deep],
        handoffs=[over],
        hooks=hooks_of(points, AgentHooks),
    )
    config = config_of(
        points, session_input_callback=points.fn("session_input_callback", lambda history, new: [*history, *new])
    )
    options = {"session": PointSession(points), "journal": PointJournal(points), "hooks": hooks_of(points, RunHooks)}
    return agent, "go", {**options, "run_config": config}


def gives_up(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run that asks its model again and ends by its error handler."""
    policy = points.fn("retry policy", True)
    settings = ModelSettings(retry=ModelRetrySettings(1, initial_delay=0.1, policy=policy))
    model = PointModel(points, fail(ModelTransportError("lost", status=503)), call("work", call_id="c1"), say("no"))

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    agent: Agent[Any, Any] = Agent("gives_up", model=model, model_settings=settings, tools=[work])
    handlers = {"max_turns": points.fn("error_handler max_turns", "so far")}
    return agent, "go", {"run_config": config_of(points), "max_turns": 1, "error_handlers": handlers}


def refused(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run whose model refuses."""
    model = PointModel(points, respond(AssistantMessage((Refusal("no"),))))
    agent: Agent[Any, Any] = Agent("refused", model=model)
    handlers = {"model_refusal": points.fn("error_handler model_refusal", "it would not")}
    return agent, "go", {"run_config": config_of(points), "error_handlers": handlers}


def rejected_answers(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run whose model's answer doesn't fit the output's type."""
    model = PointModel(points, say("not a number"), say("nor this"))
    agent: Agent[Any, Any] = Agent("misfit", model=model, output_type=int)
    handlers = {"invalid_final_output": points.fn("error_handler invalid_final_output", 7)}
    return agent, "go", {"run_config": config_of(points), "error_handlers": handlers}


def out_of_time(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run that ends at its own deadline, with bodies, hooks and a resource that have to end."""

    @asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        yield "held"
        await points.arrive("resource exit")

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        """Take long."""
        await ctx.resource(resource)
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await points.arrive("cleanup of a body")
        return "never"

    agent: Agent[Any, Any] = Agent(
        "out_of_time",
        model=PointModel(points, [call("slow", call_id="c1"), call("slow", call_id="c2")]),
        tools=[slow],
        hooks=hooks_of(points, AgentHooks),
    )
    return agent, "go", {"run_config": config_of(points, timeout=0.5), "hooks": hooks_of(points, RunHooks)}


def cut_off(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
    """Return a run that its caller cancels, with the same."""
    agent, given, options = out_of_time(points)
    return agent, given, {**options, "run_config": config_of(points), PATIENCE: 0.5}


def cut_off_in(stage: str) -> Program:
    """Return the program of a run whose caller cancels it while two callbacks of *stage* wait, which then clean up."""

    def program(points: Points) -> tuple[Agent[Any, Any], Any, Options]:
        async def wait_for_ever(*args: Any) -> Any:
            try:
                await anyio.sleep_forever()
            finally:
                points.reach(f"cleanup of {stage}")

        guards = {
            "input_guardrail": lambda name: input_guardrail(wait_for_ever, name=name, run_in_parallel=False),
            "input_guardrail beside": lambda name: input_guardrail(wait_for_ever, name=name),
            "output_guardrail": lambda name: output_guardrail(wait_for_ever, name=name),
        }

        def offered(name: str) -> Any:
            @tool(name=name, is_enabled=wait_for_ever)
            async def work() -> str:
                """Work."""
                return "never"

            return work

        agent: Agent[Any, Any] = Agent("cut_off_in", model=PointModel(points, say("done")))
        two = [guards.get(stage, offered)(name) for name in ("one", "two")]
        field = "tools" if stage == "is_enabled" else f"{stage.removesuffix(' beside')}s"
        return agent.clone(**{field: two}), "go", {"run_config": config_of(points), PATIENCE: 0.5}

    program.__name__ = f"cut_off_in {stage}"
    return program


STAGES = ("input_guardrail", "input_guardrail beside", "output_guardrail", "is_enabled")
"""The stages that ask several callables at a time, each in a task of its own."""
PATIENCE = "patience"
"""The option of a program that says after how many seconds its caller cancels the run."""
PROGRAMS: list[Program] = [
    calls,
    kept,
    gives_up,
    refused,
    rejected_answers,
    out_of_time,
    cut_off,
    *map(cut_off_in, STAGES),
]


async def run_plain(program: Program, points: Points) -> RunResult[Any] | None:
    """Run *program* without reading its events."""
    agent, given, options = program(points)
    with anyio.move_on_after(options.pop(PATIENCE, None)):
        return await Runner.run(agent, given, **options)
    return None


async def run_streamed(program: Program, points: Points) -> RunResult[Any] | None:
    """Run *program* and read all of its events."""
    agent, given, options = program(points)
    with anyio.move_on_after(options.pop(PATIENCE, None)):
        async with Runner.run_streamed(agent, given, **options) as stream:
            async for _ in stream:
                pass
        return stream.result
    return None
