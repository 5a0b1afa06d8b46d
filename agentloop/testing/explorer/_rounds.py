"""The rounds of an exploration: each takes a few calls and looks for one kind of fault. A function of its number.

A `Plan` tries the agent's tools first, to learn which arguments do something and what a call gives back when it ends.
Its rounds follow from that and from their numbers only, so a number repeats a round.
"""

from __future__ import annotations

import itertools
import json
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from agentloop.exceptions import AgentLoopError, UserError
from agentloop.testing.explorer import _faults_of_runs as f
from agentloop.testing.explorer._faults_of_runs import AgentFault
from agentloop.testing.explorer._own import OwnInvariant
from agentloop.testing.explorer._runs import CONTEXT, MOST_STEPS, Call, CallPlace, Seen, Subject, places_of
from agentloop.testing.explorer._state import differing, value_at
from agentloop.testing.explorer._values import arguments_of, context_type_of
from agentloop.testing.simulation._crash_invariants import sound
from agentloop.testing.simulation._restarts import CrashRun, run_crashing, run_undisturbed
from agentloop.testing.simulation._stepping import COMBINATIONS, Kind
from agentloop.testing.simulation.disk import CrashAt, Mode
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.runs import CancelAt, WorldRun
from agentloop.testing.simulation.schedules import Exhaustive, Priorities, Scheduler, Tape
from agentloop.tools import may_run_again

SCHEDULES = 36
"""Schedules that a round tries for calls that are made together, on each backend."""
DRAWN = 12
TRIED = 14
"""Sets of arguments that are tried for each tool."""
KEPT = 3
"""Sets of arguments of each tool that rounds use."""
MOST_PAIRS = 60
MOST_CANCELS = 250

Turns = tuple[tuple[Call, ...], ...]
Keep = Callable[[AgentFault], None]


