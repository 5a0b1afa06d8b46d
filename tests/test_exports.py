"""The public names, and the price of importing them."""

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import agentloop

SUBMODULES = ("items", "events", "records", "outcomes", "exceptions", "models", "testing")

# A fresh interpreter without coverage's start-up hook, which imports modules of its own.
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "COV_CORE_"))}


def _in_fresh_python(program: str) -> object:
    done = subprocess.run([sys.executable, "-c", program], env=_CLEAN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(agentloop.__all__))
def test_public_name_resolves_and_is_documented(name: str) -> None:
    """Every name of `__all__` exists; classes and functions say what they are in their own words."""
    value = getattr(agentloop, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        text = value.__doc__ or ""
        # attrs and Protocol classes without one inherit or generate a signature-like line, which documents nothing.
        assert text.strip(), f"agentloop.{name} has no docstring"
        assert not text.startswith(f"{name}("), f"agentloop.{name} has only a generated docstring"


@pytest.mark.parametrize("module", agentloop._SUBMODULES)
def test_public_module_says_what_is_public(module: str) -> None:
    """Every name of its `__all__` exists, and every public class and function that is defined in it is named there."""
    named = import_module(f"agentloop.{module}")
    assert len(named.__all__) == len(set(named.__all__))
    assert [name for name in named.__all__ if not hasattr(named, name)] == []
    own = {
        name
        for name, value in vars(named).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == named.__name__
    }
    assert own <= set(named.__all__), own - set(named.__all__)


def test_events_of_a_star_import_are_events() -> None:
    """The star import brings no name that the module only uses itself."""
    space: dict[str, object] = {}
    exec("from agentloop.events import *", space)  # the statement itself is what is tested
    assert {"TextDelta", "CallSettled", "Event"} <= set(space)
    assert {"attrs", "Any", "Item", "ToolCall", "annotations"} & set(space) == set()


def test_all_names_each_public_thing_once() -> None:
    """`__all__` holds no name twice, and `dir` shows all of it before anything was loaded."""
    assert len(agentloop.__all__) == len(set(agentloop.__all__))
    assert set(agentloop.__all__) <= set(dir(agentloop))


def test_unknown_attribute_is_an_attribute_error() -> None:
    """Lazy look-up ends like any other."""
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        agentloop.nothing_of_that_name


@pytest.mark.parametrize("name", SUBMODULES)
def test_submodule_is_reachable_after_importing_the_package_alone(name: str) -> None:
    """`import agentloop; agentloop.items` works without an import of the submodule."""
    program = f"import agentloop, json; print(json.dumps(agentloop.{name}.__name__))"
    assert _in_fresh_python(program) == f"agentloop.{name}"


def test_importing_the_package_is_cheap() -> None:
    """The import loads at most 155 modules over asyncio's own, and none of the heavy ones."""
    program = (
        "import asyncio, sys; before = set(sys.modules); import agentloop; "
        "added = sorted(set(sys.modules) - before); import json; print(json.dumps(added))"
    )
    added = _in_fresh_python(program)
    assert isinstance(added, list)
    assert {"httpx", "trio", "pydantic", "sqlite3", "click", "rich"} & set(added) == set()
    assert len(added) <= 155, f"{len(added)} modules"


def test_importing_the_package_compiles_few_classes() -> None:
    """attrs compiles the methods of a class when it is made, so only what people write has such a class."""
    program = (
        "import agentloop, attrs, json, sys; "
        "mine = [vars(module) for name, module in list(sys.modules.items()) if name.startswith('agentloop')]; "
        "known = {kind for names in mine for kind in names.values() if isinstance(kind, type) and attrs.has(kind)}; "
        "print(json.dumps(sorted(kind.__qualname__ for kind in known)))"
    )
    compiled = _in_fresh_python(program)
    assert isinstance(compiled, list)
    assert len(compiled) <= 25, compiled


def test_every_name_loads_in_a_fresh_interpreter() -> None:
    """No public name depends on another having been loaded before."""
    program = (
        "import agentloop, json, warnings; warnings.simplefilter('ignore'); "
        "names = [*agentloop.__all__, *agentloop._MOVED]; "
        "print(json.dumps([name for name in names if not hasattr(agentloop, name)]))"
    )
    assert _in_fresh_python(program) == []


def test_star_import_gives_exactly_the_public_names() -> None:
    """`from agentloop import *` works with the lazy names."""
    program = (
        "import json; space = {}; exec('from agentloop import *', space); "
        "space.pop('__builtins__'); print(json.dumps(sorted(space)))"
    )
    assert _in_fresh_python(program) == sorted(agentloop.__all__)


def test_names_of_tool_guardrails_have_one_place() -> None:
    """They are in `agentloop.guardrails` only; whoever asks `agentloop` for one is told where it is."""
    for name in ("tool_input_guardrail", "RejectContent", "ToolGuardrailResult"):
        assert hasattr(import_module("agentloop.guardrails"), name)
        with pytest.raises(AttributeError, match=f"write `from agentloop.guardrails import {name}`"):
            getattr(agentloop, name)
    with pytest.raises(AttributeError, match=r"from agentloop\.exceptions import ToolInputGuardrailTripwireTriggered"):
        getattr(agentloop, "ToolInputGuardrailTripwireTriggered")  # noqa: B009 - a checker knows that it isn't there


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("RejectContent", "guardrails"),
        ("ToolInputGuardrailTripwireTriggered", "exceptions"),
        ("ToolCall", "items"),
        ("ScriptedModel", "testing"),
    ],
)
def test_an_import_statement_shows_where_a_name_is(name: str, place: str) -> None:
    """Python swallows the text of an AttributeError there. Everything else that looks gets an AttributeError."""
    with pytest.raises(ImportError, match=f"agentloop has no '{name}'; write `from agentloop.{place} import {name}`"):
        exec(f"from agentloop import Agent, {name}", {})  # the statement itself is what is tested
    assert not hasattr(agentloop, name)
    assert getattr(agentloop, name, None) is None
    assert inspect.getattr_static(agentloop, name, None) is None


