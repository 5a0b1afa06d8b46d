"""TARGET, the command line's name of an agent: `module:agent` or `file.py:agent`. Imports it, and does not run it.

TARGET may also name a function that makes the agent, because applications often build their agents in one.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import attrs

from agentloop._common.error_text import redact, shorten
from agentloop.abc import Model
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions import UserError

_FRAMES = 3
_MOST_NAMED = 5
_MAX_CHARS = 2_000


class TargetError(UserError):
    """TARGET names no agent. The message says why."""


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def absolute_target(target: str) -> str:
    """Return *target* with an absolute file path, so that it is valid in every folder; a malformed one is unchanged."""
    place, colon, name = target.rpartition(":")
    return f"{Path(place).absolute()}{colon}{name}" if _is_file(place) else target


def load_agent(target: str, backend: str = "asyncio") -> Agent[Any, Any]:
    """Import the module of *target*, and return its agent, or the agent that its function makes.

    A function is called without arguments. An async one runs in an event loop that is over before the run begins, on
    *backend*: call this outside of an event loop.

    Adds a folder to `sys.path`: the current one for a module, as `python -m` does, or the file's own, as
    `python file.py` does.

    Raises:
        TargetError: if the target is malformed, its module can't be imported, there is no agent of that name, or the
            function of that name needs arguments, fails, or returns something else.
    """
    module, found, name = _load(target, "agent")
    if isinstance(found, Agent):
        return found
    if not callable(found) or inspect.isclass(found):
        kind = type(found).__name__
        raise TargetError(
            f"TARGET {target!r}: {name!r} is of type {kind}, not an Agent.{_suggest_agents(module, name)}"
        )
    made = _make(target, name, found, backend)
    if not isinstance(made, Agent):
        raise TargetError(
            f"TARGET {target!r}: {name}() returned an object of type {type(made).__name__}, not an Agent."
        )
    return made


def _make(target: str, name: str, maker: Callable[[], Any], backend: str) -> Any:
    """Return what *maker* returns, awaited if it is async."""
    needed = _name_needed(maker)
    if needed:
        raise TargetError(
            f"TARGET {target!r}: {name} needs arguments ({', '.join(needed)}). A function that makes the agent is "
            "called without any: give them defaults, or write a function around it."
        )

    async def wait(made: Awaitable[Any]) -> Any:
        return await made

    try:
        made = maker()
        return anyio.run(wait, made, backend=backend) if inspect.isawaitable(made) else made
    except (Exception, SystemExit) as error:
        raise _build_error(target, f"calling {name}()", error) from error


def _name_needed(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without which *function* can't be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions of C have no signature: the call itself tells
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variadic]


def load_function(target: str) -> Callable[..., Any]:
    """Import the module of *target*, and return its function, or another callable. Otherwise as `load_agent`.

    A file that was imported for the agent is not run again: both have one module.

    Raises:
        TargetError: as `load_agent`.
    """
    _, found, name = _load(target, "function")
    if not callable(found):
        raise TargetError(f"TARGET {target!r}: {name!r} is of type {type(found).__name__}, not a function.")
    return found


def load_object(target: str, kind: str) -> Any:
    """Import the module of *target*, and return the object that it names there, a *kind* in messages.

    Raises:
        TargetError: as `load_agent`.
    """
    return _load(target, kind)[1]


def load_context(target: str | None) -> Callable[[], Any] | None:
    """Return a function that gives the context of a run: the object that *target* names, or what it returns.

    A class, or a function, is called for each run. Otherwise as `load_agent`.

    Raises:
        TargetError: as `load_agent`, or it is an async function.
    """
    if target is None:
        return None
    _, found, _ = _load(target, "context")
    if inspect.iscoroutinefunction(found):
        raise TargetError(f"context {target!r}: expected a sync function, got an async one")
    if inspect.isroutine(found) or inspect.isclass(found):
        make: Callable[[], Any] = found
        return make
    return lambda: found


def load_config(target: str | None, model: str | None = None) -> RunConfig:
    """Return the configuration that *target* names, or that of no target, with *model* if there is one.

    Raises:
        UserError: as `load_agent`, or it isn't a RunConfig.
    """
    found = RunConfig() if target is None else load_object(target, "config")
    if not isinstance(found, RunConfig):
        raise UserError(f"--config {target!r}: expected a RunConfig, got {found!r}")
    return found if model is None else attrs.evolve(found, model=model)


def _load(target: str, kind: str) -> tuple[ModuleType, object, str]:
    """Return the module of *target*, the object that it names there, and that name."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        advice = _suggest_target(target) if kind == "agent" else ""
        raise TargetError(f"TARGET {target!r}: it must be module:{kind} or file.py:{kind}.{advice}")
    if not _is_file(place):
        module = _import_module(target, place)
    else:
        known = None if kind == "agent" else _find_imported(Path(place))
        module = known or _import_file(target, Path(place))
    found: object = module
    for step in name.split("."):
        if not hasattr(found, step):
            advice = _suggest_agents(module, name) if kind == "agent" else ""
            raise TargetError(f"TARGET {target!r}: {place!r} has no attribute {name!r}.{advice}")
        found = getattr(found, step)
    return module, found, name


