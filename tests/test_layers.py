"""The layers of the package, held by its imports alone."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import agentloop

PACKAGE = Path(next(iter(agentloop.__path__)))

# Top to bottom; a name stands for a module or a whole subpackage.
LAYERS: dict[str, frozenset[str]] = {
    "values": frozenset(
        {
            "items",
            "item_codec",
            "json_forms",
            "json_bytes",
            "secret_text",
            "digests",
            "secret_values",
            "records",
            "events",
            "outcomes",
            "usage",
            "results",
            "guardrail_results",
            "_errors",
            "exceptions",
            "config",
            "model_events",
            "naming",
            "options",
            "checks",
            "spans",
            "json_text",
            "error_text",
            "effects",
            "seal",
        }
    ),
    "abc": frozenset({"abc"}),
    "definitions": frozenset(
        {
            "docstrings",
            "json_schema",
            "pydantic_types",
            "signatures",
            "schema",
            "tools",
            "guardrails",
            "handoffs",
            "hooks",
            "context",
            "limits",
            "agents",
            "budget",
            "conditions",
            "config_checks",
            "output_schema",
            "policies",
            "value_codec",
            "agent_graph",
        }
    ),
    "core": frozenset({"_core"}),
    "state": frozenset({"run_state", "stored_state", "record_codec", "value_codec", "seal"}),
    "shell": frozenset({"_shell"}),
    "edges": frozenset({"models", "sessions", "journal", "mcp", "tracing", "sqlite_file"}),
    "entry": frozenset({"run", "runtime", ""}),  # the empty name is the package's own `__init__`
    "outermost": frozenset({"testing", "durable", "cli"}),
}

# Which layers one may import from, besides itself. Edges know nothing of the machine, nor the machine of them.
ABOVE: dict[str, tuple[str, ...]] = {
    "values": (),
    "abc": ("values",),
    "definitions": ("values", "abc"),
    "core": ("values", "abc", "definitions"),
    "state": ("values", "abc", "definitions", "core"),
    "shell": ("values", "abc", "definitions", "core", "state"),
    "edges": ("values", "abc", "definitions"),
    "entry": ("values", "abc", "definitions", "core", "state", "shell", "edges"),
    "outermost": ("values", "abc", "definitions", "core", "state", "shell", "edges", "entry"),
}

WAITING_OR_CHANGING = frozenset(
    {"asyncio", "trio", "anyio", "httpx", "socket", "threading", "time", "random", "secrets", "uuid"}
)


def modules_under(package: Path) -> dict[str, Path]:
    """Return every module of *package* by dotted name; a package's name stands for its `__init__`."""
    found = {}
    for path in package.rglob("*.py"):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node that can run, inside functions too, without what only a type checker sees."""
    children = node.orelse if isinstance(node, ast.If) and _for_types_only(node) else ast.iter_child_nodes(node)
    for child in children:
        yield child
        yield from _statements(child)


def imports_of(source: str, module: str, *, is_package: bool) -> set[tuple[str, str]]:
    """Return what *module* imports, as pairs of a module and a name taken from it (empty for `import x`)."""
    found: set[tuple[str, str]] = set()
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            found |= {(target, alias.name) for alias in node.names}
    return found


def import_graph(package: Path) -> dict[str, set[str]]:
    """Return, for each module of *package*, the full names it imports: its own modules, and others by their name."""
    modules = modules_under(package)
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        pairs = imports_of(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
        targets = {f"{target}.{name}" if f"{target}.{name}" in modules else target for target, name in pairs}
        graph[module] = targets - {module}
    return graph


def layer_of(module: str) -> str:
    """Return the layer of *module*, a dotted name that starts with the package's."""
    top = [*module.split("."), ""][1]
    layers = [layer for layer, names in LAYERS.items() if top in names]
    assert layers, f"{module} stands in no layer: give it a place in the table of this test and of docs/design.md"
    return layers[0]


def downward_imports(graph: dict[str, set[str]], package: str) -> list[str]:
    """Return a line for each import that goes against the table."""
    return sorted(
        f"{module} ({layer_of(module)}) imports {target} ({layer_of(target)})"
        for module, targets in graph.items()
        for target in targets
        if target.split(".")[0] == package and layer_of(target) not in {layer_of(module), *ABOVE[layer_of(module)]}
    )


