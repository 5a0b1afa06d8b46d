"""Parts of the runtime tested without a world: in each round verdicts; in some rounds admission, journals, threads.

Their random choices have a seed of their own: an addition here changes no world of a seed.
"""

from __future__ import annotations

import inspect
import itertools
import re
import tempfile
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop._core.admission import Admission, Ticket
from agentloop.abc import Instrument, Journal, LateResult
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.context import ToolContext
from agentloop.events import CallProgress
from agentloop.exceptions import AgentLoopError, StateError
from agentloop.guardrails import Allow, ToolOutputData, ToolOutputGuardrail
from agentloop.handoffs._history import nest_history
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Image,
    Item,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.journal import FileJournal, MemoryJournal, SQLiteJournal
from agentloop.limits import Capacity, Limit, OrderedCapacity, ToolExecution
from agentloop.run import Runner
from agentloop.state import RunState
from agentloop.testing.conformance import JournalConformance
from agentloop.testing.scripted import ScriptedModel, call, say
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.generated import Chance
from agentloop.testing.simulation.runs import World, run_one
from agentloop.tools import tool

from .generators import GeneratorConfig, Seeded, draw_world

PATIENCE = 32
"""The promised number of later calls that may pass a waiting one; not read from the code under test."""
STEPS = 130
ADMISSIONS = 5
JOURNALS = 500
"""Test admission and histories every ADMISSIONS rounds; every journal and real threads every JOURNALS rounds."""


class Faulty(Exception):
    """A broken invariant: its name, and a message."""

    def __init__(self, invariant: str, words: str) -> None:
        super().__init__(words)
        self.invariant = invariant


def played(seed: str, number: int) -> list[tuple[str, str]]:
    """Play the parts of one round; return the name and the message of each broken invariant."""
    chance = Seeded(f"{seed}/{number}/alone")
    parts: list[Callable[[], None]] = [partial(verdicts, chance)]
    if number % ADMISSIONS == 0:
        parts += [partial(admission, chance), partial(histories, chance)]
    if number % JOURNALS == 0:
        parts += [journals, *(partial(part, chance.pick(BACKENDS)) for part in (threads, too_late))]
    found = []
    for part in parts:
        try:
            part()
        except Faulty as fault:
            found.append((fault.invariant, str(fault)))
    return found


# ---------------------------------------------------------------------------------------------- admission


@attrs.define(eq=False)
class _Queue:
    """Tickets under way, and for each waiting one the number of later tickets with a common limit that passed it."""

    admission: Admission = attrs.field(factory=Admission)
    waiting: list[Ticket] = attrs.field(factory=list)
    running: list[Ticket] = attrs.field(factory=list)
    passed: dict[int, int] = attrs.field(factory=dict)

    def admit(self, now: float) -> None:
        """Run one admission, and check the tickets that started and those that did not."""
        started = self.admission.admit(now)
        self.waiting = [one for one in self.waiting if one not in started]
        self.running += started
        for one in started:
            for other in self.waiting:
                if other.seq < one.seq and set(other.limits) & set(one.limits):
                    self._note_passing(one, other, now)
        for one in self.waiting:
            if all(limit.free(now) > self._count_reserved(limit, one) for limit in one.limits):
                raise Faulty("slots_are_used", f"ticket {one.seq} waits, and all of its limits have room")
        if started != sorted(started, key=lambda one: one.seq):
            raise Faulty("starts_follow_model_order", "who was admitted together stands in another order")

    def _note_passing(self, one: Ticket, other: Ticket, now: float) -> None:
        if set(other.limits) == set(one.limits):
            raise Faulty("starts_follow_model_order", f"ticket {one.seq} started before its equal {other.seq}")
        if any(limit.ordered and limit in one.limits for limit in other.limits):
            raise Faulty("starts_follow_model_order", f"ticket {one.seq} took an ordered limit before {other.seq}")
        count = self.passed[other.seq] = self.passed.get(other.seq, 0) + 1
        if count <= PATIENCE or not self._is_first(other):
            return
        if any(limit in one.limits and limit.free(now) <= 0 for limit in other.limits):
            raise Faulty("nobody_starves", f"ticket {other.seq} was passed {count} times, and no token was kept for it")

    def _is_first(self, one: Ticket) -> bool:
        return not any(other.seq < one.seq and set(other.limits) == set(one.limits) for other in self.waiting)

    def _count_reserved(self, limit: Limit, one: Ticket) -> int:
        """Return the number of tokens of *limit* reserved for tickets that came before *one*."""
        wanting = [other for other in self.waiting if other.seq < one.seq and limit in other.limits]
        spent = [other for other in wanting if self.passed.get(other.seq, 0) >= PATIENCE and self._is_first(other)]
        return len(wanting if limit.ordered else spent)


