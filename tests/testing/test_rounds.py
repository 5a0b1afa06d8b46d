"""Rounds of exploration: a function of seed and number; what one finds is made small."""

import hashlib

import pytest
from exploration import answers, arrivals, rare, rounds, surrounded
from exploration.counts import Counts
from exploration.fixture_agents import FixtureAgents, Role
from exploration.generators import Seeded
from exploration.invariants import (
    INVARIANTS,
    CoverageCounter,
    InvariantError,
    check,
    check_counterparts,
    counterpart_of,
)
from exploration.rounds import Round
from exploration.session import Wanted, explore, explore_all, report, untouched
from testing.planted import PLAIN, queued

from agentloop.testing.invariants._invariant import Breach, Broken
from agentloop.testing.invariants._observation import Observation
from agentloop.testing.scripted import call, say
from agentloop.testing.simulation.runs import World, WorldRun, run_one


def played(number: int) -> tuple[Counts, str]:
    """Return what a round came to, and the digest of its logs."""
    counts = Counts(digest=hashlib.sha256())
    Round("test", number, counts).play()
    return counts, counts.digest.hexdigest()


@pytest.mark.slow
def test_a_round_is_a_function_of_seed_and_number() -> None:
    """One round gives the same logs and counts twice, without a violation; another round has other logs."""
    (once, digest), (again, same), (_, other) = played(0), played(0), played(1)
    assert once.violations == []
    assert (once.numbers, digest) == (again.numbers, same)
    assert digest != other
    assert once.numbers["core worlds"] == 120
    assert once.numbers["crash points"] >= 7
    assert once.numbers["replayed"] == 1


@pytest.mark.slow
def test_a_session_of_some_rounds_plays_each_once() -> None:
    """Several processes may share the rounds; the report says what the session did."""
    wanted = Wanted(seed="test", first=1, rounds=3)
    counts = explore_all(wanted, 1)
    assert counts.numbers["rounds"] == 3
    shares = [explore(Wanted(seed="test", first=first, step=2, rounds=n)).numbers for first, n in ((1, 2), (2, 1))]
    assert shares[0] + shares[1] == counts.numbers
    said = "\n".join(report(counts, wanted, 1.0))
    assert "violations: 0" in said
    assert "rates_hold" in said
    assert set(untouched(Counts())) >= set(INVARIANTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", rare.KINDS)
def test_rare_worlds_meet_what_they_are_for(kind: str) -> None:
    """At least three in eight of them do, and none breaks an invariant."""
    tally = CoverageCounter()
    for draw in range(40):
        # Seeded by its kind: what is drawn for one has nothing to do with how many others there are.
        one = rare.draw_rare(Seeded(f"rare {kind} {draw}"), rare.KINDS.index(kind) * rare.EVERY)
        check(run_one(one.world, backend=one.backend, streamed=one.streamed), tally)
    for invariant in MET[kind]:
        assert tally.exercised[invariant] >= 15, invariant


MET = {
    "behind a failure": ("failures_that_leave_end_the_run", "unstarted_calls_end_as_such"),
    "beside a failure": ("siblings_end_with_the_failure", "siblings_fall_to_failures_only"),
    "failures": ("the_first_failure_is_raised",),
    "slots": ("slots_are_used", "bodies_in_flight_fit_the_limits"),
    "rates": ("rates_hold",),
    "verdicts": ("a_verdict_is_asked_for_once", "a_verdict_fits_one_call"),
    "circles": ("circles_are_warned_of_then_ended", "a_verdict_fits_one_call"),
    "lengths": ("outputs_keep_to_their_length",),
    "off": ("what_is_off_is_neither_shown_nor_run",),
}


@pytest.mark.slow
def test_worlds_of_unfinished_answers_meet_what_they_are_for() -> None:
    """A fifth of them has an output that is corrected, a quarter has a pause; none breaks an invariant."""
    tally = CoverageCounter()
    for draw in range(60):
        world = answers.draw_answers(Seeded(f"answers {draw}"), crashes=draw % 4 == 0)
        check(run_one(world, streamed=draw % 2 == 0), tally)
    assert tally.exercised["invalid_outputs_are_corrected_as_often_as_agreed"] >= 12
    assert tally.exercised["paused_answers_are_continued"] >= 15


@pytest.mark.slow
def test_worlds_that_the_application_reaches_into_meet_what_they_are_for() -> None:
    """Half of them take an input, a third shows one where a turn has ended, a third has an answered call."""
    tally = CoverageCounter()
    for draw in range(90):
        one = arrivals.draw_arrivals(Seeded(f"arrivals {draw}"))
        check(run_one(one.world, backend=one.backend, streamed=one.streamed), tally)
    assert tally.exercised["acknowledged_inputs_are_in_the_log"] >= 45
    assert tally.exercised["added_inputs_are_shown_once"] >= 45
    assert tally.exercised["inputs_come_where_all_calls_have_outputs"] >= 20
    assert tally.exercised["answers_are_the_outputs_of_their_calls"] >= 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(surrounded.KINDS))
