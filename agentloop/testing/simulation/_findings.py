"""Judge runs: find the fault of a run, and report it as an error with the line that repeats it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, TypeAlias

import attrs

from agentloop import records as r
from agentloop._common.error_text import first_line, is_fatal
from agentloop.testing._frames import is_of_the_library
from agentloop.testing.simulation._stepping import Kind
from agentloop.testing.simulation._timeline import script_as_code, timeline
from agentloop.testing.simulation.runs import CancelAt, Verdict, WorldRun

Check: TypeAlias = Callable[[WorldRun], Any]


@attrs.frozen(eq=False)
class Finding:
    """A run with a fault. Findings of equal `key` count as the same fault."""

    run: WorldRun
    error: BaseException
    key: tuple[Any, ...]
    where: str | None = None
    """The schedule of the run as text; by default its tape and cancellation."""
    timeline: str | None = None
    again: str | None = None
    """The line of code that repeats it; by default a call of `explore` or `kill_sweep`."""
    check: Callable[..., Any] | None = None
    """The application's check."""

    @property
    def is_of_a_check(self) -> bool:
        """True if a check failed, and not the run itself."""
        return bool(self.key[0] == "check")


def makes_calls(run: WorldRun) -> bool:
    """Return True if a model called a tool in *run*, or handed over."""
    return any(
        isinstance(one, r.CallStarted | r.CallSettled | r.ApprovalRequested | r.HandedOff) for one in run.records
    )


@attrs.frozen
class FindingJudge:
    """Finds the fault of a run: an error it raised, something it left behind, or an error of *also* or *check*."""

    check: Check | None
    allow: tuple[type[BaseException], ...] = ()
    also: Check | None = None

    def __call__(self, run: WorldRun) -> Finding | None:
        """Return the finding for *run*, or None; None too for a run that followed no schedule: nothing repeats it."""
        if run.waited_at:
            return None
        if run.error is not None and not isinstance(run.error, self.allow):
            return Finding(run, run.error, ("raised", type(run.error)), check=self.check)
        if run.left:
            return Finding(run, AssertionError(f"left behind: {', '.join(run.left)}"), ("left",), check=self.check)
        for check in (self.also, self.check):
            if check is not None:
                try:
                    check(run)
                except Exception as error:
                    key = ("check", type(error), _find_place(error.__traceback__))
                    return Finding(run, error, key, check=self.check)
        return None


def _find_place(traceback: TracebackType | None) -> tuple[str, int] | None:
    """Return the file and line of the innermost frame."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)


def whole(kind: Kind) -> Check:
    """Return a check that a run, cancelled or not, has ended everything it began, and that its log is whole."""

    def check(run: WorldRun) -> None:
        unended = [body.call_id for body in run.bodies if body.ended is None]
        assert not unended, f"bodies that never ended: {unended}"
        started = _count_calls(run, r.CallStarted)
        settled = _count_calls(run, r.CallSettled)
        assert set(started) <= set(settled), f"calls without an outcome: {sorted(set(started) - set(settled))}"
        again = sorted(key for key, count in settled.items() if count > 1)
        assert not again, f"calls with several outcomes: {again}"
        begun = Counter(one.path for one in run.records if isinstance(one, r.RunStarted))
        ended = Counter(one.path for one in run.records if isinstance(one, r.RunEnded))
        assert begun == ended, f"runs that didn't end: {sorted(begun - ended)}"
        assert not run.records or has_its_end(run.records), f"the last record is {run.records[-1]!r}"
        if run.cancelled_at is not None:
            late = [one for one in run.records[run.mark :] if isinstance(one, r.ModelRequested | r.CallStarted)]
            assert not late, f"begun after the cancellation: {late}"
            last = run.records[-1] if run.records else None
            if isinstance(last, r.RunEnded) and last.status != "cancelled" and not outranks(run.error):
                assert ended_before(run.records, run.mark), f"cancelled before its end was decided, but {last.status}"
        native = int(kind == "native" and run.backend == "asyncio" and run.cancelled)
        assert run.cancelling == native, f"{run.cancelling} native cancellations are pending, and {native} were given"

    return check


def outranks(error: BaseException | None) -> bool:
    """Return True if *error* has precedence over a cancellation: a fatal one of the application's code."""
    return error is not None and not isinstance(error, BaseExceptionGroup) and is_fatal(error)


_LAST_STEPS = {r.RunEnded, r.CleanupCut, r.SessionSaved, r.CancelRequested, r.DeadlinePassed}


def ended_before(records: Sequence[r.Record], mark: int) -> bool:
    """Return True if the end of the run was decided before record *mark*: the rest only carries it out."""
    return {type(one) for one in records[mark:]} <= _LAST_STEPS


def has_its_end(records: Sequence[r.Record]) -> bool:
    """Return True if the last of *records* is the end of the outermost run, not of one nested in it."""
    return isinstance(last := records[-1], r.RunEnded) and not last.path


