"""`compare`: recorded runs against an agent of today, each behind the firewall, one table.

A run is read, followed and judged before the next one is read, and only its row is kept, so memory doesn't grow with
the number of runs. Where something is written beside the report, such as a page, `observe` gets both runs of each row.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
import attrs

from agentloop import records as r
from agentloop._common.checks import check_count
from agentloop._common.error_text import error_summary
from agentloop._common.json_bytes import decode
from agentloop._storage.state_codec import codec_of, read_lines
from agentloop.abc import Codec, Journal
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions import AgentLoopError, JournalError, StateError, UserError, UserTypeError, UserValueError
from agentloop.items import CallToAnswer
from agentloop.journal._database import DatabaseJournals
from agentloop.journal._folder import is_address
from agentloop.journal._reading import _read_rows, find_runs, list_runs, read_lines_of
from agentloop.lab._agents import Candidate
from agentloop.lab._cache import AnswerCache
from agentloop.lab._cases import Case, record_case
from agentloop.lab._checks import Judge, RunCheck, Score, judge_by
from agentloop.lab._copies import ClosedSession
from agentloop.lab._effects import LabBudget, LabEffects, LabRules, Simulation, Unmatched
from agentloop.lab._recorded_errors import is_rebuilt
from agentloop.lab._recording import Recording, count_stops, holds_hidden
from agentloop.lab._report import LabReport
from agentloop.lab._rows import Figures, LabRow, compare_runs
from agentloop.lab._runs import CaseRun, read_run
from agentloop.models.registry import Providers
from agentloop.results import RunData, RunResult
from agentloop.run import Runner
from agentloop.state import RunState

Recorded: TypeAlias = "str | os.PathLike[str] | Journal | RunState | RunData | Case"
"""A run to compare: a file of a journal, a folder of them, the address of a database with some, a journal, a state, a
result, or a case."""
VerdictRule: TypeAlias = Literal["approve", "reject", "ask"]
Observer: TypeAlias = Callable[[LabRow, CaseRun | None, CaseRun | None], None]


_is_in_lab: ContextVar[bool] = ContextVar("agentloop_in_lab", default=False)


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a failure of a tool is news: one of yesterday, which a run of the lab repeats, isn't."""
    return not _is_in_lab.get()


@contextmanager
def in_lab(*loggers: str) -> Iterator[None]:
    """Mark what the block does, and what it starts, as the lab's: failures of tools there aren't logged.

    Nor is what is written to *loggers*.
    """
    for logger in map(logging.getLogger, ("agentloop.tools", *loggers)):
        if _is_news not in logger.filters:
            logger.addFilter(_is_news)
    token = _is_in_lab.set(True)
    try:
        yield
    finally:
        _is_in_lab.reset(token)


@attrs.frozen(kw_only=True, eq=False)
class LabOptions:
    """The checked options of a comparison, or of a fork."""

    agent: Agent[Any, Any]
    rules: LabRules
    config: RunConfig
    context: Callable[[], Any] | None
    verdict: VerdictRule
    checks: tuple[RunCheck, ...] = ()
    judges: dict[str, Judge] = attrs.field(factory=dict)
    repeat: int = 1
    key: bytes | None = None
    codec: Codec | None = None
    cases: str | os.PathLike[str] = ""


