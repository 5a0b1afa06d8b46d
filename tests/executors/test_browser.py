"""`Browser`: a computer that is a page of a real headless Chromium."""

import json
import os
import shutil
import struct
import tempfile
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
    Display,
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

INSTALLED = next(filter(None, map(shutil.which, _browser._PROGRAMS)), "")
pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]
chromium = pytest.mark.skipif(not INSTALLED, reason="no Chromium is installed")
SWITCHES = ["--no-sandbox"] if os.geteuid() == 0 else []
"""Chromium has no sandbox for root."""

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
    async with open_browser(f"file://{tmp_path}/page.html", width=640, height=480, switches=SWITCHES) as browser:
        yield browser


async def seen(browser: Browser) -> list[Any]:
    """Return the page's events since the last question."""
    found: list[Any] = await browser.evaluate("seen.splice(0)")
    return found


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@chromium
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="there is no /proc")
async def test_a_browser_gets_no_key_of_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do its processes, which run the scripts of strangers."""
    monkeypatch.setenv("TEST_API_KEY", f"sk-{tmp_path}")
    async with browsing(tmp_path):
        assert processes_with(f"user-data-dir={tempfile.gettempdir()}", "cmdline")
        assert processes_with(f"sk-{tmp_path}", "environ") == []


@pytest.mark.slow
@chromium
async def test_any_folder_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket is short, that of the folder need not be; a browser leaves nothing in it."""
    folder = tmp_path / ("long-" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(os.path.dirname(INSTALLED))
    async with open_browser(program=f"./{os.path.basename(INSTALLED)}", switches=SWITCHES) as browser:
        assert await browser.evaluate("6 * 7") == 42
    assert [*folder.iterdir()] == []


async def test_a_program_is_found_by_its_name_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its path is: the browser starts in another folder than this process."""
    program = tmp_path / "some-browser"
    program.write_text("#!/bin/sh\necho it was found >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ComputerError, match="it was found"):
        async with open_browser(program=program.name):
            raise AssertionError


DIALOGS = {
    "at once": "alert(1)",
    "later": "setTimeout(() => alert(1), 20)",
    "many": "for (let n = 0; n < 30; n++) alert(n)",
    "questions": "document.title = String(prompt('x')) + confirm('y')",
    "in a frame": "document.write('<iframe srcdoc=\"<script>alert(1)</script>\"></iframe>')",
    "in another page": "window.open('about:blank').alert(1)",
    "when left": "onbeforeunload = e => { e.preventDefault(); return 'x' }",
    "loads anew": "setTimeout(() => location.search.length < 30 ? location.search += 'x' : 0)",
}


@pytest.mark.slow
@chromium
@pytest.mark.parametrize("name", DIALOGS)
async def test_dialogs_of_a_page_hold_nobody(tmp_path: Path, name: str) -> None:
    """They are closed as by Escape, and the page goes on; a page that asks whether it may be left may be left."""
    page = tmp_path / "dialogs.html"
    await anyio.Path(page).write_text(f"<body style='height:500px'><script>{DIALOGS[name]}</script>hi")
    async with browsing(tmp_path) as browser:
        await browser.open_page(f"file://{page}")
        await browser.perform(Click(x=50, y=50))
        assert (await browser.screenshot()).startswith(b"\x89PNG")
        if name == "questions":
            assert await browser.evaluate("document.title") == "nullfalse"
        await browser.open_page(f"file://{tmp_path}/page.html")
        assert await browser.evaluate("typeof seen") == "object"


class _Pipe:
    """A browser by its messages: gives those of *script*, one for each that it is asked."""

    def __init__(self, *script: list[dict[str, Any]]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._script = list(script)
        self._answers, theirs = os.pipe()
        requests, self._requests = os.pipe()
        self.ends = (self._answers, theirs, requests, self._requests)
        self.browser = Browser(Display(width=1, height=1), self._answers, self._requests)
        self._send, self._read = theirs, requests
        os.set_blocking(self._read, False)

    async def answer(self) -> None:
        """Answer each request with the next messages of the script; `N` in place of an id is the request's."""
        while True:
            await anyio.wait_readable(self._read)
            for text in os.read(self._read, 100_000).split(b"\0")[:-1]:
                self.asked.append(json.loads(text))
                for message in self._script.pop(0) if self._script else []:
                    given = message | ({"id": self.asked[-1]["id"]} if message.get("id") == "N" else {})
                    os.write(self._send, json.dumps(given).encode() + b"\0")


@pytest.mark.parametrize("lost", ["silent", "left"])
async def test_what_changes_nothing_is_asked_again(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that a page which is just left has lost; and such a page is kept from being left at last."""
    monkeypatch.setattr(_browser, "_REPEAT_SECONDS", 0.01 if lost == "silent" else 600)
    monkeypatch.setattr(_browser, "_PAUSE", 0)
    left = {"id": "N", "error": {"code": -32000, "message": "Not attached to an active page"}}
    miss: list[dict[str, Any]] = [] if lost == "silent" else [left]
    stopped: list[dict[str, Any]] = [{"id": "N", "result": {}}]
    pipe = _Pipe(miss, miss, miss, stopped, [{"id": "N", "result": {"data": "UE5H"}}], [left])
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipe.answer)
            assert await pipe.browser.screenshot() == b"PNG"
            methods = [each["method"] for each in pipe.asked]
            assert methods[:5] == ["Page.captureScreenshot"] * 3 + ["Page.stopLoading", "Page.captureScreenshot"]
            with pytest.raises(ComputerError, match="Not attached"):
                await pipe.browser.evaluate("1")
            tasks.cancel_scope.cancel()
    finally:
        for end in pipe.ends:
            os.close(end)


async def test_a_dialog_is_closed_while_an_answer_is_waited_for() -> None:
    """And what closes it is not taken for the answer."""
    opened = {"method": "Page.javascriptDialogOpening", "params": {"type": "alert"}}
    leaving = {"method": "Page.javascriptDialogOpening", "params": {"type": "beforeunload"}}
    closed = {"id": "N", "result": {}}
    pipe = _Pipe(
        [opened],
        [closed, {"method": "Page.frameNavigated"}, leaving],
        [closed, {"id": 1, "result": {"result": {"value": 7}}}],
    )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipe.answer)
            assert await pipe.browser.evaluate("x") == 7
            tasks.cancel_scope.cancel()
        assert [each["params"].get("accept") for each in pipe.asked] == [None, False, True]
    finally:
        for end in pipe.ends:
            os.close(end)


@chromium
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="there is no /proc")
@pytest.mark.slow
async def test_cancelled_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of this browser is left, at whatever moment it is cancelled; others' browsers don't count."""
    # One of the few variables that a browser gets.
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{tmp_path}")
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
