"""`fork`: a recorded run up to one of its records, edited, and continued in several ways at once.

Each branch is another run behind the firewall: it begins with the edited beginning of the log, which isn't
repeated, and what it asks further is answered as in a comparison. A call that was under way at the fork is asked again
of the firewall, so it gets its recorded outcome; behind the firewall that repeats nothing, so the tool's word about
calls in doubt isn't asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop._common.error_text import error_summary, shorten
from agentloop._common.json_bytes import decode, encode
from agentloop._core.run_fold import RunFold
from agentloop._storage.state_codec import header, line_encoder
from agentloop.abc import Codec, Model
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.config import RunConfig
from agentloop.config.budget import total_cost
from agentloop.exceptions import StateError, UserError, UserTypeError, UserValueError
from agentloop.journal.file import FileJournal
from agentloop.lab._agents import Candidate
from agentloop.lab._cache import AnswerCache
from agentloop.lab._compare import (
    LabOptions,
    VerdictRule,
    find_obstacle,
    find_stored_runs,
    list_sources,
    load_recording,
    raise_bare,
    run_behind,
)
from agentloop.lab._copies import ClosedSandboxes
from agentloop.lab._edits import Edit, edit_records
from agentloop.lab._effects import LabBudget, LabEffects, LabRules, Simulation, Unmatched
from agentloop.lab._fork_tree import Fork, ForkedRun, Origin
from agentloop.lab._recording import Recording
from agentloop.lab._runs import read_run
from agentloop.models.registry import Providers
from agentloop.state import RunState, apply_checked, check_goes_on
from agentloop.tools import AgentCall, FunctionTool, may_run_again

_LONGEST = 80
"""Bytes of a branch's name in that of its journal."""


@attrs.frozen(kw_only=True)
class Branch:
    """How a branch of a fork differs from the run that it continues; nothing given is the run as it is.

    Attributes:
        name: The name in the table, and of its journal; made of the rest if not given.
        model: A model, or model string, in place of the agents' models.
        instructions: The instructions of the agent that is at work at the fork; those of its bundles stay beside them.
        seed: A number that makes the branch ask its model anew, also what the log or the cache answers for others.
        agent: Another agent in place of the fork's.

    Example:
        from agentloop import lab

        print(lab.Branch(model="openai/gpt-5", seed=1).name)  # model=openai/gpt-5 seed=1
    """

    model: str | Model | None = None
    instructions: str | None = attrs.field(default=None, repr=False)
    seed: int | None = None
    agent: Agent[Any, Any] | None = attrs.field(default=None, repr=False)
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_branch(self), takes_self=True),
        validator=attrs.validators.instance_of(str),
    )


def _name_branch(branch: Branch) -> str:
    parts = []
    if branch.agent is not None:
        parts.append(f"agent={branch.agent.name}")
    if branch.model is not None:
        parts.append(f"model={branch.model if isinstance(branch.model, str) else branch.model.info.name}")
    if branch.instructions is not None:
        parts.append(f"instructions={shorten(' '.join(branch.instructions.split()), 30)}")
    if branch.seed is not None:
        parts.append(f"seed={branch.seed}")
    return " ".join(parts) or "as is"


