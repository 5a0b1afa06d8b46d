"""Guardrails of a run: the input's before and beside the first model call, the output's on the candidate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop import effects as e
from agentloop._shell.asking import all_of, ask
from agentloop._shell.endings import raised_while_cancelled
from agentloop._shell.live import LiveRun
from agentloop._shell.native import cancelled_types, cancelling, outrank, self_cancelled, taken_back
from agentloop.error_text import error_summary
from agentloop.exceptions import (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    UserTypeError,
)
from agentloop.guardrail_results import GuardrailFunctionOutput, InputGuardrailResult, OutputGuardrailResult
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.items import Item
from agentloop.records import GuardrailSettled


async def _asked(run: LiveRun, stage: Any, index: int, guardrail: Any, *args: Any) -> tuple[Any, float]:
    began = anyio.current_time()
    effect = e.Guard(run.path, stage, guardrail.name, None, lambda: ask(guardrail.fn, run.context, run.agent, *args))
    output = await run.effects.perform(effect)
    if not isinstance(output, GuardrailFunctionOutput):
        raise UserTypeError(f"guardrail {guardrail.name!r} must return GuardrailFunctionOutput, not {output!r}")
    return output, anyio.current_time() - began


def _settled(run: LiveRun, stage: Any, index: int, result: Any) -> None:
    output = result.output
    run.append(
        GuardrailSettled(
            *run.here(),
            stage,
            result.guardrail.name,
            "tripped" if output.tripwire_triggered else "passed",
            result.duration,
            index=index,
            info=output.output_info,
            result=result,
        )
    )


def input_guardrails(run: LiveRun) -> list[InputGuardrail]:
    """Return what judges the input, in declaration order: the configuration's, then the starting agent's."""
    return [*run.config.input_guardrails, *run.agent.input_guardrails]


def guards_missing(run: LiveRun) -> list[tuple[int, InputGuardrail]]:
    """Return the guardrails that have not passed the run's input yet, each with its place."""
    if run.state.turn > 1 or run.state.agent not in ("", run.state.first_agent):
        return []
    return [
        (index, guard)
        for index, guard in enumerate(input_guardrails(run))
        if (index, guard.name) not in run.state.passed
    ]


async def judge_added(run: LiveRun, added: tuple[Item, ...]) -> None:
    """Judge input that was added to the run, by all guardrails at once, before the model is shown it.

    Raises:
        InputGuardrailTripwireTriggered: by the first that trips.
    """
    await all_of([_judge_input(run, index, guard, added) for index, guard in enumerate(input_guardrails(run))])


def _judge_input(run: LiveRun, index: int, guardrail: InputGuardrail, given: tuple[Item, ...]) -> Any:
    async def judge() -> None:
        output, duration = await _asked(run, "input", index, guardrail, given)
        secret = run.state.secret_input
        result = InputGuardrailResult(guardrail=guardrail, output=output, duration=duration, secret=secret)
        _settled(run, "input", index, result)
        if output.tripwire_triggered:
            raise InputGuardrailTripwireTriggered(f"Input guardrail {guardrail.name} tripped", guardrail_result=result)

    return judge


async def guard_first_call(run: LiveRun, given: tuple[Item, ...], call_model: Callable[[], Awaitable[None]]) -> None:
    """Judge *given* and ask the model: blocking guardrails first, all at once; then the others beside the model call.

    Returns when everything has settled, so that nothing of the response can have had an effect before the verdicts.

    Cancellation: the model call and the guardrails are cancelled and awaited together.

    Raises:
        InputGuardrailTripwireTriggered: by the first that trips; the model call and the other guardrails have ended.
        Exception: what a guardrail or the model raises; likewise.
    """
    guards = guards_missing(run)
    blocking = [_judge_input(run, index, guard, given) for index, guard in guards if not guard.run_in_parallel]
    beside = [_judge_input(run, index, guard, given) for index, guard in guards if guard.run_in_parallel]
    await all_of(blocking)
    if not beside:
        await call_model()
        return
    errors: dict[int, BaseException] = {}
    passed = 0
    settled = run.guards_settled = anyio.Event()

    async def guard(place: int, judge: Callable[[], Awaitable[None]], group: TaskGroup) -> None:
        nonlocal passed
        await one(place, judge, group)
        passed += 1
        if passed == len(beside) and not errors:
            settled.set()

    async def one(place: int, work: Callable[[], Awaitable[None]], group: TaskGroup) -> None:
        count = cancelling()
        try:
            await work()
        except cancelled_types() as error:
            if not taken_back(count):
                await outrank(error)  # noqa: ASYNC120 - waits for nothing: a cancellation is there
                raise
            errors[place] = self_cancelled(error)
            group.cancel_scope.cancel()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: ASYNC103 - raised again below, bare
            run.hush(error)
            if errors and raised_while_cancelled(error):
                next(iter(errors.values())).add_note(f"also failed: {error_summary(error)}")
                return  # noqa: ASYNC104 - stands on the first error as a note
            errors[place] = error
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for place, judge in enumerate(beside):
            group.start_soon(guard, place, judge, group)
        await one(len(beside), call_model, group)
    await checkpoint_if_cancelled()
    if errors:
        # Of one scheduler pass: a verdict says more than the model's own failure, and a KeyboardInterrupt than both.
        raise errors[min(errors, key=lambda place: (isinstance(errors[place], Exception), place))]


async def judge_final_output(run: LiveRun, output: Any, *, withheld: str | None = None) -> None:
    """Ask the output guardrails of the configuration and of the agent at work, all at once.

    With *withheld*, the text that is to stand for the output if a guardrail trips, results are appended when all have
    settled: of a tripped output none of them keeps anything.

    Raises:
        OutputGuardrailTripwireTriggered: by the first that trips; the others have ended.
        Exception: what a guardrail raises; likewise.
    """
    guards: list[OutputGuardrail] = [*run.config.output_guardrails, *run.agent.output_guardrails]
    held: dict[int, OutputGuardrailResult] = {}

    def judging(index: int, guardrail: OutputGuardrail) -> Callable[[], Awaitable[None]]:
        async def judge() -> None:
            answer, duration = await _asked(run, "output", index, guardrail, output)
            result = OutputGuardrailResult(
                guardrail=guardrail, output=answer, duration=duration, agent=run.agent, agent_output=output
            )
            if withheld is None:
                _settled(run, "output", index, result)
            else:
                held[index] = result
            if answer.tripwire_triggered:
                raise OutputGuardrailTripwireTriggered(
                    f"Output guardrail {guardrail.name} tripped", guardrail_result=result
                )

        return judge

    try:
        await all_of([judging(index, guardrail) for index, guardrail in enumerate(guards)])
    except OutputGuardrailTripwireTriggered as error:
        if withheld is not None:
            for index, result in held.items():
                held[index] = _emptied(result, withheld)
                if error.guardrail_result is result:
                    error.guardrail_result = held[index]
        raise
    finally:
        for index in sorted(held):
            _settled(run, "output", index, held[index])


def _emptied(result: OutputGuardrailResult, withheld: str) -> OutputGuardrailResult:
    return attrs.evolve(result, agent_output=withheld, output=attrs.evolve(result.output, output_info=None))