def admission(chance: Chance) -> None:
    """Check tickets that want several limits at once: none starves, no slot stays free, and equals keep their order."""
    limits: list[Limit] = [Capacity(chance.whole(1, 2), name) for name in "ab"]
    limits.append(OrderedCapacity(1, "line"))
    totals = [limit.total_tokens for limit in limits if isinstance(limit, Capacity)]
    queue = _Queue()
    wide = chance.whole(2, 12)
    for step in range(STEPS):
        if queue.running and chance.one_in(3):
            gone = queue.running.pop(chance.whole(0, len(queue.running) - 1))
            for limit in gone.limits:
                limit.give()
        elif queue.waiting and chance.one_in(20):
            away = queue.waiting.pop(chance.whole(0, len(queue.waiting) - 1))
            queue.admission.withdraw([away])
        else:
            wanted = limits[:2] if chance.one_in(wide) else [chance.pick(limits[:2])]
            if chance.one_in(10):
                wanted = [*wanted, limits[2]]
            queue.waiting.append(ticket := Ticket(tuple(wanted)))
            queue.admission.add(ticket)
        queue.admit(float(step))
        for limit, total in zip(limits, totals, strict=True):
            held = sum(limit in one.limits for one in queue.running)
            if total is not None and held > total:
                raise Faulty("bodies_in_flight_fit_the_limits", f"{held} hold {limit!r}")
        if len(queue.admission) != len(queue.waiting):
            raise Faulty("slots_are_used", f"{len(queue.waiting)} wait, and {len(queue.admission)} are said to")


# ---------------------------------------------------------------------------------------------- histories of handoffs


def histories(chance: Chance) -> None:
    """Check that a nested history has each word of the conversation, except thoughts, once and in order; nested again
    too.
    """
    items: list[Item] = []
    said: list[str] = []
    for place in range(chance.whole(0, 8)):
        word = f"<{place}>\n" if chance.one_in(4) else f"<{place}>"
        item: Item = chance.pick(
            [
                UserMessage(word),
                AssistantMessage(word),
                Reasoning(summary=(word,)),
                ToolCall(f"c{place}", "t", f'{{"n": "<{place}>"}}'),
                ToolOutput(f"c{place}", word),
                HandoffCall(f"c{place}", "transfer", f'{{"n": "<{place}>"}}'),
                HandoffOutput(f"c{place}", word, "a", "b"),
                UserMessage([Image("https://x.test/i.png"), Text(word)]),
            ]
        )
        items.append(item)
        if not isinstance(item, Reasoning):
            said.append(f"<{place}>")
    nested = items
    for _ in range(chance.whole(1, 3)):
        nested = list(nest_history(nested))
        texts = "".join(item.text for item in nested if isinstance(item, UserMessage | AssistantMessage))
        if (found := re.findall(r"<[0-9]+>", texts)) != said:
            raise Faulty("handoffs_lose_nothing", f"{said} was said, and a nested history has {found}")
        if any(isinstance(item, Reasoning) for item in nested):
            raise Faulty("handoffs_lose_nothing", "a nested history has a thought")


# ---------------------------------------------------------------------------------------------- verdicts


@attrs.frozen
class _Paused:
    """A run that waits for verdicts: its agent, its log, and its approval requests."""

    agent: Agent[Any, Any]
    records: tuple[r.Record, ...]
    asked: tuple[ApprovalRequest, ...]


@cache
def _make_paused_runs() -> tuple[_Paused, ...]:
    found: list[_Paused] = []
    seed = 0
    while len(found) < 5:
        seed += 1
        parts = draw_world(
            Seeded(f"paused/{seed}"), GeneratorConfig(turns=1, calls=3, faults=False, approvals=True, secrets=False)
        )
        run = run_one(World(**{**parts, "verdicts": ()}))
        if run.result is not None and run.result.interruptions:
            found.append(_Paused(run.agent, run.records, run.result.interruptions))
    return tuple(found)


