"""The values between a run and a model: the request, and the events of one response.

A response is a stream of events with exactly one `ResponseDone`, as the last event. Does not know about transports and
codecs, which are in `agentloop.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from agentloop._common.errors import UserTypeError
from agentloop._common.values import NotedValue, SharesName, Value
from agentloop.items import Item, JsonObject, ToolKind
from agentloop.settings import CachePolicy, ModelSettings, Prompt
from agentloop.usage import RequestUsage, Usage


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
    def namespace_description(self) -> str | None: ...
    @property
    def examples(self) -> Any: ...  # (request, arguments) pairs; Any: pyright takes a converter for the value's type
    @property
    def kind(self) -> ToolKind: ...
    @property
    def format(self) -> Mapping[str, Any] | None: ...
    @property
    def defer_loading(self) -> bool: ...
    @property
    def output_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def allowed_callers(self) -> Any: ...  # names; Any for the same reason


class ModelInfo(Value, frozen=True, gc=False):
    """The public identity of a model: what logs and spans say was asked. It holds no secret.

    Attributes:
        provider: Who serves the model: a vendor's name, such as `"openai"`, or the host of another server.
        name: The model's name there.
        base_url: The URL of the server, without credentials and query; None for a model that has none.
        context_window: The tokens that one request and its answer may have together; None where that isn't known.
    """

    provider: str
    name: str
    base_url: str | None = None
    context_window: int | None = None


ModelFeature: TypeAlias = Literal["context_management", "conversations", "hosted_tools", "prompts", "tool_search"]
"""A feature of a provider beyond the answer to one request: its own means to make a long history shorter
(`ContextPolicy.provider`), conversations that it keeps (`conversation_id`, `previous_response_id`), tools that it runs
itself (`HostedTool`), prompts that it has stored (`Prompt`), and its own search for deferred tools
(`FunctionTool.defer_loading`)."""


class HostedToolDefinition(Protocol):
    """The part of a hosted tool that a codec reads. `HostedTool` satisfies it."""

    @property
    def kind(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...


class OutputSchema(Value, frozen=True, kw_only=True):
    """The JSON schema that a final answer must fit."""

    name: str
    schema: Mapping[str, Any]
    strict: bool = True


class RateState(Value, frozen=True, kw_only=True, gc=False):
    """The rest of a server's limits for this account, as the head of an answer tells: requests and tokens, and
    the seconds after which it has all of them again. None where it doesn't tell."""

    requests: int | None = None
    requests_reset: float | None = None
    tokens: int | None = None
    tokens_reset: float | None = None


def _make_request(cls: type[ModelRequest], fields: dict[str, Any]) -> ModelRequest:
    return cls(**fields)


class ModelRequest(NotedValue, frozen=True, kw_only=True):
    """One request to a model. `turn`, `path` and `call_ids` locate it in its run; providers don't send them.

    `instructions` are the parts of `system`, where the agent gives them in parts: `system` is their text, joined by
    blank lines. `hosted` are the tools that the provider runs itself. `cache` and `include` are those of `settings`.

    A model that can't express a part of the request raises `UserError` before it sends anything.
    """

    system: str | None
    items: Sequence[Item]
    instructions: tuple[str, ...] = ()
    tools: Sequence[ToolDefinition] = ()
    handoffs: Sequence[ToolDefinition] = ()
    hosted: Sequence[HostedToolDefinition] = ()
    output_schema: OutputSchema | None = None
    settings: ModelSettings = msgspec.field(default_factory=ModelSettings)
    tool_choice: str | Mapping[str, Any] | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    prompt: Prompt | None = None
    turn: int = 1
    path: tuple[str, ...] = ()
    call_ids: Collection[str] = ()
    """The ids of the run's calls so far, also of calls that a filter removed from `items`."""
    note_rates: Callable[[RateState], None] | None = None
    """Called by a model with what its server has left, if the run has limits that share it; None otherwise."""
    context_trigger: int | None = None
    """The tokens of input above which the provider is to make the history shorter by its own means; None = never."""
    cache_group: str | None = None
    """The id of the session, else of the trace's group, else of the run: a default for `CachePolicy.key`, where the
    provider takes one."""

    _notes: ClassVar[frozenset[str]] = frozenset({"call_ids", "note_rates", "cache_group"})
    _unshown: ClassVar[frozenset[str]] = _notes

    def __reduce__(self) -> tuple[Callable[..., ModelRequest], tuple[type[ModelRequest], dict[str, Any]]]:
        # The run gives a live view of ids, and no view can be copied or pickled.
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "note_rates"}
        fields["call_ids"] = tuple(self.call_ids)
        return _make_request, (type(self), fields)

    @property
    def cache(self) -> CachePolicy | None:
        """The policy for the provider's cache of prompts."""
        return self.settings.cache

    @property
    def include(self) -> Sequence[str]:
        """The names of what the answer should hold beyond the usual, in the provider's words."""
        return self.settings.include or ()