async def fork(
    journal: Any,
    agent: Agent[Any, Any],
    *,
    at: int | None = None,
    turn: int | None = None,
    edits: Sequence[Edit] = (),
    branches: Sequence[Branch] = (),
    folder: str | os.PathLike[str] | None = None,
    run_config: RunConfig | None = None,
    context: Callable[[], Any] | None = None,
    unmatched: Unmatched = "refuse",
    simulate: Simulation | None = None,
    verdict: VerdictRule = "ask",
    recorded_guards: bool = False,
    toolsets: bool = False,
    cache: str | os.PathLike[str] | None = None,
    budget: int | None = None,
    key: bytes | None = None,
    codec: Codec | None = None,
) -> Fork:
    """Continue a recorded run from one of its records in several ways at once, and say what became of each.

    Nothing before that record is repeated: no request, no body, no guardrail. What follows happens behind the lab's
    firewall, as in `compare`: equal requests and calls are answered from the log, other requests go to the branch's
    model, and of the tools only those run that only read. Where the log ends before its run did, a branch continues.

    Each branch is another run, with another id, and its journal in *folder* names its origin.

    Args:
        journal: A file of a journal, a journal, a `RunState`, the result of a run, or a branch of another fork.
        agent: The agent that the run began with.
        at: How many records of the log the branches begin with: the number of the last one, from 1.
        turn: In place of *at*: the first turn that isn't a part of the beginning.
        edits: What is edited in the beginning: `SetOutput`, `SetInput`, `DropCall`. Answers that the models gave after
            the edited place stay, so fork soon after it.
        branches: The branches; one that is as the run was, if none is given.
        folder: The folder in which each branch's journal is written, when all have ended; made if there is none. It
            is tried before the first request.
        run_config: The configuration of the run.
        context: A function that makes the application's object of a branch.
        unmatched, simulate: What calls get that the run hasn't made, as in `compare`.
        verdict: The verdict on calls that need one and aren't recorded ones, as in `compare`.
        recorded_guards: True to take the verdicts of guardrails from the log, where it has them.
        toolsets: True to let the agent's sources of tools be asked.
        cache: A folder in which answers of models are kept by request and seed; None keeps them for this call only.
        budget: The most requests that the models of all branches may get; None = no limit.
        key, codec: Those of the journal. The *codec* also seals what the branches' journals hide.

    Cancellation: prompt. All branches end, and no journal of them is written.

    Raises:
        UserError: an argument is wrong, or an edit makes the log one that no run could have written; names the rule.
            No file can be made in *folder*.
        StateError, JournalError: the journal can't be read, or no run continues from there.

    Example:
        import anyio
        from agentloop import Agent, Runner, lab, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool(reads_only=True)
        def stock(item: str) -> str:
            "Look the stock up."
            return "5 left"

        async def main():
            steps = [call("stock", {"item": "tea"}, call_id="c1"), say("Yes."), say("No, it's sold out.")]
            agent = Agent("shop", model=ScriptedModel(steps), tools=[stock])
            result = await Runner.run(agent, "Is there tea?")
            fork = await lab.fork(result, agent, turn=2, edits=[lab.SetOutput("c1", "sold out")])
            print(fork.branches[0].answer)  # No, it's sold out.

        anyio.run(main)
    """
    if not isinstance(agent, Agent):
        raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
    chosen = tuple(branches) or (Branch(),)
    paths = _plan_files(chosen, folder)
    rules = LabRules(
        unmatched=unmatched,
        simulate=simulate,
        recorded_guards=recorded_guards,
        toolsets=toolsets,
        continues=True,
        cache=AnswerCache(cache),
        budget=LabBudget(budget),
    )
    common = LabOptions(
        agent=agent,
        rules=rules,
        config=run_config or RunConfig(),
        context=context,
        verdict=verdict,
        key=key,
        codec=codec,
    )
    recording, origins = await load_run(journal, common)
    count = find_cut(recording.records, at, turn)
    begun = edit_records(recording.records[:count], edits)
    fold = RunFold()
    apply_checked(fold, begun)
    check_goes_on(fold)
    words = tuple(map(str, edits))
    if folder is not None:
        await anyio.to_thread.run_sync(_try_files, Path(folder), paths)
    made: list[ForkedRun | None] = [None] * len(chosen)

    async def run(index: int) -> None:
        origin = Origin(run_id=recording.started.run_id, records=count, edits=words, branch=chosen[index].name)
        own = recording.again(count)
        made[index] = await _run_branch(
            chosen[index], own, _rename(begun, origin), (*origins, origin), fold.agent, common, providers
        )

    async with Providers() as providers, raise_bare(), anyio.create_task_group() as group:
        for index in range(len(chosen)):
            group.start_soon(run, index)
    ended = [one for one in made if one is not None]
    if folder is not None:
        with anyio.CancelScope(shield=True):  # all or, before this, none
            await anyio.to_thread.run_sync(lambda: os.makedirs(folder, mode=0o700, exist_ok=True))
            for index, path in enumerate(paths):
                await _write(path, ended[index], chosen[index].agent or agent, codec)
                ended[index] = attrs.evolve(ended[index], path=path)
    return Fork(
        run=read_run(recording.name, recording.records),
        at=count,
        turn=fold.turn,
        edits=words,
        branches=tuple(ended),
        origins=origins,
    )


