"""Handoffs: ways for an agent to give the conversation to another one. Definitions only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from agentloop._common.checks import FIELDS, Fields, Validator, fits, optional
from agentloop._common.errors import UserTypeError, UserValueError
from agentloop._common.naming import snake_case, takes
from agentloop._schema.output_schema import TypedOutput, typed_output
from agentloop.context import Callback, RunContext
from agentloop.items import Item
from agentloop.settings import JsonLimits

EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@attrs.frozen(kw_only=True)
class HandoffInputData:
    """What an input filter is given, and gives back.

    Attributes:
        input_history: The session's items and the run's input, or what an earlier handoff left of them.
        pre_handoff_items: What the run added before the turn of the handoff, as far as it is still shown.
        new_items: What the turn of the handoff added, the handoff's own items included.
        input_items: If given, what the next agent is shown in place of all of these; results keep everything.
        context: The run's context.
    """

    input_history: tuple[Item, ...]
    pre_handoff_items: tuple[Item, ...]
    new_items: tuple[Item, ...]
    input_items: tuple[Item, ...] | None = None
    context: RunContext[Any] | None = attrs.field(default=None, eq=False)


def _is_agent(value: object) -> bool:
    # `agents` imports this module, so an agent is known by what a handoff asks of it.
    return isinstance(getattr(value, "name", None), str) and hasattr(value, "handoff_description")


def nesting(fields: Fields) -> Validator:
    """Return the validator of `nest_handoff_history`: a bool, or the lines before and after what came before."""

    def is_nesting(value: object) -> bool:
        lines = value if isinstance(value, tuple) else ()
        two = len(lines) == 2 and all(isinstance(line, str) and "\n" not in line for line in lines)
        return two or isinstance(value, bool)

    return fields.needs("a bool or two lines of text are needed", fits(is_nesting))


_HANDOFF = Fields(lambda handoff, name: f"handoff to {handoff.agent!r}: {name}")


@attrs.frozen(eq=False)
class Handoff:
    """One way to hand over. Made by `handoff`; an agent in `Agent.handoffs` stands for `handoff(agent)`.

    Attributes are those of `handoff`; `name`, `description` and `params_json_schema` are what the model is shown.
    """

    agent: Any = attrs.field(
        validator=Fields(lambda _, name: f"handoff: {name}").needs("an Agent is needed", fits(_is_agent))
    )
    tool_name: str | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.text()))
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
            object.__setattr__(self, "_typed", typed_output(self.input_type, what=f"The input of handoff {self.name}"))
        wanted = 1 if self.input_type is None else 2
        if self.on_handoff is not None and not takes(self.on_handoff, wanted):
            what = "(ctx)" if wanted == 1 else "(ctx, input)"
            raise UserTypeError(f"handoff to {self.agent!r}: on_handoff must be callable as {what}")

    @property
    def name(self) -> str:
        """The tool name the model calls."""
        return self.tool_name or f"transfer_to_{snake_case(self.agent.name)}"

    @property
    def description(self) -> str:
        """What the model is told about it."""
        if self.tool_description is not None:
            return self.tool_description
        about = self.agent.handoff_description
        return f"Hand the conversation over to the agent {self.agent.name}." + (f" {about}" if about else "")

    @property
    def params_json_schema(self) -> Mapping[str, Any]:
        """The schema of the input, empty without `input_type`."""
        return EMPTY_SCHEMA if self._typed is None else self._typed.schema.schema

    @property
    def strict_mode(self) -> bool:
        """Whether the schema of the input is strict."""
        return self._typed is None or self._typed.schema.strict

    @property
    def namespace(self) -> str | None:
        """Handoffs live in no name space."""
        return None

    @property
    def examples(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Handoffs have no examples."""
        return ()

    def read(self, text: str, limits: JsonLimits) -> Any:
        """Return the input that the model's JSON text means; None without `input_type`.

        Raises:
            ModelBehaviorError: if the text doesn't parse or doesn't fit.
        """
        if self._typed is None:
            return None
        return self._typed.parse(text, limits)


def target_of(entry: Any) -> Handoff:
    """Return *entry* of `Agent.handoffs` as a handoff: itself, or one to that agent."""
    return entry if isinstance(entry, Handoff) else Handoff(entry)


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
        agent: Who takes over.
        tool_name: What the model calls; `transfer_to_` and the agent's name in snake case if not given.
        tool_description: What the model is told.
        on_handoff: Called as `(ctx)`, or `(ctx, input)` with *input_type*, when the model hands over.
        input_type: The type of what the model says with the handoff.
        input_filter: `(HandoffInputData) -> HandoffInputData`, decides what the next agent is shown.
        nest_handoff_history: Show the next agent a summary of what came before, or do so between these two lines; None:
            as the run's configuration says.
        is_enabled: Whether it is offered; a callable is asked as `(ctx, agent)`, every turn.

    Raises:
        UserTypeError, UserValueError: naming what is wrong.
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
