"""The log says which model was asked, when the first piece of its answer came, and when the last turn ended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kit.agents import Run, call_each, fine, make_agent, script_agent

from agentloop import Agent, RunConfig, RunHooks, Runner, RunState, handoff, to_json
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.exceptions import UserTypeError
from agentloop.items import AssistantMessage, Text
from agentloop.model_events import ItemDone, ModelInfo, ResponseDone, TextDelta
from agentloop.models import (
    AnthropicModel,
    FallbackModel,
    GeminiModel,
    LocalModel,
    Model,
    OCIModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RealtimeModel,
)
from agentloop.run._live_effects import LiveEffects
from agentloop.testing import ScriptedModel, call, fail, say, stream_of
from agentloop.testing.replaying import replay


class OneClock(LiveEffects):
    """The live effects with the loop's clock for the log's times, so that a virtual clock gives exact ones."""

    def wall(self) -> float:
        """Return the time of the loop."""
        return anyio.current_time()


class Kept(Instrument):
    """Keeps the records and the spans."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.spans: list[Any] = []

    def on_record(self, record: Any) -> None:
        """Keep *record*."""
        self.records.append(record)

    def on_span_end(self, span: Any) -> None:
        """Keep *span*."""
        self.spans.append(span)

    def of(self, kind: Any) -> list[Any]:
        """Return the records of *kind*."""
        return [one for one in self.records if isinstance(one, kind)]


class Named(ScriptedModel):
    """A scripted model with a name of its own."""

    def __init__(self, name: str, *steps: Any) -> None:
        super().__init__(steps)
        self.name = name


class SlowModel(Model):
    """Sends its pieces after a second each; whole items alone if it has no *pieces*."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    @asynccontextmanager
    async def stream(self, request: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """Answer."""

        async def events() -> AsyncIterator[Any]:
            for piece in self.pieces:
                await anyio.sleep(1)
                yield TextDelta(piece)
            message = AssistantMessage((Text("".join(self.pieces) or "whole"),))
            yield ItemDone(message)
            yield ResponseDone((message,))

        yield events()


async def test_a_request_says_which_model_is_asked(run_mode: Run) -> None:
    """Once, and again where the run asks another: after a handoff here, and in a nested run."""
    kept = Kept()
    inner = Agent("inner", model=Named("small", say("x"), say("y")))
    second = Agent("second", model=Named("two", say("done")))
    first = Agent("first", tools=[fine, inner.as_tool()], handoffs=[handoff(second)])
    turn = [call("fine"), call("inner", {"input": "x"})]
    first.model = Named("one", turn, call("inner", {"input": "y"}), call("transfer_to_second"))
    await run_mode(first, "go", run_config=RunConfig(instruments=(kept,)))
    requests = [one for one in kept.of(r.ModelRequested) if not one.path]
    assert [one.model for one in requests] == [ModelInfo("Named", "one"), None, None, ModelInfo("Named", "two")]
    assert [one.model for one in kept.of(r.ModelRequested) if one.path] == [ModelInfo("Named", "small")] * 2
    models = [span.data["model"] for span in kept.spans if span.kind == "model" and not span.path]
    assert models == ["one", "one", "one", "two"]
    assert {span.data["provider"] for span in kept.spans if span.kind == "model"} == {"Named"}
    assert to_json(requests[0])["model"] == {"provider": "Named", "name": "one"}


async def test_another_attempt_and_a_resumed_run_name_the_model_only_if_it_is_another() -> None:
    """The state has the identity of the model that was asked last."""
    kept = Kept()
    agent = script_agent("a", fail(ConnectionError("away")), say("never"))
    with pytest.raises(ConnectionError):
        await Runner.run(agent, "go", run_config=RunConfig(instruments=(kept,)))
    state = RunState.from_json(agent, RunState(agent, kept.records).to_json())
    assert state == RunState(agent, kept.records)
    assert [one.model for one in kept.of(r.ModelRequested)] == [ModelInfo("ScriptedModel", "ScriptedModel")]


async def test_an_identity_that_is_none_is_refused() -> None:
    """The text names the model."""

    class Odd(ScriptedModel):
        info: Any = "odd"

    with pytest.raises(UserTypeError, match="must be a ModelInfo, not 'odd'"):
        await Runner.run(Agent("a", model=Odd([say("never")])), "go")


OPENAI = "https://api.openai.com/v1"
IDENTITIES = [
    (lambda: OpenAIResponsesModel("gpt", api_key="k"), ModelInfo("openai", "gpt", OPENAI)),
    (lambda: OpenAIChatModel("gpt", api_key="k", base_url=OPENAI), ModelInfo("openai", "gpt", OPENAI)),
    (
        lambda: OpenAIChatModel("qwen", base_url="http://127.0.0.1:8080/v1?version=2"),
        ModelInfo("127.0.0.1", "qwen", "http://127.0.0.1:8080/v1"),
    ),
    (
        lambda: AnthropicModel("claude", api_key="k"),
        ModelInfo("anthropic", "claude", "https://api.anthropic.com", 200_000),
    ),
    (
        lambda: GeminiModel("pro", api_key="k"),
        ModelInfo("gemini", "pro", "https://generativelanguage.googleapis.com/v1beta/openai"),
    ),
    (
        lambda: OCIModel("openai.gpt", base_url="https://oci.test/v1", api_key="k"),
        ModelInfo("oci", "openai.gpt", "https://oci.test/v1"),
    ),
    (lambda: RealtimeModel("gpt-realtime", api_key="k"), ModelInfo("openai", "gpt-realtime", OPENAI, 32_000)),
    (LocalModel, ModelInfo("local", LocalModel().name, context_window=8_192)),
    (
        lambda: FallbackModel([OpenAIResponsesModel("gpt", api_key="k"), LocalModel()]),
        ModelInfo("fallback", f"openai:gpt, local:{LocalModel().name}"),
    ),
    (lambda: Named("mine"), ModelInfo("Named", "mine")),
    (ScriptedModel, ModelInfo("ScriptedModel", "ScriptedModel")),
]


@pytest.mark.parametrize(("make", "info"), IDENTITIES, ids=[info.name for _, info in IDENTITIES])
def test_every_model_has_an_identity(make: Any, info: ModelInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor's name where the vendor is asked, else the host; no key and no query."""
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert make().info == info


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_a_response_says_when_its_first_piece_came(run_mode: Run) -> None:
    """Not after the last, and not for whole items; a replay keeps the time."""
    kept = Kept()
    config = RunConfig(instruments=(kept,), effects=OneClock())
    await run_mode(Agent("a", model=SlowModel("one ", "two ", "three")), "go", run_config=config)
    [requested], [responded] = kept.of(r.ModelRequested), kept.of(r.ModelResponded)
    assert responded.first_delta_at - requested.at == pytest.approx(1)
    assert responded.at - requested.at == pytest.approx(3)
    [span] = [span for span in kept.spans if span.kind == "model"]
    assert span.data["first_delta_at"] == responded.first_delta_at
    whole = Kept()
    await run_mode(Agent("a", model=SlowModel()), "go", run_config=RunConfig(instruments=(whole,)))
    assert [one.first_delta_at for one in whole.of(r.ModelResponded)] == [None]


