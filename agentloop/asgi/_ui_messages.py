"""Runs in the UI message stream of Vercel's AI SDK, version 6 of the package `ai`, which `useChat` reads.

Each turn is a step of the client's message. Text and reasoning come as deltas, calls and their outputs as items, in the
model's order. Of an agent tool only the call and its output are shown, and its calls that wait.

A call that needs a verdict is `approval-requested`, and the id of the approval has the handle of the paused run. A call
that the client answers itself (`ExternalTool`) has the handle in its metadata. The next request has both again, in the
client's last message: the paused run is resumed by them, and its stream continues that message. So the server keeps
nothing but what every paused run is kept in.

A client sends the whole conversation with each request, and is believed about it; messages of the role `system` are
left out. A call that has no output is left out, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import msgspec

from agentloop import events as ev
from agentloop._storage.public_json import to_json
from agentloop.asgi._client_protocols import OURS, DeltaJoiner, as_text, name_call, read_image, read_name
from agentloop.asgi._http import Headers, HTTPRefusal, encode_public
from agentloop.asgi._verdicts import ClientAnswer, ClientVerdict, Decision, apply_decisions
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

if TYPE_CHECKING:
    from agentloop.results import RunResult
    from agentloop.state import RunState

_Chunk: TypeAlias = dict[str, Any]
_DONE = b"data: [DONE]\n\n"


class UIMessageForm:
    """A `StreamForm` that writes one run as a UI message stream. Made for one response, to the request *asked*."""

    headers: Headers = ((b"x-vercel-ai-ui-message-stream", b"v1"),)

    def __init__(self, asked: UIMessageInput) -> None:
        self._message = asked.continued or new_name()
        self._known = set(asked.calls)
        """The calls that the client's message has."""
        self._rejected: set[str] = set()
        self._in_step = False
        self._texts: dict[int, str] = {}
        """The ids of texts that have begun and whose item has not come, by their position in the answer."""
        self._reasoning: str | None = None
        self._deltas = DeltaJoiner()

    def begin(self) -> bytes:
        """Return the start of the message; that of a run that was resumed is the client's last one."""
        return _format([{"type": "start", "messageId": self._message}])

    def event(self, number: str | None, event: ev.Event) -> bytes:
        """Return the parts of *event*; empty where the protocol has none. Of nested runs only what has waited ends."""
        return _format(self._settle_nested(event) if event.path else self._convert(event))

    def _convert(self, event: ev.Event) -> Iterable[_Chunk]:
        match event:
            case ev.TurnStarted():
                yield from self._end_step()
                self._in_step = True
                yield {"type": "start-step"}
            case ev.TextDelta(text=text, item=item) if text := self._deltas.join(item, text):
                yield from self._end_reasoning()
                yield from self._write(item, text)
            case ev.ReasoningDelta(text=text) if text := self._deltas.join(None, text):
                if self._reasoning is None:
                    self._reasoning = new_name()
                    yield {"type": "reasoning-start", "id": self._reasoning}
                yield {"type": "reasoning-delta", "id": self._reasoning, "delta": text}
            case ev.ItemCreated(item=AssistantMessage() as message):
                yield from self._end_reasoning()
                if self._texts:
                    yield {"type": "text-end", "id": self._texts.pop(min(self._texts))}
                elif message.text:  # no delta came
                    yield from self._write(0, message.text)
                    yield from self._end_texts()
            case ev.ItemCreated(item=ToolCall() | HandoffCall() as call):
                yield from self._end_reasoning()
                yield from self._show(call)
            case ev.CallSettled(call=call, outcome=outcome):
                if outcome.status == "rejected":
                    self._rejected.add(call.call_id)
            case ev.ItemCreated(item=ToolOutput() | HandoffOutput() as output) if output.call_id in self._known:
                yield self._settle(output)
            case ev.AgentUpdated() | ev.CallProgress() | ev.CustomEvent() | ev.UsageNote():
                data = to_json(event)
                yield {"type": f"data-{data['type']}", "data": data, "transient": True}
            case _:
                pass

    def _settle_nested(self, event: ev.Event) -> Iterable[_Chunk]:
        if isinstance(event, ev.CallSettled) and (shown := _id_of(event.path, event.call)) in self._known:
            if event.outcome.status == "rejected":
                yield {"type": "tool-output-denied", "toolCallId": shown}
            else:
                output = to_json(event)["outcome"].get("output")
                yield {"type": "tool-output-available", "toolCallId": shown, "output": output}

    def _write(self, item: int, text: str) -> Iterable[_Chunk]:
        if item not in self._texts:
            self._texts[item] = new_name()
            yield {"type": "text-start", "id": self._texts[item]}
        yield {"type": "text-delta", "id": self._texts[item], "delta": text}

    def _show(self, call: ToolCall | HandoffCall, path: Sequence[str] = (), **more: Any) -> Iterable[_Chunk]:
        """Show a call with its arguments, and *more* about it."""
        named = {"toolCallId": _id_of(path, call), "toolName": call.name}
        if named["toolCallId"] not in self._known:
            self._known.add(named["toolCallId"])
            yield {"type": "tool-input-start", **named}
        yield {"type": "tool-input-available", **named, "input": _read_arguments(to_json(call)), **more}

    def _settle(self, output: ToolOutput | HandoffOutput) -> _Chunk:
        value = to_json(output)["output"]
        if output.call_id in self._rejected:
            return {"type": "tool-output-denied", "toolCallId": output.call_id}
        if isinstance(output, ToolOutput) and output.is_error:
            return {"type": "tool-output-error", "toolCallId": output.call_id, "errorText": as_text(value)}
        return {"type": "tool-output-available", "toolCallId": output.call_id, "output": value}

    def _end_reasoning(self) -> Iterable[_Chunk]:
        if self._reasoning is not None:
            yield {"type": "reasoning-end", "id": self._reasoning}
            self._reasoning = None

    def _end_texts(self) -> Iterable[_Chunk]:
        """End texts whose item never came, as the answer was cut or asked for again."""
        while self._texts:
            yield {"type": "text-end", "id": self._texts.pop(min(self._texts))}

    def _end_step(self) -> Iterable[_Chunk]:
        yield from self._end_reasoning()
        yield from self._end_texts()
        self._deltas.clear()
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def pause(self, interruptions: tuple[Interruption, ...], handle: str | None) -> bytes:
        """Return the end of a run that waits: its calls are to be approved, or answered, by the client."""
        chunks: list[_Chunk] = []
        for position, asked in enumerate(interruptions):
            shown = _id_of(asked.path, asked.call)
            if isinstance(asked, CallToAnswer):
                place = {OURS: {"handle": handle, "position": position}}
                chunks += self._show(asked.call, asked.path, providerMetadata=place)
            else:
                chunks += () if shown in self._known else self._show(asked.call, asked.path)
                approval = name_call(handle, position)
                chunks.append({"type": "tool-approval-request", "approvalId": approval, "toolCallId": shown})
        return _format([*chunks, *self._end_step(), {"type": "finish", "finishReason": "tool-calls"}]) + _DONE

    def end(self, result: RunResult[Any]) -> bytes:
        """Return the end of a run that has completed, was stopped, or was cancelled."""
        if result.status == "cancelled":
            last: _Chunk = {"type": "abort"}
        else:
            last = {"type": "finish", "finishReason": "stop" if result.status == "completed" else "other"}
        return _format([*self._end_step(), last]) + _DONE

    def error(self, description: dict[str, str]) -> bytes:
        """Return the end of a run that has failed."""
        return _format([*self._end_step(), {"type": "error", "errorText": description["message"]}]) + _DONE


