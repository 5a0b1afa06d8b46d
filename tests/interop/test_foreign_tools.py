"""Tools of LangChain and pydantic-ai: with the libraries themselves (the extra `vendors`), and by their interfaces."""

import datetime
import json
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import pytest
from kit.agents import Run, script_agent
from kit.results import read_outputs

from agentloop._concurrency.backend import own_task
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.interop import from_langchain, from_pydantic_ai
from agentloop.items import Audio, File, Image, Text
from agentloop.testing import call, say
from agentloop.tools import FunctionTool

pytestmark = pytest.mark.real_clock  # sync functions run in threads


async def outputs_of(run_mode: Run, tool: FunctionTool[Any], *arguments: Any, context: Any = None) -> list[Any]:
    """Return what the model receives for a call with each of *arguments*."""
    steps = [call(tool.name, given) for given in arguments]
    result = await run_mode(script_agent("a", *steps, say("done"), tools=[tool]), "go", context=context)
    return list(read_outputs(result.new_items).values())


# -------------------------------------------------------------------------------------- their interfaces


class FakeLangChain:
    """A tool by LangChain's documented interface, with a sync function."""

    name = "math/add"
    description = "Add."
    coroutine: Any = None
    tool_call_schema: ClassVar[Any] = {"title": "add", "type": "object", "properties": {"x": {"type": "integer"}}}

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.given: list[Any] = []

    def invoke(self, given: Any) -> Any:
        """Answer as LangChain does: by a message, where a call is given."""
        self.given.append(given)
        return types.SimpleNamespace(content="3", status="success") if self.answer is None else self.answer

    async def ainvoke(self, given: Any) -> Any:
        """Answer the same."""
        return self.invoke(given)


