"""The page of a timeline in a real headless Chromium: what is told apart, by sign, word, key and ear; and how fast."""

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import pytest
from timeline.serving import HEADER, append, served
from timeline.stories import CAUSES, STATUSES, Story, every_ending, long_run
from timeline.test_page import hostile_run

from agentloop import records as r
from agentloop.executors import Browser, Click, PressKeys, ScrollAt, TypeText, _browser, open_browser
from agentloop.items import ToolCall
from agentloop.journal import FileJournal
from agentloop.outcomes import CallOutcome
from agentloop.tracing import read_timeline, render_html

axe = pytest.importorskip("axe_playwright_python", reason="needs axe-core and Chromium: nox -s tests-timeline")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_clock,
    pytest.mark.timeout(180),
    pytest.mark.backends("asyncio"),
    pytest.mark.skipif(not any(map(shutil.which, _browser._PROGRAMS)), reason="no Chromium is installed"),
]
PICTURES = Path(__file__).parents[2] / "build" / "timeline"
SANDBOX = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page of the run with every ending."""
    return write(tmp_path / "run.html", every_ending())


def write(path: Path, records: list[r.Record]) -> Path:
    """Write the page of *records*."""
    path.write_text(render_html(read_timeline(records)), encoding="utf-8")
    return path


@asynccontextmanager
async def showing(page: Path | str, *switches: str) -> AsyncIterator[Browser]:
    """Show a page, and find no error of its script afterwards."""
    url = page if isinstance(page, str) else f"file://{page}"
    async with open_browser(width=1400, height=900, switches=[*SANDBOX, *switches]) as browser:
        await browser.open_page(url)
        await browser.evaluate("window.failed = []; addEventListener('error', (event) => failed.push(event.message))")
        assert await browser.evaluate("document.documentElement.dataset.ready") == "true"
        yield browser
        assert await browser.evaluate("failed") == []


async def press(browser: Browser, *keys: str) -> None:
    """Press one key after the other, and let the page draw."""
    for key in keys:
        await browser.perform(PressKeys(keys=(key,)))
    await drawn(browser)


async def drawn(browser: Browser) -> None:
    """Wait until the page has drawn what was asked for."""
    await browser.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
    )


async def click(browser: Browser, selector: str) -> None:
    """Click in the middle of an element."""
    box = await browser.evaluate(
        f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    await browser.perform(Click(x=round(box[0]), y=round(box[1])))
    await drawn(browser)


async def show_every_row(browser: Browser) -> None:
    """Unfold all, and make room for it, so that every row is in the page."""
    await browser.evaluate("folded.clear(); refold(); $('scroller').style.minHeight = '3000px'; drawNow()")


async def keep_picture(browser: Browser, name: str) -> None:
    """Write a picture to look at."""
    await anyio.Path(PICTURES).mkdir(parents=True, exist_ok=True)
    await anyio.Path(PICTURES / f"{name}.png").write_bytes(await browser.screenshot())


async def violations(browser: Browser) -> list[str]:
    """Return what axe-core has to say against the page."""
    script = resources.files(axe).joinpath("axe.min.js").read_text(encoding="utf-8")
    await browser.evaluate(f"{script}\n;typeof axe")
    found = await browser.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((each) =>"
        " `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(' ')}`))"
    )
    return list(found)


async def chosen(browser: Browser) -> str:
    """Return the name in the row that has the focus, without arguments."""
    name = "document.activeElement.querySelector('.name')"
    arguments = f"({name}?.querySelector('.args')?.textContent ?? '')"
    return str(await browser.evaluate(f"{name}?.textContent.replace({arguments}, '').replace(/[▸▾]/, '')"))


async def test_a_call_of_a_paused_run_waits_for_a_verdict(tmp_path: Path) -> None:
    """Its row, its times as they are read aloud, and its details say so, and not that its end is missing."""
    story = Story()
    story.begin(1)
    story.ask(1, 2, *story.calls("pay"))
    story.tell(r.ApprovalRequested, 2.1, call_id="pay-1", agent="desk", tool="pay", digest="d")
    story.tell(r.RunEnded, 2.2, "interrupted", resumable=True)
    async with showing(write(tmp_path / "paused.html", story.records)) as browser:
        await show_every_row(browser)
        row = "document.querySelector('.row[data-kind=call]')"
        await browser.evaluate(f"choose(Number({row}.dataset.row)); showDetails()")
        await drawn(browser)
        said = await browser.evaluate(
            f"[{row}.textContent, {row}.querySelector('.time').ariaLabel, $('details').textContent]"
        )
    for told, words in zip(said, ["waits for a verdict", "waiting for a verdict", "waits for a verdict"], strict=True):
        assert words in told
    assert not any("no end recorded" in each for each in said)


# -- told apart


@pytest.mark.scenario("VI-02")
async def test_every_status_and_cause_has_a_word_and_a_sign_of_its_own(page: Path) -> None:
    """In the rows themselves: no two statuses share a word or a shape, nor do two causes, whatever their colour."""
    async with showing(page) as browser:
        await browser.evaluate(
            "folded.clear(); refold(); document.getElementById('scroller').style.minHeight = '3000px'"
        )
        await browser.evaluate("drawNow()")
        rows = await browser.evaluate(
            "[...document.querySelectorAll('.row.kind-call')].map((row) => ({status: row.dataset.status,"
            " label: row.querySelector('.status').textContent,"
            " sign: document.querySelector(row.querySelector('.outcome use').getAttribute('href')).innerHTML,"
            " cause: row.querySelector('[data-cause]')?.dataset.cause,"
            " causeLabel: row.querySelector('[data-cause]')?.getAttribute('title'),"
            " causeSign: row.querySelector('[data-cause] use') &&"
            "   document.querySelector(row.querySelector('[data-cause] use').getAttribute('href')).innerHTML}))"
        )
        by_status = {row["status"]: (row["label"], row["sign"]) for row in rows}
        by_cause = {row["cause"]: (row["causeLabel"], row["causeSign"]) for row in rows if row.get("cause")}
        assert set(by_status) == set(STATUSES)
        assert set(by_cause) == set(CAUSES)
        for found in (by_status, by_cause):
            assert len({label for label, _ in found.values()}) == len(found)
            assert len({sign for _, sign in found.values()}) == len(found)
        assert {row["status"] for row in rows if row.get("cause")} == {"cancelled"}


@pytest.mark.scenario("VI-02")
async def test_arrows_lead_from_row_to_row_with_the_sign_of_their_cause(page: Path) -> None:
    """One for each cancellation; each cause has a line of its own."""
    async with showing(page) as browser:
        await browser.evaluate(
            "folded.clear(); refold(); document.getElementById('scroller').style.minHeight = '3000px'"
        )
        await browser.evaluate("drawNow()")
        arrows = await browser.evaluate(
            "[...document.querySelectorAll('#arrows path[data-cause]')].map((path) => ["
            "model.rows[path.dataset.source].n, model.rows[path.dataset.target].n, path.dataset.cause,"
            " getComputedStyle(path).strokeDasharray,"
            " path.getAttribute('marker-end')])"
        )
        assert sorted((source, target, cause) for source, target, cause, *_ in arrows) == [
            ("book", "hotel", "sibling"),
            ("book", "research", "sibling"),
            ("desk", "invoice", "deadline"),
            ("desk", "poll", "caller"),
            ("research", "visit", "parent"),
            ("stop_watch", "watch", "caller"),
            ("undecided", "undecided", "tool"),
        ]
        lines = {cause: dashes for *_, cause, dashes, _ in arrows if cause != "tool"}
        assert len(set(lines.values())) == len(lines) == 4
        assert {arrow[4] for arrow in arrows} == {"url(#head)"}


async def test_every_phase_has_a_shape_of_its_own(page: Path) -> None:
    """Height, place, border and pattern tell them apart where colours don't."""
    async with showing(page) as browser:
        await click(browser, "#legend summary")
        shapes = await browser.evaluate(
            "Object.fromEntries([...document.querySelectorAll('.swatch .bar')].map((bar) => { const style ="
            " getComputedStyle(bar); return [bar.dataset.phase, [style.top, style.height, style.borderStyle,"
            " style.borderWidth, style.backgroundImage, style.backgroundColor !== 'rgba(0, 0, 0, 0)']]; }))"
        )
        plain = {
            phase: re.sub(r"(?:rgba?|color)\([^)]*\)", "colour", json.dumps(shape))
            for phase, shape in shapes.items()
            if phase not in ("answer", "run")  # a request's and a call's: both are a full bar, in rows of other kinds
        }
        assert len(set(plain.values())) == len(plain) == 10
        await keep_picture(browser, "legend")


