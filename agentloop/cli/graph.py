"""`agentloop graph`: the agents of a TARGET as a Mermaid flowchart, or as a drawing in SVG."""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path

import click

from agentloop._common.terminal_text import exact
from agentloop.cli import errors
from agentloop.cli.agent_cards import AgentLink, AgentPart, Cards
from agentloop.cli.graph_svg import draw_svg
from agentloop.cli.help_text import examples
from agentloop.cli.target import load_agent
from agentloop.exceptions import UserError

_SHAPES = {
    "tool": '(["{}"])',
    "hosted tool": '[["{}"]]',
    "tool source": '[("{}")]',
    "bundle": '[/"{}"/]',
    "input guardrail": '{{{{"{}"}}}}',
    "output guardrail": '{{{{"{}"}}}}',
}
_ARROWS = {"hands over": "==>", "calls": "-.->"}
_PLAIN = frozenset(" _-.,:/()=")
_LIST_MARK = re.compile(r"\d+\.|[-.]")


@click.command(
    short_help="Show an agent with its tools and handoffs as a diagram.",
    epilog=examples(
        "agentloop graph agent.py:agent",
        "agentloop graph agent.py:agent > agents.mmd",
        "agentloop graph agent.py:agent --svg agents.svg",
    ),
)
@click.argument("target")
@click.option("--svg", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Draw into FILE instead.")
def graph(target: str, svg: Path | None) -> None:
    """Show the agents that the agent at TARGET (module:agent or file.py:agent) leads to.

    Standard output gets a Mermaid flowchart, which forges and many editors draw: agents with their tools, sources of
    tools, bundles and guardrails; thick arrows are handoffs, dotted ones agents that are called as tools. With --svg a
    drawing is written to FILE. Nothing is run, and no model or server is asked.

    Exit codes: 0 all went well, 1 FILE can't be written, 2 wrong use.
    """
    try:
        cards = Cards.of(load_agent(target))
        if svg is None:
            click.echo(write_mermaid(cards), nl=False)
        else:
            svg.write_text(draw_svg(cards), encoding="utf-8")
    except UserError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.USAGE)
    except OSError as error:
        click.echo(errors.words_for_file(svg, error), err=True, nl=False)
        sys.exit(errors.FAILED)


def write_mermaid(cards: Cards) -> str:
    """Return the text of a Mermaid flowchart. Names are escaped: none can add to the chart or run anything."""
    lines = ["flowchart TD"]
    for place, card in enumerate(cards.cards):
        model = f"<br/>{_label(card.model)}" if card.model else ""
        lines.append(f'    a{place}["<b>{_label(card.name)}</b>{model}"]')
        for number, part in enumerate(card.parts):
            node = f"a{place}p{number}"
            lines.append(f"    {node}{_SHAPES[part.kind].format(_label_part(part))}")
            # A guardrail of the input comes before its agent, everything else after it.
            pair = (node, f"a{place}") if part.kind == "input guardrail" else (f"a{place}", node)
            lines.append(f"    {pair[0]} --- {pair[1]}")
    lines += [f'    a{link.source} {_ARROWS[link.kind]}|"{_label_link(link)}"| a{link.target}' for link in cards.links]
    lines.append("    classDef agent stroke-width:2px")
    lines.append(f"    class {','.join(f'a{place}' for place in range(len(cards.cards)))} agent")
    return "\n".join(lines) + "\n"


def _label_part(part: AgentPart) -> str:
    kind = "" if part.kind == "tool" else f"{part.kind}<br/>"
    return kind + _label(part.name) + "".join(f"<br/>{_label(note)}" for note in part.notes)


def _label_link(link: AgentLink) -> str:
    return _label(link.name) + "".join(f"<br/>{_label(note)}" for note in link.notes)


def _label(text: str) -> str:
    """Return *text* for a quoted label: letters, digits and a few others as they are, all else by its number."""
    text = exact(text)
    mark = _LIST_MARK.match(text)  # a label that begins like an entry of a list is refused
    start = 0 if mark is None else mark.end()
    return "".join(
        char if index >= start and (char in _PLAIN or unicodedata.category(char)[0] in "LN") else f"#{ord(char)};"
        for index, char in enumerate(text)
    )
