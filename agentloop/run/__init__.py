"""The entry points: `Runner` checks the application's options and assembles a run from its parts.

The only module that joins the engine and the edges (providers, tracing). Does not know how a run proceeds: the loop is
the engine's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, TypeGuard, Unpack, cast
from weakref import WeakSet

import anyio
import anyio.lowlevel
import attrs
import msgspec

from agentloop._common.checks import NAMES, check, check_count, is_a, optional
from agentloop._common.empty_containers import NO_DICT
from agentloop._common.error_text import shorten
from agentloop._common.misplaced import function_takes_options
from agentloop._common.type_parameters import ContextT, OutputT
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._core.run_fold import RunFold
from agentloop._engine.run_result import result_of
from agentloop._engine.runtime.live_run import (
    DEFAULT_MAX_THREADS,
    LiveRun,
    RunServicesView,
    RunSettings,
    RunTree,
    loop_state,
)
from agentloop._engine.runtime.log import Log
from agentloop._engine.runtime.resources import Resources
from agentloop._engine.start import RunSegment
from agentloop.abc import ApprovalEffects, Instrument, Journal, Model, ReplayingEffects, Session, TimedEffects
from agentloop.abc.effects import NewId
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.config import ErrorHandler, RunConfig, check_priced, check_run_config
from agentloop.config.budget import BatchBudget, Budget, UsageLimits
from agentloop.config.hooks import AgentHooks, RunHooks
from agentloop.context import RunContext
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.items import Item, ToolCall, UserMessage, to_items
from agentloop.limits import Limit
from agentloop.model_events import ModelInfo
from agentloop.results import RunResult
from agentloop.run._live_effects import LiveEffects
from agentloop.run._starting_point import StartingPoint
from agentloop.run._stream import RunStream
from agentloop.settings import Conversation
from agentloop.spans import Span, Trace, current_trace

if TYPE_CHECKING:
    from agentloop._core.plan import Arguments
    from agentloop._engine.runtime.session_progress import SessionProgress
    from agentloop._engine.runtime.threads import Threads
    from agentloop.config.conditions import Condition, PredicateFunction
    from agentloop.models.registry import Providers
    from agentloop.run._batch import JournalFactory, RunBatch
    from agentloop.state import RunState
    from agentloop.tools import AgentCall
    from agentloop.tracing import SpanFold

logger: logging.Logger = logging.getLogger("agentloop")

DEFAULT_MAX_TURNS = 10
_SHOWN_CHARS = 200
_USUAL = RunConfig()
_LIVE = LiveEffects()
_batch_budget: ContextVar[BatchBudget | None] = ContextVar("agentloop_batch_budget", default=None)
"""The budget of the batch that the next run of this task belongs to."""
HANDLERS = ("max_turns", "model_refusal", "invalid_final_output")


class ResumeOptions(TypedDict, Generic[ContextT], total=False):
    """The options of `Runner.resume`: those of `RunOptions` without the journal."""

    context: ContextT | None
    max_turns: int | None
    hooks: RunHooks | None
    run_config: RunConfig | None
    error_handlers: Mapping[str, ErrorHandler] | None
    session: Session | None
    conversation: Conversation | None
    conversation_id: str | None
    previous_response_id: str | None
    auto_previous_response_id: bool


class RunOptions(ResumeOptions[ContextT], total=False):
    """The options of a run, the same for `Runner.run`, `run_streamed` and `run_sync`. All are optional.

    Attributes:
        context: The application's object, given to tools, hooks and callbacks; never shown to a model.
        max_turns: The number of model calls that the run may make, retries not counted; None = no limit. If left out,
            10, or the limit of the `RunState` that is resumed.
        hooks: Methods that the run calls and waits for.
        run_config: The configuration of the run; a default `RunConfig` if not given.
        error_handlers: Callables by `"max_turns"`, `"model_refusal"` or `"invalid_final_output"`: `(ErrorHandlerData)`
            returns a final output in the error's place, an `ErrorHandlerResult`, or None to let the error propagate.
        session: The items of earlier runs, shown before the input; the run adds its own items turn by turn.
        conversation: The conversation that the provider keeps, in place of a session; the run sends only new items.
        conversation_id, previous_response_id, auto_previous_response_id: `Conversation(id=…)`, `Conversation(after=…)`
            and `Conversation(auto=True)` as other libraries spell them.
        journal: The journal to which the run writes its log as it grows, so that `resume` can continue after a crash.
            No body starts before the record of its start is durable there. It must be empty, or the journal of the
            resumed state. The caller closes it.
    """

    journal: Journal | None


RunInput: TypeAlias = "str | Iterable[Item] | RunState"


class Runner:
    """The entry points of runs. All use the same loop; they differ only in the consumer of the events."""

    @staticmethod
    @function_takes_options("Runner.run", "Runner.run(…, OPTION=…)", options=RunOptions)
    @uninterrupted
    async def run(
        agent: Agent[ContextT, OutputT], input: str | Iterable[Item] | RunState, **options: Unpack[RunOptions[ContextT]]
    ) -> RunResult[OutputT]:
        """Run *agent* on *input* and return the result.

        Args:
            agent: The agent to start with.
            input: Text (one user message), items, or the `RunState` of a run that *agent* began, to resume it.
            **options: `RunOptions`, by keyword.

        Cancellation: prompt and complete. When the call returns or raises, no task of the run is running.

        Raises:
            AgentLoopError: the error that ended the run, bare, with `run_data`. BaseExceptions of bodies propagate
                unchanged.
            StateError: if the state can't be resumed: the run is over, or the agents don't fit it.
            JournalError: if the journal failed or belongs to another run; the run started nothing that it doesn't hold.

        Example:
            import anyio
            from agentloop import Agent, Runner
            from agentloop.testing import ScriptedModel, say

            async def main():
                agent = Agent("a", model=ScriptedModel([say("hello")]))
                result = await Runner.run(agent, "hi", max_turns=5)
                print(result.final_output)  # hello

            anyio.run(main)
        """
        stream = _stream(agent, input, options, subscribe=False, plain=True)
        del options  # it would be kept for the collector to visit as long as the run waits
        async with stream:
            await stream._next_ring()
            while not stream.is_complete:
                await stream._next_ring()
        return stream.result

    @staticmethod
    @function_takes_options("Runner.run_streamed", options=RunOptions)
    def run_streamed(
        agent: Agent[ContextT, OutputT], input: str | Iterable[Item] | RunState, **options: Unpack[RunOptions[ContextT]]
    ) -> RunStream[OutputT]:
        """Return the run as an async context manager. Iterate it for events.

        Leaving the block ends the run and waits for all its tasks. Arguments are those of `run`.

        Example:
            import anyio
            from agentloop import Agent, Runner
            from agentloop.events import TextDelta
            from agentloop.testing import ScriptedModel, say

            async def main():
                agent = Agent("a", model=ScriptedModel([say("hello")]))
                async with Runner.run_streamed(agent, "hi") as stream:
                    async for event in stream:
                        if isinstance(event, TextDelta):
                            print(event.text, end="")
                print()  # hello

            anyio.run(main)
        """
        return _stream(agent, input, options, subscribe=True)

    @staticmethod
    @function_takes_options("Runner.resume", options=ResumeOptions)
    async def resume(
        agent: Agent[ContextT, OutputT], journal: Journal, **options: Unpack[ResumeOptions[ContextT]]
    ) -> RunResult[OutputT]:
        """Resume the run of *journal* after a crash, a pause, or an early end, and return the result.

        Options are those of `run`. Calls that have completed are not run again. A call that may or may not have taken
        effect is treated according to its tool's `in_doubt`.

        A run that has completed isn't run again: its result is returned, with the values that the journal has; the
        final output is again of the agent's output type. Nothing is called or written, so code that resumes after a
        crash needs no question before; options are checked as those of any run.

        Cancellation and other errors: as for `run`.

        Raises:
            StateError: if the run has failed for good, or the agents don't fit it.
            JournalError: if the journal is empty or broken.

        Example:
            import anyio
            from agentloop import Agent, Runner
            from agentloop.journal import MemoryJournal
            from agentloop.testing import ScriptedModel, say

            async def main():
                agent, journal = Agent("a", model=ScriptedModel([say("hello")])), MemoryJournal()
                await Runner.run(agent, "hi", journal=journal)
                result = await Runner.resume(agent, journal)  # after a crash it would continue; this run is over
                print(result.final_output)  # hello

            anyio.run(main)
        """
        from agentloop.state import RunState

        return await _continue(agent, await RunState.from_journal(agent, journal), journal, options)

    @staticmethod
    @function_takes_options("Runner.run_or_resume", options=ResumeOptions)
    @uninterrupted
    async def run_or_resume(
        agent: Agent[ContextT, OutputT],
        input: str | Iterable[Item],
        *,
        journal: Journal,
        **options: Unpack[ResumeOptions[ContextT]],
    ) -> RunResult[OutputT]:
        """Run *agent* on *input*, or resume the run of *journal* if that holds one, and return the result.

        So a program that is started again after a crash needs no question before: an empty journal begins a run, one
        with an unfinished run resumes it and repeats nothing, and the result of a completed run is returned. Options
        are those of `run`, everything else as for `resume`.

        Raises:
            UserError: if *input* is not the input that the journal's run began with.
            StateError: if the run has failed for good, or the agents don't fit it.
            JournalError: if the journal is broken.
        """
        items = to_items(input)
        state = await _find_state(agent, items, journal)
        if state is None:
            return await Runner.run(agent, items, journal=journal, **options)
        return await _continue(agent, state, journal, options)

    @staticmethod
    @function_takes_options("Runner.run_many", options=ResumeOptions)
    def run_many(
        agent: Agent[ContextT, OutputT],
        inputs: Iterable[RunInput] | AsyncIterable[RunInput],
        *,
        limit: int | None = None,
        journals: JournalFactory | str | os.PathLike[str] | None = None,
        ordered: bool = False,
        fail_fast: bool = False,
        budget: UsageLimits | None = None,
        model_limits: Limit | Sequence[Limit] = (),
        retry_failed: bool = False,
        **options: Unpack[ResumeOptions[ContextT]],
    ) -> RunBatch[RunResult[OutputT]]:
        """Return the runs of *agent* on many inputs, to be iterated in an `async with` block, or awaited for a list.

        Args:
            agent: The agent that every run starts with.
            inputs: Inputs as those of `run`, from a sequence or any iterable, also an async one: each is read when its
                run can start. The caller closes it. With *journals* they can't be a `RunState`.
            limit: How many runs may be under way at once; None = no limit. With a limit, memory doesn't grow with the
                number of inputs: a consumer that takes no runs stops new ones.
            journals: A folder, made if it doesn't exist, with a `FileJournal` for each run; or a callable, sync or
                async, that returns the journal of `(index, input)`, which the batch closes. Each run is then a
                `run_or_resume`: the same call with the same inputs, after a crash, repeats nothing.
            ordered: True to give the runs in the order of the inputs, not of their ends.
            fail_fast: True to cancel all runs when one fails, and raise its error; of several, that of the first input,
                with the others as notes. Otherwise the other runs continue, and the failed one is given with its error.
            budget: One budget over all runs, beside the limits that each may have: once it is spent, no run makes
                another request. `RunBatch.usage` and `RunBatch.cost` are the sums, earlier run segments included.
            model_limits: Limits of the requests of all runs, added to those of the configuration.
            retry_failed: True to begin an input anew whose run has failed for good in an earlier call, once a call,
                with a new journal beside the old ones: `run-000000.try-2.journal` in a folder. A callable of *journals*
                is then one of `(index, input, attempt)`, with attempts from 1. What the failed runs used counts in the
                budget. Without it, the newest journal of a folder counts.
            **options: `RunOptions` but for the journal, shared by all runs.

        Models, connections and threads are shared as in `open_runtime`, which the batch opens if none is open.

        Cancellation: of the block's task, or by leaving the block: every run is cancelled and joined. Of a run with a
            journal, the journal has all that was done.

        Raises:
            UserError: if an argument is wrong. The errors of the batch are raised by the `RunBatch`.

        Example:
            import anyio
            from agentloop import Agent, Runner
            from agentloop.testing import FunctionModel, say

            async def main():
                agent = Agent("a", model=FunctionModel(lambda request: say(request.items[-1].text.upper())))
                async with Runner.run_many(agent, ["one", "two", "three"], limit=2) as batch:
                    print(sorted([run.result.final_output async for run in batch]))  # ['ONE', 'THREE', 'TWO']

            anyio.run(main)
        """
        from agentloop.run._batch import RunBatch, run_with_journal

        if not isinstance(agent, Agent):
            raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
        one = isinstance(inputs, str | bytes | bytearray | Mapping)
        if one or not isinstance(inputs, Iterable | AsyncIterable):
            raise UserTypeError(f"inputs: expected a sequence, or another iterable, of inputs, got {inputs!r}")
        check_count("limit", limit)
        check("ordered", NAMES.flag(), ordered)
        check("fail_fast", NAMES.flag(), fail_fast)
        check("retry_failed", NAMES.flag(), retry_failed)
        if retry_failed and journals is None:
            raise UserError("retry_failed: needs journals=…, which tell that the run of an input has failed")
        open_journal = None if journals is None else _read_journals(journals)
        config = check_run_config(options.get("run_config") or _USUAL)
        check("budget", optional(NAMES.a(UsageLimits)), budget)
        if isinstance(model_limits, Limit):
            model_limits = (model_limits,)
        ledger = None if budget is None else BatchBudget(budget)
        if model_limits or ledger is not None:
            instruments = config.instruments if ledger is None else (*config.instruments, ledger)
            limits = (*config.model_limits, *model_limits)
            config = attrs.evolve(config, instruments=instruments, model_limits=limits)
            options.update({"run_config": config})

        async def work(index: int, given: Any) -> RunResult[OutputT]:
            _batch_budget.set(ledger)
            if open_journal is None:
                return await Runner.run(agent, given, **options)
            if not isinstance(given, str) and _is_state(given):
                raise UserTypeError("inputs: with journals a RunState is no input: its journal has it already")
            items, failed = to_items(given), ""  # the run of the attempt before

            @uninterrupted
            async def attempt(journal: Journal) -> RunResult[OutputT] | None:
                """Return the result of the run of *journal*; None if that has failed in an earlier call."""
                nonlocal failed
                state = await _find_state(agent, items, journal)
                if state is None:
                    return await Runner.run(agent, items, journal=journal, **options)
                if not (retry_failed and state._has_failed):
                    return await _continue(agent, state, journal, options)
                if state.run_id == failed:
                    raise UserError(f"journals: the next attempt of input {index} has the same journal: {journal!r}")
                failed = state.run_id
                if ledger is not None:
                    ledger.join(state._fold.records)
                return None

            result, number, grace = None, 0, config.tool_execution.cleanup_grace
            while result is None:  # noqa: ASYNC913 - waits
                number += 1
                place = (index, given, number) if retry_failed else (index, given)
                result = await run_with_journal(open_journal, place, attempt, grace)
            return result

        return RunBatch(
            work,
            inputs,
            limit=limit,
            around=lambda: nullcontext() if current_runtime() is not None else open_runtime(),
            ordered=ordered,
            fail_fast=fail_fast,
            budget=ledger,
        )

    @staticmethod
    @function_takes_options("Runner.run_sync", options=RunOptions)
    def run_sync(
        agent: Agent[ContextT, OutputT],
        input: str | Iterable[Item] | RunState,
        *,
        backend: Literal["asyncio", "trio"] = "asyncio",
        **options: Unpack[RunOptions[ContextT]],
    ) -> RunResult[OutputT]:
        """Run *agent* from sync code, on its own event loop. Other arguments are those of `run`.

        Raises:
            UserError: if called inside a running event loop; use `await Runner.run` there. A sync tool has a thread
                without one, but under `run_deterministic`, which starts no thread.

        Example:
            from agentloop import Agent, Runner
            from agentloop.testing import ScriptedModel, say

            print(Runner.run_sync(Agent("a", model=ScriptedModel([say("hello")])), "hi").final_output)  # hello
        """
        if _is_in_a_loop():
            raise UserError(_IN_PLACE if runs_in_place.get() else _IN_A_LOOP)

        async def run() -> RunResult[OutputT]:
            _from_sync_code.set(True)
            return await Runner.run(agent, input, **options)

        return anyio.run(run, backend=backend)


def _is_in_a_loop() -> bool:
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return False
    return True


_IN_A_LOOP = "run_sync was called inside a running event loop: use `await Runner.run(…)` there"
_IN_PLACE = (
    "run_sync was called in a sync function that a deterministic event loop runs itself, without a thread, so it can't "
    "begin another loop: write the function as an `async def` with `await Runner.run(…)`, or use Agent.as_tool"
)
runs_in_place: ContextVar[bool] = ContextVar("agentloop_runs_in_place", default=False)
"""True in a sync function that the running event loop calls itself, where others start a thread for it."""
_from_sync_code: ContextVar[bool] = ContextVar("agentloop_from_sync_code", default=False)
"""True within `run_sync`: there is no `async with` that a model could be entered by."""
_told_to_enter: WeakSet[Model] = WeakSet()
"""The models about which the warning was written."""


def _stream(
    agent: Agent[Any, Any],
    given: str | Iterable[Item] | RunState,
    options: Mapping[str, Any],
    *,
    subscribe: bool,
    plain: bool = False,
) -> RunStream[Any]:
    """Check *options*, the application's `RunOptions`, and return the stream of a run that has not begun."""
    config, kept = _check_options(agent, options)
    context, journal = options.get("context"), options.get("journal")
    if not isinstance(given, str) and _is_state(given):  # most inputs are texts: then the class isn't needed
        from agentloop.run._resume import resume_from

        start = resume_from(given, agent, kept, config)
        context = context if context is not None else given.context
        items, usual_turns = None, start.fold.max_turns
    else:
        start = StartingPoint(RunFold(limits=config.json_limits), agent)
        items, usual_turns = to_items(cast("str | Iterable[Item]", given)), DEFAULT_MAX_TURNS
        if not isinstance(given, str):
            from agentloop._storage.incoming import check_items  # at the first run

            items = check_items("input", items)
    if start.fold.kept_by_provider and options.get("session") is not None:
        raise UserError(_TWO_HISTORIES)

    opens: Callable[[LiveRun], Awaitable[None]] | None = None
    if journal is not None:
        from agentloop.run._journal_opening import open_journal

        opens = partial(open_journal, journal)
    segment = RunSegment(
        items,
        options.get("max_turns", usual_turns),
        config.timeout,
        kept,
        start.changed,
        _trace_opener(config) if config.instruments else None,
        opens,
    )
    return RunStream(_make_run(agent, start, context, config, options), segment, subscribe=subscribe, plain=plain)


