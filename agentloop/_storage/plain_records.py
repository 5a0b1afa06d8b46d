"""The stored form of records that hold nothing unusual, by msgspec alone: ten times faster than `record_codec`.

Both write the same bytes, in the order of the fields, and read equal records: this module takes the records and texts
of which that is certain and leaves the others. Unusual are: secrets, live values that JSON doesn't have, texts that
UTF-8 doesn't have, numbers that aren't finite. What is read has to be what this module writes, byte by byte, so that a
repeated key, a field of this process alone or a number in another notation is left to `record_codec`, which says what
is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

import msgspec

from agentloop import items as i
from agentloop import records as r
from agentloop.usage import RequestUsage

_ENCODE = msgspec.json.Encoder(order="deterministic").encode
_replace = msgspec.structs.replace
_DECODE = msgspec.json.Decoder(r.Record).decode
_DECODE_ALL = msgspec.json.Decoder(list[r.Record]).decode
T = TypeVar("T")


class _Unusual(ValueError):
    """A record that this module leaves to `record_codec`."""


def line_writer(write_unusual: Callable[[r.Record], T]) -> Callable[[r.Record], bytes | T]:
    """Return a function that returns the canonical JSON text of a record, or what *write_unusual* makes of one that is
    left to `record_codec`.

    A run calls it for each of its records, so it is one function.
    """

    def write(record: r.Record) -> bytes | T:
        try:
            keep = _STORED.get(type(record))
            text = _ENCODE(record if keep is None else keep(record))
            if isfinite(record.at):  # msgspec writes NaN as null
                return text
        except (TypeError, ValueError, RecursionError):  # a value that isn't of its field's type, half a surrogate pair
            pass
        return write_unusual(record)

    return write


plain_line: Callable[[r.Record], bytes | None] = line_writer(lambda _record: None)
"""Returns the canonical JSON text of a record, or None if it is left to `record_codec`."""


def plain_lines(records: Sequence[r.Record]) -> bytes | None:
    """Return the canonical JSON array of *records*, or None if one is left to `record_codec`."""
    try:
        stored = [record if (keep := _STORED.get(type(record))) is None else keep(record) for record in records]
        text = _ENCODE(stored)
        finite = isfinite(sum([record.at for record in records]))
    except (TypeError, ValueError, RecursionError):  # as above
        return None
    return text if finite else None


def read_plain_line(line: bytes) -> r.Record | None:
    """Return the record of *line*, or None if it is left to `record_codec`."""
    try:
        record: r.Record = _DECODE(line)
        return record if _is_plain(line) and _are_stored((record,)) and _ENCODE(record) == line else None
    except (ValueError, RecursionError):
        return None


def read_plain_lines(lines: bytes) -> list[r.Record] | None:
    """Return the records of a JSON array, or None if one is left to `record_codec`."""
    try:
        records: list[r.Record] = _DECODE_ALL(lines)
        return records if _is_plain(lines) and _are_stored(records) and _ENCODE(records) == lines else None
    except (ValueError, RecursionError):
        return None


class PlainState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The text of a whole state with its records read, the rest left as it is. Fields are in the order of keys."""

    context: msgspec.Raw = msgspec.Raw()
    graph: msgspec.Raw
    library: msgspec.Raw
    records: list[r.Record]
    schema: str


_DECODE_STATE = msgspec.json.Decoder(PlainState).decode


def read_plain_state(text: bytes) -> PlainState | None:
    """Return the state of *text* with its records, or None if one of these is left to `record_codec`."""
    try:
        state: PlainState = _DECODE_STATE(text)
        return state if _is_plain(text) and _are_stored(state.records) and _ENCODE(state) == text else None
    except (ValueError, RecursionError):
        return None


def _is_plain(text: bytes) -> bool:
    """Tell whether *text* has no secret, no mark and no item without a tag. A search sees what a walk over all values
    would see, for a tenth of its time; what it sees too much is only read more slowly."""
    marked = b"$" in text and b'"$' in text  # one character is found 30 times faster than two
    # From the end: `in` takes three times as long.
    return not marked and text.rfind(b'"secret') < 0 and text.rfind(b'"approval_request"') < 0


def _are_stored(records: Iterable[r.Record]) -> bool:
    """Tell whether *records*, just read, have no field that lives in a process alone."""
    for record in records:
        kind = type(record)
        if kind is r.CallSettled:
            outcome = record.outcome  # type: ignore[union-attr]  # as its kind says
            if outcome.value is not None or outcome.error is not None:
                return False
        elif kind is r.GuardrailSettled and record.result is not None:  # type: ignore[union-attr]  # as its kind says
            return False
    return True


# -- records as they are stored: without what lives in this process alone


