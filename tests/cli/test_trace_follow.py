"""`agentloop trace --follow`: a page that grows with its journal, for this machine's browser alone."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
from click.testing import Result
from lab.shop import record
from timeline.serving import HEADER, append, served
from timeline.stories import Story, every_ending, long_run

from agentloop import lab
from agentloop import records as r
from agentloop.cli import trace_server
from agentloop.cli.trace import TracedJournal
from agentloop.cli.trace_server import format_change
from agentloop.journal import FileJournal, SQLiteJournal
from agentloop.tracing import Timeline, read_timeline
from agentloop.tracing._timeline_page import FACT_CHARS, moments_to_json

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(60)]
Start = Callable[..., "subprocess.Popen[str]"]


class Page:
    """What the page's script knows: the rows, put together from the events of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.rows: list[Any] = []
        self.head: dict[str, Any] = {"records": 0}
        self.moments: dict[str, Any] = {}
        self.received = 0
        """How many rows the events have had, repeated ones included."""

    async def next(self) -> str:
        """Wait for the next event, take it in, and return its kind."""
        kind = ""
        async for line in self._lines:
            if line == ": still here":
                return "still here"
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                if kind == "change":
                    self.head = data["head"]
                    del self.rows[data["count"] :]
                    self.received += len(data["rows"])
                    for index, row in data["rows"]:
                        self.rows[index : index + 1] = [row]
                    if (part := data.get("moments")) is not None:
                        known = self.moments if part["from"] else {"lines": [], "calls": [], "steps": []}
                        assert part["from"] == len(known["steps"])
                        self.moments = {name: [*known[name], *part[name]] for name in known}
                return kind if kind == "change" else f"{kind}: {data}"
        raise AssertionError("the stream has ended")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Take events in until *holds* is true."""
        while not holds():
            assert await self.next() in ("change", "still here")  # the latter where the machine is slow

    async def has(self, records: int) -> None:
        """Take events in until the page shows that many records."""
        await self.until(lambda: self.head["records"] >= records)

    @property
    def names(self) -> list[str]:
        return [row["n"] for row in self.rows]


async def lines_of(stream: anyio.abc.SocketStream) -> AsyncIterator[str]:
    """Yield the lines of an answer, without its chunks: the request was one of HTTP 1.0."""
    text = b""
    while True:
        text += await stream.receive()
        *lines, text = text.split(b"\n")
        for line in lines:
            yield line.decode().rstrip("\r")


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Page]:
    """Read the events of the page at *url*."""
    _, _, host, path = url.split("/", 3)
    port = int(host.partition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream, aclosing(lines_of(stream)) as lines:
        await stream.send(f"GET /{path}events HTTP/1.0\r\nhost: {host}\r\n\r\n".encode())
        assert await anext(lines) == "HTTP/1.1 200 "
        async for line in lines:
            if not line:
                break
        with anyio.fail_after(20):
            yield Page(lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_what_a_run_appends_is_on_the_page(tmp_path: Path, kind: str) -> None:
    """Each event has the rows that changed, and no others; a client that comes later gets all of them."""
    path, records = tmp_path / "journal", every_ending()
    journal = FileJournal(path) if kind == "file" else SQLiteJournal(path, "7f3a91c2")
    async with journal:
        await journal.append([HEADER])
        async with served(path) as url, reading(url) as page:
            for first in range(0, len(records), 25):
                batch = records[first : first + 25]
                await append(journal, batch)
                await page.has(first + len(batch))
            async with reading(url) as later:
                await later.until(lambda: later.rows == page.rows)
    assert "invoice" in page.names
    assert page.head["status"] == "failed"


async def test_what_a_database_shows_later_than_its_files_is_read_too() -> None:
    """It has written, and shows what it wrote only after the look that saw the new stamp; no other stamp comes."""
    records = every_ending()
    shown = [read_timeline(records[:40]), read_timeline(records)]

    def read() -> tuple[Timeline, None]:
        return (shown.pop(0) if len(shown) > 1 else shown[0]), None

    followed = trace_server.FollowedJournal(lambda: "written", read)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(followed.watch)
            while len(shown) > 1 or len(followed.rows) < len(shown[0].rows):
                await followed.changed.wait()
            tasks.cancel_scope.cancel()
    assert len(followed.rows) > 1


@pytest.mark.slow
@pytest.mark.scenario("LB-17")
async def test_the_moments_of_a_growing_journal_are_those_of_the_whole(tmp_path: Path) -> None:
    """Each event has those that are new; a journal that takes its place begins again, a later client gets all."""
    path, records = tmp_path / "journal", await record("nested", 3)
    wanted = json.loads(json.dumps(moments_to_json(lab.list_moments(records), records[0].at, FACT_CHARS[0])))
    async with served(path) as url, reading(url) as page:
        async with FileJournal(path) as journal:
            await journal.append([HEADER])
            for first in range(0, len(records), 4):
                await append(journal, records[first : first + 4])
                await page.until(lambda: len(page.moments.get("steps", ())) >= min(first + 4, len(records)))  # noqa: B023
        assert page.moments == wanted
        async with reading(url) as later:
            await later.until(lambda: later.moments == wanted)
        path.unlink()
        async with FileJournal(path) as journal:
            await journal.append([HEADER])
            await append(journal, records[:3])
        await page.until(lambda: len(page.moments["steps"]) == 3)


async def test_a_log_that_no_run_could_have_written_has_no_moments(tmp_path: Path) -> None:
    """Its rows are shown all the same; and so are those of a page without contents."""
    path, records = tmp_path / "journal", await record("nested", 3)
    async with FileJournal(path) as journal:
        await journal.append([HEADER])
        await append(journal, [records[0], records[-1], records[-1]])
    async with served(path) as url, reading(url) as page:
        await page.has(3)
        assert page.moments == {}
    _, moments = TracedJournal(path).follow(content=False)()
    assert moments is None


async def test_a_journal_that_is_damaged_meanwhile_is_said_so(tmp_path: Path) -> None:
    """The page keeps what it has, and goes on when the journal can be read again."""
    path = tmp_path / "journal"
    async with FileJournal(path) as journal:
        await append(journal, [])
        await journal.append([HEADER])
        await append(journal, every_ending()[:10])
    whole = path.read_bytes()
    async with served(path) as url, reading(url) as page:
        await page.until(lambda: "search" in page.names or len(page.rows) > 3)
        path.write_bytes(whole.replace(b"run_started", b"run_sta_ted"))
        assert "line 2" in await page.next()
        path.write_bytes(whole + b"torn")
        async with FileJournal(path) as journal:
            await append(journal, every_ending()[10:20])
        await page.until(lambda: "slow" in page.names and len(page.rows) > 8)


async def test_a_journal_without_a_record_gets_its_rows_later(tmp_path: Path) -> None:
    """An empty timeline is sent first; the page says that no run has begun."""
    path = tmp_path / "journal"
    path.touch()
    async with served(path) as url, reading(url) as page:
        assert await page.next() == "change"
        assert page.rows == []
        async with FileJournal(path) as journal:
            await journal.append([HEADER])
            await append(journal, every_ending()[:2])
        await page.until(lambda: page.names == ["desk", "Turn 1 · desk"])


@pytest.mark.slow
async def test_a_change_of_a_long_journal_sends_few_rows(tmp_path: Path) -> None:
    """Forty records at the end of ten thousand send the rows that they change, not the rows before."""
    path, records = tmp_path / "journal", list(long_run(10_000))
    async with FileJournal(path, fsync="never") as journal:
        await journal.append([HEADER])
        await append(journal, records[:-200])
        async with served(path) as url, reading(url) as page:
            await page.has(len(records) - 200)
            whole, page.received = page.received, 0
            for first in range(len(records) - 200, len(records), 40):
                await append(journal, records[first : first + 40])
                await page.has(min(first + 40, len(records)))
    assert whole > 4_000
    assert 0 < page.received < 300


@pytest.mark.scenario("SM-15")
async def test_only_the_page_itself_is_answered(tmp_path: Path) -> None:
    """Another path, method, host or origin gets nothing of the run, and what is no HTTP gets no answer."""
    path = tmp_path / "journal"
    async with FileJournal(path) as journal:
        await journal.append([HEADER])
        await append(journal, every_ending()[:2])
    async with served(path) as url, httpx.AsyncClient() as client:
        page = await client.get(url)
        assert page.status_code == 200
        assert "EventSource" in page.text
        assert page.headers["x-content-type-options"] == "nosniff"
        origin = url.rsplit("/", 2)[0]
        localhost = origin.removeprefix("http://").replace("127.0.0.1", "localhost")
        assert (await client.get(url, headers={"host": localhost})).status_code == 200
        for response in (
            await client.get(f"{origin}/"),
            await client.get(f"{origin}/x/events"),
            await client.post(url),
            await client.get(url, headers={"host": "evil.example"}),
            await client.get(url, headers={"origin": "https://evil.example"}),
            await client.get(url, headers={"origin": "null"}),
        ):
            assert response.status_code in (403, 404)
            assert "desk" not in response.text
        port = int(origin.rpartition(":")[2])
        for sent in (b"\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x"):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(sent)
                await stream.send_eof()
                with pytest.raises(anyio.EndOfStream):
                    while True:
                        assert b"desk" not in await stream.receive()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "CONNECT", "PRI"])
async def test_no_request_ends_the_server(tmp_path: Path, method: str) -> None:
    """Pages of other sites may send any: each gets an answer that ends, and the page is served afterwards."""
    path = tmp_path / "journal"
    path.touch()
    async with served(path) as url, httpx.AsyncClient() as client:
        _, _, host, secret = url.split("/", 3)
        for target in ("/", f"/{secret}", f"/{secret}x"):
            async with await anyio.connect_tcp("127.0.0.1", int(host.partition(":")[2])) as stream:
                await stream.send(f"{method} {target} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                answer = b"".join([piece async for piece in stream])
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 ")
            assert bool(body) is (method != "HEAD")
        assert (await client.get(url)).status_code == 200


async def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none takes the last descriptor: one above the limit takes the place of the oldest that asks for nothing.

    Where each has its page, it is closed; when one of them ends, it has room.
    """
    monkeypatch.setattr(trace_server, "_MOST_CONNECTIONS", 2)
    path = tmp_path / "journal"
    path.touch()
    async with served(path) as url:
        port = int(url.split(":")[2].partition("/")[0])
        async with reading(url) as page:
            assert await page.next() == "change"
            async with await anyio.connect_tcp("127.0.0.1", port) as silent, reading(url) as other:
                assert await other.next() == "change"
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await silent.receive()
                async with await anyio.connect_tcp("127.0.0.1", port) as refused:
                    with pytest.raises(anyio.EndOfStream):
                        await refused.receive()
        with anyio.fail_after(20):
            while True:
                try:
                    async with reading(url) as page:
                        assert await page.next() == "change"
                        return
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    continue  # the server has not seen yet that the others have ended


