"""The client's side of a run: start it, ask it, decide about its calls, wait for its end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from uuid import uuid4

import anyio
import attrs
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from agentloop._common.checks import NAMES, check
from agentloop._storage.public_json import record_from_json
from agentloop.exceptions import (
    AgentLoopError,
    InputRefusedError,
    StateError,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.items import UserMessage
from agentloop.records import InputAdded, Record
from agentloop.state import as_json, as_text
from agentloop.temporal._activities import CALL_MODEL, CALL_TOOL
from agentloop.temporal._live import Beat, LiveEvent, LiveView
from agentloop.temporal._payloads import join_result, open_answer, unpack
from agentloop.temporal._runner import ENDED, TOO_EARLY, UNFIT
from agentloop.temporal._workflow import AgentRunInput, AgentWorkflow

_CALL_ID = NAMES.text()
_FLAG = NAMES.flag()
_REFUSALS = {kind.__name__: kind for kind in (StateError, UserError, UserTypeError, UserValueError)}
"""The errors of the workflow about a verdict or an answer, by the names that the engine gives them."""
_CALL_PATH = NAMES.texts("expected a sequence of call ids")


@attrs.frozen(kw_only=True)
class AgentRunResult:
    """How the run of a workflow ended.

    Attributes:
        status: As `RunResult.status`.
        final_output: The final output as plain data.
        data: The result as JSON: the value of `RunResult.to_json`. The engine takes payloads up to a size only: of a
            longer run the items, calls and responses aren't in it, and `left_out` names them. `records` has them.
    """

    status: str
    final_output: Any
    data: Mapping[str, Any] = attrs.field(repr=False)


class WorkerUnavailable(AgentLoopError):
    """No worker has answered in time: none is there, or those that are can't take the run's next step.

    The message says which of the two, as far as the engine knows. The run waits, and continues with a worker that fits.
    """


@attrs.frozen
class AgentRunHandle:
    """A run of an `AgentWorkflow`. Made by `start_run` and `get_run`; it holds no connection.

    Each method is a request to the engine, and raises the errors of its client (`temporalio.service.RPCError`). Methods
    that need a worker's answer wait for one for *timeout* seconds (None: without a limit), and raise
    `WorkerUnavailable` then. A cancellation leaves them as a cancellation; a request that was sent may still be taken.

    Attributes:
        workflow: The engine's own handle, for all that isn't special to agents.
    """

    workflow: WorkflowHandle[Any, Any]

    @property
    def id(self) -> str:
        """The id of the workflow."""
        return self.workflow.id

    async def result(self) -> AgentRunResult:
        """Wait for the end of the run, whichever workers perform it, and return its result.

        Cancellation: the run continues.

        Raises:
            temporalio.client.WorkflowFailureError: the run failed or was cancelled; its cause names the error.
            UserError: the result is in a store of parts, which the client's plugin doesn't have.
            PartLost: the store doesn't have it.
        """
        with _reading():
            data = join_result(open_answer(await self.workflow.result()))
        return AgentRunResult(status=data["status"], final_output=data.get("final_output"), data=data)

    async def cancel(self) -> None:
        """Ask for the end of the run. Its activities are cancelled and awaited; `result` then raises."""
        await self.workflow.cancel()

    async def interruptions(self, *, timeout: float | None = 30.0) -> list[dict[str, Any]]:
        """Return the calls that wait for a verdict or for their answer, those of nested runs included.

        Each is its `call_id`, `path` (the ids of the agent-tool calls around it), `tool`, `arguments` (JSON text with
        secret ones masked) and `agent`. One to `answer` has two more: `returns`, the JSON schema of the answer, and
        `expires_at`, the time after which none counts, or None.

        Raises:
            WorkerUnavailable: no worker has answered within *timeout* seconds.
        """
        waiting: list[dict[str, Any]] = await _ask(self.workflow, "interruptions", timeout=timeout)
        return waiting

    async def approve(
        self,
        call_id: str,
        *,
        path: Sequence[str] | None = None,
        arguments: str | Mapping[str, Any] | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
        wait: bool = True,
        timeout: float | None = 30.0,
    ) -> None:
        """Approve a call that waits, as `RunState.approve`; returns when the workflow has taken the verdict.

        Args:
            call_id: The id of the call.
            path: The path of the call's run, as `interruptions` gives it; if it isn't given, the only call of that id
                is meant, in whichever run it waits.
            arguments: As for `RunState.approve`, like *always*, *by* and *replace*. Not for a call with secret
                arguments. A run continues at its next workflow task, so little time is left to replace a verdict.
            wait: False to return as soon as the engine has stored the verdict; no worker is needed for that. One that
                doesn't fit the call is logged by the worker then, and not raised here.
            timeout: The seconds to wait for a worker.

        Raises:
            StateError: the call has a verdict already (says which one, and whose) and *replace* is False; no such call
                waits; or without a path more than one.
            UserError: the verdict doesn't fit the call, which then still waits.
            WorkerUnavailable: no worker has taken the verdict in time; the next one may still take it.
        """
        text = None if arguments is None else as_text(arguments)
        verdict = {"call_id": call_id, "approved": True, "arguments": text, "always": always, "by": by}
        await self._decide(verdict, path, replace, wait, timeout)

    async def reject(
        self,
        call_id: str,
        *,
        path: Sequence[str] | None = None,
        message: str | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
        wait: bool = True,
        timeout: float | None = 30.0,
    ) -> None:
        """Reject a call that waits, as `RunState.reject`; returns when the workflow has taken the verdict.

        Arguments and errors are those of `approve`, and *message* is what the model receives.
        """
        verdict = {"call_id": call_id, "approved": False, "message": message, "always": always, "by": by}
        await self._decide(verdict, path, replace, wait, timeout)

    async def answer(
        self,
        call_id: str,
        value: Any = None,
        *,
        path: Sequence[str] | None = None,
        error: str | None = None,
        by: str | None = None,
        wait: bool = True,
        timeout: float | None = 30.0,
    ) -> None:
        """Answer a call that waits for the application, as `RunState.answer`; returns when the workflow has taken it.

        Args:
            call_id: The id of the call.
            value: The answer, of JSON's own types, as the call's `returns` in `interruptions` says. Not for a call
                whose output is secret: the engine's history would hold it.
            path: As for `approve`.
            error: In place of a value: the call has failed, and the model reads these words.
            by: Who answers; the log keeps it.
            wait: False to return as soon as the engine has stored the answer; no worker is needed for that. One that
                doesn't fit is logged by the worker then, and not raised here.
            timeout: The seconds to wait for a worker.

        Raises:
            StateError: the call has its answer (says whose: the first one counts), or took longer than its tool's
                timeout; no such call waits; or without a path more than one.
            UserError: the value doesn't fit. The call then still waits.
            WorkerUnavailable: no worker has taken the answer in time; the next one may still take it.
        """
        answer = {"call_id": call_id, "value": as_json(value), "error": error, "by": by}
        await self._give("answer", answer, path, wait, timeout)

    async def _decide(
        self, verdict: dict[str, Any], path: Sequence[str] | None, replace: bool, wait: bool, timeout: float | None
    ) -> None:
        check("replace", _FLAG, replace)
        if replace:  # else as workers know it that are older than the word
            verdict["replace"] = True
        await self._give("verdict", verdict, path, wait, timeout)

    async def _give(
        self, what: str, given: dict[str, Any], path: Sequence[str] | None, wait: bool, timeout: float | None
    ) -> None:
        """Send *given* by the workflow's update `give_WHAT`, or by its signal WHAT."""
        check("call_id", _CALL_ID, given["call_id"])
        if path is not None:
            check("path", _CALL_PATH, path)
            given["path"] = list(path)
        if not wait:
            await self.workflow.signal(what, given)
            return
        try:
            await _update(self.workflow, f"give_{what}", [given], timeout=timeout)
        except WorkflowUpdateFailedError as error:
            raise _read_refusal(error) from error

    async def cancel_call(
        self, call_id: str, reason: str | None = None, *, path: Sequence[str] = (), timeout: float | None = 30.0
    ) -> bool:
        """Cancel one call while the run continues. Returns False if it has ended or is unknown.

        Args:
            call_id: The id of the call.
            reason: What the output says.
            path: The path of the call's run, as its records have it: the ids of the agent-tool calls around it.
            timeout: The seconds to wait for a worker.

        Raises:
            StateError: the run has paused, and the call waits for a verdict: `reject` it.
            UserTypeError: *call_id* isn't text, or *path* no sequence of texts.
            WorkerUnavailable: no worker has answered in time.
        """
        check("call_id", _CALL_ID, call_id)
        check("path", _CALL_PATH, path)
        # Without a path as handles sent it before there were paths: workers of that time take two arguments.
        given = [call_id, reason, list(path)] if path else [call_id, reason]
        try:
            found: bool = await _update(self.workflow, "cancel_call", given, timeout=timeout)
        except WorkflowUpdateFailedError as error:
            raise _read_refusal(error) from error
        return found

    async def add_input(
        self,
        text: str,
        *,
        when: Literal["turn", "idle"] = "turn",
        id: str | None = None,
        by: str | None = None,
        wait: bool = True,
        timeout: float | None = 30.0,
    ) -> str:
        """Add a message of the user to the run, as `RunState.add_input`; return its id when the workflow has taken it.

        The model is shown it once: with the next request, or, with `when="idle"`, when the run would end otherwise.

        Args:
            text: The message.
            when: `"turn"` or `"idle"`.
            id: The id of the input, which you choose; a second call with it and the same text adds nothing.
            by: Who gives the input; the log keeps it.
            wait: False to return as soon as the engine has stored the input; no worker is needed for that. One that
                the run refuses is logged by the worker then, and not raised here.
            timeout: The seconds to wait for a worker.

        Raises:
            InputRefusedError: the run is over or has no turn left, another input has the id, or the one that has it was
                withdrawn or rejected; its `reason` says which.
            UserError: the text or an argument doesn't fit.
            WorkerUnavailable: no worker has taken the input in time; the next one may still take it.
        """
        given = {"text": text, "when": when, "id": id, "by": by}
        if wait:
            taken: str = await self._send_input("give_input", given, timeout)
            return taken
        given["id"] = name = id or f"input_{uuid4().hex}"
        await self.workflow.signal("input", given)
        return name

    async def withdraw(self, id: str, *, by: str | None = None, timeout: float | None = 30.0) -> None:
        """Take back the added input *id*, which the model hasn't been shown, as `RunState.withdraw`.

        Raises:
            InputRefusedError: the run is over, or the input doesn't wait; its `reason` says what has become of it.
            UserError: an argument doesn't fit.
            WorkerUnavailable: no worker has answered in time; the next one may still take the input back.
        """
        await self._send_input("withdraw_input", {"id": id, "by": by}, timeout)

    async def _send_input(self, name: str, given: dict[str, Any], timeout: float | None) -> Any:
        while True:
            try:
                return await _update(self.workflow, name, [given], timeout=timeout)
            except WorkflowUpdateFailedError as error:
                if not _has_ended(error.cause):
                    raise _read_refusal(error) from error
                why: Exception = error
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                why = error
            if (await self.workflow.describe()).close_time is not None:
                break
            if not isinstance(why, RPCError):
                raise why
            # The run has continued as a new workflow in the meantime: that one is asked.
        if name == "give_input" and given["id"] is not None and await self._has_input(given["id"], given["text"]):
            return given["id"]
        raise InputRefusedError(f"{name}: the run is over", reason="over") from why

    async def _has_input(self, id: str, text: str) -> bool:
        """True if the log has the input *text* by this id: it was taken by a call whose answer didn't come."""
        async for record in self.records():
            if isinstance(record, InputAdded) and record.id == id:
                return record.items == (UserMessage(text),)
        return False

    def records(self, *, after: int = 0, interval: float = 0.5, timeout: float | None = 60.0) -> AsyncIterator[Record]:
        """Return an iterator of the run's records as it makes them, from number *after* on, up to the end of the run.

        Queries are asked every *interval* seconds; they add nothing to the workflow's history. Values that tools mark
        secret are placeholders. Of a run that is over, the records up to its last workflow task are read.

        Where no worker answers a query for *timeout* seconds, `WorkerUnavailable` is raised; *after* continues later.
        """
        return _Records(self.workflow, after, interval, timeout)

    def watch(
        self, *, after: int = 0, interval: float = 0.5, timeout: float | None = 60.0
    ) -> AsyncIterator[Record | LiveEvent]:
        """Return an iterator of the run's records, like `records`, and between them of what its activities show.

        A `TextDelta` is new text of a model's answer, a `CallProgress` a body's report, and a `CustomEvent` what a body
        emitted last, as JSON. They come with heartbeats, so about each second, and are a preview: the record that
        follows has the whole. Text that came between two looks and was longer than 16,000 characters is shortened to
        these; a model that answers within a second shows none; of a call whose worker was lost, the text of the first
        attempt is shown. Progress is shown of calls whose `ModelResponded` this iterator has yielded.
        """
        return _Events(self.workflow, after, interval, timeout)

    async def stored_state(self, *, timeout: float | None = 30.0) -> str:
        """Return the run as `RunState.to_string` would, for `RunState.from_string`; signed if the plugin has a key.

        Raises:
            WorkerUnavailable: no worker has answered within *timeout* seconds.
            WorkflowQueryFailedError: the state is longer than an answer of the engine may be; `records` has no limit.
        """
        text: str = await _ask(self.workflow, "stored_state", timeout=timeout)
        return unpack(text)


