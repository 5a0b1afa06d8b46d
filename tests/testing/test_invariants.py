"""Every built-in invariant holds of a real run, and is seen to be broken where one thing is wrong with its log."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from exploration.fixture_agents import Actor, FixtureAgents, Role
from exploration.invariants import (
    INVARIANTS,
    CoverageCounter,
    InvariantError,
    check,
    check_counterparts,
    findings_of,
)
from testing.planted import (
    PLANTED,
    both_failing,
    breaks,
    cancelled,
    change,
    circling,
    cleaning,
    decided,
    drop,
    ended,
    failing,
    fickle,
    find,
    judged_again,
    many,
    move,
    nap,
    put,
    queued,
    rated,
    receipted,
    refused,
    rich,
    slowly_read,
    tripped,
)

from agentloop import Agent, Capacity, RunConfig, ToolExecution, tool
from agentloop import records as r
from agentloop.exceptions import JournalError, ToolLoopDetected, UserError
from agentloop.outcomes import CallOutcome
from agentloop.records import CallbackReturned, CallStarted, HistoryReplaced, RunEnded, TurnStarted
from agentloop.testing import call, say
from agentloop.testing.invariants._observation import Counterpart, Observation, ObservedLog, Relation
from agentloop.testing.simulation._case_maker import maker_of
from agentloop.testing.simulation.event_loop import BACKENDS
from agentloop.testing.simulation.runs import CancelAt, World, WorldRun, run_one


def test_each_invariant_has_a_log_that_breaks_it() -> None:
    """An invariant that nothing is known to break may be one that nothing can break."""
    assert sorted(PLANTED) == sorted(INVARIANTS)


@pytest.mark.parametrize("name", sorted(INVARIANTS))
def test_invariant_holds_of_a_run_and_fails_on_a_planted_fault(name: str) -> None:
    """The run breaks nothing at all; with the fault in its log it breaks this one."""
    made, plant = PLANTED[name]
    assert [finding.invariant for finding in findings_of(made())] == []
    assert name in {finding.invariant for finding in findings_of(plant(made()))}


NEEDS_MORE = {
    "runs_keep_to_their_time",
    "late_reports_come_once",
    "secrets_stand_nowhere",
    "a_tripped_output_is_kept_nowhere",
}


@pytest.mark.parametrize("name", sorted(set(INVARIANTS) - NEEDS_MORE))
def test_the_run_that_keeps_an_invariant_exercises_it(name: str) -> None:
    """The run would otherwise prove nothing about the invariant."""
    tally = CoverageCounter()
    findings_of(PLANTED[name][0](), tally)
    assert tally.exercised[name] == 1
    assert name not in tally.unexercised()


def test_an_error_names_the_invariant_the_promise_and_the_records() -> None:
    """A reader of the error needn't look anything up."""
    broken = PLANTED["an_invocation_runs_once"][1](queued())
    with pytest.raises(InvariantError) as caught:
        check(broken)
    words = str(caught.value)
    assert "an_invocation_runs_once (execution): call c1 started twice" in words
    assert "promised: An invocation starts once" in words
    assert "CallStarted [turn 1] call_id='c1'" in words
    assert "an_invocation_runs_once" in caught.value.invariants


def test_what_was_not_watched_is_not_judged() -> None:
    """A bare log exercises only the invariants that the log alone decides."""
    tally = CoverageCounter()
    assert findings_of(Observation(records=queued().records), tally) == []
    assert {"spans_pair_and_nest", "tool_hooks_pair", "slots_are_used"} <= set(tally.unexercised())
    assert tally.exercised["one_ending_per_attempt"] == 1
    assert tally.worlds == 1


def test_a_failure_of_the_journal_behind_the_end_stands_in_no_log() -> None:
    """The end was there before it was found that it can't be written; any other error is the log's to tell."""
    ended = attrs.evolve(queued(), result=None, faultless=False)
    assert findings_of(attrs.evolve(ended, error=JournalError("full"))) == []
    told = findings_of(attrs.evolve(ended, error=UserError("no")))
    assert [finding.invariant for finding in told] == ["exactly_one_end"]


