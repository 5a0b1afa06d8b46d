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

from agentloop import (
    Agent,
    FunctionTool,
    ModelSettings,
    OutputType,
    RunConfig,
    Runner,
    RunOptions,
    ToolExecution,
    UsageLimits,
    UserTypeError,
    handoff,
    tool,
)
from agentloop._common.misplaced import _USUAL_ELSEWHERE, _WRITTEN_ELSEWHERE, _places
from agentloop.agents import AgentOptions
from agentloop.items import to_items
from agentloop.journal import MemoryJournal
from agentloop.tools import ToolOptions

AGENT: Agent[Any, Any] = Agent("a")
PLACES: dict[str, tuple[Callable[[dict[str, Any]], Any], set[str], str]] = {
    "Agent": (
        lambda options: Agent("a", **options),
        {field.name for field in attrs.fields(Agent) if field.init},
        "Agent(…, OPTION=…)",
    ),
    "RunConfig": (
        lambda options: RunConfig(**options),
        {field.name for field in attrs.fields(RunConfig)},
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
    with pytest.raises(UserTypeError, match=r"^timeout: seconds"):
        RunConfig(timeout="soon")  # type: ignore[arg-type]
    made: Any = Agent
    with pytest.raises(TypeError, match="name") as caught:
        made()
    assert not isinstance(caught.value, UserTypeError)


@pytest.mark.parametrize("given", [{"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]])
def test_mapping_as_input_names_the_item_for_it(given: Any) -> None:
    """Other libraries take mappings, so the error names the item to use."""
    with pytest.raises(UserTypeError, match=r"input\[0\].*not dict.*UserMessage"):
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
    assert {field.name for field in attrs.fields(FunctionTool)} - made_of_functions == ToolOptions.__optional_keys__


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
    ours = {name for take, _ in _places.values() for name in take().parameters} | ToolOptions.__optional_keys__
    unknown = {option for option in theirs - ours if option not in _USUAL_ELSEWHERE | _WRITTEN_ELSEWHERE}
    assert unknown == set()


def test_an_agent_takes_one_type_parameter() -> None:
    """`Agent[Customer](…)` is the usual spelling elsewhere; two are taken as before."""
    assert Agent[int]("a").name == Agent[int, str]("a").name == "a"
    assert typing.get_args(Agent[int]) == (int, Any)
