"""The conversations that model calls' activities get: what is new in them, and not the whole each time.

The input of such an activity is in the workflow's history, which keeps it as long as the run. So it names the list of
items that an earlier one has, by digest, and gives the parts of it that still count and the items that are new. The
history then grows with the conversation, not with its square.

A list of items has a name: the digest of its items and of the run's call ids. The worker that performs the activity
knows the named list from an earlier call (`Remembered`), or reads it in the history, backwards from the latest event to
a list that it knows. Where it can't (the history was written by a release that writes items in another way, or may not
be read), the activity says so, and the workflow tells the conversation once more as a whole.

What is too large for one payload takes several: activities that only keep items come before the call itself.

What is secret is sealed with the names around it, since the digest of a short secret can be guessed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias

import attrs
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.converter import ActivitySerializationContext
from temporalio.service import RPCError

from agentloop._storage.item_codec import item_to_json
from agentloop.abc import Codec
from agentloop.items import Item
from agentloop.temporal._payloads import is_secret, pack, seal, unpack, unseal

Parts: TypeAlias = "list[Any]"
"""Of a told list: `[start, stop]` of the list that it names, or `{"new": items}`, whose text may be packed."""


class Lacking(Exception):
    """The list that an activity's input names can't be found by this worker."""


class Piece(NamedTuple):
    """An item as JSON, with its digest and the length of its text."""

    data: Any
    digest: bytes
    size: int


def make_piece(data: Any) -> Piece:
    """Return the item *data* with its digest."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return Piece(data, hashlib.sha256(text.encode()).digest(), len(text))


def name_list(digests: Iterable[bytes], call_ids: Iterable[str]) -> str:
    """Return the name of the list of items with these *digests* in a run with these *call_ids*."""
    made = hashlib.sha256(b"".join(digests))
    made.update(json.dumps(sorted(call_ids)).encode())
    return made.hexdigest()[:32]


def find_parts(known: Sequence[bytes], wanted: Sequence[bytes]) -> Iterator[tuple[int, int] | int]:
    """Yield how *wanted* is made of *known*: slices of it, as two places, and places of what it lacks."""
    places = {digest: at for at, digest in reversed(list(enumerate(known)))}
    at = 0
    while at < len(wanted):
        start = places.get(wanted[at])
        if start is None:
            yield at
            at += 1
            continue
        stop = start
        while at < len(wanted) and stop < len(known) and known[stop] == wanted[at]:
            at, stop = at + 1, stop + 1
        yield start, stop


# -- the workflow's side


class ActivityInput(NamedTuple):
    """The `items` and `call_ids` of one activity, and the bytes of the items.

    The bytes are those of the items as JSON, whether they are packed or not, and a codec's about twice as many: the
    workflow's timers depend on them, and a replay may be by a worker that packs otherwise, as one with a store does.
    """

    data: dict[str, Any]
    size: int


@attrs.frozen
class _Told:
    """The list that the latest activity of a run got."""

    name: str
    digests: list[bytes]
    call_ids: frozenset[str]
    is_secret: bool


