"""A run whose journal is cut at any record, and the promises that its resumed run keeps.

The tools of such a run write into a `Ledger` what they do, so that a test sees which body ran how often.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from agentloop import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    ToolContext,
    ToolExecution,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop._common.digests import idempotency_key
from agentloop.abc import Instrument
from agentloop.guardrails import RejectContent, tool_output_guardrail
from agentloop.items import Item, ToolOutput
from agentloop.sessions import MemorySession
from agentloop.testing import call, say
from kit.agents import make_usage, script_turns
from kit.results import check_history
from kit.resuming import BatchJournal, approve

Kind: TypeAlias = Literal["plain", "idem", "rerun", "guarded", "asks", "fails", "sub", "asks_sub"]
LEAVES: tuple[Kind, ...] = ("plain", "idem", "rerun", "guarded", "asks", "fails")
KINDS: tuple[Kind, ...] = (*LEAVES, "sub", "asks_sub")


@attrs.frozen
class Plot:
    """The shape of a run: the calls of each turn, where another agent takes over, how many calls run at once."""

    turns: tuple[tuple[Kind, ...], ...]
    inner: tuple[Kind, ...] = ("plain",)
    handoff_after: int | None = None
    at_once: int | None = None
    guarded: bool = False
    session: bool = False


@attrs.define
class Ledger:
    """A log of the bodies: one entry for each run of a body, as (kind, id of the call, idempotency key)."""

    ran: list[tuple[str, str, str]] = attrs.field(factory=list)

    def count(self) -> Counter[str]:
        """Return how often the body of each call ran, by call id."""
        return Counter(name for _, name, _ in self.ran)

    def keys(self) -> dict[str, set[str]]:
        """Return the idempotency keys that each call was given, by call id."""
        found: dict[str, set[str]] = {}
        for _, name, key in self.ran:
            found.setdefault(name, set()).add(key)
        return found


@tool_output_guardrail
def _hide(data: Any) -> RejectContent:
    return RejectContent("Hidden.")


def _make_tools(ledger: Ledger) -> list[FunctionTool]:
    async def body(ctx: ToolContext[Any], n: int) -> str:
        ledger.ran.append((ctx.tool_name, ctx.tool_call_id, ctx.idempotency_key))
        if ctx.tool_name == "fails":
            raise ValueError("no luck")
        return f"{ctx.tool_name} gave {n}"

    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "idem": {"idempotent": True},
        "rerun": {"in_doubt": "rerun"},
        "guarded": {"tool_output_guardrails": [_hide]},
        "asks": {"needs_approval": True},
        "fails": {},
    }
    return [tool(body, name=name, description=name, **option) for name, option in options.items()]


def make_calls(kinds: Sequence[Kind], where: str) -> list[Any]:
    """Return the model's calls of one turn; each has arguments and an id of its own."""
    made: list[Any] = []
    for place, kind in enumerate(kinds):
        call_id = f"{where}{place}.{kind}"
        arguments = {"input": call_id} if kind in ("sub", "asks_sub") else {"n": sum(call_id.encode()) * 100 + place}
        made.append(call(kind, arguments, call_id=call_id))
    return made


