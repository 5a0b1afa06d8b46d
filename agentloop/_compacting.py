"""The window of a run: makes the history shorter when it is due, and asks a model for a summary where a step wants one.

`context_due` decides whether, and the steps (`agentloop.window`) how; this module performs them, between two turns or,
once, where the provider refuses a request as too long. All of it is one effect, whose result is one `HistoryReplaced`:
a replay takes it from the log, and tries no step.

A summary is a run of one turn, nested in this one, with its own path: so its request is counted, priced, limited,
cancelled, traced and recorded by what does that for each request. It isn't the run of an agent: no hook, guardrail or
tool takes part. Its log holds neither the transcript, which follows from the items before, nor the summary twice: the
history has it as an item. After a crash a summary that was made is used, if it is of the same transcript, by the same
instructions and model; one that wasn't is asked for again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import attrs

from agentloop._common.digests import digestible
from agentloop._common.error_text import error_summary
from agentloop._common.values import Value
from agentloop._core.context_size import count_context, find_counted, find_trigger, find_window
from agentloop._core.history import count_same
from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop._engine.runtime.callbacks import call_user
from agentloop._engine.runtime.live_run import LiveRun, RunSettings
from agentloop._engine.runtime.session_progress import SessionProgress, digest_item
from agentloop._storage.incoming import check_items
from agentloop.abc import ReplaceableSession
from agentloop.abc import effects as e
from agentloop.agents import Agent, implicit_settings
from agentloop.config import HistorySettings, ModelInputData, RunConfig
from agentloop.exceptions import (
    ContextTooLong,
    JournalError,
    ModelBehaviorError,
    ModelTransportError,
    SessionConflict,
    UserError,
)
from agentloop.items import AssistantMessage, Item, UserMessage, to_items
from agentloop.model_events import ModelResponse
from agentloop.records import HistoryReplaced, RunEnded, RunResumed, RunStarted, RunStatus, TurnStarted
from agentloop.settings import ModelSettings
from agentloop.window.measure import estimate_tokens, text_tokens
from agentloop.window.policy import ContextPolicy
from agentloop.window.steps import (
    ClearToolOutputs,
    ContextStep,
    ContextView,
    DropOldest,
    StepFunction,
    Summarize,
    format_transcript,
    name_step,
)
from agentloop.window.turns import find_fault

logger = logging.getLogger("agentloop")
_TRANSCRIPT = 1.5
"""Characters of a transcript for each token of the window: half of the window, at about three characters a token."""
_LEAST_SCALE, _MOST_SCALE = 0.25, 4.0
"""Beyond these it isn't the estimate that is wrong: the request was filtered, or has parts that we don't know."""
_PAUSE = 0.1
"""The part of the window by which a history grows, at least, between two compactions that missed their target."""


Ask: TypeAlias = Callable[[LiveRun, TurnView], Awaitable[None]]


class Compacted(Value, frozen=True):
    """The new history: the first *keep* items of the old one, then *items*."""

    keep: int
    items: tuple[Item, ...]
    tokens_before: int
    tokens: int
    steps: tuple[str, ...]


async def keep_in_window(
    run: LiveRun, view: TurnView, policy: ContextPolicy, ask: Ask, refused: ModelTransportError | None = None
) -> TurnView:
    """Return *view* with a shorter history if that is due, or if the provider has *refused* the request as too long.

    *ask* requests an answer of a model and appends it: `call_model`.

    Cancellation: nothing is changed before the record is appended.

    Raises:
        ContextTooLong: the steps couldn't make the history fit. The run can be resumed with another policy.
        UserError: nothing is known of the model's window; a step's function returned what no model can be shown.
    """
    key = f"{len(run.state.responses)}{'' if refused is None else ':refused'}"
    effect = e.CallCallback(run.path, "compaction", key, partial(_compact, run, view, policy, ask, refused))
    try:
        made = await run.tree.effects.perform(effect)
    except (ContextTooLong, UserError) as error:
        run.stopped_by = error  # another policy or model may get past it
        raise
    await run.checkpoint()
    if made is None:
        return view
    if run.settings.session is not None:
        run.settings.session.note_compaction(run.state)
    run.tree.log.append(
        HistoryReplaced(
            *run.here(),
            "compaction",
            made.keep,
            made.items,
            tokens_before=made.tokens_before,
            tokens=made.tokens,
            steps=made.steps,
        )
    )
    return view


async def make_room(
    run: LiveRun, view: TurnView, policy: ContextPolicy, ask: Ask, refused: ModelTransportError, *, again: bool
) -> TurnView:
    """Return *view* with a shorter history, after the provider has *refused* the turn's request as too long.

    *again* tells that it has refused the shorter one, too. Of a history that it keeps there is no shorter one.

    Raises:
        ContextTooLong: the history couldn't be made shorter, or was already.
        UsageLimitExceeded: a summary has spent the budget.
    """
    if again or run.state.kept_by_provider:
        window, tokens = find_window(view, policy), count_context(run.state)
        run.stopped_by = ContextTooLong(tokens, window, int(policy.target * window), (("the provider", "refused it"),))
        raise run.stopped_by from refused
    made = await keep_in_window(run, view, policy, ask, refused)
    run.stopped_by = None  # the refusal isn't the end of the run
    run.check_request()  # a summary may have spent the budget
    return made


def make_context_view(state: RunFold, view: TurnView, window: int, target: int) -> ContextView:
    """Return the history of *state* as steps see it, with a measure that fits the last count."""
    fixed = text_tokens(view.shown) + text_tokens(view.system or "")
    items: tuple[Item, ...] = tuple(state.history)
    task = next((item for item in reversed(state.input) if isinstance(item, UserMessage)), None)
    counted = find_counted(state)
    if counted is None:
        return ContextView(items=items, window=window, target=target, task=task, base=float(fixed))
    known, added = estimate_tokens(items[: counted.length]), estimate_tokens(items[counted.length :])
    scale = min(max((counted.tokens - fixed) / known, _LEAST_SCALE), _MOST_SCALE) if known else 1.0
    # So that the whole history measures what was counted, plus the estimate of what came since.
    base = counted.tokens + added - scale * (known + added)
    return ContextView(items=items, window=window, target=target, task=task, base=base, scale=scale)


def context_due(state: RunFold, view: TurnView, policy: ContextPolicy) -> ContextView | None:
    """Return the history as the steps of *policy* see it if it is too long for the next request, else None.

    Raises:
        UserError: nothing is known of the model's window, or the provider keeps the history.
    """
    window = find_window(view, policy)
    if find_trigger(view, policy) is not None:
        return None
    if state.kept_by_provider:
        raise UserError(
            f"agent {view.agent!r} has a ContextPolicy, but the provider keeps the conversation, so that no step "
            "can change it: leave out conversation=, or write ContextPolicy(provider=True) for a model whose provider "
            "can shorten it itself"
        )
    limit = policy.start_at * window
    if state.compacted is not None and state.compacted.tokens is not None:
        limit = max(limit, min(state.compacted.tokens + _PAUSE * window, float(window)))
    found = make_context_view(state, view, window, int(policy.target * window))
    return found if found.tokens > limit else None


async def _compact(
    run: LiveRun, view: TurnView, policy: ContextPolicy, ask: Ask, refused: ModelTransportError | None
) -> Compacted | None:
    """Return what takes the place of the history; None if it isn't due. Raises as `keep_in_window`."""
    found = context_due(run.state, view, policy)
    if refused is not None:  # the measure may say otherwise: it has to be shorter than what was refused
        window = find_window(view, policy)
        whole = make_context_view(run.state, view, window, 0)
        found = whole.replace(target=int(policy.target * min(window, whole.tokens)))
    if found is None:
        return None
    shown, tried = found, list[tuple[str, int | str]]()
    for index, step in enumerate(policy.steps):
        if shown.tokens <= shown.target:
            break
        if isinstance(step, Summarize):
            shown, left = await _summarize_older(run, view, step, shown, index, ask)
        else:
            shown = shown.replace(items=await _take_step(step, shown))
            left = shown.tokens
        tried.append((name_step(step), left))
    if shown.tokens > found.window or (refused is not None and shown.tokens >= found.tokens):
        raise ContextTooLong(found.tokens, found.window, found.target, tried) from refused
    keep = count_same(found.items, shown.items)
    if keep == len(found.items) == len(shown.items):
        return None
    names = tuple([name for name, left in tried if isinstance(left, int)])
    return Compacted(keep, shown.items[keep:], found.tokens, shown.tokens, names)


