"""Invariants of guardrails and approvals: values are judged before they count, a verdict is requested once, and a
verdict fits one call only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop import records as r
from agentloop.agents import Agent
from agentloop.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered
from agentloop.items import AssistantMessage, Item, SystemMessage, ToolOutput, UserMessage
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.invariants._invariant import HELD, Broken, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedCall, ObservedLog, ObservedRun, Path, plain_json

SHORT = 20
"""Length in characters below which no limit of a generated case cuts an output."""


def _list_run_guards(log: ObservedLog, run: ObservedRun, stage: str) -> list[tuple[int, r.GuardrailSettled]]:
    return [(n, record) for n, record in run.guards if record.stage == stage]


def _first_agent(log: ObservedLog, run: ObservedRun) -> Agent[object, object] | None:
    return log.agent_named(run.agent)


def _list_starts(log: ObservedLog, path: Path) -> list[int]:
    return sorted(n for call in log.started for n, _ in call.started if call.path[: len(path)] == path)


@invariant("guards")
def input_is_judged_before_effects(log: ObservedLog) -> Findings:
    """Every input guardrail of a run has settled before the first of its calls starts."""
    for run in log.runs.values():
        agent = _first_agent(log, run)
        if agent is None:
            continue
        wanted = len(log.config(run.path).input_guardrails) + len(agent.input_guardrails)
        starts = _list_starts(log, run.path)
        if not wanted or not starts:
            continue
        before = [n for n, _ in _list_run_guards(log, run, "input") if n < starts[0]]
        if len(before) < wanted:
            yield broken(f"a call started after {len(before)} of {wanted} input guardrails", starts[0])
        else:
            yield HELD


@invariant("guards")
def blocking_guardrails_come_before_the_model(log: ObservedLog) -> Findings:
    """The first model request comes after every input guardrail that doesn't run beside the model has passed the run's
    input.
    """
    for run in log.runs.values():
        agent = _first_agent(log, run)
        if agent is None or not run.turns or not run.turns[0].requested:
            continue
        guards = [*log.config(run.path).input_guardrails, *agent.input_guardrails]
        blocking = {index for index, guard in enumerate(guards) if not guard.run_in_parallel}
        if not blocking:
            continue
        asked = run.turns[0].requested[0][0]
        passed = {one.index for n, one in _list_run_guards(log, run, "input") if n < asked and not _is_tripped(one)}
        if blocking <= passed:
            yield HELD
        else:
            yield broken(f"the model was asked before guardrails {sorted(blocking - passed)} had passed", asked)


@invariant("guards")
def input_is_judged_once(log: ObservedLog) -> Findings:
    """An input guardrail that has passed the run's input doesn't run again, also not after a resume; only the input
    guardrails of the agent with which the run began (and of its configuration) run.
    """
    for run in log.runs.values():
        known: dict[tuple[str, int], int] = {}
        first = _first_agent(log, run)
        guards = [*log.config(run.path).input_guardrails, *(first.input_guardrails if first is not None else ())]
        names = {guard.name for guard in guards}
        for n, record in _list_run_guards(log, run, "input"):
            if record.input_id is not None:
                continue  # input that was added to the run is judged when it is shown
            if first is not None and record.guardrail not in names:
                yield broken(f"guardrail {record.guardrail} judged the input, and it isn't {first.name}'s", n)
            key = (record.guardrail, record.nth)
            if key in known:
                yield broken(f"guardrail {record.guardrail} had passed the input, and was asked again", known[key], n)
            else:
                yield HELD
            if not _is_tripped(record):
                known[key] = n


@invariant("guards")
def a_tripped_input_stops_everything(log: ObservedLog) -> Findings:
    """After an input guardrail has tripped no call of the run starts, the run ends with the tripwire, and no message of
    its model goes into the session. A run that a crash or a cancellation ended before is judged anew when it resumes.
    """
    for run in log.runs.values():
        tripped = [n for n, record in _list_run_guards(log, run, "input") if _is_tripped(record)]
        if not tripped:
            continue
        until = log.next_segment(run.path, tripped[0])
        late = [n for n in _list_starts(log, run.path) if n > tripped[0]]
        late += [turn.n for turn in run.turns if turn.n > tripped[0]]
        late += [
            n
            for turn in run.turns
            for n, _ in turn.responded
            if n > tripped[0] and not _is_same_moment(log, tripped[0], n)
        ]
        late += [n for n, one in run.ended if one.status == "completed"]
        if late := [n for n in late if n < until]:
            yield broken("the run went on after an input guardrail had tripped", tripped[0], *late)
        else:
            yield HELD
        if not run.path and any(not isinstance(item, UserMessage | SystemMessage) for item in _list_added_items(log)):
            yield broken("the session holds what the model said to an input that a guardrail refused", tripped[0])
        error = log.observation.error
        other = isinstance(error, Exception) and not isinstance(error, InputGuardrailTripwireTriggered)
        if other and not run.path and log.observation.faultless:
            yield broken(f"an input guardrail tripped, and the run raised {type(error).__name__}", tripped[0])


def _is_same_moment(log: ObservedLog, tripped: int, n: int) -> bool:
    """Tell whether a guardrail that took some time tripped at the same moment as record *n*."""
    record = log.records[tripped]
    took = record.duration if isinstance(record, r.GuardrailSettled) else 0.0
    return took > 0 and log.records[n].at == record.at


def _is_tripped(record: r.GuardrailSettled) -> bool:
    return record.verdict in ("tripped", "tripwire", "RaiseException")


@invariant("guards")
def output_is_judged_before_it_counts(log: ObservedLog) -> Findings:
    """Every output guardrail has passed the final output before the run completes with it."""
    for run in log.runs.values():
        completed = [n for n, record in run.ended if record.status == "completed"]
        agent = log.agent_named(run.turns[-1].agent) if run.turns else None
        if not completed or agent is None:
            continue
        wanted = len(log.config(run.path).output_guardrails) + len(agent.output_guardrails)
        began = max((began for began in run.began if began < completed[-1]), default=-1)
        settled = [(n, one) for n, one in _list_run_guards(log, run, "output") if began < n < completed[-1]]
        if not wanted:
            continue
        if len(settled) < wanted:
            yield broken(f"completed after {len(settled)} of {wanted} output guardrails", completed[-1])
        elif any(_is_tripped(one) for _, one in settled):
            yield broken("completed although an output guardrail had tripped", completed[-1])
        else:
            yield HELD


@invariant("guards")
def a_tripped_output_is_kept_nowhere(log: ObservedLog) -> Findings:
    """An output on which a guardrail tripped is no final output and in no session; a tool's is in no item."""
    for run in log.runs.values():
        tripped = [n for n, record in _list_run_guards(log, run, "output") if _is_tripped(record)]
        if not tripped:
            continue
        ended = [n for n, one in run.ended if one.status == "completed" and n > tripped[-1]]
        error = log.observation.error
        if ended:
            yield broken("completed although an output guardrail had tripped", tripped[-1], *ended)
        elif (
            not run.path
            and log.observation.saved is not None
            and _find_final_message(log, run) in _list_added_texts(log)
        ):
            yield broken("the session holds an output that a guardrail tripped on", tripped[-1])
        elif not run.path and _find_final_output(log, run, tripped[-1]) in _list_kept_outputs(log):
            yield broken("a call's output that a guardrail tripped on was kept", tripped[-1])
        elif not run.path and not isinstance(error, OutputGuardrailTripwireTriggered) and log.observation.result:
            yield broken("an output guardrail tripped, and the run has a result", tripped[-1])
        else:
            yield HELD


