"""`replay`: runs a recorded run again from its log, and can continue it live from any record.

This module knows the sources of logs (journals, states, results) and the modes. The replay itself is in `_driver`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, overload

import anyio
import anyio.lowlevel
import attrs

from agentloop import records as r
from agentloop._common import notebook
from agentloop._common.error_text import error_details
from agentloop.abc import Codec, Journal
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph, changes
from agentloop.config import RunConfig
from agentloop.exceptions import (
    AgentLoopError,
    JournalError,
    ReplayDivergence,
    StateError,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.journal._folder import journal_files
from agentloop.results import RunData, RunResult
from agentloop.run import Runner
from agentloop.state import RunState
from agentloop.testing.replaying._driver import Replaying
from agentloop.testing.replaying._recorded import RecordedRun
from agentloop.testing.simulation.event_loop import Backend

__all__ = ["Replayed", "ShadowReport", "Shadowed", "Source", "replay"]

Source: TypeAlias = "str | os.PathLike[str] | Journal | RunState | RunData | Iterable[r.Record]"
"""A run to replay: a path, a journal, a `RunState`, the result of a run, or records."""
Mode: TypeAlias = Literal["strict", "resume", "what_if", "shadow"]


@attrs.frozen(eq=False)
class Replayed:
    """The result of a replay.

    Attributes:
        records: The log of all run segments; after `resume` and `what_if` with the live part.
        result: The result of the last segment; None if it raised, was cancelled, or its log was cut off.
        error: The error of the last segment: with the recorded text, of the library's class if it was the library's.
        replayed: Number of replayed records.
    """

    records: tuple[r.Record, ...] = attrs.field(repr=False)
    result: RunResult[Any] | None
    error: BaseException | None
    replayed: int

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how much was replayed, and the result or the error."""
        pieces = [] if self.error is None else [notebook.block(error_details(self.error))]
        if self.result is not None:
            pieces.append(self.result._repr_html_())
        return notebook.page("Replayed", f"{self.replayed} records", pieces=pieces)


@attrs.frozen
class Shadowed:
    """One journal of a shadow replay. `problem` is None if its replay gave the recorded log."""

    path: str
    records: int
    problem: AgentLoopError | None = None

    def __str__(self) -> str:
        return f"{self.path}: {'ok' if self.problem is None else self.problem}"


