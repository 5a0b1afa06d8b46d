"""`OpenAPITools`: the operations of a document as tools."""

import datetime
import gzip
import json
import logging
import re
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from kit.agents import Run, script_agent
from kit.results import read_outputs

from agentloop._common.errors import AnswerError
from agentloop.context import RunContext
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.interop import OpenAPIError, OpenAPITools
from agentloop.items import File, Image
from agentloop.testing import call, say
from agentloop.tools import FunctionTool

Answer = Callable[[httpx.Request], httpx.Response]


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a document with these paths."""
    return {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": paths, **more}


def parameter(name: str, place: str = "query", **more: Any) -> dict[str, Any]:
    """Return a parameter of any type."""
    return {"name": name, "in": place, "schema": {}} | ({"required": True} if place == "path" else {}) | more


def echo(request: httpx.Request) -> httpx.Response:
    """Answer with what came."""
    own = {name: value for name, value in request.headers.items() if name.startswith("x-") or name == "content-type"}
    return httpx.Response(
        200,
        json={
            "method": request.method,
            "path": request.url.raw_path.decode(),
            "headers": own,
            "body": request.content.decode(),
        },
    )


def client(answer: Answer = echo, **options: Any) -> httpx.AsyncClient:
    """Return a client whose service is *answer*."""
    return httpx.AsyncClient(transport=httpx.MockTransport(answer), **{"base_url": "https://api.test/v1", **options})


async def tools_of(source: OpenAPITools) -> dict[str, FunctionTool[Any]]:
    """Return the tools by their names."""
    given = await source.tools(RunContext(context=None), None)
    assert await source.tools(RunContext(context=None), None) == given
    return {tool.name: tool for tool in given}


async def send(paths: dict[str, Any], arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what the service got from the call of the only operation of *paths*."""
    async with client() as made:
        (tool,) = (await tools_of(OpenAPITools(spec=document(paths, **more), client=made))).values()
        sent: dict[str, Any] = json.loads(await tool.run_body(arguments))
        return sent


PETS = document(
    {
        "/pets/{id}": {
            "parameters": [parameter("id", "path", schema={"type": "integer"})],
            "get": {"operationId": "get_pet", "summary": "Get a pet.", "description": "By its number."},
            "put": {
                "operationId": "pets/put",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
            },
        },
        "/pets": {"post": {"requestBody": {"$ref": "#/components/requestBodies/Any"}}},
    },
    components={
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "example": "Rex"},
                    "nick": {"type": "string", "nullable": True},
                    "age": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                    "parents": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                },
            }
        },
        "requestBodies": {"Any": {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    },
)


async def test_operations_are_tools() -> None:
    """Names are those that models may call, the schema is that of the arguments, and what reads says so."""
    async with client() as made:
        tools = await tools_of(OpenAPITools(spec=PETS, client=made))
    assert list(tools) == ["get_pet", "pets_put", "post_pets"]
    assert [tool.reads_only for tool in tools.values()] == [True, False, False]
    assert tools["get_pet"].description == "Get a pet.\n\nBy its number."
    assert tools["get_pet"].params_json_schema == {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "additionalProperties": False,
        "required": ["id"],
    }
    assert tools["pets_put"].params_json_schema["$defs"]["Pet"] == {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "nick": {"type": ["string", "null"]},
            "age": {"type": "number", "exclusiveMinimum": 0},
            "parents": {"type": "array", "items": {"$ref": "#/$defs/Pet"}},
        },
    }


