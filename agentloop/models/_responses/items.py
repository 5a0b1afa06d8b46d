"""The items of the Responses interface: ours to its JSON, and back. Pure.

An item that came from this interface holds what has no field of its own under `WIRE` in its `provider_data`, and goes
back as it came; what came from elsewhere goes without its id, and reasoning from elsewhere isn't sent at all. Does not
know about requests and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from agentloop.exceptions import ModelBehaviorError
from agentloop.items import (
    Annotation,
    AssistantMessage,
    Caller,
    Compaction,
    ContainerFileCitation,
    Content,
    File,
    FileCitation,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    JsonObject,
    OpaqueItem,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UrlCitation,
    UserMessage,
)
from agentloop.models._codec import (
    QUOTED,
    JsonDict,
    encode_json,
    optional_text,
    optional_whole,
    read_objects,
    read_text,
    without_none,
)
from agentloop.models._common import argument_text, data_url, earlier_name, fit_call_id, no_form, output_text
from agentloop.models._pieces import CALL_TYPES, OUTPUT_TYPES, PieceCache
from agentloop.models._responses import executors

INTERFACE = "the Responses interface"
WIRE = "responses"
"""Key in an item's `provider_data` of the fields that only this interface has; it marks the items that came from it."""
REASONED = "responses_reasoning"
"""Key in an item's `provider_data`, or in the data of a hosted tool's call, of the id of the reasoning that it came of.
The provider takes the item's own id only with that reasoning before it."""
HOSTED = {
    "additional_tools": None,
    "apply_patch_call": None,
    "apply_patch_call_output": "output",
    "code_interpreter_call": "outputs",
    "computer_call": None,
    "computer_call_output": "output",
    "file_search_call": "results",
    "image_generation_call": "result",
    "local_shell_call": None,
    "local_shell_call_output": "output",
    "mcp_approval_request": None,
    "mcp_approval_response": None,
    "mcp_call": "output",
    "mcp_list_tools": "tools",
    "program": None,
    "program_output": "result",
    "shell_call": None,
    "shell_call_output": "output",
    "tool_search_call": None,
    "tool_search_output": "tools",
    "web_search_call": None,
}
"""Kinds of items of tools that the provider runs, or asks the client to run, each with the field of what the tool gave;
None: it has none."""
CALLS: dict[str, Literal["function", "custom", "approval"]] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "mcp_approval_request": "approval",
}
"""Kinds of items that are calls, each with the call's kind."""
EXECUTOR_KINDS = frozenset(kind for kind, _ in executors.CONTENTS.values())
"""Kinds of the calls whose items are those of executors."""
_OF_THE_MODEL = (AssistantMessage, ToolCall, HandoffCall, HostedToolCall, OpaqueItem)


def write_items(
    items: Iterable[Item], pieces: PieceCache, *, reasoning_ids: bool = True
) -> Iterator[tuple[Item, bytes]]:
    """Yield each of a request's *items* that is sent, with its JSON; reasoning without its id if not *reasoning_ids*.

    Raises:
        UserError: for an item or part that has no form here; names its place.
    """
    calls: dict[str, ToolCall | HandoffCall] = {}
    thoughts: list[Reasoning] = []
    sent: set[str | None] = set()  # the ids of the reasoning that is sent
    for index, item in enumerate(items):
        call: ToolCall | HandoffCall | None = None
        if isinstance(item, Reasoning):
            # The provider refuses a reasoning without the item that came of it.
            if _wire(item) is not None:
                thoughts.append(item)
            continue
        if isinstance(item, CALL_TYPES):
            calls[item.call_id] = item
        elif isinstance(item, OUTPUT_TYPES):
            call = calls.get(item.call_id)
        if thoughts:
            if isinstance(item, _OF_THE_MODEL):
                for thought in thoughts:
                    sent.add(thought.id)
                    yield thought, _write_thought(thought, pieces, with_id=reasoning_ids)
            thoughts.clear()
        if (origin := _reasoned(item)) is not None and origin not in sent:
            # A session's limit, or the application, has left out the reasoning.
            if (orphan := _without_reasoning(item, f"items[{index}]")) is not None:
                yield item, encode_json(orphan)
            continue
        piece = pieces.find(item, call)
        if piece is None:
            piece = pieces.keep(item, encode_json(write_item(item, f"items[{index}]", call)), call)
        yield item, piece
        if isinstance(item, ToolOutput) and item.kind == "computer" and isinstance(call, ToolCall):
            reason = executors.write_missing_screenshot(item)
            if reason is not None:
                yield item, encode_json(reason)


