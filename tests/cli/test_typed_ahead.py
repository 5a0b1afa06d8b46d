"""Lines that a user types while an answer of `agentloop chat` is under way."""

import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli.terminal import Terminal, opened

from agentloop import Agent, AskAgain, GuardrailFunctionOutput, InputGuardrail, Runner, ToolCallError, tool
from agentloop.cli.show import Narrator
from agentloop.cli.steering import TypedInputs
from agentloop.cli.streams import TypedLines
from agentloop.cli.supervision import supervise
from agentloop.testing import FunctionModel, call, say

Start = Callable[..., "subprocess.Popen[str]"]
AgentOf = Callable[[str], str]
CLIMBING = r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] climb .*"


@pytest.fixture
def chat(
    start: Start, agent: AgentOf, backend: str, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Terminal]:
    """`chat()` is a conversation at a terminal, in which a call waits for *pipe*."""
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)

    def begin(*options: str, term: str = "xterm-256color", message: str = "climb") -> Terminal:
        monkeypatch.setenv("TERM", term)
        terminal = Terminal(start, "chat", agent("listener"), "--backend", backend, *options)
        terminal.wait_for("> ")
        terminal.type(message)
        if term == "dumb":
            terminal.wait_for("→ climb")
        else:
            terminal.wait_for_line(CLIMBING)
        return terminal

    return begin


def leave(terminal: Terminal) -> None:
    """End the conversation at its prompt."""
    terminal.wait_for("> ")
    assert terminal.echoes
    terminal.press("\x04")
    assert terminal.finish() == 0, terminal.shown


@pytest.mark.slow
@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_line_typed_while_a_run_works_is_an_input_of_it(chat: Callable[..., Terminal], pipe: Path, term: str) -> None:
    """The terminal tells when it was taken, and when the model saw it: with the next request, once. Blanks are none."""
    terminal = chat(term=term)
    terminal.type("  ")
    terminal.type("in French")
    terminal.wait_for("+ Taken: in French\n")
    terminal.type("and soon")
    terminal.wait_for("+ Taken: and soon\n")
    with opened(pipe):
        terminal.wait_for("+ The model sees: in French\n")
        terminal.wait_for("+ The model sees: and soon\n")
        terminal.wait_for("climb | in French | and soon\n")
    leave(terminal)


@pytest.mark.slow
def test_what_is_typed_is_shown_below_the_lanes_and_kept_for_the_prompt(
    chat: Callable[..., Terminal], pipe: Path
) -> None:
    """Backspace and Ctrl-U edit it; a line that isn't complete when the answer ends is continued at the prompt."""
    terminal = chat()
    terminal.press("nonsense\x15in Frz\x7fe\x1b[Dnch")
    terminal.wait_for_line("> in French")
    assert terminal.wait_for_line(CLIMBING)
    with opened(pipe):
        terminal.wait_for("climb\n")
        terminal.wait_for("> in French")
    terminal.type(", please")
    terminal.wait_for("climb | in French, please\n")
    leave(terminal)


@pytest.mark.slow
def test_ctrl_c_drops_a_line_that_the_model_has_not_seen_and_says_so(chat: Callable[..., Terminal], pipe: Path) -> None:
    """The keys are the terminal's again when the cancellation is announced."""
    terminal = chat()
    terminal.type("in French")
    terminal.wait_for("+ Taken: in French\n")
    assert not terminal.echoes
    terminal.child.send_signal(signal.SIGINT)
    terminal.wait_for("Cancelling; once more ends at once.\n")
    assert terminal.echoes
    terminal.wait_for("Cancelled.\nThe model hasn't seen: in French\n")
    terminal.wait_for("> ")
    terminal.type("hello")
    terminal.wait_for("climb | hello\n")
    with opened(pipe):  # the thread of the call that was cancelled
        leave(terminal)


@pytest.mark.slow
@pytest.mark.parametrize(("verdict", "shown"), [("y", "+ The model sees: thanks\n"), ("l", "It is left undecided")])
def test_a_line_outlasts_a_question_about_a_call(
    chat: Callable[..., Terminal], pipe: Path, verdict: str, shown: str
) -> None:
    """The run that continues shows it; if it doesn't continue, the line is the next message."""
    terminal = chat(message="erase a")
    terminal.type("thanks")
    terminal.wait_for("+ Taken: thanks\n")
    with opened(pipe):
        terminal.answer(verdict)
        terminal.wait_for(shown)
        terminal.wait_for("erase a | thanks\n")
    leave(terminal)


@pytest.mark.slow
def test_a_line_that_the_run_refuses_is_the_next_message(chat: Callable[..., Terminal], pipe: Path) -> None:
    """No turn is left in which the model could see it."""
    terminal = chat("--max-turns", "1")
    terminal.type("in French")
    terminal.wait_for("! Kept for your next message: in French\n")
    with opened(pipe):
        terminal.wait_for("Error: MaxTurnsExceeded")
        terminal.wait_for("climb | in French\n")
    leave(terminal)


