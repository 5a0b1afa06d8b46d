"""The envelope of records in a file: numbered lines, each chained to the one before, batches marked at their end.

A line is canonical JSON of a fixed shape, so that it is read by one pattern and its digest covers its very bytes::

    {"h":"…","kept":4,"key":"…","last":true,"n":5,"prev":"…","record":{…},"t":1700000000.5}

`h` is a truncated SHA-256 over the line without `h`; with a key it is HMAC-SHA256, and `key` names that key. `prev` is
the `h` of the line before, `n` the line's number from 0, `t` the wall-clock time of writing in seconds. `last` marks
the last line of each batch: a batch without it never became part of the journal. `kept` is the number of records that
no crash could lose any more when the line was written.

The key of the HMAC is derived from the user's key and from the journal's place: its kind of store and its run. So the
whole and unchanged lines of one run are refused in the place of another run's. Older versions left the place out.

`kept` distinguishes the two kinds of broken ends. A crash can tear the batch being written: the rest of the file then
holds pieces of that batch (of several batches if syncs were delayed), with zeros where blocks never reached the disk.
But if a line says that the journal had kept more records than can be read before it, a whole line has been damaged
since, and cutting it off would lose facts. The same is true for a complete line without zeros that has another digest
or another position: no crash tears a file like that.

Pure: bytes in, bytes out. Does not know about files, locks or the contents of records.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

import attrs

from agentloop.exceptions import JournalError, UserTypeError, UserValueError

_HEAD = rb'\{"h":"(?P<h>[0-9a-f]{32})","kept":(?P<kept>\d{1,18}),(?:"key":"(?P<key>[0-9a-f]{8})",)?'
_REST = (
    rb'(?P<last>"last":true,)?"n":(?P<n>\d{1,18}),"prev":"(?P<prev>[0-9a-f]{32})",'
    rb'"record":(?P<record>\{.*\}),"t":-?[0-9]+\.[0-9]+\}'
)
_head = re.compile(_HEAD)
_whole_head = re.compile(_HEAD + rb'"(?:last|n)"')  # excludes a head that was cut off before its key
_line = re.compile(_HEAD + _REST)
_OPENING = b'{"h":"'
LINE_HEAD = b'{"h":"%s"'
"""The beginning of a line, with its digest."""
_AFTER_DIGEST = len(_OPENING) + 32 + len(b'",')


@attrs.frozen
class End:
    """The end of a chain: the number of its records, and the digest of its last line."""

    count: int
    digest: bytes


START = End(0, b"0" * 32)


@attrs.frozen
class Scan:
    """The result of a scan: the records of all whole batches, the chain's end, sizes in bytes, and the lines' seal.

    `size` is the length of the whole batches, `torn` the length of the rest. A batch that follows needs the same seal.
    """

    records: list[bytes]
    end: End
    size: int
    torn: int
    seal: Seal


@attrs.frozen
class _Envelope:
    n: int
    prev: bytes
    digest: bytes
    last: bool
    record: bytes


class Seal:
    """Makes the digests of lines. Plain ones reveal accidents, keyed ones reveal forgeries too. Immutable.

    Args:
        key: The user's key, or None.
        place: The kind of store and the run, for which the key seals; None = any place, as in older versions.
        older_seals: Whether a journal that an older version sealed, for any place, is read too.
    """

    def __init__(self, key: bytes | None, place: tuple[str, str] | None = None, *, older_seals: bool = False) -> None:
        if key is not None and not isinstance(key, bytes):
            raise UserTypeError(f"key: expected bytes, got {type(key).__name__}")
        if key == b"":
            raise UserValueError("key: expected bytes that aren't empty")
        # Copied for each line, which takes a third of the time of a new one.
        self._begun: hmac.HMAC | hashlib._Hash = hashlib.sha256()
        self.key_id: bytes | None = None
        self.place = place
        self.older: Seal | None = None if key is None or place is None else Seal(key)
        self.takes_older = older_seals
        if key is not None:
            # A key derived from the user's, as the user may use that one for other data too. The key's id doesn't
            # depend on the run: so a wrong key and a wrong run give different errors.
            derived = hmac.digest(key, b"agentloop journal", "sha256")
            named = b"key id" if place is None else b"key id of a place"
            self.key_id = hmac.digest(derived, named, "sha256").hex()[:8].encode()
            if place is not None:
                text = "\0".join(place).encode("utf-8", "surrogatepass")
                derived = hmac.digest(derived, b"place " + text, "sha256")
            self._begun = hmac.new(derived, digestmod="sha256")

    def __repr__(self) -> str:
        return f"Seal(key_id={self.key_id!r})"

    def digest(self, body: bytes) -> bytes:
        """Return the digest of a line whose bytes without `h` are *body*."""
        hashed = self._begun.copy()
        hashed.update(body)
        return hashed.hexdigest()[:32].encode()


# ---------------------------------------------------------------------------------------------- writing


def write_batch(records: Sequence[bytes], end: End, *, kept: int, now: float, seal: Seal) -> tuple[list[bytes], End]:
    """Return the lines of one batch that follows *end*, each with its line break, and the new end."""
    lines, digest, after = [], end.digest, end.count + len(records)
    named = b"" if seal.key_id is None else b'"key":"%s",' % seal.key_id
    head, time = b'"kept":%d,%s' % (kept, named), b"%.6f" % now  # a float takes ten times as long as all the rest
    for number, record in enumerate(records, end.count):
        last = b'"last":true,' if number == after - 1 else b""
        body = b'%s%s"n":%d,"prev":"%s","record":%s,"t":%s}' % (head, last, number, digest, record, time)
        digest = seal.digest(b"{" + body)
        lines.append(b'%s%s",%s\n' % (_OPENING, digest, body))
    return lines, End(after, digest)


def write_end(lines: Sequence[bytes], record: bytes, *, now: float, seal: Seal) -> bytes:
    """Return the line of *record* that ends a chain behind *lines*, whose batch may not be whole without it.

    It takes the place of a line that others followed in its batch, when those are taken away.
    """
    digest = lines[-1][len(_OPENING) : len(_OPENING) + 32] if lines else START.digest
    written, _ = write_batch([record], End(len(lines), digest), kept=0, now=now, seal=seal)
    return written[0]


# ---------------------------------------------------------------------------------------------- reading


def scan(data: bytes, seal: Seal, name: str) -> Scan:
    """Return the longest prefix of *data* that is whole batches, if the rest can be the torn end of a crash.

    Raises:
        JournalError: naming *name* and the line, from 1: the line was damaged or changed, or the journal was sealed
            with another key or for another run.
    """
    seal = _choose_seal(data, seal, name)
    records: list[bytes] = []
    pending: list[bytes] = []
    whole = chain = START
    at = size = 0
    while (stop := data.find(b"\n", at)) >= 0:
        entry = _read_line(data[at:stop], seal)
        if entry is None or (entry.n, entry.prev) != (chain.count, chain.digest):
            break
        chain, at = End(chain.count + 1, entry.digest), stop + 1
        pending.append(entry.record)
        if entry.last:
            records += pending
            pending.clear()
            whole, size = chain, at
    _check_torn(data[size:], whole, seal, name)
    return Scan(records, whole, size, len(data) - size, seal)


def _read_line(line: bytes, seal: Seal) -> _Envelope | None:
    """Return the fields of *line*, or None if it isn't a line of a journal or has a wrong digest."""
    found = _line.fullmatch(line)
    if found is None:
        return None
    digest = found["h"]
    if not hmac.compare_digest(digest, seal.digest(b"{" + line[_AFTER_DIGEST:])):
        return None
    return _Envelope(int(found["n"]), found["prev"], digest, bool(found["last"]), found["record"])


