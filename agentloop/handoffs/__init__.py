"""Handoffs: definitions with which an agent's model may give the conversation to another agent.

Definitions only: the engine performs a handoff. May not import `agents`, which imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs.validators import matches_re

from agentloop._common.checks import FIELDS, Fields, Validator, fits, optional
from agentloop._common.errors import UserTypeError, UserValueError
from agentloop._common.misplaced import function_takes_options
from agentloop._common.naming import TOOL_NAME, TOOL_NAME_NEEDS, shorten_name, snake_case, takes
from agentloop._common.values import NotedValue, ReprByFields
from agentloop.context import Callback, RunContext
from agentloop.items import Item
from agentloop.settings import JsonLimits

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop._schema.output_schema import TypedOutput

EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


class HandoffInputData(NotedValue, frozen=True, kw_only=True):
    """The argument and the result of an input filter.

    Attributes:
        input_history: The session's items and the run's input, or the part of them that an earlier handoff kept.
        pre_handoff_items: The items that the run added before the turn of the handoff and that are still shown.
        new_items: The items that the turn of the handoff added, the handoff's own items included.
        input_items: If given, the items that the next agent is shown in place of all of these. Results keep all items.
        context: The run's context.
    """

    _notes = frozenset({"context"})

    input_history: tuple[Item, ...]
    pre_handoff_items: tuple[Item, ...]
    new_items: tuple[Item, ...]
    input_items: tuple[Item, ...] | None = None
    context: RunContext[Any] | None = None


def _is_agent(value: object) -> bool:
    # Not isinstance: `agents` imports this module. So check the attributes that a handoff reads.
    return isinstance(getattr(value, "name", None), str) and hasattr(value, "handoff_description")


def nesting(fields: Fields) -> Validator:
    """Return the validator of `nest_handoff_history`: a bool, or the lines before and after the summary."""

    def is_nesting(value: object) -> bool:
        lines = value if isinstance(value, tuple) else ()
        two = len(lines) == 2 and all(isinstance(line, str) and "\n" not in line for line in lines)
        return two or isinstance(value, bool)

    return fields.needs("expected a bool or two lines of text", fits(is_nesting))


_HANDOFF = Fields(lambda handoff, name: f"handoff to {handoff.agent!r}: {name}")
_TOOL_NAME = _HANDOFF.needs(TOOL_NAME_NEEDS, matches_re(TOOL_NAME))


@attrs.frozen(eq=False, repr=False)
class Handoff(ReprByFields):
    """The definition of a handoff to one agent. Made by `handoff`; an agent in `Agent.handoffs` means `handoff(agent)`.

    Attributes are those of `handoff`. The model is shown `name`, `description` and `params_json_schema`.
    """

    agent: Any = attrs.field(
        validator=Fields(lambda _, name: f"handoff: {name}").needs("expected an Agent", fits(_is_agent))
    )
    tool_name: str | None = attrs.field(default=None, kw_only=True, validator=optional(_TOOL_NAME))
    tool_description: str | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.text()))
    on_handoff: Callback | None = attrs.field(default=None, kw_only=True, validator=optional(_HANDOFF.function()))
    input_type: Any = attrs.field(default=None, kw_only=True)
    input_filter: Callback | None = attrs.field(default=None, kw_only=True, validator=optional(_HANDOFF.function()))
    nest_handoff_history: bool | tuple[str, str] | None = attrs.field(
        default=None, kw_only=True, validator=optional(nesting(_HANDOFF))
    )
    is_enabled: bool | Callback = attrs.field(default=True, kw_only=True, validator=_HANDOFF.flag_or_function())
    _typed: TypedOutput | None = attrs.field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.input_type is not None:
            if self.on_handoff is None:
                raise UserValueError(
                    f"handoff to {self.agent!r}: input_type needs on_handoff, which is given the input"
                )
            from agentloop._schema.output_schema import typed_output

            object.__setattr__(self, "_typed", typed_output(self.input_type, what=f"The input of handoff {self.name}"))
        wanted = 1 if self.input_type is None else 2
        if self.on_handoff is not None and not takes(self.on_handoff, wanted):
            what = "(ctx)" if wanted == 1 else "(ctx, input)"
            raise UserTypeError(f"handoff to {self.agent!r}: on_handoff must be callable as {what}")

    @property
    def name(self) -> str:
        """The name of the handoff for the model, which calls it like a tool."""
        return self.tool_name or shorten_name(f"transfer_to_{snake_case(self.agent.name)}", self.agent.name)

    @property
    def description(self) -> str:
        """The description of the handoff for the model."""
        if self.tool_description is not None:
            return self.tool_description
        about = self.agent.handoff_description
        return f"Hand the conversation over to the agent {self.agent.name}." + (f" {about}" if about else "")

    @property
    def params_json_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the input; without `input_type`, that of an object without properties."""
        return EMPTY_SCHEMA if self._typed is None else self._typed.schema.schema

    @property
    def strict_mode(self) -> bool:
        """True if the schema of the input is strict."""
        return self._typed is None or self._typed.schema.strict

    @property
    def namespace(self) -> str | None:
        """None: handoffs have no namespace. Part of `ToolDefinition`."""
        return None

    @property
    def namespace_description(self) -> str | None:
        """None, as `namespace`. Part of `ToolDefinition`."""
        return None

    @property
    def examples(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Empty: handoffs have no examples. Part of `ToolDefinition`."""
        return ()

    @property
    def kind(self) -> Literal["function", "custom"]:
        """`"function"`: a handoff's input is JSON. Part of `ToolDefinition`."""
        return "function"

    @property
    def format(self) -> Mapping[str, Any] | None:
        """None: the input isn't a free text. Part of `ToolDefinition`."""
        return None

    @property
    def defer_loading(self) -> bool:
        """False: the model is always shown a handoff. Part of `ToolDefinition`."""
        return False

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """None: a handoff gives no value. Part of `ToolDefinition`."""
        return None

    @property
    def allowed_callers(self) -> Sequence[str]:
        """Empty: the model itself hands over. Part of `ToolDefinition`."""
        return ()

    def read(self, text: str, limits: JsonLimits, converter: BaseConverter | None = None) -> Any:
        """Return the model's JSON text, parsed as `input_type`; None without `input_type`.

        *converter* is the run's own converter of the application's types, if it has one.

        Raises:
            ModelBehaviorError: if the text doesn't parse or doesn't fit the type.
        """
        if self._typed is None:
            return None
        return self._typed.using(converter).parse(text, limits)


def target_of(entry: Any) -> Handoff:
    """Return a member of `Agent.handoffs` as a handoff: itself, or a handoff to that agent."""
    return entry if isinstance(entry, Handoff) else Handoff(entry)


@function_takes_options("handoff")
def handoff(
    agent: Any,
    *,
    tool_name: str | None = None,
    tool_description: str | None = None,
    on_handoff: Callback | None = None,
    input_type: Any = None,
    input_filter: Callable[[HandoffInputData], Any] | None = None,
    nest_handoff_history: bool | tuple[str, str] | None = None,
    is_enabled: bool | Callback = True,
) -> Handoff:
    """Return a handoff to *agent*.

    Args:
        agent: The agent that takes over.
        tool_name: The name for the model; `transfer_to_` and the agent's name in snake case if not given.
        tool_description: The description for the model; made from the agent's name and `handoff_description` if not
            given.
        on_handoff: A callable of `(ctx)`, or of `(ctx, input)` with *input_type*, called when the model hands over.
        input_type: The type of the input that the model gives with the handoff.
        input_filter: `(HandoffInputData) -> HandoffInputData`, decides the items that the next agent is shown.
        nest_handoff_history: True shows the next agent a summary of the conversation so far; two lines of text are put
            before and after that summary. None: the setting of the run's configuration.
        is_enabled: True if the model may hand over; a callable of `(ctx, agent)`, called every turn, decides.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.

    Example:
        from agentloop import Agent, Runner, handoff
        from agentloop.testing import ScriptedModel, call, say

        billing = Agent("billing", model=ScriptedModel([say("Your bill is 3.")]))
        triage = Agent(
            "triage",
            model=ScriptedModel([call("transfer_to_billing")]),
            handoffs=[handoff(billing, tool_description="Questions about bills.")],
        )
        result = Runner.run_sync(triage, "How much?")
        print(result.last_agent.name, result.final_output)  # billing Your bill is 3.
    """
    return Handoff(
        agent,
        tool_name=tool_name,
        tool_description=tool_description,
        on_handoff=on_handoff,
        input_type=input_type,
        input_filter=input_filter,
        nest_handoff_history=nest_handoff_history,
        is_enabled=is_enabled,
    )
