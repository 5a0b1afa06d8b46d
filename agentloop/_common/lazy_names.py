"""Names of a package that are imported at first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_at_first_use(namespace: dict[str, Any], modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a name at its first use and keeps it in *namespace*.

    Args:
        namespace: The package's `globals()`.
        modules: The names, each with the module of the package that defines it.
    """
    package: str = namespace["__name__"]

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(f"{package}.{modules[name]}"), name)
        return value

    return find