# ------------------------------------------------------------------------------------------------ before


def _plan_files(branches: Sequence[Branch], folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return the files of the journals of *branches*; none without a *folder*.

    Raises:
        UserError: two branches have one name, or a file is there already.
    """
    names: dict[str, str] = {}
    for one in branches:
        if not isinstance(one, Branch):
            raise UserTypeError(f"branches: expected Branch objects, got {one!r}")
        name = re.sub(r"[^\w.=-]+", "-", one.name).strip("-.").encode()[:_LONGEST].decode(errors="ignore") or "branch"
        if name in names:
            raise UserValueError(f"branches: expected different names, got {names[name]!r} and {one.name!r}")
        names[name] = one.name
    if folder is None:
        return []
    paths = [Path(folder) / f"{name}.journal" for name in names]
    for path in paths:
        if path.exists():
            raise UserError(f"folder: {str(path)!r} is there already: give another folder, or the branch another name")
    return paths


def _try_files(folder: Path, paths: Sequence[Path]) -> None:
    """Make *folder* and each of *paths*, and take them away again: what the branches cost is spent when they're needed.

    Raises:
        UserError: it can't be done.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in paths:
            path.touch(exist_ok=False)
            path.unlink()
        for one in missing:
            one.rmdir()
    except OSError as error:
        raise UserError(f"folder: no journal can be written in {str(folder)!r}: {error}") from error


async def load_run(journal: Any, options: LabOptions) -> tuple[Recording, tuple[Origin, ...]]:
    """Return the recording and the origins of the one run that *journal* is.

    Raises:
        AgentLoopError: it is of several runs, or can't be read, or not be run by the lab.
    """
    if isinstance(journal, ForkedRun):
        return Recording.of(journal.name, journal.records), journal.origins
    sources = list(list_sources(await find_stored_runs(journal)))
    if len(sources) != 1:
        names = ", ".join(name for name, _ in sources[:5])
        raise UserValueError(
            f"journal: expected one run, got {len(sources)}: give the journal of one of them ({names})"
        )
    (name, source), *_ = sources
    recording = await load_recording(name, source, options)
    if not recording.records or not isinstance(recording.records[0], r.RunStarted):
        raise StateError(f"{name}: it is the log of no run")
    if (obstacle := find_obstacle(recording, options.agent)) is not None:
        raise StateError(f"{name}: {obstacle}")
    return recording, read_origins(recording.origins)


def read_origins(data: object) -> tuple[Origin, ...]:
    """Return the origins that a journal's header has as JSON values (their fields in order); none if there are none."""
    try:
        return tuple(
            Origin(run_id=str(run_id), records=int(count), edits=tuple(map(str, edits)), branch=str(branch))
            for run_id, count, edits, branch in data  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError):
        return ()


def find_cut(records: Sequence[r.Record], at: int | None, turn: int | None) -> int:
    """Return how many of *records* a fork begins with.

    Raises:
        UserError: unless exactly one of *at* and *turn* is given, and the log has it.
    """
    if (at is None) == (turn is None):
        raise UserValueError("at: expected the number of a record, or in its place turn=")
    if at is not None:
        if type(at) is not int or not 1 <= at <= len(records):
            raise UserValueError(f"at: expected the number of a record, from 1 to {len(records)}, got {at!r}")
        return at
    for index, one in enumerate(records):
        if isinstance(one, r.TurnStarted) and not one.path and one.turn == turn:
            return index
    raise UserValueError(f"turn: the run has no turn {turn!r}")


def _rename(records: Sequence[r.Record], origin: Origin) -> tuple[r.Record, ...]:
    """Return *records* as those of a run with another id, the same for the same fork."""
    text = json.dumps([origin.run_id, origin.records, origin.edits, origin.branch, len(records)])
    made = f"{origin.run_id}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return tuple(
        one.replace(run_id=made) if isinstance(one, r.RunStarted) and one.run_id == origin.run_id else one
        for one in records
    )


