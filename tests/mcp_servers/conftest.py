"""Servers for the tests of MCP, closed after each test."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_servers.processes import Servers, children


@pytest.fixture(params=["stdio", "http"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """The servers of one transport."""
    made = Servers(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def stdio(tmp_path: Path) -> Servers:
    """Servers by stdio."""
    return Servers("stdio", tmp_path)


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Servers]:
    """Servers by HTTP."""
    made = Servers("http", tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    """Fail if a process that the test started is left."""
    before = children()
    yield
    gc.collect()  # what warns of a generator does so here, where the test's filter holds
    assert children() <= before
