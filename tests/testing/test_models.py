"""Models for tests: a function, a recording of a real one, and its replay."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop import Agent, ModelRetrySettings, ModelSettings, RequestUsage, RunConfig, Runner, StateError, tool
from agentloop.abc import Model
from agentloop.exceptions import ModelTimeoutError, ModelTransportError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, Text, ToolCall, UrlCitation
from agentloop.model_events import (
    HostedProgress,
    ItemDone,
    ModelEvent,
    ModelRequest,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.testing import (
    CassetteDivergence,
    FunctionModel,
    RecordingModel,
    ReplayModel,
    ScriptedModel,
    call,
    fail,
    normal,
    reason,
    say,
    stream_of,
)


@tool
async def double(n: int) -> int:
    """Twice n."""
    return 2 * n


def agent_with(model: Model, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that can double."""
    return Agent("calculator", model=model, tools=[double], **fields)


# ---------------------------------------------------------------------------------------------- a function


async def test_function_is_the_model() -> None:
    """The function gets each whole request; it may be sync or async, and return text, items or helpers."""

    async def answer(request: ModelRequest) -> Any:
        await anyio.lowlevel.checkpoint()
        return call("double", {"n": 21}) if request.turn == 1 else f"It is {request.items[-1].output}."  # type: ignore[union-attr]

    model = FunctionModel(answer)
    result = await Runner.run(agent_with(model), "Twice 21?")
    assert result.final_output == "It is 42."
    assert [request.turn for request in model.requests] == [1, 2]
    assert repr(model) == "<FunctionModel 'answer'>"


@pytest.mark.parametrize(
    "answer",
    ["hi", say("hi"), [reason("hm"), say("hi")], AssistantMessage("hi"), [AssistantMessage("hi")]],
    ids=["text", "helper", "helpers", "item", "items"],
)
async def test_answers_of_a_function(answer: Any) -> None:
    """The same model serves any number of runs."""
    agent = agent_with(FunctionModel(lambda request: answer))
    for _ in range(2):
        assert (await Runner.run(agent, "go")).final_output == "hi"


async def test_error_of_a_function_is_the_model_s() -> None:
    """The error names an answer of a wrong type."""

    def broken(request: ModelRequest) -> str:
        raise ModelTransportError("gone")

    with pytest.raises(ModelTransportError, match="gone"):
        await Runner.run(agent_with(FunctionModel(broken)), "go")
    with pytest.raises(UserTypeError, match="helpers such as"):
        await Runner.run(agent_with(FunctionModel(lambda request: 5)), "go")
    with pytest.raises(UserTypeError, match="expected a function of the request, got 'text'"):
        FunctionModel("text")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- record and replay

USAGE = RequestUsage(input_tokens=3, output_tokens=4, total_tokens=7, raw={"prompt_tokens": 3})
STEPS = [[reason("Twice."), call("double", {"n": 4}), call("double", {"n": 5})], say("8 and 10", usage=USAGE)]


async def recorded(path: Path, *steps: Any, **options: Any) -> Any:
    """Run an agent once with a recorded model, and return the result."""
    async with RecordingModel(ScriptedModel(steps), path, **options) as model:
        return await Runner.run(agent_with(model), "go")


async def test_replay_gives_the_recorded_run_again(tmp_path: Path) -> None:
    """The replay has an equal log, the same events, and the recorded usage."""
    path = tmp_path / "tapes" / "double.json"
    first = await recorded(path, *STEPS)
    model = ReplayModel(path)
    assert model.unused == 2
    again = await Runner.run(agent_with(model), "go")
    assert normal(again.records) == normal(first.records)
    assert again.usage == first.usage
    assert (model.unused, repr(model)) == (0, f"<ReplayModel {path}: 2 of 2 answers given>")


