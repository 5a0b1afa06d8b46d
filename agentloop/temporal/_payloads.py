"""The JSON between a workflow and its activities: requests of models, values and errors of bodies.

A request holds no definitions and no settings: the worker that performs it has them. It names the tools that are shown,
so keys, headers and functions never enter the engine's history.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentloop import effects as e
from agentloop._engine.calls.output_text import render
from agentloop._storage.item_codec import item_from_json, item_to_json
from agentloop.agents import Agent, settings_for
from agentloop.config import RunConfig
from agentloop.exceptions import OutcomeUnknown
from agentloop.handoffs import target_of
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest, OutputSchema
from agentloop.settings import Prompt
from agentloop.tools import HostedTool

if TYPE_CHECKING:
    from cattrs import BaseConverter


def request_to_json(effect: e.CallModel) -> dict[str, Any]:
    """Return the request of *effect*: the items and texts whole, the definitions by their names."""
    request = effect.request
    return {
        "agent": effect.agent,
        "path": list(request.path),
        "turn": request.turn,
        "system": request.system,
        "instructions": list(request.instructions),
        "items": [item_to_json(item) for item in request.items],
        "tools": [[tool.namespace, tool.name] for tool in request.tools],
        "handoffs": [handoff.name for handoff in request.handoffs],
        "hosted": bool(request.hosted),
        "output": request.output_schema is not None,
        "tool_choice": request.tool_choice,
        "previous_response_id": request.previous_response_id,
        "conversation_id": request.conversation_id,
        "prompt": None if request.prompt is None else attrs.asdict(request.prompt),
        "call_ids": sorted(request.call_ids),
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
    )


def value_to_json(value: Any, converter: BaseConverter | None) -> dict[str, Any]:
    """Return a body's *value*: as it is where JSON can hold it, else as the content that the model is shown."""
    try:
        plain = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        plain = _NOT_PLAIN
    if type(value) in _PLAIN and plain == value:
        return {"plain": value}
    return {"content": item_to_json(ToolOutput("", render(value, converter)))}


def value_from_json(data: Mapping[str, Any]) -> Any:
    """Return the value that was written as *data*."""
    if "plain" in data:
        return data["plain"]
    output = item_from_json(data["content"])
    assert isinstance(output, ToolOutput)
    return output.output if isinstance(output.output, str) else list(output.output)


_NOT_PLAIN = object()
_PLAIN = (str, int, float, bool, type(None), list, dict)


class RemoteToolError(Exception):
    """An error of a tool's body in an activity. Its class has the name of the original's, and its text is the same."""


def error_to_json(error: BaseException) -> dict[str, str]:
    """Return the class and the text of *error*."""
    return {"kind": type(error).__name__, "message": str(error)}


def error_from_json(data: Mapping[str, str]) -> Exception:
    """Return an error that reads like the one that was written as *data*."""
    if data["kind"] == OutcomeUnknown.__name__:
        return OutcomeUnknown(data["message"])
    return _class_named(data["kind"])(data["message"])


@functools.lru_cache(maxsize=256)
def _class_named(name: str) -> type[RemoteToolError]:
    return type(name, (RemoteToolError,), {"__module__": __name__})


def _find_schema(agent: Agent[Any, Any], config: RunConfig) -> OutputSchema | None:
    output = agent.typed_output()
    return None if output is None else output.using(config.converter).schema
