"""`Browser`: a `Computer` that is one page of a headless Chromium, driven by its debugging protocol.

The protocol's messages go over two pipes of the process (`--remote-debugging-pipe`), so no port is open and no other
program of the machine can reach the browser. Requests have numbers, and one at a time is waited for: a computer's calls
are serial. Of the events only one matters: a dialog (`alert`, `confirm`) holds its page until it is answered, and so it
holds the answers that we wait for. It is closed while we wait. All other events are skipped.

A page may load itself anew at any moment, also all the time. A question that it gets just then is lost, or answered by
an error. So what changes nothing (is the page loaded, what does it look like) is asked again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import attrs
from anyio.abc import Process

from agentloop._common.child_environment import child_environment
from agentloop._common.error_text import redact
from agentloop._common.terminal_text import format_line
from agentloop.executors._protocols import (
    Click,
    ComputerAction,
    ComputerError,
    Display,
    DoubleClick,
    DragPointer,
    MovePointer,
    PressKeys,
    ScrollAt,
    TakeScreenshot,
    TypeText,
    WaitForScreen,
)

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LONGEST_MESSAGE = 64_000_000
"""Bytes of the longest message that is read: a screenshot in base64 is some 100 thousand."""
_REPLY_SECONDS = 30.0
_REPEAT_SECONDS = 2.0
"""Seconds until a question that changes nothing is asked again."""
_END_SECONDS = 5.0
_MOST_ERROR_BYTES = 65_536
"""Bytes that a pipe holds."""
_SWITCHES = (
    "--headless",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)
_MOST_REPEATS = 12
_PAUSE = 0.1
"""Seconds until a question to a page that is just left is asked again."""
_PATIENCE = 2
"""After so many repetitions the page is kept from being left."""
_PAGE_CHANGED = -32000
"""The protocol's code of a question that met a page which was just left."""
_BUTTONS = {"wheel": "middle"}
"""The protocol's words for buttons, where they differ."""
_MODIFIERS = {"ALT": 1, "OPTION": 1, "CTRL": 2, "CONTROL": 2, "META": 4, "CMD": 4, "SUPER": 4, "SHIFT": 8}
_NAMES = {1: "Alt", 2: "Control", 4: "Meta", 8: "Shift"}
_KEYS = {
    "ENTER": ("Enter", 13, "\r"),
    "RETURN": ("Enter", 13, "\r"),
    "TAB": ("Tab", 9, ""),
    "ESC": ("Escape", 27, ""),
    "ESCAPE": ("Escape", 27, ""),
    "BACKSPACE": ("Backspace", 8, ""),
    "DELETE": ("Delete", 46, ""),
    "SPACE": (" ", 32, " "),
    "HOME": ("Home", 36, ""),
    "END": ("End", 35, ""),
    "PAGEUP": ("PageUp", 33, ""),
    "PAGE_UP": ("PageUp", 33, ""),
    "PAGEDOWN": ("PageDown", 34, ""),
    "PAGE_DOWN": ("PageDown", 34, ""),
    "LEFT": ("ArrowLeft", 37, ""),
    "UP": ("ArrowUp", 38, ""),
    "RIGHT": ("ArrowRight", 39, ""),
    "DOWN": ("ArrowDown", 40, ""),
    "ARROWLEFT": ("ArrowLeft", 37, ""),
    "ARROWUP": ("ArrowUp", 38, ""),
    "ARROWRIGHT": ("ArrowRight", 39, ""),
    "ARROWDOWN": ("ArrowDown", 40, ""),
}
"""Keys by the names that models give them: the protocol's name, its code, and the text that the key types."""


class _PageChangedError(ComputerError):
    """The page was left before it could answer."""


