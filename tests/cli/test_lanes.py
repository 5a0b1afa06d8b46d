"""The live display of a run at a pseudo-terminal, and the places that get plain lines instead."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cli.terminal import Terminal, opened

from agentloop import Agent, RunConfig, Runner, UsageLimits
from agentloop import events as ev
from agentloop.cli.calls_table import render_summary
from agentloop.cli.lane_board import LaneBoard
from agentloop.items import ToolCall
from agentloop.testing import ScriptedModel, say
from agentloop.usage import RequestUsage

Start = Callable[..., "subprocess.Popen[str]"]
AgentOf = Callable[[str], str]
SPINNING = r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]"


@pytest.fixture(autouse=True)
def _terminal_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def check_restored(terminal: Terminal) -> None:
    """Assert that no lane is left, and that the cursor is shown."""
    assert not re.search(SPINNING, "\n".join(terminal.lines)), terminal.lines
    assert not terminal.screen.cursor.hidden


@pytest.mark.slow
def test_calls_under_way_have_lanes_and_the_end_has_a_table(
    start: Start, agent: AgentOf, pipe: Path, backend: str
) -> None:
    """Two calls run, one is queued; then each has its line, and only these, the answer and the table stay."""
    terminal = Terminal(start, "run", agent("climber"), "3", "--backend", backend)
    terminal.wait_for_line(rf"{SPINNING} climb .* 1 of 4 .*")
    terminal.wait_for_line(r"· climb .* · queued")
    assert terminal.lines[0] == "Up we go"
    with opened(pipe):
        assert terminal.finish() == 0, terminal.shown
    check_restored(terminal)
    lines = terminal.lines
    assert sum(line.startswith("✓ climb ") for line in lines) == 3
    assert lines.count("All are climbed.") == 1
    table = lines[lines.index("All are climbed.") + 1 :]
    assert table[0].split() == ["call", "outcome", "queue", "time"]
    assert [line.split()[:2] for line in table[1:4]] == [["climb", "succeeded"]] * 3
    assert re.fullmatch(r"2 requests · .*s", table[4])
    assert "\x1b[2J" not in terminal.shown


@pytest.mark.slow
def test_lanes_of_a_nested_run_are_below_their_call(start: Start, agent: AgentOf, pipe: Path) -> None:
    """They are indented, in the table too; a narrow terminal cuts lines and wraps none."""
    terminal = Terminal(start, "run", agent("guide"), "Go", columns=44)
    terminal.wait_for_line(rf"  {SPINNING} climb .*")
    terminal.wait_for_line(r"  · climb .*queued")
    assert re.fullmatch(rf"{SPINNING} go_up .*", terminal.lines[0])
    assert len(terminal.lines) == 4
    with opened(pipe):
        assert terminal.finish() == 0, terminal.shown
    check_restored(terminal)
    table = terminal.lines[terminal.lines.index("Done.") + 2 :]
    assert [line.rstrip().split("  ")[0:2][0] or "nested" for line in table[:4]] == ["go_up", *["nested"] * 3]


@pytest.mark.slow
def test_more_lanes_than_fit_are_counted(start: Start, agent: AgentOf, pipe: Path) -> None:
    """A terminal of eight lines shows four lanes."""
    terminal = Terminal(start, "run", agent("climber"), "9", lines=8)
    assert terminal.wait_for_line(r"… and \d more") == "… and 5 more"
    with opened(pipe):
        assert terminal.finish() == 0, terminal.shown
    check_restored(terminal)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_restores_the_terminal(
    start: Start, agent: AgentOf, notes: Path, backend: str, number: int, code: int
) -> None:
    """The lanes are gone and the cursor is back when the cancellation is announced; bodies are joined."""
    terminal = Terminal(start, "run", agent("hanging"), "Hang", "--backend", backend)
    terminal.wait_for_line(rf"{SPINNING} hang .*")
    terminal.child.send_signal(number)
    terminal.wait_for_line("Cancelling; once more ends at once.")
    check_restored(terminal)
    assert terminal.finish() == code
    assert notes.read_text() == "cleaned\n" * 3


@pytest.mark.slow
def test_second_signal_finds_the_terminal_restored(start: Start, agent: AgentOf, backend: str) -> None:
    """Nothing can restore it then any more."""
    terminal = Terminal(start, "run", agent("resisting"), "Resist", "--backend", backend)
    terminal.wait_for_line(rf"{SPINNING} resist .*")
    terminal.child.send_signal(signal.SIGINT)
    terminal.wait_for_line("Cancelling; once more ends at once.")
    terminal.child.send_signal(signal.SIGINT)
    assert terminal.finish() == -signal.SIGINT
    check_restored(terminal)


@pytest.mark.slow
def test_terminal_that_takes_nothing_does_not_hold_up_the_run(
    start: Start, agent: AgentOf, notes: Path, backend: str
) -> None:
    """Far more text than a terminal buffers: the call behind it runs although nothing is read."""
    os.mkfifo(notes)
    terminal = Terminal(start, "run", agent("talking_on"), "Talk", "--backend", backend)
    with notes.open() as noted:  # until the tool opens it for writing
        assert noted.readline() == "finished\n"
    assert terminal.finish() == 0
    assert terminal.shown.count("many words\n") == 20_000
    check_restored(terminal)


@pytest.mark.slow
def test_failed_run_leaves_its_error_and_no_lanes(start: Start, agent: AgentOf, backend: str) -> None:
    """The exit code is that of a failure."""
    terminal = Terminal(start, "run", agent("endless"), "Go", "--max-turns", "2", "--backend", backend)
    assert terminal.finish() == 1
    assert any(line.startswith("Error: MaxTurnsExceeded") for line in terminal.lines), terminal.lines
    check_restored(terminal)


@pytest.mark.slow
def test_closed_window_ends_the_command(start: Start, agent: AgentOf, notes: Path, backend: str) -> None:
    """The run is cancelled and joined; the exit code is that of an output without a reader."""
    terminal = Terminal(start, "run", agent("hanging"), "Hang", "--backend", backend, stdin=subprocess.DEVNULL)
    terminal.wait_for_line(rf"{SPINNING} hang .*")
    terminal.close()
    assert terminal.child.wait(60) == 141
    assert notes.read_text() == "cleaned\n" * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "columns"),
    [({"TERM": "dumb"}, 80), ({"TERM": ""}, 80), ({}, 20), ({"PYTHONIOENCODING": "ascii"}, 80)],
    ids=["dumb", "unknown", "narrow", "ascii"],
)
def test_terminal_that_cannot_show_lanes_gets_plain_lines(
    start: Start, agent: AgentOf, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], columns: int
) -> None:
    """A line when a call starts, one when it has settled, and no table; nothing moves the cursor."""
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(start, "run", agent("doubler"), "Double 21", columns=columns)
    assert terminal.finish() == 0
    assert "It is 42.\n" in terminal.shown
    assert "outcome" not in terminal.shown
    assert not re.search(r"\x1b\[[0-9;?]*[A-HJKlh]", terminal.shown)


@pytest.mark.slow
def test_no_color_has_lanes_without_colors(
    start: Start, agent: AgentOf, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Bold is left, and so is the movement of the cursor."""
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(start, "run", agent("doubler"), "Double 21", "--backend", backend)
    assert terminal.finish() == 0
    assert "succeeded" in terminal.shown
    assert not re.search(r"\x1b\[[0-9;]*[34][0-7]m", terminal.shown)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "chat"])
