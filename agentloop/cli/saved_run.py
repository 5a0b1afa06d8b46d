"""One request: resumed from its journal or begun, run segment after run segment with verdicts between, and its result.

Does not know how events are shown: the caller passes a function that runs one segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentloop._common.masking import MASK
from agentloop._storage.withholding import Withheld, WithheldText
from agentloop.agents._graph import AgentGraph
from agentloop.cli.errors import PastError
from agentloop.cli.journal_folder import FolderError
from agentloop.cli.run_options import CliOptions
from agentloop.items import Interruption
from agentloop.journal import FileJournal
from agentloop.records import Record
from agentloop.results import RunResult
from agentloop.state import RunState
from agentloop.usage import Usage


@attrs.frozen(kw_only=True)
class RunSummary:
    """The result of a run that raised nothing. `agent` is the name of the last active agent.

    `records` are the run's log; those of a request among many, which nothing shows, are left out.
    """

    status: str
    final_output: Any
    stop_reason: str | None
    agent: str
    usage: Usage
    waiting: tuple[Interruption, ...] = ()
    records: Sequence[Record] = ()


def summary_of(result: RunResult[Any]) -> RunSummary:
    """Return the summary of *result*."""
    return RunSummary(
        status=result.status,
        final_output=result.final_output,
        stop_reason=result.stop_reason,
        agent=result.last_agent.name,
        usage=result.usage,
        waiting=result.interruptions,
        records=result.records,
    )


def stored_summary(state: RunState) -> RunSummary | None:
    """Return the summary of a run that has completed, or None if it can be resumed.

    Raises:
        PastError: if it has ended for good without completing.
    """
    fold = state._fold
    end = fold.ended
    if end is None or end.resumable:
        return None
    if end.status != "completed":
        raise PastError.of(end.error or end.status, end.details)
    output = end.final_output
    agent = AgentGraph(state.agent).find(fold.agent)
    return RunSummary(
        status=end.status,
        final_output=MASK if isinstance(output, Withheld | WithheldText) else output,
        stop_reason=end.stop_reason,
        agent=fold.agent if agent is None else agent.name,
        usage=fold.usage,
        records=state.records,
    )


Entry = Callable[[str | RunState, dict[str, Any]], Awaitable[RunResult[Any]]]
"""Runs one segment: an agent on an input or a state, with options of `Runner`. Returns the result."""


@attrs.frozen
class SavedRun:
    """One request of *job*. `line` is None if it is the only one."""

    job: CliOptions
    request: str
    line: int | None = None

    async def run(self, entry: Entry, ready: Callable[[], Awaitable[None]]) -> RunSummary:
        """Run the request to its end, or until verdicts are missing. *ready* is awaited before an agent runs.

        A run that has ended for good in an earlier process is not run again: its stored result is returned.

        Raises:
            FolderError: if the journal is of another request.
            Exception: the error of the run, of this or an earlier process.
        """
        if self.job.folder is None:
            return await self._run_until_settled(self.request, None, entry, ready)
        path = self.job.folder.journal(self.line)
        async with FileJournal(path) as journal:
            given: str | RunState = self.request
            if await journal.read():
                given = await RunState.from_journal(self.job.agent, journal)
                self._check(given, path)
                if (ending := stored_summary(given)) is not None:
                    return ending
            return await self._run_until_settled(given, journal, entry, ready)

    def _check(self, state: RunState, path: Path) -> None:
        if not state.began_with(self.request):
            raise FolderError(f"{path} is the journal of another request")

    async def _run_until_settled(
        self, given: str | RunState, journal: FileJournal | None, entry: Entry, ready: Callable[[], Awaitable[None]]
    ) -> RunSummary:
        await ready()
        context = None if self.job.make_context is None else self.job.make_context()
        where = "" if self.line is None else f"line {self.line}"
        while True:
            is_fresh = isinstance(given, str)
            result = await entry(given, self.job.options(is_fresh=is_fresh, journal=journal, context=context))
            if not result.interruptions:
                break
            state = result.to_state()
            if not await self.job.approver.decide(state, where):
                break
            given = state
        return summary_of(result)