_TWO_HISTORIES = "a session and a conversation that the provider keeps can't be used together: choose one"


def _check_options(agent: object, options: Mapping[str, Any]) -> tuple[RunConfig, Conversation | None]:
    """Check that *options*, the application's `RunOptions`, and *agent* fit.

    Return the configuration, and the conversation that the provider keeps, if it does.

    Raises:
        UserError: one doesn't.
    """
    if not isinstance(agent, Agent):
        raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
    hooks = options.get("hooks")
    if hooks is not None and not isinstance(hooks, RunHooks):
        hint = " (those are an agent's: give them to Agent.hooks)" if isinstance(hooks, AgentHooks) else ""
        raise UserTypeError(f"hooks: expected RunHooks, got {hooks!r}{hint}")
    check_count("max_turns", options.get("max_turns"))
    session, journal = options.get("session"), options.get("journal")
    if session is not None and not isinstance(session, Session):
        raise UserTypeError(f"session: expected a Session, got {session!r}{_example('SQLiteSession', session)}")
    if journal is not None and not isinstance(journal, Journal):
        raise UserTypeError(f"journal: expected a Journal, got {journal!r}{_example('FileJournal', journal)}")
    config = _USUAL if options.get("run_config") is None else check_run_config(options["run_config"])
    if options.get("error_handlers") is not None:
        _check_handlers(options["error_handlers"])
    kept = None if _OF_SERVER.isdisjoint(options) else _read_kept(options)
    if session is not None and kept is not None:
        raise UserError(_TWO_HISTORIES)
    return config, kept


