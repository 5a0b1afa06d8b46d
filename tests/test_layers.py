"""The layers of the package, held by its imports alone."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import agentloop

PACKAGE = Path(next(iter(agentloop.__path__)))

# Bottom to top. A room is a folder, or a module beside the folders; it may import from its own layer and those below.
LAYERS: dict[str, tuple[str, ...]] = {
    "common": ("_common",),
    "concurrency": ("_concurrency",),
    "values": (
        *("items", "usage", "outcomes", "exceptions", "settings", "model_events", "records", "events"),
        *("spans", "abc"),
    ),
    "schema": ("_schema",),
    "definitions": (*("context", "guardrails", "handoffs", "limits", "tools", "config", "agents", "window"),),
    "storage": ("_storage",),
    "core": ("_core",),
    "state": ("state", "results"),
    "runtime": ("_engine.runtime",),
    "calls": ("_engine.calls",),
    "engine": ("_engine", "_compacting"),
    "edges": ("models", "sessions", "journal", "tracing", "executors"),
    "entry": ("run", ""),  # the empty name is the package's own `__init__`
    "outermost": ("testing", "cli", "mcp", "postgres", "temporal", "asgi", "otel", "lab", "bundles", "interop"),
}
FLOOR = {layer: floor for floor, layer in enumerate(LAYERS)}
APART = (("edges", "core"), ("edges", "state"), ("edges", "runtime"), ("edges", "calls"), ("edges", "engine"))
"""Edges know nothing of the machine, nor the machine of them."""
MOST_ROOMS, MOST_FLOORS = 50, 15
"""Rooms of the package, and the longest way down through their imports: more of either is a decision.

The library itself has 41; each of six adapters (executors, mcp, postgres, temporal, asgi, otel) is one more, outermost,
and so are the lab, the bundles and the forms of other libraries, which nothing else needs. `testing.explorer` is
imported where pytest explores only.
The longest way leads from the command line by PostgreSQL, whose loop of a worker runs agents, to `run`.
What an agent behind the web and one behind MCP both use is below both: where states are kept is in `journal`, and the
words about errors are with the errors.
"""

WAITING_OR_CHANGING = frozenset(
    {"asyncio", "trio", "anyio", "httpx", "socket", "threading", "time", "random", "secrets", "uuid"}
)


def modules_under(package: Path) -> dict[str, Path]:
    """Return every module of *package* by dotted name; a package's name means its `__init__`."""
    found = {}
    for path in package.rglob("*.py"):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(source: str, module: str, *, is_package: bool) -> set[tuple[str, str]]:
    """Return what *module* imports, as pairs of a module and a name taken from it (empty for `import x`)."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
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


def room_of(module: str) -> str:
    """Return the room of *module*, a dotted name that starts with the package's: its folder, or itself beside them."""
    rooms = {room for names in LAYERS.values() for room in names}
    name = module.partition(".")[2]
    while name and name not in rooms and "." in name:
        name = name.rpartition(".")[0]
    return name


def layer_of(module: str) -> str:
    """Return the layer of *module*."""
    layers = [layer for layer, rooms in LAYERS.items() if room_of(module) in rooms]
    assert layers, f"{module} stands in no layer: give its room a place in the table of this test and of docs/design.md"
    return layers[0]


def _may_import(layer: str, other: str) -> bool:
    return FLOOR[other] <= FLOOR[layer] and (layer, other) not in APART and (other, layer) not in APART


def downward_imports(graph: dict[str, set[str]], package: str) -> list[str]:
    """Return a line for each import that goes against the table."""
    return sorted(
        f"{module} ({layer_of(module)}) imports {target} ({layer_of(target)})"
        for module, targets in graph.items()
        for target in targets
        if target.split(".")[0] == package and not _may_import(layer_of(module), layer_of(target))
    )