def test_an_output_is_judged_from_the_first_guardrail_on_after_a_crash() -> None:
    """The log doesn't hold a replaced output, so a resumed run replaces it again; in one run segment nothing does."""
    role = Role(name="a", actors=(Actor(name="a_0", after=("replace odd", "reject odd")),))
    maker = FixtureAgents(roles=(role,))
    script = [call("a_0", {"n": 1}, call_id="c1"), say("done")]
    run = run_one(World(agent=maker, script=script, options={"run_config": RunConfig()}))
    check(run)
    first = next(n for n, one in enumerate(run.records) if isinstance(one, r.GuardrailSettled))
    began, replaced = run.records[0], run.records[first]
    assert isinstance(began, r.RunStarted)
    resumed = r.RunResumed((), 1, replaced.at, agent="a", max_turns=began.max_turns)
    for between, wanted in ([resumed], []), ([], ["each_guardrail_judges_what_is_there"]):
        records = [*run.records[: first + 1], *between, replaced, *run.records[first + 1 :]]
        observed = Observation(records=records, maker=maker_of(maker), faultless=False)
        found = [one.invariant for one in findings_of(observed)]
        assert [name for name in found if name.startswith("each_guardrail")] == wanted


def test_an_application_may_keep_things_from_its_model() -> None:
    """An application that changes the model's input by a function breaks no promise."""

    def newest(data: Any) -> Any:
        return data.replace(input=data.input[-2:])

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    def shown(config: RunConfig) -> WorldRun:
        steps = [call("look"), call("look"), say("done")]
        return run_one(World(agent=Agent("a", tools=[look]), script=steps, options={"run_config": config}))

    tally = CoverageCounter()
    check(shown(RunConfig()), tally)
    assert tally.exercised["models_are_shown_all_that_was"] == 1
    run = shown(RunConfig(call_model_input_filter=newest))
    assert [len(request.items) for request in run.requests] == [1, 2, 2]
    check(run, tally)
    assert tally.exercised["models_are_shown_all_that_was"] == 1


@pytest.mark.parametrize("by", ["its time", "its caller"])
def test_a_body_that_a_failure_had_cut_before_the_run_was_ended_has_the_failures_deadline(by: str) -> None:
    """The reports on that body begin at the failure's deadline, which is earlier than the run's end says."""

    @tool
    async def stays() -> str:
        """Take no notice of being cancelled."""
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2.6)
        return "done"

    config = RunConfig(tool_execution=ToolExecution(cleanup_grace=0.27), timeout=0.65 if by == "its time" else None)
    agent = Agent("a", tools=[stays, breaks])
    turn = [call("stays", call_id="c1"), call("breaks", call_id="c2")]
    world = World(agent=agent, script=[turn], options={"run_config": config}, order="passes")
    steps = run_one(world).steps if by == "its caller" else 0
    runs = [run_one(attrs.evolve(world, cancel=CancelAt(step) if steps else None)) for step in range(steps or 1)]
    late = [run for run in runs if len(run.still_running) == 3]  # 0.27, 1.27 and 2.27 s after the failure
    assert late
    for run in late:
        check(run)


def test_nested_runs_that_are_cut_off_together_may_end_in_either_order_on_another_backend() -> None:
    """Another order on the same backend breaks an invariant, and so does a nested run with another end."""
    agent = Agent("a", tools=[Agent("inner", tools=[nap]).as_tool("ask", "Ask."), breaks])
    turn = [call("ask", {"input": "x"}, "c1"), call("ask", {"input": "y"}, "c2"), call("breaks", {}, "c3")]
    nested = {path: [call("nap"), say("rested")] for path in ("c1", "c2")}
    run = run_one(World(agent=agent, script=[turn], nested=nested))
    records = list(run.records)
    one, two = (n for n, record in enumerate(records) if isinstance(record, RunEnded) and record.path)
    assert [records[n].status for n in (one, two)] == ["cancelled", "cancelled"]  # type: ignore[union-attr]
    records[one], records[two] = records[two], records[one]
    counterpart = Counterpart(relation="backend", name="another", records=tuple(records), error=type(run.error))
    check_counterparts(run, counterpart)
    with pytest.raises(InvariantError, match="worlds_repeat_themselves"):
        check_counterparts(run, attrs.evolve(counterpart, relation="again"))
    records[one] = records[one].replace(status="failed")  # type: ignore[call-arg]
    with pytest.raises(InvariantError, match="backends_agree"):
        check_counterparts(run, attrs.evolve(counterpart, records=tuple(records)))


