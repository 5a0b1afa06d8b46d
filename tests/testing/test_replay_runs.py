"""Replay of runs with all that an application may give a run: each comes out the same to the byte on both backends."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from kit.ending import advance_clock, cancel_when

from agentloop import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRetrySettings,
    ModelSettings,
    Prompt,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    RunTimeoutError,
    ToolCallError,
    ToolContext,
    ToolExecution,
    UsageLimitExceeded,
    UsageLimits,
    UserError,
    events,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop._storage.record_codec import decode, encode, record_from_json, record_to_json
from agentloop.abc import Instrument
from agentloop.config import ModelInputData
from agentloop.config.policies import Deny
from agentloop.exceptions import ModelTransportError, OutcomeUnknown, ReplayDivergence, ToolSourceError
from agentloop.guardrails import (
    Allow,
    BlockedOutputArgs,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.handoffs import HandoffInputData
from agentloop.items import AssistantMessage, HostedToolCall, Image, ToolOutput, UserMessage
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.limits import Capacity, Rate
from agentloop.records import (
    CallSettled,
    CancelRequested,
    CleanupCut,
    DeadlinePassed,
    GuardrailSettled,
    ModelResponded,
    RunEnded,
)
from agentloop.run._live_effects import LiveEffects
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, call, fail, respond, say
from agentloop.testing.fixtures import VirtualClock
from agentloop.testing.replaying import Replayed, replay
from agentloop.tools import ToolsToFinalOutput
from agentloop.usage import RequestUsage

BACKENDS: Any = ("asyncio", "trio")
RAN: list[str] = []


def ran(what: str, value: Any = None) -> Any:
    """Note that something of the application ran."""
    RAN.append(what)
    return value


def lines(records: Any) -> list[bytes]:
    """Return *records* as the bytes a journal holds."""
    return [encode(record_to_json(record)) for record in records]


class Records:
    """An instrument that keeps the records of a run, also of one that fails."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def on_record(self, record: Any) -> None:
        """Keep *record*."""
        self.records.append(record)


def comes_out_the_same(
    agent: Agent[Any, Any],
    *,
    given: Any = "go",
    config: RunConfig | None = None,
    run: Callable[[Agent[Any, Any], RunConfig], Awaitable[Any]] | None = None,
    start: Callable[..., Any] = anyio.run,
    **options: Any,
) -> list[Replayed]:
    """Record *agent* on both stock backends, replay each on both, and return the replays; nothing of it runs again.

    *start* starts the recorded runs, for cases that only their times on virtual clocks tell apart.
    """
    config = config or RunConfig()
    replays: list[Replayed] = []
    for backend in BACKENDS:
        kept = Records()
        watched = attrs.evolve(config, instruments=(kept,))

        async def main(watched: RunConfig = watched) -> None:
            if run is not None:
                await run(agent, watched)
            else:
                made = {name: value() if name == "session" else value for name, value in options.items()}
                await Runner.run(agent, given, run_config=watched, **made)

        error: BaseException | None = None
        try:
            start(main, backend=backend)
        except Exception as raised:
            error = raised
        assert kept.records, repr(error)
        wanted = lines(kept.records)
        for other in BACKENDS:
            RAN.clear()
            replayed = replay(
                [record_from_json(decode(line)) for line in wanted], agent, run_config=config, backend=other
            )
            assert lines(replayed.records) == wanted
            assert RAN == []
            replays.append(replayed)
    return replays


def scripted(*steps: Any) -> FunctionModel:
    """Return a model that says the same in every run."""
    return FunctionModel(lambda request: steps[request.turn - 1])


@tool
async def double(n: int) -> dict[str, int]:
    """Double a number."""
    ran("double")
    await anyio.sleep(0.001)
    return {"z": n, "a": n * 2}


@tool
def slowly(n: int) -> str:
    """Work in a thread."""
    ran("slowly")
    return f"{n} slowly"


@tool(timeout=0.02)
async def hangs() -> str:
    """Never end."""
    await anyio.sleep_forever()
    return "never"


@tool
async def breaks() -> str:
    """Fail."""
    ran("breaks")
    raise LookupError("nothing\nthere: password=abc")


def test_bodies_of_every_kind() -> None:
    """Values that aren't text, threads, failures with several lines and secrets, and timeouts are replayed."""
    model = scripted(
        [call("double", {"n": 1}), call("slowly", {"n": 2}), call("hangs"), call("breaks"), call("double", {"n": 3})],
        [call("nothing")],
        say("done"),
    )
    agent = Agent("a", tools=[double, slowly, hangs, breaks], model=model)
    replays = comes_out_the_same(agent, config=RunConfig(tool_not_found_behavior="tell_model"))
    assert {one.outcome.status for one in replays[0].result.calls} == {"succeeded", "failed", "timed_out"}  # type: ignore[union-attr]


def test_a_body_that_ended_in_time_although_its_cleanup_was_cut() -> None:
    """Its time limit is not what comes next, though nothing in the log leads to the cut before the body's end."""

    @tool(timeout=30, tool_output_guardrails=[tool_output_guardrail(lambda data: ran("judged", Allow()))])
    async def cleans(ctx: ToolContext[None]) -> str:
        """Clean up for longer than a run may take for it."""
        ran("cleans")
        with ctx.cleanup():
            await anyio.sleep(20)
        return "cleaned up"

    turn = [call("cleans", call_id="c1"), call("double", {"n": 1}, call_id="c2"), call("breaks", call_id="c3")]
    agent = Agent("a", tools=[cleans, double, breaks], model=scripted(call("double", {"n": 0}), turn, say("done")))
    execution = ToolExecution(max_function_tool_concurrency=1, cleanup_grace=0.02)
    replayed = comes_out_the_same(agent, config=RunConfig(tool_execution=execution))
    assert any(isinstance(one, CleanupCut) for one in replayed[0].records)
    assert replayed[0].result is not None
    assert [one.outcome.status for one in replayed[0].result.calls][1] == "succeeded"


@pytest.mark.parametrize("fails", [False, True])
def test_a_nested_run_that_takes_its_time_to_leave_what_it_holds(fails: bool) -> None:
    """Its end comes late, beside what others do meanwhile; one that fails is cut in leaving."""

    @asynccontextmanager
    async def held() -> AsyncIterator[str]:
        ran("held")
        yield "held"
        await anyio.sleep(20 if fails else 0.04)

    @tool
    async def hold(ctx: ToolContext[None]) -> str:
        """Hold something."""
        return str(await ctx.resource(held))

    @tool
    async def work() -> str:
        """Work for a while."""
        ran("work")
        await anyio.sleep(0.02)
        return "worked"

    judge = output_guardrail(lambda ctx, agent, output: GuardrailFunctionOutput(None, tripwire_triggered=fails))
    holder = Agent("h", tools=[hold], model=scripted(call("hold"), say("held")), output_guardrails=[judge])
    worker = Agent("w", tools=[work], model=scripted(call("work"), call("work"), say("worked")))
    asks = [holder.as_tool("ask_holder", "Ask."), worker.as_tool("ask_worker", "Ask.")]
    turn = [call("ask_holder", {"input": "?"}, "c1"), call("ask_worker", {"input": "?"}, "c2")]
    agent = Agent("a", tools=asks, model=scripted(turn, say("done")))
    replayed = comes_out_the_same(agent, config=RunConfig(tool_execution=ToolExecution(cleanup_grace=0.07)))
    cuts = [one.section for one in replayed[0].records if isinstance(one, CleanupCut)]
    assert cuts == (["resource exit"] if fails else [])
    ends = [one.path for one in replayed[0].records if isinstance(one, RunEnded)]
    assert sorted(ends) == [(), ("c1",), ("c2",)]


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_late_loop_on_which_a_nested_run_is_cut_in_leaving_what_it_holds(passes: int) -> None:
    """What others do in the pass in which its cleanup deadline passes comes before or after its end, as in the log."""
    leaving: list[anyio.Event] = []

    @asynccontextmanager
    async def held() -> AsyncIterator[str]:
        ran("held")
        yield "held"
        leaving[-1].set()
        await anyio.sleep(600)

    @tool
    async def hold(ctx: ToolContext[None]) -> str:
        """Hold something."""
        return str(await ctx.resource(held))

    @tool
    async def work() -> str:
        """Work until the other run leaves what it holds, and hold up the loop past the deadline."""
        ran("work")
        await leaving[-1].wait()
        advance_clock(60)
        for _ in range(passes):
            await anyio.lowlevel.checkpoint()
        return "worked"

    judge = output_guardrail(lambda ctx, agent, output: GuardrailFunctionOutput(None, tripwire_triggered=True))
    holder = Agent("h", tools=[hold], model=scripted(call("hold"), say("held")), output_guardrails=[judge])
    worker = Agent("w", tools=[work], model=scripted(call("work"), say("worked")))
    asks = [holder.as_tool("ask_holder", "Ask."), worker.as_tool("ask_worker", "Ask.")]
    turn = [call("ask_holder", {"input": "?"}, "c1"), call("ask_worker", {"input": "?"}, "c2")]
    agent = Agent("a", tools=asks, model=scripted(turn, say("done")))

    async def with_event(agent: Agent[Any, Any], config: RunConfig) -> None:
        leaving.append(anyio.Event())
        await Runner.run(agent, "go", run_config=config)

    config = RunConfig(tool_execution=ToolExecution(cleanup_grace=30))
    replayed = comes_out_the_same(agent, config=config, run=with_event)
    assert [one.section for one in replayed[0].records if isinstance(one, CleanupCut)] == ["resource exit"]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_listener_that_takes_its_time_over_the_last_events(fails: bool) -> None:
    """The body of an agent tool ends when its `on_stream` has seen every event, beside what others do meanwhile."""

    async def listen(event: Any) -> None:
        ran("listen")
        if isinstance(event, events.RunEnded):
            await anyio.sleep(0.05)

    @tool
    async def work() -> str:
        """Work for a while."""
        ran("work")
        await anyio.sleep(0.02)
        return "worked"

    heard = Agent("h", model=scripted(fail(ModelTransportError("busy")) if fails else say("heard")))
    worker = Agent("w", tools=[work], model=scripted(call("work"), call("work"), say("worked")))
    asks = [heard.as_tool("ask_heard", "Ask.", on_stream=listen), worker.as_tool("ask_worker", "Ask.")]
    turn = [call("ask_heard", {"input": "?"}, "c1"), call("ask_worker", {"input": "?"}, "c2")]
    replayed = comes_out_the_same(Agent("a", tools=asks, model=scripted(turn, say("done"))))
    ends = [one.path for one in replayed[0].records if isinstance(one, RunEnded)]
    assert sorted(ends) == [(), ("c1",), ("c2",)]