def _id_of(path: Sequence[str], call: ToolCall | HandoffCall) -> str:
    """Return the id that a call has in the client's message; calls of a nested run may have the ids of the outer's."""
    return "/".join((*path, call.call_id))


def _read_arguments(call: Mapping[str, Any]) -> Any:
    """Return a call's arguments as the client has them: an object; what isn't JSON stays text."""
    given = call.get("arguments", {})
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given) if given else {}
    except ValueError:
        return given


def _format(chunks: Iterable[_Chunk]) -> bytes:
    return b"".join(b"data: %b\n\n" % encode_public(chunk) for chunk in chunks)


# ------------------------------------------------------------------------------------------------ requests


class _UIApproval(msgspec.Struct):
    id: str
    approved: bool | None = None
    reason: str | None = None


class _UIPart(msgspec.Struct, rename="camel"):
    """A part of a message; only a tool's have more than a text or a file."""

    type: str
    text: str = ""
    media_type: str = ""
    url: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    state: str = ""
    input: Any = None
    output: Any = None
    error_text: str = ""
    approval: _UIApproval | None = None
    call_provider_metadata: Any = None

    @property
    def tool(self) -> str | None:
        """The name of the tool; None if the part isn't a call."""
        if self.type == "dynamic-tool":
            return self.tool_name
        return self.type.removeprefix("tool-") if self.type.startswith("tool-") and self.tool_call_id else None