def verdicts(chance: Chance) -> None:
    """Check that a verdict is taken for exactly its call, and that a verdict which fits no call decides nothing."""
    paused = chance.pick(_make_paused_runs())
    request = chance.pick(paused.asked)
    asked = request.call
    approved = not chance.one_in(4)
    forged: Any = chance.pick(
        [
            request.replace(call=asked.replace(arguments='{"n": 10001}')),
            request.replace(call=asked.replace(name=f"{asked.name}x")),
            request.replace(call=asked.replace(namespace="elsewhere")),
            request.replace(agent="nobody"),
            request.replace(path=(*request.path, "c99")),
            request.replace(call=asked.replace(call_id="c99")),
            "c99",
        ]
    )
    state = RunState(paused.agent, paused.records)
    try:
        (state.approve if approved else state.reject)(forged)
    except StateError:
        pass
    else:
        raise Faulty("a_verdict_fits_one_call", f"a verdict on {forged!r} was taken, and {request!r} was asked")
    _check_misfit(chance, paused, request)
    state = RunState(paused.agent, paused.records)
    (state.approve if approved else state.reject)(request)
    if _waits(state, request):
        raise Faulty("a_verdict_is_asked_for_once", f"{request!r} has a verdict, and waits for one")
    verdict = state.records[-1]
    wanted = next(
        one
        for one in reversed(paused.records)
        if isinstance(one, r.ApprovalRequested) and (one.path, one.call_id) == (request.path, asked.call_id)
    )
    names = ("path", "call_id", "agent", "tool", "digest")
    if not isinstance(verdict, r.VerdictGiven) or verdict.approved is not approved:
        raise Faulty("a_verdict_fits_one_call", f"approved={approved} became {verdict!r}")
    if any(getattr(verdict, name) != getattr(wanted, name) for name in names):
        raise Faulty("a_verdict_fits_one_call", f"{verdict!r} was given on {wanted!r}")


def _check_misfit(chance: Chance, paused: _Paused, request: ApprovalRequest) -> None:
    """Check that a log with a verdict for another agent, tool or digest still waits."""
    state = RunState(paused.agent, paused.records)
    state.approve(request)
    given: Any = state.records[-1]
    name = chance.pick(("agent", "tool", "digest"))
    state = RunState(paused.agent, [*paused.records, given.replace(**{name: "another"})])
    try:
        waits = _waits(state, request)
    except AgentLoopError:
        return
    if not waits:
        raise Faulty("a_verdict_fits_one_call", f"a verdict with another {name} holds for {request!r}")


def _waits(state: RunState, request: ApprovalRequest) -> bool:
    return any((one.path, one.call.call_id) == (request.path, request.call.call_id) for one in state.interruptions)


# ---------------------------------------------------------------------------------------------- journals


class _Conforms(JournalConformance):
    """The conformance tests of journals, for one kind in a folder of its own."""

    def __init__(self, opened: Callable[[], Journal], *, lasting: bool) -> None:
        self._opened = opened
        self.lasting = lasting

    def open_journal(self) -> Journal:
        return self._opened()


