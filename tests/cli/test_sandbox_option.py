"""`agentloop run --sandbox DIR`: runs with a sandbox, also over a pause and in another process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]

AGENT = """
from agentloop import Agent, ToolContext, tool
from agentloop.items import ToolOutput
from agentloop.testing import FunctionModel, call, say

@tool
async def write(ctx: ToolContext[None]) -> str:
    "Write."
    with open(ctx.sandbox.directory / "note", "w") as file:
        file.write("kept")
    return "written"

@tool(needs_approval=True)
async def read(ctx: ToolContext[None]) -> str:
    "Read."
    with open(ctx.sandbox.directory / "note") as file:
        return file.read()

def answer(request):
    said = [item.output for item in request.items if isinstance(item, ToolOutput)]
    return say(said[-1]) if len(said) == 2 else [call(("write", "read")[len(said)], call_id=f"c{len(said)}")]

agent = Agent("boxed", model=FunctionModel(answer), tools=[write, read])
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boxed.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)


def test_a_run_has_a_sandbox_that_goes_with_it(invoke: Invoke, backend: str) -> None:
    """Its folder is empty when the run is over; without the option a tool that needs one fails."""
    options = ("--approve", "always", "--backend", backend)
    done = invoke("run", "boxed.py:agent", "go", "--sandbox", "boxes", *options)
    assert (done.exit_code, done.stdout) == (0, "kept\n"), done.stderr
    assert list(Path("boxes").iterdir()) == []
    assert "kept\n" not in invoke("run", "boxed.py:agent", "go", *options).stdout


def test_a_resumed_job_finds_its_sandboxes(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job knows the folder, in whatever folder `resume` is called; another folder is another job."""
    paused = invoke("run", "boxed.py:agent", "go", "--sandbox", "boxes", "--journal", "job")
    assert paused.exit_code == 3
    assert len(list(Path("boxes").iterdir())) == 1
    assert json.loads(Path("job/job.json").read_text())["sandbox"] == str(tmp_path / "boxes")
    other = invoke("run", "boxed.py:agent", "go", "--journal", "job")
    assert other.exit_code == 2
    assert "its sandbox is" in other.stderr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = invoke("resume", "../job", "--approve", "always")
    assert (done.exit_code, done.stdout) == (0, "kept\n"), done.stderr
    assert list((tmp_path / "boxes").iterdir()) == []


def test_a_job_of_an_earlier_version_has_no_sandbox(invoke: Invoke) -> None:
    """Its job.json lacks the field."""
    assert invoke("run", "boxed.py:agent", "go", "--journal", "job").exit_code == 3
    order = json.loads(Path("job/job.json").read_text())
    del order["sandbox"]
    Path("job/job.json").write_text(json.dumps(order))
    assert invoke("resume", "job").exit_code == 3
