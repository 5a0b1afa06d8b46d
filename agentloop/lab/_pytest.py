"""A test for each journal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentloop.lab._compare import list_sources

if TYPE_CHECKING:
    import pytest


def for_each_journal(folder: str | os.PathLike[str]) -> pytest.MarkDecorator:
    """Return a decorator by which a test runs once for each journal of *folder*, as its argument `journal`.

    The id of each test is the name of its journal, so `pytest -k NAME` repeats one. `folder` may be a file, too.

    Raises:
        UserError: the folder has no journal, or isn't there: a test that compares nothing proves nothing.

    Example:
        import tempfile
        from pathlib import Path

        from agentloop import Agent, lab
        from agentloop.testing import ScriptedModel

        agent = Agent("desk", model=ScriptedModel())  # yours
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "order-1.journal").touch()  # a run of production

            @lab.for_each_journal(folder)
            async def test_it_goes_as_yesterday(journal):
                (await lab.compare(journal, agent)).check()

        print(test_it_goes_as_yesterday.pytestmark[0].args[0])  # journal
    """
    import pytest  # only tests need it

    found = [pytest.param(source, id=name) for name, source in list_sources(folder)]
    return pytest.mark.parametrize("journal", found)
