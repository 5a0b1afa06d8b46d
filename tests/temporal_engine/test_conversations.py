"""What model calls get: what is new, so that a history grows with its conversation and not with its square."""

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from hypothesis import given
from hypothesis import strategies as st
from temporal_engine.replay_histories import replay
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode, WorkflowService
from temporalio.worker import Replayer, Worker

from agentloop import Agent, RunConfig, tool
from agentloop.items import ToolOutput, UserMessage
from agentloop.limits import ToolExecution
from agentloop.model_events import ModelRequest
from agentloop.temporal import AgentPlugin, AgentRunHandle, FolderParts, _effects, _run_handle, start_run
from agentloop.temporal import _conversation as conversation
from agentloop.temporal._conversation import Remembered, Telling, Told, find_parts, make_piece
from agentloop.temporal._workflow import AgentRunInput
from agentloop.testing import FunctionModel, call, say

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(180), pytest.mark.backends("asyncio")),
]

RECORDED = Path(__file__).parent / "recorded"
DRAWN = random.Random(7)


def draw_text(size: int) -> str:
    """Return a text that no compression makes much shorter."""
    return DRAWN.randbytes(size // 2).hex()


class Talk:
    """An agent whose model asks for texts of a size, and writes down what it was shown."""

    def __init__(self, turns: int, size: int, calls: int = 2) -> None:
        self.shown: list[list[str]] = []
        self._turns, self._size, self._calls = turns, size, calls
        self._texts: dict[int, str] = {}

    def agent(self) -> Agent[Any, Any]:
        """Return the agent."""

        @tool(idempotent=True)
        async def read(n: int) -> str:
            """Read a text."""
            return self._texts.setdefault(n, draw_text(self._size))

        return Agent("talk", model=FunctionModel(self._say), tools=[read])

    def _say(self, request: ModelRequest) -> Any:
        self.shown.append([item.output for item in request.items if isinstance(item, ToolOutput)])
        if request.turn > self._turns:
            return say("done")
        first = self._calls * (request.turn - 1)
        return [call("read", {"n": n}, f"c{n}") for n in range(first, first + self._calls)]

    def check(self) -> None:
        """Check that each call of the model was shown all texts before it."""
        texts = [self._texts[n] for n in sorted(self._texts)]
        assert [len(one) for one in self.shown] == [self._calls * turn for turn in range(self._turns + 1)]
        assert all(one == texts[: len(one)] for one in self.shown)


async def talk(address: str, talk: Talk, **options: Any) -> tuple[AgentRunHandle, Any]:
    """Run the agent to its end; return the handle, and the result or the error."""
    config = RunConfig(tool_execution=ToolExecution(max_output_chars=None))
    client = await Client.connect(address, plugins=[AgentPlugin({"talk": talk.agent()}, run_config=config, **options)])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        run = await start_run(client, "talk", "go", id=f"talk-{uuid4().hex}", task_queue=queue, max_turns=None)
        with anyio.fail_after(90):
            try:
                return run, await run.result()
            except WorkflowFailureError as error:
                return run, error.cause


async def measure_history(run: AgentRunHandle) -> int:
    """Return the bytes of the history."""
    seen = await run.workflow.describe()
    return int(seen.raw_description.workflow_execution_info.history_size_bytes)


def start_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client start workflows whose input says nothing of how conversations are told, as releases did before."""
    monkeypatch.setattr(_run_handle, "AgentRunInput", lambda *given, by_parts: AgentRunInput(*given))


def refuse_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a workflow tell each conversation as a whole, as releases did before there were parts."""
    start_as_before(monkeypatch)
    patched = workflow.patched

    def refuse(name: str, **options: Any) -> bool:
        return name != "agentloop-parts" and patched(name, **options)

    monkeypatch.setattr(workflow, "patched", refuse)


@pytest.mark.scenario("SM-11")
async def test_a_history_grows_with_what_was_added(address: str) -> None:
    """Twice the turns have twice the bytes; the model is shown the same as ever."""
    sizes = []
    for turns in (15, 30):
        talking = Talk(turns, 2_000)
        run, result = await talk(address, talking)
        assert result.final_output == "done"
        talking.check()
        sizes.append(await measure_history(run))
    assert sizes[1] < sizes[0] * 2.2
    assert sizes[1] < 30 * 2 * 2_000 * 6


@pytest.mark.scenario("SM-11")
async def test_a_worker_that_remembers_nothing_reads_the_history(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that takes over. A run that continues as a new workflow begins with the whole."""
    monkeypatch.setattr(conversation, "_remembered", Remembered(0))
    talking = Talk(8, 100)
    _, result = await talk(address, talking, max_history=40)
    assert result.final_output == "done"
    talking.check()


async def refuse_reading(*_: object, **__: object) -> None:
    """Refuse the history, as for a worker that may not read it."""
    raise RPCError("not for you", RPCStatusCode.PERMISSION_DENIED, b"")


@pytest.mark.scenario("SM-11")
async def test_a_worker_that_cannot_read_the_history_is_told_the_whole(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows nothing, and may not read: it says so once in each turn."""
    monkeypatch.setattr(conversation, "_remembered", Remembered(0))
    monkeypatch.setattr(WorkflowService, "get_workflow_execution_history_reverse", refuse_reading, raising=False)
    talking = Talk(3, 100)
    _, result = await talk(address, talking)
    assert result.final_output == "done"
    talking.check()


@pytest.mark.scenario("SM-11")
async def test_what_is_larger_than_a_payload_is_told_in_steps(address: str) -> None:
    """Each output fits into a payload, and all of one turn don't."""
    talking = Talk(2, 20_000, calls=3)
    run, result = await talk(address, talking, max_payload=50_000)
    assert result.final_output == "done"
    talking.check()
    history = await run.workflow.fetch_history()
    replayer = Replayer(workflows=[], plugins=[AgentPlugin({"talk": talking.agent()}, max_payload=50_000)])
    await replayer.replay_workflow(history)


@pytest.mark.scenario("SM-11")
async def test_steps_that_no_worker_can_put_together_end_the_run(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, after the whole was told once."""
    monkeypatch.setattr(conversation, "_remembered", Remembered(0))
    monkeypatch.setattr(WorkflowService, "get_workflow_execution_history_reverse", refuse_reading, raising=False)
    talking = Talk(1, 20_000, calls=3)
    _, error = await talk(address, talking, max_payload=50_000)
    assert error.type == "PayloadTooLarge"
    assert "can't read the run's history" in error.message
    assert len(talking.shown) == 1


def asking_twice() -> Agent[Any, Any]:
    """Return an agent that asks another one twice at once, with a long input each."""
    inner = Agent("inner", model=FunctionModel(lambda _: say("inner done")))
    asked = [call("ask", {"input": "hello " * 50_000}, call_id=call_id) for call_id in ("a", "b")]
    return Agent(
        "outer",
        model=FunctionModel(lambda request: asked if request.turn == 1 else say("done")),
        tools=[inner.as_tool("ask", "Ask.")],
    )


async def test_a_run_of_an_older_release_is_replayed_as_it_began(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its history has whole conversations, and a timer that these needed: a replay needs it, too."""
    monkeypatch.setattr(_effects, "_MOST_IN_A_TASK", 400_000)
    plugin = AgentPlugin({"outer": asking_twice()})
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    with monkeypatch.context() as patch:
        refuse_parts(patch)
        async with Worker(client, task_queue=queue):
            run = await start_run(client, "outer", "go", id=f"outer-{uuid4().hex}", task_queue=queue)
            assert (await run.result()).final_output == "done"
    history = await run.workflow.fetch_history()
    assert [event for event in history.events if event.HasField("timer_started_event_attributes")]
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)


async def test_no_event_says_how_conversations_are_told(address: str) -> None:
    """But for a run that an older client has started: the marker in its history does, and counts in a replay.

    So it does where the client was a new one, and the worker that has begun the run an older one.
    """
    plugin = AgentPlugin({"outer": asking_twice()})
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    markers = []
    for is_older_client, is_older_worker in ((False, False), (True, False), (False, True)):
        with pytest.MonkeyPatch.context() as patch:
            if is_older_client:
                start_as_before(patch)
            if is_older_worker:
                patch.setattr(_effects, "has_marker", lambda _: True)
            async with Worker(client, task_queue=queue):
                run = await start_run(client, "outer", "go", id=f"outer-{uuid4().hex}", task_queue=queue)
                assert (await run.result()).final_output == "done"
        history = await run.workflow.fetch_history()
        markers.append(sum(event.HasField("marker_recorded_event_attributes") for event in history.events))
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)
    assert markers == [0, 1, 1]


async def test_recorded_histories_of_older_releases_replay() -> None:
    """With the agents of these tests."""
    found = sorted(RECORDED.glob("*.json"))
    assert found
    assert await replay(found) == 0


def tell(telling: Telling, items: list[Any], call_ids: list[str]) -> list[Any]:
    """Return what the activities are told, as it comes from the history."""
    return [json.loads(json.dumps(one.data)) for one in telling.tell((), items, call_ids)]


LISTS = st.lists(st.integers(0, 6), max_size=12)


@given(st.lists(LISTS, max_size=6), st.sampled_from([60, 100_000]))
def test_any_sequence_of_lists_is_told(lists: list[list[int]], most: int) -> None:
    """Items may come, go, change their places and repeat, as the steps of a context policy make them."""
    telling, told, seen = Telling(None, most), None, list[str]()
    for numbers in lists:
        items = [UserMessage(f"text {n}") for n in numbers]
        seen = [*seen, f"c{len(seen)}"]
        for asked in tell(telling, items, seen):
            form = conversation._Stretch.read(asked, None)
            told = form.apply(None if form.base is None else told)
            assert form.name in (None, told.name)
        assert told == Told(tuple_of(items), frozenset(seen))


def tuple_of(items: list[Any]) -> list[Any]:
    """Return *items* as they are told."""
    return [make_piece(conversation.item_to_json(item)) for item in items]


@given(LISTS, LISTS)
def test_parts_make_the_list(known: list[int], wanted: list[int]) -> None:
    """Slices of what is known and what it lacks, in their order, are what is wanted."""
    before, after = ([bytes([n]) for n in one] for one in (known, wanted))
    made: list[bytes] = []
    for part in find_parts(before, after):
        made.extend([after[part]] if isinstance(part, int) else before[part[0] : part[1]])
    assert made == after


def test_a_long_list_is_packed_and_a_short_one_is_as_ever() -> None:
    """Workers of older releases read the short one."""
    short = [UserMessage("hello")]
    [told] = tell(Telling(None, 1_000_000), short, [])
    assert told == {"items": [conversation.item_to_json(short[0])], "call_ids": []}
    [told] = tell(Telling(None, 1_000_000), [UserMessage("hello " * 50_000)], [])
    assert len(json.dumps(told)) < 10_000


class Reversed:
    """A codec that anybody can break."""

    def seal(self, data: bytes) -> bytes:
        """Return it backwards."""
        return data[::-1]

    def open(self, sealed: bytes) -> bytes:
        """Return it forwards."""
        return sealed[::-1]


@pytest.mark.parametrize("secret", [False, True])
def test_the_bytes_that_count_do_not_depend_on_packing(secret: bool) -> None:
    """A worker with a store doesn't pack: it has to set the timers that one without it has set, and the reverse."""
    items = [ToolOutput(f"c{n}", f"{n} hello" * 100_000, secret=secret) for n in range(3)]
    sizes, written = [], []
    for is_packing in (True, False):
        telling = Telling(Reversed(), 1_500_000, is_packing=is_packing)
        steps = [*telling.tell((), items[:1], ["c0"]), *telling.tell((), items, ["c0", "c1", "c2"])]
        sizes.append([step.size for step in steps])
        written.append([len(json.dumps(step.data["items"])) for step in steps])
    assert sizes[0] == sizes[1]
    assert max(written[0]) < 100_000
    assert all(size > made - 1_000 for size, made in zip(sizes[1], written[1], strict=True))


async def test_a_run_is_replayed_by_a_worker_with_a_store(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The timers that its large activities needed are the same, though what they are told is packed without a store."""
    monkeypatch.setattr(_effects, "_MOST_IN_A_TASK", 400_000)
    plain = AgentPlugin({"outer": asking_twice()})
    client = await Client.connect(address, plugins=[plain])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue):
        run = await start_run(client, "outer", "go", id=f"outer-{uuid4().hex}", task_queue=queue)
        assert (await run.result()).final_output == "done"
    history = await run.workflow.fetch_history()
    storing = AgentPlugin({"outer": asking_twice()}, store=FolderParts(tmp_path))
    await Replayer(workflows=[], plugins=[storing]).replay_workflow(history)


def test_the_names_around_a_secret_are_sealed() -> None:
    """Also when the secret has gone from the list: the next one is told as a whole."""
    secret = ToolOutput("c1", "the pin is 1234", secret=True)
    telling = Telling(Reversed(), 1_000_000)
    plain = [UserMessage("hello")]
    told = [tell(telling, items, []) for items in (plain, [*plain, secret], [*plain, secret, secret], plain)]
    assert [isinstance(one["items"], list) for [one] in told] == [True, False, False, True]
    for [one] in told[1:3]:
        assert not {"base", "name", "parts"} & set(one["items"])
        assert conversation._Stretch.read(one, Reversed()).base is not None


def test_the_oldest_lists_are_forgotten() -> None:
    """Those that were used the longest time ago."""
    remembered = Remembered(100)
    told = Told([make_piece("x" * 38)], frozenset())  # 40 bytes as JSON
    for name in ("a", "b"):
        remembered.put(name, told)
    assert remembered.get("a") is told
    remembered.put("c", told)
    assert [name for name in "abc" if remembered.get(name)] == ["a", "c"]
