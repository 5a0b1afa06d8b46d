"""Conversation items: the input and output of models, independent of any provider's wire format.

Items are frozen values. `provider_data` keeps a provider's data beyond the fields here, so that an item can go back to
the same provider unchanged; an item of a kind unknown here becomes an `OpaqueItem` and survives the round trip.
Does not know about tools, runs or JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec.structs import force_setattr

from agentloop._common.errors import UserTypeError
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.values import NotedValue, Value

__all__ = [
    "Annotation",
    "ApprovalRequest",
    "AssistantMessage",
    "Audio",
    "CallKind",
    "CallToAnswer",
    "Caller",
    "Compaction",
    "ContainerFileCitation",
    "Content",
    "File",
    "FileCitation",
    "HandoffCall",
    "HandoffOutput",
    "HostedToolCall",
    "ITEM_TYPES",
    "Image",
    "Interruption",
    "Item",
    "JsonObject",
    "OpaqueItem",
    "Part",
    "Reasoning",
    "Refusal",
    "SystemMessage",
    "Text",
    "ToolCall",
    "ToolKind",
    "ToolOutput",
    "UrlCitation",
    "UserMessage",
    "find_hosted_calls",
    "to_items",
]

JsonObject: TypeAlias = Mapping[str, Any]
"""An object of JSON: text to values of JSON."""
if not TYPE_CHECKING:
    # At run time a model of the application's own may give other keys; they are stored, too (`_storage/value_codec`).
    JsonObject = Mapping[Any, Any]
ToolKind: TypeAlias = Literal["function", "custom", "shell", "apply_patch", "computer", "memory"]
"""The form in which a provider calls a tool: JSON arguments, free text, its own item for an executor, or, for a memory,
JSON arguments of its own definition."""
CallKind: TypeAlias = Literal["function", "custom", "approval", "shell", "apply_patch", "computer"]
"""The kind of a call: that of its tool, or `"approval"`."""


class _Check(NamedTuple):
    """The objects that a field may hold, by their classes or as choices, and the classes of its members."""

    words: str
    classes: tuple[type, ...]
    members: tuple[type, ...] = ()
    choices: tuple[str, ...] = ()


def _check_fields(value: Value) -> None:
    """Check the type of each field of *value*.

    msgspec checks what it reads, not what people write. Classes that are made for each call compare their plain form
    by hand, and come here with the rest only, because this takes 0.1 µs a field.

    Raises:
        UserTypeError: naming the class and the field.
    """
    for name, check in _checks_of(type(value)):
        given = getattr(value, name)
        if type(given) in check.classes and not check.choices and not check.members:
            continue
        place = f"{type(value).__name__}: {name}"
        if not isinstance(given, check.classes) or (type(given) is bool and bool not in check.classes):
            raise UserTypeError(f"{place}: expected {check.words}, got {type(given).__name__}")
        if check.choices and given not in check.choices:
            raise UserTypeError(f"{place}: expected {', '.join(check.choices)}, got {given!r}")
        members: Any = given if check.members else ()
        for index, member in enumerate(members):
            if not isinstance(member, check.members):
                raise UserTypeError(f"{place}: expected {check.words}, got {type(member).__name__} at {index}")


@cache
def _checks_of(cls: type[Value]) -> list[tuple[str, _Check]]:
    """Return the fields of *cls* with their checks."""
    annotations: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        annotations |= getattr(base, "__annotations__", {})
    return [(name, _CHECKS[annotations[name]]) for name in cls.__struct_fields__ if annotations[name] != "Any"]


class _ContentPart(Value, frozen=True, tag_field="type", gc=False):
    pass


class _Citation(Value, frozen=True, kw_only=True, tag_field="type", gc=False):
    start: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self)


class UrlCitation(_Citation, frozen=True, tag="url_citation"):
    """A web page that a text refers to. `start` and `end` bound the words of the text, in characters from 0."""

    url: str
    title: str | None = None


class FileCitation(_Citation, frozen=True, tag="file_citation"):
    """A file that a text refers to. `index` is the provider's position of the citation, in characters from 0."""

    file_id: str
    filename: str | None = None
    index: int | None = None


