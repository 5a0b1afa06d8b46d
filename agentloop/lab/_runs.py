"""A run as checks and judges see it: its calls, its answer, what it cost. Made of records, recorded or the lab's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from agentloop import records as r
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.naming import qualify_name
from agentloop._common.values import Value
from agentloop._storage.value_codec import value_to_json
from agentloop._storage.withholding import Withheld, WithheldText
from agentloop.config.budget import total_cost
from agentloop.items import AssistantMessage, Content, HandoffCall, Item, Text, ToolCall, UserMessage
from agentloop.lab._effects import Source
from agentloop.lab._recording import Path, digest_arguments
from agentloop.outcomes import Status

_TRIPPED = "InputGuardrailTripwireTriggered("


class CaseCall(Value, frozen=True, kw_only=True):
    """A tool call of a run.

    Attributes:
        tool: The tool's name, with its namespace; of a handoff that of the handoff.
        arguments: The JSON text of its arguments, secret ones masked.
        status: How it ended; None if it hasn't, and for handoffs.
        output: The text that the model got; None if it got none.
        source: Where the outcome came from in the lab: the log (`"recorded"`), the body (`"ran"`), and so on; None for
            a call of a recorded run, and for one whose body wasn't reached.
        turn, path: Its place in the run.
        call_id: Its id.
    """

    _unshown = frozenset({"digest"})

    tool: str
    arguments: str
    status: Status | None = None
    output: str | None = None
    source: Source | None = None
    turn: int = 0
    path: Path = ()
    call_id: str = ""
    digest: str = ""
    """A digest of the arguments, however their JSON is written."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The arguments as JSON values; empty if they aren't an object."""
        try:
            found = json.loads(self.arguments)
        except ValueError:
            return {}
        return found if isinstance(found, Mapping) else {}


class CaseRun(Value, frozen=True, kw_only=True):
    """One run of a comparison, with what checks and judges ask of it.

    Attributes:
        name: The name of its journal or case.
        input: The texts of its input.
        answer: Its final output; None if it has none.
        status: How it ended; None if its log doesn't tell, or the lab couldn't follow it.
        error: The error that ended it, as `TYPE(MESSAGE)`.
        calls: Its calls and handoffs in the order in which the models made them, nested runs included.
        asked: The tools whose calls waited for a verdict.
        pending: Of these, the ones that got none.
        turns, tokens: Its turns, and input and output tokens, nested runs included.
        cost: What its requests and calls cost; None if nothing had a price.
        seconds: How long it took, by the times of the log.
        texts: What its models said, in order.
        records: Its log.
    """

    _unshown = frozenset({"records", "texts"})

    name: str
    input: str = ""
    answer: Any = None
    status: r.RunStatus | None = None
    error: str | None = None
    calls: tuple[CaseCall, ...] = ()
    asked: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    turns: int = 0
    tokens: int = 0
    cost: Decimal | None = None
    seconds: float = 0.0
    texts: tuple[str, ...] = ()
    records: tuple[r.Record, ...] = ()

    def of(self, tool: str) -> tuple[CaseCall, ...]:
        """Return the calls of *tool*, also where its name is given without the namespace."""
        return tuple(one for one in self.calls if tool in (one.tool, one.tool.rpartition(".")[2]))

    @property
    def answer_text(self) -> str:
        """The answer as text: JSON where it isn't one, as a log would have it."""
        if self.answer is None or isinstance(self.answer, str):
            return self.answer or ""
        # The answer of a run in this process is an object of its output type, that of a journal is what was written.
        return json.dumps(value_to_json(self.answer, None), ensure_ascii=False, sort_keys=True)


class RunStep(Value, frozen=True):
    """Something that happened in a run: `kind` is `"says"`, `"call"`, `"output"`, `"answer"` or `"error"`."""

    turn: int
    kind: str
    text: str
    depth: int = 0

    def __str__(self) -> str:
        return f"turn {self.turn}, {self.kind}: {self.text}"


def list_steps(run: CaseRun) -> list[RunStep]:
    """Return what happened in *run*, in the order of its log; secrets are masked."""
    calls = {(one.path, one.call_id): one for one in run.calls}
    found: list[RunStep] = []
    for record in run.records:
        for item in record.response.items if isinstance(record, r.ModelResponded) else ():
            depth, call = len(record.path), calls.get((record.path, getattr(item, "call_id", "")))
            if isinstance(item, AssistantMessage):
                found.append(RunStep(record.turn, "says", MASK if item.secret else text_of(item.content), depth))
            elif call is not None:
                found.append(RunStep(call.turn, "call", f"{call.tool} {call.arguments}", depth))
                if call.status is not None:
                    source = "" if call.source in (None, "recorded") else f" ({call.source})"
                    found.append(RunStep(call.turn, "output", f"{call.status}{source}: {call.output or ''}", depth))
    if run.error is not None:
        found.append(RunStep(run.turns, "error", run.error))
    elif run.answer is not None:
        found.append(RunStep(run.turns, "answer", run.answer_text))
    return found