def _write_thought(thought: Reasoning, pieces: PieceCache, *, with_id: bool) -> bytes:
    if not with_id:  # the cache knows an item by its identity alone
        return encode_json(_reasoning(thought.replace(id=None)))
    return pieces.find(thought) or pieces.keep(thought, encode_json(_reasoning(thought)))


def _reasoned(item: Item) -> str | None:
    """Return the id of the reasoning that *item* came of; None if it came of none, or from elsewhere."""
    data = item.data if isinstance(item, HostedToolCall) else getattr(item, "provider_data", None)
    found = data.get(REASONED) if isinstance(data, Mapping) else None
    return found if isinstance(found, str) else None


def note_reasoning(item: Item, reasoning_id: str) -> Item:
    """Return *item* with the id of the reasoning that it came of."""
    match item:
        case AssistantMessage() | ToolCall():
            return item.replace(provider_data={**(item.provider_data or {}), REASONED: reasoning_id})
        case HostedToolCall():
            return item.replace(data={**item.data, REASONED: reasoning_id})
        case _:
            return item


def _without_reasoning(item: Item, place: str) -> JsonDict | None:
    """Return the JSON of an item whose reasoning isn't sent: without its own id, by which the provider knows of it.

    None for an item that goes with its id only, as that of a tool that the provider runs: what it gave is in the text.
    """
    match item:
        case AssistantMessage():
            return _message(item.replace(id=None), place)
        case ToolCall(kind="approval"):
            return _call(item)  # whose id is that of the call
        case ToolCall() | HandoffCall():
            return {name: value for name, value in _call(item).items() if name != "id"}
        case _:
            return None


def write_item(item: Item, place: str, call: ToolCall | HandoffCall | None = None) -> JsonDict:
    """Return the JSON of *item*; an output answers *call*.

    Raises:
        UserError: for an item or part that has no form here; names its *place*.
    """
    match item:
        case SystemMessage():
            return {"role": "system", "content": _content(item.content, place)}
        case UserMessage():
            return {"role": "user", "content": _content(item.content, place)}
        case AssistantMessage():
            return _message(item, place)
        case ToolCall() | HandoffCall():
            return _call(item)
        case ToolOutput() | HandoffOutput():
            return _output(item, call)
        case HostedToolCall() if item.kind in HOSTED:
            return _hosted_call(item)
        case Compaction(data) | OpaqueItem(data) if isinstance(data.get("type"), str):
            return _as_it_came(data)
        case _:
            raise no_form(place, item, INTERFACE)


def _wire(item: Item) -> JsonObject | None:
    """Return what only this interface knows of *item*; None if the item came from elsewhere."""
    data = getattr(item, "provider_data", None)
    wire = data.get(WIRE) if isinstance(data, Mapping) else None
    return wire if isinstance(wire, Mapping) else None


def _as_it_came(data: Mapping[str, Any]) -> JsonDict:
    return {name: value for name, value in data.items() if name not in ("created_by", REASONED)}


def _message(item: AssistantMessage, place: str) -> JsonDict:
    wire = _wire(item)
    if wire is None or item.id is None:
        # The form for the model's own parts wants the id that the provider gave.
        said = [part.refusal if isinstance(part, Refusal) else part for part in item.content]
        return {
            "role": "assistant",
            "content": "".join(part if isinstance(part, str) else _word(part, place) for part in said),
        }
    content = wire.get("content")
    if content is None or read_parts(content) != item.content:  # else what it holds beyond the parts goes back, too
        content = [_output_part(part, f"{place}.content[{n}]") for n, part in enumerate(item.content)]
    more = {name: value for name, value in wire.items() if name not in ("content", "id", "role", "type")}
    return {"type": "message", "role": "assistant", "status": "completed", **more, "id": item.id, "content": content}


def _word(part: Part, place: str) -> str:
    if not isinstance(part, Text):
        raise no_form(place, part, INTERFACE)
    return part.text


