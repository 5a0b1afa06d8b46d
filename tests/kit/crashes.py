"""Crashes in tests: a world whose tools write down what they do, its journal cut, and what a resume may do."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from kit.stored import Batches, by_turn

from agentloop import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    RejectContent,
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
    tool_output_guardrail,
)
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.items import HandoffCall, HandoffOutput, Item, ToolCall, ToolOutput
from agentloop.sessions import MemorySession
from agentloop.testing import call, say
from agentloop.usage import RequestUsage

Kind: TypeAlias = Literal["plain", "idem", "rerun", "guarded", "asks", "fails", "sub", "asks_sub"]
LEAVES: tuple[Kind, ...] = ("plain", "idem", "rerun", "guarded", "asks", "fails")
KINDS: tuple[Kind, ...] = (*LEAVES, "sub", "asks_sub")


@attrs.frozen
class Plot:
    """What happens in a run: the calls of each turn; after which turn another agent takes over; how much at once."""

    turns: tuple[tuple[Kind, ...], ...]
    inner: tuple[Kind, ...] = ("plain",)
    handoff_after: int | None = None
    at_once: int | None = None
    guarded: bool = False
    session: bool = False


@attrs.define
class Ledger:
    """What the bodies did: one entry for each time one ran, as (kind, place of the call, idempotency key)."""

    ran: list[tuple[str, str, str]] = attrs.field(factory=list)

    def count(self) -> Counter[str]:
        """Return how often the body of each call ran."""
        return Counter(name for _, name, _ in self.ran)

    def keys(self) -> dict[str, set[str]]:
        """Return the idempotency keys that each call was given."""
        found: dict[str, set[str]] = {}
        for _, name, key in self.ran:
            found.setdefault(name, set()).add(key)
        return found


def _usage(n: int) -> RequestUsage:
    return RequestUsage(input_tokens=n, output_tokens=1, total_tokens=n + 1)


@tool_output_guardrail
def _hides(data: Any) -> RejectContent:
    return RejectContent("Hidden.")


def _tools(ledger: Ledger) -> list[FunctionTool]:
    async def body(ctx: ToolContext[Any], n: int) -> str:
        ledger.ran.append((ctx.tool_name, ctx.tool_call_id, ctx.idempotency_key))
        if ctx.tool_name == "fails":
            raise ValueError("no luck")
        return f"{ctx.tool_name} gave {n}"

    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "idem": {"idempotent": True},
        "rerun": {"in_doubt": "rerun"},
        "guarded": {"tool_output_guardrails": [_hides]},
        "asks": {"needs_approval": True},
        "fails": {},
    }
    return [tool(body, name=name, description=name, **option) for name, option in options.items()]


def calls_of(kinds: Sequence[Kind], where: str) -> list[Any]:
    """Return the model's calls of one turn; every one has arguments and an id of its own."""
    made: list[Any] = []
    for place, kind in enumerate(kinds):
        call_id = f"{where}{place}.{kind}"
        arguments = {"input": call_id} if kind in ("sub", "asks_sub") else {"n": sum(call_id.encode()) * 100 + place}
        made.append(call(kind, arguments, call_id=call_id))
    return made


def build(plot: Plot, ledger: Ledger) -> Agent[Any, Any]:
    """Return the agent of *plot*, as it is defined in every process."""
    tools = _tools(ledger)
    inner = Agent("inner", tools=list(tools))
    inner.model = by_turn([*calls_of(plot.inner, "n"), say("asking", _usage(3))], say("inner is done", _usage(4)))
    tools += [inner.as_tool("sub", "Sub."), inner.as_tool("asks_sub", "Sub.", needs_approval=True)]
    steps: list[Any] = []
    for turn, kinds in enumerate(plot.turns, 1):
        over = [call("over", call_id="over")] if plot.handoff_after == turn else []
        steps.append([*calls_of(kinds, f"t{turn}."), *over, say(f"turn {turn}", _usage(turn))])
    steps.append(say("all is done", _usage(100)))
    target = Agent("target", tools=list(tools), model=by_turn(*steps))
    root = Agent("root", tools=list(tools), model=by_turn(*steps))
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
class Counting(Instrument):
    """Counts the records of a run."""

    count: int = 0

    def on_record(self, record: r.Record) -> None:
        self.count += 1


