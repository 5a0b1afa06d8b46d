"""The example application in a real browser: text, calls side by side, approvals, cancelling, lost connections."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop.executors import Browser, Click, TypeText, _browser, open_browser

pytest.importorskip("uvicorn", reason="needs servers and frameworks: nox -s tests-web")

INSTALLED = any(map(shutil.which, _browser._PROGRAMS))
pytestmark = [
    *[pytest.mark.slow, pytest.mark.real_clock, pytest.mark.timeout(120)],
    *[pytest.mark.backends("asyncio", "trio"), pytest.mark.skipif(not INSTALLED, reason="no Chromium is installed")],
]
ROOT = Path(__file__).parents[2]
PICTURES = os.environ.get("WEB_PICTURES")
"""A folder in which to leave screenshots, for people who look at the page."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of the application, served by uvicorn in a process of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        command = ["uvicorn", "examples.web_chat.app:app", "--fd", str(listener.fileno()), "--log-level", "warning"]
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--timeout-graceful-shutdown", "1"],
            cwd=ROOT,
            env={**os.environ, "RUNS": str(tmp_path / "runs"), "SECONDS_OF_A_CALL": "0.6"},
            pass_fds=[listener.fileno()],
        )
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield address
    finally:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()
            process.wait()


class Page:
    """The page in the browser."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._watched = 0

    async def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        with anyio.fail_after(30):
            while not await self.browser.evaluate(script):  # noqa: ASYNC110 - of another process
                await anyio.sleep(0.02)

    async def at(self, condition: str, script: str = "") -> str:
        """Have the page itself do *script* as soon as *condition* is true; return what tells whether it has.

        What is true for a moment only may be over before somebody outside of the page looks.
        """
        self._watched += 1
        met = f"window.met{self._watched}"
        await self.browser.evaluate(f"""new MutationObserver((_, observer) => {{
            if (!({condition})) return
            observer.disconnect()
            {script}
            {met} = true
        }}).observe(document.body, {{attributes: true, childList: true, subtree: true}})""")
        return met

    async def say(self, text: str) -> None:
        """Type a message, and send it by a click on the button."""
        await self.browser.evaluate("document.getElementById('text').focus()")
        await self.browser.perform(TypeText(text=text))
        await self.click("#send")

    async def click(self, selector: str) -> None:
        """Click on the middle of an element, as a person does."""
        place = await self.browser.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'nearest'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        await self.browser.perform(Click(x=round(place[0]), y=round(place[1])))

    async def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that fit."""
        found: list[str] = await self.browser.evaluate(
            f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)"
        )
        return found

    async def ready(self) -> None:
        """Wait until the run has ended."""
        await self.until("document.getElementById('state').textContent === 'ready'")

    async def picture(self, name: str) -> None:
        """Leave a screenshot, if a folder for them is given."""
        if PICTURES:
            await anyio.Path(PICTURES, f"{name}.png").write_bytes(await self.browser.screenshot())


@asynccontextmanager
async def browsing(url: str) -> AsyncIterator[Page]:
    """Open the page."""
    switches = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
    async with open_browser(url, width=760, height=700, switches=switches) as browser:
        page = Page(browser)
        await page.until("typeof follow === 'function'")
        yield page


def cards(kind: str) -> str:
    """Return a JavaScript expression for the number of calls in a state."""
    return f"document.querySelectorAll('.call.{kind}').length"


async def test_text_comes_in_pieces_and_calls_run_side_by_side(url: str) -> None:
    """Three calls are shown next to each other while they run, with their progress; then the answer."""
    async with browsing(url) as page:
        at_work = await page.at(f"{cards('running')} === 3 && document.querySelectorAll('progress').length > 0")
        in_pieces = await page.at("document.querySelector('.partial') !== null")
        await page.say("What is the weather in Oslo, Rome and Bonn?")
        await page.until(at_work)
        tops = await page.browser.evaluate(
            "[...document.querySelectorAll('.call')].map(e => Math.round(e.getBoundingClientRect().top))"
        )
        assert len(set(tops)) == 1
        await page.picture("calls")
        await page.until(f"{cards('succeeded')} === 3")
        await page.until(in_pieces)
        await page.ready()
        assert (await page.texts(".assistant"))[-1] == "Oslo: sun. Rome: sun. Bonn: sun."
        assert await page.texts(".error") == []
        await page.picture("answer")


