"""A divergence names the record where the run differs, what was wanted, what came, and what has changed."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import attrs
import pytest

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    RunConfig,
    Runner,
    ToolExecution,
    UsageLimits,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import ReplayDivergence
from agentloop.guardrails import Allow, tool_input_guardrail
from agentloop.journal import MemoryJournal
from agentloop.testing import FunctionModel, call, say
from agentloop.testing.replaying import replay
from agentloop.tools import FunctionTool

STEPS: Any = (
    [
        call("weigh", {"n": 1}, call_id="c1"),
        call("weigh", {"n": 2}, call_id="c2"),
        call("price", {"n": 3}, call_id="c3"),
        call("price", {"n": 3}, call_id="c4"),
        call("hang", call_id="c5"),
    ],
    say("done"),
)


async def weighed(n: int) -> int:
    """Weigh something."""
    await anyio.sleep(0.002)
    return n * 2


async def priced(n: int) -> int:
    """Tell a price."""
    return n * 3


async def hanging() -> str:
    """Never end."""
    await anyio.sleep_forever()
    return "never"


async def passes(*_: Any) -> Any:
    """Pass."""
    return GuardrailFunctionOutput("seen")


async def allows(_: Any) -> Any:
    """Pass."""
    return Allow()


LOOKS, READS = input_guardrail(passes, name="looks"), input_guardrail(passes, name="reads")
LAST, CHECKS = output_guardrail(passes, name="last"), tool_input_guardrail(allows, name="checks")


def shop(
    change: Callable[[FunctionTool], FunctionTool] = lambda one: one,
    pick: Callable[[list[FunctionTool]], list[FunctionTool]] = lambda all_of_them: all_of_them,
    **options: Any,
) -> Agent[Any, Any]:
    """Return an agent whose tools *change* and *pick* have had their way with."""
    tools = [
        tool(weighed, name="weigh"),
        tool(priced, name="price", idempotent=True),
        tool(hanging, name="hang", timeout=0.02),
    ]
    made = {"instructions": "Be brief.", "input_guardrails": [LOOKS], **options}
    model = FunctionModel(lambda request: STEPS[request.turn - 1])
    return Agent("shop", tools=pick([change(one) for one in tools]), model=model, **made)


def only(which: str, /, **fields: Any) -> Callable[[FunctionTool], FunctionTool]:
    """Return what gives the tool *which* other *fields*."""
    return lambda one: attrs.evolve(one, **fields) if one.name == which else one


def limited(**fields: Any) -> RunConfig:
    """Return a configuration with these limits of calls."""
    return RunConfig(tool_execution=ToolExecution(**fields))


def journaled(agent: Agent[Any, Any], config: RunConfig) -> tuple[MemoryJournal, Sequence[r.Record]]:
    """Return the journal of a run of *agent*, and its records."""

    async def main() -> tuple[MemoryJournal, Sequence[r.Record]]:
        journal = MemoryJournal()
        result = await Runner.run(agent, "go", run_config=config, journal=journal)
        return journal, result.records

    return anyio.run(main)


def first(records: Sequence[r.Record], kind: type[Any], **fields: Any) -> int:
    """Return the index of the first record of *kind* with these *fields*."""
    for index, one in enumerate(records):
        if isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items()):
            return index
    raise AssertionError(f"no {kind.__name__} with {fields}")


SAME: Any = RunConfig()
CASES: dict[str, tuple[Any, Any, Any, Any, tuple[type[Any], dict[str, Any]], str | None, tuple[str, ...]]] = {
    # name: recorded agent and configuration, agent and configuration of today, wanted record, kind that came, words
    "prompt": (
        *(shop(), SAME, shop(instructions="Be long."), SAME),
        *((r.ModelRequested, {}), "ModelRequested", ("`digest` was", "something else: the instructions.")),
    ),
    "model settings": (
        *(shop(), SAME, shop(model_settings=ModelSettings(temperature=0.5)), SAME),
        *((r.ModelRequested, {}), "ModelRequested", ("something else: definitions (",)),
    ),
    "tool's schema": (
        *(shop(), SAME, shop(only("weigh", description="Weigh it well.")), SAME),
        *((r.ModelRequested, {}), "ModelRequested", ("description or schema",)),
    ),
    "tool's name": (
        *(shop(), SAME, shop(only("weigh", name="scale")), SAME),
        *((r.TurnStarted, {}), "TurnStarted", ("gone: weigh", "new: scale", "tool 'weigh' is gone")),
    ),
    "order of tools": (
        *(shop(), SAME, shop(pick=lambda tools: tools[::-1]), SAME),
        *((r.TurnStarted, {}), "TurnStarted", ("The same tools in another order",)),
    ),
    "another tool": (
        *(shop(), SAME, shop(pick=lambda tools: [*tools, tool(priced, name="more")]), SAME),
        *((r.TurnStarted, {}), "TurnStarted", ("new: more", "tool 'more' is new")),
    ),
    "missing tool": (
        *(shop(), SAME, shop(pick=lambda tools: tools[:-1]), SAME),
        *((r.TurnStarted, {}), "TurnStarted", ("gone: hang", "tool 'hang' is gone")),
    ),
    "handoff": (
        *(shop(), SAME, shop(handoffs=[Agent("other")]), SAME),
        *((r.TurnStarted, {}), "TurnStarted", ("new: transfer_to_other", "agent 'other' is new")),
    ),
    "lower concurrency": (
        *(shop(), SAME, shop(), limited(max_function_tool_concurrency=1)),
        *((r.CallStarted, {"call_id": "c2"}), None, ("`max_function_tool_concurrency`", "held back", "call c1")),
    ),
    "higher concurrency": (
        *(shop(), limited(max_function_tool_concurrency=1), shop(), SAME),
        *((r.CallStarted, {"call_id": "c2"}), "CallStarted", ("`max_function_tool_concurrency`", "waited")),
    ),
    "serial": (
        *(shop(), SAME, shop(only("weigh", serial="scales")), SAME),
        *((r.CallStarted, {"call_id": "c2"}), "CallStarted", ("`serial`", "another order")),
    ),
    "calls of a turn": (
        *(shop(), SAME, shop(), limited(max_calls_per_turn=2)),
        *((r.CallStarted, {"call_id": "c1"}), "CallSettled", ("`max_calls_per_turn`", "call c3", "skipped")),
    ),
    "budget of calls": (
        *(shop(), SAME, shop(), RunConfig(limits=UsageLimits(tool_calls=2))),
        *((r.CallStarted, {"call_id": "c3"}), "CallSettled", ("the budget", "call c3")),
    ),
    "budget of requests": (
        *(shop(), SAME, shop(), RunConfig(limits=UsageLimits(requests=1))),
        *((r.TurnStarted, {"turn": 2}), "RunEnded", ("UsageLimitExceeded", "requests 1 of 1")),
    ),
    "no more dedup": (
        *(shop(), SAME, shop(only("price", idempotent=False)), SAME),
        *((r.CallSettled, {"call_id": "c3"}), "CallSettled", ("`receipt` was", "`idempotent`", "another policy")),
    ),
    "dedup": (
        *(shop(), SAME, shop(only("weigh", idempotent=True)), SAME),
        *((r.CallSettled, {"call_id": "c1"}), "CallSettled", ("`receipt` was", "`idempotent`")),
    ),
    "guardrail gone": (
        *(shop(), SAME, shop(input_guardrails=[]), SAME),
        *((r.GuardrailSettled, {}), None, ("guardrail looks", "is gone")),
    ),
    "guardrail new": (
        *(shop(), SAME, shop(input_guardrails=[LOOKS, READS]), SAME),
        *((r.CallStarted, {"call_id": "c1"}), None, ("waits for guardrail reads", "Guardrail reads is new")),
    ),
    "output guardrail gone": (
        *(shop(output_guardrails=[LAST]), SAME, shop(), SAME),
        *((r.GuardrailSettled, {"guardrail": "last"}), "RunEnded", ("Guardrail last is gone",)),
    ),
    "tool guardrail gone": (
        *(shop(only("weigh", tool_input_guardrails=(CHECKS,))), SAME, shop(), SAME),
        *((r.GuardrailSettled, {"guardrail": "checks"}), "CallStarted", ("Guardrail checks is gone",)),
    ),
    "approval": (
        *(shop(), SAME, shop(only("weigh", needs_approval=True)), SAME),
        *((r.CallStarted, {"call_id": "c1"}), "ApprovalRequested", ("`needs_approval`",)),
    ),
    "time limit gone": (
        *(shop(), SAME, shop(only("hang", timeout=None)), SAME),
        *((r.CallSettled, {"call_id": "c5"}), None, ("A time limit (`timeout`", "the body of call c5")),
    ),
    "bound of outputs": (
        *(shop(), SAME, shop(), limited(max_output_chars=1)),
        *((r.CallSettled, {"call_id": "c5"}), "CallSettled", ("`outcome.output` was", "`max_output_chars`")),
    ),
    "first agent": (
        *(shop(), SAME, Agent("store"), SAME),
        *((r.RunStarted, {}), "RunStarted", ('"shop" and is now "store"', "Another agent begins")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_reported_at_its_record_in_words(name: str) -> None:
    """The report names the record where the change shows first, and what to look at."""
    backend: Any = ("asyncio", "trio")[list(CASES).index(name) % 2]
    then, config, now, today, (kind, fields), came, words = CASES[name]
    journal, records = journaled(then, config)
    replay(journal, then, run_config=config, backend=backend)
    with pytest.raises(ReplayDivergence) as caught:
        replay(journal, now, run_config=today, backend=backend)
    divergence = caught.value
    assert divergence.n == first(records, kind, **fields), str(divergence)
    assert divergence.wanted == records[divergence.n]
    assert came == (None if divergence.got is None else type(divergence.got).__name__), str(divergence)
    assert f"record {divergence.n}:" in str(divergence)
    for part in words:
        assert part in str(divergence)


def test_a_lower_limit_of_turns_is_reported_at_the_start() -> None:
    """The run says how many turns it had."""
    journal, _ = journaled(shop(), SAME)
    with pytest.raises(ReplayDivergence, match=r"record 0: RunStarted: `max_turns` was 10 and is now 1"):
        replay(journal, shop(), max_turns=1)


def edited(records: Sequence[r.Record], edit: Callable[[Sequence[Any]], Sequence[Any]]) -> list[r.Record]:
    """Return *records* with another first response."""
    index = first(records, r.ModelResponded)
    responded: Any = records[index]
    response = responded.response.replace(items=tuple(edit(responded.response.items)))
    return [*records[:index], responded.replace(response=response), *records[index + 1 :]]


def test_a_call_too_many_is_reported_where_it_starts() -> None:
    """The model is said to have asked for one more than the log shows outcomes of."""
    _, records = journaled(shop(), SAME)
    changed = edited(records, lambda items: [*items, items[1].replace(call_id="c9")])
    with pytest.raises(ReplayDivergence) as caught:
        replay(changed, shop())
    assert "c9" in str(caught.value)
    assert caught.value.n > first(records, r.CallStarted, call_id="c5")


def test_a_call_too_few_is_reported_where_it_started() -> None:
    """The log has the start of a call that the model hasn't asked for."""
    _, records = journaled(shop(), SAME)
    changed = edited(records, lambda items: [one for one in items if one.call_id != "c2"])
    with pytest.raises(ReplayDivergence) as caught:
        replay(changed, shop())
    assert caught.value.n == first(records, r.CallStarted, call_id="c2")
    assert "c2" in str(caught.value)
