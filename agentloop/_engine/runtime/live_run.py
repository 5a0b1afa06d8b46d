"""A run under way: its state, its log, and the objects that its parts share. The engine passes this one object around.

Knows the parts of a run, but not the loop or the batches of calls, which use it.

Decisions:

No cycles. The parts of a run don't hold each other once it is over, so the last reference to it frees all of it. A
context reads its run's usage and deadline from an object that isn't the run; a batch drops its calls when it is over,
and a run drops its buffer of events and its maker of spans. A kept result holds the values that the run left, and the
objects that the runs of one loop share don't hold the loop. An error's traceback has the frames of the run, so no
part of a plain run that failed holds the error. With cycles, the garbage collector took a twentieth of the time of
small runs and a quarter of that of a turn of a thousand calls; without them none, and a sixth. A test runs with the
collector off and looks for objects that are left. The exceptions are a streamed run that failed, whose stream has to
offer the error, and a body that raises: its error's traceback has the frames of the call. Scopes only where they can
be cancelled. A run without a timeout and a journal has no scope of its own, and neither has an attempt at the model
without a timeout. A call always has one, since `cancel_call` can end each call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio
import anyio.lowlevel
import msgspec

from agentloop._common.checks import NAMES, check, optional
from agentloop._common.digests import idempotency_key
from agentloop._common.empty_containers import NO_DICT
from agentloop._common.error_text import REDACTED, error_summary, redact_message
from agentloop._common.values import Machinery, Value
from agentloop._concurrency.backend import checkpoint_if_cancelled, liveness, running_loop, token_again
from agentloop._core.history import HistoryView
from agentloop._core.plan import Arguments, read_arguments
from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop._engine.runtime.callbacks import HOOK_ORDER, Event, call_user, find_hook, resolve
from agentloop._engine.runtime.dispatcher import Dispatcher
from agentloop._engine.runtime.log import Log
from agentloop._engine.runtime.resources import Resources
from agentloop.abc import ApprovalEffects, Effects, LateResult, Model, StillRunning
from agentloop.abc import effects as e
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.config import HostedPrice, Price, RunConfig
from agentloop.config.budget import Budget, WorstCase
from agentloop.config.hooks import RunHooks
from agentloop.config.policies import Policy
from agentloop.context import Callback, RunContext, Sandbox
from agentloop.exceptions import UsageLimitExceeded, UserTypeError
from agentloop.items import Item, ToolCall
from agentloop.records import (
    ApprovalRequested,
    CallbackReturned,
    CancelRequested,
    CleanupCut,
    HistoryReplaced,
    RunResumed,
    RunStarted,
)
from agentloop.tools import AgentCall, FunctionTool
from agentloop.usage import Usage

if TYPE_CHECKING:
    from agentloop._concurrency.cleanup import Cleanup
    from agentloop._concurrency.nursery import Nursery
    from agentloop._engine.runtime.session_progress import SessionProgress
    from agentloop._engine.runtime.threads import Threads
    from agentloop.agents._sourced_tools import SourcedTools
    from agentloop.config.conditions import Condition

logger = logging.getLogger("agentloop")

DEFAULT_MAX_THREADS = 32
_REASON = optional(NAMES.text())


class LoopState:
    """The state that all runs of one event loop share: the arrival order of calls under shared limits, live threads.

    Owned by the loop; mutated by its runs. It must not hold the loop: a `RunVar` is dropped with its loop, and a
    reference from its value would keep the loop for ever.
    """

    def __init__(self) -> None:
        self.loop_lives: Callable[[], bool] = liveness(anyio.lowlevel.current_token())
        self.thread_ident: int = threading.get_ident()
        self.token: Callable[[], anyio.lowlevel.EventLoopToken] = token_again(anyio.lowlevel.current_token())
        """The function that returns the loop's token, for requests from other threads."""

    @cached_property
    def pump(self) -> Dispatcher:
        """The dispatcher of the calls that wait for shared limits."""
        return Dispatcher()

    @cached_property
    def threads(self) -> Threads:
        """The live worker threads of all runs."""
        from agentloop._engine.runtime.threads import Threads

        return Threads(DEFAULT_MAX_THREADS)

    def is_current(self) -> bool:
        """Tell whether the current code runs on this loop. An engine for workflows moves a loop between threads."""
        if threading.get_ident() == self.thread_ident:
            return True
        running = running_loop()
        return running is not None and running is self.token().native_token


