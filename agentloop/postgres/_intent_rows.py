"""The rows of an outbox: their values, their stored form, and the statements that change them.

A row is due while it has `due_at`, the time from which a dispatcher may take it. Taking it moves that time behind the
end of the attempt, in the statement that chooses it, so the row of a dispatcher that died is due again by itself. A
delivered row stays, as the receipt that an equal key is answered with, until `delete_older`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from agentloop._common.strict_json import write_text
from agentloop._common.values import Value
from agentloop._storage.withholding import Secrets, is_mark
from agentloop.abc import Codec
from agentloop.exceptions import StateError, UserTypeError, UserValueError
from agentloop.postgres._connections import Connection
from agentloop.postgres._intents import OUTBOX_CHANNEL

IntentStatus: TypeAlias = Literal["due", "delivered", "dead"]
"""`due` until it is delivered, also between attempts and within one; `dead` once its attempts are used up."""


class Intent(Value, frozen=True):
    """An intent of an outbox. Times are seconds since the epoch, by the database's clock. No repr shows its values.

    Attributes:
        outbox: The name of its outbox.
        key: The key under which it is delivered, each time.
        payload: What the body has added: a JSON value.
        status: What has become of it.
        run_id: The run whose journal has written it; of an equal key, the first one's.
        added_at: When that was.
        since: When it came to its status.
        attempts: How many attempts to deliver it have begun since it was added, or last put back.
        receipt: What the handler returned, as a JSON value; None until it is delivered.
        trouble: Why the last attempt failed, and of a dead one the reason; None if none did.
        is_readable: False if payload and receipt are sealed and this outbox can't open them: then they are None.
    """

    _unshown = frozenset({"payload", "receipt"})

    outbox: str
    key: str
    payload: Any
    status: IntentStatus
    run_id: str
    added_at: float
    since: float
    attempts: int = 0
    receipt: Any = None
    trouble: str | None = None
    is_readable: bool = True


class IntentForm(Value, frozen=True):
    """The stored form of the values of one outbox: JSON text, or the mark of what *codec* has sealed.

    What is sealed names its place, so that no value can be put into another row's place.
    """

    outbox: str
    codec: Codec | None

    def write(self, name: str, value: Any) -> str:
        """Return *value*, given for the argument *name*, as JSON text.

        Raises:
            UserTypeError, UserValueError: it has no JSON form; the value isn't quoted.
        """
        try:
            text = write_text(value)
        except (TypeError, ValueError, RecursionError) as error:
            kind = UserTypeError if isinstance(error, TypeError) else UserValueError
            said = "it is nested too deeply" if isinstance(error, RecursionError) else type(error).__name__
            raise kind(
                f"{name}: expected a value of JSON (text, finite numbers, True, False, None, lists, and mappings with "
                f"keys of text), got {type(value).__name__} ({said})"
            ) from None
        if is_mark(value):
            raise UserValueError(f"{name}: a mapping with this one key is what the library stores for a secret")
        return text

    def seal(self, key: str, field: str, text: str) -> str:
        """Return the stored form of *text*, the value of *field* of the intent *key*.

        Raises:
            StateError: the codec fails.
        """
        if self.codec is None:
            return text
        return write_text(Secrets(self.codec).hide(f"{self._place(key, field)}\n{text}".encode()))

    def open(self, key: str, field: str, stored: str) -> tuple[Any, bool]:
        """Return the value that *stored* holds, and whether it could be read."""
        value = json.loads(stored)
        if not is_mark(value):
            return value, True
        try:
            data = Secrets(self.codec).reveal(value)
        except StateError:
            data = None
        place, _, text = ("" if data is None else data.decode()).partition("\n")
        return (json.loads(text), True) if place == self._place(key, field) else (None, False)

    def intent_of(self, row: Sequence[Any]) -> Intent:
        """Return the intent of a row of `_COLUMNS`."""
        key, payload, status, run_id, added_at, since, attempts, receipt, trouble = row
        given, is_readable = self.open(key, "payload", payload)
        known, is_known = (None, True) if receipt is None else self.open(key, "receipt", receipt)
        return Intent(
            self.outbox,
            key,
            given,
            status,
            run_id,
            added_at,
            since,
            attempts,
            receipt=known,
            trouble=trouble,
            is_readable=is_readable and is_known,
        )

    def _place(self, key: str, field: str) -> str:
        return write_text([self.outbox, key, field])


_COLUMNS = """
held.key, held.payload, held.status, held.run_id, extract(epoch FROM held.added_at)::float8,
    extract(epoch FROM held.since)::float8, held.attempts, held.receipt, held.trouble
