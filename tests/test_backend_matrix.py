"""The fixtures of `conftest.py`: the backend matrix and the leak check."""

import os
import sys
from pathlib import Path

import anyio
import pytest

import agentloop

EAGER = ["asyncio-eager"] if sys.version_info >= (3, 12) else []


def _ids(pytester: pytest.Pytester, test: str, *options: str) -> list[str]:
    """Return the backends a test of the given source is collected for, under the project's own conftest."""
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    path = pytester.makepyfile(f"import pytest\n\n{test}")
    items, _ = pytester.inline_genitems(path, "-p", "no:cacheprovider", "-o", "anyio_mode=auto", *options)
    return [item.name.partition("[")[2].rstrip("]") for item in items]


def test_async_test_runs_on_the_whole_matrix(pytester: pytest.Pytester) -> None:
    """An `async def` needs no marker and no fixture."""
    assert _ids(pytester, "async def test_it(): pass") == ["asyncio", *EAGER, "trio", "trio-virtual"]


def test_real_clock_drops_the_virtual_one(pytester: pytest.Pytester) -> None:
    """A test that waits outside the loop is collected without trio-virtual; nothing is reported as skipped."""
    ids = _ids(pytester, "@pytest.mark.real_clock\nasync def test_it(): pass")
    assert ids == ["asyncio", *EAGER, "trio"]


def test_backends_marker_narrows_the_matrix(pytester: pytest.Pytester) -> None:
    """Only the named backends remain."""
    assert _ids(pytester, "@pytest.mark.backends('trio-virtual')\nasync def test_it(): pass") == ["trio-virtual"]


def test_asyncio_on_a_virtual_clock_is_for_tests_that_name_it(pytester: pytest.Pytester) -> None:
    """A test that doesn't name the backend isn't run there."""
    test = "@pytest.mark.backends('trio-virtual', 'asyncio-virtual')\nasync def test_it(): pass"
    assert _ids(pytester, test) == ["trio-virtual", "asyncio-virtual"]


@pytest.mark.parametrize(
    ("mark", "ids"),
    [
        ("", ["asyncio", "trio-virtual"]),
        ("@pytest.mark.real_clock", ["asyncio", "trio"]),
        ("@pytest.mark.backends('asyncio', 'trio')", ["asyncio", "trio"]),
        ("@pytest.mark.backends('trio-virtual', 'asyncio-virtual')", ["trio-virtual", "asyncio-virtual"]),
        ("@pytest.mark.backends('asyncio')", ["asyncio"]),
    ],
)
def test_trio_once_is_the_virtual_clock_where_the_test_allows_it(
    pytester: pytest.Pytester, mark: str, ids: list[str]
) -> None:
    """Every test that can run on trio runs there exactly once."""
    assert _ids(pytester, f"{mark}\nasync def test_it(): pass", "--backends", "asyncio,trio-once") == ids


def test_plain_test_runs_once(pytester: pytest.Pytester) -> None:
    """A test without async runs without a backend."""
    assert _ids(pytester, "def test_it(): pass") == [""]


LEAKS = """
    import asyncio, threading
    import anyio, pytest, trio

    left, release = [], threading.Event()

    @pytest.mark.backends("asyncio")
    async def test_leaves_an_asyncio_task():
        left.append(asyncio.create_task(asyncio.sleep(60)))

    @pytest.mark.backends("trio")
    async def test_leaves_a_trio_task():
        trio.lowlevel.spawn_system_task(trio.sleep_forever)

    def work(started):
        started.set()
        release.wait(10)

    @pytest.mark.backends("asyncio", "trio")
    async def test_leaves_a_thread():
        started = threading.Event()
        threading.Thread(target=work, args=(started,), daemon=True).start()
        started.wait(10)

    @pytest.mark.backends("asyncio", "trio")
    async def test_leaves_nothing():
        release.set()
        await anyio.to_thread.run_sync(lambda: None)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
"""


@pytest.mark.slow
def test_leak_check_fails_what_leaves_tasks_or_threads(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body passes and its tear-down fails; idle workers and ended tasks are no leak."""
    package = Path(next(iter(agentloop.__path__)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), str(Path(__file__).parent)]))
    conftest = Path(__file__).with_name("conftest.py").read_text()
    pytester.makeconftest(conftest)
    pytester.makepyfile(LEAKS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "anyio_mode=auto", "-k", "not nothing")
    result.assert_outcomes(passed=4, errors=4)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "anyio_mode=auto", "-k", "nothing")
    result.assert_outcomes(passed=2)


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_virtual_clock_is_exact_and_new_for_each_test() -> None:
    """A day passes at once, to the second."""
    start = anyio.current_time()
    await anyio.sleep(86_400)
    assert anyio.current_time() - start == 86_400