def test_a_body_that_cancelled_itself_too_late() -> None:
    """Its call timed out without being cut off: the loop had no time to cut it, and the body ended by itself."""

    @tool(timeout=60)
    async def late() -> str:
        """Hold up the loop past the time limit, then give up."""
        ran("late")
        await anyio.sleep(0.01)
        advance_clock(60)
        raise asyncio.CancelledError("enough")

    agent = Agent("a", tools=[double, late], model=scripted([call("late"), call("double", {"n": 1})], say("done")))
    replayed = comes_out_the_same(agent)
    assert replayed[0].result is not None
    outcome = replayed[0].result.calls[0].outcome
    assert (outcome.status, outcome.body_finished) == ("timed_out", True)


@pytest.mark.parametrize("timeout", [None, 30, 90])
def test_a_guardrail_that_refuses_what_a_body_that_cancelled_itself_left(timeout: float | None) -> None:
    """The outcome is the guardrail's: only the times tell whether the body had ended after its time limit."""

    @tool(
        timeout=timeout, tool_output_guardrails=[tool_output_guardrail(lambda data: ran("judged", RejectContent("no")))]
    )
    async def gives_up() -> str:
        """Hold up the loop, then give up."""
        ran("gives_up")
        await anyio.sleep(0.01)
        advance_clock(60)
        raise asyncio.CancelledError("enough")

    turn = [call("gives_up"), call("double", {"n": 1})]
    agent = Agent("a", tools=[double, gives_up], model=scripted(turn, say("done")))

    async def on_one_clock(agent: Agent[Any, Any], config: RunConfig) -> None:
        class OneClock(LiveEffects):
            def wall(self) -> float:
                return anyio.current_time()

        await Runner.run(agent, "go", run_config=attrs.evolve(config, effects=OneClock()))

    replayed = comes_out_the_same(agent, run=on_one_clock)
    assert replayed[0].result is not None
    outcome = replayed[0].result.calls[0].outcome
    assert (outcome.status, outcome.body_finished) == ("rejected", True)


def test_failures_that_leave_the_run() -> None:
    """A sibling's failure cancels the others; the error has the recorded class and words."""

    @tool(failure_error_function=None)
    async def fatal() -> str:
        await anyio.sleep(0.002)
        raise ValueError("no")

    agent = Agent("a", tools=[fatal, hangs], model=scripted([call("hangs"), call("fatal"), call("hangs")]))
    replayed = comes_out_the_same(
        agent, config=RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=2))
    )
    assert str(replayed[0].error) == "Error running tool fatal: ValueError: no"


def test_callbacks_that_answer() -> None:
    """Instructions, prompts, tool switches, filters, formatters, extractors, policies and conditions are replayed."""

    class Store:
        async def put(self, call: Any, data: str) -> str:
            return str(ran("put", "file:1"))

    class Odd:
        async def decide(self, pending: Any) -> Any:
            return ran("policy", Deny("not today") if pending.arguments == {"n": 7} else Allow())

    @tool(custom_data_extractor=lambda ctx, value: ran("extract", {"seen": len(value)}))
    async def long() -> str:
        return "x" * 900

    counted = attrs.evolve(double, is_enabled=lambda ctx, agent: ran("enabled", True))
    agent = Agent(
        "a",
        instructions=lambda ctx, agent: ran("instructions", "Be brief."),
        prompt=lambda ctx, agent: ran("prompt", Prompt("p", version="2", variables={"logo": Image("data:,x")})),
        tools=[long, counted],
        model=scripted(
            [call("long"), call("double", {"n": 7}), call("nothing")], [call("double", {"n": 2})], say("done")
        ),
    )
    config = RunConfig(
        tool_execution=ToolExecution(max_output_chars=300),
        output_store=Store(),
        policies=[Odd()],
        stop_when=lambda ctx: ran("stop_when", False),
        tool_not_found_behavior="tell_model",
        tool_error_formatter=lambda args: ran("formatter", f"no {args.tool}"),
        call_model_input_filter=lambda data: ran("filter", ModelInputData(input=data.input, instructions="Other.")),
    )
    replayed = comes_out_the_same(agent, config=config)
    assert replayed[0].result is not None
    assert replayed[0].result.calls[0].outcome.custom_data == {"seen": 900}


def test_callbacks_that_raise() -> None:
    """A callback without an answer in the log raised what ended the run, or the call, or nothing."""

    def broken(*_: Any) -> Any:
        ran("broken")
        raise RuntimeError("broken callback")

    class Broken:
        decide = staticmethod(broken)

    model = scripted([call("double", {"n": 1})], say("done"))
    wordless = attrs.evolve(breaks, failure_error_function=broken)
    disabled = attrs.evolve(double, is_enabled=broken)
    asked = attrs.evolve(double, needs_approval=broken)
    for agent, config in (
        (Agent("a", instructions=broken, model=model), RunConfig()),
        (Agent("a", prompt=broken, model=model), RunConfig()),
        (Agent("a", tools=[disabled], model=model), RunConfig()),
        (Agent("a", tools=[asked], model=model), RunConfig()),
        (Agent("a", tools=[wordless], model=scripted([call("breaks")])), RunConfig()),
        (Agent("a", tools=[double], model=model), RunConfig(policies=[Broken()])),
        (Agent("a", tools=[double], model=model), RunConfig(call_model_input_filter=broken)),
        (Agent("a", tools=[double], model=model, tool_use_behavior=broken), RunConfig()),
        (Agent("a", tools=[double], model=model, input_guardrails=[input_guardrail(broken)]), RunConfig()),
        (Agent("a", tools=[double], model=model, output_guardrails=[output_guardrail(broken)]), RunConfig()),
    ):
        comes_out_the_same(agent, config=config)


