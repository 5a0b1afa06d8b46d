"""Options in the wrong place, and input of the wrong kind: the error says where they go."""

import asyncio
import inspect
import logging
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import agentloop
from agentloop import _USUAL_ELSEWHERE as NAMES_ELSEWHERE
from agentloop import (
    Agent,
    AgentHooks,
    FunctionTool,
    MaxTurnsExceeded,
    ModelSettings,
    OutputType,
    RunConfig,
    RunHooks,
    Runner,
    RunOptions,
    StopAtTools,
    ToolExecution,
    UsageLimits,
    handoff,
    tool,
)
from agentloop._common.misplaced import _USUAL_ELSEWHERE, _WRITTEN_ELSEWHERE, _places
from agentloop.agents import AgentOptions
from agentloop.config import _GROUPED
from agentloop.exceptions import UserTypeError
from agentloop.items import to_items
from agentloop.journal import MemoryJournal
from agentloop.sessions import SQLiteSession
from agentloop.testing import FunctionModel, ScriptedModel, call, explore, say
from agentloop.tools import FunctionOptions

AGENT: Agent[Any, Any] = Agent("a")
PLACES: dict[str, tuple[Callable[[dict[str, Any]], Any], set[str], str]] = {
    "Agent": (
        lambda options: Agent("a", **options),
        {field.name for field in attrs.fields(Agent) if field.init},
        "Agent(…, OPTION=…)",
    ),
    "RunConfig": (
        lambda options: RunConfig(**options),
        {field.name for field in attrs.fields(RunConfig)} | _GROUPED.keys(),
        "RunConfig(OPTION=…)",
    ),
    "ToolExecution": (
        lambda options: ToolExecution(**options),
        {field.name for field in attrs.fields(ToolExecution)},
        "ToolExecution(OPTION=…)",
    ),
    "ModelSettings": (
        lambda options: ModelSettings(**options),
        {field.name for field in attrs.fields(ModelSettings)},
        "ModelSettings(OPTION=…)",
    ),
    "Runner.run": (
        lambda options: Runner.run(AGENT, "hi", **options),
        set(inspect.signature(Runner.run).parameters),
        "Runner.run(…, OPTION=…)",
    ),
}
MISPLACED = [
    (place, option, other)
    for place, (_, own, _) in PLACES.items()
    for other, (_, known, _) in PLACES.items()
    for option in sorted(known - own)
]


@pytest.mark.parametrize(("place", "option", "other"), MISPLACED)
def test_misplaced_option_says_where_it_goes(place: str, option: str, other: str) -> None:
    """The error names the place that has the option, for each option given to another place."""
    made, _, _ = PLACES[place]
    with pytest.raises(UserTypeError) as caught:
        made({option: None})
    assert f"{place} has no option {option!r}" in str(caught.value)
    assert PLACES[other][2].replace("OPTION", option) in str(caught.value)


def test_misspelt_option_names_the_near_one() -> None:
    """The error names an option of the same place, if a near one exists."""
    made: Any = ToolExecution
    with pytest.raises(UserTypeError, match=r"'queue_timout'\. Did you mean 'queue_timeout'"):
        made(queue_timout=3)
    with pytest.raises(UserTypeError, match="'xyzzy'"):
        made(xyzzy=3)


@pytest.mark.parametrize(
    ("made", "option", "advice"),
    [
        (tool, "needs_aproval", "tool has no option 'needs_aproval'. Did you mean 'needs_approval'?"),
        (tool, "requires_approval", "tool has no option 'requires_approval'. Did you mean 'needs_approval'?"),
        (tool, "approval", "tool has no option 'approval'. Did you mean 'needs_approval'?"),
        (PLACES["Agent"][0], "system_prompt", "Agent has no option 'system_prompt'. Did you mean 'instructions'?"),
        (PLACES["Agent"][0], "system", "Agent has no option 'system'. Did you mean 'instructions'?"),
        (
            PLACES["RunConfig"][0],
            "max_turn",
            "RunConfig has no option 'max_turn'. Did you mean Runner.run(…, max_turns=…)?",
        ),
    ],
)
def test_names_of_other_libraries_and_near_options_of_other_places_are_known(
    made: Any, option: str, advice: str
) -> None:
    """What is written by habit, or misspelt in the wrong place, is answered with the option and its place."""
    with pytest.raises(UserTypeError) as caught:
        made(**{option: True}) if made is tool else made({option: True})
    assert str(caught.value) == advice


def test_streamed_runs_say_it_too() -> None:
    """`run_streamed` takes what `run` takes, and the error points to one of them."""
    streamed: Any = Runner.run_streamed
    with pytest.raises(UserTypeError, match=r"Runner.run_streamed has no option 'timeout'.*RunConfig\(timeout=…\)"):
        streamed(AGENT, "hi", timeout=3)


