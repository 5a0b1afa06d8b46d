"""Worker processes of one test, which kill themselves where they are asked to, or are killed."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from temporal_engine.durable_agents import KILL_AT, NOTES


class Workers:
    """Worker processes of one test, on one queue."""

    def __init__(self, address: str, folder: Path, histories: Path) -> None:
        self.address, self.notes, self.queue = address, folder / "notes", f"queue-{uuid4().hex}"
        self.histories = histories
        self._running: list[subprocess.Popen[bytes]] = []

    def environment(self, kill_at: str) -> dict[str, str]:
        """Return the environment of a process with these tests' agents."""
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        return {**os.environ, NOTES: str(self.notes), KILL_AT: kill_at, "PYTHONPATH": path}

    def start(self, kill_at: str = "") -> "subprocess.Popen[bytes]":
        """Start a worker; the first that writes the note *kill_at* kills itself."""
        command = [sys.executable, "-m", "temporal_engine.durable_agents", self.address, self.queue]
        made = subprocess.Popen(command, env=self.environment(kill_at), stdin=subprocess.DEVNULL)
        self._running.append(made)
        return made

    def close(self) -> None:
        """Kill what is left."""
        for process in self._running:
            process.kill()
            process.wait()