async def test_langchain_s_tool_gets_the_call(run_mode: Run) -> None:
    """It is named as models may call it, and the message that it answers with is the output."""
    theirs = FakeLangChain()
    tool = from_langchain(theirs, reads_only=True)
    assert (tool.name, tool.description, tool.reads_only) == ("math_add", "Add.", True)
    assert tool.params_json_schema == {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert await outputs_of(run_mode, tool, {"x": 1}) == ["3"]
    assert theirs.given == [{"type": "tool_call", "id": "call_1", "name": "math/add", "args": {"x": 1}}]


class ShownClass:
    """The class that a tool of LangChain shows: one without what is injected."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        """Return what the model sees."""
        return {"title": "add", "type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(("shown", "refused"), [(ShownClass, True), (FakeLangChain.tool_call_schema, False)])
async def test_what_langchain_s_schema_hides_is_no_argument(run_mode: Run, shown: Any, refused: bool) -> None:
    """A class hides what isn't for models to choose, such as a user's id; a schema as a dict allows other names."""
    theirs = FakeLangChain()
    theirs.tool_call_schema = shown  # type: ignore[misc]  # of this one only
    (output,) = await outputs_of(run_mode, from_langchain(theirs), {"x": 1, "user_id": "u-2"})
    assert ("'user_id' isn't expected" in output, not theirs.given) == (refused, refused)


async def test_async_tools_of_langchain_need_asyncio(run_mode: Run) -> None:
    """On trio the call says so."""
    theirs = FakeLangChain()
    theirs.coroutine = theirs.ainvoke
    (output,) = await outputs_of(run_mode, from_langchain(theirs, timeout=60), {"x": 1})
    assert output == "3" if own_task() is not None else "on asyncio only" in output


_BLOCKS = [
    "a",
    {"type": "text", "text": "b"},
    {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
    {"type": "image", "url": "https://x.test/b.png"},
    {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
    {"type": "other"},
]


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ({"a": 1}, {"a": 1}),
        (["a"], ["a"]),
        (types.SimpleNamespace(content="a"), "a"),
        (
            types.SimpleNamespace(content=_BLOCKS),
            (
                Text("a"),
                Text("b"),
                Image("https://x.test/a.png"),
                Image("https://x.test/b.png"),
                Image(data="AAAA", media_type="image/png"),
                Text('{"type": "other"}'),
            ),
        ),
    ],
)
async def test_answers_of_langchain(answer: Any, output: Any) -> None:
    """A value, a message of text, or one of blocks."""
    assert await from_langchain(FakeLangChain(answer)).run_body({}) == output


@pytest.mark.parametrize("content", ["no such city", ["no such city"]])
async def test_an_error_that_langchain_handles_is_one(content: Any) -> None:
    """Its message has the status of an error: the call has failed."""
    answer = types.SimpleNamespace(content=content, status="error")
    with pytest.raises(Exception, match="no such city"):
        await from_langchain(FakeLangChain(answer)).run_body({})


@pytest.mark.parametrize(("module", "is_async"), [("langchain_core.tools.base", False), ("shop.tools", True)])
def test_a_class_of_langchain_is_async_if_it_has_a_body_that_is(module: str, is_async: bool) -> None:
    """That of LangChain's base runs the sync one, in a thread, which takes no timeout."""

    class Own:
        name, description, tool_call_schema = "own", None, {"type": "object"}
        invoke = ainvoke = None

        async def _arun(self) -> None: ...

    Own._arun.__module__ = module
    if is_async:
        assert from_langchain(Own(), timeout=1).timeout == 1
    else:
        with pytest.raises(UserValueError, match="timeout: its function is sync"):
            from_langchain(Own(), timeout=1)


class FakeValidator:
    """Checks that `x` is a number, as a validator of pydantic does."""

    def validate_json(self, text: str) -> dict[str, Any]:
        """Return the arguments."""
        given = json.loads(text)
        if set(given) != {"x"}:
            raise ValueError("only x")
        return {"x": int(given["x"])}


def fake_pydantic_ai(answer: Any = None, *, is_async: bool = True, **fields: Any) -> Any:
    """Return a tool by the documented interface of pydantic-ai."""

    async def run(arguments: dict[str, Any], ctx: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return arguments["x"] if answer is None else answer(ctx) if callable(answer) else answer

    schema = types.SimpleNamespace(validator=FakeValidator(), is_async=is_async, call=run)
    definition = types.SimpleNamespace(description="Look.", parameters_json_schema={"type": "object"})
    given = {"name": "look", "tool_def": definition, "function_schema": schema, "takes_ctx": False, "prepare": None}
    return types.SimpleNamespace(**given | fields)


async def test_pydantic_ai_s_tool_checks_its_arguments(run_mode: Run) -> None:
    """By its own validator, which reads what is meant; faults go to the model."""
    tool = from_pydantic_ai(fake_pydantic_ai())
    first, second = await outputs_of(run_mode, tool, {"x": "3"}, {"y": 1})
    assert first == "3"
    assert "only x" in second


async def test_pydantic_ai_s_options_hold(run_mode: Run) -> None:
    """Those that mean the same here, unless others are given; a thread has no timeout."""
    theirs = {"requires_approval": True, "sequential": True, "timeout": 3.0}
    tool = from_pydantic_ai(fake_pydantic_ai(**theirs))
    assert (tool.needs_approval, tool.exclusive, tool.timeout) == (True, True, 3.0)
    sync = from_pydantic_ai(fake_pydantic_ai(is_async=False, **theirs), needs_approval=False)
    assert (sync.needs_approval, sync.timeout) == (False, None)
    with pytest.raises(UserValueError, match="idle_timeout: its function is sync"):
        from_pydantic_ai(fake_pydantic_ai(is_async=False), idle_timeout=1)


async def test_a_function_of_pydantic_ai_gets_the_context_of_the_run(
    run_mode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its `deps`, with the call's id."""
    library: Any = types.ModuleType("pydantic_ai")
    library.RunContext, library.RunUsage = types.SimpleNamespace, dict
    monkeypatch.setitem(sys.modules, "pydantic_ai", library)
    tool = from_pydantic_ai(
        fake_pydantic_ai(lambda ctx: f"{ctx.deps} {ctx.tool_call_id} {ctx.tool_name}", takes_ctx=True)
    )
    assert await outputs_of(run_mode, tool, {"x": 1}, context="shop") == ["shop call_1 look"]


async def test_a_retry_of_pydantic_ai_is_an_error_for_the_model(run_mode: Run) -> None:
    """In its own words; other errors are those of any tool."""

    class ModelRetry(Exception):
        pass

    for error in (ModelRetry("try 2 instead"), LookupError("no such row")):
        (output,) = await outputs_of(run_mode, from_pydantic_ai(fake_pydantic_ai(error)), {"x": 1})
        assert str(error) in output


def _media(kind: str, **fields: Any) -> Any:
    return types.SimpleNamespace(kind=kind, **fields)


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ([1, 2], [1, 2]),
        (_media("binary", media_type="image/png", data=b"a"), (Image(data=b"a", media_type="image/png"),)),
        (_media("binary", media_type="text/plain", data=b"a"), (Text("a"),)),
        (["see", _media("image-url", url="u")], (Text("see"), Image("u"))),
        ([{"a": 1}, _media("audio-url", url="u")], (Text('{"a": 1}'), Audio(url="u"))),
        (_media("document-url", url="u"), (File(url="u"),)),
        (_media("tool-return", return_value={"a": 1}, content=None), {"a": 1}),
        (_media("tool-return", return_value="a", content="b"), (Text("a"), Text("b"))),
        (_media("tool-return", return_value="a", content=[_media("image-url", url="u")]), (Text("a"), Image("u"))),
    ],
)
async def test_answers_of_pydantic_ai(answer: Any, output: Any) -> None:
    """Media are parts, and what goes beside the output is in it."""
    assert await from_pydantic_ai(fake_pydantic_ai(answer)).run_body({"x": 1}) == output


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: from_langchain(print), UserTypeError, "expected a tool of LangChain, got builtin_function_or_method"),
        (lambda: from_pydantic_ai(print), UserTypeError, "expected a tool of pydantic-ai, got"),
        (lambda: from_pydantic_ai(fake_pydantic_ai(prepare=print)), UserValueError, "prepare has no form here"),
        (lambda: from_pydantic_ai(fake_pydantic_ai(name="")), UserValueError, "no name that a model could call: ''"),
        (lambda: from_langchain(FakeLangChain(), nam="a"), UserTypeError, "'nam' is no option of any tool"),  # type: ignore[call-arg]
    ],
)
def test_what_is_no_tool_of_theirs_is_refused(make: Callable[[], Any], kind: type[UserError], words: str) -> None:
    """When it is made."""
    with pytest.raises(kind) as caught:
        make()
    assert words in str(caught.value)


