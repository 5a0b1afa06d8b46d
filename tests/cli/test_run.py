"""`agentloop run` with one request, in this process."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import agentloop
from agentloop.cli import main

Invoke = Callable[..., Result]
AgentOf = Callable[[str], str]
Start = Callable[..., "subprocess.Popen[str]"]


def test_the_answer_is_on_the_output_and_the_calls_on_the_error_output(
    invoke: Invoke, agent: AgentOf, backend: str
) -> None:
    """A script can pipe the answer alone; the text also comes as it is made."""
    result = invoke("run", agent("doubler"), "Double 21", "--backend", backend)
    assert result.exit_code == 0
    assert result.stdout == "It is 42.\n"
    lines = result.stderr.splitlines()
    assert lines[0] == '→ double {"number": 21}'
    assert lines[1].startswith("✓ double ")
    assert lines[1].endswith(" ms")
    assert lines[2] == "It is 42."


def test_a_tool_output_that_ends_the_run_is_the_answer(invoke: Invoke, agent: AgentOf) -> None:
    """The output is printed as text, like any answer."""
    assert invoke("run", agent("stopping"), "Double 21").stdout == "42\n"


def test_json_gives_one_object_a_line_and_the_result_last(invoke: Invoke, agent: AgentOf, backend: str) -> None:
    """Every line parses, and the lines are in the order of the events."""
    result = invoke("run", agent("doubler"), "Double 21", "--json", "--backend", backend)
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "AgentUpdated"
    assert kinds.index("CallStarted") < kinds.index("CallSettled") < kinds.index("TextDelta")
    assert kinds[-2:] == ["RunEnded", "RunResult"]
    assert lines[0]["agent"] == "doubler"
    settled: dict[str, Any] = lines[kinds.index("CallSettled")]
    assert settled["call"] == {
        "kind": "ToolCall",
        "call_id": "call_1",
        "name": "double",
        "arguments": '{"number": 21}',
        "namespace": None,
        "of": "function",
        "caller": None,
    }
    assert (settled["outcome"]["status"], settled["outcome"]["output"]) == ("succeeded", "42")
    assert "value" not in settled["outcome"]
    last = lines[-1]
    assert (last["status"], last["final_output"], last["agent"]) == ("completed", "It is 42.", "doubler")
    assert last["error"] is None
    assert last["usage"]["requests"] == 2


def test_a_failing_run_ends_with_1_and_its_error_without_secrets(invoke: Invoke, agent: AgentOf, backend: str) -> None:
    """The error output has type and message, and a traceback only if it was asked for."""
    result = invoke("run", agent("echo"), "bad one", "--backend", backend)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: ValueError: can't answer 'bad one': api_key=[redacted]\n"
    traced = invoke("run", agent("echo"), "bad one", "--backend", backend, "--traceback")
    assert "Traceback" in traced.stderr
    assert "hunter2" not in traced.stderr


@pytest.mark.slow
def test_failed_tool_is_told_of_once(start: Start, agent: AgentOf) -> None:
    """By the display; the line of the log, which nothing else shows, isn't written beside it. In JSON it is."""
    told = start("run", agent("clumsy"), "go").communicate(timeout=30)[1]
    assert told.count("no step 3") == 1
    assert "✗ trip" in told
    in_json = start("run", agent("clumsy"), "go", "--json").communicate(timeout=30)[1]
    assert "tool trip failed in call c1" in in_json


@pytest.mark.scenario("RP-22")
def test_traceback_of_a_tool_that_the_model_is_told_of_is_shown_on_demand(invoke: Invoke, agent: AgentOf) -> None:
    """The traceback shows no secret, and the answer stays the same."""
    traced = invoke("run", agent("clumsy"), "go", "--traceback")
    assert (traced.exit_code, traced.stdout) == (0, "Never mind.\n")
    assert "tool trip failed in call c1: ValueError(no step 3, api_key=[redacted])" in traced.stderr
    assert "agents.py" in traced.stderr
    assert "hunter2" not in traced.stderr
    plain = invoke("run", agent("clumsy"), "go")
    assert plain.stdout == "Never mind.\n"
    assert "agents.py" not in plain.stderr


@pytest.mark.scenario("RP-11")
@pytest.mark.scenario("RP-22")
@pytest.mark.parametrize("name", ["refused", "lost", "unsure"])
@pytest.mark.parametrize("option", [None, "--traceback", "--json"])
def test_failure_of_a_call_with_secret_arguments_shows_them_nowhere(
    invoke: Invoke, agent: AgentOf, name: str, option: str | None
) -> None:
    """A secret shows in no error, at any step that raises it; its type is shown, and a traceback names its file."""
    result = invoke("run", agent(name), "go", *([option] if option else []))
    assert result.exit_code != 0
    assert "[redacted]" in result.output
    assert "canary-4711" not in result.output
    if option == "--traceback":
        assert "agents.py" in result.stderr
        assert ("ValueError" if name == "refused" else "UserError") in result.stderr