_UNANSWERED = (
    *(RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE),
    RPCStatusCode.FAILED_PRECONDITION,  # there was no worker lately, or its workflow task fails
)
_FAILED_TASK = "Workflow Task in failed state"
"""The engine's words, with changing status codes, about a run whose workflow task has failed and is tried again."""


def _may_pass(error: Exception) -> bool:
    """Tell whether the engine may answer if it is asked again: a worker may come, or another one."""
    if isinstance(error, RPCError):
        return error.status in _UNANSWERED or _FAILED_TASK in str(error)
    if isinstance(error, WorkflowQueryFailedError):
        return TOO_EARLY in str(error) or UNFIT in str(error)
    return isinstance(error, WorkflowUpdateRPCTimeoutOrCancelledError)


async def _repeat(
    handle: WorkflowHandle[Any, Any],
    what: str,
    ask: Callable[[], Awaitable[Any]],
    *,
    interval: float = 0.5,
    timeout: float | None,
) -> Any:
    """Return the answer to *ask*, which is repeated while no worker takes it, or one that is dying or doesn't fit.

    Raises:
        WorkerUnavailable: there was no answer for *timeout* seconds.
        Exception: another error of *ask*.
    """
    why: Exception | None = None
    with anyio.move_on_after(timeout):
        while True:
            try:
                return await ask()
            except (RPCError, WorkflowQueryFailedError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
                if isinstance(error.__cause__, anyio.get_cancelled_exc_class()):
                    raise error.__cause__ from None  # the client makes an ordinary error of a cancellation
                if not _may_pass(error):
                    raise
                why = error
            await anyio.sleep(interval)
    reason = await _find_task_failure(handle) or (str(why) if why is not None else "there is none on its task queue")
    raise WorkerUnavailable(f"{what}: no worker of run {handle.id!r} has answered within {timeout} s: {reason}")


async def _find_task_failure(handle: WorkflowHandle[Any, Any]) -> str | None:
    """Return why the run's latest workflow task has failed; None if it hasn't, or if the engine doesn't tell soon."""
    client = handle._client
    execution = WorkflowExecution(workflow_id=handle.id, run_id=handle.run_id or "")
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=execution, maximum_page_size=10
    )
    with anyio.move_on_after(5.0):  # noqa: ASYNC912 - the request is a checkpoint, also if it raises
        try:
            found = await client.workflow_service.get_workflow_execution_history_reverse(request)
        except RPCError:
            return None
        for event in found.history.events:
            if event.HasField("workflow_task_completed_event_attributes"):
                return None
            if event.HasField("workflow_task_failed_event_attributes"):
                return event.workflow_task_failed_event_attributes.failure.message
    return None