def read_run(
    name: str, records: Sequence[r.Record], sources: Mapping[tuple[Path, str], Source] | None = None
) -> CaseRun:
    """Return the run of *records*; *sources* tells where the outcomes of a lab's run came from."""
    started = next(one for one in records if isinstance(one, r.RunStarted))
    ended = _find_end(records)
    given = [one for one in records if isinstance(one, r.ApprovalRequested)]
    decided = {(one.path, one.call_id) for one in records if isinstance(one, r.VerdictGiven)}
    turns = {(one.path, one.turn) for one in records if isinstance(one, r.TurnStarted)}  # a resumed one begins again
    answer = None if ended is None else ended.final_output
    return CaseRun(
        name=name,
        input=_texts_of(started.input),
        answer=MASK if isinstance(answer, Withheld | WithheldText) or (ended is not None and ended.secret) else answer,
        status=None if ended is None else ended.status,
        error=None if ended is None else ended.error,
        calls=tuple(_list_calls(records, sources or {})),
        asked=tuple(one.tool for one in given),
        pending=tuple(one.tool for one in given if (one.path, one.call_id) not in decided),
        turns=len(turns),
        tokens=sum(_list_tokens(records)),
        cost=total_cost(records),
        seconds=round(sum(_list_times(records)), 3),
        texts=tuple(
            text_of(item.content)
            for one in records
            if isinstance(one, r.ModelResponded)
            for item in one.response.items
            if isinstance(item, AssistantMessage) and not item.secret
        ),
        records=tuple(records),
    )


def _find_end(records: Sequence[r.Record]) -> r.RunEnded | None:
    for record in reversed(records):
        if not record.path and isinstance(record, r.RunEnded):
            return record
        if not record.path and isinstance(record, r.RunStarted | r.RunResumed):
            return None
    return None


def text_of(content: Content) -> str:
    """Return *content* as text; a part that is none by its kind."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, Text) else f"[{type(part).__name__}]" for part in content)


def _texts_of(items: Iterable[Item]) -> str:
    return "\n".join(MASK if item.secret else text_of(item.content) for item in items if isinstance(item, UserMessage))


def _list_tokens(records: Sequence[r.Record]) -> Iterable[int]:
    for record in records:
        usage = record.response.usage if isinstance(record, r.ModelResponded) else getattr(record, "usage", None)
        if usage is not None:
            yield usage.input_tokens + usage.output_tokens


def _list_times(records: Sequence[r.Record]) -> Iterable[float]:
    """Yield the time of each segment: the time between two isn't the run's."""
    began = last = records[0].at
    for record in records[1:]:
        if not record.path and isinstance(record, r.RunResumed):
            yield max(0.0, last - began)
            began = record.at
        if not isinstance(record, r.VerdictGiven | r.CallAnswered | r.InputAdded | r.InputWithdrawn):
            last = max(last, record.at)
    yield max(0.0, last - began)


def _list_calls(records: Sequence[r.Record], sources: Mapping[tuple[Path, str], Source]) -> Iterable[CaseCall]:
    settled = {(one.path, one.call_id): one for one in records if isinstance(one, r.CallSettled)}
    tripped = {one.path for one in records if isinstance(one, r.RunEnded) and (one.error or "").startswith(_TRIPPED)}
    handed = {(one.path, one.call_id) for one in records if isinstance(one, r.HandedOff)}
    answers = {one.path: one for one in records if isinstance(one, r.ModelResponded)}
    for record in records:
        if not isinstance(record, r.ModelResponded):
            continue
        for item in record.response.items:
            place = (record.path, getattr(item, "call_id", ""))
            is_void = record.path in tripped and place not in settled and place not in handed
            if is_void and record is answers[record.path]:
                continue  # a guardrail that failed beside the request voids its answer, or not, as time has it
            if isinstance(item, HandoffCall):
                yield CaseCall(
                    tool=item.name,
                    arguments=item.arguments,
                    turn=record.turn,
                    path=record.path,
                    call_id=item.call_id,
                )
            if not isinstance(item, ToolCall):
                continue
            outcome = settled[place].outcome if place in settled else None
            output = None if outcome is None or outcome.output is None else text_of(outcome.output)
            yield CaseCall(
                tool=qualify_name(item.name, item.namespace),
                arguments=mask_arguments(item.arguments, item.secret),
                status=None if outcome is None else outcome.status,
                output=MASK if outcome is not None and outcome.secret else output,
                source=sources.get(place),
                turn=record.turn,
                path=record.path,
                call_id=item.call_id,
                digest=digest_arguments(item.arguments),
            )
