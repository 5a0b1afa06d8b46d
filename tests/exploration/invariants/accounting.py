"""Invariants of accounting and state: requests, items, hooks, spans and sessions are each counted exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop.exceptions import JournalError
from agentloop.items import (
    AssistantMessage,
    Item,
    ToolOutput,
    UserMessage,
)
from agentloop.results import RunResult
from agentloop.testing.invariants._contents import CALLS, OUTPUTS
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedCall, ObservedLog, ObservedRun, ObservedTurn, Path
from agentloop.tools import AgentCall
from agentloop.usage import RequestUsage

from .execution import paused

# ---------------------------------------------------------------------------------------------- requests, usage


@invariant("accounting")
def each_request_ends_once(log: ObservedLog) -> Findings:
    """Each model request ends exactly once: with a response, or with a failure of the same attempt."""
    for turn in log.turns:
        events: list[tuple[int, r.ModelRequested | r.ModelResponded | r.ModelFailed]]
        events = [*turn.requested, *turn.responded, *turn.failed]
        events.sort(key=lambda pair: pair[0])
        open_since: int | None = None
        for n, record in events:
            if isinstance(record, r.ModelRequested):
                if open_since is not None and not _was_cut(log, turn.path, open_since, n):
                    yield broken("a request was made while another of its turn is open", open_since, n)
                open_since = n
                continue
            if open_since is None:
                yield broken(f"{type(record).__name__} without a request", n)
            else:
                yield HELD
            open_since = None
        if open_since is not None and not _was_cut(log, turn.path, open_since, len(log.records)):
            yield broken("a request has no ending", open_since)


def _was_cut(log: ObservedLog, path: Path, since: int, until: int) -> bool:
    """Tell whether the run segment of record *since* was cut: another segment began before this one had ended."""
    run = log.runs.get(path)
    if run is None:
        return True
    if any(since < began < until for began in run.began):
        return True
    return until == len(log.records) and not any(n > since for n, _ in run.ended)


def requests_of(log: ObservedLog) -> Iterator[tuple[int, RequestUsage | None]]:
    """Yield the record number and the usage of each request of the whole tree that counts as one."""
    for n, record in enumerate(log.records):
        if isinstance(record, r.ModelResponded):
            yield n, record.response.usage
        elif isinstance(record, r.ModelFailed) and record.counted:
            yield n, record.usage


_TOKENS = [name for name in RequestUsage.__struct_fields__ if name.endswith("_tokens")]


@invariant("accounting")
def usage_counts_each_request_once(log: ObservedLog) -> Findings:
    """The usage is the sum over all requests of the whole tree, each counted once."""
    data = log.observation.result
    if data is None or data.usage is None:
        return
    used = [usage for _, usage in requests_of(log)]
    if used:
        yield HELD
    asked = sum([1 if usage is None else usage.attempts for usage in used])
    if data.usage.requests != asked:
        yield broken(f"{data.usage.requests} requests counted of {asked}", *(n for n, _ in requests_of(log)))
    noted = [usage for usage in used if usage is not None]
    for name in _TOKENS:
        wanted = sum([getattr(usage, name) for usage in noted])
        if getattr(data.usage, name) != wanted:
            yield broken(f"{name} is {getattr(data.usage, name)}, the requests' sum is {wanted}")
    entries = [usage for usage in noted if _has_usage(usage)]
    if list(data.usage.entries) != entries:
        yield broken(f"{len(data.usage.entries)} entries of usage, the requests have {len(entries)}, or others")


def _has_usage(usage: RequestUsage) -> bool:
    return bool(usage.total_tokens or usage.input_tokens or usage.output_tokens or not usage.complete)


@invariant("accounting")
def models_are_asked_as_recorded(log: ObservedLog) -> Findings:
    """A model receives as many requests as the log records, save those that are cancelled before they reach it."""
    shown = log.observation.shown
    if shown is None:
        return
    asked = Counter(path for path, _ in shown)
    said = Counter(record.path for record in log.records if isinstance(record, r.ModelRequested))
    for path in asked.keys() | said.keys():
        # A request that was recorded may be cancelled before it reaches the model; never the other way round.
        if asked[path] > said[path]:
            yield broken(f"run {'/'.join(path) or '(the root)'}: asked {asked[path]} times, recorded {said[path]}")
        else:
            yield HELD


@invariant("accounting")
def models_are_shown_all_that_was(log: ObservedLog) -> Findings:
    """Each request shows a model everything of the run so far: its input, each message, and each call of an accepted
    turn and each handoff with its answer. Exceptions: the log says that the history was replaced, or the application or
    a server decides which items a model is shown.
    """
    replaced = {one.path for one in log.records if isinstance(one, r.HistoryReplaced) and not one.added}
    shown: dict[Path, list[Sequence[Item]]] = {}
    for path, items in log.observation.shown or ():
        shown.setdefault(path, []).append(items)
    for run in log.runs.values():
        requests = [n for turn in run.turns for n, _ in turn.requested]
        if run.path in replaced or _is_chosen_elsewhere(log, run):
            continue
        if len(requests) != len(shown.get(run.path, ())):
            continue  # a request that was cancelled may not have reached the model
        for n, items in zip(requests, shown.get(run.path, ()), strict=True):
            given = Counter(_make_key(item) for item in items)
            if lost := Counter(_list_expected_items(log, run, n)) - given:
                yield broken(f"run {'/'.join(run.path) or '(the root)'}: the model wasn't shown {next(iter(lost))}", n)
            else:
                yield HELD


def _is_chosen_elsewhere(log: ObservedLog, run: ObservedRun) -> bool:
    """Tell whether a function of the application, or a server that keeps the conversation, chooses the shown items."""
    config, first = log.config(run.path), log.records[run.began[0]]
    kept = isinstance(first, r.RunStarted) and first.kept
    return kept or config.call_model_input_filter is not None or config.session_input_callback is not None


def _make_key(item: Item) -> tuple[str, str]:
    if isinstance(item, (*CALLS, *OUTPUTS)):
        return ("output" if isinstance(item, OUTPUTS) else "call", item.call_id)
    return (type(item).__name__, item.text if isinstance(item, AssistantMessage | UserMessage) else "")


def _list_expected_items(log: ObservedLog, run: ObservedRun, n: int) -> Iterator[tuple[str, str]]:
    first = log.records[run.began[0]]
    assert isinstance(first, r.RunStarted)
    yield from (_make_key(item) for item in first.input if isinstance(item, UserMessage) and not item.secret)
    for turn in run.turns:
        for at, one in turn.responded:
            if at < n:
                said = (item for item in one.response.items if isinstance(item, AssistantMessage))
                yield from (_make_key(item) for item in said if not item.secret)
        for call in turn.calls:
            if any(at < n for at in turn.accepted) and _has_output(call):
                yield from (("call", call.call_id), ("output", call.call_id))
    for at, handed in run.handed:
        for call_id in (handed.call_id, *handed.ignored) if at < n else ():
            yield from (("call", call_id), ("output", call_id))


@invariant("accounting")
def results_are_the_fold_of_the_log(log: ObservedLog) -> Findings:
    """A run returns the fold of its log: items, calls, responses and usage; and the log names the agent at work."""
    data = log.observation.result
    if data is None or not log.records:
        return
    fold = RunFold(limits=log.observation.config.json_limits)
    for n, record in enumerate(log.records):
        try:
            fold.apply(record)
        except Exception as error:
            yield broken(f"the log can't be folded: {type(error).__name__} at {type(record).__name__}", n)
            return
    if fold.agent != (at_work := _find_agent_at_work(log)):
        yield broken(f"the log folds to {fold.agent!r} at work, and {at_work!r} is")
    if fold.usage != data.usage:
        yield broken(f"the log folds to {fold.usage}, the run says {data.usage}")
    if len(fold.responses) != len(data.raw_responses):
        yield broken(f"the log has {len(fold.responses)} responses, the run gives {len(data.raw_responses)}")
    missing = [item for item in data.new_items if item not in fold.new_items]
    if missing:
        yield broken(f"the run gives items that its log doesn't: {missing[0]!r}")
    settled = [(call_id, call.outcome) for call_id, call in fold.calls.items() if call.outcome is not None]
    if [(one.call.call_id, one.outcome) for one in data.calls] != settled:
        yield broken("the run gives other calls than its log")
    yield HELD


def _find_agent_at_work(log: ObservedLog) -> str:
    """Return the key of the agent that was the last to become active in the root run."""
    found = ""
    for record in log.records:
        if not record.path and isinstance(record, r.RunStarted | r.TurnStarted):
            found = record.agent
        elif not record.path and isinstance(record, r.HandedOff):
            found = record.target or record.target_agent
    return found


@invariant("accounting")
def results_follow_model_order(log: ObservedLog) -> Findings:
    """A result has every call of its own path once, in model order, with the last outcome that the log has.

    Its outputs are in the same order, except those of calls that waited for a verdict or an answer, or resumed in a
    later segment.
    """
    data = log.observation.result
    if data is None:
        return
    wanted = [
        (call.call_id, call.settled[-1][1].outcome) for call in log.calls.values() if not call.path and call.settled
    ]
    got = [(one.call.call_id, one.outcome) for one in data.calls]
    if got != wanted:
        yield broken(f"the result's calls are {[one for one, _ in got]}, the log's {[one for one, _ in wanted]}")
    elif wanted:
        yield HELD
    outputs = [item.call_id for item in data.new_items if isinstance(item, ToolOutput)]
    places = {call.call_id: (call.turn.n, call.index) for call in log.calls.values() if not call.path}
    known = [places[call_id] for call_id in outputs if call_id in places]
    late = any(call.requested or call.questions or len(call.settled) > 1 for call in log.calls.values())
    if known != sorted(known) and not late:
        yield broken(f"the result's outputs are out of order: {', '.join(outputs)}")


@invariant("accounting")
def results_hold_every_item(log: ObservedLog) -> Findings:
    """The result of a completed run has every message of its model, and every call and handoff with its answer."""
    data = log.observation.result
    if not isinstance(data, RunResult) or data.status != "completed" or log.root is None:
        return
    outputs = {item.call_id for item in data.new_items if isinstance(item, OUTPUTS)}
    asked = {item.call_id for item in data.new_items if isinstance(item, CALLS)}
    answered = {call_id for _, one in log.root.handed for call_id in (one.call_id, *one.ignored)}
    ended = {call.call_id for call in log.calls.values() if not call.path and call.turn.accepted and _has_output(call)}
    if missing := sorted((answered | ended) - (outputs & asked)):
        yield broken(f"the result lacks the call {missing[0]}, or what answers it")
    said = Counter(item.text for turn in log.root.turns for item in _list_messages(turn))
    given = Counter(item.text for item in data.new_items if isinstance(item, AssistantMessage))
    if lost := said - given:
        yield broken(f"the model said {next(iter(lost))!r}, and the result doesn't")
    if said or answered or ended:
        yield HELD


def _has_output(call: ObservedCall) -> bool:
    return bool(call.settled) and call.settled[-1][1].outcome.output is not None


def _list_messages(turn: ObservedTurn) -> list[AssistantMessage]:
    items = (item for _, one in turn.responded for item in one.response.items)
    return [item for item in items if isinstance(item, AssistantMessage)]


@invariant("accounting")
def exactly_one_end(log: ObservedLog) -> Findings:
    """A run gives exactly one of a final output, an error, an interruption or a cancellation, and its log agrees.

    If a journal fails after the end of the log, only the raised error shows it.
    """
    if log.root is None or not log.root.ended:
        return
    n, end = log.root.ended[-1]
    result, error = log.observation.result, log.observation.error
    if isinstance(result, RunResult) and error is None:
        if end.status != result.status:
            yield broken(f"the result is {result.status}, the log says {end.status}", n)
        elif end.status == "completed" and end.final_output != result.final_output:
            yield broken("the result's final output isn't the log's", n)
        elif end.status != "completed" and result.final_output is not None:
            yield broken(f"a run that is {end.status} has a final output", n)
        else:
            yield HELD
    elif error is not None and isinstance(error, Exception) and log.observation.cancellation is None:
        if end.status == "failed":
            yield HELD
        elif not isinstance(error, JournalError) or log.observation.faultless:
            yield broken(f"the run raised {type(error).__name__}, the log says {end.status}", n)
    if end.status == "completed" and end.error is not None:
        yield broken("a completed run has an error", n)
    if end.status != "completed" and end.final_output is not None:
        yield broken(f"a run that is {end.status} has a final output in its log", n)


@invariant("accounting")
def nested_runs_stand_in_their_calls(log: ObservedLog) -> Findings:
    """The records of a nested run lie between the start and the end of the call that runs it; its limit of turns is
    that of its tool.
    """
    for run in log.runs.values():
        if not run.path or not run.began:
            continue
        call = log.calls.get((run.path[:-1], run.path[-1]))
        if call is None:
            yield broken(f"run {'/'.join(run.path)} belongs to no call", run.began[0])
            continue
        tool = log.tool(call)
        most = tool.body.max_turns if tool is not None and isinstance(tool.body, AgentCall) else run.limits[0][1]
        if run.limits[0][1] != most:
            yield broken(
                f"run {'/'.join(run.path)} may have {run.limits[0][1]} turns, its tool says {most}", run.began[0]
            )
        starts = [n for n, _ in call.started]
        for began in run.began:
            before = [n for n in starts if n < began]
            if not before:
                yield broken(f"run {'/'.join(run.path)} began before its call had started", began)
        ended = [n for n, _ in run.ended]
        # An end of the call in an earlier segment is none in this one: a cancelled call begins again.
        settled = [n for n, _ in call.settled if not ended or log.next_segment(call.path, n) > ended[-1]]
        if ended and settled and not any(n > ended[-1] for n in settled):
            yield broken(f"run {'/'.join(run.path)} ended after its call had settled", ended[-1], settled[-1])
        else:
            yield HELD


@invariant("accounting")
def handoffs_go_where_they_say(log: ObservedLog) -> Findings:
    """A handoff is taken after its batch is accepted; the next turn belongs to its target; only the first is taken."""
    for run in log.runs.values():
        for n, record in run.handed:
            turn = next((turn for turn in reversed(run.turns) if turn.n < n), None)
            following = next((turn for turn in run.turns if turn.n > n), None)
            if turn is not None and turn.calls and not any(at < n for at in turn.accepted):
                yield broken("handed over before the turn's calls were accepted", turn.n, n)
            elif following is not None and following.agent != record.target_agent:
                yield broken(f"handed to {record.target_agent}, and {following.agent} is at work", n, following.n)
            else:
                yield HELD
        per_turn = Counter(record.turn for _, record in run.handed) if len(run.handed) > 1 else {}
        for turn_number, count in per_turn.items():
            if count > 1:
                yield broken(f"{count} handoffs taken in turn {turn_number}", *(n for n, _ in run.handed))


# ---------------------------------------------------------------------------------------------- watchers


@invariant("accounting")
def tool_hooks_pair(log: ObservedLog) -> Findings:
    """Hooks receive exactly one end for each start of a tool, and no end without a start."""
    noted = log.observation.hooks
    if noted is None:
        return
    starts = Counter((path, name) for event, path, name in noted if event == "tool_start")
    ends = Counter((path, name) for event, path, name in noted if event == "tool_end")
    cut = {(one.path, one.call_id) for one in log.records if isinstance(one, r.CleanupCut)}
    for key in starts.keys() | ends.keys():
        call = log.calls.get(key)
        if starts[key] > ends[key] and call is not None and paused(log, call):
            continue  # hooks receive its end when the nested run resumes
        if starts[key] > ends[key] and (("tool_end", *key) in log.observation.watchers_failed or key in cut):
            continue  # hooks after a failed hook, or after the cleanup deadline, are not called
        if starts[key] != ends[key]:
            yield broken(f"hooks were told of {starts[key]} starts and {ends[key]} ends of call {key[1]}")
        else:
            yield HELD
    running: Counter[tuple[Path, str]] = Counter()
    for event, path, name in noted:
        if event == "tool_start":
            running[path, name] += 1
        elif event == "tool_end":
            running[path, name] -= 1
            if running[path, name] < 0:
                yield broken(f"hooks were told of the end of call {name} before its start")


@invariant("accounting")
def run_end_is_told_once(log: ObservedLog) -> Findings:
    """Hooks receive the end of each run segment exactly once, and no event after it."""
    noted = log.observation.hooks
    if noted is None or log.root is None:
        return
    ends = [place for place, (event, _, _) in enumerate(noted) if event == "run_end"]
    if len(ends) != len(log.root.began):
        yield broken(f"hooks were told of {len(ends)} ends in {len(log.root.began)} entries")
    elif ends[-1] != len(noted) - 1:
        yield broken(f"hooks were told of {noted[-1][0]} after the end of the run")
    else:
        yield HELD


@invariant("accounting")
def hooks_hear_of_each_step(log: ObservedLog) -> Findings:
    """Hooks receive each agent that becomes active, each answer of the model, each start of a tool before its body
    runs, and the end of the agent whose output completes the run.
    """
    noted, run = log.observation.hooks, log.root
    if noted is None or run is None or not run.turns or log.observation.watchers_failed:
        return
    heard: dict[str, list[str]] = {}
    for event, path, name in noted:
        if not path:
            heard.setdefault(event, []).append(name)
    agents = [run.turns[0].agent, *(record.target_agent for _, record in run.handed)]
    if heard.get("agent_start", []) != agents:
        yield broken(f"hooks were told of the agents {heard.get('agent_start')}, and {agents} were at work")
    handed = [record.target_agent for _, record in run.handed]
    if heard.get("handoff", []) != handed and log.observation.faultless:
        yield broken(f"hooks were told of handoffs to {heard.get('handoff')}, and they went to {handed}")
    answers = [turn.agent for turn in run.turns for _ in range(turn.heard_by_hooks)]
    if heard.get("llm_end", []) != answers:
        yield broken(f"hooks were told of answers to {heard.get('llm_end')}, and {answers} were answered")
    bodies = {body.call_id for body in log.observation.bodies or () if not body.path}
    if unheard := sorted(bodies - set(heard.get("tool_start", ()))):
        yield broken(f"the body of call {unheard[0]} ran, and hooks weren't told of its start")
    completed = [n for n, one in run.ended if one.status == "completed"]
    if completed and not heard.get("agent_end"):
        yield broken("the run completed, and hooks weren't told of its agent's end", completed[-1])
    yield HELD


@invariant("accounting")
def model_hooks_nest(log: ObservedLog) -> Findings:
    """Hooks receive an answer of a model only after the request that it answers."""
    asked: Counter[Path] = Counter()
    for event, path, _ in log.observation.hooks or ():
        if event == "llm_start":
            asked[path] += 1
        elif event == "llm_end":
            asked[path] -= 1
            if asked[path] < 0:
                yield broken("hooks were told of an answer of a model that had not been asked")
            else:
                yield HELD


@invariant("accounting")
def spans_pair_and_nest(log: ObservedLog) -> Findings:
    """Each span begins once and ends once, and no span outlives the span around it."""
    open_spans: list[object] = []
    known: set[int] = set()
    for event, span in log.observation.spans or ():
        if event == "start":
            if id(span) in known:
                yield broken(f"span {span.kind} {span.name} began twice")
            if span.parent is not None and not any(span.parent is one for one in open_spans):
                yield broken(f"span {span.kind} {span.name} began in one that isn't open")
            known.add(id(span))
            open_spans.append(span)
            continue
        if not any(span is one for one in open_spans):
            yield broken(f"span {span.kind} {span.name} ended without being open")
            continue
        open_spans = [one for one in open_spans if one is not span]
        inner = [one for one in open_spans if getattr(one, "parent", None) is span]
        if inner:
            yield broken(f"span {span.kind} {span.name} ended before one inside it")
        else:
            yield HELD
    for one in open_spans:
        yield broken(f"span {getattr(one, 'kind', '')} {getattr(one, 'name', '')} never ended")
