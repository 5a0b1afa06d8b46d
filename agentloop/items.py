"""Conversation items: the input and output of models, independent of any provider's wire format.

Items are frozen values. `provider_data` keeps a provider's data beyond the fields here, so that an item can go back to
the same provider unchanged; an item of a kind unknown here becomes an `OpaqueItem` and survives the round trip.
Does not know about tools, runs or JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from agentloop._common.errors import UserTypeError
from agentloop._common.masking import MASK, masked_arguments, masked_repr

__all__ = [
    "ApprovalRequest",
    "AssistantMessage",
    "Compaction",
    "Content",
    "File",
    "HandoffCall",
    "HandoffOutput",
    "HostedToolCall",
    "ITEM_TYPES",
    "Image",
    "Item",
    "JsonObject",
    "OpaqueItem",
    "Part",
    "Reasoning",
    "Refusal",
    "SystemMessage",
    "Text",
    "ToolCall",
    "ToolOutput",
    "UserMessage",
    "to_items",
]

JsonObject: TypeAlias = Mapping[str, Any]


@attrs.frozen
class Text:
    """Plain text."""

    text: str


@attrs.frozen
class Image:
    """An image by URL (a `data:` URL holds the bytes). `detail` is the provider's resolution hint."""

    url: str
    detail: str | None = None


@attrs.frozen
class File:
    """A file by base64 `data` or by `url`."""

    data: str | None = None
    url: str | None = None
    filename: str | None = None


@attrs.frozen
class Refusal:
    """The model's words of refusal."""

    refusal: str


Part: TypeAlias = Text | Image | File | Refusal
Content: TypeAlias = str | tuple[Part, ...]
"""The content of a tool output: text, or parts."""


def _to_parts(content: str | Part | Iterable[Part]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, Text | Image | File | Refusal):
        return (content,)
    parts = tuple(content)
    for index, part in enumerate(parts):
        if not isinstance(part, Text | Image | File | Refusal):
            raise UserTypeError(
                f"content[{index}]: a Text, Image, File or Refusal is needed, not {type(part).__name__}"
            )
    return parts


def _text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def _to_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


# A secret message, like a secret tool output, is shown to the model alone. The flag takes no part in equality.
def _secret_field() -> Any:
    return attrs.field(default=False, kw_only=True, eq=False, repr=False)


def _message_repr(message: SystemMessage | UserMessage | AssistantMessage) -> str:
    return masked_repr(message, {"content": repr(MASK)} if message.secret else {})


@attrs.frozen(repr=False)
class SystemMessage:
    """An instruction to the model. One that is `secret` shows in no repr."""

    content: tuple[Part, ...] = attrs.field(converter=_to_parts)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret_field()

    def __repr__(self) -> str:
        return _message_repr(self)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text_of(self.content)


@attrs.frozen(repr=False)
class UserMessage:
    """A message of the user. A plain string becomes one `Text` part. One that is `secret` shows in no repr."""

    content: tuple[Part, ...] = attrs.field(converter=_to_parts)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret_field()

    def __repr__(self) -> str:
        return _message_repr(self)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text_of(self.content)


@attrs.frozen(repr=False)
class AssistantMessage:
    """A message of the model. One that is `secret` shows in no repr."""

    content: tuple[Part, ...] = attrs.field(converter=_to_parts)
    id: str | None = attrs.field(default=None, kw_only=True)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret_field()

    def __repr__(self) -> str:
        return _message_repr(self)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text_of(self.content)

    @property
    def refusal(self) -> str | None:
        """The words of refusal, or None."""
        words = [part.refusal for part in self.content if isinstance(part, Refusal)]
        return "".join(words) if words else None


@attrs.frozen
class Reasoning:
    """A reasoning item. It belongs to the item that follows it and never occurs without that item."""

    id: str | None = None
    summary: tuple[str, ...] = attrs.field(default=(), converter=_to_texts)
    content: tuple[str, ...] = attrs.field(default=(), converter=_to_texts)
    encrypted: str | None = None
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)


