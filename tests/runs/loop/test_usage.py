"""The usage of a run: every request counts exactly once, however it ended."""

import json
from typing import Any

import anyio
import httpx
import pytest
from kit.agents import Run, configure_run, fine, make_agent
from kit.ending import Rendezvous, advance_clock
from kit.watching import Watch

from agentloop import Agent, ModelRetrySettings, ModelSettings, RunConfig, RunHooks, Runner, Usage, handoff, tool
from agentloop import events as ev
from agentloop import model_events as m
from agentloop import records as r
from agentloop.exceptions import ModelTransportError, RunTimeoutError
from agentloop.items import AssistantMessage, ToolCall
from agentloop.models import OpenAIChatModel
from agentloop.testing import ScriptedModel, call, fail, respond, say, stream_of, wait
from agentloop.usage import RequestUsage

RETRYING = ModelSettings(retry=ModelRetrySettings(3, initial_delay=0.0))


def tokens(sent: int, got: int, **more: Any) -> RequestUsage:
    """Return the usage of one request."""
    return RequestUsage(input_tokens=sent, output_tokens=got, total_tokens=sent + got, **more)


def calling(usage: RequestUsage | None, name: str = "fine", call_id: str = "c1") -> Any:
    """Return a response that calls a tool."""
    return respond(ToolCall(call_id, name, "{}"), usage=usage)


@pytest.mark.scenario("US-01", "US-02", "US-03", "RT-05")
async def test_each_request_counts_once_failed_attempts_too(run_mode: Run) -> None:
    """Sums and entries are the same plain and streamed; a failed attempt is a request without tokens."""
    agent = make_agent(
        [fine],
        fail(ModelTransportError("busy", status=503)),
        calling(tokens(10, 2, cached_tokens=4, reasoning_tokens=1)),
        fail(ModelTransportError("busy", status=503)),
        fail(ModelTransportError("busy", status=503)),
        say("done", usage=tokens(20, 3)),
        done=None,
        model_settings=RETRYING,
    )
    result = await run_mode(agent, "go")
    entries = (tokens(10, 2, cached_tokens=4, reasoning_tokens=1), tokens(20, 3))
    assert result.usage == Usage(
        requests=5,
        input_tokens=30,
        output_tokens=5,
        total_tokens=35,
        cached_tokens=4,
        reasoning_tokens=1,
        entries=entries,
    )


@pytest.mark.scenario("US-03")
async def test_usage_is_a_snapshot_that_later_requests_leave_alone(run_mode: Run) -> None:
    """The usage that a hook received stays unchanged; its entries keep each request's own report."""
    seen: list[Usage] = []

    class Looking(RunHooks):
        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            seen.append(ctx.usage)

    agent = make_agent([fine], calling(tokens(10, 2)), say("done", usage=tokens(20, 3)), done=None)
    result = await run_mode(agent, "go", hooks=Looking())
    assert [usage.requests for usage in seen] == [1, 2]
    assert [usage.entries for usage in seen] == [(tokens(10, 2),), (tokens(10, 2), tokens(20, 3))]
    assert seen[1] == result.usage
    assert [response.usage for response in result.raw_responses] == [tokens(10, 2), tokens(20, 3)]


@pytest.mark.scenario("US-05", "US-10")
async def test_request_without_tokens_counts_and_has_no_entry(run_mode: Run) -> None:
    """Neither a provider that reports zeros nor one that reports nothing makes an entry."""
    agent = make_agent([fine], calling(RequestUsage()), calling(None, call_id="c2"), say("done", usage=tokens(1, 1)))
    result = await run_mode(agent, "go")
    assert result.usage.requests == 3
    assert result.usage.entries == (tokens(1, 1),)
    assert [response.usage for response in result.raw_responses] == [RequestUsage(), None, tokens(1, 1)]


@pytest.mark.scenario("US-06")
def test_sum_of_usages_makes_up_no_entries() -> None:
    """A sum has only the entries of its parts, so an aggregate without entries adds none."""
    aggregate = Usage(requests=3, input_tokens=30, output_tokens=3, total_tokens=33)
    one = Usage(requests=1, input_tokens=1, output_tokens=1, total_tokens=2, entries=(tokens(1, 1),))
    assert (aggregate + aggregate).entries == ()
    assert aggregate + one == Usage(
        requests=4, input_tokens=31, output_tokens=4, total_tokens=35, entries=(tokens(1, 1),)
    )


@pytest.mark.scenario("US-07", "US-02")
async def test_handoffs_and_agent_tools_count_into_one_usage(run_mode: Run) -> None:
    """The entries are in the order of the requests."""
    second = Agent("second", model=ScriptedModel([say("the end", usage=tokens(1000, 1))]))
    nested = Agent("nested", model=ScriptedModel([say("dug", usage=tokens(10, 1))]))
    first = Agent(
        "first",
        model=ScriptedModel(
            [
                respond(ToolCall("c1", "nested", '{"input": "x"}'), usage=tokens(1, 1)),
                respond(ToolCall("c2", "transfer_to_second", "{}"), usage=tokens(100, 1)),
            ]
        ),
        tools=[nested.as_tool()],
        handoffs=[handoff(second)],
    )
    result = await run_mode(first, "go")
    assert result.usage.requests == 4
    assert [entry.input_tokens for entry in result.usage.entries] == [1, 10, 100, 1000]
    assert result.usage.input_tokens == 1111


# ---------------------------------------------------------------------------------------------- cut short


