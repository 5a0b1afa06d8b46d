"""Answers of callbacks, taken from the log: from the record of the answer, or from the records that followed from it.

Calls no code of the application. Knows the effects of a replay by the protocol `Answering` only.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

from agentloop import guardrails as g
from agentloop import records as r
from agentloop._common.error_text import REDACTED
from agentloop._core.handoff_outputs import handoff_outputs
from agentloop.config import ErrorHandlerResult, ModelInputData
from agentloop.config.policies import Ask, Deny
from agentloop.handoffs import HandoffInputData
from agentloop.lab._copies import RecordedSandbox
from agentloop.lab._recorded_errors import rebuilt
from agentloop.outcomes import CallOutcome
from agentloop.settings import Prompt
from agentloop.testing.replaying._comparison import CUT_OFF
from agentloop.testing.replaying._recorded import Call, Path, RecordedRun
from agentloop.tools import ToolsToFinalOutput

_REFERENCE = re.compile(r"characters cut, all of it at (.*?) …\]\n", re.DOTALL)


class Answering(Protocol):
    """The part of a replay's effects that this module uses (`agentloop.testing.replaying._effects.ReplayEffects`)."""

    recorded: RecordedRun
    log: Any
    records: tuple[r.Record, ...]
    cursor: int
    references: dict[Call, list[str]]
    unfiltered: set[tuple[Path, int]]
    restore_tools: Callable[[Path, str, Any], Any]
    """Returns the tools that the answer of a source describes, given the place of the source."""

    def find(self, kind: Any, path: Path, test: Callable[[Any], bool] = ..., *, claim: bool = False) -> int | None: ...
    def next_of_call(self, path: Path, call_id: str, kind: Any = object) -> int | None: ...
    def settled(self, path: Path, call_id: str) -> r.CallSettled | None: ...
    def value_of(self, ended: r.BodyEnded, settled: r.CallSettled | None) -> Any: ...
    def value_of_outcome(self, settled: r.CallSettled) -> Any: ...
    async def known(self, index: int, what: str) -> Any:
        """Wait until record *index* is due, and return it."""
        ...

    async def told(self, index: int | None, path: Path, call_id: str | None, what: str) -> Any:
        """Wait until record *index* is due, and return it. With no index the effect was cut off: see `cut_off`."""
        ...

    async def cut_off(self, path: Path, call_id: str | None, what: str, *, cancelled: bool = False) -> NoReturn:
        """Wait until the effect is cancelled, or until the driver makes it raise. Never returns."""
        ...


def is_told_elsewhere(what: str) -> bool:
    """Tell whether the answer of callback *what* has no record of its own."""
    return what in _TOLD_ELSEWHERE


async def told_elsewhere(fx: Answering, path: Path, what: str, key: str) -> Any:
    """Return the answer of callback *what*, derived from records other than `CallbackReturned`.

    Waits until the record is due. Raises the recorded error if the callback raised.
    """
    return await _TOLD_ELSEWHERE[what](fx, path, key)


async def answered(fx: Answering, path: Path, what: str, key: str) -> Any:
    """Wait until the `CallbackReturned` of callback *what* is due, and return its answer."""
    index = fx.find(r.CallbackReturned, path, lambda record: (record.what, record.key) == (what, key), claim=True)
    of_call = what == "is_enabled" and ":" not in key
    answer = (await fx.told(index, path, key if of_call else None, what)).answer
    if what == "policy" and answer == ["Deny", REDACTED]:
        # For a call with secret arguments only the outcome holds the text of the denial.
        settled = fx.settled(path, key.rpartition(":")[0])
        output = None if settled is None else settled.outcome.output
        return Deny(output if isinstance(output, str) else None)
    return _restore_answer(what, answer)


