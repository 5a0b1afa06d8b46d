"""The operations of an HTTP interface that an OpenAPI document describes, as tools.

A document becomes tools once, when the source is made: parameters and the body of a request are the properties of one
object of arguments, and the parts of the document that they refer to are definitions beside them. A call writes the
request from the arguments as the document says, and reads a bounded answer.

Decisions:

The application gives the client. It has the keys, proxies and certificates of the service, and its tests have another
transport; what the document says about security isn't read, because a model must not choose credentials. So a
parameter that the client itself sends, as a key in a header, is no argument either.

An operation that can't be written here (a body of a form with files, a reference to another document) is left out
with a warning: a document of a thousand operations is of use without one of them.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import anyio
import attrs

from agentloop._common.checks import FIELDS, NAMES, optional
from agentloop._common.errors import AnswerError, UserError, UserTypeError, UserValueError
from agentloop._common.naming import MOST_NAME, number_names, usable_names
from agentloop._schema.json_check import check_schema, find_violation, leave_out
from agentloop._schema.json_text import parse_object
from agentloop.context import RunContext, ToolContext
from agentloop.items import Audio, File, Image, Part
from agentloop.settings import JsonLimits
from agentloop.tools import FunctionTool, RawBody, ToolSelection

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("agentloop.interop")
Schema: TypeAlias = Mapping[str, Any]
JsonDict: TypeAlias = dict[str, Any]

_METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
_READS = ("get", "head", "options")
_IGNORED_HEADERS = ("accept", "content-type", "authorization")
"""Header parameters that OpenAPI says to ignore: other parts of the document, and the client, set them."""
_REFERENCE = "#/components/schemas/"
_MOST_DEPTH = 64
_MOST_REFERENCES = 20
"""References that may lead from one to the next."""
_LEAST_NAME = 16


class OpenAPIError(AnswerError):
    """A service answers a call with an error. The message has its words, bounded, and is what the model is shown.

    Attributes:
        status: The status of the answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _LeftOut(Exception):
    """An operation that can't be a tool. The text says why."""