def test_hooks_that_wait_and_hooks_that_raise() -> None:
    """Hooks aren't called; other work ran where they waited, and the run ends as it did where one raised."""

    class Slow(RunHooks):
        async def on_tool_start(self, *_: Any) -> None:
            ran("start")
            await anyio.sleep(0.001)

        async def on_tool_end(self, *_: Any) -> None:
            ran("end")
            await anyio.sleep(0.003)

        async def on_llm_start(self, *_: Any) -> None:
            ran("llm")
            await anyio.sleep(0.001)

    class Raising(AgentHooks):
        async def on_tool_start(self, *_: Any) -> None:
            ran("raising")
            raise ConnectionError("no hook")

    class RaisingLater(AgentHooks):
        async def on_llm_end(self, *_: Any) -> None:
            ran("raising")
            raise ConnectionError("no hook")

    model = scripted([call("double", {"n": n}) for n in range(4)], say("done"))
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=2))
    comes_out_the_same(Agent("a", tools=[double], model=model), config=config, hooks=Slow())
    comes_out_the_same(Agent("a", tools=[double], model=model, hooks=Raising()))
    comes_out_the_same(Agent("a", tools=[double], model=model, hooks=RaisingLater()))


def test_guardrails_of_every_stage() -> None:
    """Guardrails beside the model, of tools with their answers, several of an output, and tripwires are replayed."""

    @input_guardrail
    async def beside(ctx: Any, agent: Any, given: Any) -> Any:
        ran("beside")
        await anyio.sleep(0.001)
        return GuardrailFunctionOutput({"seen": 1})

    @input_guardrail(run_in_parallel=False)
    async def before(ctx: Any, agent: Any, given: Any) -> Any:
        return GuardrailFunctionOutput(ran("before"))

    @output_guardrail
    async def first(ctx: Any, agent: Any, output: Any) -> Any:
        await anyio.sleep(0.002)
        return GuardrailFunctionOutput(ran("first"))

    @output_guardrail
    async def second(ctx: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(ran("second"))

    @output_guardrail
    async def trips(ctx: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput("bad", tripwire_triggered=True)

    @input_guardrail
    async def trips_early(ctx: Any, agent: Any, given: Any) -> Any:
        return GuardrailFunctionOutput("bad", tripwire_triggered=True)

    @tool_input_guardrail
    async def rewrites(data: Any) -> Any:
        return ran("rewrites", Rewrite({"n": 40}) if data.arguments["n"] == 4 else Allow())

    @tool_output_guardrail
    async def replaces(data: Any) -> Any:
        return ran("replaces", ReplaceOutput({"z": 1, "a": 2}) if data.arguments["n"] == 40 else RejectContent("no"))

    judged = attrs.evolve(double, tool_input_guardrails=(rewrites,), tool_output_guardrails=(replaces,))
    model = scripted([call("double", {"n": 4}), call("double", {"n": 5})], say("done"))
    agent = Agent(
        "a", tools=[judged], model=model, input_guardrails=[beside, before], output_guardrails=[first, second]
    )
    comes_out_the_same(agent)
    comes_out_the_same(agent.clone(output_guardrails=[first, trips, second]))
    comes_out_the_same(agent.clone(input_guardrails=[beside, trips_early]))
    final = agent.clone(
        tool_use_behavior="stop_on_first_tool", tools=[double], output_guardrails=[first, second, trips]
    )
    comes_out_the_same(final)

    def words(args: BlockedOutputArgs) -> str:
        return str(ran("words", f"{args.agent.name}: refused by {args.guardrail}"))

    usual = "Output withheld by an output guardrail."
    messages: dict[str, Any] = {"Refused.": "Refused.", "a: refused by trips": words, usual: lambda args: ran("words")}
    for told, given in messages.items():
        replayed = comes_out_the_same(final, config=RunConfig(output_guardrail_blocked_message=given))
        [replaced] = [one for one in replayed[0].records if isinstance(one, r.HistoryReplaced)]
        assert next(item.output for item in replaced.items if isinstance(item, ToolOutput)) == told


def test_handoffs_and_nested_agents() -> None:
    """Filters, callbacks, nested runs side by side, builders, extractors and an agent tool's timeout are replayed."""
    inner = Agent("inner", tools=[double], model=scripted([call("double", {"n": 2})], say("inner done")))
    stuck = Agent("stuck", tools=[attrs.evolve(hangs, timeout=None)], model=scripted([call("hangs")]))

    @attrs.frozen
    class Question:
        text: str

    def filtered(data: HandoffInputData) -> HandoffInputData:
        ran("filter")
        return data.replace(input_items=(UserMessage("just this"),))

    target = Agent("target", model=scripted(say("nobody"), say("target done")))
    target.model = FunctionModel(lambda request: say("target done"))
    agent = Agent(
        "a",
        tools=[
            inner.as_tool(custom_output_extractor=lambda result: ran("extract", {"b": 1, "a": result.final_output})),
            inner.as_tool(
                "built", parameters=Question, input_builder=lambda value: ran("build", f"Answer: {value.text}")
            ),
            stuck.as_tool(timeout=0.02),
        ],
        handoffs=[handoff(target, input_filter=filtered, on_handoff=lambda ctx: ran("on_handoff"))],
        model=scripted(
            [call("inner", {"input": "x"}), call("built", {"text": "y"}), call("stuck", {"input": "z"})],
            [call("transfer_to_target")],
        ),
    )
    replayed = comes_out_the_same(agent)
    assert replayed[0].result is not None
    assert replayed[0].result.final_output == "target done"
    assert replayed[0].result.last_agent.name == "target"


@pytest.mark.parametrize(("where", "passes"), [("model", 1), ("model", 2), ("body", 0)])
def test_a_late_loop_on_which_a_timeout_ends_a_nested_run_beside_others(where: str, passes: int) -> None:
    """Its call had been admitted and never began, so its end came some records after that of the call."""

    async def hold_up(at: str) -> None:
        for _ in range(passes if at == where else 0):
            await anyio.lowlevel.checkpoint()
        if at == where:
            advance_clock(60)

    @tool
    async def work() -> str:
        """Work for a moment."""
        ran("work")
        await hold_up("body")
        await anyio.sleep(0.01)
        return "worked"

    async def ask(request: Any) -> Any:
        ran("ask")
        if request.turn == 1:
            await hold_up("model")
        return [call("work"), say("worked")][request.turn - 1]

    worker = Agent("worker", tools=[work], model=FunctionModel(ask))
    stuck = Agent("stuck", tools=[attrs.evolve(hangs, timeout=None)], model=scripted(call("hangs")))
    turn = [call("worker", {"input": "x"}), call("stuck", {"input": "y"}), call("worker", {"input": "z"})]
    agent = Agent("a", tools=[worker.as_tool(), stuck.as_tool(timeout=30)], model=scripted(turn, say("done")))
    replayed = comes_out_the_same(agent)
    assert replayed[0].result is not None
    assert [one.outcome.status for one in replayed[0].result.calls] == ["succeeded", "timed_out", "succeeded"]


def test_retries_and_failures_of_the_model() -> None:
    """A retry waits by the settings or by the application's policy; a last failure keeps its class."""

    def sometimes(request: Any) -> Any:
        tries.append(1)
        return fail(ModelTransportError("busy", status=503)) if len(tries) % 2 else say("done")

    tries: list[int] = []
    settings = ModelSettings(retry=ModelRetrySettings(3, initial_delay=0.002, max_delay=0.002))
    comes_out_the_same(Agent("a", model=FunctionModel(sometimes)), config=RunConfig(model_settings=settings))
    asked = ModelSettings(
        retry=ModelRetrySettings(3, initial_delay=0.002, max_delay=0.002, policy=lambda context: ran("policy", False))
    )
    tries.clear()
    replayed = comes_out_the_same(Agent("a", model=FunctionModel(sometimes)), config=RunConfig(model_settings=asked))
    assert isinstance(replayed[0].error, ModelTransportError)


def test_sessions() -> None:
    """A session that was read, merged by the application and written turn by turn isn't touched by the replay."""

    class Untouched(MemorySession):
        async def get_items(self, limit: int | None = None) -> Any:
            ran("get_items")
            return await super().get_items(limit)

        async def add_items(self, items: Any) -> None:
            ran("add_items")
            await super().add_items(items)

    def with_history() -> Untouched:
        session = Untouched()
        session._items.extend([UserMessage("before"), UserMessage("go")])
        return session

    agent = Agent("a", tools=[double], model=scripted([call("double", {"n": 1})], say("done")))
    comes_out_the_same(agent, session=with_history)
    merged = RunConfig(session_input_callback=lambda old, new: ran("merge", [*new, *old, UserMessage("go")]))
    comes_out_the_same(agent, session=with_history, config=merged)


def test_structured_outputs_handlers_and_behaviours() -> None:
    """The final output may be typed, come from a handler or a callable over tools, or be refused by a limit."""

    @attrs.frozen
    class Answer:
        text: str

    typed = Agent("a", model=scripted(say('{"text": "yes"}')), output_type=Answer)
    replayed = comes_out_the_same(typed)
    assert replayed[0].result is not None
    assert replayed[0].result.final_output == Answer("yes")
    model = scripted(*[[call("double", {"n": n})] for n in range(4)])
    comes_out_the_same(Agent("a", tools=[double], model=model), max_turns=2)
    comes_out_the_same(
        Agent("a", tools=[double], model=model),
        max_turns=2,
        error_handlers={"max_turns": lambda data: ran("h", "enough")},
    )

    async def decide(ctx: Any, results: Any) -> Any:
        return ran("behavior", ToolsToFinalOutput(is_final=True, output=[results[0].output]))

    comes_out_the_same(Agent("a", tools=[double], model=model, tool_use_behavior=decide))
    comes_out_the_same(Agent("a", tools=[double], model=model, tool_use_behavior="stop_on_first_tool"))


def test_runs_that_were_ended_from_outside() -> None:
    """A run may end by the caller's scope, natively, after the turn or by its time; a call may be cancelled alone."""
    agent = Agent(
        "a",
        tools=[double, hangs],
        model=scripted([call("double", {"n": 1}, call_id="c1"), call("hangs", call_id="c2")], say("x")),
    )
    agent.tools[1] = attrs.evolve(hangs, timeout=None)

    async def by_scope(agent: Any, config: RunConfig) -> None:
        with anyio.move_on_after(0.02):
            await Runner.run(agent, "go", run_config=config)

    async def natively(agent: Any, config: RunConfig) -> None:
        if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
            return await by_scope(agent, config)
        task = asyncio.ensure_future(Runner.run(agent, "go", run_config=config))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        return None

    async def one_call(agent: Any, config: RunConfig) -> None:
        async with Runner.run_streamed(agent, "go", run_config=config) as stream:
            async for event in stream:
                if type(event).__name__ == "CallSettled" and stream.current_turn == 1:
                    stream.cancel_call("c2", "enough of it")

    async def after_the_turn(agent: Any, config: RunConfig) -> None:
        async with Runner.run_streamed(agent, "go", run_config=config) as stream:
            async for event in stream:
                if type(event).__name__ == "CallSettled":
                    stream.cancel("after_turn")
                    stream.cancel_call("c2")

    for run in (by_scope, natively, one_call, after_the_turn):
        comes_out_the_same(agent, run=run)
    replayed = comes_out_the_same(agent, config=RunConfig(timeout=0.02))
    assert type(replayed[0].error).__name__ == "RunTimeoutError"
    # A log of an earlier version has the error by the name that it had there.
    *records, end = replayed[0].records
    assert isinstance(end, r.RunEnded)
    assert end.error is not None
    older = end.replace(error=end.error.replace("RunTimeoutError(", "RunTimeout("))
    assert lines(replay([*records, older], agent, run_config=RunConfig(timeout=0.02)).records) == lines([*records, end])


class Slow(RunHooks):
    """Hooks that take their time."""

    async def on_agent_start(self, *given: Any) -> None:
        """Wait a little."""
        await anyio.sleep(0.001)

    on_agent_end = on_llm_end = on_run_end = on_agent_start


@pytest.mark.parametrize("hooks", [None, Slow()])
@pytest.mark.parametrize("session", [None, MemorySession])
def test_a_stop_after_the_turn_wherever_it_is_asked_for(session: Any, hooks: Any) -> None:
    """Before the block, and at each record: also where no turn has begun."""
    inner = Agent("inner", tools=[double], model=scripted(call("double", {"n": 9}, call_id="i1"), say("inner done")))
    agent = Agent(
        "a",
        tools=[double, inner.as_tool()],
        model=scripted([call("double", {"n": 1}, call_id="c1"), call("inner", {"input": "x"}, call_id="c2")], say("x")),
    )

    def stopped_at(place: int) -> Callable[[Any, RunConfig], Awaitable[None]]:
        async def run(agent: Any, config: RunConfig) -> None:
            class Stop(Instrument):
                count = 0

                def on_record(self, record: r.Record) -> None:
                    self.count += 1
                    if self.count == place:
                        stream.cancel("after_turn")

            watched = attrs.evolve(config, instruments=(*config.instruments, Stop()))
            kept = None if session is None else session()
            stream = Runner.run_streamed(agent, "go", run_config=watched, session=kept, hooks=hooks)
            if place == 0:
                stream.cancel("after_turn")
            async with stream:
                await stream.finished()

        return run

    places = (0, 1, 2, 4, 8, 12, 19, 40)
    ends = [comes_out_the_same(agent, run=stopped_at(place))[0].records for place in places]
    assert {records[-1].turn for records in ends} == {0, 1, 2}


class Unanswered(BaseException):
    """An error that no policy answers."""


class Full(MemorySession):
    """A session that can't be written."""

    async def add_items(self, items: Any) -> None:
        """Fail."""
        raise OSError("the disk is full")


def make_raising(base: Any, **errors: Callable[[], BaseException]) -> Any:
    """Return hooks that are of *base* and raise: by method, a function that makes the error."""

    def make(error: Callable[[], BaseException]) -> Any:
        async def hook(*given: Any) -> None:
            raise ran("hook", error())

        return hook

    return type("Raising", (base,), {name: make(error) for name, error in errors.items()})()


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("no hook\nin two lines"),
    lambda: UserError("the library's own"),
    lambda: Unanswered("no hook"),
    lambda: ExceptionGroup("two", [ValueError("one"), KeyError("other")]),
    lambda: ModelBehaviorError("what the run would say, too"),
]
OF_RUNS = ("on_agent_start", "on_llm_start", "on_llm_end", "on_tool_start", "on_tool_end", "on_agent_end", "on_run_end")
OF_AGENTS = ("on_start", "on_llm_start", "on_llm_end", "on_tool_start", "on_tool_end", "on_end")
RAISING: list[tuple[str, Any, tuple[str, ...]]] = [
    *(("run", RunHooks, (name,)) for name in (*OF_RUNS, "on_handoff")),
    *(("nested", RunHooks, (name,)) for name in ("on_llm_end", "on_tool_end", "on_run_end")),
    *(("first", AgentHooks, (name,)) for name in (*OF_AGENTS[:-1], "on_handoff_out")),
    *(("second", AgentHooks, (name,)) for name in ("on_start", "on_handoff_in", "on_llm_end", "on_end")),
    *(("inner", AgentHooks, (name,)) for name in OF_AGENTS),
    *(("run", RunHooks, (name, "on_run_end")) for name in ("on_llm_end", "on_tool_end", "on_agent_end")),
    ("run", RunHooks, ("on_tool_start", "on_tool_end", "on_run_end")),
]


@pytest.mark.parametrize(
    ("whose", "session"),
    [(one, kind) for one in ("run", "nested", "first", "second", "inner") for kind in (None, MemorySession)]
    + [("run", Full), ("nested", Full)],
)
def test_a_hook_that_raises_whichever_it_is(whose: str, session: Any) -> None:
    """With errors of every kind, and other calls under way; several hooks raise, and so may the session's write."""
    cases = [(base, names) for one, base, names in RAISING if one == whose]
    for number, (base, names) in enumerate(cases):
        errors = {name: ERRORS[(number + place) % len(ERRORS)] for place, name in enumerate(names)}
        hooks: dict[str, Any] = {whose: make_raising(base, **errors)}
        inner = Agent(
            "inner",
            tools=[double],
            hooks=hooks.get("inner"),
            model=scripted(call("double", {"n": 9}, call_id="i1"), say("inner done")),
        )
        second = Agent("second", hooks=hooks.get("second"), model=scripted(say(""), say(""), say("done")))
        nested = inner.as_tool(hooks=hooks.get("nested"), session=None if session is None else session())
        first = Agent(
            "first",
            tools=[double, nested],
            handoffs=[second],
            hooks=hooks.get("first"),
            model=scripted(
                [call("double", {"n": 1}, call_id="c1"), call("inner", {"input": "x"}, call_id="c2")],
                call("transfer_to_second", call_id="h1"),
            ),
        )

        given, plain = hooks.get("run"), number % 2 == 0

        async def run(agent: Any, config: RunConfig, hooks: Any = given, plain: bool = plain) -> None:
            options: dict[str, Any] = {"run_config": config, "hooks": hooks, "session": session and session()}
            with suppress(Unanswered):
                if plain:
                    await Runner.run(agent, "go", **options)
                else:
                    async with Runner.run_streamed(agent, "go", **options) as stream:
                        await stream.finished()

        comes_out_the_same(first, run=run)


class Late(RunHooks):
    """Hooks that raise at the end of these *calls*."""

    def __init__(self, *calls: str) -> None:
        self.calls = calls

    async def on_tool_end(self, ctx: Any, *given: Any) -> None:
        """Raise, if it is one of the calls."""
        ran("end")
        if ctx.tool_call_id in self.calls:
            raise ValueError(ctx.tool_call_id)


@pytest.mark.parametrize("last", [call("double", {"n": 3}, call_id="c3"), call("breaks", call_id="c3")])
def test_a_hook_that_raises_at_the_end_of_a_call(last: Any) -> None:
    """Its error stops the batch, or outranks the failure that has; queued calls don't start."""
    calls = [*(call("double", {"n": n}, call_id=f"c{n}") for n in range(3)), last]
    raw = attrs.evolve(breaks, failure_error_function=None)
    agent = Agent("a", tools=[double, raw], model=scripted(calls, say("done")))
    queued = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=2))
    for raising in (("c0",), ("c1",), ("c3",), ("c0", "c1", "c2", "c3")):
        for config in (RunConfig(), queued):
            [*_, end] = comes_out_the_same(agent, config=config, hooks=Late(*raising))[0].records
            assert isinstance(end, r.RunEnded)
            assert end.status == "failed"