_shared: anyio.lowlevel.RunVar[LoopState] = anyio.lowlevel.RunVar("agentloop")


def loop_state() -> LoopState:
    """Return the state that the runs of the current event loop share, made at first use and dropped with the loop."""
    shared = _shared.get(None)
    if shared is None:
        shared = LoopState()
        _shared.set(shared)
    return shared


def seconds_to_deadline() -> float | None:
    """Return the seconds until the nearest deadline around the current task, or None without one."""
    left = anyio.current_effective_deadline() - anyio.current_time()
    return left if left != float("inf") else None


class RunServicesView(Value, frozen=True, eq=False):
    """The services of a run for its contexts (`agentloop.context.RunServices`); `fold` is the one of the whole tree.

    A separate object, not the run itself, which holds the context: if both held each other, every object of a finished
    run would wait for the garbage collector.
    """

    path: tuple[str, ...]
    fold: RunFold
    own: Resources
    """The resources of the run itself."""
    shared: Resources
    """The resources of the open runtime, or of the outermost run."""
    sandbox: Sandbox | None = None
    """The sandbox of the outermost run, once it is open."""

    @property
    def usage(self) -> Usage:
        """The usage of the whole tree."""
        return self.fold.usage

    @property
    def context_tokens(self) -> int:
        """The tokens of the history of the run itself."""
        from agentloop._core.context_size import count_context  # few contexts are asked

        return count_context(self.fold.at(self.path) or self.fold)

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        """Return the one value of *factory* in `own`."""
        return await self.own.get(factory)

    async def shared_resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        """Return the one value of *factory* in `shared`."""
        return await self.shared.get(factory)

    def deadline(self) -> float | None:
        """Return the seconds left until the nearest enclosing deadline, or None without one."""
        return seconds_to_deadline()

    def find_output(self, call_id: str) -> str:
        """Return the output of a call of the run itself, from its log. Raises LookupError where there is none."""
        from agentloop._core.recall import find_output

        return find_output(self.fold.at(self.path) or self.fold, call_id)

    def idempotency_key(self, call_id: str) -> str:
        """Return the key of a call of the run itself."""
        return idempotency_key(self.fold.run_id, self.path, call_id)


class Cancellable(Protocol):
    """A live call, as far as the run knows about it."""

    @property
    def phase(self) -> str:
        """The part of its life that the call is in."""
        ...

    @property
    def is_cancellable(self) -> bool:
        """Tell whether the call has not ended and was not cancelled before."""
        ...

    def cancel(self, cause: Literal["caller"], reason: str | None = None, by_call: str | None = None) -> bool:
        """Cancel the call unless its body has ended; return False if it has. *by_call*: the call that requested it."""
        ...


class BackgroundCalls(Protocol):
    """The background calls of a run, `calls.background.Background`, as far as others know about them."""

    def take_over(self, live: Any) -> None:
        """Make the successor of *live*, which is about to settle."""
        ...

    def begin(self, live: Any, *, begins: bool) -> None:
        """Begin the body of *live*, if it *begins*."""
        ...

    def notify(self) -> None:
        """Wake the run, if it waits for a result."""
        ...

    async def cut(self) -> None:
        """Cancel all bodies and wait for their ends."""
        ...