def test_an_import_statement_for_nothing_fails_as_usual() -> None:
    """A name that is nowhere has no hint, and looking for examples in the package asks for nothing that fails."""
    with pytest.raises(ImportError, match="cannot import name 'Nothing' from 'agentloop'"):
        exec("from agentloop import Nothing", {})
    assert inspect.unwrap(agentloop) is agentloop  # type: ignore[arg-type]  # as doctest does with everything
    assert not hasattr(agentloop, "__wrapped__")


@pytest.mark.parametrize(("name", "place"), sorted(agentloop._MOVED.items()))
def test_the_old_place_of_a_name_works_for_a_release(name: str, place: str) -> None:
    """Both forms give the same thing, with a warning that names the new place and shows the line that asks."""
    space: dict[str, Any] = {}
    message = f"write `from agentloop.{place} import {name}`"
    with pytest.warns(DeprecationWarning, match=message) as asked:
        assert getattr(agentloop, name) is getattr(import_module(f"agentloop.{place}"), name)
    assert asked[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=message) as imported:
        exec(compile(f"from agentloop import {name}", "application.py", "exec"), space)
    assert {warning.filename for warning in imported} == {"application.py"}
    assert space[name] is getattr(import_module(f"agentloop.{place}"), name)
    assert name not in {*agentloop.__all__, *dir(agentloop)}


@pytest.mark.parametrize("module", [agentloop, agentloop.exceptions], ids=["agentloop", "exceptions"])
def test_the_old_name_of_an_error_works_for_a_release(module: Any) -> None:
    """It is the same class, and a warning names the new one."""
    with pytest.warns(DeprecationWarning, match="RunTimeout is now RunTimeoutError"):
        assert module.RunTimeout is agentloop.RunTimeoutError


def test_errors_end_in_error_or_are_named_as_exceptions_to_it() -> None:
    """The module's docstring has the others, so that none is forgotten."""
    exceptions = import_module("agentloop.exceptions")
    errors = [name for name in exceptions.__all__ if issubclass(getattr(exceptions, name), BaseException)]
    others = {name for name in errors if not name.endswith(("Error", "GuardrailTripwireTriggered"))}
    assert [name for name in sorted(others) if f"`{name}`" not in exceptions.__doc__.split("Names end in")[1]] == []
