"""The handlers of `AgentApp`: each answers one kind of request, once the application has found the path.

A run belongs to a task of the host where runs continue without their clients, and else to the request that began it.
Does not know about paths, methods, and the end of the application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from inspect import isawaitable
from typing import Any, Literal, NoReturn, Protocol

import anyio
import attrs

from agentloop._common.error_text import error_summary
from agentloop.abc import Journal
from agentloop.agents import Agent
from agentloop.asgi._feed import Feed, FeedReader
from agentloop.asgi._hosting import USUAL_GRACE, Decide, RunHost, WebRun, append_given
from agentloop.asgi._http import (
    HTTPRefusal,
    WebLimits,
    answer,
    answer_json,
    check_json,
    find_header,
    read_body,
    while_connected,
)
from agentloop.asgi._requests import (
    ANSWER,
    CANCEL,
    INPUT,
    START,
    VERDICTS,
    WITHDRAW,
    Admit,
    AnswerBody,
    Exchange,
    Grant,
    InputBody,
    WebRequest,
    WithdrawBody,
    ask_for_grant,
)
from agentloop.asgi._response import RunResponse, log_failure
from agentloop.asgi._shared_state import SharedState
from agentloop.asgi._verdicts import Decision, apply_decisions, as_sentence, give_decisions, state_of
from agentloop.asgi._writer import EventWriter, StreamForm, describe_run, format_event, format_frame
from agentloop.exceptions import InputRefusedError, StateError
from agentloop.items import Item
from agentloop.journal._states import StateStore, new_name, put_back
from agentloop.run._stream import RunStream
from agentloop.state import RunState

logger: logging.Logger = logging.getLogger("agentloop")

RUN_HEADER = b"agentloop-run"
"""The header of a stream's response that has the id of the run."""
_WAITING = "A call that waits in a paused run is rejected by /verdicts, or answered by an error."
_OTHER_HANDLE = "The handle is of another run than the path."
_BY_HANDLE = "No such run is under way. One that waits is found by its handle."


