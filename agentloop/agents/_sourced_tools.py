"""The tools that a source gave for one turn, with the plain data by which the log knows them.

The log has names, digests and policies, not schemas: those are the server's, may be long, and are the same in most
turns. It is enough for a replay, which needs the policies to decide as the run did, and the digests to compare the
requests. Does not ask a source: the engine does.

Decisions:

A source of tools is asked like any callback: once per turn, before the turn begins, through the door of effects. Its
answer is a record, `CallbackReturned("toolset", …)`, and a source that gives the same as before costs a record
without content. The record holds what a replay needs to decide as the run did: the name of each tool, its options as
far as they are plain data (of callables and guardrails that they are there; the log has their answers anyway), and a
digest of its description and schema. The digest of a request is made of these digests for such tools. So a strict
replay has substitutes for the tools, and neither connects to a server nor holds a copy of its schemas. Faults of
arguments, which only the schema could find again, are read back from the outcomes.

What a source says its tools are called is the word of another party. So a name gives a source nothing: its tool never
takes the place of one of the agent's own, no matter what the policy about names, also where the own one is disabled
or deferred; and two sources with one name are an error. A verdict holds for a definition, the digest of the source's
name and of what the model is shown, which is in the request and in the verdict. So a verdict for good that was given
to one tool is none on another that has taken its name, or on the same one once the server describes it otherwise.

Rejected: schemas in the log (those of one public server have 60 kB, in each run); asking only when the source says
that something has changed (one protocol more for every source; the question costs a function call where nothing
changed); agents as tools from a source (their keys in the log come from the graph of agents, which is known when a
run begins).

A source that fails ends the run, as a model does that can't be reached, and as there the run can be resumed. Leaving
its tools out of the turn instead would make the model act without them, and the application would not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

from agentloop._common.checks import stored_word
from agentloop._common.digests import digestible
from agentloop._common.values import Value
from agentloop.exceptions import ToolSourceError
from agentloop.limits import Capacity, Rate
from agentloop.tools import AgentCall, ExternalBody, FunctionTool

ASKED = "asked"
"""In the description of a tool: the option is a callable of the application."""


def _describe_callable(value: Any) -> bool | str | None:
    return value if value is None or isinstance(value, bool) else ASKED


def _describe_plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _describe_limits(limits: Sequence[Rate | Capacity]) -> list[list[Any]]:
    return [
        ["rate", one.name, one.count, one.per] if isinstance(one, Rate) else ["capacity", one.name, one.total_tokens]
        for one in limits
    ]


def _name_guardrails(guardrails: Sequence[Any]) -> list[str]:
    return [one.name for one in guardrails]


_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            *("namespace", "timeout", "idle_timeout", "idempotent", "in_doubt", "serial", "exclusive"),
            *("reads_only", "defer_loading", "kind", "secret", "secret_output"),
        ),
        _describe_plain,
    ),
    "timeout_behavior": stored_word,
    **dict.fromkeys(
        ("is_enabled", "needs_approval", "timeout_error_function", "cost", "custom_data_extractor"), _describe_callable
    ),
    "failure_error_function": _describe_callable,
    **dict.fromkeys(("tool_input_guardrails", "tool_output_guardrails"), _name_guardrails),
    "capacity": _describe_limits,
}
"""How the value of each option is described where it isn't the usual one."""
_USUAL = FunctionTool(name="usual", on_invoke_tool=lambda ctx, text: None)


class SourcedTools(Value, frozen=True, eq=False):
    """The tools of one answer of a source; `described` has one description for each, in the same order."""

    tools: tuple[FunctionTool[Any], ...]
    described: list[dict[str, Any]]
    source: str = ""
    """The name of the source; a replay, which has only the log, knows it from the descriptions and errors there."""

    @classmethod
    def of(
        cls, given: object, source: str, earlier: SourcedTools | None, own: Sequence[FunctionTool[Any]] = ()
    ) -> SourcedTools:
        """Return the tools *given* by the source of this name; *earlier* itself if they are the same objects.

        Their descriptions name the source, so that the log tells where the tool of a call came from; but not that of a
        tool which has the name of one of the agent's *own*: it is left out, and calls by that name aren't the source's.

        Raises:
            ToolSourceError: *given* isn't a sequence of function tools, or one of them is an agent.
        """
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise ToolSourceError(f"tool source {source!r}: expected a sequence of tools, got {given!r}", source=source)
        tools = tuple(given)
        if earlier is not None and len(tools) == len(earlier.tools) and all(map(is_, tools, earlier.tools)):
            return earlier
        for tool in tools:
            if not isinstance(tool, FunctionTool):
                raise ToolSourceError(f"tool source {source!r}: expected a function tool, got {tool!r}", source=source)
            if isinstance(tool.body, AgentCall):
                raise ToolSourceError(
                    f"tool source {source!r}: {tool.name!r} is an agent, which a run has to know before it begins: it "
                    "belongs in Agent.tools",
                    source=source,
                )
        names, named = {tool.qualified_name for tool in own}, {"source": source}
        described = [describe(tool, source) | ({} if tool.qualified_name in names else named) for tool in tools]
        return cls(tools, described, source)

    def digests(self) -> dict[FunctionTool[Any], str]:
        """Return the digest of each tool."""
        return {tool: one["digest"] for tool, one in zip(self.tools, self.described, strict=True)}


def describe(tool: FunctionTool[Any], source: str) -> dict[str, Any]:
    """Return the description of *tool*: name, digest of its definition, and options that aren't the usual.

    Of an external tool the schema of its answers, too, by which a replay knows that its calls wait.

    The definition is the source and what the model is shown. A verdict on a call holds for one definition.
    """
    about = [] if tool.namespace_description is None else [tool.namespace_description]
    shown = digestible([source, tool.description, tool.params_json_schema, *about])
    made: dict[str, Any] = {"name": tool.name, "digest": hashlib.sha256(shown).hexdigest()[:16]}
    for option, describe_value in _OPTIONS.items():
        value = getattr(tool, option)
        if value != getattr(_USUAL, option):
            made[option] = describe_value(value)
    if isinstance(tool.body, ExternalBody):
        made["returns"] = tool.body.returns
    return made
