"""Background calls: their bodies run on in the run's nursery, after the calls have settled.

A call of a tool with `background=True` takes its steps up to the start like any other. Then it settles, in the place
of its body: the model hears that it has started. In that very step the body begins, as a live call of this module's
batch, which lives as long as the run segment. The same text walks it (`call.run_call`). Its end isn't an outcome in the
log: it is an input of the run (`InputAdded.call_id`), so everything that holds for inputs holds for results. They are
durable, shown exactly once, and taken from the log in a replay, where no body runs.

Facts: the fold's `background` names the calls without a result, here and in a resumed run. `calls` are those whose body
runs in this segment. A call that is in the first and not in the second is in doubt, and is treated like any such call.

The ends of a run. One that completes has waited for the results and shown them (`wait_for_result`), as far as
it has a turn for them; the others are withdrawn. One that stops or pauses waits for the bodies (`finish_calls`); what
they give waits in the inbox. One that fails, or is cancelled, cancels them and waits for their ends
(`Background.cut`): what has no result by then is in doubt in the next segment.

Decisions:

A background call can't end the run, or change an answer that was accepted, because it has settled. So its tool has no
policy that raises and no output guardrail.

An end hook hears of the call's settling, not of the end of its body, as the log has it. Rejected: a second outcome for
each call. Each rule about calls (releases, receipts, failures, the order of records) would have to say which one it
means.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio

from agentloop._common.empty_containers import append_to
from agentloop._common.error_text import is_fatal
from agentloop._common.failed_tool_text import tell_error
from agentloop._concurrency.backend import innermost_nursery, wait_out_cancellations
from agentloop._core.call_identity import find_called_tool
from agentloop._core.call_in_doubt import plan_in_doubt, tell_doubt
from agentloop._core.call_state import CallState
from agentloop._core.failure_choice import Failure
from agentloop._core.inbox import due_input, make_result, make_withdrawal
from agentloop._core.plan import Execute, PlanEntry, PlanRules
from agentloop._core.planner import check_secrets
from agentloop._core.turn_view import TurnView
from agentloop._engine.calls.batch import Batch
from agentloop._engine.calls.live_call import Earlier, LiveCall
from agentloop._engine.runtime.callbacks import log_error
from agentloop._engine.runtime.dispatcher import Queue
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc import effects as e
from agentloop.exceptions import StateError
from agentloop.outcomes import FROM_ABOVE, CallOutcome
from agentloop.records import InputAdded
from agentloop.tools import FunctionTool

if TYPE_CHECKING:
    from agentloop._concurrency.nursery import Nursery


class Background(Batch):
    """The background calls of one run segment whose bodies run. Owned by the run; its tasks are the run's."""

    in_background = True

    def __init__(self, run: LiveRun) -> None:
        super().__init__(run, ())
        self.nursery = cast("Nursery", run.resources.host)  # a run has no other host
        self.waiting: Queue = run.tree.shared.pump
        self.changed = anyio.Event()
        """Set at the next change of the inbox or of the calls, and then made anew."""
        run.tree.background = run.tree.background or {}
        run.tree.background[run.path] = self.calls

    def take_over(self, live: LiveCall) -> None:
        """Make the successor of *live*, which runs the body with the tool's own limits and the thread."""
        kept = tuple([one for one in live.limits if one in live.tool.capacity])
        live.successor = LiveCall(
            *(live.run, self, live.index, live.call, live.tool, live.steps, live.arguments, kept),
            earlier=Earlier(live.earlier.attempt, announced=True),
            phase="starting",
            place=live.place,
            holds_permit=bool(kept),
        )
        live.limits, live.place = tuple([one for one in live.limits if one not in kept]), None

    def begin(self, live: LiveCall, *, begins: bool) -> None:
        """Begin the body of *live*, whose call has settled; unless it *begins*, give back what it holds for it."""
        if not begins or self.run.tree.log.replays:  # in a replay no body runs
            live.release_all()
            return
        live.task_context = copy_context()  # of the call: its span is the current one, and its hooks may set variables
        live.task_context.run(innermost_nursery.set, self.nursery.context.get(innermost_nursery))
        self._add(live)
        self.spawn(live)

    def begin_again(self, state: CallState, tool: FunctionTool, plan: Execute) -> None:
        """Begin the body of a call again that an earlier run segment has left, within the capacities of its *tool*."""
        run, limits = self.run, tuple([one for one in tool.capacity if one.freed_by_calls])
        steps, earlier = self._find_steps(tool, self._needs), Earlier(plan.attempt, announced=True)
        live = LiveCall(run, self, state.index, state.call, tool, steps, plan.arguments, limits, earlier)
        self._add(live)
        self.bind_limits()
        self.waiting.enter([live])

    def _add(self, live: LiveCall) -> None:
        self.calls[live.call_id] = live
        self.unsettled += 1

    def notify(self) -> None:
        """Wake the run, if it waits for a result."""
        self.changed.set()
        self.changed = anyio.Event()

    def fail(self, failure: Failure) -> None:
        """Keep a fatal *failure*, which the run raises when it next looks. Another one, of code around a body, can't
        end the run: the call's result says what failed.
        """
        error = failure.error
        if isinstance(error, Exception) and not is_fatal(error):
            log_error(error, "code around the body of a background call failed", redact=True)
        else:
            self.failures = append_to(self.failures, failure)
        self.notify()

    def _make_record(self, live: LiveCall, outcome: CallOutcome, *_: Any) -> InputAdded | None:  # type: ignore[override]
        """Return the result of a call as an input; None if the end of the run has cut it."""
        if outcome.cancelled_by in (*FROM_ABOVE, "sibling"):
            return None
        output = outcome.output
        if output is None:  # its policy has none, or failed itself
            error, tool = outcome.error, live.tool.name
            output = tell_error(tool, error) if isinstance(error, Exception) else tell_nothing(tool)
        return make_result(self.run.state, live.call, output, self.run.tree.log.wall(), secret=outcome.secret)

    def _leave_segment(self, live: LiveCall) -> None:
        self.notify()

    def close(self) -> None:
        """Forget the calls: the event loop is gone."""
        self.closed = True

    def cancel(self, cause: Literal["caller", "sibling"], reason: str | None = None) -> None:
        """Cancel all calls."""
        for live in list(self.calls.values()):
            live.cancel(cause, reason)

    async def wait_for(self, changed: anyio.Event) -> bool:
        """Wait for *changed*, as it was at the last look; return False at once if no body runs."""
        if not self.calls and not changed.is_set():
            return False
        await changed.wait()
        return True

    async def cut(self) -> None:
        """Cancel all bodies, as the run ends early, and wait for their ends. Shielded."""
        self.cancel("sibling")
        self._settle_unstarted()  # a task that was cancelled natively before its first step never begins
        self.run.tree.background.pop(self.run.path, None)
        with anyio.CancelScope(shield=True):
            await wait_out_cancellations(self._join)

    async def _join(self) -> None:
        while self.calls:
            with anyio.move_on_after(1.0):
                await self.wait_for(self.changed)
            self._report_running()