@attrs.define(eq=False, init=False)
class Browser:
    """A `Computer`: one page of a headless Chromium on this machine. Made by `open_browser`."""

    display: Display
    _read: int
    _write: int
    _session: str | None
    _number: int
    _received: bytearray
    _lock: anyio.Lock
    _ended: bool

    def __init__(self, display: Display, read: int, write: int) -> None:
        self.display = display
        self._read, self._write = read, write
        self._session = None
        self._number = 0
        self._received = bytearray()
        self._lock = anyio.Lock()
        self._ended = False

    def mark_ended(self) -> None:
        """Let every further request fail: its descriptors may soon be those of other files."""
        self._ended = True

    async def open_page(self, url: str) -> None:
        """Show the page at *url*, and wait until it has loaded.

        Raises:
            ComputerError: if it can't be loaded.
        """
        answer = await self._ask("Page.navigate", {"url": url})
        if answer.get("errorText"):
            raise ComputerError(f"{url} could not be loaded: {answer['errorText']}")
        while not await self._is_loaded():  # noqa: ASYNC110 - of another process
            await anyio.sleep(0.02)

    async def _is_loaded(self) -> bool:
        params = {"expression": "document.readyState", "returnByValue": True}
        try:
            answer = await self._ask("Runtime.evaluate", params, repeat=True)
        except _PageChangedError:
            return False
        return bool(answer["result"].get("value") == "complete")

    async def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page, as JSON can hold it; of a promise, its result.

        Raises:
            ComputerError: if it throws, or a promise is rejected or not settled in time.
        """
        params = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = await self._ask("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            raise ComputerError(f"the script threw: {answer['exceptionDetails'].get('text')}")
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """Return what the page shows, as a PNG image.

        Raises:
            ComputerError: if the browser has ended or doesn't answer.
        """
        answer = await self._ask("Page.captureScreenshot", {"format": "png"}, repeat=True, stop=True)
        return base64.b64decode(answer["data"])

    async def perform(self, action: ComputerAction) -> None:
        """Do one action.

        Cancellation: between the parts of an action: a button may stay pressed.

        Raises:
            ComputerError: if a key is unknown, or the browser has ended or doesn't answer.
        """
        match action:
            case Click(x=x, y=y, button=button, count=count, keys=keys):
                await self._click(x, y, _BUTTONS.get(button, button), count, _modifiers(keys))
            case DoubleClick(x=x, y=y, keys=keys):
                await self._click(x, y, "left", 2, _modifiers(keys))
            case MovePointer(x=x, y=y, keys=keys):
                await self._pointer("mouseMoved", x, y, modifiers=_modifiers(keys))
            case ScrollAt(x=x, y=y, scroll_x=right, scroll_y=down, keys=keys):
                await self._pointer("mouseWheel", x, y, deltaX=right, deltaY=down, modifiers=_modifiers(keys))
            case DragPointer(path=path, keys=keys):
                held = _modifiers(keys)
                for number, point in enumerate(path):
                    await self._pointer("mouseMoved", point.x, point.y, modifiers=held, buttons=int(number > 0))
                    if number == 0:
                        await self._button("mousePressed", point.x, point.y, "left", 1, held)
                if path:
                    await self._button("mouseReleased", path[-1].x, path[-1].y, "left", 1, held)
            case PressKeys(keys=keys):
                await self._press(keys)
            case TypeText(text=text):
                await self._ask("Input.insertText", {"text": text})
            case WaitForScreen(seconds=seconds):
                await anyio.sleep(seconds)
            case TakeScreenshot():
                pass

    async def _click(self, x: int, y: int, button: str, count: int, held: int) -> None:
        await self._pointer("mouseMoved", x, y, modifiers=held)
        for number in range(1, count + 1):
            await self._button("mousePressed", x, y, button, number, held)
            await self._button("mouseReleased", x, y, button, number, held)

    async def _button(self, kind: str, x: int, y: int, button: str, count: int, held: int) -> None:
        await self._pointer(kind, x, y, button=button, clickCount=count, modifiers=held)

    async def _pointer(self, kind: str, x: int, y: int, **more: Any) -> None:
        await self._ask("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    async def _press(self, keys: Sequence[str]) -> None:
        held = 0
        for key in keys:
            held |= _MODIFIERS.get(key.upper(), 0)
        for key in keys:
            if key.upper() in _MODIFIERS:
                continue
            name, code, text = _key(key)
            fields = {"key": name, "windowsVirtualKeyCode": code, "modifiers": held}
            typed = {"text": text} if text and not held & ~_MODIFIERS["SHIFT"] else {}
            await self._ask("Input.dispatchKeyEvent", {"type": "keyDown", **fields, **typed})
            await self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **fields})

    # -- the protocol

    async def attach(self) -> None:
        """Make the page, and attach to it. `open_browser` calls it once."""
        target = await self._ask("Target.createTarget", {"url": "about:blank"})
        attached = await self._ask("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        self._session = attached["sessionId"]
        await self._ask("Page.enable", {})  # tells of dialogs, and leaves them to us
        size = {"width": self.display.width, "height": self.display.height}
        await self._ask("Emulation.setDeviceMetricsOverride", {**size, "deviceScaleFactor": 1, "mobile": False})

    async def _ask(
        self, method: str, params: Mapping[str, Any], *, repeat: bool = False, stop: bool = False
    ) -> dict[str, Any]:
        """Send a request and return its answer.

        Args:
            method, params: The request.
            repeat: True to send it again while there is no answer, or the page is just left.
            stop: True to keep a page that is left again and again from being left.

        Raises:
            ComputerError: if the browser refuses it, has ended, or doesn't answer in time.
        """
        async with self._lock:
            if self._ended:
                raise ComputerError("the browser has ended")
            answer = await self._find_answer(method, params, _MOST_REPEATS if repeat else 0, stop)
        if answer is None:
            raise ComputerError(f"the browser didn't answer {method} within {_REPLY_SECONDS:g} seconds")
        if "error" in answer:
            said = f"{method}: {answer['error'].get('message')}"
            raise (_PageChangedError if _is_of_a_left_page(answer) else ComputerError)(said)
        result: dict[str, Any] = answer["result"]
        return result

    async def _find_answer(
        self, method: str, params: Mapping[str, Any], repeats: int, stop: bool
    ) -> dict[str, Any] | None:
        asked: set[int] = set()
        answer: dict[str, Any] | None = None
        with anyio.move_on_after(_REPLY_SECONDS):  # noqa: ASYNC912 - each round sends a request, and there is one
            for number in range(repeats + 1):
                if stop and number > _PATIENCE:
                    await self._request("Page.stopLoading", {})
                asked.add(await self._request(method, params))
                with anyio.move_on_after(_REPEAT_SECONDS if number < repeats else math.inf):
                    answer = await self._receive_answer(asked)
                    if not _is_of_a_left_page(answer):
                        break
                    await anyio.sleep(_PAUSE)
        return answer

    async def _request(self, method: str, params: Mapping[str, Any]) -> int:
        """Send a request and return its number."""
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": dict(params)}
        if self._session is not None:
            request["sessionId"] = self._session
        await self._send(json.dumps(request).encode() + b"\0")
        return int(request["id"])

    async def _receive_answer(self, asked: set[int]) -> dict[str, Any]:
        """Return the first answer to one of the requests *asked*, and close dialogs meanwhile."""
        while True:
            message: dict[str, Any] = json.loads(await self._receive())
            if message.get("method") == "Page.javascriptDialogOpening":
                # A page that asks whether it may be left may.
                leaves = message["params"].get("type") == "beforeunload"
                await self._request("Page.handleJavaScriptDialog", {"accept": leaves})
            elif message.get("id") in asked:  # and not of a request that was cancelled
                return message

    async def _send(self, message: bytes) -> None:
        left = message
        try:
            while left:
                try:
                    left = left[os.write(self._write, left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._write)
        except BrokenPipeError:
            raise ComputerError("the browser has ended") from None
        finally:
            self._ended = self._ended or 0 < len(left) < len(message)  # cancelled: half a request can't be taken back

    async def _receive(self) -> bytes:
        while b"\0" not in self._received:
            await anyio.wait_readable(self._read)
            chunk = os.read(self._read, 1_000_000)
            self._received += chunk
            if not chunk or len(self._received) > _LONGEST_MESSAGE:
                raise ComputerError("the browser has ended" if not chunk else "the browser's answer is too long")
        message, _, rest = self._received.partition(b"\0")
        self._received = rest
        return bytes(message)


def _is_of_a_left_page(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("error", {}).get("code") == _PAGE_CHANGED)


def _modifiers(keys: Sequence[str] | None) -> int:
    held = 0
    for key in keys or ():
        if key.upper() not in _MODIFIERS:
            raise ComputerError(f"{key!r} can't be held")
        held |= _MODIFIERS[key.upper()]
    return held


def _key(key: str) -> tuple[str, int, str]:
    if (known := _KEYS.get(key.upper())) is not None:
        return known
    if len(key) == 1:
        return key, ord(key.upper()), key
    raise ComputerError(f"there is no key {key!r}")


def _read_last_line(errors: int) -> str:
    """Return the last line of a browser's error output as the end of a message; nothing if it wrote none."""
    try:
        written = os.read(errors, _MOST_ERROR_BYTES)
    except BlockingIOError:
        return ""
    lines = written.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {format_line(redact(last))}" if last else ""


