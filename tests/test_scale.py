"""The measurements of large sizes start, and their judgement holds; the figures aren't checked here."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BACKENDS = ("asyncio", "trio")
ROOT = Path(__file__).parent.parent


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, found behind everything else so that an installed package stays the one measured."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("benchmarks.scale")


@pytest.mark.slow
@pytest.mark.real_clock
def test_each_kind_of_unit_is_measured_at_two_sizes(scale: ModuleType) -> None:
    """CPU time and memory of each kind on each backend; without a budget there is one pair of samples."""
    lines = scale.measure(BACKENDS, 0.004, 0)

    found = {(line.name, line.backend) for line in lines}
    sizes = ("concurrent runs, 40 against 4", "calls in one turn, 200 against 20", "turns of one call, 80 against 8")
    assert found == {(f"{size}: {what}", one) for size in sizes for what in ("CPU", "memory") for one in BACKENDS}
    assert all(line.value > 0 for line in lines)
    assert {line.note for line in lines} == {"1 pairs", ""}


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_soak_leaves_nothing(scale: ModuleType, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end in every way within a second, and no task, thread or descriptor is left."""
    # Both keep an idle worker thread for ten seconds. Without these names this test only takes longer.
    monkeypatch.setattr("trio._core._thread_cache.IDLE_TIMEOUT", 0.2, raising=False)
    monkeypatch.setattr("anyio._backends._asyncio.WorkerThread.MAX_IDLE_TIME", 0.2, raising=False)
    memory, *left = scale.soak(backend, 1)

    assert memory.value > 0
    assert [(line.name, line.value) for line in left] == [
        ("soak: tasks left", 0),
        ("soak: threads left", 0),
        ("soak: descriptors left", 0),
    ]


@pytest.mark.parametrize(("value", "status", "said"), [(1.1, 0, "met"), (1.11, 1, "missed")])
def test_the_command_fails_on_a_limit_that_is_exceeded(
    scale: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    status: int,
    said: str,
) -> None:
    """What is asked for is measured on the backend named, and the soak has all of its time there."""
    asked = []
    monkeypatch.setattr(scale, "measure", lambda *given: asked.append(given) or [scale.Line("a", "trio", value, 1.1)])
    monkeypatch.setattr(scale, "soak", lambda *given: asked.append(given) or [])

    assert scale.main(["--backend", "trio", "--budget", "5", "--soak", "7"]) == status

    assert asked == [(("trio",), 1.0, 5.0), ("trio", 7.0)]
    assert said in capsys.readouterr().out