def test_surrounded_worlds_meet_what_they_are_for(kind: str) -> None:
    """At least a fifth of them do, and none breaks an invariant."""
    tally = CoverageCounter()
    for draw in range(40):
        one = surrounded.draw_surrounded(Seeded(f"surrounded {kind} {draw}"), list(surrounded.KINDS).index(kind))
        check(run_one(one.world, backend=one.backend, streamed=one.streamed), tally)
    for invariant in SURROUNDED[kind]:
        assert tally.exercised[invariant] >= 8, invariant


SURROUNDED = {
    "sourced": ("what_sources_give_is_shown",),
    "choices": ("a_tool_choice_is_dropped_once_obeyed", "a_verdict_fits_one_call"),
    "edited": ("a_verdict_fits_one_call", "calls_run_with_their_arguments"),
    "threads": ("bodies_in_flight_fit_the_limits", "agents_hooks_hear_of_their_agent"),
    "one pass": ("a_tripped_input_stops_everything",),
    "begun": ("an_answer_is_what_its_pieces_are",),
    "slow": ("models_keep_to_their_time",),
    "silent": ("silence_ends_a_call_in_time",),
    "grace": ("the_end_comes_within_grace", "siblings_end_with_the_failure"),
    "agents' hooks": ("agents_hooks_hear_of_their_agent", "hooks_are_told_in_order"),
    "failing hooks": ("what_fails_around_a_run_is_told",),
    "failing session": ("a_session_that_failed_is_left_alone",),
    "written": ("effects_wait_for_the_journal",),
    "left": ("what_fails_around_a_run_is_told", "events_are_the_log"),
    "stopped": ("a_run_may_end_with_its_turn",),
    "listeners": ("listeners_hear_all_of_their_run",),
    "own configurations": ("nested_runs_stand_in_their_calls",),
    "budgets": ("limits_of_use_hold",),
    "filters": ("histories_grow_by_what_was_said", "handoffs_go_where_they_say"),
    "names": ("outputs_are_of_their_own_call", "a_verdict_fits_one_call"),
    "provided": ("outputs_are_of_their_own_call", "a_verdict_fits_one_call", "histories_grow_by_what_was_said"),
}


def small() -> World:
    """Return a world of two turns with three calls."""
    cast = FixtureAgents(roles=(Role(name="a", actors=(PLAIN,)),))
    turns = ([call("plain", {"n": 1}, call_id="c1"), call("plain", {"n": 2}, call_id="c2")],)
    script = (*turns, [call("plain", {"n": 3}, call_id="c3")], say("done"))
    return World(agent=cast, script=script, options={"run_config": queued().config}, tape=(1, 2))


def test_what_breaks_an_invariant_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invariant that no run with two calls keeps leaves two calls of the three."""

    def broken(judged: WorldRun, tally: CoverageCounter | None = None, *, but: frozenset[str] = frozenset()) -> None:
        if len(judged.bodies) > 1:
            finding = Breach("accepted_after_all", "execution", Broken("two bodies"))
            raise InvariantError((finding,))

    monkeypatch.setattr(rounds, "check", broken)
    counts = Counts()
    runs: list[WorldRun] = []
    alone = Round("test", 0, counts, small=True)
    alone.judged("small", lambda: alone.one(small(), "asyncio", False, runs))
    (violation,) = counts.violations
    assert violation.invariants == ("accepted_after_all",)
    assert "made small in" in violation.words
    script = violation.words.split("script:")[1].split("tape:")[0]
    assert script.count("call(") == 2


def test_another_run_of_the_world_is_held_against_it() -> None:
    """Equal ones are counted, and one with another end or another log is named."""
    run, other = run_one(small()), run_one(small(), backend="trio")
    tally = CoverageCounter()
    check_counterparts(run, counterpart_of(other, "backend"), tally)
    assert tally.exercised["backends_agree"] == 1
    assert tally.worlds == 0
    longer = run_one(World(agent=small().agent, script=(say("done"),), options=small().options))
    with pytest.raises(InvariantError, match=r"backends_agree[\s\S]*the backend on asyncio, plain"):
        check_counterparts(run, counterpart_of(longer, "backend"))


def test_an_invariant_can_be_left_out() -> None:
    """An invariant is left out by its name."""
    observation = Observation(records=queued().records[:-1], agent=queued().agent, result=queued().result)
    with pytest.raises(InvariantError) as caught:
        check(observation)
    check(observation, but=frozenset(caught.value.invariants))