@attrs.frozen(repr=False)
class ToolCall:
    """The model's request to call a function. `arguments` is JSON text, exactly as the model wrote it.

    `secret` names the secret arguments, and `secret_output` is True if the output is secret: only the model sees these
    values. The run copies both from the tool's definition. They take no part in equality.
    """

    call_id: str
    name: str
    arguments: str = "{}"
    namespace: str | None = None
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: tuple[str, ...] = attrs.field(default=(), kw_only=True, eq=False, repr=False, converter=_to_texts)
    secret_output: bool = attrs.field(default=False, kw_only=True, eq=False, repr=False)

    def __repr__(self) -> str:
        return masked_repr(self, {"arguments": repr(masked_arguments(self.arguments, self.secret))})


def _to_output(output: str | Sequence[Part]) -> Content:
    return output if isinstance(output, str) else _to_parts(output)


@attrs.frozen(repr=False)
class ToolOutput:
    """The answer to one `ToolCall`: text or parts. One that is `secret` shows in no repr."""

    call_id: str
    output: Content = attrs.field(converter=_to_output)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret_field()

    def __repr__(self) -> str:
        return masked_repr(self, {"output": repr(MASK)} if self.secret else {})


@attrs.frozen
class HandoffCall:
    """The model's request to hand the conversation to another agent."""

    call_id: str
    name: str
    arguments: str = "{}"
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class HandoffOutput:
    """The answer to one `HandoffCall`. Agents are given by name."""

    call_id: str
    output: str
    source_agent: str
    target_agent: str
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class HostedToolCall:
    """A call of a tool that the provider ran itself (web search, code interpreter …): observed, never executed here."""

    kind: str
    data: JsonObject = attrs.field(factory=dict)
    id: str | None = None


@attrs.frozen
class ApprovalRequest:
    """A call that waits for a verdict. `agent` is the agent's name, `path` the ids of the enclosing agent-tool calls.

    `policy` names the policies that require the verdict; None if the tool itself does. `reason` is their reason in
    words; None if there is none.
    """

    call: ToolCall
    agent: str
    path: tuple[str, ...] = ()
    policy: str | None = attrs.field(default=None, kw_only=True)
    reason: str | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Compaction:
    """The provider's own compressed form of earlier items."""

    data: JsonObject


@attrs.frozen
class OpaqueItem:
    """An item of a kind that this library does not know, kept unchanged."""

    data: JsonObject


Item: TypeAlias = (
    SystemMessage
    | UserMessage
    | AssistantMessage
    | Reasoning
    | ToolCall
    | ToolOutput
    | HandoffCall
    | HandoffOutput
    | HostedToolCall
    | ApprovalRequest
    | Compaction
    | OpaqueItem
)
ITEM_TYPES: tuple[type, ...] = (
    SystemMessage,
    UserMessage,
    AssistantMessage,
    Reasoning,
    ToolCall,
    ToolOutput,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    ApprovalRequest,
    Compaction,
    OpaqueItem,
)


def to_items(given: str | Iterable[Item]) -> tuple[Item, ...]:
    """Return a run's input as items; a string is one user message.

    Raises:
        UserTypeError: if a value is no item; names its position.
    """
    if isinstance(given, str):
        return (UserMessage(given),)
    if isinstance(given, ITEM_TYPES):
        return (given,)  # type: ignore[return-value]  # isinstance over a tuple of the union's members
    try:
        items: tuple[Any, ...] = (given,) if isinstance(given, Mapping) else tuple(given)
    except TypeError:
        raise UserTypeError(f"input: text or a sequence of items is needed, not {type(given).__name__}") from None
    for index, item in enumerate(items):
        if not isinstance(item, ITEM_TYPES):
            hint = ": agentloop.items has them, UserMessage(text) for what a user says" if type(item) is dict else ""
            raise UserTypeError(f"input[{index}]: an item is needed, not {type(item).__name__}{hint}")
    return items
