"""Invariants of who is told, and of what others keep: hooks of a run and of its agents, listeners of agent tools,
sessions and journals; and of what becomes of a run when one of them fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from agentloop.exceptions import AgentLoopError
from agentloop.items import ToolOutput
from agentloop.testing.invariants._events import of_event, of_record
from agentloop.testing.invariants._execution import paused
from agentloop.testing.invariants._invariant import HELD, Broken, broken, law
from agentloop.testing.invariants._observation import Observation, Path, Reading

Findings = Iterator[Broken | None]
Event = tuple[str, Path, str]


# ---------------------------------------------------------------------------------------------- hooks


@law("accounting")
def agents_hooks_hear_of_their_agent(seen: Reading) -> Findings:
    """An agent's own hooks are told, in every run of the tree, each time it comes to work, of each answer to it, of
    each handoff from and to it, and of the start and the end of each of its calls; of no other agent's.
    """
    for name, told in seen.evidence.agent_hooks.items():
        heard = Counter((event, path, of) for _, (event, path, of) in told)
        yield from _calls_heard(seen, name, heard)
        if not seen.evidence.faultless:
            continue  # who comes after hooks that fail isn't told
        wanted = Counter(_steps_of(seen, name))
        got = Counter({key: count for key, count in heard.items() if key[0] in _STEPS})
        for key in wanted.keys() | got.keys():
            if wanted[key] == got[key]:
                yield HELD
            else:
                event, path, of = key
                yield broken(f"hooks of agent {name}: {got[key]} times told of {event} {of} {path}, {wanted[key]} due")
        asked = sum(heard[key] for key in heard if key[0] == "llm_start")
        turns = [turn for run in seen.runs.values() for turn in run.turns if turn.agent == name and turn.requested]
        if asked < len(turns):
            yield broken(
                f"hooks of agent {name} were told {asked} times that its model is asked, in {len(turns)} turns"
            )
        completed = any(
            one.status == "completed"
            for run in seen.runs.values()
            for _, one in run.ended
            if run.turns and run.turns[-1].agent == name and not any(n > run.turns[-1].n for n, _ in run.handed)
        )
        if completed and not any(event == "agent_end" for event, _, _ in heard):
            yield broken(f"hooks of agent {name} weren't told of its end")


_STEPS = ("agent_start", "llm_end", "handoff_out", "handoff_in")


def _steps_of(seen: Reading, name: str) -> Iterator[Event]:
    for run in seen.runs.values():
        if not run.turns:
            if run.agent == name and any(one == ("agent_start", run.path, name) for one in _all_told(seen, name)):
                yield "agent_start", run.path, name  # it was ended before its first turn
            continue
        if run.agent == name:
            yield "agent_start", run.path, name
        for _, one in run.handed:
            if one.source_agent == name:
                yield "handoff_out", run.path, one.target_agent
            if one.target_agent == name:
                yield "handoff_in", run.path, one.source_agent
                yield "agent_start", run.path, name
        for turn in run.turns:
            if turn.agent == name and not turn.conflicts:
                yield from (("llm_end", run.path, name) for _ in turn.responded)


def _all_told(seen: Reading, name: str) -> Iterator[Event]:
    return (one for _, one in seen.evidence.agent_hooks[name])


def _calls_heard(seen: Reading, name: str, heard: Counter[Event]) -> Findings:
    keys = {(path, of) for event, path, of in heard if event in ("tool_start", "tool_end")}
    for path, call_id in keys:
        call = seen.calls.get((path, call_id))
        starts, ends = heard["tool_start", path, call_id], heard["tool_end", path, call_id]
        if call is None or call.turn.agent != name:
            yield broken(f"hooks of agent {name} were told of call {call_id}, which isn't its")
        elif starts != ends and not (starts > ends and paused(seen, call)):
            yield broken(f"hooks of agent {name} were told of {starts} starts and {ends} ends of call {call_id}")
        else:
            yield HELD
    for (path, call_id), bodies in seen.bodies.items():
        call = seen.calls.get((path, call_id))
        if call is not None and call.turn.agent == name and not heard["tool_start", path, call_id]:
            yield broken(f"call {call_id} ran, and hooks of agent {name} weren't told of its start", bodies[0].began)


@law("accounting")
def hooks_are_told_in_order(seen: Reading) -> Findings:
    """Hooks of a run are told of a start before its agent's, and of an end after them; of a call's start after it was
    recorded and before its body begins, of its end after that has ended and before it is recorded.
    """
    own = _first_stamps(zip(seen.evidence.hook_stamps, seen.evidence.hooks or (), strict=False))
    for name, told in seen.evidence.agent_hooks.items():
        theirs = _first_stamps(told)
        for key in own.keys() & theirs.keys():
            if key[0] not in _ORDERED or (key[0] not in _OF_CALLS and key[2] != name):
                continue
            later = own[key] > theirs[key]
            if later is key[0].endswith("end"):
                yield HELD
            else:
                yield broken(
                    f"of {key[0]} {key[2]} hooks of the run were told {'after' if later else 'before'} {name}'s"
                )
        yield from _around_calls(seen, theirs)
    yield from _around_calls(seen, own)


_OF_CALLS = ("tool_start", "tool_end")
_ORDERED = ("agent_start", "llm_start", "llm_end", "agent_end", *_OF_CALLS)


def _first_stamps(told: Iterator[tuple[int, Event]] | Sequence[tuple[int, Event]]) -> dict[Event, int]:
    found: dict[Event, int] = {}
    for place, event in told:
        found.setdefault(event, place)
    return found


def _around_calls(seen: Reading, told: dict[Event, int]) -> Findings:
    stamps = seen.evidence.stamps
    if not stamps:
        return
    for (event, path, call_id), place in told.items():
        call = seen.calls.get((path, call_id)) if event in _OF_CALLS else None
        if call is None or len(call.started) != 1 or len(call.settled) != 1:
            continue
        (start, _), (end, _) = call.started[0], call.settled[0]
        bodies = [body.stamps for body in seen.bodies.get((path, call_id), ()) if body.ended is not None]
        if event == "tool_start":
            fits = stamps[start] < place and all(place < began for began, _ in bodies)
        else:
            fits = place < stamps[end] and all(ended < place for _, ended in bodies)
        if fits:
            yield HELD
        else:
            yield broken(f"hooks were told of the {event} of call {call_id} out of its place", start, end)


@law("accounting")
def what_fails_around_a_run_is_told(seen: Reading) -> Findings:
    """Where hooks fail while the run that was asked for is at work, or its session or its journal does, the run fails,
    and says so; also where nobody reads its events any more, and where all that was left to do was to write its end.
    """
    failed = [event for event, path, _ in seen.evidence.watchers_failed if not path]
    failed += ["a write to the session" for _, _, fails in seen.evidence.writes if fails]
    written = not seen.evidence.journal_failed
    failed += [] if written else ["the journal"]
    if not failed or seen.root is None or seen.evidence.cancellation is not None:
        return
    n, end = seen.root.ended[-1] if seen.root.ended else (len(seen.records) - 1, None)
    error = seen.evidence.error
    if seen.evidence.reader_left and (written or (end is not None and end.status == "cancelled")):
        return  # who leaves cancels it, and it may have been before
    if not isinstance(error, Exception) or (end is not None and end.status != "failed" and written):
        yield broken(f"{failed[0]} failed, and the run didn't", n)
    elif _tells(error):
        yield HELD
    else:
        yield broken(f"{failed[0]} failed, and {error!r} doesn't say so", n)


def _tells(error: BaseException | None) -> bool:
    """Tell whether *error* is a watcher's, comes of one, or has one among its notes; or is the library's own."""
    while error is not None:
        notes = getattr(error, "__notes__", ())
        if type(error).__name__ == "WatcherFailed" or any("WatcherFailed" in note for note in notes):
            return True
        if not isinstance(error, AgentLoopError):
            return False
        error = error.__cause__
    return False


# ---------------------------------------------------------------------------------------------- listeners


@law("accounting")
def listeners_hear_all_of_their_run(seen: Reading) -> Findings:
    """An agent tool's `on_stream` is given every event of the nested run and of those in it, in the order of the log,
    all of them before the call ends; whether it takes its time or fails. What is cut off may be missing.
    """
    for (agent, tool), heard in seen.evidence.heard.items():
        calls = [one for one in seen.calls.values() if one.turn.agent == agent and one.call.name == tool]
        for call in calls:
            path = (*call.path, call.call_id)
            mine = [(place, event) for place, event in heard if event.path[: len(path)] == path]
            got = [said for _, event in mine if (said := of_event(event)) is not None]
            below = ((n, one) for n, one in enumerate(seen.records) if one.path[: len(path)] == path)
            wanted = [(n, said) for n, record in below for said in of_record(seen, n, record)]
            if _cut(seen, path) or call.status in ("timed_out", "cancelled"):
                rest = iter(said for _, said in wanted)
                if not all(said in rest for said in got):
                    yield broken(f"the listener of call {call.call_id} heard what the log doesn't say: {got}")
                continue
            if got != [said for _, said in wanted]:
                more = f"{len(got)} events, and {len(wanted)} were due"
                yield broken(f"the listener of call {call.call_id} heard {more}: {got}", *(n for n, _ in wanted[-1:]))
            elif wanted and seen.evidence.stamps and call.settled:
                end = call.settled[-1][0]
                if mine[-1][0] > seen.evidence.stamps[end]:
                    yield broken(f"the listener of call {call.call_id} heard of it when it had ended", end)
                else:
                    yield HELD


def _cut(seen: Reading, path: Path) -> bool:
    """Tell whether something around the run at *path*, or a failing hook in it, may have cut its listeners off."""
    run = seen.runs.get(path)
    if run is None or not seen.evidence.faultless or seen.evidence.cancellation is not None:
        return True
    return any(one.status == "cancelled" for _, one in run.ended) or len(run.ended) < len(run.began)


# ---------------------------------------------------------------------------------------------- sessions, journals


@law("accounting")
def a_session_that_failed_is_left_alone(seen: Reading) -> Findings:
    """After a write to a session has failed nothing is written to it any more: who knows what it holds."""
    writes = seen.evidence.writes
    failed = [place for place, (_, _, fails) in enumerate(writes) if fails]
    if not failed:
        return
    if len(writes) > failed[0] + 1:
        yield broken(f"{len(writes) - failed[0] - 1} writes followed one that failed")
    else:
        yield HELD


@law("execution")
def effects_wait_for_the_journal(seen: Reading) -> Findings:
    """Hooks are told of a call's start, its body begins, and a session is given its output only when the journal has
    the record that says so.
    """
    durable = seen.evidence.durable
    if durable is None:
        return
    for n, call_id, place, what in _effects(seen.evidence, seen):
        had = max((count for when, count in durable if when < place), default=0)
        if had > n:
            yield HELD
        else:
            yield broken(f"{what} call {call_id} before the journal had its record", n)


def _effects(evidence: Observation, seen: Reading) -> Iterator[tuple[int, str, int, str]]:
    """Yield for each effect the record it waits for, its call, its stamp, and what it is."""
    starts = {key: call.started[-1][0] for key, call in seen.calls.items() if len(call.started) == 1}
    ends = {call.call_id: call.settled[-1][0] for call in seen.calls.values() if not call.path and call.settled}
    for body in evidence.bodies or ():
        if (body.path, body.call_id) in starts:
            yield starts[body.path, body.call_id], body.call_id, body.stamps[0], "the body began of"
    own = zip(evidence.hook_stamps, evidence.hooks or (), strict=False)
    for told in (own, *evidence.agent_hooks.values()):
        for place, (event, path, call_id) in told:
            if event == "tool_start" and (path, call_id) in starts:
                yield starts[path, call_id], call_id, place, "hooks were told of"
    for place, items, _ in evidence.writes:
        for item in items:
            if isinstance(item, ToolOutput) and item.call_id in ends:
                yield ends[item.call_id], item.call_id, place, "the session was given the output of"
