"""Arguments for a tool: values that its schema allows, with words that the program itself uses among them.

A tool that takes an order's number does something only for an order that exists. So text and numbers are taken from
the context and from the code of the tools first. Every choice follows from a seed.
"""

from __future__ import annotations

import inspect
import json
import random
import re
import sqlite3
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentloop._schema.function_schema import FunctionSchema
from agentloop.exceptions import AgentLoopError
from agentloop.testing.explorer._state import _parts
from agentloop.testing.simulation._arguments import resolve_reference
from agentloop.tools import FunctionTool, PythonBody

MOST_WORDS = 60
LONGEST_WORD = 40
MOST_VISITED = 3000
_NUMBERS = (1, 2, 3, 5, 10, 20, 50, 80, 100, 0)
_TEXTS = ("a", "b", "alpha", "beta")
_FORMATS = {
    "date": "2026-01-02",
    "date-time": "2026-01-02T03:04:05Z",
    "time": "03:04:05Z",
    "duration": "PT1H",
    "email": "ann@example.com",
    "uuid": "12345678-1234-5678-1234-567812345678",
    "uri": "https://example.com/a",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "decimal": "1.5",
}


class Words:
    """The words and numbers that a program uses: keys and values of its state, and constants of its functions."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.texts: dict[str, None] = {}
        self.numbers: dict[int, None] = {}

    def add_state(self, value: Any) -> None:
        """Add what is reachable from *value*, a context or a function."""
        known: set[int] = set()
        unseen = [value]
        while unseen and len(known) < MOST_VISITED:
            one = unseen.pop(0)
            if isinstance(one, str | int | float):
                self._add(one, self.texts)
                continue
            if id(one) in known or one is None or isinstance(one, types.ModuleType):
                continue
            known.add(id(one))
            if isinstance(one, dict):
                for key in list(one):
                    self._add(key, self.keys)
            elif isinstance(one, sqlite3.Connection):
                self._add_rows(one)
            unseen += [part for _, part in _parts(one)]

    def _add_rows(self, connection: sqlite3.Connection) -> None:
        try:
            tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
            for table in tables:
                for row in connection.execute(f'select * from "{table}" limit 20'):
                    for value in row:
                        self._add(value, self.keys)
        except sqlite3.Error:
            return

    def add_code(self, fn: Callable[..., Any]) -> None:
        """Add the constants of *fn*, without its docstring."""
        code = getattr(fn, "__code__", None)
        if code is None:
            return
        for constant in code.co_consts:
            if constant != fn.__doc__:
                for one in constant if isinstance(constant, tuple | frozenset) else (constant,):
                    self._add(one, self.texts)

    def _add(self, value: Any, texts: dict[str, None]) -> None:
        if isinstance(value, str):
            if 0 < len(value) <= LONGEST_WORD and len(texts) < MOST_WORDS and "\n" not in value:
                texts[value] = None
        elif _is_small(value) and len(self.numbers) < MOST_WORDS:
            for near in (int(value), int(value) + 1, int(value) - 1):
                self.numbers.setdefault(near)


def _is_small(value: object) -> bool:
    """Return True for a whole number that arguments may be near to."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 10**6 and value == int(value)


