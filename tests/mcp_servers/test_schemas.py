"""Schemas of a hostile server: refused above a size, checked in bounded work, and never on the loop for long."""

import json
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.agents import script_agent
from kit.results import read_requests, read_statuses
from mcp_servers.processes import MARKS, Servers

from agentloop import Runner
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")

from agentloop.mcp._schemas import Meter, make_check

pytestmark = [*MARKS, pytest.mark.scenario("SM-13")]


def in_object(schema: Any, **more: Any) -> dict[str, Any]:
    """Return the schema of an object with the property `x` of this schema."""
    return {"type": "object", "properties": {"x": schema}, **more}


def doubled(keyword: str, depth: int) -> dict[str, Any]:
    """Return a schema in which *keyword* doubles the work with each of *depth* references."""
    parts: dict[str, Any] = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)}
    return {"type": "object", "$defs": {**parts, f"a{depth}": {}}, "allOf": [{"$ref": "#/$defs/a0"}]}


def nested(depth: int) -> Any:
    """Return a value with so many objects in each other, each as `c`."""
    made: Any = {}
    for _ in range(depth):
        made = {"c": made}
    return made


NODE = {"type": "object", "properties": {"c": {"allOf": [{"$ref": "#/$defs/n"}] * 2}}}
RECENT = "https://json-schema.org/draft/2020-12/schema"
EVIL = "^(a|a)*$"
HOSTILE: dict[str, tuple[Callable[[int], dict[str, Any]], Callable[[int], Any]]] = {
    "allOf": (lambda n: doubled("allOf", 4 * n), lambda n: {}),
    "anyOf": (lambda n: doubled("anyOf", 4 * n), lambda n: {}),
    "oneOf": (lambda n: doubled("oneOf", 4 * n), lambda n: {}),
    "doubling with the data": (lambda n: {**in_object(NODE), "$defs": {"n": NODE}}, lambda n: {"x": nested(5 * n)}),
    "pattern": (lambda n: in_object({"pattern": EVIL}), lambda n: {"x": "a" * 30 * n + "!"}),
    "pattern of names": (lambda n: {"type": "object", "patternProperties": {EVIL: {}}}, lambda n: {"a" * 30 * n: 1}),
    "pattern in propertyNames": (
        lambda n: {"type": "object", "propertyNames": {"pattern": EVIL}},
        lambda n: {"a" * 30 * n + "!": 1},
    ),
    "pattern below another $schema": (
        lambda n: {"type": "object", "allOf": [{"$schema": RECENT, "properties": {"x": {"pattern": EVIL}}}]},
        lambda n: {"x": "a" * 30 * n + "!"},
    ),
    "pattern behind its own $schema": (
        lambda n: {"$schema": RECENT, **in_object({"pattern": EVIL}, additionalProperties={"$ref": "#"})},
        lambda n: {"y": {"x": "a" * 30 * n + "!"}},
    ),
    "uniqueItems": (
        lambda n: in_object({"uniqueItems": True}),
        lambda n: {"x": [{"a": one} for one in range(900 * n)]},
    ),
    "names of references": (
        lambda n: {
            "type": "object",
            "$defs": {f"d{one}": {"$anchor": f"n{one}"} for one in range(90 * n)},
            "allOf": [{"$ref": f"#n{one}"} for one in range(90 * n)],
        },
        lambda n: {},
    ),
    "a long value in every error": (
        lambda n: in_object({"anyOf": [{"type": "string"}] * (300 * n)}),
        lambda n: {"x": list(range(700 * n))},
    ),
    "a long enum": (
        lambda n: in_object(
            {"anyOf": [{"$ref": "#/$defs/e"}] * (90 * n)}, **{"$defs": {"e": {"enum": [[0] * 800 * n]}}}
        ),
        lambda n: {"x": [0] * 800 * n},
    ),
    "many items": (lambda n: in_object({"items": {"type": "integer"}}), lambda n: {"x": [1] * 10_000 * n}),
}
"""Schema and value of a size, by what is hostile in them."""


def count_calls(work: Callable[[], Any]) -> int:
    """Return how many calls of Python functions *work* makes."""
    calls = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


MOST_CALLS = 400_000
"""Calls of functions in one check on the loop, some 50 ms of it on a slow machine."""


@pytest.mark.parametrize("name", HOSTILE)
def test_ten_times_the_size_is_checked_in_bounded_work(name: str) -> None:
    """Counted in calls, whatever the schema says and however large the value is; a larger schema is refused."""
    schema, value = HOSTILE[name]
    for size in (1, 10):
        check, checked = make_check(schema(size), Meter()), value(size)
        assert count_calls(lambda check=check, checked=checked: check(checked)) <= MOST_CALLS
    with pytest.raises(ValueError, match="it has more than"):
        make_check({**schema(10), "examples": [0] * 10_000}, Meter())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(6_000)}},
        {"type": "object", "description": "d" * 1_000_001},
        {"type": "object", "properties": {"d" * 1_000_001: {}}},
        {"type": "object", "allOf": [{"$ref": "#"}] * 1_001},
        in_object(nested(100)),
        in_object({"type": 5}),
        in_object({"enum": 5}),
    ],
    ids=["values", "characters", "characters of names", "references", "depth", "type", "enum"],
)
def test_schema_above_the_bounds_is_refused(schema: Any) -> None:
    """With a reason, before anything of it is evaluated."""
    with pytest.raises(ValueError, match=r"it has more than|it is nested more than|is not"):
        make_check(schema, Meter())


