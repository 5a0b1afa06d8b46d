"""Answers of hostile servers for each interface: a few patterns of events, drawn at random and repeated any number of
times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Event = dict[str, Any]
Make = Callable[[int], Event]


def _id(rng: random.Random) -> Callable[[int], Any]:
    """Return what an id is in the n-th event: new each time, always the same, one of a few, or none."""
    few = rng.randint(2, 5)
    return rng.choice(
        [lambda n: f"x{n}", lambda n: "x", lambda n: f"x{n % few}", lambda n: None, lambda n: f"x{n // 2}"]
    )


def _index(rng: random.Random) -> Callable[[int], Any]:
    few = rng.randint(2, 5)
    return rng.choice([lambda n: n, lambda n: 0, lambda n: n % few, lambda n: None, lambda n: [n], lambda n: n // 2])


def _text(rng: random.Random) -> Callable[[int], str]:
    return rng.choice(
        [
            lambda n: "{}",
            lambda n: '{"a": "' if n == 0 else "b" * 20,
            lambda n: "12",
            lambda n: "}",
            lambda n: "\\",
            lambda n: "[" if n % 2 else "]",
            lambda n: " ",
        ]
    )


def chat_events(rng: random.Random) -> Make:
    """Draw a pattern of chunks."""
    index, id, text = _index(rng), _id(rng), _text(rng)
    name = rng.choice([lambda n: "f", lambda n: f"f{n}", lambda n: None])
    several = rng.randint(1, 4)
    if rng.random() < 0.3:  # the name only says what a part belongs to
        index = id = lambda n: None
        name, text = rng.choice([lambda n: "f", lambda n: f"f{n // 5}"]), _text(rng)

    def call(n: int) -> Event:
        return {"index": index(n), "id": id(n), "function": {"name": name(n), "arguments": text(n)}}

    def parts(n: int) -> Event:
        return {"tool_calls": [call(several * n + k) for k in range(several)]}

    def cited(n: int) -> Event:
        return {"content": "word ", "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}]}

    delta = rng.choice([parts, parts, parts, cited, lambda n: {"content": text(n), "reasoning": "hm", "refusal": "no"}])
    return lambda n: {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta(n)}], "usage": {f"t{n}": 1}}


def chat_end(n: int) -> Iterator[Event]:
    """Yield the last chunk."""
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def messages_events(rng: random.Random) -> Make:
    """Draw a pattern of events of blocks."""
    id, text = _id(rng), _text(rng)
    index = rng.choice([_index(rng), lambda n: n])
    citation = {"type": "web_search_result_location", "url": "u"}
    start: list[Make] = [
        lambda n: {"type": "text", "text": "a", "citations": [citation]},
        lambda n: {"type": "tool_use", "id": id(n), "name": "f"},
        lambda n: {"type": "server_tool_use", "id": id(n), "name": "web_search", "input": {}},
        lambda n: {"type": "web_search_tool_result", "tool_use_id": id(n), "content": []},
        lambda n: {"type": "thinking", "thinking": "hm", "signature": "s"},
        lambda n: {"type": "redacted_thinking", "data": "d"},
        lambda n: {"type": "other"},
    ]
    kinds = rng.sample(start, rng.randint(1, 3))
    delta = rng.choice(
        [
            lambda n: {"type": "text_delta", "text": text(n)},
            lambda n: {"type": "input_json_delta", "partial_json": text(n)},
            lambda n: {"type": "citations_delta", "citation": citation},
        ]
    )

    def blocks(n: int) -> Event:
        block = kinds[n % len(kinds)](n)
        return {"type": "content_block_start", "index": index(n), "content_block": block}

    def pieces(n: int) -> Event:
        if n == 0:
            return {"type": "content_block_start", "index": 0, "content_block": kinds[0](0)}
        return {"type": "content_block_delta", "index": 0, "delta": delta(n)}

    return rng.choice([blocks, blocks, pieces])


def messages_end(n: int) -> Iterator[Event]:
    """Yield the end of the message."""
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    yield {"type": "message_stop"}


def _item(rng: random.Random) -> Make:
    id, text = _id(rng), _text(rng)
    return rng.choice(
        [
            lambda n: {"type": "function_call", "id": id(n), "call_id": id(n), "name": "f", "arguments": text(n)},
            lambda n: {"type": "message", "id": id(n), "content": [{"type": "output_text", "text": "a"}]},
            lambda n: {"type": "reasoning", "id": id(n), "summary": [{"type": "summary_text", "text": "t"}]},
            lambda n: {"type": "web_search_call", "id": id(n), "status": "completed"},
            lambda n: {"type": "other", "id": id(n)},
        ]
    )


def responses_events(rng: random.Random) -> Make:
    """Draw a pattern of events of items."""
    index, id, text, item = _index(rng), _id(rng), _text(rng), _item(rng)

    def whole(n: int) -> Event:
        kind = "added" if n % 2 else "done"
        return {"type": f"response.output_item.{kind}", "output_index": index(n // 2), "item": item(n // 2)}

    def piece(n: int) -> Event:
        kind = ("output_text", "function_call_arguments", "reasoning_text")[n % 3]
        return {"type": f"response.{kind}.delta", "output_index": index(n), "item_id": id(n), "delta": text(n)}

    return rng.choice([whole, whole, piece])


def responses_end(n: int) -> Iterator[Event]:
    """Yield the terminal event, with *n* items."""
    message = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
    output = [{**message, "id": f"m{number}"} for number in range(n)]
    yield {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": output}}


def realtime_events(rng: random.Random) -> Make:
    """Draw a pattern of events of a response over a session."""
    make = responses_events(rng)
    return lambda n: {**make(n), "response_id": "r"}


def realtime_end(n: int) -> Iterator[Event]:
    """Yield the end of the response, with *n* items."""
    for event in responses_end(n):
        yield {"type": "response.done", "response": event["response"]}


INTERFACES = {
    "chat": (chat_events, chat_end),
    "responses": (responses_events, responses_end),
    "messages": (messages_events, messages_end),
    "realtime": (realtime_events, realtime_end),
}