def _output_part(part: Part, place: str) -> JsonDict:
    match part:
        case Text():
            annotations = [_annotation(one) for one in part.annotations]
            return {"type": "output_text", "text": part.text, "annotations": annotations}
        case Refusal():
            return {"type": "refusal", "refusal": part.refusal}
        case _:
            raise no_form(place, part, INTERFACE)


def _annotation(one: UrlCitation | FileCitation | ContainerFileCitation) -> JsonDict:
    match one:
        case UrlCitation():
            bounds = {"start_index": one.start or 0, "end_index": one.end or 0}
            return {"type": "url_citation", "url": one.url, "title": one.title or "", **bounds}
        case FileCitation():
            name = {"filename": one.filename or "", "index": one.index or 0}
            return {"type": "file_citation", "file_id": one.file_id, **name}
        case _:
            bounds = {"start_index": one.start or 0, "end_index": one.end or 0}
            name = {"file_id": one.file_id, "filename": one.filename or ""}
            return {"type": "container_file_citation", "container_id": one.container_id, **name, **bounds}


def _call(item: ToolCall | HandoffCall) -> JsonDict:
    wire, call_id = _wire(item) or {}, _wire_id(item)
    if isinstance(item, ToolCall) and executors.has_item(item):
        caller = _caller(item)
        return executors.write_call(item, call_id, wire) | ({} if caller is None else {"caller": caller})
    if isinstance(item, ToolCall) and item.kind == "approval":
        asked = {"name": item.name, "server_label": item.namespace or "", "arguments": item.arguments}
        return {**wire, "type": "mcp_approval_request", "id": call_id, **asked}
    name = earlier_name(item.name)
    if isinstance(item, ToolCall) and item.kind == "custom":
        sent: JsonDict = {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": item.arguments}
    else:
        arguments = argument_text(item.arguments)
        sent = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    if isinstance(item, ToolCall):
        sent |= without_none({"namespace": item.namespace, "caller": _caller(item)})
    return sent | {name: value for name, value in wire.items() if name not in sent}


def _wire_id(call: ToolCall | HandoffCall) -> object:
    """Return the id of *call* for the server: its own if it has made the call, else the run's."""
    wire = _wire(call)
    return fit_call_id(call.call_id, _MOST_ID) if wire is None else wire.get("call_id", call.call_id)


_MOST_ID = 64
"""Characters of a call's id that the vendor takes."""


def _caller(call: ToolCall) -> JsonDict | None:
    if call.caller is None:
        return None
    return {"type": call.caller.kind} | ({} if call.caller.id is None else {"caller_id": call.caller.id})


def _output(item: ToolOutput | HandoffOutput, call: ToolCall | HandoffCall | None) -> JsonDict:
    wire = None if call is None else _wire(call)
    call_id = item.call_id if call is None else _wire_id(call)
    if isinstance(item, ToolOutput) and item.kind == "approval":
        return _verdict(item, call_id)
    custom = isinstance(item, ToolOutput) and item.kind == "custom"
    caller = _caller(call) if isinstance(call, ToolCall) else None
    if (
        isinstance(item, ToolOutput)
        and isinstance(call, ToolCall)
        and call.kind in EXECUTOR_KINDS
        and executors.has_item(call)
    ):
        sent = executors.write_output(item, call, call_id, wire or {})
        return sent | ({} if caller is None else {"caller": caller})
    return {
        "type": "custom_tool_call_output" if custom else "function_call_output",
        "call_id": call_id,
        "output": _output_content(item.output),
        **({} if caller is None else {"caller": caller}),
    }


def _verdict(item: ToolOutput, request_id: object) -> JsonDict:
    """Return the answer to a request for approval: an output that is an error is the reason to reject it."""
    sent = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": not item.is_error}
    return sent | ({"reason": output_text(item.output)} if item.is_error else {})


def _output_content(output: Content) -> str | list[JsonDict]:
    if isinstance(output, str):
        return output
    return [_write_part(part) for part in output]


def _write_part(part: Part) -> JsonDict:
    """Return a part of a tool's output. A mark replaces a part that can't be shown, so that the model knows of it."""
    if isinstance(part, Image | File | Text):
        return input_part(part, "")
    return input_text(part.refusal if isinstance(part, Refusal) else f"[{type(part).__name__.lower()} omitted]")


def _reasoning(item: Reasoning) -> JsonDict:
    sent: JsonDict = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in item.summary]}
    if item.id is not None:
        sent["id"] = item.id
    if item.content:
        sent["content"] = [{"type": "reasoning_text", "text": text} for text in item.content]
    if item.encrypted is not None:
        sent["encrypted_content"] = item.encrypted
    return sent | {name: value for name, value in (_wire(item) or {}).items() if name not in sent}


