"""A development server of the engine for the tests of this folder, and clients of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from temporal_engine.server import started

if TYPE_CHECKING:
    from temporal_engine.worker_processes import Workers


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that runs for this session, on this machine alone."""
    with started(tmp_path_factory.mktemp("temporal") / "server.log") as made:
        yield made


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the histories of all tests."""
    return tmp_path_factory.mktemp("histories")


@pytest.fixture
def workers(address: str, tmp_path: Path, histories: Path) -> "Iterator[Workers]":
    """The workers of one test."""
    pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")
    from temporal_engine.worker_processes import Workers

    made = Workers(address, tmp_path, histories)
    yield made
    made.close()
