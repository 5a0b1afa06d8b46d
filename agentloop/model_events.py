"""The values between a run and a model: the request, and the events of one response.

A response is a stream of events with exactly one `ResponseDone`, as the last event. Does not know about transports and
codecs, which are in `agentloop.models`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from agentloop._common.errors import UserTypeError
from agentloop.items import Item
from agentloop.settings import ModelSettings
from agentloop.usage import RequestUsage, Usage


def _to_tuple(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(items)


def _check_usage(_instance: object, _attribute: object, value: Any) -> None:
    if isinstance(value, Usage):
        raise UserTypeError(
            "ResponseDone.usage: one request's RequestUsage is needed, not a Usage, which adds up those of a run"
        )


class ToolDefinition(Protocol):
    """The part of a tool or handoff that a model is shown. `FunctionTool` and `Handoff` satisfy it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def params_json_schema(self) -> Mapping[str, Any]: ...
    @property
    def strict_mode(self) -> bool: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def examples(self) -> Any: ...  # (request, arguments) pairs; Any: pyright takes a converter for the value's type


@attrs.frozen(kw_only=True)
class OutputSchema:
    """The JSON schema that a final answer must fit."""

    name: str
    schema: Mapping[str, Any]
    strict: bool = True


@attrs.frozen(kw_only=True)
class ModelRequest:
    """One request to a model. `turn`, `path` and `call_ids` locate it in its run; providers don't send them."""

    system: str | None
    items: Sequence[Item]
    tools: Sequence[ToolDefinition] = ()
    handoffs: Sequence[ToolDefinition] = ()
    output_schema: OutputSchema | None = None
    settings: ModelSettings = attrs.field(factory=ModelSettings)
    tool_choice: str | Mapping[str, Any] | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    prompt: Any = None
    turn: int = 1
    path: tuple[str, ...] = ()
    call_ids: Collection[str] = attrs.field(default=(), eq=False, repr=False)
    """The ids of the run's calls so far, also of calls that a filter removed from `items`."""


@attrs.frozen
class ResponseStarted:
    """The model began to answer."""

    response_id: str | None = None


@attrs.frozen
class TextDelta:
    """A piece of the answer's text."""

    text: str


@attrs.frozen
class ReasoningDelta:
    """A piece of the model's reasoning, if the provider shows it."""

    text: str


@attrs.frozen
class ArgumentsDelta:
    """A piece of the JSON arguments of one call."""

    call_id: str
    delta: str = attrs.field(repr=False)  # may be part of a secret argument: the tool isn't known yet


@attrs.frozen
class ItemDone:
    """One item of the answer is complete."""

    item: Item


@attrs.frozen
class Raw:
    """A provider's event, unchanged."""

    data: Any = attrs.field(repr=False)


@attrs.frozen
class ResponseDone:
    """The answer is complete. `items` are all its items in order; `usage` is None if the provider gave none.

    `finish_reason` is the provider's reason for the end of the answer; `"length"` and `"content_filter"` mean that it
    was cut.
    """

    items: tuple[Item, ...] = attrs.field(converter=_to_tuple)
    usage: RequestUsage | None = attrs.field(default=None, validator=_check_usage)
    response_id: str | None = None
    request_id: str | None = None
    finish_reason: str | None = None


@attrs.frozen
class ModelResponse:
    """One complete answer of a model. `usage` and `finish_reason` are None if the provider gave none."""

    items: tuple[Item, ...] = attrs.field(converter=_to_tuple)
    usage: RequestUsage | None = None
    response_id: str | None = None
    request_id: str | None = None
    finish_reason: str | None = None

    @property
    def cut(self) -> bool:
        """True if a length limit or a content filter ended the answer before the model was done."""
        return self.finish_reason in ("length", "content_filter")


ModelEvent: TypeAlias = ResponseStarted | TextDelta | ReasoningDelta | ArgumentsDelta | ItemDone | Raw | ResponseDone
