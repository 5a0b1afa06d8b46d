"""The conversation that a realtime server keeps, as its client knows it: the items it has, and what to send next. Pure.

Theory. The server appends items to one conversation per session, and answers from all of them. A request of a run has
the whole history (or, with `previous_response_id`, what is new after a response). So three lists have to agree: the
history, the server's, and the entries here. An entry is an item that the history and the server both have, or that is
about to be sent. The first `settled` entries were part of a complete exchange: the last of them is a complete answer.
After that come entries of an exchange that was left or failed.

`find_overlap` says how much of a request the server has already; None means that it is another conversation's request.
`adopt` makes the entries those of the request; `take_events` then gives the events that the server lacks. `answer` and
`leave` end the exchange: with a complete answer, or with what the server had said until it was left.

What the server has and the history lacks (an item of an exchange that was left, an answer that was cut) depends on who
knows the conversation best. A whole history does: such items are deleted on the server, which then has the history and
no more; so a conversation can serve any run with an equal history, and nothing of one run shows in another. A request
that names a response leaves the memory to the server: the items stay there, and each call among them gets an output
that says that it was not run, as a server refuses a call without one.

A session ends with its connection, for most servers. A new session has no items: `begin_session` marks all entries as
not sent, and `take_events` gives them all, once. A server that continues the session says so by its id: then only what
it has not acknowledged is given.

Invariants: an item is sent at most once in a session; nothing changes if `adopt` raises.

Decisions:

No voice pipeline. There is no `agentloop.voice`, and a realtime session is a model (`agentloop.models.realtime`), no
runtime of its own. Recognition before a run and speech after it are steps of the application around a run, with
libraries and its own devices; `Audio` is a part of an item, so a model that hears takes it as it is. Rejected: a
pipeline of the three in the library. It would own microphones and codecs of sound, which say nothing of an agent
loop, and a run inside it would end, resume and replay no otherwise.

A realtime server keeps the conversation, so there are two memories of it: the server's and the run's. The run's is
the one that counts, since the log is the run. `RealtimeModel` gets the whole history with each request, like every
model, and makes the server's conversation equal to it with as few events as it can. So nothing of a session is in a
log, a resumed run needs no session, and one connection may serve any run with an equal history. Rejected: a session
as an object that the application passes to its runs. It would be a second source of truth, and a third way, beside
sessions and response ids, to continue a conversation. Also rejected: to keep an answer that was interrupted in the
server's memory in every case, as a voice agent would. Two runs with equal histories, for two users, would then share
what one of them had heard. It stays only where a request names a response, whose id no other run has.

One answer at a time per connection. The interface allows no second one, and a second run is another conversation. It
doesn't wait for the first, but gets its own connection: an application bounds the number of its runs already, and a
run that waits for a connection that its own consumer holds would wait for ever. Idle connections are bounded, since
each is a session that is paid for on the other side.

No task. A connection is read by the request that uses it. A task beside it would answer pings while no request is
made, but it needs a nursery to live in. That of the model's block can't be it: several runs enter one model, the
first that enters isn't the last that leaves, and the scope of a nursery around the application's block would be one
more way for a dead server to cancel it. Without a task a server that dies is noticed by the next request, which
replaces the connection before anything of an answer was seen; after 20 idle seconds a ping finds out first. The price
is that a server that ends connections without pongs makes the next request send the conversation again. Likewise
leaving an answer sends `response.cancel` and does not wait: the rest of the answer is read by the next request, in at
most two seconds, or its connection is replaced.

`websockets`, without its I/O. Its protocol is a class that takes bytes and gives bytes, so one module of ours runs it
on anyio's streams for both backends, and cancellation is anyio's. It is released monthly (17.4 in October 2026),
bounds messages before they are put together, and needs no further package. httpx-ws (0.9) runs on both backends, but
its connection is a task group in the caller's task, which cancels the caller's block when the connection dies, and
hangs on leaving a cancelled one. trio-websocket is for trio only. wsproto, on which both are built, bounds no
message. `websockets` logs the headers of its handshake at level DEBUG, the key among them, so it gets a logger that
is silent.

Not built: audio, proxies, and a method of `Model` for sending while an answer comes. In text, leaving an answer and
asking again says everything that such a method could.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import attrs

from agentloop.items import HandoffCall, Item
from agentloop.model_events import ModelRequest
from agentloop.models._codec import JsonDict
from agentloop.models._realtime.items import encode_item, encode_output, has_form
from agentloop.models._realtime.request import encode_create

NOT_RUN = "This call was not run: the answer that it is part of was interrupted."
"""The output of a call in an answer that was left."""


@attrs.define(eq=False)
class _Entry:
    item: Item
    wire: JsonDict
    id: str
    """The item's id on the server."""
    sent: bool = False
    """True once the server has it in this session, or it is on its way there."""
    acknowledged: bool = False