def _find_final_message(log: ObservedLog, run: ObservedRun) -> str | None:
    """Return the message that was the candidate for the final output; None if an earlier message has the same text."""
    earlier = [one for turn in run.turns[:-1] for _, one in turn.responded]
    said = {item.text for one in earlier for item in one.response.items if isinstance(item, AssistantMessage)}
    for turn in reversed(run.turns):
        for _, record in reversed(turn.responded):
            words = [item.text for item in record.response.items if isinstance(item, AssistantMessage)]
            return words[-1] if words and not turn.calls and words[-1] not in said else None
    return None


def _find_final_output(log: ObservedLog, run: ObservedRun, judged: int) -> tuple[str, Any] | None:
    """Return the id of the call whose output was the candidate for the final output, and that output.

    None if a run segment before that of record *judged* made it: it had been saved before a guardrail could judge it.
    """
    turn = run.turns[-1] if run.turns else None
    agent = log.agent_named(turn.agent) if turn is not None else None
    if turn is None or agent is None or agent.tool_use_behavior != "stop_on_first_tool":
        return None
    began = max(n for n in run.began if n < judged)
    ends = (call for call in turn.calls if call.settled and call.settled[-1][1].outcome.output is not None)
    made = next(ends, None)
    if made is None or made.settled[-1][0] < began:
        return None
    return made.call_id, made.settled[-1][1].outcome.output


