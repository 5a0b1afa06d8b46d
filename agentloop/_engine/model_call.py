"""One logical model call: the request, its attempts, the response's events, the record.

Does not plan or run the response's calls, and does not know about providers: a `Model` does.
"""

from __future__ import annotations

import hashlib
import logging
import math
from binascii import crc32
from collections.abc import Awaitable, Callable
from decimal import Decimal
from functools import partial
from operator import is_
from struct import Struct
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from agentloop import model_events as m
from agentloop._common.digests import digestible
from agentloop._common.error_text import error_summary
from agentloop._concurrency.backend import cancelled_types
from agentloop._concurrency.interrupts import interruptible
from agentloop._core.call_identity import find_tool
from agentloop._core.client_calls import says_nothing
from agentloop._core.history import HistoryView
from agentloop._core.turn_view import TurnView
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun, seconds_to_deadline
from agentloop.abc import Model
from agentloop.abc import effects as e
from agentloop.config import ModelInputData, ModelInputFilter, Price
from agentloop.config.budget import Budget, to_amount
from agentloop.exceptions import ModelBehaviorError, ModelTimeoutError, ModelTransportError, UserTypeError
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HostedToolCall,
    Item,
    ToolCall,
    ToolOutput,
    find_hosted_calls,
    to_items,
)
from agentloop.model_events import ModelInfo, ModelRequest, ModelResponse
from agentloop.records import ModelFailed, ModelRequested, ModelResponded
from agentloop.settings import RetryContext
from agentloop.tools import FunctionTool
from agentloop.usage import RequestUsage

if TYPE_CHECKING:
    from agentloop.window.policy import ContextPolicy

logger = logging.getLogger("agentloop")

_DELTAS = (m.TextDelta, m.ReasoningDelta, m.ArgumentsDelta)
_MAYBE_TEXT, _MAYBE_WHOLE = (str, type(None)), (int, type(None))
_SHOWS_NOTHING = (m.ResponseStarted, m.Raw, m.ResponseDone)
_COUNTS = tuple(name for name in RequestUsage.__struct_fields__ if name not in ("model", "complete", "raw"))


async def call_model(run: LiveRun, view: TurnView, *, again: bool = False) -> None:
    """Request the turn's response from the model and append it.

    *again*: the provider has refused the request as too long, and the history has been made shorter.

    Cancellation: the response is closed before the cancellation continues; the request still counts in the usage.

    Raises:
        ModelBehaviorError, ModelTransportError, ModelTimeoutError: as the model raises them.
        ContextTooLong: the request is too long for the model, and a policy couldn't make it short enough.
    """
    request = make_request(run, view)
    if run.settings.config.history.call_model_input_filter is not None:
        request = await _filter_request(run, run.settings.config.history.call_model_input_filter, request)
    run.context.turn_input = request.items
    await run.call_hooks("llm_start", run.agent, request.system, request.items)
    await run.checkpoint()  # a request that is never made must not be counted
    price = None if run.settings.budget is None else find_price(run, view.model)
    try:
        if run.settings.budget is None or not run.settings.budget.counts_worst_case:
            response, first_delta_at = await _request_response(run, view, request)
        else:
            from agentloop._engine.worst_case import within_worst_case

            response, first_delta_at = await within_worst_case(_request_response, run, view, request, price)
    except ModelTransportError as error:
        policy = run.settings.config.context or run.agent.context
        if policy is None or not error.context_too_long:
            raise
        from agentloop._compacting import make_room

        view = await make_room(run, view, policy, call_model, error, again=again)
        return await call_model(run, view, again=True)  # noqa: ASYNC120 - a cancellation replaces the error
    response = _classify_calls(run, view, response)
    cost = None if run.settings.budget is None else _charge(run, run.settings.budget, price, view, response)
    run.tree.log.append(ModelResponded(*run.here(), response, cost=cost, first_delta_at=first_delta_at))
    if run.state.conflict is not None:
        return  # the response contradicts an earlier one: planning refuses it, so hooks do not get it as an answer
    await run.call_hooks("llm_end", run.agent, response)


