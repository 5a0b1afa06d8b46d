"""The policy of a window: when a history is made shorter, how far, and by which steps."""

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import validators as v

from agentloop._common.checks import FIELDS, fits, optional
from agentloop._common.errors import UserValueError
from agentloop._common.values import ByFields
from agentloop.window.steps import ClearToolOutputs, ContextStep, DropOldest, Step, Summarize


def is_step(value: object) -> bool:
    """Tell whether *value* can be a step: one with `shorten`, a `Summarize`, or a function."""
    return not isinstance(value, type) and (isinstance(value, ContextStep | Summarize) or callable(value))


def _below_start(policy: "ContextPolicy", _attribute: Any, value: float) -> None:
    if not value < policy.start_at:
        raise UserValueError(f"ContextPolicy.target: expected less than start_at={policy.start_at:g}, got {value!r}")


_PART = v.and_(FIELDS.number(), FIELDS.needs("expected a part of the window: above 0, at most 1", v.gt(0), v.le(1)))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ContextPolicy(ByFields):
    """When and how a run makes its history shorter, so that it fits the model's window.

    Before a model call that would have more than `start_at` of the window, the run tries `steps` in order until the
    history has at most `target` of it. The result is one record, `HistoryReplaced(reason="compaction")`: the log, and
    `RunResult.new_items`, still have everything. A run that is resumed or replayed has the same history again.

    If the provider answers that the request is too long, the run does the same, once, and asks again in the same turn.

    Attributes:
        window: The tokens of the model's window. If it isn't given, `ModelInfo.context_window` of the model, which is
            known for the vendors' models; a model of whose window nothing is known is refused before the first request.
        start_at, target: Parts of the window, of which `target` is the smaller one. Far apart they change the history
            seldom, so that the provider's cache of it holds.
        steps: What makes the history shorter, tried in this order: `ClearToolOutputs`, `Summarize`, `DropOldest`, or a
            function of one `ContextView` that returns items, sync or async.
        recall: True to give the model a tool, `recall_output(call_id, start=0, chars=4000)`, that reads an output again
            from the run's log, also one that was cleared. It is a call like others. It reads no secret output, and of
            earlier runs of the session what the session still has.
        provider: True to leave it to the provider, where it has the means (Anthropic's context editing,
            the compaction of OpenAI Responses): it makes the history shorter for itself when it has more than
            `start_at` of the window. With other models the steps are used.
        compact_session: False to keep all items in the run's session. Otherwise it is made shorter, too, in one step
            when the turn is saved, if it is a `ReplaceableSession`.

    Example:
        from agentloop import Agent, ContextPolicy, Runner
        from agentloop.testing import ScriptedModel, say

        agent = Agent("a", model=ScriptedModel([say("hi")]), context=ContextPolicy(window=32_000))
        print(Runner.run_sync(agent, "hello").context_tokens)  # 15
    """

    window: int | None = attrs.field(default=None, validator=optional(FIELDS.count(1)))
    start_at: float = attrs.field(default=0.8, validator=_PART)
    target: float = attrs.field(default=0.5, validator=v.and_(_PART, _below_start))
    steps: Sequence[Step] = attrs.field(
        default=(ClearToolOutputs(), Summarize(), DropOldest()),
        validator=FIELDS.each("a step (ClearToolOutputs, Summarize, DropOldest or a function)", fits(is_step)),
    )
    recall: bool = attrs.field(default=False, validator=FIELDS.flag())
    provider: bool = attrs.field(default=False, validator=FIELDS.flag())
    compact_session: bool = attrs.field(default=True, validator=FIELDS.flag())
