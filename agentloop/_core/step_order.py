"""The order of a call's steps, as a value: guardrails, hooks, the body. And the phases that a call passes through.

Most tools need few of the steps that a call can have: a tool without guardrails has no step for them. So we choose the
steps once for each tool and run (`choose`), and the engine walks them with one text (`calls/call.py`). A bare tool has
empty tuples. That is the short way, and no code asks for it.

    before   8 the budget, is the tool still there, 9 its input guardrails, do the arguments fit, a thread
             10 the call's start is recorded (every call has this one)
    starts   11 the current span, the journal has the start, the start hooks
    limits   12 the body runs within its timeouts
    value    13 the application's own data about the body's value
    failure  13 the application's own text about an error
    timeout  13 the application's own text about a timeout
    judges   14 the output guardrails
    stores   15 the store for an output that is too long
             16 the end hooks of the objects whose start hook was called
             17 the outcome is recorded (every call has this one, too)

So output guardrails judge before end hooks hear of a call. Of a final output it is the other way round: the agent's end
hooks hear of the candidate, and then its output guardrails judge it (`_check_output` in `_engine/final_output.py`).

A new field of a tool is one `Rule` here and one function in `calls/steps.py`, or one entry in the list of fields that
need no step. That is in a test, which takes every field of `FunctionTool` and fails where a field has neither.

Pure: knows which steps there are and when a call needs them, not what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Literal, TypeAlias, TypeVar

from agentloop._common.values import Value
from agentloop.tools import FunctionTool, default_tool_error_function

StepT = TypeVar("StepT")

CallPhase: TypeAlias = Literal["waiting", "starting", "body", "post", "paused", "settled"]
PHASES: Mapping[CallPhase, frozenset[CallPhase]] = {
    "waiting": frozenset({"starting", "settled"}),
    "starting": frozenset({"waiting", "body", "post", "settled"}),
    "body": frozenset({"post", "paused", "settled"}),
    "post": frozenset({"settled"}),
    "paused": frozenset({"starting"}),
    "settled": frozenset(),
}
"""The phases of a call, each with those that may follow it:

    waiting   no task yet: in a later segment, in a queue, or behind an equal call
    starting  has a task: its limits are taken, or the task only writes the outcome of a call that was cancelled
    body      the body runs
    post      the body has ended and the permit is given back; output guardrails and end hooks run
    settled   the outcome is in the log
    paused    the run nested in the call needs a verdict: no outcome in this run segment

The usual order is waiting, starting, body, post, settled. For example, a call that an input guardrail rewrites so that
it equals another call returns from starting to waiting. A paused call returns to starting when its batch ends early,
because its end hooks have to run.
"""


class CallNeeds(Value, frozen=True):
    """The reasons for steps that aren't in the tool: the parts that the run has, and whether the arguments fit."""

    fits: bool = True
    budget: bool = False
    spans: bool = False
    journal: bool = False
    hooks: bool = False
    output_store: bool = False
    replayed: bool = False
    formats_errors: bool = False


class Limits(Value, frozen=True):
    """The timeouts of a body in seconds: `whole` from its start, `idle` from its last report of progress."""

    whole: float | None
    idle: float | None

    def end(self, began: float, idle_since: float) -> float:
        """Return the time at which the body has to end, which began and last reported progress at these times."""
        limits = ((began, self.whole), (idle_since, self.idle))
        return min([since + seconds for since, seconds in limits if seconds is not None])

    def passed(self, idle_since: float, ended_at: float) -> float:
        """Return the seconds of the timeout that ended a body at *ended_at*, which last reported at *idle_since*."""
        is_idle = self.idle is not None and ended_at >= idle_since + self.idle
        return (self.idle if is_idle else self.whole) or 0.0


class CallSteps(Value, Generic[StepT], frozen=True):
    """The steps of a call. Empty tuples for a bare tool, whose calls are their bodies and nothing else."""

    before: tuple[StepT, ...] = ()
    starts: tuple[StepT, ...] = ()
    limits: Limits | None = None
    value: tuple[StepT, ...] = ()
    failure: tuple[StepT, ...] = ()
    timeout: tuple[StepT, ...] = ()
    judges: tuple[StepT, ...] = ()
    stores: tuple[StepT, ...] = ()


class Rule(Value, frozen=True):
    """One step: its name, the fields of `FunctionTool` that it reads, and which calls have it."""

    name: str
    fields: tuple[str, ...]
    applies: Callable[[FunctionTool, CallNeeds], object]


def _writes_failure(tool: FunctionTool, needs: CallNeeds) -> bool:
    has_own_words = tool.failure_error_function not in (None, default_tool_error_function)
    return needs.replayed or needs.formats_errors or has_own_words


BEFORE = (
    Rule("check_budget", ("cost",), lambda tool, needs: needs.budget),
    Rule("check_enabled", ("is_enabled",), lambda tool, needs: tool.is_enabled is not True),
    Rule("judge_input", ("tool_input_guardrails",), lambda tool, needs: tool.tool_input_guardrails),
    # An input guardrail may write arguments that don't fit.
    Rule("check_arguments", (), lambda tool, needs: tool.tool_input_guardrails or not needs.fits),
    Rule("take_thread", ("body",), lambda tool, needs: tool.runs_in_thread),
)
STARTS = (
    Rule("enter_span", (), lambda tool, needs: needs.spans),
    Rule("wait_for_journal", (), lambda tool, needs: needs.journal),
    Rule("call_start_hooks", (), lambda tool, needs: needs.hooks),
)
VALUE = (
    Rule("extract_custom_data", ("custom_data_extractor",), lambda tool, needs: tool.custom_data_extractor is not None),
)
FAILURE = (
    # Our own function never waits. But a replay takes its text from the log.
    Rule("write_failure", ("failure_error_function",), _writes_failure),
)
TIMEOUT = (
    Rule("write_timeout", ("timeout_error_function",), lambda tool, needs: tool.timeout_error_function is not None),
)
JUDGES = (Rule("judge_output", ("tool_output_guardrails",), lambda tool, needs: tool.tool_output_guardrails),)
STORES = (Rule("store_output", (), lambda tool, needs: needs.output_store),)
RULES = (*BEFORE, *STARTS, *VALUE, *FAILURE, *TIMEOUT, *JUDGES, *STORES)


def choose(tool: FunctionTool, needs: CallNeeds, functions: Mapping[str, StepT]) -> CallSteps[StepT]:
    """Return the steps of a call of *tool* with these *needs*; *functions* does each step, by its name."""

    def those(rules: tuple[Rule, ...]) -> tuple[StepT, ...]:
        return tuple([functions[rule.name] for rule in rules if rule.applies(tool, needs)])

    limits = None
    if tool.timeout is not None or tool.idle_timeout is not None:
        limits = Limits(tool.timeout, tool.idle_timeout)
    failed = those(FAILURE), those(TIMEOUT)
    return CallSteps(those(BEFORE), those(STARTS), limits, those(VALUE), *failed, those(JUDGES), those(STORES))
