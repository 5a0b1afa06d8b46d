"""A TARGET names an agent; one that names none is refused with the reason."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from agentloop import UserError
from agentloop.cli.target import TargetError, load_agent, load_function

MODULE = """
from agentloop import Agent

class Kept:
    inner = Agent("inner")

helper = Agent("helper")
other = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: empty, and forgotten by the import system afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_a_module_of_the_current_folder_and_a_file_give_their_agents(folder: Path) -> None:
    """An agent is found by its module, by a file, and by a dotted name in it."""
    (folder / "target_helpers.py").write_text(MODULE)
    assert load_agent("target_helpers:helper").name == "helper"
    assert load_agent("target_helpers.py:helper").name == "helper"
    assert load_agent(f"{folder}/target_helpers.py:Kept.inner").name == "inner"


def test_a_file_imports_its_neighbours_and_may_be_called_like_a_known_module(folder: Path) -> None:
    """A file finds its neighbours, as with `python file.py`; a file called json.py does not replace the real module."""
    (folder / "sub").mkdir()
    (folder / "sub" / "target_neighbour.py").write_text(MODULE)
    (folder / "sub" / "json.py").write_text("from target_neighbour import helper\n")
    assert load_agent("sub/json.py:helper").name == "helper"
    assert hasattr(sys.modules["json"], "dumps")


