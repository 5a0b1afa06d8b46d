"""Sweeps over crashes: what is sound is left alone, planted faults are found and told, and are found again."""

import re
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from exploration.counts import Counts
from exploration.crashes import crash_points
from exploration.generators import Seeded
from exploration.malformed_stores import feed
from testing.planted import breaks, nap

from agentloop import (
    Agent,
    AgentLoopError,
    Allow,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunConfig,
    Runner,
    RunState,
    StateError,
    ToolCallError,
    ToolContext,
    UserError,
    handoff,
    tool,
)
from agentloop import testing as t
from agentloop._core.run_fold import RunFold
from agentloop._engine.runtime import journal_writer as journaling
from agentloop.guardrails import tool_output_guardrail
from agentloop.items import ToolOutput
from agentloop.journal import _checks
from agentloop.records import GuardrailSettled, RunEnded
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.simulation._crash_invariants import sound
from agentloop.testing.simulation.crashing import CrashRun, CrashSwept
from agentloop.testing.simulation.disk import MODES, CrashAt

ONE_PAIR = [("asyncio", "trio")]


@attrs.define
class Bank:
    """The world outside of the process: payments that were made, by key."""

    paid: list[tuple[str, int]] = attrs.field(factory=list)

    def pay(self, key: str, amount: int) -> None:
        """Pay, even if the key has been paid before."""
        self.paid.append((key, amount))

    def pay_once(self, key: str, amount: int) -> None:
        """Pay, unless that key has been paid."""
        if all(known != key for known, _ in self.paid):
            self.paid.append((key, amount))


@tool
async def refund(ctx: ToolContext[Bank], amount: int) -> str:
    """Pay back *amount*."""
    ctx.context.pay(ctx.idempotency_key, amount)
    await anyio.sleep(0.01)
    return f"refunded {amount}"


@tool(idempotent=True)
async def refund_by_key(ctx: ToolContext[Bank], amount: int) -> str:
    """Pay back *amount*, once for each key."""
    ctx.context.pay_once(ctx.idempotency_key, amount)
    await anyio.sleep(0.01)
    return f"refunded {amount}"


@tool(idempotent=True)
async def refund_again(ctx: ToolContext[Bank], amount: int) -> str:
    """Pay back *amount*; it isn't idempotent at all."""
    ctx.context.pay(ctx.idempotency_key, amount)
    await anyio.sleep(0.01)
    return f"refunded {amount}"


@tool(in_doubt="raise")
async def refund_or_raise(ctx: ToolContext[Bank], amount: int) -> str:
    """Pay back *amount*; an unknown payment needs a person's look."""
    ctx.context.pay(ctx.idempotency_key, amount)
    return f"refunded {amount}"


def nobody_is_paid_twice(run: t.WorldRun) -> None:
    """The check of an application."""
    keys = [key for key, _ in run.context.paid]
    assert len(keys) == len(set(keys)), f"paid twice: {sorted(keys)}"


def clerk() -> Agent[Bank, str]:
    """Return an agent with refunds, a colleague to ask, and one to hand over to."""
    colleague: Agent[Any, Any] = Agent("colleague", tools=[refund])
    other: Agent[Any, Any] = Agent("other", tools=[refund, refund_by_key])
    return Agent(
        "clerk",
        tools=[refund, refund_by_key, colleague.as_tool("ask", "Ask.")],
        handoffs=[handoff(other)],
    )


SCRIPT = [
    [
        call("refund", {"amount": 1}, "c1"),
        call("refund_by_key", {"amount": 2}, "c2"),
        call("ask", {"input": "?"}, "c3"),
    ],
    [call("refund", {"amount": 3}, "c4"), call("transfer_to_other", call_id="h")],
    call("refund_by_key", {"amount": 4}, "c5"),
    say("done"),
]
NESTED = {"c3": [call("refund", {"amount": 5}, "c1"), say("asked")]}


# ---------------------------------------------------------------------------------------------- what is sound


@pytest.mark.slow
@pytest.mark.parametrize("order", ["gate", "passes"])
def test_agent_with_all_kinds_of_work_comes_through_every_crash(order: Any) -> None:
    """The run crashes in every way at every write, and resumes on the other backend."""
    swept = t.crash_sweep(
        clerk, SCRIPT, nobody_is_paid_twice, nested=NESTED, context=Bank, pairs=ONE_PAIR, order=order, tape=[1, 0, 2]
    )
    assert swept.points == swept.writes * len(MODES)
    assert swept.recovered > swept.points - len(MODES)
    assert swept.unknown > 0