@pytest.mark.scenario("US-11")
async def test_request_cut_by_an_immediate_cancel_counts_as_incomplete() -> None:
    """The cut request counts once, and its entry says that its tokens aren't all known."""
    watch = Watch()
    agent = make_agent([], [say("some text"), wait(60)], done=None)
    async with Runner.run_streamed(agent, "go", run_config=configure_run(watch)) as stream:
        async for event in stream:
            if isinstance(event, ev.TextDelta):
                stream.cancel()
    assert stream.result.status == "cancelled"
    assert stream.result.usage.requests == 1
    assert [entry.complete for entry in stream.result.usage.entries] == [False]
    [failed] = watch.of(r.ModelFailed)
    assert failed.usage == RequestUsage(complete=False)


@pytest.mark.scenario("US-11")
async def test_request_cut_in_a_nested_run_counts_as_incomplete(run_mode: Run) -> None:
    """The nested request counts as incomplete also where a deadline cuts it."""

    def silent(request: Any) -> Any:
        advance_clock(60)
        return wait(anyio.Event())

    inner = Agent("inner", model=ScriptedModel([silent]))
    outer = make_agent([inner.as_tool()], respond(ToolCall("c1", "inner", '{"input": "x"}'), usage=tokens(5, 1)))
    with pytest.raises(RunTimeoutError) as raised:
        await run_mode(outer, "go", run_config=RunConfig(timeout=60))
    assert raised.value.run_data is not None
    usage = raised.value.run_data.usage
    assert usage.requests == 2
    assert usage.entries == (tokens(5, 1), RequestUsage(complete=False))


@pytest.mark.scenario("US-12")
async def test_cancel_after_the_turn_counts_the_request() -> None:
    """The request came to its end, so its entry is complete."""
    agent = make_agent([fine], calling(tokens(10, 2)))
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.TurnStarted):
                stream.cancel("after_turn")
    assert stream.result.status == "cancelled"
    assert stream.result.usage == Usage(
        requests=1, input_tokens=10, output_tokens=2, total_tokens=12, entries=(tokens(10, 2),)
    )


# ---------------------------------------------------------------------------------------------- from the wire


def chat_model(usage: object) -> OpenAIChatModel:
    """Return a model whose server answers `hi` with this usage."""
    chunks: list[Any] = [{"id": "r", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}]
    if usage is not None:
        chunks.append({"id": "r", "choices": [], "usage": usage})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=body)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return OpenAIChatModel("m", base_url="http://example.invalid/v1", http_client=client)


@pytest.mark.scenario("US-04")
@pytest.mark.parametrize(
    "details",
    [
        {},
        {"prompt_tokens_details": None, "completion_tokens_details": None},
        {"prompt_tokens_details": {"cached_tokens": None}, "completion_tokens_details": {"reasoning_tokens": None}},
    ],
)
async def test_details_that_are_missing_count_as_zero(run_mode: Run, details: dict[str, Any]) -> None:
    """A provider may leave them out, or send null."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, **details}
    agent = Agent("a", model=chat_model(usage))
    result = await run_mode(agent, "go")
    assert (result.usage.cached_tokens, result.usage.reasoning_tokens) == (0, 0)
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.total_tokens) == (7, 2, 9)


@pytest.mark.scenario("US-10")
async def test_response_without_usage_counts_and_keeps_it_absent(run_mode: Run) -> None:
    """The request counts, and the raw response has None, not zeros."""
    result = await run_mode(Agent("a", model=chat_model(None)), "go")
    assert result.usage == Usage(requests=1)
    assert result.raw_responses[0].usage is None


@pytest.mark.scenario("US-02")
async def test_usage_is_counted_when_the_response_is_done_not_when_it_is_read() -> None:
    """A reader of the item that the last event brought already sees its request counted."""
    done = m.ResponseDone((AssistantMessage("hi"),), tokens(3, 1))
    agent = make_agent([], stream_of([m.TextDelta("hi"), done]), done=None)
    counts: list[int] = []
    held = anyio.Event()

    class Holding(RunHooks):
        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            await held.wait()
            counts.append(ctx.usage.requests)

    async with Runner.run_streamed(agent, "go", hooks=Holding()) as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated):
                held.set()
    assert counts == [1]
    assert stream.result.usage.entries == (tokens(3, 1),)


@pytest.mark.scenario("CO-10")
async def test_runs_of_one_agent_share_no_usage(run_mode: Run) -> None:
    """Two runs at once on the same agent object, one of them with a tool call: each counts its own requests."""
    together = Rendezvous(2)

    @tool
    async def meet() -> str:
        await together.wait()
        return "met"

    def step(request: m.ModelRequest) -> Any:
        text = request.items[0].text  # type: ignore[union-attr]
        if len(request.items) == 1:
            return call("meet")
        if text == "long" and len(request.items) == 3:
            return respond(ToolCall("again", "meet", "{}"), usage=tokens(100, 1))
        return say(text, usage=tokens(10, 1))

    agent = Agent("a", model=ScriptedModel([step] * 5), tools=[meet])
    results: dict[str, Any] = {}

    async def one(text: str) -> None:
        results[text] = await run_mode(agent, text)

    async with anyio.create_task_group() as group:
        group.start_soon(one, "long")
        group.start_soon(one, "short")
    assert results["short"].usage == Usage(
        requests=2, input_tokens=10, output_tokens=1, total_tokens=11, entries=(tokens(10, 1),)
    )
    assert results["long"].usage.requests == 3
    assert results["long"].usage.entries == (tokens(100, 1), tokens(10, 1))