def _list_kept_outputs(log: ObservedLog) -> list[tuple[str, Any]]:
    kept = [*_list_added_items(log), *(log.observation.result.new_items if log.observation.result is not None else ())]
    return [(item.call_id, item.output) for item in kept if isinstance(item, ToolOutput)]


def _list_added_items(log: ObservedLog) -> Sequence[Item]:
    return (log.observation.saved or ())[len(log.observation.saved_before) :]


def _list_added_texts(log: ObservedLog) -> list[str | None]:
    return [item.text for item in _list_added_items(log) if isinstance(item, AssistantMessage)]


# ---------------------------------------------------------------------------------------------- of calls


def _list_guards_between(call: ObservedCall, stage: str, after: int, before: int) -> list[r.GuardrailSettled]:
    return [record for n, record in call.guards if record.stage == stage and after < n < before]


@invariant("guards")
def arguments_are_judged_before_the_body(log: ObservedLog) -> Findings:
    """A call starts only after all input guardrails of its tool have let it pass, in the same run segment."""
    for call in log.started:
        tool = log.tool(call)
        if tool is None or not tool.tool_input_guardrails:
            continue
        for n, record in call.started:
            entry = _find_segment_start(log, call.path, n)
            names = [one.guardrail for one in _list_guards_between(call, "tool_input", entry, n)]
            wanted = [guardrail.name for guardrail in tool.tool_input_guardrails]
            if names[-len(wanted) :] != wanted:
                yield broken(f"call {call.call_id} started after {len(names)} of {len(wanted)} input guardrails", n)
            else:
                yield HELD
            del record


def _find_segment_start(log: ObservedLog, path: Path, n: int) -> int:
    found = -1
    for depth in range(len(path) + 1):
        run = log.runs.get(path[:depth])
        if run is not None:
            found = max([found, *(began for began in run.began if began < n)])
    return found


@invariant("guards")
def arguments_are_judged_again_after_a_pause(log: ObservedLog) -> Findings:
    """The input guardrails of its tool judge a call that waited for a verdict once more, just before it starts."""
    for call in log.started:
        tool = log.tool(call)
        if tool is None or not tool.tool_input_guardrails or not call.requested:
            continue
        resumed = _find_segment_start(log, call.path, call.started[-1][0])
        if resumed < call.requested[-1][0]:
            continue  # the verdict came during the run segment, without a pause
        judged = [n for n, one in call.guards if one.stage == "tool_input" and resumed < n < call.started[-1][0]]
        if len(judged) < len(tool.tool_input_guardrails):
            yield broken(f"call {call.call_id} started after a pause, judged {len(judged)} times", call.started[-1][0])
        else:
            yield HELD


