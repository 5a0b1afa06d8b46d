"""A history that the provider makes shorter by its own means."""

import json
from typing import Any

import httpx
import pytest
from edges.messages_fixture import wire as messages_wire
from edges.responses_fixture import make_stream, wire
from kit.windows import compactions, make_agent, reader

from agentloop import Agent, ClearToolOutputs, ContextPolicy, ModelSettings, Runner, UserError
from agentloop.exceptions import ContextTooLong, ModelTransportError
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel
from agentloop.testing import FunctionModel, ScriptedModel, fail, say

WINDOW = 4_000


def policy(**changes: Any) -> ContextPolicy:
    """Return a policy that leaves it to the provider."""
    return ContextPolicy(**{"window": WINDOW, "steps": [ClearToolOutputs(keep_last=1)], "provider": True} | changes)


class Simple(FunctionModel):
    """A model without features."""

    @property
    def features(self) -> Any:
        """None."""
        return frozenset()


@pytest.mark.scenario("CX-09")
async def test_the_provider_is_told_where_to_begin(run_mode: Any) -> None:
    """No step is tried, however long the history is."""
    model, triggers = reader(12), []

    def answer(request: Any) -> Any:
        triggers.append(request.context_trigger)
        return model._fn(request)

    result = await run_mode(make_agent(policy(), FunctionModel(answer)), "Read.", max_turns=20)
    assert result.final_output == "done"
    assert triggers == [3_200] * 13
    assert not compactions(result.records)
    assert result.context_tokens > WINDOW


async def test_where_it_has_no_such_means_the_steps_are_tried(run_mode: Any) -> None:
    """As without `provider=True`."""
    model = Simple(reader(6)._fn)
    result = await run_mode(make_agent(policy(), model), "Read.")
    assert compactions(result.records)
    result = await run_mode(make_agent(policy(provider=False), reader(6)), "Read.")
    assert compactions(result.records)


@pytest.mark.scenario("CX-09")
async def test_a_conversation_that_the_provider_keeps_is_its_own(run_mode: Any) -> None:
    """Such a policy isn't refused, but where the provider can't."""
    model = ScriptedModel([say("hi")])
    await run_mode(Agent("a", model=model, context=policy()), "go", conversation_id="conv_1")
    assert [one.context_trigger for one in model.requests] == [3_200]
    model = ScriptedModel([say("hi")])
    with pytest.raises(UserError, match="the provider keeps the conversation"):
        await run_mode(Agent("a", model=model, context=policy(provider=False)), "go", conversation_id="conv_1")
    assert not model.requests


@pytest.mark.scenario("CX-05", "CX-09")
async def test_a_kept_conversation_that_is_too_long_ends_the_run(run_mode: Any) -> None:
    """Nothing here could make it shorter."""
    asked = []

    def answer(request: Any) -> Any:
        asked.append(request)
        return fail(ModelTransportError("maximum context length exceeded", status=400))

    with pytest.raises(ContextTooLong, match="the provider"):
        await run_mode(Agent("a", model=FunctionModel(answer), context=policy()), "go", conversation_id="conv_1")
    assert len(asked) == 1


@pytest.mark.scenario("CX-05")
async def test_a_history_that_is_here_is_made_shorter_if_the_provider_refuses_it(run_mode: Any) -> None:
    """The steps are tried then, all the same."""
    result = await run_mode(make_agent(policy(window=9_000), reader(6, window=5_000)), "Read.")
    assert result.final_output == "done"
    assert compactions(result.records)


MANAGED: dict[Any, Any] = {
    OpenAIResponsesModel: [{"type": "compaction", "compact_threshold": 3_200}],
    AnthropicModel: {
        "edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 3_200}}]
    },
    OpenAIChatModel: None,
}


@pytest.mark.real_clock
@pytest.mark.parametrize("make", MANAGED)
async def test_each_interface_says_it_in_its_own_words(make: Any) -> None:
    """Or leaves it out, where it has none; settings of the application's own hold."""
    sent: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=ANSWERS[make])

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        options = {"betas": ["other-2026-01-01"]} if make is AnthropicModel else {}
        agent = Agent("a", model=make("m", api_key="k", http_client=client, **options), context=policy())
        await Runner.run(agent, "hi")
        await Runner.run(agent.clone(context=policy(provider=False)), "hi")
        own = [{"type": "compaction", "compact_threshold": 9}]
        if make is OpenAIResponsesModel:
            await Runner.run(agent.clone(model_settings=ModelSettings(context_management=own)), "hi")
            assert json.loads(sent.pop().content)["context_management"] == own
    managed, plain = [json.loads(one.content) for one in sent]
    assert managed.get("context_management") == MANAGED[make]
    assert "context_management" not in plain
    if make is AnthropicModel:
        betas = [one.headers["anthropic-beta"] for one in sent]
        assert betas == ["other-2026-01-01,context-management-2025-06-27", "other-2026-01-01"]


_PART = {"type": "output_text", "text": "hi", "annotations": []}
_CHUNK = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
ANSWERS = {
    OpenAIResponsesModel: wire(
        make_stream(
            [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [_PART]}],
        )
    ),
    OpenAIChatModel: b"data: %s\n\n" % json.dumps(_CHUNK).encode(),
    AnthropicModel: messages_wire(
        [
            {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
    ),
}
"""An answer of each."""