# ------------------------------------------------------------------------------------ the libraries themselves


async def test_a_tool_of_the_real_langchain(run_mode: Run) -> None:
    """A sync and an async function, its own check, and an error."""
    theirs = pytest.importorskip("langchain_core.tools")

    @theirs.tool
    def add(x: int, y: int = 1) -> dict[str, int]:
        """Add."""
        return {"sum": x + y}

    @theirs.tool
    async def fail(x: int) -> str:
        """Fail."""
        raise theirs.ToolException("not today")

    @theirs.tool
    def orders(n: int, user_id: Annotated[str, theirs.InjectedToolArg] = "u-1") -> str:
        """Orders."""
        return f"{n} of {user_id}"

    given = [{"n": 1}, {"n": 1, "user_id": "u-2"}]
    own, other = await outputs_of(run_mode, from_langchain(orders), *given)
    assert own == "1 of u-1"
    assert "'user_id' isn't expected" in other
    tool = from_langchain(add)
    assert list(tool.params_json_schema["properties"]) == ["x", "y"]
    first, second = await outputs_of(run_mode, tool, {"x": "2"}, {"x": "two"})
    assert first == '{"sum": 3}'
    assert "valid integer" in second
    (third,) = await outputs_of(run_mode, from_langchain(fail), {"x": 1})
    assert ("not today" if own_task() is not None else "on asyncio only") in third


async def test_strict_classes_of_pydantic_get_json(run_mode: Run) -> None:
    """A date is a text there, and fits as it does in pydantic-ai."""
    theirs, pydantic = pytest.importorskip("pydantic_ai"), pytest.importorskip("pydantic")
    day = pydantic.create_model(
        "Day", __config__=pydantic.ConfigDict(strict=True), date=(datetime.date, ...), hours=(tuple[int, int], ...)
    )

    async def book(day: Any, n: int = 1) -> str:
        return f"{day.date!r} {day.hours}"

    book.__annotations__["day"] = day
    (output,) = await outputs_of(
        run_mode, from_pydantic_ai(theirs.Tool(book)), {"day": {"date": "2020-01-02", "hours": [9, 12]}}
    )
    assert output == "datetime.date(2020, 1, 2) (9, 12)"


async def test_a_tool_of_the_real_pydantic_ai(run_mode: Run) -> None:
    """Functions with and without the context, sync and async, media and retries."""
    theirs = pytest.importorskip("pydantic_ai")

    async def look(ctx: theirs.RunContext[str], x: int) -> str:
        """Look."""
        if x < 0:
            raise theirs.ModelRetry("only what is above 0")
        return f"{ctx.deps} {x} {ctx.tool_call_id}"

    def draw(x: int) -> Any:
        return theirs.ToolReturn("drawn", content=[theirs.BinaryContent(b"a", media_type="image/png")])

    tool = from_pydantic_ai(theirs.Tool(look))
    assert (tool.description, list(tool.params_json_schema["properties"])) == ("Look.", ["x"])
    first, second, third = await outputs_of(run_mode, tool, {"x": "1"}, {"x": -1}, {"x": "one"}, context="shop")
    assert first == "shop 1 call_1"
    assert "only what is above 0" in second
    assert "$.x" in third
    assert "valid integer" in third
    assert await outputs_of(run_mode, from_pydantic_ai(theirs.Tool(draw)), {"x": 1}) == [
        (Text("drawn"), Image(data=b"a", media_type="image/png"))
    ]