# ------------------------------------------------------------------------------------------------ a branch


class ForkCandidate(Candidate):
    """A candidate that asks the firewall again about calls that were under way at the fork."""

    def find_sandbox(self, begun: Sequence[r.Record]) -> None:
        """Let the run find the sandbox that the log names: a placeholder, because the lab opens none."""
        if any(isinstance(one, r.SandboxOpened) for one in begun):
            self.config = attrs.evolve(self.config, sandbox=ClosedSandboxes())

    def copy_tool(self, tool: FunctionTool[Any]) -> FunctionTool[Any]:
        """Return the candidate's copy, which may be run again: its body isn't, unless it only reads."""
        copy = super().copy_tool(tool)
        return copy if isinstance(copy.body, AgentCall) or may_run_again(copy) else attrs.evolve(copy, in_doubt="rerun")


async def _run_branch(
    branch: Branch,
    recording: Recording,
    begun: tuple[r.Record, ...],
    origins: tuple[Origin, ...],
    active: str,
    common: LabOptions,
    providers: Providers,
) -> ForkedRun:
    seed = branch.seed
    rules = common.rules if seed is None else attrs.evolve(common.rules, fresh=True, seed=seed)
    config = common.config if branch.model is None else attrs.evolve(common.config, model=branch.model)
    effects = LabEffects(recording, rules, repeat=seed or 0, begun=begun)
    error: BaseException | None
    try:
        candidate = ForkCandidate(branch.agent or common.agent, config, effects, providers)
        candidate.find_sandbox(begun)
        if branch.instructions is not None:
            candidate.instruct(AgentGraph(candidate.agent).get(active), branch.instructions)
        state = RunState(candidate.agent, begun)
    except UserError as wrong:
        error = wrong
    else:
        error = await run_behind(candidate, recording, attrs.evolve(common, rules=rules), effects, state)
    run = read_run(branch.name, effects.records, effects.sources)
    own = effects.records[len(begun) :]
    why = None if error is None or run.error is not None else error_summary(error)
    if effects.ended is not None:
        reasons = {"secret": "the log hides a secret", "kept": "the provider kept the earlier conversation"}
        why = f"from turn {effects.ended_in} on: {reasons[effects.ended]}"
    return ForkedRun(
        name=branch.name,
        run=run,
        origins=origins,
        cost=total_cost(own),
        requests=sum(one.asked for one in effects.seen),
        refused=sum(source == "refused" for source in effects.sources.values()),
        error=why,
        notes=tuple(effects.notes),
    )


async def _write(path: Path, made: ForkedRun, agent: Agent[Any, Any], codec: Codec | None) -> None:
    started = made.records[0]
    assert isinstance(started, r.RunStarted)
    origins: Any = [[one.run_id, one.records, list(one.edits), one.branch] for one in made.origins]
    head = header(started.run_id, AgentGraph(agent).describe_as_text(), sealed=codec is not None)
    named = encode({**decode(head), "origins": origins})
    write = line_encoder(codec)
    async with FileJournal(path) as journal:
        await journal.append([named, *map(write, made.records)])
