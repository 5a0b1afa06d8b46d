"""Deferred tools: hidden until a search has found them, and offered from the next turn on."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from kit.agents import Run, script_agent
from kit.results import find_outcome, find_records, read_outputs, read_requests

from agentloop import Agent, FunctionTool, ModelSettings, RunConfig, RunState, UserError, tool, tool_search
from agentloop import records as r
from agentloop.agents._tool_search import rank
from agentloop.exceptions import ModelBehaviorError, UserTypeError, UserValueError
from agentloop.guardrails import RejectContent, ReplaceOutput, tool_output_guardrail
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, replay, say

pytestmark = pytest.mark.scenario("TS-09")


def one(name: str, description: str = "Give the name.", **options: Any) -> FunctionTool:
    """Return a tool whose output is its own name."""

    @tool(name=name, description=description, **options)
    async def body() -> str:
        return name

    return body


class Source:
    """A source with one answer for each turn; the last one holds for all later turns."""

    def __init__(self, *answers: Sequence[FunctionTool]) -> None:
        self.answers, self.asked = answers, 0

    async def tools(self, ctx: Any, agent: Any) -> Sequence[FunctionTool]:
        """Return the answer of this turn."""
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def shown_in(agent: Agent[Any, Any]) -> list[list[str]]:
    """Return the names of the tools in each request."""
    return [[tool.name for tool in request.tools] for request in read_requests(agent)]


def late(name: str, about: str = "", **options: Any) -> FunctionTool:
    """Return a deferred tool whose output is its own name."""
    return one(name, description=about or f"The tool {name}.", defer_loading=True, **options)


MAIL = late("send_mail", "Send a letter to a person.")
RAIN = late("get_rain", "Say how much rain falls.")


def search(query: str, **options: Any) -> Any:
    """Return the model's call of the search."""
    return call("tool_search", {"query": query}, **options)


def search_agent(*steps: Any, tools: Sequence[FunctionTool] = (MAIL, RAIN), **options: Any) -> Agent[Any, str]:
    """Return an agent with a search over *tools*."""
    agent = script_agent("a", *steps, **options)
    agent.tools = [*tools, tool_search()]
    return agent


def found_in(result: Any) -> list[Any]:
    """Return what each settled call has found."""
    return [one.outcome.found for one in find_records(result, r.CallSettled)]