async def test_pictures_to_look_at(page: Path) -> None:
    """Both themes, with the nested run unfolded; `build/timeline` has them."""
    async with showing(page) as browser:
        await click(browser, "#unfold")
        for theme in ("light", "dark"):
            await click(browser, "#theme")
            assert await browser.evaluate("document.documentElement.dataset.theme") == theme
            for part, top in (("first", 0), ("second", 520)):
                await browser.evaluate(f"document.getElementById('scroller').scrollTop = {top}")
                await drawn(browser)
                await keep_picture(browser, f"{theme}-{part}")


async def test_the_system_s_theme_is_taken(page: Path) -> None:
    """Where it prefers a dark one, the page is dark from the start."""
    for preferred, theme in (("0", "dark"), ("1", "light")):
        async with showing(page, f"--blink-settings=preferredColorScheme={preferred}") as browser:
            assert await browser.evaluate("document.documentElement.dataset.theme") == theme


# -- keys, ears


async def test_axe_finds_no_violation(page: Path) -> None:
    """In both themes, with details, legend and a search."""
    async with showing(page) as browser:
        for theme in ("light", "dark"):
            await click(browser, "#theme")
            assert await violations(browser) == [], theme
        await click(browser, "#legend summary")
        await browser.evaluate("$('search').value = 'cancelled'; search(); choose(5); showDetails()")
        for theme in ("dark", "light"):
            await browser.evaluate(f"theme = {('system', 'light', 'dark').index(theme)}; paint()")
            await drawn(browser)
            assert await violations(browser) == [], theme


