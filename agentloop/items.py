"""Conversation items: what a model is shown and what it answers, free of any provider's wire format.

Items are frozen values. `provider_data` keeps what a provider sent beside the fields here, so that an item can go back
to the same provider unchanged; an item of a kind unknown here travels as `OpaqueItem` and survives the round trip.
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
"""What a tool output holds: text, or parts."""


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


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


# Messages may be secret, as what a tool marks is: the model sees them, and nobody else. It takes no part in equality.
def _secret() -> Any:
    return attrs.field(default=False, kw_only=True, eq=False, repr=False)


def _message_repr(message: SystemMessage | UserMessage | AssistantMessage) -> str:
    return masked_repr(message, {"content": repr(MASK)} if message.secret else {})


@attrs.frozen(repr=False)
class SystemMessage:
    """An instruction to the model. One that is `secret` shows in no repr."""

    content: tuple[Part, ...] = attrs.field(converter=_to_parts)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret()

    def __repr__(self) -> str:
        return _message_repr(self)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text_of(self.content)


@attrs.frozen(repr=False)
class UserMessage:
    """What the user said. A plain string becomes one `Text` part. One that is `secret` shows in no repr."""

    content: tuple[Part, ...] = attrs.field(converter=_to_parts)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret()

    def __repr__(self) -> str:
        return _message_repr(self)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return _text_of(self.content)


@attrs.frozen(repr=False)
class AssistantMessage:
    """What the model said. One that is `secret` shows in no repr."""

    content: tuple[Part, ...] = attrs.field(converter=_to_parts)
    id: str | None = attrs.field(default=None, kw_only=True)
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: bool = _secret()

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
    """A reasoning item. It belongs to the item that follows it and never stands without it."""

    id: str | None = None
    summary: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    content: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    encrypted: str | None = None
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)


@attrs.frozen(repr=False)
class ToolCall:
    """The model's request to call a function. `arguments` is JSON text, exactly as the model wrote it.

    `secret` names the arguments, and `secret_output` says whether of the output too, that are shown nowhere: the
    tool's own word, put here by the run. They take no part in equality.
    """

    call_id: str
    name: str
    arguments: str = "{}"
    namespace: str | None = None
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)
    secret: tuple[str, ...] = attrs.field(default=(), kw_only=True, eq=False, repr=False, converter=_texts)
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
    secret: bool = _secret()

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
    """The answer to one `HandoffCall`. Agents stand by name."""

    call_id: str
    output: str
    source_agent: str
    target_agent: str
    provider_data: JsonObject | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class HostedToolCall:
    """A tool the provider ran itself (web search, code interpreter …): observed, never executed here."""

    kind: str
    data: JsonObject = attrs.field(factory=dict)
    id: str | None = None


@attrs.frozen
class ApprovalRequest:
    """A call that waits for a verdict. `agent` is the agent's name, `path` the calls of agent tools around it.

    `policy` names the policies that ask for it, and `reason` is why, in their words; None where it is the tool itself,
    or a policy gave no reason.
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
    """An item of a kind this library does not know, kept as it came."""

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
        UserTypeError: naming the position of a value that is no item.
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