async def test_a_model_calls_an_operation(run_mode: Run) -> None:
    """Arguments are checked before the request, and the client's credentials go with it."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"name": "Rex"})

    async with client(answer, headers={"Authorization": "Bearer k"}) as made:
        source = OpenAPITools(spec=PETS, client=made, filter=["get_pet", "pets_put"], prefix="api_")
        agent = script_agent(
            "a",
            call("api_get_pet", {"id": "seven"}),
            call("api_pets_put", {"id": 7, "body": {"name": "Rex", "parents": [{"age": 1}]}}),
            call("api_get_pet", {"id": 7}),
            say("Rex."),
            toolsets=[source],
        )
        result = await run_mode(agent, "7?")
    first, second, third = read_outputs(result.new_items).values()
    assert "expected integer" in str(first)
    assert "name" in str(second)
    assert third == '{"name":"Rex"}'
    assert [(request.method, str(request.url), request.headers["authorization"]) for request in seen] == [
        ("GET", "https://api.test/v1/pets/7", "Bearer k")
    ]


async def test_an_error_of_the_service_goes_to_the_model(run_mode: Run) -> None:
    """Its status and its words, bounded; a redirect is no success."""
    answers = [
        httpx.Response(404, text="no such pet"),
        httpx.Response(500, text="x" * 5_000),
        httpx.Response(302, headers={"location": "http://10.0.0.1/"}),
    ]
    async with client(lambda request: answers.pop(0)) as made:
        source = OpenAPITools(spec=PETS, client=made, max_bytes=1_000)
        steps = [call("get_pet", {"id": 7})] * 3
        result = await run_mode(script_agent("a", *steps, say("None."), toolsets=[source]), "7?")
    first, second, third = map(str, read_outputs(result.new_items).values())
    assert "The service answered 404: no such pet" in first
    assert f"The service answered 500: {'x' * 1_000}\n[only the first 1,000 bytes were read]" in second
    assert "The service answered 302: no reason given" in third


async def test_the_error_says_the_status() -> None:
    """A test of the application can tell the answers apart."""
    async with client(lambda request: httpx.Response(409, text="taken")) as made:
        tool = (await tools_of(OpenAPITools(spec=PETS, client=made)))["get_pet"]
        with pytest.raises(OpenAPIError, match="409: taken") as caught:
            await tool.run_body({"id": 1})
    assert caught.value.status == 409


async def test_answers_are_read_no_further_than_their_bound() -> None:
    """A service that never ends costs no more than the bound, and the model knows that there is more."""

    class Endless(httpx.AsyncByteStream):
        read = 0
        closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            while not self.closed:
                self.read += 100
                yield b"x" * 100

        async def aclose(self) -> None:
            self.closed = True

    body = Endless()
    async with client(lambda request: httpx.Response(200, stream=body)) as made:
        tool = (await tools_of(OpenAPITools(spec=PETS, client=made, max_bytes=250)))["get_pet"]
        text = await tool.run_body({"id": 1})
    assert text == "x" * 250 + "\n[only the first 250 bytes were read]"
    assert (body.read, body.closed) == (300, True)


class Pieces(httpx.AsyncByteStream):
    """An answer that the client hasn't read, as those of a network are."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def read_packed(packing: str, *pieces: bytes, max_bytes: int = 100) -> Any:
    """Return the output for an answer in these pieces."""
    headers = {"content-encoding": packing}
    async with client(lambda request: httpx.Response(200, headers=headers, stream=Pieces(*pieces))) as made:
        tool = (await tools_of(OpenAPITools(spec=PETS, client=made, max_bytes=max_bytes)))["get_pet"]
        return await tool.run_body({"id": 1})