async def test_the_keyboard_reaches_everything(page: Path) -> None:
    """Rows, folds, details, the call that cancelled, search, zoom."""
    async with showing(page) as browser:
        await browser.evaluate("document.getElementById('theme').focus()")
        await press(browser, "tab")  # the legend
        await press(browser, "tab")
        assert await chosen(browser) == "desk"
        await press(browser, "down", "down", "down")
        assert (await chosen(browser)).endswith("gpt-large")
        await press(browser, "left")
        assert await browser.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
        await press(browser, "left")
        assert await chosen(browser) == "Turn 1 · desk"
        await press(browser, "end")
        assert await chosen(browser) == "mail"
        await press(browser, "home", "enter")
        assert await browser.evaluate("document.querySelector('#details h2').textContent") == "desk"
        await press(browser, "escape")
        assert await browser.evaluate("document.getElementById('details').hidden")
        assert await chosen(browser) == "desk"
        await browser.evaluate("choose(model.rows.findIndex((row) => row.n === 'hotel'))")
        await press(browser, "c")
        assert await chosen(browser) == "book"
        await press(browser, "f")
        assert await browser.evaluate("view.to - view.from < axis.total / 5")
        await press(browser, "0")
        assert await browser.evaluate("isWhole()")


async def test_a_search_finds_names_outcomes_and_content_and_unfolds(page: Path) -> None:
    """Enter goes to the next match, also in a run that is folded."""
    async with showing(page) as browser:
        await browser.evaluate("document.activeElement.blur()")
        await press(browser, "/")
        await browser.perform(TypeText(text="3 pages"))
        await press(browser, "enter")
        assert await browser.evaluate("document.getElementById('found').textContent") == "1 of 1"
        assert await browser.evaluate("document.querySelector('.row.match .name').title") == 'index of="index"'
        assert await browser.evaluate("document.querySelectorAll('.row.kind-run').length") == 2
        for text, count in (("timed out", 1), ("alice", 1), ("no such text", 0)):
            await browser.evaluate(f"document.getElementById('search').value = {json.dumps(text)}; search()")
            assert await browser.evaluate("matches.length") == count, text


