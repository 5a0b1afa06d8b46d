"""The public JSON form of values: records, items, events of runs and models, outcomes, usage, requests, errors.

A record and an item have their stored form, so that they can be read again. An event is a view of records: it has the
fields of its class, with the forms of what it holds; agents and guardrails are written by name. Values marked secret
are hidden as in the stored form. Does not know about results, files or streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from agentloop import events as ev
from agentloop import items as i
from agentloop import model_events as m
from agentloop._common.errors import AgentLoopError, UserTypeError
from agentloop._storage.item_codec import item_from_stored
from agentloop._storage.model_codec import model_error_to_json, model_event_to_json, request_to_json
from agentloop._storage.record_codec import part_to_json, record_to_json
from agentloop._storage.record_codec import record_from_json as _read_record
from agentloop._storage.stored_forms import KINDS
from agentloop._storage.value_codec import value_to_json
from agentloop._storage.withholding import Secrets
from agentloop.abc import Codec
from agentloop.guardrails import InputGuardrailResult, OutputGuardrailResult, ToolGuardrailResult
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.records import Record
from agentloop.usage import RequestUsage, Usage

if TYPE_CHECKING:
    from cattrs import BaseConverter

GuardrailResult = InputGuardrailResult | OutputGuardrailResult | ToolGuardrailResult
_LEFT_OUT = frozenset({"path", "turn", "delta"})


def to_json(value: object, *, codec: Codec | None = None, converter: BaseConverter | None = None) -> dict[str, Any]:
    """Return *value* as a new dict of JSON's own types.

    Args:
        value: A record or an item, in the form in which it is stored: `record_from_json` and `item_from_json` read it.
            A `CallToAnswer`, with the schema of the answer. An event of a run, with its kind under `type`, its `path`
            and `turn`; agents and guardrails are named, and the text of an `ArgumentsDelta` is left out, since it may
            be a part of a secret. A `CallOutcome`, `Usage`, `RequestUsage`, `ModelResponse`, `ModelRequest`, an event
            of a model, or an error of the library. Fields at their default are left out of the stored forms. A
            `RunResult` has its own `to_json`.
        codec: The codec that seals values marked secret; without it each is replaced by its digest,
            `{"$digest": HEX}`.
        converter: The application's own cattrs converter, which writes values of the application's types.

    Raises:
        UserTypeError: if *value* is none of these.
        StateError: if *codec* fails.

    Example:
        from agentloop import to_json
        from agentloop.items import UserMessage

        print(to_json(UserMessage("hi"))["type"])  # user_message
    """
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value, Secrets(codec, converter))
    if isinstance(value, AgentLoopError):
        return model_error_to_json(value)
    kind = type(value).__name__
    raise UserTypeError(f"to_json: expected a record, an item, an event or a part of these, got {kind}")


def record_from_json(data: Mapping[str, Any], *, codec: Codec | None = None) -> Record:
    """Return the record that `to_json` has written as *data*, equal to the original.

    *codec* opens sealed secrets; without it, and where only a digest was kept, a placeholder is in their place.

    Raises:
        StateError: naming the first place that doesn't fit: an unknown kind, a value of the wrong type, a field that is
            missing or unknown, a secret that *codec* can't open. Values aren't quoted.

    Example:
        import anyio
        from agentloop import Agent, Runner, record_from_json, to_json
        from agentloop.testing import ScriptedModel, say

        result = Runner.run_sync(Agent("a", model=ScriptedModel([say("hi")])), "go")
        records = result.to_state().records
        print(record_from_json(to_json(records[0])) == records[0])  # True
    """
    return _read_record(data, secrets=Secrets(codec))


def item_from_json(data: Mapping[str, Any], *, codec: Codec | None = None) -> i.Item:
    """Return the item that `to_json` has written as *data*, equal to the original.

    A `type` unknown here gives an `OpaqueItem` that holds *data* whole. *codec* opens sealed secrets; without it, and
    where only a digest was kept, a placeholder is in their place.

    Raises:
        StateError: naming the first place that doesn't fit, as `record_from_json`.

    Example:
        from agentloop import item_from_json, to_json
        from agentloop.items import UserMessage

        print(item_from_json(to_json(UserMessage("hi"))) == UserMessage("hi"))  # True
    """
    return item_from_stored(data, Secrets(codec))


def _usage_to_json(usage: Usage, secrets: Secrets) -> dict[str, Any]:
    counts = {name: count for name, count in msgspec.structs.asdict(usage).items() if name not in ("entries", "cost")}
    cost = {} if usage.cost is None else {"cost": f"{usage.cost:f}"}
    return {**counts, **cost, "entries": [part_to_json(entry, secrets) for entry in usage.entries]}


def _event_to_json(event: ev.Event, secrets: Secrets) -> dict[str, Any]:
    written = {"type": event.__struct_config__.tag, "path": list(event.path), "turn": event.turn}
    if isinstance(event, ev.AgentUpdated):
        return {**written, "agent": event.agent.name}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name not in _LEFT_OUT and value is not None:
            written[name] = _member_to_json(value, secrets)
    if isinstance(event, ev.CustomEvent) and event.call.secret_output:
        written["value"] = secrets.hide_json(value_to_json(event.value, secrets))
    return written


def _member_to_json(value: Any, secrets: Secrets) -> Any:
    if type(value) in i.ITEM_TYPES or isinstance(value, CallOutcome | i.CallToAnswer):
        return part_to_json(value, secrets)
    if isinstance(value, GuardrailResult):
        return guardrail_result_to_json(value, secrets)
    return value_to_json(value, secrets)


def guardrail_result_to_json(result: GuardrailResult, secrets: Secrets) -> dict[str, Any]:
    """Return a guardrail's result: the name, the seconds, the answer, and the call of a tool guardrail."""
    written: dict[str, Any] = {"guardrail": result.guardrail.name, "duration": result.duration}
    output = value_to_json(result.output, secrets)
    if isinstance(result, ToolGuardrailResult):
        written["call"] = part_to_json(result.call, secrets)
        secret = bool(result.call.secret or result.call.secret_output)
    else:
        secret = isinstance(result, InputGuardrailResult) and result.secret
    written["output"] = secrets.hide_json(output) if secret else output
    return written


_WRITERS: Mapping[type, Callable[[Any, Secrets], dict[str, Any]]] = {
    **dict.fromkeys(KINDS, record_to_json),
    **dict.fromkeys((*i.ITEM_TYPES, i.CallToAnswer, CallOutcome, ModelResponse, RequestUsage), part_to_json),
    **dict.fromkeys(get_args(ev.Event), _event_to_json),
    **dict.fromkeys(get_args(m.ModelEvent), model_event_to_json),
    m.ModelRequest: request_to_json,
    Usage: _usage_to_json,
}
