"""The slider in a timeline's page, in a real headless Chromium: the state at any record, from the page only."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from lab.shop import STORIES, record
from timeline.serving import HEADER, append, served
from timeline.test_browser import changed, keep_picture, press, showing, violations  # it skips, too
from timeline.test_browser import pytestmark as pytestmark

from agentloop import lab
from agentloop.journal import FileJournal
from agentloop.tracing import read_timeline, render_html


async def write(path: Path, records: Any) -> Path:
    """Write the page of *records*."""
    page = render_html(read_timeline(records), moments=lab.list_moments(records))
    await anyio.Path(path).write_text(page, encoding="utf-8")
    return path


def told(moment: lab.Moment) -> list[list[Any]]:
    """Return what a page has to show of a moment: of each run its head, its history, and the calls under way."""
    shown = []
    for run in moment.runs:
        place = f" (in the run of call {'/'.join(run.path)})" if run.path else ""
        waits = ["the model works on its request"] if run.requested else []
        waits += [f"{one.call_id} {one.tool} {one.arguments} {one.state}" for one in run.calls]
        may = ", ".join((*run.tools, *run.handoffs)) or "nothing"
        head = f"{run.agent}{place}: turn {run.turn}, {run.status or 'under way'}"
        shown.append([head, list(run.history), may, waits])
    return shown


READ = """(() => { const found = []; for (const each of $('state').children) {
  if (each.tagName === 'H2') found.push([each.textContent, [], '', []]);
  const run = found.at(-1), texts = [...each.children].map((one) => one.textContent);
  if (each.tagName === 'OL') run[1] = texts;
  if (each.tagName === 'P' && each.previousElementSibling.textContent === 'What it may call') run[2] = each.textContent;
  if (each.tagName === 'UL') run[3] = texts.map((text) => text.replace(/, for [^,]*$/, ''));
} return found; })()"""


@pytest.mark.scenario("LB-17")
@pytest.mark.parametrize("kind", ["parallel", "paused", "nested", "approved", "handed off"])
async def test_the_slider_shows_the_state_after_every_record(tmp_path: Path, kind: str) -> None:
    """As `moment_at` tells it, forwards and backwards, from the page only."""
    records = await record(kind, 3)
    assert kind in STORIES
    async with showing(await write(tmp_path / "run.html", records)) as browser:
        await browser.evaluate("$('moments').open = true")
        places = [*range(1, len(records) + 1), *range(len(records), 0, -3)]
        for n in places:
            await browser.evaluate(f"$('at').value = {n}; $('at').dispatchEvent(new Event('input'))")
            assert await browser.evaluate(READ) == told(lab.moment_at(records, n)), n


@pytest.mark.scenario("LB-17")
async def test_the_slider_is_used_by_keys_and_heard(tmp_path: Path) -> None:
    """Arrows, Home and End move it; its value is read as the record's words; axe finds nothing, wide or narrow."""
    records = await record("nested", 3)
    count = len(records)
    async with showing(await write(tmp_path / "run.html", records)) as browser:
        assert await violations(browser) == []
        await browser.evaluate("document.querySelector('#moments summary').focus()")
        await press(browser, "Enter")
        assert await browser.evaluate("$('moments').open")
        heard = "[$('at').getAttribute('aria-valuetext'), $('record').textContent, $('at').labels[0].textContent]"
        words = f"record {count} of {count}: RunEnded"
        value, shown, label = await browser.evaluate(heard)
        assert (value, label) == (words, "Record")
        assert shown.startswith(words)
        await browser.evaluate("$('at').focus()")
        await press(browser, "Home")
        assert (await browser.evaluate(heard))[0] == f"record 1 of {count}: RunStarted"
        await press(browser, "ArrowRight", "ArrowRight", "ArrowLeft")
        assert (await browser.evaluate(heard))[0] == f"record 2 of {count}: TurnStarted"
        assert await browser.evaluate("document.activeElement.id") == "at"  # the rows didn't take the keys
        await press(browser, "End")
        assert (await browser.evaluate(heard))[0] == words
        await browser.evaluate("$('earlier').click()")
        assert (await browser.evaluate(heard))[0].startswith(f"record {count - 1} of")
        assert not await browser.evaluate("$('now').hidden")
        assert await violations(browser) == []
        await keep_picture(browser, "moment")
        await browser.evaluate("document.documentElement.dataset.theme = 'dark'")
        assert await violations(browser) == []


@pytest.mark.scenario("LB-17")
async def test_a_page_without_moments_has_no_slider(tmp_path: Path) -> None:
    """As one without contents."""
    path = tmp_path / "run.html"
    await anyio.Path(path).write_text(render_html(read_timeline(await record("answered", 3))), encoding="utf-8")
    async with showing(path) as browser:
        assert await browser.evaluate("$('moments').hidden")
        assert await browser.evaluate("getComputedStyle($('moments')).display") == "none"


@pytest.mark.scenario("LB-17")
@pytest.mark.real_clock
async def test_the_slider_of_a_page_that_follows_grows(tmp_path: Path) -> None:
    """One at the last record stays at the last, one before it stays at its record; each state is `moment_at`'s."""
    path, records = tmp_path / "journal", await record("nested", 3)
    async with FileJournal(path) as journal:
        await journal.append([HEADER])
        async with served(path) as url, showing(url) as browser:
            assert await browser.evaluate("$('moments').hidden")
            await append(journal, records[:4])
            await changed(browser, "$('at').max === '4'")
            await browser.evaluate("$('moments').open = true")
            await changed(browser, "$('record').textContent.startsWith('record 4 of 4')")
            await append(journal, records[4:9])
            await changed(browser, "$('at').max === '9'")
            assert await browser.evaluate(READ) == told(lab.moment_at(records, 9))
            await browser.evaluate("$('at').value = 5; $('at').dispatchEvent(new Event('input'))")
            await append(journal, records[9:])
            count = len(records)
            await changed(browser, f"$('at').max === '{count}'")
            assert (await browser.evaluate("$('record').textContent")).startswith(f"record 5 of {count}")
            assert await browser.evaluate(READ) == told(lab.moment_at(records, 5))
            for n in (count, 2, 7):
                await browser.evaluate(f"$('at').value = {n}; $('at').dispatchEvent(new Event('input'))")
                assert await browser.evaluate(READ) == told(lab.moment_at(records, n)), n
            assert await violations(browser) == []
