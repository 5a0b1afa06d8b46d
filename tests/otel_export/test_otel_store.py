"""Metrics of a store of runs. The database's answers are made up here; `tests/postgres_store` has a real one."""

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-otel: nox -s tests-otel")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from agentloop.exceptions import UserError
from agentloop.otel import measure_store
from agentloop.postgres import PostgresStore, StoreHealth


class Store(PostgresStore):
    """A store whose database answers what it is told to."""

    asked = 0
    error: str | None = None

    def ask_health(self) -> StoreHealth:
        """Answer, and count the questions."""
        self.asked += 1
        runs, oldest = (
            ({}, {}) if self.error else ({"running": 2, "interrupted": 3}, {"running": 4.0, "interrupted": 5.0})
        )
        return StoreHealth(self.error, 0.1, 0, 0, 0, 4, runs, oldest, 1)


def read(reader: InMemoryMetricReader) -> dict[str, dict[str, Any]]:
    """Return the values of each metric by the runs' status, `""` where there is none."""
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "agentloop"
    found: dict[str, dict[str, Any]] = {}
    for metric in scope.metrics:
        points: Any = metric.data.data_points
        found[metric.name.removeprefix("agentloop.store.")] = {
            str((point.attributes or {}).get("agentloop.run.status", "")): point.value for point in points
        }
    return found


def test_a_store_is_measured() -> None:
    """What it counts, and what its database answers to one question for all metrics of an export."""
    store, reader = Store("host=x"), InMemoryMetricReader()
    measure_store(store, MeterProvider([reader], shutdown_on_exit=False))
    for name, count in (("appends", 7), ("leases", 3), ("take_overs", 1), ("in_doubt", 0), ("leases_lost", 2)):
        store.connections.counts.add(name, count)
    assert read(reader) == {
        "appends": {"": 7},
        "leases": {"": 3},
        "take_overs": {"": 1},
        "leases_lost": {"": 2},
        "calls_in_doubt": {"": 0},
        "leases_held": {"": 0},
        "connections_in_use": {"": 0},
        "runs": {"running": 2, "interrupted": 3},
        "oldest_run": {"running": 4.0, "interrupted": 5.0},
        "runs_waiting": {"": 1},
    }
    assert store.asked == 1


def test_a_database_that_is_away_has_no_metrics() -> None:
    """Those of the process remain; one worker of a fleet is enough for the others."""
    for options, asked in (({}, 1), ({"runs": False}, 0)):
        store, reader = Store("host=x"), InMemoryMetricReader()
        store.error = "away"
        measure_store(store, MeterProvider([reader], shutdown_on_exit=False), **options)
        found = read(reader)
        assert (found["appends"], store.asked) == ({"": 0}, asked)
        assert not {"runs", "oldest_run", "runs_waiting"} & {name for name, points in found.items() if points}


def test_wrong_arguments_are_named() -> None:
    """Before anything is measured."""
    with pytest.raises(UserError, match="store: expected PostgresStore"):
        measure_store("host=x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="runs: expected True or False"):
        measure_store(Store("host=x"), runs=1)  # type: ignore[arg-type]
