"""The page of a comparison in a real headless Chromium: judged by axe-core, by keys, and with a thousand runs."""

from pathlib import Path

import anyio
import pytest
from timeline.test_browser import pytestmark as pytestmark  # it skips, too
from timeline.test_browser import showing, violations

from agentloop import Agent, Runner, lab
from agentloop.lab import LabReport
from agentloop.lab._page import make_entry, render_lab_page
from agentloop.testing import ScriptedModel, say


async def write(path: Path, times: int) -> Path:
    """Write the page of a comparison, each of whose rows is there *times* times."""
    entries = []
    agents = [Agent("a", instructions=text, model=ScriptedModel([say(text), say(text)])) for text in ("One.", "Two.")]
    results = [await Runner.run(agents[0], given) for given in ("go north", "go south")]
    report = await lab.compare(
        results,
        agents[1],
        checks=[lab.answer_matches("One")],
        judges=[lambda run: lab.Score(0.5, "fair")],
        observe=lambda row, before, after: entries.append(make_entry(row, before, after)),
    )
    page = render_lab_page(LabReport("a", report.rows * times), entries * times)
    await anyio.Path(path).write_text(page, encoding="utf-8")
    return path


@pytest.mark.scenario("LB-09")
async def test_axe_finds_nothing_folded_or_unfolded(tmp_path: Path) -> None:
    """Also with a filter, and with both histories of a run in sight."""
    async with showing(await write(tmp_path / "lab.html", 3)) as browser:
        assert await violations(browser) == []
        await browser.evaluate("document.querySelector('#rows button').click()")
        assert await browser.evaluate("document.querySelector('#rows button').getAttribute('aria-expanded')") == "true"
        assert await browser.evaluate("document.querySelectorAll('.steps .first').length") == 2
        await browser.evaluate("$('search').value = 'go south'; $('search').dispatchEvent(new Event('input'))")
        assert await browser.evaluate("$('found').textContent") == "3 of 6 runs"
        assert await violations(browser) == []


@pytest.mark.scenario("LB-09")
async def test_a_thousand_runs_open_with_their_rows_alone(tmp_path: Path) -> None:
    """What a row unfolds is made when it is unfolded, so a page of a thousand runs has few elements to draw."""
    async with showing(await write(tmp_path / "lab.html", 500)) as browser:
        assert await browser.evaluate("document.querySelectorAll('#rows tr').length") == 1_000
        assert await browser.evaluate("document.querySelectorAll('.steps, .bars').length") == 0
        assert await browser.evaluate("document.querySelectorAll('*').length") < 30_000
        await browser.evaluate("document.querySelector('#rows button').click()")
        assert await browser.evaluate("document.querySelectorAll('.steps').length") == 2


@pytest.mark.scenario("LB-14")
async def test_the_page_of_a_fork_is_a_tree_that_axe_finds_nothing_in(tmp_path: Path) -> None:
    """Of a fork of a fork, too, folded and unfolded, light and dark."""
    agent = Agent("a", instructions="One.", model=ScriptedModel([say("one"), say("two"), say("three")]))
    result = await Runner.run(agent, "hi")
    first = await lab.fork(result, agent, at=1, branches=[lab.Branch(seed=1), lab.Branch()])
    second = await lab.fork(first["seed=1"], agent, at=1, branches=[lab.Branch(instructions="Two."), lab.Branch()])
    path = tmp_path / "fork.html"
    await anyio.Path(path).write_text(second.to_html(), encoding="utf-8")
    async with showing(path) as browser:
        assert await browser.evaluate("document.querySelectorAll('.tree ul ul > li').length") == 2
        assert await violations(browser) == []
        await browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert "+ turn 1, says: three" in await browser.evaluate("document.querySelector('pre').textContent")
        assert await violations(browser) == []
        await browser.evaluate("document.documentElement.dataset.theme = 'dark'")
        assert await violations(browser) == []