@pytest.mark.slow
def test_ctrl_d_while_a_run_works_ends_the_conversation_after_the_answer(
    chat: Callable[..., Terminal], pipe: Path
) -> None:
    """As at the prompt."""
    terminal = chat()
    terminal.type("in French")
    terminal.press("\x04")
    terminal.wait_for("+ Taken: in French\n")
    with opened(pipe):
        terminal.wait_for("climb | in French\n")
        assert terminal.finish() == 0, terminal.shown


# -- in this process


@pytest.fixture
def keyboard() -> Iterator[tuple[int, TypedLines]]:
    """A descriptor to type at, and the lines that are read at the other side of that pseudo-terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb", buffering=0) as stream:
        yield ours, TypedLines(stream)
    os.close(ours)


@pytest.mark.real_clock
async def test_keys_are_edited_and_the_rest_is_a_draft(keyboard: tuple[int, TypedLines]) -> None:
    """A character has several bytes; keys without one do nothing; Ctrl-D ends only an empty line."""
    ours, lines = keyboard
    shown: list[str] = []
    with anyio.fail_after(30):
        with lines.edited(shown.append):
            os.write(ours, "caf\x1b[Aéé\x7f\x1bOP\x04\x01\nnext\x15\x04".encode())
            assert await lines.next() == "café"
            assert await lines.next() is None
            os.write(ours, b"dra")
            while shown[-1] != "dra":
                with anyio.move_on_after(0.01):
                    await lines.next()
        with lines.edited(shown.append):
            assert shown[-2:] == ["dra", "dra"]
        lines.put_back(["first", "second"], ended=True)
        assert [await lines.next() for _ in range(3)] == ["first", "second", None]
        assert lines.continue_draft() == "dra"
        assert lines.continue_draft() == ""
        os.write(ours, b"ft\n")
        assert await lines.next() == "draft"


async def draft(ours: int, lines: TypedLines, text: str) -> None:
    """Type *text* within `edited`, without Enter."""
    shown = [""]
    with lines.edited(shown.append):
        os.write(ours, text.encode())
        while shown[-1] != text:
            with anyio.move_on_after(0.01):
                await lines.next()


@pytest.mark.real_clock
async def test_ctrl_c_at_the_prompt_drops_a_draft(keyboard: tuple[int, TypedLines]) -> None:
    """The next prompt doesn't show it, so it isn't part of the next message; complete lines stay."""
    ours, lines = keyboard
    with anyio.fail_after(30):
        await draft(ours, lines, "secret")
        assert lines.continue_draft() == "secret"
        lines.drop_draft()
        os.write(ours, b"hello\n")
        assert await lines.next() == "hello"
        lines.put_back(["kept"])
        lines.drop_draft()
        assert await lines.next() == "kept"


@pytest.mark.real_clock
async def test_a_draft_is_shown_only_where_it_is_read_next(keyboard: tuple[int, TypedLines]) -> None:
    """A line that was put back comes first; the draft is shown again while that one is answered."""
    ours, lines = keyboard
    with anyio.fail_after(30):
        await draft(ours, lines, "dra")
        lines.put_back(["kept"])
        assert lines.continue_draft() == ""
        assert await lines.next() == "kept"
        shown: list[str] = []
        with lines.edited(shown.append):
            assert shown == ["dra"]
        assert lines.continue_draft() == "dra"


@pytest.mark.real_clock
async def test_ctrl_d_that_came_with_a_line_is_kept(keyboard: tuple[int, TypedLines]) -> None:
    """The run ends before it is read: the reading after it tells."""
    ours, lines = keyboard
    with anyio.fail_after(30):
        with lines.edited(lambda text: None):
            os.write(ours, b"one\n\x04")
            assert await lines.next() == "one"
        lines.put_back(["one"])
        assert [await lines.next(), await lines.next()] == ["one", None]


def test_a_terminal_that_is_gone_is_no_error_at_the_end() -> None:
    """Nobody is left to give the keys back to."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb", buffering=0) as stream:
        lines = TypedLines(stream)
        with lines.edited(lambda text: None):
            os.close(ours)
            lines.restore()


