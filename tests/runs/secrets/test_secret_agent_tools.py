"""Secret input of an agent tool: the nested model sees it, and nothing that is shown or stored does."""

import json
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, make_agent
from kit.results import read_requests, read_shown_outputs, read_statuses
from kit.secret_cases import CANARIES, PASSWORD, ReprAgentHooks, ReversingCodec, SecretCase

from agentloop import Agent, GuardrailFunctionOutput, RunConfig, RunState, ToolContext, handoff, input_guardrail, tool
from agentloop import records as r
from agentloop.cli.show import json_line, plain
from agentloop.exceptions import StateError
from agentloop.items import (
    AssistantMessage,
    Item,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, say

pytestmark = pytest.mark.anyio

ASKED = {"input": PASSWORD}


@attrs.frozen
class Login:
    """A typed input."""

    user: str
    password: str


@pytest.fixture
def case(run_mode: Run, caplog: pytest.LogCaptureFixture) -> SecretCase:
    """Return a watched run."""
    return SecretCase(run_mode, caplog)


@tool
async def look(ctx: ToolContext[Any]) -> str:
    """Look around."""
    return "seen"


def inner(*steps: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent to be used as a tool."""
    return Agent("inner", model=ScriptedModel(list(steps) or [call("look", call_id="n1"), say("ok")]), **fields)


def asking(agent: Agent[Any, Any], arguments: Any = None, **options: Any) -> Agent[Any, Any]:
    """Return an agent that asks *agent* once, all it says being secret."""
    made = agent.as_tool(**{"secret": ("input",), **options})
    return make_agent([made], call("inner", ASKED if arguments is None else arguments, call_id="c1"))


async def test_the_nested_model_sees_the_input_and_nobody_else(case: SecretCase) -> None:
    """No record, journal, state, span, hook or context shows the input; everything that isn't secret is shown."""
    nested = inner(tools=[look], hooks=ReprAgentHooks(case.words))
    result = await case.run(asking(nested))
    assert read_statuses(result) == ["succeeded"]
    assert [item.text for item in read_requests(nested)[0].items] == [PASSWORD]  # type: ignore[union-attr]
    started = [record for record in result.records if isinstance(record, r.RunStarted) and record.path]
    assert [item.secret for item in started[0].input] == [True]  # type: ignore[union-attr]
    assert "'seen'" in await case.read()
    await case.check()


async def test_without_the_mark_it_would_be_seen(case: SecretCase) -> None:
    """The checks of this module find the input where nothing is marked."""
    await case.run(asking(inner(tools=[look]), secret=()))
    text = await case.read()
    assert "hunter2" in text


@pytest.mark.parametrize("built", ["json", "text", "items"])
async def test_a_typed_input_and_what_a_builder_makes_of_it(case: SecretCase, built: str) -> None:
    """One secret parameter makes the whole input secret: a builder may have put it anywhere."""
    before: list[Item] = [
        SystemMessage("be quick"),
        AssistantMessage("who?"),
        ToolCall("x", "login", json.dumps({"p": PASSWORD})),
        ToolOutput("x", PASSWORD),
        ToolCall("y", "login", f"no JSON {PASSWORD}"),
        ToolOutput("y", "fine"),
    ]
    builders: dict[str, Any] = {
        "json": None,
        "text": lambda login: f"{login.user} with {login.password}",
        "items": lambda login: [*before, UserMessage(f"I am {login.user}, {login.password}")],
    }
    seen: list[Any] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Look around."""
        seen.append(ctx.tool_input)
        return "seen"

    nested = inner(tools=[look], hooks=ReprAgentHooks(case.words))
    outer = asking(
        nested,
        {"user": "ann", "password": PASSWORD},
        parameters=Login,
        input_builder=builders[built],
        secret=("password",),
    )
    await case.run(outer)
    assert seen == [Login("ann", PASSWORD)]
    assert "hunter2" in read_requests(nested)[0].items[-1].text  # type: ignore[union-attr]
    await case.check()


async def test_what_can_not_be_kept_secret_is_refused(case: SecretCase) -> None:
    """The call fails for an item that has no place for the mark, and its error shows nothing of the secret."""
    outer = asking(
        inner(),
        {"user": "ann", "password": PASSWORD},
        parameters=Login,
        input_builder=lambda login: [Reasoning(summary=(login.password,)), UserMessage("go")],
        secret=("password",),
    )
    result = await case.run(outer)
    assert read_statuses(result) == ["failed"]
    assert read_shown_outputs(outer)["c1"] == "Tool inner failed with: UserTypeError([redacted])"
    assert "of a call with secret arguments, a Reasoning can't be made" in str(result.calls[0].outcome.error)
    await case.check()


@pytest.mark.parametrize("raises", [False, True])
async def test_errors_that_repeat_the_input(case: SecretCase, raises: bool) -> None:
    """The words of the model's, an unmarked tool's and a nested agent's errors don't show the input."""

    @tool
    async def look() -> str:
        """Look around."""
        raise ValueError(f"can't look for {PASSWORD}")

    nested = inner(call("look", call_id="n1"), fail(ValueError(f"no answer to {PASSWORD!r}")), tools=[look])
    options: dict[str, Any] = {"failure_error_function": None} if raises else {}
    result = await case.run(asking(nested, **options))
    assert read_statuses(result) == ["failed"]
    assert "hunter2" not in str(read_shown_outputs(nested))
    assert "ValueError" in str(read_shown_outputs(nested)["n1"])
    assert (case.error is not None) == raises
    await case.check()


async def test_a_run_nested_deeper_repeats_it_no_more(case: SecretCase) -> None:
    """A secret of a call stays secret in all runs below it, whether they mark it or not."""
    deepest = Agent("deepest", model=ScriptedModel([fail(ValueError(f"no answer to {PASSWORD}"))]))
    between = inner(call("deepest", {"input": "say it"}, call_id="n1"), say("ok"), tools=[deepest.as_tool()])
    await case.run(asking(between))
    assert "hunter2" not in str(read_shown_outputs(between))
    await case.check()


async def test_what_guardrails_and_instructions_say_of_it(case: SecretCase) -> None:
    """The words are the application's, and may repeat the input: they are hidden, and shown in no repr."""

    @input_guardrail
    async def strict(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput({"looked at": given[0].text})

    @input_guardrail
    async def broken(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        raise ValueError(f"what is {given[0].text}")

    words: list[str] = []

    def extract(result: Any) -> str:
        words.append(repr(result) + repr(result.input) + repr(result.input_guardrail_results))
        return "ok"

    def instructions(ctx: Any, agent: Any) -> str:
        return f"You know {PASSWORD}."

    nested = inner(say("ok"), input_guardrails=[strict], instructions=instructions)
    await case.run(asking(nested, custom_output_extractor=extract))
    assert read_requests(nested)[0].system == f"You know {PASSWORD}."
    case.words += words
    await case.check()
    await case.run(asking(inner(say("ok"), input_guardrails=[strict, broken])))
    await case.check()


async def test_on_stream_that_fails_is_logged_without_it(case: SecretCase) -> None:
    """The handler's error may repeat the events that it received, so the log hides it."""

    def hear(event: Any) -> None:
        raise ValueError(f"heard {PASSWORD}")

    await case.run(asking(inner(say("ok")), on_stream=hear))
    assert "on_stream failed" in await case.read()
    await case.check()


async def test_a_history_that_is_told_to_the_next_agent_of_a_nested_run(case: SecretCase) -> None:
    """The next agent receives the nested run's input, and the summary is as secret as that input."""
    second = Agent("second", model=ScriptedModel([say("done")]))
    first = inner(call("transfer_to_second", call_id="h1"), handoffs=[handoff(second, nest_handoff_history=True)])
    await case.run(asking(first))
    (summary,) = read_requests(second)[0].items
    assert isinstance(summary, AssistantMessage)
    assert "hunter2" in summary.text
    assert summary.secret
    await case.check()


async def test_the_command_line_shows_nothing_of_it(run_mode: Run) -> None:
    """The command line's JSON lines of events, a guardrail's result and the input itself don't show the secret."""

    @input_guardrail
    async def strict(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput({"looked at": given[0].text})

    lines: list[str] = []
    nested = inner(tools=[look], input_guardrails=[strict])
    result = await run_mode(
        asking(nested, on_stream=lambda event: lines.append(json_line({"event": plain(event)}))), "go"
    )
    started = [record for record in result.records if isinstance(record, r.RunStarted) and record.path]
    lines += [json_line({"item": plain(item)}) for item in started[0].input]
    text = "".join(lines)
    assert "ok" in text
    assert '"strict"' in text
    assert '"kind": "UserMessage"' in text
    assert not any(canary in text for canary in CANARIES)


async def test_a_session_of_the_nested_run_holds_the_conversation_as_it_is(run_mode: Run) -> None:
    """The session belongs to the application; items that come back from it are as secret as before."""
    session = MemorySession()
    nested = inner(say("one"), say("two"))
    for _ in range(2):
        await run_mode(asking(nested, session=session), "go")
    kept = await session.get_items()
    assert [item.text for item in kept] == [PASSWORD, "one", PASSWORD, "two"]  # type: ignore[union-attr]
    assert [item.secret for item in kept] == [True, False, True, False]  # type: ignore[union-attr]
    assert "hunter2" not in repr(kept)


async def test_copies_of_a_secret_input_are_told_from_older_ones(run_mode: Run) -> None:
    """A `session_input_callback` may copy items: secret ones look alike in reprs, and all of them are kept."""
    session = MemorySession()
    nested = inner(say("one"), say("two"))
    config = RunConfig(session_input_callback=lambda history, new: [item.replace() for item in (*history, *new)])
    for word in ("open sesame", "close sesame"):
        agent = asking(nested, {"input": word}, session=session, run_config=config)
        await run_mode(agent, "go")
    kept = [item.text for item in await session.get_items()]  # type: ignore[union-attr]
    assert kept == ["open sesame", "one", "close sesame", "two"]


# -- pauses and crashes


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def paying() -> Agent[Any, Any]:
    """Return an agent that asks one with a secret input, which waits for approval."""
    return asking(inner(call("pay", call_id="n1"), say("ok"), tools=[pay]))


async def test_a_nested_run_that_waited_goes_on_with_its_input(run_mode: Run) -> None:
    """The codec returns the stored input, so the nested model receives it again, from a journal or from a text."""
    codec = ReversingCodec()
    journal = MemoryJournal(codec=codec)
    agent = paying()
    paused = await run_mode(agent, "go", journal=journal)
    text = paused.to_state().to_string(codec=codec)
    assert not any(canary in text for canary in CANARIES)
    for state in (await RunState.from_journal(agent, journal), RunState.from_string(agent, text, codec=codec)):
        again = paying()
        nested: Any = again.tools[0].body
        nested.agent.model = ScriptedModel([say("ok")])
        again.model = ScriptedModel([say("done")])
        state = RunState(again, state.records)
        state.approve("n1")
        result = await run_mode(again, state)
        assert result.final_output == "done"
        first = read_requests(nested.agent)[0].items[0]
        assert isinstance(first, UserMessage)
        assert first.text == PASSWORD
        assert first.secret


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("codec", [None, ReversingCodec()])
async def test_without_the_codec_the_call_is_named(run_mode: Run, deep: bool, codec: Any) -> None:
    """The stored secret is a digest or can't be opened, so the run is refused before any call runs, nested or not."""
    agent = paying()
    if deep:
        agent = make_agent([agent.as_tool("guide")], call("guide", {"input": "go"}, call_id="d1"))
    journal = MemoryJournal(codec=codec)
    await run_mode(agent, "go", journal=journal)
    journal.codec = None
    state = await RunState.from_journal(agent, journal)
    assert state.interruptions
    state.approve("n1")
    with pytest.raises(StateError, match="call 'c1' of tool 'inner' needs the secret arguments 'input'"):
        await run_mode(agent, state)


async def test_without_the_codec_what_still_waits_and_what_is_over_need_nothing(run_mode: Run) -> None:
    """A verdict on another call takes effect; a nested run that is over is not asked again."""
    other = inner(call("pay", call_id="m1"), say("fine"), tools=[pay])
    agent = make_agent(
        [inner(call("pay", call_id="n1"), tools=[pay]).as_tool(secret=("input",)), other.as_tool("other")],
        [call("inner", ASKED, call_id="c1"), call("other", {"input": "go"}, call_id="c2")],
    )
    state = RunState.from_string(agent, (await run_mode(agent, "go")).to_state().to_string())
    state.approve("m1")
    result = await run_mode(agent, state)
    assert result.status == "interrupted"
    assert read_statuses(result) == ["succeeded"]
    assert [request.call.call_id for request in result.interruptions] == ["n1"]


async def test_a_plain_call_inside_that_was_approved_is_named(run_mode: Run) -> None:
    """The error comes before the outer call resumes, because inside the nested run the outer model would receive it."""

    @tool(needs_approval=True, secret=("word",))
    async def tell(word: str) -> str:
        """Tell."""
        return "told"

    nested = Agent("inner", model=ScriptedModel([call("tell", {"word": PASSWORD}, call_id="n1")]), tools=[tell])
    agent = make_agent([nested.as_tool()], call("inner", {"input": "go"}, call_id="c1"))
    state = RunState.from_string(agent, (await run_mode(agent, "go")).to_state().to_string())
    state.approve("n1")
    with pytest.raises(StateError, match="call 'n1' of tool 'tell' needs the secret arguments 'word'"):
        await run_mode(agent, state)


async def test_input_that_is_secret_by_itself_is_missed_too(run_mode: Run) -> None:
    """A message that its author marked secret can't be restored without the codec, so no model receives its remains."""
    agent = make_agent([pay], call("pay", call_id="c1"))
    paused = await run_mode(agent, [UserMessage(PASSWORD, secret=True)])
    text = paused.to_state().to_string()
    assert "hunter2" not in text
    state = RunState.from_string(agent, text)
    state.approve("c1")
    with pytest.raises(StateError, match="needs its secret input"):
        await run_mode(agent, state)


async def test_a_crash_anywhere_shows_nothing_and_is_got_over_with_the_codec(run_mode: Run) -> None:
    """The journal is cut at every record: its lines have no canary in them, and the codec is enough to resume."""
    whole = MemoryJournal(codec=ReversingCodec())
    await run_mode(asking(inner(say("ok"))), "go", journal=whole)
    lines = await whole.read()
    for length in range(2, len(lines) + 1):
        cut = MemoryJournal(codec=ReversingCodec())
        await cut.append(lines[:length])
        nested = inner(say("ok"))
        agent = asking(nested)
        state = await RunState.from_journal(agent, cut)
        if state._fold.ended is not None:
            continue
        if state._fold.response is not None:
            agent.model = ScriptedModel([say("done")])
        with anyio.fail_after(30):
            result = await run_mode(agent, state, journal=cut)
        assert result.final_output == "done"
        for request in read_requests(nested):
            assert request.items[0].text == PASSWORD  # type: ignore[union-attr]
        stored = b"\n".join(await cut.read())
        assert not any(canary.encode() in stored for canary in CANARIES)


async def test_a_nested_model_hears_why_its_arguments_do_not_fit(run_mode: Run) -> None:
    """The input of the nested run is secret, and what its own model asks for is not hidden from that model."""

    @tool
    async def count(amount: int) -> str:
        """Count."""
        return "counted"

    nested = inner(call("count", {"amount": "lots"}, call_id="n1"), say("sorry"), tools=[count])
    agent = make_agent([nested.as_tool(secret=("input",))], call("inner", ASKED, call_id="c1"))
    await run_mode(agent, "go")
    (_, second) = nested.model.requests
    assert "amount: Expected" in str(second.items[-1])