async def _take_step(step: ContextStep | StepFunction, shown: ContextView) -> tuple[Item, ...]:
    """Return the items that *step* makes of *shown*.

    Raises:
        UserTypeError: they can't be stored.
        UserError: no model can be shown them.
        Exception: the error of an application's step.
    """
    made = await call_user(step.shorten if isinstance(step, ContextStep) else step, shown)
    if isinstance(step, ClearToolOutputs | DropOldest):
        return tuple(made)
    items = check_items(name_step(step), to_items(made))
    if (fault := find_fault(shown.items, items)) is not None:
        raise UserError(f"ContextPolicy.steps: {name_step(step)} made a history that no model can be shown: {fault}")
    return items


# -- the session


async def save_compacted(run: LiveRun, progress: SessionProgress, items: list[Item]) -> None:
    """Add *items* to the session of *progress*, and put the shorter history in the place of the longer one there.

    One step: a crash or a conflict leaves the longer one. Where the session doesn't end with the history that the run
    had (it was filtered, or other code has written to the session), it stays as it is.

    Cancellation: as of the session.

    Raises:
        Exception: the error of the session.
    """
    session, state = progress.session, run.state
    if items:
        await session.add_items(items)
    policy, before = run.settings.config.context or run.agent.context, progress.before
    if before is None or policy is None or not policy.compact_session or not isinstance(session, ReplaceableSession):
        return
    if state.compacted is None:
        logger.warning("%r isn't made shorter: the model is shown something else since, as by a handoff", session)
        return
    held = {id(item) for item in progress.held}
    old = [item for item in (*before, *state.new_items[progress.since :]) if id(item) not in held]
    there = await session.get_items()
    start = len(there) - len(old)
    if start < 0 or list(map(digest_item, there[start:])) != list(map(digest_item, old)):
        logger.warning("%r isn't made shorter: it doesn't end with the history of the run", session)
        return
    own = {id(item): left for item, left in zip(old, there[start:], strict=True)}
    new = [own.get(id(item), item) for item in state.history if id(item) not in held]
    try:
        await session.replace([*there[:start], *new], expect=there)
    except SessionConflict as error:
        logger.warning("%r isn't made shorter: %s", session, error)