def name_model(model: str | Model) -> str:
    """Return the name of *model* for people: its model string, or `provider:name`."""
    if isinstance(model, str):
        return model
    return f"{model.info.provider}:{model.info.name}"


def _suggest_agents(module: ModuleType, name: str) -> str:
    agents = _names_of_agents(module)
    near = difflib.get_close_matches(name, agents, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Agents there: {', '.join(agents)}." if agents else " There is no agent in it."


def _suggest_target(target: str) -> str:
    """Return what to write in place of *target*, a file without the name of an agent; it is imported to find one."""
    if not target.endswith(".py") or not Path(target).is_file():
        return ""
    agents = _names_of_agents(_import_file(target, Path(target)))
    if not agents:
        return " There is no agent in it."
    return f" Did you mean {' or '.join(f'{target}:{name}' for name in agents[:_MOST_NAMED])}?"


def _names_of_agents(module: ModuleType) -> list[str]:
    return sorted(key for key, value in vars(module).items() if isinstance(value, Agent))


def _import_first_from(folder: Path) -> None:
    path = str(folder)
    if path not in sys.path:
        sys.path.insert(0, path)


def _import_module(target: str, name: str) -> ModuleType:
    _import_first_from(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetError(
                f"TARGET {target!r}: there is no module {error.name!r}, neither installed nor in the current folder"
            ) from None
        raise _build_import_error(target, name, error) from error
    except (Exception, SystemExit) as error:
        raise _build_import_error(target, name, error) from error


def _name_of_module(path: Path) -> str:
    """Return a name that no other module has: a file called json.py must not replace the real json."""
    return f"agentloop_target_{path.stem}"


def _find_imported(path: Path) -> ModuleType | None:
    """Return the module that the file at *path* was imported as last; None if it was not."""
    module = sys.modules.get(_name_of_module(path))
    origin = getattr(module, "__file__", None)
    return module if origin is not None and Path(origin).resolve() == path.resolve() else None


def _import_file(target: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"TARGET {target!r}: there is no file {str(path)!r}")
    name = _name_of_module(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"TARGET {target!r}: {str(path)!r} isn't a Python file (*.py)")
    _import_first_from(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _build_import_error(target, str(path), error) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _build_import_error(target: str, place: str, error: BaseException) -> TargetError:
    return _build_error(target, f"importing {place!r}", error)


def _build_error(target: str, what: str, error: BaseException) -> TargetError:
    """Return the error for code of the application that raised in *what*, with the last frames of its traceback."""
    ours = ("<frozen importlib", __file__, importlib.__file__, str(Path(anyio.__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    lines = [*traceback.format_list(frames[-_FRAMES:]), *traceback.format_exception_only(error)]
    text = shorten(redact("".join(lines).rstrip()), _MAX_CHARS)
    return TargetError(f"TARGET {target!r}: {what} failed:\n{text}")