@pytest.mark.slow
def test_all_four_ways_of_two_backends_are_gone_by_default() -> None:
    """Each backend crashes, and each resumes."""
    backends: set[tuple[str, str]] = set()

    def check(run: t.CrashRun) -> None:
        backends.add((run.processes[0].backend, run.processes[-1].backend))

    t.crash_sweep(clerk, [call("refund", {"amount": 1}), say("done")], check, context=Bank, modes=["after"])
    assert backends == {(one, other) for one in ("asyncio", "trio") for other in ("asyncio", "trio")}


@pytest.mark.slow
def test_check_is_shown_both_lives() -> None:
    """The check gets the cut body beside the one that was run again, and both answers of a repeated request."""
    seen: list[int] = []

    def check(run: t.CrashRun) -> None:
        seen.append(run.executions("refund_by_key"))
        assert run.executions("refund_by_key") == len([one for life in run.processes for one in life.bodies])
        assert len(run.requests) == sum(len(life.requests) for life in run.processes)
        assert run.result is not None
        assert run.result.final_output == "done"

    t.crash_sweep(clerk, [call("refund_by_key", {"amount": 1}), say("done")], check, context=Bank, pairs=ONE_PAIR)
    assert set(seen) == {1, 2}


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_background_body_has_not_ended_with_its_call(idempotent: bool) -> None:
    """It runs again if it may, after its call has settled; its result may come in another turn than without a crash."""
    bodies: set[int] = set()

    async def dig() -> str:
        await anyio.sleep(0.1)
        return "dug"

    def check(run: t.CrashRun) -> None:
        bodies.add(run.executions("dig"))

    digger = tool(dig, description="Dig.", background=True, idempotent=idempotent)
    script = [call("dig"), say("1"), say("2"), say("3")]
    t.crash_sweep(lambda: Agent("a", tools=[digger]), script, check, pairs=ONE_PAIR, modes=["after"])
    assert max(bodies) == 1 + idempotent


def test_session_outlives_the_crash_and_gets_each_item_once() -> None:
    """The session is made once for each crash, and keeps its items over it."""

    def check(run: t.CrashRun) -> None:
        assert run.result is not None
        held = [repr(item) for item in run.session._items]
        assert len(held) == len(set(held)) == 1 + len(run.result.new_items)

    t.crash_sweep(
        clerk,
        [call("refund_by_key", {"amount": 1}), say("done")],
        check,
        context=Bank,
        options={"session": MemorySession},
        pairs=ONE_PAIR,
    )


@pytest.mark.slow
def test_tool_that_wants_somebody_to_look_raises() -> None:
    """The tool is to raise in doubt, so the error is no finding."""
    agent: Agent[Bank, str] = Agent("clerk", tools=[refund_or_raise])
    raised: list[BaseException] = []

    def check(run: t.CrashRun) -> None:
        if run.error is not None:
            raised.append(run.error)
        assert run.executions("refund_or_raise") == (0 if run.error is not None and not run.context.paid else 1)

    t.crash_sweep(agent, [call("refund_or_raise", {"amount": 1}), say("done")], check, context=Bank, pairs=ONE_PAIR)
    assert raised


@pytest.mark.slow
def test_models_of_the_agents_own_go_on_where_they_were() -> None:
    """A scripted one is made anew with the agent, and skips what its earlier life has said."""

    def make() -> Agent[Bank, str]:
        steps = [call("refund", {"amount": 1}, "c1"), call("refund", {"amount": 2}, "c2"), say("done")]
        return Agent("clerk", tools=[refund], model=t.ScriptedModel(steps))

    swept = t.crash_sweep(make, None, nobody_is_paid_twice, context=Bank, pairs=ONE_PAIR)
    assert swept.recovered


