"""Two recorded runs side by side: the first difference, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop import records as r
from agentloop._common.values import Value
from agentloop.lab._rows import compare_calls
from agentloop.lab._runs import CaseRun, RunStep, list_steps, read_run


class RunDiff(Value, frozen=True, kw_only=True):
    """The difference of two runs.

    Attributes:
        before, after: The two runs.
        first: The number of steps that are equal at their beginning; None if all are.
        steps: The steps of each from the first difference on.
        calls: The calls that were added, removed or changed, in words.
        same_answer: True if both answers, or both errors, are equal.
    """

    before: CaseRun
    after: CaseRun
    first: int | None
    steps: tuple[tuple[RunStep, ...], tuple[RunStep, ...]] = ((), ())
    calls: tuple[str, ...] = ()
    same_answer: bool = True

    def __str__(self) -> str:
        if self.first is None:
            return "the runs are the same"
        sides = [f"{side[0]}" if side else "nothing more" for side in self.steps]
        lines = [f"the first {self.first} steps are the same; then", f"- {sides[0]}", f"+ {sides[1]}"]
        lines += ["what follows:", *(f"  {line}" for line in self._list_consequences())]
        return "\n".join(lines)

    def _list_consequences(self) -> list[str]:
        before, after = self.before, self.after
        found = list(self.calls)
        for name in ("turns", "tokens"):
            if (then := getattr(before, name)) != (now := getattr(after, name)):
                found.append(f"{name}: {then}, then {now}")
        if not self.same_answer:
            found.append(f"ends with {_quote_end(before)}, then {_quote_end(after)}")
        return found or ["nothing: the same calls, and the same answer"]


def _quote_end(run: CaseRun) -> str:
    if run.error is not None:
        return run.error
    return "no answer" if run.answer is None else repr(run.answer_text)


def diff_runs(before: Sequence[r.Record], after: Sequence[r.Record]) -> RunDiff:
    """Return the difference of two logs: of what their models said and called, and of what came of it.

    Ids and times don't count. Secrets are masked, so two secrets are never told apart.

    Example:
        from agentloop import Agent, Runner, lab
        from agentloop.testing import ScriptedModel, say

        logs = [Runner.run_sync(Agent("a", model=ScriptedModel([say(text)])), "hi").records for text in ("yes", "no")]
        print(lab.diff_runs(*logs).first)  # 0
    """
    runs = read_run("A", before), read_run("B", after)
    steps = [list_steps(run) for run in runs]
    first = find_difference(*steps)
    return RunDiff(
        before=runs[0],
        after=runs[1],
        first=first,
        steps=((), ()) if first is None else (tuple(steps[0][first:]), tuple(steps[1][first:])),
        calls=tuple(compare_calls(runs[0].calls, runs[1].calls)),
        same_answer=(runs[0].answer_text, runs[0].error) == (runs[1].answer_text, runs[1].error),
    )


def find_difference(before: Sequence[RunStep], after: Sequence[RunStep]) -> int | None:
    """Return the position of the first step that differs; None if none does."""
    for index in range(max(len(before), len(after))):
        if before[index : index + 1] != after[index : index + 1]:
            return index
    return None
