"""Guardrails of a run: input guardrails before and beside the first model call, output guardrails on the candidate.

Appends verdicts and raises tripwires; does not know about the consequences for history or session.

Decisions:

The first response waits for the verdicts. Input guardrails run beside the first model call, in one nursery, and the
machine continues when all of it has settled. So a request to the model may be made in vain, and no tool can start
before a verdict. A guardrail's verdict comes before an error of the model: it says more.

A pass belongs to the guardrail. A turn's record names the guardrails that judge its input. Once all of them have
passed, the input is accepted, and it stays accepted in every later run segment, with any list of guardrails. The
class of an error doesn't decide whether a later run segment may continue after it either: the loop notes the very
error that stopped it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from agentloop._common.error_text import error_summary
from agentloop._common.naming import number_names
from agentloop._common.values import Value
from agentloop._concurrency.beside import beside
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._engine.runtime.callbacks import call_user
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.config import blocked_text
from agentloop.context import Callback
from agentloop.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered, UserTypeError
from agentloop.guardrails import (
    AskAgain,
    BlockedOutputArgs,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailResult,
    OutputGuardrail,
    OutputGuardrailResult,
)
from agentloop.items import Item
from agentloop.outcomes import AddedInput
from agentloop.records import GuardrailSettled

_VERDICTS = (GuardrailFunctionOutput, AskAgain)


def _record_result(run: LiveRun, stage: Any, index: int, result: Any, nth: int, *, input_id: str | None = None) -> None:
    output = result.output
    asks = isinstance(output, AskAgain)
    run.tree.log.append(
        GuardrailSettled(
            *run.here(),
            stage,
            result.guardrail.name,
            "ask_again" if asks else "tripped" if output.tripwire_triggered else "passed",
            result.duration,
            index=index,
            nth=nth,
            info=output.output_info,
            detail=output.message if asks else None,
            input_id=input_id,
            result=result,
        )
    )


def input_guardrails(run: LiveRun) -> list[InputGuardrail]:
    """Return the input guardrails in declaration order: the configuration's, then those of the agent at work."""
    return [*run.settings.config.input_guardrails, *run.agent.input_guardrails]


def output_guardrails(run: LiveRun) -> list[OutputGuardrail]:
    """Return the output guardrails, in the same order; the agent's validator is the last."""
    guards = [*run.settings.config.output_guardrails, *run.agent.output_guardrails]
    return guards if run.agent.output_validator is None else [*guards, _make_guardrail(run.agent.output_validator)]