@pytest.mark.parametrize(("packing", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_packed_answers_are_unpacked_no_further_than_their_bound(
    packing: str, pack: Callable[[bytes], bytes]
) -> None:
    """A service may pack its answer although it isn't asked to, and a short one may hold any length."""
    words = pack(b"found it")
    assert await read_packed(packing, words[:9], words[9:]) == "found it"
    bomb = pack(bytes(50_000_000))
    tracemalloc.start()
    try:
        output = await read_packed(packing, bomb)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert output.endswith("[only the first 100 bytes were read]")
    assert most < 5_000_000


@pytest.mark.parametrize(
    ("packing", "words"), [("gzip", "can't be unpacked"), ("br", "packed as 'br'"), ("gzip, gzip", "packed as 'gzip,")]
)
async def test_answers_that_cannot_be_unpacked_are_errors(packing: str, words: str) -> None:
    """Which say so."""
    with pytest.raises(AnswerError, match=words):
        await read_packed(packing, b"no archive")


async def test_an_answer_that_a_hook_has_read_is_whole() -> None:
    """The client has unpacked it then."""

    async def read(response: httpx.Response) -> None:
        await response.aread()

    stream, headers = Pieces(gzip.compress(b"found it")), {"content-encoding": "gzip"}
    hooks = {"response": [read]}
    async with client(lambda request: httpx.Response(200, headers=headers, stream=stream), event_hooks=hooks) as made:
        tool = (await tools_of(OpenAPITools(spec=PETS, client=made)))["get_pet"]
        assert await tool.run_body({"id": 1}) == "found it"


async def test_media_longer_than_the_bound_are_not_shown() -> None:
    """Half an image is none, and its bytes are no text."""
    answer = httpx.Response(200, content=b"\x89PNG" * 100, headers={"content-type": "image/png"})
    async with client(lambda request: answer) as made:
        tool = (await tools_of(OpenAPITools(spec=PETS, client=made, max_bytes=200)))["get_pet"]
        assert await tool.run_body({"id": 1}) == "[image/png of more than 200 bytes]"


@pytest.mark.parametrize(
    ("kind", "content", "output"),
    [
        ("application/json; charset=utf-8", b'{"a":1}', '{"a":1}'),
        ("application/problem+json", b"{}", "{}"),
        ("text/plain; charset=iso-8859-1", b"\xe4", "ä"),
        ("text/plain; charset=zlib", b"a", "a"),
        ("", b"a", "a"),
        ("", b"", "[status 200, without content]"),
        ("image/png", b"a", (Image(data=b"a", media_type="image/png"),)),
        ("application/pdf", b"a", (File(b"a", media_type="application/pdf"),)),
    ],
)
async def test_answers_are_what_their_type_says(kind: str, content: bytes, output: Any) -> None:
    """Text and JSON are text; images and files are parts, which models see."""
    answer = httpx.Response(200, content=content, headers={"content-type": kind} if kind else {})
    async with client(lambda request: answer) as made:
        tool = (await tools_of(OpenAPITools(spec=PETS, client=made)))["get_pet"]
        assert await tool.run_body({"id": 1}) == output


# ------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("given", "value", "path"),
    [
        (parameter("q"), "a b&c", "?q=a+b%26c"),
        (parameter("q"), True, "?q=true"),
        (parameter("q"), 1.5, "?q=1.5"),
        (parameter("q"), [1, "b"], "?q=1&q=b"),
        (parameter("q", explode=False), [1, "b"], "?q=1%2Cb"),
        (parameter("q", style="pipeDelimited", explode=False), [1, 2], "?q=1%7C2"),
        (parameter("q"), {"a": 1, "b": [2, 3]}, "?a=1&b=2&b=3"),
        (parameter("q", explode=False), {"a": 1}, "?q=a%2C1"),
        (parameter("q", style="deepObject"), {"a": 1, "b": "c"}, "?q%5Ba%5D=1&q%5Bb%5D=c"),
        (parameter("q", content={"application/json": {"schema": {}}}), {"a": [1]}, "?q=%7B%22a%22%3A+%5B1%5D%7D"),
        (parameter("q"), None, ""),
    ],
)
async def test_arguments_of_the_query(given: dict[str, Any], value: Any, path: str) -> None:
    """Each style of OpenAPI, as its examples have it. None leaves the parameter out."""
    sent = await send({"/x": {"get": {"parameters": [given]}}}, {"q": value})
    assert sent["path"] == f"/v1/x{path}"


@pytest.mark.parametrize(
    ("given", "value", "path"),
    [
        (parameter("p", "path"), "a b?c#d", "a%20b%3Fc%23d"),
        (parameter("p", "path"), "{p}", "%7Bp%7D"),
        (parameter("p", "path"), [1, 2], "1%2C2"),
        (parameter("p", "path"), {"a": 1}, "a%2C1"),
        (parameter("p", "path", explode=True), {"a": 1}, "a%3D1"),
    ],
)
async def test_arguments_of_the_path(given: dict[str, Any], value: Any, path: str) -> None:
    """An argument is one segment, whatever it holds."""
    sent = await send({"/x/{p}/y": {"get": {"parameters": [given]}}}, {"p": value})
    assert sent["path"] == f"/v1/x/{path}/y"


@pytest.mark.parametrize("value", ["", ".", "..", "7/owner", "../admin", "..\\admin", {"a": "b/c"}])
async def test_an_argument_changes_no_path(value: Any) -> None:
    """An empty segment would name the collection, and dots another path: DELETE would be a catastrophe there.

    Many services unpack a slash before they look up the operation.
    """
    with pytest.raises(Exception, match="can't be a part of a path"):
        await send({"/x/{p}": {"delete": {"parameters": [parameter("p", "path")]}}}, {"p": value})


async def test_arguments_of_headers() -> None:
    """Those that the client sets are no arguments, and no value can begin another header."""
    paths = {
        "/x": {
            "get": {
                "parameters": [
                    parameter("X-A", "header"),
                    parameter("Authorization", "header"),
                    parameter("c", "cookie"),
                ]
            }
        }
    }
    assert (await send(paths, {"X-A": 3}))["headers"] == {"x-a": "3"}
    with pytest.raises(Exception, match="printable ASCII"):
        await send(paths, {"X-A": "a\r\nX-B: c"})
    assert (await send(paths, {"Authorization": "Bearer stolen"}))["headers"] == {}


async def test_what_the_client_sends_is_no_argument() -> None:
    """A key in a header or in the query: no model chooses it, nor by a name of an object."""
    given = [parameter("x-api-key", "header", required=True), parameter("token", required=True), parameter("filter")]
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url.query, "ascii"), request.headers["x-api-key"]))
        return httpx.Response(200, text="found")

    async with client(answer, headers={"X-API-Key": "k"}, params={"token": "t"}) as made:
        spec = document({"/x": {"get": {"operationId": "x", "parameters": given}}})
        tool = (await tools_of(OpenAPITools(spec=spec, client=made)))["x"]
        assert tool.params_json_schema == {
            "type": "object",
            "properties": {"filter": {}},
            "additionalProperties": False,
        }
        assert await tool.run_body({"filter": {"age": 3}}) == "found"
        with pytest.raises(Exception, match="token: the client sends this parameter itself"):
            await tool.run_body({"filter": {"token": "stolen"}})
    assert seen == [("token=t&age=3", "k")]