@contextlib.asynccontextmanager
async def open_browser(
    url: str = "about:blank",
    *,
    width: int = 1280,
    height: int = 800,
    program: str | None = None,
    switches: Sequence[str] = (),
) -> AsyncIterator[Browser]:
    """Start a headless Chromium that shows *url*, and give it as a `Browser`; it ends with the block.

    Its profile is a new folder, removed at the end with all its temporary files. It shares nothing with other browsers
    of this machine, and gets no variable of this process but `PATH`, `HOME` and `LANG`. Dialogs of a page (`alert`,
    `confirm`) are closed as by Escape. As a run's resource: `browser = await ctx.resource(open_browser)`.

    Args:
        url: The page to show first.
        width, height: The size of the page in pixels.
        program: The browser's path, or its name on `PATH`; found on `PATH` by its usual names if not given.
        switches: Further command line switches, such as `--no-sandbox` where the system gives it no sandbox, or
            `--proxy-server=HOST:PORT`. Paths in them are absolute ones: the browser starts in its profile.

    Cancellation: the browser's processes are ended.

    Raises:
        ComputerError: if there is no such program, it doesn't start, or the page can't be loaded.
    """
    found = program or next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        raise ComputerError(f"no browser is installed: none of {', '.join(_PROGRAMS)} is on PATH")
    words = [
        os.path.abspath(shutil.which(found) or found),  # noqa: ASYNC240 - no file is touched
        *_SWITCHES,
        f"--window-size={width},{height}",
        *switches,
    ]
    async with _start_browser(words) as (process, read, write, errors):
        browser = Browser(Display(width=width, height=height), read, write)
        try:
            await browser.attach()
        except ComputerError as error:
            said = _read_last_line(errors)
            raise ComputerError(f"{found} did not start: {error} (status {process.returncode}){said}") from None
        try:
            await browser.open_page(url)
            yield browser
        finally:
            browser.mark_ended()