@attrs.define(eq=False, kw_only=True)
class OpenAPITools:
    """The operations of a service that an OpenAPI document describes: a `ToolSource`.

    Each operation is a tool, named by its `operationId`. Parameters of path, query and headers, and the body, are its
    arguments. One that reads (GET, HEAD, OPTIONS) has `reads_only=True`. An answer with a status of an error is
    `OpenAPIError`, whose words go to the model. Text and JSON are given as text, images as images.

    Concurrency: any number of runs may use one, as far as the client allows.

    Attributes:
        spec: The document, read from its JSON or YAML: OpenAPI 3.0 or 3.1.
        client: Makes the requests, with the service's keys as its headers, `params` or `auth`. What it has as headers
            and `params` when the source is made is no argument of a tool. You close it. It has to be one of the event
            loop that the run is in.
        base_url: The address that paths are below; None takes the client's, else the first of the document's servers,
            to which the client's keys go then.
        filter, prefix, namespace, options: As for `ToolSelection`: which operations, and the application's policy
            about each, as `needs_approval`.
        max_bytes: The most bytes of an answer that are read; the rest is left out, which the output says.
        timeout: Seconds of each call, as for `@tool`; `options` may give others. The client has its own, too.
        name: The name of the source, for errors and the log.

    Raises:
        UserTypeError, UserValueError: when it is made: the document isn't one of OpenAPI 3, or an argument is invalid.

    Example:
        import httpx
        from agentloop import Agent, Runner
        from agentloop.interop import OpenAPITools
        from agentloop.testing import ScriptedModel, call, say

        spec = {
            "openapi": "3.1.0",
            "paths": {
                "/pets/{id}": {
                    "get": {
                        "operationId": "get_pet",
                        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                    }
                }
            },
        }
        service = httpx.MockTransport(lambda request: httpx.Response(200, json={"path": request.url.path}))
        client = httpx.AsyncClient(base_url="https://pets.example", transport=service)
        pets = OpenAPITools(spec=spec, client=client)
        agent = Agent("a", model=ScriptedModel([call("get_pet", {"id": 7}), say("Found.")]), toolsets=[pets])
        print(Runner.run_sync(agent, "Pet 7?").new_items[1].output)  # {"path":"/pets/7"}
    """

    spec: Mapping[str, Any] = attrs.field(repr=False, validator=FIELDS.mapping("expected an OpenAPI document"))
    client: httpx.AsyncClient = attrs.field(repr=False)
    base_url: str | None = attrs.field(default=None, validator=optional(FIELDS.words()))
    filter: Collection[str] | Callable[[FunctionTool[Any]], bool] | None = None
    prefix: str = ""
    namespace: str | None = None
    options: Callable[[FunctionTool[Any]], Mapping[str, Any] | None] | None = None
    max_bytes: int = attrs.field(default=100_000, validator=NAMES.count())
    timeout: float | None = attrs.field(default=60.0, validator=optional(NAMES.seconds()))
    name: str = attrs.field(default="openapi", validator=FIELDS.words())
    _selection: ToolSelection = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._selection = ToolSelection(
            source=list(self._make_all()),
            filter=self.filter,
            prefix=self.prefix,
            namespace=self.namespace,
            options=self.options,
        )

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        """Return the tools, the same each time. Waits for nothing."""
        return await self._selection.tools(ctx, agent)

    def _make_all(self) -> Iterator[FunctionTool[Any]]:
        document = _Document(self.spec)
        base = (self.base_url or str(self.client.base_url) or document.find_server()).rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise UserValueError(f"{self.name}: base_url: neither the client nor the document has one; got {base!r}")
        found = list(document.list_operations())
        most = max(MOST_NAME - len(self.prefix), _LEAST_NAME)
        numbered = number_names(each.name for each in found)
        # With a space, which no usable name has: so none that is in the document is taken.
        names = usable_names([f"{name} {earlier + 1}" if earlier else name for name, earlier in numbered], most)
        for name, each in zip(names, found, strict=True):
            try:
                if name is None:
                    raise _LeftOut("it has no name that a model could call")
                yield self._make(name, each, document, base)
            except _LeftOut as reason:
                logger.warning("%s: %s %s is left out: %s", self.name, each.method.upper(), each.path, reason)

    def _make(self, name: str, found: _APIOperation, document: _Document, base: str) -> FunctionTool[Any]:
        request = _Request(found, document, self._find_own())
        schema = request.schema

        async def call(ctx: ToolContext[Any], text: str) -> str | tuple[Part, ...]:
            return await self._send(request, base, parse_object(text, JsonLimits(), tool=name))

        return FunctionTool(
            name=name,
            description="\n\n".join(str(one) for one in map(found.data.get, ("summary", "description")) if one),
            params_json_schema=schema,
            body=RawBody(call, _make_check(name, schema)),
            on_invoke_tool=call,
            strict_mode=False,
            timeout=self.timeout,
            reads_only=found.method in _READS,
        )

    def _find_own(self) -> set[tuple[str, str]]:
        """Return the places and names of what the client sends itself, such as keys: no model chooses these."""
        headers, query = self.client.headers, self.client.params
        return {("header", name.lower()) for name in headers} | {("query", name) for name in query}

    async def _send(self, request: _Request, base: str, arguments: JsonDict) -> str | tuple[Part, ...]:
        written = request.write(arguments)
        # Packed, a short answer may be one of any length.
        headers = {"Accept-Encoding": "identity", **written.headers}
        response = await self.client.send(
            self.client.build_request(
                written.method, base + written.path, params=written.query or None, headers=headers, content=written.body
            ),
            stream=True,
        )
        data = await _read_at_most(response, self.max_bytes + 1)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.is_success and (part := read_media(kind, data)) is not None:
            return (part,) if len(data) <= self.max_bytes else f"[{kind} of more than {self.max_bytes:,} bytes]"
        text = _read_text(data[: self.max_bytes], response.encoding)
        if len(data) > self.max_bytes:
            text += f"\n[only the first {self.max_bytes:,} bytes were read]"
        if not response.is_success:
            raise OpenAPIError(
                f"The service answered {response.status_code}: {text or 'no reason given'}", response.status_code
            )
        return text or f"[status {response.status_code}, without content]"


# ------------------------------------------------------------------------------------------------- answers

_CLOSE_TIMEOUT = 2.0
_MOST_READ_AHEAD = 100
"""The most pieces of an answer that may come after it was closed."""
_PACKINGS = ("gzip", "x-gzip", "deflate")


