"""Identity of calls: equality of invocations, the search for a call's tool, and the keys of a call.

Pure functions of names, arguments and ids. Does not know about runs or states.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from agentloop._common.naming import qualify_name
from agentloop._schema.json_text import canonical_arguments
from agentloop.items import HandoffCall, ToolCall
from agentloop.settings import JsonLimits
from agentloop.tools import FunctionTool, RawBody

_MOST_UNKNOWN = 10
_MOST_KNOWN = 1_000
_MOST_COMPARED = 8
_LONGEST = 300
"""Most characters of a name that is searched for. No tool is near a longer one: a tool's name has at most 128
characters, and so has its namespace."""


def same_invocation(a: ToolCall | HandoffCall, b: ToolCall | HandoffCall, limits: JsonLimits) -> bool:
    """Tell whether two calls of one id request the same: equal kind and tool, and arguments equal as JSON."""
    is_same_tool = type(a) is type(b) and a.name == b.name
    is_same_place = getattr(a, "namespace", None) == getattr(b, "namespace", None)  # a handoff has none
    return is_same_tool and is_same_place and have_same_arguments(a.arguments, b.arguments, limits)


def have_same_arguments(a: str, b: str, limits: JsonLimits) -> bool:
    """Tell whether two calls' arguments are equal as JSON."""
    return a == b or canonical_arguments(a, limits) == canonical_arguments(b, limits)


def arguments_digest(text: str, limits: JsonLimits) -> str:
    """Return a digest of a call's arguments that doesn't depend on how their JSON is written."""
    return hashlib.sha256(canonical_arguments(text, limits).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def find_tool(tools: Mapping[str, FunctionTool], name: str, namespace: str | None) -> FunctionTool | None:
    """Return the tool that a call names, or None. A bare name never finds a tool in a namespace."""
    found = tools.get(qualify_name(name, namespace))
    if found is not None and (found.namespace or None) != (namespace or None):
        found = None  # a bare name with a dot in it reads like a name in a namespace
    if found is not None or (namespace and namespace != name):
        return found
    # Providers name a deferred top-level tool's own name as its namespace.
    return tools.get(f"deferred:{name}")


def find_called_tool(tools: Mapping[str, FunctionTool], call: ToolCall) -> FunctionTool | None:
    """Return the tool of *call*, or None; for a call that the provider runs once it is approved, one made for it."""
    if call.kind == "approval":
        return _make_approved_tool(qualify_name(call.name, call.namespace))
    return find_tool(tools, call.name, call.namespace)


@lru_cache(maxsize=256)
def _make_approved_tool(provider_name: str) -> FunctionTool:
    """Return the tool that represents a provider's own tool while its call is decided on. Its body never runs.

    The provider's name is the namespace: it may have any characters, and the key isn't a key of an agent's tool, whose
    verdicts for all calls would hold for the provider's otherwise.
    """
    return FunctionTool(name="approval", namespace=provider_name, body=RawBody(_refuse_to_run), needs_approval=True)


def _refuse_to_run(ctx: object, text: str) -> str:
    raise AssertionError("the provider runs it")  # pragma: no cover


class NearNames(msgspec.Struct, eq=False):
    """Finds known names close to the unknown names of one response, at a bounded cost. Owned by one planning.

    A model may send a thousand unknown names to an agent with a thousand tools. So at most ten names are searched for,
    among at most a thousand. Most of these are excluded by the pairs of letters they share, which is cheap; only the
    few that share most are compared letter by letter.
    """

    known: Iterable[str]
    """Read at the first search: most responses have no unknown name."""
    _pairs: list[tuple[str, frozenset[str]]] | None = None
    _found: dict[str, list[str]] = {}

    def of(self, name: str) -> list[str]:
        """Return up to two known names close to *name*, nearest first; none once too many names were searched for."""
        found = self._found.get(name)
        if found is None:
            if len(self._found) == _MOST_UNKNOWN or len(name) > _LONGEST:
                return []
            found = self._found[name] = self._search(name)
        return found

    def _search(self, name: str) -> list[str]:
        if self._pairs is None:
            self._pairs = [(each, _letter_pairs(each.lower())) for each in itertools.islice(self.known, _MOST_KNOWN)]
        # Models add what they have seen elsewhere: `functions.find`, `find<|channel|>`, other capitals.
        plain = name.partition("<|")[0].strip().lower()
        plain = plain if any("." in each for each, _ in self._pairs) else plain.rpartition(".")[2] or plain
        wanted = _letter_pairs(plain)
        # Of two names that share as many pairs, the longer is less similar.
        shared = [(len(pairs & wanted), -len(each), each) for each, pairs in self._pairs]
        likely = [each for count, _, each in heapq.nlargest(_MOST_COMPARED, shared) if count]
        import difflib  # for this text only

        names: dict[str, str] = {}
        for each in likely:
            names.setdefault(each.lower(), each)
        return [names[each] for each in difflib.get_close_matches(plain, names, n=2, cutoff=0.6)]


def _letter_pairs(name: str) -> frozenset[str]:
    """Return the pairs of neighbouring letters of *name*, its beginning and end counted as letters."""
    return frozenset(map(str.__add__, f" {name}", f"{name} "))
