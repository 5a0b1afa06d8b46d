"""`Browser`: a computer that is a page of a real headless Chromium."""

import json
import os
import shutil
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.processes import processes_with

from agentloop import Agent, Runner
from agentloop.executors import (
    Browser,
    Click,
    Computer,
    ComputerError,
    DoubleClick,
    DragPointer,
    MovePointer,
    Point,
    PressKeys,
    ScrollAt,
    TakeScreenshot,
    TypeText,
    WaitForScreen,
    _browser,
    computer_tool,
    open_browser,
)
from agentloop.items import Image, ToolCall
from agentloop.testing import ScriptedModel, respond, say

INSTALLED = any(map(shutil.which, _browser._PROGRAMS))
pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]
chromium = pytest.mark.skipif(not INSTALLED, reason="no Chromium is installed")

PAGE = """<!doctype html><body style="margin:0; height:3000px">
<input id=field style="position:absolute; left:10px; top:10px; width:200px; height:30px">
<div id=pad style="position:absolute; left:0; top:100px; width:300px; height:200px; background:red"></div>
<script>
const seen = [];
for (const kind of ["mousedown", "mouseup", "dblclick", "mousemove", "contextmenu"])
  pad.addEventListener(kind, e => seen.push([kind, e.offsetX, e.offsetY, e.button, e.shiftKey, e.buttons]));
addEventListener("keydown", e => seen.push(["keydown", e.key, e.ctrlKey]));
</script></body>"""


@asynccontextmanager
async def browsing(tmp_path: Path) -> AsyncIterator[Browser]:
    """Show the page above."""
    await anyio.Path(tmp_path, "page.html").write_text(PAGE)
    # Chromium has no sandbox for root.
    switches = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with open_browser(f"file://{tmp_path}/page.html", width=640, height=480, switches=switches) as browser:
        yield browser


async def seen(browser: Browser) -> list[Any]:
    """Return the page's events since the last question."""
    found: list[Any] = await browser.evaluate("seen.splice(0)")
    return found


@chromium
async def test_the_page_sees_what_a_person_would_do(tmp_path: Path) -> None:
    """Clicks, typing, keys, scrolling and dragging; a screenshot has the display's size."""
    async with browsing(tmp_path) as browser:
        assert isinstance(browser, Computer)
        await browser.perform(Click(x=50, y=20))
        await browser.perform(TypeText(text="héllo"))
        await browser.perform(PressKeys(keys=("BACKSPACE",)))
        await browser.perform(PressKeys(keys=("SHIFT", "x")))
        assert await browser.evaluate("field.value") == "héllx"
        await browser.perform(PressKeys(keys=("ctrl", "a")))
        assert ["keydown", "a", True] in await seen(browser)
        await browser.perform(Click(x=5, y=105, button="right", keys=("SHIFT",)))
        events = await seen(browser)
        assert ["mousedown", 5, 5, 2, True, 2] in events
        await browser.perform(DoubleClick(x=7, y=108))
        assert ["dblclick", 7, 8, 0, False, 0] in await seen(browser)
        await browser.perform(MovePointer(x=9, y=110))
        assert ["mousemove", 9, 10, 0, False, 0] in await seen(browser)
        await browser.perform(DragPointer(path=(Point(10, 110), Point(60, 160), Point(90, 190))))
        kinds = [event for event in await seen(browser) if event[0] != "keydown"]
        assert ["mousedown", 10, 10, 0, False, 1] in kinds
        assert ["mousemove", 60, 60, 0, False, 1] in kinds
        assert kinds[-1] == ["mouseup", 90, 90, 0, False, 0]
        await browser.perform(DragPointer(path=()))
        await browser.perform(ScrollAt(x=100, y=100, scroll_x=0, scroll_y=500))
        with anyio.fail_after(20):
            while not await browser.evaluate("scrollY"):
                await browser.perform(WaitForScreen(seconds=0.01))
        await browser.perform(TakeScreenshot())
        picture = await browser.screenshot()
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == (640, 480)


