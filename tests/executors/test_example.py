"""The example that answers by shell commands asks for each of them at the terminal."""

import os
import subprocess
import sys
from types import ModuleType

import anyio
import pytest
from kit.examples import ROOT, has_local_model, load_example

from agentloop.testing import ScriptedModel, call


@pytest.fixture
def example() -> ModuleType:
    """The example as a module."""
    return load_example("shell_helper")


@pytest.mark.parametrize(("answer", "shown"), [("y", "hi\n"), ("", "The person at the terminal said no.\n")])
def test_each_command_is_asked_for(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    shown: str,
) -> None:
    """It runs after a yes, and only then."""
    questions: list[str] = []

    def answered(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr("builtins.input", answered)
    model = ScriptedModel([call("shell", {"commands": ["echo hi"], "timeout_ms": None})])
    monkeypatch.setattr(example, "agent", example.agent.clone(model=model))
    anyio.run(example.main, "Say hi.")
    assert questions == ["Run 'echo hi'? [y/N] "]
    assert capsys.readouterr().out == shown


@pytest.mark.local_model
@pytest.mark.skipif(not has_local_model(), reason="the local model isn't installed")
@pytest.mark.slow
def test_the_local_model_lists_files() -> None:
    """From outside, as a person would: a question, a yes at the terminal. The model's words are its own affair."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.shell_helper", "Which files are in the examples folder?"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input="y\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked, _, output = done.stdout.partition("? [y/N] ")
    assert asked.startswith("Run ")
    assert output