@contextmanager
def _reading() -> Iterator[None]:
    """Say what to do where an answer is in a store of parts and the client has none."""
    try:
        yield
    except RuntimeError as error:
        if _NO_STORE not in str(error):
            raise
        raise UserError(
            "the answer is in the workers' store of parts: connect the client with plugins=[AgentPlugin({}, store=…)]"
        ) from None


_NO_STORE = "[TMPRL1105]"
"""The mark of the SDK's error for a payload that is stored outside, where it knows no storage."""


async def _ask(
    handle: WorkflowHandle[Any, Any],
    query: Literal["interruptions", "records_after", "stored_state"],
    *given: Any,
    interval: float = 0.5,
    timeout: float | None,
) -> Any:
    """Ask a run. One that is over, and has events that no workflow task has dealt with, is asked by another name.

    Raises:
        WorkerUnavailable: no worker has answered for *timeout* seconds.
        RPCError: the engine refuses the query.
        WorkflowQueryFailedError: the workflow's code has failed.
    """
    name: str = query

    async def ask() -> Any:
        nonlocal name
        try:
            with _reading():
                return await handle.query(name, args=given)
        except WorkflowQueryFailedError as error:
            closed = TOO_EARLY in str(error) and (await handle.describe()).close_time  # noqa: ASYNC120 - it may
            if closed:
                name = f"{ENDED}{query}"
            raise

    return await _repeat(handle, f"the query {query!r}", ask, interval=interval, timeout=timeout)


