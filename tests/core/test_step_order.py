"""The table of a call's steps: every field of a tool has one, or a reason to have none; and the phases of a call."""

from typing import Any

import attrs
import pytest

from agentloop import Agent, FunctionTool, tool
from agentloop._core.cancellation import STAGES
from agentloop._core.step_order import PHASES, RULES, CallNeeds, CallSteps, Limits, choose
from agentloop._engine.calls.steps import STEPS
from agentloop.guardrails import Allow, tool_input_guardrail, tool_output_guardrail

FIELDS = {field.name for field in attrs.fields(FunctionTool)}
NAMES = {rule.name: rule.name for rule in RULES}
FULL = CallNeeds(fits=False, budget=True, spans=True, journal=True, hooks=True, output_store=True, replayed=True)

LIMITS = ("timeout", "idle_timeout")
"""The fields of a tool that give `CallSteps.limits`."""

WITHOUT_STEP = {
    "name": "names the tool",
    "description": "for the model",
    "params_json_schema": "for the model",
    "on_invoke_tool": "is the body, where no other is given",
    "strict_mode": "for the model",
    "needs_approval": "decided in the plan, before any call starts",
    "timeout_behavior": "a policy: what becomes of a timeout",
    "idempotent": "a policy: equal calls share an outcome, and a body in doubt runs again",
    "reads_only": "a policy: a body in doubt runs again, and the lab runs it",
    "in_doubt": "a policy: what becomes of a body that can't tell whether it took effect",
    "capacity": "a limit, for which a call waits in its queue",
    "serial": "a limit, for which a call waits in its queue",
    "exclusive": "a segment of the batch by itself",
    "background": "the call settles in the place of its body, which runs on (`calls/background.py`)",
    "on_end": "what becomes of a body in the background at the end of the run",
    "abandon_on_cancel": "how a thread ends, within the body",
    "namespace": "names the tool",
    "namespace_description": "for the model",
    "defer_loading": "for the model",
    "kind": "how the arguments are read, in the plan",
    "format": "for the model",
    "output_schema": "for the model",
    "allowed_callers": "for the model",
    "examples": "for the model",
    "secret": "what no text may show",
    "secret_output": "what no text may show",
}
"""The fields of `FunctionTool` for which a call needs no step, and why."""


@tool
async def bare() -> str:
    """Do nothing around the body."""
    return "ok"


@tool
def threaded() -> str:
    """Run in a thread."""
    return "ok"


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_each_field_of_a_tool_has_a_step_or_a_reason_to_have_none(field: str) -> None:
    """A new field that nobody enters would be ignored by every call, without a word."""
    with_step = {name for rule in RULES for name in rule.fields} | set(LIMITS)
    assert (field in with_step) != (field in WITHOUT_STEP), (
        f"FunctionTool.{field} needs a Rule in _core/step_order.py, or an entry in WITHOUT_STEP; and only one of them"
    )


def test_no_rule_names_a_field_that_is_gone() -> None:
    """Both tables are about the fields that there are."""
    assert {name for rule in RULES for name in rule.fields} | set(LIMITS) | set(WITHOUT_STEP) == FIELDS


def test_each_step_has_its_function() -> None:
    """The engine does what the table names, and nothing else."""
    assert set(STEPS) == set(NAMES)


def test_bare_tool_has_no_steps() -> None:
    """Its calls are their bodies."""
    assert choose(bare, CallNeeds(), NAMES) == CallSteps()


async def passes(*_: Any) -> Allow:
    """Judge."""
    return Allow()


@pytest.mark.parametrize(
    ("changes", "needs", "found"),
    [
        ({}, CallNeeds(budget=True), {"before": ("check_budget",)}),
        ({"is_enabled": lambda ctx, agent: True}, CallNeeds(), {"before": ("check_enabled",)}),
        ({"is_enabled": False}, CallNeeds(), {"before": ("check_enabled",)}),
        (
            {"tool_input_guardrails": (tool_input_guardrail(passes),)},
            CallNeeds(),
            {"before": ("judge_input", "check_arguments")},
        ),
        ({}, CallNeeds(fits=False), {"before": ("check_arguments",)}),
        ({}, CallNeeds(spans=True), {"starts": ("enter_span",)}),
        ({}, CallNeeds(journal=True), {"starts": ("wait_for_journal",)}),
        ({}, CallNeeds(hooks=True), {"starts": ("call_start_hooks",)}),
        ({"timeout": 3.0}, CallNeeds(), {"limits": Limits(3.0, None)}),
        ({"timeout": 3.0, "idle_timeout": 1.0}, CallNeeds(), {"limits": Limits(3.0, 1.0)}),
        ({"custom_data_extractor": lambda ctx, value: None}, CallNeeds(), {"value": ("extract_custom_data",)}),
        ({"failure_error_function": lambda ctx, error: ""}, CallNeeds(), {"failure": ("write_failure",)}),
        ({"failure_error_function": None}, CallNeeds(), {}),
        ({}, CallNeeds(replayed=True), {"failure": ("write_failure",)}),
        ({"timeout_error_function": lambda ctx, error: ""}, CallNeeds(), {"timeout": ("write_timeout",)}),
        ({"tool_output_guardrails": (tool_output_guardrail(passes),)}, CallNeeds(), {"judges": ("judge_output",)}),
        ({}, CallNeeds(output_store=True), {"stores": ("store_output",)}),
    ],
)
def test_a_field_or_a_need_adds_its_step(changes: dict[str, Any], needs: CallNeeds, found: dict[str, Any]) -> None:
    """It adds nothing else."""
    assert choose(attrs.evolve(bare, **changes), needs, NAMES) == CallSteps(**found)


def test_sync_body_needs_a_thread_after_all_that_may_refuse_the_call() -> None:
    """A call that is refused takes no thread."""
    assert choose(threaded, CallNeeds(), NAMES).before == ("take_thread",)
    assert choose(threaded, FULL, NAMES).before == ("check_budget", "check_arguments", "take_thread")
    assert choose(Agent("helper").as_tool(), CallNeeds(), NAMES) == CallSteps()


@pytest.mark.parametrize(
    ("limits", "end"),
    [(Limits(5.0, None), 15.0), (Limits(None, 2.0), 16.0), (Limits(5.0, 2.0), 15.0), (Limits(9.0, 2.0), 16.0)],
)
def test_body_ends_at_the_earlier_of_its_limits(limits: Limits, end: float) -> None:
    """The whole time counts from the start, the idle time from the last report."""
    assert limits.end(10.0, 14.0) == end


def test_each_phase_is_reached_and_all_lead_to_the_end() -> None:
    """A call waits first and settles last; from each phase there is a way to the end."""
    assert {after for phases in PHASES.values() for after in phases} == set(PHASES)
    reached, due = set[str](), ["waiting"]
    while due:
        phase = due.pop()
        if phase not in reached:
            reached.add(phase)
            due += PHASES[phase]  # type: ignore[index]
    assert reached == set(PHASES)
    assert [phase for phase, after in PHASES.items() if not after] == ["settled"]
    assert set(STAGES) == set(PHASES) - {"paused", "settled"}
