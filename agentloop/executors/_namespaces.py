"""The process between a sandbox's shell and one command: it puts the command into namespaces of its own. Standalone.

It is run as a script by `python -I -S`, so it imports the standard library only. Linux only. Its first argument is a
JSON text, `{"folders": [PATH, …], "hidden": [PATH, …], "network": BOOL, "user": ID or null}`; the command and its
arguments follow. The command may write in the folders, and starts in the first one. The hidden folders are empty for
it, but for the folders in which it may write.

Theory of operation. Three processes follow from each other. The first one enters new namespaces (users, mounts, IPC,
host name, and the network unless it is wanted) and gives up to gain privileges. The second is the first of a new
namespace of processes, whose end ends all others in it, by the kernel and at once; it makes the mounts and waits. The
third executes the command. It is mapped to an ordinary user there, so that executing takes all capabilities of the new
namespaces from it: it can't undo the mounts, and it can't make namespaces in which it would have capabilities again.

Outside it is the user it was, with that user's files, but never root. A namespace doesn't take from root what the
kernel gives to the number 0 itself: the kernel's settings in `/proc/sys`, devices, sockets of services. So a root first
places the folders, in its own mount namespace, because the way to them may be open to root only; then it becomes
the `user` of the orders, and then the same steps follow as for everybody.

The file system is the machine's, read-only but for the folders, without devices. `/dev` is a new one with the devices
that every program needs and no terminal of the machine. `/proc` is a new one with the new processes only, read-only,
without the files that act on the machine. Where the network is closed, `/run` is hidden, too: it has the sockets of the
machine's services. If one of these steps fails, the command is not executed: the status is 125, and standard error says
why. Each process is killed with the one before it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import sys

FAILED = 125
"""The exit status if the command could not be put into its namespaces."""

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC, _NEW_USERS = 0x00020000, 0x04000000, 0x08000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_EMPTY = _NO_SUID | _NO_DEVICES | _NO_EXECUTION
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _NO_NEW_PRIVILEGES = 1, 4, 38
_MOUNT_SETATTR, _HERE, _ALL_BELOW = 442, -100, 0x8000
_ORDINARY_USER = 1000
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {"fd": "self/fd", "stdin": "self/fd/0", "stdout": "self/fd/1", "stderr": "self/fd/2"}
_MASKED_FILES = ("sysrq-trigger", "kcore", "keys", "timer_list", "latency_stats", "sched_debug")
_MASKED_FOLDERS = ("irq", "acpi", "scsi")


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
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), "prctl")


def _unshare(spaces: int) -> None:
    _check(_libc.unshare(ctypes.c_int(spaces)), "unshare")


def _end_with_parent(parent: int) -> None:
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() not in (parent, 0):  # it has ended before; a parent of another namespace has no number here
        os._exit(FAILED)


def become_user(user: int) -> None:
    """Become the ordinary *user* for good; from root only. The pipes of the output are given to it."""
    for descriptor in (1, 2):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, user, user)  # else it could not open `/dev/stderr`
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _prctl(_SET_DUMPABLE, 1)  # else its own files in `/proc` stay root's, and it could not write its maps


def enter(network: bool) -> None:
    """Enter the namespaces, as an ordinary user. The next child is the first process of its namespace."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        raise PermissionError("root is not put into namespaces, which don't hold it back")
    parent = os.getppid()
    wanted = _NEW_USERS | _NEW_MOUNTS | _NEW_PROCESSES | _NEW_IPC | _NEW_HOST_NAME
    _unshare(wanted | (0 if network else _NEW_NETWORK))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group or _ORDINARY_USER} {group} 1")
    _prctl(_NO_NEW_PRIVILEGES, 1)
    _end_with_parent(parent)  # the kernel forgets it when a process changes its user


def place_folders(folders: list[str], hidden: list[str]) -> None:
    """Put an empty folder in place of each one of *hidden*, and *folders* where they were, as mounts of their own."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    held = [(folder, os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) for folder in folders]
    for place in hidden:
        if os.path.isdir(place):  # a place below another hidden one is hidden with it
            _mount("none", place, "tmpfs", _EMPTY, "size=64k,mode=755")
    for folder, descriptor in held:
        os.makedirs(folder, 0o755, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", folder, None, _BIND)
        os.close(descriptor)


def make_mounts(folders: list[str]) -> None:
    """Make the file system read-only but for *folders*, which are mounts, with a `/proc` and a `/dev` of its own."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _set_attributes("/", add=_READ_ONLY | _NO_SUID | _NO_DEVICES, below=True)
    for folder in folders:
        _set_attributes(folder, remove=_READ_ONLY)
    _make_devices()
    _mount("proc", "/proc", "proc", _EMPTY)
    _write("/proc/sys/user/max_user_namespaces", "0")
    for name in _MASKED_FILES:
        if os.path.exists(f"/proc/{name}"):
            _mount("/dev/null", f"/proc/{name}", None, _BIND)
    for name in _MASKED_FOLDERS:
        if os.path.exists(f"/proc/{name}"):
            _mount("none", f"/proc/{name}", "tmpfs", _EMPTY, "size=4k,mode=555")
    _set_attributes("/proc", add=_READ_ONLY, below=True)
    if folders:
        os.chdir(folders[0])  # again: the folder was entered below the mount


def _make_devices() -> None:
    held = []
    for name in _DEVICES:
        with contextlib.suppress(FileNotFoundError):  # the machine may have no `tty`
            held.append((f"/dev/{name}", os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)))
    _mount("none", "/dev", "tmpfs", _NO_SUID | _NO_EXECUTION, "size=64k,mode=755")
    for path, descriptor in held:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        _mount(f"/proc/self/fd/{descriptor}", path, None, _BIND)
        _set_attributes(path, remove=_NO_DEVICES)
        os.close(descriptor)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(f"/proc/{target}", f"/dev/{name}")
    _set_attributes("/dev", add=_READ_ONLY, below=True)


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
        folders, hidden, user = orders["folders"], orders["hidden"], orders["user"]
        if user is not None:
            _unshare(_NEW_MOUNTS)
            place_folders(folders, hidden)
            become_user(user)
        enter(orders["network"])
        outer = os.getpid()
        first = os.fork()
        if first:
            # The request to end is the command's, which may take its time; this process ends after it.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os._exit(_wait_for(first))
        _end_with_parent(outer)
        if user is None:
            place_folders(folders, hidden)
        make_mounts(folders)
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