async def _update(handle: WorkflowHandle[Any, Any], name: str, given: list[Any], *, timeout: float | None) -> Any:
    """Send an update and return its result. It has an id, so that repeating it doesn't make it twice. As `_repeat`."""
    own = uuid4().hex
    return await _repeat(
        handle, f"the update {name!r}", lambda: handle.execute_update(name, args=given, id=own), timeout=timeout
    )


def _has_ended(cause: BaseException | None) -> bool:
    """True of the engine's own error about an update that was open when the workflow ended."""
    return isinstance(cause, ApplicationError) and cause.type == "AcceptedUpdateCompletedWorkflow"


def _read_refusal(error: WorkflowUpdateFailedError) -> Exception:
    """Return the error with which the workflow has refused an update; *error* itself if it isn't one of ours."""
    if not isinstance(cause := error.cause, ApplicationError):
        return error
    if cause.type == InputRefusedError.__name__:
        return InputRefusedError(cause.message, reason=str(cause.details[0]))
    return _REFUSALS.get(cause.type or "", StateError)(cause.message)


class _Look:
    """Reads the records of a run after the first *number*, again and again, until the run is over."""

    def __init__(self, handle: WorkflowHandle[Any, Any], number: int, interval: float, timeout: float | None) -> None:
        self._handle, self._number, self._interval, self._timeout = handle, number, interval, timeout
        self._is_over = False

    async def look(self) -> tuple[list[Record], WorkflowExecutionDescription] | None:
        """Return the new records and how the workflow was before, after a wait if there are none; None at the end."""
        if self._is_over:
            return None
        seen = await self._handle.describe()
        found = await _ask(self._handle, "records_after", self._number, interval=self._interval, timeout=self._timeout)
        self._number += len(found)
        # An answer may have a part of the records, so the last one is empty.
        self._is_over = seen.close_time is not None and not found
        if not found and not self._is_over:
            await anyio.sleep(self._interval)
        return [record_from_json(open_answer(one)) for one in found], seen


