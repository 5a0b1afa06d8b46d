"""A drawing of agents as SVG: cards in rows by their distance from the first agent, and arrows between them.

Theory. The row of a card is the length of the shortest way to it, so an arrow goes one row down at most: it lies in the
gap below its card and crosses no card. Every other arrow (to the same row, upwards, to itself: the cycles) leaves by
the gap below its card, climbs at the right of all cards, and comes in by the gap above its target; each has a line of
its own in the gaps and at the right. So in no graph does an arrow cross a card. Names of handoffs and of agents
as tools are in the cards, where they can't collide; arrows have them as titles.

Decisions:

`agentloop graph` draws its SVG itself. An agent is a card with its parts as lines, so only agents need a place, and a
row is the length of the shortest way from the first agent. Then an arrow goes one row down at most, or is part of a
cycle and takes its own line around all cards: none crosses a card, which a test checks on complete graphs. Rejected:
graphviz's `dot`. It isn't installed where most people run this, so they and the tests would see another drawing, and
its labels on arrows collide as soon as agents hand over to each other. Mermaid is the form for forges, which draw it
themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import attrs
from rich.cells import cell_len, set_cell_size

from agentloop._common.terminal_text import exact
from agentloop.cli.agent_cards import AgentLink, Card, Cards

_CHAR, _LINE, _PAD = (
    7.3,
    20,
    12,
)  # pixels: the width of a character at 12 px, the height of a line, the margin in a card
_BETWEEN, _GAP, _TRACK, _EDGE = (
    28,
    46,
    9,
    20,
)  # between cards of a row, between rows, between lines in a gap, around all
_MOST_CHARS = 46
_SIGNS = {
    "tool": "ƒ",
    "hosted tool": "ƒ",
    "tool source": "▤",
    "bundle": "▣",
    "input guardrail": "◇",
    "output guardrail": "◇",
    "hands over": "→",
    "calls": "⇢",
}
_WORDS = {
    "hosted tool": "hosted: ",
    "tool source": "tools of ",
    "bundle": "bundle: ",
    "input guardrail": "in: ",
    "output guardrail": "out: ",
}
_STYLE = """
svg { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; background: #fff; color: #1b1f24 }
text { fill: currentColor; white-space: pre } .dim { fill: #59636e } .name { font-weight: bold }
rect { fill: #f6f8fa; stroke: #59636e } .first rect { stroke-width: 2.5 }
path { fill: none; stroke: #0969da; stroke-width: 1.5 } .calls { stroke: #1a7f37; stroke-dasharray: 5 3 }
#over path { fill: #0969da; stroke: none } #call path { fill: #1a7f37; stroke: none }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; color: #e6edf3 } .dim { fill: #9198a1 } rect { fill: #161b22; stroke: #9198a1 }
path { stroke: #4493f8 } .calls { stroke: #3fb950 } #over path { fill: #4493f8 } #call path { fill: #3fb950 }
}"""


@attrs.define
class _Box:
    """A card with its place. `rows` are its lines below name and model."""

    card: Card
    rows: list[str]
    row: int = 0
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0


def draw_svg(cards: Cards) -> str:
    """Return the drawing as the text of an SVG file that needs no other file. It follows the reader's colour scheme."""
    boxes = [_make_box(place, cards) for place in range(len(cards.cards))]
    rows = _arrange_rows(boxes, cards.links)
    back = [link for link in cards.links if boxes[link.target].row != boxes[link.source].row + 1]
    right = _place_boxes(boxes, rows, back)
    width = max(right + _TRACK * (len(back) + 1), 36 * _CHAR) + _EDGE
    bottom = max(box.y + box.height for box in boxes) + _GAP + _TRACK * len(back)
    legend = "→ hands over   ⇢ calls as a tool   ƒ tool   ▤ source of tools   ▣ bundle   ◇ guardrail"
    width = max(width, 2 * _EDGE + _measure(legend))
    names = ", ".join(exact(card.name) for card in cards.cards)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom:.0f}" width="{width:.0f}" '
        f'height="{bottom:.0f}" role="img" aria-labelledby="title">',
        f'<title id="title">Agents: {escape(names)}</title>',
        f"<style>{_STYLE}</style>",
        "<defs>",
        *(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z"/></marker>'
            for name in ("over", "call")
        ),
        "</defs>",
        *_draw_links(boxes, cards.links, back, right),
        *(line for place, box in enumerate(boxes) for line in _draw_box(box, first=place == 0)),
        f'<text class="dim" x="{_EDGE}" y="{bottom - 12:.0f}">{escape(legend)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _measure(text: str) -> float:
    return cell_len(text) * _CHAR


def _fit(text: str) -> str:
    text = exact(text)
    return text if cell_len(text) <= _MOST_CHARS else set_cell_size(text, _MOST_CHARS - 1).rstrip() + "…"


def _make_box(place: int, cards: Cards) -> _Box:
    card = cards.cards[place]
    rows = [
        _fit(f"{_SIGNS[part.kind]} {_WORDS.get(part.kind, '')}{' · '.join([part.name, *part.notes])}")
        for part in card.parts
    ]
    for link in cards.links:
        if link.source == place:
            words = " · ".join([f"{link.name}: {cards.cards[link.target].name}", *link.notes])
            rows.append(_fit(f"{_SIGNS[link.kind]} {words}"))
    box = _Box(card, rows)
    box.width = max(map(_measure, [_fit(card.name), _fit(card.model), *rows])) + 2 * _PAD
    box.height = _LINE * (1 + bool(card.model) + len(rows)) + _PAD
    return box


def _arrange_rows(boxes: list[_Box], links: Sequence[AgentLink]) -> list[list[int]]:
    """Set the row of each box, and return the places of each row's cards from left to right.

    A card is below the middle of the cards of the row above that lead to it, as far as the others of its row allow.
    """
    above: defaultdict[int, list[int]] = defaultdict(list)
    below: defaultdict[int, list[int]] = defaultdict(list)
    for link in links:
        above[link.target].append(link.source)
        below[link.source].append(link.target)
    rows = [[0]]
    known = {0}
    while rows[-1]:
        order = {place: index for index, place in enumerate(rows[-1])}
        found = dict.fromkeys(target for place in rows[-1] for target in below[place] if target not in known)
        known.update(found)

        def middle(place: int, order: dict[int, int] = order) -> float:
            sources = [order[source] for source in above[place] if source in order]
            return sum(sources) / len(sources)

        rows.append(sorted(found, key=middle))
    rows.pop()
    for number, row in enumerate(rows):
        for place in row:
            boxes[place].row = number
    return rows


def _place_boxes(boxes: list[_Box], rows: list[list[int]], back: Sequence[AgentLink]) -> float:
    """Set the positions of the boxes, and return the right end of the widest row."""
    widths = [sum(boxes[place].width for place in row) + _BETWEEN * (len(row) - 1) for row in rows]
    top = float(_EDGE + (_TRACK * len(back) + _PAD if back else 0))
    for row, width in zip(rows, widths, strict=True):
        left = _EDGE + (max(widths) - width) / 2
        for place in row:
            box = boxes[place]
            box.x, box.y = left, top
            left += box.width + _BETWEEN
        top += max(boxes[place].height for place in row) + _GAP + 2 * _TRACK * len(back)
    return _EDGE + max(widths)


def _draw_links(
    boxes: list[_Box], links: Sequence[AgentLink], back: Sequence[AgentLink], right: float
) -> Iterator[str]:
    ends = _share_sides(links)
    lines = {id(link): number + 1 for number, link in enumerate(back)}
    bottoms: defaultdict[int, float] = defaultdict(float)
    for box in boxes:
        bottoms[box.row] = max(bottoms[box.row], box.y + box.height)
    for link in links:
        source, target = boxes[link.source], boxes[link.target]
        start = source.x + source.width * ends[id(link), "out"]
        end = target.x + target.width * ends[id(link), "in"]
        low, high = source.y + source.height, target.y - 2
        if id(link) not in lines:
            bend = bottoms[source.row] + (high - bottoms[source.row]) / 2
            way = f"M{start:.1f} {low:.1f}V{bottoms[source.row]:.1f}C{start:.1f} {bend:.1f} {end:.1f} {bend:.1f} "
            way += f"{end:.1f} {high:.1f}"
        else:
            line = _TRACK * lines[id(link)]
            way = f"M{start:.1f} {low:.1f}V{bottoms[source.row] + line:.1f}H{right + line:.1f}"
            way += f"V{target.y - _PAD - line:.1f}H{end:.1f}V{high:.1f}"
        kind, marker = ("", "over") if link.kind == "hands over" else (' class="calls"', "call")
        words = f"{source.card.name} {link.kind} {target.card.name}: {link.name}"
        yield f'<path{kind} marker-end="url(#{marker})" d="{way}"><title>{escape(exact(words))}</title></path>'


def _share_sides(links: Sequence[AgentLink]) -> dict[tuple[int, str], float]:
    """Return the part of a card's width at which each link leaves (`"out"`) and arrives (`"in"`): no two at one."""
    sides: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for link in links:
        sides[link.source, "out"].append(id(link))
        sides[link.target, "in"].append(id(link))
    return {
        (link, side): (number + 1) / (len(members) + 1)
        for (_, side), members in sides.items()
        for number, link in enumerate(members)
    }


def _draw_box(box: _Box, *, first: bool) -> Iterator[str]:
    yield '<g class="first">' if first else "<g>"
    yield f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6"/>'
    lines = [("name", _fit(box.card.name)), *([("dim", _fit(box.card.model))] if box.card.model else [])]
    lines += [("", row) for row in box.rows]
    for number, (kind, text) in enumerate(lines):
        of = f' class="{kind}"' if kind else ""
        yield (
            f'<text{of} x="{box.x + _PAD:.1f}" y="{box.y + _PAD / 2 + _LINE * number + 14:.1f}">{escape(text)}</text>'
        )
    yield "</g>"
