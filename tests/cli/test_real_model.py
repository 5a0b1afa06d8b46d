"""The main job from end to end: the command line, the example, and the model in its child process.

The tests never assert the model's words, only the properties of every answer.
"""

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator

from agentloop import Runner, open_runtime
from agentloop.cli.target import load_agent
from agentloop.events import ArgumentsDelta
from agentloop.models.local import LocalModel

pytestmark = [pytest.mark.local_model, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
TARGET = f"{ROOT / 'examples' / 'repo_helper.py'}:agent"
QUESTIONS = ("How many lines does README.md have?", "What is 17 times 23?")

Start = Callable[..., "subprocess.Popen[str]"]


def _valid_call(call: dict[str, Any]) -> bool:
    tools = {tool.name: tool for tool in load_agent(TARGET).tools}
    Draft202012Validator(tools[call["name"]].params_json_schema).validate(json.loads(call["arguments"]))
    return True


def _models_of(notes: Path) -> list[int]:
    """Return the ids of the model processes that a command of this test started: they inherit its `LANG`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = str(notes).encode() in (entry / "environ").read_bytes()
            if ours and b"_local_server.py" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found


@pytest.mark.slow
def test_one_request_makes_one_valid_call_and_an_answer(start: Start, notes: Path, backend: str) -> None:
    """The run prints JSON, so that the events can be looked at, and no process is left running."""
    child = start("run", TARGET, QUESTIONS[0], "--json", "--backend", backend, cwd=ROOT)
    out, err = child.communicate(timeout=120)
    lines = [json.loads(line) for line in out.splitlines()]
    assert child.returncode in (0, 1), err
    started = [line["call"] for line in lines if line["kind"] == "CallStarted"]
    assert len(started) == 1
    assert _valid_call(started[0])
    assert any(line["kind"] == "ArgumentsDelta" for line in lines)
    last = lines[-1]
    assert last["kind"] == "RunResult"
    assert last["status"] == ("completed" if child.returncode == 0 else "failed")
    if child.returncode == 0:
        assert last["usage"]["output_tokens"] > 0
        assert isinstance(last["final_output"], str)
    assert _models_of(notes) == []


@pytest.mark.slow
def test_many_requests_share_one_model_and_keep_their_order(
    start: Start, notes: Path, backend: str, tmp_path: Path
) -> None:
    """Each request has its answer or its error in its place."""
    file = tmp_path / "requests.txt"
    file.write_text("\n".join(QUESTIONS))
    child = start("run", TARGET, "--input", str(file), "--json", "--backend", backend, cwd=ROOT)
    out, err = child.communicate(timeout=120)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["request"] for line in lines] == list(QUESTIONS)
    failed = sum(line["status"] == "failed" for line in lines)
    assert child.returncode == (1 if failed else 0), err
    assert _models_of(notes) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_an_answer_leaves_nothing_running(
    start: Start, notes: Path, backend: str, number: int, code: int
) -> None:
    """The model's process ends with the command."""
    child = start("run", TARGET, QUESTIONS[0], "--json", "--backend", backend, cwd=ROOT)
    assert child.stdout is not None
    for line in child.stdout:
        if json.loads(line)["kind"] == "ArgumentsDelta":
            break
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert json.loads(out.splitlines()[-1])["status"] == "cancelled"
    assert _models_of(notes) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_the_model_ends_when_the_command_is_killed(start: Start, notes: Path, backend: str) -> None:
    """The model's process ends in every case; the test waits for its end."""
    child = start("run", TARGET, QUESTIONS[0], "--json", "--backend", backend, cwd=ROOT)
    assert child.stdout is not None
    child.stdout.readline()
    (ours,) = _models_of(notes)
    ended = os.pidfd_open(ours)  # readable once the process has ended
    child.kill()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.real_clock
async def test_leaving_a_stream_in_the_middle_frees_the_model_for_the_next_run(anyio_backend: object) -> None:
    """The same model answers again after one left answer, and its process is gone at the end."""
    model = LocalModel()
    agent = load_agent(TARGET).clone(model=model)
    async with open_runtime(), model:
        pid = model.pid
        async with Runner.run_streamed(agent, QUESTIONS[1]) as stream:
            async for event in stream:
                if isinstance(event, ArgumentsDelta):
                    break
        with anyio.fail_after(60):
            async with Runner.run_streamed(agent, QUESTIONS[1]) as stream:
                deltas = [event async for event in stream if isinstance(event, ArgumentsDelta)]
        assert deltas
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