def test_failures_that_race_may_come_in_another_order_after_a_crash() -> None:
    """Without a crash the second body fails first; a restarted run has a schedule of its own."""
    processes: list[None] = []

    @tool(failure_error_function=None)
    async def wary() -> str:
        """Fail late in the first life, at once in the ones after it."""
        await anyio.sleep(0.02 if len(processes) < 2 else 0)
        raise AgentLoopError("wary")

    @tool(failure_error_function=None)
    async def quick() -> str:
        """Fail."""
        await anyio.sleep(0.01)
        raise ValueError("quick")

    def agent() -> Agent[Any, Any]:
        processes.append(None)
        return Agent("guide", tools=[wary, quick])

    script = [[call("wary", call_id="c1"), call("quick", call_id="c2")], say("done")]
    ended: set[type[BaseException]] = set()

    def note(run: CrashRun) -> None:
        ended.add(type(run.error))

    for operation in (2, 3):
        processes.clear()
        t.crash_sweep(agent, script, note, allow=(AgentLoopError,), at=CrashAt(operation, "after"), pairs=ONE_PAIR)
    assert AgentLoopError in ended


def test_crash_right_behind_the_end_of_a_nested_run_that_a_failure_cut_off() -> None:
    """The log tells by the failed call that the run is over; that it ends with a run's end makes it no whole log."""
    agent: Agent[Any, Any] = Agent("outer", tools=[Agent("inner", tools=[nap]).as_tool("ask", "Ask."), breaks])
    script = [[call("ask", {"input": "x"}, "c1"), call("breaks", call_id="c2")], say("done")]
    over: list[CrashRun] = []

    def note(run: CrashRun) -> None:
        over.extend([run] if run.over else [])

    nested = {"c1": [call("nap"), say("rested")]}
    t.crash_sweep(agent, script, note, nested=nested, allow=(ValueError, ToolCallError), pairs=ONE_PAIR)
    whole = over[0].whole.records
    end = next(n for n, record in enumerate(whole) if isinstance(record, RunEnded) and record.path)
    sound(attrs.evolve(over[0], records=whole[: end + 1]))
    with pytest.raises(AssertionError, match=f"record {end}: .*run_ended.*, and without a crash"):
        sound(attrs.evolve(over[0], records=(*whole[:end], whole[-1])))


@pytest.mark.slow
def test_call_that_shares_an_output_runs_itself_where_that_output_was_lost() -> None:
    """Output guardrails had not judged it, so that it wasn't kept; what the second body gives is its own."""

    @tool_output_guardrail
    async def judge(data: Any) -> Allow:
        await anyio.sleep(0.01)
        return Allow()

    @tool(idempotent=True, tool_output_guardrails=[judge])
    async def work(ctx: ToolContext[Any], n: int) -> str:
        """Work."""
        return f"worked for {ctx.tool_call_id}"

    outputs: set[str] = set()

    def note(run: CrashRun) -> None:
        assert run.result is not None
        outputs.update(str(one.output) for one in run.result.new_items if isinstance(one, ToolOutput))

    script = [[call("work", {"n": 1}, "c1"), call("work", {"n": 1}, "c2")], say("done")]
    t.crash_sweep(Agent("guide", tools=[work]), script, note, pairs=ONE_PAIR)
    assert "Tool 'work' finished; its output was not kept." in outputs
    assert {"worked for c1", "worked for c2"} <= outputs


# ---------------------------------------------------------------------------------------------- what is found


def test_tool_that_is_wrongly_called_idempotent_is_found() -> None:
    """The application's own check finds it; the report has script, crash, processes and the repeating line."""
    agent: Agent[Bank, str] = Agent("clerk", tools=[refund_again])
    script = [call("refund_again", {"amount": 7}, "c1"), say("done")]
    with pytest.raises(t.ExplorationFailure, match="paid twice") as found:
        t.crash_sweep(agent, script, nobody_is_paid_twice, context=Bank, pairs=ONE_PAIR)
    text = str(found.value)
    assert isinstance(found.value.run, t.CrashRun)
    crash = found.value.run.crashes[0]
    assert "call('refund_again', {'amount': 7}, call_id='c1')" in text
    assert f"the process dies: {crash.mode} operation {crash.operation} of its disk" in text
    assert text.count("c1 refund_again starts") == 2
    assert re.search(r"the journal holds \d+ of \d+ records", text)
    line = text.splitlines()[-1].strip()
    assert line.startswith("crash_sweep(")
    names = {"crash_sweep": t.crash_sweep, "CrashAt": t.CrashAt, "call": call, "say": say, "agent": agent, "Bank": Bank}
    with pytest.raises(t.ExplorationFailure, match="paid twice") as again:
        eval(line, {**names, "nobody_is_paid_twice": nobody_is_paid_twice})
    assert again.value.run.records == found.value.run.records


