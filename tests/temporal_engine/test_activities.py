"""The activities without a server: what a worker does for one call; and workflows of one's own, with one."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

from temporalio import workflow
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer, Worker

from agentloop import Agent, RunConfig, Runner, RunOpening, ToolContext, UserError, to_json, tool
from agentloop.abc import Codec, Instrument, Model, ModelProvider
from agentloop.exceptions import OutcomeUnknown
from agentloop.items import AssistantMessage
from agentloop.model_events import ItemDone, ModelRequest, ResponseDone, TextDelta
from agentloop.records import ModelFailed, Record
from agentloop.settings import ModelSettings
from agentloop.temporal import AgentPlugin, AgentRunHandle, run_agent
from agentloop.temporal._activities import NOT_BEGUN, call_model, call_tool
from agentloop.temporal._options import find_setup
from agentloop.temporal._payloads import error_from_json, seal, unseal, value_from_json
from agentloop.temporal._runner import TOO_EARLY, UNFIT
from agentloop.testing import FunctionModel, ScriptedModel, call, normal, say

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.timeout(120),
    pytest.mark.backends("asyncio"),
    pytest.mark.leaves_threads,
]


def asked_model(**changes: Any) -> dict[str, Any]:
    """Return what a workflow sends to have the model of agent `a` asked."""
    return {
        "root": "a",
        "agent": find_setup("a").graph.root.name,
        "system": "Be brief.",
        "instructions": ["Be brief."],
        "items": [],
        "tools": [],
        "handoffs": [],
        "hosted": False,
        "output": False,
        "tool_choice": None,
        "previous_response_id": None,
        "conversation_id": None,
        "prompt": None,
        "turn": 1,
        "path": [],
        "call_ids": [],
    } | changes


def asked_tool(name: str, arguments: Any = "{}", **changes: Any) -> dict[str, Any]:
    """Return what a workflow sends to have a body called."""
    return {
        "root": "a",
        "agent": find_setup("a").graph.root.name,
        "tool": name,
        "namespace": None,
        "arguments": arguments,
        "call_id": "c1",
        "run_id": "r1",
        "key": "k1",
        "context": None,
    } | changes


class _OneAnswer(ModelProvider):
    def __init__(self, model: Model) -> None:
        self.model = model

    def get_model(self, name: str) -> Model:
        assert name == "mine:small"
        return self.model


class _Opened(FunctionModel):
    """A model that has to be opened, and tells when."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.told: list[str] = []

    @property
    def is_open(self) -> bool:
        return self.told[-1:] == ["opened"]

    async def __aenter__(self) -> Self:
        self.told.append("opened")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.told.append("closed")


async def test_a_model_call_of_a_worker() -> None:
    """The model of a string comes from the provider and is opened for the call; its settings are this process's."""
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Any:
        seen.append(request)
        return say("yes")

    model = _Opened(answer)
    config = RunConfig(model_provider=_OneAnswer(model), model_settings=ModelSettings(temperature=0.5))
    AgentPlugin({"a": Agent("a", model="mine:small")}, run_config=config)
    answered = await ActivityEnvironment().run(call_model, asked_model(tool_choice="none"))
    assert "yes" in json.dumps(answered["done"]["items"])
    assert model.told == ["opened", "closed"]
    [request] = seen
    assert (request.settings.temperature, request.settings.tool_choice) == (0.5, "none")
    assert request.system == "Be brief."


async def test_the_schema_of_a_typed_output() -> None:
    """The request of a worker has the schema of its own agent's output type."""
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Any:
        seen.append(request)
        return say('{"response": 3}')

    AgentPlugin({"a": Agent("a", model=FunctionModel(answer), output_type=int)})
    assert "done" in await ActivityEnvironment().run(call_model, asked_model(output=True))
    assert seen[0].output_schema is not None


class _EventModel(Model):
    """Sends *events*, whatever is asked."""

    def __init__(self, *events: Any) -> None:
        self.events = events

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Any]]:
        async def send() -> AsyncIterator[Any]:
            for event in self.events:
                yield event

        yield send()


async def test_wrong_models_of_a_worker() -> None:
    """What a model does wrong is the result of the activity, so the run decides about it as in one process."""
    done = ResponseDone(())
    item = AssistantMessage("yes")
    AgentPlugin({"a": Agent("a", model=_EventModel(ItemDone(item), done))})
    answered = await ActivityEnvironment().run(call_model, asked_model())
    assert "yes" in json.dumps(answered["done"]["items"])
    for events, why in (((), "ended without being done"), ((done, TextDelta("x")), "after its response was done")):
        AgentPlugin({"a": Agent("a", model=_EventModel(*events))})
        answered = await ActivityEnvironment().run(call_model, asked_model())
        assert why in json.dumps(answered["error"])