@invariant("guards")
def a_refused_call_never_runs(log: ObservedLog) -> Findings:
    """A call whose arguments a guardrail refused doesn't start and is rejected; a tripwire ends the run."""
    for call in log.calls.values():
        for n, record in call.guards:
            if record.stage != "tool_input" or record.verdict not in ("RejectContent", "RaiseException"):
                continue
            entry = log.next_segment(call.path, n)
            late = [at for at, _ in call.started if n < at < entry]
            if late:
                yield broken(f"call {call.call_id} started although {record.guardrail} had refused it", n, *late)
                continue
            endings = [(at, one.outcome) for at, one in call.settled if n < at < entry]
            wanted = "rejected" if record.verdict == "RejectContent" else "failed"
            wrong = [at for at, one in endings if one.status not in (wanted, "cancelled", "failed")]
            accepted = [at for at in call.turn.accepted if record.verdict == "RaiseException" and n < at < entry]
            if wrong or accepted:
                yield broken(f"call {call.call_id} was refused by {record.guardrail} and isn't {wanted}", n, *wrong)
            else:
                yield HELD


@invariant("guards")
def output_is_judged_before_it_settles(log: ObservedLog) -> Findings:
    """A call succeeds only after every output guardrail of its tool has judged its output; a refusal rejects it."""
    for call in log.started:
        tool = log.tool(call)
        if tool is None or not tool.tool_output_guardrails or not call.settled:
            continue
        n, record = call.settled[-1]
        started = [at for at, _ in call.started if at < n]
        judged = _list_guards_between(call, "tool_output", started[-1] if started else -1, n)
        verdicts = [one.verdict for one in judged]
        status = record.outcome.status
        if status == "succeeded" and (len(judged) < len(tool.tool_output_guardrails) or "RejectContent" in verdicts):
            yield broken(f"call {call.call_id} succeeded with the verdicts {verdicts}", n)
        elif status == "unknown" and log.crashes:
            continue  # the crash lost the output of the body
        elif status == "cancelled" and started and log.crashed_between(started[-1], n):
            continue  # the output that was judged is lost, and the call was to be cancelled
        elif "RejectContent" in verdicts and status not in ("rejected", "cancelled", "failed"):
            yield broken(f"call {call.call_id} was refused after its body, and is {status}", n)
        elif (
            status == "succeeded"
            and not tool.secret_output
            and _find_replacement(judged) not in (None, record.outcome.output)
        ):
            yield broken(
                f"call {call.call_id} is to give {_find_replacement(judged)!r}, and the model is told otherwise", n
            )
        elif "RaiseException" in verdicts and record.outcome.output is not None:
            yield broken(f"call {call.call_id} tripped an output guardrail, and the model is told of it", n)
        elif judged:
            yield HELD


def _find_replacement(judged: Sequence[r.GuardrailSettled]) -> str | None:
    """Return the text with which a guardrail replaced an output; None if there is none, or a limit may cut it."""
    found = [one.detail for one in judged if one.verdict == "ReplaceOutput"]
    return found[-1] if found and isinstance(found[-1], str) and len(found[-1]) < SHORT else None


@invariant("guards")
def each_guardrail_judges_what_is_there(log: ObservedLog) -> Findings:
    """A guardrail of a tool judges the call's arguments, or its output, as the guardrails before it have left them.

    Checked for guardrails whose verdicts the case's maker knows.
    """
    yield from _check_output_guards(log)
    predict = log.observation.maker.predict_verdict
    for call in log.calls.values():
        if call.call.secret or len(call.requested) > 1:
            continue
        given = [one.arguments for _, one in call.verdicts if one.approved and one.arguments is not None]
        arguments = _parse_arguments(given[-1] if given and call.started else call.call.arguments)
        judged: set[str] = set()
        for n, record in call.guards:
            predicted = predict(record.guardrail, arguments, replaced=False) if record.stage == "tool_input" else None
            if predicted is None:
                continue
            if record.guardrail in judged:
                break  # judged again after a pause, with the arguments of that moment
            judged.add(record.guardrail)
            wanted, afterwards = predicted
            if record.verdict != wanted:
                yield broken(f"{record.guardrail!r} said {record.verdict} of {arguments} in call {call.call_id}", n)
            else:
                yield HELD
            arguments = afterwards