def many_calls() -> list[r.Record]:
    """Return a run with forty calls of two tools, of which the fifth of each ten fails, and the later the longer."""
    story = Story("reader", "Read the catalogue.")
    for turn in range(4):
        story.begin(100.0 * turn)
        names = [f"{tool}{at}" for at in range(5) for tool in ("fetch", "index")]
        calls = [
            ToolCall(f"{name}-{turn}", name[:-1], json.dumps({"url": f"https://example.org/pages/{turn}{name}"}))
            for name in names
        ]
        story.ask(100.0 * turn, 100.0 * turn + 1, *calls)
        for at, one in enumerate(calls):
            story.tell(r.CallStarted, 100.0 * turn + 2, call_id=one.call_id, tool=one.name, arguments=one.arguments)
            status: Any = "failed" if at == 4 else "succeeded"
            error = "ValueError(no route)" if at == 4 else None
            ended = 100.0 * turn + 3 + turn * 10 + at
            story.tell(
                r.CallSettled,
                ended,
                call_id=one.call_id,
                tool=one.name,
                outcome=CallOutcome(status=status),
                error=error,
            )
    story.tell(r.RunEnded, 400, "completed", final_output="Done.")
    return story.records


async def test_names_have_arguments_and_the_title_has_agent_and_input(tmp_path: Path) -> None:
    """A thousand rows of one tool are told apart; who was asked what comes first, and the id in small."""
    async with showing(write(tmp_path / "many.html", many_calls())) as browser:
        cells = "[...document.querySelectorAll('.row.kind-call .name')]"
        names = await browser.evaluate(f"{cells}.map((one) => one.textContent)")
        assert len(set(names)) == len(names) > 5
        assert names[0].startswith('fetch url="https:')
        assert names[0].endswith('0fetch0"')
        assert await browser.evaluate(f"{cells}.filter((one) => one.scrollWidth > one.clientWidth).length") == 0
        assert await browser.evaluate("document.title") == "reader: Read the catalogue."
        head, small = await browser.evaluate("['#title', '#run'].map((one) => document.querySelector(one).textContent)")
        assert head == f"reader: Read the catalogue.{small}"
        assert small.startswith("run ")


async def test_only_some_rows_are_shown(tmp_path: Path) -> None:
    """Failures, the slowest, one tool, what the search finds: each with the rows above it, and nothing else."""
    shown = "order.map((index) => model.rows[index]).filter(isWork).map((row) => [row.n, statusOf(row), row.t])"

    async def choose_only(browser: Browser, value: str) -> list[Any]:
        await browser.evaluate(
            f"$('only').value = {json.dumps(value)}; $('only').dispatchEvent(new Event('change', {{bubbles: true}}))"
        )
        await drawn(browser)
        return list(await browser.evaluate(shown))

    async with showing(write(tmp_path / "many.html", many_calls())) as browser:
        everything = await browser.evaluate(shown)
        options = await browser.evaluate("[...$('only').options].map((one) => one.textContent)")
        assert options[:2] == ["all rows", "failures (4)"]
        assert options[-2:] == ["fetch (20)", "index (20)"]
        assert await choose_only(browser, "failures") == [["fetch", "failed", turn] for turn in range(1, 5)]
        assert await browser.evaluate("order.length") == 1 + 4 + 4
        assert await browser.evaluate("document.querySelectorAll('.row').length") == 1 + 4 + 4
        slowest = await choose_only(browser, "slowest")
        assert len(slowest) == 20
        assert {turn for _, _, turn in slowest} == {3, 4}
        assert {name for name, _, _ in await choose_only(browser, "tool index")} == {"index"}
        assert await choose_only(browser, "found") == []
        assert await browser.evaluate("order") == [0]
        await browser.evaluate("$('search').value = 'pages/1fetch'; search()")
        await drawn(browser)
        assert [(name, turn) for name, _, turn in await browser.evaluate(shown)] == [("fetch", 2)] * 5
        # A row that isn't shown is asked for: all rows come back, and the chosen one is in sight.
        await browser.evaluate("choose(model.rows.findIndex((row) => row.n === 'index'))")
        assert await browser.evaluate("$('only').value") == "all"
        assert await browser.evaluate(shown) == everything
        await choose_only(browser, "failures")
        await press(browser, "end", "left", "left", "right", "home", "c")
        assert await violations(browser) == []