class ResponseStarted(Value, frozen=True, tag_field="type", tag="response_started", gc=False):
    """The model began to answer."""

    response_id: str | None = None


class TextDelta(Value, frozen=True, tag_field="type", tag="text_delta", gc=False, metaclass=SharesName):
    """A piece of the answer's text. `item` is the position of its message in the answer, 0 where unknown."""

    text: str
    item: int = 0


class ReasoningDelta(Value, frozen=True, tag_field="type", tag="reasoning_delta", gc=False, metaclass=SharesName):
    """A piece of the model's reasoning, if the provider shows it: of the reasoning itself, or of a summary of it."""

    text: str
    kind: Literal["text", "summary"] = "text"


class ArgumentsDelta(Value, frozen=True, tag_field="type", tag="arguments_delta", gc=False, metaclass=SharesName):
    """A piece of the JSON arguments of one call."""

    call_id: str
    delta: str

    _unshown: ClassVar[frozenset[str]] = frozenset(
        {"delta"}
    )  # it may be part of a secret argument: the tool isn't known yet


class HostedProgress(Value, frozen=True, tag_field="type", tag="hosted_progress", gc=False, metaclass=SharesName):
    """A step of a tool that the provider runs itself. `kind` is the tool's, `status` the provider's word for the step.

    `id` is the id of the `HostedToolCall` that the answer will hold.
    """

    kind: str
    status: str
    id: str | None = None


class ItemDone(Value, frozen=True, tag_field="type", tag="item_done", gc=False):
    """One item of the answer is complete."""

    item: Item


class Raw(Value, frozen=True, tag_field="type", tag="raw"):
    """A provider's event, unchanged."""

    data: Any

    _unshown: ClassVar[frozenset[str]] = frozenset({"data"})


class _Response(Value, frozen=True, gc=False):
    items: tuple[Item, ...]
    usage: RequestUsage | None = None
    response_id: str | None = None
    request_id: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    service_tier: str | None = None
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if type(self.items) is not tuple:
            force_setattr(self, "items", tuple(self.items))
        usage: object = self.usage
        if type(usage) is Usage:
            raise UserTypeError(
                f"{type(self).__name__}.usage: expected one request's RequestUsage, got a Usage, which adds up those "
                "of a run"
            )


class ResponseDone(_Response, frozen=True, tag_field="type", tag="response_done"):
    """The answer is complete. `items` are all its items in order; `usage` is None if the provider gave none.

    `finish_reason` is the provider's reason for the end of the answer; `"length"` and `"content_filter"` mean that it
    was cut, and `"pause"` that the provider interrupted its own work and wants to be asked again. `model` is the model
    that answered, `service_tier` the class of service that it was given, and `provider_data` what else the provider
    says of the answer as a whole; each is None if it says nothing.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            items: Iterable[Item],
            usage: RequestUsage | None = None,
            response_id: str | None = None,
            request_id: str | None = None,
            finish_reason: str | None = None,
            model: str | None = None,
            service_tier: str | None = None,
            provider_data: JsonObject | None = None,
        ) -> None: ...


class ModelResponse(_Response, frozen=True):
    """One complete answer of a model. Its fields are those of `ResponseDone`."""

    if TYPE_CHECKING:

        def __init__(
            self,
            items: Iterable[Item],
            usage: RequestUsage | None = None,
            response_id: str | None = None,
            request_id: str | None = None,
            finish_reason: str | None = None,
            model: str | None = None,
            service_tier: str | None = None,
            provider_data: JsonObject | None = None,
        ) -> None: ...

    @property
    def cut(self) -> bool:
        """True if a length limit or a content filter ended the answer before the model was done."""
        return self.finish_reason in ("length", "content_filter")

    @property
    def paused(self) -> bool:
        """True if the provider interrupted its own work, to continue when it is asked again."""
        return self.finish_reason == "pause"


ModelEvent: TypeAlias = (
    ResponseStarted | TextDelta | ReasoningDelta | ArgumentsDelta | HostedProgress | ItemDone | Raw | ResponseDone
)
"""An event of one response of a model; `ResponseDone` is the last one."""