@tool(timeout=0.02)
async def holds() -> str:
    """Hold the event loop until its own time is over: then the call beside it has come to its end, too."""
    time.sleep(0.03)  # noqa: ASYNC251
    await anyio.sleep_forever()
    return "never"


@pytest.mark.parametrize("session", [None, MemorySession])
@pytest.mark.parametrize("second", [hangs, holds], ids=lambda second: str(second.name))
def test_a_log_cut_off_behind_a_hook_that_raised(second: Any, session: Any) -> None:
    """Which error it was is in the last record only; each shorter log is replayed as far as it goes."""
    model = scripted([call("double", {"n": 1}, call_id="c1"), call(second.name, call_id="c2")], say("done"))
    agent = Agent("a", tools=[double, second], model=model)
    for name in OF_RUNS:
        kept = Records()
        options: dict[str, Any] = {
            "hooks": make_raising(RunHooks, **{name: ERRORS[0]}),
            "session": session and session(),
        }
        with pytest.raises(Exception, match="no hook"):
            Runner.run_sync(agent, "go", run_config=RunConfig(instruments=(kept,)), **options)
        for length in range(1, len(kept.records) + 1):
            cut = kept.records[:length]
            assert lines(replay(cut, agent).records) == lines(cut), name


class Waits(RunHooks):
    """An end hook that takes a step, so that the log has the end of each body."""

    async def on_tool_end(self, *given: Any) -> None:
        await anyio.lowlevel.checkpoint()