async def test_a_worker_without_the_agent_or_the_tool() -> None:
    """The activity fails, and so may be tried again by a worker that has them."""
    AgentPlugin({"a": Agent("a", model=ScriptedModel([]))})
    for asked, why in (
        (asked_tool("missing"), "has no tool 'missing'"),
        (asked_tool("missing", root="unheard-of"), "this worker has no agent 'unheard-of'"),
        (asked_tool("missing", agent="unheard-of"), "agent 'unheard-of' isn't in the graph"),
    ):
        with pytest.raises(ApplicationError, match=why) as caught:
            await ActivityEnvironment().run(call_tool, asked)
        assert (caught.value.type, caught.value.non_retryable) == (NOT_BEGUN, False)


class _Keyless(Model):
    """Has no key: it says so when it is opened, or when it is asked."""

    def __init__(self, at: str) -> None:
        self.at = at

    @property
    def is_open(self) -> bool:
        return self.at == "asked"

    async def __aenter__(self) -> Self:
        raise UserError("no API key")

    def stream(self, request: ModelRequest) -> Any:
        raise UserError("no API key")


@pytest.mark.scenario("SM-04")
@pytest.mark.parametrize("at", ["opened", "asked"])
async def test_a_model_without_a_key_fails_the_activity(at: str) -> None:
    """The run isn't told: another worker may have the key, and the engine counts the failure."""
    AgentPlugin({"a": Agent("a", model=_Keyless(at))})
    with pytest.raises(ApplicationError, match="UserError: no API key") as caught:
        await ActivityEnvironment().run(call_model, asked_model())
    assert (caught.value.type, caught.value.non_retryable) == ("UserError", False)


class _Bits(Codec):
    """Seals by turning bits."""

    def seal(self, data: bytes) -> bytes:
        return bytes(each ^ 0x55 for each in data)

    def open(self, sealed: bytes) -> bytes:
        return self.seal(sealed)


async def test_what_is_sealed_needs_the_codec() -> None:
    """Without it an activity fails before the model is asked, or the body called; a plugin with secrets needs one."""

    @tool(secret=("pin",), secret_output=True)
    async def pay(pin: str) -> str:
        """Pay."""
        return f"paid with {pin}"

    with pytest.raises(UserError, match=r"tool 'pay' has secret arguments .* give AgentPlugin\(codec="):
        AgentPlugin({"a": Agent("a", model=ScriptedModel([]), tools=[pay])})
    arguments = seal('{"pin": "canary"}', _Bits())
    AgentPlugin({"a": Agent("a", model=ScriptedModel([]), tools=[pay])}, codec=_Bits())
    answered = await ActivityEnvironment().run(call_tool, asked_tool("pay", arguments))
    assert "canary" not in json.dumps(answered)
    assert value_from_json(unseal(answered, _Bits())["value"]) == "paid with canary"

    @tool(name="pay")
    async def pay_plainly(pin: str) -> str:
        """Pay."""
        raise AssertionError

    AgentPlugin({"a": Agent("a", model=ScriptedModel([]), tools=[pay_plainly])})
    with pytest.raises(ApplicationError, match="this worker has no codec") as caught:
        await ActivityEnvironment().run(call_tool, asked_tool("pay", arguments))
    assert caught.value.type == NOT_BEGUN
    with pytest.raises(ApplicationError, match="this worker has no codec"):
        await ActivityEnvironment().run(call_model, asked_model(items=seal([], _Bits())))
    with pytest.raises(UserError, match="would hold secrets of the run in plain text"):
        seal([], None)


