"""The name of the distribution, and another project that installs a package of the import's name."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentloop
from agentloop._common.extras import DISTRIBUTION, _describe_foreign, describe_foreign

ROOT = Path(__file__).parents[2]


def run_beside(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on our package, with *folder* behind it on the path as site-packages would be."""
    paths = [str(Path(agentloop.__file__).parents[1]), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with the metadata of a distribution that has installed a package `agentloop`."""
    info = tmp_path / "agentloop_elsewhere-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agentloop-elsewhere\nVersion: 9.9\n")
    (info / "top_level.txt").write_text("agentloop\n")
    return tmp_path


def test_project_and_messages_have_one_name() -> None:
    """What the messages tell to install is what the build makes; the build reads the version of the source."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == DISTRIBUTION
    assert project["project"]["dynamic"] == ["version"]
    source = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert f'__version__ = "{agentloop.__version__}"' in source


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({}, None),
        ({"agentloop": ["agentloop-anyio"], "other": ["x"]}, None),
        ({"agentloop": ["agentloop_anyio", "agentloop-anyio"]}, None),
        ({"agentloop": ["agentloop-anyio", "agentloop"]}, "pip uninstall agentloop agentloop-anyio`"),
        ({"agentloop": ["z", "agentloop", "z"]}, "pip uninstall agentloop z agentloop-anyio`"),
    ],
)
def test_foreign_distributions_are_named_with_the_repair(found: dict[str, list[str]], named: str | None) -> None:
    """Ours isn't foreign, by whichever spelling; each other one is named once."""
    said = _describe_foreign(found)
    assert (said is None) == (named is None)
    assert named is None or (said is not None and named in said)


def test_import_of_a_missing_name_says_what_took_its_place(foreign: Path) -> None:
    """A program that was written for the other project fails with the sentence that repairs it."""
    done = run_beside(foreign, "-c", "from agentloop import Loop")
    assert "ImportError: agentloop has no 'Loop'; agentloop-elsewhere" in done.stderr
    assert done.stderr.rstrip().endswith("then `pip install agentloop-anyio`")


def test_names_that_are_here_and_questions_of_python_cost_no_look(foreign: Path) -> None:
    """An import looks at nothing that is installed, nor does a question for a name with underscores."""
    program = (
        "import importlib.metadata as m\n"
        "m.packages_distributions = lambda: 1 / 0\n"
        "import agentloop\n"
        "agentloop.Agent, agentloop.RunState, agentloop.journal\n"
        "print(hasattr(agentloop, '__wrapped__'), hasattr(agentloop, '_x'))"
    )
    done = run_beside(foreign, "-c", program)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_without_another_project_a_missing_name_is_an_attribute_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hasattr` and `getattr` with a default work as they do for any module."""
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"agentloop": [DISTRIBUTION]})
    assert describe_foreign() is None
    assert not hasattr(agentloop, "Loop")
    with pytest.raises(AttributeError, match="module 'agentloop' has no attribute 'Loop'"):
        _ = agentloop.Loop  # type: ignore[attr-defined]


def test_command_line_names_the_other_project(foreign: Path) -> None:
    """`agentloop --version` gives the version as ever, and a line beside it."""
    done = run_beside(foreign, "-m", "agentloop.cli", "--version")
    assert (done.returncode, done.stdout) == (0, f"agentloop, version {agentloop.__version__}\n")
    assert done.stderr.startswith("agentloop: agentloop-elsewhere")