@contextlib.asynccontextmanager
async def _start_browser(words: Sequence[str]) -> AsyncIterator[tuple[Process, int, int, int]]:
    """Start a browser with a new profile, to end with the block.

    Give its process, and descriptors: to read and write messages, and to read its error output.

    Raises:
        ComputerError: if it can't be started.
    """
    async with contextlib.AsyncExitStack() as stack:
        profile = await stack.enter_async_context(anyio.TemporaryDirectory(ignore_cleanup_errors=True))
        theirs_read, write = os.pipe()
        read, theirs_write = os.pipe()
        errors, theirs_errors = os.pipe()
        stack.callback(os.close, read)
        stack.callback(os.close, errors)
        # While the browser works its error output is not read: what finds no room is dropped, and nothing waits.
        os.set_blocking(errors, False)
        os.set_blocking(theirs_errors, False)
        # The browser reads descriptor 3 and writes 4, which may be taken here: a shell opens them.
        place = f'exec "$@" 3</dev/fd/{theirs_read} 4>/dev/fd/{theirs_write}'
        # It makes a socket in its folder of temporary files. The path of a socket has at most 107 bytes, so the folder
        # is named as seen from the profile, in which the browser starts: a long `TMPDIR` does no harm.
        command = ["/bin/sh", "-c", place, "sh", *words, f"--user-data-dir={profile}"]
        process: Process | None = None
        try:
            with anyio.CancelScope(shield=True):  # a process that has started must have an owner
                process = await anyio.open_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=theirs_errors,
                    start_new_session=True,
                    env=child_environment() | {"TMPDIR": "."},
                    cwd=profile,
                    pass_fds=(theirs_read, theirs_write),
                )
        except OSError as error:
            os.close(write)
            raise ComputerError(f"the browser could not be started: {error}") from error
        finally:
            os.close(theirs_read)
            os.close(theirs_write)
            os.close(theirs_errors)
        assert process is not None  # the scope above is never cancelled itself
        os.set_blocking(write, False)
        try:
            yield process, read, write, errors
        finally:
            os.close(write)  # the browser ends when its pipe does
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(_END_SECONDS):
                    await process.wait()
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.aclose()