def _check_items(items: Iterable[i.Item]) -> None:
    for item in items:
        kind: Any = type(item)
        if kind is i.ApprovalRequest:  # it holds an item that isn't one of several kinds, so without a tag
            raise _Unusual
        one: Any = item
        if kind in _WITH_SECRETS and (one.secret or (kind is i.ToolCall and one.secret_output)):
            raise _Unusual
        data = one.data if kind in _WITH_DATA else one.provider_data
        if data is not None:
            _check_value(data)
        if kind is i.HostedToolCall:
            _check_value(one.output)


_WITH_DATA = frozenset({i.HostedToolCall, i.Compaction, i.OpaqueItem})
_WITH_SECRETS = frozenset({i.SystemMessage, i.UserMessage, i.AssistantMessage, i.ToolCall, i.ToolOutput})


def _check_usage(usage: RequestUsage | None) -> None:
    if usage is not None:
        _check_value(usage.raw)


def _check_time(time: float | None) -> None:
    if time is not None and not isfinite(time):
        raise _Unusual


def _check_value(value: object) -> None:
    """Check that *value* is one of JSON that `value_codec` writes as it is."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return
    if kind is dict:
        for key, member in value.items():  # type: ignore[attr-defined]  # as its type is dict
            if type(key) is not str or key.startswith("$"):
                raise _Unusual
            _check_value(member)
    elif kind is list:
        for member in value:  # type: ignore[attr-defined]  # as its type is list
            _check_value(member)
    elif not (
        (kind is int and -(2**63) <= value < 2**63)  # type: ignore[operator]  # as its type is int
        or (kind is float and isfinite(value))  # type: ignore[arg-type]  # as its type is float
    ):
        raise _Unusual


def _check_secret(record: Any) -> Any:
    """Return *record*, which has no arguments and no value that are secret."""
    if record.secret:
        raise _Unusual
    return record


def _run_started(record: r.RunStarted) -> r.Record:
    _check_items(record.input)
    _check_items(record.shown or ())
    return record


def _model_responded(record: r.ModelResponded) -> r.Record:
    response = record.response
    _check_time(record.first_delta_at)
    _check_items(response.items)
    _check_usage(response.usage)
    if response.provider_data is not None:
        _check_value(response.provider_data)
    return record


def _model_failed(record: r.ModelFailed) -> r.Record:
    _check_usage(record.usage)
    _check_time(record.retry_after)
    return record


def _items_given(record: r.HistoryReplaced | r.InputAdded) -> r.Record:
    _check_items(record.items)
    return record


def _guardrail_settled(record: r.GuardrailSettled) -> r.Record:
    _check_secret(record)
    _check_value(record.info)
    _check_value(record.detail)
    _check_time(record.duration)
    return record if record.result is None else record.replace(result=None)


def _call_started(record: r.CallStarted) -> r.Record:
    if record.secret or (record.queued_at is not None and not isfinite(record.queued_at)):
        raise _Unusual
    return record


def _call_settled(record: r.CallSettled) -> r.Record:
    outcome = record.outcome
    if outcome.custom_data is not None:
        _check_value(outcome.custom_data)
    # A sum is finite if all times are, and else at most in a log that a slower way then reads or writes.
    times = (record.body_ended_at or 0.0) + (outcome.started_at or 0.0) + (outcome.ended_at or 0.0)
    if record.secret or outcome.secret or not isfinite(times + (outcome.cancelled_at or 0.0)):
        raise _Unusual
    if outcome.value is None and outcome.error is None:
        return record
    return _replace(record, outcome=_replace(outcome, value=None, error=None))


def _body_ended(record: r.BodyEnded) -> r.Record:
    _check_secret(record)
    _check_value(record.value)
    return record


def _callback_returned(record: r.CallbackReturned) -> r.Record:
    _check_secret(record)
    _check_value(record.answer)
    return record


def _run_ended(record: r.RunEnded) -> r.Record:
    _check_secret(record)
    _check_value(record.final_output)
    _check_value(record.details)
    _check_time(record.turn_ended_at)
    return record


_STORED: Mapping[type, Callable[[Any], r.Record]] = {
    r.RunStarted: _run_started,
    r.ModelResponded: _model_responded,
    r.ModelFailed: _model_failed,
    r.HistoryReplaced: _items_given,
    r.InputAdded: _items_given,
    r.GuardrailSettled: _guardrail_settled,
    r.ApprovalRequested: _check_secret,
    r.VerdictGiven: _check_secret,
    r.CallStarted: _call_started,
    r.BodyEnded: _body_ended,
    r.CallSettled: _call_settled,
    r.CallbackReturned: _callback_returned,
    r.RunEnded: _run_ended,
}
