"""Public signatures: whatever an annotation names, you can import from a public module.

A private type in a signature is a promise that nobody can use: you can't annotate your own variable with it, the
reference has no entry for it, and we couldn't rename it. Annotations are read from the source, because many of them
name what only type checkers import.
"""

import ast
import inspect
import sys
from collections.abc import Collection, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kit.docs_scripts import load_docs_script

generate_reference: Any = load_docs_script("generate_reference")

MISSING = object()
PAGES = sorted(generate_reference.FOLDER.glob("*.md"))


@cache
def _load(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:  # an extra that isn't installed
        return None


def _entries(page: Path) -> Iterator[Any]:
    """Yield the entries of a page of the reference, which is the list of what is public."""
    for found in generate_reference._LIST.finditer(page.read_text()):
        module = _load(found["module"])
        if module is not None:
            yield from generate_reference.entries_of(module, found["names"])


@cache
def _public_classes() -> set[type]:
    shown = [entry.value for page in PAGES for entry in _entries(page)]
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "agentloop" and "._" not in name]
    named = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
    return {value for value in [*shown, *named] if inspect.isclass(value)}


def _is_private(kind: type) -> bool:
    """Tell whether a class is one of ours that no public module has, in the reference or under a public name."""
    where = kind.__module__.split(".")
    hidden = any(part.startswith("_") for part in [*where, kind.__name__])
    return hidden and where[0] == "agentloop" and kind not in _public_classes()


@cache
def _names_of(module: ModuleType) -> dict[str, tuple[str, str | None]]:
    """Return what a module imports, at any depth of its source, by the name that it has there: module and name."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.asname or one.name: (one.name, None) for one in node.names}
    return found


def _resolve(module: ModuleType, name: str) -> Any:
    """Return what *name* means in an annotation of *module*."""
    found = getattr(module, name, MISSING)
    if found is MISSING and name in _names_of(module):
        origin, attribute = _names_of(module)[name]
        loaded = _load(origin)
        found = loaded if attribute is None else getattr(loaded, attribute, MISSING)
    return found


def _annotations(body: list[ast.stmt], shown: Collection[str] | None = None) -> Iterator[tuple[str, ast.expr]]:
    """Yield the annotations of functions and fields, with the name of each; only those in *shown*, if it is given."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            given = [part.annotation for part in parts if part is not None and part.annotation is not None]
            named = [(node.name, each) for each in [*given, *([node.returns] if node.returns else [])]]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named = [(node.target.id, node.annotation)]
        else:  # overloads for type checkers
            named = [*_annotations(node.body, shown)] if isinstance(node, ast.If) else []
        yield from (one for one in named if shown is None or one[0] in shown)


def _names_in(annotation: ast.expr) -> Iterator[str]:
    """Yield the names in an annotation, those in quotes included, but not the texts of a `Literal`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("Literal", "typing.Literal"):
        return
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from _names_in(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.Name):
        yield annotation.id
    for child in ast.iter_child_nodes(annotation):
        if isinstance(child, ast.expr):
            yield from _names_in(child)


def _find_definition(value: Any) -> tuple[ModuleType, ast.stmt] | None:
    """Return the module of a class or function and the statement that defines it."""
    origin = _load(getattr(value, "__module__", None) or "")
    if origin is None or not origin.__name__.startswith("agentloop"):
        return None
    if origin.__name__ == "agentloop.exceptions" and value.__name__ not in _defined_in(origin):
        origin = import_module("agentloop._common.errors")  # most errors are defined there, and say otherwise
    found = _defined_in(origin).get(value.__name__)
    return None if found is None else (origin, found)


@cache
def _defined_in(module: ModuleType) -> dict[str, ast.stmt]:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, kinds)}


def _shown_names(entry: Any) -> set[str]:
    """Return the names of the members of a class that the reference shows, of its fields and its constructor."""
    members = {name.rpartition(".")[2] for name, *_ in generate_reference._members(entry)}
    fields = {name for name in getattr(entry.value, "__annotations__", ()) if not name.startswith("_")}
    return members | (set() if entry.bare else {"__init__", *fields})


def _private_names(entry: Any) -> set[str]:
    """Return the private types that the signatures of *entry* name, each with the place where."""
    is_class = inspect.isclass(entry.value)
    defined = _find_definition(entry.value) if is_class or inspect.isfunction(entry.value) else None
    if defined is None:
        return set()
    module, node = defined
    body, shown = (node.body, _shown_names(entry)) if isinstance(node, ast.ClassDef) else ([node], None)
    found: set[str] = set()
    for where, annotation in _annotations(body, shown):
        for name in _names_in(annotation):
            meant = _resolve(module, name)
            if isinstance(meant, type) and _is_private(meant):
                found.add(f"{entry.name}, {where}: {meant.__module__}.{name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_public_signatures_name_public_types(page: Path) -> None:
    """Each function of the reference, each method and each field of a class that it shows."""
    assert sorted(set().union(*map(_private_names, _entries(page)))) == []


def test_the_walk_finds_a_private_type() -> None:
    """In a field, in a parameter and in quotes: the test above would say so."""

    def named(source: str, shown: Collection[str] | None = None) -> set[str]:
        return {name for _, each in _annotations(ast.parse(source).body, shown) for name in _names_in(each)}

    assert named("def f(a: Keys | None, *b: list[Fold], **c: Unpack[Some]) -> 'Stored': ...") == {
        *("Keys", "list", "Fold", "Unpack", "Some", "Stored")
    }
    assert named("field: Mapping[str, Fold]\n_hidden: Secret", {"field"}) == {"Mapping", "str", "Fold"}
    assert named("kind: Literal['Fold']") == set()
    module = import_module("agentloop.state")
    entry = generate_reference.Entry(module, "apply_checked", module.apply_checked)
    assert _private_names(entry) == {"apply_checked, apply_checked: agentloop._core.run_fold.RunFold"}
