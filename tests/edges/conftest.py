"""Fixtures that several tests of the edges share."""

from collections.abc import Iterator

import pytest
from edges.door import Door


@pytest.fixture
def door() -> Iterator[Door]:
    """A door that is open at the end, so that no thread stays behind it."""
    made = Door()
    yield made
    made.opened.set()
