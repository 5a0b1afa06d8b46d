"""A provider that nobody has: a codec outside of the package, made of public names alone."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError
from agentloop.items import AssistantMessage, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ArgumentsDelta, ItemDone, ModelEvent, ModelRequest, ResponseDone, TextDelta
from agentloop.models import HttpCodec, HttpModel, Vendor
from agentloop.usage import RequestUsage

PARROT = Vendor(url="https://api.parrot.test/v1", key_variable="PARROT_KEY", url_variable="PARROT_URL")


def headers(key: str | None) -> dict[str, str]:
    """Return the headers; the parrot has a name of its own for the key."""
    return {"content-type": "application/json"} | ({"x-parrot-key": key} if key else {})


def encode(request: ModelRequest, name: str) -> dict[str, Any]:
    """Return the conversation as lines, and the tools by name."""
    lines: list[Any] = [["system", request.system]] if request.system else []
    for item in request.items:
        match item:
            case UserMessage() | AssistantMessage():
                lines.append([type(item).__name__, item.text])
            case ToolCall():
                lines.append(["call", item.call_id, item.name, item.arguments])
            case ToolOutput():
                lines.append(["output", item.call_id, item.output])
            case _:
                raise UserError(f"A parrot can't repeat a {type(item).__name__}.")
    return {"bird": name, "lines": lines, "tools": [tool.name for tool in request.tools]}


class ParrotDecoder:
    """Reads events of three kinds: words, a call, and the end with the count of seeds."""

    def __init__(self, request: ModelRequest) -> None:
        self.done = self.shown = False
        self.words: list[str] = []
        self.calls: list[ToolCall] = []
        self.usage: RequestUsage | None = None

    def feed(self, data: str) -> list[ModelEvent]:
        """Return the events of one line of the answer."""
        return list(self.feed_answer(json.loads(data)))

    def feed_answer(self, answer: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """Return the events of one object."""
        self.shown = True
        match answer:
            case {"words": str(words)}:
                self.words.append(words)
                yield TextDelta(words)
            case {"call": [str(call_id), str(name), str(arguments)]}:
                self.calls.append(ToolCall(call_id, name, arguments))
                yield ArgumentsDelta(call_id, arguments)
            case {"seeds": int(seeds)}:
                self.done, self.usage = True, RequestUsage(input_tokens=seeds, total_tokens=seeds)
            case _:
                raise ModelTransportError(f"The parrot says {answer!r}")

    def finish(self, request_id: str | None = None) -> Iterator[ModelEvent]:
        """Return the items and the end."""
        if not self.done:
            raise ModelBehaviorError("The parrot flew away.")
        items = [*([AssistantMessage("".join(self.words))] if self.words else ()), *self.calls]
        yield from map(ItemDone, items)
        yield ResponseDone(items, self.usage, None, request_id, "end")


def make_parrot(name: str, **options: Any) -> HttpModel:
    """Return the bird called *name*."""
    codec = HttpCodec(path="/repeat", headers=headers, encode=encode, decoder=ParrotDecoder)
    return HttpModel(name, codec, vendor=PARROT, **options)