def build_agent(plot: Plot, ledger: Ledger) -> Agent[Any, Any]:
    """Return the agent of *plot*, as every process defines it."""
    tools = _make_tools(ledger)
    inner = Agent("inner", tools=list(tools))
    inner.model = script_turns(
        [*make_calls(plot.inner, "n"), say("asking", make_usage(3))], say("inner is done", make_usage(4))
    )
    tools += [inner.as_tool("sub", "Sub."), inner.as_tool("asks_sub", "Sub.", needs_approval=True)]
    steps: list[Any] = []
    for turn, kinds in enumerate(plot.turns, 1):
        over = [call("over", call_id="over")] if plot.handoff_after == turn else []
        steps.append([*make_calls(kinds, f"t{turn}."), *over, say(f"turn {turn}", make_usage(turn))])
    steps.append(say("all is done", make_usage(100)))
    target = Agent("target", tools=list(tools), model=script_turns(*steps))
    root = Agent("root", tools=list(tools), model=script_turns(*steps))
    root.handoffs = [handoff(target, tool_name="over")]
    if plot.guarded:

        @input_guardrail(name="in")
        async def judge_input(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            return GuardrailFunctionOutput("fine")

        @output_guardrail(name="out")
        async def judge_output(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            return GuardrailFunctionOutput("fine")

        root.input_guardrails = [judge_input]
        root.output_guardrails = target.output_guardrails = [judge_output]
    return root


@attrs.define(eq=False)
class RecordCounter(Instrument):
    """Counts the records that a run shows its instruments."""

    count: int = 0

    def on_record(self, record: r.Record) -> None:
        self.count += 1


class NotedSession(MemorySession):
    """A session that notes how long the log was at each write."""

    def __init__(self, counter: RecordCounter) -> None:
        super().__init__()
        self._counter = counter
        self.writes: list[tuple[int, list[Item]]] = []

    async def add_items(self, items: Iterable[Item]) -> None:
        """Keep and note *items*."""
        items = list(items)
        self.writes.append((self._counter.count, items))
        await super().add_items(items)

    async def as_of(self, count: int, *, also_at: bool) -> MemorySession:
        """Return the session as a crash at *count* records leaves it; *also_at* keeps what was being written then."""
        session = MemorySession()
        for at, items in self.writes:
            if at < count or (also_at and at == count):
                await session.add_items(items)
        return session


def configure_plot(plot: Plot, *instruments: Instrument) -> RunConfig:
    """Return the configuration of the runs of *plot*."""
    execution = ToolExecution(max_function_tool_concurrency=plot.at_once) if plot.at_once else ToolExecution()
    return RunConfig(tool_execution=execution, instruments=instruments)


async def run_to_end(agent: Agent[Any, Any], given: Any, **options: Any) -> RunResult[Any]:
    """Run *agent* until it completes, and approve every call that waits on the way."""
    result = await Runner.run(agent, given, **options)
    for _ in range(8):
        if result.status != "interrupted":
            break
        state: RunState = result.to_state()
        approve()(state)
        for counter in options["run_config"].instruments:
            counter.count = len(state.records)  # verdicts are records that no instrument is shown
        result = await Runner.run(agent, state, **options)
    assert result.status == "completed"
    return result


def count_lines(batches: Sequence[Sequence[bytes]]) -> list[int]:
    """Return how many lines a journal has after each batch."""
    return list(itertools.accumulate(map(len, batches)))


@attrs.frozen
class WholeRun:
    """A run that was not disturbed, and its journal."""

    plot: Plot
    result: RunResult[Any]
    lines: list[bytes]
    batches: list[list[bytes]]
    ledger: Ledger
    session: NotedSession | None

    @property
    def ends_of_batches(self) -> list[int]:
        """The number of records after each batch (the header isn't one)."""
        return [length - 1 for length in count_lines(self.batches)]


async def run_undisturbed(plot: Plot) -> WholeRun:
    """Run *plot* from its beginning to its end."""
    ledger, journal, counter = Ledger(), BatchJournal(), RecordCounter()
    session = NotedSession(counter) if plot.session else None
    agent = build_agent(plot, ledger)
    config = configure_plot(plot, counter)
    result = await run_to_end(agent, "go", journal=journal, session=session, run_config=config)
    assert result.final_output == "all is done"
    return WholeRun(plot, result, await journal.read(), journal.batches, ledger, session)


@attrs.define
class LoggedCalls:
    """The facts that a log holds about its calls, by the name each has in the whole tree."""

    started: set[str] = attrs.field(factory=set)
    ended: set[str] = attrs.field(factory=set)
    kept: set[str] = attrs.field(factory=set)
    settled: set[str] = attrs.field(factory=set)
    keys: dict[str, str] = attrs.field(factory=dict)

    @property
    def in_doubt(self) -> set[str]:
        """Return the calls that started and have no later record."""
        return self.started - self.ended - self.settled

    @property
    def finished(self) -> set[str]:
        """Return the calls whose body must not run again."""
        return self.ended | self.settled


def read_calls(lines: Sequence[bytes]) -> LoggedCalls:
    """Return what the *lines* of a journal (without the header) say of calls."""
    calls, run_id = LoggedCalls(), ""
    for line in lines:
        record = json.loads(line)
        if record["kind"] == "run_started" and not record["path"]:
            run_id = record["run_id"]
        if "call_id" not in record:
            continue
        name = name_call(record["path"], record["call_id"])
        match record["kind"]:
            case "call_started":
                calls.started.add(name)
                calls.keys[name] = idempotency_key(run_id, tuple(record["path"]), record["call_id"])
            case "body_ended":
                calls.ended.add(name)
                if record.get("kept") or record.get("failed"):
                    calls.kept.add(name)
            case "call_settled":
                calls.settled.add(name)
    return calls


def name_call(path: Sequence[str], call_id: str) -> str:
    """Return the name of a call in the whole tree: its path and its id.

    The ledger knows ids alone, so nested calls of two parents share a name there.
    """
    return "/".join((*path, call_id))


def read_kind(name: str) -> str:
    """Return the kind of the call that is named *name*."""
    return name.rpartition(".")[2]


UNKNOWN = ("whether it took effect is unknown.", "its output was not kept.")


def describe_known(items: Iterable[Item]) -> list[str]:
    """Return one line for each item, with `?` for an output that is unknown after a crash."""
    lines = []
    for item in items:
        if isinstance(item, ToolOutput):
            text = str(item.output)
            lines.append(f"output #{item.call_id} {'?' if text.endswith(UNKNOWN) else text}")
        else:
            lines.append(repr(item))
    return lines


def check_same(whole: Sequence[str], crashed: Sequence[str]) -> None:
    """Check that two lists of `describe_known` are equal, but for what is unknown in the crashed run."""
    assert len(whole) == len(crashed), (list(whole), list(crashed))
    for one, other in zip(whole, crashed, strict=True):
        if other.endswith("?"):
            assert one.rsplit(" ", 1)[0].split(" ")[:2] == other.split(" ")[:2]
        else:
            assert one == other


@attrs.frozen
class RecoveredRun:
    """A run that was resumed after a crash."""

    result: RunResult[Any]
    ledger: Ledger
    lines: list[bytes]
    batches: list[list[bytes]]
    """The batches that the journal received; the first batch is the part that the crash left."""


async def recover(whole: WholeRun, lines: Sequence[bytes], session: MemorySession | None = None) -> RecoveredRun:
    """Resume from the journal *lines* (header included), with definitions made anew as in another process."""
    ledger, journal = Ledger(), BatchJournal()
    await journal.append(lines)
    agent = build_agent(whole.plot, ledger)
    state = await RunState.from_journal(agent, journal)
    result = await run_to_end(agent, state, journal=journal, session=session, run_config=configure_plot(whole.plot))
    return RecoveredRun(result, ledger, await journal.read(), journal.batches)


def check_recovered(whole: WholeRun, lines: Sequence[bytes], recovered: RecoveredRun) -> None:
    """Check every promise about a run that crashed with *lines* (header included) in its journal and was resumed."""
    cut = read_calls(lines[1:])
    ran = recovered.ledger.count()
    result = recovered.result
    again = _count_starts(recovered.lines[len(lines) :])
    for name in cut.finished:
        assert name not in again, f"{name} had finished, and was started again"
    for name in cut.in_doubt:
        kind = read_kind(name)
        if kind in ("sub", "asks_sub"):
            continue
        if kind in ("idem", "rerun"):
            assert again[name] == 1, f"{name} was in doubt and is to be run again, once"
            given = recovered.ledger.keys()[name.rpartition("/")[2]]
            assert cut.keys[name] in given, f"{name} was run again with another key"
        else:
            assert name not in again, f"{name} was in doubt and must not be run again"
            assert _find_status(result, name) == "unknown"
    everything = set(_count_starts(whole.lines[1:]))
    for name in everything - cut.started:
        assert again[name] == 1, f"{name} had not started, and is to run once"
    assert sum(ran.values()) == sum(
        count for name, count in again.items() if read_kind(name) not in ("sub", "asks_sub")
    )
    unknown = [name for name in everything if _find_status(result, name) == "unknown"]
    for name in unknown:
        assert name in cut.in_doubt or name in cut.ended - cut.kept - cut.settled, f"{name} is unknown for no reason"
    assert result.final_output == whole.result.final_output
    assert result.usage.total_tokens == whole.result.usage.total_tokens
    assert result.usage.requests == whole.result.usage.requests
    check_same(describe_known(whole.result.new_items), describe_known(result.new_items))
    check_history(result.to_input_list())
    check_history(result.new_items, in_order=False)
    assert _list_turns(result.records) == _list_turns(whole.result.records)
    assert result.last_agent.name == whole.result.last_agent.name
    assert recovered.lines[: len(lines)] == list(lines)


def _count_starts(lines: Sequence[bytes]) -> Counter[str]:
    records = map(json.loads, lines)
    return Counter(
        name_call(record["path"], record["call_id"]) for record in records if record["kind"] == "call_started"
    )


def _find_status(result: RunResult[Any], name: str) -> str | None:
    settled = [
        record.outcome.status
        for record in result.records
        if isinstance(record, r.CallSettled) and name_call(record.path, record.call_id) == name
    ]
    return settled[-1] if settled else None


def _list_turns(records: Iterable[r.Record]) -> list[tuple[tuple[str, ...], int]]:
    """Return path and number of the turns of the whole tree; one that began again after a crash counts once."""
    return sorted({(record.path, record.turn) for record in records if isinstance(record, r.TurnStarted)})
