"""The view of activities under way: a model's text so far, and what a body reports or emits.

It travels as the details of heartbeats. The engine keeps the latest ones of each activity that is under way and
answers itself: no worker is asked, and no event is added to the history. A heartbeat is sent each second, so text comes
in steps.

A model call whose worker is lost is made anew, and its text may be another one. So of each call only the first attempt
that showed something is followed: what was shown is never contradicted before the response itself is there.

Where `RunConfig.hold_text_until_guarded` holds text back, its heartbeat says so. A reader knows from the records which
input guardrails of a turn have to pass yet, and shows such a text only when all have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from agentloop._storage.value_codec import value_to_json
from agentloop.events import CallProgress, CustomEvent, TextDelta
from agentloop.items import ToolCall
from agentloop.records import CallSettled, GuardrailSettled, ModelFailed, ModelResponded, Record, TurnStarted

_MOST = 16_000
"""Characters of a text that a heartbeat carries: the last ones."""
LiveEvent: TypeAlias = TextDelta | CallProgress | CustomEvent


class ShownText:
    """The text of one model call so far."""

    def __init__(self, path: Sequence[str], turn: int, attempt: int, *, is_held: bool = False) -> None:
        self._place: dict[str, Any] = {"path": list(path), "turn": turn, "attempt": attempt}
        if is_held:
            self._place["held"] = True
        self._length, self._end = 0, ""

    def add(self, text: str) -> None:
        """Add what the model has sent."""
        self._length += len(text)
        self._end = (self._end + text)[-_MOST:]

    def to_json(self) -> dict[str, Any]:
        """Return the details of a heartbeat."""
        start = self._length - len(self._end)
        return {**self._place, "start": start, "text": self._end}


def progress_to_json(call_id: str, progress: float, total: float | None, message: str | None) -> dict[str, Any]:
    """Return the details of a heartbeat of a body that reports its progress."""
    return {"call_id": call_id, "progress": progress, "total": total, "message": message}


def custom_to_json(call_id: str, value: Any) -> dict[str, Any]:
    """Return the details of a heartbeat of a body that emits its own event."""
    return {"call_id": call_id, "custom": value_to_json(value)}


@attrs.frozen
class Beat:
    """The latest heartbeat of one activity under way."""

    activity: str
    details: dict[str, Any]


class LiveView:
    """Turns heartbeats into events that are new to one reader.

    It takes the records first, by `note`, and then the heartbeats, by `read`. These were asked for before the records,
    so that no text follows the records of a later turn. So a heartbeat may be one of an attempt whose failure has just
    been noted: those of its place are left out once, and the next ones repeat what a new attempt has sent.
    """

    def __init__(self) -> None:
        self._calls: dict[str, tuple[ToolCall, tuple[str, ...], int]] = {}
        self._over: set[object] = set()
        self._followed: dict[tuple[tuple[str, ...], int], tuple[str, int]] = {}
        self._length: dict[tuple[tuple[str, ...], int], int] = {}
        self._reports: dict[str, dict[str, Any]] = {}
        self._failed: set[tuple[tuple[str, ...], int]] = set()
        """The places of attempts that failed since the last `read`."""
        self._unguarded: dict[tuple[tuple[str, ...], int], list[str]] = {}
        """The input guardrails of each turn that haven't passed. It lacks turns whose beginning wasn't read."""

    def note(self, record: Record) -> None:
        """Take a record: what is in the log isn't shown any more."""
        match record:
            case TurnStarted():
                self._unguarded[record.path, record.turn] = list(record.guardrails)
            case GuardrailSettled(stage="input", verdict="passed"):
                waiting = self._unguarded.get((record.path, record.turn), [])
                if record.guardrail in waiting:
                    waiting.remove(record.guardrail)
            case ModelResponded(response=response):
                self._over.add((record.path, record.turn))
                for item in response.items:
                    if isinstance(item, ToolCall):
                        self._calls[item.call_id] = item, record.path, record.turn
            case CallSettled(call_id=call_id):
                self._over.add(call_id)
                self._calls.pop(call_id, None)
            case ModelFailed():  # the next attempt is another text
                self._followed.pop((record.path, record.turn), None)
                self._length.pop((record.path, record.turn), None)
                self._failed.add((record.path, record.turn))
            case _:
                pass

    def read(self, beats: Iterable[Beat]) -> Iterator[LiveEvent]:
        """Yield what *beats* show that wasn't shown before."""
        for beat in beats:
            event = self._read_report(beat) if "call_id" in beat.details else self._read_text(beat)
            if event is not None:
                yield event
        self._failed.clear()

    def _read_text(self, beat: Beat) -> TextDelta | None:
        details = beat.details
        place = tuple(details["path"]), details["turn"]
        if details.get("held") and self._unguarded.get(place, [""]):
            return None
        attempt = beat.activity, details["attempt"]  # the engine keeps the details of a lost attempt
        if place in self._over or place in self._failed or self._followed.setdefault(place, attempt) != attempt:
            return None
        known, start = self._length.get(place, 0), details["start"]
        self._length[place] = start + len(details["text"])
        text = details["text"][max(known - start, 0) :]
        return TextDelta(path=place[0], turn=place[1], text=text) if text else None

    def _read_report(self, beat: Beat) -> CallProgress | CustomEvent | None:
        details = beat.details
        call_id = details["call_id"]
        if call_id not in self._calls or self._reports.get(call_id) == details:
            return None
        self._reports[call_id] = details
        call, path, turn = self._calls[call_id]
        if "custom" in details:
            return CustomEvent(path=path, turn=turn, call=call, value=details["custom"])
        given = {name: details[name] for name in ("progress", "total", "message")}
        return CallProgress(path=path, turn=turn, call=call, **given)