"""
_FIND = f"SELECT {_COLUMNS} FROM agentloop_outbox AS held WHERE outbox = %(outbox)s AND key = %(key)s"
_LIST = f"""
SELECT {_COLUMNS} FROM agentloop_outbox AS held
WHERE outbox = %(outbox)s AND (%(status)s::text IS NULL OR status = %(status)s::text)
ORDER BY since, key LIMIT %(limit)s
"""
# One look at as many rows as there is room for, however many are due. A row whose attempts are used up is one whose
# dispatcher died in the last of them: one whose attempt has failed says so itself (`_FAILED`).
_CLAIM = f"""
WITH chosen AS MATERIALIZED (
    SELECT key, attempts FROM agentloop_outbox WHERE outbox = %(outbox)s AND due_at <= clock_timestamp()
    ORDER BY due_at LIMIT %(room)s FOR UPDATE SKIP LOCKED
), buried AS (
    UPDATE agentloop_outbox AS held SET status = 'dead', since = clock_timestamp(), due_at = NULL, holder = NULL,
        trouble = 'its dispatcher died in the last attempt' || coalesce(', and before: ' || held.trouble, '')
    FROM chosen WHERE held.outbox = %(outbox)s AND held.key = chosen.key AND chosen.attempts >= %(most)s
    RETURNING {_COLUMNS}
), taken AS (
    UPDATE agentloop_outbox AS held SET attempts = held.attempts + 1, holder = %(holder)s,
        due_at = clock_timestamp() + %(seconds)s * interval '1 second'
    FROM chosen WHERE held.outbox = %(outbox)s AND held.key = chosen.key AND chosen.attempts < %(most)s
    RETURNING {_COLUMNS}
)
SELECT * FROM buried UNION ALL SELECT * FROM taken
"""
_CLAIMED = f"""
SELECT {_COLUMNS} FROM agentloop_outbox AS held
WHERE outbox = %(outbox)s AND due_at IS NOT NULL AND holder = %(holder)s
"""
_LOCK = """
SELECT 1 FROM agentloop_outbox WHERE outbox = %(outbox)s AND key = %(key)s AND holder = %(holder)s AND status = 'due'
FOR UPDATE
"""
# Also if its time has passed, and another dispatcher has it or it is listed as dead. The first receipt stays.
_DELIVERED = """
UPDATE agentloop_outbox SET status = 'delivered', since = clock_timestamp(), due_at = NULL, holder = NULL,
    receipt = %(receipt)s, trouble = %(trouble)s
WHERE outbox = %(outbox)s AND key = %(key)s AND status <> 'delivered'
"""
_FAILED = """
UPDATE agentloop_outbox SET trouble = %(trouble)s, holder = NULL,
    status = CASE WHEN attempts >= %(most)s THEN 'dead' ELSE 'due' END,
    since = CASE WHEN attempts >= %(most)s THEN clock_timestamp() ELSE since END,
    due_at = CASE WHEN attempts >= %(most)s THEN NULL
        ELSE clock_timestamp() + %(pause)s * interval '1 second' END
WHERE outbox = %(outbox)s AND key = %(key)s AND holder = %(holder)s AND status = 'due'
"""
_GIVEN_BACK = f"""
WITH given_back AS (
    UPDATE agentloop_outbox SET due_at = clock_timestamp(), attempts = attempts - 1, holder = NULL
    WHERE outbox = %(outbox)s AND key = ANY(%(keys)s::text[]) AND holder = %(holder)s AND status = 'due'
    RETURNING 1
)
SELECT pg_notify('{OUTBOX_CHANNEL}', '') FROM given_back
"""
_RETRY = f"""
WITH put_back AS (
    UPDATE agentloop_outbox SET status = 'due', since = clock_timestamp(), due_at = clock_timestamp(), attempts = 0
    WHERE outbox = %(outbox)s AND key = %(key)s AND status = 'dead'
    RETURNING 1
)
SELECT pg_notify('{OUTBOX_CHANNEL}', '') FROM put_back
"""
_DELETE = """
DELETE FROM agentloop_outbox WHERE outbox = %(outbox)s AND key IN (
    SELECT key FROM agentloop_outbox WHERE outbox = %(outbox)s AND status = %(status)s
        AND since < clock_timestamp() - %(seconds)s * interval '1 second'
    ORDER BY since LIMIT %(batch)s FOR UPDATE SKIP LOCKED
)
"""


def as_trouble(text: str) -> str:
    """Return *text* with `?` for what no column of text takes: NUL, and halves of characters."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def find_intent(connection: Connection, form: IntentForm, key: str) -> Intent | None:
    """Return the intent with this key, or None."""
    row = connection.execute(_FIND, {"outbox": form.outbox, "key": key}).fetchone()
    return None if row is None else form.intent_of(row)


def list_intents(connection: Connection, form: IntentForm, status: str | None, limit: int | None) -> list[Intent]:
    """Return the intents of *status*, all if it is None; the one that has its status for the longest time in front."""
    given = {"outbox": form.outbox, "status": status, "limit": limit}
    return list(map(form.intent_of, connection.execute(_LIST, given).fetchall()))


def claim(connection: Connection, form: IntentForm, given: dict[str, Any]) -> list[Intent]:
    """Take the intents that are due for the longest time, as many as there is room for.

    Those whose attempts are used up are dead from now on, and returned as such.
    """
    return list(map(form.intent_of, connection.execute(_CLAIM, given).fetchall()))


def find_claimed(connection: Connection, form: IntentForm, given: dict[str, Any]) -> list[Intent]:
    """Return what was taken by a statement whose answer was lost."""
    return list(map(form.intent_of, connection.execute(_CLAIMED, given).fetchall()))


def lock(connection: Connection, given: dict[str, Any]) -> bool:
    """Lock the row until the transaction ends; False if another dispatcher has taken or delivered it."""
    return connection.execute(_LOCK, given).fetchone() is not None


def note_delivered(connection: Connection, given: dict[str, Any]) -> None:
    """Write the receipt down."""
    connection.execute(_DELIVERED, given)


def note_failed(connection: Connection, given: dict[str, Any]) -> None:
    """Write down why the attempt failed, and when the next one may begin, if one may."""
    connection.execute(_FAILED, given)


def give_back(connection: Connection, given: dict[str, Any]) -> None:
    """Let another dispatcher take the intents of these keys now; the attempts aren't counted."""
    connection.execute(_GIVEN_BACK, given)


def put_back(connection: Connection, given: dict[str, Any]) -> bool:
    """Put a dead intent back; False if there is none with this key."""
    return connection.execute(_RETRY, given).fetchone() is not None


def delete_batch(connection: Connection, given: dict[str, Any]) -> int:
    """Delete a batch of old intents; return how many."""
    deleted: int = connection.execute(_DELETE, given).rowcount
    return deleted