class ContainerFileCitation(_Citation, frozen=True, tag="container_file_citation"):
    """A file in a container of a hosted tool, made there or read there, that a text refers to."""

    container_id: str
    file_id: str
    filename: str | None = None


Annotation: TypeAlias = UrlCitation | FileCitation | ContainerFileCitation
"""A source that a text of the model refers to."""


class Text(_ContentPart, frozen=True, tag="text"):
    """Plain text. `annotations` are the sources that a model's text refers to."""

    text: str
    annotations: tuple[Annotation, ...] = ()

    def __post_init__(self) -> None:
        if type(self.text) is not str or self.annotations != ():
            _set_tuple(self, "annotations")
            _check_fields(self)


class _MediaType(type(msgspec.Struct)):  # type: ignore[misc]  # msgspec names its metaclass nowhere else
    def __call__(cls, *args: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*args, **fields)
        except UserTypeError:
            raise
        except TypeError as error:  # a field that isn't there, as `path`
            raise UserTypeError(
                f"{cls.__name__}: {error}. Write data=Path(...).read_bytes() for a file of this machine, url=... for "
                f"one on the web, file_id=... for one that the provider holds"
            ) from None


class _Media(_ContentPart, frozen=True, kw_only=True):
    file_id: str | None = None
    media_type: str | None = None

    _sources: ClassVar[tuple[str, ...]] = ("url", "data", "file_id")

    def __post_init__(self) -> None:
        found = False
        for name in self._sources:
            given = getattr(self, name)
            if given is None:
                continue
            found = True
            if name == "data" and isinstance(given, bytes | bytearray | memoryview):
                from base64 import b64encode  # most programs never need it

                force_setattr(self, name, b64encode(given).decode())
            elif not isinstance(given, str):
                raise UserTypeError(f"{type(self).__name__}: {name}: expected text, got {type(given).__name__}")
        if not found:
            raise UserTypeError(f"{type(self).__name__}: expected one of url, data and file_id")
        _check_fields(self)


class Image(_Media, frozen=True, tag="image", metaclass=_MediaType):
    """An image by URL, by `data`, or by the id of a file that the provider holds.

    `data` is base64, or bytes, which become base64. `media_type` is that of `data` (`"image/png"`); a `data:` URL names
    its own. `detail` is the provider's hint for the resolution.

    Raises:
        UserTypeError: if none of the three is given, or one isn't text.
    """

    url: str | None = None
    detail: str | None = None
    data: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            url: str | None = None,
            detail: str | None = None,
            data: str | bytes | bytearray | memoryview | None = None,
            *,
            file_id: str | None = None,
            media_type: str | None = None,
        ) -> None: ...


class Audio(_Media, frozen=True, tag="audio", metaclass=_MediaType):
    """A recording by `data`, by URL, or by the id of a file that the provider holds.

    `data` is base64, or bytes, which become base64. `media_type` is that of `data`: `"audio/wav"`, `"audio/mpeg"`.

    Raises:
        UserTypeError: if none of the three is given, or one isn't text.
    """

    data: str | None = None
    url: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            data: str | bytes | bytearray | memoryview | None = None,
            url: str | None = None,
            *,
            file_id: str | None = None,
            media_type: str | None = None,
        ) -> None: ...


class File(_Media, frozen=True, tag="file", metaclass=_MediaType):
    """A file by `data`, by `url`, or by the id of a file that the provider holds.

    `data` is base64, or bytes, which become base64. `media_type` is that of `data`; if it isn't given, the name of the
    file tells it.

    Raises:
        UserTypeError: if none of the three is given, or one isn't text.
    """

    data: str | None = None
    url: str | None = None
    filename: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            data: str | bytes | bytearray | memoryview | None = None,
            url: str | None = None,
            filename: str | None = None,
            *,
            file_id: str | None = None,
            media_type: str | None = None,
        ) -> None: ...