async def compare(
    journals: Recorded | Iterable[Recorded],
    agent: Agent[Any, Any],
    *,
    checks: Sequence[RunCheck] = (),
    judges: Sequence[Judge | str] = (),
    judge_model: Any = None,
    repeat: int = 1,
    run_config: RunConfig | None = None,
    context: Callable[[], Any] | None = None,
    unmatched: Unmatched = "refuse",
    simulate: Simulation | None = None,
    verdict: VerdictRule = "ask",
    recorded_guards: bool = False,
    toolsets: bool = False,
    cache: str | os.PathLike[str] | None = None,
    budget: int | None = None,
    concurrency: int = 4,
    seed: int = 0,
    key: bytes | None = None,
    codec: Codec | None = None,
    cases: str | os.PathLike[str] = ".agentloop/cases",
    where: Callable[[CaseRun], bool] | None = None,
    done: Sequence[LabRow] = (),
    observe: Observer | None = None,
) -> LabReport:
    """Run every recorded run again with *agent*, as it is now, and say what became of each.

    Nothing of the outside world happens: a model request that is equal to a recorded one is answered from the log, and
    so is a tool call with the tool, arguments and occurrence of a recorded one. Any other request goes to the agent's
    model, so a changed prompt costs what its new answers cost; an unchanged agent costs nothing. Of the tools only the
    bodies of those run that only read (`@tool(reads_only=True)`). Guardrails, policies and callbacks run as code under
    test; hooks, instruments, sessions, journals and sandboxes are left out. Your result is in the report's rows.

    Args:
        journals: A folder of journals, a file, the address of a PostgreSQL database, a journal, a `RunState`, the
            result of a run, a `Case`, or several.
        agent: The candidate.
        checks: What must be true of every run, in addition to those of its case.
        judges: Functions of a `CaseRun` that return a `Score`, or questions for *judge_model*.
        judge_model: The model, or model string, that judges by questions; default: that of *agent*.
        repeat: How often each run is repeated: several times for a model whose answers vary.
        run_config: The configuration of the runs; it should be that of production. Limits of requests don't hold in
            the lab, neither its own nor those of providers and models: *concurrency* and *budget* do.
        context: A function that makes the application's object of a run.
        unmatched: What a call gets that the recorded run hasn't made, of a tool that doesn't only read: `"refuse"`
            tells the model that the tool isn't available, `"stub"` gives a value of its output schema, `"simulate"`
            that of *simulate*, and `"live"` runs the body. A request with hosted tools, which the provider runs,
            goes to the model with `"live"` only; any other rule makes it an error of its row.
        simulate: `(SimulatedCall) -> value`, sync or async.
        verdict: The verdict on a call that needs one and isn't a recorded one: `"ask"` gives none, so the run ends
            there and its row says that it would ask.
        recorded_guards: True to take the verdicts of guardrails from the log, where it has them.
        toolsets: True to let the agent's sources of tools (servers, mostly) be asked.
        cache: A folder in which the candidate's answers are kept by request; None keeps them for this call only.
        budget: The most requests that the candidate's models may get; None = no limit. Judges don't count.
        concurrency: How many runs at once.
        seed: Of the values for `"stub"`.
        key, codec: Those of the journals.
        cases: The folder in which cases are recorded, by their names.
        where: A predicate of the recorded run; only those that pass are compared.
        done: Rows of an earlier report that are taken over, so that an interrupted comparison continues.
        observe: Called with each row and its two runs, None where there is none.

    Cancellation: prompt; the rows so far are those that *observe* got.

    Raises:
        UserError: an argument is wrong; names it. What is wrong with one journal is said in its row.

    Example:
        import anyio
        from agentloop import Agent, Runner, lab
        from agentloop.testing import ScriptedModel, say

        async def main():
            result = await Runner.run(Agent("a", model=ScriptedModel([say("hello")])), "hi")
            changed = Agent("a", instructions="Be loud.", model=ScriptedModel([say("HELLO")]))
            report = await lab.compare(result, changed)
            print(report.rows[0].verdict, report.rows[0].saw)  # answer differs ('turn 1: instructions',)

        anyio.run(main)
    """
    if not isinstance(agent, Agent):
        raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
    for name, count in (("repeat", repeat), ("concurrency", concurrency)):
        check_count(name, count)
    options = LabOptions(
        agent=agent,
        rules=LabRules(
            unmatched=unmatched,
            simulate=simulate,
            recorded_guards=recorded_guards,
            toolsets=toolsets,
            seed=seed,
            cache=AnswerCache(cache),
            budget=LabBudget(budget),
        ),
        config=run_config or RunConfig(),
        context=context,
        verdict=verdict,
        checks=tuple(checks),
        judges={name_judge(one): _make_judge(one, judge_model, agent) for one in judges},
        repeat=repeat,
        key=key,
        codec=codec,
        cases=cases,
    )
    sources = list(list_sources(await find_stored_runs(journals)))
    rows: list[LabRow] = list(done)
    known = {(row.name, row.repeat) for row in done}

    waiting = iter(sources)

    async def work() -> None:
        for name, source in waiting:
            if all((name, number) in known for number in range(repeat)):
                continue
            for made, before, after in await _compare_source(name, source, options, providers, where):
                rows.append(made)
                if observe is not None:
                    observe(made, before, after)

    async with Providers() as providers, raise_bare(), anyio.create_task_group() as group:
        for _ in range(min(concurrency, len(sources))):
            group.start_soon(work)
    rows.sort(key=lambda row: (row.name, row.repeat))
    return LabReport(agent=agent.name, rows=tuple(rows))


