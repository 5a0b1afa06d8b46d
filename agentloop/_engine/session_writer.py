"""The session writer: reads a run's session once at the start, and writes the run's items to it turn by turn.

Turn by turn, since writing at the end would lose an hour's conversation to a crash in its last minute. Does not decide
when a turn is saved: the loop and the end of a run segment do.

Decisions:

A session is written turn by turn, when a turn's outputs are accepted, in a shielded section. Rejected: writing at the
end, which loses an hour's conversation to a crash in its last minute. Of the items that a `session_input_callback`
returns, the run's own are those from its input, matched by identity first and by equality second; otherwise a copy of
an old item would be saved twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

from agentloop._core.history import valid_history
from agentloop._engine.runtime.live_run import LiveRun, seconds_to_deadline
from agentloop._engine.runtime.session_progress import SessionProgress, digest_item
from agentloop._storage.incoming import check_items
from agentloop.abc import effects as e
from agentloop.exceptions import UserTypeError
from agentloop.items import HandoffCall, HandoffOutput, Item, ToolCall, ToolOutput, to_items
from agentloop.records import SessionSaved


async def load_session(
    run: LiveRun, progress: SessionProgress, given: tuple[Item, ...]
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return the run's own input, and the first items for the model: the session's, then the input.

    A `session_input_callback` may reorder, filter, repeat or copy; of the items it returns, only those that came from
    *given* are the run's own and will be saved.

    Raises:
        UserTypeError: the callback returned no list.
        Exception: the error of the session or the callback.
    """
    settings = run.settings.config.history.session_settings
    limit = settings.limit if settings is not None else None
    session = progress.session
    effect = e.LoadSession(run.path, lambda: session.get_items() if limit is None else session.get_items(limit))
    history = check_items("session", whole_pairs(tuple(await run.tree.effects.perform(effect))))
    merge = run.settings.config.history.session_input_callback
    if merge is None:
        return given, (*history, *given)
    merged = await run.call_callback("session_input_callback", "", merge, list(history), list(given))
    if not isinstance(merged, list | tuple):
        raise UserTypeError(f"session_input_callback must return a list of items, not {merged!r}")
    shown = check_items("session_input_callback", to_items(merged))
    return _select_own(shown, history, given), shown


async def save_items(
    run: LiveRun,
    progress: SessionProgress,
    *,
    upto: Callable[[tuple[Item, ...]], tuple[Item, ...]] = valid_history,
) -> None:
    """Write the items that the run has added since the last time, in a shielded section under the cleanup deadline.

    A deadline around the run bounds it too: the write ends at most the cleanup grace after it.
    """
    state = run.state
    due = (*progress.held, *state.new_items[progress.saved :])
    kept = upto(due)
    items: list[Item] = [*(() if progress.input_saved else state.input), *kept]
    written = {id(item) for item in kept}
    progress.held = [item for item in due if id(item) not in written]
    progress.saved, progress.input_saved = len(state.new_items), True
    if upto is not valid_history:
        progress.before = None  # a guardrail has refused a part of what the model was shown
    if not items and progress.before is None:
        return
    left = seconds_to_deadline()
    seconds = math.inf if left is None else max(left, 0.0) + run.cleanup.grace
    with run.cleanup.section(seconds=seconds, on_cut=lambda: run.cut("session save")):
        if run.tree.log.journal is not None:
            # Else, after a crash, the session could hold an output that the log lacks.
            await run.tree.log.journal.durable()
        await _write(run, progress, items)


async def _write(run: LiveRun, progress: SessionProgress, items: list[Item]) -> None:
    session = progress.session
    in_doubt = {id(item) for item in progress.doubtful}
    doubtful = [item for item in items if id(item) in in_doubt]
    if doubtful:
        most = max(map(len, progress.preceding)) + len(doubtful)
        effect = e.LoadSession(run.path, lambda: session.get_items(most))
        tail = list(await run.tree.effects.perform(effect))
        left = {id(item) for item in _not_there(doubtful, _cut_after(tail, progress.preceding, len(doubtful)))}
        # Others may come between those: an output that a guardrail has withheld since is another item.
        items = [item for item in items if id(item) in left or id(item) not in in_doubt]
    progress.doubtful, progress.preceding = [], []
    if items or progress.before is not None:
        save: e.Do = partial(session.add_items, items)
        if progress.before is not None:
            from agentloop._compacting import save_compacted

            save = partial(save_compacted, run, progress, items)
        progress.failed = True
        await run.tree.effects.perform(e.SaveSession(run.path, save))
        progress.failed, progress.before = False, None
    run.tree.log.append(SessionSaved(*run.here(), progress.saved))


def _cut_after(tail: list[Item], befores: list[list[Item]], most: int) -> list[Item]:
    """Return the items that *tail*, the end of a session, has after those of *befores* that it has.

    Equal items may be on both sides of that place: a model repeats its answer, a user a question. If the session lacks
    all of *befores* (it was compacted, or other code wrote to it in between), the last *most* items are returned.
    """
    found = [digest_item(item) for item in tail]
    for wanted in [[digest_item(item) for item in before] for before in befores if before]:
        for stop in range(len(found), len(wanted) - 1, -1):
            if found[stop - len(wanted) : stop] == wanted:
                return tail[stop:]
    return tail[-most:]


def _not_there(items: list[Item], tail: list[Item]) -> list[Item]:
    """Return those of *items* that aren't written yet, where *tail* is the end of the session.

    The last write had complete pairs of these items. After several such writes, in run segments that didn't reach their
    ends, later items follow pairs that were completed before them.
    """
    missing = Counter(map(digest_item, items))
    for item in reversed(tail):
        key = digest_item(item)
        if not missing[key]:
            break  # written by other code, or before: no earlier item of the session is one of these
        missing[key] -= 1
    left: list[Item] = []
    for item in reversed(items):  # of equal items the first ones are written
        key = digest_item(item)
        if missing[key]:
            missing[key] -= 1
            left.append(item)
    return left[::-1]


def whole_pairs(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return *items* without outputs that no call precedes (a limit cut it off), and without calls that lack an output.

    Of two outputs of one call the latest stays, at the position of the first. Another run may have used the id again:
    each call begins its own pair.
    """
    begun: dict[str, int] = {}
    kept: dict[object, Item] = {}  # an output by its call: assigned again, it keeps its place
    for at, item in enumerate(items):
        if isinstance(item, ToolOutput | HandoffOutput):
            if item.call_id in begun:
                kept[item.call_id, begun[item.call_id]] = item
            continue
        if isinstance(item, ToolCall | HandoffCall):
            begun[item.call_id] = at
        kept[at] = item
    return valid_history(kept.values())


def _select_own(shown: tuple[Item, ...], history: tuple[Item, ...], given: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the items of *shown* that are the run's own: by identity, else by equality, never a copy of history."""
    ids = {id(item) for item in given}
    left = Counter(map(digest_item, given))
    old = Counter(map(digest_item, history))
    own: list[Item] = []
    for item in shown:
        key = digest_item(item)
        if id(item) in ids or (left[key] and not old[key]):
            if left[key]:
                left[key] -= 1
                own.append(item)
        elif old[key]:
            old[key] -= 1
    return tuple(own)
