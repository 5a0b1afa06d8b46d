"""Malformed inputs: JSON arguments, server-sent events, stored records.

Each is fed to the code that gets it first in production. That code may take it, or refuse it with an error of the
library's own; any other error is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from agentloop._common.json_bytes import decode
from agentloop._schema.json_text import canonical_arguments, parse_object
from agentloop._storage.item_codec import item_from_json
from agentloop._storage.record_codec import record_from_json, record_to_json
from agentloop._storage.stored_forms import KINDS as RECORD_KINDS
from agentloop.models._sse import SSEDecoder
from agentloop.settings import JsonLimits
from agentloop.testing.simulation.generated import Chance

from .generators import Seeded
from .pure_core import draw_core_world, play

LIMITS = JsonLimits(max_bytes=2000, max_depth=8, max_digits=30)
PIECES = (
    "{", "}", "[", "]", ",", ":", '"', "\\", "null", "true", "NaN", "-Infinity", "1e999", "0", "-", "1" * 40,
    '"a"', '"n"', "\ud800", "\\ud800", "\x00", " ", "\n", "{}", "[[[[[[[[[[", '{"n": 1}', "é", "\u2028", "1.0", "1.",
)  # fmt: skip
LINES = (
    b"data: ", b"data:", b"event: x", b"id: 1\x00", b"retry: soon", b"\n", b"\n\n", b"\r\n", b"\r", b": comment",
    b'{"a": 1}', b"[DONE]", b"\xff\xfe", b"\xef\xbb\xbf", b"data", b"x" * 300, b"", b"\xe2\x80",
)  # fmt: skip
KINDS = (
    "run_started", "turn_started", "model_responded", "call_started", "call_settled", "run_ended", "handed_off",
    "guardrail_settled", "verdict_given", "nothing", "", "tool_call", "tool_output", "message", "reasoning",
)  # fmt: skip


def text_of(chance: Chance) -> str:
    """Return a text made of pieces of JSON."""
    return "".join(chance.pick(PIECES) for _ in range(chance.whole(0, 8)))


def value_of(chance: Chance, depth: int = 0) -> Any:
    """Return a random JSON value, or one with a lone surrogate."""
    kind = chance.whole(0, 9 if depth < 3 else 6)
    if kind <= 6:
        return chance.pick([None, True, 0, -1, 1 << 70, 0.5, "", "a", "completed", "\ud800", [], {}])
    if kind == 7:
        return [value_of(chance, depth + 1) for _ in range(chance.whole(0, 3))]
    return {_pick_name(chance): value_of(chance, depth + 1) for _ in range(chance.whole(0, 4))}


def _pick_name(chance: Chance) -> str:
    return chance.pick(
        ("kind", "type", "path", "turn", "at", "call_id", "tool", "outcome", "status", "items", "response", "agent",
         "input", "arguments", "role", "content", "text", "run_id", "max_turns", "output", "x")
    )  # fmt: skip


@cache
def _make_records() -> tuple[str, ...]:
    """Return records of some runs as JSON text, one of each form."""
    found: dict[str, str] = {}
    for seed in range(60):
        for record in play(draw_core_world(Seeded(seed))).observation.records:
            written = record_to_json(record)
            found.setdefault(f"{written['kind']} {sorted(written)}", json.dumps(written))
    return tuple(found.values())


def _spoil_record(chance: Chance) -> Any:
    """Return a record with one or two faults at any depth: a value replaced, a field dropped or added."""
    if chance.one_in(4):
        found: dict[str, Any] = {"kind": chance.pick(tuple(RECORD_KINDS.values())), "path": [], "turn": 0, "at": 0.0}
        return found | {_pick_name(chance): value_of(chance) for _ in range(chance.whole(0, 6))}
    record = json.loads(chance.pick(_make_records()))
    for _ in range(chance.whole(1, 2)):
        spoil(chance, record)
    return record


def spoil(chance: Chance, value: Any) -> None:
    """Replace, drop or add one member at any depth of *value*, in place."""
    inner = [one for one in (value.values() if isinstance(value, dict) else value) if isinstance(one, dict | list)]
    if inner and chance.one_in(2):
        spoil(chance, chance.pick(inner))
    elif isinstance(value, list):
        value.append(value_of(chance))
    elif not value or chance.one_in(4):
        value[_pick_name(chance)] = value_of(chance)
    elif chance.one_in(3):
        del value[chance.pick(tuple(value))]
    else:
        value[chance.pick(tuple(value))] = value_of(chance)


def _feed_arguments(chance: Chance) -> None:
    parse_object(text_of(chance), LIMITS, tool="t")


def _feed_identity(chance: Chance) -> None:
    canonical_arguments(text_of(chance), LIMITS)


def _feed_events(chance: Chance) -> None:
    decoder = SSEDecoder()
    for _ in range(chance.whole(1, 6)):
        chunk = b"".join(chance.pick(LINES) for _ in range(chance.whole(0, 4)))
        for event in decoder.feed(chunk):
            assert isinstance(event.data, str)


def _feed_record(chance: Chance) -> None:
    record_from_json(_spoil_record(chance))


def _feed_bytes(chance: Chance) -> None:
    text = text_of(chance) if chance.one_in(2) else json.dumps(_spoil_record(chance))
    data = text.encode("utf-8", "surrogatepass")
    cut = chance.whole(0, len(data))
    decode(data[:cut] if chance.one_in(2) else data)


def _feed_item(chance: Chance) -> None:
    item_from_json(
        {"type": chance.pick(KINDS), **{_pick_name(chance): value_of(chance) for _ in range(chance.whole(0, 5))}}
    )


FEEDS: tuple[tuple[str, Callable[[Chance], None]], ...] = (
    ("arguments", _feed_arguments),
    ("arguments' identity", _feed_identity),
    ("event streams", _feed_events),
    ("records", _feed_record),
    ("record bytes", _feed_bytes),
    ("items", _feed_item),
)
