"""The results of runs: frozen views of a run's log, made by the engine at the end of a run segment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

import attrs

from agentloop._common.errors import UserError, UserTypeError
from agentloop._common.masking import MASK, make_masked_repr
from agentloop._common.misplaced import refuse_attribute
from agentloop._common.type_parameters import OutputT
from agentloop._common.values import ReprByFields
from agentloop.agents import Agent
from agentloop.events import CallSettled, UsageNote
from agentloop.guardrails import InputGuardrailResult, OutputGuardrailResult, ToolGuardrailResult
from agentloop.items import Interruption, Item
from agentloop.model_events import ModelResponse
from agentloop.records import Record, RunEnded
from agentloop.usage import Usage

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop.abc import Codec
    from agentloop.state import RunState
    from agentloop.tools import ToolOrigin

AsT = TypeVar("AsT")

_GUARDRAIL_FIELDS = tuple(f"{stage}_guardrail_results" for stage in ("input", "output", "tool_input", "tool_output"))

_USUAL_ELSEWHERE = {
    "output": "final_output",
    "data": "final_output",
    "context_wrapper": "usage, or the context that you gave",
    "all_messages": "to_input_list()",
    "all_messages_json": "[agentloop.to_json(item) for item in result.to_input_list()]",
    "new_messages": "new_items",
    "messages": "to_input_list()",
    "stream_events": "Runner.run_streamed(…) in place of Runner.run",
    "approve": "to_state().approve(…)",
    "reject": "to_state().reject(…)",
    "cancel_call": "to_state().reject(…)",
}
"""Attributes of other libraries' results: the ones here in place of them."""