async def test_replay_streams_what_was_streamed(tmp_path: Path) -> None:
    """The replay streams deltas and raw events too."""
    answer = ResponseDone([AssistantMessage("hey")], USAGE, "r1", "q1")
    events = [ResponseStarted("r1"), Raw({"x": 1}), TextDelta("he"), TextDelta("y"), answer]
    path = tmp_path / "a.json"
    asked = ModelRequest(system=None, items=())
    for model in (RecordingModel(ScriptedModel([stream_of(events)]), path), None):
        async with (model or ReplayModel(path)).stream(asked) as stream:
            assert [event async for event in stream] == events


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"instructions": "Be brief."}, 'system: recorded nothing, now "Be brief."'),
        ({"tools": []}, r"tools\[0\]: recorded .*\"name\": \"double\".*, now nothing"),
        ({"model_settings": ModelSettings(temperature=1.0)}, r"settings\.temperature: recorded nothing, now 1\.0"),
    ],
)
async def test_request_that_differs_is_an_error_that_says_where(tmp_path: Path, changes: Any, place: str) -> None:
    """The error shows the recorded and the present request, and what to do."""
    path = tmp_path / "a.json"
    await recorded(path, *STEPS)
    agent = agent_with(ReplayModel(path)).clone(**changes)
    with pytest.raises(CassetteDivergence, match=place) as found:
        await Runner.run(agent, "go")
    assert "in turn 1 than it was for answer 1 of the cassette" in str(found.value)
    assert "Record it again if the change is meant" in str(found.value)
    assert found.value.turn == 1
    assert found.value.differences


async def test_changed_tool_shows_in_the_turn_that_hears_of_it(tmp_path: Path) -> None:
    """The place is the output that differs."""
    path = tmp_path / "a.json"
    await recorded(path, *STEPS)

    @tool(name="double", description="Twice n.")
    async def triple(n: int) -> int:
        return 3 * n

    agent = attrs.evolve(agent_with(ReplayModel(path)), tools=[attrs.evolve(double, body=triple.body)])
    with pytest.raises(CassetteDivergence, match=r'items\[4\]\.output: recorded "8", now "12"'):
        await Runner.run(agent, "go")


async def test_parts_may_be_ignored(tmp_path: Path) -> None:
    """A part is ignored by its name; an unknown one is refused."""
    path = tmp_path / "a.json"
    await recorded(path, *STEPS)
    agent = agent_with(ReplayModel(path, ignore=["system"]), instructions="Be brief.")
    assert (await Runner.run(agent, "go")).final_output == "8 and 10"
    with pytest.raises(UserValueError, match="ignore: there is no temperature; there are system, items"):
        ReplayModel(path, ignore=["temperature"])


async def test_asking_more_often_than_was_recorded_is_an_error(tmp_path: Path) -> None:
    """The error says how often the model was asked for that turn, and that nothing more was recorded."""
    path = tmp_path / "a.json"
    await recorded(path, say("once"))
    model = ReplayModel(path)
    await Runner.run(agent_with(model), "go")
    with pytest.raises(CassetteDivergence, match="no answer was recorded for turn 1; it was asked 1 times there when"):
        await Runner.run(agent_with(model), "go")


async def test_several_runs_are_given_again_in_their_order(tmp_path: Path) -> None:
    """One model answers one run after another."""
    path = tmp_path / "a.json"
    recording = RecordingModel(ScriptedModel([say("one"), say("two")]), path)
    for model in (recording, ReplayModel(path) if path.exists() else None):
        if model is not None:
            assert [(await Runner.run(agent_with(model), "go")).final_output for _ in range(2)] == ["one", "two"]
    replay = ReplayModel(path)
    assert [(await Runner.run(agent_with(replay), "go")).final_output for _ in range(2)] == ["one", "two"]


async def test_parallel_nested_runs_find_their_answers_in_any_order(tmp_path: Path) -> None:
    """An answer is found by the path of the calls that began the run."""

    def answer(request: ModelRequest) -> Any:
        if request.path:
            return f"I am {request.path[0]}"
        asks = [call("child", {"input": name}, call_id=name) for name in ("a", "b", "c")]
        return asks if request.turn == 1 else "done"

    def family(model: Model) -> Agent[Any, Any]:
        return Agent("parent", model=model, tools=[Agent("child", model=model).as_tool()])

    path = tmp_path / "a.json"
    await Runner.run(family(RecordingModel(FunctionModel(answer), path)), "go")
    data = json.loads(path.read_text())
    data["takes"].reverse()
    path.write_text(json.dumps(data))
    result = await Runner.run(family(ReplayModel(path)), "go")
    assert [one.outcome.value for one in result.calls] == ["I am a", "I am b", "I am c"]