@asynccontextmanager
async def raise_bare() -> AsyncIterator[None]:
    """Raise the first error of a group bare: the others ended because of it, or say the same."""
    try:
        yield
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None  # noqa: ASYNC123 - its own context stays


def name_judge(judge: Judge | str) -> str:
    """Return the name of a judge's column: its question, or the name of its function."""
    return judge if isinstance(judge, str) else getattr(judge, "__name__", type(judge).__name__)


def _make_judge(judge: Judge | str, model: Any, agent: Agent[Any, Any]) -> Judge:
    if not isinstance(judge, str):
        return judge
    chosen = model if model is not None else agent.model
    if chosen is None:
        raise UserValueError("judge_model: expected a model, to ask it the judge's question: the agent has none")
    return judge_by(judge, chosen)


# ------------------------------------------------------------------------------------------------ sources


@attrs.frozen
class JournaledRun:
    """One run of a file that holds several."""

    path: Path
    run_id: str


@attrs.frozen
class DatabaseRun:
    """One run of a PostgreSQL database."""

    address: str = attrs.field(repr=False)  # it may hold a password
    run_id: str


async def find_stored_runs(journals: Any) -> Any:
    """Return the runs of the database whose address *journals* is; else *journals*.

    Raises:
        UserError, JournalError: the database can't be read; the address isn't quoted.
    """
    if not is_address(journals):
        return journals
    with DatabaseJournals(journals) as stored:
        return [DatabaseRun(journals, run_id) for run_id in await anyio.to_thread.run_sync(stored.list_runs)]


def list_sources(journals: Any) -> Iterator[tuple[str, Any]]:
    """Yield the runs of *journals*, each with the name of its row.

    Raises:
        UserError: if there is no such file or folder, or a source is of no kind that the lab reads.
    """
    if isinstance(journals, str | os.PathLike):
        yield from _list_files(Path(journals))
    elif isinstance(journals, Case):
        yield journals.name, journals
    elif isinstance(journals, JournaledRun | DatabaseRun):
        yield journals.run_id, journals
    elif isinstance(journals, RunState | RunData | RunResult | Journal):
        yield "run", journals
    elif isinstance(journals, Iterable):
        for index, one in enumerate(journals):
            for name, source in list_sources(one):
                yield (f"run {index}" if name == "run" else name), source
    else:
        raise UserTypeError(f"journals: expected journals, states, results or cases, got {journals!r}")


def _list_files(given: Path) -> Iterator[tuple[str, Any]]:
    if given.is_dir():
        found = find_runs(given)
        if not found:
            raise UserError(
                f"journals: {str(given)!r} holds no journal: they end with .journal or .jsonl, or are of SQLite"
            )
        for name, path, run_id in found:
            yield name, path if run_id is None else JournaledRun(path, run_id)
        return
    if not given.exists():
        raise UserError(f"journals: there is no {str(given)!r}")
    runs = list_runs(given)
    if runs is None:
        yield given.stem, given
        return
    for run_id in runs:
        yield run_id, JournaledRun(given, run_id)


async def load_recording(name: str, source: Any, options: LabOptions) -> Recording:
    """Return the recording of *source*.

    Raises:
        AgentLoopError: it can't be read.
    """
    match source:
        case Case():
            with in_lab():
                path = await record_case(source, options.agent, options.config, options.cases)
            return await load_recording(name, path, options)
        case RunState() | RunData() | RunResult():
            return Recording.of(name, source.records)
        case _:
            lines, codec = await read_source(source, options.key, options.codec)
    return Recording.of(name, read_lines(lines, codec).records, decode(lines[0]).get("origins"))


