"""The servers: uvicorn, and hypercorn on asyncio and trio, each in a process of its own."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import anyio
import pytest
from web.served import GRACE
from web.servers import KINDS, Server, serve, stream

pytest.importorskip("uvicorn", reason="needs servers and frameworks: nox -s tests-web")
pytest.importorskip("hypercorn", reason="needs servers and frameworks: nox -s tests-web")

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.backends("asyncio"), pytest.mark.timeout(300)]

IS_WHOLE = os.environ.get("WEB_LOAD") == "whole"
CLIENTS = 200 if IS_WHOLE else 40


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server under way."""
    with serve(request.param, tmp_path) as made:
        yield made


@pytest.mark.scenario("VI-06")
async def test_run_ends_when_its_client_leaves(server: Server) -> None:
    """The body's cleanup is over, its call has settled, and nothing of the run is left."""
    before = await server.status()
    async with stream(server, "POST", "/cancel/runs", json={"input": "hold 600"}) as reading:
        await reading.until("call_settled")  # of the other call
    after = await server.status(tasks=before["tasks"], live=0)
    assert (after["started"], after["settled"], after["cleaned"]) == (2, 2, 1)
    assert (after["begun"], after["over"], after["live"]) == (1, 1, 0)
    assert after["tasks"] <= before["tasks"]


@pytest.mark.scenario("VI-07")
async def test_client_that_comes_back_reads_the_rest(server: Server) -> None:
    """The run continues without it; every recorded event comes once, in order."""
    async with stream(server, "POST", "/continue/runs", json={"input": "hold 0.5"}) as first:
        await first.until("call_started")
    seen = [(frame.number, frame.data) for frame in first.frames if frame.number]
    last = {"last-event-id": str(seen[-1][0])}
    async with stream(server, "GET", f"/continue/runs/{first.run}/events", headers=last) as second:
        await second.until()
    async with stream(server, "GET", f"/continue/runs/{first.run}/events") as whole:
        await whole.until()
    rest = [(frame.number, frame.data) for frame in second.frames if frame.number]
    assert seen + rest == [(frame.number, frame.data) for frame in whole.frames]
    assert whole.frames[-1].data["status"] == "completed"


@pytest.mark.parametrize("path", ["/cancel", "/continue"])
async def test_shutdown_ends_runs_within_their_grace(server: Server, path: str) -> None:
    """SIGTERM while runs are under way: their cleanup is over when the process ends, in time."""
    async with stream(server, "POST", f"{path}/runs", json={"input": "hold 600"}) as reading:
        await reading.until("call_settled")
        began = monotonic()
        status = await anyio.to_thread.run_sync(server.terminate)
        assert monotonic() - began < GRACE + 15
    assert (status["cleaned"], status["live"], status["started"], status["settled"]) == (1, 0, 2, 2)


async def test_client_that_reads_nothing_neither_hangs_the_shutdown_nor_grows_the_memory(server: Server) -> None:
    """The run waits for it: twenty million bytes of events are never made."""
    before = await server.status()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        body = b'{"input": "talk 8000000"}'
        head = b"POST /cancel/runs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        client.sendall(head % server.port + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        received = client.recv(16)
        assert received.startswith(b"HTTP/1.1 200")
        while b"agent_updated" not in received:  # the head comes before the run has begun
            received += client.recv(64)
        status = await anyio.to_thread.run_sync(server.terminate)
    assert status["live"] == 0
    assert status["begun"] == status["over"] == 1
    assert status["memory"] - before["memory"] < 120_000_000


async def test_many_clients_of_which_half_leave_leave_nothing_behind(server: Server) -> None:
    """No task, no thread, no descriptor, and every call that started has settled."""
    async with stream(server, "POST", "/cancel/runs", json={"input": "hold 0"}) as reading:
        await reading.until()  # threads and modules of the first run stay
    before = await server.status()
    whole: list[str] = []

    async def client(number: int) -> None:
        path, stays = ("/cancel", "/continue")[number % 4 // 2], number % 2
        seconds = 0.3 if stays or path == "/continue" else 600
        async with stream(server, "POST", f"{path}/runs", json={"input": f"hold {seconds}"}) as reading:
            await reading.until(None if stays else "call_started")
        if stays:
            whole.append(reading.frames[-1].data["status"])

    async with anyio.create_task_group() as group:
        for number in range(CLIENTS):
            group.start_soon(client, number)
    assert whole == ["completed"] * (CLIENTS // 2)
    after = await server.status(live=0, tasks=before["tasks"], descriptors=before["descriptors"])
    assert after["begun"] == after["over"] == CLIENTS + 1
    assert after["started"] == after["settled"]
    assert after["live"] == 0
    assert after["tasks"] <= before["tasks"]
    assert after["descriptors"] <= before["descriptors"]
    assert server.terminate()["live"] == 0
