"""`AgentWorkflow`, a workflow that runs one agent, and `run_agent` for workflows of the application's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Unpack

import anyio._backends._asyncio  # noqa: F401 - else it is imported within a workflow
import attrs
import msgspec
from temporalio import workflow

from agentloop._storage.public_json import to_json
from agentloop.config import RunConfig
from agentloop.exceptions import StateError, UserError
from agentloop.items import ApprovalRequest, Item
from agentloop.records import CancelRequested, Record, RunEnded
from agentloop.results import RunResult
from agentloop.run import ResumeOptions, Runner
from agentloop.state import RunState
from agentloop.temporal._effects import WorkflowEffects
from agentloop.temporal._options import AgentSetup, find_setup
from agentloop.temporal._substitutes import NamedModels, RecordList, observe_once


@dataclass
class AgentRunInput:
    """The argument of an `AgentWorkflow`.

    Attributes:
        agent: The name under which the `AgentPlugin` of the worker has the agent.
        input: The user's message.
        context: A JSON value, from which the worker makes the application's object.
        max_turns: As for `Runner.run`.
        state: A stored run to continue, in place of *input*: set where a workflow continues as a new one.
        pending_input: Messages not yet given to that run.
    """

    agent: str
    input: str = ""
    context: Any = None
    max_turns: int | None = 10
    state: str | None = None
    pending_input: list[str] = field(default_factory=list)


class _SentVerdict(msgspec.Struct, forbid_unknown_fields=True):
    """A verdict as senders give it. Without a *path* it is on the only call of that id that waits."""

    call_id: str
    approved: bool
    path: tuple[str, ...] | None = None
    arguments: str | dict[str, Any] | None = None
    message: str | None = None
    always: bool = False
    by: str | None = None

    def __post_init__(self) -> None:
        if self.approved and self.message is not None:
            raise ValueError("a message goes with a rejection")
        if not self.approved and self.arguments is not None:
            raise ValueError("arguments go with an approval")


def _read_verdict(given: dict[str, Any]) -> _SentVerdict:
    try:
        return msgspec.convert(given, _SentVerdict)
    except msgspec.ValidationError as error:
        raise UserError(f"the verdict doesn't fit: {error}") from None


async def run_agent(
    agent: str, input: str | Iterable[Item] | RunState, **options: Unpack[ResumeOptions[Any]]
) -> RunResult[Any]:
    """Run an agent in the current workflow, and return the result: `Runner.run` for workflows of your own.

    Args:
        agent: The name under which the worker's `AgentPlugin` has the agent.
        input: As for `Runner.run`.
        **options: As for `Runner.run`, but: `context` is a JSON value, from which the plugin's *read_context* makes the
            application's object, once for the callbacks in the workflow and for each call of a tool in its activity;
            `run_config` is the plugin's if not given; `session` isn't supported.

    Cancellation: as for `Runner.run`; activities under way are cancelled and awaited.

    Raises:
        UserError: the worker has no such agent, or an option isn't supported in a workflow.
        AgentLoopError: as for `Runner.run`. The plugin declares it a failure of the workflow.
    """
    setup = find_setup(agent)
    if options.get("session") is not None:
        raise UserError("session: not supported in a workflow, whose own history holds the run")
    context = options.get("context")
    options["run_config"] = _configure(agent, setup, options.get("run_config") or setup.config, context)
    options["context"] = setup.restore_context(context)
    return await Runner.run(setup.graph.root, input, **options)


def _configure(
    name: str, setup: AgentSetup, config: RunConfig, context: Any, before_model: Callable[[], None] = lambda: None
) -> RunConfig:
    if config.output_store is not None:
        raise UserError("RunConfig.output_store: not supported in a workflow")
    return attrs.evolve(
        config,
        effects=WorkflowEffects(name, setup, context, before_model),
        model_provider=NamedModels(),
        instruments=tuple(map(observe_once, config.instruments)),
    )


def _set_time(state: RunState) -> None:
    """Give the latest record the workflow's time, which a replay has again. A state reads the clock of the machine."""
    state.records[-1] = state.records[-1].replace(at=workflow.time())