def journals() -> None:
    """Run the conformance tests of journals on each kind of journal."""
    for name, test in inspect.getmembers(JournalConformance, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory(prefix="agentloop-journal-") as folder:
            place = Path(folder)
            kinds: list[tuple[str, Callable[[], Journal], bool]] = [
                ("memory", MemoryJournal, False),
                ("file", partial(FileJournal, place / "file", key=b"k"), True),
                ("sqlite", partial(SQLiteJournal, place / "sqlite", "run", key=b"k"), True),
            ]
            for kind, opened, lasting in kinds:
                _run_conformance_test(kind, name, partial(test, _Conforms(opened, lasting=lasting)))


def _run_conformance_test(kind: str, name: str, test: Callable[[], Any]) -> None:
    try:
        if inspect.iscoroutinefunction(test.func):  # type: ignore[attr-defined]  # a partial of a method
            anyio.run(test)
        else:
            test()
    except Exception as error:
        raise Faulty("journals_keep_their_promise", f"{kind}, {name}: {type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------------------------------- threads


class _Late(Instrument):
    """An instrument that keeps late results."""

    def __init__(self) -> None:
        self.reports: list[LateResult] = []

    def on_late_result(self, report: LateResult) -> None:
        """Keep *report*."""
        self.reports.append(report)


def threads(backend: Backend) -> None:
    """Check that an abandoned thread holds its slot until it ends, reports no progress, and has one late result."""
    late, began, release = _Late(), threading.Event(), threading.Event()

    def stays(ctx: ToolContext[Any]) -> str:
        """Stay."""
        began.set()
        release.wait(10)
        ctx.report_nowait(1.0)
        return "stayed"

    def quick() -> str:
        """Return at once."""
        return "quick"

    async def lets_go() -> str:
        """Let the one that stays go, and wait until it has."""
        release.set()
        await _wait_until(lambda: bool(late.reports))
        return "let go"

    async def leaves(ctx: ToolContext[Any]) -> str:
        """Leave the one that stays behind."""
        await _wait_until(began.is_set)
        ctx.cancel_call("c0")
        return "left"

    turns = (("stays", "leaves"), ("quick",), ("lets_go",), ("quick",))
    ids = itertools.count()
    script = [[call(name, {}, call_id=f"c{next(ids)}") for name in names] for names in turns]
    tools = [tool(stays, abandon_on_cancel=True), *map(tool, (quick, lets_go, leaves))]
    agent: Agent[Any, Any] = Agent("a", tools=tools, model=ScriptedModel([*script, say("done")]))
    config = RunConfig(tool_execution=ToolExecution(max_threads=1), instruments=[late])
    events: list[Any] = []

    async def read() -> Any:
        async with Runner.run_streamed(agent, "go", run_config=config) as stream:
            events.extend([event async for event in stream])
        return stream.result

    try:
        result = anyio.run(read, backend=backend)
    finally:
        release.set()
    if any(isinstance(event, CallProgress) for event in events):
        raise Faulty("signals_have_their_place", f"progress was reported of a call that had ended, on {backend}")
    ends = [(one.outcome.status, one.outcome.abandoned) for one in result.calls]
    if ends != [
        ("cancelled", True),
        *((status, False) for status in ("succeeded", "skipped", "succeeded", "succeeded")),
    ]:
        raise Faulty("abandoned_threads_hold_their_place", f"the calls ended as {ends} on {backend}")
    if [(one.value, one.error) for one in late.reports] != [("stayed", None)]:
        raise Faulty("late_reports_come_once", f"reported were {late.reports} on {backend}")


async def _wait_until(true: Callable[[], bool]) -> None:
    """Wait until *true* returns True, which another thread brings about; at most ten seconds."""
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110 - the other thread sets no event of the loop
            await anyio.sleep(0.001)


# ---------------------------------------------------------------------------------------------- a cancellation too late


def too_late(backend: Backend) -> None:
    """Check that a call whose body has ended can't be cancelled, and that `cancel_call` returns False for it."""

    async def program() -> list[tuple[str, Any]]:
        judged, tried = anyio.Event(), anyio.Event()

        async def judge(data: ToolOutputData) -> Allow:
            judged.set()
            await tried.wait()
            return Allow()

        async def ends() -> str:
            """End."""
            return "ended"

        async def cancels(ctx: ToolContext[Any]) -> str:
            """Cancel the one that is being judged."""
            await judged.wait()
            done = ctx.cancel_call("c0")
            tried.set()
            return f"cancelled: {done}"

        tools = [tool(ends, tool_output_guardrails=[ToolOutputGuardrail(judge, name="slow")]), tool(cancels)]
        model = ScriptedModel([[call("ends", {}, call_id="c0"), call("cancels", {}, call_id="c1")], say("done")])
        agent: Agent[Any, Any] = Agent("a", tools=tools, model=model)
        result = await Runner.run(agent, "go")
        return [(one.outcome.status, one.outcome.output) for one in result.calls]

    ends = anyio.run(program, backend=backend)
    if ends != [("succeeded", "ended"), ("succeeded", "cancelled: False")]:
        raise Faulty("finished_bodies_keep_their_end", f"cancelled after its body had ended: {ends} on {backend}")