def test_the_keys_are_given_back_by_a_signal_and_at_the_end() -> None:
    """Once more does no harm."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb", buffering=0) as stream:
        lines = TypedLines(stream)
        before = termios.tcgetattr(theirs)
        with lines.edited(lambda text: None):
            assert termios.tcgetattr(theirs) != before
            lines.restore()
            assert termios.tcgetattr(theirs) == before
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


@pytest.mark.real_clock
async def test_the_first_signal_is_heard_while_a_body_blocks_the_loop() -> None:
    """So the terminal is the user's again before a second signal ends the process."""
    heard: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

    async def block() -> None:
        signal.raise_signal(signal.SIGINT)
        heard.append("still blocked")
        await anyio.sleep_forever()

    try:
        with anyio.fail_after(30):
            ended = await supervise(block, lambda number: heard.append("announced"), lambda: heard.append("at once"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["at once", "still blocked", "announced"]
    assert ended.signal == signal.SIGINT


class Paper:
    """An output that keeps its text; `wait_for` waits until it has a text."""

    is_terminal = False

    def __init__(self) -> None:
        self.text = ""
        self._more = anyio.Event()

    def goes_where(self, other: Any) -> bool:
        return True

    async def write(self, text: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.text += text
        self._more.set()
        self._more = anyio.Event()

    async def wait_for(self, text: str) -> None:
        while text not in self.text:
            await self._more.wait()


def refuse_rude_words(ctx: Any, agent: Any, given: Any) -> Any:
    """Reject an added input that is rude."""
    rude = "stupid" in given[-1].text
    return AskAgain("no") if rude else GuardrailFunctionOutput(tripwire_triggered=False)


@pytest.mark.real_clock
@pytest.mark.parametrize("fails", [False, True])
async def test_what_becomes_of_each_line(keyboard: tuple[int, TypedLines], fails: bool) -> None:
    """Seen, rejected, or neither: those are left, in their order, when the run fails. Ctrl-D ends the reading."""
    ours, lines = keyboard
    go_on = anyio.Event()
    paper = Paper()

    @tool(failure_error_function=None)
    async def work() -> str:
        """Work."""
        await go_on.wait()
        if fails:
            raise ValueError("broken")
        return "done"

    def answer(request: Any) -> Any:
        texts = [item.text for item in request.items if type(item).__name__ == "UserMessage"]
        return call("work") if request.turn == 1 else say(" | ".join(texts))

    agent = Agent("a", model=FunctionModel(answer), tools=[work], input_guardrails=[InputGuardrail(refuse_rude_words)])
    steering = TypedInputs(lines, Narrator(paper, paper))

    async def type_lines() -> None:
        os.write(ours, b"one\nstupid\ntwo\n\x04")
        await paper.wait_for("+ Taken: two\n")
        go_on.set()

    async def run() -> None:
        async with Runner.run_streamed(agent, "go") as stream:
            await steering.follow(stream)
        assert stream.result.final_output == "go | one | two"

    async def fail() -> None:
        with pytest.raises(ToolCallError, match="broken"):
            await run()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(type_lines)
            await (fail() if fails else run())
    told = re.findall(r"^\+ (.*)$", paper.text, re.MULTILINE)
    assert told[:3] == ["Taken: one", "Taken: stupid", "Taken: two"]
    if fails:
        assert steering.unseen == ["one", "stupid", "two"]
    else:
        assert told[3:] == ["The model sees: one", "Rejected by a guardrail: stupid", "The model sees: two"]
        assert steering.unseen == []


@pytest.mark.real_clock
async def test_a_run_that_is_cancelled_loses_no_line(keyboard: tuple[int, TypedLines]) -> None:
    """The line is in the log or left; the error of the terminal ends the run."""
    ours, lines = keyboard
    paper = Paper()

    @tool
    async def work() -> str:
        """Work."""
        await anyio.sleep_forever()
        raise AssertionError

    agent = Agent("a", model=FunctionModel(lambda request: call("work")), tools=[work])
    steering = TypedInputs(lines, Narrator(paper, paper))
    stream = Runner.run_streamed(agent, "go")
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await paper.wait_for("+ Taken: one\n")
                scope.cancel()

            group.start_soon(cancel)
            os.write(ours, b"one\n")
            async with stream:
                await steering.follow(stream)
    assert steering.unseen == ["one"]
    assert [one.status for one in stream.state.inputs] == ["waiting"]


@pytest.mark.real_clock
async def test_lines_that_were_typed_before_a_question_are_no_answer_to_it(keyboard: tuple[int, TypedLines]) -> None:
    """They came too late for the run to take them: they are the next message, not a verdict. Ctrl-D is kept."""
    ours, lines = keyboard
    paper = Paper()
    steering = TypedInputs(lines, Narrator(paper, paper))
    agent = Agent("a", model=FunctionModel(lambda request: say("done")))
    with anyio.fail_after(30):
        async with Runner.run_streamed(agent, "go") as stream:
            async for _ in stream:
                pass
            for typed in (b"one\n \nyes\n", b"", b"\x04"):
                os.write(ours, typed)
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await steering.follow(stream)
                assert steering.unseen == ["one", "yes"]
        assert await lines.next() is None
        os.write(ours, b"n\n")
        assert await lines.next() == "n"


def test_lines_of_a_terminal_that_is_gone_are_none() -> None:
    """The next reading tells."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb", buffering=0) as stream:
        lines = TypedLines(stream)
        os.close(ours)
        assert lines.take_complete() == []