class Refusal(_ContentPart, frozen=True, tag="refusal"):
    """The model's words of refusal."""

    refusal: str

    def __post_init__(self) -> None:
        _check_fields(self)


Part: TypeAlias = Text | Image | Audio | File | Refusal
"""A part of the content of a message or of a tool output."""
Content: TypeAlias = str | tuple[Part, ...]
"""The content of a tool output: text, or parts."""


_PARTS = (Text, Image, Audio, File, Refusal)
_BYTES = (bytes, bytearray, memoryview)


def _to_parts(content: str | Part | Iterable[Part]) -> tuple[Part, ...]:
    given: object = content
    if isinstance(given, str):
        return (Text(given),)
    if isinstance(given, _PARTS):
        return (given,)
    # A tuple, which decoders make, is asked for first: `isinstance` with an abstract class takes 1 µs.
    if type(given) is not tuple and (
        not isinstance(given, Iterable) or isinstance(given, bytes | bytearray | memoryview)
    ):
        raise UserTypeError(f"content: expected text or a sequence of parts, got {type(given).__name__}")
    parts: tuple[Part, ...] = tuple(given)
    for index, part in enumerate(parts):
        if not isinstance(part, _PARTS):
            raise UserTypeError(
                f"content[{index}]: expected a Text, Image, Audio, File or Refusal, got {type(part).__name__}"
            )
    return parts


def _set_tuple(value: Value, name: str) -> None:
    given = getattr(value, name)
    # A text would become a sequence of its letters; what isn't iterable fails the check of the fields.
    if type(given) is not tuple and isinstance(given, Iterable) and not isinstance(given, str | bytes):
        force_setattr(value, name, tuple(given))


class _Item(Value, frozen=True, tag_field="type", gc=False):
    def __post_init__(self) -> None:
        _check_fields(self)


class _ProviderItem(_Item, frozen=True, kw_only=True):
    provider_data: JsonObject | None = None


# `secret` is a note (`NotedValue`): what is secret is shown to the model only.
class _SecretItem(NotedValue, frozen=True, kw_only=True, tag_field="type", gc=False):
    provider_data: JsonObject | None = None
    secret: bool = False

    _masked: ClassVar[str] = "content"

    def __repr__(self) -> str:
        return self._format({self._masked: repr(MASK)} if self.secret else {})


class _Message(_SecretItem, frozen=True):
    content: tuple[Part, ...]

    def __post_init__(self) -> None:
        given: object = self.content
        force_setattr(self, "content", (Text(given),) if type(given) is str else _to_parts(self.content))
        if self.provider_data is not None or self.secret is not False:
            _check_fields(self)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.content if isinstance(part, Text)])


class Caller(Value, frozen=True, gc=False):
    """The hosted tool whose program made a call in place of the model. `kind` is the provider's word, `id` its call."""

    kind: str
    id: str | None = None

    def __post_init__(self) -> None:
        _check_fields(self)


class _MarkedCall(NotedValue, frozen=True, kw_only=True, tag_field="type", gc=False):
    kind: CallKind = "function"
    caller: Caller | None = None
    provider_data: JsonObject | None = None
    secret: tuple[str, ...] = ()
    secret_output: bool = False

    _notes: ClassVar[frozenset[str]] = frozenset({"secret", "secret_output"})
    _unshown: ClassVar[frozenset[str]] = _notes


class _MarkedOutput(_SecretItem, frozen=True, kw_only=True):
    kind: CallKind = "function"
    is_error: bool = False


class _RequiredVerdict(_Item, frozen=True, kw_only=True):
    policy: str | None = None
    reason: str | None = None


class SystemMessage(_Message, frozen=True, tag="system_message"):
    """An instruction to the model. One that is `secret` shows in no repr."""

    if TYPE_CHECKING:

        def __init__(
            self,
            content: str | Part | Iterable[Part],
            *,
            provider_data: JsonObject | None = None,
            secret: bool = False,
        ) -> None: ...


