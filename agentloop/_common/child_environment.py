"""The environment of a child process that isn't the application's own: a browser, an engine."""

from __future__ import annotations

import os
import tempfile

_ALWAYS = ("PATH", "HOME", "LANG", "TMPDIR")


def child_environment(*more: str) -> dict[str, str]:
    """Return the few variables that every program needs, and those named by *more* that this process has.

    The application's keys are in its environment. A program that parses what strangers write has no use for them.
    """
    instead = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}
    found = {name: value for name in (*_ALWAYS, *more) if (value := os.environ.get(name)) is not None}
    return instead | found