# -- the summary


async def _summarize_older(
    run: LiveRun, view: TurnView, step: Summarize, shown: ContextView, index: int, ask: Ask
) -> tuple[ContextView, int | str]:
    """Return *shown* with a summary in place of its older turns, and the tokens left; as it was with the words of the
    error if the summary failed.

    Raises:
        UserError: there is no such model.
        JournalError: the journal has failed.
    """
    older = step.find_older(shown)
    if not older:
        return shown, shown.tokens
    try:
        nested = _make_summary_run(run, view, step, format_transcript(older, int(_TRANSCRIPT * shown.window)), index)
        summary = await _summarize(run, nested, view, step, ask)
    except (JournalError, UserError):
        raise
    except Exception as error:
        run.redact_error(error)
        logger.warning("a summary of the history failed: %s", error_summary(error))
        return shown, error_summary(error)
    made = shown.replace(items=step.replace_older(shown, summary))
    return made, made.tokens


async def _summarize(run: LiveRun, nested: LiveRun, view: TurnView, step: Summarize, ask: Ask) -> str:
    """Return the summary of *nested*, a run in *run*: the one of an earlier segment, or the one that a model makes now.

    Raises:
        UsageLimitExceeded: a budget is spent.
        Exception: the error of the request; the response has no text.
    """
    state, log = nested.state, run.tree.log
    if state.responses and (state.ended is None or state.ended.status == "completed"):
        return _read_summary(state.responses[-1])
    nested.check_request()
    model = view.model if step.model is None else await run.tree.resolve_model(run, step.model)
    if state.started is None:
        asked = UserMessage("Summarize the conversation so far.")
        log.append(RunStarted(state.path, 0, log.wall(), nested.context.run_id, run.agent_key, (asked,), 1))
    else:
        log.append(RunResumed(*nested.here(), run.agent_key, 1))
    own = nested.view = TurnView(
        agent=nested.agent.name,
        tools=(),
        by_key={},
        system=step.instructions,
        settings=_choose_settings(run, view, step),
        model=model,
        shown=b"]",
    )
    try:
        log.append(TurnStarted(state.path, 1, log.wall(), run.agent_key))
        if log.journal is not None:
            await log.journal.durable()
        await ask(nested, own)
        summary = _read_summary(state.responses[-1])
    except BaseException as error:
        status: RunStatus = "failed" if isinstance(error, Exception) else "cancelled"
        log.append(RunEnded(*nested.here(), status, error=error_summary(error), resumable=True))
        raise
    log.append(RunEnded(*nested.here(), "completed"))
    return summary


