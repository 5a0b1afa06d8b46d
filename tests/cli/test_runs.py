"""`agentloop runs` of a folder: how its runs stand, from their journals alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from agentloop.cli.stored_runs import format_age

Invoke = Callable[..., Result]

AGENT = '''
from agentloop import Agent, tool
from agentloop.testing import ScriptedModel, call, say


@tool(needs_approval=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


def answer(request):
    return call("delete", {"path": "a.txt"}, call_id="c1") if request.items[-1].text == "Clean" else say("four")


agent = Agent("keeper", model=ScriptedModel([answer] * 9), tools=[delete])
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> str:
    """A job with a run that has completed and one that waits."""
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT)
    Path("requests.txt").write_text("How many?\nClean\n")
    asked = ("run", "agent.py:agent", "--input", "requests.txt", "--journal", "job", "--approve", "never")
    assert invoke(*asked).exit_code == 3
    Path("job/line-000009.journal").write_bytes(b"")  # a run that has just begun
    return "job"


def test_runs_of_a_folder_are_listed(folder: str, invoke: Invoke) -> None:
    """One line each, with the calls that wait."""
    shown = invoke("runs", folder)
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = sorted(shown.stdout.splitlines())
    assert [line.split("  ")[:2] for line in lines] == [["line-000001", "completed"], ["line-000002", "interrupted"]]
    assert lines[1].endswith("keeper  delete (c1) waits for its approval")


def test_listed_runs_are_chosen(folder: str, invoke: Invoke) -> None:
    """By status, agent, age and number; as JSON for programs."""
    shown = invoke("runs", folder, "--status", "interrupted", "--json")
    [run] = map(json.loads, shown.stdout.splitlines())
    assert (run["run_id"], run["status"], run["agent"]) == ("line-000002", "interrupted", "keeper")
    assert run["waiting"] == [{"call_id": "c1", "tool": "delete", "agent": "keeper", "asks": "approval"}]
    assert len(invoke("runs", folder, "--limit", "1").stdout.splitlines()) == 1
    assert invoke("runs", folder, "list", "line-000001").stdout.startswith("line-000001  completed")
    shown = invoke("runs", folder, "list", "line-000002", "none")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", "Error: StateError: there is no run 'none'\n")
    for options in (["--agent", "other"], ["--older-than", "3d"], ["--status", "failed"]):
        shown = invoke("runs", folder, *options)
        assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "There is no such run.\n")


@pytest.mark.parametrize(
    ("seconds", "said"), [(-1.0, "0 s"), (59.9, "59 s"), (60.0, "1 m"), (7300.0, "2 h"), (86400.0 * 3.9, "3 d")]
)
def test_an_age_has_its_largest_unit(seconds: float, said: str) -> None:
    """A whole number of it."""
    assert format_age(seconds) == said
