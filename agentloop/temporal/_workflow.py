"""`AgentWorkflow`, a workflow that runs one agent, and `run_agent` for workflows of the application's own.

Decisions:

Errors of models and bodies are results of activities. Retries, error texts and `in_doubt` are the run's, as
everywhere; the engine repeats an activity only where the tool says that it may, and a model call always. A wait for
an activity is a wait for an event. The engine shields an awaited activity from a cancellation, and anyio repeats a
cancellation in each pass of the loop; a pass takes no time there, so both together never end. Not sandboxed. The
sandbox imports the application's modules anew for each workflow; the agents' objects would be others in the workflow
than in the activities. What the library itself needs of clocks and chance passes the door. A query moves no workflow
(`temporal/_runner.py`). The worker that answers one may have to replay the run first, and the engine's core gives it
the events after the last workflow task, too: a timer that has fired, with the time of the task before. The code would
set the timer again, and the run could never be replayed. So the plugin wraps the runner of workflows, and such a step
is left out: the query fails, `AgentRunHandle` asks again, and the task that comes replays the run. Where none will
come, since the run is over, the handle asks by another name, and the answer is that of the last task. Rejected: to
keep the events until that task, since the core doesn't give a task without its own events. A step that this worker
can't take fails as a whole (`refuse_step`). An error raised in the middle of a run would be an output for the model,
or would cancel the calls beside it, and the commands of that would be in the history. The wrapped runner drops all
commands of the step instead, and the engine gives the task to another worker. It is used where the model called a
tool that it was shown and that is gone here, or has another schema; the activity's result says what was shown, since
the workflow's own records are made anew by each replay. An approval is a marker in the history (`workflow.patched`):
of these the code learns before it comes to the place where it would set them. Rejected: a local activity or a memo,
which fail the replay of code that doesn't ask any more. Bounds are measured before a command is given. The engine
refuses a payload above 2 MB by failing the task, which it then tries for ever; so each input, result and stored run
is measured where it arises, and what is too large is an error of the run or of the call. A model call gets what is
new (`temporal/_conversation.py`), since with whole conversations a history grew with the square of its turns. A run
that has begun with whole ones stays with them until it continues as a new workflow: a replay needs the timers that
their sizes have set. Rejected: the conversation as a list of digests, one for each item, which grows with the square,
too; and a workflow or a local store that holds it, which another worker can't read. A body that may be called
only once has one attempt, and the workflow makes another activity where a worker says that it hasn't begun it. The
engine's retries can't tell that apart from a worker that was lost in the body. A long history ends a turn with
`cancel("after_turn")`, and the log continues without that end, as after a crash. Records are read by queries, since
an update or a signal for each would grow the history that they tell of. What is under way (text, progress) is read
from the details of heartbeats, which the engine keeps beside the history and gives without a worker. Rejected: a
subscriber's workflow that is signalled, which has two histories for each record; and updates that wait for the next
record, of which the engine takes 2,000 a run.
* Sessions, tool sources and output stores are refused in workflows. A save can't be repeated, so each would be in
  doubt after a crash; a source would answer a replay otherwise; and an output is in the history before it could be
  stored.

Rejected: DBOS. Under a limit on concurrency its recovery starts the calls of a turn in another order than before, and
tells the model that effects failed which happened: step results are kept by the order in which steps start, and a
scheduler with limits has none that is stable over a crash.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

import anyio._backends._asyncio  # noqa: F401 - else it is imported within a workflow
import attrs
import msgspec
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from agentloop._common.masking import mask_arguments
from agentloop._storage.public_json import to_json
from agentloop.config import RunConfig
from agentloop.exceptions import InputRefusedError, StateError, UserError
from agentloop.items import ApprovalRequest, CallToAnswer, Interruption, Item
from agentloop.records import CancelRequested, Record, RunEnded
from agentloop.results import RunResult
from agentloop.run import ResumeOptions, Runner
from agentloop.state import RunState, answer_to
from agentloop.temporal._effects import WorkflowEffects, leave
from agentloop.temporal._options import AgentSetup, find_setup
from agentloop.temporal._payloads import check_size, fit_answer, measure, pack, pack_answer, split_result, unpack
from agentloop.temporal._runner import ENDED, refuse_step
from agentloop.temporal._substitutes import NamedModels, RecordList, observe_once

_ESSENTIALS = (
    *("status", "final_output", "stop_reason", "finish_reason", "last_response_id", "last_agent", "usage"),
    "interruptions",
)
"""The parts of a result that are returned always."""
_ANSWER = 1_000_000
"""Bytes of records in the answer to one query."""


@dataclass
class AgentRunInput:
    """The argument of an `AgentWorkflow`.

    Attributes:
        agent: The name under which the `AgentPlugin` of the worker has the agent.
        input: The user's message; empty where *state* is given.
        context: A JSON value, from which the worker makes the application's object.
        max_turns: As for `Runner.run`.
        state: A stored run to continue, in place of *input*: set where a workflow continues as a new one. Compressed if
            it is long.
        pending_input: Messages not yet given to that run.
        by_parts: True if model calls get what is new in their conversation. False if a marker in the history says
            whether they do, as in runs that an older client or worker has started.
    """

    agent: str
    input: str = ""
    context: Any = None
    max_turns: int | None = 10
    state: str | None = None
    pending_input: list[str] = field(default_factory=list)
    by_parts: bool = False


class _SentVerdict(msgspec.Struct, forbid_unknown_fields=True):
    """A verdict as senders give it. Without a *path* it is on the only call of that id that waits."""

    call_id: str
    approved: bool
    path: tuple[str, ...] | None = None
    arguments: str | dict[str, Any] | None = None
    message: str | None = None
    always: bool = False
    by: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if self.approved and self.message is not None:
            raise ValueError("a message goes with a rejection")
        if not self.approved and self.arguments is not None:
            raise ValueError("arguments go with an approval")


class _SentAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The answer to a call as senders give it. Without a *path* it is to the only call of that id that waits."""

    call_id: str
    value: Any = None
    path: tuple[str, ...] | None = None
    error: str | None = None
    by: str | None = None