def _read_summary(response: ModelResponse) -> str:
    """Return the text of *response*.

    Raises:
        ModelBehaviorError: it has none.
    """
    text = "".join([item.text for item in response.items if isinstance(item, AssistantMessage)]).strip()
    if not text:
        raise ModelBehaviorError("The model gave no summary")
    return text


def _choose_settings(run: LiveRun, view: TurnView, step: Summarize) -> ModelSettings:
    """Return the settings of the agent's requests where its model summarizes; of another model its own, with the
    agent's patience.

    Where a budget counts the worst case, an answer needs a length: the agent's holds if the model has none of its own.
    """
    if step.model is None:
        return attrs.evolve(view.settings, tool_choice=None, parallel_tool_calls=None, context_management=None)
    patience = ModelSettings(timeout=view.settings.timeout, retry=view.settings.retry)
    settings, budget = implicit_settings(step.model).resolve(patience), run.settings.budget
    if settings.max_tokens is not None or budget is None or not budget.counts_worst_case:
        return settings
    return attrs.evolve(settings, max_tokens=view.settings.max_tokens)


def _make_summary_run(run: LiveRun, view: TurnView, step: Summarize, transcript: str, index: int) -> LiveRun:
    """Return the run of a summary. Its path tells after which response it is made, for which step, and by a digest of
    what: a resumed run with another policy or model doesn't take one of other items for its own."""
    state, config = run.state, run.settings.config
    model = step.model or view.model
    asked = (transcript, step.instructions, model if isinstance(model, str) else model.info.name)
    digest = hashlib.sha256(digestible(asked)).hexdigest()[:8]
    call_id = f"summary-{state.compactions}-{len(state.responses)}-{index}-{digest}"
    usual = config.history.call_model_input_filter

    async def show(data: ModelInputData) -> ModelInputData:
        shown = data.replace(input=(UserMessage(transcript),))
        return shown if usual is None else await call_user(usual, shown)

    own: RunConfig = attrs.evolve(config, history=HistorySettings(call_model_input_filter=show))
    fold = state.nested.get(call_id) or state.nest(call_id, config.json_limits)
    settings = RunSettings(
        config=own, around=run.settings, budget=run.settings.budget, redacts_errors=run.settings.redacts_errors
    )
    return run.make_nested(fold, settings, Agent(run.agent.name), run.resources)
