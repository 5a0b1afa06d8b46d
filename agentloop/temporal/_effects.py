"""The door of a run inside a workflow: model calls and bodies become activities, all else stays in the workflow.

The engine replays the workflow's code from its history, so times, ids and random numbers are the workflow's, and what
the application's callbacks do (guardrails, policies, instructions, hooks) must be deterministic.

A wait for an activity must not be an ordinary `await`: the engine shields such a wait from a cancellation natively, and
anyio repeats a cancellation in each pass of the loop until the task gives in. A pass takes no time on a workflow's
loop, so this would never end. Here the wait is for an event, and a cancellation is answered once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from agentloop import effects as e
from agentloop._storage.model_codec import model_error_from_json, model_event_from_json
from agentloop.exceptions import OutcomeUnknown
from agentloop.model_events import ModelResponse, ResponseDone
from agentloop.temporal._activities import CALL_MODEL, CALL_TOOL
from agentloop.temporal._options import AgentSetup, ToolActivity
from agentloop.temporal._payloads import error_from_json, request_to_json, value_from_json
from agentloop.tools import ToolSearch

_AGAIN = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=30))
_ONCE = RetryPolicy(maximum_attempts=1)


class WorkflowEffects:
    """The effects of a run of the agent *root* in this workflow. *before_model* is called before each model call."""

    def __init__(self, root: str, setup: AgentSetup, context: Any, before_model: Callable[[], None]) -> None:
        self._root, self._setup, self._context, self._before_model = root, setup, context, before_model

    def wall(self) -> float:
        """Return the workflow's time."""
        return workflow.time()

    async def perform(self, effect: e.Effect) -> Any:
        """Perform *effect*: as an activity, by the workflow's own means, or in place.

        Cancellation: an activity is cancelled and awaited. If it has completed nevertheless, its result is returned.
        """
        match effect:
            case e.CallModel():
                return await self._call_model(effect)
            case e.CallTool():
                return await self._call_tool(effect)
            case e.NewId():
                return workflow.uuid4().hex
            case e.Random():
                return workflow.random().random()
            case e.Now():
                return workflow.time()
            case e.Sleep(seconds):
                return await anyio.sleep(seconds)
            case _:
                return await effect.do()

    async def _call_model(self, effect: e.CallModel) -> ModelResponse:
        self._before_model()
        asked = {"root": self._root, **request_to_json(effect)}
        # An attempt whose worker is lost has shown nothing to anybody, so the engine makes another.
        answer = await self._run_activity(CALL_MODEL, asked, self._setup.model, _AGAIN)
        if "error" in answer:
            raise model_error_from_json(answer["error"])
        done = model_event_from_json(answer["done"])
        assert isinstance(done, ResponseDone)
        return ModelResponse(*(getattr(done, name) for name in ModelResponse.__struct_fields__))

    async def _call_tool(self, effect: e.CallTool) -> Any:
        context = effect.context
        name = f"{context.tool_namespace}.{effect.tool}" if context.tool_namespace else effect.tool
        options = self._setup.activity_of(name)
        tool = next(one for one in context.agent.functions if one.qualified_name == name)
        if effect.nested or options.in_workflow or isinstance(tool.body, ToolSearch):
            return await effect.do()
        asked = {
            "root": self._root,
            "agent": self._setup.graph.key(context.agent),
            "tool": effect.tool,
            "namespace": context.tool_namespace,
            "arguments": effect.arguments,
            "call_id": effect.call_id,
            "run_id": context.run_id,
            "key": effect.idempotency_key,
            "context": self._context,
        }
        again = tool.idempotent or tool.in_doubt == "rerun"
        try:
            answer = await self._run_activity(CALL_TOOL, asked, options, _AGAIN if again else _ONCE)
        except ActivityError as error:
            raise OutcomeUnknown(f"the worker of tool {name!r} was lost: {error.cause or error}") from None
        if "error" in answer:
            raise error_from_json(answer["error"])
        return value_from_json(answer["value"])

    async def _run_activity(self, name: str, asked: object, options: ToolActivity, retry: RetryPolicy) -> Any:
        """Run an activity and return its result.

        Raises:
            ActivityError: its worker was lost, and *retry* allows no other attempt.
            ApplicationError: the worker has no such agent or tool.
        """
        handle: workflow.ActivityHandle[Any] = workflow.start_activity(
            name,
            asked,
            task_queue=options.task_queue,
            start_to_close_timeout=options.start_to_close,
            heartbeat_timeout=options.heartbeat_timeout,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            retry_policy=retry,
        )
        ended = anyio.Event()
        handle.add_done_callback(lambda _: ended.set())
        cancelled: BaseException | None = None
        try:
            await ended.wait()
        except anyio.get_cancelled_exc_class() as error:  # noqa: ASYNC103 - raised below, but for a completed activity
            cancelled = error
            with anyio.CancelScope(shield=True):
                if not await _ends_at_once(ended):
                    handle.cancel()
                await ended.wait()
        try:
            if cancelled is not None and (handle.cancelled() or is_cancelled_exception(handle.exception() or _NONE)):
                raise cancelled
            return handle.result()
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type != _SHUT_DOWN:
                raise error.cause from None
            raise
        finally:
            del cancelled


async def _ends_at_once(ended: anyio.Event) -> bool:
    """Tell whether the activity has its result already, which came in the same step as the cancellation.

    The result of a handle that is cancelled then would be lost: a call that has completed, or whose worker is gone,
    would look like one that has stopped. It takes the handle some passes of the loop to have it, and no time.
    """
    for _ in range(_PASSES):
        if ended.is_set():
            break
        await anyio.lowlevel.checkpoint()
    return ended.is_set()


_PASSES = 8
"""More than an activity's handle needs from its result to its callbacks."""
_NONE = Exception()
_SHUT_DOWN = "WorkerShutdown"
"""The type that the SDK gives the error of an activity that its worker ended when it was stopped."""