def _example(name: str, given: object) -> str:
    """Return how the class *name* is made of a path, if *given* is one."""
    return f": for instance {name}({str(given)!r})" if isinstance(given, str | os.PathLike) else ""


def _is_state(given: object) -> TypeGuard[RunState]:
    from agentloop.state import RunState

    return isinstance(given, RunState)


def _text_or_item(item: Item) -> object:
    return item.text if isinstance(item, UserMessage) and not item.secret else item


async def _find_state(agent: Agent[Any, Any], items: tuple[Item, ...], journal: Journal) -> RunState | None:
    """Return the state of the run of *journal*, which must have begun with *items*; None if no run has.

    Raises:
        UserError: the run began with another input.
    """
    from agentloop.state import RunState

    if not isinstance(journal, Journal):
        raise UserTypeError(f"journal: expected a Journal, got {journal!r}{_example('FileJournal', journal)}")
    state = await RunState._find_in(agent, journal)
    if state is not None and not state.began_with(items):
        begun = ", ".join(repr(_text_or_item(item)) for item in state.input)
        raise UserError(f"input: the run in {journal!r} began with another one: {shorten(begun, _SHOWN_CHARS)}")
    return state


async def _continue(
    agent: Agent[Any, Any], state: RunState, journal: Journal, options: ResumeOptions[Any]
) -> RunResult[Any]:
    """Run *state*, which *journal* holds, to its end, or return its result if it has completed."""
    if state.status == "completed":
        return _restore_result(agent, state, options)
    return await Runner.run(agent, state, journal=journal, **options)