def test_a_failing_run_in_json_ends_with_a_result_that_holds_the_error(invoke: Invoke, agent: AgentOf) -> None:
    """The last line is the result, also of a run that failed."""
    result = invoke("run", agent("echo"), "bad one", "--json")
    assert result.exit_code == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["kind"], last["status"], last["final_output"]) == ("RunResult", "failed", None)
    assert last["error"] == {"type": "ValueError", "message": "can't answer 'bad one': api_key=[redacted]"}
    assert "hunter2" not in result.output


def test_max_turns_bounds_the_run(invoke: Invoke, agent: AgentOf) -> None:
    """The limit is the option's, and passing it is a failure of the run."""
    result = invoke("run", agent("endless"), "Go on", "--max-turns", "2")
    assert result.exit_code == 1
    assert "MaxTurnsExceeded: Max turns (2) exceeded" in result.stderr
    assert result.stderr.count("→ double") == 2


def test_control_characters_of_a_model_do_not_reach_the_terminal(invoke: Invoke, agent: AgentOf) -> None:
    """Arguments are shown with control characters written out; a failed call says why, and the run continues."""
    result = invoke("run", agent("steering"), "Clear my screen", "--max-turns", "1")
    assert "\x1b" not in result.stderr
    assert "✗ double failed" in result.stderr


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("nowhere", (), "'nowhere:model' is no known model string"),
        ("echo", ("--model", "opnai-chat:x"), "Did you mean 'openai-chat:'?"),
        ("keyless", (), "Set the environment variable OPENAI_API_KEY"),
    ],
)
def test_a_missing_key_or_model_ends_with_2(
    invoke: Invoke, agent: AgentOf, monkeypatch: pytest.MonkeyPatch, name: str, options: tuple[str, ...], said: str
) -> None:
    """The error says what is missing, before anything runs."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    result = invoke("run", agent(name), "Hello", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run",), "Missing argument 'TARGET'"),
        (("run", "x:y", " "), "REQUEST is empty"),
        (("run", "x:y", "Hello", "--input", "-"), "not both"),
        (("run", "x:y", "Hello", "--backend", "twisted"), "'twisted' is not one of"),
        (("run", "x:y", "Hello", "--max-turns", "0"), "0 is not in the range x>=1"),
        (("run", "x:y", "--concurrency", "0"), "0 is not in the range x>=1"),
        (("run", "x:y", "--input", "absent.txt"), "No such file or directory"),
        (("fly",), "No such command 'fly'"),
    ],
)
def test_wrong_use_ends_with_2(invoke: Invoke, arguments: tuple[str, ...], said: str) -> None:
    """The error output has the reason."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_backend_that_is_not_installed_is_told_of(
    invoke: Invoke, agent: AgentOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the command that installs the backend."""
    monkeypatch.setitem(sys.modules, "trio", None)
    result = invoke("run", agent("echo"), "Hello", "--backend", "trio")
    assert result.exit_code == 2
    assert "pip install 'agentloop-anyio[trio]'" in result.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_the_command_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the extra to install, and is no ImportError."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (f"The command line needs {missing}: pip install 'agentloop-anyio[cli]'\n")


def test_version_and_help(invoke: Invoke) -> None:
    """The version is the package's; every option is explained."""
    assert invoke("--version").stdout == f"agentloop, version {agentloop.__version__}\n"
    shown = invoke("run", "--help").stdout
    for option in ("--backend", "--model", "--json", "--max-turns", "--input", "--concurrency", "--traceback"):
        assert option in shown


@pytest.mark.slow
def test_answer_comes_once_where_both_outputs_are_one_pipe(start: Start, agent: AgentOf, backend: str) -> None:
    """With `2>&1 |`, the text that was shown as it came isn't repeated."""
    child = start("run", agent("doubler"), "Double 21", "--backend", backend, stderr=subprocess.STDOUT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0, out
    lines = out.splitlines()
    assert lines[0] == '→ double {"number": 21}'
    assert lines[1].startswith("✓ double ")
    assert lines[2:] == ["It is 42."]


@pytest.mark.slow
def test_answer_of_a_tool_comes_where_both_outputs_are_one_pipe(start: Start, agent: AgentOf) -> None:
    """The tool's output is printed, since the model hasn't said it and so it wasn't shown."""
    child = start("run", agent("stopping"), "Double 21", stderr=subprocess.STDOUT)
    out, _ = child.communicate(timeout=60)
    assert out.splitlines()[-1] == "42"


@pytest.mark.slow
def test_answer_comes_once_where_both_outputs_are_one_file(start: Start, agent: AgentOf, tmp_path: Path) -> None:
    """With `> file 2>&1`, the file has the answer once."""
    with (tmp_path / "out").open("wb") as file:
        assert start("run", agent("doubler"), "Double 21", stdout=file, stderr=subprocess.STDOUT).wait(60) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").count("It is 42.") == 1


@pytest.mark.slow
def test_answer_comes_once_where_both_outputs_are_one_terminal(start: Start, agent: AgentOf) -> None:
    """The answer is printed once on a terminal that shows both outputs."""
    ours, theirs = pty.openpty()
    try:
        child = start("run", agent("doubler"), "Double 21", stdout=theirs, stderr=theirs)
        assert child.wait(60) == 0
        os.set_blocking(ours, False)
        assert os.read(ours, 65_536).decode().count("It is 42.") == 1
    finally:
        os.close(ours)
        os.close(theirs)