class NotedSession(MemorySession):
    """A session that notes at which length of the log it was written to."""

    def __init__(self, counting: Counting) -> None:
        super().__init__()
        self._counting = counting
        self.writes: list[tuple[int, list[Item]]] = []

    async def add_items(self, items: Iterable[Item]) -> None:
        """Keep and note *items*."""
        items = list(items)
        self.writes.append((self._counting.count, items))
        await super().add_items(items)

    async def as_of(self, count: int, *, also_at: bool) -> MemorySession:
        """Return the session as a crash at *count* records left it, what was being written then included or not."""
        session = MemorySession()
        for at, items in self.writes:
            if at < count or (also_at and at == count):
                await session.add_items(items)
        return session


def config_of(plot: Plot, *instruments: Instrument) -> RunConfig:
    """Return how the runs of *plot* are run."""
    execution = ToolExecution(max_function_tool_concurrency=plot.at_once) if plot.at_once else ToolExecution()
    return RunConfig(tool_execution=execution, instruments=instruments)


async def to_its_end(agent: Agent[Any, Any], given: Any, **options: Any) -> RunResult[Any]:
    """Run *agent*, and approve whatever waits until nothing does."""
    result = await Runner.run(agent, given, **options)
    for _ in range(8):
        if result.status != "interrupted":
            break
        state: RunState = result.to_state()
        for waiting in state.interruptions:
            state.approve(waiting)
        for counting in options["run_config"].instruments:
            counting.count = len(state.records)  # verdicts are records that no instrument is shown
        result = await Runner.run(agent, state, **options)
    assert result.status == "completed"
    return result


def lengths(batches: Sequence[Sequence[bytes]]) -> list[int]:
    """Return how many lines a journal has after each batch."""
    return list(itertools.accumulate(map(len, batches)))


@attrs.frozen
class Whole:
    """A run that nothing disturbed, and its journal."""

    plot: Plot
    result: RunResult[Any]
    lines: list[bytes]
    batches: list[list[bytes]]
    ledger: Ledger
    session: NotedSession | None

    @property
    def ends_of_batches(self) -> list[int]:
        """How many records there are after each batch (the header isn't one)."""
        return [length - 1 for length in lengths(self.batches)]


async def undisturbed(plot: Plot) -> Whole:
    """Run *plot* from its beginning to its end."""
    ledger, journal, counting = Ledger(), Batches(), Counting()
    session = NotedSession(counting) if plot.session else None
    agent = build(plot, ledger)
    config = config_of(plot, counting)
    result = await to_its_end(agent, "go", journal=journal, session=session, run_config=config)
    assert result.final_output == "all is done"
    return Whole(plot, result, await journal.read(), journal.batches, ledger, session)


@attrs.define
class Cut:
    """What a log says of its calls, by the id each has in the whole tree."""

    started: set[str] = attrs.field(factory=set)
    ended: set[str] = attrs.field(factory=set)
    kept: set[str] = attrs.field(factory=set)
    settled: set[str] = attrs.field(factory=set)
    keys: dict[str, str] = attrs.field(factory=dict)

    @property
    def in_doubt(self) -> set[str]:
        """Calls that have started and nobody knows more."""
        return self.started - self.ended - self.settled

    @property
    def finished(self) -> set[str]:
        """Calls whose body must not run again."""
        return self.ended | self.settled


def read_cut(lines: Sequence[bytes]) -> Cut:
    """Return what *lines* (without the header) say of calls."""
    cut = Cut()
    for line in lines:
        record = json.loads(line)
        if "call_id" not in record:
            continue
        name = named(record["path"], record["call_id"])
        match record["kind"]:
            case "call_started":
                cut.started.add(name)
                cut.keys[name] = record["idempotency_key"]
            case "body_ended":
                cut.ended.add(name)
                if record.get("kept") or record.get("failed"):
                    cut.kept.add(name)
            case "call_settled":
                cut.settled.add(name)
    return cut


def named(path: Sequence[str], call_id: str) -> str:
    """Return what the tests call a call: the ledger's names are ids, so nested calls of two parents share theirs."""
    return "/".join((*path, call_id))


def kind_of(name: str) -> str:
    """Return the kind of the call of that name."""
    return name.rpartition(".")[2]


def check_history(items: Iterable[Item]) -> None:
    """Check that every call has exactly one output, behind it, and no output is without its call."""
    calls: set[str] = set()
    answered: set[str] = set()
    for item in items:
        if isinstance(item, ToolCall | HandoffCall):
            assert item.call_id not in calls, f"call {item.call_id} twice"
            calls.add(item.call_id)
        elif isinstance(item, ToolOutput | HandoffOutput):
            assert item.call_id in calls, f"output {item.call_id} before its call"
            assert item.call_id not in answered, f"output {item.call_id} twice"
            answered.add(item.call_id)
    assert calls == answered, f"calls without output: {calls - answered}"