@attrs.frozen(kw_only=True, eq=False)
class Handlers:
    """The handlers of one application, and what they share.

    Attributes:
        agent: The agent of the application.
        host: Its runs.
        states: Where the states of paused runs are kept if runs have no journals.
        seal: The key and the codec of those states, as `RunState.to_string` takes them.
        unseal: The same, as `RunState.from_string` takes them.
        admit: The function of the application that lets requests in.
        limits: The bounds of requests.
        has_journals: Whether each run has a journal.
        goes_on: Whether a run continues without its client.
        client_tools: The names of the tools that an AG-UI client may offer to the model.
        shared_state: What the state of a client is read by; None if none is shared.
    """

    agent: Agent[Any, Any]
    host: RunHost
    states: StateStore
    seal: dict[str, Any]
    unseal: dict[str, Any]
    admit: Admit | None
    limits: WebLimits
    has_journals: bool
    goes_on: bool
    client_tools: Collection[str]
    shared_state: SharedState[Any] | None

    # -- new runs

    async def start(self, client: Exchange) -> None:
        """Begin a run, and stream it; a run that the client has begun under the same id before is streamed again."""
        body = await client.read(self.limits, START)
        if body.run is not None and not self.has_journals:
            raise HTTPRefusal(400, "A client chooses the id of a run only where runs have journals.")
        grant = await self._let_in(
            WebRequest(action="start", scope=client.scope, run=body.run, conversation=body.conversation)
        )
        if not self.has_journals:
            await self._respond(body.input, grant, client)
        elif body.run is None:
            await self._begin(new_name(), body.input, grant, client)
        else:
            await self._begin_or_stream(body.run, body.input, grant, client)

    async def _begin_or_stream(self, run: str, given: str, grant: Grant, client: Exchange) -> None:
        """Begin the run *run*, whose id the client has chosen, or stream it if it has begun already."""
        while not await self._has_begun(run, given, grant):  # so no other request can have claimed the run since
            try:
                await self._begin(run, given, grant, client, check=True)
            except _BegunMeanwhile:
                continue
            return
        await self._stream(run, None, grant, client)

    async def _has_begun(self, run: str, given: str, grant: Grant) -> bool:
        """Tell whether the run *run* is there, which began with *given*.

        Raises:
            HTTPRefusal: it began with something else, or is another owner's (409).
        """
        live = await self.host.find_decided(run)
        if live is not None and live.stream is not None:
            owner = live.owner
            same = live.input == given if live.input is not None else state_of(live.stream).began_with(given)
        elif (state := await self.host.find_stored(run)) is not None:
            owner, same = state.owner, state.began_with(given)
        elif self.host.find(run) is None:
            return False
        else:  # another request has claimed it meanwhile
            return await self._has_begun(run, given, grant)
        if owner not in (None, grant.owner):
            raise HTTPRefusal(409, "Another run has this id.")
        if not same:
            raise HTTPRefusal(409, "The run with this id began with another input.")
        return True

    async def _let_in(self, request: WebRequest) -> Grant:
        if request.shared_state is None and self.shared_state is not None:
            request = attrs.evolve(request, shared_state=self.shared_state._read(None))
        return await ask_for_grant(self.admit, request)

    async def _begin(
        self, run: str, given: str | Decide, grant: Grant, client: Exchange, *, check: bool = False
    ) -> None:
        """Begin a run with a journal, or resume it with what was decided, and stream its events.

        With *check* it begins only if the journal is empty. What was read before the run was claimed doesn't tell,
        because another request may have begun the run since, and the run may have ended.

        Verdicts and answers are durable once nothing but the disk, or another process, can prevent the run from being
        resumed.
        The run belongs to its own task from `host.start` on, or to this request until `_serve` returns.

        Raises:
            _BegunMeanwhile: with *check*, the run has begun.
        """
        feed: Feed | None = None
        response: RunResponse | None = None
        async with self.host.claimed(run) as (live, journal):
            if isinstance(given, str):
                if check and await journal.read():
                    raise _BegunMeanwhile
                chosen: str | RunState = given
            else:
                chosen = await self.host.load(journal)
                grant.check_owner(chosen.owner)
                given(chosen)
            if self.goes_on:
                await self.host.prepare(live, chosen, journal, grant.options_for(chosen))
            else:
                response = self._prepare(live, journal, chosen, grant)
            if isinstance(chosen, RunState):
                await append_given(journal, chosen)
            if response is None:
                feed = self.host.start(live, journal)
            else:
                await self._serve(response, live, journal, client)
        if feed is not None:
            await self._follow(run, feed, feed.last_id, client)

    async def _respond(
        self, given: str | Iterable[Item], grant: Grant, client: Exchange, form: StreamForm | None = None
    ) -> None:
        """Run without a journal, within this request."""
        live = self.host.claim(new_name())
        await self._serve(self._prepare(live, None, given, grant, form), live, None, client)

    def _prepare(
        self,
        live: WebRun,
        journal: Journal | None,
        given: str | RunState | Iterable[Item],
        grant: Grant,
        form: StreamForm | None = None,
    ) -> RunResponse:
        """Return the response that will run *live*.

        Raises:
            UserError: the options are wrong. The run is released.
            StateError: the state can't be resumed. The run is released.
        """

        async def keep(state: RunState) -> str:
            # Before the client has the handle: it may come back at once.
            await self.host.give_up(live, journal)
            if journal is not None:
                return live.id
            state.context = None  # given again, by `admit`
            return await self.states.put(state.to_string(**self.seal))

        granted = grant.options_for(given)
        options: dict[str, Any] = {**granted, "journal": journal}
        headers = [(RUN_HEADER, live.id.encode()), *getattr(form, "headers", ())]
        try:
            response = RunResponse(
                self.agent, given, limits=self.limits, keep_state=keep, headers=headers, form=form, **options
            )
        except BaseException:
            self.host.release(live)
            raise
        live.begin(response.stream, given, granted)
        live.decided.set()
        return response

    async def _serve(self, response: RunResponse, live: WebRun, journal: Journal | None, client: Exchange) -> None:
        """Run within this request; the run is live until it is over."""
        try:
            await response(client.scope, client.receive, client.send)
        finally:
            try:
                await self.host.give_up(live, journal)  # noqa: ASYNC102 - shielded there
            except Exception as error:
                log_failure(error)  # the response has ended

    # -- reading

    async def read(self, client: Exchange, run: str) -> None:
        """Stream a run from after the event that the client names: one under way, or a stored one."""
        grant = await self._let_in(WebRequest(action="read", scope=client.scope, run=run))
        header = find_header(client.scope, b"last-event-id")
        await self._stream(run, None if not header else header.decode("latin-1"), grant, client)

    async def _stream(self, run: str, after: str | None, grant: Grant, client: Exchange) -> None:
        """Stream a run from after the event *after*; see `read`."""
        live = await self.host.find_decided(run)
        if live is not None:
            grant.check_owner(live.owner)
        if live is not None and live.feed is not None:
            await self._follow(run, live.feed, after, client)
            return
        if live is not None:
            raise HTTPRefusal(409, "The run is under way, and streamed to the client that it ends with.")
        stored = await self.host.read(run, after, grant.check_owner)
        if after is not None and not stored.events and not stored.final:
            await answer(client.send, 204)  # else an EventSource would come back every few seconds, for ever
            return

        async def serve() -> None:
            writer = EventWriter(client.send, self.limits)
            await writer.open([(RUN_HEADER, run.encode())])
            for number, event in stored.events:
                await writer.write(format_event(number, event))
            await _end(writer, stored.final)

        await while_connected(client.receive, serve)

    async def _follow(self, run: str, feed: Feed, after: str | None, client: Exchange) -> None:
        """Send the events of a live run after the id *after*, until it is over or the client leaves."""
        reader = FeedReader(feed, after)

        async def serve() -> None:
            writer = EventWriter(client.send, self.limits)
            await writer.open([(RUN_HEADER, run.encode())])
            with reader:
                await writer.pump(reader.take)
            await _end(writer, feed.final)

        await while_connected(client.receive, serve)

    # -- deciding

    async def cancel(self, client: Exchange, run: str) -> None:
        """Cancel a run that is under way or is being resumed, or one call of it or of a nested run."""
        body = await client.read(self.limits, CANCEL)
        grant = await self._let_in(WebRequest(action="cancel", scope=client.scope, run=run))
        live = self.host.find(run)
        if live is None:
            raise HTTPRefusal(404, f"No such run is under way. {_WAITING}")
        if live.stream is not None:
            grant.check_owner(live.owner)
        if body.call_id is None:
            live.cancel(grant.owner)
        elif not _cancel_call(live.stream, body.call_id, body.path):
            raise HTTPRefusal(409, "No such call is under way.")
        await answer_json(client.send, 202, {"run": run})

    async def decide(self, client: Exchange) -> None:
        """Give verdicts: to a run under way, or to a paused one, which is resumed and streamed."""
        body = await client.read(self.limits, VERDICTS)
        if not body.verdicts:
            raise HTTPRefusal(400, "The body doesn't fit: expected a verdict.")
        run = body.handle if self.has_journals else None
        grant = await self._let_in(
            WebRequest(action="decide", scope=client.scope, run=run, conversation=body.conversation)
        )

        if run is None:
            await self._resume_state(body.handle, _applying(body.verdicts, grant), grant, client)
        elif not await self._give(run, body.verdicts, grant, client):
            await self._begin(run, _applying(body.verdicts, grant), grant, client)

    async def answer(self, client: Exchange, run: str) -> None:
        """Answer a call: of a run under way, or of a paused one, which is resumed and streamed."""
        body = await client.read(self.limits, ANSWER)
        grant = await self._let_in_to("answer", client, run, body)
        if not self.has_journals and body.handle is not None:
            await self._resume_state(body.handle, _applying([body], grant), grant, client)
        elif await self._give(run, [body], grant, client):
            pass
        elif self.has_journals:
            await self._begin(run, _applying([body], grant), grant, client)
        else:
            raise HTTPRefusal(404, _BY_HANDLE)

    async def _give(self, run: str, decisions: Sequence[Decision], grant: Grant, client: Exchange) -> bool:
        """Give *decisions* to a run that is under way, and say so to the client; return False if it isn't."""
        live = self.host.find(run)
        if live is None or live.stream is None or live.stream.is_complete:
            return False
        grant.check_owner(live.owner)
        await give_decisions(live.stream, decisions, grant.by)
        await answer_json(client.send, 202, {"run": run})
        return True

    async def _resume_state(
        self, handle: str, decide: Decide, grant: Grant, client: Exchange, form: StreamForm | None = None
    ) -> None:
        """Take a state and resume it within this request. One that can't be resumed by this request is kept again."""
        text = await self._take(handle)
        try:
            state = RunState.from_string(self.agent, text, **self.unseal)
            grant.check_owner(state.owner)
            decide(state)
            live = self.host.claim(new_name())
            response = self._prepare(live, None, state, grant, form)
        except Exception as error:
            await self._keep_again(handle, text, refusal_for(error))
        await self._serve(response, live, None, client)

    async def _take(self, handle: str) -> str:
        text = await self.states.take(handle)
        if text is None:
            raise HTTPRefusal(409, "No run waits under this handle: it was resumed already, or there was none.")
        return text

    async def _keep(self, text: str, handle: str | None = None) -> str:
        """Keep a state that was taken, also after a cancellation: it must not be lost. Return its handle.

        That is *handle* again, if the store can: who may not have the run doesn't take it from its owner.

        Raises:
            HTTPRefusal: the store doesn't take it, perhaps for want of room (503).
        """
        with anyio.move_on_after(USUAL_GRACE, shield=True):
            try:
                return await (self.states.put(text) if handle is None else put_back(self.states, handle, text))
            except StateError as error:
                logger.error("a paused run could not be kept: %s", error_summary(error))
                raise HTTPRefusal(503, "The server can't keep what was given: try again later.") from error
        raise TimeoutError(f"the store of paused runs did not take a state within {USUAL_GRACE:g} s")

    async def _keep_again(self, handle: str, text: str, refusal: HTTPRefusal) -> NoReturn:
        """Keep a state as it was, and refuse what was asked of it, with the handle."""
        raise HTTPRefusal(
            refusal.status, refusal.sentence, **refusal.fields, handle=await self._keep(text, handle)
        ) from refusal.__cause__

    # -- input

    async def describe(self, client: Exchange, run: str) -> None:
        """Say what has become of a run, and of the inputs that were added to it."""
        grant = await self._let_in(WebRequest(action="read", scope=client.scope, run=run))
        live = await self.host.find_decided(run)
        if live is None or live.stream is None:
            state = await self.host.load_stored(run)
            grant.check_owner(state.owner)
            under_way = False
        else:
            grant.check_owner(live.owner)
            state, under_way = state_of(live.stream), not live.stream.is_complete
        await answer_json(client.send, 200, describe_run(run, state, under_way=under_way))

    async def add_input(self, client: Exchange, run: str) -> None:
        """Add input to a run: one under way, which continues with it, or one that has paused, which keeps it."""
        body = await client.read(self.limits, INPUT)
        grant = await self._let_in_to("input", client, run, body)
        await self._put(
            client, run, body, grant, lambda to: to.add_input(body.input, when=body.when, id=body.id, by=grant.by)
        )

    async def withdraw(self, client: Exchange, run: str) -> None:
        """Take an input back, which the model has not been shown."""
        body = await client.read(self.limits, WITHDRAW)
        grant = await self._let_in_to("input", client, run, body)
        await self._put(client, run, body, grant, lambda to: to.withdraw(body.id, by=grant.by))

    async def _let_in_to(
        self,
        action: Literal["answer", "input"],
        client: Exchange,
        run: str,
        body: AnswerBody | InputBody | WithdrawBody,
    ) -> Grant:
        """Ask the application about a request on a run that works or waits, which a *body* may name by its handle."""
        if self.has_journals and body.handle not in (None, run):
            raise HTTPRefusal(400, _OTHER_HANDLE)
        known = run if self.has_journals or body.handle is None else None
        return await self._let_in(
            WebRequest(action=action, scope=client.scope, run=known, conversation=body.conversation)
        )

    async def _put(
        self,
        client: Exchange,
        run: str,
        body: InputBody | WithdrawBody,
        grant: Grant,
        put: Callable[[Any], Any],
    ) -> None:
        """Let *put* change the stream of a run under way, or the state of a paused one; say so to the client."""
        live = await self.host.find_decided(run)  # another request may be giving input to it just now
        handle: dict[str, str] = {}
        if live is not None and live.stream is not None and not live.stream.is_complete:
            grant.check_owner(live.owner)
            state_of(live.stream)
            given = await _put_into(live.stream, put)
        elif self.has_journals:
            async with self.host.claimed(run) as (claimed, journal):
                state = await self.host.load(journal)
                grant.check_owner(state.owner)
                given = await _put_into(state, put)
                await append_given(journal, state)
                await self.host.give_up(claimed, journal)
        elif body.handle is None:
            raise HTTPRefusal(404, _BY_HANDLE)
        else:
            text = await self._take(body.handle)
            try:
                state = RunState.from_string(self.agent, text, **self.unseal)
                grant.check_owner(state.owner)
                given = await _put_into(state, put)
                handle = {"handle": await self._keep(state.to_string(**self.seal))}
            except Exception as error:  # the store's, too, which may have no room for the longer state
                await self._keep_again(body.handle, text, refusal_for(error))
        await answer_json(client.send, 202, {"run": run, "id": given or body.id, **handle})

    # -- other protocols

    async def speak_ag_ui(self, client: Exchange) -> None:
        """Begin or resume a run, and stream it in the Agent-User Interaction Protocol."""
        from agentloop.asgi._ag_ui import AGUIForm, read_input

        body = check_json(client.scope, await read_body(client.scope, client.receive, self.limits))
        asked = read_input(body, self.client_tools, self.shared_state)
        grant = await self._let_in_to_speak(asked, asked.thread_id, client, asked.shared_state)
        grant = attrs.evolve(grant, options=asked.offer_tools(grant.options))
        await self._speak(asked, AGUIForm(asked), grant, client)

    async def speak_ui_messages(self, client: Exchange) -> None:
        """Begin or resume a run, and stream it as a UI message of Vercel's AI SDK."""
        from agentloop.asgi._ui_messages import UI_MESSAGES, UIMessageForm, read_ui_messages

        body = await client.read(self.limits, UI_MESSAGES)
        asked = read_ui_messages(body)
        grant = await self._let_in_to_speak(asked, body.id, client)
        await self._speak(asked, UIMessageForm(asked), grant, client)

    async def _let_in_to_speak(
        self, asked: _Asked, conversation: str | None, client: Exchange, state: SharedState[Any] | None = None
    ) -> Grant:
        action: Literal["start", "decide"] = "start" if asked.handle is None else "decide"
        return await self._let_in(
            WebRequest(action=action, scope=client.scope, conversation=conversation, shared_state=state)
        )

    async def _speak(self, asked: _Asked, form: StreamForm, grant: Grant, client: Exchange) -> None:
        if asked.handle is None:
            await self._respond(asked.items, grant, client, form)
        else:
            await self._resume_state(asked.handle, lambda state: asked.decide(state, grant.by), grant, client, form)


