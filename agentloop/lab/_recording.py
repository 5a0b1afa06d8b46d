"""A recorded run with the answers that the lab gives from it: of models, tools, guardrails and people.

Pure: reads records, asks nothing and runs nothing. What is found first is used first, so a lab that asks in the
recorded order gets what was recorded, also where a run had asked the same thing twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import attrs

from agentloop import records as r
from agentloop._common.naming import qualify_name
from agentloop._core.call_identity import arguments_digest
from agentloop._core.run_fold import RunFold
from agentloop._storage.record_codec import part_to_json
from agentloop._storage.withholding import Withheld, WithheldText, find_missing_secrets
from agentloop.items import AssistantMessage, Item, SystemMessage, ToolCall, UserMessage
from agentloop.model_events import ModelInfo
from agentloop.outcomes import FROM_ABOVE
from agentloop.settings import JsonLimits

Path: TypeAlias = tuple[str, ...]
EndKind: TypeAlias = Literal["cut", "secret", "kept"]
"""Why the lab can't follow a run further: the log ends there, hides a secret, or the provider kept what came before."""

_LIMITS = JsonLimits()


def digest_arguments(text: str) -> str:
    """Return a digest of a call's arguments that doesn't depend on how their JSON is written."""
    return arguments_digest(text, _LIMITS)


@attrs.define(eq=False)
class RecordedExchange:
    """One request to a model with its attempts, in one turn of a run: an answer, or the last failure, or neither."""

    path: Path
    turn: int
    digest: str
    model: ModelInfo | None
    began: float
    responded: r.ModelResponded | None = None
    failed: r.ModelFailed | None = None
    seconds: float = 0.0
    history: str = ""
    """The digest of the history in normal form, once `Recording.by_history` is made."""
    used: bool = False

    @property
    def end(self) -> EndKind | None:
        """Why there is no answer to give; None if there is one, or an error."""
        if self.responded is not None:
            return "secret" if _hides_secrets(self.responded) else None
        return "cut" if self.failed is None or self.failed.error == "cancelled" else None


@attrs.define(eq=False)
class RecordedCall:
    """One call whose body had started, with its outcome; None if the log ends before it."""

    path: Path
    call_id: str
    tool: str
    arguments: str
    nested: bool = False
    settled: r.CallSettled | None = None
    body: r.BodyEnded | None = None
    result: r.InputAdded | None = None
    """The result of a background call, which came after the call had settled."""
    result_at: int = 0
    """The place of the result in the log."""
    turn: int = 0
    definition: Any = None
    """The candidate's tool that it was matched with."""
    used: bool = False

    @property
    def end(self) -> EndKind | None:
        """Why there is no outcome to give; None if there is one."""
        if self.settled is None or self.settled.outcome.cancelled_by in FROM_ABOVE:
            return "cut"
        if self.settled.background:
            return "cut" if self.result is None else "secret" if holds_hidden(self.result.items) else None
        return "secret" if isinstance(self.settled.outcome.output, Withheld | WithheldText) else None

    @property
    def seconds(self) -> float:
        """The time that the call took."""
        if self.settled is not None and self.result is not None:
            return max(0.0, self.result.at - self.settled.at)
        outcome = None if self.settled is None else self.settled.outcome
        if outcome is None or outcome.started_at is None or outcome.ended_at is None:
            return 0.0
        return max(0.0, outcome.ended_at - outcome.started_at)


def _hides_secrets(record: r.ModelResponded) -> bool:
    calls = (item for item in record.response.items if isinstance(item, ToolCall))
    return any(find_missing_secrets(call, call.arguments) for call in calls)


def holds_hidden(items: Iterable[Item]) -> bool:
    """Tell whether one of *items* has a secret of which the log has only a digest."""
    messages = (SystemMessage, UserMessage, AssistantMessage)
    return any(
        isinstance(item.content, Withheld | WithheldText)
        if isinstance(item, messages)
        else isinstance(item, ToolCall) and bool(find_missing_secrets(item, item.arguments))
        for item in items
    )


def count_stops(records: Iterable[r.Record]) -> int:
    """Return how many segments of the run with these *records* stopped."""
    return sum(not one.path and isinstance(one, r.RunEnded) and one.status == "stopped" for one in records)


