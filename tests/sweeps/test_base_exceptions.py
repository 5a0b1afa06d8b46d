"""A BaseException out of every callback, hook, protocol method and instrument, whenever a run calls it.

It is no cancellation and no policy's business, so the run ends: everything is joined, every started call is settled,
the log is whole, and that very exception leaves bare.
"""

import os
import random
from functools import partial
from typing import Any

import pytest
from kit.ending import Fatal
from sweeps.raising_programs import PROGRAMS, STAGES, Points, Program, run_plain, run_streamed
from sweeps.stepping import Backend, run_once
from sweeps.test_cancel_sweep import check_log

from agentloop import AgentHooks, RunHooks
from agentloop import records as r
from agentloop.testing.simulation._stepping import Stepped

KINDS: list[type[BaseException]] = [Fatal, KeyboardInterrupt, SystemExit, GeneratorExit]
MODES = {"plain": run_plain, "streamed": run_streamed}
WHOLE = os.environ.get("AGENTLOOP_SWEEP") == "whole"
SAMPLE = 3
"""At how many points of each name something is raised, unless the sweep is run whole."""

MUST_BE_REACHED = {
    *("instructions", "is_enabled", "handoff is_enabled", "needs_approval", "policy", "cost", "price", "stop_when"),
    "hosted_price",
    *("input_guardrail", "input_guardrail beside", "output_guardrail", "tool_input_guardrail", "tool_output_guardrail"),
    *("failure_error_function", "timeout_error_function", "tool_error_formatter", "custom_data_extractor"),
    *("output_store", "on_handoff", "input_filter", "call_model_input_filter", "session_input_callback"),
    *("tool_use_behavior", "error_handler max_turns", "error_handler model_refusal"),
    *("error_handler invalid_final_output", "custom_output_extractor", "on_stream", "input_builder", "retry policy"),
    *("resource enter", "resource exit", "body", "nested body", "cleanup of a body"),
    *(f"cleanup of {stage}" for stage in STAGES),
    *("Model.stream", "Model.stream enter", "Model.stream event", "Model.stream exit", "Model enter", "Model exit"),
    *("ModelProvider.get_model", "Session.get_items", "Session.add_items", "Journal.append", "Journal.read"),
    *("on_trace_start", "on_trace_end", "on_span_start", "on_span_end"),
    *(f"RunHooks.{name}" for name in vars(RunHooks) if name.startswith("on_")),
    *(f"AgentHooks.{name}" for name in vars(AgentHooks) if name.startswith("on_")),
    *(f"on_record {kind.__name__}" for kind in (r.RunStarted, r.TurnStarted, r.ModelRequested, r.ModelResponded)),
    *(f"on_record {kind.__name__}" for kind in (r.CallStarted, r.BodyEnded, r.CallSettled)),
    *(f"on_record {kind.__name__}" for kind in (r.BatchEnded, r.HandedOff, r.GuardrailSettled, r.CallbackReturned)),
    *(f"on_record {kind.__name__}" for kind in (r.ModelFailed, r.SessionSaved, r.HistoryReplaced, r.RunEnded)),
}
"""The objects an application can hand in, by the names of their points: one that is never called is an empty sweep."""


def run_raising(backend: Backend, mode: str, program: Program, points: Points) -> Stepped:
    """Run *program*, which raises where *points* say."""
    return run_once(backend, partial(MODES[mode], program, points), at=None)


def check(seen: Stepped, points: Points, error: BaseException, where: str) -> None:
    """Assert that *error* left, itself, and that nothing is left of the run."""
    assert seen.tasks_left == [], where
    assert seen.error is error, f"{where}: {seen.error!r} left, or {seen.value!r} came"
    assert seen.cancelling == 0, where
    records = points.watch.records
    if points.ended:  # the last record had been made, and says what it said
        seen = Stepped(cancelled=True, mark=len(records))
    check_log(seen, records, where)
    assert {id(span) for span in points.watch.started} == {id(span) for span in points.watch.ended}, where


def reached(program: Program, *, waits: bool = False) -> list[str]:
    """Return the points of *program*, in their order, when nothing is raised."""
    points = Points(waits=waits)
    run_raising("asyncio", "plain", program, points)
    return points.names


def test_programs_reach_all_that_an_application_hands_in() -> None:
    """The sweep would otherwise pass for objects that it never calls."""
    names = {name for program in PROGRAMS for name in reached(program)}
    assert names >= MUST_BE_REACHED, MUST_BE_REACHED - names


def chosen(names: list[str], draw: random.Random) -> list[tuple[int, type[BaseException], bool, bool]]:
    """Return at which points what is raised, and how: at some points of each name, or at all of them in every way."""
    ways = [(False, False), (True, False), (True, True)]
    if WHOLE:
        return [(at, kind, *way) for at in range(len(names)) for kind in KINDS for way in ways]
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(name, []).append(at)
    each = [at for found in places.values() for at in draw.sample(found, min(SAMPLE, len(found)))]
    return [(at, draw.choice(KINDS), *draw.choice(ways)) for at in each]


@pytest.mark.slow
@pytest.mark.timeout(1800 if WHOLE else 120)
@pytest.mark.scenario("RP-03", "RP-04")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_base_exception_leaves_bare_from_wherever_it_is_raised(backend: Any, mode: str, program: Program) -> None:
    """Every point raises every kind of exception, sync and async, once and again at every later point."""
    draw = random.Random(f"{program.__name__} {backend} {mode}")
    for at, kind, waits, again in chosen(reached(program), draw):
        error = kind("planted")
        points = Points(at=at, error=error, waits=waits, again=again)
        seen = run_raising(backend, mode, program, points)
        if len(points.names) <= at:
            continue  # async callbacks take another order, in which there may be fewer points
        where = f"{kind.__name__} out of {points.names[at]}, point {at}{', again' * again}{', async' * waits}"
        check(seen, points, error, where)