@pytest.mark.parametrize(("button", "output"), [("yes", "milk is deleted"), ("no", "rejected")])
async def test_call_waits_for_a_click(url: str, button: str, output: str) -> None:
    """The run pauses; approve or reject resumes it."""
    async with browsing(url) as page:
        await page.say("Delete milk")
        await page.until("document.querySelector('.verdict') !== null")
        await page.picture("question")
        assert "waiting for you" in await page.texts("#state")
        await page.click(f"button.{button}")
        await page.ready()
        assert output in (await page.texts(".call"))[-1]
        assert await page.texts(".error") == []
        await page.picture(f"verdict-{button}")


@pytest.mark.parametrize(("button", "said"), [("yes", "coffee."), ("no", "The user gives no answer.")])
async def test_a_question_is_a_form_of_its_schema(url: str, button: str, said: str) -> None:
    """The choices are a list; the answer goes on with the run, and so does none."""
    async with browsing(url) as page:
        await page.say("I want a drink")
        await page.until("document.querySelector('.verdict select') !== null")
        await page.picture("form")
        assert await page.texts(".verdict option") == ["tea", "coffee"]
        await page.browser.evaluate("document.querySelector('.verdict select').selectedIndex = 1")
        await page.click(f"button.{button}")
        await page.ready()
        assert said in (await page.texts(".assistant"))[-1]
        assert await page.texts(".error") == await page.texts(".verdict") == []


async def test_an_answer_before_the_stream_has_ended_is_waited_for(url: str) -> None:
    """Who answers at once does so before the asking stream has ended; the page is ready when the answer is there."""
    async with browsing(url) as page:
        answer = "window.answered = true; document.querySelector('button.yes').click()"
        await page.at("document.querySelector('.verdict select') !== null", answer)
        at_ready = await page.at(
            "window.answered && document.getElementById('state').textContent === 'ready'",
            "window.said = document.querySelectorAll('.assistant').length",
        )
        await page.say("I want a drink")
        await page.until(at_ready)
        assert await page.browser.evaluate("window.said") == 1


async def test_an_answer_that_does_not_fit_leaves_the_form(url: str) -> None:
    """A form of an object has a field for each member. What isn't taken is said, and the next answer is."""
    schema = "{type: 'object', properties: {name: {type: 'string'}, age: {type: 'integer'}, old: {type: 'boolean'}}}"
    fill = "const [age, name] = [...box.querySelectorAll('input')].reverse(); age.value = '7'; name.value = 'Ada'"
    async with browsing(url) as page:
        value = f"(() => {{ const [box, read] = fieldOf({schema}); {fill}; return read(); }})()"
        assert await page.browser.evaluate(value) == {"name": "Ada", "age": 7, "old": True}
        await page.say("I want a drink")
        await page.until("document.querySelector('.verdict select') !== null")
        await page.browser.evaluate("document.querySelector('.verdict select').selectedIndex = -1")
        await page.click("button.yes")
        await page.until("document.querySelector('.error') !== null")
        assert "expected a value or an error" in (await page.texts(".error"))[0]
        await page.ready()
        await page.browser.evaluate("document.querySelector('.verdict select').selectedIndex = 0")
        await page.click("button.yes")
        await page.until("document.querySelector('.verdict') === null")
        await page.ready()
        assert "tea" in (await page.texts(".assistant"))[-1]


