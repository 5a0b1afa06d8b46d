"""The command line: `agentloop run`, `agentloop model`. Needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line on the process's arguments, and end the process with its exit code."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        print(
            f'The command line needs {" and ".join(missing)}. Run: pip install "agentloop[cli]"',
            file=sys.stderr,
        )
        sys.exit(2)
    from agentloop.cli.app import app  # only now: it needs what was looked for

    app(prog_name="agentloop")