def test_a_call_that_starts_as_another_run_goes_on_may_come_before_that_on_another_backend() -> None:
    """The last call of one run gives back the limit for which one of another run waits. What was done is the same."""

    def make() -> Agent[Any, Any]:
        @tool(capacity=[Capacity(1, "one bed")])
        async def sleep() -> str:
            """Sleep."""
            await anyio.sleep(1)
            return "rested"

        return Agent("a", tools=[Agent("inner", tools=[sleep]).as_tool("ask", "Ask.")])

    turn = [call("ask", {"input": "x"}, path) for path in ("c1", "c2")]
    nested = {path: [call("sleep"), say("rested")] for path in ("c1", "c2")}
    runs = [run_one(World(agent=make, script=[turn, say("done")], nested=nested), backend=name) for name in BACKENDS]

    def find_start(run: WorldRun) -> int:
        return next(n for n, one in enumerate(run.records) if isinstance(one, CallStarted) and one.waited_for)

    assert find_start(runs[0]) != find_start(runs[1])  # else it is no exception any more
    for run, other in (runs, reversed(runs)):
        check(run)
        counterpart = Counterpart(relation="backend", name="another", records=other.records)
        check_counterparts(run, counterpart)
        records = list(other.records)
        records[find_start(other)] = records[find_start(other)].replace(arguments='{"n": 1}')  # type: ignore[call-arg]
        with pytest.raises(InvariantError, match="backends_agree"):
            check_counterparts(run, attrs.evolve(counterpart, records=tuple(records)))
        with pytest.raises(InvariantError, match="worlds_repeat_themselves"):
            check_counterparts(run, attrs.evolve(counterpart, relation="again"))


def test_what_a_call_waits_for_with_a_reader_who_is_behind_may_differ_on_another_backend() -> None:
    """The order of the reader's steps and the call's is the backend's; the call's own work isn't."""
    observation = slowly_read()
    held = next(n for n, one in enumerate(observation.records) if isinstance(one, CallStarted) and one.waited_for)
    assert "stream_buffer" in observation.records[held].waited_for  # type: ignore[union-attr]

    def broken_by(relation: Relation, **changes: Any) -> set[str]:
        records = list(observation.records)
        records[held] = records[held].replace(**changes)
        counterpart = Counterpart(relation=relation, name="another", records=tuple(records))
        return {one.invariant for one in findings_of(attrs.evolve(observation, counterparts=(counterpart,)))}

    assert broken_by("backend", waited_for=()) == set()
    assert broken_by("backend", waited_for=(), arguments="{}") == {"backends_agree"}
    assert broken_by("mode", waited_for=()) == {"streaming_changes_nothing"}


@pytest.mark.slow
def test_the_package_has_the_invariants_that_its_page_lists() -> None:
    """A process that imports the package only has these; the table of a test session has the engine's too."""
    program = "from agentloop.testing import INVARIANTS; print(*INVARIANTS)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    page = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| [a-z]", page.partition("## Invariants")[2], re.MULTILINE)
    assert sorted(done.stdout.split()) == sorted(listed)
    assert set(listed) < set(INVARIANTS)


def test_an_empty_log_breaks_nothing() -> None:
    """A run that was cancelled before its first record has left none."""
    reading = ObservedLog(Observation(records=()))
    assert [list(invariant.judge(reading)) for invariant in INVARIANTS.values()] == [[] for _ in INVARIANTS]


def tripped_input() -> Observation:
    """A run whose input was refused."""
    return tripped("input")


def tripped_output() -> Observation:
    """A run whose output was refused."""
    return tripped("output")