class Telling:
    """Writes the conversations of a workflow for its activities."""

    def __init__(self, codec: Codec | None, most: int, *, is_packing: bool = True) -> None:
        self._codec, self._most, self._is_packing = codec, most, is_packing
        self._told: dict[tuple[str, ...], _Told] = {}
        self._pieces: dict[tuple[str, ...], dict[int, tuple[Item, Piece]]] = {}
        """The items of the latest list of each run, by their identity: each is written once."""

    def forget(self, path: tuple[str, ...]) -> None:
        """Tell the next conversation of the run at *path* as a whole."""
        self._told.pop(path, None)

    def tell(self, path: tuple[str, ...], items: Sequence[Item], call_ids: Iterable[str]) -> list[ActivityInput]:
        """Return the inputs of the activities that tell *items*, the last one that of the call itself.

        Those before it only keep what is too large for one payload.

        Raises:
            UserError: an item is secret, and there is no codec.
        """
        pieces, hidden, ids = self._write(path, items), is_secret(items), frozenset(call_ids)
        known = self._told.get(path)
        if known is not None and (known.is_secret > hidden or not known.call_ids <= ids):
            known = None
        wanted = [piece.digest for piece in pieces]
        steps = []
        listed = [] if known is None else known.digests
        lacking = [pieces[one] for one in find_parts(listed, wanted) if isinstance(one, int)]
        if (size := _measure(lacking)) > self._most:
            size = 0
            for chunk in _divide(lacking, self._most):
                kept = [*listed, *(piece.digest for piece in chunk)]
                told = known.call_ids if known is not None else frozenset()
                parts: Parts = [[0, len(listed)]] if listed else []
                name = name_list(kept, told)
                steps.append(self._form(known, [*parts, self._write_new(chunk)], name, hidden, (), _measure(chunk)))
                known, listed = _Told(name, kept, told, hidden), kept
        name = name_list(wanted, ids)
        added = ids if known is None else ids - known.call_ids
        steps.append(self._form(known, self._write_parts(listed, pieces, wanted), name, hidden, added, size))
        self._told[path] = _Told(name, wanted, ids, hidden)
        return steps

    def _write(self, path: tuple[str, ...], items: Sequence[Item]) -> list[Piece]:
        before = self._pieces.get(path, {})
        now: dict[int, tuple[Item, Piece]] = {}
        for item in items:
            now[id(item)] = before.get(id(item)) or (item, make_piece(item_to_json(item)))
        self._pieces[path] = now
        return [now[id(item)][1] for item in items]

    def _form(
        self, known: _Told | None, parts: Parts, name: str, hidden: bool, added: Iterable[str], size: int
    ) -> ActivityInput:
        form: Any = {"base": None if known is None else known.name, "parts": parts, "name": name}
        if known is None and len(parts) <= 1 and not any(isinstance(part["new"], str) for part in parts):
            form = parts[0]["new"] if parts else []  # as workers know it that are older than the names
        data = {"items": seal(form, self._codec) if hidden else form, "call_ids": sorted(added)}
        return ActivityInput(data, size * _SEALED if hidden else size)

    def _write_parts(self, known: Sequence[bytes], pieces: Sequence[Piece], wanted: Sequence[bytes]) -> Parts:
        parts: Parts = []
        new: list[Piece] = []
        for one in find_parts(known, wanted):
            if isinstance(one, int):
                new.append(pieces[one])
                continue
            if new:
                parts.append(self._write_new(new))
                new = []
            parts.append(list(one))
        return [*parts, self._write_new(new)] if new else parts

    def _write_new(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        items = [piece.data for piece in pieces]
        text = json.dumps(items, separators=(",", ":"))
        packed = pack(text, is_packing=self._is_packing)
        return {"new": items if packed is text else packed}


_SEALED = 2
"""Bytes of a sealed text for each of the text: a codec's own base64 in ours makes 1.8."""


def _measure(pieces: Iterable[Piece]) -> int:
    return sum(piece.size for piece in pieces)


def _divide(pieces: Sequence[Piece], most: int) -> Iterator[list[Piece]]:
    """Yield *pieces* in lists of at most *most* bytes, or of one that is larger."""
    chunk: list[Piece] = []
    room = most
    for piece in pieces:
        if chunk and piece.size > room:
            yield chunk
            chunk, room = [], most
        chunk.append(piece)
        room -= piece.size
    yield chunk


# -- the activity's side


@attrs.frozen
class Told:
    """A conversation as an activity has it."""

    pieces: Sequence[Piece]
    call_ids: frozenset[str]

    @property
    def name(self) -> str:
        """The name of the list."""
        return name_list((piece.digest for piece in self.pieces), self.call_ids)

    @property
    def items(self) -> list[Any]:
        """The items as JSON."""
        return [piece.data for piece in self.pieces]


@attrs.frozen
class _Stretch:
    """The input of one activity as it is in the history. *base* is None where it has the whole list."""

    base: str | None
    parts: Parts
    name: str | None
    added: Sequence[str]

    @classmethod
    def read(cls, asked: Mapping[str, Any], codec: Codec | None) -> _Stretch:
        """Read the input *asked*. Raises StateError if it is sealed, and *codec* can't open it."""
        items = unseal(asked["items"], codec)
        if isinstance(items, list):
            return cls(None, [{"new": items}], None, asked["call_ids"])
        return cls(items["base"], items["parts"], items["name"], asked["call_ids"])

    def apply(self, base: Told | None) -> Told:
        """Return the list, which is made of that of the *base*."""
        pieces: list[Piece] = []
        for part in self.parts:
            if isinstance(part, list):
                assert base is not None  # slices are of the list that is named
                pieces.extend(base.pieces[part[0] : part[1]])
            else:
                new = json.loads(unpack(part["new"])) if isinstance(part["new"], str) else part["new"]
                pieces.extend(map(make_piece, new))
        return Told(pieces, frozenset(self.added) | (frozenset() if base is None else base.call_ids))


class Remembered:
    """The lists that this process has got lately, up to *most* bytes of text. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._lists: dict[str, tuple[Told, int]] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Told | None:
        """Return the list *name*; None if it isn't known."""
        with self._lock:
            if (found := self._lists.pop(name, None)) is None:
                return None
            self._lists[name] = found
            return found[0]

    def put(self, name: str, told: Told) -> None:
        """Remember a list, and forget those that were used the longest time ago."""
        size = sum(piece.size for piece in told.pieces)
        with self._lock:
            self._size -= self._lists.pop(name, (None, 0))[1]
            self._lists[name] = told, size
            self._size += size
            while self._size > self._most:
                oldest = next(iter(self._lists))
                self._size -= self._lists.pop(oldest)[1]


_remembered = Remembered(64_000_000)


async def read_conversation(asked: Mapping[str, Any], codec: Codec | None, kind: str) -> Told:
    """Return the conversation that the input *asked* of an activity of the type *kind* means.

    Raises:
        Lacking: it names a list that neither this worker nor the run's history has.
        StateError: it is sealed, and *codec* can't open it.
    """
    chain = [_Stretch.read(asked, codec)]
    told = await _find_base(chain, codec, kind)
    for form in reversed(chain):
        told = form.apply(told)
    assert told is not None  # there is a form at least
    name = told.name
    if chain[0].name not in (None, name):
        raise Lacking
    _remembered.put(name, told)
    return told


async def _find_base(chain: list[_Stretch], codec: Codec | None, kind: str) -> Told | None:
    """Return the list that the last of *chain* is made of; None if it is whole. Adds the forms that are between."""
    async with aclosing(_read_backwards(kind)) as history:
        while (base := chain[-1].base) is not None:
            if (found := _remembered.get(base)) is not None:
                return found
            chain.append(await _find_form(history, base, codec))
    return None


async def _find_form(history: AsyncIterator[Mapping[str, Any]], name: str, codec: Codec | None) -> _Stretch:
    async for earlier in history:
        form = _Stretch.read(earlier, codec)
        if name == (form.apply(None).name if form.name is None else form.name):
            return form
    raise Lacking


async def _read_backwards(  # noqa: ASYNC900 - between two values it holds nothing open
    kind: str,
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the inputs of this workflow's activities of the type *kind*, the latest first."""
    client, info = activity.client(), activity.info()
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
        maximum_page_size=100,
    )
    while True:
        try:
            page = await client.workflow_service.get_workflow_execution_history_reverse(request)
        except RPCError as error:
            activity.logger.warning("the run's history can't be read: %s", error)
            raise Lacking from None
        for event in page.history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == kind:
                context = ActivitySerializationContext(
                    namespace=client.namespace,
                    activity_id=None,
                    workflow_id=info.workflow_id,
                    workflow_type=info.workflow_type,
                    activity_type=kind,
                    activity_task_queue=scheduled.task_queue.name,
                    is_local=False,
                )
                [asked] = await client.data_converter.with_context(context).decode(scheduled.input.payloads)
                yield asked
        if not page.next_page_token:
            return
        request.next_page_token = page.next_page_token