async def test_details_leave_their_row_in_sight(tmp_path: Path) -> None:
    """They take room from the rows, which are moved so that the chosen one is still seen."""
    covered = """(() => {
        const row = seen.get(chosen).getBoundingClientRect(), details = $('details').getBoundingClientRect();
        const box = $('scroller').getBoundingClientRect();
        return row.bottom > details.top + 1 || row.top < box.top - 1;
    })()"""
    async with showing(write(tmp_path / "many.html", many_calls())) as browser:
        await browser.evaluate("$('search').focus(); $('search').value = '3index4'; search()")
        await press(browser, "enter")
        await browser.evaluate("focusChosen()")
        await press(browser, "enter")
        assert not await browser.evaluate("$('details').hidden")
        assert not await browser.evaluate(covered)
        for number in range(0, 40, 7):
            await browser.evaluate(f"closeDetails(); choose({number}); showDetails()")
            await drawn(browser)
            assert not await browser.evaluate(covered), number


async def test_legend_is_seen_whole(page: Path) -> None:
    """All signs and keys fit in a window of usual size, without scrolling in it."""
    async with showing(page) as browser:
        await click(browser, "#legend summary")
        box = "document.querySelector('.legend')"
        assert await browser.evaluate(f"{box}.scrollHeight - {box}.clientHeight") <= 1
        last = await browser.evaluate(
            f"Math.max(...[...{box}.querySelectorAll('li')].map((one) => one.getBoundingClientRect().bottom))"
        )
        assert last < 900
        assert await browser.evaluate("$('scroller').clientHeight") > 150  # and rows beside it


@pytest.mark.parametrize("which", ["every", "many"])
async def test_a_phone_has_room_for_the_picture(tmp_path: Path, which: str) -> None:
    """At 390 pixels the picture has half of them, nothing is wider than the screen, and no label is upon another."""
    records = every_ending() if which == "every" else many_calls()
    page = write(tmp_path / "page.html", records)
    async with open_browser(width=390, height=800, switches=SANDBOX) as browser:
        await browser.open_page(f"file://{page}")
        await browser.evaluate("folded.clear(); refold(); drawNow()")
        await drawn(browser)
        assert await browser.evaluate("$('head-row').lastElementChild.clientWidth") >= 195
        assert await browser.evaluate("document.documentElement.scrollWidth") <= 390
        spans = "[...document.querySelectorAll('#ruler span')].map((one) => one.getBoundingClientRect())"
        boxes = sorted(await browser.evaluate(f"{spans}.map((box) => [box.left, box.right])"))
        assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(boxes)), boxes
        icons = "[...document.querySelectorAll('.row.kind-call .outcome > svg')].every((one) => one.clientWidth >= 12)"
        assert await browser.evaluate(icons)
        await keep_picture(browser, f"phone-{which}")


async def test_a_nested_run_is_folded_at_first(page: Path) -> None:
    """The mark before its call unfolds it."""
    async with showing(page) as browser:
        assert await browser.evaluate("document.querySelectorAll('.row.kind-run').length") == 1
        number = await browser.evaluate("model.rows.findIndex((row) => row.n === 'research')")
        await browser.evaluate(f"reveal({number}); drawNow()")
        await click(browser, f".row[data-row='{number}'] .fold")
        assert await browser.evaluate("order.map((index) => model.rows[index].n).includes('visit')")
        await click(browser, "#fold")
        assert not await browser.evaluate("order.map((index) => model.rows[index].n).includes('visit')")


async def test_zoom_by_wheel_button_and_drag(page: Path) -> None:
    """The wheel zooms at the pointer; a drag over the ruler shows what it covers."""
    async with showing(page) as browser:
        whole = await browser.evaluate("view.to - view.from")
        await browser.perform(ScrollAt(x=900, y=400, scroll_y=-200, scroll_x=0, keys=("ctrl",)))
        await drawn(browser)
        closer = await browser.evaluate("view.to - view.from")
        assert closer < whole
        await browser.perform(ScrollAt(x=900, y=400, scroll_y=300, scroll_x=0, keys=("shift",)))
        await click(browser, "#closer")
        assert await browser.evaluate("view.to - view.from") < closer
        await click(browser, "#wider")
        await click(browser, "#fit")
        assert await browser.evaluate("view.to - view.from") == pytest.approx(whole)
        await click(browser, "#near")
        assert await browser.evaluate("!isWhole()")


# -- hostile and torn