class _SentInput(msgspec.Struct, forbid_unknown_fields=True):
    """An input as senders give it."""

    text: str
    when: Literal["turn", "idle"] = "turn"
    id: str | None = None
    by: str | None = None


class _SentWithdrawal(msgspec.Struct, forbid_unknown_fields=True):
    """Takes the input *id* back, as senders say so."""

    id: str
    by: str | None = None


SentT = TypeVar("SentT", _SentVerdict, _SentAnswer, _SentInput, _SentWithdrawal)
AskedT = TypeVar("AskedT", ApprovalRequest, CallToAnswer)
GivenT = TypeVar("GivenT")


def _read(given: dict[str, Any], kind: type[SentT], what: str) -> SentT:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"the {what} doesn't fit: {error}") from None


def _read_verdict(given: dict[str, Any]) -> _SentVerdict:
    return _read(given, _SentVerdict, "verdict")


@contextmanager
def _telling_reason() -> Iterator[None]:
    """Send the reason of a refusal with it: of an error the engine keeps type and message only."""
    try:
        yield
    except InputRefusedError as error:
        raise ApplicationError(str(error), error.reason, type=InputRefusedError.__name__) from error


def _find_one(
    asked: Iterable[AskedT], sent: _SentVerdict | _SentAnswer, waiting: Sequence[Interruption], what: str
) -> AskedT:
    """Return what of *asked* the sender means; *waiting* is what has no verdict and no answer.

    Raises:
        StateError: no such call waits for *what*, or without a path more than one.
    """
    named = [one for one in asked if one.call.call_id == sent.call_id and sent.path in (None, one.path)]
    found = [one for one in named if one in waiting] or named  # of one that is decided on, the state says so
    if not found:
        raise StateError(f"no call {sent.call_id!r} waits for {what}")
    if len(found) > 1:
        raise StateError(f"call id {sent.call_id!r} waits in {len(found)} runs of the tree: give its path")
    return found[0]


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
        UserError: an option isn't supported in a workflow.
        AgentLoopError: as for `Runner.run`. The plugin declares it a failure of the workflow.

    A worker that lacks the agent, or whose agent doesn't fit the run, fails the workflow task: another worker takes it.
    """
    with leaving():
        setup = find_setup(agent)
    if options.get("session") is not None:
        raise UserError("session: not supported in a workflow, whose own history holds the run")
    context = options.get("context")
    effects = WorkflowEffects(agent, setup, context)
    options["run_config"] = _configure(options.get("run_config") or setup.config, effects)
    options["context"] = setup.restore_context(context)
    with leaving():
        return await Runner.run(setup.graph.root, input, **options)
    raise AssertionError("the block above returns or raises")  # pragma: no cover


@contextmanager
def leaving() -> Iterator[None]:
    """Leave the workflow task to another worker where the run doesn't fit the agents of this one."""
    try:
        yield
    except StateError as error:
        refuse_step(str(error))
        raise