class UserMessage(_Message, frozen=True, kw_only=True, tag="user_message"):
    """A message of the user. A plain string becomes one `Text` part. One that is `secret` shows in no repr.

    One that is `pinned` stays in a history that a `ContextPolicy` makes shorter; providers don't see that.
    """

    pinned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pinned is not False:
            _check_fields(self)

    if TYPE_CHECKING:

        def __init__(
            self,
            content: str | Part | Iterable[Part],
            *,
            pinned: bool = False,
            provider_data: JsonObject | None = None,
            secret: bool = False,
        ) -> None: ...


class AssistantMessage(_Message, frozen=True, kw_only=True, tag="assistant_message"):
    """A message of the model. One that is `secret` shows in no repr."""

    id: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.id is not None:
            _check_fields(self)

    if TYPE_CHECKING:

        def __init__(
            self,
            content: str | Part | Iterable[Part],
            *,
            id: str | None = None,
            provider_data: JsonObject | None = None,
            secret: bool = False,
        ) -> None: ...

    @property
    def refusal(self) -> str | None:
        """The words of refusal, or None."""
        words = [part.refusal for part in self.content if isinstance(part, Refusal)]
        return "".join(words) if words else None


class Reasoning(_ProviderItem, frozen=True, tag="reasoning"):
    """A reasoning item. It belongs to the item that follows it and never occurs without that item."""

    id: str | None = None
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    encrypted: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            id: str | None = None,
            summary: Iterable[str] = (),
            content: Iterable[str] = (),
            encrypted: str | None = None,
            *,
            provider_data: JsonObject | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        _set_tuple(self, "summary")
        _set_tuple(self, "content")
        _check_fields(self)


def _no_arguments() -> str:
    # Made by a function, so that it is always stored: a constant is left out where a text is the same object, and
    # equal calls would be stored differently.
    return "{}"


class ToolCall(_MarkedCall, frozen=True, tag="tool_call"):
    """The model's request to call a function. `arguments` is JSON text, exactly as the model wrote it.

    A call of kind `"custom"` is one of a tool that takes free text: `arguments` is that text. `caller` is the hosted
    tool that made the call; None if the model itself did.

    A call of kind `"shell"`, `"apply_patch"` or `"computer"` came as the provider's own item for an executor
    (`agentloop.executors`). `arguments` is the JSON text of that item's content, and the output goes back as the item
    that answers it; in all else it is a call like others.

    A call of kind `"approval"` is one that the provider will run itself, on the server `namespace`, once it is
    approved: it is always an interruption, and no tool of the agent runs.

    `secret` names the secret arguments, and `secret_output` is True if the output is secret: only the model sees these
    values. The run copies both from the tool's definition. They take no part in equality.
    """

    call_id: str
    name: str
    arguments: str = msgspec.field(default_factory=_no_arguments)
    namespace: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            call_id: str,
            name: str,
            arguments: str = "{}",
            namespace: str | None = None,
            *,
            kind: CallKind = "function",
            caller: Caller | None = None,
            provider_data: JsonObject | None = None,
            secret: Iterable[str] = (),
            secret_output: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        if type(self.secret) is not tuple:
            _set_tuple(self, "secret")
        if not (
            (type(self.call_id) is type(self.name) is type(self.arguments) is str)
            and self.namespace is None
            and self.caller is None
            and self.provider_data is None
            and self.kind == "function"
            and self.secret == ()
            and self.secret_output is False
        ):
            _check_fields(self)

    def __repr__(self) -> str:
        return self._format({"arguments": repr(mask_arguments(self.arguments, self.secret))})


