"""The client's side of a run: start it, ask it, decide about its calls, wait for its end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import attrs
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from agentloop._storage.public_json import record_from_json
from agentloop.exceptions import StateError
from agentloop.records import Record
from agentloop.state import as_text
from agentloop.temporal._workflow import AgentRunInput, AgentWorkflow


@attrs.frozen(kw_only=True)
class AgentRunResult:
    """How the run of a workflow ended.

    Attributes:
        status: As `RunResult.status`.
        final_output: The final output as plain data.
        data: The whole result as JSON: the value of `RunResult.to_json`.
    """

    status: str
    final_output: Any
    data: Mapping[str, Any] = attrs.field(repr=False)


@attrs.frozen
class AgentRunHandle:
    """A run of an `AgentWorkflow`. Made by `start_run` and `get_run`; holds no connection of its own.

    Each method is a request to the engine, and raises the errors of its client (`temporalio.service.RPCError`).

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
        """
        data = await self.workflow.result()
        return AgentRunResult(status=data["status"], final_output=data.get("final_output"), data=data)

    async def cancel(self) -> None:
        """Ask for the end of the run. Its activities are cancelled and awaited; `result` then raises."""
        await self.workflow.cancel()

    async def interruptions(self) -> list[dict[str, Any]]:
        """Return the calls that wait for a verdict: `call_id`, `tool`, `arguments` (JSON text) and `agent` of each."""
        return await self.workflow.query(AgentWorkflow.interruptions)

    async def approve(
        self,
        call_id: str,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        always: bool = False,
        by: str | None = None,
    ) -> None:
        """Approve a call that waits, as `RunState.approve`; returns when the workflow has taken the verdict.

        Raises:
            StateError: no such call waits.
        """
        text = None if arguments is None else as_text(arguments)
        await self._decide({"call_id": call_id, "approved": True, "arguments": text, "always": always, "by": by})

    async def reject(
        self, call_id: str, *, message: str | None = None, always: bool = False, by: str | None = None
    ) -> None:
        """Reject a call that waits, as `RunState.reject`; returns when the workflow has taken the verdict.

        Raises:
            StateError: no such call waits.
        """
        await self._decide({"call_id": call_id, "approved": False, "message": message, "always": always, "by": by})

    async def _decide(self, verdict: dict[str, Any]) -> None:
        try:
            await self.workflow.execute_update(AgentWorkflow.give_verdict, verdict)
        except WorkflowUpdateFailedError as error:
            raise StateError(str(error.cause)) from error

    async def cancel_call(self, call_id: str, reason: str | None = None) -> bool:
        """Cancel one call while the run continues. Returns False if it has ended or is unknown."""
        return await self.workflow.execute_update(AgentWorkflow.cancel_call, args=[call_id, reason])

    async def add_input(self, text: str) -> None:
        """Show the model a message of the user when the turn that runs has ended. Not for a run that is over."""
        await self.workflow.signal(AgentWorkflow.add_input, text)

    def records(self, *, after: int = 0, interval: float = 0.5) -> AsyncIterator[Record]:
        """Return an iterator of the run's records as it makes them, from number *after* on, up to the end of the run.

        Queries are asked every *interval* seconds; they add nothing to the workflow's history. Values that tools mark
        secret are placeholders.
        """
        return _Records(self.workflow, after, interval)

    async def stored_state(self) -> str:
        """Return the run as `RunState.to_string` would, for `RunState.from_string`; signed if the plugin has a key."""
        return await self.workflow.query(AgentWorkflow.stored_state)


_ATTEMPTS = 20
_UNANSWERED = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE)


class _Records(AsyncIterator[Record]):
    """The records of a run after the first *number*. No async generator: one that isn't closed holds nothing here."""

    def __init__(self, handle: WorkflowHandle[Any, Any], number: int, interval: float) -> None:
        self._handle, self._number, self._interval = handle, number, interval
        self._read: deque[dict[str, Any]] = deque()
        self._is_over = False

    async def __anext__(self) -> Record:
        while not self._read:
            if self._is_over:
                raise StopAsyncIteration
            await self._look()
        return record_from_json(self._read.popleft())

    async def _look(self) -> None:
        """Read what there is; wait a moment if that is nothing."""
        self._is_over = (await self._handle.describe()).close_time is not None
        found = await self._ask()
        self._number += len(found)
        self._read.extend(found)
        if not found and not self._is_over:
            await anyio.sleep(self._interval)

    async def _ask(self) -> list[dict[str, Any]]:
        """Ask for the records after the number reached. A query that a dying worker has taken fails, so it is repeated.

        Raises:
            RPCError: no worker has answered `_ATTEMPTS` times in a row, or the engine refuses the query.
        """
        for last in [False] * (_ATTEMPTS - 1) + [True]:
            try:
                return await self._handle.query(AgentWorkflow.records_after, self._number)
            except RPCError as error:
                if last or error.status not in _UNANSWERED:
                    raise
            await anyio.sleep(self._interval)
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover


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
    given = AgentRunInput(agent, input, context, max_turns)
    handle = await client.start_workflow(AgentWorkflow.run, given, id=id, task_queue=task_queue, **options)
    return AgentRunHandle(handle)


def get_run(client: Client, id: str) -> AgentRunHandle:
    """Return the handle of the run whose workflow has this *id*. Asks the engine nothing."""
    return AgentRunHandle(client.get_workflow_handle_for(AgentWorkflow.run, id))
