"""`AgentApp`: an ASGI application that runs an agent for web clients. It needs no framework, and can be mounted in one.

    POST /runs                   {"input": TEXT, "conversation": TEXT?}   the stream of a new run
    GET  /runs/ID/events         Last-Event-ID: RECORD.INDEX              the stream of a run, from after that event
    POST /runs/ID/cancel         {"call_id": TEXT?}                       ends a run that is under way, or one call
    POST /verdicts               {"handle": TEXT, "verdicts": [...]}      the stream of the run, resumed
    POST /ag-ui                  RunAgentInput                            the same in another protocol, if wanted

Every request is counted in `_requests` until it is answered, so that leaving the application's block can end all of
them and wait. Does not know how a run's events become frames (`_writer`), or who owns a run (`_response`, `_hosting`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from importlib.util import find_spec
from inspect import isawaitable
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import anyio
import attrs
import msgspec

from agentloop._common.checks import NAMES, check, is_a, optional
from agentloop._common.error_text import error_summary
from agentloop._common.extras import describe_missing
from agentloop._storage.signing import Keys
from agentloop.abc import Codec, Journal
from agentloop.agents import Agent
from agentloop.asgi._feed import Feed, FeedReader
from agentloop.asgi._hosting import Decide, RunHost, WebRun
from agentloop.asgi._http import (
    BodyT,
    ClientGone,
    HTTPRefusal,
    Receive,
    Scope,
    Send,
    WebLimits,
    answer_json,
    check_json,
    find_header,
    parse_body,
    read_body,
    while_connected,
)
from agentloop.asgi._response import RunResponse
from agentloop.asgi._resumption import ResumedRuns, resume_runs
from agentloop.asgi._states import ClientStates, JournalFolder, MemoryStates, RunJournals, StateStore, new_name
from agentloop.asgi._verdicts import ClientVerdict, apply_verdicts, give_verdicts
from agentloop.asgi._writer import EventWriter, StreamForm, format_event, format_frame
from agentloop.exceptions import StateError, UserError
from agentloop.items import Item
from agentloop.run import RunOptions
from agentloop.state import RunState

logger: logging.Logger = logging.getLogger("agentloop")

RUN_HEADER = b"agentloop-run"
"""The header of a stream's response that has the id of the run."""


class _StartBody(msgspec.Struct, forbid_unknown_fields=True):
    input: str
    conversation: str | None = None


class _CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    call_id: str | None = None


class _VerdictsBody(msgspec.Struct, forbid_unknown_fields=True):
    handle: str
    verdicts: list[ClientVerdict]
    conversation: str | None = None


_START: msgspec.json.Decoder[_StartBody] = msgspec.json.Decoder(_StartBody)
_CANCEL: msgspec.json.Decoder[_CancelBody] = msgspec.json.Decoder(_CancelBody)
_VERDICTS: msgspec.json.Decoder[_VerdictsBody] = msgspec.json.Decoder(_VerdictsBody)