def _count_calls(run: WorldRun, kind: type[r.CallStarted] | type[r.CallSettled]) -> Counter[tuple[Any, ...]]:
    return Counter((one.path, one.call_id, one.attempt) for one in run.records if isinstance(one, kind))


class ExplorationFailure(AssertionError):
    """A schedule, or a moment of cancellation, that breaks a check. Its text contains the line that repeats it.

    `run` is the run that failed; the check's or the run's own error is the cause.
    """

    def __init__(self, finding: Finding, *, found_after: int, shrunk_in: int) -> None:
        self.run: WorldRun = finding.run
        self.__cause__: BaseException | None = finding.error
        super().__init__(_format_report(finding, found_after, shrunk_in))


ExplorationFailure.__module__ = "agentloop.testing"  # a traceback shows where it is imported from


def _format_report(finding: Finding, found_after: int, shrunk_in: int) -> str:
    run = finding.run
    world = run.world
    what = first_line(str(finding.error)) or type(finding.error).__name__
    streamed = ", streamed" if run.streamed else ""
    made_small = f", made small in {shrunk_in} more" if shrunk_in else ""
    lines = [
        f"{type(finding.error).__name__}: {what}",
        "",
        f"found after {found_after} runs{made_small}; on {run.backend}{streamed}",
    ]
    if world.script is not None:
        lines += ["script:", *(f"    {script_as_code([step])[1:-1]}" for step in world.script)]
    cancel = f", {world.cancel}" if world.cancel is not None else ""
    lines += [finding.where or f"tape: {list(run.tape)}{cancel}"]
    lines += [
        "timeline:",
        finding.timeline or timeline(run),
        *_tell_what_waits(finding),
        "see it again:",
        f"    {finding.again or _repeat_line(run, finding.check)}",
    ]
    return "\n".join(lines)


def _tell_what_waits(finding: Finding) -> list[str]:
    """Return a line about the calls that wait for a verdict, where a search was given no verdicts at all."""
    run = finding.run
    if finding.again is not None or run.world.cancel is not None or run.world.verdicts or run.result is None:
        return []
    waiting = [request.call.call_id for request in run.result.interruptions]
    verdicts = ", ".join(f"Verdict(call_id={call_id!r})" for call_id in waiting)
    return [f"the run waits for approval; to let it go on: verdicts=[{verdicts}]"] if waiting else []


def again(run: WorldRun, check: Callable[..., Any] | None) -> list[str]:
    """Return the arguments that repeat *run*, without those for its cancellation or crash and for its backend.

    They have the names that the application's test gives its objects, where it gives them any.
    """
    world = run.world
    arguments = [_name_of(world.agent, "agent")]
    arguments += [script_as_code(world.script)] if world.script is not None else ["None"]
    arguments += ([] if check is None else [_name_of(check, "check")]) + [f"tape={list(run.tape)}"]
    if world.nested:
        arguments.append(
            f"nested={{{', '.join(f'{path!r}: {script_as_code(one)}' for path, one in world.nested.items())}}}"
        )
    if world.context is not None:
        arguments.append(f"context={_name_of(world.context, 'context')}")
    if world.options:
        arguments.append(f"options={_name_of(world.options, 'options')}")
    if world.verdicts:
        arguments.append(f"verdicts=[{', '.join(_verdict_as_code(one) for one in world.verdicts)}]")
    if run.streamed:
        arguments.append("streamed=True")
    return arguments


def _name_of(value: object, otherwise: str) -> str:
    """Return the application's name for *value*: that of a function, or of a variable where the search was called.

    A lambda, or an agent made in the call itself, has none: then *otherwise* is returned.
    """
    own = getattr(value, "__name__", "")
    if own.isidentifier():
        return str(own)
    frame: FrameType | None = sys._getframe()
    while frame is not None and is_of_the_library(frame):
        frame = frame.f_back
    for names in () if frame is None else (frame.f_locals, frame.f_globals):
        for name, known in names.items():
            if known is value and name.isidentifier() and not name.startswith("_"):
                return name
    return otherwise


def _verdict_as_code(verdict: Verdict) -> str:
    """Return the code that makes *verdict*."""
    given = [f"call_id={verdict.call_id!r}"]
    for field in attrs.fields(Verdict):
        value = getattr(verdict, field.name)
        if field.name != "call_id" and value != field.default:
            given.append(f"{field.name}={value!r}")
    return f"Verdict({', '.join(given)})"


def _repeat_line(run: WorldRun, check: Callable[..., Any] | None) -> str:
    """Return the line that repeats *run*."""
    arguments, world = again(run, check), run.world
    cancel: CancelAt | None = world.cancel
    usual = "steps" if cancel is None else "passes"
    order = [] if world.order == usual else [f"order={world.order!r}"]
    if cancel is not None:
        when = ["waiting=True"] if cancel.waiting else []
        when += [f"at={cancel.step}"]
        where = f"combinations=[({run.backend!r}, {cancel.kind!r})]"
        return f"kill_sweep({', '.join([*arguments, where, *order, *when])})"
    return f"explore({', '.join([*arguments, f'backends=[{run.backend!r}]', *order])})"