def test_a_function_of_the_agents_file_is_of_the_same_module(folder: Path) -> None:
    """The file is run once, so that both see the same objects; another file of that name is another module."""
    (folder / "sub").mkdir()
    for place in (folder, folder / "sub"):
        (place / "target_both.py").write_text(f"{MODULE}\nclass Seen: pass\n")
    helper = load_agent("target_both.py:helper")
    seen = load_function("./target_both.py:Seen")
    assert sys.modules[seen.__module__].helper is helper
    other = load_function("sub/target_both.py:Seen")
    assert other is not seen
    assert load_agent("target_both.py:helper") is not helper
    with pytest.raises(TargetError, match=r"has no attribute 'Sean'\.$"):
        load_function("target_both.py:Sean")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("helper", "must be module:agent or file.py:agent"),
        (":helper", "must be module:agent or file.py:agent"),
        ("target_helpers:", "must be module:agent or file.py:agent"),
        ("absent.py:helper", "there is no file 'absent.py'"),
        ("./absent:helper", "there is no file 'absent'"),
        ("absent_module:helper", "there is no module 'absent_module', neither installed nor in the current folder"),
        ("absent_module.inner:helper", "there is no module 'absent_module'"),
        ("target_helpers.py:helpr", "has no attribute 'helpr'. Did you mean 'helper'?"),
        ("target_helpers.py:unlike", "has no attribute 'unlike'. Agents there: helper."),
        ("target_helpers.py:other", "'other' is of type int, not an Agent. Agents there: helper."),
        ("target_empty.py:helper", "There is no agent in it."),
        ("./text.txt:helper", "isn't a Python file"),
    ],
)
def test_a_target_without_an_agent_is_named_with_what_is_wrong(folder: Path, target: str, said: str) -> None:
    """The error repeats the target and says what to look at."""
    (folder / "target_helpers.py").write_text(MODULE)
    (folder / "target_empty.py").write_text("")
    (folder / "text.txt").write_text("")
    with pytest.raises(TargetError) as caught:
        load_agent(target)
    assert isinstance(caught.value, UserError)
    assert repr(target) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("form", ["target_broken:helper", "target_broken.py:helper"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import absent_dependency", "No module named 'absent_dependency'"),
        ("def f():\n    return 1 / 0\nf()", "line 2, in f"),
        ("1 +", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError('password=hunter2')", "[redacted]"),
    ],
)
def test_code_that_raises_while_imported_is_shown_by_its_last_lines(
    folder: Path, form: str, code: str, said: str
) -> None:
    """The error shows the module's own frames, none of the library's, and no secret."""
    (folder / "target_broken.py").write_text(code)
    with pytest.raises(TargetError) as caught:
        load_agent(form)
    text = str(caught.value)
    assert said in text
    assert "target_broken" in text
    assert "importlib" not in text
    assert "agentloop/cli" not in text
    assert "hunter2" not in text
    assert "agentloop_target_target_broken" not in sys.modules


def test_ctrl_c_while_importing_is_no_error_of_the_target(folder: Path) -> None:
    """The interrupt is raised unchanged, and the half-made module is forgotten."""
    (folder / "target_slow.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_agent("target_slow.py:helper")
    assert "agentloop_target_target_slow" not in sys.modules


def test_the_command_ends_with_2_and_the_reason_on_the_error_output(invoke: Callable[..., Result]) -> None:
    """The standard output is empty, and a traceback is shown only if it was asked for."""
    result = invoke("run", "absent.py:helper", "Hello")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "Error: TARGET 'absent.py:helper': there is no file 'absent.py'\n"
    assert "Traceback" in invoke("run", "absent.py:helper", "Hello", "--traceback").stderr


MAKERS = """
from functools import partial

from agentloop import Agent

class Factory:
    def __call__(self):
        return Agent("called")

    @classmethod
    def build(cls, name="built"):
        return Agent(name)

def make(*names, **options):
    return Agent("made")

async def make_later():
    import sniffio
    return Agent(sniffio.current_async_library())

called = Factory()
part = partial(Agent, "part")

def of_tenant(tenant, *, plan):
    return Agent(tenant)

def nothing():
    pass

def lines():
    yield Agent("line")

def broken():
    raise LookupError("no key")

async def broken_later():
    raise LookupError("no key")

def leaves():
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("name", "made"),
    [("make", "made"), ("Factory.build", "built"), ("called", "called"), ("part", "part")],
)
def test_a_function_that_makes_the_agent_is_called(folder: Path, name: str, made: str) -> None:
    """Without arguments: a function, a method of a class, an object that can be called."""
    (folder / "target_makers.py").write_text(MAKERS)
    assert load_agent(f"target_makers.py:{name}").name == made
    assert load_agent(f"target_makers:{name}").name == made


def test_an_async_function_runs_on_the_backend_of_the_run(folder: Path, backend: str) -> None:
    """Its event loop is over before the run begins."""
    (folder / "target_makers.py").write_text(MAKERS)
    assert load_agent("target_makers.py:make_later", backend).name == backend


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "of_tenant",
            "of_tenant needs arguments (tenant, plan). A function that makes",
        ),
        ("nothing", "nothing() returned an object of type NoneType, not an Agent."),
        ("lines", "lines() returned an object of type generator, not an Agent."),
        ("broken", "calling broken() failed:"),
        ("broken", "LookupError: no key"),
        ("broken_later", "LookupError: no key"),
        ("leaves", "SystemExit: 3"),
        ("Factory", "'Factory' is of type type, not an Agent."),
    ],
)
def test_a_function_that_makes_no_agent_is_refused(folder: Path, name: str, said: str) -> None:
    """With what is wrong with it; a function that fails with its own frames only."""
    (folder / "target_makers.py").write_text(MAKERS)
    with pytest.raises(TargetError) as caught:
        load_agent(f"target_makers.py:{name}")
    assert said in str(caught.value)
    assert "anyio" not in str(caught.value)


@pytest.mark.parametrize("command", [("run", "hi"), ("chat",), ("graph",)])
def test_every_command_takes_a_function(folder: Path, invoke: Callable[..., Result], command: tuple[str, ...]) -> None:
    """As it takes an agent."""
    source = """
from agentloop import Agent
from agentloop.testing import ScriptedModel, say

async def make():
    return Agent("greeter", model=ScriptedModel([say("hello")]))
"""
    (folder / "target_commands.py").write_text(source)
    done = invoke(command[0], "target_commands.py:make", *command[1:], input="hi\n")
    assert done.exit_code == 0, done.output
    assert ("greeter" if command[0] == "graph" else "hello") in done.output


def test_a_job_is_resumed_with_the_agent_that_its_function_makes(folder: Path, invoke: Callable[..., Result]) -> None:
    """The function is called again: the agent is made anew, as a module would be imported anew."""
    source = """
from agentloop import Agent
from agentloop.testing import ScriptedModel, say

def make():
    return Agent("greeter", model=ScriptedModel([say("hello")]))
"""
    (folder / "target_job.py").write_text(source)
    assert "hello" in invoke("run", "target_job.py:make", "hi", "--journal", "job").output
    resumed = invoke("resume", "job")
    assert resumed.exit_code == 0
    assert "hello" in resumed.output
