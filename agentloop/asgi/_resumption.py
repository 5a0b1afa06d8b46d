"""Resuming the runs of a folder, as after a crash: which of them are unfinished, and which another process has.

Theory. A journal is read without its lock first, so that runs that have ended cost no sync. Of an unfinished one the
lock is taken, and it is read again: another process may have ended the run between the two. From the lock on this
process alone can resume the run, and the task of the run closes the journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import attrs

from agentloop._common.error_text import error_summary
from agentloop.asgi._hosting import Options, RunHost
from agentloop.asgi._http import HTTPRefusal
from agentloop.asgi._journals import JournalFolder
from agentloop.exceptions import JournalError, StateError
from agentloop.items import CallToAnswer, Interruption
from agentloop.journal import FileJournal
from agentloop.state import RunState

logger: logging.Logger = logging.getLogger("agentloop")

ContextOf: TypeAlias = Callable[[str, str | None], Any]
_Kind: TypeAlias = Literal["resumed", "waiting", "ended", "held"]


@attrs.frozen(kw_only=True)
class ResumedRuns:
    """The runs that `AgentApp.resume_all` has found, by id, each in one place.

    Attributes:
        resumed: Runs that are under way now.
        waiting: Paused runs: their calls wait for verdicts or answers, and no answer's time has passed.
        ended: Runs that have completed, failed, or were cancelled.
        held: Runs that are under way: another process has the journal's lock, or this application runs them.
        failed: Runs that can't be resumed, each with its error: the journal is damaged or empty (`JournalError`,
            `HTTPRefusal`), the agents don't fit it (`StateError`), too many runs are under way (`HTTPRefusal`), or
            `context_of` has raised the error.
    """

    resumed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    failed: Mapping[str, Exception] = attrs.field(factory=dict)


async def resume_runs(
    host: RunHost, folder: JournalFolder, cancelled: bool, options: Options, context_of: ContextOf | None = None
) -> ResumedRuns:
    """Resume the unfinished runs of *folder*, with those that were *cancelled* if wanted.

    *context_of* gives the context of each, by its id and its owner.

    Raises:
        JournalError: the folder can't be listed.
        UserError: the options are wrong, or the host has not been entered.
    """
    found: dict[_Kind, list[str]] = {"resumed": [], "waiting": [], "ended": [], "held": []}
    failed: dict[str, Exception] = {}
    for run in await folder.runs():
        try:
            found[await _resume(host, folder, run, cancelled, options, context_of)].append(run)
        except (HTTPRefusal, JournalError, StateError, _NoContext) as error:
            failed[run] = error.reason if isinstance(error, _NoContext) else error
            logger.error("web run %s can't be resumed: %s", run, error_summary(failed[run]))
    if found["held"]:
        logger.warning("web runs under way already: %s", ", ".join(found["held"]))
    return ResumedRuns(failed=failed, **{kind: tuple(runs) for kind, runs in found.items()})


class _NoContext(Exception):
    """The application has no context for a run, for its own *reason*: no fault of the options, which are for all."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


def _ask_for_context(context_of: ContextOf, run: str, owner: str | None) -> Any:
    try:
        return context_of(run, owner)
    except Exception as error:
        raise _NoContext(error) from error


async def _resume(
    host: RunHost, folder: JournalFolder, run: str, cancelled: bool, options: Options, context_of: ContextOf | None
) -> _Kind:
    if host.find(run) is not None:
        return "held"
    async with folder.journal(run) as journal:
        kind = _choose(await host.load(journal), cancelled)
    if kind != "resumed":
        return kind
    if host.find(run) is not None:  # a client has resumed it meanwhile
        return "held"
    async with host.claimed(run) as (live, locked):
        assert isinstance(locked, FileJournal)  # the host's journals are of *folder*
        if not await locked.try_lock():
            kind = "held"
        else:
            state = await host.load(locked)
            kind = _choose(state, cancelled)
            if kind == "resumed":
                own = options
                if context_of is not None:
                    own = {**options, "context": _ask_for_context(context_of, run, state.owner)}
                await host.prepare(live, state, locked, own)
                host.start(live, locked)
        if kind != "resumed":
            await host.give_up(live, locked)
    return kind


def _choose(state: RunState, cancelled: bool) -> _Kind:
    """Return what to do with a run: only one that has not ended is resumed.

    A paused run that waits for an answer whose time has passed has something to do: the model learns of the timeout.
    """
    if state.interruptions:
        return "resumed" if any(map(_has_expired, state.interruptions)) else "waiting"
    unfinished = state.status in (None, "interrupted") or (cancelled and state.status == "cancelled")
    return "resumed" if unfinished else "ended"


def _has_expired(asked: Interruption) -> bool:
    return isinstance(asked, CallToAnswer) and asked.expires_at is not None and asked.expires_at <= time.time()