def record_of(line: bytes) -> bytes:
    """Return the record in *line*, of which nothing is checked; empty if it isn't a line of a journal."""
    found = _line.fullmatch(line)
    return b"" if found is None else found["record"]


def _choose_seal(data: bytes, seal: Seal, name: str) -> Seal:
    """Return *seal*, or the older form of it if *data* has that, and it may be taken."""
    first = _whole_head.match(data)
    if first is None:
        # The torn end of a file without a whole line begins like a line, or with zeros of a block never written.
        if not (data.startswith((_OPENING, b"\0")) or _OPENING.startswith(data)):
            raise JournalError(f"{name}: line 1 is no line of a journal")
        return seal
    if first["key"] == seal.key_id:
        return seal
    if first["key"] is None:
        raise JournalError(f"{name}: it wasn't sealed with a key, and a key was given")
    if seal.older is not None and first["key"] == seal.older.key_id:
        if seal.takes_older:
            return seal.older
        raise JournalError(
            f"{name}: an older version sealed it, and its seal doesn't say for which run: "
            "give older_seals=True if nobody else could exchange it"
        )
    given = "and none was given" if seal.key_id is None else f"not the one given (id {seal.key_id.decode()})"
    raise JournalError(f"{name}: it was sealed with a key (id {first['key'].decode()}), {given}")


def _check_torn(rest: bytes, whole: End, seal: Seal, name: str) -> None:
    """Raise JournalError unless *rest*, the bytes after the last whole batch, can result from a crash while writing."""
    chain, holed = whole, False
    *lines, unfinished = rest.split(b"\n")
    for number, piece in enumerate(lines, whole.count + 1):
        _check_kept(piece, whole, chain, name)
        entry = _read_line(piece, seal)
        if b"\0" in piece:
            holed = True
        elif entry is None:
            raise JournalError(f"{name}: line {number} was changed after it was written{_or_moved(number, seal)}")
        elif (entry.n, entry.prev) == (chain.count, chain.digest):
            chain = End(chain.count + 1, entry.digest)
        elif entry.n <= chain.count or not holed:
            raise JournalError(f"{name}: line {number} isn't the one that belongs there")
    _check_kept(unfinished, whole, chain, name)


def _check_kept(piece: bytes, whole: End, chain: End, name: str) -> None:
    if any(int(head["kept"]) > whole.count for head in _head.finditer(piece)):
        raise JournalError(f"{name}: line {chain.count + 1} is damaged or missing, and whole ones follow")


def _or_moved(number: int, seal: Seal) -> str:
    """Return the other reason that line *number* may have for a wrong digest: its first line has it everywhere."""
    if number > 1 or seal.key_id is None or seal.place is None:
        return ""
    return f", or it was sealed for another run than {seal.place[1]!r}"