UNKNOWN = ("whether it took effect is unknown.", "its output was not kept.")


def told(items: Iterable[Item]) -> list[str]:
    """Return the items in words, outputs that are unknown left out: what an uncrashed run and this one share."""
    lines = []
    for item in items:
        if isinstance(item, ToolOutput):
            text = str(item.output)
            lines.append(f"output #{item.call_id} {'?' if text.endswith(UNKNOWN) else text}")
        else:
            lines.append(repr(item))
    return lines


def check_same(whole: Sequence[str], crashed: Sequence[str]) -> None:
    """Check that two runs told the same, but for what is unknown in the crashed one."""
    assert len(whole) == len(crashed), (list(whole), list(crashed))
    for one, other in zip(whole, crashed, strict=True):
        if other.endswith("?"):
            assert one.rsplit(" ", 1)[0].split(" ")[:2] == other.split(" ")[:2]
        else:
            assert one == other


@attrs.frozen
class Recovered:
    """A run that was gone on with after a crash."""

    result: RunResult[Any]
    ledger: Ledger
    lines: list[bytes]
    batches: list[list[bytes]]
    """What it wrote; the first one is what it found."""


async def recover(whole: Whole, lines: Sequence[bytes], session: MemorySession | None = None) -> Recovered:
    """Go on with the journal *lines* (header included) in a new process, so to say."""
    ledger, journal = Ledger(), Batches()
    await journal.append(lines)
    agent = build(whole.plot, ledger)
    state = await RunState.from_journal(agent, journal)
    result = await to_its_end(agent, state, journal=journal, session=session, run_config=config_of(whole.plot))
    return Recovered(result, ledger, await journal.read(), journal.batches)


def check_recovered(whole: Whole, lines: Sequence[bytes], recovered: Recovered) -> None:
    """Check everything that is promised of a run that crashed with *lines* (header included) in its journal."""
    cut = read_cut(lines[1:])
    ran = recovered.ledger.count()
    result = recovered.result
    again = _started_since(recovered.lines[len(lines) :])
    for name in cut.finished:
        assert name not in again, f"{name} had finished, and was started again"
    for name in cut.in_doubt:
        kind = kind_of(name)
        if kind in ("sub", "asks_sub"):
            continue
        if kind in ("idem", "rerun"):
            assert again[name] == 1, f"{name} was in doubt and is to be run again, once"
            assert set(_keys(recovered.lines, name)) == {cut.keys[name]}
        else:
            assert name not in again, f"{name} was in doubt and must not be run again"
            assert _status(result, name) == "unknown"
    everything = set(_started_since(whole.lines[1:]))
    for name in everything - cut.started:
        assert again[name] == 1, f"{name} had not started, and is to run once"
    assert sum(ran.values()) == sum(count for name, count in again.items() if kind_of(name) not in ("sub", "asks_sub"))
    unknown = [name for name in everything if _status(result, name) == "unknown"]
    for name in unknown:
        assert name in cut.in_doubt or name in cut.ended - cut.kept - cut.settled, f"{name} is unknown for no reason"
    assert result.final_output == whole.result.final_output
    assert result.usage.total_tokens == whole.result.usage.total_tokens
    assert result.usage.requests == whole.result.usage.requests
    check_same(told(whole.result.new_items), told(result.new_items))
    check_history(result.to_input_list())
    check_history(result.new_items)
    assert _turns(result.records) == _turns(whole.result.records)
    assert result.last_agent.name == whole.result.last_agent.name
    assert recovered.lines[: len(lines)] == list(lines)


def _started_since(lines: Sequence[bytes]) -> Counter[str]:
    records = map(json.loads, lines)
    return Counter(named(record["path"], record["call_id"]) for record in records if record["kind"] == "call_started")


def _keys(lines: Sequence[bytes], name: str) -> list[str]:
    records = map(json.loads, lines[1:])
    return [
        record["idempotency_key"]
        for record in records
        if record["kind"] == "call_started" and named(record["path"], record["call_id"]) == name
    ]


def _status(result: RunResult[Any], name: str) -> str | None:
    settled = [
        record.outcome.status
        for record in result.records
        if isinstance(record, r.CallSettled) and named(record.path, record.call_id) == name
    ]
    return settled[-1] if settled else None


def _turns(records: Iterable[r.Record]) -> list[tuple[tuple[str, ...], int]]:
    """Return the turns of all runs of the tree; one that was begun again after a crash counts once."""
    return sorted({(record.path, record.turn) for record in records if isinstance(record, r.TurnStarted)})
