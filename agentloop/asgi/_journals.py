"""Where the journals of web runs are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio.to_thread

from agentloop.abc import Codec, Journal
from agentloop.exceptions import JournalError, UserError
from agentloop.journal import FileJournal
from agentloop.journal._states import is_name


@runtime_checkable
class RunJournals(Protocol):
    """Gives the journals of runs. Any object with this method is one."""

    def journal(self, run: str) -> Journal:
        """Return the journal of the run with the id *run*, new or continued. `AgentApp` closes it."""
        ...


_ENDING = ".journal"
"""How the name of a run's file ends."""


class JournalFolder:
    """Journals of runs as files of one folder, made at the first use, the owner's only.

    The journal of a run is the file `ID.journal`, with the run's id.

    Args:
        path: The folder.
        key: The key that seals every line, for the run; see `FileJournal`.
        codec: The codec that seals secrets; see `FileJournal`.
        older_seals: True to take also the journals that an older version has sealed; see `FileJournal`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: bytes | None = None,
        codec: Codec | None = None,
        older_seals: bool = False,
    ) -> None:
        self._path = Path(path)
        self._key = key
        self._codec = codec
        self._older_seals = older_seals

    def journal(self, run: str) -> FileJournal:
        """Return the journal of the run with the id *run*.

        Raises:
            UserError: it isn't an id of a run, or the folder can't be made.
        """
        if not is_name(run):
            raise UserError("journal: expected the id of a run, of 16 to 64 letters, digits, - and _")
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self._path} can't be made a folder: {error.strerror or error}") from error
        return FileJournal(
            self._path / f"{run}{_ENDING}", key=self._key, codec=self._codec, run_id=run, older_seals=self._older_seals
        )

    async def runs(self) -> list[str]:
        """Return the ids of the runs that have a journal, in the order of their names; none if there is no folder.

        Raises:
            JournalError: the folder can't be listed.
        """
        return await anyio.to_thread.run_sync(self._list)

    def _list(self) -> list[str]:
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"{self._path} can't be listed: {error.strerror or error}") from error
        runs = (name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))
        return sorted(run for run in runs if is_name(run))