def _name_contents(folder: str | None) -> str:
    """Return what is in *folder* in place of journals, as the end of a sentence."""
    if folder is None:
        return ""
    names = sorted(os.listdir(folder))
    some = ", ".join(map(repr, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")
    return f" in {folder!r}: it holds {some or 'nothing'}, and journals end with .journal, or fit pattern="


_MOST_NAMED = 3


@attrs.frozen
class ShadowReport:
    """The result of replaying many journals. Its text has a line for each journal whose replay diverged or failed.

    `folder` is the directory in which they were looked for, None if the sources were given.
    """

    files: tuple[Shadowed, ...]
    folder: str | None = None

    @property
    def problems(self) -> tuple[Shadowed, ...]:
        """The journals whose replay diverged or failed."""
        return tuple(one for one in self.files if one.problem is not None)

    def __str__(self) -> str:
        head = f"{len(self.files)} journals replayed, {len(self.problems)} of them otherwise than recorded"
        return "\n".join([head, *map(str, self.problems)])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the report, its first lines."""
        return notebook.page("ShadowReport", pieces=[notebook.block(str(self))])

    def check(self) -> None:
        """Raise unless every replay gave the recorded log.

        Raises:
            AssertionError: with the report; also if there was no journal.
        """
        if not self.files:
            raise AssertionError(f"there was no journal to replay{_name_contents(self.folder)}")
        if self.problems:
            raise AssertionError(str(self))


@attrs.frozen
class _Loaded:
    """A loaded log, and the description of its agents if the source has one."""

    records: tuple[r.Record, ...]
    graph: Mapping[str, Any] | None = None


_REPLACED = {
    "what_if": "lab.fork continues a run from a record, behind a firewall",
    "shadow": "lab.compare runs many journals with an agent of today; lab.for_each_journal makes a test of each",
}
"""By mode: what takes its place."""


@overload
def replay(source: Source, agent: Agent[Any, Any], *, mode: Literal["shadow"], **options: Any) -> ShadowReport: ...
@overload
def replay(
    source: Source,
    agent: Agent[Any, Any],
    *,
    mode: Literal["strict", "resume", "what_if"] = "strict",
    **options: Any,
) -> Replayed: ...
def replay(
    source: Any,
    agent: Agent[Any, Any],
    *,
    mode: Mode = "strict",
    backend: Backend = "asyncio",
    run_config: RunConfig | None = None,
    max_turns: Any = ...,
    error_handlers: Iterable[str] = (),
    key: bytes | None = None,
    codec: Codec | None = None,
    turn: int | None = None,
    record: int | None = None,
    then: Agent[Any, Any] | None = None,
    pattern: str | None = None,
    **options: Any,
) -> Replayed | ShadowReport:
    """Replay a recorded run with *agent* as it is defined now.

    No code of the application runs while records are replayed: no body, guardrail, callback, hook or instrument. The
    replay makes no model request, uses no session and reads no clock; recorded time passes without waiting.

    Modes:
        `"strict"`: gives the same records, to the byte, or raises `ReplayDivergence`. A log that ends early is replayed
        up to its end.
        `"resume"`: replays the whole log strictly; then the run continues live.
        `"what_if"`: deprecated, `lab.fork` takes its place. Replays the log up to *turn* or *record* strictly; then the
        run continues live as if it had never been further, with the agent *then*, or with another model in *options*
        (`run_config=`). Calls that had started and not settled at that point are in doubt, as after a crash.
        `"shadow"`: deprecated, `lab.compare` takes its place. Replays every journal of a directory strictly; raises no
        divergence: the report names them.

    Args:
        source: A path of a `FileJournal`, a journal, a `RunState`, the result of a run, or records. For `"shadow"` a
            directory, or several sources.
        agent: The agent the run began with.
        mode: See above.
        backend: The event loop; the records are the same on each.
        run_config: The configuration of the run (guardrails, policies, limits, timeouts). Nothing in it is called.
        max_turns: A limit of turns in place of the recorded one.
        error_handlers: Names of error handlers that the run had, if the log doesn't show them.
        key, codec: Those of the `FileJournal`, if *source* is a path.
        turn: For `"what_if"`: the first turn that isn't replayed.
        record: For `"what_if"`: the first record that isn't replayed.
        then: For `"what_if"`: the agent that continues; default: *agent*.
        pattern: For `"shadow"`: a glob pattern for the journals of the directory; `*.journal` and `*.jsonl` if not
            given.
        options: For `"resume"` and `"what_if"`: arguments of `Runner.run` for the live part. Without a `live_config`
            among them, *run_config* is used there too.

    Raises:
        ReplayDivergence: at the first record that differs; it names the recorded and the replayed record, and the
            probable change of definitions.
        StateError, JournalError: if the log can't be read, or the run can't continue.
        UserError: inside a running event loop: call `replay` from sync code.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import ScriptedModel, replay, say

        agent = Agent("a", model=ScriptedModel([say("hi")]))
        result = Runner.run_sync(agent, "go")
        print(replay(result, agent).result.final_output)  # hi
    """
    _refuse_inside_a_loop()
    if mode in _REPLACED:
        words = f"replay(mode={mode!r}) goes in 0.3: {_REPLACED[mode]}"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
    if not isinstance(agent, Agent):
        raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
    config = run_config or RunConfig()
    strictly = partial(
        _replay_strictly,
        agent=agent,
        config=config,
        max_turns=max_turns,
        backend=backend,
        handlers=tuple(error_handlers),
    )
    match mode:
        case "shadow":
            files = _replay_all(_list_sources(source, pattern), partial(_load, key=key, codec=codec), strictly)
            return ShadowReport(files, os.fspath(source) if isinstance(source, str | os.PathLike) else None)
        case "strict":
            return strictly(_load(source, key=key, codec=codec))
        case "resume" | "what_if":
            loaded = _load(source, key=key, codec=codec)
            if mode == "what_if":
                from agentloop.lab._fork import find_cut  # no other mode needs the lab

                loaded = attrs.evolve(loaded, records=loaded.records[: find_cut(loaded.records, record, turn)])
            live = options.pop("live_config", config)
            return _continue_live(strictly(loaded), then or agent, backend, {"run_config": live, **options})
        case _:
            raise UserValueError(f"mode: expected strict, resume, what_if or shadow, got {mode!r}")


def _refuse_inside_a_loop() -> None:
    """Raise UserError if called inside a running event loop: `replay` runs loops of its own."""
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return
    raise UserError(
        "replay was called inside a running event loop, and runs one of its own: call it from sync code (a `def` test) "
        "or in a thread: `await anyio.to_thread.run_sync(lambda: replay(source, agent))`"
    )


# ------------------------------------------------------------------------------------------------ loading


def _load(source: Any, *, key: bytes | None, codec: Codec | None) -> _Loaded:
    if isinstance(source, str | os.PathLike):
        _check_file(Path(source))
        return anyio.run(_read_file, source, key, codec)
    if isinstance(source, RunState):
        return _Loaded(tuple(source.records), source.graph_before)
    if isinstance(source, RunData | RunResult):
        return _Loaded(tuple(source.records))
    if isinstance(source, Journal):
        return anyio.run(_read_journal, source)
    if not isinstance(source, Iterable):
        raise UserTypeError(f"source: expected a path, a journal, a RunState, a result or records, got {source!r}")
    records = tuple(source)
    for index, record in enumerate(records):
        if not isinstance(record, get_args(r.Record)):
            raise UserTypeError(f"source: element {index} is no record: {record!r}")
    return _Loaded(records)


def _check_file(path: Path) -> None:
    if not path.is_file():
        what = "there is no such file; a run that was cancelled before its first record has no journal"
        if path.is_dir():
            what = "it is a directory: mode='shadow' replays each journal in it"
        raise JournalError(f"{os.fspath(path)!r} can't be replayed: {what}")
    if not path.stat().st_size:
        raise JournalError(f"{os.fspath(path)!r} can't be replayed: it is empty")


async def _read_file(path: str | os.PathLike[str], key: bytes | None, codec: Codec | None) -> _Loaded:
    from agentloop.journal import FileJournal

    async with FileJournal(path, key=key, codec=codec) as journal:
        if not await journal.read():
            raise JournalError(f"{os.fspath(path)!r} can't be replayed: it is no journal, or nothing whole of one")
        try:
            return await _read_journal(journal)
        except (JournalError, StateError) as error:
            raise type(error)(f"{os.fspath(path)!r} can't be replayed: {error}") from error


async def _read_journal(journal: Journal) -> _Loaded:
    from agentloop._storage.state_codec import state_from_journal

    stored = await state_from_journal(journal)
    return _Loaded(stored.records, stored.graph)


def _list_sources(source: Any, pattern: str | None) -> list[Any]:
    if isinstance(source, str | os.PathLike):
        folder = Path(source)
        if not folder.is_dir():
            raise UserValueError(f"source: expected a directory for a shadow replay, got {os.fspath(source)!r}")
        found = journal_files(folder) if pattern is None else sorted(folder.glob(pattern))
        return list(found)
    return list(source)


# ------------------------------------------------------------------------------------------------ replaying


def _replay_strictly(
    loaded: _Loaded,
    *,
    agent: Agent[Any, Any],
    config: RunConfig,
    max_turns: Any,
    backend: Backend,
    handlers: Sequence[str],
) -> Replayed:
    if not loaded.records:
        raise StateError("the log is of no run: it has no record")
    recorded = RecordedRun.of(loaded.records)
    if not recorded.entries or not isinstance(recorded.records[0], r.RunStarted):
        raise StateError("the log is of no run: it doesn't begin with a RunStarted")
    if recorded.records[0].schema != RunState.schema_version:
        raise StateError(
            f"the log began in schema {recorded.records[0].schema}, which lacks what a replay needs: it can be resumed "
            "and not replayed"
        )
    replaying = Replaying(recorded, agent, config, max_turns, handlers)

    @cache
    def find_changes() -> Sequence[str]:
        return () if loaded.graph is None else changes(loaded.graph, AgentGraph(agent).describe())

    try:
        effects = replaying.run(backend, lambda: bool(find_changes()))
    except ReplayDivergence as divergence:
        raise _add_changes(divergence, find_changes()) from None
    rest = recorded.records[len(effects.appended) :]
    records = (*effects.appended, *rest)
    return Replayed(records, replaying.result, replaying.error, len(records))


def _add_changes(divergence: ReplayDivergence, found: Sequence[str]) -> ReplayDivergence:
    """Return *divergence* with the changes of the agents in its text that were *found*, if the log describes them."""
    if not found:
        return divergence
    why = f"{divergence.why} Changed since: {'; '.join(found)}."
    return ReplayDivergence(divergence.n, divergence.wanted, divergence.got, why)


def _continue_live(
    replayed: Replayed, agent: Agent[Any, Any], backend: Backend, options: Mapping[str, Any]
) -> Replayed:
    state = RunState(agent, replayed.records)
    result = anyio.run(partial(Runner.run, agent, state, **options), backend=backend)
    return Replayed(tuple(result.records), result, None, replayed.replayed)


def _replay_all(sources: Sequence[Any], load: Any, strictly: Any) -> tuple[Shadowed, ...]:
    files: list[Shadowed] = []
    for index, source in enumerate(sources):
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else f"source {index}"
        count = 0
        try:
            loaded = load(source)
            count = len(loaded.records)
            strictly(loaded)
        except AgentLoopError as problem:
            files.append(Shadowed(name, count, problem))
        else:
            files.append(Shadowed(name, count))
    return tuple(files)
