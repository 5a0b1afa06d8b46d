"""The state of a program around a run: the context, and what its modules, functions and classes hold.

`Program.checkpoint` remembers the containers of that state, and `restore` puts their contents back in place, so that
each run begins with what the import has left. `picture` writes the state as a flat mapping of places to plain values,
so that two runs can be compared. Does not know about runs.
"""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import re
import sqlite3
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context, ContextVar
from typing import Any

from agentloop.testing.simulation._lines import _NOT_THE_PROGRAM

DEEPEST = 6
MOST_PLACES = 1500
DEEPEST_TEXT = 4
_PLAIN = (str, int, float, bool, bytes, complex, type(None))
_PRIMITIVES = ("anyio", "asyncio", "trio", "threading")
_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
_HIDDEN = ("__", "_abc_")
_UUID = re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")

_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")

Picture = dict[str, Any]
"""Places of the state, as text, with plain values. A value of a list or set is a `Bag`."""


class Bag(tuple[str, ...]):
    """The members of a list or set, as sorted texts: the order in which calls add members is the schedule's."""

    __slots__ = ()


own_packages: set[str] = set()
"""Names of installed packages that count as the application's, because an agent comes from them."""


def is_of_the_program(value: object) -> bool:
    """Return True if *value*, a module, class or function, was written for the application."""
    name = value.__name__ if isinstance(value, types.ModuleType) else str(getattr(value, "__module__", ""))
    return name.partition(".")[0] in own_packages or _is_written_here(name)


@functools.cache
def _is_written_here(module: str) -> bool:
    """Return True if *module* has a file that belongs neither to Python nor to an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not file.startswith(_NOT_THE_PROGRAM) and not _INSTALLED.search(file)


def _is_primitive(value: object) -> bool:
    return type(value).__module__.partition(".")[0].lstrip("_") in _PRIMITIVES and not isinstance(
        value, asyncio.AbstractEventLoop | asyncio.Future | threading.Thread
    )


def fields_of(value: object) -> dict[str, Any]:
    """Return the attributes that the instance *value* holds, those in slots too."""
    found: dict[str, Any] = {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            own = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if name not in ("__dict__", "__weakref__"):
                try:
                    found[name] = object.__getattribute__(value, own)
                except AttributeError:
                    continue
    found.update(getattr(value, "__dict__", {}))
    return found


def _default_of(variable: ContextVar[Any]) -> Any:
    try:
        return Context().run(variable.get)
    except LookupError:
        return None


def _is_walked(value: object) -> bool:
    """Return True for an instance whose attributes are a part of the program's state."""
    return is_of_the_program(type(value)) or _is_primitive(value) or isinstance(value, types.SimpleNamespace)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of *value* that can change or lead to what can, each with its place in it."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", one) for key, one in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{index}]", one) for index, one in enumerate(list(value)))
    elif isinstance(value, types.ModuleType):
        if is_of_the_program(value):
            yield from ((f".{name}", one) for name, one in list(vars(value).items()) if not name.startswith("__"))
    elif isinstance(value, type):
        if is_of_the_program(value):
            yield from ((f".{name}", one) for name, one in list(vars(value).items()) if not name.startswith(_HIDDEN))
    elif isinstance(value, types.FunctionType):
        if is_of_the_program(value):
            yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, staticmethod | classmethod):
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, ContextVar):
        yield " (default)", _default_of(value)
    elif _is_walked(value):
        yield from ((f".{name}", one) for name, one in fields_of(value).items())


