"""`upgrade_check`: what the runs that wait would do if they were resumed with another agent. Reads only.

There is no second judge: each run is restored and resumed by the functions that `Runner.resume` uses, in memory, with
a door behind which nothing is done (`_dry.py`). What the engine then refuses, plans and records is the verdict. A run
that waits for a verdict or an answer is given one first, because without it every agent leaves it waiting.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from agentloop import records as r
from agentloop._common import notebook
from agentloop._common.error_text import error_summary
from agentloop._common.terminal_text import exact
from agentloop._core.run_fold import RunFold
from agentloop._storage.state_codec import read_lines, stored_run
from agentloop.abc import Codec
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.config import RunConfig
from agentloop.exceptions import AgentLoopError, ModelBehaviorError, UserError, UserTypeError, UserValueError
from agentloop.items import CallToAnswer
from agentloop.lab._compare import Recorded, VerdictRule, find_stored_runs, in_lab, list_sources, read_source
from agentloop.lab._dry import DryCandidate, DryEffects
from agentloop.lab._recording import Path, parts_of
from agentloop.lab._stub import draw_from
from agentloop.model_events import ModelInfo
from agentloop.models.registry import Providers
from agentloop.outcomes import Status
from agentloop.results import RunResult
from agentloop.run import Runner
from agentloop.state import RunState, check_agents
from agentloop.tools import ToolSearch

UpgradeVerdict: TypeAlias = Literal["same", "changed", "unknown", "refused", "fails"]
"""The end of a resumed run, best first: it continues as before; it continues with other definitions; the check couldn't
tell; it is refused, and still waits; it is over for good."""
_VERDICTS: tuple[UpgradeVerdict, ...] = get_args(UpgradeVerdict)


@attrs.frozen(kw_only=True)
class UpgradeCall:
    """The fate of one call that hasn't settled, if its run is resumed with the new agent.

    Attributes:
        path, call_id, tool: The call.
        does: `"runs"`; `"runs again"`, where an earlier start may have taken effect; `"continues"` the run nested in
            it; `"waits"` for a verdict or an answer; `"settles"` without running, with `status`.
        status: The status of the outcome, of a call that settles.
    """

    path: Path
    call_id: str
    tool: str
    does: Literal["runs", "runs again", "continues", "waits", "settles"]
    status: Status | None = None

    def __str__(self) -> str:
        return f"{self.tool} ({self.call_id}) {self.does}{'' if self.status is None else f': {self.status}'}"


@attrs.frozen(kw_only=True)
class UpgradeRow:
    """One unfinished run, and what resuming it with the new agent would do.

    Attributes:
        name: The name of its journal, or its id.
        verdict: `"same"`, `"changed"`, `"unknown"`, `"refused"` or `"fails"`.
        why: Why it is refused, fails, or isn't known.
        changes: The differences of the definitions, in words: the agents' graph, and what the model is shown.
        status: How the run's last segment ended; None if it was cut off, or is under way.
        waiting: The calls that wait for a verdict or an answer, in words.
        calls: What is done about each call that hasn't settled. Empty where the run is refused or fails before.
        asks: The application's functions that have a say in it, and that the check doesn't call.
        agent: The agent whose model is asked next; None if none is.
        records: How many records its log has.
    """

    name: str
    verdict: UpgradeVerdict
    why: str = ""
    changes: tuple[str, ...] = ()
    status: r.RunStatus | None = None
    waiting: tuple[str, ...] = ()
    calls: tuple[UpgradeCall, ...] = ()
    asks: tuple[str, ...] = ()
    agent: str | None = None
    records: int = 0

    def describe(self) -> Iterator[str]:
        """Yield the lines of the report's table."""
        if self.why:
            yield self.why
        for change in self.changes:
            yield f"changed: {change}"
        for waits in self.waiting:
            yield f"waits: {waits}"
        for call in self.calls:
            yield f"then: {call}"
        if self.asks:
            yield f"not known: what {', '.join(self.asks)} will say"