def test_schemas_of_a_server_share_their_steps() -> None:
    """The one that finds too few of them left is refused."""
    meter = Meter(2_000)
    make_check(in_object({"type": "string"}), meter)
    with pytest.raises(ValueError, match="it takes too long to look through"):
        for _ in range(100):
            make_check(in_object({"type": "string"}), meter)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "#", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyc"), inner, max_size=3),
    max_leaves=8,
)
PLAIN_SCHEMAS = st.deferred(
    lambda: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer", "null"]),
            "properties": st.dictionaries(st.sampled_from("xyc"), PLAIN_SCHEMAS, max_size=2),
            "items": PLAIN_SCHEMAS,
            "required": st.lists(st.sampled_from("xyc"), max_size=2, unique=True),
            "additionalProperties": st.booleans() | PLAIN_SCHEMAS,
            "enum": st.lists(JSON, min_size=1, max_size=2),
            "anyOf": st.lists(PLAIN_SCHEMAS, min_size=1, max_size=2),
            "oneOf": st.lists(PLAIN_SCHEMAS, min_size=1, max_size=2),
            "not": PLAIN_SCHEMAS,
            "minItems": st.integers(0, 2),
            "maximum": st.integers(-2, 2),
        },
    )
)


@pytest.mark.timeout(300)
@given(PLAIN_SCHEMAS, JSON)
@settings(max_examples=200, deadline=None)
def test_small_schemas_are_checked_as_by_the_library_itself(schema: Any, value: Any) -> None:
    """Bounds change nothing for schemas within them, of keywords that are checked here."""
    from jsonschema import Draft202012Validator

    wanted = Draft202012Validator(schema).is_valid(value)
    assert (make_check(schema, Meter())(value) is None) == wanted


@pytest.mark.parametrize(
    ("schema", "value", "wrong"),
    [
        (in_object({"default": 1}, required=["x"]), {}, None),
        (in_object({"type": "string"}, required=["x"]), {}, "'x' is a required property"),
        (in_object({}, additionalProperties=False), {"y": 1}, "Additional properties are not allowed"),
        (in_object({}, additionalProperties=False, patternProperties={"^y": {}}), {"y": 1}, None),
        (in_object({"$ref": "http://x.test/s"}), {"x": 1}, "the server's schema can't be used"),
        (in_object({"$ref": "#"}, allOf=[{"$ref": "#"}]), {"x": {}}, "the server's schema can't be used"),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                **in_object({"maximum": 3, "exclusiveMaximum": True}),
            },
            {"x": 3},
            "x: 3 is greater than or equal to the maximum of 3",
        ),
    ],
)
def test_check_says_what_is_wrong(schema: Any, value: Any, wrong: str | None) -> None:
    """Of arguments that the server would refuse; what it would take passes."""
    said = make_check(schema, Meter())(value)
    assert said is None if wrong is None else wrong in (said or "")


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        (in_object({"type": "integer"}), {"x": "hush"}, "x (type)"),
        (in_object(in_object({"enum": [1]})), {"x": {"x": "hush"}}, "x.x (enum)"),
        (in_object({}, minProperties=2), {"x": "hush"}, "the whole (minProperties)"),
        (in_object({"maxLength": 1, "format": "x", "const": 1}), {"x": "hush"}, "x (maxLength); x (const)"),
    ],
)
def test_check_of_a_secret_names_places_only(schema: Any, value: Any, said: str) -> None:
    """And the keyword of the schema, for whoever reads the log; a plain check shows the value."""
    assert make_check(schema, Meter(), secret=True)(value) == said
    assert "hush" in (make_check(schema, Meter())(value) or "")


HOSTILE_SERVER = """
import json, sys
schema, output = json.loads(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    match request["method"]:
        case "initialize":
            result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": "h", "version": "1"}}
        case "tools/list":
            result = {"tools": [{"name": "t", "inputSchema": schema, **({"outputSchema": output} if output else {})}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "ok"}], "structuredContent": request["params"]["arguments"]}
        case _:
            result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("place", ["input", "output"])
@pytest.mark.parametrize("name", ["oneOf", "pattern", "pattern below another $schema"])
async def test_call_of_a_tool_with_a_hostile_schema_goes_on(name: str, place: str) -> None:
    """The server is asked, as it checks its arguments itself; neither the run nor others wait for the schema."""
    from agentloop.mcp import MCPServer

    hostile, value = HOSTILE[name]
    schemas = [hostile(10), None] if place == "input" else [{"type": "object"}, hostile(10)]
    server = MCPServer(name="h", command=[sys.executable, "-c", HOSTILE_SERVER, json.dumps(schemas)], mode="legacy")
    agent = script_agent("a", call("t", value(10)), say("done"), toolsets=[server])
    assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]


async def test_schemas_are_looked_through_beside_the_loop(stdio: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks take turns meanwhile, and a cancelled run ends it at the next tool."""
    begun, go_on = threading.Event(), threading.Event()
    looked_at: list[Any] = []

    def wait(schema: Any, meter: Meter) -> Any:
        looked_at.append(schema)
        begun.set()
        assert go_on.wait(60)
        return make_check(schema, meter)

    monkeypatch.setattr("agentloop.mcp._server.make_check", wait)
    agent = script_agent("a", say("done"), toolsets=[stdio.make()])
    async with anyio.create_task_group() as group:
        group.start_soon(Runner.run, agent, "go")
        while not begun.is_set():  # noqa: ASYNC110 - a thread sets it
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    go_on.set()
    await anyio.to_thread.run_sync(wait_for_threads)
    assert len(looked_at) == 1
    assert read_requests(agent) == []


def wait_for_threads() -> None:
    """Return when no thread makes tools any more."""
    while any(is_making(frame) for frame in sys._current_frames().values()):
        time.sleep(0.01)


def is_making(frame: FrameType | None) -> bool:
    """Tell whether the thread with this frame makes tools."""
    while frame is not None and frame.f_code.co_name != "_make_all":
        frame = frame.f_back
    return frame is not None
