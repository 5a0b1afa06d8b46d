"""The runner of workflows that refuses a step which the engine would take in another way at a replay.

A query reaches any worker, also one that must replay the run first. The engine's core gives that worker the whole
history, and so also the events after the last workflow task: a timer that has fired, for example, which the next task
will tell of. It applies them with the time of the task before, and apart from the events that will come with them.
The code would decide on both: a timeout that isn't over by that clock is set again, and no replay does that again. The
next query, after the end of the run even, then fails for ever.

So such a step is an error. The query fails, the worker forgets the run, and the workflow task that is about to come
replays it from the beginning. `_run_handle` asks again.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

TOO_EARLY = "The next workflow task has not begun, and the query can't be answered before: ask again"
"""The message of a query that fails because of such a step."""
_NO_STEP = {"query_workflow", "remove_from_cache"}


class StepwiseRunner(WorkflowRunner):
    """Runs workflows as *inner* does, and refuses their steps outside of a workflow task."""

    def __init__(self, inner: WorkflowRunner) -> None:
        self._inner = inner

    def prepare_workflow(self, defn: Any) -> None:
        """See `WorkflowRunner`."""
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        return _Stepwise(self._inner.create_instance(det))

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See `WorkflowRunner`."""
        self._inner.set_worker_level_failure_exception_types(types)


class _Stepwise(WorkflowInstance):
    """A workflow whose steps each belong to a workflow task."""

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner
        self._task = (-1, 0)
        """The time of the latest step in nanoseconds, and the length that the history had then."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Take a step, or refuse it: one with new events, but without a time of their own."""
        if {job.WhichOneof("variant") for job in act.jobs} <= _NO_STEP:
            return self._inner.activate(act)
        time, length = act.timestamp.ToNanoseconds(), act.history_length
        if time == self._task[0] and length > self._task[1]:
            refused = WorkflowActivationCompletion()
            refused.failed.failure.message = TOO_EARLY
            return refused
        self._task = (time, length)
        return self._inner.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        """See `WorkflowInstance`."""
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        """See `WorkflowInstance`."""
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        """See `WorkflowInstance`."""
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        """See `WorkflowInstance`."""
        return self._inner.get_thread_id()
