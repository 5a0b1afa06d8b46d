"""The JSON between a workflow and its activities: requests of models, values and errors of bodies.

A request holds no definitions and no settings: the worker that performs it has them. It names the tools that are shown,
so keys, headers and functions never enter the engine's history. What tools mark secret is sealed by the plugin's codec.

The engine takes payloads up to a size. What is larger is one error, and not an attempt that is made again for ever.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentloop._common.error_text import shorten
from agentloop._engine.calls.output_text import cut_output, render
from agentloop._storage.item_codec import item_from_json, item_to_json
from agentloop._storage.withholding import Secrets, is_mark
from agentloop.abc import Codec
from agentloop.abc import effects as e
from agentloop.agents import Agent, settings_for
from agentloop.config import RunConfig
from agentloop.exceptions import AgentLoopError, OutcomeUnknown, StateError, UserError
from agentloop.handoffs import target_of
from agentloop.items import Item, ToolOutput
from agentloop.model_events import ModelRequest, OutputSchema
from agentloop.settings import Prompt
from agentloop.tools import HostedTool

if TYPE_CHECKING:
    from cattrs import BaseConverter


class PayloadTooLarge(AgentLoopError):
    """A part of a run has more bytes than the engine takes in one payload: `AgentPlugin(max_payload=…)`, or `store=`.

    The model's input, a model's answer, or the run itself where it continues as a new workflow: such a run ends with
    this error. A tool's value that is too large is an error of its call, which the model receives.
    """


def measure(data: object) -> int:
    """Return the number of bytes of *data* as the engine's own converter writes JSON."""
    return len(json.dumps(data, separators=(",", ":")))


def check_size(what: str, data: object, most: int) -> int:
    """Check that *data*, which *what* names, has at most *most* bytes as JSON. Returns how many it has.

    Raises:
        PayloadTooLarge: it has more.
    """
    if (size := measure(data)) > most:
        raise PayloadTooLarge(
            f"{what}: {size:,} bytes as JSON, and one payload of the engine takes {most:,} (max_payload)"
        )
    return size


_LARGE = 200_000


def pack(text: str, *, is_packing: bool = True, least: int = _LARGE) -> str:
    """Return *text*, compressed if it is long and *is_packing*. Short ones stay: older workers read them."""
    if len(text) < least or not is_packing:
        return text
    return _PACKED + base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")


def unpack(text: str) -> str:
    """Return the text that `pack` was given."""
    if not text.startswith(_PACKED):
        return text
    return zlib.decompress(base64.b64decode(text[len(_PACKED) :])).decode()


_PACKED = "zlib:"


def fit_answer(what: str, answer: dict[str, Any], most: int) -> dict[str, Any]:
    """Return *answer*, which *what* names, compressed if it has more than *most* bytes.

    Raises:
        PayloadTooLarge: it doesn't fit then either, or is more than a step of a workflow reads in time.
    """
    size = measure(answer)
    if not most < size <= MOST_READ:
        check_size(what, answer, most)
        return answer
    packed = pack_answer(answer)
    if (packed_size := measure(packed)) > most:
        raise PayloadTooLarge(
            f"{what}: {size:,} bytes as JSON, {packed_size:,} compressed, and one payload of the engine takes {most:,} "
            "(max_payload)"
        )
    return packed


def pack_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer* compressed."""
    return {"packed": pack(json.dumps(answer, separators=(",", ":")))}


def open_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer that `fit_answer` or `pack_answer` was given."""
    if "packed" not in answer:
        return answer
    opened: dict[str, Any] = json.loads(unpack(answer["packed"]))
    return opened


_DETAILED = 2_000
"""Characters of a result's details from which on they are compressed."""


def split_result(data: dict[str, Any], essentials: Iterable[str], *, is_packing: bool) -> dict[str, Any]:
    """Return the result *data* with its *essentials* in plain text, and its details compressed if they are long.

    The history has the details already, in the activities' results: here they would be half of a short history.
    """
    plain = {name: data[name] for name in essentials}
    details = json.dumps({name: value for name, value in data.items() if name not in plain}, separators=(",", ":"))
    packed = pack(details, is_packing=is_packing, least=_DETAILED)
    return data if packed is details else plain | {"details": packed}


