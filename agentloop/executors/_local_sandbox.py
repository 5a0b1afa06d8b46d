"""`LocalSandboxes`: sandboxes on this machine, whose storage is a folder and whose commands have their own namespaces.

`_storage` says who may use or remove a folder, `_namespaces` how a command is kept apart. This module joins them to a
shell and an editor, and finds out what the system allows.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import anyio
import anyio.from_thread
import attrs

from agentloop._common.checks import FIELDS, fits, optional
from agentloop.exceptions import StateError
from agentloop.executors._local_editor import LocalEditor
from agentloop.executors._local_shell import LocalShell, is_env, to_env
from agentloop.executors._protocols import SandboxError
from agentloop.executors._storage import TEMPORARY, WORK, PrunedSandbox, SandboxStorage, check_run, prune
from agentloop.executors._worker import run_to_end

logger = logging.getLogger("agentloop")

_NAMESPACES = str(Path(__file__).with_name("_namespaces.py"))
_PROBE_SECONDS = 20.0
_UNPRIVILEGED_USER = 65_533
"""The user as whom commands run if this process is root: a number that systems leave free."""
_SERVICES = "/run"


def _to_folder(path: str | os.PathLike[str]) -> Path:
    return Path(path).absolute()


def _outer_user() -> int | None:
    """Return the user as whom commands run outside of their namespaces; None = as this process does, not being root."""
    return _UNPRIVILEGED_USER if os.geteuid() == 0 else None


def _hidden_place(folder: Path) -> str:
    """Return what is hidden of the path of all sandboxes: the folder, or the first one above that only root enters."""
    if _outer_user() is not None:
        for above in [*reversed(folder.parents)][1:]:
            if not above.stat().st_mode & stat.S_IXOTH:
                return str(above)
    return str(folder)


def _enter_namespaces(folders: tuple[Path, ...], hidden: tuple[str, ...] = (), *, network: bool) -> tuple[str, ...]:
    """Return the program and its arguments that put the command after them into namespaces."""
    orders = {
        "folders": [str(folder) for folder in folders],
        "hidden": [*hidden] if network else [_SERVICES, *hidden],
        "network": network,
        "user": _outer_user(),
    }
    return sys.executable, "-I", "-S", _NAMESPACES, json.dumps(orders)


@functools.cache
def why_not_isolated() -> str | None:
    """Return why this system gives a command no namespaces, or None if it does. Tries it once in a process. Blocks."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no namespaces"
    command = [*_enter_namespaces((), network=False), "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(
            command, env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == 0:
        return None
    why = said or f"the trial ended with status {done.returncode}"
    if _outer_user() is None:
        return why
    return (
        f"{why} (this process is root, whom namespaces don't hold back, so they are tried as an ordinary user; "
        f"run the process as an ordinary user who may make them)"
    )


@functools.cache
def _warn_once(why: str) -> None:
    logger.warning("sandboxes on this machine are plain folders, and their commands plain processes: %s", why)


def _give_folders(storage: SandboxStorage) -> None:
    """Give the folders of *storage* to the user of its commands."""
    user = _outer_user()
    if user is None:
        return
    try:
        storage.give_to(user)
    except OSError as error:
        why = f"its folders can't be given to user {user}, as whom commands of a root run: {error.strerror or error}"
        raise SandboxError(f"no command can run in sandbox {storage.name} in {storage.folder}: {why}") from error


@attrs.frozen
class LocalSandbox:
    """A `Sandbox` on this machine, made by `LocalSandboxes`.

    Attributes:
        name: Its name, below the folder of its provider.
        directory: The folder in which its commands start, and which its editor changes.
        isolation: `"namespaces"`, or `"none"`: its commands are plain processes.
        shell, editor: A `LocalShell` and a `LocalEditor` of the directory.
    """

    name: str
    directory: Path
    isolation: Literal["namespaces", "none"]
    shell: LocalShell
    editor: LocalEditor
    _storage: SandboxStorage = attrs.field(repr=False)

    async def release(self) -> None:
        """Unlock the storage and keep it: another segment of the run may find it."""
        self._storage.close()

    async def remove(self) -> None:
        """Remove the storage.

        Cancellation: the removal stops, and a prune removes the rest.

        Raises:
            OSError: something can't be removed.
        """
        try:
            await run_to_end(lambda: self._storage.remove(anyio.from_thread.check_cancelled))
        finally:
            self._storage.close()  # the thread may not have begun


@attrs.frozen
class LocalSandboxes:
    """A `SandboxProvider`: each sandbox is its own folder on this machine, with a shell and an editor.

    On Linux, where the system allows it, a command runs in its own namespaces: it sees and signals no other
    process, has no network and no terminal, and can write only to the sandbox's folders (`$HOME` and `$TMPDIR`). It can
    read every file that this process can, other sandboxes excepted, and runs on the same kernel: no border against code
    that attacks it. If this process is root, commands run as user 65533, who reads only what everybody can. Elsewhere a
    command is a plain process, with all rights of this one; `LocalSandbox.isolation` says which it is.

    A sandbox whose process was killed stays until its run is resumed, or `prune` removes it. The folder's file system
    must support `flock`.

    Args:
        folder: The folder of all sandboxes; made if missing, readable by its owner only. Runs share it.
        isolation: `"auto"` = namespaces where the system allows them, else none, which is logged once; `"namespaces"` =
            refuse to make or find a sandbox without them; `"none"` = never.
        network: True to let commands use the network.
        env, timeout, max_output, grace: Those of each sandbox's `LocalShell`.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.
    """

    folder: Path = attrs.field(converter=_to_folder)
    isolation: Literal["auto", "namespaces", "none"] = attrs.field(
        default="auto", kw_only=True, validator=FIELDS.one_of("auto", "namespaces", "none")
    )
    network: bool = attrs.field(default=False, kw_only=True, validator=FIELDS.flag())
    env: Mapping[str, str] = attrs.field(
        factory=dict,
        converter=to_env,
        kw_only=True,
        repr=False,
        validator=FIELDS.needs("expected a mapping of texts", fits(is_env)),
    )
    timeout: float | None = attrs.field(default=300.0, kw_only=True, validator=optional(FIELDS.seconds()))
    max_output: int = attrs.field(default=16_000, kw_only=True, validator=FIELDS.count())
    grace: float = attrs.field(default=1.0, kw_only=True, validator=FIELDS.seconds())

    async def create(self, run_id: str) -> LocalSandbox:
        """Return a new sandbox for the run *run_id*.

        Cancellation: no sandbox is made, or its storage is removed.

        Raises:
            SandboxError: if the disk refuses, another program keeps the folder locked, or the system allows no
                namespaces and they are wanted.
        """

        def make() -> SandboxStorage:
            try:
                return SandboxStorage.create(self.folder, run_id, anyio.from_thread.check_cancelled)
            except OSError as error:
                raise SandboxError(f"no sandbox could be made in {self.folder}: {error.strerror or error}") from error

        return await self._hold(make, SandboxStorage.remove)

    async def find(self, name: str, run_id: str) -> LocalSandbox:
        """Return the sandbox *name*, which `create` made for the run *run_id*.

        Cancellation: the sandbox is as before.

        Raises:
            StateError: if it is gone, is another run's, or is in use by another segment of the run.
            SandboxError: if it can't be opened, or the system allows no namespaces and they are wanted.
        """

        def find() -> SandboxStorage:
            try:
                storage = SandboxStorage.find(self.folder, name)
            except BlockingIOError:
                raise StateError(f"sandbox {name} in {self.folder} is in use: the run goes on elsewhere") from None
            except (FileNotFoundError, NotADirectoryError):
                raise StateError(f"sandbox {name} in {self.folder} is gone") from None
            except OSError as error:
                raise SandboxError(f"sandbox {name} in {self.folder} can't be opened: {error.strerror}") from error
            try:
                check_run(storage, run_id)
                storage.note_use()
            except BaseException:
                storage.close()
                raise
            return storage

        return await self._hold(find, SandboxStorage.close)

    async def _hold(
        self, make: Callable[[], SandboxStorage], give_up: Callable[[SandboxStorage], None]
    ) -> LocalSandbox:
        """Return the sandbox of the storage that *make* gives, or *give_up* the storage."""
        held: list[SandboxStorage] = []

        def work() -> Literal["namespaces", "none"]:
            isolation = self._find_isolation()
            held.append(make())
            if isolation == "namespaces":
                _give_folders(held[0])
            return isolation

        try:
            isolation = await run_to_end(work)
            return self._open(held[0], isolation)
        except BaseException:
            for storage in held:
                with anyio.CancelScope(shield=True):
                    await run_to_end(functools.partial(give_up, storage))
            raise

    def _find_isolation(self) -> Literal["namespaces", "none"]:
        if self.isolation == "none":
            return "none"
        why = why_not_isolated()
        if why is None:
            return "namespaces"
        if self.isolation == "namespaces":
            raise SandboxError(f"the system allows no namespaces: {why}")
        _warn_once(why)
        return "none"

    def _open(self, storage: SandboxStorage, isolation: Literal["namespaces", "none"]) -> LocalSandbox:
        work, temporary = storage.path / WORK, storage.path / TEMPORARY
        enter: tuple[str, ...] = ()
        if isolation == "namespaces":
            folder = Path(os.path.realpath(self.folder))
            folders = tuple(folder / storage.name / part for part in (WORK, TEMPORARY))
            enter = _enter_namespaces(folders, (_hidden_place(folder),), network=self.network)
        shell = LocalShell(
            work,
            env={"TMPDIR": str(temporary), **self.env},
            timeout=self.timeout,
            max_output=self.max_output,
            grace=self.grace,
            shell=(*enter, "/bin/sh", "-c"),
        )
        return LocalSandbox(storage.name, work, isolation, shell, LocalEditor(work), storage)

    async def prune(
        self,
        is_over: Callable[[str, str], bool | None],
        *,
        older_than: float | None = None,
        dry_run: bool = False,
    ) -> tuple[PrunedSandbox, ...]:
        """Remove the storage that no run needs any more, and return what was found.

        A process that died while it made or removed a sandbox has left storage that is always removed. Of the rest,
        it removes what *is_over* says is over, and what no run has used for *older_than* seconds. Storage that a run
        has is never removed.

        Args:
            is_over: `(run_id, name) -> bool | None`: True if that run is over, or has another sandbox. It is called in
                a worker thread, and while it runs no run can get the sandbox: read the run's log anew in it.
            older_than: Seconds; None = no age is enough. A run whose storage was removed can't be resumed.
            dry_run: True to remove nothing, and return what would be removed.

        Cancellation: the removal stops; the next prune continues it.

        Raises:
            OSError: if something can't be removed.
        """
        check = anyio.from_thread.check_cancelled
        found = await run_to_end(lambda: prune(self.folder, is_over, older_than=older_than, check=check, dry=dry_run))
        return tuple(found)
