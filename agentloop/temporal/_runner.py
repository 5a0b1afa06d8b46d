"""The runner of workflows that leaves out a step which the engine would take in another way at a replay.

A query reaches any worker, also one that must replay the run first. The engine's core gives that worker the whole
history, and so also the events after the last workflow task: a timer that has fired, for example, which the next task
will tell of. It applies them with the time of the task before, and apart from the events that will come with them.
The code would decide on both: a timeout that isn't over by that clock is set again, and no replay does that again. The
next query, after the end of the run even, then fails for ever.

So such a step isn't taken. The query fails, the worker forgets the run, and the workflow task that is about to come
replays it from the beginning. `_run_handle` asks again. For a run that is over no task will come, one that timed out
for example: the handle then asks by another name, and the answer is that of the last task.

A step that this worker can't take because its agents don't fit the run is refused as well (`refuse_step`): the workflow
task fails as a whole, with all commands of the step, and the engine gives it to another worker.
"""

from __future__ import annotations

import threading
from typing import Any

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

TOO_EARLY = "The next workflow task has not begun, and the query can't be answered before: ask again"
"""The message of a query that fails because of such a step."""
UNFIT = "This worker can't take the run's next step"
"""The beginning of the message of a workflow task that another worker has to take."""
ENDED = "ended_"
"""The beginning of the names of queries on a run that is over: they are answered from its last workflow task."""
_NO_STEP = {"query_workflow", "remove_from_cache"}


class _Step(threading.local):
    """The step that this thread takes: why it is refused, if it is, and the markers that the history has.

    A step is taken in one thread, from its begin to its end.
    """

    reason: str | None = None
    markers: frozenset[str] | set[str] = frozenset()


_step = _Step()


def has_marker(name: str) -> bool:
    """Tell whether the history has the marker *name*, of `workflow.patched`. Asking adds no command."""
    return name in _step.markers


def refuse_step(reason: str) -> None:
    """Let the workflow task fail once the current step is over. Nothing that the step has done is kept.

    The engine tries the task again, on another worker if there is one.
    """
    _step.reason = _step.reason or f"{UNFIT}: {reason}"


def _take_refusal() -> str | None:
    reason, _step.reason = _step.reason, None
    return reason


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
        self._markers: set[str] = set()
        self._missed = False
        """True once a step was left out: the workflow then is as its last task has left it."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Take a step, or leave it out: one with new events, but without their own time."""
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if kinds <= _NO_STEP:
            early = self._missed and "remove_from_cache" not in kinds and not all(map(_is_of_ended, act.jobs))
            return _fail(TOO_EARLY) if early else self._inner.activate(act)
        if self._missed:
            return _fail(TOO_EARLY)
        time, length = act.timestamp.ToNanoseconds(), act.history_length
        if time == self._task[0] and length > self._task[1]:
            self._missed = True
            left_out = WorkflowActivationCompletion()
            left_out.successful.SetInParent()
            return left_out
        self._task = (time, length)
        self._markers.update(job.notify_has_patch.patch_id for job in act.jobs if job.HasField("notify_has_patch"))
        _step.markers = self._markers
        done = self._inner.activate(act)
        reason = _take_refusal()
        return done if reason is None else _fail(reason)

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


def _is_of_ended(job: Any) -> bool:
    return bool(job.query_workflow.query_type.startswith(ENDED))


def _fail(message: str) -> WorkflowActivationCompletion:
    failed = WorkflowActivationCompletion()
    failed.failed.failure.message = message
    return failed