class ToolOutput(_MarkedOutput, frozen=True, tag="tool_output"):
    """The answer to one `ToolCall`: text or parts. One that is `secret` shows in no repr.

    `kind` is that of the call. `is_error` is True if the output says why the call didn't succeed; for the kind
    `"approval"`, why it was not approved.
    """

    call_id: str
    output: Content

    _masked = "output"

    if TYPE_CHECKING:

        def __init__(
            self,
            call_id: str,
            output: str | Part | Iterable[Part],
            *,
            kind: CallKind = "function",
            is_error: bool = False,
            provider_data: JsonObject | None = None,
            secret: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.output, str):
            force_setattr(self, "output", _to_parts(self.output))
        if not (
            type(self.call_id) is str
            and self.provider_data is None
            and self.kind == "function"
            and self.is_error is False
            and self.secret is False
        ):
            _check_fields(self)


class HandoffCall(_ProviderItem, frozen=True, tag="handoff_call"):
    """The model's request to hand the conversation to another agent."""

    call_id: str
    name: str
    arguments: str = msgspec.field(default_factory=_no_arguments)

    def __post_init__(self) -> None:
        if not (type(self.call_id) is type(self.name) is type(self.arguments) is str and self.provider_data is None):
            _check_fields(self)


class HandoffOutput(_ProviderItem, frozen=True, tag="handoff_output"):
    """The answer to one `HandoffCall`. Agents are given by name."""

    call_id: str
    output: str
    source_agent: str
    target_agent: str

    def __post_init__(self) -> None:
        plain = type(self.call_id) is type(self.output) is type(self.source_agent) is type(self.target_agent) is str
        if not (plain and self.provider_data is None):
            _check_fields(self)


class HostedToolCall(_Item, frozen=True, tag="hosted_tool_call"):
    """A call of a tool that the provider ran itself (web search, code interpreter …): observed, never executed here.

    `status` is the provider's word for how it went, `output` what the tool gave, in the provider's own JSON (None if
    it isn't shown), and `call_id` the id that the call's other items name. `data` holds the provider's other fields.
    """

    kind: str
    data: JsonObject = msgspec.field(default_factory=dict)
    id: str | None = None
    status: str | None = None
    output: Any = None
    call_id: str | None = None


class ApprovalRequest(_RequiredVerdict, frozen=True, tag="approval_request"):
    """A call that waits for a verdict. `agent` is the agent's name, `path` the ids of the enclosing agent-tool calls.

    `policy` names the policies that require the verdict; None if the tool itself does. `reason` is their reason in
    words; None if there is none.
    """

    call: ToolCall
    agent: str
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set_tuple(self, "path")
        _check_fields(self)


class CallToAnswer(_Item, frozen=True, kw_only=True, tag="call_to_answer"):
    """A call that the application answers, and that waits for the answer. It is part of no conversation.

    Attributes:
        call: The call, with the arguments that it started with.
        agent: The agent's name.
        path: The ids of the enclosing agent-tool calls.
        returns: The JSON schema of the answer: from it a form can be made.
        expires_at: Wall-clock seconds after which no answer counts; None if the tool has no timeout.

    Example:
        from agentloop import Agent, ExternalTool, Runner
        from agentloop.testing import ScriptedModel, call, say

        place = ExternalTool("place", "Ask where the user is.", {}, returns={"type": "string"})
        agent = Agent("a", model=ScriptedModel([call("place"), say("Hello, Rome.")]), tools=[place])
        state = Runner.run_sync(agent, "Where am I?").to_state()
        waiting = state.interruptions[0]
        print(waiting.call.name, waiting.returns)  # place {'type': 'string'}
        state.answer(waiting, "Rome")
        print(Runner.run_sync(agent, state).final_output)  # Hello, Rome.
    """

    call: ToolCall
    agent: str
    path: tuple[str, ...] = ()
    returns: JsonObject
    expires_at: float | None = None

    def __post_init__(self) -> None:
        _set_tuple(self, "path")
        _check_fields(self)


Interruption: TypeAlias = ApprovalRequest | CallToAnswer
"""A paused run waits for one of these: a verdict on a call, or the answer to one."""