def _is_end(record: Record) -> bool:
    """Tell whether *record* is of the end of a run segment."""
    return isinstance(record, RunEnded) or (isinstance(record, CancelRequested) and record.call_id is None)


def _configure(config: RunConfig, effects: WorkflowEffects) -> RunConfig:
    if config.output_store is not None:
        raise UserError("RunConfig.output_store: not supported in a workflow")
    return attrs.evolve(
        config,
        effects=effects,
        model_provider=NamedModels(),
        instruments=tuple(map(observe_once, config.instruments)),
    )


def _give(decided: Any, call: ApprovalRequest, verdict: _SentVerdict) -> None:
    """Give *verdict* on *call* of *decided*, a state or a stream."""
    given: dict[str, Any] = {"always": verdict.always, "by": verdict.by, "replace": verdict.replace}
    if verdict.approved:
        decided.approve(call, arguments=verdict.arguments, **given)
    else:
        decided.reject(call, message=verdict.message, **given)


def _give_answer(state: RunState, call: CallToAnswer, answer: _SentAnswer) -> None:
    """Give *answer* to *call* of *state*, at the workflow's time: a replay has to judge its timeout as we do now."""
    state._append(answer_to(state._fold, call, answer.value, workflow.time(), error=answer.error, by=answer.by))


def _find_time_left(state: RunState) -> float | None:
    """Return the seconds until the first call that waits can't be answered any more; None if there is no limit."""
    ends = [one.expires_at for one in state.interruptions if isinstance(one, CallToAnswer) and one.expires_at]
    return max(min(ends) - workflow.time(), 0.0) + 0.001 if ends else None


def _set_time(state: RunState) -> None:
    """Give the latest record the workflow's time, which a replay has again. A state reads the clock of the machine."""
    state.records[-1] = state.records[-1].replace(at=workflow.time())