def import_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one cycle, or nothing."""
    own = {module: {target for target in targets if target in graph} for module, targets in graph.items()}
    try:
        TopologicalSorter(own).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return import_graph(PACKAGE)


def test_layers_import_upwards_only(graph: dict[str, set[str]]) -> None:
    """A layer imports from itself and the layers it is allowed to know."""
    assert downward_imports(graph, "agentloop") == []


def test_every_module_has_a_layer(graph: dict[str, set[str]]) -> None:
    """A new module must be given a place."""
    assert graph
    assert {layer_of(module) for module in graph} <= set(LAYERS)


def test_no_import_cycle(graph: dict[str, set[str]]) -> None:
    """No module reaches itself, imports inside functions included."""
    assert import_cycle(graph) == []


def test_core_waits_for_nothing_and_reads_no_clock(graph: dict[str, set[str]]) -> None:
    """The core imports no I/O library, no clock, no source of chance."""
    core = {module: targets for module, targets in graph.items() if module.startswith("agentloop._core")}
    assert core
    bad = {module: found for module, targets in core.items() if (found := _tops(targets) & WAITING_OR_CHANGING)}
    assert bad == {}


def test_one_module_at_most_imports_asyncio(graph: dict[str, set[str]]) -> None:
    """What anyio can't say stands in one documented module; the testing package may do as it must."""
    users = [
        module
        for module, targets in graph.items()
        if "asyncio" in _tops(targets) and not module.startswith("agentloop.testing")
    ]
    assert len(users) <= 1, users


def test_the_package_imports_only_what_it_declares(graph: dict[str, set[str]]) -> None:
    """Every outside import is the standard library, a dependency, or an extra of pyproject.toml."""
    declared = {"anyio", "attr", "attrs", "httpx", "msgspec", "sniffio"}
    extras = {"trio", "xllamacpp", "click", "rich", "pydantic", "pytest", "hypothesis"}
    outside = set().union(*map(_tops, graph.values())) - {"agentloop"} - set(sys.stdlib_module_names)
    assert outside <= declared | extras


def _tops(targets: set[str]) -> set[str]:
    return {target.split(".")[0] for target in targets}


# ------------------------------------------------------------------------------------ the reader itself


def _package(root: Path, files: dict[str, str]) -> Path:
    package = root / "agentloop"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_reader_finds_deferred_and_relative_imports_and_skips_typing_ones() -> None:
    """What runs counts, wherever it stands; what only a type checker reads doesn't."""
    source = (
        "from typing import TYPE_CHECKING\n"
        "from . import tools\n"
        "from .._core.plan import Plan\n"
        "if TYPE_CHECKING:\n    import httpx\nelse:\n    import time\n"
        "def late():\n    import sqlite3\n"
    )
    assert imports_of(source, "agentloop._shell.drive", is_package=False) == {
        ("typing", "TYPE_CHECKING"),
        ("agentloop._shell", "tools"),
        ("agentloop._core.plan", "Plan"),
        ("time", ""),
        ("sqlite3", ""),
    }
    assert imports_of("from .plan import Plan", "agentloop._core", is_package=True) == {
        ("agentloop._core.plan", "Plan")
    }


def test_downward_import_is_reported(tmp_path: Path) -> None:
    """A value that reaches for the shell, an edge for the core: both are named."""
    files = {
        "items.py": "def f():\n    from agentloop._shell import drive\n",
        "_shell/drive.py": "from agentloop import items\n",
        "models/local.py": "from agentloop._core.plan import Plan\n",
        "_core/plan.py": "Plan = int\n",
    }
    assert downward_imports(import_graph(_package(tmp_path, files)), "agentloop") == [
        "agentloop.items (values) imports agentloop._shell.drive (shell)",
        "agentloop.models.local (edges) imports agentloop._core.plan (core)",
    ]


def test_deferred_cycle_is_reported(tmp_path: Path) -> None:
    """An import inside a function closes a cycle as well."""
    files = {"items.py": "import agentloop.usage\n", "usage.py": "def f():\n    import agentloop.items\n"}
    assert set(import_cycle(import_graph(_package(tmp_path, files)))) == {"agentloop.items", "agentloop.usage"}