async def test_the_services_of_a_body() -> None:
    """Progress is a heartbeat, a resource is opened once and closed with the call, cleanup has a limit."""
    opened: list[str] = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[str]:
        opened.append("opened")
        yield "connection"
        opened.append("closed")

    @tool
    async def work(ctx: ToolContext[Any]) -> list[Any]:
        """Work."""
        assert await ctx.resource(connect) is await ctx.resource(connect)
        await ctx.report(1, 2, "half")
        ctx.report_nowait(2, 2, "all")
        ctx.emit({"found": {1}})
        with ctx.cleanup(3.0) as within:
            opened.append(f"cleanup {within.shield}")
        with pytest.raises(UserError, match="only in the workflow"):
            ctx.cancel_call("c2")
        return [ctx.idempotency_key, ctx.tool_call_id]

    @tool
    def block(ctx: ToolContext[Any]) -> Any:
        """Block."""
        ctx.check_cancelled()
        return {1, 2}

    @tool
    async def fail() -> str:
        """Fail."""
        raise LookupError("not there")

    AgentPlugin({"a": Agent("a", model=ScriptedModel([]), tools=[work, block, fail])})
    beats: list[tuple[Any, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)
    answered = await environment.run(call_tool, asked_tool("work"))
    assert value_from_json(answered["value"]) == ["k1", "c1"]
    assert opened == ["opened", "cleanup True", "closed"]
    told = [str(details.get("message", details.get("custom"))) for beat in beats for details in beat]
    assert list(dict.fromkeys(told)) == ["half", "all", "{'found': [1]}"]
    blocked = await environment.run(call_tool, asked_tool("block"))
    assert value_from_json(blocked["value"]) == "[1, 2]"  # JSON has no sets: it is what the model would be shown
    failed = await environment.run(call_tool, asked_tool("fail"))
    error = error_from_json(failed["error"])
    assert (type(error).__name__, str(error)) == ("LookupError", "not there")
    unknown = error_from_json({"kind": "OutcomeUnknown", "message": "lost"})
    assert isinstance(unknown, OutcomeUnknown)


class _Watcher(Instrument):
    """Keeps what is told of records and run segments."""

    def __init__(self) -> None:
        self.records: list[str] = []
        self.openings: list[RunOpening] = []

    def on_record(self, record: Record) -> None:
        self.records.append(type(record).__name__)

    def on_run_open(self, opening: RunOpening) -> None:
        self.openings.append(opening)


@tool
async def names() -> list[str]:
    """Give names."""
    return ["ada", "bob"]


@workflow.defn(sandboxed=False)
class _Two:
    """Runs one agent twice, the second time with what is refused."""

    @workflow.run
    async def run(self) -> list[Any]:
        result = await run_agent("typed", "go")
        refused = ""
        try:
            await run_agent("typed", "go", session=object())  # type: ignore[arg-type]
        except UserError as error:
            refused = str(error)
        return [result.final_output, refused, normal(result.records)]


def _typed(model: Any) -> Agent[Any, Any]:
    return Agent("typed", model=model, tools=[names], output_type=list[str])


def _answer(request: ModelRequest) -> Any:
    return [call("names", {}, call_id="n1")] if request.turn == 1 else say('{"response": ["ada", "bob"]}')


@pytest.mark.scenario("DU-01")
async def test_a_workflow_of_ones_own(address: str) -> None:
    """`run_agent` returns the result of a run whose model is a string, and instruments are told each record once."""
    plain = await Runner.run(_typed(FunctionModel(_answer)), "go")
    watcher = _Watcher()
    config = RunConfig(model_provider=_OneAnswer(FunctionModel(_answer)), instruments=(watcher,))
    plugin = AgentPlugin({"typed": _typed("mine:small")}, run_config=config)
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    # Without a cache every workflow task replays the workflow from its beginning.
    async with Worker(client, task_queue=queue, workflows=[_Two], max_cached_workflows=0):
        handle = await client.start_workflow(_Two.run, id=f"two-{uuid4().hex}", task_queue=queue)
        output, refused, records = await handle.result()
    assert output == plain.final_output == ["ada", "bob"]
    assert "session: not supported" in refused
    assert watcher.records == [type(record).__name__ for record in plain.records]
    assert watcher.openings == []  # what it would tell would be another thing in a replay
    assert [record["kind"] for record in records] == [record["kind"] for record in normal(plain.records)]
    told = list(watcher.records)
    history = await handle.fetch_history()
    await Replayer(workflows=[_Two], plugins=[plugin]).replay_workflow(history)
    assert watcher.records == told


class _LosingHandle:
    """The handle of a workflow whose worker dies while it is asked: so many queries fail before one is answered."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error = failures, error

    async def describe(self) -> Any:
        return SimpleNamespace(close_time=1.0)

    async def query(self, what: str, *, args: tuple[int]) -> list[dict[str, Any]]:
        assert what in ("records_after", "ended_records_after")
        if self.failures:
            self.failures -= 1
            raise self.error
        return [to_json(ModelFailed(path=(), turn=1, at=0.0, error="timeout"))][: 1 - args[0]]


def _lost(status: RPCStatusCode) -> RPCError:
    return RPCError("context canceled", status, b"")


async def test_a_query_that_a_dying_worker_has_taken() -> None:
    """It is repeated, as is one that came too early or to a worker that doesn't fit; a refusal isn't."""
    early, unfit = WorkflowQueryFailedError(TOO_EARLY), WorkflowQueryFailedError(f"{UNFIT}: it has no agent 'a'")
    for error in (_lost(RPCStatusCode.CANCELLED), _lost(RPCStatusCode.FAILED_PRECONDITION), early, unfit):
        handle = AgentRunHandle(_LosingHandle(19, error))  # type: ignore[arg-type]
        assert [type(one).__name__ async for one in handle.records(interval=0.0)] == ["ModelFailed"]
    for error in (_lost(RPCStatusCode.NOT_FOUND), WorkflowQueryFailedError("no such run")):
        handle = AgentRunHandle(_LosingHandle(1, error))  # type: ignore[arg-type]
        with pytest.raises(type(error)):
            await anext(handle.records(interval=0.0))
