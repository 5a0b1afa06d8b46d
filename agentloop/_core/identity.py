"""Identity of calls: what counts as the same invocation, and what a call finds its tool by."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping

from agentloop.config import JsonLimits
from agentloop.items import HandoffCall, ToolCall
from agentloop.json_text import canonical_arguments
from agentloop.tools import FunctionTool


def same_invocation(a: ToolCall | HandoffCall, b: ToolCall | HandoffCall, limits: JsonLimits) -> bool:
    """Tell whether two calls of one id ask for the same: equal kind and tool, and arguments equal as JSON."""
    if type(a) is not type(b) or a.name != b.name or _namespace(a) != _namespace(b):
        return False
    if a.arguments == b.arguments:
        return True
    return canonical_arguments(a.arguments, limits) == canonical_arguments(b.arguments, limits)


def arguments_digest(text: str, limits: JsonLimits) -> str:
    """Return a digest of a call's arguments that is the same however their JSON is written."""
    return hashlib.sha256(canonical_arguments(text, limits).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _namespace(call: ToolCall | HandoffCall) -> str | None:
    return call.namespace if isinstance(call, ToolCall) else None


def find_tool(tools: Mapping[str, FunctionTool], name: str, namespace: str | None) -> FunctionTool | None:
    """Return the tool a call means, or None. A bare name never reaches into a namespace."""
    found = tools.get(f"{namespace}.{name}" if namespace else name)
    if found is not None or (namespace and namespace != name):
        return found
    # Providers name a deferred top-level tool's own name as its namespace.
    return tools.get(f"deferred:{name}")


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to two known names that *name* may have meant, nearest first."""
    return difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)


def idempotency_key(run_id: str, path: tuple[str, ...], call_id: str) -> str:
    """Return a key that is the same for every attempt of one call of one run, and no other's."""
    return hashlib.sha256("\x00".join((run_id, *path, call_id)).encode("utf-8", "surrogatepass")).hexdigest()[:32]