class _UIMessage(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    parts: list[_UIPart]
    id: str = ""


class _UIBody(msgspec.Struct):
    messages: list[_UIMessage]
    id: str | None = None


UI_MESSAGES: msgspec.json.Decoder[_UIBody] = msgspec.json.Decoder(_UIBody)


@attrs.frozen
class UIMessageInput:
    """A request of a client: the conversation as items, and what it says to a run that has paused.

    Attributes:
        items: The conversation.
        continued: The id of the message that the run's stream continues; None for a new one.
        calls: The ids of the calls in that message.
        handle: That of the paused run; None to begin one.
        answers: The part that answers a call that waits, by the call's position among them.
    """

    items: tuple[Item, ...]
    continued: str | None
    calls: frozenset[str]
    handle: str | None
    answers: Mapping[int, _UIPart]

    def decide(self, state: RunState, by: str | None) -> None:
        """Give the answers to the calls of *state* that wait, as verdicts where they are asked for.

        Raises:
            HTTPRefusal: one doesn't fit.
        """
        waiting = state.interruptions
        if any(position >= len(waiting) for position in self.answers):
            raise HTTPRefusal(409, "A call is answered that waits no more.")
        apply_decisions(state, [_decide(waiting[each], part) for each, part in self.answers.items()], by)


def _decide(asked: Interruption, part: _UIPart) -> Decision:
    call_id = asked.call.call_id
    if not isinstance(asked, CallToAnswer):
        approval = part.approval
        approved = approval is not None and approval.approved is True
        return ClientVerdict(call_id, approved, asked.path, None, None if approved or not approval else approval.reason)
    if part.state == "output-error":
        return ClientAnswer(call_id, asked.path, error=part.error_text or "The user's page gave no output.")
    return ClientAnswer(call_id, asked.path, part.output)


def read_ui_messages(body: _UIBody) -> UIMessageInput:
    """Return the request in *body*.

    Raises:
        HTTPRefusal: it has something that isn't taken (400).
    """
    last = body.messages[-1] if body.messages else None
    found = _find_answers(last.parts) if last is not None and last.role == "assistant" else []
    handle = found[-1][0] if found else None
    answers = {position: part for each, position, part in found if each == handle}
    continued = last if handle is not None else None
    return UIMessageInput(
        _read_messages(body.messages),
        None if continued is None else continued.id,
        frozenset(part.tool_call_id for part in continued.parts if part.tool) if continued else frozenset(),
        handle,
        answers,
    )


def _find_answers(parts: Iterable[_UIPart]) -> list[tuple[str, int, _UIPart]]:
    """Return the handle, the position and the part of each answer to a call that has waited, in the message's order.

    Raises:
        HTTPRefusal: a verdict has an id of another server (400).
    """
    found = []
    for part in parts:
        ours = part.call_provider_metadata.get(OURS) if isinstance(part.call_provider_metadata, dict) else None
        if part.state == "approval-responded" and part.approval is not None:
            named = read_name(part.approval.id)
            if named is None or not named[0]:
                raise HTTPRefusal(400, "A verdict is given on a call that is none of this server.")
            found.append((*named, part))
        elif part.state in ("output-available", "output-error") and isinstance(ours, dict):
            kept, place = ours.get("handle"), ours.get("position")
            named = read_name(name_call(kept, place)) if isinstance(kept, str) and type(place) is int else None
            if named is not None:
                found.append((*named, part))
    return found


def _read_messages(messages: Iterable[_UIMessage]) -> tuple[Item, ...]:
    """Return the conversation as items; calls side by side are one answer of the model."""
    items: list[Item] = []
    seen: set[str] = set()
    for message in messages:
        if message.role == "user":
            items.append(UserMessage(_read_content(message.parts)))
        elif message.role == "assistant":
            outputs: list[Item] = []
            for part in message.parts:
                name = part.tool
                if name is None:
                    items += outputs
                    outputs = []
                    items += [AssistantMessage(part.text)] if part.type == "text" and part.text else []
                elif (output := _read_output(part)) is not None and part.tool_call_id not in seen:
                    seen.add(part.tool_call_id)
                    items.append(ToolCall(part.tool_call_id, name, json.dumps(part.input or {})))
                    outputs.append(output)
            items += outputs
    return tuple(items)


def _read_output(part: _UIPart) -> ToolOutput | None:
    match part.state:
        case "output-available":
            return ToolOutput(part.tool_call_id, as_text(part.output))
        case "output-error":
            return ToolOutput(part.tool_call_id, part.error_text, is_error=True)
        case "output-denied":
            said = part.approval.reason if part.approval is not None else None
            return ToolOutput(part.tool_call_id, said or "The user has rejected the call.", is_error=True)
        case _:
            return None


def _read_content(parts: Iterable[_UIPart]) -> str | list[Part]:
    """Return the content of a user's message: text, or text and images that it carries.

    Raises:
        HTTPRefusal: it has another file (400): an address would be fetched by the provider.
    """
    content: list[Part] = [_read_part(part) for part in parts if part.type in ("text", "file")]
    if all(isinstance(part, Text) for part in content):
        return "\n".join(part.text for part in content if isinstance(part, Text))
    return content


def _read_part(part: _UIPart) -> Text | Image:
    if part.type == "text":
        return Text(part.text)
    head, _, data = part.url.partition(",")
    return read_image(part.media_type if head == f"data:{part.media_type};base64" else "", data)