class RunTree(Machinery, msgspec.Struct, eq=False, kw_only=True, dict=True):
    """The shared parts of a run and of the runs nested in it.

    Made with the outermost run. What few runs have is in containers that begin empty, shared by all runs, and are made
    at their first entry. No other field is assigned anew, but for `shared`, which is found at its first use.
    """

    log: Log
    effects: Effects
    approvals: ApprovalEffects | None = None
    """The same, where they know which calls were asked about before, in a history that the log doesn't have."""
    graph: AgentGraph
    """The agents of all runs, by key."""
    resources: Resources
    """The resources of the outermost run."""
    shared_resources: Resources
    """The resources of the open runtime, else the same."""
    resolve_model: Callable[[LiveRun, Any], Awaitable[Model]]
    nest: Callable[[LiveRun, ToolCall, Arguments, AgentCall], Awaitable[Any]]
    """The function that runs an agent tool's nested run."""
    calls: dict[tuple[str, ...], Mapping[str, Cancellable]] = {}
    """The calls without an outcome of each batch under way, by path and id; see `find_call`."""
    background: dict[tuple[str, ...], Mapping[str, Cancellable]] = NO_DICT
    """The background calls whose bodies run, as `calls`."""
    children: dict[tuple[str, ...], LiveRun] = NO_DICT
    """The nested runs, by path."""
    open_requests: dict[tuple[tuple[str, ...], str], Callable[[], ApprovalRequested]] = NO_DICT
    """Possible requests for approval, of calls whose policies or callbacks still run."""
    acted_on: dict[tuple[tuple[str, ...], str], None] = NO_DICT
    """The calls whose verdict this run segment acts on, by path and id: it can't be replaced any more."""
    warned: frozenset[str] = frozenset()
    """Keys of the warnings that were logged already: each is logged once."""
    sourced: dict[tuple[tuple[str, ...], str], SourcedTools] = NO_DICT
    """The last answer of each source of tools, by path and by the place of the source."""
    cache_group: str | None = None
    """The id of the session, else of the trace's group; None if there is neither."""

    @cached_property
    def shared(self) -> LoopState:
        """The state that the runs of this event loop share, found at first use, because most runs of text need none.

        The first use is in the loop: a batch and a stream join it before code of another thread can ask for it.
        """
        return loop_state()

    @property
    def threads(self) -> Threads:
        """The worker threads of the loop's runs."""
        return self.shared.threads

    def join_loop(self) -> None:
        """Note the event loop that the runs are on, so that other threads can reach them (`cancel_call`)."""
        _ = self.shared  # found at its first use, which must be on the loop

    def warn_once(self, key: str, text: str) -> None:
        """Log the warning *text*, unless one with this *key* was logged already."""
        if key not in self.warned:
            self.warned |= {key}
            logger.warning("%s", text)

    def find_call(self, call: tuple[tuple[str, ...], str]) -> Cancellable | None:
        """Return the live call with this path and id; None where there is none, or it waits for a verdict."""
        path, call_id = call
        found = self.calls.get(path, {}).get(call_id) or self.background.get(path, {}).get(call_id)
        return None if found is None or found.phase == "paused" else found


class HasThreads(Protocol):
    """The object that worker threads belong to."""

    @property
    def threads(self) -> Threads:
        """The worker threads."""
        ...


class RunSettings(Machinery, msgspec.Struct, eq=False, kw_only=True, dict=True):
    """The settings of one run. No field is assigned anew after the run has been made."""

    config: RunConfig
    around: HasThreads | RunSettings
    """The owner of the worker threads around the run's own: the open runtime, or the tree (which has the loop's); for a
    nested run, the settings of the run around it."""
    hooks: RunHooks | None = None
    error_handlers: Mapping[str, Callback] = {}
    session: SessionProgress | None = None
    """The progress of writing to the run's session, if it has one."""
    budget: Budget | None = None
    stop_when: Condition | None = None
    redacts_errors: bool = False
    """True if no text may show the message of an error of this run: it is nested in a call with secret arguments."""

    @cached_property
    def threads(self) -> Threads:
        """The worker threads of the run, made at first use: most runs have no sync body."""
        from agentloop._engine.runtime.threads import Threads

        if isinstance(self.around, RunSettings) and self.config is self.around.config:
            return self.around.threads
        return Threads(self.config.tool_execution.max_threads, self.around.threads)