async def test_errors_of_the_model_are_recorded_and_raised_again(tmp_path: Path) -> None:
    """The recorded error keeps its status, so the run retries again."""
    path = tmp_path / "a.json"
    config = RunConfig(model_settings=ModelSettings(retry=ModelRetrySettings(1, initial_delay=0)))
    broken = [fail(ModelTransportError("gone", status=503, request_id="q")), say("back")]
    first = await Runner.run(agent_with(RecordingModel(ScriptedModel(broken), path)), "go", run_config=config)
    again = await Runner.run(agent_with(ReplayModel(path)), "go", run_config=config)
    assert normal(again.records) == normal(first.records)
    await recorded_error(path, ModelTimeoutError(5.0))
    with pytest.raises(ModelTimeoutError, match="within 5 seconds"):
        await Runner.run(agent_with(ReplayModel(path)), "go")


async def recorded_error(path: Path, error: Exception) -> None:
    """Record a run that ends with *error*."""
    with pytest.raises(type(error)):
        await recorded(path, fail(error))


async def test_answer_that_was_not_read_to_its_end_is_left_out(tmp_path: Path) -> None:
    """A cancelled request says nothing that could be given again."""
    path = tmp_path / "a.json"
    model = RecordingModel(ScriptedModel([say("a long answer, read in pieces")]), path)
    async with model.stream(ModelRequest(system=None, items=())) as stream:
        await anext(stream)
    assert not path.exists()


async def test_error_of_who_reads_the_answer_is_not_recorded_as_the_model_s(tmp_path: Path) -> None:
    """The reader refuses the answer with an error of its own; the model didn't raise that."""
    path = tmp_path / "a.json"
    model = RecordingModel(ScriptedModel([say("all is well")]), path)
    with pytest.raises(ModelTransportError, match="of the reader"):
        async with model.stream(ModelRequest(system=None, items=())) as stream:
            await anext(stream)
            raise ModelTransportError("of the reader")
    assert not path.exists()


# ---------------------------------------------------------------------------------------------- secrets

KEY = "sk-abcdefgh12345678"


@tool
async def login(user: str, password: str) -> dict[str, str]:
    """Log in."""
    return {"access_token": "t0ps3cret", "user": user, "note": "Authorization: Bearer abcdefghijkl"}


async def test_no_secret_stands_in_a_cassette(tmp_path: Path) -> None:
    """Keys, tokens, headers and named texts are in no request, answer or error; and the cassette still replays."""
    path = tmp_path / "a.json"
    steps = [
        [call("login", {"user": "ann", "password": "hunter2hunter2"})],
        [say(f"Your key is {KEY}, and the word is plugh.")],
    ]
    settings = ModelSettings(extra_headers={"X-Api-Key": "header-secret"}, extra_query={"key": "query-secret"})
    fields: dict[str, Any] = {"tools": [login], "model_settings": settings, "instructions": f"Use api_key={KEY}."}

    def made(model: Model) -> Agent[Any, Any]:
        return Agent("clerk", model=model, **fields)

    await Runner.run(made(RecordingModel(ScriptedModel(steps), path, secrets=["plugh"])), "go")
    text = path.read_text()
    for secret in (KEY, "hunter2hunter2", "t0ps3cret", "abcdefghijkl", "header-secret", "query-secret", "plugh"):
        assert secret not in text
    assert text.count("[redacted]") >= 5
    result = await Runner.run(made(ReplayModel(path, secrets=["plugh"], ignore=["items"])), "go")
    assert result.final_output == "Your key is [redacted], and the word is [redacted]."