def _check_output_guards(log: ObservedLog) -> Findings:
    for call in log.started:
        if len(call.started) > 1 or call.call.secret:
            continue
        arguments = _parse_arguments(call.started[-1][1].arguments)
        replaced, resumed_at = False, len(log.records)
        for n, record in call.guards:
            if record.stage != "tool_output":
                continue
            if n > resumed_at:
                replaced = False  # judged again from the first guardrail on, as the log doesn't hold the replacement
            resumed_at = log.next_segment(call.path, n)
            predicted = log.observation.maker.predict_verdict(record.guardrail, arguments, replaced=replaced)
            if predicted is not None and record.verdict != predicted[0]:
                yield broken(f"{record.guardrail!r} said {record.verdict} of what call {call.call_id} gave", n)
            replaced = replaced or record.verdict == "ReplaceOutput"


def _parse_arguments(text: str) -> Mapping[str, Any]:
    """Return a call's arguments; empty if *text* is not an object in JSON."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


# ---------------------------------------------------------------------------------------------- approvals


def _list_verdicts(call: ObservedCall, request: r.ApprovalRequested) -> list[tuple[int, r.VerdictGiven]]:
    asked = (request.digest, request.definition)
    return [(n, one) for n, one in call.verdicts if (one.digest, one.definition) == asked]


@invariant("guards")
def a_verdict_is_asked_for_once(log: ObservedLog) -> Findings:
    """No verdict is requested for a call that has one, be it its own or one on all calls of the agent to the tool."""
    for call in log.calls.values():
        for n, request in call.requested:
            again = [at for at, _ in _list_verdicts(call, request) if at < n]
            asked = (request.digest, request.definition)
            twice = [at for at, other in call.requested if at < n and (other.digest, other.definition) == asked]
            always = [
                at
                for other in log.calls.values()
                if other.path == call.path
                for at, one in other.verdicts
                if at < n and one.always and _held_by(one) == _held_by(request)
            ]
            if again or twice or always:
                yield broken(f"call {call.call_id} was asked about again", *again, *twice, *always, n)
            else:
                yield HELD


@invariant("guards")
def what_waits_for_a_verdict_waits(log: ObservedLog) -> Findings:
    """A call for which a verdict was requested starts only after its approval, with the approved arguments."""
    for call in log.calls.values():
        for n, request in call.requested:
            for at, _ in call.started:
                if at < n:
                    continue
                yes = [one for when, one in _list_verdicts(call, request) if n < when < at and one.approved]
                if not yes and not _has_general_verdict(log, call, at, approved=True, asked=request):
                    yield broken(f"call {call.call_id} waits for a verdict, and started", n, at)
                else:
                    yield HELD
            if not call.started:
                yield HELD


@invariant("guards")
def calls_that_need_approval_have_it(log: ObservedLog) -> Findings:
    """A call that needs approval, by its tool or by its arguments, starts only after an approval: of the call itself,
    or of all calls of its agent to the tool. A call that the provider runs succeeds only after one, too.
    """
    for call in log.started:
        tool = log.tool(call)
        if tool is None or not log.observation.maker.needs_approval(tool, _parse_arguments(call.call.arguments)):
            continue
        first = log.config(call.path).tool_execution.pre_approval_tool_input_guardrails
        if first and any(one.verdict == "Rewrite" for _, one in call.guards):
            continue  # the need for approval follows from the rewritten arguments, not from those of the model
        for n, _ in call.started:
            yield _find_approval(log, call, n)
    for call in log.calls.values():
        for n, settled in call.settled if call.call.kind == "approval" else ():
            if settled.outcome.status == "succeeded":
                yield _find_approval(log, call, n)


def _find_approval(log: ObservedLog, call: ObservedCall, n: int) -> Broken | None:
    """Return the breach if *call* had no approval when it started, or was left to the provider, at *n*."""
    own = any(at < n and one.approved for at, one in call.verdicts)
    if own or _has_general_verdict(log, call, n, approved=True):
        return HELD
    return broken(f"call {call.call_id} needs approval, and started without one", n)


def _held_by(record: r.ApprovalRequested | r.VerdictGiven) -> tuple[str, str, str | None]:
    return record.agent, record.tool, record.definition


def _has_general_verdict(
    log: ObservedLog, call: ObservedCall, before: int, *, approved: bool, asked: r.ApprovalRequested | None = None
) -> bool:
    """Tell whether a verdict before record *before* holds for *call* too; with *asked*, for that definition of it."""
    return any(
        one.always
        and one.approved is approved
        and one.agent == call.turn.agent
        and n < before
        and (asked is None or one.definition == asked.definition)
        for other in log.calls.values()
        if other.path == call.path and (other.call.namespace, other.call.name) == (call.call.namespace, call.call.name)
        for n, one in other.verdicts
    )


@invariant("guards")
def a_rejected_call_never_runs(log: ObservedLog) -> Findings:
    """After a rejection the call doesn't start, and is settled as rejected, or as cancelled; unless another verdict
    takes its place.
    """
    for call in log.calls.values():
        for (n, verdict), (until, _) in itertools.pairwise([*call.verdicts, (len(log.records), None)]):
            if verdict is None or verdict.approved:
                continue
            late = [at for at, _ in call.started if n < at < until]
            settled = [(at, one.outcome.status) for at, one in call.settled if n < at < until]
            wrong = [at for at, status in settled if status not in ("rejected", "cancelled")]
            if late or wrong:
                yield broken(f"call {call.call_id} was rejected, and ran or counts otherwise", n, *late, *wrong)
            else:
                yield HELD


@invariant("guards")
def a_verdict_fits_one_call(log: ObservedLog) -> Findings:
    """A verdict has the path, agent, tool, call and arguments of its request; requests with different arguments have
    different digests, however long the arguments are.
    """
    yield from _check_digests(log)
    for call in log.calls.values():
        for n, verdict in call.verdicts:
            asked = [one for at, one in call.requested if at < n]
            fits = any(
                (one.path, one.agent, one.tool, one.digest)
                == (verdict.path, verdict.agent, verdict.tool, verdict.digest)
                for one in asked
            )
            if not fits:
                yield broken(f"a verdict of call {call.call_id} fits none of its {len(asked)} requests", n)
            else:
                yield HELD


def _check_digests(log: ObservedLog) -> Findings:
    texts: dict[str, tuple[int, str]] = {}
    for call in log.calls.values():
        if call.call.secret:
            continue  # the log may hold only a digest of secret arguments
        for n, request in call.requested:
            text = plain_json(request.arguments if request.arguments is not None else call.call.arguments)
            at, known = texts.setdefault(request.digest, (n, text))
            if known != text:
                yield broken(f"{known} and {text} are asked about with one digest", at, n)


def _has_ended(log: ObservedLog, call: ObservedCall, n: int) -> bool:
    """Tell whether *call*, or a call whose nested run it belongs to, has ended before record *n*.

    An end that the end of a run segment caused doesn't count in the next segment.
    """
    around = (log.calls.get((call.path[:depth], call.path[depth])) for depth in range(len(call.path)))
    ends = [(one, when, end) for one in (call, *around) if one is not None for when, end in one.settled if when < n]
    return any(
        end.outcome.cancelled_by not in FROM_ABOVE or log.next_segment(one.path, when) > n for one, when, end in ends
    )


@invariant("guards")
def a_pause_has_something_to_ask(log: ObservedLog) -> Findings:
    """A run ends as interrupted only if a call of the tree waits for somebody, and completes only if none does."""
    if log.root is None:
        return
    for n, end in log.root.ended:
        asked: list[tuple[ObservedCall, int, Sequence[tuple[int, r.Record]]]] = [
            (call, at, _list_verdicts(call, request)) for call in log.calls.values() for at, request in call.requested
        ]
        asked += [(call, at, call.answers) for call in log.calls.values() for at, _ in call.questions]
        open_calls = [
            call
            for call, at, given in asked
            if at < n and not any(when < n for when, _ in given) and not _has_ended(log, call, n)
        ]
        if end.status == "interrupted":
            if open_calls:
                yield HELD
            else:
                yield broken("the run is interrupted, and no call waits for a verdict or an answer", n)
        elif end.status == "completed" and open_calls:
            yield broken(f"the run completed while call {open_calls[0].call_id} waits for somebody", n)
