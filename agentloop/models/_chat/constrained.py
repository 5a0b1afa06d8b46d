"""Constrained mode: tool calls by a model that is too small for a tool protocol.

The server forces the answer into one JSON schema, an `anyOf` over the tools, and the answer becomes one call. The
system text lists the tools, and up to six worked examples precede the conversation. One call per turn, on purpose:
small models get single calls right and several at once wrong. Pure, like the codec that uses it; does not know about
HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentloop.exceptions import ModelBehaviorError, UserValueError
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import ModelRequest, ToolDefinition
from agentloop.models._codec import QUOTED, JsonDict, parse_json
from agentloop.models._common import (
    argument_object,
    chat_content,
    find_allowed_name,
    find_allowed_tools,
    find_forced_name,
    no_form,
    output_text,
    plain_text,
    tool_choice,
)
from agentloop.models._partial_json import BracketScan

MAX_SHOTS = 6


def list_offers(request: ModelRequest) -> tuple[ToolDefinition, ...]:
    """Return the tools and handoffs; the answer must call one of them. None if the tool choice is `"none"`.

    Raises:
        UserValueError: if the tool choice names none of them.
    """
    choice = tool_choice(request)
    every = (*request.tools, *request.handoffs)
    if choice == "none":
        return ()
    if (allowed := find_allowed_tools(choice)) is not None:
        names = [find_allowed_name(tool) for tool in allowed[1]]
    elif (name := find_forced_name(choice)) is not None:
        names = [name]
    else:
        return every
    named = tuple(tool for tool in every if tool.name in names)
    if not named:
        raise UserValueError(f"tool_choice: there is no tool {', '.join(map(repr, names))}")
    return named


# ---------------------------------------------------------------------------------------------- the schema


def call_schema(tools: Sequence[ToolDefinition]) -> JsonDict:
    """Return the schema of one call of any of *tools*. Definitions in a tool's schema move to the root."""
    definitions: JsonDict = {}
    branches = [_branch(f"t{index}", tool, definitions) for index, tool in enumerate(tools)]
    return {"anyOf": branches} | ({"$defs": definitions} if definitions else {})


def _branch(key: str, tool: ToolDefinition, definitions: JsonDict) -> JsonDict:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "arguments": _hoist_definitions(key, tool.params_json_schema, definitions),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _hoist_definitions(key: str, schema: Mapping[str, Any], definitions: JsonDict) -> JsonDict:
    """Return *schema* without its definitions, which go to *definitions* under names that begin with *key*."""
    refs: set[str] = set()
    local = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    body = {name: value for name, value in schema.items() if name not in ("definitions", "$defs")}
    moved: JsonDict = _rewrite_refs(body, key, refs)
    for name, value in local.items():
        definitions[f"{key}_{name}"] = _rewrite_refs(value, key, refs)
    if any(ref == f"#/$defs/{key}" or ref.startswith(f"#/$defs/{key}/") for ref in refs):
        definitions[key] = moved
    return moved


_DATA = frozenset({"const", "enum", "default", "examples"})  # keywords with values, in which "$ref" isn't a keyword