@pytest.mark.scenario("PE-01")
async def test_what_is_written_while_the_run_works_is_shown_where_the_model_reads_it(url: str) -> None:
    """Behind the calls under way; the run continues with it."""
    async with browsing(url) as page:
        at_work = await page.at(f"{cards('running')} === 3")
        await page.say("What is the weather in Oslo, Rome and Bonn?")
        await page.until(at_work)
        await page.say("Thank you")
        await page.ready()
        assert await page.texts(".unread") == await page.texts(".error") == []
        shown = "[...document.querySelectorAll('.user, .calls')].map(e => e.classList.contains('calls'))"
        assert await page.browser.evaluate(shown) == [False, True, False]
        assert (await page.texts(".user"))[-1] == "Thank you"
        assert "You said: Thank you" in (await page.texts(".assistant"))[-1]


@pytest.mark.scenario("PE-01")
async def test_what_is_written_while_the_run_waits_can_be_taken_back(url: str) -> None:
    """The rest is shown when the run continues."""
    async with browsing(url) as page:
        await page.say("Delete milk")
        await page.until("document.querySelector('.verdict') !== null")
        await page.say("Be brief")
        await page.say("Thank you")
        await page.until("document.querySelectorAll('.unread button').length === 2")
        await page.picture("waiting")
        await page.browser.evaluate("document.querySelector('.unread button').click()")
        await page.until("document.querySelectorAll('.unread').length === 1")
        await page.click("button.no")
        await page.ready()
        assert await page.texts(".user") == ["Delete milk", "Thank you"]
        assert "You said: Thank you" in (await page.texts(".assistant"))[-1]
        assert await page.texts(".error") == []


async def test_cancel_button_ends_the_run(url: str) -> None:
    """The calls under way are cancelled, and the page is ready for the next message."""
    async with browsing(url) as page:
        cancelled = await page.at(f"{cards('running')} === 3", "document.querySelector('#cancel').click()")
        await page.say("What is the weather in Oslo, Rome and Bonn?")
        await page.until(cancelled)
        await page.ready()
        assert await page.browser.evaluate(cards("cancelled")) == 3
        assert "cancelled" in await page.texts(".note")
        await page.picture("cancelled")


@pytest.mark.scenario("VI-07")
async def test_lost_connection_costs_nothing_but_deltas(url: str) -> None:
    """The connection is dropped while calls run, and again while text comes: each call and text is shown once."""
    async with browsing(url) as page:
        drop = "document.querySelector('#drop').click()"
        dropped = await page.at(f"{cards('running')} === 3", drop)
        dropped_again = await page.at("document.querySelector('.partial') !== null", drop)
        await page.say("What is the weather in Oslo, Rome and Bonn?")
        await page.until(dropped)
        await page.until(f"{cards('succeeded')} === 3")
        await page.until(dropped_again)
        await page.ready()
        assert await page.texts(".assistant") == ["Oslo: sun. Rome: sun. Bonn: sun."]
        assert len(await page.texts(".call")) == 3
        assert await page.texts(".error") == []
        await page.picture("reconnected")


async def test_page_that_is_loaded_again_shows_the_run(url: str) -> None:
    """The address names the run; a question that waits is there again."""
    async with browsing(url) as page:
        await page.say("Delete ada")
        await page.until("document.querySelector('.verdict') !== null")
        address: Any = await page.browser.evaluate("location.href")
        await page.browser.evaluate("window.isOld = true")
        await page.browser.evaluate("location.reload()")
        await page.until("!window.isOld && document.querySelector('.verdict') !== null")
        assert await page.browser.evaluate("location.href") == address
        await page.click("button.yes")
        await page.ready()
        assert (await page.texts(".assistant"))[-1] == "ada is deleted."


async def test_text_of_a_message_is_never_markup(url: str) -> None:
    """What a person or a model writes is shown as it is."""
    async with browsing(url) as page:
        await page.say("<img src=x onerror=alert(1)>")
        await page.ready()
        assert await page.browser.evaluate("document.querySelectorAll('#log img').length") == 0
        assert (await page.texts(".user"))[-1] == "<img src=x onerror=alert(1)>"