@pytest.mark.parametrize(
    ("kind", "value", "body"),
    [
        ("application/json", {"ä": [1]}, '{"ä": [1]}'),
        ("application/merge-patch+json", {"a": None}, '{"a": null}'),
        ("application/x-www-form-urlencoded", {"a": "b c", "d": [1, 2]}, "a=b%20c&d=1&d=2"),
        ("text/plain", "words", "words"),
    ],
)
async def test_bodies(kind: str, value: Any, body: str) -> None:
    """JSON, forms and texts."""
    sent = await send({"/x": {"post": {"requestBody": {"content": {kind: {"schema": {}}}}}}}, {"body": value})
    assert (sent["headers"]["content-type"], sent["body"]) == (kind, body)
    assert "content-type" not in (await send({"/x": {"post": {"requestBody": {"content": {kind: {}}}}}}, {}))["headers"]


async def test_equal_names_of_different_places_are_different_arguments() -> None:
    """A path's, a query's and a body's."""
    paths = {
        "/x/{id}": {
            "post": {
                "parameters": [parameter("id", "path"), parameter("id"), parameter("body")],
                "requestBody": {"content": {"application/json": {}}},
            }
        }
    }
    sent = await send(paths, {"id": 1, "id_query": 2, "body": 3, "body_": 4})
    assert (sent["path"], sent["body"]) == ("/v1/x/1?id=2&body=3", "4")


async def test_a_parameter_of_the_operation_replaces_that_of_its_path() -> None:
    """And both may be references."""
    paths = {
        "/x/{p}": {
            "parameters": [{"$ref": "#/components/parameters/p"}],
            "get": {"parameters": [parameter("p", "path", explode=True)]},
        }
    }
    components = {"parameters": {"p": parameter("p", "path")}}
    assert (await send(paths, {"p": {"a": 1}}, components=components))["path"] == "/v1/x/a%3D1"


async def test_the_address_is_the_given_one_else_the_client_s_else_the_document_s() -> None:
    """Variables of a server have their defaults."""
    servers = [{"url": "https://{host}/v9/", "variables": {"host": {"default": "doc.test"}}}]
    spec = document({"/x": {"get": {"operationId": "x"}}}, servers=servers)
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(204)

    async with client(answer) as made, client(answer, base_url="") as bare:
        for source in (
            OpenAPITools(spec=spec, client=made, base_url="https://given.test/"),
            OpenAPITools(spec=spec, client=made),
            OpenAPITools(spec=spec, client=bare),
        ):
            assert await (await tools_of(source))["x"].run_body({}) == "[status 204, without content]"
        with pytest.raises(UserValueError, match="base_url"):
            OpenAPITools(spec=document({}), client=bare)
    assert seen == ["https://given.test/x", "https://api.test/v1/x", "https://doc.test/v9/x"]


# --------------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ({"swagger": "2.0", "paths": {}}, UserValueError, "version 3, got '2.0'"),
        ({}, UserValueError, "version 3, got None"),
        ({"openapi": "3.1.0"}, UserTypeError, "with `paths`"),
        ([], UserTypeError, "expected an OpenAPI document"),
    ],
)
async def test_what_is_no_document_is_refused(spec: Any, kind: type[UserError], words: str) -> None:
    """When the source is made, and not in a run."""
    async with client() as made:
        with pytest.raises(kind) as caught:
            OpenAPITools(spec=spec, client=made)
    assert words in str(caught.value)