class Compaction(_Item, frozen=True, tag="compaction"):
    """The provider's own compressed form of earlier items."""

    data: JsonObject


class OpaqueItem(_Item, frozen=True, tag="opaque_item"):
    """An item of a kind that this library does not know, kept unchanged."""

    data: JsonObject


_CHECKS: Mapping[str, _Check] = {
    "str": _Check("text", (str,)),
    "str | None": _Check("text", (str, NoneType)),
    "bool": _Check("True or False", (bool,)),
    "int | None": _Check("a whole number", (int, NoneType)),
    "float | None": _Check("a number", (int, float, NoneType)),
    "CallKind": _Check("text", (str,), choices=get_args(CallKind)),
    "Content": _Check("text or a sequence of parts", (str, tuple)),
    "Caller | None": _Check("a Caller", (Caller, NoneType)),
    "ToolCall": _Check("a ToolCall", (ToolCall,)),
    "JsonObject": _Check("a mapping", (dict, Mapping)),
    "JsonObject | None": _Check("a mapping", (dict, Mapping, NoneType)),
    "tuple[str, ...]": _Check("a sequence of texts", (tuple,), (str,)),
    "tuple[Part, ...]": _Check("a sequence of parts", (tuple,)),
    "tuple[Annotation, ...]": _Check("a sequence of citations", (tuple,), get_args(Annotation)),
}
"""The check of a field by its annotation. Parts are checked where they are taken, `_to_parts`."""

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
"""An entry of a conversation. The union is closed: match it to its end."""
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
"""The members of `Item`, for `isinstance`."""
CALLS = (ToolCall, HandoffCall)
OUTPUTS = (ToolOutput, HandoffOutput)


def _find_unpaired(items: Iterable[Item]) -> str | None:
    """Return which call in *items* has no output behind it, or which output no call; None if all are paired.

    Providers refuse a history with either.
    """
    waiting: set[str] = set()
    for item in items:
        if isinstance(item, CALLS):
            waiting.add(item.call_id)
        elif isinstance(item, OUTPUTS):
            if item.call_id not in waiting:
                return f"the output of call {item.call_id!r} has no call before it"
            waiting.discard(item.call_id)
    return f"call {min(waiting)!r} has no output after it" if waiting else None


_NO_CALLS = ("_output", "_result", "_response", "_tools")
"""Ends of the kinds of `HostedToolCall`s that aren't calls: outputs of calls, and lists of a server's tools."""


def find_hosted_calls(items: Iterable[Item]) -> list[HostedToolCall]:
    """Return those of *items* that are calls made by the provider: each may have a fee, and has a span.

    A provider's tools give other items of this class, too: outputs (`tool_search_output`), lists (`mcp_list_tools`).
    """
    return [item for item in items if isinstance(item, HostedToolCall) and not item.kind.endswith(_NO_CALLS)]


_NO_ITEM = (
    ": agentloop.items has them, UserMessage(text) for what a user says; from_chat, from_responses and from_anthropic "
    "of agentloop.interop read messages of providers"
)


def to_items(given: str | Iterable[Item]) -> tuple[Item, ...]:
    """Return a run's input as items; a string is one user message.

    Raises:
        UserTypeError: if a value isn't an item; names its position.

    Example:
        from agentloop.items import to_items

        print(to_items("hi")[0].text)  # hi
    """
    if isinstance(given, str):
        return (UserMessage(given),)
    if isinstance(given, ITEM_TYPES):
        return (given,)  # type: ignore[return-value]  # isinstance over a tuple of the union's members
    try:
        items: tuple[Any, ...] = (given,) if isinstance(given, Mapping) else tuple(given)
    except TypeError:
        raise UserTypeError(f"input: expected text or a sequence of items, got {type(given).__name__}") from None
    for index, item in enumerate(items):
        if not isinstance(item, ITEM_TYPES):
            hint = _NO_ITEM if type(item) is dict else ""
            raise UserTypeError(f"input[{index}]: expected an item, got {type(item).__name__}{hint}")
    return items
