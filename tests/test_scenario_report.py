"""The plugin that reports which scenarios passed on which backend."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from plugins.scenarios import ScenarioReport, merged

SUITE = """
    import pytest

    @pytest.fixture(params=["asyncio", "trio-virtual"])
    def anyio_backend(request):
        return (request.param.partition("-")[0], {})

    @pytest.mark.scenario("PL-01", "PL-02")
    def test_on_both(anyio_backend): pass

    @pytest.mark.scenario("PL-02")
    def test_fails_on_trio(anyio_backend):
        assert anyio_backend[0] == "asyncio"

    @pytest.mark.scenario("PL-03")
    def test_pure(): pass

    @pytest.mark.scenario("PL-04")
    @pytest.mark.skip
    def test_skipped(): pass

    @pytest.mark.scenario("PL-05")
    @pytest.mark.xfail
    def test_expected_to_fail(): assert False

    @pytest.fixture
    def broken_at_the_end():
        yield
        raise RuntimeError("late")

    @pytest.mark.scenario("PL-06")
    def test_fails_in_tear_down(broken_at_the_end): pass

    @pytest.fixture
    def broken():
        raise RuntimeError("early")

    @pytest.mark.scenario("PL-07")
    def test_fails_in_set_up(broken): pass

    @pytest.mark.scenario("PL-08")
    class TestGroup:
        @pytest.mark.scenario("PL-09")
        @pytest.mark.parametrize("anyio_backend", ["asyncio-eager"])
        def test_inside(self, anyio_backend): pass
"""

ROWS = {
    "PL-01": {"passed": ["asyncio", "trio"], "failed": []},
    "PL-02": {"passed": ["asyncio"], "failed": ["trio"]},
    "PL-03": {"passed": ["asyncio", "trio"], "failed": []},
    "PL-06": {"passed": [], "failed": ["asyncio", "trio"]},
    "PL-07": {"passed": [], "failed": ["asyncio", "trio"]},
    "PL-08": {"passed": ["asyncio"], "failed": []},
    "PL-09": {"passed": ["asyncio"], "failed": []},
}


def _run(pytester: pytest.Pytester, *options: str) -> dict[str, dict[str, list[str]]]:
    pytester.runpytest_inprocess("-p", "plugins.scenarios", "-p", "no:anyio", "-p", "no:cacheprovider", *options)
    rows: dict[str, dict[str, list[str]]] = json.loads(pytester.path.joinpath("build/scenarios.json").read_text())
    return rows


def test_report_names_the_backends_each_scenario_passed_and_failed_on(pytester: pytest.Pytester) -> None:
    """Variants count as their loop, pure tests as both; any failing phase fails; skips and xfails say nothing."""
    pytester.makepyfile(SUITE)
    assert _run(pytester) == ROWS


def test_partial_run_updates_only_what_it_saw(pytester: pytest.Pytester) -> None:
    """Rows of tests that weren't selected stay, and so does the other backend of those that were."""
    pytester.makepyfile(SUITE)
    pytester.mkdir("build").joinpath("scenarios.json").write_text(
        json.dumps(
            {"PL-03": {"passed": [], "failed": ["asyncio", "trio"]}, "AP-01": {"passed": ["trio"], "failed": []}}
        )
    )
    rows = _run(pytester, "-k", "test_pure or (test_on_both and asyncio)")
    assert rows == {
        "AP-01": {"passed": ["trio"], "failed": []},
        "PL-01": {"passed": ["asyncio"], "failed": []},
        "PL-02": {"passed": ["asyncio"], "failed": []},
        "PL-03": ROWS["PL-03"],
    }


def test_session_without_scenarios_writes_nothing(pytester: pytest.Pytester) -> None:
    """A run of unmarked tests leaves no file and no folder."""
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_inprocess("-p", "plugins.scenarios", "-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert not pytester.path.joinpath("build").exists()


def test_sessions_that_end_together_all_keep_their_verdicts(tmp_path: Path) -> None:
    """Each of twenty writers, eight at a time, finds its own row in the end, the first one's file included."""
    reports = [ScenarioReport(tmp_path / "build" / "scenarios.json") for _ in range(20)]
    for number, report in enumerate(reports):
        report.seen = {(f"PL-{number:02}", "trio"): True}
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(ScenarioReport.pytest_sessionfinish, reports))
    rows = json.loads(reports[0].path.read_text())
    assert rows == {f"PL-{number:02}": {"passed": ["trio"], "failed": []} for number in range(20)}


def test_later_verdict_replaces_the_earlier_one_of_the_same_backend() -> None:
    """A scenario that failed and now passes has passed, and the other way round."""
    known = {"PL-01": {"passed": ["asyncio"], "failed": ["trio"]}}
    assert merged(known, {("PL-01", "asyncio"): False, ("PL-01", "trio"): True}) == {
        "PL-01": {"passed": ["trio"], "failed": ["asyncio"]}
    }