@pytest.mark.slow
def test_what_a_crash_breaks_is_made_small() -> None:
    """Calls and turns that have nothing to do with it leave the script, and the crash is one of what is left."""
    agent: Agent[Bank, str] = Agent("clerk", tools=[refund_again, refund_by_key])
    script = [
        [call("refund_by_key", {"amount": 1}, "c1"), call("refund_by_key", {"amount": 2}, "c2")],
        [call("refund_by_key", {"amount": 3}, "c3"), call("refund_again", {"amount": 7}, "c4")],
        say("done"),
    ]
    with pytest.raises(t.ExplorationFailure, match="paid twice") as found:
        t.crash_sweep(agent, script, nobody_is_paid_twice, context=Bank, pairs=ONE_PAIR)
    run = found.value.run
    assert run.world.script is not None
    assert [one.name for step in run.world.script if isinstance(step, list) for one in step] == ["refund_again"]
    assert "made small in" in str(found.value)
    [crash] = run.crashes
    with pytest.raises(t.ExplorationFailure, match="paid twice"):
        t.crash_sweep(agent, run.world.script, nobody_is_paid_twice, context=Bank, pairs=ONE_PAIR, at=crash)


@pytest.fixture
def gate_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a runtime forget to wait until the start of a call is durable."""

    async def at_once(self: journaling.JournalWriter) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(journaling.JournalWriter, "durable", at_once)


@pytest.mark.usefixtures("gate_forgotten")
def test_runtime_that_forgets_the_gate_is_found() -> None:
    """A body that began before the journal had its start, which a crash would have it run twice."""
    with pytest.raises(t.ExplorationFailure, match=r"before the journal had it: c1|of which the journal doesn't know"):
        t.crash_sweep(clerk, [call("refund", {"amount": 1}, "c1"), say("done")], context=Bank, pairs=ONE_PAIR)


@pytest.fixture
def writer_that_drops(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Return what names a kind of record that a runtime forgets to write."""

    def drop(kind: bytes) -> None:
        original = _checks.check_records

        def check(records: Any) -> list[bytes]:
            return [line for line in original(records) if b'"kind":"%s"' % kind not in line]

        monkeypatch.setattr("agentloop.journal.file.check_records", check)

    return drop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (b"call_started", "began before the journal had it|ran in two processes"),
        (b"call_settled", "has not settled|StateError|record"),
    ],
)
def test_runtime_that_forgets_a_record_is_found(
    writer_that_drops: Callable[[bytes], None], kind: bytes, words: str
) -> None:
    """The next life misses the record that wasn't written, and fails."""
    writer_that_drops(kind)
    with pytest.raises(t.ExplorationFailure, match=words):
        t.crash_sweep(clerk, [call("refund", {"amount": 1}, "c1"), say("done")], context=Bank, pairs=ONE_PAIR)


@pytest.mark.slow
def test_end_that_depends_on_the_crash_is_found() -> None:
    """The tool's value counts how often it ran, so the ends differ; `same_end=False` allows that."""

    @tool(in_doubt="rerun")
    async def count(ctx: ToolContext[list[str]]) -> str:
        """Count."""
        ctx.context.append("once")
        return str(len(ctx.context))

    agent: Agent[list[str], str] = Agent("counter", tools=[count])
    script = [call("count", call_id="c1"), say("done")]
    with pytest.raises(t.ExplorationFailure, match=r"item 1: .*'2'.* and without a crash .*'1'"):
        t.crash_sweep(agent, script, context=list, pairs=ONE_PAIR)
    assert isinstance(t.crash_sweep(agent, script, context=list, pairs=ONE_PAIR, same_end=False), CrashSwept)


def test_run_that_fails_without_a_crash_is_told_first() -> None:
    """A failing run leaves no end to compare with."""
    with pytest.raises(t.ExplorationFailure, match="Max turns"):
        t.crash_sweep(clerk, [call("refund", {"amount": 1})], context=Bank, options={"max_turns": 1})