def _hosted_call(item: HostedToolCall) -> JsonDict:
    answer = HOSTED[item.kind]
    sent = {"type": item.kind, "id": item.id, "status": item.status, "call_id": item.call_id}
    if answer is not None and item.output is not None:
        sent[answer] = item.output
    return _as_it_came({**item.data, **without_none(sent)})


def _content(parts: Iterable[Part], place: str) -> str | list[JsonDict]:
    parts = tuple(parts)
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [input_part(part, f"{place}.content[{index}]") for index, part in enumerate(parts)]


def input_text(text: str) -> JsonDict:
    """Return the JSON of a text that isn't the model's."""
    return {"type": "input_text", "text": text}


def input_part(part: Part, place: str) -> JsonDict:
    """Return the JSON of a part that isn't the model's.

    Raises:
        UserError: for a part that has no form here; names *place*.
    """
    match part:
        case Text():
            return input_text(part.text)
        case Image():
            url = part.url if part.url is not None else data_url(part) if part.data is not None else None
            source = {"image_url": url} if url is not None else {"file_id": part.file_id}
            return {"type": "input_image", "detail": part.detail or "auto", **source}
        case File():
            name = without_none({"filename": part.filename})
            if part.data is not None:
                return {"type": "input_file", "file_data": data_url(part), **name}
            source = {"file_id": part.file_id} if part.url is None else {"file_url": part.url}
            return {"type": "input_file", **source, **name}
        case _:
            raise no_form(place, part, INTERFACE)


# ---------------------------------------------------------------------------------------------- back


def read_item(
    data: Mapping[str, Any],
    make_call_id: Callable[[str | None], tuple[str, str]],
    executor_names: Mapping[str, str] = MappingProxyType({}),
) -> Item:
    """Return the item in *data*; one of a kind unknown here is an `OpaqueItem`.

    *make_call_id* takes the server's id of a call, or None, and returns the run's and the server's. *executor_names*
    are the names of the executors' tools that the request shows, by kind.

    Raises:
        ModelBehaviorError: if *data* breaks the rules of its kind.
    """
    match data.get("type"):
        case "message" if data.get("role", "assistant") == "assistant":
            return _read_message(data)
        case str(kind) if kind in CALLS:
            return _read_call(data, make_call_id)
        case str(kind) if kind in executors.CONTENTS and executors.CONTENTS[kind][0] in executor_names:
            return _read_executor_call(data, make_call_id, executor_names)
        case "reasoning":
            return _read_reasoning(data)
        case "compaction":
            return Compaction(dict(data))
        case str(kind) if kind in HOSTED:
            return _read_hosted(kind, data)
        case str():
            return OpaqueItem(dict(data))
        case kind:
            raise ModelBehaviorError(f"The response has an item without a type: {str(kind)[:QUOTED]!r}")


def _pick_rest(data: Mapping[str, Any], known: Collection[str], more: Mapping[str, Any] | None = None) -> JsonDict:
    """Return the provider data of an item: the fields of *data* that no field of the item holds.

    Without what the provider sends, and does not accept.
    """
    unknown = (name for name in data if name not in known and name not in ("type", "created_by"))
    rest = {name: data[name] for name in unknown if data[name] is not None}
    return {WIRE: rest | dict(more or {})}


def _id(data: Mapping[str, Any]) -> str | None:
    found = data.get("id")
    return found if isinstance(found, str) and found else None


def _read_message(data: Mapping[str, Any]) -> AssistantMessage:
    content = read_objects(data.get("content"), "content")
    parts = read_parts(content)
    said = [_output_part(part, "") for part in parts]
    # What the parts have no room for (probabilities, sources of new kinds) stays with the message.
    lost = {} if all(map(_equals, said, content)) and len(said) == len(content) else {"content": list(content)}
    return AssistantMessage(parts, id=_id(data), provider_data=_pick_rest(data, ("id", "role", "content"), lost))


def _equals(written: JsonDict, came: Mapping[str, Any]) -> bool:
    return written == {
        name: value for name, value in came.items() if value is not None and (value or name != "logprobs")
    }