async def test_a_found_tool_is_called_in_the_next_turn(run_mode: Run) -> None:
    """It is hidden before, and offered as a tool like any other then; the log says what was found and shown."""
    agent = search_agent(search("send letter"), call("send_mail"), say("done"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert shown_in(agent) == [["tool_search"], ["send_mail", "tool_search"], ["send_mail", "tool_search"]]
    assert not any(tool.defer_loading for request in read_requests(agent) for tool in request.tools)
    told, sent = read_outputs(result.new_items).values()
    assert json.loads(str(told)) == {"found": [{"name": "send_mail", "description": "Send a letter to a person."}]}
    assert sent == "send_mail"
    assert found_in(result) == [("send_mail",), None]
    assert [turn.tools for turn in find_records(result, r.TurnStarted)][:2] == [
        ("tool_search",),
        ("send_mail", "tool_search"),
    ]


async def test_what_is_found_adds_up_and_stays_for_the_agent(run_mode: Run) -> None:
    """Two searches of one turn and a later one; the order of the declaration stays."""
    agent = search_agent(
        [search("rain", call_id="1"), search("letter", call_id="2")],
        search("rain and letters", call_id="3"),
        say("done"),
    )
    result = await run_mode(agent, "go")
    assert shown_in(agent) == [["tool_search"], *[["send_mail", "get_rain", "tool_search"]] * 2]
    assert [find_outcome(result, each).found for each in "12"] == [("get_rain",), ("send_mail",)]


async def test_a_search_without_a_find_says_so(run_mode: Run) -> None:
    """The model is told to try other words; nothing is offered."""
    agent = search_agent(search("paint"), say("none"))
    result = await run_mode(agent, "go")
    (told,) = read_outputs(result.new_items).values()
    assert json.loads(str(told)) == {"found": [], "note": "No tool fits. Try other words for what the tool should do."}
    assert found_in(result) == [()]
    assert shown_in(agent) == [["tool_search"]] * 2


async def test_a_hidden_tool_is_answered_by_advice(run_mode: Run) -> None:
    """Also beside the search that finds it: a response is planned as a whole. The run goes on."""
    agent = search_agent([search("letter"), call("send_mail", call_id="x")], call("send_mail", call_id="y"), say("ok"))
    result = await run_mode(agent, "go")
    outputs = read_outputs(result.new_items)
    assert outputs["x"] == "Tool 'send_mail' isn't loaded: find it by 'tool_search', then call it in your next step."
    assert outputs["y"] == "send_mail"
    assert find_outcome(result, "x").status == "skipped"
    unknown = search_agent(call("nonsense"))
    with pytest.raises(ModelBehaviorError, match="'nonsense' not found"):
        await run_mode(unknown, "go", run_config=RunConfig(tool_not_found_behavior="raise"))


async def test_a_search_is_no_use_of_a_tool(run_mode: Run) -> None:
    """It is no final output, and a demanded choice stays until a tool was called (TR-08 of a provider's search)."""
    agent = search_agent(
        search("letter"),
        call("send_mail"),
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="required"),
    )
    result = await run_mode(agent, "go")
    assert result.final_output == "send_mail"
    assert [request.tool_choice for request in read_requests(agent)] == ["required"] * 2


async def test_a_choice_of_the_search_holds_once(run_mode: Run) -> None:
    """It would be called forever; the choice of a hidden tool shows that tool."""
    agent = search_agent(search("letter"), say("ok"), model_settings=ModelSettings(tool_choice="tool_search"))
    await run_mode(agent, "go")
    assert [request.tool_choice for request in read_requests(agent)] == ["tool_search", None]
    agent = search_agent(call("get_rain"), say("ok"), model_settings=ModelSettings(tool_choice="get_rain"))
    await run_mode(agent, "go")
    assert shown_in(agent) == [["get_rain", "tool_search"]] * 2


async def test_tools_of_sources_are_searched(run_mode: Run) -> None:
    """One that is gone isn't offered, though it was found; a replay needs no source."""
    source = Source([MAIL, RAIN], [MAIL, RAIN], [RAIN])
    agent = script_agent("a", search("letter"), call("send_mail"), search("rain", call_id="2"), say("done"))
    agent.tools, agent.toolsets = [tool_search()], [source]
    journal = MemoryJournal()
    result = await run_mode(agent, "go", journal=journal)
    assert result.final_output == "done"
    assert shown_in(agent) == [
        ["tool_search"],
        ["tool_search", "send_mail"],
        ["tool_search"],
        ["tool_search", "get_rain"],
    ]
    await anyio.to_thread.run_sync(replay, result.records, agent)
    assert source.asked == 4


@pytest.mark.parametrize("native", [False, True])
async def test_replay_of_a_stored_log_offers_the_same(run_mode: Run, native: bool) -> None:
    """Of a log as text, without the values of this process: by our search, and by a provider's own."""
    model = Searching([call("send_mail"), say("done")]) if native else None
    agent = search_agent(search("letter"), call("send_mail"), say("done"))
    agent.model = model or agent.model
    result = await run_mode(agent, "go", run_config=RunConfig())
    stored = RunState.from_string(agent, result.to_state().to_string()).records
    await anyio.to_thread.run_sync(replay, stored, agent)


class Searching(ScriptedModel):
    """A model whose provider searches."""

    @property
    def features(self) -> Any:
        return {"tool_search"}


async def test_the_provider_s_own_search_is_used_where_it_has_one(run_mode: Run) -> None:
    """The deferred tools are shown as such and ours isn't, unless the application wants it."""
    agent = search_agent()
    agent.model = Searching([call("send_mail"), say("done")])
    await run_mode(agent, "go")
    shown = agent.model.requests[0].tools
    assert [(tool.name, tool.defer_loading) for tool in shown] == [("send_mail", True), ("get_rain", True)]
    agent.model = Searching([say("done")])
    agent.tools = [MAIL, tool_search(native=False)]
    await run_mode(agent, "go")
    assert [tool.name for tool in agent.model.requests[0].tools] == ["tool_search"]


async def test_each_agent_finds_for_itself(run_mode: Run) -> None:
    """After a handoff the other searches anew; back at the first, its finds are still there. Likewise agent tools."""
    first, second = search_agent(), search_agent()
    first.name, second.name = "first", "second"
    first.model = ScriptedModel([search("letter"), call("transfer_to_second"), call("send_mail"), say("done")])
    second.model = ScriptedModel([search("rain", call_id="s"), call("transfer_to_first", call_id="t")])
    first.handoffs, second.handoffs = [second], [first]
    result = await run_mode(first, "go")
    assert result.final_output == "done"
    assert shown_in(second) == [["tool_search"], ["get_rain", "tool_search"]]
    assert shown_in(first)[-1] == ["send_mail", "tool_search"]
    inner = search_agent(search("letter"), call("send_mail"), say("sent"))
    outer = search_agent(call("inner", {"input": "x"}), search("rain"), call("get_rain"), say("done"))
    outer.tools = [RAIN, tool_search(), inner.as_tool("inner")]
    result = await run_mode(outer, "go")
    assert result.final_output == "done"
    assert [names[0] for names in shown_in(inner)] == ["tool_search", "send_mail", "send_mail"]


async def test_a_resumed_run_knows_what_was_found(run_mode: Run) -> None:
    """A sibling of the search waits for a verdict: the find counts from the next turn on, in the next segment."""
    agent = search_agent([search("letter"), call("ask", call_id="x")], call("send_mail"), say("done"))
    agent.tools = [*agent.tools, one("ask", needs_approval=True)]
    paused = await run_mode(agent, "go")
    assert [each.call.call_id for each in paused.interruptions] == ["x"]
    state = RunState.from_string(agent, paused.to_state().to_string())
    state.approve(state.interruptions[0])
    result = await run_mode(agent, state)
    assert result.final_output == "done"
    assert shown_in(agent)[1] == ["send_mail", "tool_search", "ask"]


async def test_names_that_collide_are_resolved_by_the_policy(run_mode: Run) -> None:
    """A deferred tool with the name of another: the other is used, or the run is refused."""
    agent = search_agent(search("letter"), call("send_mail"), say("done"), tools=[MAIL, one("send_mail")])
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert shown_in(agent) == [["send_mail", "tool_search"]] * 3
    agent = search_agent(tools=[MAIL, one("send_mail")])
    with pytest.raises(UserError, match="'a' has a deferred tool and another named 'send_mail'"):
        await run_mode(agent, "go", run_config=RunConfig(tool_name_collision_policy="raise"))


async def test_a_guardrail_of_the_search_decides_what_is_offered(run_mode: Run) -> None:
    """What the model isn't told isn't offered: a rejected output offers nothing, a replaced one what it names."""

    @tool_output_guardrail
    def keep_rain(data: Any) -> ReplaceOutput:
        return ReplaceOutput({"found": [each for each in data.value["found"] if each["name"] == "get_rain"] + ["more"]})

    @tool_output_guardrail
    def spoil(data: Any) -> ReplaceOutput:
        return ReplaceOutput({"found": "all"})

    @tool_output_guardrail
    def refuse(data: Any) -> RejectContent:
        return RejectContent("no")

    for guard, offered in (
        (keep_rain, ["get_rain", "tool_search"]),
        (refuse, ["tool_search"]),
        (spoil, ["tool_search"]),
    ):
        agent = script_agent("a", search("x rain"), say("done"))
        agent.tools = [late("x", "the x"), RAIN, MAIL, tool_search(tool_output_guardrails=[guard])]
        agent.tools[1] = late("get_rain", "the rain")
        result = await run_mode(agent, "go")
        assert shown_in(agent)[1] == offered
        await anyio.to_thread.run_sync(replay, result.records, agent)


async def test_secret_arguments_of_a_hidden_tool_are_marked(run_mode: Run) -> None:
    """The call of a tool of a source that isn't loaded doesn't run, but the log has it."""
    agent = script_agent("a", call("safe", {"code": "open sesame"}, call_id="x"), say("done"))

    @tool(secret=["code"], defer_loading=True)
    async def safe(code: str) -> str:
        """Open the safe."""
        return code

    agent.tools, agent.toolsets = [tool_search()], [Source([safe])]
    result = await run_mode(agent, "go")
    assert "open sesame" not in result.to_state().to_string()


async def test_an_idempotent_search_is_answered_by_an_equal_one(run_mode: Run) -> None:
    """The replayed call has found the same."""
    agent = script_agent("a", search("letter", call_id="1"), search("letter", call_id="2"), say("done"))
    agent.tools = [MAIL, tool_search(idempotent=True)]
    result = await run_mode(agent, "go")
    assert found_in(result) == [("send_mail",)] * 2
    assert find_outcome(result, "2").status == "replayed"


async def test_a_search_works_only_in_a_run() -> None:
    """Alone it has no tools to search."""
    with pytest.raises(UserError, match="only while the runtime"):
        await tool_search().run_body({"query": "x"})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"limit": 0}, UserValueError, "limit"),
        ({"limit": "x"}, UserTypeError, "limit"),
        ({"native": 1}, UserTypeError, "native: expected a bool"),
        ({"kind": "custom"}, UserTypeError, "kind: it is fixed"),
        ({"defer_loading": True}, UserTypeError, "defer_loading: it is fixed"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    """Named at once."""
    with pytest.raises(error, match=text):
        tool_search(**options)


def test_options_of_tools_hold_for_the_search() -> None:
    """It is an ordinary tool."""
    made = tool_search(name="find", description="Look.", needs_approval=True)
    assert (made.name, made.description, made.needs_approval) == ("find", "Look.", True)


# -- ranking


def raw(name: str, about: str, schema: Any = None, **options: Any) -> FunctionTool:
    """Return a tool with this description and schema."""
    return FunctionTool(
        name=name, description=about, params_json_schema=schema or {}, on_invoke_tool=lambda ctx, text: None, **options
    )


SHELF = [
    raw("listInvoices", "Give all bills."),
    raw("weather", "Tell the weather of a place.", {"properties": {"city": {"description": "A town."}, "day": True}}),
    raw("get_user_by_id", "Look a person up."),
    raw("bill", "Send a bill to a person. " + "It may take long. " * 20),
    raw("move", "Move a file", {"properties": ["odd"]}, namespace="drive"),
    raw("save", "Save as class, no less."),
]


@pytest.mark.parametrize(
    ("query", "limit", "found"),
    [
        ("invoice", None, ["listInvoices"]),
        ("bills", None, ["listInvoices", "bill"]),
        ("a person's bill", 1, ["bill"]),
        ("TOWN", None, ["weather"]),
        ("city", None, ["weather"]),
        ("user id", None, ["get_user_by_id"]),
        ("drive", None, ["move"]),
        ("drive.move", None, ["move"]),
        ("move", None, ["move"]),
        ("", None, []),
        ("of a", None, []),
        ("größe", None, []),
        ("as", None, ["save"]),
        ("les", None, []),
        ("class", None, ["save"]),
    ],
)
def test_the_best_come_first(query: str, limit: int | None, found: list[str]) -> None:
    """By the words of names, descriptions and parameters; words in names count more."""
    assert [tool.name for tool in rank(query, SHELF, limit)] == found


@pytest.mark.parametrize("query", ["drive.move", " drive.move ", "move"])
def test_a_tool_that_a_query_names_comes_first(query: str) -> None:
    """By its own name or with its namespace, before tools that have these words more often."""
    others = [raw(f"drive_move_{n}", "Move a drive. " * 9, namespace="drive_move") for n in range(3)]
    named = raw("move", "See the manual. " * 99, namespace="drive")
    assert rank(query, [*others, named], 1) == [named]


def test_equal_ones_stay_in_order() -> None:
    """The result follows from the query and the definitions alone."""
    same = [raw(f"t{n}", "x") for n in range(9)]
    assert rank("x", same, 5) == same[:5]
    assert rank("x", [], 5) == []
    assert rank("x", [raw("_", "")], 5) == []