async def test_many_connections_that_say_nothing_do_not_keep_the_page_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is closed by a later one, and the owner's request is answered at once, however often they come."""
    monkeypatch.setattr(trace_server, "_PATIENCE", 3_600.0)
    monkeypatch.setattr(trace_server, "_MOST_CONNECTIONS", 3)
    path = tmp_path / "journal"
    path.touch()
    async with served(path) as url, httpx.AsyncClient() as client, AsyncExitStack() as held:
        port = int(url.split(":")[2].partition("/")[0])
        for _ in range(3):
            for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"):
                stream = await held.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
                if sent:
                    await stream.send(sent)
            assert (await client.get(url)).status_code == 200


async def test_a_client_that_says_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time for a request the connection is closed; a stream without changes gets signs of life."""
    monkeypatch.setattr(trace_server, "_PATIENCE", 0.05)
    monkeypatch.setattr(trace_server, "_SIGN_OF_LIFE", 0.05)
    path = tmp_path / "journal"
    path.touch()
    async with served(path) as url:
        port = int(url.split(":")[2].partition("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
        async with reading(url) as page:
            assert await page.next() == "change"
            assert await page.next() == "still here"


def test_an_event_has_the_changed_rows_alone() -> None:
    """New ones, those with another text, and the number of all."""
    event = format_change(b'{"a":1}', [b"0", b"9", b"2", b"3"], [b"0", b"1", b"2"])
    assert event == b'event: change\ndata: {"count":4,"head":{"a":1},"rows":[[1,9],[3,3]]}\n\n'


@pytest.mark.slow
def test_ctrl_c_ends_the_command(start: Start, tmp_path: Path, backend: str) -> None:
    """It prints the address first; the port is closed when it has ended."""
    path = tmp_path / "journal"
    story = Story()
    anyio.run(_write_story, path, story.records)
    child = start("trace", str(path), "--follow", "--backend", backend)
    assert child.stdout is not None
    url = child.stdout.readline().strip()
    assert httpx.get(url).status_code == 200
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    port = int(url.split(":")[2].partition("/")[0])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


async def _write_story(path: Path, records: list[r.Record]) -> None:
    async with FileJournal(path) as journal:
        await journal.append([HEADER])
        await append(journal, records)


def test_a_page_is_served_or_written(invoke: Callable[..., Result], tmp_path: Path) -> None:
    """Both at once is a wrong use."""
    path = tmp_path / "journal"
    path.touch()
    assert invoke("trace", str(path), "--follow", "--html", os.devnull).exit_code == 2


def test_a_server_that_cannot_start_is_an_error(
    invoke: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives no port."""

    async def refuse(**fields: Any) -> Awaitable[Any]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(anyio, "create_tcp_listener", refuse)
    path = tmp_path / "journal"
    path.touch()
    refused = invoke("trace", str(path), "--follow")
    assert refused.exit_code == 1
    assert "Too many open files" in refused.stderr