class _BegunMeanwhile(Exception):
    """Another request has begun the run, and the run has ended, since we have read its empty journal."""


class _Asked(Protocol):
    """A request in another protocol."""

    @property
    def handle(self) -> str | None: ...
    @property
    def items(self) -> tuple[Item, ...]: ...
    def decide(self, state: RunState, by: str | None) -> None: ...


def _applying(decisions: Sequence[Decision], grant: Grant) -> Decide:
    return lambda state: apply_decisions(state, decisions, grant.by)


async def _put_into(to: RunStream[Any] | RunState, put: Callable[[Any], Any]) -> str | None:
    """Let *put* change a stream or a state; return what it returns, an id or None.

    Raises:
        HTTPRefusal: the run takes it no more (409), with the reason as a word.
    """
    try:
        given = put(to)
        found: str | None = await given if isawaitable(given) else given
    except InputRefusedError as error:
        raise HTTPRefusal(409, as_sentence(error), reason=error.reason) from None
    return found


def _cancel_call(stream: RunStream[Any] | None, call_id: str, path: tuple[str, ...]) -> bool:
    try:
        return stream is not None and stream.cancel_call(call_id, path=path)
    except StateError:
        raise HTTPRefusal(409, f"The run has paused. {_WAITING}") from None


async def _end(writer: EventWriter, final: Iterable[dict[str, Any]]) -> None:
    """Send the frames that follow a run's last event, and end the response."""
    for data in final:
        await writer.write(format_frame(data))
    await writer.close()


def refusal_for(error: Exception) -> HTTPRefusal:
    """Return the answer to a request that has failed with *error*, which is logged."""
    if isinstance(error, HTTPRefusal):
        return error
    logger.error("a web request has failed: %s", error_summary(error))
    if isinstance(error, StateError):
        return HTTPRefusal(409, "The run can't be resumed: it is over, or it doesn't fit the agents.")
    return HTTPRefusal(500, "The request has failed.")
