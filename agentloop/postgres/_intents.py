"""Intents on their way into the journal: what bodies have added, until the record is appended that says they returned.

Theory. A body that adds an intent writes nothing: the intent waits here, in the process, under the call's key. The
journal looks at each record that it appends. One which says that a body has returned (`body_ended` without an error, or
else `call_settled` as succeeded) takes the call's intents into the statement that appends it; any other end of the call
drops them, and so does a new start. So the log and the table say the same, at each moment at which the process may die:

    before the commit    neither has it. The call is in doubt, its tool runs again (`in_doubt="rerun"`), adds it again
    after the commit     both have it. The call has settled, and its body never runs again

The waiting intents of a run belong to the journals that are open on it: with the last of these they are gone. A run
without such a journal has no place for them, so `PostgresOutbox.add` refuses it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from agentloop._common.digests import idempotency_key
from agentloop._common.json_bytes import decode
from agentloop._common.values import Value
from agentloop.exceptions import UserValueError
from agentloop.postgres._run_rows import OutcomePart

OUTBOX_CHANNEL = "agentloop_outbox"
# Joined with the fence, so that nothing is written where the append is refused. Sorted, so that two runs which write
# the same keys wait for each other in one direction only. The notification is sent by the same commit.
ADD_INTENTS = f""", intents AS (
    INSERT INTO agentloop_outbox (outbox, key, run_id, payload, status, since, added_at, due_at, attempts)
    SELECT one.outbox, one.key, %(run_id)s, one.payload, 'due', clock_timestamp(), clock_timestamp(),
        clock_timestamp(), 0
    FROM fence, unnest(%(outboxes)s::text[], %(keys)s::text[], %(payloads)s::text[]) AS one(outbox, key, payload)
    ORDER BY one.outbox, one.key
    ON CONFLICT (outbox, key) DO NOTHING
    RETURNING pg_notify('{OUTBOX_CHANNEL}', '')
)"""


class WaitingIntent(Value, frozen=True):
    """An intent that a body has added. `text` is its payload as JSON, `stored` what is written: `text`, or sealed."""

    _unshown = frozenset({"text", "stored"})

    outbox: str
    key: str
    text: str
    stored: str


class _CallPart(msgspec.Struct):
    """The fields of a record of a call that say whether its body has returned; others are passed over."""

    kind: str
    path: tuple[str, ...] = ()
    call_id: str = ""
    failed: bool = False
    outcome: OutcomePart = msgspec.field(default_factory=OutcomePart)

    @property
    def has_returned(self) -> bool:
        """True if the body has come to its end with a value."""
        return (self.kind == "body_ended" and not self.failed) or self.outcome.status == "succeeded"


_MARKS = tuple(b'{"kind":"%s"' % kind for kind in (b"call_started", b"body_ended", b"call_settled"))


def _read(line: bytes) -> _CallPart:
    return msgspec.convert(decode(line), _CallPart)  # the strict reader knows ids with half a surrogate pair, too


class RunIntents:
    """The waiting intents of one run, by the keys of its calls. Any thread uses it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._calls: dict[str, dict[tuple[str, str], WaitingIntent]] = {}
        self._lock = threading.Lock()

    def add(self, call_key: str, intent: WaitingIntent) -> None:
        """Let *intent* of the call wait. The same one may be added twice: a body may be called again.

        Raises:
            UserValueError: the call has added another payload under this key.
        """
        with self._lock:
            known = self._calls.setdefault(call_key, {}).setdefault((intent.outbox, intent.key), intent)
        if known.text != intent.text:
            raise UserValueError(
                f"key: this call has added another payload to outbox {intent.outbox!r} under {intent.key!r}: "
                "give each intent of a call a key of its own"
            )

    def decide(self, records: Iterable[bytes]) -> tuple[list[WaitingIntent], list[str]]:
        """Return the intents that are written with *records*, and the keys of calls whose intents wait no longer."""
        if not self._calls:  # as for almost every append
            return [], []
        written, over = dict[tuple[str, str], WaitingIntent](), list[str]()
        for line in records:
            if line.startswith(_MARKS):
                part = _read(line)
                call_key = idempotency_key(self._run_id, part.path, part.call_id)
                over.append(call_key)
                if part.has_returned:
                    written = {**self._calls.get(call_key, {}), **written}
        return list(written.values()), over

    def forget(self, call_keys: Iterable[str]) -> None:
        """Drop the intents of these calls."""
        with self._lock:
            for call_key in call_keys:
                self._calls.pop(call_key, None)


class StoreIntents:
    """The waiting intents of the runs that have an open journal in one store."""

    def __init__(self) -> None:
        self._runs: WeakValueDictionary[str, RunIntents] = WeakValueDictionary()
        self._lock = threading.Lock()

    def open(self, run_id: str) -> RunIntents:
        """Return those of the run with this id in its log, for a journal to hold."""
        with self._lock:
            return self._runs.setdefault(run_id, RunIntents(run_id))

    def find(self, run_id: str) -> RunIntents | None:
        """Return those of the run; None if no journal of it is open."""
        with self._lock:
            return self._runs.get(run_id)


def columns_of(intents: list[WaitingIntent]) -> dict[str, Any]:
    """Return the parameters of `ADD_INTENTS`."""
    return {
        "outboxes": [one.outbox for one in intents],
        "keys": [one.key for one in intents],
        "payloads": [one.stored for one in intents],
    }
