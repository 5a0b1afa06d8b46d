"""Two runs side by side: the row of a comparison, and how bad it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from agentloop._common.error_text import summary_parts
from agentloop.lab._checks import Score
from agentloop.lab._effects import LabEffects, SeenRequest
from agentloop.lab._runs import CaseCall, CaseRun
from agentloop.outcomes import SUCCESSES

Verdict: TypeAlias = Literal[
    "same", "other way", "answer differs", "other calls", "refused", "would ask", "error", "not comparable"
]
"""The verdict on a run, best first: the same; the same answer and calls, other way; another answer; other calls, or
calls that succeeded in one of both only; calls that the lab refused; a call that would wait for a verdict; an error; or
the lab couldn't tell."""
RANKS: dict[str, int] = {verdict: rank for rank, verdict in enumerate(get_args(Verdict))}


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of a run: turns, tokens, cost as a decimal number or None, seconds of the log."""

    turns: int
    tokens: int
    cost: str | None
    seconds: float

    @classmethod
    def of(cls, run: CaseRun) -> Figures:
        """Return the figures of *run*."""
        cost = None if run.cost is None else f"{run.cost:f}"
        return cls(turns=run.turns, tokens=run.tokens, cost=cost, seconds=run.seconds)


@attrs.frozen(kw_only=True)
class LabRow:
    """One run of a comparison.

    Attributes:
        name: That of its journal or case; with `repeat`, which counts from 0, it identifies the row.
        verdict: What became of it.
        why: More of it in words: the calls added and removed, those that end otherwise, the error, the turn up to which
            it was compared.
        saw: What the models were shown that differs, by turn: `turn 1: instructions`. Empty where nothing does. The
            `definitions` are the tools, the settings and the type of the answer; `model` is another model.
        before, after: The figures of the recorded run and of the lab's; None if there is none.
        refused: How many calls the lab refused.
        requests: How many model requests the lab's run had made, or had answered by the cache.
        checks: What is wrong by the name of the check; None if the run passes it.
        scores: By the name of the judge.
        notes: What code under test did beyond the process.
    """

    name: str
    verdict: Verdict
    repeat: int = 0
    why: tuple[str, ...] = ()
    saw: tuple[str, ...] = ()
    before: Figures | None = None
    after: Figures | None = None
    refused: int = 0
    requests: int = 0
    checks: dict[str, str | None] = attrs.field(factory=dict)
    scores: dict[str, Score] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that the run doesn't pass."""
        return tuple(name for name, wrong in self.checks.items() if wrong is not None)

    @property
    def rank(self) -> int:
        """How bad it is: 0 is the same."""
        return RANKS[self.verdict]

    def find_worsening(self, base: LabRow) -> tuple[str, ...]:
        """Return in words what is worse than in *base*, the row of an earlier comparison.

        Another answer, or another way to it, does not count as worse: checks and judges decide that.
        """
        is_worse = self.rank > max(base.rank, RANKS["answer differs"])
        found = [f"{self.verdict}, was {base.verdict}"] if is_worse else []
        found += [f"check {name!r} fails: {self.checks[name]}" for name in self.failed if name not in base.failed]
        for name, score in self.scores.items():
            if (was := base.scores.get(name)) is not None and was.passed and not score.passed:
                found.append(f"judge {name!r} gives {score.value:g}, was {was.value:g}")
        return tuple(found)


def compare_runs(before: CaseRun, after: CaseRun, effects: LabEffects, *, repeat: int = 0) -> LabRow:
    """Return the row of a recorded run and the lab's."""
    verdict, why = _judge(before, after, effects)
    if verdict == "same" and effects.ended == "cut":
        why = [*why, f"the recorded run ends in turn {effects.ended_in}"]
    refused = [call.tool for call in after.calls if call.source == "refused"]
    return LabRow(
        name=before.name,
        repeat=repeat,
        verdict=verdict,
        why=tuple(why),
        saw=tuple(_list_changes(effects.seen)),
        before=Figures.of(before),
        after=Figures.of(after),
        refused=len(refused),
        requests=sum(one.asked for one in effects.seen),
        notes=tuple(effects.notes),
    )


