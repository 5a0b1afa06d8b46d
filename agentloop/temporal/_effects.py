"""The door of a run inside a workflow: model calls and bodies become activities, all else stays in the workflow.

The engine replays the workflow's code from its history, so times, ids and random numbers are the workflow's, and what
the application's callbacks do (guardrails, policies, instructions, hooks) must be deterministic.

A wait for an activity must not be an ordinary `await`: the engine shields such a wait from a cancellation natively, and
anyio repeats a cancellation in each pass of the loop until the task gives in. A pass takes no time on a workflow's
loop, so this would never end. Here the wait is for an event, and a cancellation is answered once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from agentloop._common.naming import qualify_name
from agentloop._storage.model_codec import model_error_from_json, model_event_from_json
from agentloop.abc import effects as e
from agentloop.agents._graph import describe_tool
from agentloop.exceptions import OutcomeUnknown, StateError
from agentloop.items import ToolCall
from agentloop.model_events import ModelRequest, ModelResponse, ResponseDone
from agentloop.temporal._activities import CALL_MODEL, CALL_TOOL, KEPT, NOT_BEGUN
from agentloop.temporal._conversation import ActivityInput, Telling
from agentloop.temporal._options import AgentSetup, ToolActivity
from agentloop.temporal._payloads import (
    PayloadTooLarge,
    check_size,
    error_from_json,
    items_to_json,
    measure,
    open_answer,
    request_to_json,
    seal,
    unseal,
    value_from_json,
)
from agentloop.temporal._runner import has_marker, refuse_step
from agentloop.temporal._store import PartLost, PartUnwritten
from agentloop.tools import ExternalBody, FunctionTool, ToolSearch, may_run_again

_REFUSED = "PayloadsTooLarge"
"""The type that the SDK gives the error of an activity whose result the engine doesn't take: no other will be taken."""
_AGAIN = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=[_REFUSED],
)
_ONCE = RetryPolicy(maximum_attempts=1)
_BY_PARTS = "agentloop-parts"
"""The history's marker for a run whose model calls get what is new. Another has the whole in each of them.

It is two events, so a workflow whose input says the same has none.
"""
_LONGEST_PAUSE = 300.0
_MOST_AT_ONCE = 1_000
"""Activities of a workflow under way. The engine has a limit of 2,000, and fails a workflow task that asks for more."""
_MOST_IN_A_TASK = 3_000_000
"""Bytes of the activities that one workflow task begins. The engine takes 4 MB, and fails a task that sends more."""


_MOST_IN_A_STEP = 1_500_000
"""Bytes of items in one activity. The same with a store of parts and without: a replay needs as many activities."""


