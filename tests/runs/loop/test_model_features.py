"""What a model says it knows: a run that needs more is refused before the request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloop import Agent, HostedTool, Prompt, Runner, UserError
from agentloop import records as r
from agentloop.abc import Model
from agentloop.model_events import ModelFeature, ModelRequest
from agentloop.models import (
    AnthropicModel,
    FallbackModel,
    HttpCodec,
    HttpModel,
    LocalModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RealtimeModel,
)
from agentloop.testing import FunctionModel, RecordingModel, ScriptedModel, call, say
from agentloop.testing.scripted import ALL_FEATURES

SEARCH = HostedTool("web_search")
KEPT: tuple[dict[str, Any], ...] = (
    {"conversation_id": "c"},
    {"previous_response_id": "r"},
    {"auto_previous_response_id": True},
)


class Plain(ScriptedModel):
    """A model of an application: it says nothing of what it knows, unless it is told to."""

    def __init__(self, *features: ModelFeature) -> None:
        super().__init__([say("done")])
        self.known = frozenset(features)

    @property
    def features(self) -> frozenset[ModelFeature]:
        return self.known


def test_a_model_knows_nothing_by_default() -> None:
    """The protocol's own answer."""

    class Own(Model):
        def stream(self, request: ModelRequest) -> Any: ...

    assert Own().features == frozenset()


@pytest.mark.scenario("WR-05")
@pytest.mark.parametrize("kept", KEPT)
async def test_a_model_that_keeps_no_conversations_gets_no_part_of_one(run_mode: Any, kept: dict[str, Any]) -> None:
    """With the new items alone it would answer without the history."""
    model = Plain("hosted_tools", "prompts")
    with pytest.raises(UserError, match=r"'a': its model .*doesn't know conversations .*\. A model says") as caught:
        await run_mode(Agent("a", model=model), "go", **kept)
    assert model.requests == []
    assert caught.value.run_data is not None
    assert not [record for record in caught.value.run_data.records if isinstance(record, r.ModelRequested)]
    assert (await run_mode(Agent("a", model=Plain("conversations")), "go", **kept)).final_output == "done"


@pytest.mark.scenario("WR-06")
async def test_hosted_tools_and_stored_prompts_are_refused_together(run_mode: Any) -> None:
    """One error names all that the model doesn't know; a prompt may come from a callable."""
    for prompt in (Prompt("pmpt_1"), lambda ctx, agent: Prompt("pmpt_1")):
        model = Plain()
        agent = Agent("a", model=model, tools=[SEARCH, HostedTool("file_search")], prompt=prompt)
        with pytest.raises(
            UserError, match=r"know hosted tools \(file_search, web_search\), stored prompts \(pmpt_1\)"
        ):
            await run_mode(agent, "go")
        assert model.requests == []
    agent = Agent("a", model=Plain("hosted_tools"), tools=[SEARCH], prompt=lambda ctx, agent: None)
    assert (await run_mode(agent, "go")).final_output == "done"


async def test_each_turn_asks_the_model_of_its_own_agent(run_mode: Any) -> None:
    """A handoff leads to a model that doesn't know what the first one does."""
    target = Agent("b", model=Plain())
    model = ScriptedModel([call("transfer_to_b")])
    with pytest.raises(UserError, match="agent 'b': its model"):
        await run_mode(Agent("a", model=model, handoffs=[target]), "go", auto_previous_response_id=True)
    assert len(model.requests) == 1


@pytest.mark.scenario("WR-05")
async def test_a_codec_says_what_its_interface_knows() -> None:
    """A codec that doesn't say so would leave the conversation out of the body."""
    bodies: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return httpx.Response(500)

    def make_agent(**more: Any) -> Agent:
        def encode(request: ModelRequest, name: str) -> Mapping[str, Any]:
            return {"bird": name}

        codec = HttpCodec(path="/x", headers=lambda key: {}, encode=encode, decoder=lambda request: None, **more)  # type: ignore[arg-type,return-value]
        client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        return Agent("a", model=HttpModel("polly", codec, base_url="http://bird.test", http_client=client))

    with pytest.raises(UserError, match=r"HttpModel.*doesn't know conversations"):
        await Runner.run(make_agent(), "go", conversation_id="c")
    assert bodies == []
    with pytest.raises(Exception, match="500"):
        await Runner.run(make_agent(features=frozenset({"conversations"})), "go", conversation_id="c")
    assert bodies


def test_models_of_tests_know_everything(tmp_path: Path) -> None:
    """They stand for any model, but leave the search for tools to the run; a recording has what its model has."""
    assert ScriptedModel([]).features == FunctionModel(str).features == ALL_FEATURES
    assert RecordingModel(Plain("prompts"), tmp_path / "a.json").features == {"prompts"}


def test_models_of_the_library_say_what_their_providers_have() -> None:
    """Chat Completions has nothing, and a fallback what all its members have, but no conversations."""
    responses, chat = OpenAIResponsesModel("m", api_key="k"), OpenAIChatModel("m", api_key="k")
    messages, realtime = AnthropicModel("m", api_key="k"), RealtimeModel("m", api_key="k")
    assert responses.features == {*ALL_FEATURES, "tool_search"}
    assert messages.features == {"context_management", "hosted_tools", "tool_search"}
    assert realtime.features == {"conversations", "prompts"}
    assert chat.features == LocalModel().features == FallbackModel([responses, chat]).features == frozenset()
    assert FallbackModel([responses, messages]).features == messages.features
    assert FallbackModel([responses, ScriptedModel([])]).features == {"context_management", "hosted_tools", "prompts"}


@pytest.mark.scenario("WR-06")
async def test_a_fallback_is_refused_before_its_first_member_is_asked(run_mode: Any) -> None:
    """A later member doesn't know hosted tools, which would be found once the first one has failed."""
    model = ScriptedModel([say("no")])
    with pytest.raises(UserError, match=r"FallbackModel.*hosted tools"):
        await run_mode(Agent("a", model=FallbackModel([model, Plain()]), tools=[SEARCH]), "go")
    assert model.requests == []
