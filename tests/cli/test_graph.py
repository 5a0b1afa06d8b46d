"""`agentloop graph`: agents as a Mermaid flowchart and as a drawing."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result

from agentloop import (
    Agent,
    Allow,
    Bundle,
    GuardrailFunctionOutput,
    HostedTool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop.cli.agent_cards import AgentLink, AgentPart, Cards
from agentloop.cli.graph import write_mermaid
from agentloop.cli.graph_svg import draw_svg
from agentloop.guardrails import tool_input_guardrail
from agentloop.testing import ScriptedModel

Invoke = Callable[..., Result]
SVG = "{http://www.w3.org/2000/svg}"


class Files:
    """A source of tools."""

    name = "files"

    async def tools(self, ctx: Any, agent: Any) -> list[Any]:
        """Return no tool."""
        return []


@input_guardrail(run_in_parallel=False)
def polite(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Let everything pass."""
    return GuardrailFunctionOutput()


@output_guardrail(name='no "secrets" <b>')
def discreet(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Let everything pass."""
    return GuardrailFunctionOutput()


@tool_input_guardrail
def careful(data: Any) -> Allow:
    """Let everything pass."""
    return Allow()


def _sometimes(*given: Any) -> bool:
    return True


@tool(needs_approval=True, tool_input_guardrails=[careful])
def delete(path: str) -> str:
    """Delete."""
    return path


@tool(needs_approval=_sometimes, is_enabled=_sometimes, defer_loading=True)
def look(path: str) -> str:
    """Look."""
    return path


def make_desk() -> Agent[Any, Any]:
    """Return an agent that leads to others, to itself, and back."""
    bundle = Bundle("manners", instructions="Be polite.")
    librarian: Agent[Any, Any] = Agent("librarian", model="local:", toolsets=[Files()], bundles=[bundle])
    librarian.tools = [librarian.as_tool("ask_itself", "Ask.")]
    billing: Agent[Any, Any] = Agent("billing", model=ScriptedModel([]), tools=[delete, look])
    billing.output_guardrails = [discreet]
    desk: Agent[Any, Any] = Agent(
        "desk",
        input_guardrails=[polite],
        tools=[HostedTool("web_search"), librarian.as_tool("ask", "Ask.")],
        handoffs=[handoff(billing, is_enabled=_sometimes)],
    )
    billing.handoffs = [desk]
    return desk


def test_cards_have_what_an_agent_has() -> None:
    """Guardrails, tools with approvals and checks, hosted tools, sources; handoffs and agents as tools lead on."""
    found = Cards.of(make_desk())
    assert [(card.name, card.model) for card in found.cards] == [
        ("desk", ""),
        ("billing", "ScriptedModel:ScriptedModel"),
        ("librarian", "local:"),
    ]
    assert [card.parts for card in found.cards] == [
        (AgentPart("input guardrail", "polite", ("before the model",)), AgentPart("hosted tool", "web_search")),
        (
            AgentPart("tool", "delete", ("asks", "checked by careful")),
            AgentPart("tool", "look", ("may ask", "found by search", "not always")),
            AgentPart("output guardrail", 'no "secrets" <b>'),
        ),
        (AgentPart("tool source", "files"), AgentPart("bundle", "manners", ("instructions",))),
    ]
    assert found.links == (
        AgentLink(0, 1, "hands over", "transfer_to_billing", ("not always",)),
        AgentLink(0, 2, "calls", "ask"),
        AgentLink(1, 0, "hands over", "transfer_to_desk"),
        AgentLink(2, 2, "calls", "ask_itself"),
    )


def test_mermaid_has_every_part_and_link() -> None:
    """The text was looked at as Mermaid draws it; names are escaped by their characters' numbers."""
    assert write_mermaid(Cards.of(make_desk())).splitlines() == [
        "flowchart TD",
        '    a0["<b>desk</b>"]',
        '    a0p0{{"input guardrail<br/>polite<br/>before the model"}}',
        "    a0p0 --- a0",
        '    a0p1[["hosted tool<br/>web_search"]]',
        "    a0 --- a0p1",
        '    a1["<b>billing</b><br/>ScriptedModel:ScriptedModel"]',
        '    a1p0(["delete<br/>asks<br/>checked by careful"])',
        "    a1 --- a1p0",
        '    a1p1(["look<br/>may ask<br/>found by search<br/>not always"])',
        "    a1 --- a1p1",
        '    a1p2{{"output guardrail<br/>no #34;secrets#34; #60;b#62;"}}',
        "    a1 --- a1p2",
        '    a2["<b>librarian</b><br/>local:"]',
        '    a2p0[("tool source<br/>files")]',
        "    a2 --- a2p0",
        '    a2p1[/"bundle<br/>manners<br/>instructions"/]',
        "    a2 --- a2p1",
        '    a0 ==>|"transfer_to_billing<br/>not always"| a1',
        '    a0 -.->|"ask"| a2',
        '    a1 ==>|"transfer_to_desk"| a0',
        '    a2 -.->|"ask_itself"| a2',
        "    classDef agent stroke-width:2px",
        "    class a0,a1,a2 agent",
    ]


@pytest.mark.parametrize(
    "name", ['"]; click a0 "javascript:x"', "<script>", "1. one", "- a", "a\x1b[2J\n#quot;", "日本語"]
)
def test_a_name_cannot_add_to_the_chart(name: str) -> None:
    """Whatever an agent is called, the chart has its one node, and the drawing is XML without an element of it."""
    cards = Cards.of(Agent(name))
    lines = write_mermaid(cards).splitlines()
    assert len(lines) == 4
    label = re.fullmatch(r'    a0\["<b>([^"<>\[\]`\x00-\x1f]*)</b>"\]', lines[1])
    assert label is not None
    shown = re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label[1])
    drawn = ElementTree.fromstring(draw_svg(cards))
    assert drawn.findtext(f"{SVG}g/{SVG}text") == shown
    assert "\x1b" not in shown


