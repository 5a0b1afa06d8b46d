"""What the library does for the cache of a provider: a default key, and a note when the cache holds much less."""

import json
from typing import Any

import httpx
import pytest
from edges.responses_fixture import make_stream, wire
from kit.windows import compactions, make_agent

from agentloop import Agent, CachePolicy, ContextPolicy, DropOldest, ModelSettings, RunConfig, Runner, handoff, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop._core.record_events import find_usage_notes
from agentloop.config import TracingSettings
from agentloop.items import ToolCall
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.models import OpenAIChatModel, OpenAIResponsesModel
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, ScriptedModel, call, respond, say
from agentloop.usage import RequestUsage
from agentloop.window import estimate_tokens


def read(tokens: int | str | None) -> RequestUsage | None:
    """Return the usage of a request for which a cache had *tokens*; or a cut one, or one of another model."""
    if isinstance(tokens, str):
        return RequestUsage(input_tokens=9_000, model="other", complete=tokens != "cut")
    return None if tokens is None else RequestUsage(input_tokens=9_000, cached_tokens=tokens)


def ask(name: str, cached: int | str | None, call_id: str = "c", arguments: str = "{}") -> Any:
    """Return a turn that calls a tool, of whose request the cache had *cached* tokens."""
    return respond(ToolCall(call_id, name, arguments), usage=read(cached))


@tool
async def look() -> str:
    """Look."""
    return "seen"


# -- notes


async def collect(agent: Agent[Any, Any], **options: Any) -> tuple[list[Any], Any]:
    """Return the notes in the stream of a run, and its result."""
    async with Runner.run_streamed(agent, "go", **options) as stream:
        notes = [event async for event in stream if isinstance(event, ev.UsageNote)]
    return notes, stream.result


@pytest.mark.parametrize(
    ("cached", "noted"),
    [
        ([0, 2_048, 4_096], []),
        ([4_096, 2_048], []),
        ([4_096, 2_047], [(2, 4_096, 2_047)]),
        ([0, 4_096, 0, 4_096], [(3, 4_096, 0)]),
        ([4_096, None, 4_096], []),
        ([4_096, None, None, 0], [(4, 4_096, 0)]),
        ([4_096, "cut", 4_096, "cut", 0], [(5, 4_096, 0)]),
        ([4_096, "other model", 4_096], []),
        (["other model", 4_096, 0], [(3, 4_096, 0)]),
        ([None, 0], []),
        ([4_096, 1_024, 256], [(2, 4_096, 1_024), (3, 1_024, 256)]),
    ],
    ids=str,
)
async def test_a_fall_of_more_than_half_is_noted(cached: list[int | str | None], noted: list[Any]) -> None:
    """In the stream, behind the items of the answer, and in the result, also of a plain run and of a stored log."""
    turns = [*(ask("look", one, f"c{n}") for n, one in enumerate(cached[:-1])), say("done", read(cached[-1]))]
    agent = Agent("a", model=ScriptedModel(turns), tools=[look])
    notes, result = await collect(agent)
    assert [(one.turn, one.cached_before, one.cached) for one in notes] == noted
    assert result.usage_notes == tuple(notes)
    again = await Runner.run(agent.clone(model=ScriptedModel(turns)), "go")
    assert again.usage_notes == tuple(notes)


async def test_what_the_run_has_changed_itself_is_not_noted() -> None:
    """A compaction, and a handoff; each run has its own notes."""
    pages = [ToolCall(f"c{n}", "read", f'{{"page": {n}}}') for n in range(1, 7)]

    def answer(request: Any) -> Any:
        tokens = 50 + estimate_tokens(request.items)
        usage = RequestUsage(input_tokens=tokens, cached_tokens=4_096 if request.turn < 5 else 0)
        return respond(pages[request.turn - 1], usage=usage) if request.turn < 6 else say("done", usage=usage)

    policy = ContextPolicy(window=4_000, steps=[DropOldest(keep_turns=1)])
    notes, result = await collect(make_agent(policy, FunctionModel(answer)))
    assert [one.turn for one in compactions(result.records)] == [4]
    assert notes == []
    notes, result = await collect(make_agent(None, FunctionModel(answer)))
    assert [one.turn for one in notes] == [5]
    last = Agent("last", model=ScriptedModel([say("done", read(0))]))
    first = Agent(
        "first",
        model=ScriptedModel([ask("transfer_to_last", 4_096)]),
        handoffs=[handoff(last)],
    )
    assert (await collect(first))[0] == []