async def _read_at_most(response: httpx.Response, most: int) -> bytes:
    """Return the first bytes of the body, unpacked, and close the response.

    The client would unpack each piece as a whole, which may be a thousand times as long. What it has read already, as
    for a hook, is unpacked.
    """
    packing = response.headers.get("content-encoding", "").strip().lower()
    is_packed = packing not in ("", "identity") and not response.is_stream_consumed
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    pieces: Any = response.aiter_raw() if is_packed else response.aiter_bytes()
    data = b""
    try:
        async for piece in pieces:
            if is_packed and packing not in _PACKINGS:
                raise AnswerError(f"the service's answer is packed as {packing!r}, which isn't what was asked for")
            data += (unpacker.decompress(piece, most - len(data)) if is_packed else piece)[: most - len(data)]
            if len(data) == most:
                break
    except zlib.error as error:
        raise AnswerError(f"the service's answer can't be unpacked: {error}") from None
    finally:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSE_TIMEOUT), suppress(Exception):
            await response.aclose()
            # A chain of generators: its end is reached by reading, which fails now, and not by closing the first.
            for _ in range(_MOST_READ_AHEAD):
                await anext(pieces)
    return data


_MEDIA: dict[str, Callable[[bytes, str], Part]] = {
    "image/": lambda data, kind: Image(data=data, media_type=kind),
    "audio/": lambda data, kind: Audio(data, media_type=kind),
}
_TEXTS = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml", "image/svg")


def read_media(kind: str, data: bytes) -> Part | None:
    """Return *data* as a part; None if it is to be shown as text, as an answer without a type is."""
    if not data or not kind or kind.startswith(_TEXTS) or kind.endswith(("+json", "+xml")):
        return None
    make = next((make for begin, make in _MEDIA.items() if kind.startswith(begin)), None)
    return File(data, media_type=kind) if make is None else make(data, kind)


_ENCODINGS = ("ascii", "us-ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16")
"""Names that a service may give. Python has others, with which an answer could cost any time."""


def _read_text(data: bytes, encoding: str | None) -> str:
    known = encoding is not None and encoding.lower() in _ENCODINGS
    return data.decode(encoding if known and encoding else "utf-8", "replace")


# ------------------------------------------------------------------------------------------------ documents


class _APIOperation(NamedTuple):
    """One operation; *parameters* are those of its path and its own."""

    name: str
    method: str
    path: str
    data: Mapping[str, Any]
    parameters: Sequence[Any]


