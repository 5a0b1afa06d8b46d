"""A candidate for the final output: parsed, passed to hooks, judged by guardrails, then accepted or withheld.

That is the order here: hooks, then guardrails. A call has it the other way round (`_core/step_order.py`).
Does not decide that a candidate is due: the machine does.

Decisions:

A final output that doesn't fit is corrected by the loop, not by the model's client. The answer and the list of its
faults are items, the correction is a turn, and the record that appends the list (`HistoryReplaced`, for the reason
`invalid_final_output`) is the count: a resumed run reads it like everything else. The count continues over turns with
calls, as a model could otherwise alternate calls and wrong answers until no turn is left. Cut answers aren't
corrected: the next one would be cut at the same place. Rejected: asking again within the turn. The answers were
shown, so the stream's reader, the session and the limits must know about each.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from agentloop._common.error_text import redact, shorten
from agentloop._core.next_action import CheckOutput, GiveUp, may_ask_again
from agentloop._engine.close_segment import FinishedRun, save, save_turn
from agentloop._engine.run_result import run_data_of
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.config import ErrorHandlerData, ErrorHandlerResult
from agentloop.exceptions import AgentLoopError, MaxTurnsExceeded, ModelBehaviorError, UserTypeError
from agentloop.items import AssistantMessage, ToolOutput, UserMessage
from agentloop.records import HandedOff, HistoryReplaced
from agentloop.tools import ToolResult, ToolsToFinalOutput

logger = logging.getLogger("agentloop")
ASKED_AGAIN = "Your answer isn't accepted. Correct every fault, and give the whole answer again."

HandlerName = Literal["max_turns", "model_refusal", "invalid_final_output"]


async def accept(run: LiveRun, candidate: CheckOutput) -> FinishedRun | None:
    """Return the end of the run with *candidate* as its final output, after hooks and output guardrails.

    None if the run continues: the model's answer doesn't fit the output type, or a guardrail asks for another one, and
    the history now has a message that asks the model to correct it; or the history has an input that was added to the
    run. The session is saved in each case.

    Raises:
        ModelBehaviorError: the answer doesn't fit, the model isn't asked again, and no handler has another output.
        OutputGuardrailTripwireTriggered: a guardrail tripped; a tool's output is then withheld everywhere.
    """
    output = candidate.output
    typed = run.view.output if run.view is not None else None
    if not output and candidate.made_by is None:
        logger.warning("the model's answer in turn %d says nothing: the final output is empty", run.state.turn)
    if typed is not None and candidate.made_by is None:
        try:
            output = typed.parse(output, run.settings.config.json_limits)
        except ModelBehaviorError as error:
            return await _correct(run, error)
    faults = await _check_output(run, output, candidate.made_by, may_ask=True)
    if faults:
        maker = None if candidate.made_by is None else run.state.calls[candidate.made_by].call
        await _ask_again(run, faults, secret=maker is not None and run.state.gives_secret(maker))
        return None
    if await continues_with_input(run):
        return None
    await save(run)
    stop_reason = run.state.closed_by if run.state.turn == run.state.closing else None
    return FinishedRun("completed", output, stop_reason=stop_reason)


async def _correct(run: LiveRun, error: ModelBehaviorError) -> FinishedRun | None:
    """Return the end of the run whose answer doesn't fit, by *error*; None if the model is asked again, or continues.

    Raises:
        ModelBehaviorError: no handler has another output.
    """
    try:
        if may_ask_again(run.state, run.agent.output_retries):
            await _ask_again(run, str(error))
            return None
        if await continues_with_input(run):
            return None
        return FinishedRun("completed", await handle_error(run, _explain_cut(run, error), "invalid_final_output"))
    finally:
        del error  # as in `handle_error`


async def continues_with_input(run: LiveRun) -> bool:
    """Show the inputs that were added to the run, which would end now; tell whether there was one.

    If not, the run takes no input from now on. Background calls come first: their results are such inputs.
    """
    if run.background is not None or run.state.background:
        from agentloop._engine.calls.background import wait_for_result  # few runs have one

        await wait_for_result(run)
    if run.state.inbox:
        await save(run)  # the answer counts, also if an input trips a guardrail
        await run.checkpoint()
        from agentloop._engine.inbox import show_inputs  # few runs get one

        if await show_inputs(run, ends=True):
            await save_turn(run)
            return True
    run.takes_input = False
    return False


async def _ask_again(run: LiveRun, faults: str, *, secret: bool = False) -> None:
    """Append the message that lists the *faults* of the final output, so that the model is asked for another one."""
    limit = run.settings.config.tool_execution.max_output_chars
    text = redact(f"{ASKED_AGAIN}\n{faults}")
    secret = secret or run.settings.redacts_errors
    message = UserMessage(text if limit is None else shorten(text, limit), secret=secret)
    run.add_message("invalid_final_output", message)
    await save_turn(run)


def _explain_cut(run: LiveRun, error: ModelBehaviorError) -> ModelBehaviorError:
    """Return *error*; where the answer was cut, an error that says so, since that is the likely reason."""
    last = run.state.responses[-1] if run.state.responses else None
    if last is None or not last.cut:
        return error
    explained = ModelBehaviorError(f"The model's answer was cut ({last.finish_reason}). {error}")
    explained.__cause__ = error
    return explained


async def _check_output(run: LiveRun, output: Any, made_by: str | None = None, *, may_ask: bool = False) -> str:
    """Call the agent's end hooks and run the output guardrails; return an empty text.

    Return what the model has to hear if a guardrail asks for another answer, and the model may be asked (*may_ask*). If
    a guardrail trips, the output of the call *made_by* is withheld, and the session is not saved here. For any other
    Exception the session is saved first; the caller saves it otherwise.
    """
    agent = run.agent
    await run.call_hooks("agent_end", agent, output)
    validated = agent.output_guardrails or agent.output_validator is not None
    if (validated or run.settings.config.output_guardrails) and (faults := await _judge(run, output, made_by, may_ask)):
        return faults
    await run.checkpoint()  # the last one: from here on the output is accepted
    return ""


async def _judge(run: LiveRun, output: Any, made_by: str | None, may_ask: bool) -> str:
    """Run the output guardrails, as `_check_output` says."""
    from agentloop._engine.run_guardrails import judge_final_output

    may_ask = may_ask and may_ask_again(run.state, run.agent.output_retries)
    try:
        return await judge_final_output(run, output, withholds=made_by is not None, may_ask=may_ask)
    except BaseException as error:
        # Read the log, not the error: if the run is cancelled as a guardrail trips, the error is the cancellation.
        tripped = run.state.tripped
        if tripped is not None and made_by is not None:
            _withhold(run, made_by, tripped.result.agent_output)
        if isinstance(error, Exception) and tripped is None:
            await save(run)  # noqa: ASYNC102, ASYNC120 - shielded; the turn is kept, and an error here has precedence
        raise


def _withhold(run: LiveRun, made_by: str, text: str) -> None:
    """Put *text* in place of the output of call *made_by* in the history.

    Where a callable chose from the outputs of all calls, in place of each.
    """
    history, makers = run.state.history, {made_by}
    if callable(run.agent.tool_use_behavior):
        makers = {call.call.call_id for call in run.state.own_calls()}
    hidden = [
        ToolOutput(one.call_id, text, kind=one.kind) if isinstance(one, ToolOutput) and one.call_id in makers else one
        for one in history
    ]
    first = next(at for at, item in enumerate(history) if hidden[at] is not item)
    run.tree.log.append(HistoryReplaced(*run.here(), "output_withheld", first, tuple(hidden[first:])))


async def ask_behavior(run: LiveRun) -> CheckOutput | None:
    """Call the agent's callable `tool_use_behavior` with the turn's results; return a candidate, or None to continue.

    Raises:
        UserTypeError: it returned something else than `ToolsToFinalOutput`.
        Exception: its error.
    """
    view = run.view
    assert view is not None  # the machine has read the behavior in it
    behavior: Any = view.tool_use_behavior
    results = [
        ToolResult(
            tool=next((tool for tool in view.tools if tool.name == call.call.name), None),
            call=call.call,
            value=call.value,
            output=call.outcome.output,
        )
        for call in run.state.own_calls()
        if call.outcome is not None
    ]
    turn = str(run.state.turn)
    answer = await run.ask("tool_use_behavior", turn, behavior, run.context, results, to_plain=_format_behavior)
    if not isinstance(answer, ToolsToFinalOutput):
        raise UserTypeError(f"tool_use_behavior must return ToolsToFinalOutput, not {answer!r}")
    if answer.is_final:
        return CheckOutput(answer.output, made_by=run.state.own_calls()[0].call.call_id)
    await save(run)
    return None


def _format_behavior(answer: Any) -> Any:
    return [answer.is_final, answer.output] if isinstance(answer, ToolsToFinalOutput) else None


def _format_handling(answer: Any) -> Any:
    if answer is None:
        return None
    result = answer if isinstance(answer, ErrorHandlerResult) else ErrorHandlerResult(answer)
    return [result.final_output, result.include_in_history]


async def handle_error(run: LiveRun, error: AgentLoopError, name: HandlerName) -> Any:
    """Return the final output of the application's handler *name* for *error*; raise *error* if there is none.

    A handler's output passes hooks and output guardrails like any other.
    """
    try:
        answer = await _call_handler(run, error, name)
        if answer is None:
            raise error
    finally:
        del error  # a frame of its traceback would hold it: the run would wait for the garbage collector
    result = answer if isinstance(answer, ErrorHandlerResult) else ErrorHandlerResult(answer)
    typed = run.agent._typed_output()
    if typed is not None:
        typed = typed.using(run.settings.config.converter)
    output = result.final_output if typed is None else typed.validate(result.final_output)
    if result.include_in_history:
        text = output if isinstance(output, str) else typed.dump(output) if typed is not None else str(output)
        run.add_message("error_handler", AssistantMessage(text))
    await _check_output(run, output)
    await save(run)
    return output


async def _call_handler(run: LiveRun, error: AgentLoopError, name: HandlerName) -> Any:
    """Return what the application's handler *name* makes of *error*: None without such a handler."""
    handler = run.settings.error_handlers.get(name)
    if handler is None:
        return None
    data = ErrorHandlerData(error=error, run_data=run_data_of(run), context=run.context.context)
    return await run.ask("error_handler", name, handler, data, to_plain=_format_handling)


async def give_up(run: LiveRun, action: GiveUp) -> Any:
    """Return the handler's final output for a run that can't continue, or raise the action's error."""
    error = action.make_error()
    if isinstance(error, MaxTurnsExceeded):
        run.stopped_by = error
        if handoffs := [record for record in run.state.records if isinstance(record, HandedOff)]:
            way = " → ".join([handoffs[-1].source_agent, handoffs[-1].target_agent])
            error.add_note(f"The agents handed the conversation over {len(handoffs)} times, the last time {way}")
    try:
        return await handle_error(run, error, action.handler)
    finally:
        del error  # as in `handle_error`
