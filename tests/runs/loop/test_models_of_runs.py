"""The model a run asks: what its string means, who opens one that holds resources, and whose waiting counts."""

import logging
import traceback
from typing import Any, Self

import anyio
import pytest

from agentloop import Agent, ModelSettings, RunConfig, Runner
from agentloop.abc import ModelProvider
from agentloop.exceptions import ModelTimeoutError, UserTypeError
from agentloop.testing import ScriptedModel, call, fail, say, wait


class Held(ScriptedModel):
    """A model that has to be entered before it is asked."""

    holds_resources = True

    def __init__(self, *steps: Any) -> None:
        super().__init__(steps)
        self.entered = self.left = 0

    @property
    def is_open(self) -> bool:
        return self.entered > self.left

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left += 1


class Shelf(ModelProvider):
    """A provider that returns the model it holds, and notes the names it was asked for."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.names: list[str] = []

    def get_model(self, name: str) -> Any:
        self.names.append(name)
        return self.model


async def test_a_string_means_what_the_run_s_provider_says(run_mode: Any) -> None:
    """The run's provider gets the whole string."""
    shelf = Shelf(ScriptedModel([say("hello")]))
    result = await run_mode(Agent("a", model="mine:large"), "go", run_config=RunConfig(model_provider=shelf))
    assert result.final_output == "hello"
    assert shelf.names == ["mine:large"]


async def test_a_provider_that_gives_no_model_is_told_so(run_mode: Any) -> None:
    """The error names the value that the provider returned."""
    config = RunConfig(model_provider=Shelf(17))
    with pytest.raises(UserTypeError, match="model: expected a Model or a model string, got 17"):
        await run_mode(Agent("a", model="mine"), "go", run_config=config)


async def test_a_model_that_was_not_entered_is_opened_once_for_the_run_alone(
    run_mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is closed when the run is over; a warning says how to share it."""
    model = Held(call("nothing"), say("done"))
    config = RunConfig(tool_not_found_behavior="tell_model")
    with caplog.at_level(logging.WARNING, logger="agentloop"):
        await run_mode(Agent("a", model=model), "go", run_config=config)
    assert (model.entered, model.left) == (1, 1)
    assert len([record for record in caplog.records if "was not entered" in record.message]) >= 1


async def test_a_model_that_is_never_entered_is_told_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not at each of its runs; another model gets a line of its own."""
    model, other = Held(*[say("done")] * 3), Held(say("done"))
    for each in (model, model, other, model):
        await Runner.run(Agent("a", model=each), "go")
    told = [record.args for record in caplog.records if "was not entered" in record.message]
    assert told == [(model,), (other,)]


def test_run_sync_tells_nothing_about_entering(caplog: pytest.LogCaptureFixture) -> None:
    """Sync code has no `async with` by which it could follow the advice."""
    assert Runner.run_sync(Agent("a", model=Held(say("done"))), "go").final_output == "done"
    assert "was not entered" not in caplog.text


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_error_of_run_sync_has_no_false_one_before_it(backend: Any) -> None:
    """The check for a running event loop raises inside: it is over when the run begins, and is no context of errors."""
    with pytest.raises(LookupError) as caught:
        Runner.run_sync(Agent("a", model=ScriptedModel([fail(LookupError("why"))])), "go", backend=backend)
    told = "".join(traceback.format_exception(caught.value))
    assert "NoEventLoopError" not in told
    assert "current_token" not in told


async def test_a_model_that_was_entered_is_asked_as_it_is(run_mode: Any) -> None:
    """The run neither enters nor leaves it."""
    async with Held(say("done")) as model:
        await run_mode(Agent("a", model=model), "go")
        assert (model.entered, model.left) == (1, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"agent": "a"}, "agent: expected an Agent, got 'a'"),
        ({"hooks": object()}, "hooks: expected RunHooks"),
        ({"session": 3}, "session: expected a Session, got 3"),
        ({"session": "t.sqlite"}, r"got 't\.sqlite': for instance SQLiteSession\('t\.sqlite'\)"),
        ({"journal": 3}, "journal: expected a Journal, got 3"),
        ({"journal": "run.journal"}, r"got 'run\.journal': for instance FileJournal\('run\.journal'\)"),
        ({"run_config": {}}, "run_config: expected a RunConfig"),
    ],
)
def test_what_is_no_run_s_is_refused_before_it_begins(given: dict[str, Any], words: str) -> None:
    """The error names the argument."""
    agent: Any = given.pop("agent", Agent("a", model=ScriptedModel([say("x")])))
    with pytest.raises(UserTypeError, match=words):
        Runner.run_sync(agent, "go", **given)


async def test_only_a_journal_is_resumed() -> None:
    """A state, which `Runner.run` takes, is refused by a sentence that says so."""
    agent: Any = Agent("a", model=ScriptedModel([say("x")]))
    state: Any = (await Runner.run(agent, "go")).to_state()
    with pytest.raises(UserTypeError, match=r"journal: expected a Journal, .*Runner\.run"):
        await Runner.resume(agent, state)


@pytest.mark.backends("trio-virtual")
async def test_a_slow_reader_is_no_slow_model() -> None:
    """A model's time limit is paused while its answer waits for the reader of the run."""
    agent = Agent("a", model=ScriptedModel([say("a long answer, in many pieces")], chunk=2))
    config = RunConfig(model_settings=ModelSettings(timeout=1.0), stream_buffer=1)
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        async for _ in stream:
            await anyio.sleep(5.0)
    assert stream.result.final_output == "a long answer, in many pieces"


@pytest.mark.backends("trio-virtual")
async def test_a_slow_model_is_one_whoever_reads() -> None:
    """The model's time limit runs on while no reader delays the answer."""
    agent = Agent("a", model=ScriptedModel([wait(60.0)]))
    config = RunConfig(model_settings=ModelSettings(timeout=1.0), stream_buffer=1)
    began = anyio.current_time()
    with pytest.raises(ModelTimeoutError, match="within 1 second"):
        async with Runner.run_streamed(agent, "go", run_config=config) as stream:
            async for _ in stream:
                pass
    assert anyio.current_time() - began == pytest.approx(1.0)