async def read_source(source: Any, key: bytes | None, codec: Codec | None) -> tuple[list[bytes], Codec | None]:
    """Return the lines of a journal, one of those that `list_sources` yields, and the codec of what they hide.

    Raises:
        JournalError: it can't be read, or is empty.
    """
    match source:
        case Path():
            lines = read_lines_of(os.fspath(source), None, key)
        case JournaledRun(path, run_id):
            lines = _read_rows(os.fspath(path), run_id, key)
        case DatabaseRun(address, run_id):
            with DatabaseJournals(address) as stored:
                lines = await anyio.to_thread.run_sync(partial(stored.read, run_id, key=key))
        case _:
            lines = await source.read()
            codec = codec_of(source) or codec
    if not lines:
        raise JournalError("it is empty, or nothing whole is in it")
    return lines, codec


def find_obstacle(recording: Recording, agent: Agent[Any, Any]) -> str | None:
    """Return why a run can't be compared at all; None if it can."""
    started = recording.started
    if started.schema != RunState.schema_version:
        return f"its log began in schema {started.schema}, which lacks what the lab needs"
    name, _, _ = started.agent.partition("#")
    if name != agent.name:
        return f"it is a run of agent {name!r}, not of {agent.name!r}"
    if any("-" not in one.digest for one in recording.records if isinstance(one, r.ModelRequested)):
        return "an older library wrote it, without the parts of the requests"
    if holds_hidden(started.input) or (started.shown is not None and holds_hidden(started.shown)):
        return "from turn 1 on: the log hides a secret"
    return None


# ------------------------------------------------------------------------------------------------ one run


async def _compare_source(
    name: str, source: Any, options: LabOptions, providers: Providers, where: Callable[[CaseRun], bool] | None
) -> list[tuple[LabRow, CaseRun | None, CaseRun | None]]:
    """Return the rows of one source, with both runs; none if *where* refuses it."""
    try:
        recording = await load_recording(name, source, options)
        if not recording.records or not isinstance(recording.records[0], r.RunStarted):
            raise StateError("it is the log of no run")
    except AgentLoopError as error:
        return [(LabRow(name=name, verdict="not comparable", why=(str(error),)), None, None)]
    before = read_run(name, recording.records)
    if where is not None and not where(before):
        return []
    if (obstacle := find_obstacle(recording, options.agent)) is not None:
        row = LabRow(name=name, verdict="not comparable", why=(obstacle,), before=Figures.of(before))
        return [(row, before, None)]
    made: list[tuple[LabRow, CaseRun | None, CaseRun | None]] = []
    for number in range(options.repeat):
        again = recording if number == 0 else recording.again()
        context = options.context
        own: tuple[RunCheck, ...] = ()
        if isinstance(source, Case):
            context, own = source.make_context or context, source.all_checks
        row, after = await _follow(before, again, attrs.evolve(options, context=context), providers, number)
        made.append((await _judge_row(row, after, options, own), before, after))
    return made


async def _judge_row(row: LabRow, after: CaseRun, options: LabOptions, own: Sequence[RunCheck]) -> LabRow:
    if row.verdict == "not comparable":
        return row
    checks = {one.name: _verify(one, after) for one in (*options.checks, *own)}
    scores: dict[str, Score] = {}
    notes = list(row.notes)
    for name, judge in options.judges.items():
        try:
            given = judge(after)
            scores[name] = await given if isinstance(given, Awaitable) else given
        except Exception as error:  # of a model that is asked, mostly: the other rows are worth having
            notes.append(f"judge {name!r} failed: {error_summary(error)}")
    return attrs.evolve(row, checks=checks, scores=scores, notes=tuple(notes))


def _verify(check: RunCheck, run: CaseRun) -> str | None:
    try:
        return check.verify(run)
    except Exception as error:
        return f"it raised {error_summary(error)}"