class ArgumentValues:
    """Draws arguments that *schema* allows."""

    def __init__(self, schema: Mapping[str, Any], words: Words, chance: random.Random) -> None:
        self.root = schema
        self.words = words
        self.chance = chance

    def draw(self) -> dict[str, Any]:
        """Return one set of arguments: required ones always, the others now and then."""
        needed = set(self.root.get("required", ()))
        return {
            name: self.value(member, name)
            for name, member in self.root.get("properties", {}).items()
            if (name in needed and not (_is_nullable(member) and self.chance.random() < 0.5))
            or self.chance.random() < 0.3
        }

    def value(self, schema: Any, name: str = "", depth: int = 0) -> Any:
        """Return a value that *schema* allows, as far as that is known."""
        chance = self.chance
        if not isinstance(schema, Mapping) or depth > 6:
            return chance.choice([*_TEXTS, 1])
        if "$ref" in schema:
            return self.value(resolve_reference(schema["$ref"], self.root), name, depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return chance.choice(list(schema["enum"]))
        for union in ("anyOf", "oneOf"):
            if members := schema.get(union):
                full = [one for one in members if not (isinstance(one, Mapping) and one.get("type") == "null")]
                return self.value(chance.choice(full or members), name, depth + 1)
        if schema.get("allOf"):
            merged: dict[str, Any] = {}
            for member in schema["allOf"]:
                merged.update(resolve_reference(member["$ref"], self.root) if "$ref" in member else member)
            return self.value(merged, name, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if not isinstance(kind, str):
            kind = next((one for one in kind if one != "null"), "null")
        return self._of_type(kind, schema, name, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        match kind:
            case "integer":
                return self._number(schema)
            case "number":
                return self._number(schema) if self.chance.random() < 0.7 else self._fraction(schema)
            case "boolean":
                return self.chance.random() < 0.5
            case "null":
                return None
            case "array":
                return self._array(schema, name, depth)
            case "object":
                return self._object(schema, depth)
            case _:
                return self._text(schema, name)

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        before = [self.value(one, name, depth + 1) for one in schema.get("prefixItems", ())]
        least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
        count = max(least, min(most, self.chance.choice([1, 2, 2, 3])))
        rest = schema.get("items", {"type": "string"})
        if rest is False or ("prefixItems" in schema and "items" not in schema):
            return before
        items = [self.value(rest, name, depth + 1) for _ in range(count - len(before))]
        if schema.get("uniqueItems"):
            items = list({json.dumps(one, sort_keys=True): one for one in items}.values())
        return [*before, *items]

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        needed = set(schema.get("required", ()))
        made = {
            name: self.value(one, name, depth + 1)
            for name, one in schema.get("properties", {}).items()
            if name in needed or self.chance.random() < 0.5
        }
        extra = schema.get("additionalProperties", False)
        if isinstance(extra, Mapping) and not made:
            made = {self._text({}, ""): self.value(extra, "", depth + 1)}
        return made

    def _number(self, schema: Mapping[str, Any]) -> int:
        low, high = schema.get("minimum"), schema.get("maximum")
        if (over := schema.get("exclusiveMinimum")) is not None:
            low = over + 1
        if (under := schema.get("exclusiveMaximum")) is not None:
            high = under - 1
        step = int(schema.get("multipleOf", 1)) or 1
        pools = [
            _NUMBERS,
            _NUMBERS,
            tuple(self.words.numbers) or _NUMBERS,
            tuple(one for one in (low, high) if one is not None) or _NUMBERS,
        ]
        for _ in range(20):
            number = int(self.chance.choice(self.chance.choice(pools))) // step * step
            if (low is None or number >= low) and (high is None or number <= high):
                return number
        return int(low if low is not None else high if high is not None else 0)

    def _fraction(self, schema: Mapping[str, Any]) -> float:
        return self._number(schema) + (0.5 if "maximum" not in schema and "multipleOf" not in schema else 0.0)

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        if schema.get("format") in _FORMATS:
            return str(_FORMATS[schema["format"]])
        if "pattern" in schema:
            return self._matching(schema)
        pools = [list(self.words.keys) or _TEXTS, _TEXTS, list(self.words.texts) or _TEXTS]
        pool = pools[self.chance.choice([0, 0, 0, 1, 1, 2])]
        text = str(self.chance.choice(list(pool)))
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10_000)
        return str((text + "a" * max(0, least - len(text)))[: int(most)])

    def _matching(self, schema: Mapping[str, Any]) -> str:
        pattern = str(schema["pattern"])
        for word in (*self.words.keys, *self.words.texts, *_TEXTS, "1", "12", "123", "1234", "A1", "A-1"):
            try:
                if re.search(pattern, word):
                    return word
            except re.error:
                return word
        try:
            from agentloop.testing.simulation._arguments import arguments_for
        except ImportError:  # hypothesis is an extra
            return "a"
        return str(
            _drawn(arguments_for({"type": "object", "properties": {"text": dict(schema)}, "required": ["text"]}))[
                "text"
            ]
        )


def _drawn(strategy: Any) -> Any:
    """Return one value of a hypothesis *strategy*, always the same."""
    from hypothesis import HealthCheck, Phase, given, settings

    found: list[Any] = []

    @settings(
        max_examples=1,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        deadline=None,
    )
    @given(strategy)
    def keep(value: Any) -> None:
        found.append(value)

    keep()
    return found[0]


def _is_nullable(schema: Any) -> bool:
    return isinstance(schema, Mapping) and any(
        isinstance(one, Mapping) and one.get("type") == "null" for one in schema.get("anyOf", ())
    )


def arguments_of(tool: Any, words: Words, chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Return up to *count* different sets of arguments that *tool*, or a handoff, takes."""
    values = ArgumentValues(tool.params_json_schema, words, chance)
    body = getattr(tool, "body", None)
    schema = body.schema if isinstance(body, PythonBody) else None
    found: dict[str, dict[str, Any]] = {}
    for _ in range(4 * count):
        made = values.draw()
        if schema is None or takes(schema, made):
            found.setdefault(json.dumps(made, sort_keys=True), made)
        if len(found) >= count:
            break
    return list(found.values())


def takes(schema: FunctionSchema, arguments: dict[str, Any]) -> bool:
    """Return True if a function of *schema* takes *arguments*."""
    try:
        schema.bind(arguments)
    except AgentLoopError:
        return False
    except Exception:
        return True  # a type's own check: let the run tell
    return True


def functions_of(tool: FunctionTool[Any]) -> Iterable[Callable[..., Any]]:
    """Return the application's functions that belong to *tool*."""
    body = tool.body
    fn = getattr(body, "fn", None)
    guards = [*tool.tool_input_guardrails, *tool.tool_output_guardrails]
    own = [fn, tool.needs_approval, tool.failure_error_function, tool.timeout_error_function, tool.is_enabled]
    own += [getattr(guard, "guardrail_function", None) or getattr(guard, "fn", None) for guard in guards]
    return [one for one in own if callable(one)]


def context_type_of(tool: Any) -> str | None:
    """Return the name of the type of context that the function of *tool* asks for; None if it asks for none."""
    fn = getattr(tool.body, "fn", None)
    try:
        parameters = inspect.signature(fn).parameters.values() if fn is not None else ()
    except (TypeError, ValueError):
        return None
    for parameter in parameters:
        said = parameter.annotation
        text = said if isinstance(said, str) else repr(said)
        if "ToolContext[" in text or "RunContext[" in text:
            inner = text.partition("Context[")[2].rpartition("]")[0].rpartition(".")[2]
            return None if inner in ("None", "Any", "NoneType", "") else inner
    return None
