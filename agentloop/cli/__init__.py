"""The command line `agentloop`; its commands are in `app`. Needs the extra `cli`.

Built on the public API and a few private helpers of the library, which does not know about the command line.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from agentloop._common.extras import describe_install

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line with the arguments of the process, and end the process with its exit code.

    Raises:
        SystemExit: always; with 2 if the packages of the extra are missing.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        print(
            f"The command line needs {' and '.join(missing)}: {describe_install('cli')}",
            file=sys.stderr,
        )
        sys.exit(2)
    from agentloop.cli.app import app  # imported here, since it needs the packages checked above

    app(prog_name="agentloop")