@attrs.frozen(kw_only=True)
class WebRequest:
    """One request, as `admit` sees it.

    Attributes:
        action: What is asked for.
        scope: The ASGI scope, with the headers, the client's address, and what middleware has put there.
        run: The id of the run; None if the request starts one, or resumes a paused one that has no journal.
        conversation: What the client calls its conversation, or None.
    """

    action: Literal["start", "read", "cancel", "decide"]
    scope: Scope
    run: str | None = None
    conversation: str | None = None

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        value = find_header(self.scope, name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")


class Exchange(NamedTuple):
    """One request's side of ASGI."""

    scope: Scope
    receive: Receive
    send: Send


@attrs.frozen(kw_only=True)
class Grant:
    """An answer of `admit`: the options of the run, and the giver of the verdicts as the log keeps it."""

    options: RunOptions[Any] = attrs.field(factory=lambda: RunOptions())
    by: str | None = None


Admit: TypeAlias = Callable[[WebRequest], "Grant | Awaitable[Grant | None] | None"]


class AgentApp:
    """An ASGI application that runs *agent* and streams its events.

    Serve it by itself, or mount it in another application. Enter it for as long as the application lives
    (`async with app:`); served by itself it does that by its lifespan. Leaving it cancels all its runs and waits for
    their end, within the cleanup deadline of each.

    Args:
        agent: The agent to start with.
        on_disconnect: `"cancel"`: a run ends when its client leaves. `"continue"`: it continues, and a client that
            comes back reads the rest; needs *journals*, and the application to be entered.
        journals: Gives each run a journal; then a run can be read again, and a paused one is resumed from it.
        states: Keeps the states of paused runs that have no journal; `MemoryStates()` if not given.
        key: Seals the states in *states*; needed if clients carry them.
        codec: Seals the secrets in states; without it they are digests, and a call that needs one can't be resumed.
        admit: Called with each `WebRequest` before anything of the run is touched; may be async. Returns a
            `Grant` (None: one without options), or raises `HTTPRefusal`. Without it any client may do everything.
        limits: The bounds of requests; `WebLimits()` if not given.
        ag_ui: True to answer `POST /ag-ui` for clients of that protocol; their runs end with them. Needs the extra
            `ag-ui`.

    Raises:
        UserError: the arguments don't go together, or the extra isn't installed.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        *,
        on_disconnect: Literal["cancel", "continue"] = "cancel",
        journals: RunJournals | None = None,
        states: StateStore | None = None,
        key: Keys | None = None,
        codec: Codec | None = None,
        admit: Admit | None = None,
        limits: WebLimits | None = None,
        ag_ui: bool = False,
    ) -> None:
        check("agent", NAMES.needs("an Agent is needed", is_a(Agent)), agent)
        check("on_disconnect", NAMES.one_of("cancel", "continue"), on_disconnect)
        check("journals", optional(NAMES.needs("RunJournals are needed", is_a(RunJournals))), journals)
        check("states", optional(NAMES.needs("a StateStore is needed", is_a(StateStore))), states)
        check("admit", optional(NAMES.function()), admit)
        check("limits", optional(NAMES.a(WebLimits)), limits)
        if on_disconnect == "continue" and journals is None:
            raise UserError('on_disconnect="continue" needs journals: a client that comes back reads from them')
        if journals is not None and states is not None:
            raise UserError("journals and states can't be used together: a paused run is resumed from its journal")
        if isinstance(states, ClientStates) and key is None:
            raise UserError("ClientStates need a key: what a client carries must be sealed")
        self._agent = agent
        self._goes_on = on_disconnect == "continue"
        self._states: StateStore = states if states is not None else MemoryStates()
        self._keyed: dict[str, Any] = {"key": key, "codec": codec}
        self._journals = journals
        self._admit = admit
        self._limits = limits or WebLimits()
        self._host = RunHost(agent, journals, self._limits.max_runs)
        self._requests: set[anyio.CancelScope] = set()
        self._answered = anyio.Event()
        self._closing = False
        self._routes: dict[tuple[str, ...], tuple[str, Callable[..., Awaitable[None]]]] = {
            ("runs",): ("POST", self._start),
            ("runs", "", "events"): ("GET", self._read),
            ("runs", "", "cancel"): ("POST", self._cancel),
            ("verdicts",): ("POST", self._decide),
        }
        if ag_ui:
            if find_spec("ag_ui") is None:
                raise UserError(describe_missing("ag_ui", "ag-ui"))
            self._routes["ag-ui",] = ("POST", self._speak_ag_ui)

    # -- the application's life

    async def __aenter__(self) -> Self:
        await self._host.__aenter__()
        self._closing = False
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Stop, and leave the nursery of the runs."""
        try:
            await self.stop()  # noqa: ASYNC102 - shielded there
        finally:
            await self._host.__aexit__(exc_type, exc, tb)  # noqa: ASYNC102 - its runs have ended

    async def stop(self) -> None:
        """Cancel all requests and runs, refuse later ones, and return when all have ended.

        For a server that ends the lifespan only when every stream has ended: call it when the server begins to end.

        Cancellation: none; the wait is bounded by the cleanup deadlines of the runs.
        """
        self._closing = True
        self._host.cancel()
        with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - as said
            while self._requests:
                for scope in self._requests:
                    scope.cancel()
                await self._answered.wait()
            await self._host.wait_until_empty()

    async def resume(self, run: str, **options: Any) -> None:
        """Resume a run from its journal, as after a crash; clients read it under its id. The application is entered.

        Raises:
            HTTPRefusal: there is no such run, or it is under way.
            StateError: it is over, or the agents don't fit it.
        """
        async with self._host.claimed(run) as (live, journal):
            self._host.start(live, await self._host.load_paused(journal, None), journal, options)

    async def resume_all(self, *, cancelled: bool = False, **options: Any) -> ResumedRuns:
        """Resume every unfinished run of the `JournalFolder`, as after a crash. The application is entered.

        Paused runs are left for their verdicts, and those that another process has are left to it. The log names runs
        that can't be resumed; they prevent no other.

        Args:
            cancelled: True to resume also runs that were cancelled: by the end of the application, or by a client;
                the journal doesn't tell them apart.
            options: `RunOptions` without a journal.

        Raises:
            UserError: the journals are not those of a `JournalFolder`, or the application has not been entered.
            JournalError: the folder can't be listed.
        """
        if not isinstance(self._journals, JournalFolder):
            raise UserError("resume_all needs journals=JournalFolder(…): other journals can't be listed")
        return await resume_runs(self._host, self._journals, cancelled, options)

    # -- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the server's lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            serving = anyio.CancelScope()
            self._requests.add(serving)
            try:
                with serving:
                    await self._answer(scope, receive, send)
            finally:
                self._requests.discard(serving)
                answered, self._answered = self._answered, anyio.Event()
                answered.set()
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a `HTTPRefusal` as JSON, any other error with 500 and no word of it."""
        begun = False

        async def note_begin(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._route(scope, receive, note_begin)
        except ClientGone:
            pass
        except Exception as error:
            refusal = _refusal_for(error)
            if begun:
                raise  # it is the server that can end a response half sent
            await answer_json(send, refusal.status, {"error": refusal.sentence, **refusal.fields})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._closing:
            raise HTTPRefusal(503, "The application is ending.")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        parts = path.strip("/").split("/")
        run = parts[1] if len(parts) == 3 else None
        method, handler = self._routes.get((parts[0], "", parts[2]) if run else tuple(parts), ("", None))
        if handler is None:
            raise HTTPRefusal(404, "There is nothing here.")
        if scope["method"] != method:
            await answer_json(send, 405, {"error": f"{method} is needed."}, [(b"allow", method.encode())])
            return
        client = Exchange(scope, receive, send)
        await (handler(client) if run is None else handler(client, run))

    async def _let_in(self, request: WebRequest) -> Grant:
        """Return what the application allows.

        Raises:
            HTTPRefusal: nothing.
        """
        found = None if self._admit is None else self._admit(request)
        admitted = await found if isawaitable(found) else found
        if not isinstance(admitted, Grant | None):
            raise UserError(f"admit: an Grant or None is needed, not {admitted!r}")
        if admitted is not None and "journal" in admitted.options:
            raise UserError("admit: the journal of a run is given by `journals`, not by its options")
        return admitted or Grant()

    async def _body(self, client: Exchange, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
        return parse_body(client.scope, await read_body(client.scope, client.receive, self._limits), decoder)

    # -- requests

    async def _start(self, client: Exchange) -> None:
        body = await self._body(client, _START)
        admitted = await self._let_in(WebRequest(action="start", scope=client.scope, conversation=body.conversation))
        run = new_name()
        if self._journals is None:
            await self._respond(self._host.claim(run), None, body.input, admitted, client)
            return
        await self._begin(run, body.input, admitted, client)

    async def _begin(self, run: str, given: str | Decide, admitted: Grant, client: Exchange) -> None:
        """Begin a run with a journal, or resume it with verdicts, and stream its events.

        The run belongs to a task of its own from `start` on, or to this request until `_respond` returns.
        """
        feed: Feed | None = None
        async with self._host.claimed(run) as (live, journal):
            chosen = given if isinstance(given, str) else await self._host.load_paused(journal, given)
            if self._goes_on:
                feed = self._host.start(live, chosen, journal, admitted.options)
            else:
                await self._respond(live, journal, chosen, admitted, client)
        if feed is not None:
            await self._follow(run, feed, feed.last_id, client)

    async def _respond(
        self,
        live: WebRun,
        journal: Journal | None,
        given: str | RunState | Iterable[Item],
        admitted: Grant,
        client: Exchange,
        form: StreamForm | None = None,
    ) -> None:
        """Run within this request; the run is live until it is over."""

        async def keep(state: RunState) -> str:
            # Before the client has the handle: it may come back at once.
            await self._host.give_up(live, journal)
            if journal is not None:
                return live.id
            state.context = None  # given again, by `admit`
            return await self._states.put(state.to_string(**self._keyed))

        try:
            options: dict[str, Any] = {**admitted.options, "journal": journal}
            headers = [(RUN_HEADER, live.id.encode())]
            response = RunResponse(
                self._agent, given, limits=self._limits, keep_state=keep, headers=headers, form=form, **options
            )
            live.stream = response.stream
            await response(client.scope, client.receive, client.send)
        finally:
            await self._host.give_up(live, journal)  # noqa: ASYNC102 - shielded there

    async def _follow(self, run: str, feed: Feed, after: str | None, client: Exchange) -> None:
        """Send the events of a live run after the id *after*, until it is over or the client leaves."""
        reader = FeedReader(feed, after)

        async def serve() -> None:
            writer = EventWriter(client.send, self._limits)
            await writer.open([(RUN_HEADER, run.encode())])
            with reader:
                await writer.pump(reader.take)
            for data in feed.final:
                await writer.write(format_frame(data))
            await writer.close()

        await while_connected(client.receive, serve)

    async def _read(self, client: Exchange, run: str) -> None:
        await self._let_in(WebRequest(action="read", scope=client.scope, run=run))
        header = find_header(client.scope, b"last-event-id")
        after = None if not header else header.decode("latin-1")
        live = self._host.find(run)
        if live is not None and live.feed is not None:
            await self._follow(run, live.feed, after, client)
            return
        if live is not None and not self._goes_on:
            raise HTTPRefusal(409, "The run is under way, and streamed to the client that it ends with.")
        stored = await self._host.read(run, after)

        async def serve() -> None:
            writer = EventWriter(client.send, self._limits)
            await writer.open([(RUN_HEADER, run.encode())])
            for number, event in stored.events:
                await writer.write(format_event(number, event))
            for data in stored.final:
                await writer.write(format_frame(data))
            await writer.close()

        await while_connected(client.receive, serve)

    async def _cancel(self, client: Exchange, run: str) -> None:
        body = await self._body(client, _CANCEL)
        await self._let_in(WebRequest(action="cancel", scope=client.scope, run=run))
        live = self._host.find(run)
        if live is None or live.stream is None:
            raise HTTPRefusal(404, "No such run is under way.")
        if body.call_id is None:
            live.stream.cancel()
        elif not live.stream.cancel_call(body.call_id):
            raise HTTPRefusal(409, "No such call is under way.")
        await answer_json(client.send, 202, {"run": run})

    async def _decide(self, client: Exchange) -> None:
        body = await self._body(client, _VERDICTS)
        if not body.verdicts:
            raise HTTPRefusal(400, "The body doesn't fit: a verdict is needed.")
        run = body.handle if self._journals is not None else None
        admitted = await self._let_in(
            WebRequest(action="decide", scope=client.scope, run=run, conversation=body.conversation)
        )
        if run is None:
            await self._resume_state(
                body.handle, lambda state: apply_verdicts(state, body.verdicts, admitted.by), admitted, client
            )
            return
        live = self._host.find(run)
        if live is not None and live.stream is not None and not live.stream.is_complete:
            give_verdicts(live.stream, body.verdicts, admitted.by)
            await answer_json(client.send, 202, {"run": run})
            return
        await self._begin(run, lambda state: apply_verdicts(state, body.verdicts, admitted.by), admitted, client)

    async def _speak_ag_ui(self, client: Exchange) -> None:
        from agentloop.asgi._ag_ui import AGUIForm, read_input

        asked = read_input(check_json(client.scope, await read_body(client.scope, client.receive, self._limits)))
        action: Literal["start", "decide"] = "start" if asked.handle is None else "decide"
        admitted = await self._let_in(WebRequest(action=action, scope=client.scope, conversation=asked.thread_id))
        form = AGUIForm(asked.thread_id, asked.run_id)
        if asked.handle is None:
            await self._respond(self._host.claim(new_name()), None, asked.items, admitted, client, form)
        else:
            await self._resume_state(
                asked.handle, lambda state: asked.decide(state, admitted.by), admitted, client, form
            )

    async def _resume_state(
        self, handle: str, decide: Decide, admitted: Grant, client: Exchange, form: StreamForm | None = None
    ) -> None:
        """Take a state and resume it within this request. One that the verdicts don't fit is kept again."""
        text = await self._states.take(handle)
        if text is None:
            raise HTTPRefusal(409, "No run waits under this handle: it was resumed already, or there was none.")
        try:
            state = RunState.from_string(self._agent, text, **self._keyed)
            decide(state)
            live = self._host.claim(new_name())
        except Exception as error:
            refusal = _refusal_for(error)
            with anyio.CancelScope(shield=True):  # bounded by the store: the state must not be lost
                handle = await self._states.put(text)
            raise HTTPRefusal(refusal.status, refusal.sentence, handle=handle) from error
        await self._respond(live, None, state, admitted, client, form)


def _refusal_for(error: Exception) -> HTTPRefusal:
    """Return the answer to a request that has failed with *error*, which is logged."""
    if isinstance(error, HTTPRefusal):
        return error
    logger.error("a web request has failed: %s", error_summary(error))
    if isinstance(error, StateError):
        return HTTPRefusal(409, "The run can't be resumed: it is over, or it doesn't fit the agents.")
    return HTTPRefusal(500, "The request has failed.")