def _rewrite_refs(value: Any, key: str, refs: set[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _rewrite_ref(inner, key, refs)
            if name == "$ref" and isinstance(inner, str)
            else inner
            if name in _DATA
            else _rewrite_refs(inner, key, refs)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_rewrite_refs(inner, key, refs) for inner in value]
    return value


def _rewrite_ref(ref: str, key: str, refs: set[str]) -> str:
    if not ref.startswith("#"):
        return ref
    for home in ("#/$defs/", "#/definitions/"):
        if ref.startswith(home):
            moved = f"#/$defs/{key}_{ref.removeprefix(home)}"
            break
    else:
        moved = f"#/$defs/{key}{ref.removeprefix('#')}"
    refs.add(moved)
    return moved


# ---------------------------------------------------------------------------------------------- the messages


def call_text(name: str, arguments: object) -> str:
    """Return a call as the text that the model writes for it."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def messages(request: ModelRequest, tools: Sequence[ToolDefinition]) -> list[JsonDict]:
    """Return the conversation as messages that need no tool protocol, after examples of *tools*."""
    system = [request.system] if request.system else []
    if tools:
        system.append("Choose the function to call.\n" + "\n".join(f"- {t.name}: {t.description}" for t in tools))
    turns: list[JsonDict] = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    for question, answer in _shots(tools):
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return turns + _merge(_history(request.items))


def _shots(tools: Sequence[ToolDefinition]) -> list[tuple[str, str]]:
    """Return up to six worked examples: the first of each tool, then the second of each, and so on."""
    shots: list[tuple[str, str]] = []
    deepest = max((len(tool.examples) for tool in tools), default=0)
    for depth in range(deepest):
        for tool in tools:
            if depth < len(tool.examples):
                question, arguments = tool.examples[depth]
                shots.append((question, call_text(tool.name, dict(arguments))))
    return shots[:MAX_SHOTS]


def _history(items: Sequence[Item]) -> Iterator[JsonDict]:
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        place = f"items[{index}]"
        match item:
            case SystemMessage():
                yield {"role": "system", "content": plain_text(item.content, place)}
            case UserMessage():
                yield {"role": "user", "content": chat_content(item.content, place)}
            case AssistantMessage():
                yield {"role": "assistant", "content": item.text or item.refusal or ""}
            case ToolCall(kind="approval") | ToolOutput(kind="approval"):
                raise no_form(place, item)
            case ToolCall() | HandoffCall():
                names[item.call_id] = item.name
                yield {"role": "assistant", "content": call_text(item.name, argument_object(item.arguments))}
            case ToolOutput() | HandoffOutput():
                name = names.get(item.call_id, "The function")
                yield {"role": "user", "content": f"{name} returned: {output_text(item.output)}"}
            case Reasoning():
                pass
            case _:
                raise no_form(place, item)


def _merge(turns: Iterator[JsonDict]) -> list[JsonDict]:
    """Return *turns* with neighbours of one role joined, as many chat templates require that roles alternate."""
    merged: list[JsonDict] = []
    for turn in turns:
        last: JsonDict = merged[-1] if merged else {"role": None, "content": None}
        text = isinstance(last["content"], str) and isinstance(turn["content"], str)
        if text and last["role"] == turn["role"]:
            last["content"] += "\n" + turn["content"]
        else:
            merged.append(turn)
    return merged


# ---------------------------------------------------------------------------------------------- the answer

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\S)')
_HEAD_MAX = 1_000


class CallText:
    """Reads the answer while it streams in, and returns the arguments' own text as soon as it can be recognized.

    Owned by one `ChatDecoder`. If the answer doesn't begin as expected, `feed` returns nothing and `call` decides at
    the end.
    """

    def __init__(self) -> None:
        self._all: list[str] = []
        self._waiting: str | None = ""  # the text before the arguments; None once they began or can't be found
        self._name: str | None = None
        self._arguments: list[str] = []
        self._scan = BracketScan()
        self._complete = False

    @property
    def empty(self) -> bool:
        """True if the answer so far is blank."""
        return not "".join(self._all).strip()

    def feed(self, text: str) -> str:
        """Return the piece of the arguments that *text* adds, possibly empty."""
        self._all.append(text)
        if self._waiting is not None:
            self._waiting += text
            head = _HEAD.match(self._waiting)
            if head is None:
                if len(self._waiting) > _HEAD_MAX:
                    self._waiting = None
                return ""
            text, self._name, self._waiting = self._waiting[head.end() :], head[1], None
            if not text.startswith("{"):
                self._name = None
        if self._name is None or self._complete:
            return ""
        end = self._scan.find_end(text)
        self._complete = end is not None
        piece = text[:end]
        self._arguments.append(piece)
        return piece

    def call(self) -> tuple[str, str]:
        """Return the name and the arguments' text of the call, read from the whole answer.

        Raises:
            ModelBehaviorError: if the answer isn't a call.
        """
        answer = "".join(self._all)
        data = parse_json(answer)
        name, arguments = (data.get("name"), data.get("arguments")) if isinstance(data, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ModelBehaviorError(f"The constrained answer is no call: {answer[:QUOTED]!r}")
        written = "".join(self._arguments) if self._complete and self._name == name else json.dumps(arguments)
        return name, written