@attrs.frozen(eq=False, repr=False, kw_only=True)
class RunData(ReprByFields):
    """The progress of a run at the moment an error left it. The fields are those of `RunResult`."""

    input: tuple[Item, ...] = attrs.field(repr=False)
    new_items: tuple[Item, ...] = attrs.field(repr=False)
    raw_responses: tuple[ModelResponse, ...] = attrs.field(repr=False)
    last_agent: Agent[Any, Any]
    usage: Usage
    context: Any = attrs.field(repr=False)
    calls: tuple[CallSettled, ...]
    input_guardrail_results: tuple[InputGuardrailResult, ...] = ()
    output_guardrail_results: tuple[OutputGuardrailResult, ...] = ()
    tool_input_guardrail_results: tuple[ToolGuardrailResult, ...] = ()
    tool_output_guardrail_results: tuple[ToolGuardrailResult, ...] = ()
    records: Sequence[Record] = attrs.field(default=(), repr=False)

    @property
    def cost(self) -> Decimal | None:
        """The cost of the run's requests and calls, nested runs included, in the unit of `RunConfig.price`.

        None if nothing in the run had a price. For example, with `price=lambda name, usage: ...` in dollars,
        `f"{result.cost:.4f} $"`.
        """
        from agentloop.config.budget import total_cost

        return total_cost(self.records)

    @property
    def tool_origins(self) -> dict[str, ToolOrigin]:
        """Where the tools of the run's calls came from, by the ids of the calls.

        It is worked out of the log when it is read. A call that has begun, or whose tool came from a source, has an
        entry. One that was refused or waits for its verdict may have none: the log can't tell then whether the tool is
        a function or an agent. A journal of an older version doesn't name its sources.

        Example:
            from agentloop import Agent, Runner, tool
            from agentloop.testing import ScriptedModel, call, say

            @tool
            def ping() -> str:
                "Answer."
                return "pong"

            agent = Agent("a", model=ScriptedModel([call("ping", {}, "c1"), say("ok")]), tools=[ping])
            result = Runner.run_sync(agent, "go")
            print({call_id: origin.kind for call_id, origin in result.tool_origins.items()})  # {'c1': 'function'}
        """
        from agentloop.agents._tool_origins import find_tool_origins

        return find_tool_origins(self.records)

    def to_json(self, *, codec: Codec | None = None, converter: BaseConverter | None = None) -> dict[str, Any]:
        """Return the data as a new dict of JSON's own types, without `context` and `records`.

        The last agent is written by its name, and each other part as `agentloop.to_json` writes it: secrets are sealed
        by *codec* or replaced by digests, *converter* writes values of the application's types. `agentloop.to_json`
        writes each of the `records`, and `RunResult.to_state` stores a run to resume it.
        """
        from agentloop._storage.public_json import guardrail_result_to_json, to_json
        from agentloop._storage.withholding import Secrets

        secrets = Secrets(codec, converter)

        def write(values: Iterable[object]) -> list[Any]:
            return [to_json(value, codec=codec, converter=converter) for value in values]

        guardrails = {
            name: [guardrail_result_to_json(result, secrets) for result in getattr(self, name)]
            for name in _GUARDRAIL_FIELDS
        }
        return {
            "input": write(self.input),
            "new_items": write(self.new_items),
            "raw_responses": write(self.raw_responses),
            "last_agent": self.last_agent.name,
            "usage": to_json(self.usage),
            "cost": None if self.cost is None else f"{self.cost:f}",
            "calls": write(self.calls),
            "tool_origins": {
                call_id: {"kind": origin.kind, "name": origin.name} for call_id, origin in self.tool_origins.items()
            },
            **guardrails,
        }


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RunResult(RunData, Generic[OutputT]):
    """The result of one run segment (start or resume).

    Attributes:
        final_output: The output of the last agent; None unless `status` is `"completed"`.
        status: `"completed"`, `"interrupted"` (calls wait for a verdict), `"cancelled"` (by `RunStream.cancel`, or
            because its block was left) or `"stopped"` (by a condition).
        stop_reason: The condition that stopped the run, or the limit (`"max_turns"`, `"usage_limits"`) at which the
            model was asked for its final output (`RunConfig.at_limit`); None if none did.
        input: The run's own input.
        new_items: The items that the run added, in order: the models' items, and each call's output in model order.
        raw_responses: The models' responses.
        calls: One `CallSettled` for each call, in model order.
        records: The log of the run and of the runs nested in it.
        last_response_id: The provider's id of the last response.
        interruptions: The calls that wait for a verdict (`ApprovalRequest`) or for their answer (`CallToAnswer`), those
            of nested runs included.
    """

    final_output: OutputT
    status: Literal["completed", "interrupted", "cancelled", "stopped"]
    stop_reason: str | None = None
    last_response_id: str | None = None
    interruptions: tuple[Interruption, ...] = ()
    _history: tuple[Item, ...] = attrs.field(default=(), alias="history", repr=False)
    _source: Any = attrs.field(default=None, alias="source", repr=False)
    """The maker of the fields that have no value yet (`run_result`); None for a result that no run has made."""

    @classmethod
    def _of(cls, **fields: Any) -> RunResult[Any]:
        """Return a result with *fields*; its `_source` makes the others at the first use of one of them.

        Most callers read the final output only, and making the others is a tenth of a run of one turn.
        """
        result: RunResult[Any] = cls.__new__(cls)
        for name, value in fields.items():
            _SET[name](result, value)
        return result

    if not TYPE_CHECKING:  # else every name would be an attribute to a type checker

        def __getattr__(self, name: str) -> Any:
            """Return the field *name*, which has no value yet."""
            if name not in _SET or name == "_source":
                refuse_attribute(self, name, _USUAL_ELSEWHERE)
            self._complete()
            return getattr(self, name)

    def _complete(self) -> None:
        """Make the fields that have no value yet."""
        for name, value in self._source.collect().items() if self._source is not None else ():
            _SET[name](self, value)

    def __repr__(self) -> str:
        return make_masked_repr(self, {"final_output": repr(MASK)} if self._is_secret else {})

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, with what to send in place of it.

        Raises:
            UserTypeError: always.
        """
        raise UserTypeError(
            "a RunResult can't be pickled, because it holds agents, models and open objects. Send result.final_output "
            "or result.to_json(); to resume the run elsewhere, send result.to_state().to_string() and read it there "
            "with RunState.from_string(agent, text)"
        )

    def __copy__(self) -> RunResult[OutputT]:
        return self  # it is frozen

    def __deepcopy__(self, memo: dict[int, Any]) -> RunResult[OutputT]:
        copied: RunResult[OutputT] = type(self).__new__(type(self))
        for name, put in _SET.items():
            value = getattr(self, name)
            put(copied, value if name == "_source" else copy.deepcopy(value, memo))
        return copied

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the answer, and a row for each call. It hides what the repr hides."""
        from agentloop._common.notebook import count, run_cell  # only notebooks need it

        turns = max((record.turn for record in self.records if not record.path), default=0)
        return run_cell(
            self.last_agent.name,
            self.status,
            count(turns, "turn"),
            count(len(self.calls), "call"),
            f"{self.usage.total_tokens} tokens" if self.usage.total_tokens else "",
            "" if self.cost is None else f"cost {self.cost:f}",
            answer=self.final_output,
            is_secret=self._is_secret,
            calls=((call.call, call.outcome) for call in self.calls),
            waiting=self.interruptions,
        )

    @property
    def usage_notes(self) -> tuple[UsageNote, ...]:
        """The notes on answers for which the provider's cache held much less than before, nested runs included.

        Example:
            from agentloop import Agent, RequestUsage, Runner
            from agentloop.items import ToolCall
            from agentloop.testing import ScriptedModel, respond, say

            first = respond(ToolCall("c", "look", "{}"), usage=RequestUsage(cached_tokens=2_048))
            turns = [first, say("done", RequestUsage())]
            result = Runner.run_sync(Agent("a", model=ScriptedModel(turns)), "go")
            print([(note.turn, note.cached_before, note.cached) for note in result.usage_notes])  # [(2, 2048, 0)]
        """
        from agentloop._core.record_events import find_usage_notes

        return tuple(find_usage_notes(self.records))

    @property
    def _is_secret(self) -> bool:
        last = self.records[-1] if self.records else None
        return isinstance(last, RunEnded) and last.secret

    def to_json(self, *, codec: Codec | None = None, converter: BaseConverter | None = None) -> dict[str, Any]:
        """Return the result as a new dict of JSON's own types: as `RunData.to_json`, with the fields of a result.

        A final output that a secret tool has made is hidden as its output is.
        """
        from agentloop._storage.record_codec import part_to_json
        from agentloop._storage.value_codec import value_to_json
        from agentloop._storage.withholding import Secrets

        secrets = Secrets(codec, converter)
        output = value_to_json(self.final_output, secrets)
        return {
            "status": self.status,
            "final_output": secrets.hide_json(output) if self._is_secret else output,
            "stop_reason": self.stop_reason,
            "finish_reason": self.finish_reason,
            "last_response_id": self.last_response_id,
            "interruptions": [part_to_json(request, secrets) for request in self.interruptions],
            **super().to_json(codec=codec, converter=converter),
        }

    @property
    def finish_reason(self) -> str | None:
        """The provider's reason for the end of the last answer; `"length"` and `"content_filter"` mean it was cut."""
        return self.raw_responses[-1].finish_reason if self.raw_responses else None

    @property
    def context_tokens(self) -> int:
        """The tokens of the history at the end: as the provider counted them last, and an estimate of what came since.

        Where the provider tells no usage, all of it is an estimate, of the items alone. It is worked out when it is
        read.
        """
        from agentloop.window.measure import Counted, estimate_tokens, find_count

        counted = find_count(self._history, self.raw_responses) or Counted(0, 0)
        return counted.tokens + estimate_tokens(self._history[counted.length :])

    def final_output_as(self, type: type[AsT]) -> AsT:
        """Return the final output, checked to be an instance of *type*.

        Raises:
            UserTypeError: if it is an instance of another type.
        """
        if not isinstance(self.final_output, type):
            raise UserTypeError(f"the final output is {self.final_output.__class__.__name__}, not {type.__name__}")
        return self.final_output

    def to_state(self) -> RunState:
        """Return the run as a `RunState`, with which to decide on waiting calls, store the run, or resume it.

        Raises:
            UserError: if this result was made by hand and not by a run.

        Example:
            from agentloop import Agent, Runner
            from agentloop.testing import ScriptedModel, say

            result = Runner.run_sync(Agent("a", model=ScriptedModel([say("hi")])), "go")
            print(result.to_state().status)  # completed
        """
        if self._source is None:
            raise UserError("to_state: no run made this result, so it has no state")
        state: RunState = self._source.to_state()
        return state

    def to_input_list(self, mode: Literal["model", "all"] = "model") -> list[Item]:
        """Return the input for another run: the items the model would be shown next, or all items (`"all"`)."""
        if mode == "model":
            return list(self._history)
        return [*self.input, *self.new_items]


_SET: dict[str, Callable[[RunResult[Any], Any], None]] = {
    field.name: getattr(RunResult, field.name).__set__ for field in attrs.fields(RunResult)
}
"""By field: the function that sets it in a new result. `object.__setattr__` takes four times as long."""