def test_a_log_cut_off_before_a_pause_is_recorded() -> None:
    """A run that saves to its session because it pauses has an open batch as well, and no hook has raised."""

    @tool(needs_approval=True)
    async def asks() -> str:
        """Need a person."""
        return "asked"

    turns = [[call("double", {"n": 2}, call_id="n1")], [call("asks", call_id="n2")], say("nested")]
    nested = Agent("nested", tools=[double, asks], model=scripted(*turns))
    turn = [
        call("double", {"n": 1}, call_id="c1"),
        call("helper", {"input": "x"}, call_id="c2"),
        call("asks", call_id="c3"),
    ]
    agent = Agent("a", tools=[double, asks, nested.as_tool("helper", "Help.")], model=scripted(turn, say("done")))
    session, records = MemorySession(), list[Any]()
    work: Any = "go"
    for _ in range(3):
        result = Runner.run_sync(agent, work, session=session, hooks=Waits())
        state: Any = result.to_state()
        records = list(state.records)
        if state.interruptions:
            state.approve(state.interruptions[0])
        work = state
    assert sum(isinstance(one, r.RunEnded) and not one.path for one in records) == 3
    for length in range(1, len(records) + 1):
        assert lines(replay(records[:length], agent).records) == lines(records[:length])


def test_a_changed_definition_is_not_taken_for_a_hook_that_raised() -> None:
    """An error of the library right after a hook is the run's own if the definitions say so, or say so no more."""
    spent = RunConfig(limits=UsageLimits(requests=1))
    agent = Agent("a", tools=[double], model=scripted(call("double", {"n": 1}), say("done")))
    kept = Records()
    with pytest.raises(UsageLimitExceeded):
        Runner.run_sync(agent, "go", run_config=attrs.evolve(spent, instruments=(kept,)))
    assert lines(replay(kept.records, agent, run_config=spent).records) == lines(kept.records)
    with pytest.raises(ReplayDivergence):
        replay(kept.records, agent)
    with pytest.raises(MaxTurnsExceeded) as raised:
        Runner.run_sync(agent, "go", max_turns=1)
    records = raised.value.run_data.records  # type: ignore[union-attr]
    with pytest.raises(ReplayDivergence):
        replay(records, agent, max_turns=2)


def guarded() -> Agent[Any, Any]:
    """Return an agent whose calls wait for verdicts, some of them in a nested run."""
    asked = attrs.evolve(double, needs_approval=True)
    inner = Agent("inner", tools=[asked], model=scripted([call("double", {"n": 9}, call_id="i1")], say("inner done")))
    return Agent(
        "a",
        tools=[asked, inner.as_tool()],
        model=scripted(
            [call("double", {"n": 1}, call_id="c1"), call("inner", {"input": "x"}, call_id="c2")],
            [call("double", {"n": 2}, call_id="c3")],
            say("done"),
        ),
    )


async def over_three_entries(agent: Any, config: RunConfig) -> None:
    """Pause, decide, resume, until the run is over."""
    result = await Runner.run(agent, "go", run_config=config)
    entries = 1
    while result.status == "interrupted":
        state = RunState.from_string(agent, result.to_state().to_string())
        for number, request in enumerate(state.interruptions):
            if number == 0:
                state.approve(request)
            else:
                state.reject(request, message="not that one")
        known = len(result.records)
        config.instruments[0].records.extend(state.records[known:])
        result = await Runner.run(agent, state, run_config=config)
        entries += 1
    assert entries >= 3
    assert result.final_output == "done"


def test_approvals_over_three_entries() -> None:
    """The entries follow each other with the verdicts between them, also those of a nested run."""
    comes_out_the_same(guarded(), run=over_three_entries)


def test_a_rate_over_two_entries() -> None:
    """Calls before a pause don't hold up those that start long after it; those before them start first."""
    rated = attrs.evolve(double, name="rated", capacity=(Rate(1, 0.05),))

    @tool(needs_approval=True)
    async def asked(n: int) -> int:
        """Take a part of the time for which the rate would have no room."""
        await anyio.sleep(0.02)
        return n

    agent = Agent(
        "a",
        tools=[rated, double, asked],
        model=scripted(
            [call("rated", {"n": 1}, call_id="c1"), call("asked", {"n": 2}, call_id="c2")],
            [call("rated", {"n": 3}, call_id="c3"), call("double", {"n": 4}, call_id="c4")],
            say("done"),
        ),
    )

    async def with_a_pause(agent: Any, config: RunConfig) -> None:
        result = await Runner.run(agent, "go", run_config=config)
        await anyio.sleep(0.1)
        state = result.to_state()
        state.approve(state.interruptions[0])
        config.instruments[0].records.extend(state.records[len(result.records) :])
        result = await Runner.run(agent, state, run_config=config)
        assert result.final_output == "done"

    comes_out_the_same(agent, run=with_a_pause)


def test_a_run_that_crashed_and_went_on() -> None:
    """The first entry has no end: it is replayed up to there, and then the entry that resumed the run."""

    class Gone(BaseException):
        """The process is gone."""

    class Failing(MemoryJournal):
        async def append(self, records: Any) -> None:
            await super().append(records)
            if not self.crashed and any(b'"call_started"' in record for record in records):
                self.crashed = True
                raise Gone

    async def record(agent: Any) -> MemoryJournal:
        journal = Failing()
        journal.crashed = False  # type: ignore[attr-defined]
        with pytest.raises((Gone, BaseExceptionGroup)):
            await Runner.run(agent, "go", journal=journal)
        again = MemoryJournal()
        kept = await journal.read()
        await again.append(kept)
        await Runner.resume(agent, again)
        return again

    agent = Agent(
        "a", tools=[double], model=scripted([call("double", {"n": 1}), call("double", {"n": 2})], say("done"))
    )
    journal = anyio.run(record, agent)
    replayed = replay(journal, agent)
    assert replayed.result is not None
    assert replayed.result.final_output == "done"
    assert sum(isinstance(one, RunEnded) and not one.path for one in replayed.records) == 1
    assert [encode(record_to_json(one), None) for one in replayed.records] == anyio.run(journal.read)[1:]


