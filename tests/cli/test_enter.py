"""`agentloop enter`: the debugger at the first line of a body, async and sync."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

AGENT = '''
import anyio

from agentloop import Agent, tool
from agentloop.testing import ScriptedModel, call, say


@tool
async def double(number: int) -> int:
    """Double a number."""
    twice = number * 2
    await anyio.sleep(0)
    return twice


@tool
def half(number: int) -> float:
    """Halve a number."""
    result = number / 2
    return result


calls = [call("double", {"number": 21}, call_id="c1"), call("half", {"number": 3}, call_id="c2")]
agent = Agent("sums", model=ScriptedModel([calls, say("done")]), tools=[double, half])
'''


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Path:
    """A folder with the agent and the journal of a run."""
    monkeypatch.chdir(tmp_path)
    Path("sums.py").write_text(AGENT)
    done = invoke("run", "sums.py:agent", "go", "--journal", "job")
    assert done.exit_code == 0, done.output
    return tmp_path


@pytest.mark.slow
def test_the_debugger_stops_in_the_body(sums: Path, start: Start) -> None:
    """At its first line, with its arguments; steps lead over an await. A body may run in a thread, too.

    In processes of their own, because a debugger takes the streams of its process.
    """
    lines = {"c1": "p number\nn\nn\np twice\nc\n", "c2": "p number\nc\n", "left": "q\n"}
    shown = {}
    for name, typed in lines.items():
        Path(name).write_text(typed)
        with open(name) as given:
            loop = "trio" if name == "c2" else "asyncio"
            words = ("enter", "job", name.replace("left", "c2"), "--agent", "sums.py:agent", "--backend", loop)
            shown[name] = start(*words, stdin=given)
    out, err = shown["c1"].communicate(timeout=60)
    assert shown["c1"].returncode == 0, (out, err)
    for words in ("-> twice = number * 2", "(Pdb) 21", "-> return twice", "(Pdb) 42", "returned 42", "succeeded: 42"):
        assert words in out
    assert "agentloop/" not in out
    out, err = shown["c2"].communicate(timeout=60)
    assert shown["c2"].returncode == 0, (out, err)
    assert "-> result = number / 2" in out
    assert "(Pdb) 3" in out
    assert "returned 1.5" in out
    out, err = shown["left"].communicate(timeout=60)
    assert shown["left"].returncode == 1, (out, err)
    assert "The debugger was left." in out


def test_a_call_that_is_not_there_is_named(sums: Path, invoke: Invoke) -> None:
    """With exit code 2."""
    made = invoke("enter", "job", "c9", "--agent", "sums.py:agent")
    assert made.exit_code == 2
    assert "call:c9: the model has made no such call" in made.output