def folder_of(module: str, modules: set[str]) -> str:
    """Return the folder that holds *module*, or the module itself where it lies beside the folders.

    The wires of `models` are counted with it: each folder has the same names inside, so who knows one knows all.
    """
    if room_of(module) == "models":
        return "agentloop.models"
    if any(other.startswith(f"{module}.") for other in modules):
        return module
    folder = module.rpartition(".")[0]
    return module if folder in ("", "agentloop") else folder


def floors_of(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return each folder, and each module beside the folders, with the length of the longest way down from it.

    The package's facades import what they show and are counted with it, as are rooms that import each other.
    """
    modules = set(graph)
    rooms: dict[str, set[str]] = {}
    for module, targets in graph.items():
        below = {folder_of(target, modules) for target in targets if target in modules}
        rooms.setdefault(folder_of(module, modules), set()).update(below)
    reached = {room: _reachable(room, rooms) for room in rooms}
    floors: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in floors:
            beneath = {other for other in reached[room] if room not in reached[other]}
            floors[room] = 1 + max(map(floor, beneath), default=0)
        return floors[room]

    return {room: floor(room) for room in rooms}


def _reachable(room: str, rooms: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    due = [room]
    while due:
        for other in rooms[due.pop()] - found:
            found.add(other)
            due.append(other)
    return found


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
    """A new module must be given a place, and a room of the table exists."""
    assert {layer_of(module) for module in graph} == set(LAYERS)
    assert {room_of(module) for module in graph} == {room for rooms in LAYERS.values() for room in rooms}


def test_rooms_stay_few_and_the_way_down_short(graph: dict[str, set[str]]) -> None:
    """A reader of the package has that many places to know, and passes that many on the longest way."""
    floors = floors_of(graph)
    assert len(floors) <= MOST_ROOMS, sorted(floors)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda each: each[1])


def test_what_is_common_has_several_users(graph: dict[str, set[str]]) -> None:
    """A module of `_common` that only one room uses belongs into that room."""
    users: dict[str, set[str]] = {module: set() for module in graph if module.startswith("agentloop._common.")}
    for module, targets in graph.items():
        for target in targets & users.keys():
            users[target].add(folder_of(module, set(graph)))
    assert {module: rooms for module, rooms in users.items() if len(rooms) < 2} == {}


def test_no_import_cycle(graph: dict[str, set[str]]) -> None:
    """No module reaches itself, imports inside functions and those for type checkers included."""
    assert import_cycle(graph) == []


def test_core_waits_for_nothing_and_reads_no_clock(graph: dict[str, set[str]]) -> None:
    """The core imports no I/O library, no clock, no source of chance."""
    core = {module: targets for module, targets in graph.items() if module.startswith("agentloop._core")}
    assert core
    bad = {module: found for module, targets in core.items() if (found := _tops(targets) & WAITING_OR_CHANGING)}
    assert bad == {}


def test_one_module_at_most_imports_asyncio(graph: dict[str, set[str]]) -> None:
    """One documented module holds what anyio can't do; the testing package may do as it must."""
    users = [
        module
        for module, targets in graph.items()
        if "asyncio" in _tops(targets) and not module.startswith("agentloop.testing")
    ]
    assert len(users) <= 1, users


def test_the_package_imports_only_what_it_declares(graph: dict[str, set[str]]) -> None:
    """Every outside import is the standard library, a dependency, or an extra of pyproject.toml.

    Type checkers bring the types of `typing_extensions` along; it is never imported where code runs.
    """
    declared = {"anyio", "attr", "attrs", "cattrs", "httpx", "msgspec"}
    extras = {"trio", "xllamacpp", "cryptography", "click", "rich", "pydantic", "pytest", "hypothesis", "websockets"}
    extras |= {"psycopg", "genai_prices"}
    extras |= {"h11"}  # of the extra `cli`
    extras |= {"mcp", "httpx2", "jsonschema", "referencing"}  # of the extra `mcp` and what it brings
    extras |= {"temporalio"}
    extras |= {"opentelemetry", "ag_ui"}
    extras |= {"starlette"}  # of an application that has it: its routes then take our response for one of their own
    for_types = {"typing_extensions"}
    outside = set().union(*map(_tops, graph.values())) - {"agentloop"} - set(sys.stdlib_module_names)
    assert outside <= declared | extras | for_types
    importers = {module for module, targets in graph.items() if for_types & _tops(targets)}
    assert importers == {"agentloop._common.type_parameters"}


def _tops(targets: set[str]) -> set[str]:
    return {target.split(".")[0] for target in targets}


# ------------------------------------------------------------------------------------ sizes

MOST_LINES = {("_core", "_engine"): 8_277, ("_concurrency",): 745, ("_storage",): 1_323}
"""The most lines of code that these rooms may have together. What grows them says in its commit for what; a feature
that needs no step of the loop is an outer room."""


def code_lines(source: str) -> int:
    """Return the number of lines of *source* that are neither blank, nor comments, nor strings that stand alone."""
    texts = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and line.lstrip()[0] != "#" and number not in texts)


