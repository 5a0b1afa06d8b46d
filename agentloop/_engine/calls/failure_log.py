"""Log messages about failures of tools that only the model sees otherwise, for the maintainers of the tool.

Writes to the logger `agentloop.tools`; does not know about records or instruments.
"""

from __future__ import annotations

import logging

from agentloop._common.error_text import error_summary, message_of, traceback_of
from agentloop._engine.calls.live_call import LiveCall
from agentloop.tools import PythonBody

logger = logging.getLogger("agentloop.tools")
_NO_CONTEXT = "ctx.context is None in this run: was context=… forgotten at Runner.run?"


def log_failure(live: LiveCall, error: BaseException, summary: str | None = None) -> None:
    """Log that the body of *live* failed with *error*, which the tool's policy reports to the model.

    A WARNING names tool, call and error; a message at DEBUG has the traceback. Neither shows a secret: both show an
    error as the summary that records have, without its own message.
    """
    words = (live.tool.qualified_name, live.call_id, summary or error_summary(error))
    logger.warning("tool %s failed in call %s: %s%s", *map(_escape_unprintable, words), hint_at(live, error, "; "))
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("traceback of call %s:\n%s", _escape_unprintable(live.call_id), traceback_of(error))


def hint_at(live: LiveCall, error: BaseException, before: str = "") -> str:
    """Return what the developer may have forgotten, with *before* in front, if *error* looks like it; else no text.

    A body that uses `ctx.context` in a run that was given none fails with Python's words about None, which don't say
    what to do. The model isn't told: it can't do anything about it.
    """
    body = live.tool.body
    takes_context = isinstance(body, PythonBody) and body.schema.context_parameter is not None
    if live.run.context.context is not None or not takes_context or not isinstance(error, AttributeError | TypeError):
        return ""
    return f"{before}{_NO_CONTEXT}" if "'NoneType'" in message_of(error) else ""


def _escape_unprintable(text: str) -> str:
    """Return *text* with every character escaped that could control a terminal, forge a line or fit no encoding."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