def _read_journals(given: JournalFactory | str | os.PathLike[str]) -> JournalFactory:
    """Return the callable that opens the journal of one run of a batch, as *given* says.

    Raises:
        UserTypeError: if it is neither a callable nor a path.
    """
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        from agentloop.journal._folder import journals_in

        return journals_in(given)
    check("journals", NAMES.needs("expected a folder or a callable", is_a(Callable)), given)
    return given


def _restore_result(agent: Agent[Any, Any], state: RunState, options: Mapping[str, Any]) -> RunResult[Any]:
    """Return the result of the completed run of *state*, made from its records.

    Raises:
        UserError: the options are wrong: also those that only an unfinished run needs.
        StateError: *agent*'s graph lacks the agent that gave the final output.
    """
    from agentloop.run._resume import check_kept

    config, kept = _check_options(agent, options)
    if kept is not None:
        check_kept(state._fold, kept)
    if state._fold.kept_by_provider and options.get("session") is not None:
        raise UserError(_TWO_HISTORIES)
    context, graph = options.get("context"), AgentGraph(agent)
    start = StartingPoint(state._fold, graph.get(state._fold.agent), graph)
    run = _make_run(agent, start, state.context if context is None else context, config, {})
    ended = state._fold.ended
    assert ended is not None  # it has completed
    return result_of(run, ended.replace(final_output=_read_stored_output(run, ended.final_output)))