class LiveRun(Machinery, msgspec.Struct, eq=False, kw_only=True, dict=True):
    """One run at one node of the tree of runs. Owned and mutated by the task that drives it, and by its calls' tasks.

    No code outside the engine sees it.
    """

    tree: RunTree
    settings: RunSettings
    state: RunFold
    agent: Agent[Any, Any]
    context: RunContext[Any]
    resources: Resources
    parent: LiveRun | None = None
    view: TurnView | None = None
    """The definitions of the turn under way; None until they are prepared, and after a handoff."""
    guards_settled: anyio.Event | None = None
    """Set once all input guardrails beside the first model call have passed; None where there are none."""
    limit_scope: anyio.CancelScope | None = None
    """The scope that ends the run at its deadline, or when its journal fails; None where it has neither."""
    scope: anyio.CancelScope | None = None
    """The scope of the run's own task, around the whole run, which its holder cancels; of the outermost run only."""
    nursery: Nursery | None = None
    """The nursery of the run's own task, if it isn't a group; of the outermost run only."""
    stopped_by: BaseException | None = None
    """The very error that stopped the run's own loop, where another run segment may get past it: a limit that is set
    anew, a model that answers again. An equal error from a body, a hook or any other callback is not this one."""
    sandbox: Sandbox | None = None
    """The sandbox that this run has to give back; of the outermost run only."""
    has_begun: bool = False
    """True once the log has the first record of this run segment."""
    begun: anyio.Event | None = None
    """Set then, or when the run ends before; made by a task that waits for it."""
    takes_input: bool = True
    """False once the run has looked into its inbox for the last time: it ends."""
    last_given: anyio.Event | None = None
    """Set once the sender of the last input, or withdrawal, has its answer."""
    judged_input: str | None = None
    """The id of the added input that guardrails judge now."""
    background: BackgroundCalls | None = None
    """The background calls whose bodies run; None until there is one."""
    stop_after_turn: bool = False
    last_stopped_turn: int = 0
    """The last turn after which `stop_when` has stopped a run segment: it doesn't do so twice after one turn."""
    end_recorded: Literal["parent", "deadline"] | None = None
    """The end from outside that the log of the tree has: a deadline may be followed by a cancellation, which is final.
    Only of the outermost run."""
    ended_by: Literal["parent", "deadline"] | None = None
    """The source of the run's cancellation, once `cancel_source` has decided it."""

    @property
    def path(self) -> tuple[str, ...]:
        """The call ids of the agent tools around this run, outermost first."""
        return self.state.path

    @property
    def agent_key(self) -> str:
        """The key of the agent at work, once the run segment has begun."""
        return self.state.agent

    @cached_property
    def cleanup(self) -> Cleanup:
        """The cleanup deadline, made at first use: most runs have nothing to clean up."""
        from agentloop._concurrency.cleanup import Cleanup

        outer = None if self.parent is None else self.parent.cleanup
        return Cleanup(self.settings.config.tool_execution.cleanup_grace, outer)

    @property
    def price(self) -> Price | None:
        """The function that prices a request: the configuration's, else the outer run's, whose budget pays as well."""
        own = self.settings.config.price
        return own if own is not None or self.parent is None else self.parent.price

    @property
    def hosted_price(self) -> HostedPrice | None:
        """The function that prices a hosted call: the configuration's, else the outer run's, as for requests."""
        own = self.settings.config.hosted_price
        return own if own is not None or self.parent is None else self.parent.hosted_price

    @property
    def conversation(self) -> Sequence[Item]:
        """The items that were shown to the model, and its response, for calls of the batch: outputs come after it."""
        return HistoryView(self.state.history)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies of the run, and then those of the agent at work."""
        return (*self.settings.config.policies, *self.agent.policies)

    def here(self) -> tuple[tuple[str, ...], int, float]:
        """Return the first fields of every record: path, turn and wall-clock time."""
        return self.state.path, self.state.turn, self.tree.log.wall()

    def read_arguments(self, tool: FunctionTool, text: str) -> Arguments:
        """Return the arguments of *tool* in *text*, read within the run's limits, with what is wrong in them."""
        config = self.settings.config
        return read_arguments(tool, text, config.json_limits, config.converter)

    def add_message(self, reason: str, message: Item) -> None:
        """Append *message*, which the library itself adds to the history, with the *reason* of its record."""
        self.tree.log.append(HistoryReplaced(*self.here(), reason, len(self.state.history), (message,), added=True))

    def find_hooks(self, event: Event, of: Agent[Any, Any] | None = None) -> Sequence[Callback]:
        """Return the hooks on *event*, of the run and of the agent *of*, in the order in which they are called.

        Without *of* it is the agent at work.
        """
        of_run, of_agent = self.settings.hooks, (of or self.agent).hooks
        if of_run is None and of_agent is None:  # as in most runs
            return ()
        found = [find_hook(of_run if whole else of_agent, name) for whole, name in HOOK_ORDER[event]]
        return [hook for hook in found if hook is not None]

    async def call_hooks(self, event: Event, *args: Any, of: Agent[Any, Any] | None = None) -> None:
        """Call the hooks on *event* with the run's context and *args*, one after the other.

        For example `await run.call_hooks("llm_end", run.agent, response)`. *of* is the agent whose hooks are called, if
        it isn't the agent at work.

        Raises:
            BaseException: the error of a hook; later ones aren't called.
        """
        for hook in self.find_hooks(event, of):
            await resolve(hook(self.context, *args))

    async def checkpoint(self) -> None:
        """Let a pending cancellation of the run continue; wait for nothing else. For the run's own loop.

        Write it after each section that is shielded or that calls the application, and before each record that says
        what the run does next: `await run.checkpoint()`.
        """
        nursery, scope, limit = self.nursery, self.scope, self.limit_scope
        is_late = limit is not None and limit.cancel_called
        if is_late or nursery is None or scope is None or scope.cancel_called or nursery.is_leaving():
            await checkpoint_if_cancelled()
        # Else we know each scope around the run: a search through them takes 2 µs, three times a turn.

    def check_request(self, worst: WorstCase | None = None) -> None:
        """Check that every budget that has to pay for one more model request allows it, or its *worst* case.

        Raises:
            UsageLimitExceeded: by the nearest budget that is spent, but for the turn left for the final output.
        """
        run: LiveRun | None = None if self.state.closing and self.state.is_closing else self
        while run is not None:
            outer = run.parent
            if run.settings.budget is not None and (outer is None or run.settings.budget is not outer.settings.budget):
                try:
                    if worst is None:
                        run.settings.budget.check_request(run.state.meter)
                    else:
                        run.settings.budget.check_worst_case(run.state.meter, worst)
                except UsageLimitExceeded as error:
                    self.stopped_by = error
                    raise
            run = outer

    def redact_error(self, error: BaseException) -> None:
        """Hide the message of *error* in every text, if the run's errors may repeat a secret."""
        if self.settings.redacts_errors:
            redact_message(error)

    def redacts_errors_of(self, call: ToolCall) -> bool:
        """Tell whether errors of *call*, and texts that the application makes of it, may repeat a secret."""
        return self.settings.redacts_errors or bool(call.secret)

    async def call_callback(self, what: str, key: str, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the answer of the application's callback *fn*, sync or async, to *args*. It isn't recorded.

        For example `await run.call_callback("on_handoff", call_id, callback, run.context)`. Errors of the callback are
        raised bare.
        """
        return await self.tree.effects.perform(e.CallCallback(self.path, what, key, partial(call_user, fn, *args)))

    async def ask(
        self, what: str, key: str, fn: Callable[..., Any], *args: Any, to_plain: Callable[[Any], Any] | None = None
    ) -> Any:
        """Call the application's callback as `call_callback`, and record its answer, because no other record does.

        *to_plain* makes plain data of the answer for the record.
        """
        answer = await self.call_callback(what, key, fn, *args)
        plain = answer if to_plain is None else to_plain(answer)
        # A text that the application made for a run with secret input may repeat it.
        secret = self.state.secret_input and not isinstance(plain, bool)
        self.tree.log.append(CallbackReturned(*self.here(), what, key, plain, secret=secret))
        return answer

    async def guard(
        self, stage: Any, guardrail: Any, call_id: str | None, kinds: tuple[type[Any], ...], *args: Any
    ) -> tuple[Any, float]:
        """Return the verdict of *guardrail* on *args*, which is of one of *kinds*, and the seconds that it took.

        Raises:
            UserTypeError: it returned something else.
            Exception: its error.
        """
        began = anyio.current_time()
        effect = e.Guard(self.path, stage, guardrail.name, call_id, partial(call_user, guardrail.fn, *args))
        verdict = await self.tree.effects.perform(effect)
        if not isinstance(verdict, kinds):
            needed = " or ".join(kind.__name__ for kind in kinds)
            raise UserTypeError(f"guardrail {guardrail.name!r} must return {needed}, not {verdict!r}")
        return verdict, anyio.current_time() - began

    async def random(self, what: str, key: str) -> float:
        """Draw a number in [0, 1), and record it."""
        drawn: float = await self.tree.effects.perform(e.Random())
        self.tree.log.append(CallbackReturned(*self.here(), f"random:{what}", key, drawn))
        return drawn

    def agent_at(self, path: tuple[str, ...]) -> Agent[Any, Any] | None:
        """Return the agent at work at *path*; None where there is no run."""
        run = self.tree.children.get(path) if path else self
        return run.agent if run is not None else None

    def make_nested(self, state: RunFold, settings: RunSettings, agent: Agent[Any, Any], own: Resources) -> LiveRun:
        """Return the run of *state*, nested in this one: it shares the log and the effects. *own* are its resources."""
        tree, outer = self.tree, self.context
        view = RunServicesView(state.path, tree.log.state, own, tree.shared_resources, outer._run.sandbox)
        context = RunContext(context=outer.context, run_id=f"{outer.run_id}/{state.path[-1]}", _run=view)
        nested = LiveRun(
            tree=tree, settings=settings, state=state, agent=agent, context=context, resources=own, parent=self
        )
        tree.children = tree.children or {}
        tree.children[nested.path] = nested
        return nested

    def begin(self, record: RunStarted | RunResumed) -> None:
        """Append *record*, the first of this run segment."""
        self.tree.log.append(record)
        self.has_begun = True
        if self.begun is not None:
            self.begun.set()

    # -- the end

    def take_no_input(self) -> None:
        """Refuse input from now on: nothing of the run looks for it any more."""
        self.takes_input = False
        if self.begun is not None:
            self.begun.set()

    def cut(self, section: str, call_id: str | None = None) -> None:
        """Record that a section of cleanup was cut at the deadline."""
        self.tree.log.append(CleanupCut(*self.here(), section, call_id))

    def report_late(self, report: LateResult) -> None:
        """Report to instruments the value or error of a body that came after its outcome was decided."""
        if report.error is not None:
            logger.debug("late error of call %s: %s", report.call.call_id, error_summary(report.error))
        self.tree.log.tell("on_late_result", report)

    def report_still_running(self, report: StillRunning) -> None:
        """Report to instruments and the log of Python that a call outlives the cleanup deadline."""
        logger.warning(
            "call %s of tool %s is still running after %.1f s, past the cleanup deadline",
            report.call.call_id,
            report.call.name,
            report.age,
        )
        self.tree.log.tell("on_still_running", report)

    def follow_state_error(self) -> None:
        """In a replay, raise the StateError by which the recorded run ends next, if one does.

        Called where the run finds out that it lacks secrets or definitions, which a replay doesn't need.
        """
        find = self.tree.log.find_state_error
        if find and (refusal := find(self.path)):
            self.stopped_by = refusal
            raise refusal

    def cancel_call(
        self, path: tuple[str, ...], call_id: str, reason: str | None, *, by_call: str | None = None
    ) -> bool:
        """Cancel one call, running or queued; return False if it has ended or is unknown. From any task or thread.

        *by_call* is the id of the call, of the same run, whose context requests it.

        Raises:
            UserTypeError: *reason* isn't text.
        """
        check("reason", _REASON, reason)
        if not self.tree.shared.is_current():
            token = self.tree.shared.token()
            return anyio.from_thread.run_sync(self._cancel_call, path, call_id, reason, by_call, token=token)
        return self._cancel_call(path, call_id, reason, by_call)

    def _cancel_call(self, path: tuple[str, ...], call_id: str, reason: str | None, by_call: str | None) -> bool:
        live = self.tree.find_call((path, call_id))
        state = self.tree.log.state.at(path)
        if live is not None:
            if live.is_cancellable and state is not None:
                self._request_cancel(state, call_id, reason, by_call)
            return live.cancel("caller", reason, by_call)
        waiting = state.calls.get(call_id) if state is not None else None
        if state is None or waiting is None or waiting.outcome is not None:
            return False
        known = call_id in state.cancel_requests
        if state.ended is not None and not (state.path and (known or state.waits(waiting))):
            return False  # over, or another run segment has to continue it
        if not known:
            self._request_cancel(state, call_id, reason, by_call)
        return True

    def _request_cancel(self, state: RunFold, call_id: str, reason: str | None, by_call: str | None) -> None:
        from agentloop._core.gate import admit  # few runs have a call that is cancelled by itself

        if call_id in state.background:
            return  # its result says what has become of it
        root = self.tree.log.state
        around = (root.at(state.path[:depth]) for depth in range(len(state.path)))
        calls = [fold.calls[one] for fold, one in zip(around, state.path, strict=True) if fold is not None]
        if reason is not None and any(call.call.secret for call in (*calls, state.calls[call_id])):
            reason = REDACTED
        record = CancelRequested(state.path, state.turn, self.tree.log.wall(), call_id, by_call, reason)
        self.tree.log.append(admit(root, record))