@workflow.defn(name="AgentRun", sandboxed=False)
class AgentWorkflow:
    """A workflow that runs one agent to its end.

    It waits for the verdicts of calls that need approval, takes more input, cancels single calls, and continues as a
    new workflow with the stored run when its history grows long. `AgentRunHandle` has these as methods.

    It isn't sandboxed, since the agents' objects must be those of the process. Callbacks of the application that run in
    the workflow must be deterministic all the same.
    """

    @workflow.init
    def __init__(self, given: AgentRunInput) -> None:
        self._given = given
        self._records: list[Record] = []
        self._inputs: list[str] = list(given.pending_input)
        self._stream: Any = None
        self._state: RunState | None = None
        self._is_decided = False

    @property
    def _setup(self) -> AgentSetup:
        return find_setup(self._given.agent)

    @workflow.run
    async def run(self, given: AgentRunInput) -> dict[str, Any]:
        """Run the agent and return how the run ended: its status, output, usage and error."""
        setup, root = self._setup, self._setup.graph.root
        config = _configure(given.agent, setup, setup.config, given.context, self._check_length)
        config = attrs.evolve(config, instruments=(*config.instruments, RecordList(self._records)))
        work: str | RunState = given.input
        if given.state is not None:
            work = RunState.from_string(root, given.state, key=setup.key, codec=setup.codec, converter=config.converter)
            self._records.extend(work.records)
        options: dict[str, Any] = {"context": setup.restore_context(given.context), "run_config": config}
        if given.state is None:
            options["max_turns"] = given.max_turns
        while True:
            result = await self._run_segment(work, options)
            options.pop("max_turns", None)
            state = result.to_state()
            if result.status == "interrupted":
                self._state, self._is_decided = state, False
                await workflow.wait_condition(lambda: self._is_decided)
                self._state = None
            elif result.status == "cancelled":
                # It paused after a turn, and continues as after a crash: its log doesn't end here.
                while isinstance(state.records[-1], RunEnded | CancelRequested):
                    del state.records[-1]
                state = RunState(root, state.records, context=state.context)
                self._give_inputs(state)
            else:
                return result.to_json(codec=setup.codec, converter=config.converter)
            self._records[:] = state.records
            if self._is_long():
                await self._continue_as_new(state)
            work = state

    async def _run_segment(self, work: str | RunState, options: dict[str, Any]) -> RunResult[Any]:
        async with Runner.run_streamed(self._setup.graph.root, work, **options) as stream:
            self._stream = stream
            if self._inputs:
                self._pause()
            try:
                async for _ in stream:
                    pass
            finally:
                self._stream = None
        return stream.result

    def _is_long(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > self._setup.max_history

    def _check_length(self) -> None:
        """Called before each model call: let the run pause after this turn if the history has grown long."""
        if self._is_long():
            self._pause()

    def _pause(self) -> None:
        if self._stream is not None:
            self._stream.cancel("after_turn")

    def _give_inputs(self, state: RunState) -> None:
        while self._inputs:
            try:
                state.add_input(self._inputs[0])
            except StateError:
                return  # the model's last answer isn't dealt with yet, or no turn is left: they wait for the next pause
            _set_time(state)
            del self._inputs[0]

    async def _continue_as_new(self, state: RunState) -> None:
        given = self._given
        await workflow.wait_condition(workflow.all_handlers_finished)
        text = self._store(state)
        workflow.continue_as_new(
            AgentRunInput(given.agent, given.input, given.context, given.max_turns, text, list(self._inputs))
        )

    # -- what others ask of it

    @workflow.update
    def give_verdict(self, verdict: dict[str, Any]) -> None:
        """Take a verdict on a call that waits. Refused if no call of its id and path does, or if it doesn't fit it.

        Without a path it is on the only call of its id that waits, in whichever run.
        """
        self._take(verdict)

    @give_verdict.validator
    def _check_verdict(self, verdict: dict[str, Any]) -> None:
        self._find_call(_read_verdict(verdict))

    @workflow.signal
    def verdict(self, verdict: dict[str, Any]) -> None:
        """Take a verdict like `give_verdict`, from a sender that doesn't wait for the answer: a refusal is logged."""
        try:
            self._take(verdict)
        except (StateError, UserError) as error:
            workflow.logger.warning("a verdict was not taken: %s", error)

    def _take(self, given: dict[str, Any]) -> None:
        verdict = _read_verdict(given)
        call = self._find_call(verdict)
        state = self._state if self._stream is None else None
        decided = self._stream if state is None else state
        assert decided is not None  # a call waits, so there is one of the two
        if verdict.approved:
            decided.approve(call, arguments=verdict.arguments, always=verdict.always, by=verdict.by)
        else:
            decided.reject(call, message=verdict.message, always=verdict.always, by=verdict.by)
        if state is not None:
            _set_time(state)
            self._is_decided = True

    def _find_call(self, verdict: _SentVerdict) -> ApprovalRequest:
        """Return the request of the call that *verdict* is on.

        Raises:
            StateError: no such call waits, or without a path more than one.
        """
        found = [one for one in self._waiting() if one.call.call_id == verdict.call_id]
        if verdict.path is not None:
            found = [one for one in found if one.path == verdict.path]
        if not found:
            raise StateError(f"no call {verdict.call_id!r} waits for a verdict")
        if len(found) > 1:
            raise StateError(f"call id {verdict.call_id!r} waits in {len(found)} runs of the tree: give its path")
        return found[0]

    @workflow.update
    def cancel_call(self, call_id: str, reason: str | None, path: tuple[str, ...] = ()) -> bool:
        """Cancel one call, of the run at *path*, while the run continues. False if it has ended or is unknown."""
        return self._stream is not None and self._stream.cancel_call(call_id, reason, path=path)

    @workflow.signal
    def add_input(self, text: str) -> None:
        """Show the model a message of the user at the end of the turn that runs."""
        self._inputs.append(text)
        self._pause()

    @workflow.query
    def interruptions(self) -> list[dict[str, Any]]:
        """Return the calls that wait for a verdict, those of nested runs included."""
        return [
            {
                "call_id": one.call.call_id,
                "path": list(one.path),
                "tool": one.call.name,
                "arguments": one.call.arguments,
                "agent": one.agent,
            }
            for one in self._waiting()
        ]

    @workflow.query
    def records_after(self, number: int) -> list[dict[str, Any]]:
        """Return the records after the first *number*, as JSON."""
        return [to_json(record) for record in self._records[number:]]

    @workflow.query
    def stored_state(self) -> str:
        """Return the run as `RunState.to_string`, signed if the plugin has a key."""
        state = RunState(self._setup.graph.root, list(self._records))
        return self._store(state)

    def _store(self, state: RunState) -> str:
        setup = self._setup
        # The context is made of the workflow's input again, so it isn't stored.
        return state.to_string(
            key=setup.key, codec=setup.codec, converter=setup.config.converter, context_serializer=lambda _: None
        )

    def _waiting(self) -> tuple[ApprovalRequest, ...]:
        if self._stream is not None:
            return tuple(self._stream.state.interruptions)
        return () if self._state is None else self._state.interruptions