def _judge(before: CaseRun, after: CaseRun, effects: LabEffects) -> tuple[Verdict, list[str]]:
    if effects.ended in ("secret", "kept"):
        reason = {"secret": "the log hides a secret", "kept": "the provider kept the earlier conversation"}
        return "not comparable", [f"from turn {effects.ended_in} on: {reason[effects.ended]}"]
    is_whole = effects.ended is None
    if is_whole and _kind_of(after) != _kind_of(before) and after.error is not None:
        return "error", [after.error]
    if is_whole and len(after.pending) > len(before.pending):
        return "would ask", [f"{tool} waits for a verdict" for tool in after.pending]
    changes = [*compare_calls(before.calls, after.calls), *_list_other_ends(before.calls, after.calls)]
    refused = [call for call in after.calls if call.source == "refused"]
    if refused:
        return "refused", [*(f"{call.tool} {call.arguments} was refused" for call in refused), *changes]
    if changes:
        return "other calls", changes
    if is_whole and not _is_same_answer(before, after):
        return "answer differs", [_quote_answers(before, after)]
    if _way_of(before, is_whole=is_whole) != _way_of(after, is_whole=is_whole):
        return "other way", _describe_way(before, after)
    return "same", []


def _kind_of(run: CaseRun) -> str | None:
    return None if run.error is None else summary_parts(run.error)[0]


def _key(call: CaseCall) -> tuple[str, str]:
    return call.tool, call.digest or call.arguments


def compare_calls(before: Sequence[CaseCall], after: Sequence[CaseCall]) -> list[str]:
    """Return the calls that were removed, added or changed, in words."""
    gone, new = list(before), []
    for call in after:
        same = next((one for one in gone if _key(one) == _key(call)), None)
        if same is None:
            new.append(call)
        else:
            gone.remove(same)
    found: list[str] = []
    for call in new:
        old = next((one for one in gone if one.tool == call.tool), None)
        if old is not None:
            gone.remove(old)
            found.append(f"changed: {call.tool} {old.arguments} is now {call.arguments}")
        else:
            found.append(f"added: {call.tool} {call.arguments}")
    return [*found, *(f"removed: {call.tool} {call.arguments}" for call in gone)]


def _list_other_ends(before: Sequence[CaseCall], after: Sequence[CaseCall]) -> list[str]:
    """Return the equal calls that succeeded in one of the runs only, in words.

    Then a tool is gone, takes other arguments, or a guardrail judges otherwise. Calls that were cut are passed over:
    whether one is has to do with times.
    """
    left, found = list(before), list[str]()
    for call in after:
        equal = [one for one in left if _key(one) == _key(call)]
        if not equal:
            continue
        succeeded = call.status in SUCCESSES
        # Of several equal calls, one with the same end: nested runs side by side may have made them in another order.
        old = next((one for one in equal if (one.status in SUCCESSES) == succeeded), equal[0])
        left.remove(old)
        is_judged = {old.status, call.status} <= {*SUCCESSES, "failed", "rejected"}
        if is_judged and (old.status in SUCCESSES) != succeeded:
            output = "" if succeeded or call.output is None else f": {_short(call.output)}"
            found.append(f"changed: {call.tool} {call.arguments} was {old.status}, and is now {call.status}{output}")
    return found


def _is_same_answer(before: CaseRun, after: CaseRun) -> bool:
    return " ".join(before.answer_text.split()) == " ".join(after.answer_text.split())


def _quote_answers(before: CaseRun, after: CaseRun) -> str:
    return f"{_short(before.answer_text)} is now {_short(after.answer_text)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def _way_of(run: CaseRun, *, is_whole: bool) -> list[Any]:
    """Return the turns of a run and what they called. The calls of a turn run at once, so their order says nothing.

    So do nested runs. Of a run that was cut off it isn't known whether it had begun another turn.
    """
    turns: dict[Any, list[tuple[str, str]]] = {}
    for call in run.calls:
        turns.setdefault((call.path, call.turn), []).append(_key(call))
    own = [sorted(calls) for (path, _), calls in turns.items() if not path]
    nested = sorted(sorted(calls) for (path, _), calls in turns.items() if path)
    return [run.turns if is_whole else None, own, nested]


def _describe_way(before: CaseRun, after: CaseRun) -> list[str]:
    if before.turns != after.turns:
        return [f"{before.turns} turns, now {after.turns}"]
    return ["the calls come in other turns"]


def _list_changes(seen: Sequence[SeenRequest]) -> list[str]:
    """Return what the models were shown that differs, where it begins to: later turns follow from it."""
    found: list[str] = []
    told: set[str] = set()
    for one in seen:
        new = [part for part in one.changed if part not in told]
        told.update(new)
        if new and not (new == ["history"] and found):
            place = f" of {'/'.join(one.path)}" if one.path else ""
            found.append(f"turn {one.turn}{place}: {', '.join(new)}")
    return found
