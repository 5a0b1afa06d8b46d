"""Combinations that don't exist are absent: there is no native cancellation on trio."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop the tests that would cancel a trio task natively."""
    items[:] = [item for item in items if not _native_on_trio(item)]


def _native_on_trio(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("cancelled") == "native" and str(params.get("anyio_backend", "")).startswith("trio")