async def test_deltas_of_every_kind_count(run_mode: Run) -> None:
    """Text, reasoning and arguments; a failed attempt leaves no time to the next."""
    kept = Kept()
    done = ResponseDone((AssistantMessage((Text("x"),)),))
    agent = Agent("a", tools=[fine], model=ScriptedModel([call("fine"), stream_of([TextDelta("x"), done])]))
    await run_mode(agent, "go", run_config=RunConfig(instruments=(kept,)))
    assert all(one.first_delta_at is not None for one in kept.of(r.ModelResponded))


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize("ends", ["text", "failure"])
async def test_the_end_of_a_run_says_when_its_last_turn_ended(run_mode: Run, ends: str) -> None:
    """What comes after it is the end of the run; a turn with calls has a record of its end."""
    kept = Kept()

    class Slow(RunHooks):
        async def on_run_end(self, ctx: Any, outcome: Any) -> None:
            await anyio.sleep(2)

    agent = make_agent([fine], call_each("fine"), *([fail(ConnectionError("away"))] if ends == "failure" else []))
    config = RunConfig(instruments=(kept,), effects=OneClock())
    if ends == "failure":
        with pytest.raises(ConnectionError):
            await run_mode(agent, "go", run_config=config, hooks=Slow())
    else:
        await run_mode(agent, "go", run_config=config, hooks=Slow())
    [ended] = kept.of(r.RunEnded)
    assert ended.at - ended.turn_ended_at == pytest.approx(2)
    turns = [span for span in kept.spans if span.kind == "turn"]
    assert turns[-1].ended_at == ended.turn_ended_at


async def test_a_run_that_ends_with_its_calls_has_no_other_end_of_the_turn(run_mode: Run) -> None:
    """`BatchEnded` tells it."""
    kept = Kept()
    agent = make_agent([fine], call_each("fine"), tool_use_behavior="stop_on_first_tool")
    await run_mode(agent, "go", run_config=RunConfig(instruments=(kept,)))
    [ended] = kept.of(r.RunEnded)
    assert ended.turn_ended_at is None


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_keeps_these_facts_with_any_model(backend: Any) -> None:
    """No model is asked, so its identity isn't compared."""
    kept = Kept()
    agent = Agent("a", tools=[fine], model=Named("one", call("fine"), say("done")))
    Runner.run_sync(agent, "go", run_config=RunConfig(instruments=(kept,)))
    other = Agent("a", tools=[fine], model=Named("other"))
    assert list(replay(kept.records, other, backend=backend).records) == kept.records


async def test_a_model_that_is_another_one_meanwhile_is_recorded_as_such(run_mode: Run) -> None:
    """The same object may stand for another model in a later turn: its `info` is read for each request."""

    class Renamed(ScriptedModel):
        name = "small"

        @property
        def info(self) -> ModelInfo:
            return ModelInfo("test", self.name)

    model = Renamed([call("fine"), say("done")])

    class Renaming(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            model.name = "big"

    kept = Kept()
    agent: Agent[Any, Any] = Agent("a", model=model, tools=[fine])
    await run_mode(agent, "go", hooks=Renaming(), run_config=RunConfig(instruments=[kept]))
    asked = [record.model and record.model.name for record in kept.of(r.ModelRequested)]
    assert asked == ["small", "big"]
