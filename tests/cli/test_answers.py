"""Calls that the application answers, on the command line: asked at the terminal, or answered in a job's journal."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from agentloop import Agent, ExternalTool, Runner, UserError, ask_user
from agentloop.cli.run_options import Everything, Questions, describe_answer, read_answer
from agentloop.cli.streams import Output, TypedLines
from agentloop.testing import ScriptedModel, call

Invoke = Callable[..., Result]


async def pause(tool: Any, arguments: dict[str, Any]) -> Any:
    """Return the state of a run that waits for the answer to a call of *tool*."""
    agent = Agent("a", model=ScriptedModel([call(tool.name, arguments)]), tools=[tool])
    return (await Runner.run(agent, "go")).to_state()


@pytest.mark.scenario("PE-04")
async def test_a_person_is_asked_until_the_answer_fits() -> None:
    """Choices have numbers; what doesn't fit is said, and asked again; nothing typed puts the question off."""
    shown = io.StringIO()
    questions = Questions(Output(shown), lines=TypedLines(io.BytesIO(b"\nmiddle\n2\n")))
    state = await pause(ask_user(options=["small", "large"]), {"question": "Which?"})
    assert not await questions.decide(state, "")
    other = await pause(ask_user(options=["small", "large"]), {"question": "Which?"})
    assert await questions.decide(other, "line 3")
    assert other.interruptions == ()
    assert other.records[-1].value == "large"
    text = shown.getvalue()
    assert "ask_user {" in text
    assert "one of 1 small, 2 large" in text
    assert "the answer doesn't fit: expected one of 1 small, 2 large" in text
    assert not await Everything().decide(state, "")


def test_an_answer_is_json_or_text_where_a_text_is_asked_for() -> None:
    """A number is a text only where the schema says so."""
    assert read_answer(" 7 ", {"type": "string"}) == "7"
    assert read_answer("7", {"type": "integer"}) == 7
    assert read_answer('{"a": 1}', {}) == {"a": 1}
    assert read_answer("free", {}) == "free"
    assert read_answer("9", {"enum": ["a"]}) == "9"
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert [read_answer(typed, optional) for typed in ("42", "true", '"a"', "a", "null")] == [
        "42",
        "true",
        "a",
        "a",
        None,
    ]
    assert read_answer("42", {"type": ["string", "integer"]}) == 42
    with pytest.raises(UserError, match="expected JSON that fits"):
        read_answer("seven", {"type": "integer"})
    assert describe_answer({}) == "any JSON"
    assert describe_answer({"type": "string"}) == "a text"


AGENT = """
from agentloop import Agent, ExternalTool
from agentloop.items import ToolOutput
from agentloop.testing import ScriptedModel, call, say

def answer(request):
    last = request.items[-1]
    return say(f"It is {last.output}.") if isinstance(last, ToolOutput) else call("room", call_id="call_1")

room = ExternalTool("room", "Ask for the room.", {}, returns={"type": "integer"})
asking = Agent("asking", model=ScriptedModel([answer] * 9), tools=[room])
"""


@pytest.mark.scenario("PE-04")
def test_a_job_is_answered_from_another_process_and_resumed(tmp_path: Path, invoke: Invoke) -> None:
    """`pending` lists the call, `answer` refuses what doesn't fit and the second answer, `resume` continues."""
    target = tmp_path / "asking.py"
    target.write_text(AGENT)
    job = str(tmp_path / "job")
    began = invoke("run", f"{target}:asking", "go", "--journal", job)
    assert "1 call waits for an answer: call_1 (room)" in began.stderr
    assert "call_1  asking  room {}  (waits for its answer)" in invoke("pending", job).stdout
    assert '"returns": {"type": "integer"}' in invoke("pending", job, "--json").stdout
    wrong = invoke("answer", job, "call_1", '"seven"')
    assert (wrong.exit_code != 0, "$: expected integer" in wrong.stderr) == (True, True), wrong.stderr
    assert invoke("answer", job, "call_1", "7").stdout == "call_1 is answered.\n"
    again = invoke("answer", job, "call_1", "8")
    assert (again.exit_code != 0, "it was answered" in again.stderr) == (True, True), again.stderr
    assert "It is 7." in invoke("resume", job).stdout


async def test_a_tool_of_two_schemas_is_described_to_a_person() -> None:
    """The schema of the answer is shown where it isn't a text or a choice."""
    shown = io.StringIO()
    questions = Questions(Output(shown), lines=TypedLines(io.BytesIO(b"x\n7\n")))
    state = await pause(ExternalTool("room", "Ask.", {}, returns={"type": "integer"}), {})
    assert await questions.decide(state, "")
    assert 'JSON that fits {"type": "integer"}' in shown.getvalue()