async def _read_beats(seen: WorkflowExecutionDescription) -> list[Beat]:
    """Return the latest heartbeats of the activities under way that show something."""
    beats = []
    for activity in seen.raw_description.pending_activities:
        if activity.activity_type.name in (CALL_MODEL, CALL_TOOL) and activity.heartbeat_details.payloads:
            (details,) = await seen.data_converter.decode(activity.heartbeat_details.payloads)
            beats.append(Beat(activity.activity_id, details))
    return beats


# No async generators: one that isn't closed holds nothing here.


class _Records(AsyncIterator[Record]):
    """The records of a run."""

    def __init__(self, handle: WorkflowHandle[Any, Any], number: int, interval: float, timeout: float | None) -> None:
        self._look = _Look(handle, number, interval, timeout)
        self._read: deque[Record] = deque()

    async def __anext__(self) -> Record:
        while not self._read:
            if (found := await self._look.look()) is None:
                raise StopAsyncIteration
            self._read.extend(found[0])
        return self._read.popleft()


class _Events(AsyncIterator[Record | LiveEvent]):
    """The records of a run, and what its activities show."""

    def __init__(self, handle: WorkflowHandle[Any, Any], number: int, interval: float, timeout: float | None) -> None:
        self._look = _Look(handle, number, interval, timeout)
        self._read: deque[Record | LiveEvent] = deque()
        self._view = LiveView()

    async def __anext__(self) -> Record | LiveEvent:
        while not self._read:
            if (found := await self._look.look()) is None:
                raise StopAsyncIteration
            records, seen = found
            for record in records:
                self._view.note(record)
            self._read.extend(records)
            self._read.extend(self._view.read(await _read_beats(seen)))
        return self._read.popleft()


async def start_run(
    client: Client,
    agent: str,
    input: str,
    *,
    id: str,
    task_queue: str,
    context: Any = None,
    max_turns: int | None = 10,
    **options: Any,
) -> AgentRunHandle:
    """Start the agent *agent* as a workflow, and return at once.

    Args:
        client: A client of the engine.
        agent: The name under which the workers' `AgentPlugin` has the agent.
        input: The user's message.
        id: The id of the workflow: only one with this id runs at a time.
        task_queue: The queue of the workers.
        context: A JSON value, for the plugin's *read_context*.
        max_turns: As for `Runner.run`.
        **options: More options of `Client.start_workflow`.

    Raises:
        temporalio.exceptions.WorkflowAlreadyStartedError: a workflow of this id runs.
    """
    given = AgentRunInput(agent, input, context, max_turns, by_parts=True)
    handle = await client.start_workflow(AgentWorkflow.run, given, id=id, task_queue=task_queue, **options)
    return AgentRunHandle(handle)


def get_run(client: Client, id: str) -> AgentRunHandle:
    """Return the handle of the run whose workflow has this *id*. Asks the engine nothing."""
    return AgentRunHandle(client.get_workflow_handle_for(AgentWorkflow.run, id))
