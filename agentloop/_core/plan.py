"""The plan of a response: one disposition for each of its due calls, and what a call's arguments read as.

Values, and the reading of arguments, which is pure; `planner` makes a plan of them. The plan is a value; its `str` is a
table a person can read.

Invariants: entries are in model order; an identity (call id, tool, canonical arguments) starts at most once, except
where its tool says that it may be run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from agentloop._common.checks import OnFailure
from agentloop._common.error_text import REDACTED, redact_message
from agentloop._common.strict_json import read_strict
from agentloop._common.values import Value
from agentloop._schema.json_text import canonical, parse_object
from agentloop.exceptions import ModelBehaviorError
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import ApprovalRequested, BodyEnded
from agentloop.settings import JsonLimits
from agentloop.tools import AgentCall, FunctionTool, PythonBody, RawBody

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop._schema.function_schema import BoundArguments


class Arguments(Value, frozen=True, kw_only=True):
    """The arguments of one call: the JSON text and the result of reading it.

    Exactly one of `parsed` and `fault` is there, or both if the text parses but doesn't fit the tool.
    """

    text: str
    given: dict[str, Any] | None = None
    """The parsed text; None as well where it was read as `bound` in one step."""
    bound: BoundArguments | None = None
    value: Any = None
    """The structured input of an agent tool that has one."""
    fault: ModelBehaviorError | None = None
    receipt: str | None = None
    """Key that equal calls of this idempotent tool share; None for a tool that isn't idempotent."""

    _unshown = frozenset({"text", "given", "value", "receipt"})

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The parsed text; None if it doesn't parse."""
        return self.given if self.bound is None or self.given is not None else read_strict(self.text)


class Execute(Value, frozen=True):
    """Run the body with these arguments (or convert their fault).

    `attempt` counts starts. `resumed`: an agent tool that started in an earlier run segment continues its nested run.
    `decided`: policies and approvals have decided in an earlier run segment, and are not consulted again.
    """

    arguments: Arguments
    attempt: int = 1
    resumed: bool = False
    decided: bool = False


class Deliver(Value, frozen=True):
    """Take the stored end of the body, from an earlier run segment, through the rest of the call's steps."""

    arguments: Arguments
    body: BodyEnded
    attempt: int


class AwaitVerdict(Value, frozen=True):
    """Wait for a verdict. `request` is the approval request to append; None if the log has it already."""

    arguments: Arguments
    request: ApprovalRequested | None = None


class Replay(Value, frozen=True):
    """Answer with the output of an equal call that succeeded earlier: *source* is its call id."""

    source: str
    arguments: Arguments


class Answer(Value, frozen=True):
    """Settle with *outcome* without running a body. *kind* lets the application choose the text of the output."""

    outcome: CallOutcome
    kind: Literal["tool_not_found", "approval_rejected"] | None = None
    attempt: int = 1


_WITH_SCHEMA = (PythonBody, AgentCall)
Disposition: TypeAlias = Execute | Deliver | Replay | Answer | AwaitVerdict


class PlanEntry(Value, frozen=True):
    """One call and its disposition. `tool` is None if none was found, or if the call is beyond `max_calls`."""

    index: int
    call: ToolCall
    tool: FunctionTool | None
    disposition: Disposition


Plan: TypeAlias = tuple[PlanEntry, ...]
"""One entry for each due call of a response, in model order."""


def read_arguments(
    tool: FunctionTool, text: str, limits: JsonLimits, converter: BaseConverter | None = None
) -> Arguments:
    """Parse and bind a call's JSON text. A fault is returned, not raised: the tool's policy converts it later.

    *converter* is the run's own converter of the application's types, if it has one.

    For a tool with secret arguments the fault's message is redacted and the receipt is a digest.
    """
    read = _parse_and_bind(tool, text, limits, converter)
    if not tool.secret:
        return read
    fault, receipt = read.fault, read.receipt
    if fault is not None:
        if read.parsed is not None:  # the message of a validation error quotes values and, as paths to them, keys
            fault = ModelBehaviorError(f"Arguments of tool {tool.name} don't fit: {REDACTED}")
        redact_message(fault)
    if receipt is not None:
        receipt = hashlib.sha256(receipt.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return read.replace(fault=fault, receipt=receipt)


def _parse_and_bind(tool: FunctionTool, text: str, limits: JsonLimits, converter: BaseConverter | None) -> Arguments:
    body = tool.body
    if converter is None and isinstance(body, PythonBody) and tool.kind != "custom":
        bound = body.schema.read(text, limits)
        if bound is not None:
            return Arguments(text=text, bound=bound, receipt=_make_receipt(tool, bound) if tool.idempotent else None)
    if tool.kind == "custom":
        parsed = {tool.text_parameter: text}
    else:
        try:
            parsed = parse_object(text, limits, tool=tool.name, quoted=not tool.secret)
        except ModelBehaviorError as fault:
            return Arguments(text=text, fault=fault)
    if not isinstance(body, _WITH_SCHEMA):
        if isinstance(body, RawBody) and body.check is not None and (wrong := body.check(parsed)) is not None:
            refusal = ModelBehaviorError(f"Arguments of tool {tool.name} don't fit: {wrong}")
            return Arguments(text=text, given=parsed, fault=refusal)
        receipt = f"{tool.lookup_key} {canonical(parsed)}" if tool.idempotent else None
        return Arguments(text=text, given=parsed, receipt=receipt)
    if isinstance(body, AgentCall) and body.typed is not None:
        try:
            return Arguments(text=text, given=parsed, value=body.typed.using(converter).parse(text, limits))
        except ModelBehaviorError as fault:
            return Arguments(text=text, given=parsed, fault=fault)
    try:
        bound = body.schema.bind(parsed, converter, read_strings=limits.read_strings)
    except ModelBehaviorError as fault:
        return Arguments(text=text, given=parsed, fault=fault)
    receipt = _make_receipt(tool, bound) if tool.idempotent else None
    return Arguments(text=text, given=parsed, bound=bound, receipt=receipt)


def _make_receipt(tool: FunctionTool, bound: BoundArguments) -> str:
    return f"{tool.lookup_key} {bound.key()}"


class PlanRules(Value, frozen=True, kw_only=True):
    """The run's configuration of planning. `disabled`: lookup keys of tools that are no longer enabled."""

    not_found: OnFailure = "tell_model"
    max_calls: int | None = None
    limits: JsonLimits = msgspec.field(default_factory=JsonLimits)
    disabled: frozenset[str] = frozenset()
    read: Callable[[FunctionTool, str, JsonLimits], Arguments] = read_arguments
    """Reads a call's arguments. It must be pure, so that a caching function can replace it."""