WORLDS = (
    *(rich, queued, rated, cleaning, cancelled, failing, both_failing, many, decided, refused, receipted),
    *(judged_again, slowly_read, tripped_input, tripped_output),
)
OTHERS: dict[str, tuple[Any, ...]] = {
    "call_id": ("c1", "c2", "nobody"),
    "path": ((), ("c1",), ("nobody",)),
    "turn": (0, 1, 7),
    "attempt": (2, 7),
    "tool": ("plain", "nothing"),
    "agent": ("b", "nobody"),
    "status": ("completed", "failed", "cancelled", "interrupted"),
    "verdict": ("passed", "tripped", "RejectContent", "RaiseException", "Rewrite"),
    "stage": ("input", "output", "tool_input", "tool_output"),
    "failed": (True, False),
    "outcome": (
        *(CallOutcome(status=status) for status in ("succeeded", "failed", "timed_out", "skipped", "replayed")),
        *(CallOutcome(status="cancelled", cancelled_by=by) for by in ("tool", "caller", "sibling", "deadline")),
        CallOutcome(status="succeeded", output="other", body_finished=True),
    ),
}
"""Other values that the fields of a record may have."""


def damaged(records: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield *records* with one of them gone, there twice, in the place of its neighbour, or with another field."""
    for n, record in enumerate(records):
        before, after = list(records[:n]), list(records[n + 1 :])
        yield [*before, *after]
        yield [*before, record, record, *after]
        if after:
            yield [*before, after[0], record, *after[1:]]
        for name, others in OTHERS.items():
            for other in others:
                if type(now := getattr(record, name, None)) is type(other) and now != other:
                    yield [*before, record.replace(**{name: other}), *after]


@pytest.mark.parametrize("made", WORLDS, ids=lambda made: made.__name__)
def test_a_damaged_log_is_judged_and_most_damage_is_found(made: Callable[[], Observation]) -> None:
    """No invariant raises over a log that no run has written."""
    observation = made()
    logs = islice(damaged(observation.records), 0, None, 3 if made is rich else 1)
    found = [bool(findings_of(attrs.evolve(observation, records=records))) for records in logs]
    assert len(found) > 20
    assert sum(found) / len(found) > 0.5


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("2 warnings of circles", lambda e: put(e, find(e, HistoryReplaced), e.records[find(e, HistoryReplaced)])),
        ("nobody warns", lambda e: attrs.evolve(e, config=attrs.evolve(e.config, loop_detection=2))),
        ("nobody was warned of", lambda e: attrs.evolve(e, error=ToolLoopDetected("plain"))),
        ("lost more of its output", lambda e: ended(e, "c4", output="!" * 299)),
        ("past 299", lambda e: ended(e, "c4", output="." * 300)),
        ("the model is shown 'plain'", lambda e: ended(e, "c1", output="plain")),
    ],
)
def test_circles_and_lengths_are_held_against_all_that_was_said(what: str, fault: Callable[[Observation], Any]) -> None:
    """Faults of warnings, ends and outputs are found: too many, too few, too long, or changed."""
    assert findings_of(circling()) == []
    assert any(what in str(finding.broken.words) for finding in findings_of(fault(circling())))


def test_a_circle_that_goes_on_after_its_warning_is_found() -> None:
    """The model ran in a circle and was allowed another turn, which began."""
    letting = circling()
    place = find(letting, HistoryReplaced)
    earlier = move(letting, place, find(letting, TurnStarted, 2))
    found = findings_of(attrs.evolve(earlier, config=attrs.evolve(earlier.config, loop_detection=2)))
    assert any("came again after a warning" in finding.broken.words for finding in found)


def _said_no(key: str) -> Observation:
    return change(fickle(), find(fickle(), CallbackReturned, key=key), answer=False)


def _never_asked(key: str) -> Observation:
    return drop(fickle(), find(fickle(), CallbackReturned, key=key))


@pytest.mark.parametrize(
    ("fault", "key"),
    [(_said_no, "0:fickle"), *((fault, key) for fault in (_said_no, _never_asked) for key in ("1:fickle", "c1"))],
)
def test_a_tool_that_is_off_is_looked_at_wherever_it_is_asked(fault: Callable[[str], Observation], key: str) -> None:
    """The state is read before the turn, before its calls are planned, and before each of them starts."""
    assert "what_is_off_is_neither_shown_nor_run" in {finding.invariant for finding in findings_of(fault(key))}
