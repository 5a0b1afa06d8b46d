"""`--context`: the application's object for the tools, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]
AgentOf = Callable[[str], str]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop", ["the one object, run 1", "the one object, run 2"]),
        ("make_shop", ["from a function, run 1"] * 2),
        ("Shop", ["made for the run, run 1"] * 2),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_context_is_an_object_or_made_for_each_run(
    invoke: Invoke, agent: AgentOf, command: str, name: str, words: list[str]
) -> None:
    """An object is shared by the runs; a function and a class are called for each of them."""
    more = ("--concurrency", "1") if command == "run" else ()
    done = invoke(command, agent("keeper_of_shop"), "--context", agent(name), *more, input="one\ntwo\n")
    assert done.exit_code == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "run" in line] == words


def test_file_of_the_agent_is_not_run_again_for_the_context(invoke: Invoke, tmp_path: Path) -> None:
    """Agent and context come from one module, so that a class of one is that of the other."""
    (tmp_path / "both.py").write_text(
        "from agentloop import Agent\nfrom agentloop.testing import FunctionModel\n"
        "print('imported')\nclass Shop: pass\nshop = Shop()\n"
        "agent = Agent('a', model=FunctionModel(lambda request: 'done'))\n"
    )
    done = invoke("run", f"{tmp_path}/both.py:agent", "x", "--context", f"{tmp_path}/both.py:shop")
    assert done.stdout == "imported\ndone\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent", "has no attribute 'absent'"),
        ("make_shop_later", "expected a sync function, got an async one"),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_wrong_context_is_refused_before_a_run(
    invoke: Invoke, agent: AgentOf, command: str, name: str, said: str
) -> None:
    """It is an error of the user's."""
    refused = invoke(command, agent("keeper_of_shop"), "--context", agent(name), *(["x"] if command == "run" else []))
    assert refused.exit_code == 2
    assert said in refused.stderr


@pytest.mark.slow
def test_job_keeps_the_name_of_its_context(
    invoke: Invoke, agent: AgentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resume` needs it no more; it may give another one, and the context isn't stored."""
    monkeypatch.chdir(Path(agent("x").rpartition(":")[0]).parent)
    folder = str(tmp_path / "job")
    command = ("run", "agents.py:careful_keeper", "x", "--journal", folder, "--approve", "never")
    assert invoke(*command, "--context", "agents.py:make_shop").exit_code == 3
    assert invoke(*command, "--context", "agents.py:shop").exit_code == 2  # another job
    assert json.loads((tmp_path / "job" / "job.json").read_text())["context"] == agent("make_shop")
    assert "from a function" not in (tmp_path / "job" / "run.journal").read_text()
    assert invoke("approve", folder, "c").exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert invoke("resume", folder).stdout == "from a function\n"
    other = str(tmp_path / "other")
    assert invoke("run", agent("careful_keeper"), "x", "--journal", other, "--approve", "never").exit_code == 3
    assert invoke("approve", other, "c").exit_code == 0
    assert invoke("resume", other, "--context", agent("shop")).stdout == "the one object\n"


def test_context_of_a_folder_from_elsewhere_is_shown(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> None:
    """It is code that runs, too."""
    folder = tmp_path / "job"
    command = ("run", agent("keeper_of_shop"), "x", "--context", agent("make_shop"))
    assert invoke(*command, "--journal", str(folder)).exit_code == 0
    folder.rename(tmp_path / "moved")
    refused = invoke("resume", str(tmp_path / "moved"))
    assert refused.exit_code == 2
    assert f"{agent('keeper_of_shop')} and {agent('make_shop')}" in refused.stderr
