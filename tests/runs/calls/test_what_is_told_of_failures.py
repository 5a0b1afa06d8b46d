"""Values of tools that can't be written, and failures that only the model receives."""

import functools
import inspect
import logging
from typing import Any

import msgspec
import pydantic
import pytest

from agentloop import Agent, RunConfig, Runner, RunState, ToolCallError, UserError, tool
from agentloop import records as r
from agentloop.exceptions import OutcomeUnknown
from agentloop.guardrails import ReplaceOutput, tool_output_guardrail
from agentloop.items import Refusal, Text, ToolOutput, UrlCitation
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.replaying import replay


def forced(value: Any, **fields: Any) -> Any:
    """Return *value* with *fields* of wrong types, which no constructor takes."""
    for name, given in fields.items():
        msgspec.structs.force_setattr(value, name, given)
    return value


class Wordless:
    """A value that can't be written."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class WordlessError(Exception):
    """An error that can't be written."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class WordlessText(str):
    """A text whose methods fail."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def strip(self, *chars: Any) -> str:
        """Fail."""
        raise RuntimeError("no words")


class WordyError(Exception):
    """An error whose words are text of another kind."""

    def __str__(self) -> str:
        return WordlessText("wordy")


class OddGroup(ExceptionGroup[Exception]):
    """A group that calls something else its message, and hides its members."""

    def message(self) -> str:  # type: ignore[override]
        """Say something else."""
        return "other"

    @property
    def exceptions(self) -> Any:  # type: ignore[override]
        """Fail."""
        raise RuntimeError("no members")


class OddError(Exception):
    """An error whose words are none."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def deep(levels: int) -> Any:
    """Return a list in a list in a list …"""
    return functools.reduce(lambda inner, _: [inner], range(levels), [])


def looped() -> Any:
    """Return a mapping that holds itself."""
    data: dict[str, Any] = {}
    data["self"] = data
    return data


def deep_group(levels: int) -> Exception:
    """Return a group in a group in a group …"""
    error: Exception = ValueError("leaf")
    for _ in range(levels):
        error = ExceptionGroup("g", [error])
    return error


VALUES: dict[str, Any] = {
    "wordless": Wordless,
    "wordless inside": lambda: {"a": [Wordless()]},
    "an error without words": WordlessError,
    "deep": lambda: deep(100_000),
    "a vast number": lambda: 10**5000,
    "holds itself": looped,
    "half a surrogate": lambda: "\ud800\x00",
    "bytes": lambda: b"\xff\x00",
    "no number": lambda: float("nan"),
    "a set": lambda: {1, 2},
    "a generator": lambda: (n for n in range(3)),
    "a text of another kind": lambda: WordlessText("fine"),
    "a part of something else": lambda: [Text("fine"), forced(Text("five"), text=5)],
    "a part of nothing": lambda: forced(Refusal("no"), refusal=None),
    "a part with an odd source": lambda: Text("fine", (forced(UrlCitation("five"), url=5),)),
}
UNWRITABLE = (
    "wordless",
    "wordless inside",
    "deep",
    "a part of something else",
    "a part of nothing",
    "a part with an odd source",
)
ERRORS: dict[str, Any] = {
    "wordless": WordlessError,
    "no text": OddError,
    "deep group": lambda: deep_group(3000),
    "wide group": lambda: ExceptionGroup("g", [ValueError(n) for n in range(5000)]),
    "half a surrogate": lambda: ValueError("\ud800\x00"),
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": lambda: StopAsyncIteration(1),
    "RecursionError": lambda: RecursionError("deep"),
    "odd group": lambda: OddGroup("g", [ValueError("leaf")]),
    "text of another kind": WordyError,
}