@chromium
async def test_what_can_not_be_done_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown keys, a page that isn't there, a script that throws, a request that the browser refuses."""
    async with browsing(tmp_path) as browser:
        with pytest.raises(ComputerError, match="there is no key 'HYPER'"):
            await browser.perform(PressKeys(keys=("HYPER",)))
        with pytest.raises(ComputerError, match="'x' can't be held"):
            await browser.perform(Click(x=1, y=1, keys=("x",)))
        with pytest.raises(ComputerError, match="could not be loaded"):
            await browser.open_page(f"file://{tmp_path}/none.html")
        with pytest.raises(ComputerError, match="the script threw"):
            await browser.evaluate("throw 5")
        with pytest.raises(ComputerError, match="wasn't found"):
            await browser._ask("No.such", {})
        with anyio.move_on_after(0):
            await browser.screenshot()
        assert await browser.evaluate("1 + 1") == 2  # the answer of a cancelled request is not taken for another's
        with anyio.CancelScope() as scope:

            async def cancel(descriptor: int) -> None:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

            taken = iter([10])
            write = os.write

            def write_some(descriptor: int, data: bytes) -> int:
                if descriptor != browser._write:
                    return write(descriptor, data)
                for size in taken:
                    return write(descriptor, data[:size])
                raise BlockingIOError

            with monkeypatch.context() as patch:
                patch.setattr(anyio, "wait_writable", cancel)
                patch.setattr(os, "write", write_some)
                await browser.perform(TypeText(text="x"))
        with pytest.raises(ComputerError, match="the browser has ended"):  # it has half a request
            await browser.screenshot()


@chromium
@pytest.mark.scenario("EX-01", "EX-04")
async def test_a_run_with_a_browser(tmp_path: Path) -> None:
    """Two calls of a turn, one after the other; the outputs are pictures of the page after each."""
    actions = [{"type": "click", "x": 50, "y": 20, "button": "left"}, {"type": "type", "text": "typed"}]
    async with browsing(tmp_path) as browser:
        asked = [ToolCall(f"c{n}", "computer", json.dumps({"actions": actions}), kind="computer") for n in range(2)]
        model = ScriptedModel([respond(*asked), say("done")])
        result = await Runner.run(Agent("a", model=model, tools=[computer_tool(browser)]), "go")
        assert result.final_output == "done"
        pictures = [settled.outcome.value for settled in result.calls]
        assert all(isinstance(picture, Image) for picture in pictures)
        assert pictures[0] != pictures[1]
        assert await browser.evaluate("field.value") == "typedtyped"
    with pytest.raises(ComputerError, match="the browser has ended"):
        await browser.screenshot()


@chromium
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="there is no /proc")
async def test_cancelled_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of this browser is left, at whatever moment it is cancelled; others' browsers don't count."""
    monkeypatch.setenv("TEST_OF_BROWSER", str(tmp_path))
    async with browsing(tmp_path):
        assert processes_with(str(tmp_path), "environ")
    for after in (0.0, 0.01, 0.1, 0.4):
        with anyio.move_on_after(after):
            async with browsing(tmp_path):
                await anyio.sleep_forever()
    with anyio.fail_after(20):
        while processes_with(str(tmp_path), "environ"):  # noqa: ASYNC110 - killed, and perhaps not gone yet
            await anyio.sleep(0.01)


async def test_a_browser_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what was looked for, or how the program ended."""
    with pytest.raises(ComputerError, match="/bin/false did not start"):
        async with open_browser(program="/bin/false"):
            pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ComputerError, match="no browser is installed: none of chromium"):
        async with open_browser():
            pass


async def test_a_browser_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The error has the last line of its error output, harmless and short, however much it wrote."""
    failing = tmp_path / "failing"
    for written, said in (
        ("echo first >&2; printf 'no \\033[31msandbox\\n\\n' >&2", r"status \w+\): no \\x1b\[31msandbox$"),
        ("echo api_key=sk-hunter2hunter2hunter2 >&2", r"\[redacted\]"),
        ("seq 100000 >&2", r"status \w+\): \d+$"),
        ("", r"status \w+\)$"),
    ):
        failing.write_text(f"#!/bin/sh\n{written}\nexit 3\n")
        failing.chmod(0o700)
        with pytest.raises(ComputerError, match=said) as caught:
            async with open_browser(program=str(failing)):
                pass
        assert "hunter2" not in str(caught.value)


async def test_a_browser_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and the error names the request."""
    monkeypatch.setattr(_browser, "_REPLY_SECONDS", 0.05)
    monkeypatch.setattr(_browser, "_END_SECONDS", 0.05)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o700)
    with pytest.raises(ComputerError, match=r"didn't answer Target\.createTarget"):
        async with open_browser(program=str(silent)):
            pass