def _parts_of_function(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    defaults = fn.__defaults__ or ()
    yield from ((f"(default of {name})", one) for name, one in zip(names[-len(defaults) :], defaults, strict=False))
    yield from ((f"(default of {name})", one) for name, one in (fn.__kwdefaults__ or {}).items())
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            yield f" ({name})", cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue
    yield from ((f".{name}", one) for name, one in vars(fn).items() if name != "__wrapped__")
    if "__wrapped__" in vars(fn):
        yield "", fn.__wrapped__  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- putting it back


class Program:
    """The state that all runs of an agent share: what is reachable from its modules and functions."""

    def __init__(self, modules: Iterable[types.ModuleType], functions: Iterable[Callable[..., Any]]) -> None:
        self.roots: dict[str, Any] = {}
        for module in modules:
            self._add_module(module)
        self.functions = list(functions)
        for fn in self.functions:
            if (home := sys.modules.get(getattr(fn, "__module__", ""))) is not None:
                self._add_module(home)
        self._kept: list[tuple[Any, Any]] = []
        self._locks: list[Any] = []

    def _add_module(self, module: types.ModuleType) -> None:
        if module.__name__ in self.roots or not is_of_the_program(module):
            return
        self.roots[module.__name__] = module
        for value in list(vars(module).values()):
            if isinstance(value, types.ModuleType):
                self._add_module(value)
            elif isinstance(value, type | types.FunctionType) and value.__module__ in sys.modules:
                self._add_module(sys.modules[value.__module__])

    def _all(self) -> Iterator[Any]:
        known: set[int] = set()
        keep = []  # ids are only unique among what is alive
        unseen = [*self.roots.values(), *self.functions]
        while unseen:
            value = unseen.pop()
            if isinstance(value, _PLAIN) or id(value) in known:
                continue
            known.add(id(value))
            keep.append(value)
            yield value
            unseen.extend(one for _, one in _parts(value))

    def checkpoint(self) -> None:
        """Remember the contents of every container of the state."""
        self._kept, self._locks = [], []
        for value in self._all():
            if isinstance(value, dict | list | set | deque | bytearray):
                self._kept.append((value, _fresh_counts(value.copy())))
            elif isinstance(value, types.FunctionType):
                cells = [(cell, _content(cell)) for cell in value.__closure__ or ()]
                self._kept.append((value, (cells, dict(vars(value)))))
            elif isinstance(value, _LOCK | _RLOCK):
                self._locks.append((value, _is_locked(value)))
            elif isinstance(value, types.ModuleType | type) or _is_walked(value):
                self._kept.append((value, _fresh_counts(_names_of(value))))

    def restore(self) -> None:
        """Put the contents of every container back as they were at the checkpoint."""
        for value, kept in self._kept:
            _put_back(value, kept)
        for lock, locked in self._locks:
            if _is_locked(lock) and not locked:
                try:
                    lock.release()
                except RuntimeError:  # an RLock that another thread holds
                    continue
        for value in self._all():
            if (clear := getattr(value, "cache_clear", None)) is not None and callable(clear):
                clear()

    def picture(self) -> Picture:
        """Return the picture of the shared state."""
        found: Picture = {}
        known: set[int] = set()
        for name, root in self.roots.items():
            _draw(f"{name}", root, found, known, 0)
        for fn in self.functions:
            _draw(getattr(fn, "__qualname__", "a function"), fn, found, known, 0)
        return found


_MISSING = object()


def _names_of(value: Any) -> dict[str, Any]:
    """Return what a module, class or instance holds by name and may be given anew."""
    if not isinstance(value, types.ModuleType | type):
        return fields_of(value)
    hidden = _HIDDEN if isinstance(value, type) else ("__",)
    return {name: one for name, one in vars(value).items() if not name.startswith(hidden)}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _is_locked(lock: Any) -> bool:
    if isinstance(lock, _LOCK):
        return lock.locked()
    return "owner=0 " not in repr(lock)


def _fresh_counts(names: Any) -> Any:
    """Return *names* with a function that makes each `itertools.count` anew: one that was used can't be put back."""
    if isinstance(names, dict):
        for name, one in list(names.items()):
            if type(one) is itertools.count:
                first = [int(part) for part in re.findall(r"-?\d+", repr(one))]
                names[name] = _Count(first)
    return names


class _Count:
    def __init__(self, arguments: list[int]) -> None:
        self.arguments = arguments


def _made(value: Any) -> Any:
    return itertools.count(*value.arguments) if type(value) is _Count else value


def _put_back(value: Any, kept: Any) -> None:
    if isinstance(value, dict):
        if value != kept or any(value[name] is not one for name, one in kept.items()):
            value.clear()
            value.update({name: _made(one) for name, one in kept.items()})
    elif isinstance(value, list | bytearray):
        value[:] = kept
    elif isinstance(value, set):
        if value != kept:
            value.clear()
            value.update(kept)
    elif isinstance(value, deque):
        value.clear()
        value.extend(kept)
    elif isinstance(value, types.FunctionType):
        for cell, content in kept[0]:
            if content is not _MISSING and _content(cell) is not content:
                cell.cell_contents = content
        if vars(value) != kept[1]:
            vars(value).clear()
            vars(value).update(kept[1])
    else:
        _put_names_back(value, kept)


def _put_names_back(value: Any, kept: dict[str, Any]) -> None:
    """Put the names of a module, class or instance back: those that were changed, added or deleted."""
    now = _names_of(value)
    for name in now.keys() - kept.keys():
        _set(value, name, _MISSING)
    for name, one in kept.items():
        if now.get(name, _MISSING) is not one:
            _set(value, name, _made(one))


def _set(value: Any, name: str, one: Any) -> None:
    try:
        if isinstance(value, types.ModuleType | type):
            delattr(value, name) if one is _MISSING else setattr(value, name, one)
        else:
            object.__delattr__(value, name) if one is _MISSING else object.__setattr__(value, name, one)
    except (AttributeError, TypeError):  # a read-only one, which can't have changed by a plain assignment either
        return


def make_other(context: Any) -> None:
    """Give the plain values of *context* others, in place: that of another customer. Those within containers stay."""
    if context is None or isinstance(context, _PLAIN) or not is_of_the_program(type(context)):
        return
    for name, value in fields_of(context).items():
        if isinstance(value, str):
            _set(context, name, f"{value}~")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _set(context, name, value + 1)


# ---------------------------------------------------------------------------------------------- looking at it


def picture_of(name: str, value: Any) -> Picture:
    """Return the picture of *value*, whose places begin with *name*."""
    found: Picture = {}
    _draw(name, value, found, set(), 0)
    return found


def _draw(place: str, value: Any, found: Picture, known: set[int], depth: int) -> None:
    if len(found) >= MOST_PLACES:
        return
    if isinstance(value, _PLAIN):
        found[place] = plain(value)
        return
    if id(value) in known or depth > DEEPEST:
        return
    known.add(id(value))
    leaf = _leaf(value)
    if leaf is not _MISSING:
        found[place] = leaf
        return
    if isinstance(value, list | tuple | set | frozenset | deque):
        found[place] = Bag(sorted(_members(value)))
        return
    if isinstance(value, dict):
        found[f"{place} (keys)"] = Bag(sorted(plain_text(key) for key in value))
    for name, one in _parts(value):
        _draw(f"{place}{name}", one, found, known, depth + 1)


def _leaf(value: Any) -> Any:
    """Return the plain value of an object that has one, or `_MISSING`."""
    if isinstance(value, _LOCK | _RLOCK):
        return "locked" if _is_locked(value) else "free"
    if isinstance(value, asyncio.Event | threading.Event):
        return "set" if value.is_set() else "not set"
    if type(value).__module__.partition(".")[0] in _PRIMITIVES and hasattr(value, "statistics"):
        return _leaf_of_primitive(value)
    if isinstance(value, asyncio.Lock):
        return "locked" if value.locked() else "free"
    if isinstance(value, asyncio.Semaphore | threading.Semaphore):
        return value._value
    if isinstance(value, io.StringIO):
        return value.getvalue() if not value.closed else "closed"
    if isinstance(value, sqlite3.Connection):
        try:
            return Bag(sorted(value.iterdump()))
        except sqlite3.Error:
            return "closed"
    return _MISSING


def _leaf_of_primitive(value: Any) -> Any:
    if hasattr(value, "value"):
        return value.value
    if hasattr(value, "locked"):
        return "locked" if value.locked() else "free"
    if hasattr(value, "borrowed_tokens"):
        return value.borrowed_tokens
    if hasattr(value, "is_set"):
        return "set" if value.is_set() else "not set"
    return _MISSING


def plain(value: Any) -> Any:
    """Return a plain value without what is new in each run: addresses, random ids, the last digits of floats."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return _ADDRESS.sub("0x…", _UUID.sub("<id>", value)) if len(value) > 7 else value
    return value


def plain_text(value: Any) -> str:
    """Return *value* as one line, the same in each run: of an object its attributes, of a set its sorted members."""
    return _text(value, 0)


def _text(value: Any, depth: int) -> str:
    if isinstance(value, _PLAIN):
        return repr(plain(value))
    if depth > DEEPEST_TEXT:
        return "…"
    if isinstance(value, dict):
        items = sorted(f"{_text(key, depth + 1)}: {_text(one, depth + 1)}" for key, one in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple):
        return f"({', '.join(_text(one, depth + 1) for one in value)})"
    if isinstance(value, list | set | frozenset | deque):
        return f"[{', '.join(sorted(_text(one, depth + 1) for one in value))}]"
    leaf = _leaf(value)
    if leaf is not _MISSING:
        return f"{type(value).__name__}({leaf!r})"
    if _is_walked(value) and not isinstance(value, type):
        said = ", ".join(f"{name}={_text(one, depth + 1)}" for name, one in sorted(fields_of(value).items()))
        return f"{type(value).__name__}({said})"
    return getattr(value, "__qualname__", type(value).__qualname__)


def _members(value: Iterable[Any]) -> Iterator[str]:
    """Yield the members of a list or set as texts; those of a list within it too, as batches depend on the schedule."""
    for one in list(value):
        if isinstance(one, list):
            yield from _members(one)
        else:
            yield plain_text(one)


def differing(picture: Picture, other: Picture) -> set[str]:
    """Return the places that have another value in *other*, or are missing there."""
    return {place for place in {*picture, *other} if picture.get(place, _MISSING) != other.get(place, _MISSING)}


def value_at(picture: Picture, place: str) -> Any:
    """Return the value at *place*; the text "missing" if there is none."""
    return picture.get(place, "missing")
