"""Metrics of a store of runs: what this process has done with it, and how many runs of its database wait for what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agentloop._common.checks import NAMES, check
from agentloop._common.errors import UserError
from agentloop._common.extras import describe_missing
from agentloop._common.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider, Observation

    from agentloop.postgres import PostgresStore, StoreHealth

_STATUS = "agentloop.run.status"
_COUNTERS = {
    "appends": ("appends", "{append}", "Appends of records to journals."),
    "leases": ("leases", "{lease}", "Leases taken."),
    "take_overs": ("take_overs", "{lease}", "Leases taken of runs that another worker hadn't given back."),
    "leases_lost": (
        "leases_lost",
        "{lease}",
        "Leases lost, because this worker or the database didn't answer in time.",
    ),
    "in_doubt": ("calls_in_doubt", "{call}", "Calls whose outcome is unknown."),
}
_FRESH = 1.0
"""Seconds for which an answer of the database is used: all metrics of one export are from one question."""


def measure_store(store: PostgresStore, meter_provider: MeterProvider | None = None, *, runs: bool = True) -> None:
    """Add the metrics of *store* to a meter provider. Call it once for each store.

    Of this process: appends; leases taken, taken over, lost and held; connections in use; calls in doubt. Of the
    database, which is asked at each export in the exporter's thread: how many runs are running and interrupted, the age
    of the oldest of each, and how many wait for a person. No attribute holds an id or content. While the database
    can't be asked, its metrics are missing.

    Args:
        store: The store.
        meter_provider: The provider; the global one if it is None.
        runs: False to leave out the metrics of the database. One worker of a fleet is enough for them.

    Raises:
        UserError: the extra `otel` is not installed, or an argument is wrong.
    """
    from agentloop.postgres import PostgresStore

    check("store", NAMES.a(PostgresStore), store)
    check("runs", NAMES.flag(), runs)
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise UserError(describe_missing("measure_store", "otel")) from None
    meter = metrics.get_meter("agentloop", __version__, meter_provider=meter_provider)
    seen = _SeenStore(store, metrics.Observation)
    for counted, (name, unit, description) in _COUNTERS.items():
        meter.create_observable_counter(f"agentloop.store.{name}", [seen.count(counted)], unit, description)
    gauges = [
        ("leases_held", "{lease}", "Leases held.", seen.leases),
        ("connections_in_use", "{connection}", "Connections of the store in use.", seen.connections),
    ]
    if runs:
        gauges += [
            ("runs", "{run}", "Runs of the database that aren't over.", seen.runs),
            ("oldest_run", "s", "Time since the oldest run of a status came to it.", seen.oldest),
            ("runs_waiting", "{run}", "Runs that wait for a verdict or an answer.", seen.waiting),
        ]
    for name, unit, description, observe in gauges:
        meter.create_observable_gauge(f"agentloop.store.{name}", [observe], unit, description)


class _SeenStore:
    """The callbacks of a store's metrics. The meter calls them one after the other, in any thread."""

    def __init__(self, store: PostgresStore, observation: type[Observation]) -> None:
        self._store = store
        self._observation = observation
        self._lock = threading.Lock()
        self._health: StoreHealth | None = None
        self._asked_at = 0.0

    def count(self, counted: str) -> Callable[[Any], Iterable[Observation]]:
        """Return the callback of one of the store's counts."""
        return lambda _: [self._observation(self._store.connections.counts.values[counted])]

    def leases(self, _: Any) -> Iterable[Observation]:
        """Observe the leases that are held."""
        return [self._observation(self._store.count_leases())]

    def connections(self, _: Any) -> Iterable[Observation]:
        """Observe the connections in use."""
        return [self._observation(self._store.connections.in_use)]

    def runs(self, _: Any) -> Iterable[Observation]:
        """Observe the runs that aren't over, by their status."""
        health = self._ask()
        return [self._observation(count, {_STATUS: status}) for status, count in health.runs.items()]

    def oldest(self, _: Any) -> Iterable[Observation]:
        """Observe the age of the oldest run of each status."""
        health = self._ask()
        return [self._observation(seconds, {_STATUS: status}) for status, seconds in health.oldest.items()]

    def waiting(self, _: Any) -> Iterable[Observation]:
        """Observe how many runs wait for a person."""
        health = self._ask()
        return [] if health.error is not None else [self._observation(health.waiting)]

    def _ask(self) -> StoreHealth:
        """Return the health of the store, asked within the last second. Blocks."""
        with self._lock:
            if self._health is None or time.monotonic() - self._asked_at > _FRESH:
                self._health, self._asked_at = self._store.ask_health(), time.monotonic()
            return self._health
