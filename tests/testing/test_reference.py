"""The reference of `agentloop.testing` is complete."""

import re
from pathlib import Path

from agentloop import testing
from agentloop.testing import conformance

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def test_every_public_name_of_testing_has_an_entry() -> None:
    """Each name has an entry on the page of testing, or on that of what it tests."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    entries = set(re.findall(r"^\.\. (?:auto\w+|py:data):: (?:[\w.]+\.)?(\w+)", pages, re.MULTILINE))
    assert {*testing.__all__, *conformance.__all__} <= entries, {*testing.__all__} - entries
