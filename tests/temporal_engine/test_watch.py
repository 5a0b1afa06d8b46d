"""What a watcher of a run is shown: its records, and between them text and progress of what is under way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporalio.client import Client
from temporalio.worker import Worker

from agentloop import Agent, ToolContext, tool
from agentloop.abc import Model
from agentloop.events import CallProgress, TextDelta
from agentloop.items import AssistantMessage, ToolCall
from agentloop.model_events import ItemDone, ModelRequest, ModelResponse, ResponseDone
from agentloop.model_events import TextDelta as TextSent
from agentloop.outcomes import CallOutcome
from agentloop.records import CallSettled, ModelFailed, ModelResponded
from agentloop.temporal import AgentPlugin, start_run
from agentloop.temporal._live import Beat, LiveView, ShownText, progress_to_json

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


def test_progress_is_that_of_known_calls() -> None:
    """It is shown when it changes, while the call is under way."""
    view = LiveView()
    half = [Beat("3", progress_to_json("c1", 1, 2, "half"))]
    assert list(view.read(half)) == []
    view.note(responded(AssistantMessage("wait"), CALL))
    shown = CallProgress(path=(), turn=1, call=CALL, progress=1, total=2, message="half")
    assert list(view.read(half)) == [shown]
    assert list(view.read(half)) == []
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