def test_price_of_a_file_gives_the_cost(start: Start, agent: AgentOf, tmp_path: Path, command: str) -> None:
    """It is asked for each request, by the name of the model."""
    prices = tmp_path / "prices.py"
    prices.write_text("from decimal import Decimal\n\ndef price(model, usage):\n    return Decimal('0.5')\n")
    message = ("hello",) if command == "run" else ()
    terminal = Terminal(start, command, agent("used"), *message, "--price", f"{prices}:price")
    if command == "chat":
        terminal.wait_for("> ")
        terminal.type("hello")
        terminal.wait_for_line("1 request · 1,200 tokens in, 34 out · cost 0.5 · .*")
        terminal.type("\x04")
    assert terminal.finish() == 0, terminal.shown
    assert any(" · cost 0.5 · " in line for line in terminal.lines), terminal.lines


@pytest.mark.slow
def test_conversation_has_lanes_and_usage_but_no_table(start: Start, agent: AgentOf, backend: str) -> None:
    """Ctrl-C erases them, and the prompt comes back."""
    terminal = Terminal(start, "chat", agent("talker"), "--backend", backend, columns=100)
    terminal.wait_for("> ")
    terminal.type("hang")
    terminal.wait_for_line(rf"{SPINNING} hang .*")
    terminal.child.send_signal(signal.SIGINT)
    terminal.wait_for("Cancelled.\n> ")
    check_restored(terminal)
    terminal.type("hi")
    terminal.wait_for_line("1 request · .*s")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.finish() == 0
    assert "outcome" not in terminal.shown


