"""Malformed stored forms: states of runs, lines and bytes of journals, answers of a model.

A malformed state that is taken nevertheless must be whole: all its attributes can be read, and it is equal after
another storing. An answer must leave nothing behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs

from agentloop._storage.record_codec import record_to_line
from agentloop._storage.state_codec import header
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.exceptions import AgentLoopError
from agentloop.items import AssistantMessage, ToolCall
from agentloop.journal._envelope import START, Seal, scan, write_batch
from agentloop.model_events import ArgumentsDelta, ItemDone, ResponseDone, ResponseStarted, TextDelta
from agentloop.state import RunState
from agentloop.testing.scripted import say, stream_of
from agentloop.testing.simulation.generated import Chance
from agentloop.testing.simulation.runs import World, run_one

from .generators import PLAIN, GeneratorConfig, Seeded, draw_world
from .malformed import FEEDS, spoil, text_of, value_of
from .malformed_answers import ANSWERS

SEEDS = range(14)


@attrs.frozen
class Stored:
    """A run's agent, and the stored forms of the run: a state's JSON text, a journal's lines."""

    agent: Agent[Any, Any]
    state: str
    lines: tuple[bytes, ...]


@cache
def _make_stored_runs() -> tuple[Stored, ...]:
    found = []
    for seed in SEEDS:
        world = World(**draw_world(Seeded(f"stored/{seed}"), GeneratorConfig(turns=2, calls=3, approvals=True)))
        run = run_one(world)
        lines = (
            header("id1", AgentGraph(run.agent).describe_as_text(), sealed=False),
            *map(record_to_line, run.records),
        )
        found.append(Stored(run.agent, RunState(run.agent, run.records).to_string(), lines))
    return tuple(found)


def _check_state(state: RunState) -> None:
    """Check that *state* can be read, and is equal after storing and loading."""
    repr(state)
    waiting = state.interruptions
    for request in waiting[:1]:
        state.approve(request)
    again = RunState.from_json(state.agent, state.to_json())
    assert again == state, "a state that was taken isn't the same once it was stored again"


def _feed_state(chance: Chance) -> None:
    """Load a state with one or two faults."""
    stored = chance.pick(_make_stored_runs())
    data = json.loads(stored.state)
    for _ in range(chance.whole(1, 2)):
        if chance.one_in(4):
            data = data | {chance.pick(("schema", "records", "graph", "context", "seal", "x")): value_of(chance)}
        elif isinstance(data.get("records"), list) and data["records"]:
            _spoil_order(chance, data["records"])
    _check_state(RunState.from_json(stored.agent, data))


def _spoil_order(chance: Chance, records: list[Any]) -> None:
    """Spoil one record, drop one, repeat one, or swap two, in place."""
    place, other = chance.whole(0, len(records) - 1), chance.whole(0, len(records) - 1)
    kind = chance.whole(0, 5)
    if kind == 0:
        del records[place]
    elif kind == 1:
        records.insert(other, records[place])
    elif kind == 2:
        records[place], records[other] = records[other], records[place]
    elif isinstance(records[place], dict):
        records[place] = json.loads(json.dumps(records[place]))
        spoil(chance, records[place])


def _feed_state_text(chance: Chance) -> None:
    """Load a state's text with a part removed or inserted."""
    stored = chance.pick(_make_stored_runs())
    text = stored.state
    place = chance.whole(0, len(text))
    text = text[:place] + chance.pick(("", text_of(chance))) + text[place + chance.whole(0, 3) :]
    _check_state(RunState.from_string(stored.agent, text))


