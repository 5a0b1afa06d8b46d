"""A body's value on its way to the model and to the application, and the cut when it is too long."""

import array
import base64
import collections
import copy
import datetime
import decimal
import io
import itertools
import pickle
import re
import types
from typing import Any

import attrs
import pytest
from kit.agents import Run, configure_run, make_agent
from kit.results import find_outcome, read_outputs, read_shown_outputs, read_statuses

from agentloop import Agent, RunConfig, StopAtTools, ToolExecution, UserError, tool
from agentloop._engine.calls.output_text import cut_text
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.items import File, Image, Text, ToolCall, ToolOutput
from agentloop.testing import ScriptedModel, call, say


@pytest.mark.scenario("LX-27")
@pytest.mark.parametrize("limit", [32_000, 500, 100, 60])
async def test_a_long_result_keeps_its_head_and_tail(run_mode: Run, limit: int) -> None:
    """The cut result is within the limit and says how much was cut; the application's value is whole."""
    text = "".join(f"{n:06d} " for n in range(100_000 // 7))

    @tool
    async def f() -> str:
        return text

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go", run_config=configure_run(max_output_chars=limit))
    output = str(read_shown_outputs(agent)["a"])
    assert len(output) <= limit
    head, _, rest = output.partition("\n[… ")
    notice, _, tail = rest.partition(" …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert head
    assert abs(len(head) - len(tail)) <= 1
    cut = len(text) - len(head) - len(tail)
    assert notice == f"{cut} of {len(text)} characters cut"
    assert find_outcome(result, "a").value == text


@pytest.mark.scenario("LX-27")
async def test_a_result_at_the_limit_is_whole(run_mode: Run) -> None:
    """A result at the limit is not cut, and neither is any result without a limit."""

    @tool
    async def f(n: int) -> str:
        return "x" * n

    agent = make_agent([f], call("f", {"n": 500}, "a"))
    await run_mode(agent, "go", run_config=configure_run(max_output_chars=500))
    assert read_shown_outputs(agent) == {"a": "x" * 500}
    agent = make_agent([f], call("f", {"n": 100_000}, "a"))
    await run_mode(agent, "go", run_config=configure_run(max_output_chars=None))
    assert read_shown_outputs(agent) == {"a": "x" * 100_000}


@pytest.mark.scenario("LX-27")
@pytest.mark.parametrize("limit", [60, 99, 100, 199, 1_000, 9_999])
def test_a_result_just_past_the_limit_keeps_to_it(limit: int) -> None:
    """The result keeps to the limit, also where the note about the cut is longer than the excess."""
    for length in range(limit + 1, limit + 250):
        kept = cut_text("x" * length, limit)
        assert limit - 1 <= len(kept) <= limit, length
        assert kept.count("x") + int(kept.split("… ")[1].split()[0]) == length


@pytest.mark.scenario("LX-27")
def test_no_limit_is_too_small_to_be_kept_to() -> None:
    """Around the length of the note there is room for the note and a head, and then for a tail."""
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    kept = [cut_text(text, limit) for limit in range(1, len(text) + 1)]
    assert all(len(one) <= limit for limit, one in enumerate(kept, 1))
    tails = [one.rpartition("…]\n")[2] for one in kept if "…]\n" in one]
    assert tails[0] == ""
    assert all(text.endswith(tail) for tail in tails)


@pytest.mark.scenario("LX-27")
async def test_text_parts_are_bounded_and_other_parts_are_not(run_mode: Run) -> None:
    """An image's data isn't cut into something that is none."""
    image = Image("data:image/png;base64," + "A" * 1000)

    @tool
    async def f() -> Any:
        return [Text("x" * 1000), image]

    agent = make_agent([f], call("f", {}, "a"))
    await run_mode(agent, "go", run_config=configure_run(max_output_chars=200))
    text, second = read_shown_outputs(agent)["a"]
    assert isinstance(text, Text)
    assert len(text.text) <= 200
    assert second == image


@pytest.mark.scenario("LX-27")
async def test_a_long_failure_text_is_bounded_too(run_mode: Run) -> None:
    """The cut also applies to the text of the tool's own failure function."""

    @tool(failure_error_function=lambda ctx, error: "y" * 5000)
    async def f() -> str:
        raise ValueError

    agent = make_agent([f], call("f", {}, "a"))
    await run_mode(agent, "go", run_config=configure_run(max_output_chars=300))
    assert len(read_shown_outputs(agent)["a"]) <= 300
    assert "of 5000 characters cut" in str(read_shown_outputs(agent)["a"])


class Store:
    """Keeps outputs under keys of its own."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[ToolCall, str]] = {}

    async def put(self, call: ToolCall, data: str) -> str:
        key = f"store/{len(self.kept)}"
        self.kept[key] = (call, data)
        return key


@pytest.mark.scenario("LX-28")
async def test_oversize_results_go_to_the_store_under_their_own_keys(run_mode: Run) -> None:
    """Two long results of one tool in one turn are stored; the model gets their keys, and short results stay out."""
    store = Store()

    @tool
    async def f(n: int) -> str:
        return f"{n}" * (1000 if n else 10)

    agent = make_agent([f], [call("f", {"n": n}, f"c{n}") for n in (1, 2, 0)])
    config = RunConfig(tool_execution=ToolExecution(max_output_chars=200), output_store=store)
    await run_mode(agent, "go", run_config=config)
    found = read_shown_outputs(agent)
    assert found["c0"] == "0" * 10
    assert len(store.kept) == 2
    for key, (asked, data) in store.kept.items():
        assert key in str(found[asked.call_id])
        assert data == asked.call_id[1:] * 1000
        assert len(found[asked.call_id]) <= 200


async def test_equal_long_parts_of_a_result_are_stored_once(run_mode: Run) -> None:
    """Each of them gets the one key; a short part stays out."""
    store = Store()

    @tool
    async def f() -> list[Text]:
        return [Text("1" * 1000), Text("2" * 1000), Text("1" * 1000), Text("short")]

    agent = make_agent([f], call("f", {}, "a"))
    config = RunConfig(tool_execution=ToolExecution(max_output_chars=200), output_store=store)
    await run_mode(agent, "go", run_config=config)
    parts: Any = read_shown_outputs(agent)["a"]
    assert [data[0] for _, data in store.kept.values()] == ["1", "2"]
    for part, key in zip(parts, ["store/0", "store/1", "store/0", "short"], strict=True):
        assert key in part.text
        assert len(part.text) <= 200


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (False, "false"), (0.0, "0.0"), ("", ""), ([], "[]"), ({}, "{}"), ((), "[]"), (None, "(no output)")],
)
async def test_falsy_values_are_values(run_mode: Run, value: Any, text: str) -> None:
    """Only None is no output; the application gets the object itself for every other value."""

    @tool
    async def f() -> Any:
        return value

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": text}
    assert read_statuses(result) == ["succeeded"]
    assert find_outcome(result, "a").value is value or find_outcome(result, "a").value == value
    assert read_outputs(result.new_items) == {"a": text}


@attrs.frozen
class Point:
    """A value of the application."""

    x: int
    y: decimal.Decimal


class Strange:
    """Something no JSON knows."""

    def __repr__(self) -> str:
        return "<strange>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(1, decimal.Decimal("2.50")), '{"x": 1, "y": "2.50"}'),
        ([Point(1, decimal.Decimal(2))], '[{"x": 1, "y": "2"}]'),
        ({1: "a"}, '{"1": "a"}'),
        (Strange(), "<strange>"),
    ],
)
async def test_any_python_value_has_a_text(run_mode: Run, value: Any, text: str) -> None:
    """The text is JSON where the value has one, else the value's own text."""

    @tool
    async def f() -> Any:
        return value

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": text}
    assert find_outcome(result, "a").value is value


async def test_not_a_number_has_a_text_too(run_mode: Run) -> None:
    """JSON has none, so the value speaks for itself; the call still succeeds."""

    @tool
    async def f() -> float:
        return float("nan")

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "nan"}
    assert read_statuses(result) == ["succeeded"]


PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20
SHOT = Image(data=base64.b64encode(PNG).decode(), media_type="image/png")


class Picture:
    """A picture as PIL's are: it can show itself."""

    def _repr_png_(self) -> bytes:
        return PNG


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (PNG, (SHOT,)),
        (b"GIF89a..", (Image(data=base64.b64encode(b"GIF89a..").decode(), media_type="image/gif"),)),
        (Picture(), (SHOT,)),
        ([Picture(), "a picture"], (SHOT, Text("a picture"))),
        ({"shot": Picture(), "n": 1}, (Text('{"n": 1, "shot": "[image 1, below]"}'), SHOT)),
        (b"text", '"dGV4dA=="'),
        (lambda: iter([1, 2]), "[1, 2]"),
        (lambda: map(str, [1]), '["1"]'),
        ({"a": 1}.keys, '["a"]'),
        (range(2), "[0, 1]"),
        (lambda: {"rows": iter([1])}, '{"rows": [1]}'),
        (lambda: [iter([iter([1])])], "[[[1]]]"),
        (collections.deque([1, (2,)]), "[1, [2]]"),
        ({"rows": collections.deque([{"a": 1}])}, '{"rows": [{"a": 1}]}'),
        (types.MappingProxyType({"a": 1}), '{"a": 1}'),
        (collections.ChainMap({"a": collections.UserList([1])}), '{"a": [1]}'),
        ([collections.UserDict(a=collections.UserString("b"))], '[{"a": "b"}]'),
        (array.array("i", [1]), "[1]"),
        (Point(collections.deque([1]), {}.keys()), '{"x": [1], "y": []}'),
        ({"at": datetime.date(2024, 5, 1), "x": float("nan")}, '{"at": "2024-05-01", "x": NaN}'),
    ],
)
async def test_what_libraries_return_is_shown_as_what_it_is(run_mode: Run, value: Any, shown: Any) -> None:
    """A picture, the items of an iterator: their text forms would say nothing."""

    @tool
    async def f() -> Any:
        return value() if callable(value) else value

    agent = make_agent([f], call("f", {}, "a"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": shown}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: itertools.count(), "an iterator \\(count\\) of more than 10000 items was returned"),
        (lambda: io.StringIO("x"), "an open file \\(StringIO\\) was returned: return what is in it"),
        (lambda: _asynchronous(), "an async iterator"),
        (lambda: {"rows": _asynchronous()}, "an async iterator"),
        (lambda: [1, io.StringIO("x")], "an open file"),
        (lambda: [_awaited(), _awaited()], "the coroutine '_awaited' was returned: an `await` is missing"),
        (lambda: (1 / n for n in (1, 0)), "type generator can't be written as text: ZeroDivisionError\\(.*by zero"),
    ],
)
async def test_what_cannot_be_shown_fails_the_call_and_says_what_to_return(
    run_mode: Run, value: Any, words: str
) -> None:
    """The run goes on: the model is told."""

    @tool
    async def f() -> Any:
        return value()

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert re.search(words, str(read_shown_outputs(agent)["a"]))
    assert read_statuses(result) == ["failed"]