_CIRCLE = {"a": {"$ref": "#/components/parameters/b"}, "b": {"$ref": "#/components/parameters/a"}}


@pytest.mark.parametrize(
    ("path", "operation", "words"),
    [
        ("/x/{p}", {}, "'p', which is no parameter"),
        ("x", {}, "doesn't begin with a slash"),
        ("/x?a=b", {}, "has a query or a fragment"),
        (5, {}, "5 is left out: a path is a text"),
        ("/x", {"parameters": 5}, "expected an object, got int"),
        ("/x", {"parameters": {}}, "no name, or no place"),
        ("/x", {"parameters": [parameter("q", schema={"default": b"a"})]}, "that isn't JSON: bytes"),
        ("/x", {"requestBody": {"content": {5: {}}}}, "no body of nothing can be written"),
        ("/x", {"parameters": [{"name": "q"}]}, "no name, or no place"),
        ("/x", {"parameters": [parameter("c", "cookie", required=True)]}, "needs the cookie 'c'"),
        ("/x", {"parameters": [parameter("q", style="label")]}, "has the style 'label'"),
        ("/x", {"parameters": [{"$ref": "other.yaml#/q"}]}, "another document: other.yaml#/q"),
        (
            "/x",
            {"parameters": [{"$ref": "#/components/parameters/none"}]},
            "nothing is at #/components/parameters/none",
        ),
        ("/x", {"parameters": [{"$ref": "#/components/parameters/a"}]}, "in a circle"),
        ("/x", {"parameters": [3]}, "expected an object, got int"),
        ("/x", {"parameters": [parameter("q", schema=3)]}, "a schema isn't an object"),
        ("/x", {"parameters": [parameter("q", schema={"$ref": "#/components/schemas/none"})]}, "nothing is at"),
        (
            "/x",
            {"requestBody": {"required": True, "content": {"multipart/form-data": {}}}},
            "no body of 'multipart/form-data' can be written",
        ),
    ],
)
async def test_what_cannot_be_written_is_left_out(
    path: Any, operation: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says why, and the other operations are there."""
    spec = document({path: {"get": operation}, "/ok": {"get": {}}}, components={"parameters": _CIRCLE})
    with caplog.at_level(logging.WARNING, "agentloop.interop"):
        async with client() as made:
            assert list(await tools_of(OpenAPITools(spec=spec, client=made))) == ["get_ok"]
    assert words in caplog.text


async def test_a_summary_that_is_no_text_is_shown_as_one() -> None:
    """YAML reads what looks like a number as one."""
    async with client() as made:
        (tool,) = (await tools_of(OpenAPITools(spec=document({"/x": {"get": {"summary": 404}}}), client=made))).values()
    assert tool.description == "404"


async def test_operations_of_one_name_are_told_apart() -> None:
    """Each can be called, by a name that no other has."""
    paths = {
        "/pets/{id}": {"get": {"parameters": [parameter("id", "path")]}},
        "/pets/id": {"get": {}},
        "/a": {"get": {"operationId": "same"}},
        "/b": {"get": {"operationId": "same"}},
        "/c": {"get": {"operationId": "same_2"}},
    }
    async with client() as made:
        tools = await tools_of(OpenAPITools(spec=document(paths), client=made))
        called = {name: json.loads(await tool.run_body({"id": 7})) for name, tool in tools.items()}
    assert {name: sent["path"] for name, sent in called.items()} == {
        "get_pets_id": "/v1/pets/7",
        "get_pets_id_2": "/v1/pets/id",
        "same": "/v1/a",
        "same_2_2": "/v1/b",
        "same_2": "/v1/c",
    }


async def test_a_path_that_refers_elsewhere_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is fetched."""
    spec = document({"/x": {"$ref": "https://other.test/x"}, "/ok": {"get": {}}})
    async with client() as made:
        assert list(await tools_of(OpenAPITools(spec=spec, client=made))) == ["get_ok"]
    assert "/x is left out: it refers to another document" in caplog.text


async def test_optional_bodies_that_cannot_be_written_are_no_arguments() -> None:
    """The operation is called without one."""
    sent = await send({"/x": {"post": {"requestBody": {"content": {"image/png": {}}}}}}, {})
    assert sent["body"] == ""


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"allOf": [True], "nullable": True}, {"anyOf": [{"allOf": [True]}, {"type": "null"}]}),
        ({"maximum": 3, "exclusiveMaximum": True}, {"exclusiveMaximum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"items": {"example": 1, "x-a": 2}}, {"items": {}}),
        (
            {"type": "object", "required": ["id", "a"], "properties": {"id": {"readOnly": True}, "a": {}}},
            {"type": "object", "required": ["a"], "properties": {"id": {}, "a": {}}},
        ),
        (
            {"default": datetime.date(2020, 1, 2), "enum": [datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)]},
            {"default": "2020-01-02", "enum": ["2020-01-02T00:00:00+00:00"]},
        ),
        ({"properties": {1: {}}, 2: 3, "default": {3: [4]}}, {"properties": {"1": {}}, "default": {"3": [4]}}),
    ],
)
async def test_schemas_become_those_of_today(given: Any, made: Any) -> None:
    """OpenAPI 3.0 has words of its own, which models and checks don't know."""
    spec = document(
        {"/x": {"get": {"operationId": "x", "parameters": [parameter("q", schema=given)]}}},
    )
    async with client() as http:
        tool = (await tools_of(OpenAPITools(spec=spec, client=http)))["x"]
    assert tool.params_json_schema["properties"]["q"] == made


