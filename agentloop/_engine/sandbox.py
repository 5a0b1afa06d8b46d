"""The sandbox of a run: made for its first segment, found again by the later ones, removed once when the run is over.

The log names it (`SandboxOpened`), so the storage stays as long as the log can be resumed. The order that follows:

    create    after `RunStarted`, before anything of the application is called; then the record, which is durable before
              a body runs. A process that dies between the two leaves storage that no log names.
    find      before the journal is opened and before `RunResumed`: a sandbox that is gone, or that another run segment
              has, starts nothing and changes no log.
    remove    after `RunEnded` is durable: as long as a log can be resumed, its storage is there. A process that dies
              between the two leaves storage whose run is over.

What a dead process leaves is the provider's to find: it has the name and the run's id.

Decisions:

A sandbox belongs to a log (`_engine/sandbox.py`). A resource ends with its run segment; the files that a model has
made must not. So the storage has a name, the log holds it (`SandboxOpened`), and one rule follows: while a log can be
resumed, its storage is there. It is found before `RunResumed`, so that a sandbox that is gone starts nothing, and
removed after `RunEnded` is durable, so that a crash between the two leaves too much and never too little. What is
left over is found by its name: a local sandbox is renamed from each of its states to the next, and locked by the run
that has it (`executors/_storage.py`), so that two runs never share one and a prune never takes one that is in use.
What a prune can't know, whether a run without a journal at hand will be resumed, it doesn't guess: the user gives
journals, or an age.

What the isolation is: on Linux the commands run in their own namespaces (`executors/_namespaces.py`), as a user
without capabilities, on a file system that is read-only but for their folders, with a `/dev` and a `/proc` of their
own. A process that is root becomes another user first: a namespace takes the capabilities from root, but not what the
kernel and other programs give to its number (settings in `/proc/sys`, devices, sockets of services). It keeps a
model's mistakes away from the machine. It does not hide files that the process can read, nor sockets that are files
(outside `/run`), it sets no limits of memory, disk or processes, and the kernel is shared; so it isn't a border for
code that attacks. The editor isn't a process: it opens paths below a directory handle and follows no link.

Rejected: a process that lives as long as the segment and takes commands (a protocol more, and state between commands
that no log has); falling back to a plain process when a command can't be set apart (the caller was promised more);
`unshare(1)` and `bwrap` (not everywhere installed, and other versions have other options).
"""

from __future__ import annotations

import logging

import msgspec

from agentloop._common.error_text import error_summary, is_fatal
from agentloop._concurrency.backend import capture, checkpoint_if_cancelled
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.context import Sandbox, SandboxProvider
from agentloop.exceptions import StateError
from agentloop.records import SandboxOpened

logger = logging.getLogger("agentloop")


@uninterrupted
async def create_sandbox(run: LiveRun, provider: SandboxProvider) -> None:
    """Make the run's sandbox and record its name. The run can be resumed after an error of the provider.

    Raises:
        Exception: the provider's.
    """

    async def create() -> Sandbox:
        return _hold(run, await provider.create(run.context.run_id))

    await checkpoint_if_cancelled()
    try:
        made = await run.call_callback("sandbox", "", create)
    except Exception as error:
        run.stopped_by = error
        raise
    run.tree.log.append(SandboxOpened(*run.here(), _hold(run, made).name))  # held here, too: a replay calls no provider
    await checkpoint_if_cancelled()


@uninterrupted
async def find_sandbox(run: LiveRun, name: str) -> None:
    """Find the sandbox that the run's log names.

    Raises:
        StateError: it is gone or in use, or the configuration has no provider.
    """
    provider = run.settings.config.sandbox
    if provider is None:
        raise StateError(f"run {run.state.run_id} has the sandbox {name!r}: it goes on with a RunConfig.sandbox alone")

    async def find() -> Sandbox:
        return _hold(run, await provider.find(name, run.state.run_id))

    _hold(run, await run.call_callback("sandbox", name, find))


def _hold(run: LiveRun, sandbox: Sandbox) -> Sandbox:
    """Make *sandbox* the run's: no wait lies between the provider's answer and this, so none is ever lost."""
    run.sandbox = sandbox
    run.context._run = msgspec.structs.replace(run.context._run, sandbox=sandbox)  # type: ignore[type-var]  # the engine's own
    return sandbox


async def leave_sandbox(run: LiveRun, sandbox: Sandbox, *, over: bool) -> BaseException | None:
    """Give the sandbox back; remove its storage if the run is *over*. Return the error if it isn't an Exception.

    Shielded up to the cleanup deadline. A failure is logged, since the run has ended: its storage waits for the
    provider's clean-up.
    """

    async def leave() -> None:
        with run.cleanup.section(late=True) as section:
            await (sandbox.remove() if over else sandbox.release())
        if section.cancelled_caught:
            logger.warning("the removal of sandbox %s was cut at the cleanup deadline", sandbox.name)

    run.sandbox = None
    error = (await capture(leave, outlast=True)).error
    if error is None or is_fatal(error):
        return error
    logger.warning(
        "sandbox %s could not be %s: %s", sandbox.name, "removed" if over else "released", error_summary(error)
    )
    return None