@pytest.mark.parametrize(
    ("name", "first"), [("run", "hi"), ("run_streamed", "hi"), ("run_sync", "hi"), ("resume", MemoryJournal())]
)
def test_every_way_of_running_says_it(name: str, first: Any) -> None:
    """By its own name, before anything runs; `inspect` shows the options one by one."""
    way: Any = getattr(Runner, name)
    with pytest.raises(UserTypeError, match=rf"Runner\.{name} has no option 'timeout'.*RunConfig\(timeout=…\)"):
        way(AGENT, first, timeout=3)
    with pytest.raises(UserTypeError, match=rf"Runner\.{name} has no option 'contxt'\. Did you mean 'context'"):
        way(AGENT, first, contxt=3)
    with pytest.raises(UserTypeError, match=rf"Runner\.{name} takes only agent, .* by position, the rest by keyword"):
        way(AGENT, first, None)
    shown = set(inspect.signature(way).parameters) - {"agent", "input", "backend"}
    assert shown == RunOptions.__optional_keys__


def test_instructions_by_position_say_that_they_are_given_by_keyword() -> None:
    """A beginner's commonest slip is answered with the right form."""
    made: Any = Agent
    with pytest.raises(UserTypeError, match=r"by keyword: Agent\(…, instructions=…\)"):
        made("x", "text")


def test_errors_of_the_values_themselves_stay() -> None:
    """A fault of a value, and a TypeError of what it is made with, are no misplaced options."""
    with pytest.raises(UserTypeError, match=r"^timeout: expected seconds"):
        RunConfig(timeout="soon")  # type: ignore[arg-type]
    made: Any = Agent
    with pytest.raises(TypeError, match="name") as caught:
        made()
    assert not isinstance(caught.value, UserTypeError)