def normal_items(items: Sequence[Item]) -> str:
    """Return a digest of *items* without ids and the provider's own data: calls are named by their position."""
    names: dict[str, str] = {}
    text = json.dumps([_normal(part_to_json(item, None), names) for item in items], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_OF_THE_PROVIDER = frozenset({"id", "item_id", "provider_data", "encrypted_content", "signature"})


def _normal(data: Any, names: dict[str, str]) -> Any:
    if isinstance(data, dict):
        return {
            key: names.setdefault(value, f"call {len(names) + 1}") if key == "call_id" else _normal(value, names)
            for key, value in data.items()
            if key not in _OF_THE_PROVIDER
        }
    return [_normal(member, names) for member in data] if isinstance(data, list) else data


@attrs.define(eq=False, slots=False)
class Recording:
    """The log of one run, with indices. Made by `of`; the lab marks what it has used, so one serves one run."""

    name: str
    records: tuple[r.Record, ...]
    origins: object = None
    """The origins of a fork, as its journal has them; unchecked."""
    by_digest: dict[str, list[RecordedExchange]] = attrs.field(factory=lambda: defaultdict(list))
    by_place: dict[tuple[Path, int], RecordedExchange] = attrs.field(factory=dict)
    calls: dict[tuple[str, str], list[RecordedCall]] = attrs.field(factory=lambda: defaultdict(list))
    """By tool and digest of the arguments."""
    outcomes: dict[tuple[Path, str], r.CallSettled] = attrs.field(factory=dict)
    verdicts: dict[tuple[str, str], list[r.VerdictGiven]] = attrs.field(factory=lambda: defaultdict(list))
    """By tool and digest of the arguments, as the requests for a verdict have them."""
    answers: dict[tuple[str, str], r.CallAnswered] = attrs.field(factory=dict)
    """By tool and call id."""
    inputs: list[r.InputAdded] = attrs.field(factory=list)
    """The inputs that the application added and the model was shown, as far as they aren't used, in their order."""
    input_places: dict[int, int] = attrs.field(factory=dict)
    """The places in the log of the inputs, by identity."""

    @classmethod
    def of(cls, name: str, records: Iterable[r.Record], origins: object = None) -> Recording:
        """Return the recording of *records*."""
        made = cls(name, tuple(records), origins)
        made._index()
        return made

    def again(self, count: int = 0) -> Recording:
        """Return one of the same log of which nothing is used, but what the first *count* records answer.

        It is for another run, which continues after them.
        """
        made = Recording.of(self.name, self.records, self.origins)
        made._skip(count)
        return made

    @cached_property
    def withdrawn(self) -> frozenset[tuple[Path, str]]:
        """The inputs that were taken back, by path and id."""
        return frozenset((one.path, one.id) for one in self.records if isinstance(one, r.InputWithdrawn))

    def take_inputs(self, turn: int, before: float) -> Iterator[r.InputAdded]:
        """Yield the inputs that were added by the end of *turn* and lie *before* that place; each is used then."""
        while self.inputs and self.inputs[0].turn <= turn and self.input_places[id(self.inputs[0])] < before:
            yield self.inputs.pop(0)

    def find_resumption(self, number: int) -> float:
        """Return the place in the log at which the run was resumed for the time *number*, from 0; infinity if never."""
        places = (at for at, one in enumerate(self.records) if isinstance(one, r.RunResumed) and not one.path)
        return next(itertools.islice(places, number, None), math.inf)

    def started_in(self, path: Path, turn: int) -> list[RecordedCall]:
        """Return the calls that were started in a turn of the run at *path*."""
        return self._by_turn.get((path, turn), [])

    @cached_property
    def _by_turn(self) -> dict[tuple[Path, int], list[RecordedCall]]:
        found: dict[tuple[Path, int], list[RecordedCall]] = defaultdict(list)
        for call in itertools.chain.from_iterable(self.calls.values()):
            found[call.path, call.turn].append(call)
        return found

    @property
    def started(self) -> r.RunStarted:
        """The start of the run."""
        first = self.records[0]
        assert isinstance(first, r.RunStarted)
        return first

    def starts(self, path: Path) -> r.RunStarted | None:
        """Return the start of the run at *path*."""
        return next((one for one in self.records if isinstance(one, r.RunStarted) and one.path == path), None)

    @cached_property
    def max_turns(self) -> int | None:
        """The limit of turns that held last."""
        found = [one for one in self.records if isinstance(one, r.RunStarted | r.RunResumed) and not one.path]
        return found[-1].max_turns

    @cached_property
    def ended(self) -> r.RunEnded | None:
        """The end of the last segment; None if the log ends before it."""
        for record in reversed(self.records):
            if not record.path and isinstance(record, r.RunEnded):
                return record
            if not record.path and isinstance(record, r.RunStarted | r.RunResumed):
                return None
        return None

    @cached_property
    def resumed_stops(self) -> int:
        """How many times the run had stopped, as by `stop_when`, and was resumed."""
        return count_stops(one for one in self.records if one is not self.ended)

    @cached_property
    def is_cut(self) -> bool:
        """True if something outside of the run has ended it: the log says what it did until then."""
        end = self.ended
        if end is None or end.status in ("cancelled", "stopped"):
            return True
        return any(isinstance(one, r.DeadlinePassed) for one in self.records[-20:]) and end.status == "failed"

    @cached_property
    def guardrails(self) -> dict[tuple[Any, ...], list[r.GuardrailSettled]]:
        """The verdicts of guardrails by path, stage, name, and call."""
        found: dict[tuple[Any, ...], list[r.GuardrailSettled]] = defaultdict(list)
        for one in self.records:
            if isinstance(one, r.GuardrailSettled):
                found[one.path, one.stage, one.guardrail, one.call_id].append(one)
        return found

    @cached_property
    def by_history(self) -> dict[tuple[str, ...], list[RecordedExchange]]:
        """The exchanges by their request in normal form: the history, and checksums of what else the model was shown.

        Made only where some request fits none exactly, since it folds the log again.
        """
        found: dict[tuple[str, ...], list[RecordedExchange]] = defaultdict(list)
        fold = RunFold(limits=_LIMITS)
        for record in self.records:
            fold.apply(record)
            if not isinstance(record, r.ModelRequested) or record.attempt > 1:
                continue
            run, exchange = fold.at(record.path), self.by_place.get((record.path, record.turn))
            if run is not None and exchange is not None:
                exchange.history = normal_items(run.history)
                found[exchange.history, *parts_of(exchange.digest)[1:]].append(exchange)
        return found

    def _skip(self, count: int) -> None:
        begun = self.records[:count]
        ended = {id(one) for one in begun if isinstance(one, r.CallSettled | r.InputAdded)}
        for call in itertools.chain.from_iterable(self.calls.values()):
            in_background = call.settled is not None and call.settled.background
            call.used = id(call.result if in_background else call.settled) in ended
        for record in begun:
            match record:
                case r.ModelResponded() if (asked := self.by_place.get((record.path, record.turn))) is not None:
                    asked.used = True
                case r.VerdictGiven():
                    self.find_verdict(record.tool, record.digest, record.call_id)
                case r.GuardrailSettled():
                    self.guardrails[record.path, record.stage, record.guardrail, record.call_id].remove(record)
                case r.InputAdded() if record in self.inputs:
                    self.inputs.remove(record)
                case _:
                    pass

    def _index(self) -> None:
        started: dict[tuple[Path, str], RecordedCall] = {}
        named: dict[tuple[Path, str], tuple[str, str]] = {}
        models: dict[Path, ModelInfo | None] = {}
        asked: dict[tuple[Path, str], str] = {}
        shown = {one.id for one in self.records if isinstance(one, r.InputShown) and not one.path}
        for at, record in enumerate(self.records):
            match record:
                case r.ModelRequested():
                    models[record.path] = record.model or models.get(record.path)
                    self._add_request(record, models[record.path])
                case r.ModelResponded() | r.ModelFailed():
                    self._add_answer(record)
                    if isinstance(record, r.ModelResponded):
                        calls = (one for one in record.response.items if isinstance(one, ToolCall))
                        for one in calls:
                            tool = qualify_name(one.name, one.namespace)
                            named[record.path, one.call_id] = tool, one.arguments
                case r.CallStarted():
                    tool, _ = named.get((record.path, record.call_id), (record.tool, ""))
                    tool = record.tool if tool.rpartition(".")[2] != record.tool else tool
                    call = RecordedCall(record.path, record.call_id, tool, record.arguments, turn=record.turn)
                    if (record.path, record.call_id) not in started:
                        self.calls[tool, digest_arguments(record.arguments)].append(call)
                        started[record.path, record.call_id] = call
                case r.RunStarted() if record.path:
                    if (outer := started.get((record.path[:-1], record.path[-1]))) is not None:
                        outer.nested = True
                case r.BodyEnded():
                    if (done := started.get((record.path, record.call_id))) is not None:
                        done.body = record
                case r.CallSettled():
                    self.outcomes[record.path, record.call_id] = record
                    if (done := started.get((record.path, record.call_id))) is not None:
                        done.settled = record
                    elif record.outcome.status == "skipped":
                        # It waited too long for others, and nothing waits in the lab.
                        tool, text = named.get((record.path, record.call_id), (record.tool, "{}"))
                        text = record.arguments or text
                        skipped = RecordedCall(record.path, record.call_id, tool, text, settled=record)
                        self.calls[tool, digest_arguments(text)].append(skipped)
                case r.VerdictGiven():
                    self.verdicts[record.tool, record.digest].append(record)
                case r.AnswerRequested():
                    asked[record.path, record.call_id] = record.tool
                case r.CallAnswered(late=False):
                    self.answers[asked[record.path, record.call_id], record.call_id] = record
                case r.InputAdded(call_id=str(call_id)):
                    if (done := started.get((record.path, call_id))) is not None:
                        done.result, done.result_at = record, at
                case r.InputAdded(path=()) if not record.id or record.id in shown:  # an older log shows it at once
                    self.inputs.append(record)
                    self.input_places[id(record)] = at
                case _:
                    pass

    def _add_request(self, record: r.ModelRequested, model: ModelInfo | None) -> None:
        place = (record.path, record.turn)
        known = self.by_place.get(place)
        if known is None or known.digest != record.digest:
            known = RecordedExchange(record.path, record.turn, record.digest, model, record.at)
            self.by_place[place] = known
            self.by_digest[record.digest].append(known)
        known.began, known.model = record.at, model

    def _add_answer(self, record: r.ModelResponded | r.ModelFailed) -> None:
        exchange = self.by_place.get((record.path, record.turn))
        if exchange is None:
            return
        exchange.seconds += max(0.0, record.at - exchange.began)
        if isinstance(record, r.ModelResponded):
            exchange.responded = record
        else:
            exchange.failed = record

    # -- asking

    def find_exchange(self, path: Path, turn: int, digest: str) -> RecordedExchange | None:
        """Return the exchange of an equal request: that of the same place, else the first that isn't used yet."""
        found = self.by_digest.get(digest, [])
        return _choose(found, lambda one: (one.path, one.turn) == (path, turn), again=True)

    def find_call(self, tool: str, arguments: str, path: Path, call_id: str) -> RecordedCall | None:
        """Return the call of an equal tool and arguments: that of the same id, else the first not used yet."""
        found = self.calls.get((tool, digest_arguments(arguments)), [])
        return _choose(found, lambda one: (one.path, one.call_id) == (path, call_id))

    def lacks_outcome(self, path: Path, call_id: str) -> bool:
        """Tell whether the end of the run kept the call *call_id* from its own outcome."""
        settled = self.outcomes.get((path, call_id))
        return settled is None or settled.outcome.cancelled_by in FROM_ABOVE

    @cached_property
    def turns(self) -> int:
        """The number of the run's last turn."""
        return max((one.turn for one in self.records if not one.path), default=0)

    def find_answer(self, tool: str, call_id: str) -> r.CallAnswered | None:
        """Return the recorded answer to the call of that id and tool, or None."""
        return self.answers.get((tool, call_id))

    def find_verdict(self, tool: str, digest: str, call_id: str) -> r.VerdictGiven | None:
        """Return the verdict on an equal call, and use it up."""
        found = self.verdicts.get((tool, digest), [])
        if not found:
            return None
        chosen = next((one for one in found if one.call_id == call_id), found[0])
        found.remove(chosen)
        return chosen


_FoundT = TypeVar("_FoundT", RecordedExchange, RecordedCall)


def _choose(found: Sequence[_FoundT], is_same: Callable[[_FoundT], bool], *, again: bool = False) -> _FoundT | None:
    """Return one of *found* and mark it as used; with *again* the last one answers any further question."""
    left = [one for one in found if not one.used]
    if not left:
        return found[-1] if again and found else None
    chosen = next(filter(is_same, left), left[0])
    chosen.used = True
    return chosen


def parts_of(digest: str) -> tuple[str, ...]:
    """Return the checksums in the digest of a request: of the history, the instructions, the definitions."""
    return tuple(digest.split("-")[1:])


PARTS = ("history", "instructions", "definitions")
"""The parts of a request in the order of their checksums."""