async def test_divergence_quotes_no_secret(tmp_path: Path) -> None:
    """The new request is redacted like the recorded one."""
    path = tmp_path / "a.json"
    await recorded(path, say("hi"))
    agent = agent_with(ReplayModel(path), instructions=f"Use {KEY}")
    with pytest.raises(CassetteDivergence, match=r"now \"Use \[redacted\]\"") as found:
        await Runner.run(agent, "go")
    assert KEY not in str(found.value) + repr(found.value.differences)


# ---------------------------------------------------------------------------------------------- the wrapped model


class Pool(Model):
    """A model that must be entered."""

    holds_resources = True

    def __init__(self) -> None:
        self.entered: list[str] = []

    @property
    def is_open(self) -> bool:
        return self.entered == ["in"]

    @property
    def default_settings(self) -> ModelSettings:
        return ModelSettings(temperature=0.5)

    async def __aenter__(self) -> "Pool":
        self.entered.append("in")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.entered.append("out")

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        async with ScriptedModel([say("pooled")]).stream(request) as events:
            yield events


async def test_recorded_model_is_entered_and_left_with_the_recording(tmp_path: Path) -> None:
    """The recording has the model's own settings and resources."""
    pool = Pool()
    model = RecordingModel(pool, tmp_path / "a.json")
    assert model.holds_resources
    assert not model.is_open
    assert model.default_settings.temperature == 0.5
    async with model:
        assert model.is_open
        assert (await Runner.run(agent_with(model), "go")).final_output == "pooled"
    assert pool.entered == ["in", "out"]
    with pytest.raises(UserTypeError, match="RecordingModel: expected a Model"):
        RecordingModel("openai:x", tmp_path / "b.json")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- what is no cassette


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no cassette at .*: record one"),
        ("{", "is no cassette: it isn't JSON"),
        ("[]", "is no cassette of agentloop"),
        ('{"cassette": "agentloop", "schema": "99"}', "has schema '99'; this release reads '1'"),
        ('{"cassette": "agentloop", "schema": "1"}', "has no list of takes"),
        ('{"cassette": "agentloop", "schema": "1", "takes": [{}]}', r"\$\.takes\[0\] can't be read"),
        (
            '{"cassette": "agentloop", "schema": "1", "takes": [{"request": {"path": "", "turn": 1}, "events": []}]}',
            r"\$\.takes\[0\] can't be read",
        ),
        (
            '{"cassette": "agentloop", "schema": "1", "takes": [{"request": {}, "events": [{"kind": "song"}]}]}',
            "no event is called 'song'",
        ),
    ],
)
def test_file_that_is_no_cassette_says_why(tmp_path: Path, text: str | None, message: str) -> None:
    """The error comes before any run."""
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StateError, match=message):
        ReplayModel(path)


async def test_events_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    """Also what an answer as a whole says, and which message a piece of text belongs to."""
    path, item = tmp_path / "a.json", AssistantMessage((Text("b", (UrlCitation("https://x.test", start=0, end=1),)),))
    answer: list[ModelEvent] = [
        ResponseStarted("r1"),
        ReasoningDelta("hm"),
        ReasoningDelta("so", "summary"),
        HostedProgress("web_search_call", "searching", "ws1"),
        TextDelta("b", 2),
        ItemDone(item),
        ResponseDone((item,), None, "r1", "q1", "stop", "m-1", "flex", {"verbosity": "low"}),
    ]
    asked = ModelRequest(system=None, items=())
    async with RecordingModel(ScriptedModel([stream_of(answer)]), path).stream(asked) as stream:
        assert [event async for event in stream] == answer
    async with ReplayModel(path).stream(asked) as stream:
        assert [event async for event in stream] == answer


async def test_tool_calls_come_back_as_they_were(tmp_path: Path) -> None:
    """The ids and arguments come back to the letter."""
    path = tmp_path / "a.json"
    await recorded(path, [call("double", '{"n" : 4}', call_id="x")], say("8"))
    result = await Runner.run(agent_with(ReplayModel(path)), "go")
    assert ToolCall("x", "double", '{"n" : 4}') in result.new_items