def tell_nothing(tool: str) -> str:
    """Return what the model hears of a background call of the *tool* with this name that has no output."""
    return f"Tool '{tool}' gave no output."


def open_background(run: LiveRun) -> Background:
    """Return the batch of the run's background calls, made at first use."""
    if run.background is None:
        run.background = Background(run)
    return cast(Background, run.background)


def continue_calls(run: LiveRun, view: TurnView) -> None:
    """Begin the bodies again that an earlier run segment has left, or tell the model that they are in doubt.

    Raises:
        BaseException: the fatal error of a body that has ended since the last look.
    """
    background = open_background(run)
    background.raise_failure()
    if run.tree.log.find_state_error is not None:
        run.follow_state_error()
    if not run.tree.log.replays:  # in a replay no body runs, and the results are in the log
        for call_id in [one for one in run.state.background if one not in background.calls]:
            _continue_call(background, view, run.state.calls[call_id])


def _continue_call(background: Background, view: TurnView, state: CallState) -> None:
    run, call = background.run, state.call
    tools: Mapping[str, FunctionTool] = view.by_key
    if state.agent != run.state.agent and state.agent is not None:  # after a handoff the view is another agent's
        maker = run.tree.graph.find(state.agent)
        own = () if maker is None else maker.tools
        tools = {one.lookup_key: one for one in own if isinstance(one, FunctionTool)}
    tool = find_called_tool(tools, call)
    if tool is not None and tool.background:
        plan = plan_in_doubt(tools, run.state, PlanRules(read=run.read_arguments), state, tool)
        if isinstance(plan, Execute):
            try:
                check_secrets((PlanEntry(state.index, call, tool, plan),), run.state)
            except StateError as error:
                run.stopped_by = error  # the run continues where its secrets can be read
                raise
            if plan.arguments.fault is None:
                return background.begin_again(state, tool, plan)
    doubt = tell_doubt(call.name)
    run.tree.log.append(make_result(run.state, call, doubt, run.tree.log.wall(), secret=False))


async def wait_for_result(run: LiveRun) -> None:
    """Wait, as the run would complete now, until an input is due or no body runs any more.

    Bodies that needn't be waited for are cancelled once no other runs. Results that nothing shows are withdrawn.

    Raises:
        BaseException: the fatal error of a body.
    """
    assert run.view is not None  # the candidate for the final output was found by it
    background, ends = open_background(run), False
    continue_calls(run, run.view)
    while ends or due_input(run.state, ends=True) is None:
        if not ends and all(live.tool.on_end == "cancel" for live in background.calls.values()):
            ends = True
            background.cancel("caller", "the run has ended")
        if not await _wait(run):
            break
        background.raise_failure()
    await run.checkpoint()
    continues = any(one.call_id is None for one in run.state.inbox.values())
    if not continues and (ends or due_input(run.state, ends=True) is None):
        _withdraw_results(run)


async def finish_calls(run: LiveRun, *, completes: bool) -> None:
    """Wait, as the run segment ends by itself, until no body runs any more. Results wait in the inbox.

    Raises:
        BaseException: the fatal error of a body.
    """
    background = cast("Background | None", run.background)
    if run.state.background:
        while background is not None and await _wait(run):
            background.raise_failure()
        await run.checkpoint()
    if background is not None:
        background.raise_failure()
    if completes:
        _withdraw_results(run)


async def _wait(run: LiveRun) -> bool:
    if not run.state.background:
        return False
    background = open_background(run)
    wait = partial(background.wait_for, background.changed)  # effects may take their time before they call it
    came: bool = await run.tree.effects.perform(e.AwaitInput(run.path, wait))
    return came


def _withdraw_results(run: LiveRun) -> None:
    for one in [one for one in run.state.inbox.values() if one.call_id is not None]:
        run.tree.log.append(make_withdrawal(run.state, one.id, None, run.tree.log.wall()))