@pytest.mark.parametrize("given", [{"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]])
def test_mapping_as_input_names_the_item_for_it(given: Any) -> None:
    """Other libraries take mappings, so the error names the item to use."""
    with pytest.raises(UserTypeError, match=r"input\[0\].*got dict.*UserMessage"):
        to_items(given)


def test_tool_without_a_description_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """A function is warned about once, however often it is made a tool; a docstring or description is enough."""

    async def bare() -> str:
        return "x"

    async def documented() -> str:
        """Say x."""
        return "x"

    with caplog.at_level(logging.WARNING, logger="agentloop"):
        tool(bare)
        tool(bare)
        tool(documented)
        tool(bare, name="other", description="Say x.")
    assert [record.getMessage() for record in caplog.records if record.name == "agentloop"] == [
        "tool 'bare' has neither a docstring nor a description: the model knows it by its name and parameters alone"
    ]


def test_options_for_type_checkers_are_the_fields() -> None:
    """What a checker is told an agent or a tool takes is what it takes."""
    fields = {field.name for field in attrs.fields(Agent) if field.init}
    assert fields == {"name", "tools", "output_type", *AgentOptions.__optional_keys__}
    made_of_functions = {"params_json_schema", "on_invoke_tool", "body"}
    assert {
        field.name for field in attrs.fields(FunctionTool)
    } - made_of_functions == FunctionOptions.__optional_keys__ - {"external"}


def test_parameters_of_types_are_for_type_checkers() -> None:
    """With and without, the same is made, by the same words for what is wrong."""
    assert isinstance(Agent[Any, str]("a"), Agent)
    assert isinstance(FunctionTool[Any](name="f", on_invoke_tool=lambda ctx, text: text), FunctionTool)
    assert OutputType[int](int) == OutputType(int)
    made: Any = Agent[Any, str]
    with pytest.raises(TypeError, match=r"Agent\.__init__\(\) missing 1 required positional argument: 'name'"):
        made()


@pytest.mark.parametrize(
    ("make", "option", "advice"),
    [
        (Agent, "mcp_servers", "MCPServer"),
        (Agent, "deps_type", "ToolContext"),
        (Agent, "retries", "'output_retries'"),
        (tool, "name_override", "'name'"),
        (tool, "retries", "ModelSettings(retry=…)"),
        (tool, "requires_approval", "'needs_approval'"),
        (handoff, "tool_name_override", "'tool_name'"),
        (UsageLimits, "request_limit", "'requests'"),
        (UsageLimits, "cost_limit", "'cost'"),
        (ModelSettings, "stop", "extra_body"),
        (Runner.run, "message_history", "to_input_list()"),
        (Runner.run, "usage_limits", "RunConfig(limits=UsageLimits(…))"),
        (Runner.run, "deps", "'context'"),
        (Runner.run, "max_iterations", "'max_turns'"),
        (Runner.run, "thread_id", "'session'"),
        (Runner.run, "messages", "as the input"),
        (Agent, "llm", "'model'"),
        (Agent, "response_format", "'output_type'"),
        (Agent, "max_iterations", "max_turns"),
        (Agent, "memory", "session="),
        (tool, "args_schema", "Annotate the parameters"),
        (tool, "return_direct", "StopAtTools"),
        (ModelSettings, "stop_sequences", "extra_body"),
        (Runner.run_many, "concurrency", "'limit'"),
        (Runner.run_many, "max_concurrency", "'limit'"),
        (Agent("a").as_tool, "enabled", "'is_enabled'"),
    ],
)
def test_an_option_of_another_library_says_what_to_write(make: Any, option: str, advice: str) -> None:
    """The nearest name here would be a wrong hint: it means something else."""
    with pytest.raises(UserTypeError) as caught:
        given = make(**{option: 1}) if make in (Agent, UsageLimits, ModelSettings) else make(Agent("a"), **{option: 1})
        asyncio.run(given)
    assert f"has no option {option!r}" in str(caught.value)
    assert advice in str(caught.value)


MIGRATION = sorted((Path(__file__).parents[2] / "docs" / "migration").glob("*.md"))
OPTION = re.compile(r"\b([a-z_]+)=")


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.stem)
def test_every_option_of_a_migration_table_is_known_or_has_a_hint(page: Path) -> None:
    """What the page says of an option, the error for it should say as well."""
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    theirs = {option for row in rows for option in OPTION.findall(row[1])}
    ours = {name for take, _ in _places.values() for name in take().parameters} | FunctionOptions.__optional_keys__
    unknown = {option for option in theirs - ours if option not in _USUAL_ELSEWHERE | _WRITTEN_ELSEWHERE}
    assert unknown == set()


def test_an_agent_takes_one_type_parameter() -> None:
    """`Agent[Customer](…)` is the usual spelling elsewhere; two are taken as before."""
    assert Agent[int]("a").name == Agent[int, str]("a").name == "a"
    assert typing.get_args(Agent[int]) == (int, Any)


# ------------------------------------------------------------------------------------- mistakes that nothing stops


def test_a_hook_that_nothing_calls_is_named_when_its_class_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """With the name that was probably meant; a method without `on_` is nobody's business."""

    class Typo(RunHooks):
        async def on_tool_strat(self, ctx: Any, agent: Any, tool: Any) -> None: ...
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None: ...
        def helper(self) -> None: ...

    class Wrong(AgentHooks):
        async def on_run_end(self, ctx: Any, outcome: Any) -> None: ...

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].endswith(
        "Typo.on_tool_strat isn't a hook of RunHooks and is never called; did you mean on_tool_start?"
    )
    assert "Wrong.on_run_end isn't a hook of AgentHooks" in said[1]


def test_swapped_arguments_of_a_session_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """In openai-agents the id of the session comes first, so that its file would be called `ada`."""
    SQLiteSession("ada", "talk.db")
    SQLiteSession("talk.db", "ada")
    SQLiteSession("talk.db", "other.db")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "are they swapped?" in said


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("needs_approval", "ctx, arguments, call_id"),
        ("is_enabled", "ctx, agent"),
        ("failure_error_function", "ctx, error"),
        ("timeout_error_function", "ctx, error"),
        ("cost", "arguments"),
        ("custom_data_extractor", "ctx, value"),
    ],
)
def test_a_callable_with_other_arguments_is_refused_when_the_tool_is_made(field: str, arguments: str) -> None:
    """Else it would fail in the middle of a run, with a bare TypeError."""
    wrong: Any = {field: lambda a, b, c, d, e: True}
    with pytest.raises(UserTypeError, match=rf"'pay': .*{field}: expected .* of \({arguments}\)"):
        tool(name="pay", **wrong)(lambda: "x")
    right: Any = {field: lambda *given: None}
    tool(name="pay", **right)(lambda: "x")


def test_the_function_of_a_tool_makes_another_tool() -> None:
    """`tool.fn` is typed; a tool without a Python function says so."""

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    assert tool(pay.fn, name="refund")() == "paid"
    with pytest.raises(UserTypeError, match="has no Python function"):
        Agent("a").as_tool().fn


async def test_a_mutable_default_is_anew_for_each_call() -> None:
    """Python has one for all calls; a run must not find what another one left."""

    @tool
    async def add(items: list[str] = []) -> list[str]:  # noqa: B006
        """Add."""
        items.append("x")
        return items

    assert [await add.run_body({}) for _ in range(2)] == [["x"], ["x"]]


def test_a_class_without_a_json_form_says_to_make_it_a_dataclass() -> None:
    """That is what a beginner needs; a converter is for types that belong to others."""

    class Plain:
        def __init__(self, a: int) -> None: ...

    with pytest.raises(UserTypeError, match=r"make .*Plain a dataclass or an attrs class"):
        Agent("a", output_type=Plain)