def _make_guardrail(validator: Callback) -> OutputGuardrail:
    """Return the output guardrail that *validator* is."""

    async def validate(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput | AskAgain:
        answer = await call_user(validator, ctx, output)
        if answer is None or isinstance(answer, AskAgain):
            return answer or GuardrailFunctionOutput()
        raise UserTypeError(f"output_validator must return None or AskAgain(…), not {answer!r}")

    return OutputGuardrail(validate, name="output_validator")


class Judge(Value, frozen=True):
    """An input guardrail: its index in declaration order, and among those of its name."""

    index: int
    nth: int
    guardrail: InputGuardrail


def _list_judges(run: LiveRun) -> list[Judge]:
    guards = input_guardrails(run)
    keys = number_names(guard.name for guard in guards)
    return [Judge(index, nth, one) for index, (one, (_, nth)) in enumerate(zip(guards, keys, strict=True))]


def guards_missing(run: LiveRun) -> list[Judge]:
    """Return the guardrails that have not passed the input yet; none if the input was accepted, by any guardrails."""
    state = run.state
    if state.input_accepted:
        return []
    return [one for one in _list_judges(run) if (one.guardrail.name, one.nth) not in state.input_guards_passed]


async def judge_added_input(run: LiveRun, added: AddedInput) -> None:
    """Run all input guardrails on *added*, at once, before the model is shown it; its sender can't withdraw it then.

    Raises:
        InputGuardrailTripwireTriggered: by the first that trips; the others have ended.
        Exception: the error of a guardrail; the others have ended, too.
    """
    judges = [partial(_judge_input, run, judge, added.items, added.id) for judge in _list_judges(run)]
    run.judged_input = added.id
    try:
        await beside(judges, "agentloop guardrail")
    finally:
        run.judged_input = None
    await run.checkpoint()


async def _judge_input(run: LiveRun, judge: Judge, given: tuple[Item, ...], input_id: str | None = None) -> None:
    guardrail = judge.guardrail
    output, duration = await run.guard("input", guardrail, None, _VERDICTS, run.context, run.agent, given)
    if isinstance(output, AskAgain) and input_id is None:
        output = output._refused()  # the run has no sender who could give it another input
    secret = run.state.secret_input
    result = InputGuardrailResult(
        guardrail=guardrail, output=output, duration=duration, secret=secret, input_id=input_id
    )
    _record_result(run, "input", judge.index, result, judge.nth, input_id=input_id)
    if output.tripwire_triggered:
        raise InputGuardrailTripwireTriggered(f"Input guardrail {guardrail.name} tripped", guardrail_result=result)


@uninterrupted
async def guard_model_call(run: LiveRun, call_model: Callable[[], Awaitable[None]] | None) -> None:
    """Run the guardrails that haven't passed the input yet, and call the model, unless it has answered (None).

    The blocking guardrails come first, all at once; the others run beside the call.

    Input that was added to a run under way is judged by all of them before the model sees it. Returns when all of them
    have settled, so that the response can have no effect before the verdicts.

    Cancellation: the model call and the guardrails are cancelled and awaited together.

    Raises:
        InputGuardrailTripwireTriggered: by the first that trips; the model call and the other guardrails have ended.
        Exception: the error of a guardrail or the model; all others have ended, too.
    """
    given, none_beside = run.state.unchecked_input, run.state.input_added_later
    blocking: list[Callable[[], Awaitable[None]]] = []
    watching: list[Callable[[], Awaitable[None]]] = []
    for judge in guards_missing(run):
        held = none_beside or not judge.guardrail.run_in_parallel
        (blocking if held else watching).append(partial(_judge_input, run, judge, given))
    await beside(blocking, "agentloop guardrail")
    passed = 0
    settled = anyio.Event()
    if watching:
        run.guards_settled = settled

    async def guard(judge: Callable[[], Awaitable[None]]) -> None:
        nonlocal passed
        await judge()
        passed += 1
        if passed == len(watching):
            settled.set()

    def note(error: BaseException, first: BaseException) -> None:
        run.redact_error(error)
        first.add_note(f"also failed: {error_summary(error)}")

    # The model is last: in one scheduler pass a verdict says more than the model's own failure.
    judges = [partial(guard, judge) for judge in watching]
    await beside(judges, "agentloop guardrail", here=call_model, on_error=note)


async def judge_final_output(run: LiveRun, output: Any, *, withholds: bool, may_ask: bool) -> str:
    """Run the output guardrails of the configuration and of the agent at work, all at once.

    Return the messages of those that ask for another answer, in order of declaration; an empty text if all passed.
    Unless the model may be asked again (*may_ask*), such a guardrail trips.

    With *withholds*, results are appended only when all guardrails have settled, and a text is in place of an output
    for which one has tripped, so that no result keeps a part of it: also if the run is cancelled as a guardrail trips.

    Raises:
        OutputGuardrailTripwireTriggered: by the first that trips; the others have ended.
        Exception: the error of a guardrail; the others have ended, too.
    """
    guards = output_guardrails(run)
    keys = number_names(guard.name for guard in guards)
    held: dict[int, OutputGuardrailResult] = {}
    text: str | None = None

    async def judge(index: int, guardrail: OutputGuardrail) -> str | None:
        nonlocal text
        answer, duration = await run.guard("output", guardrail, None, _VERDICTS, run.context, run.agent, output)
        if isinstance(answer, AskAgain) and not may_ask:
            answer = answer._refused()
        result = OutputGuardrailResult(
            guardrail=guardrail, output=answer, duration=duration, agent=run.agent, agent_output=output
        )
        if not withholds:
            _record_result(run, "output", index, result, keys[index][1])
        else:
            if answer.tripwire_triggered:
                text = text or _word_block(run, guardrail.name)
                result = _hide(result, text)
            held[index] = result
        if answer.tripwire_triggered:
            raise OutputGuardrailTripwireTriggered(
                f"Output guardrail {guardrail.name} tripped", guardrail_result=result
            )
        return answer.message if isinstance(answer, AskAgain) else None

    try:
        answers = await beside([partial(judge, index, one) for index, one in enumerate(guards)], "agentloop guardrail")
    finally:
        for index in sorted(held):
            result = held[index] if text is None else _hide(held[index], text)
            _record_result(run, "output", index, result, keys[index][1])
    return "\n".join([answer for answer in answers if answer is not None])


def _word_block(run: LiveRun, guardrail: str) -> str:
    """Return the text in place of the output that *guardrail* has refused."""
    args = BlockedOutputArgs(guardrail=guardrail, agent=run.agent, context=run.context)
    given = run.settings.config.output_guardrail_blocked_message
    return blocked_text(given, args, redact=run.settings.redacts_errors)


def _hide(result: OutputGuardrailResult, text: str) -> OutputGuardrailResult:
    """Return *result* with *text* in place of the output, and without what the guardrail says of it."""
    if result.agent_output is text:
        return result
    return result.replace(agent_output=text, output=result.output.replace(output_info=None))
