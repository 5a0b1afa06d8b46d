"""The process between a sandbox's shell and one command: it puts the command into namespaces of its own. Standalone.

It is run as a script by `python -I -S`, so it imports the standard library alone. Linux only. Its arguments: the
folders in which the command may write, as one JSON text (`{"folders": [PATH, …], "network": BOOL}`; the first is where
it starts), then the command and its arguments.

Theory of operation. Three processes follow from each other. The first one enters new namespaces (users, mounts, IPC,
host name, and the network unless it is wanted) and gives up to gain privileges. The second is the first of a new
namespace of processes, whose end ends all others in it, by the kernel and at once; it makes the mounts and waits. The
third executes the command. It is mapped to an ordinary user there, so that executing takes all capabilities of the new
namespaces from it: it can't undo the mounts. Outside it is the user it was, with that user's files.

The file system is the machine's, read-only but for the folders. Where the network is closed, `/run` is hidden, too:
it has the sockets of the machine's services. If one of these steps fails, the command is not executed: the status is
125, and standard error says why. Each process is killed with the one before it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

FAILED = 125
"""The exit status if the command could not be put into its namespaces."""

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC, _NEW_USERS = 0x00020000, 0x04000000, 0x08000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_SET_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38
_MOUNT_SETATTR, _HERE, _ALL_BELOW = 442, -100, 0x8000
_ORDINARY_USER = 1000


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users")]


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def _set_attributes(target: str, *, add: int = 0, remove: int = 0, below: bool = False) -> None:
    wanted = _MountAttributes(add, remove, 0, 0)
    flags = _ALL_BELOW if below else 0
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_HERE),
        os.fsencode(target),
        ctypes.c_uint(flags),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    _check(result, f"mount_setattr {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _end_with_parent() -> None:
    _check(_libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")


def enter(network: bool) -> None:
    """Enter the namespaces, as an ordinary user. The next child is the first process of its namespace."""
    user, group = os.geteuid(), os.getegid()
    wanted = _NEW_USERS | _NEW_MOUNTS | _NEW_PROCESSES | _NEW_IPC | _NEW_HOST_NAME
    _check(_libc.unshare(ctypes.c_int(wanted | (0 if network else _NEW_NETWORK))), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user or _ORDINARY_USER} {user} 1")
    _write("/proc/self/gid_map", f"{group or _ORDINARY_USER} {group} 1")
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _end_with_parent()  # the kernel forgets it when a process changes its user


def make_mounts(folders: list[str], network: bool) -> None:
    """Make the file system read-only but for *folders*, with the new processes alone in `/proc`."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    for folder in folders:
        _mount(folder, folder, None, _BIND)
    _set_attributes("/", add=_READ_ONLY | _NO_SUID, below=True)
    for folder in folders:
        _set_attributes(folder, add=_NO_DEVICES, remove=_READ_ONLY)
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXECUTION)
    if not network and os.path.isdir("/run") and not any(os.path.realpath(one).startswith("/run/") for one in folders):
        _mount("none", "/run", "tmpfs", _READ_ONLY | _NO_SUID | _NO_DEVICES, "size=4k,mode=755")
    os.chdir(folders[0])  # again: the folder was entered below the mount


def _wait_for(child: int) -> int:
    """Return the exit status of *child*, 128 + N if signal N ended it, after collecting all that end before it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main() -> None:
    """Do what the module says, and end with the command's status."""
    try:
        orders = json.loads(sys.argv[1])
        enter(orders["network"])
        first = os.fork()
        if first:
            # The request to end is the command's, which may take its time; this process ends after it.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os._exit(_wait_for(first))
        _end_with_parent()
        make_mounts(orders["folders"], orders["network"])
        command = os.fork()
        if command:
            os._exit(_wait_for(command))
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # Python ignores some, and a command would inherit that
        os.execve(sys.argv[2], sys.argv[2:], os.environ)
    except Exception as error:
        os.write(2, f"the sandbox could not be set up: {error}\n".encode(errors="replace"))
    finally:
        os._exit(FAILED)


if __name__ == "__main__":
    main()