class WorkflowEffects:
    """The effects of a run of the agent *root* in this workflow. *before_model* is called before each model call.

    With *by_parts* it is known that model calls get what is new.
    """

    def __init__(
        self,
        root: str,
        setup: AgentSetup,
        context: Any,
        before_model: Callable[[], None] = lambda: None,
        *,
        by_parts: bool = False,
    ) -> None:
        self._root, self._setup, self._context, self._before_model = root, setup, context, before_model
        self._by_parts = by_parts
        self._telling = Telling(
            setup.codec, min(setup.max_payload * 3 // 4, _MOST_IN_A_STEP), is_packing=setup.is_packing
        )
        self._room = anyio.Semaphore(_MOST_AT_ONCE, fast_acquire=True)
        self._task, self._sent = -1, 0
        """The latest workflow task that began activities, by the history's length, and the bytes of these."""
        self._unfit: dict[tuple[tuple[str, ...], str], str] = {}
        """Why the calls with another schema here than the model was shown can't be begun here, by path and call id."""

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
        answer = await self._ask_model(effect)
        if "lacks" in answer:
            self._telling.forget(effect.path)
            answer = await self._ask_model(effect)
        if "lacks" in answer:
            raise PayloadTooLarge(
                "the model's input: it needs more than one payload, and the worker can't read the run's history, which "
                "has the others"
            )
        if "error" in answer:
            raise model_error_from_json(answer["error"])
        if "too_large" in answer:
            raise PayloadTooLarge(answer["too_large"])
        await self._check_offered(effect, answer.get("offered") or {})
        done = model_event_from_json(await self._open(answer["done"]))
        assert isinstance(done, ResponseDone)
        return ModelResponse(*(getattr(done, name) for name in ModelResponse.__struct_fields__))

    async def _ask_model(self, effect: e.CallModel) -> dict[str, Any]:
        """Tell activities the request of *effect*. Returns the answer of the last one, which calls the model."""
        whole = {"root": self._root, **request_to_json(effect)}
        steps = self._tell(effect.request)
        answer: dict[str, Any] = {}
        for step in steps:
            kept = {**{name: whole[name] for name in KEPT}, "keep": True}
            asked = (whole if step is steps[-1] else kept) | step.data
            size = check_size("the model's input", asked, self._setup.max_payload)
            await self._spread(size - measure(step.data["items"]) + step.size)
            # An attempt whose worker is lost has shown nothing to anybody, so the engine makes another.
            answer = await self._run_activity(CALL_MODEL, asked, self._setup.model, _AGAIN)
            if "lacks" in answer:
                break
        return answer

    def _tell(self, request: ModelRequest) -> list[ActivityInput]:
        """Return the items and call ids of *request* for one activity, or for several of which the last one asks."""
        # An older worker, which doesn't know this input, may have begun the run: then a replay needs the marker.
        if (self._by_parts and not has_marker(_BY_PARTS)) or workflow.patched(_BY_PARTS):
            return self._telling.tell(request.path, request.items, request.call_ids)
        items = items_to_json(request.items, self._setup.codec)
        return [ActivityInput({"items": items, "call_ids": sorted(request.call_ids)}, measure(items))]

    async def _check_offered(self, effect: e.CallModel, offered: dict[str, list[str]]) -> None:
        """Leave the step to another worker if the agent here lacks what the model was shown, and calls.

        With another schema, the call may have ended long ago: it is noted, for the case that it is yet to begin.
        """
        request = effect.request
        schemas = {tool.qualified_name: tool for tool in request.tools if isinstance(tool, FunctionTool)}
        handoffs = {handoff.name for handoff in request.handoffs}
        for call_id, (name, *schema) in offered.items():
            if name not in (schemas if schema else handoffs):
                kind = "tool" if schema else "handoff"
                await leave(
                    f"call {call_id!r} waits for {kind} {name!r}, which agent {effect.agent!r} here doesn't have"
                )
            if schema and describe_tool(schemas[name])["schema"] != schema[0]:
                text = f"tool {name!r} of agent {effect.agent!r} has another schema than call {call_id!r} was made for"
                self._unfit[effect.path, call_id] = text

    async def _open(self, sealed: Any) -> Any:
        try:
            return unseal(sealed, self._setup.codec)
        except StateError as error:
            await leave(str(error))

    def was_asked(self, path: tuple[str, ...], call: ToolCall) -> bool:
        """Tell whether the history says that *call* has waited for an approval; see `ApprovalEffects`."""
        if not workflow.unsafe.is_replaying():
            if (reason := self._unfit.get((path, call.call_id))) is not None:
                refuse_step(reason)
            return False
        return has_marker(_name_marker(path, call))

    def note_asked(self, path: tuple[str, ...], call: ToolCall) -> None:
        """Let the history say that *call* waits for an approval, so that it does after a deploy as well."""
        workflow.patched(_name_marker(path, call))

    async def _call_tool(self, effect: e.CallTool) -> Any:
        context, codec = effect.context, self._setup.codec
        name = qualify_name(effect.tool, context.tool_namespace)
        options = self._setup.activity_of(name)
        tool = next((one for one in context.agent.functions if one.qualified_name == name), None)
        if tool is None:
            return await effect.do()  # the library's own, which reads the run's log
        reason = self._unfit.get((effect.path, effect.call_id))
        if reason is not None and not workflow.unsafe.is_replaying():
            await leave(reason)
        if effect.nested or options.in_workflow or isinstance(tool.body, ToolSearch | ExternalBody):
            return await effect.do()
        asked = {
            "root": self._root,
            "agent": self._setup.graph.key(context.agent),
            "tool": effect.tool,
            "namespace": context.tool_namespace,
            "arguments": seal(effect.arguments, codec) if tool.secret else effect.arguments,
            "call_id": effect.call_id,
            "run_id": context.run_id,
            "key": effect.idempotency_key,
            "context": self._context,
        }
        what = f"the arguments and the context of tool {name!r}"
        await self._spread(check_size(what, asked, self._setup.max_payload))
        try:
            answer = open_answer(await self._open(await self._try_tool(tool, asked, options)))
        except ActivityError as error:
            raise OutcomeUnknown(f"the worker of tool {name!r} was lost: {error.cause or error}") from None
        except ApplicationError as error:
            if error.type != PartUnwritten.__name__:
                raise
            raise OutcomeUnknown(f"the value of tool {name!r} was lost: {error.message}") from None
        if "error" in answer:
            raise error_from_json(answer["error"])
        return value_from_json(answer["value"])

    async def _try_tool(self, tool: FunctionTool[Any], asked: object, options: ToolActivity) -> Any:
        """Run the activity of a body. Where a worker can't begin it, another try is made later, for another worker.

        For a body that may be called twice the engine does so. It can't tell that the body of another has not begun:
        so that one has one attempt, which the workflow makes anew. Raises as `_run_activity`.
        """
        again, pause = may_run_again(tool), 1.0
        while True:
            try:
                return await self._run_activity(CALL_TOOL, asked, options, _AGAIN if again else _ONCE)
            except ApplicationError as error:
                if error.type != NOT_BEGUN and not _is_unread(error):
                    raise
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _spread(self, size: int) -> None:
        """Wait until an activity of *size* bytes fits into the workflow task: mostly it does at once."""
        while True:
            task = workflow.info().get_current_history_length()
            if task != self._task:
                self._task, self._sent = task, 0
            if not self._sent or self._sent + size <= _MOST_IN_A_TASK:
                self._sent += size
                return
            await anyio.sleep(0.001)  # a timer, which ends in another task

    async def _run_activity(self, name: str, asked: object, options: ToolActivity, retry: RetryPolicy) -> Any:
        """Run an activity and return its result, once there is room for it.

        Raises:
            ActivityError: its worker was lost, and *retry* allows no other attempt.
            ApplicationError: the worker has no such agent or tool, or another error that *retry* doesn't try again.
            PayloadTooLarge: the engine doesn't take the result.
        """
        async with self._room:
            return await self._await_activity(name, asked, options, retry)

    async def _await_activity(self, name: str, asked: object, options: ToolActivity, retry: RetryPolicy) -> Any:
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
                if error.cause.type == _REFUSED:
                    raise PayloadTooLarge(f"the result of activity {name!r}: {error.cause.message}") from None
                raise error.cause from None
            raise
        finally:
            del cancelled


def _is_unread(error: ApplicationError) -> bool:
    """Tell whether a worker couldn't read the activity's input in the store of parts, so that no body has begun."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == PartLost.__name__


async def leave(reason: str) -> NoReturn:
    """Leave this step, and with it the workflow task, to another worker."""
    refuse_step(reason)
    await anyio.sleep_forever()
    raise AssertionError("the step is over")  # pragma: no cover


def _name_marker(path: tuple[str, ...], call: ToolCall) -> str:
    """Return the name of the history's marker for an approval that *call* waits for."""
    return "agentloop-asked-" + hashlib.sha256("\n".join((*path, call.call_id)).encode()).hexdigest()[:16]


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
