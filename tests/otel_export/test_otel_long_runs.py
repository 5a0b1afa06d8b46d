"""What is exported of runs that last: the size of their history, compactions, and waits for the limits of models."""

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-otel: nox -s tests-otel")

from kit.windows import compactions, make_agent, reader
from otel_export.exporting import Exported

from agentloop import Agent, Capacity, ClearToolOutputs, ContextPolicy, Rate
from agentloop.testing import ScriptedModel, say


async def test_a_compaction_is_a_span_and_is_counted(run_mode: Any) -> None:
    """With the tokens before and after it, and its steps."""
    exported = Exported()
    policy = ContextPolicy(window=4_000, steps=[ClearToolOutputs(keep_last=1)])
    result = await run_mode(make_agent(policy, reader(4)), "Read.", run_config=exported.config())
    [made] = compactions(result.records)
    span = exported.span("compaction reader")
    assert dict(span.attributes or {}) == {
        "gen_ai.agent.name": "reader",
        "agentloop.compaction.steps": ("ClearToolOutputs",),
        "agentloop.context.tokens_before": made.tokens_before,
        "agentloop.context.tokens": made.tokens,
    }
    assert exported.parent("compaction reader") == "invoke_agent reader"
    [counted] = exported.points("agentloop.compactions")
    assert (counted.value, dict(counted.attributes)) == (1, {"gen_ai.agent.name": "reader"})


async def test_the_size_of_the_history_is_told_with_each_answer(run_mode: Any) -> None:
    """As the provider has counted it; nothing where it counts nothing."""
    exported = Exported()
    result = await run_mode(make_agent(None, reader(2)), "Read.", run_config=exported.config())
    sizes = [
        (span.attributes or {})["agentloop.context.tokens"] for span in exported.spans if span.name.startswith("chat ")
    ]
    assert len(sizes) == 3
    assert sizes[-1] == result.context_tokens
    [measured] = exported.points("agentloop.context.tokens")
    assert (measured.count, measured.sum) == (3, sum(sizes))
    silent = Exported()
    await run_mode(make_agent(None, reader(2, usage=False)), "Read.", run_config=silent.config())
    assert not silent.points("agentloop.context.tokens")


async def test_waits_for_limits_are_told_and_measured(run_mode: Any) -> None:
    """How long a request waited, and for what; without limits nothing is."""
    exported = Exported()
    limits = [Capacity(1, name="places"), Rate(100, per=60, name="minute")]
    config = exported.config(model_limits=limits)
    await run_mode(Agent("a", model=ScriptedModel([say("hi")])), "go", run_config=config)
    [span] = [span for span in exported.spans if span.name.startswith("chat ")]
    told = dict(span.attributes or {})
    assert float(told["agentloop.request.queued"]) >= 0
    assert tuple(told["agentloop.request.waited_for"]) == ()
    [waited] = exported.points("agentloop.client.queue.duration")
    assert (waited.count, waited.attributes["gen_ai.request.model"]) == (1, "ScriptedModel")
    plain = Exported()
    await run_mode(Agent("a", model=ScriptedModel([say("hi")])), "go", run_config=plain.config())
    assert not plain.points("agentloop.client.queue.duration")
    assert not [name for span in plain.spans for name in span.attributes or {} if "agentloop.request." in name]