@attrs.define(eq=False)
class RealtimeConversation:
    """One conversation. Owned and mutated by the line that carries it."""

    last_response_id: str | None = None
    """The id of the last complete answer."""
    response_ids: set[str | None] = attrs.field(factory=set)
    """The ids of the session's responses that have ended, or were left."""
    _session_id: str | None = None
    _told: JsonDict | None = None
    """The session's configuration, as it was sent last."""
    _entries: list[_Entry] = attrs.field(factory=list)
    _awaited: dict[str, _Entry] = attrs.field(factory=dict)
    """The entries that were sent and aren't acknowledged, by the item's id."""
    _settled: int = 0
    _excess: list[str] = attrs.field(factory=list)
    """The ids of items that the server has and the history lacks."""
    _unpaired: list[str] = attrs.field(factory=list)
    """The ids of the calls among those."""
    _wire_ids: dict[str, str] = attrs.field(factory=dict)
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1))

    def find_overlap(self, request: ModelRequest, items: Sequence[Item]) -> int | None:
        """Return how many entries *request* continues; None if it doesn't continue this conversation.

        *items* are the request's, as `sendable_items` returns them: once for all conversations that are asked.
        """
        if request.previous_response_id is not None:
            return len(self._entries) if request.previous_response_id == self.last_response_id else None
        found = self._count_equal(items, 0)
        return found if found >= max(self._settled, 1) else None

    def _count_equal(self, items: Sequence[Item], start: int) -> int:
        """Return how many *items* equal the entries from *start* on, one by one."""
        found = 0
        for entry, item in zip(islice(self._entries, start, None), items, strict=False):
            if entry.item is not item:
                if entry.item != item and not self._is_handoff(entry, item):
                    break
                entry.item = item  # the same object comes with the next request
            found += 1
        return found

    def _is_handoff(self, entry: _Entry, item: Item) -> bool:
        """Tell whether *item* is the call of *entry*, which the run has found to be a handoff."""
        # With a copy of the ids, as the item may be of another conversation.
        return isinstance(item, HandoffCall) and entry.wire == encode_item(item, dict(self._wire_ids))

    def adopt(self, request: ModelRequest, items: Sequence[Item]) -> None:
        """Make the entries those of *request*, which continues this conversation or is its first.

        Raises:
            UserError: if a new item has no form in this interface; then nothing has changed.
        """
        if request.previous_response_id is None:
            kept = self._count_equal(items, 0)
            new = items[kept:]
        else:
            kept, loose = len(self._entries), len(self._entries) - self._settled
            # A resumed run asks again with what it had sent before it was interrupted.
            new = items[loose:] if self._count_equal(items, self._settled) == loose else items
        wires = [encode_item(item, self._wire_ids) for item in new]
        self._excess += [entry.id for entry in self._entries[kept:] if entry.sent]
        self._entries[kept:] = [_Entry(item, wire, self._new_id()) for item, wire in zip(new, wires, strict=True)]

    def _new_id(self) -> str:
        return f"item_{next(self._numbers)}"

    def can_tell(self, session: JsonDict) -> bool:
        """Tell whether an update can make *session* the configuration: it can't remove a field."""
        return self._told is None or self._told.keys() <= session.keys()

    def take_events(self, request: ModelRequest, session: JsonDict) -> list[JsonDict]:
        """Return the events that ask for the answer to *request*, which was adopted, in a session that is *session*.

        They count as sent from then on.
        """
        events: list[JsonDict] = []
        if session != self._told:
            events.append({"type": "session.update", "session": session})
            self._told = session
        if request.previous_response_id is None:
            events += [{"type": "conversation.item.delete", "item_id": id} for id in self._excess]
            self._excess.clear()
        else:
            for call_id in self._unpaired:
                self._excess.append(id := self._new_id())
                events.append(_make_creation(id, encode_output(call_id, NOT_RUN)))
        self._unpaired.clear()
        for entry in self._entries:
            if not entry.sent:
                entry.sent = True
                self._awaited[entry.id] = entry
                events.append(_make_creation(entry.id, entry.wire))
        return [*events, encode_create(request)]

    def acknowledge(self, item_id: object) -> None:
        """Note that the server has the item."""
        entry = self._awaited.pop(item_id, None) if isinstance(item_id, str) else None
        if entry is not None:
            entry.acknowledged = True

    def answer(
        self,
        response_id: str | None,
        items: Iterable[tuple[Item, str | None]],
        output: Iterable[Mapping[str, Any]],
    ) -> None:
        """Note a complete answer: its *items* with their ids on the server, of all of the server's *output*."""
        self.last_response_id = response_id
        self.response_ids.add(response_id)
        known = set()
        for item, id in items:
            known.add(id)
            wire = encode_item(item, self._wire_ids)
            self._entries.append(_Entry(item, wire, id or self._new_id(), sent=True, acknowledged=True))
        self._settled = len(self._entries)
        self._excess += [id for each in output if isinstance(id := each.get("id"), str) and id not in known]

    def leave(self, response_id: str | None, output: Iterable[Mapping[str, Any]]) -> None:
        """Note *output*, what the server had said in an answer that was left or broken off."""
        self.response_ids.add(response_id)
        for item in output:
            if isinstance(id := item.get("id"), str):
                self._excess.append(id)
            if item.get("type") == "function_call" and isinstance(call_id := item.get("call_id"), str):
                self._unpaired.append(call_id)

    def begin_session(self, session_id: str | None) -> None:
        """Note that a connection is open, to the session of that id: the one before, or one without any item."""
        self._told = None
        continued = session_id is not None and session_id == self._session_id
        self._session_id = session_id
        self._awaited.clear()
        for entry in self._entries:
            entry.sent = entry.acknowledged = continued and entry.acknowledged
        if not continued:
            self.response_ids.clear()
            self._excess.clear()
            self._unpaired.clear()


def sendable_items(request: ModelRequest) -> list[Item]:
    """Return the items of *request* that have a form in this interface, or that it refuses."""
    return [item for item in request.items if has_form(item)]


def _make_creation(item_id: str, wire: JsonDict) -> JsonDict:
    return {"type": "conversation.item.create", "item": {"id": item_id, **wire}}
