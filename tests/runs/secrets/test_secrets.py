"""Values that a tool marks secret show in no log, span, repr, error text, journal or state, however the call ends."""

import contextlib
import gc
import json
import logging
from collections.abc import Callable
from typing import Any, Literal

import anyio
import attrs
import pytest
from kit.agents import Run, make_agent
from kit.results import read_shown_outputs, read_statuses
from kit.secret_cases import CANARIES, OUTPUT, PASSWORD, ReversingCodec, SecretCase

from agentloop import (
    Agent,
    Allow,
    Deny,
    FunctionTool,
    Instrument,
    RunConfig,
    Runner,
    RunState,
    ToolContext,
    ToolExecution,
    handoff,
    tool,
)
from agentloop._common.masking import spans_of
from agentloop.exceptions import StateError, ToolCallError, UserError
from agentloop.guardrails import (
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.items import ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.records import BodyEnded, CallSettled
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, replay, say

pytestmark = pytest.mark.anyio


@pytest.fixture
def case(run_mode: Run, caplog: pytest.LogCaptureFixture) -> SecretCase:
    """Return a watched run."""
    return SecretCase(run_mode, caplog)


def login(work: Callable[[str], Any], **options: Any) -> FunctionTool:
    """Return a tool with a secret argument and a secret output that does *work* with the password."""

    async def login(user: str, password: str) -> Any:
        """Log in."""
        made = work(password)
        return await made if hasattr(made, "__await__") else made

    return tool(login, secret=("password",), secret_output=True, **options)


def logging_in(*tools: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that logs in once."""
    return make_agent(tools, call("login", {"user": "ann", "password": PASSWORD}, "c1"), **fields)


def fails(password: str) -> Any:
    """Repeat the password in an error."""
    raise ValueError(f"first\nbad password {password!r} for ann: {password}")


async def test_the_canaries_are_seen_where_nothing_is_marked(case: SecretCase) -> None:
    """The checks of this module would fail on a tool that marks nothing."""

    @tool
    async def login(user: str, password: str) -> str:
        """Log in."""
        return OUTPUT

    await case.run(logging_in(login))
    text = await case.read()
    assert all(canary in text for canary in CANARIES)


async def test_a_call_that_succeeds(case: SecretCase) -> None:
    """Only the body and the model receive both secrets; the argument that isn't secret is shown as usual."""
    got: list[str] = []

    def work(password: str) -> str:
        got.append(password)
        return OUTPUT

    agent = logging_in(login(work, custom_data_extractor=lambda ctx, value: {"kept": value}))
    result = await case.run(agent)
    assert read_statuses(result) == ["succeeded"]
    assert got == [PASSWORD]
    assert read_shown_outputs(agent) == {"c1": OUTPUT}
    assert result.calls[0].outcome.value == OUTPUT
    assert '"user": "ann"' in repr(result.calls[0].call)
    await case.check()


async def test_a_call_that_fails(case: SecretCase) -> None:
    """The model receives the error without the part of it that repeats the password."""
    agent = logging_in(login(fails))
    result = await case.run(agent)
    assert read_statuses(result) == ["failed"]
    assert "ValueError" in str(read_shown_outputs(agent)["c1"])
    assert "hunter2" not in str(read_shown_outputs(agent)["c1"])
    await case.check()


async def test_a_failure_that_ends_the_run(case: SecretCase) -> None:
    """The error's words, its notes and the log hide the password; the cause is the tool's own error."""

    def work(password: str) -> str:
        raise ValueError(f"bad password {password}")

    other = tool(_also_fails, secret=("password",), failure_error_function=None, name="other")
    agent = make_agent(
        [login(work, failure_error_function=None), other],
        [
            call("login", {"user": "ann", "password": PASSWORD}, "c1"),
            call("other", {"password": PASSWORD}, "c2"),
        ],
    )
    await case.run(agent)
    assert isinstance(case.error, ToolCallError)
    assert str(case.error) == "Error running tool login: ValueError: [redacted]"
    assert case.error.__notes__ == ["also failed: ToolCallError(Error running tool other: ExceptionGroup: [redacted])"]
    assert PASSWORD in str(case.error.__cause__)
    await case.check()


async def _also_fails(password: str) -> str:
    """Fail."""
    raise ExceptionGroup(f"both {password}", [KeyError(password), OSError(f"no {password} here")])


async def test_an_error_function_that_repeats_it(case: SecretCase) -> None:
    """The error function's text is searched for secrets too."""
    agent = logging_in(login(fails, failure_error_function=lambda ctx, error: f"It said: {error}"))
    await case.run(agent)
    assert "It said: first" in str(read_shown_outputs(agent)["c1"])
    await case.check()


async def test_a_call_that_times_out(case: SecretCase) -> None:
    """The call's cleanup may fail with the password in its error."""

    async def work(password: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError(f"cleanup of {password}")

    result = await case.run(logging_in(login(work, timeout=0.01)))
    assert read_statuses(result) == ["timed_out"]
    await case.check()


OFF = login(fails, is_enabled=False)


@pytest.mark.parametrize(
    "agent",
    [lambda: logging_in(OFF), lambda: logging_in(handoffs=[handoff(Agent("other", tools=[OFF]))])],
    ids=["off", "another agent's"],
)
async def test_a_call_of_a_tool_that_is_not_shown(case: SecretCase, agent: Any) -> None:
    """The model may repeat the password in a call of a hidden tool, which never runs."""
    agent = agent()
    result = await case.run(agent, tool_not_found_behavior="tell_model")
    assert read_statuses(result) == ["failed"]
    assert "not found" in str(read_shown_outputs(agent)["c1"])
    await case.check()


@pytest.mark.parametrize("status", ["rejected", "failed"])
async def test_a_call_that_a_guardrail_refuses(case: SecretCase, status: str) -> None:
    """A refusing guardrail may repeat the arguments in its message and its info, and both stay hidden."""

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


async def test_a_call_that_a_guardrail_rewrites(case: SecretCase) -> None:
    """The new arguments of a rewritten call have secrets of their own."""
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
async def test_an_output_that_guardrails_judge(case: SecretCase, verdict: str) -> None:
    """Guardrails see the output, and their answers are as secret as it."""

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
async def test_arguments_that_do_not_fit(case: SecretCase, text: str, raises: bool) -> None:
    """Arguments that don't parse may be anything, so nothing of them is quoted."""
    made = login(lambda password: OUTPUT, **({"failure_error_function": None} if raises else {}))
    agent = make_agent([made], call("login", text, "c1"))
    result = await case.run(agent)
    assert read_statuses(result) == ["failed"]
    if not raises:
        assert "hunter2" not in str(read_shown_outputs(agent)["c1"])
    await case.check()


async def test_a_value_that_is_quoted_because_it_does_not_fit(case: SecretCase) -> None:
    """Validation errors often quote the value, so their quotes are hidden."""

    async def login(password: Literal["a", "b"]) -> str:
        """Log in."""
        return "in"

    made = tool(login, secret=("password",))
    agent = make_agent([made], call("login", {"password": PASSWORD}, "c1"))
    result = await case.run(agent)
    assert read_statuses(result) == ["failed"]
    assert "hunter2" not in str(read_shown_outputs(agent)["c1"])
    await case.check()


async def test_a_sync_tool_and_an_equal_call(case: SecretCase) -> None:
    """A receipt is kept under a key that says nothing of the arguments."""
    ran: list[str] = []

    def login(user: str, password: str) -> str:
        """Log in."""
        ran.append(password)
        return OUTPUT

    made = tool(login, secret=["password"], secret_output=True, idempotent=True)
    arguments = {"user": "ann", "password": PASSWORD}
    agent = make_agent([made], call("login", arguments, "c1"), call("login", arguments, "c2"))
    result = await case.run(agent)
    assert read_statuses(result) == ["succeeded", "replayed"]
    assert len(ran) == 1
    await case.check()


async def test_an_output_that_is_the_final_one(case: SecretCase) -> None:
    """The caller of the run gets the secret output as its final output, and the log knows that it is secret."""
    agent = logging_in(login(lambda password: OUTPUT), tool_use_behavior="stop_on_first_tool", done=None)
    result = await case.run(agent)
    assert result.final_output == OUTPUT
    await case.check()


async def test_an_output_that_comes_through_an_agent_tool(case: SecretCase) -> None:
    """A nested run that ends with a secret makes it the output of its call."""
    inner = logging_in(login(lambda password: OUTPUT), tool_use_behavior="stop_on_first_tool", done=None)
    outer = make_agent([inner.as_tool("inner", "Ask.")], call("inner", {"input": "go"}, "o1"))
    await case.run(outer)
    assert read_shown_outputs(outer) == {"o1": OUTPUT}
    await case.check()


async def test_a_history_that_is_told_to_the_next_agent(case: SecretCase) -> None:
    """A nested history is text, so secrets are taken out of it first."""
    second = Agent("second", model=ScriptedModel([say("done")]))
    first = make_agent(
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


async def test_a_callable_behaviour_and_a_policy_that_fail(case: SecretCase) -> None:
    """Callbacks are given the arguments and the output; their reprs and errors are looked through."""

    class Strict:
        def decide(self, pending: Any) -> Any:
            case.words.append(repr(pending))
            raise ValueError(f"can't allow {pending.arguments['password']}")

    await case.run(logging_in(login(lambda password: OUTPUT)), policies=[Strict()])
    await case.check()


async def test_a_question_for_approval_that_fails(case: SecretCase) -> None:
    """`needs_approval` is given the arguments."""

    def needs(ctx: Any, arguments: Any, call_id: str) -> bool:
        raise ValueError(f"no {arguments['password']}")

    await case.run(logging_in(login(lambda password: OUTPUT, needs_approval=needs)))
    assert isinstance(case.error, ValueError)
    assert "RunEnded" in (text := await case.read())
    assert "hunter2" not in text


async def test_results_given_to_a_behaviour(case: SecretCase) -> None:
    """`ToolResult` shows neither value nor output."""

    def behave(ctx: Any, results: Any) -> Any:
        case.words.append(repr(results))
        raise ValueError("stop")

    await case.run(logging_in(login(lambda password: OUTPUT), tool_use_behavior=behave))
    await case.check()


# -- pauses


@pytest.mark.parametrize("verdict", ["approve", "reject", "edit", None])
async def test_a_call_that_waits_for_approval(case: SecretCase, verdict: str | None) -> None:
    """The approver sees the masked call, and edited arguments are as secret."""
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


@pytest.mark.scenario("VI-05")
@pytest.mark.parametrize("raises", [True, False])
async def test_a_formatter_of_refusals_that_fails(case: SecretCase, raises: bool) -> None:
    """The log names the error's type, or that of what is no text: the application's words may repeat the arguments."""

    def word(args: Any) -> Any:
        if raises:
            raise ValueError(f"no words for {PASSWORD}")
        return [PASSWORD]

    agent = logging_in(login(lambda password: OUTPUT, needs_approval=True))
    paused = await case.run(agent, journal=False)
    state = paused.to_state()
    state.reject(state.interruptions[0])
    await case.run(agent, state, tool_error_formatter=word)
    await case.check()
    assert ("ValueError([redacted])" if raises else "of type list") in await case.read()


@pytest.mark.scenario("RP-11")
@pytest.mark.scenario("RP-21")
@pytest.mark.parametrize("text", ['{"password": "hunter2', '["hunter2"]', '{"password": 5, "hunter2": 1}'])
async def test_edited_arguments_that_do_not_fit_are_not_quoted(case: SecretCase, text: str) -> None:
    """The error does not quote the edited arguments, because the approver may log it; the call waits on."""
    paused = await case.run(logging_in(login(lambda password: OUTPUT, needs_approval=True)), journal=False)
    state = paused.to_state()
    with pytest.raises(UserError) as caught:
        state.approve("c1", arguments=text)
    assert "hunter2" not in str(caught.value)
    assert [request.call.call_id for request in state.interruptions] == ["c1"]


async def test_a_call_that_waited_in_a_sealing_journal_runs_with_its_secrets(run_mode: Run) -> None:
    """Another process with the codec has the model's own arguments, and resumes with the same journal."""
    got: list[str] = []
    journal = MemoryJournal(codec=ReversingCodec())

    def work(password: str) -> str:
        got.append(password)
        return OUTPUT

    made = login(work, needs_approval=True)
    await run_mode(logging_in(made), "go", journal=journal)
    again = make_agent([made])
    state = await RunState.from_journal(again, journal)
    state.approve("c1")
    result = await run_mode(again, state, journal=journal)
    assert got == [PASSWORD]
    assert read_shown_outputs(again) == {"c1": OUTPUT}
    stored = b"\n".join(await journal.read())
    assert b"$sealed" in stored
    assert not any(canary.encode() in stored for canary in CANARIES)
    back = await RunState.from_journal(again, journal)
    assert back == result.to_state()


@pytest.mark.parametrize("way", ["json", "journal"])
@pytest.mark.parametrize("codec", [None, ReversingCodec()])
async def test_without_the_codec_a_call_that_needs_a_secret_is_named(run_mode: Run, way: str, codec: Any) -> None:
    """Only the secret's digest was stored, or it can't be opened: the run is refused before anything starts."""
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
    """The verdict on the masked call holds, and the model's next input has gaps."""
    made = login(lambda password: OUTPUT, needs_approval=True)
    agent = logging_in(made)
    paused = await run_mode(agent, "go")
    state = RunState.from_string(agent, paused.to_state().to_string())
    state.reject("c1", message="no")
    again = make_agent([made])
    result = await run_mode(again, RunState.from_string(again, state.to_string()))
    assert result.final_output == "done"
    assert read_shown_outputs(again) == {"c1": "no"}


async def test_an_output_that_was_not_kept_is_no_receipt_s_secret(run_mode: Run) -> None:
    """An output that is read back without a codec is replaced by its mark, in the history too."""
    agent = logging_in(login(lambda password: OUTPUT))
    result = await run_mode(agent, "go")
    state = RunState.from_string(agent, result.to_state().to_string())
    outputs = [item for item in state._fold.history if isinstance(item, ToolOutput)]
    assert [output.secret for output in outputs] == [True]
    assert str(outputs[0].output).startswith('{"$digest":')
    assert state == result.to_state()


def test_runs_in_a_loop_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """The plain entry `run_sync` writes no secret into a log either."""
    caplog.set_level(logging.DEBUG)
    result = Runner.run_sync(
        logging_in(login(fails)), "go", run_config=RunConfig(tool_execution=ToolExecution(max_threads=1))
    )
    assert "hunter2" not in caplog.text + repr(result)


#  every kind of secret, and every way in which an error repeats it


def group(value: Any) -> Exception:
    """Return a group that repeats *value* in its own message and in each leaf's."""
    return ExceptionGroup(f"all {value}", [ValueError(f"{value}"), ExceptionGroup("in", [KeyError(value)])])


@attrs.frozen
class Frozen(Exception):
    """Takes no attributes."""

    value: Any

    def __str__(self) -> str:
        return f"with {self.value}"


SECRET_VALUES: dict[str, Any] = {
    "text": PASSWORD,
    "key": {PASSWORD: 1},
    "deep key": {"a": [{"b": {PASSWORD: None}}]},
    "list": [PASSWORD, "b"],
    "number": 77312077312077,
    "short": "q7",
}
ERRORS: dict[str, Any] = {
    "as it is": lambda value: ValueError(value),
    "in words": lambda value: KeyError(f"no {value} here"),
    "a key": lambda value: KeyError(next(iter(value)) if isinstance(value, dict) else value),
    "changed": lambda value: ValueError(" ".join(str(value)).upper()),
    "in a group": group,
    "of a frozen class": Frozen,
}


@pytest.mark.scenario("RP-11")
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("made", ERRORS.values(), ids=list(ERRORS))
@pytest.mark.parametrize("value", SECRET_VALUES.values(), ids=list(SECRET_VALUES))
async def test_an_error_of_a_call_with_secrets_shows_its_type_alone(
    case: SecretCase, value: Any, made: Any, raises: bool
) -> None:
    """The error shows its type alone, for every kind of secret (keys of a mapping too) and every form of the error."""
    errors: list[Exception] = []

    async def keep(secret: Any) -> str:
        """Keep it."""
        errors.append(made(secret))
        raise errors[-1]

    options: dict[str, Any] = {"failure_error_function": None} if raises else {}
    kept = tool(keep, secret=("secret",), strict_mode=False, **options)
    agent = make_agent([kept], call("keep", {"secret": value}, "c1"))
    await case.run(agent)
    (error,) = errors
    inner = "ValueError([redacted]), KeyError([redacted])" if isinstance(error, ExceptionGroup) else "[redacted]"
    summary = f"{type(error).__name__}({inner})"
    settled = [record for record in case.watcher.told if isinstance(record, (BodyEnded, CallSettled))]
    assert [record.error for record in settled] == [summary, summary]
    if raises:
        assert str(case.error) == f"Error running tool keep: {type(error).__name__}: [redacted]"
    else:
        assert read_shown_outputs(agent) == {"c1": f"Tool keep failed with: {summary}"}
    await case.check()


@pytest.mark.scenario("RP-11")
@pytest.mark.parametrize(
    "arguments",
    [
        {"counts": {PASSWORD: "no number"}},
        {"counts": {"a": 1}, "other": 1},
        {"counts": [PASSWORD]},
        {},
        f'{{"counts": {{"{CANARIES[0]}": 1, "{CANARIES[0]}": 2}}}}',
        f'{{"counts": {{"{CANARIES[0]}": 1}}',
        f'["{CANARIES[0]}"]',
    ],
    ids=["value", "unknown name", "kind", "missing", "repeated key", "no JSON", "no object"],
)
async def test_a_misfit_of_a_call_with_secrets_shows_its_type_alone(case: SecretCase, arguments: Any) -> None:
    """The path to a wrong value is made of keys, so it is hidden; only a text that is no JSON at all is reported so."""

    async def keep(counts: dict[str, int]) -> str:
        """Keep them."""
        return "kept"

    agent = make_agent(
        [tool(keep, secret=("counts",), strict_mode=False)], call("keep", arguments, "c1"), call("other", {}, "c2")
    )
    agent.tools.append(tool(keep, name="other", secret=("counts",), strict_mode=False, failure_error_function=None))
    await case.run(agent)
    told = str(read_shown_outputs(agent)["c1"])
    assert told in (
        "Tool keep failed with: ModelBehaviorError([redacted])",
        "Arguments of tool keep aren't valid JSON",
    )
    assert ("valid JSON" in told) == (isinstance(arguments, str) and spans_of(arguments + "}") is not None)
    assert str(case.error) == "Arguments of tool other don't fit: [redacted]"
    await case.check()


@pytest.mark.scenario("RP-11")
async def test_names_that_a_secret_catch_all_takes_are_secret(case: SecretCase) -> None:
    """The names are keys of a mapping, among the names of the other arguments, so all of the arguments are masked."""
    got: list[Any] = []

    async def keep(user: str, **words: int) -> str:
        """Keep them."""
        got.append(words)
        return "kept"

    made = tool(keep, secret=("words",), strict_mode=False)
    agent = make_agent([made], call("keep", {"user": "ann", PASSWORD: 1}, "c1"))
    result = await case.run(agent)
    assert read_statuses(result) == ["succeeded"]
    assert got == [{PASSWORD: 1}]
    await case.check()


async def test_why_a_call_with_secrets_was_cancelled_is_not_told(case: SecretCase) -> None:
    """The reason of a cancellation may repeat the secrets, so it is redacted."""

    async def keep(ctx: ToolContext[Any], password: str) -> None:
        """Keep it."""
        ctx.cancel_call(ctx.tool_call_id, f"no {password}")
        await anyio.sleep_forever()

    agent = make_agent([tool(keep, secret=("password",))], call("keep", {"password": PASSWORD}, "c1"))
    result = await case.run(agent)
    assert [settled.outcome.reason for settled in result.calls] == ["[redacted]"]
    assert read_shown_outputs(agent) == {"c1": "Tool keep failed with: ToolCancelledError([redacted])"}
    await case.check()


@pytest.mark.parametrize("made", ERRORS.values(), ids=list(ERRORS))
@pytest.mark.parametrize("raises", [False, True])
def test_an_error_of_a_call_with_secrets_is_replayed(made: Any, raises: bool) -> None:
    """The log has the types of a group's leaves, and the replay raises one error in the group's place."""

    async def keep(secret: str) -> str:
        """Keep it."""
        raise made(secret)

    def make() -> Agent[Any, Any]:
        options: dict[str, Any] = {"failure_error_function": None} if raises else {}
        return make_agent([tool(keep, secret=("secret",), **options)], call("keep", {"secret": PASSWORD}, "c1"))

    journal = MemoryJournal()
    with pytest.raises(ToolCallError) if raises else contextlib.nullcontext():
        Runner.run_sync(make(), "go", journal=journal)
    replayed = replay(journal, make())
    assert (type(replayed.error), replayed.result is None) == (ToolCallError if raises else type(None), raises)


@pytest.mark.parametrize("who", ["error function", "input guardrail", "output guardrail", "policy"])
def test_words_made_of_a_secret_are_replayed_from_a_journal_that_lacks_them(who: str) -> None:
    """The model received the words; the journal has a digest of them, and the replay comes out the same."""

    @tool_input_guardrail
    def before(data: Any) -> RejectContent:
        return RejectContent(f"not with {data.arguments['password']}")

    @tool_output_guardrail
    def after(data: Any) -> RejectContent:
        return RejectContent(f"not with {data.arguments['password']}")

    class Strict:
        def decide(self, pending: Any) -> Deny:
            return Deny(f"not with {pending.arguments['password']}")

    options: dict[str, dict[str, Any]] = {
        "error function": {"failure_error_function": lambda ctx, error: f"It said: {error}"},
        "input guardrail": {"tool_input_guardrails": [before]},
        "output guardrail": {"tool_output_guardrails": [after]},
    }
    work = fails if who == "error function" else (lambda password: "in")

    async def keep(password: str) -> str:
        """Keep it."""
        return str(work(password))

    def make() -> Agent[Any, Any]:
        made = tool(keep, secret=("password",), **options.get(who, {}))
        return make_agent([made], call("keep", {"password": PASSWORD}, "c1"))

    agent, journal = make(), MemoryJournal()
    config = RunConfig(policies=[Strict()] if who == "policy" else [])
    Runner.run_sync(agent, "go", run_config=config, journal=journal)
    assert "hunter2" in str(read_shown_outputs(agent)["c1"])
    stored = b"".join(anyio.run(journal.read))
    assert b"hunter2" not in stored
    replayed = replay(journal, make(), run_config=config)
    assert replayed.result is not None
    assert replayed.result.final_output == "done"


async def test_no_repr_of_a_part_of_the_run_shows_a_secret(run_mode: Run) -> None:
    """A traceback that shows local variables, as of pytest or of an error tracker, shows those of the engine, too."""
    found: set[str] = set()

    class Looking(Instrument):
        def on_record(self, record: Any) -> None:
            for one in gc.get_objects():
                kind = type(one)
                if kind.__module__.startswith(("agentloop._engine", "agentloop._core")) and PASSWORD in repr(one):
                    found.add(f"{kind.__module__}.{kind.__name__}")

    agent = logging_in(login(lambda password: "x"))
    config = RunConfig(instruments=(Looking(),))
    await run_mode(agent, "go", run_config=config, journal=MemoryJournal(), session=MemorySession())
    assert found == set()
