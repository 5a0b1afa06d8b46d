"""`enter`: the body of one recorded call, run again as it was called, for a debugger.

The run is continued from the record before the call's start, behind the firewall, and ends where the body does: the
body gets a real context of the call, with the history, the run and its services, and everything around it is answered
from the log. What the body itself does to the world is refused, because the recorded call has done it already.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeAlias

import attrs

from agentloop import records as r
from agentloop._common.error_text import error_summary
from agentloop.abc import Codec
from agentloop.abc import effects as e
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.lab._compare import LabOptions, run_behind
from agentloop.lab._edits import find_call
from agentloop.lab._effects import LabEffects, LabRules
from agentloop.lab._fork import ForkCandidate, load_run
from agentloop.lab._recording import Path, Recording
from agentloop.lab._runs import CaseCall, read_run
from agentloop.lab._watch import unwatched, watch
from agentloop.models.registry import Providers
from agentloop.outcomes import CallOutcome
from agentloop.state import RunState
from agentloop.tools import FunctionTool, PythonBody

Debugger: TypeAlias = Callable[[Callable[..., Any]], AbstractContextManager[Any]]
"""Makes a context manager, inside of which the function that it gets is called, in the thread of the function."""

_is_entered: ContextVar[bool] = ContextVar("agentloop_lab_is_entered", default=False)


@attrs.frozen(kw_only=True, eq=False)
class EnteredCall:
    """The end of a body that was run again.

    Attributes:
        call: The recorded call.
        outcome: Its recorded outcome; None if the log ends before it.
        value: What the body returned now.
        error: What it raised now; None if it returned.
        notes: What it did, or tried to do, beyond the process.
    """

    call: CaseCall
    outcome: CallOutcome | None
    value: Any = None
    error: BaseException | None = None
    notes: tuple[str, ...] = ()


async def enter(
    journal: Any,
    agent: Agent[Any, Any],
    call: str,
    *,
    debugger: Debugger = nullcontext,
    live: bool = False,
    context: Callable[[], Any] | None = None,
    run_config: RunConfig | None = None,
    key: bytes | None = None,
    codec: Codec | None = None,
) -> EnteredCall:
    """Run the body of one recorded call again, with its arguments and a context as it had, to look at it.

    Set a breakpoint in the body, or give a *debugger*. Everything around the body is answered from the log, and
    timeouts don't hold. The body itself gets a `PermissionError` where it connects to something, changes a file or
    folder, opens a database or starts a process, unless *live* allows it. The refusal holds for all of the process
    meanwhile (but a debugger's threads), because the body may have its work done by others: enter it in a process that
    does nothing else. What Python's audit events don't tell can't be refused: connections, databases and files that are
    open already, threads that outlive the body, and libraries in C with their own ways out, as uvloop and libpq.

    Args:
        journal: A file of a journal, a journal, a `RunState`, the result of a run, or a branch of a fork.
        agent: The agent that the run began with.
        call: The call's id; of a nested run `OUTER/ID` where several runs have that id.
        debugger: Makes a context manager around each call of the tool's function.
        live: True to let the body do to the world what it does.
        context: A function that makes the application's object; a log has none.
        run_config: The configuration of the run.
        key, codec: Those of the journal.

    Cancellation: that of the body.

    Raises:
        UserError: there is no such call, it never started, or its tool has no Python function.
        StateError, JournalError: the journal can't be read.

    Example:
        import anyio
        from agentloop import Agent, Runner, lab, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def half(number: int) -> float:
            "Halve a number."
            return number / 2

        async def main():
            model = ScriptedModel([call("half", {"number": 3}, call_id="c1"), say("1.5")])
            agent = Agent("a", model=model, tools=[half])
            result = await Runner.run(agent, "Half of 3?")
            print((await lab.enter(result, agent, "c1")).value)  # 1.5

        anyio.run(main)
    """
    if not isinstance(agent, Agent):
        raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
    rules = LabRules(continues=True)
    options = LabOptions(
        agent=agent,
        rules=rules,
        config=run_config or RunConfig(),
        context=context,
        verdict="ask",
        key=key,
        codec=codec,
    )
    recording, _ = await load_run(journal, options)
    place, _ = find_call(recording.records, call)
    count = _find_start(recording, place, call)
    outcome = recording.outcomes[place].outcome if place in recording.outcomes else None
    calls = read_run(recording.name, recording.records).calls
    recorded = next(one for one in calls if (one.path, one.call_id) == place)
    own = recording.again(count)
    effects = _EnteringEffects(own, rules, place, recording.records[:count], live=live)
    async with Providers() as providers:
        candidate = _EnteringCandidate(agent, options.config, effects, providers, recorded.tool, debugger)
        candidate.find_sandbox(recording.records[:count])
        state = RunState(candidate.agent, recording.records[:count])
        error = await run_behind(candidate, own, options, effects, state)
    if not effects.has_entered:
        why = "" if error is None else f": {error_summary(error)}"
        raise UserError(f"call {call!r}: the run doesn't come to it with this agent{why}") from error
    return EnteredCall(
        call=recorded, outcome=outcome, value=effects.value, error=effects.error, notes=tuple(effects.notes)
    )


def _find_start(recording: Recording, place: tuple[Path, str], call: str) -> int:
    """Return how many records come before the start of a call.

    Raises:
        UserError: it never started, or is a run of an agent.
    """
    if any(one.path == (*place[0], place[1]) for one in recording.records):
        raise UserValueError(f"call {call!r} is a run of an agent: enter one of its calls, {call}/ID")
    for index, one in enumerate(recording.records):
        if isinstance(one, r.CallStarted) and (one.path, one.call_id) == place:
            return index
    settled = recording.outcomes.get(place)
    why = "" if settled is None else f": it was {settled.outcome.status}"
    raise UserValueError(f"call {call!r} never started{why}")


class _EnteringEffects(LabEffects):
    """The firewall, in which the body of one call runs, and after it the run ends."""

    def __init__(
        self,
        recording: Recording,
        rules: LabRules,
        place: tuple[Path, str],
        begun: tuple[r.Record, ...],
        *,
        live: bool,
    ) -> None:
        super().__init__(recording, rules, begun=begun)
        self._place, self._live = place, live
        self.has_entered = False
        self.value: Any = None
        self.error: BaseException | None = None

    async def _call_tool(self, effect: e.CallTool) -> Any:
        if (effect.path, effect.call_id) != self._place:
            return await super()._call_tool(effect)
        if not isinstance(effect.definition.body, PythonBody):
            raise UserError(f"tool {effect.tool!r} has no Python function that could be entered")
        self.has_entered = True
        token = _is_entered.set(True)
        try:
            with watch(self.notes, f"tool {effect.tool}", refuses=not self._live):
                self.value = await effect.do()
        except Exception as error:
            self.error = error
        finally:
            _is_entered.reset(token)
        await self.end((), 0, "cut")


class _EnteringCandidate(ForkCandidate):
    """A candidate in which a debugger is around the function of one tool, and nothing times out."""

    def __init__(self, agent: Any, config: Any, effects: Any, providers: Any, tool: str, debugger: Debugger) -> None:
        self._tool, self._debugger = tool, debugger
        super().__init__(agent, config, effects, providers)

    def copy_tool(self, tool: FunctionTool[Any]) -> FunctionTool[Any]:
        """Return the fork's copy without timeouts; of the tool with the debugger."""
        copy, body = super().copy_tool(tool), tool.body
        if not isinstance(body, PythonBody):
            return copy
        if copy.qualified_name == self._tool:
            body = body.replace(fn=_surround(body.fn, self._debugger))
        return attrs.evolve(copy, body=body, timeout=None, idle_timeout=None)


def _surround(fn: Callable[..., Any], debugger: Debugger) -> Callable[..., Any]:
    """Return a function that calls *fn* inside of *debugger*, where the call is the one that is entered."""
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            with _Debugged(debugger, fn) if _is_entered.get() else nullcontext():
                return await fn(*args, **kwargs)

        return wait

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Debugged(debugger, fn) if _is_entered.get() else nullcontext():
            return fn(*args, **kwargs)

    return call


class _Debugged(AbstractContextManager[Any]):
    """A debugger around a function: what it does at its beginning and end isn't the body's."""

    def __init__(self, debugger: Debugger, fn: Callable[..., Any]) -> None:
        self._debugger, self._fn = debugger, fn

    def __enter__(self) -> Any:
        with unwatched():
            self._around = self._debugger(self._fn)
            return self._around.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        with unwatched():
            return self._around.__exit__(*error)