class _Attempt(msgspec.Struct):
    """One attempt under way. Owned and mutated by the model call.

    `scope` holds its time limit, if it has one. `streamed` is True once a part of the response was shown to a consumer;
    a plain run shows nothing before the answer is complete. `first_delta_at` is the wall-clock time of its first delta.
    `items` and `done` are the response as far as its events have come.
    """

    number: int
    scope: anyio.CancelScope | None = None
    streamed: bool = False
    first_delta_at: float | None = None
    items: list[Item] = []
    done: m.ResponseDone | None = None

    def note_shown(self) -> None:
        """Note that a part of the response was shown: for effects that answer without reading the model."""
        self.streamed = True

    def add(self, event: Any, wall: Callable[[], float]) -> None:
        """Note *event*, the next of the response. *wall* is the clock.

        Raises:
            ModelBehaviorError: it follows the end of the response.
        """
        if self.done is not None:
            raise ModelBehaviorError(f"The model sent {type(event).__name__} after its response was done")
        if isinstance(event, m.ResponseDone):
            self.done = event
        elif isinstance(event, m.ItemDone):
            self.items.append(event.item)
        elif self.first_delta_at is None and isinstance(event, _DELTAS):
            self.first_delta_at = wall()


async def _request_response(run: LiveRun, view: TurnView, request: ModelRequest) -> tuple[ModelResponse, float | None]:
    """Request a response, with retries; return it and the time of its first delta. Retries spend no turn.

    Raises:
        UserTypeError: the model's `info` is no `ModelInfo`.
        Exception: the first error that the retry settings don't cover.
    """
    attempt, asked, log, limits = _Attempt(1), _read_info(view.model), run.tree.log, _find_limits(run, view.model)
    while True:
        digest = _digest_request(run, view, request)
        state, asked_anew = run.state, None if asked == run.state.model else asked
        perform: Callable[[Any], Awaitable[Any]] = run.tree.effects.perform
        requested = ModelRequested(*run.here(), digest, attempt.number, asked_anew)
        if limits:
            from agentloop._engine.model_limits import ModelPlace

            requested, request, perform = await ModelPlace(run, request, limits).enter(requested, request, perform)
        log.append(requested)
        if log.spans is not None:
            log.spans.note_request(state.path, request)
        try:
            read = _read_response if request.settings.timeout is None else _read_in_time
            do = partial(read, run, view, request, attempt)
            model, shown = view.model, attempt.note_shown
            effect = e.CallModel(state.path, request.turn, attempt.number, do, request, state.agent, model, shown)
            return await perform(effect), attempt.first_delta_at
        except cancelled_types():
            record_end(run)
            log.append(ModelFailed(*run.here(), "cancelled", attempt.number, usage=RequestUsage(complete=False)))
            raise
        except Exception as error:
            log.append(_make_failed_record(run, error, attempt))
            delay = await _choose_retry_delay(run, request, error, attempt)  # noqa: ASYNC120 - a cancellation here replaces the error
            if delay is None:
                if isinstance(error, ModelTransportError | ModelTimeoutError):
                    run.stopped_by = error
                raise
        await run.tree.effects.perform(e.Sleep(delay))
        run.check_request()
        await run.checkpoint()  # as before the first attempt
        attempt = _Attempt(attempt.number + 1)


def _find_limits(run: LiveRun, model: Model) -> tuple[Any, ...]:
    """Return the limits of requests to *model*: the configuration's, its provider's and its own, each once."""
    config = run.settings.config
    of_provider = getattr(config.model_provider, "limits", ())
    return tuple(dict.fromkeys((*config.model_limits, *of_provider, *getattr(model, "limits", ()))))


def _read_info(model: Model) -> ModelInfo:
    """Return the identity of *model*.

    Raises:
        UserTypeError: it is no `ModelInfo`, or the log couldn't be read again with it.
    """
    info = model.info
    if not isinstance(info, ModelInfo):
        raise UserTypeError(f"info of {model!r} must be a ModelInfo, not {info!r}")
    plain = info.base_url.__class__ in _MAYBE_TEXT and info.context_window.__class__ in _MAYBE_WHOLE
    if not (plain and info.provider.__class__ is info.name.__class__ is str):
        from agentloop._storage.record_codec import find_fault

        if find_fault(ModelRequested((), 0, 0.0, "", 1, info)) is not None:
            raise UserTypeError(f"info of {model!r} must be a ModelInfo of texts and a whole number, not {info!r}")
    return info