@attrs.frozen
class UpgradeReport:
    """The result of an upgrade check: a row for each unfinished run, sorted by name. Its text is a table.

    Example:
        import anyio
        from agentloop import Agent, Runner, lab, tool
        from agentloop.testing import ScriptedModel, call

        @tool(needs_approval=True)
        def pay(amount: int) -> str:
            "Pay."
            return "paid"

        async def main():
            agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 5}, call_id="c1")]), tools=[pay])
            waiting = await Runner.run(agent, "Pay 5.")
            report = await lab.upgrade_check(waiting, agent)
            print(report.count("same"), report.exit_code)  # 1 0

        anyio.run(main)
    """

    agent: str
    rows: tuple[UpgradeRow, ...]

    def count(self, verdict: str) -> int:
        """Return the number of rows of *verdict*."""
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 if every run continues; 1 if one is refused, fails, or isn't known."""
        return int(any(row.verdict not in ("same", "changed") for row in self.rows))

    def __str__(self) -> str:
        counts = Counter(row.verdict for row in self.rows)
        sums = ", ".join(f"{counts[one]} {one}" for one in _VERDICTS if counts[one]) or "none"
        lines = [f"Unfinished runs, resumed with agent {self.agent!r}: {sums}"]
        for row in self.rows:
            if row.verdict != "same":
                lines += [f"{row.verdict:8} {row.name}", *(f"         {line}" for line in row.describe())]
        if asking := [row for row in self.rows if row.asks]:
            names = sorted({ask.partition(" (")[0] for row in asking for ask in row.asks})
            lines.append(f"{len(asking)} of them depend on what your functions will say, too: {', '.join(names)}")
        return "\n".join(exact(line) for line in lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the report."""
        return notebook.page("UpgradeReport", pieces=[notebook.block(str(self))])

    def to_json(self) -> str:
        """Return the report as one JSON object on a line: `{"agent": …, "rows": [{"name": …, "verdict": …}]}`."""
        return json.dumps(attrs.asdict(self), ensure_ascii=False, sort_keys=True)


@attrs.frozen(kw_only=True)
class _Options:
    candidate: DryCandidate
    verdict: VerdictRule
    toolsets: bool
    key: bytes | None
    codec: Codec | None


async def upgrade_check(
    journals: Recorded | Iterable[Recorded],
    agent: Agent[Any, Any],
    *,
    run_config: RunConfig | None = None,
    verdict: VerdictRule = "approve",
    toolsets: bool = False,
    key: bytes | None = None,
    codec: Codec | None = None,
) -> UpgradeReport:
    """Say what each unfinished run would do if it were resumed with *agent*, before you deploy it.

    Each run is resumed in memory by the engine itself, as `Runner.resume` would, until it comes to its next request to
    a model. No model is asked, no body, hook or callback of yours is called, and nothing is written: neither to the
    journals, nor to sessions or sandboxes. What your functions (policies, guardrails, callable instructions …) will say
    isn't known, so the check assumes that they let the run continue, and each row names those that have a say.

    Not judged either: whether a model's key is there, whether its server answers, and what only the options of
    `Runner.resume` change (the context, sessions, error handlers).

    Args:
        journals: A folder of journals, a file, the address of a PostgreSQL database, a journal, a `RunState`, the
            result of a run, or several. Runs that are over are left out.
        agent: The new agent, in place of the one that the runs began with.
        run_config: The configuration with which you will resume them.
        verdict: What the calls that wait get first: `"approve"`, so that the row says what happens once a person has
            approved, or answered; `"reject"`; or `"ask"`, no verdict.
        toolsets: True to let the agent's sources of tools (servers, mostly) be asked; without it a run that needs one
            is `"unknown"`.
        key, codec: Those of the journals.

    Cancellation: prompt.

    Raises:
        UserError: an argument is wrong; names it. What is wrong with one journal is said in its row.

    Example:
        import anyio
        from agentloop import Agent, Runner, lab, tool
        from agentloop.testing import ScriptedModel, call

        @tool(needs_approval=True)
        def pay(amount: int) -> str:
            "Pay."
            return "paid"

        async def main():
            old = Agent("shop", model=ScriptedModel([call("pay", {"amount": 5}, call_id="c1")]), tools=[pay])
            waiting = await Runner.run(old, "Pay 5.")
            report = await lab.upgrade_check(waiting, Agent("shop", model=old.model))
            print(report.rows[0].verdict)  # refused
            print(report.rows[0].why[:30])  # call 'c1' waits for tool 'pay'

        anyio.run(main)
    """
    if not isinstance(agent, Agent):
        raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
    if verdict not in get_args(VerdictRule):
        raise UserValueError(f"verdict: expected 'approve', 'reject' or 'ask', got {verdict!r}")
    sources, rows = list(list_sources(await find_stored_runs(journals))), []
    async with Providers() as providers:
        closed = DryEffects(may_ask_sources=toolsets)
        candidate = DryCandidate(agent, run_config or RunConfig(), closed, providers)
        options = _Options(candidate=candidate, verdict=verdict, toolsets=toolsets, key=key, codec=codec)
        for name, source in sources:
            if (row := await _check(name, source, options)) is not None:
                rows.append(row)
    return UpgradeReport(agent.name, tuple(sorted(rows, key=lambda row: row.name)))


async def _check(name: str, source: Any, options: _Options) -> UpgradeRow | None:
    """Return the row of one run; None if it is over."""
    row = UpgradeRow(name=name, verdict="refused")
    try:
        state = await _read_state(source, options)
        row = attrs.evolve(row, records=len(state.records), status=state.status)
        if state._is_over:
            return None
        waiting = tuple(f"{one.call.name} ({one.call.call_id}) of agent {one.agent!r}" for one in state.interruptions)
        row = attrs.evolve(row, waiting=waiting)
        with in_lab("agentloop"):
            check_agents(state)
        given = _decide(state, options.verdict)
    except AgentLoopError as error:
        return attrs.evolve(row, why=_describe(error))
    return await _resume(row, state, given, options)


async def _read_state(source: Any, options: _Options) -> RunState:
    """Return the run of *source*, read as from its journal, with the candidate; the graph of agents isn't checked yet.

    Raises:
        AgentLoopError: it can't be read.
    """
    agent, converter = options.candidate.agent, options.candidate.config.converter
    if isinstance(source, RunResult):
        source = source.to_state()
    if isinstance(source, RunState):
        state = RunState(agent, source.records)
        state.converter, state.graph_before = converter, source._make_stored().graph
        return state
    lines, codec = await read_source(source, options.key, options.codec)
    return RunState._of_stored(agent, stored_run(read_lines(lines, codec)), None, converter)


def _decide(state: RunState, rule: VerdictRule) -> set[tuple[Path, str]]:
    """Give each call of *state* that waits the verdict, or an answer; return those that have one.

    Raises:
        AgentLoopError: the new agent takes none.
    """
    decided: set[tuple[Path, str]] = set()
    for one in state.interruptions if rule != "ask" else ():
        if isinstance(one, CallToAnswer):
            if one.expires_at is not None and time.time() >= one.expires_at:
                continue  # the run tells its model that no answer came in time
            try:
                state.answer(one, draw_from(one.returns, one.call.call_id))
            except UserError:  # the schema says more than a drawn value heeds
                state.answer(one, error="no answer")
        elif rule == "approve":
            state.approve(one)
        else:
            state.reject(one)
        decided.add((one.path, one.call.call_id))
    return decided


async def _resume(row: UpgradeRow, state: RunState, decided: set[tuple[Path, str]], options: _Options) -> UpgradeRow:
    """Resume *state* behind a dry door, and return *row* with what came of it."""
    dry, fold = DryEffects(may_ask_sources=options.toolsets), state._fold
    due, agent, before = list(_list_due(fold)), fold.agent, tuple(fold.records)  # the run continues with this very fold
    error = await _run(state, dry, options.candidate)
    ended = next((one for one in reversed(dry.records) if isinstance(one, r.RunEnded) and not one.path), None)
    if isinstance(error, ModelBehaviorError) and dry.has_bodies and _may_end_by_output(agent, options.candidate):
        error = None  # the output of a call would be the final one, and it isn't known
    calls = tuple(_list_calls(due, dry.records))
    changes = (
        *_list_changes(before, fold, dry, options.candidate),
        *_list_asked_again(calls, decided),
    )
    verdict: UpgradeVerdict = "changed" if changes else "same"
    if error is not None:
        verdict = "unknown" if dry.is_closed else "refused" if ended is None or ended.resumable else "fails"
    asked_next = [one.agent for one in dry.records if isinstance(one, r.TurnStarted) and not one.path]
    return attrs.evolve(
        row,
        verdict=verdict,
        why="" if error is None else _describe(error),
        changes=changes,
        calls=calls,
        asks=tuple(f"{what} ({key})" if key else what for _, what, key in dry.asked),
        agent=asked_next[-1] if asked_next and error is None else None,
    )


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, AgentLoopError) else error_summary(error)


async def _run(state: RunState, dry: DryEffects, candidate: DryCandidate) -> Exception | None:
    """Resume *state*; return the error that refuses or ends it, None if it continues, pauses or ends well."""
    with dry.scope, in_lab("agentloop"):
        try:
            await Runner.run(candidate.agent, state, run_config=candidate.config_for(dry))
        except Exception as error:
            return error
    return None


def _may_end_by_output(agent: str, candidate: DryCandidate) -> bool:
    found = AgentGraph(candidate.agent).find(agent)
    return found is not None and found.tool_use_behavior != "run_llm_again"


# ------------------------------------------------------------------------------------------------ what the records say


def _list_due(fold: RunFold) -> Iterator[tuple[Path, str, str]]:
    """Yield the calls of the run of *fold*, and of the runs nested in them, that haven't settled."""
    for call in fold.due_calls() if fold.batch_open else ():
        yield fold.path, call.call.call_id, call.call.name
        if (nested := fold.nested.get(call.call.call_id)) is not None:
            yield from _list_due(nested)


def _list_calls(due: Iterable[tuple[Path, str, str]], records: Sequence[r.Record]) -> Iterator[UpgradeCall]:
    """Yield what *records*, those of the resumed segment, say of the calls in *due*; nothing of one not reached."""
    began = {one.path for one in records if isinstance(one, r.RunStarted | r.RunResumed)}
    found = {(type(one), one.path, one.call_id): one for one in records if isinstance(one, _OF_CALLS)}
    planned = bool(began) and not any(isinstance(one, r.RunEnded) and one.error and not one.path for one in records)
    for path, call_id, tool in due:
        started = found.get((r.CallStarted, path, call_id))
        settled = found.get((r.CallSettled, path, call_id))
        say = attrs.evolve(UpgradeCall(path=path, call_id=call_id, tool=tool, does="waits"))
        if (*path, call_id) in began:
            yield attrs.evolve(say, does="continues")
        elif (r.AnswerRequested, path, call_id) in found or (started is None and settled is None):
            if planned and path in began:
                yield say
        elif isinstance(started, r.CallStarted):
            yield attrs.evolve(say, does="runs" if started.attempt == 1 else "runs again")
        elif isinstance(settled, r.CallSettled):
            yield attrs.evolve(say, does="settles", status=settled.outcome.status)


_OF_CALLS = (r.CallStarted, r.CallSettled, r.AnswerRequested)


def _list_asked_again(calls: Iterable[UpgradeCall], decided: set[tuple[Path, str]]) -> Iterator[str]:
    for one in calls:
        if one.does == "waits" and (one.path, one.call_id) in decided:
            yield f"call {one.call_id!r} of tool {one.tool!r} is asked about again: the verdict doesn't hold here"


def _list_requests(records: Iterable[r.Record]) -> dict[tuple[Path, str], r.ModelRequested]:
    """Return the last request of each run and agent, with its model; those for a summary aren't among them.

    For a summary a model is asked before the turn begins.
    """
    agents: dict[Path, str] = {}
    models: dict[Path, ModelInfo | None] = {}
    found: dict[tuple[Path, str], r.ModelRequested] = {}
    for one in records:
        match one:
            case r.TurnStarted():
                agents[one.path] = one.agent
            case r.ModelResponded() | r.ModelFailed():
                agents.pop(one.path, None)
            case r.ModelRequested():
                models[one.path] = one.model or models.get(one.path)
                if (agent := agents.get(one.path)) is not None:
                    found[one.path, agent] = one.replace(model=models[one.path])
            case _:
                pass
    return found


def _list_changes(before: Sequence[r.Record], fold: RunFold, dry: DryEffects, candidate: DryCandidate) -> Iterator[str]:
    """Yield what the engine says of the agents' graph, and what the next requests show otherwise than the last ones.

    *before* are the records of the stored log, and *fold* is the state that the dry run has come to.
    """
    for one in dry.records:
        if isinstance(one, r.GraphChanged) and not one.path:
            yield from one.changes
    last, graph = _list_requests(before), AgentGraph(candidate.agent)
    for (path, key), now in _list_requests(dry.records).items():
        if (then := last.get((path, key))) is None:
            continue
        asked = {what for where, what, _ in dry.asked if where == path}
        # Logs of older versions have no parts.
        parts = zip(parts_of(then.digest)[1:], parts_of(now.digest)[1:], strict=False)
        differs = [was != is_now for was, is_now in parts] or [False, False]
        if differs[0] and "instructions" not in asked:
            yield f"agent {key!r}: its model is shown other instructions"
        run = fold.at(path)
        is_closing = run is not None and run.closing  # in the turn that a limit has left nothing can be called
        varies = is_closing or asked & {"is_enabled", "prompt"} or _vary(graph.find(key))
        if differs[1] and not varies:
            yield f"agent {key!r}: its model is shown other definitions (tools, settings or the type of the answer)"
        if now.model is not None and then.model is not None and now.model.provider != "unknown":
            models = [f"{one.provider}:{one.name}" for one in (then.model, now.model)]
            if models[0] != models[1]:
                yield f"agent {key!r}: its model is {models[1]}, was {models[0]}"


def _vary(agent: Agent[Any, Any] | None) -> bool:
    """Tell whether the definitions of *agent* are others in each turn: by what was called, or found by a search."""
    if agent is None or agent.model_settings.tool_choice is not None:
        return True
    return any(isinstance(tool.body, ToolSearch) for tool in agent.functions)