@pytest.mark.parametrize("rooms", MOST_LINES, ids=" ".join)
def test_the_engine_stays_small(rooms: tuple[str, ...]) -> None:
    """Counted in lines of code, so that no docstring or comment is ever too long."""
    files = [path for room in rooms for path in (PACKAGE / room).rglob("*.py")]
    assert sum(code_lines(path.read_text(encoding="utf-8")) for path in files) <= MOST_LINES[rooms]


def test_lines_of_code_are_counted() -> None:
    """Comments, docstrings and blank lines don't count; a string that is used does."""
    source = (
        '"""Head.\n\nMore.\n"""\n\n# why\nx = "text"  # beside\n\n\ndef f() -> None:\n    """Do."""\n    return None\n'
    )
    assert code_lines(source) == 3


# ------------------------------------------------------------------------------------ the reader itself


def _package(root: Path, files: dict[str, str]) -> Path:
    package = root / "agentloop"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_reader_finds_deferred_relative_and_typing_imports() -> None:
    """Every import counts, at any place in a module, also those that only a type checker reads."""
    source = (
        "from typing import TYPE_CHECKING\n"
        "from . import tools\n"
        "from .._core.plan import Plan\n"
        "if TYPE_CHECKING:\n    import httpx\n"
        "def late():\n    import sqlite3\n"
    )
    assert imports_of(source, "agentloop._engine.loop", is_package=False) == {
        ("typing", "TYPE_CHECKING"),
        ("agentloop._engine", "tools"),
        ("agentloop._core.plan", "Plan"),
        ("httpx", ""),
        ("sqlite3", ""),
    }
    assert imports_of("from .plan import Plan", "agentloop._core", is_package=True) == {
        ("agentloop._core.plan", "Plan")
    }


def test_downward_import_is_reported(tmp_path: Path) -> None:
    """A value that reaches for the shell, an edge for the core: both are named."""
    files = {
        "items.py": "def f():\n    from agentloop._engine import loop\n",
        "_engine/loop.py": "from agentloop import items\n",
        "models/local.py": "from agentloop._core.plan import Plan\n",
        "_core/plan.py": "Plan = int\n",
    }
    assert downward_imports(import_graph(_package(tmp_path, files)), "agentloop") == [
        "agentloop.items (values) imports agentloop._engine.loop (engine)",
        "agentloop.models.local (edges) imports agentloop._core.plan (core)",
    ]


def test_deferred_cycle_is_reported(tmp_path: Path) -> None:
    """An import inside a function closes a cycle as well."""
    files = {"items.py": "import agentloop.usage\n", "usage.py": "def f():\n    import agentloop.items\n"}
    assert set(import_cycle(import_graph(_package(tmp_path, files)))) == {"agentloop.items", "agentloop.usage"}
