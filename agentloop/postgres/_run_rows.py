"""The row of each run, which gives an operator the status of the run without its journal.

`RunRow` is written from the records that are appended, in the statement that appends them, and only if one of them
changes it: a run segment's beginning and end, and calls that wait. So a row and its journal can't differ, and most
appends write no row. It is a summary: the journal is the fact, and everything that decides about a run reads that one.

Only the kinds of its records say what a call waits for, because a fold of the whole run would cost more than the
append. The tests compare it with the fold, for every prefix of many logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from agentloop._common.checks import check_id
from agentloop._common.values import Value
from agentloop.exceptions import UserValueError

StoredStatus: TypeAlias = Literal[
    "queued", "running", "completed", "interrupted", "cancelled", "stopped", "failed", "dead"
]
"""`running` from the beginning of a run segment to its end, also if its worker has died; else how the run ended.

Of a run that was submitted to the workers of `serve`: `queued` while it waits for one of them, and `dead` if their
attempts are used up.
"""

OVER: tuple[StoredStatus, ...] = ("completed", "failed", "cancelled")
"""The statuses of runs that no worker has to continue."""


class StoredCall(Value, frozen=True):
    """A call of a stored run that waits for a person.

    Attributes:
        call_id: The call's id, which `PostgresJournal.approve` and `answer` take.
        tool: The tool's name.
        agent: The agent that called it.
        asks: `"approval"` if it waits for a verdict, `"answer"` if the application answers it.
        path: The calls of agent tools around it, the outermost first; empty for a call of the run itself.
    """

    call_id: str
    tool: str
    agent: str
    asks: Literal["approval", "answer"]
    path: tuple[str, ...] = ()


class StoredRun(Value, frozen=True):
    """The row of a run in the database. Times are seconds since the epoch, by the database's clock.

    Attributes:
        run_id: The run.
        status: `"running"` from the beginning of a run segment to its end, else how it ended.
        agent: The agent that the run is in; of a run that is under way, the one that its segment began with.
        since: When it came to this status.
        began_at: When it began.
        waiting: The calls that wait for a person, if its status is `"interrupted"`. An interrupted run without any has
            all its verdicts, and waits for a worker.
        error: The type of the error that ended it, `"MaxTurnsExceeded"` for one; None if none did.
        worker: The worker that had the run last, as its store names itself.
        application: The application's version, as that worker's store gave it.
        held_until: When the lease of the worker that has the run now ends, unless it is renewed; None if no worker has
            it. A run that is `"running"` and isn't held waits for a worker, because its own has died.
        cancelled_by: Who cancelled it by `PostgresStore.cancel`; None if no one has, or without a name.
        cancel_requested: True if it was cancelled so: no worker may take it, and the one that has it will stop.
        owner: Whose run it is, as given to `PostgresStore.submit`; None for a run that wasn't submitted.
        priority: Its priority among the submitted runs; None for a run that wasn't.
        attempts: How many workers in a row have taken it without bringing it to a pause or its end; the one that has it
            is counted.
        due_at: The time from which a worker of `serve` may take it, unless one has it or it waits for a person; None
            if none will.
        trouble: Why the last worker of `serve` couldn't continue it; None if it could.
    """

    run_id: str
    status: StoredStatus
    agent: str
    since: float
    began_at: float
    waiting: tuple[StoredCall, ...] = ()
    error: str | None = None
    worker: str | None = None
    application: str | None = None
    held_until: float | None = None
    cancelled_by: str | None = None
    cancel_requested: bool = False
    owner: str | None = None
    priority: int | None = None
    attempts: int = 0
    due_at: float | None = None
    trouble: str | None = None

    @property
    def cursor(self) -> str:
        """The run's place in the list, `SINCE:RUN`, for `PostgresStore.runs(after=…)`."""
        return f"{self.since!r}:{self.run_id}"


def read_cursor(cursor: str) -> tuple[float, str]:
    """Return the `since` and the id of a run from its `cursor`.

    Raises:
        UserTypeError, UserValueError: it isn't the cursor of a run.
    """
    found = _CURSOR.fullmatch(check_id("after", cursor))
    if found is None:
        raise UserValueError(f"after: expected the `cursor` of a StoredRun, SINCE:RUN, got {cursor!r}")
    return float(found[1]), found[2]


_CURSOR = re.compile(r"(\d{1,11}\.\d+):(.+)", re.ASCII | re.DOTALL)
_Place: TypeAlias = tuple[str, ...]
"""The path of a call, and its id."""
_Group: TypeAlias = tuple[_Place, str, str, str | None]
"""The calls that one verdict may be for: their path, agent, tool, and the tool's definition."""


class OutcomePart(msgspec.Struct):
    """The part of a call's outcome that says how it ended."""

    status: str = ""


class _RowPart(msgspec.Struct):
    """The fields of a record that a row needs; others are passed over."""

    kind: str
    path: tuple[str, ...] = ()
    run_id: str = ""
    agent: str = ""
    target_agent: str = ""
    tool: str = ""
    call_id: str = ""
    status: StoredStatus = "running"
    error: str | None = None
    always: bool = False
    definition: str | None = None
    resumable: bool = False
    at: float = 0.0
    outcome: OutcomePart = msgspec.field(default_factory=OutcomePart)

    @property
    def group(self) -> _Group:
        """The calls that a verdict on this one may be for."""
        return self.path, self.agent, self.tool, self.definition


