"""`agentloop fork`: the table, the journals and the page that it writes, its exit codes, and an interruption."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

AGENT = '''
from pathlib import Path

import anyio

from agentloop import Agent, tool
from agentloop.items import ToolOutput
from agentloop.testing import FunctionModel, call, say


@tool
async def stock(item: str) -> str:
    """Look the stock up."""
    Path("calls.txt").write_text(item)
    return "5 left"


async def play(request):
    if request.system == "Hang.":
        Path("hanging.txt").touch()
        await anyio.sleep_forever()
    if request.system == "Fail.":
        raise ValueError("no such luck")
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    return say(f"{request.system} {outputs[0]}") if outputs else call("stock", {"item": "tea"}, call_id="c1")


agent = Agent("shop", instructions="Shop:", model=FunctionModel(play), tools=[stock])
'''
FORK = ("fork", "job", "--agent", "shop.py:agent", "--turn", "2")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Path:
    """A folder with the agent and the journal of a run."""
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(AGENT)
    Path("short.txt").write_text("Short:")
    done = invoke("run", "shop.py:agent", "Is there tea?", "--journal", "job")
    assert done.exit_code == 0, done.output
    Path("calls.txt").unlink()
    return tmp_path


@pytest.mark.scenario("LB-14")
def test_branches_are_continued_with_an_edit(shop: Path, invoke: Invoke) -> None:
    """The table has each branch's answer; each has a journal, from which another fork is made; no body runs."""
    edit = ("--set", 'call:c1.output="sold out"')
    made = invoke(*FORK, *edit, "--branch", "instructions=short.txt", "--branch", "seed=1", "--out", "out")
    assert made.exit_code == 0, made.output
    assert "set call:c1.output" in made.output
    assert "Short: sold out" in made.output
    assert "Shop: sold out" in made.output
    assert sorted(path.name for path in Path("out").iterdir()) == ["instructions=short.txt.journal", "seed=1.journal"]
    again = invoke("fork", "out/seed=1.journal", *FORK[2:], "--html", "tree.html")
    assert again.exit_code == 0, again.output
    assert "branch seed=1" in again.output
    assert "Shop: sold out" in Path("tree.html").read_text()
    diff = invoke("diff", "job", "out/seed=1.journal")
    assert diff.exit_code == 1
    assert "+ turn 1, output: succeeded: sold out" in diff.output
    assert not Path("calls.txt").exists()


def test_a_branch_that_fails_gives_exit_code_1(shop: Path, invoke: Invoke) -> None:
    """The others have their answers."""
    Path("fail.txt").write_text("Fail.")
    made = invoke(*FORK, "--branch", "instructions=fail.txt", "--branch", "name=other")
    assert made.exit_code == 1
    assert "no such luck" in made.output
    assert "Shop: 5 left" in made.output


@pytest.mark.scenario("LB-15")
def test_an_edit_is_refused_with_its_rule(shop: Path, invoke: Invoke) -> None:
    """Exit code 2, and nothing is written."""
    made = invoke(*FORK, "--drop", "call:c1", "--out", "out")
    assert made.exit_code == 2
    assert "Error: edit 'drop call:c1': record" in made.output
    assert "doesn't fit those before it" in made.output
    assert not Path("out").exists()


@pytest.mark.slow
@pytest.mark.scenario("LB-14")
def test_an_interruption_leaves_nothing(shop: Path, start: Start) -> None:
    """No journal of a branch that was cut off, nor of one that had ended."""
    Path("hang.txt").write_text("Hang.")
    process = start(*FORK, "--branch", "instructions=hang.txt", "--branch", "seed=1", "--out", "out")
    while not Path("hanging.txt").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert not Path("out").exists()
    assert "Traceback" not in err