async def test_agents_that_hand_over_to_each_other_are_named() -> None:
    """`Max turns (10) exceeded` alone says nothing about the circle."""
    a: Agent[Any, Any] = Agent("a")
    b: Agent[Any, Any] = Agent("b", handoffs=[a])
    a.handoffs = [b]
    config = RunConfig(model=FunctionModel(lambda request: call(request.handoffs[0].name)))
    with pytest.raises(MaxTurnsExceeded) as caught:
        await Runner.run(a, "go", max_turns=4, run_config=config)
    assert caught.value.__notes__ == ["The agents handed the conversation over 4 times, the last time b → a"]


ATTRIBUTES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a method of an agent": ("Agent", lambda run: run.agent.run_sync, "use Runner.run_sync(agent, …)"),
    "a decorator of an agent": ("Agent", lambda run: run.agent.tool, "use the decorator agentloop.tool"),
    "calls that wait": ("RunState", lambda run: run.state.get_interruptions(), "use interruptions"),
    "messages": ("RunResult", lambda run: run.result.all_messages(), "use to_input_list()"),
    "usage": ("RunResult", lambda run: run.result.context_wrapper.usage, "use usage"),
    "events": ("RunStream", lambda run: run.stream.stream_events(), "use async with Runner.run_streamed(…)"),
    "an answer": ("RunStream", lambda run: run.stream.final_output, "use result.final_output, after the block"),
}


@attrs.frozen
class Finished:
    """A run that has ended, by all objects that have a part of it."""

    agent: Any
    result: Any
    state: Any
    stream: Any


async def finish() -> Finished:
    """Return a run that has ended."""
    agent = Agent("a", model=ScriptedModel([say("hi")]))
    async with Runner.run_streamed(agent, "hi") as stream:
        pass
    return Finished(agent, stream.result, stream.state, stream)


@pytest.mark.parametrize("kind", ATTRIBUTES)
async def test_an_attribute_of_another_library_is_told_what_is_here(kind: str) -> None:
    """The error is Python's own, with what to use; `hasattr` and another wrong name work as ever."""
    run = await finish()
    owner, get, use = ATTRIBUTES[kind]
    with pytest.raises(AttributeError, match=re.escape(use)) as caught:
        get(run)
    assert str(caught.value).startswith(f"{owner!r} object has no attribute ")
    for one in (run.agent, run.result, run.state, run.stream):
        assert not hasattr(one, "nothing")
        with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
            _ = one.nothing


@pytest.mark.parametrize("option", ["always_approve", "always_reject", "rejection_message", "nothing"])
@pytest.mark.parametrize("where", ["state", "stream"])
@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_an_option_of_a_verdict_is_told_what_is_here(option: str, where: str, verdict: str) -> None:
    """As for other options."""
    run = await finish()
    said = re.escape(_WRITTEN_ELSEWHERE.get(option, ""))
    with pytest.raises(UserTypeError, match=f"{verdict} has no option {option!r}.*{said}"):
        getattr(getattr(run, where), verdict)("c", **{option: True})


@pytest.mark.parametrize("name", sorted(NAMES_ELSEWHERE))
def test_an_import_of_a_name_of_another_library_is_told_the_name_here(name: str) -> None:
    """Only the import statement: `hasattr` finds nothing."""
    with pytest.raises(ImportError, match=f"write `from agentloop import {NAMES_ELSEWHERE[name]}`"):
        exec(f"from agentloop import {name}")
    assert hasattr(agentloop, NAMES_ELSEWHERE[name])
    assert not hasattr(agentloop, name)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "one step": (lambda: ScriptedModel(say("hi")), "steps: expected a list of steps, [call(…), say(…)], got Say("),
    "no script": (lambda: explore(AGENT, print), "script: expected a list of steps"),
    "a context": (
        lambda: explore(AGENT, [say("hi")], print, context={}),
        "World.context: expected a function that makes it, once per run (lambda: …), got {}",
    ),
    "a function": (lambda: Agent("a", tools=[print]), "expected a tool (made by @tool; agentloop.interop makes one of"),
    "a message": (lambda: to_items([{"role": "user", "content": "hi"}]), "from_chat, from_responses"),
    "an option": (
        lambda: StopAtTools(stop_at_tool_names=["a"]),  # type: ignore[call-arg]
        "Write Agent(tool_use_behavior=StopAtTools([…]))",
    ),
    "names": (lambda: Agent("a", tool_use_behavior={"stop_at_tool_names": ["a"]}), "StopAtTools([…])"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_a_beginner_writes_is_told_what_to_write(kind: str) -> None:
    """The error names the form that is expected."""
    make, said = WRONG[kind]
    with pytest.raises(UserTypeError, match=re.escape(said)):
        make()
