"""The way of one request: from where its journal stands to an end, entry after entry, with verdicts in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

from agentloop.cli.ending import Ending, ending_of, past_ending
from agentloop.cli.folder import FolderError
from agentloop.cli.job import Job
from agentloop.items import to_items
from agentloop.journal import FileJournal
from agentloop.results import RunResult
from agentloop.state import RunState

Entry = Callable[[str | RunState, dict[str, Any]], Awaitable[RunResult[Any]]]
"""Runs an agent on what is given, with options of `Runner`, and returns the result."""


@attrs.frozen
class Course:
    """One request of *job*. `line` is None where it is the only one."""

    job: Job
    request: str
    line: int | None = None

    async def run(self, entry: Entry, ready: Callable[[], Awaitable[None]]) -> Ending:
        """Bring the request to its end, or to where verdicts are missing; *ready* is awaited before an agent runs.

        What has ended for good in an earlier process is told of again, and not run.

        Raises:
            Exception: what the run raised, now or then.
        """
        if self.job.folder is None:
            return await self._go_on(self.request, None, entry, ready)
        path = self.job.folder.journal(self.line)
        async with FileJournal(path) as journal:
            given: str | RunState = self.request
            if await journal.read():
                given = await RunState.from_journal(self.job.agent, journal)
                self._check(given, path)
                if (ending := past_ending(given)) is not None:
                    return ending
            return await self._go_on(given, journal, entry, ready)

    def _check(self, state: RunState, path: Path) -> None:
        if state.fold.input != tuple(to_items(self.request)):
            raise FolderError(f"{path} is the journal of another request")

    async def _go_on(
        self, given: str | RunState, journal: FileJournal | None, entry: Entry, ready: Callable[[], Awaitable[None]]
    ) -> Ending:
        await ready()
        where = "" if self.line is None else f"line {self.line}"
        while True:
            result = await entry(given, self.job.options(is_fresh=isinstance(given, str), journal=journal))
            if not result.interruptions:
                break
            state: RunState = result.to_state()
            if not await self.job.approver.decide(state, where):
                break
            given = state
        return ending_of(result)