async def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """No element is made of them, no script runs, and they are shown as they are."""
    async with showing(write(tmp_path / "hostile.html", hostile_run())) as browser:
        await browser.evaluate("choose(0); showDetails()")
        await browser.evaluate("model.rows.forEach((row, index) => { choose(index); showDetails(); })")
        assert await browser.evaluate("document.querySelectorAll('script').length") == 2
        assert await browser.evaluate("document.querySelectorAll('img, b img, iframe, object').length") == 0
        assert await browser.evaluate("document.title") != "run"
        shown = await browser.evaluate("document.body.innerText")
        assert "<script>document.title='run'</script>" in shown
        assert "{{data}}{{script}}" in shown
        assert await browser.evaluate("(() => { try { eval('1'); } catch { return 'refused'; } })()") in (
            None,
            "refused",
        )


@pytest.mark.scenario("VI-01")
async def test_every_beginning_of_a_run_is_drawn(tmp_path: Path) -> None:
    """One page after the other, from none to all of the records."""
    records = every_ending()
    async with showing(write(tmp_path / "run.html", records[:0])) as browser:
        assert "No run has begun" in await browser.evaluate("document.querySelector('main').innerText")
    async with showing(write(tmp_path / "run.html", records)) as browser:
        for count in range(1, len(records), 3):
            data = re.search(r'id="data">(.*?)</script>', render_html(read_timeline(records[:count])), re.DOTALL)
            assert data is not None
            await browser.evaluate(f"model = {data[1]}; foldRuns(); chosen = 0; begin(false); showDetails()")
            rows = await browser.evaluate("[document.querySelectorAll('.row').length, order.length]")
            assert 0 < rows[0] <= rows[1]


# -- size and time


async def test_ten_thousand_records_open_almost_as_fast_as_a_hundred(tmp_path: Path) -> None:
    """Rows out of sight aren't drawn. The fastest of some, in turns: other work makes single ones slow."""
    short, page = (
        write(tmp_path / "short.html", list(long_run(100))),
        write(tmp_path / "long.html", list(long_run(10_000))),
    )
    times: dict[Path, list[float]] = {short: [], page: []}
    async with showing(page) as browser:
        for opened in (short, page) * 6:
            began = time.perf_counter()
            await browser.open_page(f"file://{opened}")
            assert await browser.evaluate("document.documentElement.dataset.ready") == "true"
            times[opened].append(time.perf_counter() - began)
        await browser.evaluate("window.failed = []")
        assert await browser.evaluate("document.querySelectorAll('.row').length") < 100
        assert await browser.evaluate("model.rows.length") > 5_000
        await browser.evaluate("document.getElementById('scroller').scrollTop = 1e9")
        await drawn(browser)
        await click(browser, "#near")
        await keep_picture(browser, "long")
    assert min(times[page]) < 20 * min(times[short]), times


async def test_a_growing_journal_is_followed(tmp_path: Path) -> None:
    """New rows appear, what is folded and chosen stays so, and the page says when it has lost its server."""
    path, records = tmp_path / "journal", every_ending()
    async with FileJournal(path) as journal:
        await journal.append([HEADER])
        await append(journal, records[:30])
        async with served(path) as url, showing(url) as browser:
            await changed(browser, "model.records === 30")
            await browser.evaluate("choose(model.rows.findIndex((row) => row.n === 'fetch'))")
            for first in range(30, len(records), 20):
                await append(journal, records[first : first + 20])
                await changed(browser, f"model.records === {min(first + 20, len(records))}")
            assert await browser.evaluate("model.rows[chosen].n") == "fetch"
            assert await browser.evaluate("folded.has(model.rows.findIndex((row) => row.n === 'research'))")
            assert await browser.evaluate("document.getElementById('live').dataset.state") == "live"
            assert await violations(browser) == []
            await keep_picture(browser, "follow")


async def changed(browser: Browser, holds: str) -> None:
    """Wait until *holds* is true in the page; it is looked at with each of its frames."""
    await browser.evaluate(
        f"new Promise((done) => {{ const look = () => ({holds}) ? done(true) : setTimeout(look, 10); look(); }})"
    )


def test_axe_is_the_real_one() -> None:
    """Else every page would pass."""
    text: Any = resources.files(axe).joinpath("axe.min.js").read_text(encoding="utf-8")
    assert text.startswith("/*! axe v4")