def test_a_journal_with_a_torn_tail_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    """Every prefix of a log is replayed to its end, without a divergence and without a result."""
    agent = guarded().clone(
        tools=[double], model=scripted([call("double", {"n": 1}), call("double", {"n": 2})], say("x"))
    )
    path = tmp_path / "run.jsonl"

    async def record() -> None:
        async with FileJournal(path, fsync="never") as journal:
            await Runner.run(agent, "go", journal=journal)

    anyio.run(record)
    whole = replay(path, agent)
    path.write_bytes(path.read_bytes()[:-40])
    torn = replay(path, agent)
    assert torn.result is None
    assert torn.error is None
    assert 0 < len(torn.records) < len(whole.records)
    for length in range(1, len(whole.records)):
        prefix = whole.records[:length]
        assert lines(replay(prefix, agent).records) == lines(prefix)


@pytest.mark.parametrize("recorded_on", BACKENDS)
def test_a_log_cut_off_in_a_cancellation_is_replayed_as_far_as_it_goes(recorded_on: Any) -> None:
    """The log may lack the record that tells a cancelled run from a cancelled nested run."""
    begun, all_begun = [], anyio.Event()

    @tool(name="hangs")
    async def lasting(ctx: ToolContext[Any]) -> str:
        begun.append(ctx.tool_call_id)
        if len(begun) == 3:
            all_begun.set()
        await anyio.sleep_forever()
        return "never"

    inner = Agent("inner", tools=[lasting], model=scripted([call("hangs", call_id="i1"), call("hangs", call_id="i2")]))
    calls = [call("inner", {"input": "x"}, call_id="c1"), call("hangs", call_id="c2"), call("hangs", call_id="c3")]
    agent = Agent("a", tools=[inner.as_tool(), lasting], model=scripted(calls))
    kept = Records()

    async def main() -> None:
        await cancel_when(all_begun, lambda: Runner.run(agent, "go", run_config=RunConfig(instruments=[kept])))

    anyio.run(main, backend=recorded_on)
    assert kept.records[-1].status == "cancelled"
    for length in range(1, len(kept.records) + 1):
        prefix = kept.records[:length]
        for other in BACKENDS:
            assert lines(replay(prefix, agent, backend=other).records) == lines(prefix)


@pytest.mark.parametrize("late", [0.0, 0.2])
def test_hooks_before_calls_that_wait_too_long(late: float) -> None:
    """A hook that returned at once holds nothing up until the first of them is skipped.

    By a clock that is ahead there was room again by then; that another call of the turn had begun admits none.
    """
    answered: list[int] = []

    class Quick(RunHooks):
        async def on_llm_end(self, *_: Any) -> None:
            ran("llm")

    rated = attrs.evolve(double, capacity=(Rate(1, 0.12),))
    waiting = [call("double", {"n": n}, call_id=f"i{n}") for n in (1, 2)]

    def answer(request: Any) -> Any:
        answered.append(request.turn)
        return [*waiting, say("inner done")][request.turn - 1]

    class Ahead(LiveEffects):
        def wall(self) -> float:
            return anyio.current_time() + late * len(answered)

    inner = Agent("inner", tools=[rated], model=FunctionModel(answer))
    turn = [call("inner", {"input": "x"}, call_id="c1"), call("double", {"n": 1}, call_id="c2")]
    config = RunConfig(tool_execution=ToolExecution(queue_timeout=0.05))
    model = scripted(call("double", {"n": 0}, call_id="c0"), turn, say("done"))
    agent = Agent("a", tools=[rated, inner.as_tool()], model=model)
    starts = iter((0.0, 60.0))  # both clocks begin at 0, and the rate remembers

    async def in_turn(agent: Agent[Any, Any], config: RunConfig) -> None:
        await anyio.sleep(next(starts))
        answered.clear()
        await Runner.run(agent, "go", hooks=Quick(), run_config=attrs.evolve(config, effects=Ahead()))

    replayed = comes_out_the_same(agent, config=config, run=in_turn, start=VirtualClock().run)
    statuses = [one.outcome.status for one in replayed[0].records if isinstance(one, CallSettled)]
    assert statuses.count("skipped") == 3


@pytest.mark.slow
def test_a_turn_whose_first_call_never_starts_queues_its_calls_in_time() -> None:
    """Its first record tells of a call that waited for a limit until another run gave it back, and only failed then."""

    class Quick(RunHooks):
        async def on_llm_end(self, *_: Any) -> None:
            ran("llm")

    @tool(capacity=Capacity(1, "shared"))
    async def hold(n: int) -> str:
        """Hold what is shared."""
        ran("hold")
        await anyio.sleep(0.5)
        return f"held {n}"

    @tool
    async def cancels(ctx: ToolContext[None]) -> str:
        """Cancel itself after a while."""
        ran("cancels")
        await anyio.sleep(0.3)
        ctx.cancel_call("c0")
        await anyio.sleep(1)
        return "never"

    one = Agent("one", tools=[hold], tool_execution="sequential")
    one.model = scripted([call("hold", {"n": 1}, "i1"), call("hold", {"n": 2}, "i2")], say("one is done"))
    two = Agent("two", tools=[hold], tool_execution="sequential")
    two.model = scripted([call("hold", {"m": 1}, "j1"), call("hold", {"n": 3}, "j2")], say("two is done"))
    asks = [one.as_tool(), two.as_tool()]
    turn = [call("cancels", {}, "c0"), call("one", {"input": "x"}, "c1"), call("two", {"input": "x"}, "c2")]
    agent = Agent("a", tools=[cancels, *asks], model=scripted(turn, say("done")))

    async def with_hooks(agent: Agent[Any, Any], config: RunConfig) -> None:
        await Runner.run(agent, "go", hooks=Quick(), run_config=config)

    replayed = comes_out_the_same(agent, run=with_hooks, start=VirtualClock().run)
    settled = [one.call_id for one in replayed[0].records if isinstance(one, CallSettled)]
    assert settled == ["c0", "i1", "j1", "i2", "c1", "j2", "c2"]


def test_a_nested_run_whose_time_limit_passes_while_it_ends() -> None:
    """A call of it that waits for room is no sign of the limit, and its own end is kept as one that came too late."""

    @asynccontextmanager
    async def slow_to_leave() -> AsyncIterator[None]:
        yield
        await anyio.sleep(0.5)

    @tool
    async def gives_up(ctx: ToolContext[Any]) -> str:
        ran("gives_up")
        await ctx.resource(slow_to_leave)
        await anyio.sleep(0.3)
        ctx.cancel_call("i1")
        await anyio.sleep(1)
        return "never"

    @tool_input_guardrail
    async def fine(data: Any) -> Allow:
        ran("fine")
        return Allow()

    guarded = attrs.evolve(double, tool_input_guardrails=(fine,))
    inner = Agent("inner", tools=[gives_up, guarded])
    inner.model = scripted([call("gives_up", {}, "i1"), call("double", {"n": 1}, "i2")], say("inner is done"))
    turn = [call("inner", {"input": "x"}, "c1"), call("double", {"n": 2}, "c2")]
    agent = Agent("a", tools=[inner.as_tool(timeout=0.4), double], model=scripted(turn, say("done")))
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))
    replayed = comes_out_the_same(agent, config=config, start=VirtualClock().run)
    ended = {record.path: record.status for record in replayed[0].records if isinstance(record, RunEnded)}
    assert ended == {("c1",): "completed", (): "completed"}
    settled = {one.call_id: one.outcome.status for one in replayed[0].records if isinstance(one, CallSettled)}
    assert settled == {"i1": "cancelled", "i2": "succeeded", "c1": "timed_out", "c2": "succeeded"}


