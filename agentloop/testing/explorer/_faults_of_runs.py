"""The faults that an application's code may have, as found in what was seen of a run. Does not know how runs are made.

What is looked for here holds for any single run; rounds compare several runs with each other and look for the rest.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from agentloop import records as r
from agentloop._common.error_text import first_line
from agentloop.exceptions import AgentLoopError
from agentloop.limits import ToolExecution
from agentloop.testing.explorer._runs import MOST_STEPS, TICKER, Call, Seen, Stuck
from agentloop.testing.explorer._state import Bag, Picture, differing, is_of_the_program, value_at
from agentloop.testing.simulation._findings import whole
from agentloop.testing.simulation.event_loop import Deadlock

MOST_QUOTED = 160
_NOTES = re.compile(
    r"peak|highest|high_water|max_|_max\b|\bmost|concurren|in_flight|attempt|tries|retr(y|ies)|request|hits?\b|miss|"
    r"conflict|collision|wait|contend|contention|elapsed|duration|latency|timing|started_at|finished_at|\btrace|\blogs?\b"
)
"""Names of places in which a program notes how it ran, and not what it did."""
_PAIRS = (
    ("open", "clos"), ("acquir", "releas"), ("connect", "disconnect"), ("connect", "clos"), ("lock", "unlock"),
    ("enter", "exit"), ("checked_out", "checked_in"), ("checkout", "checkin"), ("borrow", "return"),
    ("taken", "return"),
    ("taken", "given_back"), ("alloc", "free"), ("attach", "detach"),
    ("subscrib", "unsubscrib"), ("login", "logout"), ("mount", "unmount"), ("hold", "releas"), ("reserv", "releas"),
)  # fmt: skip
_CLOSED = re.compile(r"\b(closed|is_closed|released|disposed)=(True|False)")
_BY_PYTHON = (
    KeyError, IndexError, AttributeError, TypeError, AssertionError, NameError, ZeroDivisionError, RuntimeError,
    StopIteration, StopAsyncIteration, RecursionError,
)  # fmt: skip


@attrs.frozen(eq=False)
class AgentFault:
    """A fault with its words for the user, and the run that shows it. Faults of equal `key` count as the same."""

    kind: str
    tools: tuple[str, ...]
    lines: tuple[str, ...]
    seen: Seen
    error: BaseException | None = None
    detail: str = ""

    @property
    def key(self) -> str:
        """The fault as text: its kind, tools and detail."""
        return f"{self.kind} of {'+'.join(sorted(set(self.tools)))}{self.detail and f' ({self.detail})'}"


def quote(value: Any) -> str:
    """Return *value* as a short text."""
    text = f"[{', '.join(value)}]" if isinstance(value, Bag) else repr(value)
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"


def named(tools: Iterable[str]) -> str:
    """Return the names of *tools* for a sentence, each once."""
    return " and ".join(dict.fromkeys(tools))


def is_a_note(place: str) -> bool:
    """Return True for a place in which a program notes how it ran."""
    return _NOTES.search(last_name(place)) is not None


# ---------------------------------------------------------------------------------------------- what must be given back


def with_balances(picture: Picture) -> Picture:
    """Return *picture* with the differences of counters that belong together: opened and closed, for example."""
    found = dict(picture)
    numbers = {place: value for place, value in picture.items() if type(value) is int}
    for place, value in numbers.items():
        head, _, name = place.rpartition(".")
        for first, second in _PAIRS:
            if first in name and second not in name:
                for other, count in numbers.items():
                    if other.rpartition(".")[0] == head and other != place and second in other.rpartition(".")[2]:
                        found[f"{place} - {other.rpartition('.')[2]}"] = value - count
    for place, value in picture.items():
        if isinstance(value, Bag):
            for first, second in _PAIRS:
                opened = sum(_begins(text, first) and second not in text for text in value)
                if opened or any(_begins(text, second) for text in value):
                    closed = sum(_begins(text, second) for text in value)
                    found[f"{place}: {first}… without {second}…"] = opened - closed
            flags = [match for text in value for match in _CLOSED.findall(text)]
            if flags:
                found[f"{place}: not {flags[0][0]}"] = sum(flag == "False" for _, flag in flags)
    return found


def _begins(text: str, word: str) -> bool:
    return re.match(rf"[('\"\[]*{word}", text) is not None


def gauges_of(seen: Seen) -> dict[str, Any]:
    """Return the places that a run changed and put back as they were, with their values before."""
    before, after = with_balances(seen.before), with_balances(seen.after)
    changed: set[str] = set()
    for body in seen.bodies:
        for moment in body.moments:
            changed |= differing(before, with_balances(moment))
    # A place that came into being in the run, and is empty again, counts from zero.
    fresh = {place for place in changed if place not in before and after.get(place) == 0}
    same = {place for place in changed if place in before and before[place] == after.get(place)}
    return {**{place: before[place] for place in same}, **dict.fromkeys(fresh, 0)}


def not_given_back(seen: Seen, gauges: dict[str, Any]) -> list[str]:
    """Return a line for each of the *gauges* that the run left changed."""
    after, before = with_balances(seen.after), with_balances(seen.before)
    lines = []
    for place, usual in gauges.items():
        wanted = before.get(place, usual if " - " in place or ":" in place else "missing")
        if (found := after.get(place, wanted)) != wanted:
            lines.append(f"{place} is {quote(found)}, and was {quote(wanted)} before the call")
    if not lines:
        failed = any(body.ended != "value" for body in seen.bodies)
        for place in differing(seen.before, seen.after):
            was, found = seen.before.get(place), seen.after.get(place)
            kept_lock = (was, found) == ("free", "locked")
            if kept_lock or (failed and type(was) in (int, bool) and _TAKEN.search(last_name(place))):
                lines.append(f"{place} is {quote(found)}, and was {quote(was)} before the call")
    return lines


_TAKEN = re.compile(r"^(in_use|active|busy|held|is_held|locked|is_locked|borrowed|acquired|checked_out|in_flight)$")
"""Names of numbers and flags that a call that failed, or was cut, must have put back."""


def last_name(place: str) -> str:
    """Return the name at the end of *place*."""
    return re.split(r"[.\[]", place.rstrip("]"))[-1]


# ---------------------------------------------------------------------------------------------- any run


def fault_of(seen: Seen, calls: Sequence[Call], secrets: dict[str, str]) -> AgentFault | None:
    """Return the fault that *seen* shows by itself, or None."""
    run, tools = seen.run, tuple(call.tool for call in calls)

    def fault(kind: str, *lines: str, error: BaseException | None = None, detail: str = "") -> AgentFault:
        return AgentFault(kind, tools, lines, seen, error, detail)

    if seen.stuck or isinstance(run.error, Stuck):
        where = _place_of(run.error)
        return fault("endless", f"{named(tools)} runs on without ever waiting{where}: the run had to be interrupted")
    if isinstance(run.error, Deadlock):
        settled = {one.call_id for one in run.records if isinstance(one, r.CallSettled)}
        waiting = [f"{body.call_id} {body.tool}" for body in run.bodies if body.call_id not in settled]
        what = f", {' and '.join(waiting)} among them" if waiting else ""
        return fault("deadlock", f"all tasks wait for ever{what}: nothing can go on", error=run.error)
    if run.world.cancel is not None and run.world.cancel.step == MOST_STEPS and run.cancelled_at is not None:
        return fault(
            "endless",
            f"{named(tools)} doesn't end: after {MOST_STEPS} steps and {run.seconds:.0f} seconds of virtual time it "
            "was still at work. Bound the attempts, or give the tool a timeout",
        )
    if left := [one for one in run.left if TICKER not in one]:
        return fault("left", f"{named(tools)} leaves behind when the run is over: {'; '.join(left)}")
    if run.error is not None and not isinstance(run.error, AgentLoopError):
        return fault(
            "raised", f"the run raises {_describe(run.error)}", error=run.error, detail=type(run.error).__name__
        )
    if (shown := _shown(seen, secrets)) is not None:
        return fault("secret", shown)
    return None


def fault_of_cancelled(seen: Seen, natural: Seen, calls: Sequence[Call], kind: Any) -> AgentFault | None:
    """Return the fault in how a run ended that was cancelled, or None."""
    run, tools = seen.run, tuple(call.tool for call in calls)
    if run.cancelled_at is None:
        return None
    grace = ToolExecution().cleanup_grace
    cut = [one for one in run.records if isinstance(one, r.CleanupCut)]
    took = run.ended_at - (run.cancelled_at_time or run.ended_at)
    if cut or took > grace + 0.5:
        where = f": {cut[0].section} was cut" if cut else ""
        words = f"{named(tools)} takes {took:g} seconds to end when it is cancelled, and has {grace:g}{where}"
        return AgentFault("cleanup", tools, (words,), seen)
    for body in seen.bodies:
        # A timeout of the tool's own interrupts it, too (`sleep` is one on trio): at times that are known.
        own = {round(time, 9) for other in natural.bodies for time in other.interrupted}
        by_caller = [time for time in body.interrupted if round(time, 9) not in own]
        if any(time >= (run.cancelled_at_time or 0.0) for time in by_caller) and body.ended == "value":
            words = f"{body.tool} swallows its cancellation: it was cancelled while it waited, and returned a value"
            return AgentFault(
                "swallowed", (body.tool,), (words, "raise the cancellation again after the cleanup"), seen
            )
    try:
        whole(kind)(run)
    except AssertionError as error:
        return AgentFault("cancelled", tools, (f"after a cancellation: {first_line(str(error))}",), seen, error)
    return None


def unexpected_errors(seen: Seen) -> list[tuple[str, Exception]]:
    """Return the errors of bodies that look like a fault in the program, with the call ids.

    An error that a tool raises itself may be its way to refuse; one that Python raises for it isn't.
    """
    return [(body.call_id, body.error) for body in seen.bodies if body.error is not None and _is_unexpected(body.error)]


def _is_unexpected(error: Exception) -> bool:
    if isinstance(error, AssertionError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    said = any("raise" in (frame.line or "").split() for frame in frames[-1:])
    if said:
        return type(error) in (RuntimeError, Exception)
    if isinstance(error, _BY_PYTHON) or type(error).__module__.partition(".")[0] in (
        "anyio",
        "asyncio",
        "trio",
        "sqlite3",
    ):
        return True
    return isinstance(error, ValueError) and not is_of_the_program(type(error))


def _describe(error: BaseException) -> str:
    text = first_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_error(error: BaseException) -> str:
    """Return *error* as one line, with the line of the program that raised it."""
    return f"{_describe(error)}{_place_of(error)}"


def _place_of(error: BaseException | None) -> str:
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    own = [one for one in frames if "agentloop" not in one.filename and "site-packages" not in one.filename]
    if not own:
        return ""
    last = own[-1]
    return f" (at {last.filename.rpartition('/')[2]}:{last.lineno}: {last.line})"


def _shown(seen: Seen, secrets: dict[str, str]) -> str | None:
    """Return a sentence about a secret that the run showed."""
    for name, value in secrets.items():
        for call_id, output in seen.outputs.items():
            if value in output:
                return f"the secret {name} is shown to the model, in the output of {call_id}: {quote(output)}"
        if value in seen.logged:
            line = next(one for one in seen.logged.splitlines() if value in one)
            return f"the secret {name} is in the application's log: {quote(line)}"
    return None


def secrets_in(picture: Picture) -> dict[str, str]:
    """Return the values of the context whose names say that they are secret."""
    found = {}
    for place, value in picture.items():
        name = last_name(place).strip("'\"").lower()
        if isinstance(value, str) and len(value) >= 5 and _SECRET.search(name):
            found[place] = value
    return found


_SECRET = re.compile(r"(^|_)(secret|token|password|passwd|api_?key|credential|private_key|access_key)s?($|_)")


# ---------------------------------------------------------------------------------------------- runs that must agree


def same_at(place: str, one: Picture, other: Picture, noise: frozenset[str]) -> bool:
    """Return True if the two pictures agree at *place*; where members are different each time, on their count."""
    mine, theirs = value_at(one, place), value_at(other, place)
    if mine == theirs:
        return True
    if place in noise:
        return not (isinstance(mine, Bag) and isinstance(theirs, Bag)) or len(mine) == len(theirs)
    return False


def disagreement(after: Picture, allowed: Sequence[Picture], noise: frozenset[str]) -> list[str]:
    """Return the places at which *after* agrees with none of the *allowed* pictures; empty if one of them fits."""
    places = {place for one in allowed for place in differing(after, one) if not is_a_note(place)}
    wrong: list[set[str]] = [{place for place in places if not same_at(place, after, one, noise)} for one in allowed]
    if not all(wrong):
        return []
    everywhere = set.intersection(*wrong)
    return sorted(everywhere or sorted(wrong, key=len)[0])


def describe_places(places: Sequence[str], after: Picture, allowed: Sequence[Picture], otherwise: str) -> list[str]:
    """Return a line for each of *places*: its value, and what it would be *otherwise*."""
    lines = []
    for place in places[:4]:
        others = list(dict.fromkeys(quote(value_at(one, place)) for one in allowed))
        lines.append(f"{place} is {quote(value_at(after, place))}; {otherwise} it is {' or '.join(others)}")
    return lines


__all__ = [
    "AgentFault",
    "describe_error",
    "describe_places",
    "disagreement",
    "fault_of",
    "fault_of_cancelled",
    "gauges_of",
    "is_a_note",
    "named",
    "not_given_back",
    "quote",
    "same_at",
    "secrets_in",
    "unexpected_errors",
    "with_balances",
]