def agent_with(odd: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent whose model calls *odd*, and a tool that has nothing to do with it."""

    @tool
    async def fine() -> str:
        """Succeed."""
        return "fine"

    steps = [[call("odd", call_id="c1"), call("fine", call_id="c2")], say("done")]
    return Agent("a", model=ScriptedModel(steps), tools=[tool(name="odd", **options)(odd), fine])


async def check(run_mode: Any, agent: Agent[Any, Any]) -> Any:
    """Run *agent* with a journal, and see that the run and its state are whole; return the odd call's outcome."""
    result = await run_mode(agent, "go", journal=MemoryJournal(), run_config=RunConfig(loop_detection=3))
    assert result.final_output == "done"
    outputs = {item.call_id: item.output for item in result.new_items if isinstance(item, ToolOutput)}
    assert outputs["c2"] == "fine"
    state = result.to_state()
    assert RunState.from_string(agent, state.to_string()) == state
    return next(settled.outcome for settled in result.calls if settled.call.call_id == "c1")


@pytest.mark.scenario("RP-15")
@pytest.mark.parametrize("name", VALUES)
async def test_value_that_can_not_be_written_is_that_calls_failure(run_mode: Any, name: str) -> None:
    """The policy tells the model; what can be written in some way is an output like another."""

    async def odd() -> object:
        """Give something odd."""
        return VALUES[name]()

    outcome = await check(run_mode, agent_with(odd))
    assert outcome.status == ("failed" if name in UNWRITABLE else outcome.status)
    assert isinstance(outcome.output, str)
    if outcome.status == "failed":
        assert "can't be written" in outcome.output


@pytest.mark.scenario("RP-15")
async def test_coroutine_that_a_tool_returns_is_that_calls_failure(run_mode: Any) -> None:
    """A forgotten `await` is named; the coroutine is closed, so Python doesn't warn that it was never awaited."""
    made: list[Any] = []

    async def look_up() -> str:
        raise NotImplementedError  # never begun

    async def odd() -> object:
        """Forget to wait."""
        made.append(look_up())
        return made[-1]

    outcome = await check(run_mode, agent_with(odd))
    assert outcome.status == "failed"
    assert "look_up' was returned: an `await` is missing" in outcome.output
    assert [inspect.getcoroutinestate(each) for each in made] == [inspect.CORO_CLOSED]


@pytest.mark.scenario("RP-15")
@pytest.mark.parametrize("name", ERRORS)
async def test_error_that_can_not_be_written_is_that_calls_failure(run_mode: Any, name: str) -> None:
    """The failure text names the error's type, which can always be written."""

    async def odd() -> str:
        """Fail oddly."""
        raise ERRORS[name]()

    outcome = await check(run_mode, agent_with(odd))
    assert outcome.status == "failed"
    kind = "RuntimeError" if name == "StopIteration" else type(ERRORS[name]()).__name__  # a coroutine can't raise that
    assert outcome.output.startswith(f"Tool odd failed with: {kind}(")


@pytest.mark.scenario("RP-15")
async def test_value_that_can_not_be_written_raises_where_the_policy_says_so(
    run_mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is raised as any failure of the call, and a guardrail's replacement is treated likewise."""

    async def odd() -> object:
        """Give something odd."""
        return Wordless()

    with pytest.raises(UserError, match="of type Wordless can't be written as text: RuntimeError"):
        await run_mode(agent_with(odd, failure_error_function=None), "go")

    @tool_output_guardrail
    def replace(data: Any) -> ReplaceOutput:
        return ReplaceOutput(Wordless())

    async def plain() -> str:
        """Give something plain."""
        return "plain"

    with caplog.at_level(logging.WARNING):
        outcome = await check(run_mode, agent_with(plain, tool_output_guardrails=[replace]))
    assert len(told(caplog, logging.WARNING)) == 1  # of what was raised nothing is logged
    assert outcome.status == "failed"
    assert "plain" not in outcome.output


# ---------------------------------------------------------------------------------------------- the log of Python


def fails_for(key: str) -> None:
    """Fail somewhere inside of the application."""
    try:
        {}[key]
    except KeyError as error:
        raise ValueError(f"no account, api_key={key}") from error


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return what the log says of tools at *level*."""
    return [one.getMessage() for one in caplog.records if one.name == "agentloop.tools" and one.levelno == level]


@pytest.mark.scenario("RP-22")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.real_clock
async def test_bug_of_a_tool_that_the_model_is_told_of_is_logged(
    run_mode: Any, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """One warning names tool, call and error; the traceback, cause included, is there for those who debug."""

    async def odd() -> str:
        """Fail."""
        fails_for("hunter2-key")
        return "never"

    def blocks() -> str:
        """Fail."""
        fails_for("hunter2-key")
        return "never"

    with caplog.at_level(logging.DEBUG, "agentloop.tools"):
        await check(run_mode, agent_with(odd if kind == "async" else blocks))
    (warning,) = told(caplog, logging.WARNING)
    assert warning == "tool odd failed in call c1: ValueError(no account, api_key=[redacted])"
    (trace,) = told(caplog, logging.DEBUG)
    assert "fails_for" in trace
    assert "KeyError" in trace
    assert trace.index("KeyError") < trace.index("ValueError")


@pytest.mark.scenario("RP-22")
async def test_nothing_secret_is_logged_of_a_failure(run_mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The log hides a call's secret argument and everything that looks like a credential, in words and traceback."""

    @tool(secret=["token"])
    async def login(token: str) -> str:
        """Log in."""
        try:
            raise KeyError(token)
        except KeyError as error:
            raise ValueError(f"refused {token}, password=open-sesame") from error

    steps = [call("login", {"token": "canary-4711"}, call_id="c1"), say("done")]
    with caplog.at_level(logging.DEBUG):
        await run_mode(Agent("a", model=ScriptedModel(steps), tools=[login]), "go")
    assert len(told(caplog, logging.WARNING)) == len(told(caplog, logging.DEBUG)) == 1
    assert "canary-4711" not in caplog.text
    assert "open-sesame" not in caplog.text


@pytest.mark.scenario("RP-22")
@pytest.mark.parametrize("secret", ["argument", "output"])
async def test_value_that_can_not_be_written_shows_nothing_secret(
    run_mode: Any, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    """The error of its own conversion, which led to the call's, may repeat an argument, or be about the output."""

    @tool(**{"secret": ["token"]} if secret == "argument" else {"secret_output": True})
    async def login(token: str) -> object:
        """Log in."""

        class Session:
            def __str__(self) -> str:
                raise RuntimeError(f"no session for {token}")

            __repr__ = __str__

        return Session()

    given = {"token": "canary-4711"}
    agent = Agent("a", model=ScriptedModel([call("login", given, call_id="c1"), say("done")]), tools=[login])
    with caplog.at_level(logging.DEBUG):
        result = await run_mode(agent, "go")
    (settled,) = result.calls
    assert settled.outcome.output == "Tool login failed with: UnwritableValue([redacted])"
    (trace,) = told(caplog, logging.DEBUG)
    assert "RuntimeError([redacted])" in trace
    assert "canary-4711" not in caplog.text


@pytest.mark.scenario("RP-22")
async def test_line_of_the_log_is_one_line_that_steers_nothing(run_mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Neither an error's words nor a call id that the model made up forge another line, or fit no encoding."""

    @tool
    async def odd() -> str:
        """Fail."""
        raise ValueError("gone\rtool fine failed\x1b[2J\ud800")

    steps = [call("odd", call_id="c\n1"), say("done")]
    with caplog.at_level(logging.DEBUG):
        await run_mode(Agent("a", model=ScriptedModel(steps), tools=[odd]), "go")
    (warning,) = told(caplog, logging.WARNING)
    assert warning == r"tool odd failed in call c\n1: ValueError(gone\rtool fine failed\x1b[2J\ud800)"


def fail_validation() -> None:
    """Fail as a model of pydantic does: with a line for each field."""
    pydantic.create_model("Order", count=(int, ...), size=(float, ...)).model_validate(
        {"count": "many", "size": "large"}
    )


LONG = "words " * 40_000
SHAPES: dict[str, tuple[Any, list[str]]] = {
    "lines": (lambda: ValueError("### Error\n\nthe file is locked\n  by 4711"), ["the file is locked\n  by 4711"]),
    "blank lines first": (lambda: ValueError("\n\n first\nsecond\n"), ["(first\nsecond)"]),
    "other ends of lines": (lambda: ValueError("a\r\nb\rc\x0bd\u2028e\x85f"), ["a", "d\u2028e", "f"]),
    "many lines": (lambda: ValueError("\n".join(map(str, range(500)))), ["\n499)"]),
    "long": (lambda: ValueError(f"first\n{LONG}"), ["first\nwords"]),
    "a credential": (lambda: ValueError("first\napi_key=hunter2 is refused"), ["api_key=[redacted] is refused"]),
    "a group": (
        lambda: ExceptionGroup("two\nof them", [ValueError("a\nb"), ExceptionGroup("c", [KeyError("d\ne")])]),
        ["two\nof them", "ValueError(a\nb)", "KeyError('d\\ne')"],
    ),
    "a doubt": (lambda: OutcomeUnknown("the line broke\nafter 3 of 4"), ["the line broke\nafter 3 of 4"]),
    "pydantic": (
        fail_validation,
        ["2 validation errors for Order", "count\n  Input should be", "size\n  Input should"],
    ),
    "empty": (ValueError, ["ValueError()"]),
}
"""Errors with more than one line, and what the model reads of each."""


@pytest.mark.scenario("SM-18")
@pytest.mark.parametrize("name", SHAPES)
async def test_model_gets_the_whole_of_an_error_and_the_log_one_line(
    run_mode: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """All lines, redacted and bounded, also in a run that is resumed before the call has settled."""
    make, wanted = SHAPES[name]

    async def odd() -> str:
        """Fail."""
        raise make()

    with caplog.at_level(logging.WARNING):
        outcome = await check(run_mode, agent_with(odd))
    result = await run_mode(agent_with(odd), "go")
    for part in wanted:
        assert part in outcome.output
    assert len(outcome.output) <= 4_100
    assert "hunter2" not in outcome.output
    for line in told(caplog, logging.WARNING):
        assert len(line.splitlines()) == 1
        assert len(line) < 1_200
    records = result.to_state().records
    settled = [record for record in records if isinstance(record, r.CallSettled)]
    assert all("\n" not in (record.error or "") for record in settled)
    (ended,) = [n for n, record in enumerate(records) if isinstance(record, r.BodyEnded) and record.failed]
    cut = RunState(agent_with(odd), records[: ended + 1])
    again = agent_with(odd)
    again.model = ScriptedModel([say("done")])
    resumed = await run_mode(again, RunState.from_string(again, cut.to_string()))
    outputs = [item.output for item in resumed.new_items if isinstance(item, ToolOutput) and item.call_id == "c1"]
    assert outputs == [outcome.output]


@pytest.mark.scenario("SM-18")
@pytest.mark.parametrize("name", SHAPES)
def test_replay_takes_a_log_with_an_error_of_many_lines(name: str) -> None:
    """It makes the records again, with what the model was told."""

    async def odd() -> str:
        """Fail."""
        raise SHAPES[name][0]()

    result = Runner.run_sync(agent_with(odd), "go")
    replay(result, agent_with(odd))


@pytest.mark.scenario("RP-22")
async def test_failure_that_is_raised_is_not_logged_as_well(run_mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The caller of the run already has the raised failure, so it is not logged."""

    async def odd() -> str:
        """Fail."""
        raise ValueError("broken")

    with caplog.at_level(logging.DEBUG), pytest.raises(ToolCallError):
        await run_mode(agent_with(odd, failure_error_function=None), "go")
    assert told(caplog, logging.WARNING) == []