def _make_failed_record(run: LiveRun, error: Exception, attempt: _Attempt) -> ModelFailed:
    """Return the record of a failed attempt, with all facts that the decision about a retry uses."""
    run.redact_error(error)
    failed = ModelFailed(*run.here(), error_summary(error), attempt.number, streamed=attempt.streamed)
    if isinstance(error, ModelTimeoutError):
        return failed.replace(error_kind="timeout")
    if not isinstance(error, ModelTransportError):
        return failed
    from agentloop._core.retry import clamp
    from agentloop._storage.record_codec import find_fault

    after = error.retry_after
    known = failed.replace(
        error_kind="transport",
        status=error.status,
        code=error.code,
        retry_after=after if after is None or math.isfinite(after) else clamp(after),  # a log's times are finite
        should_retry=error.should_retry,
    )
    # A model of the application's own may give them any type. The error is raised as it is; the log must be readable.
    return failed.replace(error_kind="transport") if find_fault(known) is not None else known


async def _choose_retry_delay(run: LiveRun, request: ModelRequest, error: Exception, attempt: _Attempt) -> float | None:
    """Return the seconds to wait before the next attempt, or None if the error is final."""
    from agentloop._core.retry import effective_settings, may_retry, next_delay, retry_advice

    settings = effective_settings(request.settings.retry, error)
    stateful = request.previous_response_id is not None or request.conversation_id is not None
    context = RetryContext(error=error, attempt=attempt.number, advice=retry_advice(error, stateful=stateful))
    if not may_retry(settings, context, streamed=attempt.streamed):
        return None
    key, policy = f"{request.turn}:{attempt.number}", settings.policy
    approved = None if policy is None else bool(await run.ask("retry_policy", key, policy, context))
    drawn = await run.random("retry", key)
    return next_delay(settings, context, approved=approved, random=drawn, left=seconds_to_deadline())


def find_price(run: LiveRun, model: Model) -> Price | None:
    """Return the function that prices requests to *model*; None if there is none.

    Raises:
        UserError: prices by provider and model are given, and *model* isn't among them.
    """
    price = run.price
    for_model = getattr(price, "for_model", None)
    return price if for_model is None else for_model(model)


def _charge(run: LiveRun, budget: Budget, price: Price | None, view: TurnView, response: ModelResponse) -> str | None:
    """Charge the request and the provider's fees for its hosted calls to *budget*; return the sum as text.

    None if nothing of it has a price: there is no function for it, or the response has no usage.
    """
    name, costs = _find_priced_name(view.model, response), list[Decimal]()
    if response.usage is None:
        if run.state.turn == 1 and (price is not None or budget.counts_tokens):
            logger.warning("model %s told no usage, so limits on tokens and cost don't count its requests", name)
    elif price is not None:
        costs.append(to_amount("price", price(name, response.usage)))
    if (hosted_price := run.hosted_price) is not None:
        costs += [to_amount("hosted_price", hosted_price(name, call)) for call in find_hosted_calls(response.items)]
    if not costs:
        return None
    cost = sum(costs)
    budget.charge(cost)
    return f"{cost:f}"


def _find_priced_name(model: Model, response: ModelResponse) -> str:
    """Return the name under which a response is priced: the model's own, else that of the member which answered."""
    answered = response.model if response.usage is None else response.usage.model
    return str(getattr(model, "name", None) or answered or type(model).__name__)


def make_request(run: LiveRun, view: TurnView) -> ModelRequest:
    """Return the turn's request; where the provider keeps the conversation, only items not sent yet are in it."""
    state, started, policy = run.state, run.state.started, run.settings.config.context or run.agent.context
    kept, items = started is not None and started.kept, HistoryView(state.history)
    return ModelRequest(
        system=view.system,
        items=items[state.sent :] if kept else items,
        previous_response_id=state.continued_response_id if kept else None,
        conversation_id=started.conversation_id if started is not None else None,
        instructions=view.instructions,
        tools=view.offered or view.tools,
        handoffs=view.handoffs,
        hosted=view.hosted,
        prompt=view.prompt,
        output_schema=view.output.schema if view.output is not None else None,
        settings=view.settings,
        tool_choice=view.settings.tool_choice,
        turn=state.turn,
        path=state.path,
        call_ids=state.calls.keys() | state.handoffs.keys() if state.handoffs else state.calls.keys(),
        context_trigger=None if policy is None or not policy.provider else _find_trigger(view, policy),
        cache_group=run.tree.cache_group or run.tree.log.state.run_id,
    )