class _Lines:
    """A journal of the given lines; reading them never waits, so no event loop is needed."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines

    async def read(self) -> list[bytes]:
        return self.lines

    async def append(self, records: Any) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


def _restore(agent: Agent[Any, Any], lines: list[bytes]) -> None:
    coroutine = RunState.from_journal(agent, _Lines(lines))
    try:
        coroutine.send(None)
    except StopIteration as done:
        _check_state(done.value)
    else:
        coroutine.close()
        raise AssertionError("reading waited for something")


def _feed_journal_lines(chance: Chance) -> None:
    """Restore a journal with valid digests whose lines are no run's."""
    stored = chance.pick(_make_stored_runs())
    lines: list[Any] = [json.loads(line) for line in stored.lines]
    for _ in range(chance.whole(1, 2)):
        if lines:
            _spoil_order(chance, lines)
    written = [json.dumps(line).encode() for line in lines]
    if written and chance.one_in(8):
        place = chance.whole(0, len(written) - 1)
        written[place] = text_of(chance).encode("utf-8", "surrogatepass")
    _restore(stored.agent, written)


def _feed_journal_bytes(chance: Chance) -> None:
    """Scan a damaged journal file (a bit, a piece, a line): its records must be the first ones that were written."""
    stored = chance.pick(_make_stored_runs())
    end, lines = START, []
    for place in range(0, len(stored.lines), 3):
        batch, end = write_batch(stored.lines[place : place + 3], end, kept=place, now=0.0, seal=Seal(None))
        lines += batch
    data = bytearray(b"".join(lines))
    for _ in range(chance.whole(1, 2)):
        place = chance.whole(0, len(data) - 1) if data else 0
        kind = chance.whole(0, 4)
        if kind == 0 and data:
            data[place] ^= 1 << chance.whole(0, 7)
        elif kind == 1:
            del data[place : place + chance.whole(1, 40)]
        elif kind == 2:
            data[place:place] = text_of(chance).encode("utf-8", "surrogatepass")
        elif kind == 3:
            del data[place:]
        elif data:
            whole = data.splitlines(keepends=True)
            whole.insert(chance.whole(0, len(whole)), whole[chance.whole(0, len(whole) - 1)])
            data = bytearray(b"".join(whole))
    found = scan(bytes(data), Seal(None), "malformed").records
    assert found == list(stored.lines[: len(found)]), "a damaged journal gave other records than were written"


@cache
def _make_base_world() -> World:
    return World(**{**draw_world(Seeded("answers"), PLAIN), "script": (), "nested": {}, "options": {}})


def _feed_answer(chance: Chance) -> None:
    """Run an agent whose model sends random events in any order."""
    name = chance.pick(("a_0", "a_1", "", "x"))
    made = [
        lambda: ResponseStarted(),
        lambda: TextDelta(chance.pick(("a", "", "\ud800"))),
        lambda: ArgumentsDelta(chance.pick(("c1", "c2", "")), text_of(chance)),
        lambda: ItemDone(ToolCall(chance.pick(("c1", "c1", "c2", "")), name, text_of(chance))),
        lambda: ItemDone(AssistantMessage(chance.pick(("said", "")))),
        lambda: ResponseDone(()),
        lambda: ResponseDone((ToolCall("c1", name, text_of(chance)), ToolCall("c1", name, '{"n": 1}'))),
        lambda: ResponseDone((AssistantMessage("said"),)),
    ]
    events = [chance.pick(made)() for _ in range(chance.whole(0, 6))]
    if not chance.one_in(3):
        events.append(ResponseDone(()))
    run = run_one(attrs.evolve(_make_base_world(), script=(stream_of(events), say("end"), say("end"))))
    assert not run.left, f"left behind: {', '.join(run.left)}"
    if run.error is not None:
        raise run.error


STORES: tuple[tuple[str, Callable[[Chance], None]], ...] = (
    ("states", _feed_state),
    ("states' text", _feed_state_text),
    ("journals' lines", _feed_journal_lines),
    ("journals' bytes", _feed_journal_bytes),
)
RARE = 40
"""One of RARE inputs is an answer in a whole run, which takes a hundred times as long as the others."""


def feed(chance: Chance) -> tuple[str, str | None]:
    """Feed one malformed input; return its kind, and the text of an error that is not the library's, or None."""
    kind, meet = ("answers in runs", _feed_answer) if chance.one_in(RARE) else chance.pick((*FEEDS, *ANSWERS, *STORES))
    try:
        meet(chance)
    except AgentLoopError:
        pass
    except Exception as error:
        return kind, f"{type(error).__name__}: {error}"
    return kind, None
