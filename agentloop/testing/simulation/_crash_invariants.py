"""The invariants of every run that crashed and was resumed.

`sound` asserts all of them. It does not know how a crash was made (`disk`, `_restarts`).

PYTEST_DONT_REWRITE: each assertion has its own message; pytest would take minutes to show a difference of megabytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, TypeAlias

from agentloop import records as r
from agentloop._storage.record_codec import record_to_line
from agentloop.agents._graph import AgentGraph
from agentloop.exceptions import EarlierFailure, StateError, ToolCallError
from agentloop.items import HandoffCall, HandoffOutput, Item, ToolCall, ToolOutput
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.simulation._findings import has_its_end
from agentloop.testing.simulation._restarts import CrashRun
from agentloop.testing.simulation.runs import WorldRun
from agentloop.tools import AgentCall, FunctionTool, may_run_again

Name: TypeAlias = tuple[tuple[str, ...], str]
"""A call of the tree: path and call id."""
Tools: TypeAlias = dict[Name, FunctionTool | None]


def sound(run: CrashRun, *, same_end: bool = True) -> None:
    """Assert all invariants. Without *same_end*, the run may end in another way than the run without a crash.

    Raises:
        AssertionError: for the first invariant that is broken.
    """
    tools = _tools(run)
    for number in range(len(run.crashes)):
        _check_before_crash(run, tools, number)
    _check_bodies_ran_once(run, tools)
    _check_settled_once(run)
    _check_run_id(run)
    for items in _histories(run):
        _check_history(items)
    _check_unknown_calls(run)
    if run.over and len(run.crashes) == 1:
        _check_whole_log(run)
    elif same_end and not run.over:
        _check_same_end(run)


def said_raise(run: WorldRun) -> bool:
    """Return True if the run ended with the error of a tool whose `in_doubt` is `"raise"`."""
    outcome = run.error.outcome if isinstance(run.error, ToolCallError) else None
    return outcome is not None and outcome.status == "unknown"


def shown(names: Iterable[Name]) -> str:
    """Format calls for a message: paths and ids, sorted."""
    return ", ".join(sorted("/".join((*path, call_id)) for path, call_id in names))


# ---------------------------------------------------------------------------------------------- each process


def _check_before_crash(run: CrashRun, tools: Tools, number: int) -> None:
    """Assert that the process that crashed had no effect without a record on the disk before it."""
    process, kept = run.processes[number], _records_after(run, number)
    assert process.result is None, "the run returned a result, and its journal had failed"
    assert not process.left, f"left behind: {', '.join(process.left)}"
    known = Counter(_name(record) for record in kept if isinstance(record, r.CallStarted))
    begun = Counter((body.path, body.call_id) for before in run.processes[: number + 1] for body in before.bodies)
    early = {name for name in begun - known if not _is_agent(tools.get(name))}
    assert not early, f"bodies that began before the journal had it: {shown(early)}"
    turns = {(record.path, record.turn) for record in kept if isinstance(record, r.TurnStarted)}
    asked = {(request.path, request.turn) for request in process.requests} - turns
    assert not asked, f"models that were asked in turns of which the journal doesn't know: {sorted(asked)}"


def _records_after(run: CrashRun, number: int) -> tuple[r.Record, ...]:
    """Return the records on the disk after crash *number*."""
    if number + 1 < len(run.processes):
        return run.processes[number + 1].records[: run.kept[number + 1]]
    return run.records


def _check_bodies_ran_once(run: CrashRun, tools: Tools) -> None:
    """Assert that bodies run once, unless their tools allow a rerun. Bodies of agent tools resume, so they may too."""
    again = [name for name, count in _count_runs_of_bodies(run).items() if count > 1]
    wrong = [name for name in again if not _may_rerun(tools.get(name))]
    assert not wrong, f"bodies that ran in two processes: {shown(wrong)}"
    for number in range(1, len(run.processes)):
        held = run.processes[number].records[: run.kept[number]]
        ended = (one for one in held if isinstance(one, r.BodyEnded | r.CallSettled) and _is_final(one))
        running = _find_in_background(held) - {(one.path, one.call_id) for one in held if isinstance(one, r.InputAdded)}
        finished = {name for name in map(_name, ended) if not _is_agent(tools.get(name))} - running
        repeated = finished & {(body.path, body.call_id) for body in run.processes[number].bodies}
        assert not repeated, f"bodies that the journal says have ended, and ran again: {shown(repeated)}"


def _count_runs_of_bodies(run: CrashRun) -> Counter[Name]:
    return Counter(name for process in run.processes for name in {(body.path, body.call_id) for body in process.bodies})


def _check_settled_once(run: CrashRun) -> None:
    """Assert that no call settles twice, and that a call settled in the journal is not started or settled again."""
    for_good = (record for record in run.records if isinstance(record, r.CallSettled) and _is_final(record))
    twice = [name for name, count in Counter(map(_name, for_good)).items() if count > 1]
    assert not twice, f"calls with several outcomes: {shown(twice)}"
    for number in range(1, len(run.processes)):
        process, kept = run.processes[number], run.kept[number]
        done = {_name(one) for one in process.records[:kept] if isinstance(one, r.CallSettled) and _is_final(one)}
        anew = done & {_name(one) for one in process.records[kept:] if isinstance(one, r.CallStarted | r.CallSettled)}
        assert not anew, f"calls that had settled, and were dealt with again: {shown(anew)}"


def _is_final(ended: r.BodyEnded | r.CallSettled) -> bool:
    """Return True if an end is final. A call that the end of a run segment cancelled is due in the next segment."""
    return isinstance(ended, r.BodyEnded) or ended.outcome.cancelled_by not in FROM_ABOVE


def _check_run_id(run: CrashRun) -> None:
    """Assert that all processes have one run id, from which the idempotency keys of all attempts of a call follow."""
    found = {
        record.run_id
        for process in run.processes
        for record in process.records
        if isinstance(record, r.RunStarted) and not record.path
    }
    assert len(found) <= 1, f"a run whose processes have several run ids: {sorted(found)}"


def _check_unknown_calls(run: CrashRun) -> None:
    """Assert that no call is reported as unknown that certainly never began."""
    begun = {(body.path, body.call_id) for process in run.processes[:-1] for body in process.bodies}
    found = zip(run.kept, run.processes, strict=True)
    begun |= {_name(one) for kept, process in found for one in _find_started(process, kept)}
    wrong = unknown(run) - begun
    assert not wrong, f"calls that are unknown, and had not begun when the run crashed: {shown(wrong)}"


def _find_started(process: WorldRun, kept: int) -> Iterator[r.CallStarted]:
    return (record for record in process.records[:kept] if isinstance(record, r.CallStarted))


def unknown(run: WorldRun) -> set[Name]:
    """Return the calls with the outcome unknown: a process died during them, so they may have had an effect."""
    return _find_settled_as(run, "unknown")


def _find_in_background(records: Iterable[r.Record]) -> set[Name]:
    """Return the calls that settled in the place of their bodies, whose results come as inputs."""
    return {_name(one) for one in records if isinstance(one, r.CallSettled) and one.background}


def _find_settled_as(run: WorldRun, status: str) -> set[Name]:
    return {_name(one) for one in run.records if isinstance(one, r.CallSettled) and one.outcome.status == status}


def _name(record: r.CallStarted | r.BodyEnded | r.CallSettled) -> Name:
    return record.path, record.call_id


# ---------------------------------------------------------------------------------------------- tools


def _tools(run: CrashRun) -> Tools:
    """Return the current definition of the tool of each call that started."""
    graph = AgentGraph(run.agent)
    at_work: dict[tuple[str, ...], str] = {}
    found: Tools = {}
    for process in run.processes:
        for record in process.records:
            if isinstance(record, r.TurnStarted):
                at_work[record.path] = record.agent
            elif isinstance(record, r.CallStarted):
                agent = graph.find(at_work.get(record.path, ""))
                tools = agent.functions if agent is not None else []
                named = (tool for tool in tools if record.tool in (tool.name, tool.qualified_name))
                found[_name(record)] = next(named, None)
    return found


def _is_agent(tool: FunctionTool | None) -> bool:
    return tool is not None and isinstance(tool.body, AgentCall)


def _may_rerun(tool: FunctionTool | None) -> bool:
    return tool is not None and (may_run_again(tool) or _is_agent(tool))


# ---------------------------------------------------------------------------------------------- histories and ends


def _histories(run: CrashRun) -> Iterator[list[Item]]:
    if run.result is not None and run.result.status == "completed":
        yield run.result.to_input_list()
        yield list(run.result.new_items)


def _check_history(items: Iterable[Item]) -> None:
    """Assert that each call has exactly one output, after the call."""
    open_calls: set[str] = set()
    done: set[str] = set()
    for item in items:
        if isinstance(item, ToolCall | HandoffCall):
            assert item.call_id not in open_calls | done, f"call {item.call_id} stands twice in the history"
            open_calls.add(item.call_id)
        elif isinstance(item, ToolOutput | HandoffOutput):
            assert item.call_id in open_calls, f"output {item.call_id} has no call, or a second time, in the history"
            open_calls.remove(item.call_id)
            done.add(item.call_id)
    assert not open_calls, f"calls without an output in the history: {', '.join(sorted(open_calls))}"


def _check_whole_log(run: CrashRun) -> None:
    """Assert that a complete log equals that of the run without a crash: this crash came after the end.

    If a call in the log already decides the run's failure, the crash may have come before the records of the end.
    """
    whole = run.whole.records if has_its_end(run.records) else run.whole.records[: len(run.records)]
    for index, (one, other) in enumerate(zip_longest(run.records, whole)):
        lines = [None if record is None else record_to_line(record) for record in (one, other)]
        _assert_equal(f"record {index}", *lines)


def _check_same_end(run: CrashRun) -> None:
    """Assert that the run ends as it does without a crash, except for calls that became unknown."""
    whole, lost = run.whole, unknown(run)
    if whole.result is None or run.result is None:
        same = type(whole.error) is type(run.error) or bool(lost | _find_raced_calls(run)) or tells_of_earlier(run)
        assert same, f"it ends with {run.error!r}, and without a crash with {whole.error!r}"
        return
    untold = {_name(one) for one in whole.records if isinstance(one, r.CallSettled) and one.outcome.output is None}
    if lost & untold:
        return  # the call that ended the run without a crash is unknown here, so this run continued
    if _find_in_background((*whole.records, *run.records)):
        return  # the schedule decides in which turn a result is shown, and a run has turns for each
    _assert_equal("its status", run.result.status, whole.result.status)
    _assert_equal("the number of its items", len(run.result.new_items), len(whole.result.new_items))
    # A nested run may have returned the output of an unknown call; a replayed output may come from another call.
    shared = _find_settled_as(whole, "replayed") if lost else set()
    hidden = {(*path, call_id)[0] for path, call_id in lost | shared | _find_raced_calls(run)}
    for index, (one, other) in enumerate(zip(run.result.new_items, whole.result.new_items, strict=True)):
        _assert_equal(f"item {index}", _hide_output(one, hidden), _hide_output(other, hidden))
    if not hidden:
        _assert_equal("its final output", run.result.final_output, whole.result.final_output)
    _assert_equal("its agent", run.result.last_agent.name, whole.result.last_agent.name)
    for name in ("requests", "total_tokens"):
        _assert_equal(f"its usage ({name})", getattr(run.result.usage, name), getattr(whole.result.usage, name))
    _assert_equal("its turns", _turns(run), _turns(whole))


def _find_raced_calls(run: CrashRun) -> set[Name]:
    """Return the calls that failed in one of the two runs and were cancelled by a sibling's failure in the other.

    The schedule decides which of several failures comes first, and the process after a crash has its own schedule.
    """
    return (_find_cut_calls(run) & _find_settled_as(run.whole, "failed")) | (
        _find_cut_calls(run.whole) & _find_settled_as(run, "failed")
    )


def _find_cut_calls(run: WorldRun) -> set[Name]:
    """Return the calls that a sibling's failure cancelled."""
    settled = (one for one in run.records if isinstance(one, r.CallSettled))
    return {_name(one) for one in settled if one.outcome.cancelled_by == "sibling"}


def tells_of_earlier(run: CrashRun) -> bool:
    """Return True if the run ends with an error that quotes a failure in the log from before the crash. The log has
    only the name of that failure's type, so the types can't be equal.
    """
    held = run.records[: run.kept[-1]]
    known = [one.error for one in held if isinstance(one, r.BodyEnded | r.CallSettled | r.RunEnded) and one.error]
    words: list[str] = []
    error = run.error
    while error is not None:
        if isinstance(error, StateError | EarlierFailure):
            words.append(str(error))
        error = error.__cause__
    return any(failure in said for failure in known for said in words)


def _assert_equal(what: str, got: Any, wanted: Any) -> None:
    assert got == wanted, f"{what}: {got!r}, and without a crash {wanted!r}"


def _hide_output(item: Item, hidden: set[str]) -> Any:
    """Return *item* for comparison: for an output of a *hidden* call its id only."""
    if isinstance(item, ToolOutput) and item.call_id in hidden:
        return item.call_id
    return item


def _turns(run: WorldRun) -> list[Any]:
    """Return the turns of all runs of the tree; a turn that began twice counts once."""
    return sorted({(record.path, record.turn) for record in run.records if isinstance(record, r.TurnStarted)})
