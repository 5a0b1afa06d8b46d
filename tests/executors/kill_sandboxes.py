"""Runs one run with a sandbox and a journal in processes that are killed before their 1st, 2nd … look at its files.

`python kill_sandboxes.py FOLDER` makes, for each of these numbers, `FOLDER/N/journal` and `FOLDER/N/boxes`, and prints
how many there are. A process of its own, so that it may fork; each child is a run from start to end.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from agentloop import Agent, RunConfig, Runner
from agentloop.executors import LocalSandboxes, editor_tool
from agentloop.journal import FileJournal
from agentloop.testing import ScriptedModel, call, say

PATCH = "*** Begin Patch\n*** Add File: deep/notes.txt\n+kept\n*** End Patch"


def make_agent(turns_done: int = 0) -> Agent[Any, Any]:
    """Return an agent that writes a file into its sandbox and ends; *turns_done* of its turns are over."""
    tools = [editor_tool(lambda ctx: ctx.sandbox.editor, needs_approval=False)]
    script = [call("apply_patch", {"patch": PATCH}), say("done")]
    return Agent("a", model=ScriptedModel(script[turns_done:]), tools=tools)


def sandboxes(place: Path) -> LocalSandboxes:
    """Return the provider of the run at *place*."""
    return LocalSandboxes(place / "boxes", isolation="none")


async def live(place: Path) -> None:
    """Do the run from start to end."""
    async with FileJournal(place / "journal") as journal:
        config = RunConfig(sandbox=sandboxes(place))
        await Runner.run(make_agent(), "go", run_config=config, journal=journal)


_CHANGES = ("mkdir", "rename", "remove", "rmdir", "chmod", "link", "utime")
_OPERATIONS = frozenset(("open", "fcntl.flock", *(f"os.{name}" for name in _CHANGES)))
_OF_TWO = ("os.rename", "os.link")


def die_before(step: int, place: Path) -> None:
    """Kill this process before its *step*-th operation on a file of *place*."""
    count, inside = 0, os.fsencode(place)

    def count_operation(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in _OPERATIONS and _concerns(arguments[: 2 if event in _OF_TWO else 1], inside):
            count += 1
            if count > step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_operation)


def _concerns(arguments: tuple[Any, ...], place: bytes) -> bool:
    """Tell whether an audited operation names a path below *place*, a relative one, or only a descriptor."""
    paths = [os.fsencode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
    return not paths or any(path.startswith(place) or not path.startswith(b"/") for path in paths)


def main(folder: Path) -> None:
    """Kill one run more until a run comes to its end."""
    step, over = 0, False
    while not over:
        place = folder / str(step)
        place.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                die_before(step, place)
                anyio.run(live, place)
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        over = os.waitstatus_to_exitcode(status) != -signal.SIGKILL
        assert not over or status == 0
        step += 1
    print(step)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