def _read_stored_output(run: LiveRun, stored: Any) -> Any:
    """Return the value of the agent's output type that *stored* is the plain form of.

    A value that doesn't fit stays plain: a tool's output may be the final output, in any type.
    """
    typed = run.agent._typed_output()
    if typed is None:
        return stored
    try:
        return typed.using(run.settings.config.converter).validate(stored)
    except UserTypeError:
        return stored


_KEPT_ELSEWHERE = {"conversation_id": "id", "previous_response_id": "after", "auto_previous_response_id": "auto"}
"""The spellings of other libraries for the parts of a `Conversation`."""
_OF_SERVER = frozenset({"conversation", *_KEPT_ELSEWHERE})


def _read_kept(options: Mapping[str, Any]) -> Conversation | None:
    """Return the conversation that the provider keeps, or None if it keeps none."""
    given: object = options.get("conversation")
    check("conversation", optional(NAMES.a(Conversation)), given)
    parts: dict[str, Any] = {}
    for name, part in _KEPT_ELSEWHERE.items():
        if name in options:
            check(name, NAMES.flag() if part == "auto" else optional(NAMES.text()), options[name])
        if options.get(name):
            parts[part] = options[name]
    if given is not None and parts:
        raise UserError("conversation: it is given twice; leave out the other spelling, and write Conversation(…)")
    return Conversation(**parts) if parts else cast("Conversation | None", given)


