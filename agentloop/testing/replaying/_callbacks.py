"""Questions to the application, answered by the log: from the answers that stand in it, or from what came of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

from agentloop import guardrail_results as g
from agentloop import records as r
from agentloop._common.error_text import REDACTED
from agentloop._core.run_fold import handoff_outputs
from agentloop.agents import ToolsToFinalOutput
from agentloop.config import ErrorHandlerResult, ModelInputData
from agentloop.handoffs import HandoffInputData
from agentloop.policies import Ask, Deny
from agentloop.testing.replaying._comparison import CUT_OFF
from agentloop.testing.replaying._recorded import Call, Path, RecordedRun
from agentloop.testing.replaying._recorded_errors import rebuilt

_REFERENCE = re.compile(r"characters cut, all of it at (.*?) …\]\n", re.DOTALL)


class Answering(Protocol):
    """What answers ask of the effects of a replay (`agentloop.testing.replaying._effects.ReplayEffects`)."""

    recorded: RecordedRun
    log: Any
    records: tuple[r.Record, ...]
    cursor: int
    references: dict[Call, list[str]]
    unfiltered: set[tuple[Path, int]]

    def find(self, kind: Any, path: Path, test: Callable[[Any], bool] = ..., *, claim: bool = False) -> int | None: ...
    def next_of_call(self, path: Path, call_id: str, kind: Any = object) -> int | None: ...
    def settled(self, path: Path, call_id: str) -> r.CallSettled | None: ...
    def value_of(self, ended: r.BodyEnded, settled: r.CallSettled | None) -> Any: ...
    async def known(self, index: int, what: str) -> Any:
        """Wait until record *index* is due, and return it."""
        ...

    async def told(self, index: int | None, path: Path, call_id: str | None, what: str) -> Any:
        """Wait until record *index* is due, and return it; without one the effect was cut off, and is."""
        ...

    async def cut_off(self, path: Path, call_id: str | None, what: str, *, cancelled: bool = False) -> NoReturn:
        """Wait until the effect is cancelled, or raises."""
        ...


def is_told_elsewhere(what: str) -> bool:
    """Tell whether the answer to *what* stands in no record of its own."""
    return what in _TOLD_ELSEWHERE


async def told_elsewhere(fx: Answering, path: Path, what: str, key: str) -> Any:
    """Return what the application answered, read off another record than an answer."""
    return await _TOLD_ELSEWHERE[what](fx, path, key)


async def answered(fx: Answering, path: Path, what: str, key: str) -> Any:
    index = fx.find(r.CallbackReturned, path, lambda record: (record.what, record.key) == (what, key), claim=True)
    of_call = what == "is_enabled" and ":" not in key
    answer = (await fx.told(index, path, key if of_call else None, what)).answer
    if what == "policy" and answer == ["Deny", REDACTED]:
        # What was said of a call with secret arguments stands in its outcome alone.
        settled = fx.settled(path, key.rpartition(":")[0])
        output = None if settled is None else settled.outcome.output
        return Deny(output if isinstance(output, str) else None)
    return _form_of(what, answer)


async def _settling(fx: Answering, path: Path, key: str, what: str) -> tuple[r.CallSettled, r.Record]:
    """Wait for the turn of a call's next record, and return how the call settles, and that record."""
    settled, index = fx.settled(path, key), fx.next_of_call(path, key)
    if settled is None or index is None or _is_cut(fx, settled, index):
        await fx.cut_off(path, key, what)
    await fx.known(index, what)
    return settled, fx.records[index]


async def _of_failure(fx: Answering, path: Path, key: str, what: str) -> Any:
    settled, record = await _settling(fx, path, key, what)
    output = settled.outcome.output
    if output is not None or isinstance(record, r.GuardrailSettled):
        return output if isinstance(output, str) else ""
    if settled.error is not None and _has_raised(fx, path, key, settled, what):
        raise rebuilt(settled.error)
    return None


def _is_cut(fx: Answering, settled: r.CallSettled, index: int) -> bool:
    if isinstance(fx.records[index], r.GuardrailSettled):
        return False  # what it gave was judged
    cut = settled.outcome.status == "cancelled" and settled.outcome.cancelled_by in CUT_OFF
    return cut or isinstance(fx.records[index], r.CleanupCut)


def _has_raised(fx: Answering, path: Path, key: str, settled: r.CallSettled, what: str) -> bool:
    """Tell whether the function that words a failure raised: the call then failed with another error."""
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