def test_calls_that_settle_in_the_pass_of_a_failure() -> None:
    """Their end hooks return before the owner of the batch cancels the calls that wait."""

    class Quick(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            ran("hook")

    @tool(failure_error_function=None)
    async def breaks() -> str:
        ran("breaks")
        await anyio.sleep(0.1)
        raise ValueError("broken")

    @tool
    async def takes_as_long() -> str:
        ran("takes_as_long")
        await anyio.sleep(0.1)
        return "fine"

    turn = [call("breaks", {}, "c1"), call("takes_as_long", {}, "c2"), call("double", {"n": 1}, "c3")]
    agent = Agent("a", tools=[breaks, takes_as_long, double], model=scripted(turn))
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=2))

    async def with_hooks(agent: Agent[Any, Any], config: RunConfig) -> None:
        await Runner.run(agent, "go", hooks=Quick(), run_config=config)

    replayed = comes_out_the_same(agent, config=config, run=with_hooks, start=VirtualClock().run)
    settled = {one.call_id: one.outcome.status for one in replayed[0].records if isinstance(one, CallSettled)}
    assert settled == {"c1": "failed", "c2": "succeeded", "c3": "cancelled"}


def test_nested_runs_whose_time_limits_pass_in_one_moment() -> None:
    """The end of the first one gives the other's waiting call its room, which begins before its own run ends."""

    @tool(capacity=Capacity(1, "desk"))
    async def holds(n: int) -> str:
        ran("holds")
        await anyio.sleep(5)
        return "held"

    def ask(name: str) -> Any:
        inner = Agent(name, tools=[holds], model=scripted(call("holds", {"n": 1}, f"{name}1"), say("done")))
        return inner.as_tool(run_config=RunConfig(timeout=0.65))

    turn = [call(name, {"input": "x"}, f"c{name}") for name in ("one", "two", "three")]
    agent = Agent("a", tools=[ask(name) for name in ("one", "two", "three")], model=scripted(turn, say("done")))
    replayed = comes_out_the_same(agent, start=VirtualClock().run)
    settled = [one.outcome.cancelled_by for one in replayed[0].records if isinstance(one, CallSettled) and one.path]
    assert settled == ["deadline"] * 3


def test_nested_runs_whose_calls_wait_too_long_in_one_pass() -> None:
    """Each skips its calls before either continues; they wait for a limit that both share."""

    @tool(capacity=Capacity(1, "desk"))
    async def holds(n: int) -> str:
        ran("holds")
        await anyio.sleep(1)
        return "held"

    def ask(name: str) -> Agent[Any, Any]:
        turn = [call("holds", {"n": n}, f"{name}{n}") for n in range(3)]
        return Agent(name, tools=[holds], model=scripted(turn, say(f"{name} is done")))

    asks = [ask("one").as_tool(), ask("two").as_tool()]
    turn = [call("one", {"input": "x"}, "c1"), call("two", {"input": "x"}, "c2")]
    agent = Agent("a", tools=asks, model=scripted(turn, say("done")))
    config = RunConfig(tool_execution=ToolExecution(queue_timeout=0.5))
    replayed = comes_out_the_same(agent, config=config, start=VirtualClock().run)
    settled = [one.outcome.status for one in replayed[0].records if isinstance(one, CallSettled) and one.path]
    assert sorted(settled) == [*["skipped"] * 5, "succeeded"]


@pytest.mark.parametrize("recorded_on", BACKENDS)
@pytest.mark.parametrize("stage", ["input", "tool"])
def test_a_cancellation_beside_a_verdict(stage: str, recorded_on: Any) -> None:
    """The model's call that a tripped guardrail cancels notices it, or the call that a verdict has let pass."""
    kept = Records()

    @input_guardrail
    async def trips(ctx: Any, agent: Any, given: Any) -> Any:
        await anyio.sleep(0.01)
        return GuardrailFunctionOutput(None, stage == "input")

    @tool_input_guardrail
    async def passes(data: Any) -> Allow:
        await anyio.sleep(0.01)
        return Allow()

    guarded = attrs.evolve(double, tool_input_guardrails=(passes,))

    async def answer(request: Any) -> Any:
        await anyio.sleep(60 if stage == "input" else 0)
        return [call("double", {"n": 1})]

    agent = Agent("a", tools=[guarded], input_guardrails=[trips], model=FunctionModel(answer))
    scopes: list[anyio.CancelScope] = []

    class Cancels(Instrument):
        def on_record(self, record: Any) -> None:
            if isinstance(record, GuardrailSettled) and (record.call_id is not None) == (stage == "tool"):
                scopes[0].cancel()

    async def main() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await Runner.run(agent, "go", run_config=RunConfig(instruments=(kept, Cancels())))

    anyio.run(main, backend=recorded_on)
    assert kept.records[-1].status == "cancelled"
    for backend in BACKENDS:
        assert lines(replay(kept.records, agent, backend=backend).records) == lines(kept.records)


def test_a_body_that_returns_after_its_time_in_a_batch_that_a_failure_has_stopped() -> None:
    """Its value came too late, and its outcome is that of the failure."""

    @tool(failure_error_function=None)
    async def breaks() -> str:
        ran("breaks")
        await anyio.sleep(0.1)
        raise ValueError("broken")

    @tool(timeout=0.3)
    async def takes_too_long() -> str:
        ran("takes_too_long")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)
        return "late"

    turn = [call("breaks", {}, "c1"), call("takes_too_long", {}, "c2")]
    agent = Agent("a", tools=[breaks, takes_too_long], model=scripted(turn))
    replayed = comes_out_the_same(agent, start=VirtualClock().run)
    settled = {one.call_id: one.outcome for one in replayed[0].records if isinstance(one, CallSettled)}
    assert (settled["c2"].cancelled_by, settled["c2"].cancelled_by_call) == ("sibling", "c1")


def test_a_loop_that_was_late() -> None:
    """The late loop did all due work in one pass: a call had waited for too long, though there was room by then."""
    rated = attrs.evolve(double, capacity=(Rate(1, 40.0),))
    turn = [call("double", {"n": n}, call_id=f"c{n}") for n in (1, 2)]
    agent = Agent("a", tools=[rated], model=scripted(turn, say("done")))

    async def held_up(agent: Agent[Any, Any], config: RunConfig) -> None:
        settled = anyio.Event()

        class Told(Instrument):
            def on_record(self, record: Any) -> None:
                if isinstance(record, CallSettled):
                    settled.set()

        class OneClock(LiveEffects):
            def wall(self) -> float:
                return anyio.current_time()

        async def hold_up() -> None:
            await settled.wait()
            advance_clock(80)

        async with anyio.create_task_group() as group:
            group.start_soon(hold_up)
            instruments = (*config.instruments, Told())
            late = attrs.evolve(config, instruments=instruments, effects=OneClock())
            await Runner.run(agent, "go", run_config=late)

    config = RunConfig(tool_execution=ToolExecution(queue_timeout=60))
    replayed = comes_out_the_same(agent, config=config, run=held_up)
    assert replayed[0].result is not None
    assert [one.outcome.status for one in replayed[0].result.calls] == ["succeeded", "skipped"]


@pytest.mark.slow
def test_a_consumer_who_is_behind() -> None:
    """Turns of nested runs that waited until the consumer had caught up begin in their turn."""
    quick = Agent("quick", tools=[double], model=scripted(call("double", {"n": 1}), say("quick done")))
    slow = Agent("slow", tools=[hangs], model=scripted(call("hangs"), say("slow done")))
    turn = [call("quick", {"input": "x"}), call("slow", {"input": "y"}), call("quick", {"input": "z"})]
    agent = Agent("a", tools=[quick.as_tool(), slow.as_tool()], model=scripted(turn, say("done")))

    async def behind(agent: Agent[Any, Any], config: RunConfig) -> None:
        async with Runner.run_streamed(agent, "go", run_config=config) as stream:
            async for _ in stream:
                await anyio.sleep(0.003)

    replayed = comes_out_the_same(agent, config=RunConfig(stream_buffer=1), run=behind)
    assert replayed[0].result is not None


def test_budgets_and_limits_of_their_own() -> None:
    """The log has the costs of requests and calls: the application isn't asked for prices again."""

    def cost(arguments: dict[str, Any]) -> Decimal:
        return ran("cost", Decimal(arguments["n"]) / 2)

    @tool(cost=cost, capacity=[Capacity(1, "desk"), Rate(50, 1.0, "rate")])
    async def buy(n: int) -> str:
        ran("buy")
        await anyio.sleep(0.001)
        return f"bought {n}"

    usage = RequestUsage(input_tokens=4, output_tokens=2, total_tokens=6)
    calls = [call("buy", {"n": n}, call_id=f"c{n}") for n in (1, 2, 9, 3)]
    steps = ([respond(usage=usage), *calls], say("bought", usage=usage))
    config = RunConfig(limits=UsageLimits(cost=5, tool_calls=10), price=lambda *_: ran("price", Decimal("0.25")))
    [first, *_] = comes_out_the_same(Agent("buyer", model=scripted(*steps), tools=[buy]), config=config)
    settled = [record for record in first.records if isinstance(record, CallSettled)]
    assert {record.call_id: record.outcome.status for record in settled} == {
        "c1": "succeeded",
        "c2": "succeeded",
        "c9": "skipped",
        "c3": "succeeded",
    }
    assert [record.cost for record in first.records if isinstance(record, ModelResponded)] == ["0.25", "0.25"]


