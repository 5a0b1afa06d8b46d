"""The configuration of a run: options that belong together are one value, and their names of before are accepted."""

import ast
import inspect
from typing import Any

import attrs
import pytest

from agentloop import (
    Agent,
    HistorySettings,
    RunConfig,
    Runner,
    SessionSettings,
    ToolExecution,
    TracingSettings,
    UserError,
    config,
)
from agentloop.config import _GROUPED, _GROUPS
from agentloop.exceptions import UserTypeError

VALUES: dict[str, tuple[Any, Any]] = {
    "handoff_input_filter": (None, lambda data: data),
    "nest_handoff_history": (False, ("from here", "to here")),
    "call_model_input_filter": (None, lambda data: data),
    "session_input_callback": (None, lambda history, new: new),
    "session_settings": (None, SessionSettings(limit=3)),
    "workflow_name": ("Agent workflow", "patrol"),
    "group_id": (None, "chat-7"),
    "trace_metadata": (None, {"a": 1}),
    "trace_include_sensitive_data": (True, False),
    "tracing_disabled": (False, True),
    "tool_error_formatter": (None, lambda args: "no"),
    "tool_not_found_behavior": ("tell_model", "raise"),
    "tool_name_collision_policy": ("tell_model", "raise"),
    "loop_detection": (None, 3),
}
"""By name: the default and another value."""


def test_each_part_of_a_group_has_a_name_of_before() -> None:
    """Only those: what came into a group later has one spelling."""
    assert VALUES.keys() == _GROUPED.keys()
    parts = {(group, field.name) for group, kind in _GROUPS.items() for field in attrs.fields(kind)}
    assert set(_GROUPED.values()) <= parts
    assert {field.name for field in attrs.fields(RunConfig)} & _GROUPED.keys() == set()


@pytest.mark.parametrize("name", VALUES)
def test_the_name_of_before_sets_and_reads_its_part(name: str) -> None:
    """As an option, in a copy, and to be read; the other parts of the group stay as they are."""
    usual, other = VALUES[name]
    group, part = _GROUPED[name]
    made = RunConfig(**{name: other})
    assert getattr(made, name) == getattr(getattr(made, group), part) == other
    assert getattr(RunConfig(), name) == getattr(RunConfig(timeout=1), name) == usual
    assert getattr(attrs.evolve(made, timeout=1), name) == other
    assert getattr(attrs.evolve(made, **{name: usual}), name) == usual
    assert getattr(RunConfig(**{group: getattr(made, group)}), name) == other


def test_names_of_before_change_only_their_part_of_a_group() -> None:
    """Beside the group itself, and several at once."""
    made = RunConfig(tracing=TracingSettings(workflow_name="patrol", disabled=True), group_id="g", trace_metadata={})
    assert made.tracing.workflow_name == "patrol"
    assert made.tracing.disabled
    assert (made.tracing.group_id, made.tracing.metadata) == ("g", {})
    copy = attrs.evolve(made, group_id="h", loop_detection=2)
    assert (copy.tracing.workflow_name, copy.tracing.group_id) == ("patrol", "h")
    assert copy.tool_execution.loop_detection == 2
    assert made.tracing.group_id == "g"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tracing": 3}, r"RunConfig.tracing: expected TracingSettings\(…\), got 3"),
        ({"tracing": 3, "group_id": "g"}, r"RunConfig.tracing: expected TracingSettings\(…\), got 3"),
        ({"history": None}, r"RunConfig.history: expected HistorySettings\(…\)"),
        ({"group_id": 3}, "TracingSettings.group_id: expected text, got 3"),
        ({"disabled": True}, r"it goes here: RunConfig\(tracing=TracingSettings\(disabled=…\)\)"),
        ({"not_found_behavior": "raise"}, r"RunConfig\(tool_execution=ToolExecution\(not_found_behavior=…\)\)"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_where_it_is(options: dict[str, Any], said: str) -> None:
    """The group, or its part; an option of a group that is given to the whole is told its place."""
    with pytest.raises(UserTypeError, match=said):
        RunConfig(**options)


def test_options_in_the_wrong_place_are_told_the_configuration() -> None:
    """Also by the names of before, which people know from other libraries."""
    wrong: Any = {"tracing_disabled": True}
    with pytest.raises(UserTypeError, match=r"run_config=RunConfig\(tracing_disabled=…\)"):
        Runner.run_sync(Agent("a"), "go", **wrong)
    with pytest.raises(AttributeError, match="'RunConfig' object has no attribute 'nothing'"):
        RunConfig().nothing  # type: ignore[attr-defined]


def test_type_checkers_are_told_what_is_accepted() -> None:
    """The signature that is written out for them has the fields and the names of before, nothing else."""
    tree = ast.parse(inspect.getsource(config))
    (cls,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "RunConfig"]
    (made,) = [node for node in ast.walk(cls) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    assert {arg.arg for arg in made.args.kwonlyargs} == {
        field.name for field in attrs.fields(RunConfig)
    } | _GROUPED.keys()


def test_groups_are_values_like_others() -> None:
    """Frozen, equal by their fields, and checked when they are made."""
    assert HistorySettings() == HistorySettings()
    assert TracingSettings(group_id="g") != TracingSettings()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        TracingSettings().group_id = "g"  # type: ignore[misc]
    with pytest.raises(UserError):
        HistorySettings(nest_handoff_history="yes")  # type: ignore[arg-type]
    with pytest.raises(UserError):
        ToolExecution(loop_detection=1)
