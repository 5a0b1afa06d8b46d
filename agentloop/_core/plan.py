"""The plan of a response: one disposition for each of its due calls, and what a call's arguments read as.

Values, and the reading of arguments, which is pure; `planner` makes a plan of them. The plan is a value; its `str` is a
table a person can read.

Invariants: entries are in model order; an identity (call id, tool, canonical arguments) starts at most once, except
where its tool says that it may be run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from agentloop._common.checks import OnFailure
from agentloop._common.error_text import REDACTED, redact_message
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

    Exactly one of `given` and `fault` is there, or both if the text parses but doesn't fit the tool.
    """

    text: str
    given: dict[str, Any] | None = None
    """The parsed text; None if it doesn't parse."""
    bound: BoundArguments | None = None
    value: Any = None
    """The structured input of an agent tool that has one."""
    fault: ModelBehaviorError | None = None
    receipt: str | None = None
    """Key that equal calls of this idempotent tool share; None for a tool that isn't idempotent."""

    _unshown = frozenset({"text", "given", "value", "receipt"})

    @property
    def parsed(self) -> dict[str, Any] | None:
        """A copy of `given` for the application, which may change it: the body may get the same object."""
        return None if self.given is None else dict(self.given)


class Execute(Value, frozen=True):
    """Run the body with these arguments (or convert their fault).

    `attempt` counts starts. `resumed`: an agent tool that started in an earlier run segment continues its nested run,
    and the call of an external tool, which has started, is answered.
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
    """Wait for a verdict or an answer. `request` is the approval request to append; None if the log has it already."""

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
    given: dict[str, Any] | None = None
    try:
        if tool.kind == "custom":
            given = {tool.text_parameter: text}
        else:
            given = parse_object(text, limits, tool=tool.name, quoted=not tool.secret)
        read = _fit(tool, text, given, limits, converter)
    except ModelBehaviorError as fault:
        read = Arguments(text=text, given=given, fault=fault)
    return _hide_secrets(tool, read) if tool.secret else read


def _hide_secrets(tool: FunctionTool, read: Arguments) -> Arguments:
    fault, receipt = read.fault, read.receipt
    if fault is not None:
        if read.given is not None:  # the message of a validation error quotes values and, as paths to them, keys
            fault = ModelBehaviorError(f"Arguments of tool {tool.name} don't fit: {REDACTED}")
        redact_message(fault)
    if receipt is not None:
        receipt = hashlib.sha256(receipt.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return read.replace(fault=fault, receipt=receipt)


def _fit(
    tool: FunctionTool, text: str, given: dict[str, Any], limits: JsonLimits, converter: BaseConverter | None
) -> Arguments:
    """Fit *given*, the parsed *text*, to the body of *tool*.

    Raises:
        ModelBehaviorError: it doesn't fit.
    """
    body, bound = tool.body, None
    if isinstance(body, AgentCall) and body.typed is not None:
        return Arguments(text=text, given=given, value=body.typed.using(converter).parse(text, limits))
    if isinstance(body, RawBody):
        if body.check is not None and (wrong := body.check(given)) is not None:
            raise ModelBehaviorError(f"Arguments of tool {tool.name} don't fit: {wrong}")
    else:
        assert isinstance(body, (PythonBody, AgentCall))
        bound = body.schema.bind(given, converter, read_strings=limits.read_strings)
    receipt = None
    if tool.idempotent:
        receipt = f"{tool.lookup_key} {canonical(given) if bound is None else bound.key()}"
    return Arguments(text=text, given=given, bound=bound, receipt=receipt)


class PlanRules(Value, frozen=True, kw_only=True):
    """The run's configuration of planning. `disabled`: lookup keys of tools that are no longer enabled."""

    not_found: OnFailure = "tell_model"
    max_calls: int | None = None
    disabled: frozenset[str] = frozenset()
    read: Callable[[FunctionTool, str], Arguments] = partial(read_arguments, limits=JsonLimits())
    """Reads a call's arguments, within the run's limits. It must be pure, so that a caching function can replace it."""
