"""Runs in the form of the Agent-User Interaction Protocol (AG-UI), 1.0, for the clients that speak it.

The package `ag-ui-protocol` (the extra `ag-ui`) writes the events. A message of the assistant begins with its first
delta and ends with its item; calls and their outputs come as items, in the model's order. Of an agent tool only the
call and its output are shown. A pause is the outcome `interrupt`, with one interrupt for each call that waits; the next
request answers them by their ids.

A client sends the whole conversation with each request, and is believed about it. Its context and messages of the roles
`system` and `developer` are left out, and so are its tools but for those that the application names.

Its state is left out, too, but for one of the type that the application shares (`SharedState`). Then the whole state
is the second event, and each change is a patch, sent as soon as it is made: we compare what the client has with the
present state. A change that no patch says shortly is the whole state again. So no change is lost, and each comes before
the events that follow it, however far behind the client is. Rejected: `ToolContext.emit`, which only bodies have, and
whose events are dropped while a consumer is behind; and a record, since the client's next request has the state.

Such a tool is an `ExternalTool` of the run. A call of it is ended, by the protocol's event, when the run has paused;
the event carries the handle of the paused run, which the client keeps with the call. The next request has the handle
again, and the output as the message of a tool: the paused run is resumed with it. So the server keeps nothing but what
every paused run is kept in, and a client that knows only the protocol continues the very same run. When nothing but
such calls waits the outcome is `success`, as clients that run tools expect; other calls are interrupts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import msgspec
import pydantic
from ag_ui import core as ui

from agentloop import events as ev
from agentloop._common.web_names import ANY
from agentloop._concurrency.backend import scheduler
from agentloop._schema.json_check import leave_out
from agentloop._storage.public_json import to_json
from agentloop.asgi._client_protocols import OURS, DeltaJoiner, as_text, name_call, read_image, read_name
from agentloop.asgi._http import HTTPRefusal, replace_surrogates
from agentloop.asgi._json_patch import find_patch
from agentloop.asgi._shared_state import SharedState
from agentloop.asgi._verdicts import ClientAnswer, ClientVerdict, Decision, apply_decisions
from agentloop.config import RunConfig
from agentloop.exceptions import ModelBehaviorError, UserError
from agentloop.items import (
    AssistantMessage,
    CallToAnswer,
    HandoffCall,
    HandoffOutput,
    Image,
    Interruption,
    Item,
    Part,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.journal._states import new_name
from agentloop.tools import ExternalTool, FunctionTool, ToolSelection

if TYPE_CHECKING:
    from agentloop.results import RunResult
    from agentloop.run import RunOptions
    from agentloop.state import RunState

_VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "message": {"type": "string", "description": "What the model is told about a rejection."},
        "editedArgs": {"type": "object", "description": "Arguments in place of the model's."},
    },
    "required": ["approved"],
}
_SHORT = 1_000
"""The bytes that a patch of the shared state may have in any case."""
_GIVEN_UP = "The user gave no answer."
_NO_OUTPUT = "The user's page gave no output."


class AGUIForm:
    """A `StreamForm` that writes one run as AG-UI events. Made for one response, to the request *asked*."""

    def __init__(self, asked: AGUIInput) -> None:
        self._ids: dict[str, Any] = {"thread_id": asked.thread_id, "run_id": asked.run_id}
        self._state = asked.shared_state
        self._sent_text = ""
        """The text of the state that the client has."""
        self._waiting: anyio.CancelScope | None = None
        if self._state is not None:
            self._state._listen(partial(_tell, scheduler(), self._wake))
        self._front_end = asked.front_end
        self._answered = asked.outputs.keys()
        self._unended: set[str] = set()
        """The calls of the client's tools that have begun and have no output, by their ids."""
        self._open: dict[int, str] = {}
        """The ids of messages that have begun and whose item has not come, by their position in the answer."""
        self._reasoning: str | None = None
        self._parent: str | None = None
        """The id of the answer's latest message, to which its calls belong: the client keeps both as one message."""
        self._deltas = DeltaJoiner()

    def begin(self) -> bytes:
        """Return the frame of the run's start."""
        return _format([ui.RunStartedEvent(**self._ids), *self._share()])

    def event(self, number: str | None, event: ev.Event) -> bytes:
        """Return the frames of *event*, behind what has changed; empty where the protocol has none."""
        return self.between() + (b"" if event.path else _format(self._convert(event)))

    @contextmanager
    def waiting(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel *scope* when the shared state is changed, and at once if it was since the client's last frame."""
        self._waiting = scope
        self._wake()
        try:
            yield
        finally:
            self._waiting = None

    def _wake(self) -> None:
        """End the wait for the next event, unless an event since the change has brought what changed."""
        if self._waiting is not None and self._state is not None and self._state._text != self._sent_text:
            self._waiting.cancel()

    def between(self) -> bytes:
        """Return what has changed in the shared state."""
        return _format(self._share())

    def _share(self) -> Iterable[ui.BaseEvent]:
        """Send the shared state if the client has none, else what has changed; whole if a patch would be longer."""
        if self._state is None or (text := self._state._text) == self._sent_text:
            return
        before, self._sent_text = self._sent_text, text
        now = json.loads(text)
        patch: list[Any] = list(find_patch(json.loads(before), now)) if before else []
        if patch and len(msgspec.json.encode(patch)) <= max(len(text), _SHORT) and not any(map(_is_refused, patch)):
            yield ui.StateDeltaEvent(delta=patch)
        else:
            yield ui.StateSnapshotEvent(snapshot=now)

    def _convert(self, event: ev.Event) -> Iterable[ui.BaseEvent]:
        match event:
            case ev.TextDelta(text=text, item=item) if text := self._deltas.join(item, text):
                yield from self._write(item, text)
            case ev.ReasoningDelta(text=text) if text := self._deltas.join(None, text):
                self._reasoning = self._reasoning or new_name()
                yield ui.ReasoningMessageChunkEvent(message_id=self._reasoning, delta=text)
            case ev.ItemCreated(item=AssistantMessage() as message):
                yield from self._close(message)
            case ev.ItemCreated(item=ToolCall() | HandoffCall() as call):
                self._parent = self._parent or new_name()
                yield ui.ToolCallStartEvent(
                    tool_call_id=call.call_id, tool_call_name=call.name, parent_message_id=self._parent
                )
                if arguments := as_text(to_json(call).get("arguments", "")):
                    yield ui.ToolCallArgsEvent(tool_call_id=call.call_id, delta=arguments)
                self._unended.add(call.call_id)
                if call.name not in self._front_end:
                    yield from self._end_call(call.call_id)
            case ev.ItemCreated(item=ToolOutput() | HandoffOutput() as output):
                yield from self._end_call(output.call_id)
                if output.call_id in self._answered:
                    return  # the client has the output, which it has sent
                content = as_text(to_json(output)["output"])
                yield ui.ToolCallResultEvent(message_id=new_name(), tool_call_id=output.call_id, content=content)
            case ev.AgentUpdated() | ev.CallProgress() | ev.CustomEvent() | ev.UsageNote():
                data = to_json(event)
                yield ui.CustomEvent(name=data["type"], value=data)
            case ev.TurnStarted() | ev.RunEnded():
                self._reasoning = self._parent = None
                self._deltas.clear()
                yield from self._end_open()
            case _:
                pass

    def _write(self, item: int, text: str) -> Iterable[ui.BaseEvent]:
        """Add *text* to the message at position *item* of the answer, which begins with it if it is the first piece."""
        if item not in self._open:
            self._open[item] = self._parent = new_name()
            yield ui.TextMessageStartEvent(message_id=self._open[item], role="assistant")
        yield ui.TextMessageContentEvent(message_id=self._open[item], delta=text)

    def _close(self, message: AssistantMessage) -> Iterable[ui.BaseEvent]:
        """End the message of an item, the first that is open; one of which no delta came is sent whole."""
        if self._open:
            yield ui.TextMessageEndEvent(message_id=self._open.pop(min(self._open)))
        elif message.text:
            yield from self._write(0, message.text)
            yield from self._end_open()

    def _end_open(self) -> Iterable[ui.BaseEvent]:
        """End messages whose item never came, as the answer was cut or asked for again."""
        while self._open:
            yield ui.TextMessageEndEvent(message_id=self._open.pop(min(self._open)))

    def _end_all(self) -> Iterable[ui.BaseEvent]:
        """End the messages and the calls that are open at the end of a run."""
        yield from self._end_open()
        for call_id in sorted(self._unended):
            yield from self._end_call(call_id)

    def _end_call(self, call_id: str, **more: Any) -> Iterable[ui.BaseEvent]:
        """End the call, unless it has ended."""
        if call_id in self._unended:
            self._unended.remove(call_id)
            yield ui.ToolCallEndEvent(tool_call_id=call_id, **more)

    def _hand_over(self, call: ToolCall, metadata: dict[str, Any]) -> Iterable[ui.BaseEvent]:
        """End a call with *metadata*; of one that had ended, to be approved, the client gets them by a second start."""
        if call.call_id not in self._unended:
            yield ui.ToolCallStartEvent(tool_call_id=call.call_id, tool_call_name=call.name, metadata=metadata)
            self._unended.add(call.call_id)
        yield from self._end_call(call.call_id, metadata=metadata)

    def pause(self, interruptions: tuple[Interruption, ...], handle: str | None) -> bytes:
        """Return the end of a run that waits: an interrupt for each call, whose id has the handle.

        A call of the client's own tool has no interrupt, but ends with the handle.
        """
        events: list[ui.BaseEvent] = []
        interrupts = []
        for position, asked in enumerate(interruptions):
            if _is_of_client(asked, self._front_end):
                events += self._hand_over(asked.call, {OURS: {"handle": handle}})
            else:
                interrupts.append(_interrupt(name_call(handle, position), asked))
        outcome = (
            ui.RunFinishedInterruptOutcome(interrupts=interrupts) if interrupts else ui.RunFinishedSuccessOutcome()
        )
        return _format([*self._share(), *events, *self._end_all(), ui.RunFinishedEvent(**self._ids, outcome=outcome)])

    def end(self, result: RunResult[Any]) -> bytes:
        """Return the end of a run that has completed, was stopped, or was cancelled."""
        outcome = ui.RunFinishedSuccessOutcome() if result.status != "cancelled" else ui.RunFinishedCancelledOutcome()
        return _format([*self._share(), *self._end_all(), ui.RunFinishedEvent(**self._ids, outcome=outcome)])

    def error(self, description: dict[str, str]) -> bytes:
        """Return the end of a run that has failed."""
        failed = ui.RunErrorEvent(message=description["message"], code=description["type"])
        return _format([*self._share(), *self._end_all(), failed])


def _tell(schedule: Callable[..., object], wake: Callable[[], None]) -> None:
    """Let the loop of *schedule* call *wake*; from any thread, and when that loop has ended, too."""
    with suppress(RuntimeError):
        schedule(wake)


def _is_refused(operation: Mapping[str, Any]) -> bool:
    """Tell whether the protocol's JavaScript client refuses an operation, as its path could change prototypes."""
    return "/__proto__" in operation["path"] or "/constructor/prototype" in operation["path"]


def _interrupt(id: str, asked: Interruption) -> ui.Interrupt:
    """Return the interrupt for a call that waits: what it asks for, with the schema from which a form can be made."""
    request = to_json(asked)
    more: dict[str, Any] = {
        "reason": "tool_call",
        "message": f"{asked.agent} wants to call {asked.call.name}.",
        "response_schema": _VERDICT,
    }
    if isinstance(asked, CallToAnswer):
        more = {
            "reason": "input_required",
            "message": f"{asked.agent} waits for the answer to {asked.call.name}.",
            "response_schema": request["returns"],
        }
        if asked.expires_at is not None:
            more["expires_at"] = datetime.fromtimestamp(asked.expires_at, UTC).isoformat()
    tool_call_id = None if asked.path else asked.call.call_id
    return ui.Interrupt(id=id, tool_call_id=tool_call_id, metadata={"request": request}, **more)


def _format(events: Iterable[ui.BaseEvent]) -> bytes:
    return b"".join(b"data: %b\n\n" % _encode(event) for event in events)


def _encode(event: ui.BaseEvent) -> bytes:
    try:
        return event.model_dump_json(by_alias=True).encode()
    except ValueError:  # half a character, in a tool's output
        return msgspec.json.encode(replace_surrogates(event.model_dump(by_alias=True)))


@attrs.frozen
class AGUIInput:
    """A request of a client: its ids, the conversation as items, and what it says to a run that has paused.

    Attributes:
        thread_id, run_id: The ids that the client has chosen.
        items: The conversation.
        front_end: The client's tools that the run offers, by name.
        handle: That of the paused run; None to begin one.
        answers: The position of each answered interrupt, whether it was resolved, and the payload.
        outputs: The outputs of calls of the client's tools, by the calls' ids.
        shared_state: The client's state; None if the application shares none.
    """

    thread_id: str
    run_id: str
    items: tuple[Item, ...]
    front_end: Mapping[str, FunctionTool[Any]]
    handle: str | None
    answers: tuple[tuple[int, bool, Any], ...]
    outputs: Mapping[str, ui.ToolMessage]
    shared_state: SharedState[Any] | None

    def offer_tools(self, options: RunOptions[Any]) -> RunOptions[Any]:
        """Return the options of a run that has *options*, and the client's tools beside those of its agents."""
        given: RunOptions[Any] = {**options}
        if self.front_end:
            config = given.get("run_config") or RunConfig()
            source = ToolSelection(source=tuple(self.front_end.values()))
            given["run_config"] = attrs.evolve(config, toolsets=[*config.toolsets, source])
        return given

    def decide(self, state: RunState, by: str | None) -> None:
        """Give the answers to the calls of *state* that wait, as verdicts where they are asked for.

        A call of a tool of the client that has no output has failed, if the outputs of others continue the run.

        Raises:
            HTTPRefusal: one doesn't fit.
        """
        waiting = state.interruptions
        if any(position >= len(waiting) for position, _, _ in self.answers):
            raise HTTPRefusal(409, "An interrupt is answered that waits no more.")
        decided = {position: _decide(waiting[position], *answer) for position, *answer in self.answers}
        for position, asked in enumerate(waiting):
            if position not in decided and _is_of_client(asked, self.front_end):
                decided[position] = _decide_output(asked.call.call_id, self.outputs.get(asked.call.call_id))
        apply_decisions(state, decided.values(), by)


def _is_of_client(asked: Interruption, front_end: Collection[str]) -> bool:
    """Tell whether a call waits for the client's own tool. Calls of nested runs aren't shown to it."""
    return isinstance(asked, CallToAnswer) and not asked.path and asked.call.name in front_end


def _decide_output(call_id: str, message: ui.ToolMessage | None) -> Decision:
    """Return the answer to a call of the client's tool: its output, or that it has failed."""
    if message is None:
        return ClientAnswer(call_id, error=_NO_OUTPUT)
    if message.error is not None:
        return ClientAnswer(call_id, error=message.error or _NO_OUTPUT)
    return ClientAnswer(call_id, value=_read_text(message.content))


def _decide(asked: Interruption, resolved: bool, payload: Any) -> Decision:
    """Return what an answer to an interrupt says about the call; one that was given up is a rejection, or an error."""
    call_id = asked.call.call_id
    if isinstance(asked, CallToAnswer):
        given_up = ClientAnswer(call_id, asked.path, error=_GIVEN_UP)
        return ClientAnswer(call_id, asked.path, payload) if resolved else given_up
    said = payload if isinstance(payload, dict) else {}
    approved = resolved and said.get("approved") is True
    return ClientVerdict(call_id, approved, asked.path, said.get("editedArgs"), said.get("message"), False)


def read_input(body: bytes, client_tools: Collection[str], shared: SharedState[Any] | None) -> AGUIInput:
    """Return the request in *body*, a `RunAgentInput`, with those of its tools that are in *client_tools*.

    Its state is read as one of the type of *shared*; left out if that is None.

    Raises:
        HTTPRefusal: it is none (400); names the first place.
    """
    try:
        asked = ui.RunAgentInput.model_validate_json(body)
    except pydantic.ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "the body"
        raise HTTPRefusal(400, f"The body is no RunAgentInput: see {place}.") from None
    front_end = _read_tools(asked.tools or (), client_tools)
    outputs, handles = _find_outputs(asked.messages) if front_end else ({}, set())
    answers = []
    for entry in asked.resume or ():
        if (named := read_name(entry.interrupt_id)) is None:
            raise HTTPRefusal(400, "An interrupt is answered that is none of this server.")
        handles.add(named[0])
        answers.append((named[1], entry.status == "resolved", entry.payload))
    if len(handles) > 1:
        raise HTTPRefusal(400, "The answers are to calls of several runs.")
    return AGUIInput(
        asked.thread_id,
        asked.run_id,
        _read_messages(asked.messages),
        front_end,
        next(iter(handles), None),
        tuple(answers),
        outputs,
        None if shared is None else _read_state(asked.state, shared),
    )


def _read_state(given: Any, shared: SharedState[Any]) -> SharedState[Any]:
    try:
        return shared._read(given)
    except ModelBehaviorError as error:
        raise HTTPRefusal(400, f"{error}.") from None


def _read_tools(given: Iterable[ui.Tool], client_tools: Collection[str]) -> dict[str, FunctionTool[Any]]:
    """Return the tools of a client that are in *client_tools*, by name.

    Patterns in their schemas are shown to the model, and left to the client to check: here one could keep the event
    loop of all runs busy.

    Raises:
        HTTPRefusal: one isn't valid, or two have one name (400).
    """
    found: dict[str, FunctionTool[Any]] = {}
    for tool in given:
        if ANY not in client_tools and tool.name not in client_tools:
            continue
        if tool.name in found:
            raise HTTPRefusal(400, f"Two tools have the name {tool.name[:100]!r}.")
        try:
            checked = leave_out("pattern", tool.parameters or {})
            made = ExternalTool(tool.name, tool.description, checked, returns={"type": "string"})
        except UserError as error:
            raise HTTPRefusal(400, f"A tool doesn't fit: {str(error)[:500]}.") from None
        shown = {**made.params_json_schema, **(tool.parameters or {})}
        found[tool.name] = attrs.evolve(made, params_json_schema=shown)
    return found


def _find_outputs(messages: Sequence[Any]) -> tuple[dict[str, ui.ToolMessage], set[str]]:
    """Return the outputs, by call, that end the conversation and continue a run that has paused, and its handle.

    Nothing where a message of the user follows them, or an answer of the model: the conversation then begins a run.
    Calls of one message can have different handles, if one had to be approved: the last output has the handle.
    """
    outputs: dict[str, ui.ToolMessage] = {}  # the last one first
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            outputs[message.tool_call_id] = message
        called = message.tool_calls or () if message.role == "assistant" else ()
        found = {call.id: _find_handle(call.metadata) for call in called if call.id in outputs}
        handles = {each: handle for each, handle in found.items() if handle is not None}
        if handles:  # so all outputs are looked through once, not for each message
            last = next(handles[each] for each in outputs if each in handles)
            return {each: output for each, output in outputs.items() if handles.get(each) == last}, {last}
    return {}, set()


def _find_handle(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the handle that `AGUIForm.pause` has put into the metadata of a call; None if there is none."""
    ours = (metadata or {}).get(OURS)
    handle = ours.get("handle") if isinstance(ours, dict) else None
    return handle if isinstance(handle, str) else None


def _read_messages(messages: Iterable[Any]) -> tuple[Item, ...]:
    """Return the conversation as items. A call without its output is left out, and an output without its call."""
    messages = list(messages)
    made = {call.id for message in messages if message.role == "assistant" for call in message.tool_calls or ()}
    answered = {message.tool_call_id for message in messages if message.role == "tool"} & made
    items: list[Item] = []
    for message in messages:
        if message.role == "user":
            items.append(UserMessage(_read_content(message.content)))
        elif message.role == "assistant":
            items += [AssistantMessage(message.content)] if message.content else []
            calls = [call for call in message.tool_calls or () if call.id in answered]
            items += [ToolCall(call.id, call.function.name, call.function.arguments) for call in calls]
        elif message.role == "tool" and message.tool_call_id in answered:
            items.append(ToolOutput(message.tool_call_id, _read_text(message.content)))
            answered.discard(message.tool_call_id)
    return tuple(items)


def _read_content(content: Any) -> str | list[Part]:
    """Return the content of a user's message: text, or text and images that it carries.

    Raises:
        HTTPRefusal: it has something else (400).
    """
    if isinstance(content, str) or all(part.type == "text" for part in content):
        return _read_text(content)
    return [Text(part.text) if part.type == "text" else _read_image(part) for part in content]


def _read_image(part: Any) -> Image:
    is_by_data = part.type == "image" and part.source.type == "data"
    return read_image(part.source.mime_type, part.source.value) if is_by_data else read_image("", "")


def _read_text(content: Any) -> str:
    """Return the text of a content; parts of other kinds are refused, since nothing here checks them."""
    if isinstance(content, str):
        return content
    if any(part.type != "text" for part in content):
        raise HTTPRefusal(400, "Only text can be sent.")
    return "\n".join(part.text for part in content)
