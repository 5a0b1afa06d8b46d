"""A journal that lends its run for a time: no body starts after that, also if the record of its start is durable."""

from collections.abc import Sequence

import pytest
from kit.agents import script_agent

from agentloop import Runner, tool
from agentloop.exceptions import JournalError
from agentloop.journal import LeasedJournal, MemoryJournal
from agentloop.testing import call, say


class Lent(MemoryJournal):
    """A journal whose lease passes when the start of a call has been appended."""

    passed = False

    def check_lease(self) -> None:
        """Refuse once the lease has passed."""
        if self.passed:
            raise JournalError("the lease has passed")

    async def append(self, records: Sequence[bytes]) -> None:
        """Append, then note the start."""
        await super().append(records)
        self.passed = any(b'"call_started"' in record for record in records)


@pytest.mark.scenario("DU-06")
@pytest.mark.parametrize("timeout", [None, 5.0], ids=["plain", "timed"])
async def test_no_body_starts_when_the_lease_has_passed(timeout: float | None) -> None:
    """The run ends with the journal's error, and its next holder finds a call in doubt."""
    started: list[int] = []

    @tool(timeout=timeout)
    async def act(n: int) -> str:
        """Act."""
        started.append(n)
        return "done"

    journal = Lent()
    assert isinstance(journal, LeasedJournal)
    agent = script_agent("a", [call("act", {"n": 1})], say("over"), tools=[act])
    with pytest.raises(JournalError, match="the lease has passed"):
        await Runner.run(agent, "go", journal=journal)
    assert started == []
    journal.passed = False
    kept = await journal.read()
    following = MemoryJournal()
    await following.append(kept)
    result = await Runner.resume(script_agent("a", say("over"), tools=[act]), following)
    assert started == []
    assert [settled.outcome.status for settled in result.calls] == ["unknown"]