async def _await_settlement(fx: Answering, path: Path, key: str, what: str) -> tuple[r.CallSettled, r.Record]:
    """Wait until the next record of a call is due. Return the settlement of the call, and that record.

    If the call was cut before it, wait for the cancellation instead, as `cut_off` does. If a crash cut off the
    settlement behind a guardrail's verdict, an output was made: the settlement is one with an empty output.
    """
    settled, index = fx.settled(path, key), fx.next_of_call(path, key)
    if settled is None and index is not None and isinstance(fx.records[index], r.GuardrailSettled):
        settled = r.CallSettled(path, 0, 0.0, key, "", CallOutcome(status="failed", output=""))
    if settled is None or index is None or _is_cut(fx, settled, index):
        await fx.cut_off(path, key, what)
    await fx.known(index, what)
    return settled, fx.records[index]


async def _answer_failure(fx: Answering, path: Path, key: str, what: str) -> Any:
    settled, record = await _await_settlement(fx, path, key, what)
    output = settled.outcome.output
    if output is not None or isinstance(record, r.GuardrailSettled):
        return output if isinstance(output, str) else ""
    if settled.error is not None and _has_raised(fx, path, key, settled, what):
        raise rebuilt(settled.error)
    return None


def _is_cut(fx: Answering, settled: r.CallSettled, index: int) -> bool:
    if isinstance(fx.records[index], r.GuardrailSettled):
        return False  # a guardrail judged the output, so the call was not cut before
    cut = settled.outcome.status == "cancelled" and settled.outcome.cancelled_by in CUT_OFF
    return cut or isinstance(fx.records[index], r.CleanupCut)


def _has_raised(fx: Answering, path: Path, key: str, settled: r.CallSettled, what: str) -> bool:
    """Tell whether the error function of the tool raised: the call then failed with another error than its body."""
    if settled.outcome.status != "failed":
        return False
    if what == "timeout_error_function":
        return True
    places = fx.recorded.calls[path, key]
    bodies = [fx.records[index] for index in places if index < fx.cursor]
    ended = next((one for one in reversed(bodies) if isinstance(one, r.BodyEnded)), None)
    if ended is not None and ended.failed:
        return ended.error != settled.error
    return not (settled.error or "").startswith("ModelBehaviorError(")


async def _answer_toolset(fx: Answering, path: Path, key: str) -> Any:
    index = fx.find(r.CallbackReturned, path, lambda record: (record.what, record.key) == ("toolset", key), claim=True)
    answer = (await fx.told(index, path, None, "toolset")).answer
    return fx.restore_tools(path, key.partition(":")[2], answer)


async def _answer_sandbox(fx: Answering, path: Path, key: str) -> Any:
    if key:  # an earlier segment has recorded the name
        return RecordedSandbox(key)
    opened = await fx.told(fx.find(r.SandboxOpened, path), path, None, "sandbox")
    return RecordedSandbox(opened.name)


async def _answer_custom_data(fx: Answering, path: Path, key: str) -> Any:
    settled, record = await _await_settlement(fx, path, key, "custom_data_extractor")
    if settled.outcome.status == "failed" and not isinstance(record, r.GuardrailSettled):
        raise rebuilt(settled.error or "")
    return settled.outcome.custom_data


async def _answer_output_store(fx: Answering, path: Path, key: str) -> Any:
    settled, _ = await _await_settlement(fx, path, key, "output_store")
    if settled.outcome.output is None:
        raise rebuilt(settled.error or "")
    if (path, key) not in fx.references:
        output = settled.outcome.output
        texts = [output] if isinstance(output, str) else [getattr(part, "text", "") for part in output]
        fx.references[path, key] = [found for text in texts for found in _REFERENCE.findall(text)]
    references = fx.references[path, key]
    return references.pop(0) if references else ""


async def _answer_tool_error(fx: Answering, path: Path, key: str) -> Any:
    index = fx.next_of_call(path, key, r.CallSettled)
    return (await fx.told(index, path, None, "tool_error_formatter")).outcome.output


async def _answer_input_filter(fx: Answering, path: Path, key: str) -> Any:
    items = await _read_shown(fx, path, "input_filter", "handoff_filter")
    return HandoffInputData(input_history=(), pre_handoff_items=(), new_items=(), input_items=items)


async def _answer_history_mapper(fx: Answering, path: Path, key: str) -> Any:
    return await _read_shown(fx, path, "handoff_history_mapper", "nested_history")


