"""The parts of one HTTP interface: how a request is written, how an answer is read, and who serves it. Pure.

An `HttpCodec` knows no transport and no run; `HttpModel` joins it with the driver. Helpers here serve several codecs:
the JSON of a server, its errors and its counts.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import attrs

from agentloop._common.strict_json import is_deeper, write_text
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserTypeError, UserValueError
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest, Raw, ResponseStarted
from agentloop.models._long_json import MOST_DEPTH, decoder, is_long
from agentloop.models._windows import find_context_window
from agentloop.settings import ModelSettings
from agentloop.usage import RequestUsage

logger = logging.getLogger("agentloop")
JsonDict = dict[str, Any]
QUOTED = 200
"""Most characters of a model's or server's text that a message quotes."""


class Decoder(Protocol):
    """Turns one answer into model events. The call that reads the answer makes it, and owns it.

    `feed` takes the data of each server-sent event, or `feed_answer` the whole answer if the server doesn't stream;
    then `finish` is called once. Any of them may raise `ModelBehaviorError` for an answer that breaks the interface's
    rules, and `ModelTransportError` for an error that the server reports instead of an answer.

    The work for an answer grows with its size and not faster: no call searches what came before, or reads it again.
    `count_part` bounds the parts of an answer, so that `finish` is short as well.
    """

    @property
    def done(self) -> bool:
        """True once the answer's last event has come: nothing of use follows."""
        ...

    @property
    def shown(self) -> bool:
        """True once a part of the answer was returned; from then on the server may be silent for a short time only."""
        ...

    def feed(self, data: str) -> Iterable[ModelEvent]:
        """Return the model events of one server-sent event's *data*."""
        ...

    def feed_answer(self, answer: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """Return the model events of a whole answer that was not streamed, except the last ones."""
        ...

    def finish(self, request_id: str | None = None) -> Iterable[ModelEvent]:
        """Return the last events, with `ResponseDone` at the end.

        Raises:
            ModelBehaviorError: if the answer is not complete: a short answer would look like a whole one.
        """
        ...


class EventDecoder(ABC):
    """The base of the decoders here: each event of a stream is a JSON object, and a last line may be `[DONE]`.

    An object, a whole answer, or the end of one may be much work. The methods whose names begin with `read` do it in
    steps: they yield the model events, and None after a step without one. The others do it at once.
    """

    what: ClassVar[str] = "An event of the response"
    ends_with_line: ClassVar[bool] = False
    """True if the last line ends the answer; most interfaces have an event that says more."""

    def __init__(self) -> None:
        self.done = False
        """True once the answer's last event has come."""
        self.shown = False
        """True once a part of the answer was returned to the caller."""

    def feed(self, data: str) -> list[ModelEvent]:
        """Return the model events of one event's *data*.

        Raises:
            ModelBehaviorError: if *data* breaks the interface's rules, or reports an error in the middle of an answer.
            ModelTransportError: if *data* reports an error instead of an answer.
        """
        data = data.strip()
        if self.done or not data:
            return []
        if data == "[DONE]":
            self.done = self.ends_with_line
            return []
        return _collect(self.read_event(parse_object(data, self.what)))

    def feed_answer(self, answer: Mapping[str, Any]) -> list[ModelEvent]:
        """Return the model events of a whole answer that was not streamed, except the last ones. Raises as `feed`."""
        return _collect(self.read_answer(answer))

    def finish(self, request_id: str | None = None) -> list[ModelEvent]:
        """Return the last events, with `ResponseDone` at the end. Call it once, after the end of the answer.

        Raises:
            ModelBehaviorError: if the answer isn't complete, or was cut with nothing usable or within a call.
            ModelTransportError: if the server broke it off.
        """
        return _collect(self.read_end(request_id))

    def read_event(self, event: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        """Yield the model events of one *event* that was read already. Raises as `feed`."""
        return self._note_shown(self._read_event(event))

    def read_answer(self, answer: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        """Yield what `feed_answer` returns."""
        return self._note_shown(self._read_answer(answer))

    @abstractmethod
    def read_end(self, request_id: str | None = None) -> Iterator[ModelEvent | None]:
        """Yield what `finish` returns."""

    @abstractmethod
    def _read_event(self, event: Mapping[str, Any]) -> Iterator[ModelEvent | None]: ...

    @abstractmethod
    def _read_answer(self, answer: Mapping[str, Any]) -> Iterator[ModelEvent | None]: ...

    def _note_shown(self, events: Iterator[ModelEvent | None]) -> Iterator[ModelEvent | None]:
        for event in events:
            if event is not None and not isinstance(event, _SHOWS_NOTHING):
                self.shown = True
            yield event


_SHOWS_NOTHING = (ResponseStarted, Raw)


def _collect(events: Iterator[ModelEvent | None]) -> list[ModelEvent]:
    return [event for event in events if event is not None]


@attrs.frozen(kw_only=True)
class HttpCodec:
    """One HTTP interface for models, as pure functions.

    Attributes:
        path: The path behind the base URL, with a leading slash.
        headers: Returns the request's headers for the API key, which may be None.
        encode: Returns the JSON body for a request and the model's name. Raises `UserError` for what the interface
            can't express.
        decoder: Returns a new decoder for the answer to a request.
        features: What the interface has beyond the answer to one request (`Model.features`). A run that needs another
            feature is refused, so `encode` writes the parts of a request that belong to those named here.
        dispensable: Fields of the body without which an answer is the same, and that some servers don't know. A request
            that is refused with a text that names one of them is sent once more without it, and so are later ones.
    """

    path: str
    headers: Callable[[str | None], Mapping[str, str]]
    encode: Callable[[ModelRequest, str], Mapping[str, Any]]
    decoder: Callable[[ModelRequest], Decoder]
    features: frozenset[ModelFeature] = frozenset()
    dispensable: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Vendor:
    """The company behind an interface: the URL of its service, and the environment variables that configure it.

    Attributes:
        url: The base URL of its own service, which needs a key.
        key_variable: Holds the key. It is sent to the vendor, and to the server that `url_variable` names, only.
        url_variable: Holds another base URL; None: there is no such variable.
        name: Its name in logs and spans (`ModelInfo.provider`); None: the host of `url`.
        needs_key: False for a server that you run yourself, and that may have none.
    """

    url: str
    key_variable: str
    url_variable: str | None = None
    name: str | None = None
    needs_key: bool = True
    cache_key: str | None = None
    """The field of a request for the key of its cache, where the vendor takes one."""

    def add_cache_key(self, body: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        """Return *body* with the default key of the cache, unless the application has chosen one, or has left it out.

        A digest: the id of a session may be the name of a person.
        """
        field, group = self.cache_key, request.cache_group
        if field is None or group is None or field in {**body, **(request.settings.extra_body or {})}:
            return body
        return {**body, field: f"agentloop-{hashlib.sha256(group.encode(errors='surrogatepass')).hexdigest()[:32]}"}

    def is_at(self, url: str) -> bool:
        """Tell whether *url* is on the vendor's own host, and reached as the vendor is: with TLS."""
        return _read_origin(url) == _read_origin(self.url)

    def find_url(self, given: str | None) -> str:
        """Return the base URL: the *given* one, else the environment's, else the vendor's."""
        return given or (self.url_variable and read_variable(self.url_variable)) or self.url

    def find_key(self, url: str) -> str | None:
        """Return the key in the environment if it may be sent to *url*, else None.

        Never over plain HTTP to a server that the vendor, or the environment, reaches with TLS.
        """
        configured = self.url_variable and read_variable(self.url_variable)
        if not self.is_at(url) and (not configured or _read_origin(url) != _read_origin(configured)):
            return None
        return check_key(read_variable(self.key_variable))


def identify(vendor: Vendor | None, name: str, base_url: str) -> ModelInfo:
    """Return the identity of the model *name* at *base_url*: of the vendor if it is served there, else of the host."""
    host = urlsplit(base_url).hostname or base_url
    provider = vendor.name if vendor is not None and vendor.is_at(base_url) else None
    window = None if provider is None else find_context_window(provider, name)
    return ModelInfo(provider or host, name, base_url, window)


def _read_origin(url: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(url)
    except ValueError:  # `split_url` refuses it, in its own words
        return None
    return {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme), parts.netloc


def read_variable(name: str) -> str | None:
    """Return an environment variable without surrounding blanks; None if it is missing or blank."""
    return os.environ.get(name, "").strip() or None


def check_key(key: str | None) -> str | None:
    """Return *key*, or None for an empty one.

    Raises:
        UserValueError: if it holds characters that no key has; doesn't quote it.
    """
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise UserValueError("api_key holds characters that no key has.")
    return key or None


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """Return *url* without its query and trailing slash, and the query, which every request repeats.

    Raises:
        UserValueError: if it isn't an HTTP URL, or holds credentials; then it isn't quoted.
    """
    if "@" in url:  # the part before it may be a password
        raise UserValueError("base_url: credentials don't belong in the URL; give `api_key`")
    parts = _http_parts(url)
    if parts is None:
        raise UserValueError(f"base_url: expected an http or https URL, got {url!r}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), dict(parse_qsl(parts.query))


def _http_parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------------- requests


def without_none(fields: Mapping[str, Any]) -> JsonDict:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def add_extras(body: JsonDict, settings: ModelSettings) -> JsonDict:
    """Return *body* with `extra_args`, and with `extra_body`, which overrides fields, and removes those that are None.

    Raises:
        UserTypeError: if `extra_args` holds a field that is already set.
    """
    extra = dict(settings.extra_args or {})
    if taken := sorted(body.keys() & extra.keys()):
        raise UserTypeError(f"extra_args: already set by the request: {', '.join(taken)}")
    override = settings.extra_body or {}
    return without_none({**body, **extra, **override}) if None in override.values() else body | extra | dict(override)


class WrittenArray:
    """A field of a body whose members are JSON already."""

    __slots__ = ("members",)

    def __init__(self, members: Sequence[bytes]) -> None:
        self.members = members


def encode_json(body: Mapping[str, Any]) -> bytes:
    """Return *body* as JSON. Fields of it may be a `WrittenArray`.

    Raises:
        UserTypeError, UserValueError: if it has no JSON form.
    """
    written = {name: value for name, value in body.items() if type(value) is WrittenArray}
    if not written:
        return _encode(body)
    fields = [b"%s:[%s]" % (_encode(name), b",".join(array.members)) for name, array in written.items()]
    if rest := {name: value for name, value in body.items() if name not in written}:
        fields.insert(0, _encode(rest)[1:-1])
    return b"{%s}" % b",".join(fields)


def _encode(value: object) -> bytes:
    try:
        text = write_text(value)
        return (_HALF.sub(_whole, text) if "\\ud" in text else text).encode()
    except (TypeError, RecursionError) as error:
        raise UserTypeError(f"The request can't be written as JSON: {error}") from None
    except ValueError as error:
        raise UserValueError(f"The request can't be written as JSON: {error}") from None


# Half of a surrogate pair, which servers refuse, after what else begins with a backslash: a backslash, a whole pair.
_HALF = re.compile(r"(\\\\|\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..")


def _whole(found: re.Match[str]) -> str:
    return found[1] or "\\ufffd"


# ---------------------------------------------------------------------------------------------- answers


def parse_object(text: str, what: str) -> JsonDict:
    """Return the JSON object in *text*.

    Raises:
        ModelBehaviorError: if *text* isn't a JSON object; quotes its beginning.
    """
    data = _decode(text)
    if not isinstance(data, dict):
        raise ModelBehaviorError(f"{what} isn't a JSON object: {text[:QUOTED]!r}")
    return data


def parse_json(text: str) -> Any:
    """Return the value of *text*; `NOT_JSON` if it isn't JSON, or can't be read in one step and sent again.

    That is so for a text that is too long or too deep, or has a number that is too large.
    """
    return NOT_JSON if is_long(text) else _decode(text)


def _decode(text: str) -> Any:
    try:
        return NOT_JSON if is_deeper(text, MOST_DEPTH) else decoder.decode(text)
    except ValueError:
        return NOT_JSON


NOT_JSON: Any = object()


def is_json(text: str) -> bool:
    """Tell whether *text* is complete JSON, and not too long to be read in one step: no call has longer arguments."""
    return parse_json(text) is not NOT_JSON


MOST_PARTS = 20_000
"""Most calls, blocks or items of one answer. A run refuses calls beyond `ToolExecution.max_calls_per_turn` anyway."""


def count_part(number: int) -> int:
    """Return *number*, of the answer's parts so far.

    Raises:
        ModelBehaviorError: if these are too many.
    """
    if number > MOST_PARTS:
        raise ModelBehaviorError(f"The response has more than {MOST_PARTS:,} parts.")
    return number


def read_objects(value: object, what: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of JSON objects, empty for null.

    Raises:
        ModelBehaviorError: if *value* is anything else.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise ModelBehaviorError(f"The response's {what} aren't a list of objects: {str(value)[:QUOTED]!r}")
    return value


def read_text(value: object, what: str) -> str:
    """Return text that may be missing, null, or (as some servers send it) a list of text parts.

    Raises:
        ModelBehaviorError: if *value* is anything else.
    """
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return "".join(str(part["text"]) for part in value if isinstance(part, Mapping) and part.get("text"))
        case _:
            raise ModelBehaviorError(f"The response's {what} isn't text: {str(value)[:QUOTED]!r}")


def optional_text(value: object) -> str | None:
    """Return *value* if it is text, else None: for facts beside an answer's content, where nonsense isn't a fault."""
    return value if isinstance(value, str) else None


def optional_whole(value: object) -> int | None:
    """Return *value* if it is a whole number, else None, as `optional_text`. True and False are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_count(data: object, name: str) -> int:
    """Return the count called *name*; 0 if *data* isn't an object, or the count is missing or nonsense."""
    value = optional_whole(data.get(name)) if isinstance(data, Mapping) else None
    return value if value is not None and value > 0 else 0


class UsageNames(NamedTuple):
    """The names that an interface gives to the tokens of a request, of an answer, and to the parts of each."""

    spent: str
    spent_parts: str
    made: str
    made_parts: str


def read_usage(data: Mapping[str, Any], model: str | None, names: UsageNames) -> RequestUsage:
    """Return the use that an answer tells; a detail that is missing or null counts 0."""
    spent, made = read_count(data, names.spent), read_count(data, names.made)
    inward, outward = data.get(names.spent_parts), data.get(names.made_parts)
    return RequestUsage(
        raw=data,
        input_tokens=spent,
        output_tokens=made,
        total_tokens=read_count(data, "total_tokens") or spent + made,
        cached_tokens=read_count(inward, "cached_tokens"),
        cache_write_tokens=read_count(inward, "cache_write_tokens"),
        reasoning_tokens=read_count(outward, "reasoning_tokens"),
        audio_tokens=read_count(inward, "audio_tokens") + read_count(outward, "audio_tokens"),
        model=model,
    )


_CUT = {
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit"), "length"
    ),
    **dict.fromkeys(
        ("content_filter", "content-filter", "safety", "recitation", "blocklist", "prohibited_content", "spii"),
        "content_filter",
    ),
}
"""The words of servers for an answer that is cut, and the finish reasons that they mean."""
_WHOLE = (
    *("stop", "stop_sequence", "end_turn", "end", "eos", "eos_token", "complete", "completed", "finished", "done"),
    *("tool_calls", "tool_call", "tool_use", "function_call", "function_calls", "pause", "refusal"),
)
_BROKEN = ("error", "abort", "cancel", "fail", "timeout", "malformed", "interrupt", "overload", "insufficient")
"""Parts of the words for an answer that was broken off: no end of an answer has one of them in its name."""


def read_finish_reason(given: str) -> str:
    """Return the finish reason that a server's word means: a known one for a cut, else the word itself.

    An unknown word gets a line in the log, as the answer may not be whole.

    Raises:
        ModelTransportError: if the server has broken the answer off: asked again, it may give a whole one.
    """
    word = given.lower()
    if word in _CUT:
        return _CUT[word]
    if word not in _WHOLE:
        if any(part in word for part in _BROKEN):
            raise ModelTransportError(f"The server broke the response off: {given[:QUOTED]}", code=given[:QUOTED])
        logger.warning("a model ended its answer with the unknown reason %r: it may not be whole", given[:QUOTED])
    return given


STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "insufficient_quota": 429,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that an error would have as an answer over HTTP, by its code or type: a retry is decided by it."""
_NO_NAME = ("", "error", "response.error")
"""Types that say no more than that the event is an error."""
_REFUSED = ("invalid_", "unsupported_")
"""How the codes of requests begin that no server would do: 400."""


def server_error(event: Mapping[str, Any], *, shown: bool = False) -> ModelTransportError:
    """Return the error that an event reports, in place of an answer or, if *shown*, in the middle of one.

    Both have the status that a refusal of the request would have: the engine makes a request again by it, unless a
    part of the answer was shown to the run's consumer.
    """
    words, numbers, names = _read_error(event)
    status = next((number for number in numbers if number is not None and 400 <= number < 600), None)
    if status is None:
        status = next((STATUSES[name] for name in names if name in STATUSES), None)
    if status is None and any(name.startswith(_REFUSED) for name in names):
        status = 400
    code = names[0] if names else None
    if shown:
        words = f"broke the response off: {words}" + (f" ({code or status})" if code or status else "")
    else:
        words = f"answered with an error: {words}"
    request_id = optional_text(event.get("request_id"))
    return ModelTransportError(f"The server {words}", status=status, code=code, request_id=request_id)


def _read_error(event: Mapping[str, Any]) -> tuple[str, list[int | None], list[str]]:
    """Return the parts of an event's error: its message, the numbers that may be its status, its code and its type."""
    error = event.get("error")
    details: Mapping[str, Any] = error if isinstance(error, Mapping) else event
    words = error if isinstance(error, str) else details.get("message")
    code = details.get("code")
    # A WebSocket's event has a status in place of the head of an answer; proxies write numbers as text.
    numbers = [optional_whole(event.get("status")), optional_whole(code), _read_digits(code)]
    names = [name[:QUOTED] for name in (code, details.get("type")) if isinstance(name, str) and name not in _NO_NAME]
    return str(words or "no reason given")[:QUOTED], numbers, names


def _read_digits(value: object) -> int | None:
    return int(value) if isinstance(value, str) and len(value) == 3 and value.isdecimal() else None