def _check_handlers(handlers: Mapping[str, ErrorHandler]) -> None:
    check("error_handlers", NAMES.needs("expected a mapping of callables by name", is_a(Mapping)), handlers)
    for name, handler in handlers.items():
        if name not in HANDLERS:
            raise UserValueError(f"error_handlers: no {name!r}; there are {', '.join(HANDLERS)}")
        if not callable(handler):
            raise UserTypeError(f"error_handlers[{name!r}]: expected a callable, got {handler!r}")


def _make_run(
    root: Agent[Any, Any], start: StartingPoint, context: object, config: RunConfig, options: Mapping[str, Any]
) -> LiveRun:
    """Return the run of *options*, which are checked, from *start* on."""
    runtime, session, handlers = _open_runtime.get(), options.get("session"), options.get("error_handlers")
    effects, approvals, log = config.effects or _LIVE, None, Log(start.fold, tuple(config.instruments))
    if effects is not _LIVE:  # they may know more than the live ones
        log.expect = effects.expect if isinstance(effects, ReplayingEffects) else None
        log.find_state_error = getattr(effects, "find_state_error", None)
        log.replays = log.expect is not None and not getattr(effects, "performs_background", False)
        log.wall = effects.wall if isinstance(effects, TimedEffects) else log.wall
        approvals = effects if isinstance(effects, ApprovalEffects) else None
    begun, resources, graph = start.fold.started, Resources(), start.graph or AgentGraph(root)
    shared_resources = runtime.resources if runtime else resources
    run_context: RunContext[Any] = RunContext(
        context=context,
        run_id=begun.run_id if begun is not None else "",
        _run=RunServicesView(start.fold.path, start.fold, resources, shared_resources),
    )
    if config.limits is not None:
        check_priced(config, config.limits, graph.agents())
    batch = _batch_budget.get()
    if batch is not None:
        _batch_budget.set(None)  # a run that a tool of this one begins isn't of the batch
        check_priced(config, batch.ledger.limits, graph.agents())
        batch.join(start.fold.records)
    tree = RunTree(
        log=log,
        effects=effects,
        approvals=approvals,
        graph=graph,
        resources=resources,
        shared_resources=shared_resources,
        resolve_model=resolve_model,
        nest=_run_nested,
        cache_group=getattr(session, "session_id", None) or config.tracing.group_id,
    )
    settings = RunSettings(
        config=config,
        around=runtime or tree,
        hooks=options.get("hooks"),
        error_handlers=dict(handlers) if handlers else NO_DICT,
        session=_follow_session(session, start.fold) if session is not None else None,
        budget=Budget.for_run(
            config.limits, start.fold.records, None if batch is None else batch.ledger, priced=config.is_priced
        ),
        stop_when=_read_condition(config.stop_when) if config.stop_when is not None else None,
    )
    return LiveRun(
        tree=tree, settings=settings, state=start.fold, agent=start.agent, context=run_context, resources=resources
    )


