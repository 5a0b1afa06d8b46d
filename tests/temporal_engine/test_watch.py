"""What a watcher of a run is shown: its records, and between them text and progress of what is under way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from kit.agents import make_input_guard
from temporalio.client import Client
from temporalio.worker import Worker

from agentloop import Agent, GuardrailFunctionOutput, RunConfig, Runner, ToolContext, input_guardrail, tool
from agentloop.abc import Model
from agentloop.events import CallProgress, CustomEvent, TextDelta
from agentloop.items import AssistantMessage, ToolCall
from agentloop.model_events import ItemDone, ModelRequest, ModelResponse, ResponseDone
from agentloop.model_events import TextDelta as TextSent
from agentloop.outcomes import CallOutcome
from agentloop.records import CallSettled, GuardrailSettled, ModelFailed, ModelResponded, TurnStarted
from agentloop.temporal import AgentPlugin, start_run
from agentloop.temporal._live import Beat, LiveView, ShownText, custom_to_json, progress_to_json
from agentloop.temporal._options import find_setup
from agentloop.testing import ScriptedModel, say

pytestmark = [pytest.mark.backends("asyncio"), pytest.mark.leaves_threads]

PARTS = ["One ", "two ", "three."]
CALL = ToolCall("c1", "measure", "{}")


def text_beat(text: ShownText, activity: str = "1") -> list[Beat]:
    """Return the heartbeats of an engine where one model call is under way."""
    return [Beat(activity, text.to_json())]


def responded(*items: Any) -> ModelResponded:
    """Return the record of the first turn's answer."""
    return ModelResponded((), 1, 0.0, response=ModelResponse(items=items))


def test_text_is_shown_as_it_grows() -> None:
    """Each look shows what is new, nothing twice, and nothing once the answer is recorded."""
    view, text = LiveView(), ShownText(["a"], 2, 1)
    text.add("One ")
    assert list(view.read(text_beat(text))) == [TextDelta(path=("a",), turn=2, text="One ")]
    assert list(view.read(text_beat(text))) == []
    text.add("two ")
    text.add("three")
    assert [event.text for event in view.read(text_beat(text))] == ["two three"]  # type: ignore[union-attr]
    view.note(ModelResponded(("a",), 2, 0.0, response=ModelResponse(items=())))
    text.add("late")
    assert list(view.read(text_beat(text))) == []


def test_a_long_text_is_cut_in_front() -> None:
    """A heartbeat has the end of the text, and what was shown already isn't shown again."""
    view, text = LiveView(), ShownText([], 1, 1)
    text.add("a" * 10_000)
    assert [len(event.text) for event in view.read(text_beat(text))] == [10_000]  # type: ignore[union-attr]
    text.add("b" * 10_000)
    assert [event.text for event in view.read(text_beat(text))] == ["b" * 10_000]  # type: ignore[union-attr]
    text.add("c" * 40_000)
    assert [event.text for event in view.read(text_beat(text))] == ["c" * 16_000]  # type: ignore[union-attr]


def test_a_further_attempt_of_a_lost_worker_shows_nothing() -> None:
    """Its text may be another one. After an attempt that failed by the model's doing, the next is shown."""
    view, first, second = LiveView(), ShownText([], 1, 1), ShownText([], 1, 2)
    first.add("Yes")
    second.add("No, it is not")
    assert len(list(view.read(text_beat(first)))) == 1
    assert list(view.read(text_beat(second))) == []
    view.note(ModelFailed((), 1, 0.0, error="overloaded"))
    assert list(view.read(text_beat(first))) == []  # the heartbeat was asked for before the record of the failure
    again = ShownText([], 1, 1)
    again.add("Perhaps")
    assert [event.text for event in view.read(text_beat(again, "2"))] == ["Perhaps"]  # type: ignore[union-attr]


@pytest.mark.parametrize("verdicts", [["passed", "passed"], ["passed", "tripped"], ["passed"]])
@pytest.mark.parametrize("held", [True, False])
def test_held_text_is_shown_when_all_input_guardrails_have_passed(verdicts: list[str], held: bool) -> None:
    """Not before, and not if one has tripped; in a turn without such guardrails at once. Other text is never held."""
    view, text, later = LiveView(), ShownText([], 1, 1, is_held=held), ShownText([], 2, 1, is_held=held)
    text.add("One ")
    shown = [TextDelta(path=(), turn=1, text="One ")]
    assert list(view.read(text_beat(text))) == ([] if held else shown)  # the turn's beginning wasn't read yet
    view.note(TurnStarted((), 1, 0.0, agent="a", guardrails=("twice", "twice")))
    assert list(view.read(text_beat(text))) == []
    for verdict in verdicts:
        assert list(view.read(text_beat(text))) == []
        view.note(GuardrailSettled((), 1, 0.0, "input", "twice", verdict, 0.1))
    passed = verdicts == ["passed", "passed"]
    assert list(view.read(text_beat(text))) == (shown if held and passed else [])
    view.note(TurnStarted((), 2, 0.0, agent="a"))
    later.add("Two")
    assert list(view.read(text_beat(later, "2"))) == [TextDelta(path=(), turn=2, text="Two")]