async def _custom_data(fx: Answering, path: Path, key: str) -> Any:
    settled, record = await _settling(fx, path, key, "custom_data_extractor")
    if settled.outcome.status == "failed" and not isinstance(record, r.GuardrailSettled):
        raise rebuilt(settled.error or "")
    return settled.outcome.custom_data


async def _store(fx: Answering, path: Path, key: str) -> Any:
    settled, _ = await _settling(fx, path, key, "output_store")
    if settled.outcome.output is None:
        raise rebuilt(settled.error or "")
    if (path, key) not in fx.references:
        output = settled.outcome.output
        texts = [output] if isinstance(output, str) else [getattr(part, "text", "") for part in output]
        fx.references[path, key] = [found for text in texts for found in _REFERENCE.findall(text)]
    references = fx.references[path, key]
    return references.pop(0) if references else ""


async def _tool_error(fx: Answering, path: Path, key: str) -> Any:
    index = fx.next_of_call(path, key, r.CallSettled)
    return (await fx.told(index, path, None, "tool_error_formatter")).outcome.output


async def _input_filter(fx: Answering, path: Path, key: str) -> Any:
    handed = await fx.told(fx.find(r.HandedOff, path), path, None, "input_filter")
    replaced = fx.find(r.HistoryReplaced, path, lambda record: record.reason == "handoff_filter")
    found: Any = None if replaced is None else fx.records[replaced]
    items: tuple[Any, ...] = ()
    if found is not None:
        history = [*fx.log.state.at(path).history, *handoff_outputs(handed)]
        items = (*history[: found.keep], *found.items)
    return HandoffInputData(input_history=(), pre_handoff_items=(), new_items=(), input_items=items)


async def _on_handoff(fx: Answering, path: Path, key: str) -> Any:
    index = fx.find(r.HandedOff, path, lambda record: record.call_id == key)
    await fx.told(index, path, None, "on_handoff")


async def _merged_input(fx: Answering, path: Path, key: str) -> Any:
    index = fx.find(r.RunStarted, path, lambda record: record.shown is not None)
    return list((await fx.told(index, path, None, "session_input_callback")).shown)


async def _built_input(fx: Answering, path: Path, key: str) -> Any:
    return list((await fx.told(fx.find(r.RunStarted, path), path[:-1], key, "input_builder")).input)


async def _extracted_output(fx: Answering, path: Path, key: str) -> Any:
    outer = path[:-1]
    index = fx.next_of_call(outer, key, r.BodyEnded | r.CallSettled)
    ended = index is not None and isinstance(fx.records[index], r.BodyEnded)
    found = await fx.told(index if ended else None, outer, key, "custom_output_extractor")
    if found.failed:
        raise rebuilt(found.error or "", fatal=found.fatal)
    return fx.value_of(found, fx.settled(outer, key))


async def _filtered_request(fx: Answering, path: Path, key: str) -> Any:
    requested = await fx.told(fx.find(r.ModelRequested, path), path, None, "call_model_input_filter")
    # What it made of the request isn't in the log, but for the digest.
    fx.unfiltered.add((path, requested.turn))
    return ModelInputData(input=(), instructions=None)


def _form_of(what: str, answer: Any) -> Any:
    """Return an answer as the application gave it: what stands in the log is plain data."""
    pair = answer if isinstance(answer, list) and len(answer) == 2 else None
    if what == "tool_use_behavior":
        return None if pair is None else ToolsToFinalOutput(is_final=pair[0], output=pair[1])
    if what == "error_handler":
        return None if pair is None else ErrorHandlerResult(pair[0], pair[1])
    if what == "policy":
        kinds: dict[Any, Any] = {"Allow": lambda _: g.Allow(), "Ask": Ask, "Deny": Deny}
        return None if pair is None or pair[0] not in kinds else kinds[pair[0]](pair[1])
    return answer


_TOLD_ELSEWHERE: dict[str, Callable[[Answering, Path, str], Awaitable[Any]]] = {
    "failure_error_function": lambda fx, path, key: _of_failure(fx, path, key, "failure_error_function"),
    "timeout_error_function": lambda fx, path, key: _of_failure(fx, path, key, "timeout_error_function"),
    "tool_error_formatter": _tool_error,
    "output_store": _store,
    "custom_data_extractor": _custom_data,
    "input_filter": _input_filter,
    "session_input_callback": _merged_input,
    "input_builder": _built_input,
    "custom_output_extractor": _extracted_output,
    "on_handoff": _on_handoff,
    "call_model_input_filter": _filtered_request,
}