async def _read_shown(fx: Answering, path: Path, what: str, reason: str) -> tuple[Any, ...]:
    """Return the items that the target of a handoff was shown, by the callback *what*."""
    handed = await fx.told(fx.find(r.HandedOff, path), path, None, what)
    replaced = fx.find(r.HistoryReplaced, path, lambda record: record.reason == reason)
    found: Any = None if replaced is None else fx.records[replaced]
    if found is None:
        return ()
    history = [*fx.log.state.at(path).history, *handoff_outputs(handed)]
    return (*history[: found.keep], *found.items)


async def _answer_on_handoff(fx: Answering, path: Path, key: str) -> Any:
    index = fx.find(r.HandedOff, path, lambda record: record.call_id == key)
    await fx.told(index, path, None, "on_handoff")


async def _answer_session_input(fx: Answering, path: Path, key: str) -> Any:
    index = fx.find(r.RunStarted, path, lambda record: record.shown is not None)
    return list((await fx.told(index, path, None, "session_input_callback")).shown)


async def _answer_input_builder(fx: Answering, path: Path, key: str) -> Any:
    return list((await fx.told(fx.find(r.RunStarted, path), path[:-1], key, "input_builder")).input)


async def _answer_output_extractor(fx: Answering, path: Path, key: str) -> Any:
    outer = path[:-1]
    index = fx.next_of_call(outer, key, r.BodyEnded | r.CallSettled)
    record = None if index is None else fx.records[index]
    returned = isinstance(record, r.CallSettled) and record.outcome.status == "succeeded"
    ended = returned or isinstance(record, r.BodyEnded)
    found = await fx.told(index if ended else None, outer, key, "custom_output_extractor")
    if returned:
        return fx.value_of_outcome(found)
    if found.failed:
        raise rebuilt(found.error or "", fatal=found.fatal)
    return fx.value_of(found, fx.settled(outer, key))


async def _answer_model_input_filter(fx: Answering, path: Path, key: str) -> Any:
    requested = await fx.told(fx.find(r.ModelRequested, path), path, None, "call_model_input_filter")
    # The log has only the digest of the filtered request, so the digest of this turn can't be compared.
    fx.unfiltered.add((path, requested.turn))
    return ModelInputData(input=(), instructions=None)


def _restore_answer(what: str, answer: Any) -> Any:
    """Return *answer*, plain data in the log, as the type that the application returned."""
    pair = answer if isinstance(answer, list) and len(answer) == 2 else None
    if what == "tool_use_behavior":
        return None if pair is None else ToolsToFinalOutput(is_final=pair[0], output=pair[1])
    if what == "error_handler":
        return None if pair is None else ErrorHandlerResult(pair[0], pair[1])
    if what == "prompt":
        return Prompt(answer[0], version=answer[1], variables=answer[2]) if isinstance(answer, list) else None
    if what == "policy":
        kinds: dict[Any, Any] = {"Allow": lambda _: g.Allow(), "Ask": Ask, "Deny": Deny}
        return None if pair is None or pair[0] not in kinds else kinds[pair[0]](pair[1])
    return answer


_TOLD_ELSEWHERE: dict[str, Callable[[Answering, Path, str], Awaitable[Any]]] = {
    "failure_error_function": lambda fx, path, key: _answer_failure(fx, path, key, "failure_error_function"),
    "timeout_error_function": lambda fx, path, key: _answer_failure(fx, path, key, "timeout_error_function"),
    "tool_error_formatter": _answer_tool_error,
    "toolset": _answer_toolset,
    "sandbox": _answer_sandbox,
    "output_store": _answer_output_store,
    "custom_data_extractor": _answer_custom_data,
    "input_filter": _answer_input_filter,
    "handoff_history_mapper": _answer_history_mapper,
    "session_input_callback": _answer_session_input,
    "input_builder": _answer_input_builder,
    "custom_output_extractor": _answer_output_extractor,
    "on_handoff": _answer_on_handoff,
    "call_model_input_filter": _answer_model_input_filter,
}