def test_the_records_of_a_run_name_its_guardrails_as_the_view_expects() -> None:
    """So that text is shown in the end: read from a run with two guardrails of one name."""
    agent = Agent("a", model=ScriptedModel([say("fine")]), input_guardrails=[make_input_guard("twice")] * 2)
    view, text = LiveView(), ShownText([], 1, 1, is_held=True)
    text.add("fi")
    for record in Runner.run_sync(agent, "go").records:
        if isinstance(record, ModelResponded):
            break
        view.note(record)
    assert len(list(view.read(text_beat(text)))) == 1


def test_text_is_held_if_the_run_or_an_agent_called_as_a_tool_wants_it() -> None:
    """As the activity doesn't know for which of the two it works."""
    holding = RunConfig(hold_text_until_guarded=True)
    model = ScriptedModel([])
    inner = Agent("inner", model=model)
    plain = Agent("plain", model=model, tools=[inner.as_tool(tool_name="ask")])
    nested = Agent("nested", model=model, tools=[inner.as_tool(tool_name="ask", run_config=holding)])
    AgentPlugin({"plain": plain, "nested": nested})
    assert [find_setup(name).holds_text for name in ("plain", "nested")] == [False, True]
    AgentPlugin({"plain": plain}, run_config=holding)
    assert find_setup("plain").holds_text


def test_progress_is_that_of_known_calls() -> None:
    """It is shown when it changes, while the call is under way."""
    view = LiveView()
    half = [Beat("3", progress_to_json("c1", 1, 2, "half"))]
    assert list(view.read(half)) == []
    view.note(responded(AssistantMessage("wait"), CALL))
    shown = CallProgress(path=(), turn=1, call=CALL, progress=1, total=2, message="half")
    assert list(view.read(half)) == [shown]
    assert list(view.read(half)) == []
    found = [Beat("3", custom_to_json("c1", {"found": 1}))]
    assert list(view.read(found)) == [CustomEvent(path=(), turn=1, call=CALL, value={"found": 1})]
    assert list(view.read(found)) == []
    view.note(CallSettled((), 1, 0.0, call_id="c1", tool="measure", outcome=CallOutcome(status="succeeded", output="")))
    assert list(view.read([Beat("3", progress_to_json("c1", 2, 2, None))])) == []


@tool
async def measure(ctx: ToolContext[Any]) -> str:
    """Measure."""
    await ctx.report(1, 2, "half")
    await anyio.sleep(2.5)
    return "12"


class _SlowModel(Model):
    """Asks for the tool, then sends its answer in parts, a second and a half each."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Any]]:
        async def send() -> AsyncIterator[Any]:
            if request.turn == 1:
                yield ItemDone(CALL)
            else:
                for part in PARTS:
                    yield TextSent(part)
                    await anyio.sleep(1.5)
                yield ItemDone(AssistantMessage("".join(PARTS)))
            yield ResponseDone(())

        yield send()


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.timeout(120)
async def test_a_watcher_sees_text_and_progress_between_the_records(address: str) -> None:
    """They come with heartbeats, and add nothing to the history."""
    plugin = AgentPlugin({"slow": Agent("slow", model=_SlowModel(), tools=[measure])})
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        handle = await start_run(client, "slow", "go", id=f"slow-{uuid4().hex}", task_queue=queue)
        with anyio.fail_after(60):
            seen = [event async for event in handle.watch(interval=0.2)]
        records = [record async for record in handle.records()]
        history = await handle.workflow.fetch_history()
    assert [event for event in seen if not isinstance(event, TextDelta | CallProgress)] == records
    texts = [event.text for event in seen if isinstance(event, TextDelta)]
    assert len(texts) > 1
    assert "".join(PARTS).startswith("".join(texts))
    assert [event.message for event in seen if isinstance(event, CallProgress)] == ["half"]
    last_text = max(at for at, event in enumerate(seen) if isinstance(event, TextDelta))
    answers = [at for at, event in enumerate(seen) if isinstance(event, ModelResponded)]
    assert answers[0] < last_text < answers[1]
    assert len(history.events) < 30


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.timeout(120)
@pytest.mark.parametrize("trips", [False, True])
async def test_a_watcher_sees_no_text_before_the_guardrails_have_passed(address: str, trips: bool) -> None:
    """With `hold_text_until_guarded`, as the stream of a run in this process."""

    @input_guardrail
    async def slow(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await anyio.sleep(3.5)
        return GuardrailFunctionOutput(tripwire_triggered=trips)

    class Talkative(Model):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Any]]:
            async def send() -> AsyncIterator[Any]:
                for part in PARTS:
                    yield TextSent(part)
                    await anyio.sleep(2)
                yield ItemDone(AssistantMessage("".join(PARTS)))
                yield ResponseDone(())

            yield send()

    agent = Agent("guarded", model=Talkative(), input_guardrails=[slow])
    plugin = AgentPlugin({"guarded": agent}, run_config=RunConfig(hold_text_until_guarded=True))
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        handle = await start_run(client, "guarded", "go", id=f"guarded-{uuid4().hex}", task_queue=queue)
        with anyio.fail_after(60):
            seen = [event async for event in handle.watch(interval=0.2)]
    texts = [at for at, event in enumerate(seen) if isinstance(event, TextDelta)]
    [settled] = [at for at, event in enumerate(seen) if isinstance(event, GuardrailSettled)]
    assert bool(texts) is not trips
    assert all(at > settled for at in texts)