def _follow_session(session: Session, fold: RunFold) -> SessionProgress:
    from agentloop._engine.runtime.session_progress import SessionProgress

    return SessionProgress.of(session, fold)


def _read_condition(given: Condition | PredicateFunction) -> Condition:
    from agentloop.config.conditions import as_condition

    return as_condition(given)


def _run_nested(outer: LiveRun, call: ToolCall, arguments: Arguments, body: AgentCall) -> Awaitable[Any]:
    from agentloop._engine.nested_run import run_nested

    return run_nested(outer, call, arguments, body)


def _trace_opener(config: RunConfig) -> Callable[[LiveRun], Awaitable[Trace]] | None:
    """Return the function that opens a run's trace; None if no instrument overrides a span or trace method.

    Without one no span is made at all, so that a run pays nothing for them.
    """
    if config.tracing.disabled:
        return None
    watched = ("on_run_open", "on_span_start", "on_span_end", "on_trace_start", "on_trace_end")
    wanted = any(
        getattr(type(instrument), name, getattr(Instrument, name)) is not getattr(Instrument, name)
        for instrument in config.instruments
        for name in watched
    )
    if not wanted:
        return None

    async def open_trace(run: LiveRun) -> Trace:
        outer, earlier = current_trace(), run.state.resumed or run.state.started
        # A resumed run continues the trace it began in, which has started already, unless its workflow has changed.
        known = earlier.trace_id if earlier is not None and earlier.workflow == config.tracing.workflow_name else None
        trace = outer or Trace(
            workflow_name=config.tracing.workflow_name,
            trace_id=known or await run.tree.effects.perform(NewId()),
            group_id=config.tracing.group_id,
            metadata=dict(config.tracing.metadata or {}),
        )
        run.tree.log.follow(spans=_spans(run, trace, config, own=outer is None, begun=known is not None))
        return trace

    return open_trace