def _find_trigger(view: TurnView, policy: ContextPolicy) -> int | None:
    from agentloop._core.context_size import find_trigger

    return find_trigger(view, policy)


async def _filter_request(run: LiveRun, chosen: ModelInputFilter, request: ModelRequest) -> ModelRequest:
    """Return *request* as changed by the application's filter; of two outputs of one call the latest stays."""
    data = ModelInputData(
        input=tuple(request.items), instructions=request.system, agent=run.agent, context=run.context.context
    )
    filtered = await run.call_callback("call_model_input_filter", str(request.turn), chosen, data)
    if not isinstance(filtered, ModelInputData):
        raise UserTypeError(f"call_model_input_filter must return ModelInputData, not {filtered!r}")
    changed = {} if filtered.instructions == request.system else {"system": filtered.instructions, "instructions": ()}
    return request.replace(items=_keep_latest_outputs(to_items(filtered.input)), **changed)


def _keep_latest_outputs(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return *items* with one output for each call: the latest content, at the position of the first."""
    kept = {item.call_id if isinstance(item, ToolOutput) else at: item for at, item in enumerate(items)}
    return tuple(kept.values())  # in the order in which the keys first came


def _classify_calls(run: LiveRun, view: TurnView, response: ModelResponse) -> ModelResponse:
    """Return *response* with calls of handoffs as `HandoffCall`, and other calls with their secrets marked."""
    others: list[dict[str, FunctionTool]] = []
    made = [_classify_call(run, view, one, others) if isinstance(one, ToolCall) else one for one in response.items]
    return response if all(map(is_, made, response.items)) else response.replace(items=tuple(made))


def _classify_call(run: LiveRun, view: TurnView, call: ToolCall, others: list[dict[str, FunctionTool]]) -> Item:
    """Return *call* as `_classify_calls` says. *others* gets all agents' tools by key, once a call needs them."""
    if call.kind == "approval":
        return call
    if call.namespace is None and call.name in view.handoff_names:
        return HandoffCall(call.call_id, call.name, call.arguments, provider_data=call.provider_data)
    tool = find_tool(view.by_key, call.name, call.namespace)
    if tool is None:
        secret = _find_hidden_secrets(run, view, call, others)
        return call.replace(secret=secret) if secret else call
    if not (tool.secret or tool.secret_output):
        return call
    return call.replace(secret=tool.secret, secret_output=tool.secret_output)


def _find_hidden_secrets(
    run: LiveRun, view: TurnView, call: ToolCall, others: list[dict[str, FunctionTool]]
) -> frozenset[str]:
    """Return the secret parameters of *call*, whose tool isn't shown now, or is another agent's, as its name tells.

    It won't run but is in the log.
    """
    if not others:  # once for the response: it may hold any number of unknown names
        others += [{tool.lookup_key: tool for tool in agent.functions} for agent in run.tree.graph.agents()]
        others.append({tool.lookup_key: tool for tool in view.searchable})  # also of sources
    known = [find_tool(tools, call.name, call.namespace) for tools in others]
    return frozenset().union(*(one.secret for one in known if one is not None))


def _digest_request(run: LiveRun, view: TurnView, request: ModelRequest) -> str:
    """Return a digest of the whole request, and behind it a checksum of each part: see `ModelRequested`.

    The history's part is updated item by item, the definitions' is kept.
    """
    unfiltered = run.settings.config.history.call_model_input_filter is None
    items = b'"%b"' % run.state.history_digest().encode() if unfiltered else digestible(list(request.items))
    system = b"null" if request.system is None else digestible(request.system)
    digest = hashlib.sha256(b"[%b,%b,%b" % (items, system, view.shown)).hexdigest()[:32]
    return f"{digest}-{_CHECKSUMS(crc32(items), crc32(system), crc32(view.shown)).hex('-', 4)}"


_CHECKSUMS = Struct(">III").pack


@interruptible
async def _read_in_time(run: LiveRun, view: TurnView, request: ModelRequest, attempt: _Attempt) -> ModelResponse:
    timeout = request.settings.timeout
    assert timeout is not None
    attempt.scope = anyio.CancelScope(deadline=anyio.current_time() + timeout)
    with attempt.scope:
        return await _read_response(run, view, request, attempt)
    raise ModelTimeoutError(timeout)


@interruptible
async def _read_response(run: LiveRun, view: TurnView, request: ModelRequest, attempt: _Attempt) -> ModelResponse:
    """Stream one response, pass its events to the buffers of this run, and return it whole.

    Raises:
        ModelBehaviorError: events follow its end, it has no end, it was cut before anything usable, or the log couldn't
            be read again with it.
    """
    log, path, turn = run.tree.log, run.state.path, run.state.turn
    attempt.items, attempt.done = [], None
    # Fixed for the whole response: buffers of this run exist before it starts and until it has ended.
    audience = [buffer for buffer in log.buffers() if buffer.hears(path)]
    held = run.guards_settled if run.settings.config.hold_text_until_guarded else None
    async with view.model.stream(request) as stream:
        async for event in stream:
            attempt.add(event, log.wall)
            if not audience:
                continue
            # Most events need no wait, and there are many: a coroutine for each would cost more than this loop.
            attempt.streamed = attempt.streamed or not isinstance(event, _SHOWS_NOTHING)
            if held is not None and not held.is_set() and not isinstance(event, m.ResponseStarted):
                await _wait_untimed(attempt, held.wait)
            for buffer in audience:
                buffer.signal(event, path, turn)
                if buffer.full:
                    await _wait_untimed(attempt, buffer.room)
    response = _make_response(attempt)
    _check_cut(run, response)
    return response


def _make_response(attempt: _Attempt) -> ModelResponse:
    """Return the response whose events *attempt* has noted.

    Raises:
        ModelBehaviorError: it has no end, or the log couldn't be read again with it.
    """
    done = attempt.done
    if done is None:
        raise ModelBehaviorError("The model's response ended without being done")
    if done.usage is not None:
        _check_counts(done.usage)
    response = ModelResponse(
        done.items or attempt.items,  # some servers leave the last event's items empty after having sent each
        done.usage,
        done.response_id,
        done.request_id,
        done.finish_reason,
        done.model,
        done.service_tier,
        done.provider_data,
    )
    from agentloop._storage.incoming import find_fault_of_answer  # at the first answer

    if (fault := find_fault_of_answer(response)) is not None:
        raise ModelBehaviorError(f"The response can't be stored: {fault}")
    return response


def _check_counts(usage: RequestUsage) -> None:
    """Check that each count fits 64 bits, as every reader of the log's JSON understands.

    Raises:
        ModelBehaviorError: names the first count that doesn't.
    """
    for name in _COUNTS:
        if not -(2**63) <= getattr(usage, name) < 2**63:
            raise ModelBehaviorError(f"The response's usage.{name} doesn't fit 64 bits")


def _check_cut(run: LiveRun, response: ModelResponse) -> None:
    """Log that *response* was cut, if it was.

    Raises:
        ModelBehaviorError: no item of it can be used.
    """
    if not response.cut:
        return
    if not any(map(_is_usable, response.items)):
        raise ModelBehaviorError(f"The response was cut ({response.finish_reason}) before anything usable came.")
    logger.warning("the model's answer in turn %d was cut: %s", run.state.turn, response.finish_reason)


def _is_usable(item: Item) -> bool:
    if isinstance(item, AssistantMessage):
        return not says_nothing(item)
    return isinstance(item, ToolCall | HandoffCall | HostedToolCall)


async def _wait_untimed(attempt: _Attempt, wait: Callable[[], Awaitable[object]]) -> None:
    """Await `wait()` without counting it into the attempt's time limit, since the model does not cause the delay."""
    scope = attempt.scope
    if scope is None:
        await wait()
        return
    left = scope.deadline - anyio.current_time()
    scope.deadline = math.inf
    await wait()
    scope.deadline = anyio.current_time() + left
