"""The envelope of records in a file: numbered lines, each chained to the one before, batches marked at their end.

A line is canonical JSON of a fixed shape, so that it is read by one pattern and its digest covers its very bytes::

    {"h":"…","kept":4,"key":"…","last":true,"n":5,"prev":"…","record":{…},"t":1700000000.5}

`h` is a truncated SHA-256 over the line without `h`; with a key it is HMAC-SHA256, and `key` names that key. `prev` is
the `h` of the line before, `n` the line's number from 0 on, `t` the wall-clock time of writing in seconds. `last`
stands on the last line of each batch: a batch without it never became part of the journal. `kept` is how many records
no crash could take any more when the line was written.

`kept` tells the two kinds of broken ends apart. A crash can tear what was being written: the rest of the file then
holds pieces of the batch that was under way (of several where syncs were put off), with zeros where blocks never
reached the disk. But where a line says that the journal had kept more than can be read before it, something whole has
been damaged since, and cutting it off would forget what happened. The same goes for a complete line without zeros in
it that has another digest or another place: nothing tears like that.
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
_whole_head = re.compile(_HEAD + rb'"(?:last|n)"')  # not one cut off before its key
_line = re.compile(_HEAD + _REST)
_OPENING = b'{"h":"'
_AFTER_DIGEST = len(_OPENING) + 32 + len(b'",')


@attrs.frozen
class End:
    """Where a chain stands: how many records it has, and the digest of its last line."""

    count: int
    digest: bytes


START = End(0, b"0" * 32)


@attrs.frozen
class Scan:
    """What was found: the records of all whole batches, the chain's end, the bytes they take, and how many follow."""

    records: list[bytes]
    end: End
    size: int
    torn: int


@attrs.frozen
class _Envelope:
    n: int
    prev: bytes
    digest: bytes
    last: bool
    record: bytes


class Seal:
    """Makes the digests of lines: plain ones see accidents, keyed ones see forgers too."""

    def __init__(self, key: bytes | None) -> None:
        if key is not None and not isinstance(key, bytes):
            raise UserTypeError(f"key: bytes are needed, not {type(key).__name__}")
        if key == b"":
            raise UserValueError("key: bytes that aren't empty are needed")
        self._mac: hmac.HMAC | None = None
        self.key_id: bytes | None = None
        if key is not None:
            # A key of our own derived from the user's, who may use theirs elsewhere too.
            derived = hmac.digest(key, b"agentloop journal", "sha256")
            self._mac = hmac.new(derived, digestmod="sha256")
            self.key_id = hmac.digest(derived, b"key id", "sha256").hex()[:8].encode()

    def __repr__(self) -> str:
        return f"Seal(key_id={self.key_id!r})"

    def digest(self, body: bytes) -> bytes:
        """Return the digest of a line whose bytes without `h` are *body*."""
        if self._mac is None:
            return hashlib.sha256(body).hexdigest()[:32].encode()
        mac = self._mac.copy()
        mac.update(body)
        return mac.hexdigest()[:32].encode()


# ---------------------------------------------------------------------------------------------- writing


def write_batch(records: Sequence[bytes], end: End, *, kept: int, now: float, seal: Seal) -> tuple[list[bytes], End]:
    """Return the lines of one batch that follows *end*, each with its line break, and the new end."""
    lines = []
    named = b"" if seal.key_id is None else b'"key":"%s",' % seal.key_id
    for index, record in enumerate(records):
        last = b'"last":true,' if index == len(records) - 1 else b""
        body = b'"kept":%d,%s%s"n":%d,"prev":"%s","record":%s,"t":%.6f}' % (
            *(kept, named, last),
            *(end.count, end.digest, record, now),
        )
        end = End(end.count + 1, seal.digest(b"{" + body))
        lines.append(b'%s%s",%s\n' % (_OPENING, end.digest, body))
    return lines, end


# ---------------------------------------------------------------------------------------------- reading


def scan(data: bytes, seal: Seal, name: str) -> Scan:
    """Return the longest prefix of *data* that is whole batches, if what follows is no more than a torn end.

    Raises:
        JournalError: naming *name* and the line, from 1 on: it was damaged or changed, or the key isn't the one it was
            sealed with.
    """
    _check_key(data, seal, name)
    records: list[bytes] = []
    pending: list[bytes] = []
    whole = chain = START
    at = size = 0
    while (stop := data.find(b"\n", at)) >= 0:
        entry = _entry(data[at:stop], seal)
        if entry is None or (entry.n, entry.prev) != (chain.count, chain.digest):
            break
        chain, at = End(chain.count + 1, entry.digest), stop + 1
        pending.append(entry.record)
        if entry.last:
            records += pending
            pending.clear()
            whole, size = chain, at
    _check_torn(data[size:], whole, seal, name)
    return Scan(records, whole, size, len(data) - size)


def _entry(line: bytes, seal: Seal) -> _Envelope | None:
    """Return what *line* says if it is one and has the right digest."""
    found = _line.fullmatch(line)
    if found is None:
        return None
    digest = found["h"]
    if not hmac.compare_digest(digest, seal.digest(b"{" + line[_AFTER_DIGEST:])):
        return None
    return _Envelope(int(found["n"]), found["prev"], digest, bool(found["last"]), found["record"])


def _check_key(data: bytes, seal: Seal, name: str) -> None:
    first = _whole_head.match(data)
    if first is None:
        # An end torn before there was any line begins as a line does, or with a block that never came.
        if not (data.startswith((_OPENING, b"\0")) or _OPENING.startswith(data)):
            raise JournalError(f"{name}: line 1 is no line of a journal")
    elif first["key"] != seal.key_id:
        if first["key"] is None:
            raise JournalError(f"{name}: it wasn't sealed with a key, and a key was given")
        given = "and none was given" if seal.key_id is None else f"not the one given (id {seal.key_id.decode()})"
        raise JournalError(f"{name}: it was sealed with a key (id {first['key'].decode()}), {given}")


def _check_torn(rest: bytes, whole: End, seal: Seal, name: str) -> None:
    """Raise JournalError unless *rest*, what follows the last whole batch, can come of a crash while writing."""
    chain, holed = whole, False
    *lines, unfinished = rest.split(b"\n")
    for number, piece in enumerate(lines, whole.count + 1):
        _check_kept(piece, whole, chain, name)
        entry = _entry(piece, seal)
        if b"\0" in piece:
            holed = True
        elif entry is None:
            raise JournalError(f"{name}: line {number} was changed after it was written")
        elif (entry.n, entry.prev) == (chain.count, chain.digest):
            chain = End(chain.count + 1, entry.digest)
        elif entry.n <= chain.count or not holed:
            raise JournalError(f"{name}: line {number} isn't the one that belongs there")
    _check_kept(unfinished, whole, chain, name)


def _check_kept(piece: bytes, whole: End, chain: End, name: str) -> None:
    if any(int(head["kept"]) > whole.count for head in _head.finditer(piece)):
        raise JournalError(f"{name}: line {chain.count + 1} is damaged or missing, and whole ones follow")