_SEGMENTS = ("run_started", "run_resumed", "run_ended")
_OF_RUNS = (*_SEGMENTS, "turn_started", "handed_off")
_OF_CALLS = (
    "approval_requested",
    "answer_requested",
    "verdict_given",
    "call_answered",
    "call_settled",
    "cancel_requested",
)
_MARKS = tuple(b'{"kind":"%s"' % kind.encode() for kind in (*_OF_RUNS, *_OF_CALLS))
_read = msgspec.json.Decoder(_RowPart).decode
_NO_CALLS: Mapping[Any, Any] = {}


class RowSummary(Value, frozen=True):
    """The contents of a row, made of the run's records. Each `follow` returns another one.

    `asked` has the calls for which something was asked and nothing has come for them by themselves, also while the run
    continues beside them; `always` the groups whose calls have a verdict in common, with the call that it was given on.
    `in_doubt` counts calls whose outcome is unknown.
    """

    status: StoredStatus | None = None
    agent: str = ""
    asked: Mapping[_Place, tuple[StoredCall, _Group]] = _NO_CALLS
    always: Mapping[_Group, _Place] = _NO_CALLS
    error: str | None = None
    in_doubt: int = 0
    run_id: str = ""
    """The run's id in its log, which the keys of its calls are made of."""

    @property
    def waiting(self) -> tuple[StoredCall, ...]:
        """The calls that wait for a person; none unless the run was interrupted."""
        if self.status != "interrupted":
            return ()
        asked = self.asked.values()
        return tuple(call for call, group in asked if call.asks == "answer" or group not in self.always)

    @property
    def row(self) -> tuple[StoredStatus | None, str, tuple[StoredCall, ...], str | None]:
        """The parts that are in the row."""
        return self.status, self.agent, self.waiting, self.error

    def columns(self, records: int) -> dict[str, Any]:
        """Return the parameters of a statement that writes the row, after so many *records*."""
        waiting = msgspec.json.encode(self.waiting).decode() if self.waiting else None
        return {
            **{"status": self.status, "agent": self.agent, "waiting": waiting, "error": self.error},
            "records": records,
        }

    def follow(self, records: Iterable[bytes]) -> RowSummary:
        """Return the summary of the run with *records* behind those that this one is of."""
        found = self
        for line in records:
            if line.startswith(_MARKS):
                found = found._with(line)
        return found

    def _with(self, line: bytes) -> RowSummary:
        record = _read_record(line)
        if record is None:
            return self
        place = (*record.path, record.call_id)
        match record.kind:
            case "run_started" | "run_resumed" if not record.path:
                run_id = record.run_id or self.run_id
                return self.replace(status="running", agent=record.agent, error=None, run_id=run_id)
            case "turn_started" if not record.path:
                return self if record.agent == self.agent else self.replace(agent=record.agent)
            case "handed_off" if not record.path:
                return self.replace(agent=record.target_agent)
            case "run_ended" if not record.path:
                error = None if record.error is None else record.error.partition("(")[0]
                return self.replace(status=record.status, error=error)
            case "approval_requested" | "answer_requested":
                asks: Literal["approval", "answer"] = "answer" if record.kind == "answer_requested" else "approval"
                call = StoredCall(record.call_id, record.tool, record.agent, asks, record.path)
                return self.replace(asked={**self.asked, place: (call, record.group)})
            case "verdict_given":
                always = {group: of for group, of in self.always.items() if of != place}
                always |= {record.group: place} if record.always else {}
                return self._without(place, nested=False).replace(always=always)
            case "call_answered":
                return self._without(place, nested=False)
            case "call_settled":
                unknown = record.outcome.status == "unknown"
                return self._without(place, nested=True).replace(in_doubt=self.in_doubt + unknown)
            case "cancel_requested" if record.call_id:
                own = self.asked.get(place)
                if own is not None and own[0].asks == "approval":  # it still waits for its verdict
                    return self
                return self._without(place, nested=True)
            case _:
                return self

    def _without(self, place: _Place, *, nested: bool) -> RowSummary:
        """Return the summary in which the call at *place* waits no more; nor those of its nested run, if *nested*."""
        length = len(place) if nested else None
        left = {at: asked for at, asked in self.asked.items() if at[:length] != place}
        return self if len(left) == len(self.asked) else self.replace(asked=left)


def run_of(row: Sequence[Any]) -> StoredRun:
    """Return the run of a row, whose columns are the fields in their order."""
    run_id, status, agent, since, began_at, waiting, *rest = row
    return StoredRun(run_id, status, agent, since, began_at, () if waiting is None else _read_calls(waiting), *rest)


_read_calls = msgspec.json.Decoder(tuple[StoredCall, ...]).decode


def read_end(records: Sequence[bytes]) -> _RowPart | None:
    """Return the end of the run that has *records*; None if it is under way, or its worker has died."""
    record = _read_record(records[-1]) if records else None
    return record if record is not None and record.kind == "run_ended" and not record.path else None


def read_times(records: Sequence[bytes]) -> tuple[float, float]:
    """Return when the run with *records* began, and when its latest segment began or ended."""
    found = [record for line in records if line.startswith(_MARKS) and (record := _read_record(line)) is not None]
    at = [record.at for record in found if record.kind in _SEGMENTS and not record.path]
    return (at[0], at[-1]) if at else (0.0, 0.0)


def _read_record(line: bytes) -> _RowPart | None:
    try:
        return _read(line)
    except msgspec.MsgspecError:  # no record of a run: the readers of the run say so
        return None
