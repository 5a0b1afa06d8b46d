"""The process between `LocalShell` and one command: it starts the command, and ends all that came of it. Standalone.

It is run as a script by `python -I -S`, so it imports the standard library only, and little of that.

Theory of operation. The command gets a session and its own process group, no input and no terminal. On Linux the
supervisor is a *subreaper*: a descendant whose parent ends becomes a child of the supervisor, also if it has left the
session (`setsid`). So every process that came of the command can be found below the supervisor, and none is left once
the supervisor has no children. It reads its orders from standard input: one line of JSON, then nothing. The end of that
pipe means *stop*, so the death of the application, `kill -9` included, ends the command as well. A child that the
application has forked may hold that pipe open, so the supervisor also looks at its parent, twice a second: if that
isn't the application any more, it stops. (A signal at the parent's death, `PR_SET_PDEATHSIG`, would come too early: the
kernel sends it when the thread ends that started the supervisor.) Stopping is SIGTERM to all, a time of grace, then
SIGKILL until no child is left; the same ends what the command leaves in the background. If the supervisor itself is
killed, the kernel kills the command (`PR_SET_PDEATHSIG`).

Its arguments are a descriptor and the application's process id. It reports to the descriptor, a line of JSON each:
`{"pid": N}` before the command runs, `{"error": TEXT}` if it can't, and at the end `{"exit": STATUS, "left": [TEXT, …],
"over": true}`, where `left` describes processes that could not be ended: those of another user, or those stuck in the
kernel. Where there are no subreapers (macOS) it ends the process group, and a process that left the group is not found.

Decisions:

A process between. Every process that came of a command can be found only by a parent that the kernel gives orphans to
(a subreaper), and this property belongs to a whole process. So each command has a small supervisor: 25 ms to start,
and the death of the application ends the command as well, by the end of a pipe. Rejected: the application as the
subreaper. It would get the orphans of every other library in it, and have to reap them. Rejected: the process group
alone. `setsid` leaves it. Rejected: finding processes by a mark in their environment. A process may clear it.

No shell that lives on. Each command starts in the same folder with the same variables. Rejected: one shell for all
commands of a run. After a time limit or a cancellation nothing is known of its state, and a resumed run has lost it
without a word in the log. So Anthropic models, which know their own shell (`bash`) as a session, aren't shown it for
a `LocalShell`: they get the function, whose description says how commands start. A `Shell` of an application that is
a session says so (`shell_tool(session=True)`), and is shown as theirs. Their text editor is always shown; their
computer where `AnthropicModel(betas=…)` names its version, since the vendor refuses the tool without that header.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_KILL_SECONDS = 3.0
_PAUSE = 0.01
"""Seconds between two looks at processes that are ending."""
_PARENT_PAUSE = 0.5
"""Seconds between two looks at the parent."""


def _prctl(option: int, value: int) -> bool:
    """Set *option* of this process. Return False where the system doesn't know it."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def find_descendants(root: int) -> list[int]:
    """Return the ids of all live processes below *root*, parents first; empty where there is no `/proc`."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            status = _read_status(int(name))
            if status is not None and status[1] != "Z":
                children.setdefault(status[2], []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:  # grows meanwhile
        found += children.get(pid, ())
    return found


def _read_status(pid: int) -> tuple[str, str, int] | None:
    """Return the name, the state letter and the parent of *pid*; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold any character
    state, parent = rest.split()[:2]
    return name, state, int(parent)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user: the end shows which
        os.kill(pid, number)


