"""`AgentApp`: an ASGI application that runs an agent for web clients. It needs no framework, and can be mounted in one.

    POST /runs                   {"input": TEXT, "run": ID?}              the stream of a new run
    GET  /runs/ID/events         Last-Event-ID: RECORD.INDEX              the stream of a run, from after that event
    POST /runs/ID/cancel         {"call_id": TEXT?, "path": [TEXT]?}      ends a run that is under way, or one call
    POST /runs/ID/answer         {"call_id": TEXT, "value": ANY}          answers a call; the stream of the run, resumed
    GET  /runs/ID                                                         what has become of the run and its inputs
    POST /runs/ID/input          {"input": TEXT, "when": ...?}            adds input to the run
    POST /runs/ID/withdraw       {"id": TEXT}                             takes an input back
    POST /verdicts               {"handle": TEXT, "verdicts": [...]}      the stream of the run, resumed
    POST /ag-ui                  RunAgentInput                            the same in another protocol, if wanted
    POST /ui-messages            {"messages": [UIMessage, ...]}           the same for Vercel's AI SDK, if wanted

Every request is counted in `_requests` until it is answered, so that leaving the application's block can end all of
them and wait. Knows the application's life, its paths, and what becomes of an error; not how a request is answered
(`_handlers`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Literal, Self

import anyio

from agentloop._common.checks import NAMES, check, is_a, optional
from agentloop._common.extras import describe_missing
from agentloop._common.web_names import WebNames
from agentloop._storage.signing import Keys, key_to_seal_with
from agentloop.abc import Codec
from agentloop.agents import Agent
from agentloop.asgi._handlers import Handlers, refusal_for
from agentloop.asgi._hosting import RunHost
from agentloop.asgi._http import ClientGone, HTTPRefusal, Receive, Scope, Send, WebLimits, answer_json, check_names
from agentloop.asgi._journals import JournalFolder, RunJournals
from agentloop.asgi._requests import Admit, Exchange
from agentloop.asgi._resumption import ResumedRuns, resume_runs
from agentloop.asgi._shared_state import SharedState
from agentloop.exceptions import UserError
from agentloop.journal._checks import check_codec
from agentloop.journal._states import ClientStates, MemoryStates, StateStore, bound


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
        key: Seals the states in *states*; needed if clients carry them. Of keys by id the first seals, and all open.
        codec: Seals the secrets in states; without it they are digests, and a call that needs one can't be resumed.
        admit: Called with each `WebRequest` before anything of the run is touched; may be async. Returns a
            `Grant` (None: one without options), or raises `HTTPRefusal`. Without it any client may do everything.
        limits: The bounds of requests; `WebLimits()` if not given.
        ag_ui: True to answer `POST /ag-ui` for clients of that protocol; their runs end with them. Needs the extra
            `ag-ui`.
        ui_messages: True to answer `POST /ui-messages` for clients with Vercel's AI SDK (`useChat`); their runs end
            with them.
        client_tools: The names of the tools that a client of AG-UI may bring, for the model to call and the client to
            answer; `["*"]`: every tool. The others of the client are left out, and so is one with the name of a tool
            of the agent.
        shared_state: The type of the state that AG-UI clients share with the tools of their runs; see `SharedState`.
            Without it a client's state is left out.
        hosts: The names under which clients reach the application, such as `"agents.example.com"`, with a port or
            without; a request with another `Host` is refused with 421. `["*"]`: every name. If not given, a server
            that was reached at this machine's own address (127.0.0.1) takes only the names of that, such as
            `localhost`, and any other server takes every name.
        origins: Other origins whose pages may send requests, such as `"https://app.example.com"`; those of any other
            origin than the application's own are refused with 403. `["*"]`: every origin. The headers by which a
            browser lets such a page read the answers (CORS) are a middleware's.

    Raises:
        UserError: the arguments don't go together, or the extra isn't installed.

    Example:
        from agentloop import Agent
        from agentloop.asgi import AgentApp
        from agentloop.testing import ScriptedModel, say

        app = AgentApp(Agent("a", model=ScriptedModel([say("hi")])))  # serve it: uvicorn module:app
        print(callable(app))  # True
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
        ui_messages: bool = False,
        client_tools: Sequence[str] = (),
        shared_state: type[Any] | None = None,
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        check("agent", NAMES.needs("expected an Agent", is_a(Agent)), agent)
        check("on_disconnect", NAMES.one_of("cancel", "continue"), on_disconnect)
        check("journals", optional(NAMES.needs("expected RunJournals", is_a(RunJournals))), journals)
        check("states", optional(NAMES.needs("expected a StateStore", is_a(StateStore))), states)
        check("admit", optional(NAMES.function()), admit)
        check("limits", optional(NAMES.a(WebLimits)), limits)
        check("client_tools", NAMES.texts(), client_tools)
        check("hosts", optional(NAMES.texts()), hosts)
        check("origins", NAMES.texts(), origins)
        if on_disconnect == "continue" and journals is None:
            raise UserError('on_disconnect="continue" needs journals: a client that comes back reads from them')
        if journals is not None and states is not None:
            raise UserError("journals and states can't be used together: a paused run is resumed from its journal")
        if client_tools and not ag_ui:
            raise UserError("client_tools need ag_ui=True: only its clients bring tools")
        if shared_state is not None and not ag_ui:
            raise UserError("shared_state needs ag_ui=True: only its clients share a state")
        if isinstance(states, ClientStates) and key is None:
            raise UserError("ClientStates need a key: what a client carries must be sealed")
        limits = limits or WebLimits()
        self._names = WebNames.of(hosts, origins)
        self._journals = journals
        self._host = RunHost(agent, journals, limits.max_runs)
        handlers = Handlers(
            agent=agent,
            host=self._host,
            states=MemoryStates() if states is None else bound(states),
            seal={"key": None if key is None else key_to_seal_with(key), "codec": check_codec(codec)},
            unseal={"key": key, "codec": codec},
            admit=admit,
            limits=limits,
            has_journals=journals is not None,
            goes_on=on_disconnect == "continue",
            client_tools=frozenset(client_tools),
            shared_state=None if shared_state is None else SharedState(shared_state, max_bytes=limits.max_shared_state),
        )
        self._requests: set[anyio.CancelScope] = set()
        self._answered = anyio.Event()
        self._closing = False
        self._routes: dict[tuple[str, ...], tuple[str, Callable[..., Awaitable[None]]]] = {
            ("runs",): ("POST", handlers.start),
            ("runs", ""): ("GET", handlers.describe),
            ("runs", "", "events"): ("GET", handlers.read),
            ("runs", "", "cancel"): ("POST", handlers.cancel),
            ("runs", "", "answer"): ("POST", handlers.answer),
            ("runs", "", "input"): ("POST", handlers.add_input),
            ("runs", "", "withdraw"): ("POST", handlers.withdraw),
            ("verdicts",): ("POST", handlers.decide),
        }
        if ag_ui:
            if find_spec("ag_ui") is None:
                raise UserError(describe_missing("ag_ui", "ag-ui"))
            self._routes["ag-ui",] = ("POST", handlers.speak_ag_ui)
        if ui_messages:
            self._routes["ui-messages",] = ("POST", handlers.speak_ui_messages)

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
            state = await self._host.load(journal)
            await self._host.prepare(live, state, journal, options)
            self._host.start(live, journal)

    async def resume_all(
        self,
        *,
        cancelled: bool = False,
        context_of: Callable[[str, str | None], Any] | None = None,
        **options: Any,
    ) -> ResumedRuns:
        """Resume every unfinished run of the `JournalFolder`, as after a crash. The application is entered.

        Paused runs are left for their verdicts and answers, and those that another process has are left to it. A run
        that waits for an answer whose time has passed is resumed. The log names runs that can't be resumed; they
        prevent no other.

        Args:
            cancelled: True to resume also runs that were cancelled: by the end of the application, or by a client;
                the journal doesn't tell them apart.
            context_of: Called with the id of each run that is resumed, and its owner; returns its context, in place of
                one `context=` for all. If it raises, that run is in `failed`, and the others are resumed.
            options: `RunOptions` without a journal.

        Raises:
            UserError: `context_of` and `context` are both given, or the journals are not those of a `JournalFolder`, or
                the application has not been entered.
            JournalError: the folder can't be listed.
        """
        if not isinstance(self._journals, JournalFolder):
            raise UserError("resume_all needs journals=JournalFolder(…): other journals can't be listed")
        check("context_of", optional(NAMES.function()), context_of)
        if context_of is not None and "context" in options:
            raise UserError("context and context_of can't be used together: each run has one context")
        return await resume_runs(self._host, self._journals, cancelled, options, context_of)

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

        with suppress(ClientGone):
            try:
                await self._route(scope, receive, note_begin)
            except ClientGone:
                raise
            except Exception as error:
                refusal = refusal_for(error)
                if begun:
                    raise  # it is the server that can end a response half sent
                await answer_json(send, refusal.status, {"error": refusal.sentence, **refusal.fields})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._closing:
            raise HTTPRefusal(503, "The application is ending.")
        check_names(scope, self._names)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        parts = path.strip("/").split("/")
        run = parts[1] if len(parts) > 1 else None
        method, handler = self._routes.get((parts[0], "", *parts[2:]) if run else tuple(parts), ("", None))
        if handler is None:
            raise HTTPRefusal(404, "There is nothing here.")
        if scope["method"] != method:
            await answer_json(send, 405, {"error": f"Expected {method}."}, [(b"allow", method.encode())])
            return
        client = Exchange(scope, receive, send)
        await (handler(client) if run is None else handler(client, run))