@pytest.mark.parametrize("place", [None, "second"])
def test_another_model_that_is_asked_has_another_cache(place: str | None) -> None:
    """Also where usage doesn't name the model: the request does, if it is another one than before."""
    told = ((1, 4_096), (2, 0))
    answers = [r.ModelResponded((), turn, 0.0, ModelResponse((), usage=read(cached))) for turn, cached in told]
    model = None if place is None else ModelInfo(provider="test", name=place)
    records: list[r.Record] = [answers[0], r.ModelRequested((), 2, 0.0, "digest", model=model), answers[1]]
    notes = [] if place is not None else [ev.UsageNote(4_096, 0, turn=2)]
    assert list(find_usage_notes(records)) == notes


async def test_a_nested_run_has_notes_of_its_own() -> None:
    """With its path."""
    inner = Agent(
        "inner",
        model=ScriptedModel([ask("look", 4_096), say("in", read(0))]),
        tools=[look],
    )
    outer = Agent(
        "outer",
        model=ScriptedModel([ask("inner", 64, "n", '{"input": "x"}'), say("out", read(64))]),
        tools=[inner.as_tool()],
    )
    notes, result = await collect(outer)
    assert [(one.path, one.turn) for one in result.usage_notes] == [(("n",), 2)]
    assert [one.path for one in notes] in ([], [("n",)])


# -- the key


class Server:
    """A Responses or Chat server that notes what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        self.bodies.append(json.loads(request.content))
        if request.url.path.endswith("/responses"):
            part = {"type": "output_text", "text": "hi", "annotations": []}
            message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
            content = wire(make_stream([message]))
        else:
            chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
            content = b"data: %s\n\n" % json.dumps(chunk).encode()
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    def key(self) -> Any:
        """Return the key of the last request."""
        return self.bodies[-1].get("prompt_cache_key")


@pytest.mark.real_clock
@pytest.mark.parametrize("make", [OpenAIResponsesModel, OpenAIChatModel])
async def test_requests_of_one_session_group_or_run_have_one_key(make: Any) -> None:
    """The first of them that there is; the name of the session isn't sent. A resumed run keeps its key."""
    server = Server()
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as client:
        agent = Agent("a", model=make("m", api_key="k", http_client=client))
        in_group = RunConfig(tracing=TracingSettings(group_id="g\ud800"))  # half of a pair
        keys = []
        for options in ({"session": MemorySession("ada@example.org")}, {"run_config": in_group}, {}):
            for _ in range(2):
                await Runner.run(agent, "hi", **options)
                keys.append(server.key())
        assert keys[0] == keys[1] != keys[2] == keys[3]
        assert len({keys[0], keys[2], keys[4], keys[5]}) == 4
        assert all(key.startswith("agentloop-") and len(key) <= 64 for key in keys)
        assert "ada@" not in json.dumps(server.bodies)
        journal = MemoryJournal()
        await Runner.run(agent, "hi", journal=journal)
        began, left, lines = server.key(), MemoryJournal(), await journal.read()
        await left.append(lines[: next(n for n, line in enumerate(lines) if b'"model_responded"' in line)])
        await Runner.resume(agent, left)
        assert server.key() == began
        assert len(server.bodies) == 8


@pytest.mark.real_clock
@pytest.mark.parametrize("make", [OpenAIResponsesModel, OpenAIChatModel])
async def test_an_own_key_or_none_is_sent_as_given(make: Any) -> None:
    """And a server that isn't the vendor's gets none, since it may not know the field."""
    server = Server()
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as client:
        for settings, url, key in (
            (ModelSettings(cache=CachePolicy(key="mine")), None, "mine"),
            (ModelSettings(extra_body={"prompt_cache_key": "other"}), None, "other"),
            (ModelSettings(extra_body={"prompt_cache_key": None}), None, None),
            (ModelSettings(), "https://example.org/v1", None),
        ):
            model = make("m", api_key="k", http_client=client, base_url=url)
            await Runner.run(Agent("a", model=model, model_settings=settings), "hi")
            assert server.key() == key


async def test_nested_runs_share_the_key_of_the_outermost() -> None:
    """Their requests go on where its requests end."""
    inner, outer = ScriptedModel([say("in")]), ScriptedModel([call("inner", {"input": "x"}), say("out")])
    agent = Agent("outer", model=outer, tools=[Agent("inner", model=inner).as_tool()])
    result = await Runner.run(agent, "go")
    groups = {request.cache_group for request in (*inner.requests, *outer.requests)}
    assert groups == {result.records[0].run_id}  # type: ignore[union-attr]