async def _awaited() -> None:
    pass


async def _asynchronous() -> Any:
    yield 1


async def test_an_object_whose_text_says_nothing_is_named_once_in_the_log(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is shown `<… object at 0x…>`; whoever wrote the tool should know."""

    class Opaque:
        pass

    @tool
    async def f() -> Any:
        return Opaque()

    for _ in range(2):
        await run_mode(make_agent([f], call("f", {}, "a")), "go")
    said = [record.getMessage() for record in caplog.records if "no JSON form" in record.getMessage()]
    assert len(said) == 1
    assert "Opaque" in said[0]


PARTS = [Text("see"), Image("https://example.org/a.png", "low"), File(url="https://example.org/b.pdf", filename="b")]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (PARTS, tuple(PARTS)),
        (tuple(PARTS), tuple(PARTS)),
        (PARTS[1], (PARTS[1],)),
        (Text("alone"), (Text("alone"),)),
    ],
)
async def test_parts_stay_parts(run_mode: Run, value: Any, parts: Any) -> None:
    """Text, image and file outputs reach the model as they are."""

    @tool
    async def f() -> Any:
        return value

    agent = make_agent([f], call("f", {}, "a"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": parts}


async def test_other_values_beside_parts_are_texts(run_mode: Run) -> None:
    """Else the model would read the base64 of a picture that stands in a list with a few words."""

    @tool
    async def f() -> Any:
        return ["Here:", Image(data="aGk=", media_type="image/png"), {"n": 1}]

    agent = make_agent([f], call("f", {}, "a"))
    await run_mode(agent, "go")
    picture = Image(data="aGk=", media_type="image/png")
    assert read_shown_outputs(agent) == {"a": (Text("Here:"), picture, Text('{"n": 1}'))}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_custom_data_stands_beside_the_output(run_mode: Run, kind: str) -> None:
    """The extractor gets the call's context and the value; the model sees nothing of it."""

    def extract(ctx: Any, value: Any) -> Any:
        return {"call": ctx.tool_call_id, "length": len(value)}

    async def extract_later(ctx: Any, value: Any) -> Any:
        return extract(ctx, value)

    @tool(custom_data_extractor=extract if kind == "sync" else extract_later)
    async def f() -> str:
        return "four"

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert find_outcome(result, "a").custom_data == {"call": "a", "length": 4}
    assert read_shown_outputs(agent) == {"a": "four"}


async def test_custom_data_is_not_asked_for_of_a_failure(run_mode: Run) -> None:
    """A failed call has no value to extract from, so the extractor is not called."""

    def extract(ctx: Any, value: Any) -> Any:
        raise AssertionError

    @tool(custom_data_extractor=extract)
    async def f() -> str:
        raise ValueError("no")

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert read_statuses(result) == ["failed"]


async def test_a_tool_made_final_output_of_a_text_agent_is_text(run_mode: Run) -> None:
    """The final output of `stop_on_first_tool` and `StopAtTools` is the text that the model would have received."""

    @tool
    async def f() -> list[int]:
        return [1, 2]

    @tool
    async def g() -> str:
        return "g"

    for behavior, wanted in (("stop_on_first_tool", "g"), (StopAtTools(["f"]), "[1, 2]")):
        agent: Agent[Any, Any] = Agent(
            "guide",
            model=ScriptedModel([[call("g", {}, "a"), call("f", {}, "b")], say("unused")]),
            tools=[f, g],
            tool_use_behavior=behavior,  # type: ignore[arg-type]
        )
        result = await run_mode(agent, "go")
        assert result.final_output == wanted
        assert read_statuses(result) == ["succeeded", "succeeded"]


async def test_items_of_a_result_make_the_next_run_s_input(run_mode: Run) -> None:
    """`to_input_list` pairs every call with its output."""

    @tool
    async def f() -> int:
        return 0

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    items = result.to_input_list()
    assert [type(item).__name__ for item in items] == ["UserMessage", "ToolCall", "ToolOutput", "AssistantMessage"]
    assert items[2] == ToolOutput("a", "0")
    assert result.to_input_list("all") == items


def test_a_limit_of_no_characters_is_refused() -> None:
    """None is no limit."""
    with pytest.raises(UserValueError, match="max_output_chars"):
        ToolExecution(max_output_chars=0)


async def test_a_result_made_by_hand_has_no_state(run_mode: Run) -> None:
    """Only a run has a log to make one of."""
    result = await run_mode(make_agent([]), "go")
    assert result.to_state().records
    with pytest.raises(UserError, match="no run made this result"):
        attrs.evolve(result, source=None).to_state()


async def test_fields_of_a_result_are_made_at_the_first_use_of_one(run_mode: Run) -> None:
    """They stay the same objects then, in copies too; an attribute that is no field is none before and after."""
    result = await run_mode(make_agent([]), "go")
    assert result.final_output == "done"
    with pytest.raises(AttributeError):
        object.__getattribute__(result, "new_items")
    with pytest.raises(AttributeError, match="'RunResult' object has no attribute 'nothing'"):
        result.nothing  # type: ignore[attr-defined]
    items = result.new_items
    assert object.__getattribute__(result, "new_items") is items
    assert result.new_items is items is copy.copy(result).new_items
    with pytest.raises(AttributeError, match="nothing"):
        result.nothing  # type: ignore[attr-defined]


async def test_a_result_says_what_to_send_in_place_of_it(run_mode: Run) -> None:
    """It holds agents and open objects, so it can't be pickled; copies work."""
    result = await run_mode(make_agent([]), "go")
    with pytest.raises(UserTypeError, match=r"can't be pickled.*to_json\(\).*RunState\.from_string"):
        pickle.dumps(result)
    assert copy.copy(result) is result
    copied = copy.deepcopy(result)
    assert copied is not result
    assert (copied.final_output, copied.new_items) == (result.final_output, result.new_items)
    assert copied.to_state() == result.to_state()