@workflow.defn(name="AgentRun", sandboxed=False)
class AgentWorkflow:
    """A workflow that runs one agent to its end.

    It waits for the verdicts of calls that need approval and for answers of the application, takes more input, cancels
    single calls, and continues as a new workflow with the stored run when its history grows long. `AgentRunHandle` has
    these as methods.

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
        self._between: RunState | None = None
        """The state with which the run continues, between two segments: it takes inputs."""
        self._is_decided = False
        self._is_over = False

    @property
    def _setup(self) -> AgentSetup:
        return find_setup(self._given.agent)

    @workflow.run
    async def run(self, given: AgentRunInput) -> dict[str, Any]:
        """Run the agent and return how the run ended: its status, output, usage and error."""
        with leaving():
            try:
                return self._write_result(await self._run_to_end(given))
            finally:
                self._is_over = True
        raise AssertionError("the block above returns or raises")  # pragma: no cover

    async def _run_to_end(self, given: AgentRunInput) -> RunResult[Any]:
        setup, root = self._setup, self._setup.graph.root
        effects = WorkflowEffects(given.agent, setup, given.context, self._check_length, by_parts=given.by_parts)
        config = _configure(setup.config, effects)
        config = attrs.evolve(config, instruments=(*config.instruments, RecordList(self._records)))
        work: str | RunState = given.input
        if given.state is not None:
            text = unpack(given.state)
            work = RunState.from_string(
                root,
                text,
                key=setup.key,
                codec=setup.codec,
                converter=config.converter,
                bound_to=await self._find_bond(text),
            )
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
                with suppress(TimeoutError):  # no answer has come in time: the run says so
                    await workflow.wait_condition(lambda: self._is_decided, timeout=_find_time_left(state))
                self._state = None
            elif result.status == "cancelled":
                # It paused after a turn, and continues as after a crash: its log doesn't end here.
                while _is_end(state.records[-1]):
                    del state.records[-1]
                state = RunState(root, state.records, context=state.context)
                self._give_inputs(state)
            else:
                return result
            self._records[:] = state.records
            self._between = state
            if self._is_long():
                await self._continue_as_new(state)
            self._between, work = None, state

    async def _find_bond(self, text: str) -> str | None:
        """Return the name for which the state *text*, with which this workflow continues, has to be sealed."""
        if self._setup.key is None:
            return None
        try:
            seal = json.loads(text)["seal"]
        except (ValueError, LookupError, TypeError):  # no state, or none that was sealed: reading it tells
            seal = None
        if not isinstance(seal, Mapping) or "bound" in seal:
            return workflow.info().workflow_id
        if not self._setup.older_seals:
            await leave(
                "the state with which the run continues was sealed by an older version, for no workflow: give the "
                "worker AgentPlugin(older_seals=True) while such runs are under way"
            )
        return None

    def _write_result(self, result: RunResult[Any]) -> dict[str, Any]:
        """Return *result* as JSON, its details compressed; without these if the engine doesn't take it whole.

        Raises:
            PayloadTooLarge: not even then.
        """
        setup = self._setup
        data = result.to_json(codec=setup.codec, converter=setup.config.converter)
        if measure(data) > setup.max_payload:
            data = {name: data[name] for name in _ESSENTIALS} | {"left_out": sorted(data.keys() - set(_ESSENTIALS))}
        else:
            data = split_result(data, _ESSENTIALS, is_packing=setup.is_packing)
        return fit_answer("the run's final output", data, setup.max_payload)

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
                return  # no turn is left: a run that is resumed with more of them takes it
            _set_time(state)
            del self._inputs[0]

    async def _continue_as_new(self, state: RunState) -> None:
        given = self._given
        await workflow.wait_condition(workflow.all_handlers_finished)
        bound_to = None if self._setup.key is None else workflow.info().workflow_id
        text = pack(self._store(state, bound_to), is_packing=self._setup.is_packing)
        # The input is in the stored run.
        more = AgentRunInput(given.agent, "", given.context, given.max_turns, text, list(self._inputs), by_parts=True)
        check_size("the run, stored,", asdict(more), self._setup.max_payload)
        workflow.continue_as_new(more)

    # -- what others ask of it

    @workflow.update
    def give_verdict(self, verdict: dict[str, Any]) -> None:
        """Take a verdict on a call that waits. Refused if no call of its id and path does, or if it doesn't fit it.

        Without a path it is on the only call of its id that waits, in whichever run.
        """
        self._take(verdict)

    @give_verdict.validator
    def _check_verdict(self, verdict: dict[str, Any]) -> None:
        read = _read_verdict(verdict)
        asked = self._find_call(read)
        if read.arguments is not None and asked.call.secret:
            raise UserError(
                f"call {asked.call.call_id!r} has secret arguments, which the engine's history would hold in plain "
                "text: it can be approved or rejected as it is"
            )
        now = self._now()
        _give(RunState._of(now.agent, now._fold, None, now.converter), asked, read)  # a copy refuses what doesn't fit

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
        _give(self._stream if state is None else state, call, verdict)
        if state is not None:
            _set_time(state)
            state._close_verdicts()
            self._is_decided = True

    def _find_call(self, verdict: _SentVerdict) -> ApprovalRequest:
        """Return the request of the call that *verdict* is on.

        Raises:
            StateError: no such call waits, or without a path more than one.
        """
        state = self._now()
        return _find_one(state._asked(), verdict, state.interruptions, "a verdict")

    @workflow.update
    async def give_answer(self, answer: dict[str, Any]) -> None:
        """Take the answer to a call that waits for the application. Refused as by `RunState.answer`.

        Without a path it is to the only call of its id that waits, in whichever run.
        """
        await self._take_answer(answer)

    @give_answer.validator
    def _check_answer(self, answer: dict[str, Any]) -> None:
        read = _read(answer, _SentAnswer, "answer")
        now = self._now()
        asked = _find_one(now._questions(), read, now.interruptions, "an answer")
        if asked.call.secret_output and read.error is None:
            raise UserError(
                f"the output of call {asked.call.call_id!r} is secret, and the engine's history would hold the answer "
                "in plain text: only an error can be given"
            )
        _give_answer(RunState._of(now.agent, now._fold, None, now.converter), asked, read)  # a copy refuses

    @workflow.signal
    async def answer(self, answer: dict[str, Any]) -> None:
        """Take an answer like `give_answer`, from a sender that doesn't wait: a refusal is logged."""
        try:
            self._check_answer(answer)
            await self._take_answer(answer)
        except (StateError, UserError) as error:
            workflow.logger.warning("an answer was not taken: %s", error)

    async def _take_answer(self, given: dict[str, Any]) -> None:
        answer, now = _read(given, _SentAnswer, "answer"), self._now()
        asked = _find_one(now._questions(), answer, now.interruptions, "an answer")
        if self._stream is not None:
            await self._stream.answer(asked, answer.value, error=answer.error, by=answer.by)
        else:
            _give_answer(now, asked, answer)
            self._is_decided = True

    @workflow.update
    def cancel_call(self, call_id: str, reason: str | None, path: tuple[str, ...] = ()) -> bool:
        """Cancel one call, of the run at *path*, while the run continues. False if it has ended or is unknown."""
        return self._stream is not None and self._stream.cancel_call(call_id, reason, path=path)

    @cancel_call.validator
    def _check_cancel(self, call_id: str, reason: str | None, path: tuple[str, ...] = ()) -> None:
        if self._stream is None and self._state is not None:
            self._state._refuse_cancel(tuple(path), call_id)

    @workflow.update
    async def give_input(self, input: dict[str, Any]) -> str:
        """Take an input, and return its id. Refused as by `RunState.add_input`."""
        return await self._take_input(input)

    @give_input.validator
    def _check_input(self, input: dict[str, Any]) -> None:
        _read(input, _SentInput, "input")

    @workflow.signal
    async def input(self, input: dict[str, Any]) -> None:
        """Take an input like `give_input`, from a sender that doesn't wait: a refusal is logged."""
        try:
            await self._take_input(input)
        except (ApplicationError, UserError) as error:
            workflow.logger.warning("an input was not taken: %s", error)

    async def _take_input(self, given: dict[str, Any]) -> str:
        sent = _read(given, _SentInput, "input")
        options: dict[str, Any] = {"when": sent.when, "id": sent.id, "by": sent.by}
        with _telling_reason():
            return await self._give_in(
                "add_input",
                lambda stream: stream.add_input(sent.text, **options),
                lambda state: state.add_input(sent.text, **options),
            )
        raise AssertionError("the block above returns or raises")  # pragma: no cover

    @workflow.update
    async def withdraw_input(self, withdrawal: dict[str, Any]) -> None:
        """Take back an input that the model hasn't been shown. Refused as by `RunState.withdraw`."""
        sent = _read(withdrawal, _SentWithdrawal, "withdrawal")
        with _telling_reason():
            await self._give_in(
                "withdraw",
                lambda to: to.withdraw(sent.id, by=sent.by),
                lambda state: state.withdraw(sent.id, by=sent.by),
            )

    @withdraw_input.validator
    def _check_withdrawal(self, withdrawal: dict[str, Any]) -> None:
        _read(withdrawal, _SentWithdrawal, "withdrawal")

    async def _give_in(
        self, what: str, live: Callable[[Any], Awaitable[GivenT]], paused: Callable[[RunState], GivenT]
    ) -> GivenT:
        """Give something to the run under way by *live*, or to its state by *paused*; between the two, wait.

        Raises:
            InputRefusedError: the run is over, or refuses it.
        """
        while True:
            stream = self._stream
            if stream is not None:
                try:
                    return await live(stream)
                except InputRefusedError as error:
                    if error.reason != "over":  # a segment that ends isn't the end of the run
                        raise
            elif (state := self._state or self._between) is not None:
                before = len(state.records)
                given = paused(state)
                if len(state.records) > before:
                    _set_time(state)
                self._records[:] = state.records
                return given
            elif self._is_over:
                raise InputRefusedError(f"{what}: the run is over", reason="over")
            await workflow.wait_condition(partial(self._has_left, stream))

    def _has_left(self, stream: Any) -> bool:
        """True once what takes inputs is no longer *stream*; None is a moment at which nothing does."""
        return self._stream is not stream or (
            stream is None and (self._is_over or (self._state or self._between) is not None)
        )

    @workflow.signal
    def add_input(self, text: str) -> None:
        """Show the model a message of the user at the end of the turn that runs: the signal of older handles."""
        self._inputs.append(text)
        self._pause()

    @workflow.query
    def interruptions(self) -> list[dict[str, Any]]:
        """Return the calls that wait for a verdict or an answer, also of nested runs. Secret arguments are masked."""
        return [
            {
                "call_id": one.call.call_id,
                "path": list(one.path),
                "tool": one.call.name,
                "arguments": mask_arguments(one.call.arguments, one.call.secret),
                "agent": one.agent,
                **({"returns": one.returns, "expires_at": one.expires_at} if isinstance(one, CallToAnswer) else {}),
            }
            for one in self._now().interruptions
        ]

    @workflow.query
    def records_after(self, number: int) -> list[dict[str, Any]]:
        """Return records after the first *number*, as JSON: as many as fit into an answer, and one at least."""
        room, found = _ANSWER, list[dict[str, Any]]()
        for record in self._records[number:]:
            written = to_json(record)
            size = measure(written)
            room -= size
            if found and room < 0:
                break
            found.append(written if size <= self._setup.max_payload else pack_answer(written))
        return found

    @workflow.query
    def stored_state(self) -> str:
        """Return the run as `RunState.to_string`, signed if the plugin has a key; compressed if it is long."""
        state = RunState(self._setup.graph.root, list(self._records))
        text = pack(self._store(state), is_packing=self._setup.is_packing)
        check_size("the run, stored,", text, self._setup.max_payload)
        return text

    @workflow.query(name=f"{ENDED}interruptions")
    def _interruptions_of_ended(self) -> list[dict[str, Any]]:
        return self.interruptions()

    @workflow.query(name=f"{ENDED}records_after")
    def _records_of_ended(self, number: int) -> list[dict[str, Any]]:
        return self.records_after(number)

    @workflow.query(name=f"{ENDED}stored_state")
    def _state_of_ended(self) -> str:
        return self.stored_state()

    def _store(self, state: RunState, bound_to: str | None = None) -> str:
        setup = self._setup
        # The context is made of the workflow's input again, so it isn't stored.
        return state.to_string(
            key=setup.key,
            codec=setup.codec,
            converter=setup.config.converter,
            context_serializer=lambda _: None,
            bound_to=bound_to,
        )

    def _now(self) -> RunState:
        """Return the run as it is now, under way or paused; an empty one between the two."""
        if self._stream is not None:
            state: RunState = self._stream.state
            return state
        return RunState(self._setup.graph.root, ()) if self._state is None else self._state