def join_result(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result that `split_result` was given."""
    joined = dict(data)
    if "details" in joined:
        joined |= json.loads(unpack(joined.pop("details")))
    return joined


MOST_READ = 16_000_000
"""Bytes of JSON that a step of a workflow reads and writes well within the two seconds that the SDK gives it."""


def is_secret(items: Iterable[Item]) -> bool:
    """Tell whether one of *items* is secret, wholly or in part, or is a call whose output will be."""
    return any(getattr(item, "secret", False) or getattr(item, "secret_output", False) for item in items)


def seal(data: Any, codec: Codec | None) -> Any:
    """Return JSON *data* sealed by *codec*.

    Raises:
        UserError: there is no codec.
    """
    if codec is None:
        raise UserError("the engine's history would hold secrets of the run in plain text: give AgentPlugin(codec=…)")
    return Secrets(codec).hide(json.dumps(data).encode())


def unseal(data: Any, codec: Codec | None) -> Any:
    """Return the JSON data that `seal` was given; *data* itself if it isn't sealed.

    Raises:
        StateError: *codec* can't open it, or there is none.
    """
    if not is_mark(data):
        return data
    opened = Secrets(codec).reveal(data)
    if opened is None:
        raise StateError("a part of the run is sealed, and this worker has no codec: give AgentPlugin(codec=…)")
    return json.loads(opened)


def items_to_json(items: Iterable[Item], codec: Codec | None) -> Any:
    """Return *items* as JSON, sealed by *codec* if one of them is secret.

    Raises:
        UserError: one is, and there is no codec.
    """
    kept = list(items)
    written = [item_to_json(item) for item in kept]
    return seal(written, codec) if is_secret(kept) else written


def request_to_json(effect: e.CallModel) -> dict[str, Any]:
    """Return the request of *effect* without its items and call ids: the texts whole, the definitions by names."""
    request = effect.request
    return {
        "agent": effect.agent,
        "path": list(request.path),
        "turn": request.turn,
        "system": request.system,
        "instructions": list(request.instructions),
        "tools": [[tool.namespace, tool.name] for tool in request.tools],
        "handoffs": [handoff.name for handoff in request.handoffs],
        "hosted": bool(request.hosted),
        "output": request.output_schema is not None,
        "tool_choice": request.tool_choice,
        "previous_response_id": request.previous_response_id,
        "conversation_id": request.conversation_id,
        "prompt": None if request.prompt is None else attrs.asdict(request.prompt),
        "context_trigger": request.context_trigger,
        "cache_group": request.cache_group,
    }


def request_from_json(
    asked: Mapping[str, Any], config: RunConfig, agent: Agent[Any, Any], model: object
) -> ModelRequest:
    """Return the request that was written as *asked*, with the definitions and settings of this process."""
    own = agent.model_settings if config.model is None else settings_for(agent, model)
    settings = own.resolve(config.model_settings)
    if settings.tool_choice != asked["tool_choice"]:
        settings = attrs.evolve(settings, tool_choice=asked["tool_choice"])
    tools = {(tool.namespace, tool.name): tool for tool in agent.functions}
    handoffs = {handoff.name: handoff for handoff in map(target_of, agent.handoffs)}
    return ModelRequest(
        system=asked["system"],
        instructions=tuple(asked["instructions"]),
        items=[item_from_json(item, path=f"$.items[{at}]") for at, item in enumerate(asked["items"])],
        tools=[tools[namespace, name] for namespace, name in asked["tools"] if (namespace, name) in tools],
        handoffs=[handoffs[name] for name in asked["handoffs"] if name in handoffs],
        hosted=[tool for tool in agent.tools if isinstance(tool, HostedTool)] if asked["hosted"] else (),
        output_schema=_find_schema(agent, config) if asked["output"] else None,
        settings=settings,
        tool_choice=asked["tool_choice"],
        previous_response_id=asked["previous_response_id"],
        conversation_id=asked["conversation_id"],
        prompt=None if asked["prompt"] is None else Prompt(**asked["prompt"]),
        turn=asked["turn"],
        path=tuple(asked["path"]),
        call_ids=frozenset(asked["call_ids"]),
        context_trigger=asked.get("context_trigger"),
        cache_group=asked.get("cache_group"),
    )


def value_to_json(value: Any, converter: BaseConverter | None, limit: int | None = None) -> dict[str, Any]:
    """Return a body's *value*: as it is where JSON can hold it, else as the content that the model is shown.

    With *limit*, a value whose text is longer becomes that text, cut as the model would be shown it.
    """
    content = render(value, converter)
    cut = cut_output(content, limit)
    if cut is not None and cut != content:
        return {"content": item_to_json(ToolOutput("", cut))}
    try:
        plain = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        plain = _NOT_PLAIN
    if type(value) in _PLAIN and plain == value:
        return {"plain": value}
    return {"content": item_to_json(ToolOutput("", content))}


def value_from_json(data: Mapping[str, Any]) -> Any:
    """Return the value that was written as *data*."""
    if "plain" in data:
        return data["plain"]
    output = item_from_json(data["content"])
    assert isinstance(output, ToolOutput)
    return output.output if isinstance(output.output, str) else list(output.output)


_NOT_PLAIN = object()
_PLAIN = (str, int, float, bool, type(None), list, dict)


_LONGEST_MESSAGE = 100_000


class RemoteToolError(Exception):
    """An error of a tool's body in an activity. Its class has the name of the original's, and its text is the same."""


def error_to_json(error: BaseException) -> dict[str, str]:
    """Return the class and the text of *error*; of a very long one, the beginning."""
    return {"kind": type(error).__name__, "message": shorten(str(error), _LONGEST_MESSAGE)}


def error_from_json(data: Mapping[str, str]) -> Exception:
    """Return an error that reads like the one that was written as *data*."""
    if data["kind"] == OutcomeUnknown.__name__:
        return OutcomeUnknown(data["message"])
    return _class_named(data["kind"])(data["message"])


@functools.lru_cache(maxsize=256)
def _class_named(name: str) -> type[RemoteToolError]:
    return type(name, (RemoteToolError,), {"__module__": __name__})


def _find_schema(agent: Agent[Any, Any], config: RunConfig) -> OutputSchema | None:
    output = agent._typed_output()
    return None if output is None else output.using(config.converter).schema