class _Document:
    """An OpenAPI document, and the parts of it that references name."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        version = spec.get("openapi")
        if not isinstance(version, str) or not version.startswith("3."):
            raise UserValueError(
                f"spec: expected an OpenAPI document of version 3, got {spec.get('swagger', version)!r}"
            )
        if not isinstance(spec.get("paths"), Mapping):
            raise UserTypeError("spec: expected an OpenAPI document with `paths`")
        self._spec = spec

    def find_server(self) -> str:
        """Return the address of the first server, its variables replaced by their defaults."""
        match self._spec.get("servers"):
            case [{"url": str(url), **more}, *_]:
                given = more.get("variables")
                variables = given if isinstance(given, Mapping) else {}
                return re.sub(r"{([^}]*)}", lambda found: _default_of(variables.get(found[1])), url)
            case _:
                return ""

    def list_operations(self) -> Iterator[_APIOperation]:
        """Yield the operations in the order of the document."""
        for path, given in self._spec["paths"].items():
            try:
                if not isinstance(path, str):
                    raise _LeftOut("a path is a text")
                item = self.find(given)
            except _LeftOut as reason:
                logger.warning("%s is left out: %s", path, reason)
                continue
            shared = _list_of(item.get("parameters"))
            for method in _METHODS:
                if isinstance(data := item.get(method), Mapping):
                    name = data.get("operationId")
                    if not isinstance(name, str) or not name:
                        name = f"{method}_{re.sub(r'[^A-Za-z0-9]+', '_', path).strip('_')}".rstrip("_")
                    yield _APIOperation(name, method, path, data, (*shared, *_list_of(data.get("parameters"))))

    def find(self, part: Any) -> Mapping[str, Any]:
        """Return *part*, or the part that it refers to."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(part, Mapping):
                raise _LeftOut(f"expected an object, got {type(part).__name__}")
            if not isinstance(reference := part.get("$ref"), str):
                return part
            part = self._follow(reference)
        raise _LeftOut("references lead in a circle")

    def _follow(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            raise _LeftOut(f"it refers to another document: {reference}")
        found: Any = self._spec
        for step in unquote(reference[2:]).split("/"):
            parts = {str(n): one for n, one in enumerate(found)} if isinstance(found, list) else found
            found = parts.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(parts, Mapping) else None
        if found is None:
            raise _LeftOut(f"nothing is at {reference}")
        return found

    def write_schema(self, given: Any, definitions: dict[str, Any], depth: int = 0) -> Any:
        """Return a schema of the document as one of JSON Schema; note in *definitions* what it refers to.

        OpenAPI 3.0 has other words: `nullable`, `example`, and bounds that say whether they are exclusive.
        """
        if isinstance(given, bool):
            return given
        if not isinstance(given, Mapping) or depth > _MOST_DEPTH:
            raise _LeftOut("a schema isn't an object, or is nested too deep")
        if isinstance(reference := given.get("$ref"), str):
            self._follow(reference)  # it is there, and in this document
            name = _name_definition(reference)
            definitions.setdefault(name, reference)
            return {"$ref": f"#/$defs/{name}"}
        made: JsonDict = {}
        for word, value in given.items():
            if not isinstance(word, str) or word in _WORDS_OF_OPENAPI or word.startswith("x-"):
                continue
            if word in _BY_NAME and isinstance(value, Mapping):
                made[word] = {str(name): self.write_schema(one, definitions, depth + 1) for name, one in value.items()}
            elif word in _ONE and isinstance(value, Mapping):
                made[word] = self.write_schema(value, definitions, depth + 1)
            elif word in _SEVERAL and isinstance(value, Sequence) and not isinstance(value, str):
                made[word] = [self.write_schema(one, definitions, depth + 1) for one in value]
            else:
                made[word] = _write_plain(value)
        _leave_out_required(given, made)
        return _write_as_of_today(made, nullable=given.get("nullable") is True)

    def complete(self, definitions: dict[str, Any]) -> None:
        """Write each schema that *definitions* names, and those that these refer to."""
        while unwritten := [(name, given) for name, given in definitions.items() if isinstance(given, str)]:
            for name, reference in unwritten:
                definitions[name] = self.write_schema(self._follow(reference), definitions)


_WORDS_OF_OPENAPI = ("nullable", "example", "xml", "externalDocs", "discriminator", "readOnly", "writeOnly")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs")
_ONE = (
    *("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")


def _list_of(given: Any) -> Sequence[Any]:
    """Return the parameters of a document. What is no list is one that can't be read, so its operation is left out."""
    return () if given is None else given if isinstance(given, list | tuple) else (given,)


def _name_definition(reference: str) -> str:
    """Return the name of what *reference* names; none that would have to be escaped in a reference to it."""
    name = reference.removeprefix(_REFERENCE)
    if re.fullmatch(r"[A-Za-z0-9._-]+", name):
        return name
    digest = hashlib.sha256(reference.encode(errors="replace")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name.removeprefix('#/'))}_{digest}"


def _write_plain(value: Any) -> Any:
    """Return a value of a document as JSON has it: YAML makes a date of what looks like one."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime.date():
            return value.isoformat()
        case Mapping():
            return {str(name): _write_plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_write_plain(one) for one in value]
        case _:
            raise _LeftOut(f"a schema has a value that isn't JSON: {type(value).__name__}")


def _leave_out_required(given: Mapping[str, Any], made: JsonDict) -> None:
    """Leave out of `required` what only the service writes."""
    properties, required = given.get("properties"), made.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        read = [name for name, one in properties.items() if isinstance(one, Mapping) and one.get("readOnly") is True]
        made["required"] = [name for name in required if name not in read]


def _write_as_of_today(made: JsonDict, *, nullable: bool) -> JsonDict:
    for bound, word in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(is_exclusive := made.get(word), bool):
            del made[word]
            if is_exclusive and bound in made:
                made[word] = made.pop(bound)
    if not nullable:
        return made
    if isinstance(kind := made.get("type"), str):
        made["type"] = [kind, "null"]
        if isinstance(choices := made.get("enum"), list) and None not in choices:
            made["enum"] = [*choices, None]
        return made
    return {"anyOf": [made, {"type": "null"}]}


def _default_of(variable: Any) -> str:
    return str(variable.get("default", "")) if isinstance(variable, Mapping) else ""


def _make_check(name: str, schema: Schema) -> Callable[[Mapping[str, Any]], str | None] | None:
    """Return the check of arguments; None if the schema has words that can't be checked here: the service does."""
    try:
        # A pattern is a stranger's program, and a text of the model its input.
        checked = check_schema(f"tool {name!r}", leave_out("pattern", leave_out("default", schema)))
    except UserError:
        return None
    return partial(find_violation, schema=checked)


# ------------------------------------------------------------------------------------------------- requests


class _WrittenRequest(NamedTuple):
    method: str
    path: str
    query: list[Any]
    headers: dict[str, str]
    body: bytes | None


class _APIParameter(NamedTuple):
    """Where an argument goes."""

    name: str
    place: str
    style: str
    explode: bool
    is_json: bool


class _Request:
    """Writes the requests of one operation. `schema` is that of the arguments."""

    def __init__(self, found: _APIOperation, document: _Document, own: Collection[tuple[str, str]]) -> None:
        self._method, self._path = found.method.upper(), found.path
        self._own = own
        self._parameters: dict[str, _APIParameter] = {}
        """By the name of the argument."""
        self._body: tuple[str, str] | None = None
        """The name of the argument that is the body, and its media type."""
        self._properties: JsonDict = {}
        self._required: list[str] = []
        definitions: JsonDict = {}
        if not found.path.startswith("/"):
            raise _LeftOut("its path doesn't begin with a slash, so it could name another host")
        if {"?", "#"} & {*found.path}:
            raise _LeftOut("its path has a query or a fragment, which parameters would replace")
        for place, name, parameter in _list_parameters(found, document):
            self._add_parameter(place, name, parameter, document, definitions)
        if (body := found.data.get("requestBody")) is not None:
            self._add_body(document.find(body), document, definitions)
        if missing := set(re.findall(r"{([^}]*)}", found.path)) - {
            each.name for each in self._parameters.values() if each.place == "path"
        }:
            raise _LeftOut(f"its path has {min(missing)!r}, which is no parameter")
        self.schema: JsonDict = {"type": "object", "properties": self._properties, "additionalProperties": False}
        if self._required:
            self.schema["required"] = self._required
        if definitions:
            document.complete(definitions)
            self.schema["$defs"] = definitions

    def _add_parameter(
        self, place: str, name: str, given: Mapping[str, Any], document: _Document, definitions: JsonDict
    ) -> None:
        required = place == "path" or given.get("required") is True
        if place == "cookie":
            if required:
                raise _LeftOut(f"it needs the cookie {name!r}, which is the client's to send")
            return
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            return
        if (place, name.lower() if place == "header" else name) in self._own:
            return
        schema, is_json = given.get("schema", {}), False
        match given.get("content"):
            case {"application/json": {"schema": inner}}:
                schema, is_json = inner, True
        style = given.get("style") or ("form" if place == "query" else "simple")
        if style not in ("form", "simple", "deepObject", "spaceDelimited", "pipeDelimited"):
            raise _LeftOut(f"parameter {name!r} has the style {style!r}")
        explode = bool(given.get("explode", style == "form"))
        argument = self._add_property(
            name if name not in self._properties else f"{name}_{place}", given, schema, required, document, definitions
        )
        self._parameters[argument] = _APIParameter(name, place, style, explode, is_json)

    def _add_body(self, given: Mapping[str, Any], document: _Document, definitions: JsonDict) -> None:
        content = given.get("content")
        found = content.items() if isinstance(content, Mapping) else ()
        kinds = {kind: one for kind, one in found if isinstance(kind, str)}
        kind = next((kind for kind in sorted(kinds, key=_rank_body) if _rank_body(kind) < len(_BODIES)), None)
        required = given.get("required") is True
        if kind is None:
            if required or not kinds:
                raise _LeftOut(f"no body of {', '.join(map(repr, kinds)) or 'nothing'} can be written")
            return
        media = kinds[kind] if isinstance(kinds[kind], Mapping) else {}
        name = "body"
        while name in self._properties:
            name += "_"
        self._body = self._add_property(name, given, media.get("schema", {}), required, document, definitions), kind

    def _add_property(
        self,
        name: str,
        given: Mapping[str, Any],
        schema: Any,
        required: bool,
        document: _Document,
        definitions: JsonDict,
    ) -> str:
        made = document.write_schema(schema, definitions)
        if isinstance(words := given.get("description"), str) and isinstance(made, dict):
            made = {**made, "description": words}
        self._properties[name] = made
        if required:
            self._required.append(name)
        return name

    def write(self, arguments: Mapping[str, Any]) -> _WrittenRequest:
        """Return the request for *arguments*.

        Raises:
            AnswerError: an argument of the path would change which path it is, one of a header can't be sent, or an
                object in the query has a name that the client sends.
        """
        path, query, headers = self._path, list[tuple[str, str]](), dict[str, str]()
        for argument, parameter in self._parameters.items():
            value = arguments.get(argument)
            if value is None and parameter.place != "path":
                continue
            if parameter.place == "query":
                query += _write_query(parameter, value)
                continue
            text = json.dumps(value) if parameter.is_json else _write_simple(value, explode=parameter.explode)
            if parameter.place == "header":
                if not (text.isascii() and text.isprintable()):
                    raise AnswerError(f"{argument}: a header takes printable ASCII characters only")
                headers[parameter.name] = text
            elif text in ("", ".", "..") or {"/", "\\"} & {*text}:  # many services unpack %2F before they route
                raise AnswerError(f"{argument}: {text!r} can't be a part of a path")
            else:
                path = path.replace(f"{{{parameter.name}}}", quote(text, safe=""))
        for name, _ in query:  # of an object's own names
            if ("query", name) in self._own:
                raise AnswerError(f"{name}: the client sends this parameter itself")
        body = None
        if self._body is not None and self._body[0] in arguments:
            headers["Content-Type"] = self._body[1]
            body = _write_body(self._body[1], arguments[self._body[0]])
        return _WrittenRequest(self._method, path, query, headers, body)


def _list_parameters(found: _APIOperation, document: _Document) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the parameters; one of the operation replaces that of its path."""
    chosen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in found.parameters:
        given = document.find(each)
        match given:
            case {"in": ("path" | "query" | "header" | "cookie") as place, "name": str(name)}:
                chosen[place, name] = given
            case _:
                raise _LeftOut("a parameter has no name, or no place")
    yield from ((place, name, given) for (place, name), given in chosen.items())


_BODIES = ("application/json", "+json", "application/x-www-form-urlencoded", "text/plain")
"""The media types that are written here, the best first."""


def _rank_body(kind: str) -> int:
    bare = kind.partition(";")[0].strip().lower()
    ranks = (n for n, known in enumerate(_BODIES) if bare == known or (known[0] == "+" and bare.endswith(known)))
    return next(ranks, len(_BODIES))


def _write_body(kind: str, value: Any) -> bytes:
    match _rank_body(kind):
        case 2 if isinstance(value, Mapping):
            pairs = (pair for name, one in value.items() for pair in _pairs_of(name, one))
            return "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs).encode()
        case 2 | 3:
            return _write_scalar(value).encode()
        case _:
            return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _write_query(parameter: _APIParameter, value: Any) -> list[tuple[str, str]]:
    name = parameter.name
    if parameter.is_json:
        return [(name, json.dumps(value, ensure_ascii=False))]
    if isinstance(value, Mapping):
        if parameter.style == "deepObject":
            return [(f"{name}[{key}]", text) for key, one in value.items() for _, text in _pairs_of(name, one)]
        if parameter.explode:
            return [pair for key, one in value.items() for pair in _pairs_of(key, one)]
    elif isinstance(value, list) and parameter.explode:
        return _pairs_of(name, value)
    between = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
    return [(name, _write_simple(value, explode=False, between=between))]


def _pairs_of(name: str, value: Any) -> list[tuple[str, str]]:
    return [(name, _write_scalar(one)) for one in (value if isinstance(value, list) else [value])]


def _write_simple(value: Any, *, explode: bool, between: str = ",") -> str:
    if isinstance(value, Mapping):
        if explode:
            return between.join(f"{key}={_write_scalar(one)}" for key, one in value.items())
        return between.join(text for key, one in value.items() for text in (str(key), _write_scalar(one)))
    return between.join(map(_write_scalar, value)) if isinstance(value, list) else _write_scalar(value)


def _write_scalar(value: Any) -> str:
    """Return a value of JSON as it is written in an address: a text as it is, the others as in JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