@pytest.mark.scenario("WR-06")
@pytest.mark.parametrize("price", [None, lambda *_: ran("price", Decimal("0.25"))], ids=["free", "priced"])
@pytest.mark.parametrize("usage", [None, RequestUsage(input_tokens=4, total_tokens=4)], ids=["untold", "told"])
def test_fees_of_hosted_calls_are_the_recorded_ones(price: Any, usage: RequestUsage | None) -> None:
    """The log has one cost for a whole answer: the application isn't asked for any part of it again."""
    used = [HostedToolCall("web_search_call", {}, f"ws{n}", "completed") for n in range(2)]
    steps = (respond(*used, usage=usage), respond(AssistantMessage("found"), usage=usage))
    fee = lambda *_: ran("fee", Decimal("0.5"))  # noqa: E731 - beside the price
    config = RunConfig(limits=UsageLimits(cost=5), price=price, hosted_price=fee)
    [first, *_] = comes_out_the_same(Agent("searcher", model=scripted(*steps)), config=config)
    tokens = Decimal("0.25") if price is not None and usage is not None else None
    costs = [str(1 + (tokens or 0)) if tokens else "1.0", None if tokens is None else str(tokens)]
    assert [record.cost for record in first.records if isinstance(record, ModelResponded)] == costs


class Shelf:
    """A source of tools with everything that an application may give a tool; in the second turn it has one more."""

    def __init__(self) -> None:
        @tool(
            is_enabled=lambda ctx, agent: ran("enabled", True),
            needs_approval=lambda ctx, arguments, call_id: ran("needs_approval", False),
            tool_input_guardrails=[tool_input_guardrail(lambda data: ran("before", Allow()), name="before")],
            tool_output_guardrails=[tool_output_guardrail(lambda data: ran("after", Allow()), name="after")],
            custom_data_extractor=lambda ctx, value: ran("extract", {"seen": value}),
            capacity=[Capacity(1, "one")],
            idempotent=True,
        )
        async def rich(n: int = 1) -> str:
            """Do much."""
            ran("rich")
            await anyio.sleep(0.001)
            return f"rich {n}"

        @tool(failure_error_function=lambda ctx, error: ran("words", "it broke"), capacity=Rate(50, 1.0))
        async def broken() -> str:
            """Break."""
            ran("broken")
            raise ValueError("no")

        @tool(
            timeout=0.01,
            cost=lambda arguments: ran("cost", 1),
            timeout_error_function=lambda ctx, error: ran("late", "too late"),
        )
        async def late() -> str:
            """Never end."""
            ran("late")
            await anyio.sleep(30)
            return "never"

        @tool(in_doubt="rerun")
        async def unsure() -> str:
            """Never know."""
            ran("unsure")
            raise OutcomeUnknown("the line went dead")

        self.first, self.more = [rich, broken, late], unsure

    async def tools(self, ctx: Any, agent: Any) -> Any:
        """Return the tools of this turn."""
        ran("tools")
        return self.first if ctx.usage.requests == 0 else [*self.first, self.more]


def test_tools_of_a_source_need_no_source() -> None:
    """The log has what a replay needs of them: policies, limits, faults of arguments, digests of schemas."""
    agent = Agent(
        "a",
        toolsets=[Shelf()],
        model=scripted(
            [call("rich", {"n": 2}), call("broken"), call("late"), call("rich", {"n": "x"}), call("rich", {"n": 3})],
            [call("unsure"), call("rich", {"n": 2})],
            say("done"),
        ),
    )
    for one in comes_out_the_same(agent, config=RunConfig(limits=UsageLimits(cost=10))):
        assert one.result is not None
        statuses = [settled.outcome.status for settled in one.result.calls]
        assert statuses == ["succeeded", "failed", "timed_out", "failed", "succeeded", "unknown", "replayed"]


def test_secret_call_of_a_source_is_told_by_its_own_options() -> None:
    """Which arguments are secret stands in the description, and a call that raises does so again."""

    @tool(secret=["pin"], failure_error_function=None)
    async def pay(pin: str) -> str:
        """Pay."""
        ran("pay")
        raise ValueError(f"wrong pin {pin}")

    class Bank:
        async def tools(self, ctx: Any, agent: Any) -> Any:
            ran("tools")
            return [pay]

    agent, journal = Agent("a", toolsets=[Bank()], model=scripted([call("pay", {"pin": "1234"})])), MemoryJournal()

    async def main() -> None:
        with pytest.raises(ToolCallError):
            await Runner.run(agent, "go", journal=journal)

    for backend in BACKENDS:
        if backend == "asyncio":
            anyio.run(main)
        RAN.clear()
        assert str(replay(journal, agent, backend=backend).error) == "Error running tool pay: ValueError: [redacted]"
        assert RAN == []


def test_source_that_failed_fails_again() -> None:
    """Its error is the run's."""

    class Gone:
        name = "gone"

        async def tools(self, ctx: Any, agent: Any) -> Any:
            ran("tools")
            raise OSError("no route")

    agent = Agent("a", toolsets=[Gone()], model=scripted(say("done")))
    for one in comes_out_the_same(agent):
        assert isinstance(one.error, ToolSourceError)


def test_source_that_was_waited_for_when_the_run_timed_out() -> None:
    """It gave nothing, and the run ended at its deadline."""

    class Slow:
        async def tools(self, ctx: Any, agent: Any) -> Any:
            ran("tools")
            await anyio.sleep(30)

    agent = Agent("a", toolsets=[Slow()], model=scripted(say("done")))
    for one in comes_out_the_same(agent, config=RunConfig(timeout=0.02)):
        assert isinstance(one.error, RunTimeoutError)


# ---------------------------------------------------------------------------------------------- ends of a busy loop


async def _recorded(agent: Agent[Any, Any], **options: Any) -> list[Any]:
    """Run *agent*, which fails, and return the records."""
    kept = Records()
    config = attrs.evolve(options.pop("run_config", RunConfig()), instruments=(kept,))
    with pytest.raises(Exception, match=r"."):
        await Runner.run(agent, "go", run_config=config, **options)
    return kept.records


def _replayed_equally(agent: Agent[Any, Any], records: list[Any], config: RunConfig) -> None:
    for backend in BACKENDS:
        replayed = replay(records, agent, run_config=config, backend=backend)
        assert lines(replayed.records) == lines(records), backend


def test_a_cancellation_and_a_deadline_that_a_busy_loop_notices_at_once() -> None:
    """The log has the cancellation alone, and the run timed out: the deadline had passed before."""

    async def think(request: Any) -> Any:
        await anyio.sleep_forever()

    agent: Agent[Any, Any] = Agent("a", model=FunctionModel(think))
    config = RunConfig(timeout=0.01)
    records = anyio.run(lambda: _recorded(agent, run_config=config))
    [place] = [n for n, one in enumerate(records) if isinstance(one, DeadlinePassed)]
    passed = records[place]
    records[place] = CancelRequested(passed.path, passed.turn, passed.at)
    _replayed_equally(agent, records, config)


@pytest.mark.parametrize("saved", [False, True])
def test_a_cancellation_that_comes_while_a_failed_run_ends(saved: bool) -> None:
    """The run had chosen its failure: the cancellation ended nothing, though the records follow one another closely."""

    @tool(failure_error_function=None)
    async def work() -> str:
        """Work."""
        raise ValueError("no")

    agent: Agent[Any, Any] = Agent("a", tools=[work], model=FunctionModel(lambda _: call("work", call_id="c")))
    session = {"session": MemorySession()} if saved else {}
    records = anyio.run(lambda: _recorded(agent, **session))
    place = next(n for n, one in enumerate(records) if isinstance(one, CallSettled)) + 1
    before = records[place - 1]
    records.insert(place, CancelRequested((), before.turn, before.at))
    _replayed_equally(agent, records, RunConfig())
