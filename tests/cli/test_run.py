"""`agentloop run` with one request, in this process."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

import agentloop
from agentloop.cli import main

Invoke = Callable[..., Result]
AgentOf = Callable[[str], str]


def test_the_answer_is_on_the_output_and_the_calls_on_the_error_output(
    invoke: Invoke, agent: AgentOf, backend: str
) -> None:
    """So that a script can pipe the answer alone; the text also comes as it is made."""
    result = invoke("run", agent("doubler"), "Double 21", "--backend", backend)
    assert result.exit_code == 0
    assert result.stdout == "It is 42.\n"
    lines = result.stderr.splitlines()
    assert lines[0] == '→ double {"number": 21}'
    assert lines[1].startswith("✓ double ")
    assert lines[1].endswith(" ms")
    assert lines[2] == "It is 42."


def test_a_tool_output_that_ends_the_run_is_the_answer(invoke: Invoke, agent: AgentOf) -> None:
    """As text, like any answer."""
    assert invoke("run", agent("stopping"), "Double 21").stdout == "42\n"


def test_json_gives_one_object_a_line_and_the_result_last(invoke: Invoke, agent: AgentOf, backend: str) -> None:
    """Every line parses, in the order of the events."""
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
    }
    assert (settled["outcome"]["status"], settled["outcome"]["output"]) == ("succeeded", "42")
    assert "value" not in settled["outcome"]
    last = lines[-1]
    assert (last["status"], last["final_output"], last["agent"]) == ("completed", "It is 42.", "doubler")
    assert last["error"] is None
    assert last["usage"]["requests"] == 2


def test_a_failing_run_ends_with_1_and_its_error_without_secrets(invoke: Invoke, agent: AgentOf, backend: str) -> None:
    """Type and message on the error output, no traceback unless asked for."""
    result = invoke("run", agent("echo"), "bad one", "--backend", backend)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: ValueError: can't answer 'bad one': api_key=[redacted]\n"
    traced = invoke("run", agent("echo"), "bad one", "--backend", backend, "--traceback")
    assert "Traceback" in traced.stderr
    assert "hunter2" not in traced.stderr


def test_a_failing_run_in_json_ends_with_a_result_that_holds_the_error(invoke: Invoke, agent: AgentOf) -> None:
    """The last line is the result, whatever became of the run."""
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
    """Arguments are shown with them written out; a failed call says why, and the run goes on."""
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
    """And says what is missing, before anything runs."""
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
    """With the reason on the error output."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_backend_that_is_not_installed_is_told_of(
    invoke: Invoke, agent: AgentOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "trio", None)
    result = invoke("run", agent("echo"), "Hello", "--backend", "trio")
    assert result.exit_code == 2
    assert 'pip install "agentloop[trio]"' in result.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_the_command_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not an ImportError."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f'The command line needs {missing}. Run: pip install "agentloop[cli]"\n'


def test_version_and_help(invoke: Invoke) -> None:
    """The package's version; every option is explained."""
    assert invoke("--version").stdout == f"agentloop, version {agentloop.__version__}\n"
    shown = invoke("run", "--help").stdout
    for option in ("--backend", "--model", "--json", "--max-turns", "--input", "--concurrency", "--traceback"):
        assert option in shown
