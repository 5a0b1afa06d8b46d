"""What real servers ask their user within a call: the answers reach them, in both eras of the protocol."""

from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from kit.results import find_outcome, read_outputs, read_statuses
from mcp_servers.processes import MARKS, Servers

from agentloop import Runner, events
from agentloop.journal import MemoryJournal
from agentloop.mcp import Elicitation
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = [*MARKS, pytest.mark.scenario("PE-06")]
modes = pytest.mark.parametrize("mode", ["auto", "legacy"])


def orders(*what: str) -> list[Any]:
    """Return calls of the tool that asks, one after the other."""
    return [*(call("order", {"what": one}, call_id=one) for one in what), say("done")]


@modes
async def test_accept_decline_and_cancel_reach_the_server(servers: Servers, mode: str) -> None:
    """The application is asked within the call, by a sync or async function."""
    asked: list[Elicitation] = []
    answers: dict[str, Any] = {"apples": {"amount": 3}, "pears": "decline", "nuts": "cancel"}

    async def elicit(question: Elicitation) -> Any:
        asked.append(question)
        assert question.call is not None
        return answers[question.call.tool_call_id]

    server = servers.make("honest_server.py", mode=mode, elicit=elicit)
    result = await Runner.run(script_agent("a", *orders("apples", "pears", "nuts"), toolsets=[server]), "go")
    assert list(read_outputs(result.new_items).values()) == ["3 apples", "no pears: decline", "no nuts: cancel"]
    assert [(one.server, one.message, one.url) for one in asked] == [
        ("probe", f"How many {what}?", None) for what in answers
    ]
    assert asked[0].schema is not None
    assert asked[0].schema["required"] == ["amount"]


async def test_user_visits_an_address(stdio: Servers) -> None:
    """The answer is that they agreed, or not."""
    asked: list[str | None] = []

    def elicit(question: Elicitation) -> Any:
        asked.append(question.url)
        return "accept"

    server = stdio.make("honest_server.py", mode="legacy", elicit=elicit)
    result = await Runner.run(script_agent("a", call("visit"), say("done"), toolsets=[server]), "go")
    assert list(read_outputs(result.new_items).values()) == ["accept"]
    assert asked == ["https://shop.test/pay"]


@modes
async def test_question_without_an_answer_fails_its_call_alone(
    stdio: Servers, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what was wrong, and the connection serves the next call."""
    answers: list[Any] = [{"amount": "three"}, "accept", ValueError("no terminal")]

    async def elicit(question: Elicitation) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    server = stdio.make("honest_server.py", mode=mode, elicit=elicit)
    calls = [*orders("a", "b", "c")[:-1], call("add", {"a": 1, "b": 2}), say("done")]
    result = await Runner.run(script_agent("a", *calls, toolsets=[server]), "go")
    assert read_statuses(result) == [*["failed"] * 3, "succeeded"]
    said = [one.getMessage() for one in caplog.records if "its question got no answer" in one.getMessage()]
    assert [line.partition("no answer: ")[2] for line in said] == [
        "UserValueError(elicit: the answer doesn't fit the schema: amount (type))",
        "UserTypeError(elicit: expected a mapping with the fields of the schema, 'decline' or 'cancel', got a str)",
        "ValueError(no terminal)",
    ]


async def test_nobody_to_ask(stdio: Servers) -> None:
    """The model is told why the call failed, and whoever reads the log what to write."""
    result = await Runner.run(script_agent("a", *orders("apples"), toolsets=[stdio.make("honest_server.py")]), "go")
    assert read_statuses(result) == ["failed"]
    assert "there is nobody to ask: the application gives no `elicit`" in find_outcome(result, "apples").output


@modes
async def test_question_ends_with_its_call(stdio: Servers, mode: str) -> None:
    """Its cancellation cancels the function; the run and the connection go on."""
    began, ended = anyio.Event(), list[str]()

    async def elicit(question: Elicitation) -> Any:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cut")

    server = stdio.make("honest_server.py", mode=mode, elicit=elicit)
    calls = [*orders("apples")[:-1], call("add", {"a": 1, "b": 2}, call_id="add"), say("done")]
    agent = script_agent("a", *calls, toolsets=[server])
    async with server, Runner.run_streamed(agent, "go") as stream, anyio.create_task_group() as group:

        async def cancel() -> None:
            await began.wait()
            stream.cancel_call("apples")

        group.start_soon(cancel)
        async for _ in stream:
            pass
    assert ended == ["cut"]
    assert find_outcome(stream.result, "add").status == "succeeded"
    assert "order apples accept" not in stdio.lines()


@modes
async def test_person_is_not_the_servers_silence(stdio: Servers, mode: str) -> None:
    """A question may be open for longer than the tools' `idle_timeout`; progress tells that the server asks."""
    answered = anyio.Event()

    async def elicit(question: Elicitation) -> Any:
        await answered.wait()
        return {"amount": 1}

    server = stdio.make("honest_server.py", mode=mode, elicit=elicit, idle_timeout=1.0)
    reports = 0
    async with Runner.run_streamed(script_agent("a", *orders("apples"), toolsets=[server]), "go") as stream:
        async for event in stream:
            if isinstance(event, events.CallProgress) and event.message == "MCP server probe asks its user":
                reports += 1
                if reports == 6:  # one each quarter of a second
                    answered.set()
    assert read_statuses(stream.result) == ["succeeded"]


async def test_calls_ask_at_once(servers: Servers) -> None:
    """Each question gets its own answer, although a server by stdio with sessions doesn't say whose it is."""
    waiting, all_wait = list[str](), anyio.Event()

    async def elicit(question: Elicitation) -> Any:
        waiting.append(question.message)
        if len(waiting) == 3:
            all_wait.set()
        await all_wait.wait()
        return {"amount": len(question.message)}

    server = servers.make("honest_server.py", mode="legacy", elicit=elicit)
    what = ["a", "bb", "ccc"]
    agent = script_agent("a", orders(*what)[:-1], say("done"), toolsets=[server])
    result = await Runner.run(agent, "go")
    assert list(read_outputs(result.new_items).values()) == [f"{len(f'How many {one}?')} {one}" for one in what]


async def test_question_that_a_crash_cuts_leaves_a_call_in_doubt(stdio: Servers) -> None:
    """Another process can't answer it: the model is told that nobody knows whether the call took effect."""
    journal, crashed = MemoryJournal(), MemoryJournal()

    async def elicit(question: Elicitation) -> Any:
        await crashed.append(await journal.read())
        return "decline"

    async with stdio.make("honest_server.py", mode="legacy", elicit=elicit) as server:
        await Runner.run(script_agent("a", *orders("apples"), toolsets=[server]), "go", journal=journal)
        again = await Runner.resume(script_agent("a", say("done"), toolsets=[server]), crashed)
    assert read_statuses(again) == ["unknown"]
    assert "was interrupted when the run stopped" in find_outcome(again, "apples").output
    assert stdio.lines().count("order apples decline") == 1
