"""Draw the picture of a run that README shows: `python docs/draw_run.py` writes `docs/run.svg`.

The picture is drawn from the records of a run, made here on a virtual clock, so each drawing is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import anyio

from agentloop import Agent, RunConfig, ToolContext, tool
from agentloop import testing as t
from agentloop.testing import call, say, wait
from agentloop.tracing import Timeline, TimelineRow, read_timeline

PICTURE = Path(__file__).parent / "run.svg"
LEFT: Final = 150
SECOND: Final = 260
LINE: Final = 26
TOP: Final = 34
WORDS: Final = 190
"""Pixels: of the labels, of a second, of a row, above the first row, and of the words behind the last bar."""

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0 } .turn, .segment { fill: #818b98; opacity: .35 } .request { fill: #8250df; opacity: .55 }
.answer { fill: #8250df } .run { fill: #1a7f37 } .cleanup { fill: url(#hatched); stroke: #bc4c00 }
.hatch { stroke: #bc4c00; stroke-width: 3 } .deadline { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .run { fill: #3fb950 }
  .request, .answer { fill: #ab7df8 } .cleanup { stroke: #f0883e } .hatch { stroke: #f0883e }
  .deadline { stroke: #f85149 }
}
"""
LEGEND = {"request": "the model is asked", "run": "a body runs", "cleanup": "it cleans up"}


def record_run() -> Timeline:
    """Return the timeline of a run of two turns that its time limit ends in the second."""

    @tool
    async def weather(city: str) -> str:
        """Tell the weather."""
        await anyio.sleep(0.6 if city == "Paris" else 0.3)
        return f"Sunny in {city}."

    @tool(timeout=0.5)
    async def trains(ctx: ToolContext[None], city: str) -> None:
        """Find trains. Its server never answers."""
        await wait_and_clean_up(ctx, 0.2)

    @tool
    async def book(ctx: ToolContext[None], what: str) -> None:
        """Book something. Its server never answers."""
        await wait_and_clean_up(ctx, 0.3 if what == "hotel" else 0.1)

    async def wait_and_clean_up(ctx: ToolContext[None], seconds: float) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup():
                await anyio.sleep(seconds)

    first = [call("weather", {"city": "Paris"}), call("weather", {"city": "Rome"}), call("trains", {"city": "Rome"})]
    script = [
        [wait(0.3), *first],
        [wait(0.3), call("book", {"what": "hotel"}), call("book", {"what": "train"})],
        say("Booked."),
    ]
    agent = Agent("guide", tools=[weather, trains, book])
    world = t.World(agent=agent, script=script, options={"run_config": RunConfig(timeout=1.8)})
    return read_timeline(t.run_one(world, backend="trio").records)


def _label(row: TimelineRow) -> str:
    arguments = dict(row.facts).get("arguments", "")
    if row.kind == "call":
        return f"{row.name}({arguments.partition(': ')[2].strip('{}').strip(chr(34))})"
    return {"model": "model", "run": "run", "turn": f"turn {row.turn}"}[row.kind]


def _words(row: TimelineRow) -> str:
    ending = row.ending
    if ending is None or row.kind == "model":
        return ""
    by = f" by the run's {ending.cancelled_by}" if ending.cancelled_by else ""
    return ("ended by its time limit" if row.kind == "run" else ending.status.replace("_", " ")) + by


def draw(timeline: Timeline) -> str:
    """Return *timeline* as SVG: a line for each row, its phases as bars, and how it ended."""
    width = LEFT + (timeline.end - timeline.start) * SECOND + WORDS
    height = TOP + len(timeline.rows) * LINE + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            "<title>A run of two turns that its time limit ends: each call cleans up before the run ends</title>",
            f"<style>{STYLE}</style>",
            '<defs><pattern id="hatched" width="7" height="7" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="7"/></pattern></defs>',
            *_draw_axis(timeline, height),
            *(part for number, row in enumerate(timeline.rows) for part in _draw_row(row, number, timeline.start)),
            *_draw_legend(height),
            "</svg>",
            "",
        ]
    )


def _draw_axis(timeline: Timeline, height: int) -> Iterator[str]:
    for tenth in range(0, round((timeline.end - timeline.start) * 10) + 1, 5):
        x = LEFT + tenth / 10 * SECOND
        yield f'<line class="grid" x1="{x:.0f}" y1="{TOP - 8}" x2="{x:.0f}" y2="{height - 34}"/>'
        yield f'<text class="small" x="{x:.0f}" y="{TOP - 14}" text-anchor="middle">{tenth / 10:g} s</text>'
    for mark in (mark for row in timeline.rows[:1] for mark in row.marks if mark.kind == "deadline"):
        x = LEFT + (mark.at - timeline.start) * SECOND
        yield f'<line class="deadline" x1="{x:.0f}" y1="{TOP - 8}" x2="{x:.0f}" y2="{height - 34}"/>'


def _draw_row(row: TimelineRow, number: int, start: float) -> Iterator[str]:
    y = TOP + number * LINE
    yield f'<text x="{8 + row.depth * 12}" y="{y + 15}">{escape(_label(row))}</text>'
    thick = 6 if row.kind in ("run", "turn") else 14
    for phase in row.phases:
        x, long = LEFT + (phase.start - start) * SECOND, (phase.end - phase.start) * SECOND
        if long > 0:
            yield (
                f'<rect class="{phase.kind}" x="{x:.0f}" y="{y + 10 - thick // 2}" width="{long:.0f}" '
                f'height="{thick}" rx="2"/>'
            )
    if words := _words(row):
        x = LEFT + (row.end - start) * SECOND + 8
        yield f'<text class="small" x="{x:.0f}" y="{y + 14}">{escape(words)}</text>'


def _draw_legend(height: int) -> Iterator[str]:
    for number, (kind, words) in enumerate(LEGEND.items()):
        x = LEFT + number * 160
        yield f'<rect class="{kind}" x="{x}" y="{height - 20}" width="16" height="12" rx="2"/>'
        yield f'<text class="small" x="{x + 22}" y="{height - 10}">{words}</text>'
    x = LEFT + len(LEGEND) * 160
    yield f'<line class="deadline" x1="{x + 8}" y1="{height - 22}" x2="{x + 8}" y2="{height - 6}"/>'
    yield f'<text class="small" x="{x + 22}" y="{height - 10}">the run\'s time limit</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(record_run()), encoding="utf-8")