@attrs.frozen
class Round:
    """One round: its kind and the calls, those of each turn together; the last turn is the one that it is about."""

    kind: str
    turns: Turns

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that the round is about."""
        return self.turns[-1]


@attrs.define(eq=False)
class Plan:
    """The facts about an agent's tools, and the rounds that follow from them. `begin` fills it in."""

    subject: Subject
    own: Sequence[OwnInvariant] = ()
    good: dict[str, list[tuple[tuple[Call, ...], Call]]] = attrs.field(factory=dict)
    """For each tool calls that do something, each with the calls that have to come before it."""
    gauges: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """For each tool the places that a call changes and puts back as they were."""
    changes: dict[str, set[str]] = attrs.field(factory=dict)
    """For each tool the places that its calls leave changed."""
    shared: set[str] = attrs.field(factory=set)
    """The places outside of the context that runs leave changed."""
    fails: set[tuple[str, str]] = attrs.field(factory=set)
    """Tools and types of errors that occur without any disturbance."""
    secrets: dict[str, str] = attrs.field(factory=dict)
    backends: tuple[Backend, ...] = BACKENDS
    needs_context: dict[str, str] = attrs.field(factory=dict)
    """Tools whose bodies need a context that there is no factory for, with the error that showed it."""
    succeeded: set[str] = attrs.field(factory=set)
    """Tools of which a call succeeded as the first one of a run."""
    broken: set[str] = attrs.field(factory=set)
    """Tools of which a call shows a fault by itself."""
    runs: int = 0
    _serial: dict[Any, tuple[list[Seen], frozenset[str]]] = attrs.field(factory=dict)
    listed: list[Round] = attrs.field(factory=list)

    # ---------------------------------------------------------------------------------- running

    def run(self, turns: Turns, **options: Any) -> Seen:
        """Run a world of *turns* and return what was seen."""
        world = {name: options.pop(name) for name in ("order", "cancel", "delay", "behaviors") if name in options}
        self.runs += 1
        return self.subject.run(self.subject.world(turns, **world), **options)

    def judge(self, seen: Seen, calls: Sequence[Call]) -> AgentFault | None:
        """Return the fault that a run shows by itself: those of every run, what isn't given back, your invariants."""
        if (fault := f.fault_of(seen, calls, self.secrets)) is not None:
            return fault
        ended = all(body.ended for body in seen.bodies)
        gauges = {place: usual for call in calls for place, usual in self.gauges.get(call.tool, {}).items()}
        if ended and seen.bodies and (lines := f.not_given_back(seen, gauges)):
            why = _why_unreturned(seen)
            words = f"{f.named(body.tool for body in seen.bodies)} doesn't give back what it took, {why}"
            return AgentFault(
                "unreturned", tuple(call.tool for call in calls), (words, *lines), seen, None, lines[0].split(" is ")[0]
            )
        return self.judge_own(seen, calls)

    def judge_own(self, seen: Seen, calls: Sequence[Call]) -> AgentFault | None:
        """Return the fault if *seen* breaks an invariant of the application."""
        for one in self.own:
            try:
                one.check(seen.run)
            except Exception as error:
                said = str(error) if isinstance(error, AssertionError) else f.describe_error(error)
                words = f"{one.name} doesn't hold: {said}"
                return AgentFault("invariant", tuple(call.tool for call in calls), (words,), seen, error, one.name)
        return None

    # ---------------------------------------------------------------------------------- trying the tools

    def begin(self, seed: int = 0) -> None:
        """Try each tool by itself, with several sets of arguments, and list the rounds.

        Raises:
            UserError: if no run of the agent gets to its end.
        """
        chance = random.Random(seed)
        subject = self.subject
        agent = subject.made()
        subject.places = places_of(agent, subject.words, chance)
        self.secrets = f.secrets_in(self.run(()).before)
        for place in subject.places:
            self._try_out(place, chance)
        self._try_in_order(chance)
        self._find_backends()
        self.listed = list(self._list_rounds())

    def _try_out(self, place: CallPlace, chance: random.Random) -> None:
        if self._needs_context(place):
            return
        made = arguments_of(place.tool, self.subject.words, chance, TRIED)
        acting: list[Call] = []
        others: dict[Any, Call] = {}
        for arguments in made:
            call = Call(place, json.dumps(arguments))
            seen = self._try(((call,),), call)
            if place.name in self.subject.faked:
                return
            fault = f.fault_of(seen, (call,), self.secrets)
            if fault is not None and fault.kind in ("endless", "deadlock"):
                self.good[place.name] = [((), call)]  # another round looks at that
                self.broken.add(place.name)
                return
            changed = frozenset(differing(seen.before, seen.after))
            status = seen.statuses.get("c1", "")
            if status == "succeeded":
                self.succeeded.add(place.name)
            if status == "succeeded" and changed:
                acting.append(call)
            else:
                others.setdefault((status != "succeeded", status, changed), call)
        # The largest amount that is taken is where a check ends to hold, so it is tried before all others.
        acting.sort(key=lambda call: -_size(call))
        chosen = [*acting[:1], *acting[len(acting) // 2 :][:1], *acting[-1:]]
        chosen += [others[key] for key in sorted(others, key=lambda key: key[:2])]
        self.good[place.name] = [((), call) for call in list(dict.fromkeys(chosen))[: KEPT + 1]]

    def _needs_context(self, place: CallPlace) -> bool:
        """Return True, and note it, if the function of the tool asks for a type of context that nothing makes."""
        if self.subject.make_context is None and context_type_of(place.tool) is not None:
            self.needs_context.setdefault(place.name, "")
            self.subject.faked.add(place.name)
        return place.name in self.subject.faked

    def _try(self, turns: Turns, call: Call) -> Seen:
        seen = self.run(turns, order="steps", moments=True)
        error = next((body.error for body in seen.bodies if body.error is not None), None)
        if self.subject.make_context is None and _is_for_want_of_context(error):
            self.needs_context[call.tool] = f.describe_error(error) if error is not None else ""
            self.subject.faked.add(call.tool)
            return seen
        self.fails.update((body.tool, type(body.error).__name__) for body in seen.bodies if body.error is not None)
        changed = differing(seen.before, seen.after)
        self.changes.setdefault(call.tool, set()).update(changed)
        self.shared.update(place for place in changed if not place.startswith(CONTEXT))
        if seen.statuses.get(f"c{sum(map(len, turns))}") == "succeeded" and len(turns) == 1:
            self.gauges.setdefault(call.tool, {}).update(f.gauges_of(seen))
        return seen

    def _try_in_order(self, chance: random.Random) -> None:
        """For a tool that did nothing by itself, look for a call of another one that has to come before it."""
        idle = [name for name, good in self.good.items() if all(not self._does(call) for _, call in good)]
        first = [pair for name in self.good if name not in idle for pair in self.good[name]]
        for name in idle[:6]:
            place = next(one for one in self.subject.places if one.name == name)
            for (_, before), arguments in itertools.product(
                first, arguments_of(place.tool, self.subject.words, chance, 5)
            ):
                if before.place.handoffs != place.handoffs:
                    continue
                call = Call(place, json.dumps(arguments))
                seen = self._try(((before,), (call,)), call)
                if seen.statuses.get("c2") == "succeeded":
                    # A tool that only reads answers without it, too: then that comes first.
                    self.good[name].insert(len(self.good[name]) if name in self.succeeded else 0, ((before,), call))
                    break

    def _does(self, call: Call) -> bool:
        return bool(self.changes.get(call.tool))

    def _find_backends(self) -> None:
        """Leave out a backend on which bodies fail because they were written for the other one."""
        wrong = {backend for backend in BACKENDS if self._fails_on(backend)}
        if wrong != set(BACKENDS):
            self.backends = tuple(backend for backend in BACKENDS if backend not in wrong)

    def _fails_on(self, backend: Backend) -> bool:
        for name, good in self.good.items():
            for setup, call in good[: name not in self.broken]:
                seen = self.run((*((one,) for one in setup), (call,)), backend=backend, order="passes")
                errors = [body.error for body in seen.bodies if body.error is not None]
                if any(words in str(error) for error in errors for words in _OF_A_BACKEND):
                    _end_unawaited(errors)
                    return True
        return False

    # ---------------------------------------------------------------------------------- the rounds

    def rounds(self, start: int = 0) -> Iterator[tuple[int, Round]]:
        """Yield rounds with their numbers, from number *start* on, without end."""
        for number in itertools.count(start):
            yield number, self.round(number)

    def round(self, number: int) -> Round:
        """Return the round of *number*: one of the list, and behind it drawn ones."""
        if number < len(self.listed):
            return self.listed[number]
        return self._draw_round(random.Random(number))

    def _list_rounds(self) -> Iterator[Round]:
        alone = [(setup, call) for good in self.good.values() for setup, call in good]
        first = [pair for good in self.good.values() for pair in good[:1]]
        rest = [pair for pair in alone if pair not in first]
        pairs = list(self._pairs())[:MOST_PAIRS]
        after = [Round("shared", ((a[1],), (b[1],))) for a, b in self._in_two_runs(alone)]
        lists: list[list[Round]] = [
            [Round("alone", _turns(setup, call)) for setup, call in first],
            [Round("race", pair) for pair in pairs],
            *(after[index::4] for index in range(4)),
            [Round("cancel", _turns(setup, call)) for setup, call in first],
            [Round("crash", _turns(setup, call)) for setup, call in first],
            [Round("alone", _turns(setup, call)) for setup, call in rest],
            [Round("cancel", (*((one,) for one in setup), (call, call))) for setup, call in first],
            [Round("cancel", _turns(setup, call)) for setup, call in rest],
        ]
        for together in itertools.zip_longest(*lists):
            yield from (one for one in together if one is not None)
        yield from (Round("crash", pair) for pair in pairs[:10])
        yield from (Round("cancel", pair) for pair in pairs[:10])

    def _pairs(self) -> Iterator[Turns]:
        """Yield pairs of calls for one turn, those first that may meet: of one tool, or with places in common."""
        names = list(self.good)
        ranked: list[tuple[int, int, Turns]] = []
        for one, other in itertools.combinations_with_replacement(names, 2):
            for (before, a), (also, b) in itertools.product(self.good[one], self.good[other]):
                if a.place.handoffs != b.place.handoffs:
                    continue
                common = self.changes.get(one, set()) & self.changes.get(other, set())
                some = self.changes.get(one, set()) | self.changes.get(other, set())
                rank = 0 if common else 1 if some else 2
                setup = tuple((call,) for call in dict.fromkeys((*before, *also)))
                ranked.append((rank, len(ranked), (*setup, (a, b))))
        ranked.sort(key=lambda each: each[:2])
        # The first pair of each two tools comes before the second pair of any.
        seen: Counter[tuple[str, ...]] = Counter()
        rows: list[tuple[int, Turns]] = []
        for _, _, turns in ranked:
            names_of_pair = tuple(call.tool for call in turns[-1])
            rows.append((seen[names_of_pair], turns))
            seen[names_of_pair] += 1
        yield from (turns for _, turns in sorted(rows, key=lambda row: row[0]))

    def _in_two_runs(self, alone: Sequence[tuple[Any, Call]]) -> list[tuple[tuple[Any, Call], tuple[Any, Call]]]:
        pairs = [(a, b) for a in alone for b in alone if not a[0] and not b[0]]
        return pairs[:40]

    def _draw_round(self, chance: random.Random) -> Round:
        places = [place for place in self.subject.places if place.name not in self.subject.faked]
        if not places:
            return Round("alone", ((),))
        way = chance.choice(places).handoffs
        here = [place for place in places if place.handoffs == way]

        def one() -> Call:
            place = chance.choice(here)
            if chance.random() < 0.6 and self.good.get(place.name):
                return chance.choice(self.good[place.name])[1]
            made = arguments_of(place.tool, self.subject.words, chance, 1)
            return Call(place, json.dumps(made[0] if made else {}))

        setup = tuple((one(),) for _ in range(chance.choice([0, 0, 1, 2])))
        kind = chance.choice(["race", "race", "race", "race", "cancel", "crash", "alone"])
        count = chance.choice([2, 2, 3]) if kind == "race" else chance.choice([1, 2])
        return Round(kind, (*setup, tuple(one() for _ in range(count))))

    # ---------------------------------------------------------------------------------- one round

    def find(self, one: Round, backends: Sequence[Backend] | None = None) -> AgentFault | None:
        """Return the first fault that round *one* shows on one of *backends*."""
        if not one.calls:
            return None
        wanted: list[Backend] = [backend for backend in backends or self.backends if backend in self.backends]
        match one.kind:
            case "alone":
                return self._alone(one, wanted)
            case "race":
                return self._race(one, wanted)
            case "cancel":
                return self._cancel(one, wanted)
            case "shared":
                return self._in_sequence(one, wanted)
            case _:
                return self._crash(one, wanted)

    def tools_of(self, one: Round) -> str:
        """Return the tools of a round as a fault's key has them."""
        return "+".join(sorted({call.tool for call in one.calls}))

    def find_again(self, one: Round, key: str, backends: Sequence[Backend]) -> AgentFault | None:
        """Return the fault of *key* that round *one* shows, or any if the key is empty."""
        fault = self.find(one, backends)
        return fault if fault is None or not key or fault.key.partition(" (")[0] == key.partition(" (")[0] else None

    def shrunk(self, one: Round, fault: AgentFault) -> tuple[Round, AgentFault]:
        """Return the smallest round that was found to show the same fault, and the fault in it."""
        again = True
        while again:
            again = False
            for smaller in _smaller(one):
                found = self.find(smaller)
                if found is not None and (found.kind, found.detail) == (fault.kind, fault.detail):
                    one, fault, again = smaller, found, True
                    break
        return one, fault

    # -- one call

    def _alone(self, one: Round, backends: Sequence[Backend]) -> AgentFault | None:
        """One call under several schedules: it always does the same."""
        natural, noise = self._references(one.turns)
        for backend in backends:
            for seen in self._schedules(one.turns, backend):
                if (fault := self.judge(seen, one.calls)) is not None:
                    return fault
                if (fault := self._leaves_threads(seen, one, backend)) is not None:
                    return fault
                if len(one.calls) == 1 and (fault := self._depends_on_order(seen, natural, one, noise)) is not None:
                    return fault
        return None

    def _depends_on_order(
        self, seen: Seen, natural: Sequence[Seen], one: Round, noise: frozenset[str]
    ) -> AgentFault | None:
        tool = one.calls[0].tool
        allowed = [other.after for other in natural]
        places = f.disagreement(seen.after, allowed, noise)
        if _races_on_purpose(self.subject, tool):
            return None
        call_id = f"c{sum(map(len, one.turns))}"
        outputs = {other.outputs.get(call_id) for other in natural}
        if places:
            lines = f.describe_places(places, seen.after, allowed, "in the usual order")
            words = f"{tool} does something else when the tasks that it starts are ordered otherwise"
            return AgentFault("order", (tool,), (words, *lines), seen)
        mine = seen.outputs.get(call_id)
        if (
            "output" not in noise
            and mine not in outputs
            and seen.statuses.get(call_id) == natural[0].statuses.get(call_id)
        ):
            words = f"the output of {tool} depends on the order of the tasks that it starts"
            lines = [f"it is {f.quote(mine)}; in the usual order {' or '.join(map(f.quote, outputs))}"]
            return AgentFault("order", (tool,), (words, *lines), seen)
        return None

    def _leaves_threads(self, seen: Seen, one: Round, backend: Backend) -> AgentFault | None:
        if not seen.threads:
            return None
        # A pool that is made at the first use stays, and that is well: only what grows with every run is left behind.
        again = [self.run(one.turns, backend=backend, restore=False) for _ in range(2)]
        if not all(other.threads for other in again):
            return None
        tool = f.named(call.tool for call in one.calls)
        return AgentFault(
            "thread",
            tuple(call.tool for call in one.calls),
            (f"{tool} leaves a thread behind: {seen.threads[0]}",),
            seen,
        )

    def _schedules(self, turns: Turns, backend: Backend, most: int = SCHEDULES, drawn: int = DRAWN) -> Iterator[Seen]:
        """Run *turns* under several schedules."""
        search = Exhaustive()
        length = 0
        for tape in itertools.islice(search, most):
            seen = self.run(turns, backend=backend, scheduler=Tape(tape))
            yield seen
            length = max(length, len(seen.run.choices))
            search.ran(seen.run.choices)
        if search.complete:
            return
        for number in range(drawn):
            scheduler: Scheduler = (
                Tape(seed=number) if number % 2 else Priorities(number, depth=2, length=max(length, 2))
            )
            yield self.run(turns, backend=backend, scheduler=scheduler)

    # -- together

    def _references(self, turns: Turns) -> tuple[list[Seen], frozenset[str]]:
        """Return runs of *turns* whose last one's calls come one after another, in each order; and places of noise."""
        if turns in self._serial:
            return self._serial[turns]
        *setup, together = turns
        count = sum(map(len, setup))
        runs = []
        for order in itertools.permutations(range(len(together))):
            seen = self.run((*setup, *((together[index],) for index in order)), order="passes")
            names = {f"c{count + position + 1}": f"c{count + index + 1}" for position, index in enumerate(order)}
            runs.append(_renamed(seen, names))
        apart = (*setup, *((one,) for one in together))
        again = self.run(apart, order="passes", delay=1.37, seed=1)
        noise = set(differing(runs[0].after, again.after))
        if any(runs[0].outputs.get(name) != again.outputs.get(name) for name in runs[0].outputs):
            noise.add("output")
        found = runs, frozenset(noise)
        if len(self._serial) < 400:
            self._serial[turns] = found
        return found

    def _race(self, one: Round, backends: Sequence[Backend]) -> AgentFault | None:
        """Several calls in one turn: they do what they do one after another, in some order."""
        serial, noise = self._references(one.turns)
        if any(reference.stuck for reference in serial):
            return None
        usual = {
            (body.tool, type(body.error).__name__) for seen in serial for body in seen.bodies if body.error is not None
        }
        for backend in backends:
            for seen in self._schedules(one.turns, backend):
                if seen.run.waited_at:
                    continue
                if (fault := self.judge(seen, one.calls)) is not None:
                    return fault
                if (fault := self._fails_together(seen, one, usual)) is not None:
                    return fault
                if (fault := self._not_serial(seen, serial, one, noise)) is not None:
                    return fault
        return None

    def _fails_together(self, seen: Seen, one: Round, usual: set[tuple[str, str]]) -> AgentFault | None:
        for call_id, error in f.unexpected_errors(seen):
            tool = next(body.tool for body in seen.bodies if body.call_id == call_id)
            if (tool, type(error).__name__) not in usual | self.fails:
                words = f"{tool} fails beside {_beside(tool, one)}, and never when they are called one after another"
                lines = (words, f.describe_error(error))
                return AgentFault(
                    "fails", tuple(call.tool for call in one.calls), lines, seen, error, type(error).__name__
                )
        return None

    def _not_serial(self, seen: Seen, serial: Sequence[Seen], one: Round, noise: frozenset[str]) -> AgentFault | None:
        allowed = [other.after for other in serial]
        places = [
            place for place in f.disagreement(seen.after, allowed, noise) if not self._notes_overlap(place, seen, one)
        ]
        if not places or self._fits_without_refused(seen, serial, one, noise):
            return None
        names = [call.tool for call in one.calls]
        what = f"{names[0]} and {names[0]}" if len(set(names)) == 1 else f.named(names)
        words = f"{what}, called in one turn, interfere with each other"
        lines = f.describe_places(places, seen.after, allowed, "called one after another")
        return AgentFault("race", tuple(names), (words, *lines), seen)

    def _notes_overlap(self, place: str, seen: Seen, one: Round) -> bool:
        """Return True for a number that is the most of what was taken at once: a run of several calls has to differ."""
        value = seen.after.get(place)
        gauges = {name for call in one.calls for name in self.gauges.get(call.tool, {})}
        if place in gauges:
            return False
        if type(value) is not int or not gauges:
            return False
        before = seen.before.get(place, 0)
        return any(place != gauge and value == _most(self, one, seen, gauge) and value != before for gauge in gauges)

    def _fits_without_refused(self, seen: Seen, serial: Sequence[Seen], one: Round, noise: frozenset[str]) -> bool:
        """Return True if calls with answers that one call never gets ("busy") did nothing, and the rest is in order."""
        before = sum(map(len, one.turns[:-1]))
        usual: dict[str, set[str | None]] = {}
        names = [f"c{before + index + 1}" for index in range(len(one.calls))]
        for name in names:
            usual[name] = {other.outputs.get(name) for other in serial}
        refused = [index for index, name in enumerate(names) if seen.outputs.get(name) not in usual[name]]
        if not refused or "output" in noise:
            return False
        rest = tuple(call for index, call in enumerate(one.calls) if index not in refused)
        if not rest:
            return not f.disagreement(seen.after, [seen.before], noise)
        allowed, more = self._references((*one.turns[:-1], rest))
        return not f.disagreement(seen.after, [other.after for other in allowed], noise | more)

    # -- cancelled

    def _cancel(self, one: Round, backends: Sequence[Backend]) -> AgentFault | None:
        """The caller cancels before each step: all is given back, nothing is left, and in time."""
        for backend, kind in COMBINATIONS:
            if backend not in backends or (kind == "native" and len(one.calls) == 1):
                continue
            natural = self.run(one.turns, backend=backend, order="passes")
            for step in self._steps_to_cancel(one, backend, kind):
                seen = self.run(one.turns, backend=backend, order="passes", cancel=CancelAt(step, kind))
                if (fault := f.fault_of_cancelled(seen, natural, one.calls, kind)) is not None:
                    return fault
                if (fault := self.judge(seen, one.calls)) is not None:
                    return fault
                if seen.threads and not natural.threads:
                    words = f"{f.named(call.tool for call in one.calls)} leaves a thread behind when it is cancelled"
                    return AgentFault("thread", tuple(call.tool for call in one.calls), (words,), seen)
                if len(seen.files) > len(natural.files):
                    tools = f.named(call.tool for call in one.calls)
                    words = f"{tools} leaves a file behind when it is cancelled: {seen.files[0]}"
                    return AgentFault("file", tuple(call.tool for call in one.calls), (words,), seen)
                if seen.run.cancelled_at is None:
                    break
        return None

    def _steps_to_cancel(self, one: Round, backend: Backend, kind: Kind) -> Iterator[int]:
        """Yield the steps from the beginning of the first body on; the reader stops at the run's end."""
        first = 0
        while first < MOST_CANCELS:
            seen = self.run(one.turns, backend=backend, order="passes", cancel=CancelAt(first, kind))
            if seen.bodies or seen.run.cancelled_at is None:
                break
            first += 4
        yield from range(max(0, first - 4), MOST_CANCELS)

    # -- two runs

    def _in_sequence(self, one: Round, backends: Sequence[Backend]) -> AgentFault | None:
        """A run, and then another one in the same process: the second is as if it were the only one."""
        first, second = one.turns[-2:]
        if not self.shared:
            return None
        on_purpose = _is_synchronized(self.subject, [*first, *second])
        for backend, other_context in itertools.product(backends, (False, True)):
            alone = self.run((second,), backend=backend, order="passes")
            again = self.run((second,), backend=backend, order="passes", seed=1)
            noise = frozenset(differing(alone.after, again.after))
            before = self.run((first,), backend=backend, order="passes", other_context=other_context)
            after = self.run((second,), backend=backend, order="passes", restore=False)
            changed_by_first = differing(before.before, before.after)
            held = sorted(self.shared & changed_by_first)
            if not held or alone.outputs != again.outputs:
                continue
            changed = [
                place for place in f.disagreement(after.after, [alone.after], noise) if place.startswith(CONTEXT)
            ]
            if alone.outputs == after.outputs and not changed:
                continue
            if on_purpose and (f.unexpected_errors(alone) or not f.unexpected_errors(after)):
                continue
            tools = (first[0].tool, second[0].tool)
            place = held[0]
            lines = [f"a run of {tools[0]} changes what {tools[1]} does in a later run: {place} outlives its run"]
            if alone.outputs != after.outputs:
                usual = f.quote(alone.outputs.get("c1"))
                lines.append(f"{tools[1]} answers {f.quote(after.outputs.get('c1'))}; without the other run {usual}")
            lines += f.describe_places(changed, after.after, [alone.after], "without the other run")
            was, became = (f.quote(value_at(one, place)) for one in (before.before, before.after))
            lines.append(f"{place} was {was} before the first run, and {became} after it")
            return AgentFault("shared", tools, tuple(lines), after, None, place)
        return None

    # -- crashes

    def _crash(self, one: Round, backends: Sequence[Backend]) -> AgentFault | None:
        """The process dies at a write of the journal and the run is resumed: what was done isn't done again."""
        again = any(may_run_again(call.place.tool) for turn in one.turns for call in turn)
        if not (again or self.own):
            return None
        wholes: list[Any] = []
        for backend in backends:

            def undisturbed(world: Any, backend: Backend = backend) -> WorldRun:
                wholes.append(run_undisturbed(world, backend=backend, streamed=False))
                found: WorldRun = wholes[-1].run
                return found

            natural = self.run(one.turns, order="passes", runner=undisturbed)
            if natural.run.cancelled_at is not None or natural.run.error is not None:
                return None
            _, noise = self._references(one.turns)
            modes: tuple[Mode, ...] = ("before", "after")
            for operation, mode in itertools.product(wholes[-1].writes, modes):
                fault = self._crash_at(
                    one, CrashAt(operation, mode), (backend, backend), wholes[-1].run, natural, noise
                )
                if fault is not None:
                    return fault
        return None

    def _crash_at(
        self,
        one: Round,
        crash: CrashAt,
        pair: tuple[Backend, Backend],
        whole: WorldRun,
        natural: Seen,
        noise: frozenset[str],
    ) -> AgentFault | None:
        def crashing(world: Any) -> WorldRun:
            begun: list[None] = []

            def made() -> Any:
                if begun and self.subject.make_context is not None:
                    self.subject.program.restore()  # the memory of the process dies with it
                begun.append(None)
                return self.subject.made()

            return run_crashing(attrs.evolve(world, agent=made), whole, [crash], pair)

        try:
            seen = self.run(one.turns, order="passes", runner=crashing)
        except (UserError, AgentLoopError):
            return None  # the run isn't the same twice, which other rounds look at
        run = seen.run
        assert isinstance(run, CrashRun)
        tools = tuple(call.tool for call in one.calls)
        where = f"after the process died ({crash.mode} write {crash.operation} of the journal) and the run was resumed"
        begun: dict[str, int] = {}
        for process in run.processes:
            for call_id in {body.call_id for body in process.bodies}:
                begun[call_id] = begun.get(call_id, 0) + 1
        twice = [body.tool for body in run.bodies if begun[body.call_id] > 1]
        places = f.disagreement(seen.after, [natural.after], noise)
        if twice and places:
            lines = f.describe_places(places, seen.after, [natural.after], "without the crash")
            words = f"{f.named(twice)} took effect twice {where}"
            return AgentFault("twice", tuple(dict.fromkeys(twice)), (words, *lines), seen)
        try:
            sound(run, same_end=False)
        except AssertionError as error:
            return AgentFault("crash", tools, (f"{where}: {error}",), seen, error)
        return self.judge_own(seen, one.calls)


# ---------------------------------------------------------------------------------------------- helpers

_OF_A_BACKEND = (
    "no running event loop",
    "must be called from async context",
    "yield from a Trio",
    "trio got unexpected",
    "was not awaited by trio",
    "Task got bad yield",
    "no current event loop",
)


def _size(call: Call) -> float:
    """Return the sum of the numbers among the arguments of *call*."""
    values = json.loads(call.arguments).values()
    return sum(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))


def _smaller(one: Round) -> Iterator[Round]:
    """Yield the rounds with one call less."""
    *setup, together = one.turns
    for index in range(len(setup) if one.kind != "shared" else 0):
        yield Round(one.kind, (*setup[:index], *setup[index + 1 :], together))
    if len(together) > (2 if one.kind == "race" else 1):
        for index in range(len(together)):
            yield Round(one.kind, (*setup, (*together[:index], *together[index + 1 :])))


def _turns(setup: Sequence[Call], call: Call) -> Turns:
    return (*((one,) for one in setup), (call,))


def _renamed(seen: Seen, names: dict[str, str]) -> Seen:
    """Return *seen* with the ids of calls as they are where the calls are made together."""

    def rename(found: Mapping[str, str]) -> dict[str, str]:
        return {names.get(name, name): value for name, value in found.items()}

    return attrs.evolve(seen, outputs=rename(seen.outputs), statuses=rename(seen.statuses))


def _beside(tool: str, one: Round) -> str:
    others = [call.tool for call in one.calls]
    if tool in others:
        others.remove(tool)
    return f.named(others) if set(others) - {tool} else "another call of the same tool"


def _most(plan: Plan, one: Round, seen: Seen, gauge: str) -> Any:
    """Return the most that *gauge* was in the run of *seen*, which is run once more to look."""
    again = plan.run(one.turns, backend=seen.run.backend, scheduler=Tape(seen.run.tape), moments=True)
    values = [moment.get(gauge, 0) for body in again.bodies for moment in body.moments]
    return max((value for value in values if type(value) is int), default=None)


def _why_unreturned(seen: Seen) -> str:
    if (
        seen.run.cancelled_at is not None
        and seen.run.world.cancel is not None
        and seen.run.world.cancel.step != MOST_STEPS
    ):
        return "when it is cancelled"
    errors = [body.error for body in seen.bodies if body.error is not None]
    if errors:
        return f"when it fails with {f.describe_error(errors[0])}"
    if "timed_out" in seen.statuses.values():
        return "when it times out"
    return "when calls are made together" if len(seen.bodies) > 1 else "when it answers otherwise than usual"


def _is_for_want_of_context(error: Exception | None) -> bool:
    return isinstance(error, AttributeError | TypeError) and "NoneType" in str(error)


def _end_unawaited(errors: Iterable[Exception]) -> None:
    """End the coroutines that a body has made for the other backend, and that nothing can await, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        for error in errors:
            traceback.clear_frames(error.__traceback__)


def _body_code(subject: Subject, tool: str) -> Any:
    place = next((one for one in subject.places if one.name == tool), None)
    return getattr(getattr(getattr(place, "tool", None), "body", None), "fn", None)


def _races_on_purpose(subject: Subject, tool: str) -> bool:
    """Return True if the code of *tool* ends what it doesn't wait for: the first one wins, whichever that is."""
    fn = _body_code(subject, tool)
    names: set[str] = set()
    codes = [fn.__code__] if hasattr(fn, "__code__") else []
    while codes:
        code = codes.pop()
        names |= {*code.co_names}
        codes += [one for one in code.co_consts if hasattr(one, "co_names")]
    return bool(
        names & {"cancel", "FIRST_COMPLETED", "as_completed", "move_on_after", "fail_after", "wait_for", "timeout"}
    )


def _is_synchronized(subject: Subject, calls: Sequence[Call]) -> bool:
    """Return True if the calls share something on purpose: they take a limit or a lock of their module."""
    for call in calls:
        tool = call.place.tool
        if tool.capacity or tool.serial or tool.exclusive:
            return True
        fn = _body_code(subject, call.tool)
        for name in getattr(getattr(fn, "__code__", None), "co_names", ()):
            value = getattr(fn, "__globals__", {}).get(name)
            if (
                type(value)
                .__name__.lower()
                .rstrip("_")
                .endswith(("lock", "semaphore", "limiter", "condition", "lockadapter"))
            ):
                return True
    return False


__all__ = ["Plan", "Round"]