def _spans(run: LiveRun, trace: Trace, config: RunConfig, *, own: bool, begun: bool) -> SpanFold:
    from agentloop.tracing import SpanFold

    tell = run.tree.log.tell

    def started(span: Span) -> None:
        if span.parent is None and own and not begun:
            tell("on_trace_start", trace)
        tell("on_span_start", span)

    def ended(span: Span) -> None:
        tell("on_span_end", span)
        if span.parent is None and own:
            tell("on_trace_end", trace)

    def find_model(path: tuple[str, ...]) -> ModelInfo | None:
        found = run.state.at(path)
        return None if found is None else found.model

    return SpanFold(
        trace,
        started,
        ended,
        sensitive=config.tracing.include_sensitive_data,
        requests=any(getattr(instrument, "wants_requests", False) for instrument in config.instruments),
        run_id=run.context.run_id or None,  # of a new run `RunStarted` tells it
        find_model=find_model,
    )


def _tell_to_enter(model: Model) -> None:
    """Write once for each model how runs can share its connections."""
    try:
        if model in _told_to_enter:
            return
        _told_to_enter.add(model)
    except TypeError:  # a class of the application with equality, or without room for a weak reference
        pass
    logger.warning(
        "%r was not entered: this run opens it for itself alone; enter it once (`async with model:`) to share it", model
    )


async def resolve_model(run: LiveRun, given: object) -> Model:
    """Return the open model that *given* means.

    A model string is resolved by the configured provider, else by the open runtime, else by providers that the run owns
    and closes. A model that is not open is entered as a resource of the outermost run.

    Raises:
        UserTypeError: if *given* is neither a model nor a model string.
    """
    if isinstance(given, str) and run.settings.config.model_provider is not None:
        given = run.settings.config.model_provider.get_model(given)
    if isinstance(given, str):
        runtime = current_runtime()
        if runtime is not None:
            return await runtime.providers.open(given)
        from agentloop.models.registry import Providers

        providers: Providers = await run.tree.resources.get(Providers)
        return await providers.open(given)
    if not isinstance(given, Model):
        raise UserTypeError(f"model: expected a Model or a model string, got {given!r}")
    model = given
    if model.is_open:
        return model
    if model.holds_resources and not _from_sync_code.get():
        _tell_to_enter(model)
    opened: Model = await run.tree.resources.get(lambda: model, key=model)
    return opened


# ------------------------------------------------------------------------------------ what runs share


class Runtime(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """An open runtime. `open_runtime` owns it; runs started inside the block use it."""

    providers: Providers
    threads: Threads
    resources: Resources


_open_runtime: ContextVar[Runtime | None] = ContextVar("agentloop_runtime", default=None)


def current_runtime() -> Runtime | None:
    """Return the runtime whose block encloses this task, or None."""
    return _open_runtime.get()


@asynccontextmanager
async def open_runtime(*, http_client: Any = None, max_threads: int = DEFAULT_MAX_THREADS) -> AsyncIterator[Runtime]:
    """Open a runtime for the runs inside the block; leaving the block closes it.

    Args:
        http_client: An HTTP client to use in place of one that the runtime makes; the caller closes it.
        max_threads: The number of worker threads that the sync tools of all runs inside may hold at once, abandoned
            threads counted.

    Example:
        import anyio
        from agentloop import Agent, Runner, open_runtime
        from agentloop.testing import ScriptedModel, say

        async def main():
            agent = Agent("a", model=ScriptedModel([say("one"), say("two")]))
            async with open_runtime():  # connections, threads and resources are shared by the runs in it
                results = [await Runner.run(agent, text) for text in ("1", "2")]
                print([result.final_output for result in results])  # ['one', 'two']

        anyio.run(main)
    """
    from agentloop._engine.runtime.threads import Threads
    from agentloop.models.registry import Providers  # most runs have models of the application's
    from agentloop.run._resource_host import ResourceHost

    check_count("max_threads", max_threads)
    async with Providers(http_client=http_client) as providers, ResourceHost() as resources:
        threads = Threads(max_threads, loop_state().threads)
        runtime = Runtime(providers=providers, threads=threads, resources=resources)
        token = _open_runtime.set(runtime)
        try:
            yield runtime
        finally:
            _open_runtime.reset(token)