def read_parts(content: Iterable[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Return the parts of a message of the model that are known here."""
    parts: list[Part] = []
    for part in content:
        match part.get("type"):
            case "output_text":
                found = (_read_annotation(one) for one in read_objects(part.get("annotations"), "annotations"))
                annotations = tuple(one for one in found if one is not None)
                parts.append(Text(read_text(part.get("text"), "text"), annotations))
            case "refusal":
                parts.append(Refusal(read_text(part.get("refusal"), "refusal")))
    return tuple(parts)


def _read_annotation(data: Mapping[str, Any]) -> Annotation | None:
    bounds = {"start": optional_whole(data.get("start_index")), "end": optional_whole(data.get("end_index"))}
    match data:
        case {"type": "url_citation", "url": str(url)}:
            return UrlCitation(url=url, title=optional_text(data.get("title")), **bounds)
        case {"type": "file_citation", "file_id": str(file_id)}:
            return FileCitation(
                file_id=file_id, filename=optional_text(data.get("filename")), index=optional_whole(data.get("index"))
            )
        case {"type": "container_file_citation", "container_id": str(container), "file_id": str(file_id)}:
            name = optional_text(data.get("filename"))
            return ContainerFileCitation(container_id=container, file_id=file_id, filename=name, **bounds)
        case _:
            return None


def _read_call(data: Mapping[str, Any], make_call_id: Callable[[str | None], tuple[str, str]]) -> ToolCall:
    name = read_text(data.get("name"), "name")
    if not name:
        raise ModelBehaviorError("The response calls a function without naming it.")
    kind = CALLS[data["type"]]
    space = "server_label" if kind == "approval" else "namespace"
    call_id, given = make_call_id(read_text(data.get("call_id") or data.get("id"), "call_id") or None)
    field = "input" if kind == "custom" else "arguments"
    text = read_text(data.get(field), field)
    caller = data.get("caller")
    known = ["call_id", "name", "arguments", "input", space, "caller", *(["id"] if kind == "approval" else ())]
    return ToolCall(
        call_id,
        name,
        text if kind == "custom" else text or "{}",
        read_text(data.get(space), space) or None,
        kind=kind,
        caller=_read_caller(caller) if isinstance(caller, Mapping) else None,
        provider_data=_pick_rest(data, known, None if call_id == given else {"call_id": given}),
    )


def _read_executor_call(
    data: Mapping[str, Any], make_call_id: Callable[[str | None], tuple[str, str]], names: Mapping[str, str]
) -> ToolCall:
    type_ = data["type"]
    kind, fields = executors.CONTENTS[type_]
    call_id, given = make_call_id(read_text(data.get("call_id") or data.get("id"), "call_id") or None)
    more: JsonDict = {} if call_id == given else {"call_id": given}
    if type_ == "local_shell_call":
        more[executors.TYPE] = type_
    caller = data.get("caller")
    return ToolCall(
        call_id,
        names[kind],
        executors.read_arguments(data),
        kind=kind,
        caller=_read_caller(caller) if isinstance(caller, Mapping) else None,
        provider_data=_pick_rest(data, ("call_id", "caller", *fields), more),
    )


def _read_caller(data: Mapping[str, Any]) -> Caller:
    return Caller(read_text(data.get("type"), "caller"), optional_text(data.get("caller_id")))


def _read_reasoning(data: Mapping[str, Any]) -> Reasoning:
    return Reasoning(
        _id(data),
        [read_text(part.get("text"), "summary") for part in read_objects(data.get("summary"), "summary")],
        [read_text(part.get("text"), "reasoning") for part in read_objects(data.get("content"), "reasoning")],
        read_text(data.get("encrypted_content"), "reasoning") or None,
        provider_data=_pick_rest(data, ("id", "summary", "content", "encrypted_content")),
    )


def _read_hosted(kind: str, data: Mapping[str, Any]) -> HostedToolCall:
    answer = HOSTED[kind]
    texts = {name: data[name] for name in ("id", "status", "call_id") if isinstance(data.get(name), str)}
    rest = {name: value for name, value in data.items() if name not in texts and name not in ("type", answer)}
    output = None if answer is None else data.get(answer)
    return HostedToolCall(kind, rest, texts.get("id"), texts.get("status"), output, texts.get("call_id"))