async def _follow(
    before: CaseRun, recording: Recording, options: LabOptions, providers: Providers, number: int
) -> tuple[LabRow, CaseRun]:
    """Run the candidate on the input of *recording*, behind the firewall, and compare."""
    effects = LabEffects(recording, options.rules, repeat=number)
    candidate = Candidate(options.agent, options.config, effects, providers)
    error = await run_behind(candidate, recording, options, effects, recording.started.input)
    if not effects.records:  # it was refused before it began
        why = "" if error is None else error_summary(error)
        row = LabRow(name=before.name, repeat=number, verdict="error", why=(why,), before=Figures.of(before))
        return row, before
    last = max(one.turn for one in effects.records if not one.path)
    if effects.ended is None and recording.is_cut and effects.follows and last >= recording.turns:
        effects.ended, effects.ended_in = "cut", last  # it has come further than the log
    after = read_run(before.name, effects.records, effects.sources)
    if error is not None and after.error is None and effects.ended is None:
        after = after.replace(error=error_summary(error))
    return compare_runs(before, after, effects, repeat=number), after


async def run_behind(
    candidate: Candidate, recording: Recording, options: LabOptions, effects: LabEffects, given: Any
) -> BaseException | None:
    """Run the candidate on *given*, an input or a state, behind the firewall; return the error that ended it."""
    with effects.scope, in_lab():
        try:
            await _run_segments(candidate, recording, options, effects, given)
        except BaseException as raised:  # noqa: ASYNC103 - the log's own fatal error, or raised again
            if not isinstance(raised, Exception) and not is_rebuilt(raised):
                raise
            return raised  # noqa: ASYNC104 - as above
    return None


async def _run_segments(
    candidate: Candidate, recording: Recording, options: LabOptions, effects: LabEffects, given: Any
) -> None:
    """Run the candidate, and give the recorded verdicts between its segments, and the inputs meanwhile."""
    common: dict[str, Any] = {
        "run_config": attrs.evolve(candidate.config, instruments=(effects,)),
        "context": None if options.context is None else options.context(),
        "max_turns": recording.max_turns,
        "session": ClosedSession() if recording.started.shown is not None else None,
    }
    if isinstance(given, RunState) and given.interruptions:
        _decide(given, recording, options.verdict)
        effects.records = list(given.records)
    while True:
        if recording.inputs:
            result = await _run_with_inputs(candidate.agent, given, effects, common)
        else:
            result = await Runner.run(candidate.agent, given, **common)
        state = result.to_state()
        goes_on = result.status == "stopped" and (
            any(one.status == "waiting" for one in state.inputs)
            or count_stops(state.records) <= recording.resumed_stops
        )
        if not goes_on and not _decide(state, recording, options.verdict):
            return
        effects.add_inputs_to(state)
        effects.records = list(state.records)
        given = state


async def _run_with_inputs(
    agent: Agent[Any, Any], given: Any, effects: LabEffects, common: dict[str, Any]
) -> RunResult[Any]:
    """Return the result of one segment that gets the recorded inputs: the run asks its model, and they come."""
    async with Runner.run_streamed(agent, given, **common) as stream:
        effects.give = stream.add_input
        await effects.add_first_inputs()
        async for _ in stream:
            pass
    return stream.result


def _decide(state: RunState, recording: Recording, rule: VerdictRule) -> bool:
    """Give the verdicts that the log has, and those of *rule*. Return False if there was none to give."""
    asked = {(one.path, one.call_id): one for one in state.records if isinstance(one, r.ApprovalRequested)}
    decided = False
    for one in state.interruptions:
        if isinstance(one, CallToAnswer):
            given = recording.find_answer(one.call.name, one.call.call_id)
            if given is not None:
                decided = True
                said = {"error": given.value} if given.failed else {"value": given.value}
                state.answer(one, **said, by=given.by)
            continue
        request = asked[one.path, one.call.call_id]
        verdict = recording.find_verdict(request.tool, request.digest, request.call_id)
        if verdict is None and rule == "ask":
            continue
        decided = True
        if verdict is None:
            state.approve(one, by="lab") if rule == "approve" else state.reject(one, by="lab")
        elif verdict.approved:
            state.approve(one, arguments=verdict.arguments, always=verdict.always, by=verdict.by)
        else:
            state.reject(one, message=verdict.message, always=verdict.always, by=verdict.by)
    return decided
