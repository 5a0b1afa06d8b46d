"""What a tool marks secret shows in no log, span, repr, error text, journal or state, whatever becomes of the call."""

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import anyio
import pytest
from shell.kit import Run, agent_with, shown, statuses

from agentloop import (
    Agent,
    Allow,
    FunctionTool,
    Instrument,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    Span,
    ToolExecution,
    handoff,
    tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.exceptions import AgentLoopError, StateError, ToolCallError
from agentloop.items import ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.record_codec import encode, record_to_json
from agentloop.records import Record
from agentloop.testing import ScriptedModel, call, say

pytestmark = pytest.mark.anyio

PASSWORD = "hunter2 é\"quote'\\slash\nline"
OUTPUT = "output-7731 é\"quote'\\slash\nline"
# What would give either of them away: no sign in these is ever escaped.
CANARIES = ("hunter2", "slash", "quote'", "output-7731")


class Watcher(Instrument):
    """Keeps the reprs of all it is told, taken at once and again at the end."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.words: list[str] = []

    def _keep(self, value: Any) -> None:
        self.told.append(value)
        self.words.append(repr(value))

    def on_record(self, record: Record) -> None:
        """Keep it."""
        self._keep(record)
        self.words.append(encode(record_to_json(record)).decode())

    def on_span_start(self, span: Span) -> None:
        """Keep it."""
        self._keep((span.name, dict(span.data), span.error))

    def on_span_end(self, span: Span) -> None:
        """Keep it."""
        self._keep((span.name, dict(span.data), span.error))

    def on_late_result(self, report: Any) -> None:
        """Keep it."""
        self._keep(report)

    def on_still_running(self, report: Any) -> None:
        """Keep it."""
        self._keep(report)


class Hooks(RunHooks):
    """Keeps the reprs of what hooks are given."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        """Keep it."""
        self.words.append(repr(ctx))

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Keep it."""
        self.words += [repr(ctx), repr(outcome)]

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        """Keep it."""
        self.words.append(repr(input))

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        """Keep it."""
        self.words.append(repr(response))

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        """Keep it."""
        self.words.append(repr(outcome))


class Case:
    """Runs an agent with everything watched, and says what could be read of it all."""

    def __init__(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        self._run = run
        self._caplog = caplog
        caplog.set_level(logging.DEBUG)
        self.watcher = Watcher()
        self.words = self.watcher.words
        self.journal = MemoryJournal()
        self.error: Exception | None = None
        self.result: Any = None

    async def run(self, agent: Any, given: Any = "go", *, journal: bool = True, **config: Any) -> Any:
        """Run to the end, whatever it is."""
        options: dict[str, Any] = {"journal": self.journal} if journal else {}
        options["run_config"] = RunConfig(instruments=(self.watcher,), **config)
        options["hooks"] = Hooks(self.words)
        try:
            self.result = await self._run(agent, given, **options)
        except Exception as error:
            self.error = error
        return self.result if self.error is None else getattr(self.error, "run_data", None)

    async def read(self) -> str:
        """Return everything that could be read."""
        words = [*self.words, *map(repr, self.watcher.told), self._caplog.text]
        words += [repr(getattr(record, "args", ())) for record in self._caplog.records]
        words += (line.decode() for line in await self.journal.read())
        if self.error is not None:
            words += _words_of(self.error)
        data = self.result if self.error is None else getattr(self.error, "run_data", None)
        words += _words_of_data(data)
        return "\n".join(words)

    async def check(self) -> None:
        """No canary anywhere, and something was read at all."""
        text = await self.read()
        assert "CallSettled(" in text or "ApprovalRequested(" in text
        for canary in CANARIES:
            at = text.find(canary)
            assert at < 0, text[max(0, at - 500) : at + 100]


def _words_of(error: BaseException) -> Iterator[str]:
    """Give what an error of the library's says, with its notes; a cause of the application's own is its own."""
    if isinstance(error, AgentLoopError):
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        yield repr(vars(error))
        yield "".join(traceback.format_exception_only(error))
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield from _words_of(other)


def _words_of_data(data: Any) -> Iterator[str]:
    if data is None:
        return
    yield repr(data)
    for name in ("new_items", "raw_responses", "calls", "records", "tool_input_guardrail_results"):
        yield repr(getattr(data, name))
    yield repr(data.tool_output_guardrail_results)
    if hasattr(data, "to_state"):
        state = data.to_state()
        yield from (repr(state), state.to_string(), repr(state.interruptions))
        yield repr(data.to_input_list("all"))


@pytest.fixture
def case(run_mode: Run, caplog: pytest.LogCaptureFixture) -> Case:
    """Return a watched run."""
    return Case(run_mode, caplog)


def login(work: Callable[[str], Any], **options: Any) -> FunctionTool:
    """Return a tool with a secret argument and a secret output that does *work* with the password."""

    async def login(user: str, password: str) -> Any:
        """Log in."""
        made = work(password)
        return await made if hasattr(made, "__await__") else made

    return tool(login, secret=("password",), secret_output=True, **options)


def logging_in(*tools: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that logs in once."""
    return agent_with(tools, call("login", {"user": "ann", "password": PASSWORD}, "c1"), **fields)


def fails(password: str) -> Any:
    """Repeat the password in an error."""
    raise ValueError(f"first\nbad password {password!r} for ann: {password}")


async def test_the_canaries_are_seen_where_nothing_is_marked(case: Case) -> None:
    """The checks of this page would fail on a tool that marks nothing."""

    @tool
    async def login(user: str, password: str) -> str:
        """Log in."""
        return OUTPUT

    await case.run(logging_in(login))
    text = await case.read()
    assert all(canary in text for canary in CANARIES)


async def test_a_call_that_succeeds(case: Case) -> None:
    """The body and the model have both, nobody else; what isn't secret is shown as ever."""
    got: list[str] = []

    def work(password: str) -> str:
        got.append(password)
        return OUTPUT

    agent = logging_in(login(work, custom_data_extractor=lambda ctx, value: {"kept": value}))
    result = await case.run(agent)
    assert statuses(result) == ["succeeded"]
    assert got == [PASSWORD]
    assert shown(agent) == {"c1": OUTPUT}
    assert result.calls[0].outcome.value == OUTPUT
    assert '"user": "ann"' in repr(result.calls[0].call)
    await case.check()


async def test_a_call_that_fails(case: Case) -> None:
    """The model is told of the error, without what it repeats of the password."""
    agent = logging_in(login(fails))
    result = await case.run(agent)
    assert statuses(result) == ["failed"]
    assert "ValueError" in str(shown(agent)["c1"])
    assert "hunter2" not in str(shown(agent)["c1"])
    await case.check()


async def test_a_failure_that_ends_the_run(case: Case) -> None:
    """The error's own words, its notes and the log's are without it; the cause is the tool's own."""

    def work(password: str) -> str:
        raise ValueError(f"bad password {password}")

    other = tool(_also_fails, secret=("password",), failure_error_function=None, name="other")
    agent = agent_with(
        [login(work, failure_error_function=None), other],
        [
            call("login", {"user": "ann", "password": PASSWORD}, "c1"),
            call("other", {"password": PASSWORD}, "c2"),
        ],
    )
    await case.run(agent)
    assert isinstance(case.error, ToolCallError)
    assert "Error running tool login: ValueError: bad password [secret]" in str(case.error)
    assert PASSWORD in str(case.error.__cause__)
    await case.check()


async def _also_fails(password: str) -> str:
    """Fail."""
    raise ExceptionGroup(f"both {password}", [KeyError(password), OSError(f"no {password} here")])


async def test_an_error_function_that_repeats_it(case: Case) -> None:
    """Words of the application's own are looked through as well."""
    agent = logging_in(login(fails, failure_error_function=lambda ctx, error: f"It said: {error}"))
    await case.run(agent)
    assert "It said: first" in str(shown(agent)["c1"])
    await case.check()


async def test_a_call_that_times_out(case: Case) -> None:
    """Its cleanup may fail with the password in its words."""

    async def work(password: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError(f"cleanup of {password}")

    result = await case.run(logging_in(login(work, timeout=0.01)))
    assert statuses(result) == ["timed_out"]
    await case.check()


@pytest.mark.parametrize("status", ["rejected", "failed"])
async def test_a_call_that_a_guardrail_refuses(case: Case, status: str) -> None:
    """Whatever the guardrail says of the arguments, also in what it keeps."""

    @tool_input_guardrail
    def guard(data: Any) -> Any:
        said = data.arguments["password"]
        case.words.append(repr(data))
        if status == "failed":
            return RaiseException(output_info={"saw": said})
        return RejectContent(f"not with {said}", output_info={"saw": said})

    await case.run(logging_in(login(lambda password: OUTPUT, tool_input_guardrails=[guard])))
    assert (case.error is None) == (status == "rejected")
    await case.check()


async def test_a_call_that_a_guardrail_rewrites(case: Case) -> None:
    """The new arguments have secrets of their own."""
    got: list[str] = []

    @tool_input_guardrail
    def guard(data: Any) -> Any:
        return Rewrite({"user": "bob", "password": f"output-7731 {data.arguments['password']}"})

    def work(password: str) -> str:
        got.append(password)
        raise ValueError(password)

    await case.run(logging_in(login(work, tool_input_guardrails=[guard])))
    assert got == [f"output-7731 {PASSWORD}"]
    await case.check()


@pytest.mark.parametrize("verdict", ["allow", "reject", "replace", "raise", "broken"])
async def test_an_output_that_guardrails_judge(case: Case, verdict: str) -> None:
    """They see the output; what they make of it is as secret."""

    @tool_output_guardrail
    def guard(data: Any) -> Any:
        case.words.append(repr(data))
        match verdict:
            case "allow":
                return Allow({"saw": data.value})
            case "reject":
                return RejectContent(f"withheld: {data.value}", {"saw": data.value})
            case "replace":
                return ReplaceOutput(f"{data.value} again")
            case "raise":
                return RaiseException({"saw": data.value})
        raise ValueError(f"can't judge {data.value}")

    await case.run(logging_in(login(lambda password: OUTPUT, tool_output_guardrails=[guard])))
    assert (case.error is not None) == (verdict in ("raise", "broken"))
    await case.check()


@pytest.mark.parametrize(
    "text",
    [
        '{"user": "ann", "password": "hunter2 slash',
        '["hunter2 slash"]',
        '"hunter2"',
        '{"user": "ann", "password": {"deep": ["hunter2", "slash"]}}',
        '{"user": "ann", "password": "hunter2", "password": "slash"}',
        '{"user": "ann", "pass\\u0077ord": ["hunter2"]}',
    ],
)
@pytest.mark.parametrize("raises", [False, True])
async def test_arguments_that_do_not_fit(case: Case, text: str, raises: bool) -> None:
    """Arguments that don't parse may be anything, so nothing of them is quoted."""
    made = login(lambda password: OUTPUT, **({"failure_error_function": None} if raises else {}))
    agent = agent_with([made], call("login", text, "c1"))
    result = await case.run(agent)
    assert statuses(result) == ["failed"]
    if not raises:
        assert "hunter2" not in str(shown(agent)["c1"])
    await case.check()


async def test_a_value_that_is_quoted_because_it_does_not_fit(case: Case) -> None:
    """Validation errors like to quote."""

    async def login(password: Literal["a", "b"]) -> str:
        """Log in."""
        return "in"

    made = tool(login, secret=("password",))
    agent = agent_with([made], call("login", {"password": PASSWORD}, "c1"))
    result = await case.run(agent)
    assert statuses(result) == ["failed"]
    assert "hunter2" not in str(shown(agent)["c1"])
    await case.check()


async def test_a_sync_tool_and_an_equal_call(case: Case) -> None:
    """A receipt is kept under a key that says nothing of the arguments."""
    ran: list[str] = []

    def login(user: str, password: str) -> str:
        """Log in."""
        ran.append(password)
        return OUTPUT

    made = tool(login, secret=["password"], secret_output=True, idempotent=True)
    arguments = {"user": "ann", "password": PASSWORD}
    agent = agent_with([made], call("login", arguments, "c1"), call("login", arguments, "c2"))
    result = await case.run(agent)
    assert statuses(result) == ["succeeded", "replayed"]
    assert len(ran) == 1
    await case.check()


async def test_an_output_that_is_the_final_one(case: Case) -> None:
    """Who asked for the run has it; the log knows that it is secret."""
    agent = logging_in(login(lambda password: OUTPUT), tool_use_behavior="stop_on_first_tool", done=None)
    result = await case.run(agent)
    assert result.final_output == OUTPUT
    await case.check()


async def test_an_output_that_comes_through_an_agent_tool(case: Case) -> None:
    """A nested run that ends with a secret makes it the output of its call."""
    inner = logging_in(login(lambda password: OUTPUT), tool_use_behavior="stop_on_first_tool", done=None)
    outer = agent_with([inner.as_tool("inner", "Ask.")], call("inner", {"input": "go"}, "o1"))
    await case.run(outer)
    assert shown(outer) == {"o1": OUTPUT}
    await case.check()


async def test_a_history_that_is_told_to_the_next_agent(case: Case) -> None:
    """A nested history is text: secrets leave it before."""
    second = Agent("second", model=ScriptedModel([say("done")]))
    first = agent_with(
        [login(lambda password: OUTPUT)],
        call("login", {"user": "ann", "password": PASSWORD}, "c1"),
        call("transfer_to_second", {}, "h1"),
        handoffs=[handoff(second, nest_handoff_history=True)],
        done=None,
    )
    await case.run(first)
    assert isinstance(second.model, ScriptedModel)
    assert "login" in second.model.requests[0].items[0].text  # type: ignore[union-attr]
    await case.check()


async def test_a_callable_behaviour_and_a_policy_that_fail(case: Case) -> None:
    """Callbacks are given the arguments and the output; their reprs and errors are looked through."""

    class Strict:
        def decide(self, pending: Any) -> Any:
            case.words.append(repr(pending))
            raise ValueError(f"can't allow {pending.arguments['password']}")

    await case.run(logging_in(login(lambda password: OUTPUT)), policies=[Strict()])
    await case.check()


async def test_a_question_for_approval_that_fails(case: Case) -> None:
    """`needs_approval` is given the arguments."""

    def needs(ctx: Any, arguments: Any, call_id: str) -> bool:
        raise ValueError(f"no {arguments['password']}")

    await case.run(logging_in(login(lambda password: OUTPUT, needs_approval=needs)))
    assert isinstance(case.error, ValueError)
    assert "RunEnded" in (text := await case.read())
    assert "hunter2" not in text


async def test_results_given_to_a_behaviour(case: Case) -> None:
    """`ToolResult` shows neither value nor output."""

    def behave(ctx: Any, results: Any) -> Any:
        case.words.append(repr(results))
        raise ValueError("stop")

    await case.run(logging_in(login(lambda password: OUTPUT), tool_use_behavior=behave))
    await case.check()


# -- pauses


@pytest.mark.parametrize("verdict", ["approve", "reject", "edit", None])
async def test_a_call_that_waits_for_approval(case: Case, verdict: str | None) -> None:
    """Whoever decides sees the masked call; edited arguments are as secret."""
    got: list[str] = []

    def work(password: str) -> str:
        got.append(password)
        return OUTPUT

    agent = logging_in(login(work, needs_approval=True))
    paused = await case.run(agent, journal=False)
    assert paused.status == "interrupted"
    await case.check()
    state = paused.to_state()
    (request,) = state.interruptions
    assert request.call.secret == ("password",)
    if verdict == "approve":
        state.approve(request)
    elif verdict == "reject":
        state.reject(request)
    elif verdict == "edit":
        state.approve(request, arguments={"user": "bob", "password": "output-7731"})
    await case.run(agent, state)
    assert got == {"approve": [PASSWORD], "edit": ["output-7731"]}.get(str(verdict), [])
    await case.check()


class Reversing:
    """A codec that anybody could open; it tells seal from open."""

    def __init__(self) -> None:
        self.sealed = 0

    def seal(self, data: bytes) -> bytes:
        """Return the bytes backwards, after a mark and a count, so that nothing is sealed alike."""
        self.sealed += 1
        return b"sealed:%d:" % self.sealed + data[::-1]

    def open(self, sealed: bytes) -> bytes:
        """Return what was sealed."""
        mark, _, data = sealed.split(b":", 2)
        if mark != b"sealed":
            raise ValueError("not sealed by this codec")
        return data[::-1]


async def test_a_call_that_waited_in_a_sealing_journal_runs_with_its_secrets(run_mode: Run) -> None:
    """Another process with the codec has the arguments as the model wrote them, and goes on with the same journal."""
    got: list[str] = []
    journal = MemoryJournal(codec=Reversing())

    def work(password: str) -> str:
        got.append(password)
        return OUTPUT

    made = login(work, needs_approval=True)
    await run_mode(logging_in(made), "go", journal=journal)
    again = agent_with([made])
    state = await RunState.from_journal(again, journal)
    state.approve("c1")
    result = await run_mode(again, state, journal=journal)
    assert got == [PASSWORD]
    assert shown(again) == {"c1": OUTPUT}
    stored = b"\n".join(await journal.read())
    assert b"$sealed" in stored
    assert not any(canary.encode() in stored for canary in CANARIES)
    back = await RunState.from_journal(again, journal)
    assert back == result.to_state()


@pytest.mark.parametrize("way", ["json", "journal"])
@pytest.mark.parametrize("codec", [None, Reversing()])
async def test_without_the_codec_a_call_that_needs_a_secret_is_named(run_mode: Run, way: str, codec: Any) -> None:
    """Only its digest was stored, or it can't be opened: the run is refused before anything starts."""
    ran: list[str] = []
    journal = MemoryJournal(codec=codec)
    made = login(ran.append, needs_approval=True)
    agent = logging_in(made)
    paused = await run_mode(agent, "go", journal=journal)
    if way == "json":
        state = RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
    else:
        journal.codec = None
        state = await RunState.from_journal(agent, journal)
    state.approve("c1")
    with pytest.raises(StateError, match="call 'c1' of tool 'login' needs the secret arguments 'password'"):
        await run_mode(agent, state)
    assert ran == []


async def test_without_the_codec_a_call_that_is_refused_needs_no_secret(run_mode: Run) -> None:
    """A verdict given on what was asked holds, and what the model is shown has gaps."""
    made = login(lambda password: OUTPUT, needs_approval=True)
    agent = logging_in(made)
    paused = await run_mode(agent, "go")
    state = RunState.from_string(agent, paused.to_state().to_string())
    state.reject("c1", message="no")
    again = agent_with([made])
    result = await run_mode(again, RunState.from_string(again, state.to_string()))
    assert result.final_output == "done"
    assert shown(again) == {"c1": "no"}


async def test_an_output_that_was_not_kept_is_no_receipt_s_secret(run_mode: Run) -> None:
    """What is read back without a codec stands as its mark, in the history too."""
    agent = logging_in(login(lambda password: OUTPUT))
    result = await run_mode(agent, "go")
    state = RunState.from_string(agent, result.to_state().to_string())
    outputs = [item for item in state.fold.history if isinstance(item, ToolOutput)]
    assert [output.secret for output in outputs] == [True]
    assert str(outputs[0].output).startswith('{"$digest":')
    assert state == result.to_state()


def test_runs_in_a_loop_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """The plain entry too; no log says anything."""
    caplog.set_level(logging.DEBUG)
    result = Runner.run_sync(
        logging_in(login(fails)), "go", run_config=RunConfig(tool_execution=ToolExecution(max_threads=1))
    )
    assert "hunter2" not in caplog.text + repr(result)