def test_agent_that_changes_from_run_to_run_is_the_users_error() -> None:
    """A model that has said everything in the first run says nothing in the second one."""
    runs: list[int] = []

    def make() -> Agent[Any, str]:
        runs.append(1)
        calls = [call("refund", {"amount": 1})] if len(runs) == 1 else []
        return Agent("clerk", tools=[refund], model=t.ScriptedModel([*calls, say("done")]))

    with pytest.raises(UserError, match="something is shared"):
        t.crash_sweep(make, None, context=Bank, pairs=ONE_PAIR, at=t.CrashAt(15, "before"))


def test_options_reach_the_runs() -> None:
    """The sweep passes options, such as a configuration, to each run."""
    swept = t.crash_sweep(
        clerk,
        SCRIPT,
        nobody_is_paid_twice,
        nested=NESTED,
        context=Bank,
        options={"run_config": lambda: RunConfig(workflow_name="sweep"), "max_turns": 9},
        pairs=ONE_PAIR,
        modes=["torn"],
        streamed=True,
    )
    assert swept.points == swept.writes


@pytest.mark.parametrize("stage", ["input", "output"])
def test_a_tripwire_in_the_journal_ends_the_run_though_it_crashed_before_its_end(stage: str) -> None:
    """The guardrail isn't asked again: another answer would let the run continue although it had tripped."""
    asked: list[str] = []

    async def trips(*given: Any) -> GuardrailFunctionOutput:
        asked.append(stage)
        return GuardrailFunctionOutput(None, tripwire_triggered=len(asked) == 1)

    def agent() -> Agent[Any, Any]:
        asked.clear()
        guards: dict[str, Any] = {
            "input_guardrails": [InputGuardrail(trips, name="wary", run_in_parallel=False)] if stage == "input" else [],
            "output_guardrails": [OutputGuardrail(trips, name="wary")] if stage == "output" else [],
        }
        return Agent("a", model=ScriptedModel([say("hello"), say("hello")]), **guards)

    async def main() -> None:
        first = agent()
        with pytest.raises(AgentLoopError) as ended:
            await Runner.run(first, "go")
        data = ended.value.run_data
        assert data is not None
        settled = next(n for n, one in enumerate(data.records) if isinstance(one, GuardrailSettled))
        crashed = RunState(first, data.records[: settled + 1])
        with pytest.raises(StateError, match=f"is over: {stage.capitalize()}GuardrailTripwireTriggered.*wary tripped"):
            await Runner.run(first, crashed)
        assert len(asked) == 1

    anyio.run(main)


# ---------------------------------------------------------------------------------------------- drawn worlds


@pytest.mark.slow
def test_crash_points_of_a_round_depend_on_its_seed_alone() -> None:
    """The crash points of one seed count the same twice, and none fails."""
    once, again = Counts(), Counts()
    for counts in (once, again):
        for number in range(4):
            crash_points(Seeded(f"round {number}"), number, counts)
    assert once == again
    assert once.numbers["crash points"] >= 24
    assert once.numbers["recovered"]


@pytest.mark.usefixtures("gate_forgotten")
def test_crash_points_of_rounds_find_a_forgotten_gate() -> None:
    """A few worlds find it; the error names the crash."""
    with pytest.raises(AssertionError, match=r"CrashAt\(operation=\d+, mode='\w+'\)"):
        for number in range(20):
            crash_points(Seeded(f"round {number}"), number, Counts())


@pytest.mark.slow
def test_malformed_input_is_refused_by_type_or_taken_whole() -> None:
    """Every kind of malformed input is tried; a fault is described in words."""
    chance = Seeded("malformed")
    faults = [(kind, fault) for kind, fault in (feed(chance) for _ in range(600)) if fault is not None]
    assert faults == []


def test_malformed_state_that_is_taken_without_a_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold that believes every record fails on one, with an error that isn't the library's."""
    monkeypatch.setattr("agentloop.state.RunState._fold_again", _believing)
    chance = Seeded("malformed")
    kinds = {kind for kind, fault in (feed(chance) for _ in range(600)) if fault is not None}
    assert kinds & {"states", "journals' lines"}


def _believing(state: Any) -> Any:
    fold = RunFold()
    for record in state.records:
        fold.apply(record)
    return fold