def _boxes(drawn: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Return left, top, right and bottom of each card."""
    found = []
    for rect in drawn.iter(f"{SVG}rect"):
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def _points(way: str) -> list[tuple[float, float]]:
    """Return the corners of an arrow; of a bend, its ends and control points, within which it lies."""
    x, y = 0.0, 0.0
    found: list[tuple[float, float]] = []
    for letter, numbers in re.findall(r"([MVHC])([\d. -]*)", way):
        given = [float(number) for number in numbers.split()]
        if letter in "MC":
            found += zip(given[::2], given[1::2], strict=True)
            x, y = found[-1]
        else:
            x, y = (given[0], y) if letter == "H" else (x, given[0])
            found.append((x, y))
    return found


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_no_card_overlaps_another_and_no_arrow_crosses_a_card(count: int) -> None:
    """Also where every agent leads to every one, itself included, and names are long."""
    agents: list[Agent[Any, Any]] = [Agent(f"agent {number} {'long ' * number * 3}") for number in range(count)]
    for number, agent in enumerate(agents):
        agent.handoffs = [*agents[: number + 2], agents[0]]
        agent.tools = [agents[-1].as_tool("last", "Ask."), *[delete] * number]
    drawn = ElementTree.fromstring(draw_svg(Cards.of(agents[0])))
    width, height = (float(drawn.attrib[name]) for name in ("width", "height"))
    boxes = _boxes(drawn)
    assert len(boxes) == count
    for index, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0
        assert right <= width
        assert bottom <= height
        for other in boxes[:index]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    ways = [path.attrib["d"] for path in drawn.findall(f"{SVG}path")]
    assert len(ways) == sum(len(agents[: number + 2]) + 2 for number in range(count))
    for way in ways:
        points = _points(way)
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        for (x, y), (next_x, next_y) in pairwise(points):
            for left, top, right, bottom in boxes:
                inside_x = max(x, next_x) > left and min(x, next_x) < right
                assert not (inside_x and max(y, next_y) > top and min(y, next_y) < bottom), way


def test_the_command_writes_text_or_a_file(invoke: Invoke, tmp_path: Path) -> None:
    """Nothing but the flowchart is on the output; with --svg the drawing is in the file."""
    target = f"{Path(__file__).with_name('kept_agents.py')}:boss"
    shown = invoke("graph", target)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("flowchart TD\n")
    drawn = invoke("graph", target, "--svg", str(tmp_path / "a.svg"))
    assert (drawn.exit_code, drawn.output) == (0, "")
    texts = [text.text for text in ElementTree.parse(tmp_path / "a.svg").iter(f"{SVG}text")]
    assert {"boss", "deleting", "⇢ ask_deleting: deleting", "ƒ delete · asks"} <= set(texts)
