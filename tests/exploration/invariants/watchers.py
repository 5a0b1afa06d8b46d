"""Invariants of the watchers of a run: its hooks and those of its agents, listeners of agent tools, sessions and
journals; and of the end of a run when one of them fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from agentloop.exceptions import AgentLoopError
from agentloop.items import ToolOutput
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import Observation, ObservedLog, Path

from .events import list_due, of_event
from .execution import paused

Event = tuple[str, Path, str]


# ---------------------------------------------------------------------------------------------- hooks


@invariant("accounting")
def agents_hooks_hear_of_their_agent(log: ObservedLog) -> Findings:
    """In every run of the tree an agent's own hooks receive each time it becomes active, each answer to it, each
    handoff from and to it, and the start and the end of each of its calls, and no event of another agent.
    """
    for name, noted in log.observation.agent_hooks.items():
        heard = Counter((event, path, of) for _, (event, path, of) in noted)
        yield from _check_call_hooks(log, name, heard)
        if not log.observation.faultless:
            continue  # hooks after a failed hook are not called
        wanted = Counter(_list_expected_events(log, name))
        got = Counter({key: count for key, count in heard.items() if key[0] in _STEPS})
        for key in wanted.keys() | got.keys():
            if wanted[key] == got[key]:
                yield HELD
            else:
                event, path, of = key
                yield broken(f"hooks of agent {name}: {got[key]} times told of {event} {of} {path}, {wanted[key]} due")
        asked = sum(heard[key] for key in heard if key[0] == "llm_start")
        turns = [turn for run in log.runs.values() for turn in run.turns if turn.agent == name and turn.requested]
        if asked < len(turns):
            yield broken(
                f"hooks of agent {name} were told {asked} times that its model is asked, in {len(turns)} turns"
            )
        completed = any(
            one.status == "completed"
            for run in log.runs.values()
            for _, one in run.ended
            if run.turns and run.turns[-1].agent == name and not any(n > run.turns[-1].n for n, _ in run.handed)
        )
        if completed and not any(event == "agent_end" for event, _, _ in heard):
            yield broken(f"hooks of agent {name} weren't told of its end")


_STEPS = ("agent_start", "llm_end", "handoff_out", "handoff_in")


def _list_expected_events(log: ObservedLog, name: str) -> Iterator[Event]:
    for run in log.runs.values():
        if not run.turns:
            if run.agent == name and any(one == ("agent_start", run.path, name) for one in _list_received(log, name)):
                yield "agent_start", run.path, name  # the run ended before its first turn
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
            if turn.agent == name:
                yield from (("llm_end", run.path, name) for _ in range(turn.heard_by_hooks))


def _list_received(log: ObservedLog, name: str) -> Iterator[Event]:
    return (one for _, one in log.observation.agent_hooks[name])


def _check_call_hooks(log: ObservedLog, name: str, heard: Counter[Event]) -> Findings:
    keys = {(path, of) for event, path, of in heard if event in ("tool_start", "tool_end")}
    for path, call_id in keys:
        call = log.calls.get((path, call_id))
        starts, ends = heard["tool_start", path, call_id], heard["tool_end", path, call_id]
        if call is None or call.turn.agent != name:
            yield broken(f"hooks of agent {name} were told of call {call_id}, which isn't its")
        elif starts != ends and not (starts > ends and paused(log, call)):
            yield broken(f"hooks of agent {name} were told of {starts} starts and {ends} ends of call {call_id}")
        else:
            yield HELD
    for (path, call_id), bodies in log.bodies.items():
        call = log.calls.get((path, call_id))
        if call is not None and call.turn.agent == name and not heard["tool_start", path, call_id]:
            yield broken(f"call {call_id} ran, and hooks of agent {name} weren't told of its start", bodies[0].began)


@invariant("accounting")
def hooks_are_told_in_order(log: ObservedLog) -> Findings:
    """Hooks of a run receive a start before the hooks of its agent, and an end after them. Hooks receive the start of a
    call after its record and before its body begins, and its end after the body has ended and before its record.
    """
    own = _first_stamps(zip(log.observation.hook_stamps, log.observation.hooks or (), strict=False))
    for name, noted in log.observation.agent_hooks.items():
        theirs = _first_stamps(noted)
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
        yield from _check_hook_order(log, theirs)
    yield from _check_hook_order(log, own)


_OF_CALLS = ("tool_start", "tool_end")
_ORDERED = ("agent_start", "llm_start", "llm_end", "agent_end", *_OF_CALLS)


def _first_stamps(noted: Iterator[tuple[int, Event]] | Sequence[tuple[int, Event]]) -> dict[Event, int]:
    found: dict[Event, int] = {}
    for place, event in noted:
        found.setdefault(event, place)
    return found


def _check_hook_order(log: ObservedLog, noted: dict[Event, int]) -> Findings:
    stamps = log.observation.stamps
    if not stamps:
        return
    for (event, path, call_id), place in noted.items():
        call = log.calls.get((path, call_id)) if event in _OF_CALLS else None
        if call is None or len(call.started) != 1 or len(call.settled) != 1:
            continue
        (start, _), (end, _) = call.started[0], call.settled[0]
        bodies = [body.stamps for body in log.bodies.get((path, call_id), ()) if body.ended is not None]
        if event == "tool_start":
            fits = stamps[start] < place and all(place < began for began, _ in bodies)
        else:
            fits = place < stamps[end] and all(ended < place for _, ended in bodies)
        if fits:
            yield HELD
        else:
            yield broken(f"hooks were told of the {event} of call {call_id} out of its place", start, end)


@invariant("accounting")
def what_fails_around_a_run_is_told(log: ObservedLog) -> Findings:
    """If a hook of the root run, its session or its journal fails, the run fails and its error says so; also if its
    reader has left, and if only the record of its end was left to write.
    """
    failed = [event for event, path, _ in log.observation.watchers_failed if not path]
    failed += ["a write to the session" for _, _, fails in log.observation.writes if fails]
    written = not log.observation.journal_failed
    failed += [] if written else ["the journal"]
    if not failed or log.root is None or log.observation.cancellation is not None:
        return
    n, end = log.root.ended[-1] if log.root.ended else (len(log.records) - 1, None)
    error = log.observation.error
    if log.observation.reader_left and (written or (end is not None and end.status == "cancelled")):
        return  # a reader that leaves cancels the run, perhaps before the failure
    if error is None or (end is not None and end.status != "failed" and written):
        yield broken(f"{failed[0]} failed, and the run didn't", n)
    elif _reports_failure(error):
        yield HELD
    else:
        yield broken(f"{failed[0]} failed, and {error!r} doesn't say so", n)


def _reports_failure(error: BaseException | None) -> bool:
    """Tell whether *error*, one of its causes or one of its notes is the failure of a watcher.

    The chain of causes is followed through errors of the library only.
    """
    while error is not None:
        notes = getattr(error, "__notes__", ())
        if type(error).__name__ == "WatcherFailed" or any("WatcherFailed" in note for note in notes):
            return True
        if not isinstance(error, AgentLoopError):
            return False
        error = error.__cause__
    return False


# ---------------------------------------------------------------------------------------------- listeners


@invariant("accounting")
def listeners_hear_all_of_their_run(log: ObservedLog) -> Findings:
    """An agent tool's `on_stream` receives every event of the nested run and of the runs in it, in the order of the log
    and before the call ends, also if it is slow or fails. Events of a run that is cut off may be missing.
    """
    for (agent, tool), heard in log.observation.heard.items():
        calls = [one for one in log.calls.values() if one.turn.agent == agent and one.call.name == tool]
        for call in calls:
            path = (*call.path, call.call_id)
            mine = [(place, event) for place, event in heard if event.path[: len(path)] == path]
            got = [said for _, event in mine if (said := of_event(event)) is not None]
            wanted = list_due(log, path)
            if _may_be_cut_off(log, path) or call.status in ("timed_out", "cancelled"):
                rest = iter(said for _, said in wanted)
                if not all(said in rest for said in got):
                    yield broken(f"the listener of call {call.call_id} heard what the log doesn't say: {got}")
                continue
            if got != [said for _, said in wanted]:
                more = f"{len(got)} events, and {len(wanted)} were due"
                yield broken(f"the listener of call {call.call_id} heard {more}: {got}", *(n for n, _ in wanted[-1:]))
            elif wanted and log.observation.stamps and call.settled:
                end = call.settled[-1][0]
                if mine[-1][0] > log.observation.stamps[end]:
                    yield broken(f"the listener of call {call.call_id} heard of it when it had ended", end)
                else:
                    yield HELD


def _may_be_cut_off(log: ObservedLog, path: Path) -> bool:
    """Tell whether a cancellation around the run at *path*, or a failed hook, may have cut off its listeners."""
    run = log.runs.get(path)
    if run is None or not log.observation.faultless or log.observation.cancellation is not None:
        return True
    return any(one.status == "cancelled" for _, one in run.ended) or len(run.ended) < len(run.began)


# ---------------------------------------------------------------------------------------------- sessions, journals


@invariant("accounting")
def a_session_that_failed_is_left_alone(log: ObservedLog) -> Findings:
    """After a failed write to a session nothing more is written to it: the items that it holds are unknown."""
    writes = log.observation.writes
    failed = [place for place, (_, _, fails) in enumerate(writes) if fails]
    if not failed:
        return
    if len(writes) > failed[0] + 1:
        yield broken(f"{len(writes) - failed[0] - 1} writes followed one that failed")
    else:
        yield HELD


@invariant("execution")
def effects_wait_for_the_journal(log: ObservedLog) -> Findings:
    """Hooks receive a call's start, its body begins, and a session receives its output only after the journal has the
    record of that start or output.
    """
    durable = log.observation.durable
    if durable is None:
        return
    for n, call_id, place, what in _list_effects(log.observation, log):
        had = max((count for when, count in durable if when < place), default=0)
        if had > n:
            yield HELD
        else:
            yield broken(f"{what} call {call_id} before the journal had its record", n)


def _list_effects(observation: Observation, log: ObservedLog) -> Iterator[tuple[int, str, int, str]]:
    """Yield each effect: the number of the record that it must wait for, its call, its stamp, and a phrase for it."""
    starts = {key: call.started[-1][0] for key, call in log.calls.items() if len(call.started) == 1}
    ends = {call.call_id: call.settled[-1][0] for call in log.calls.values() if not call.path and call.settled}
    for body in observation.bodies or ():
        if (body.path, body.call_id) in starts:
            yield starts[body.path, body.call_id], body.call_id, body.stamps[0], "the body began of"
    own = zip(observation.hook_stamps, observation.hooks or (), strict=False)
    for noted in (own, *observation.agent_hooks.values()):
        for place, (event, path, call_id) in noted:
            if event == "tool_start" and (path, call_id) in starts:
                yield starts[path, call_id], call_id, place, "hooks were told of"
    for place, items, _ in observation.writes:
        for item in items:
            if isinstance(item, ToolOutput) and item.call_id in ends:
                yield ends[item.call_id], item.call_id, place, "the session was given the output of"