@pytest.mark.parametrize(
    "reference",
    [
        "#/components/schemas/Pet",
        "#/components/schemas/a~1b",
        "#/components/schemas/Page%3CPet%3E",
        "#/components/schemas/Pet/properties/id",
        "#/paths/~1other/get/parameters/0/schema",
    ],
)
@pytest.mark.parametrize("word", ["items", "contains", "if", "propertyNames"])
async def test_references_of_all_kinds_name_definitions(reference: str, word: str) -> None:
    """To a whole schema or into one, with escaped names, below any word: each leads to what it means."""
    schemas = {
        "Pet": {"const": 0, "properties": {"id": {"const": 3}}},
        "a/b": {"const": 1},
        "Page<Pet>": {"const": 2},
    }
    other = {"get": {"operationId": "other", "parameters": [parameter("q", schema={"const": 4})]}}
    asked = {"get": {"operationId": "x", "parameters": [parameter("q", schema={word: {"$ref": reference}})]}}
    spec = document({"/x": asked, "/other": other}, components={"schemas": schemas})
    async with client() as made:
        schema: Any = (await tools_of(OpenAPITools(spec=spec, client=made)))["x"].params_json_schema
    ((name, definition),) = schema["$defs"].items()
    assert schema["properties"]["q"] == {word: {"$ref": f"#/$defs/{name}"}}
    assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    assert definition["const"] == ["Pet", "a~1b", "Page%3CPet%3E", "id", "schema"].index(reference.rpartition("/")[2])


async def test_a_schema_that_is_referred_to_twice_is_written_once() -> None:
    """Wherever it stands: copies of copies would be without a bound."""
    stored: dict[str, Any] = {
        f"s{n}": {"properties": {name: {"$ref": f"#/x-stored/s{n + 1}"} for name in ("a", "b")}} for n in range(50)
    }
    asked = {"get": {"operationId": "x", "parameters": [parameter("q", schema={"$ref": "#/x-stored/s0"})]}}
    async with client() as made:
        spec = document({"/x": asked}, **{"x-stored": stored | {"s50": {"type": "string"}}})
        tool = (await tools_of(OpenAPITools(spec=spec, client=made)))["x"]
    assert len(tool.params_json_schema["$defs"]) == 51


async def test_a_long_chain_of_references_is_followed() -> None:
    """Documents of large services have hundreds of schemas, each of which refers to others."""
    schemas: dict[str, Any] = {
        f"S{n}": {"type": "object", "properties": {"next": {"$ref": f"#/components/schemas/S{n + 1}"}}}
        for n in range(2_000)
    } | {"S2000": {"type": "string"}}
    spec = document(
        {
            "/x": {
                "get": {"operationId": "x", "parameters": [parameter("q", schema={"$ref": "#/components/schemas/S0"})]}
            }
        },
        components={"schemas": schemas},
    )
    async with client() as made:
        tool = (await tools_of(OpenAPITools(spec=spec, client=made)))["x"]
    assert len(tool.params_json_schema["$defs"]) == 2_001


async def test_arguments_that_cannot_be_checked_here_are_the_service_s() -> None:
    """A schema with words that no check here knows is shown to the model as it is; patterns aren't run."""
    given = [parameter("q", schema={"unevaluatedItems": False}), parameter("r", schema={"pattern": "(a+)+$"})]
    sent = await send({"/x": {"get": {"parameters": given}}}, {"q": [1], "r": "a" * 40 + "b"})
    assert sent["path"].startswith("/v1/x?q=1&r=a")