@pytest.mark.slow
def test_without_a_terminal_rich_is_not_imported(agent: AgentOf) -> None:
    """It takes as long to import as the rest of the command."""
    program = (
        "import sys; sys.argv = ['agentloop', 'run', sys.argv[1], 'Double 21']\n"
        "from agentloop.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'rich.console' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, agent("doubler")], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "It is 42.\n0 False\n"


# ------------------------------------------------------------------------------------------------ the parts


def _names(board: LaneBoard) -> list[str]:
    return [f"{'  ' * lane.depth}{lane.name} {lane.state}".rstrip() for lane in board.lanes]


def test_lanes_follow_the_events() -> None:
    """A request until its first call, a call from its request to its end, nested lanes below their call."""
    board = LaneBoard("local:tiny")
    call, other = ToolCall("c1", "fetch", "{}"), ToolCall("c2", "ask\x1b[2J", "{}")
    steps: list[tuple[Any, list[str]]] = [
        (ev.AgentUpdated(Agent("a")), []),
        (ev.TurnStarted(), ["model"]),
        (ev.ReasoningDelta("hm"), ["model reasons"]),
        (ev.TextDelta("well"), ["model writes"]),
        (ev.ArgumentsDelta("c1", "{"), ["model calls tools"]),
        (ev.RawModelEvent({}), ["model calls tools"]),
        (ev.ItemCreated(call), ["model calls tools", "fetch queued"]),
        (ev.ItemCreated(other), ["model calls tools", "fetch queued", "ask\\x1b[2J queued"]),
        (ev.CallStarted(other), ["fetch queued", "ask\\x1b[2J"]),
        (ev.TurnStarted(path=("c2",)), ["fetch queued", "ask\\x1b[2J", "  model"]),
        (ev.CallStarted(call), ["fetch", "ask\\x1b[2J", "  model"]),
        (ev.CallProgress(call, 1, 2, "half\nway"), ["fetch 1 of 2 half way", "ask\\x1b[2J", "  model"]),
        (ev.CallProgress(ToolCall("gone", "x", "{}"), 1), ["fetch 1 of 2 half way", "ask\\x1b[2J", "  model"]),
        (ev.CallSettled(call, None), ["ask\\x1b[2J", "  model"]),
        (ev.CallSettled(other, None), []),
        (ev.TextDelta("late"), []),
        (ev.ItemCreated(call), ["fetch queued"]),
        (ev.TurnEnded(), []),
    ]
    for event, expected in steps:
        board.note(event, 1.0)
        assert _names(board) == expected, event
    board.note(ev.TurnStarted(), 2.0)
    assert [(lane.words, lane.since) for lane in board.lanes] == [("local:tiny", 2.0)]
    board.clear()
    assert board.lanes == []


@pytest.mark.anyio
async def test_summary_has_tokens_and_cost(anyio_backend: object) -> None:
    """The cost is that of `RunConfig.price`; a run without calls has no table."""
    usage = RequestUsage(input_tokens=1200, output_tokens=34, total_tokens=1234)
    agent = Agent("a", model=ScriptedModel([say("hello", usage)]))
    config = RunConfig(price=lambda model, used: Decimal("0.25"), limits=UsageLimits())
    result = await Runner.run(agent, "hi", run_config=config)
    text = render_summary(result.records, 80)
    assert re.fullmatch(r"1 request · 1,200 tokens in, 34 out · cost 0\.25 · \d.*s\n", _plain(text)), text


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.slow
def test_json_at_a_terminal_has_no_lanes(start: Start, agent: AgentOf) -> None:
    """Each line is an object."""
    terminal = Terminal(start, "run", agent("doubler"), "Double 21", "--json", columns=500)
    assert terminal.finish() == 0
    assert json.loads(terminal.shown.splitlines()[-1])["kind"] == "RunResult"