class Supervisor:
    """Starts one command, waits for its end or for the order to stop, and ends its processes."""

    def __init__(self, status: int, application: int, orders: dict) -> None:  # type: ignore[type-arg]
        self._status = status
        self._application = application
        self._orders = orders
        self._pid = 0
        self._exit: int | None = None
        self._stops = False

    def report(self, **fields: object) -> None:
        """Write one line to the application."""
        os.write(self._status, json.dumps(fields).encode() + b"\n")

    def start(self) -> bool:
        """Start the command. Return False, and report it, if that fails."""
        go_read, go_write = os.pipe()
        error_read, error_write = os.pipe()
        subreaper = _prctl(_SET_SUBREAPER, 1)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(go_write)
            os.read(go_read, 1)
            self._become_command(error_write, subreaper)
        os.close(error_write)
        self.report(pid=self._pid)  # before the command runs: it may kill its parent
        os.close(go_write)
        with os.fdopen(error_read, "rb") as file:
            error = file.read().decode(errors="replace")
        if error:
            os.waitpid(self._pid, 0)
            self.report(error=error)
        return not error

    def _become_command(self, error: int, subreaper: bool) -> None:
        """In the new process: set it up and execute the command. Never returns."""
        try:
            os.setsid()
            if subreaper:
                _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
            # The application may run where signals are ignored, as under `nohup`, and a command would inherit that.
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.closerange(3, error)
            os.chdir(self._orders["directory"])
            command = self._orders["command"]
            os.execve(command[0], command, self._orders["env"])
        except Exception as failure:
            os.write(error, f"{type(failure).__name__}: {failure}".encode(errors="replace"))
        finally:
            os._exit(127)

    # -- waiting

    def wait(self) -> None:
        """Return when the command has ended, or when the application wants it to stop."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        while True:
            self._reap()
            if self._exit is not None or self._stops:
                return
            ready, _, _ = select.select([0, wake_read], [], [], _PARENT_PAUSE)
            if wake_read in ready:
                os.read(wake_read, 4096)
            if 0 in ready or os.getppid() != self._application:
                return

    def _stop(self, *_: object) -> None:
        self._stops = True

    def _reap(self) -> bool:
        """Collect the children that have ended. Return False if there is no child any more."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self._exit = code if code >= 0 else 128 - code

    # -- ending

    def end_all(self) -> list[str]:
        """End every process that came of the command. Return descriptions of those that could not be ended."""
        if not self._is_any_left():
            return []
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process does not take SIGTERM
        until = time.monotonic() + self._orders["grace"]
        while time.monotonic() < until:
            if not self._is_any_left():
                return []
            time.sleep(_PAUSE)
        until = time.monotonic() + _KILL_SECONDS
        while self._is_any_left():
            if time.monotonic() >= until:
                return [self._describe(pid) for pid in find_descendants(os.getpid())]
            self._freeze()
            self._signal_all(signal.SIGKILL)
            time.sleep(_PAUSE)
        return []

    def _is_any_left(self) -> bool:
        if self._reap():
            return True
        try:
            os.killpg(self._pid, 0)
        except OSError:
            return False
        return True  # without a subreaper, the members of the group aren't children of this process

    def _signal_all(self, number: int) -> None:
        # The group as a whole first: the kernel lets no member fork in between.
        with contextlib.suppress(OSError):
            os.killpg(self._pid, number)
        for pid in find_descendants(os.getpid()):
            _send(pid, number)

    def _freeze(self) -> None:
        """Stop all descendants before they are killed: one that forks all the time would be ahead of the signals."""
        stopped: set[int] = set()
        for _ in range(100):
            found = set(find_descendants(os.getpid())) - stopped
            if not found:
                return
            for pid in found:
                _send(pid, signal.SIGSTOP)
            stopped |= found

    def _describe(self, pid: int) -> str:
        status = _read_status(pid)
        return f"{pid} ({status[0]})" if status is not None else str(pid)

    def run(self) -> None:
        """Run the command from start to end."""
        if self.start():
            self.wait()
            left = self.end_all()
            self.report(exit=self._exit, left=left, over=True)


def main() -> None:
    """Read the orders, and carry them out."""
    status, application = map(int, sys.argv[1:])
    os.set_inheritable(status, False)
    line = bytearray()
    while not line.endswith(b"\n"):
        while not select.select([0], [], [], _PARENT_PAUSE)[0]:
            if os.getppid() != application:
                return
        chunk = os.read(0, 65536)
        if not chunk:
            return  # stopped before the orders came
        line += chunk
    Supervisor(status, application, json.loads(line)).run()


if __name__ == "__main__":
    main()
