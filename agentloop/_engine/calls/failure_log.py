"""Log messages about failures of tools that only the model sees otherwise, for the maintainers of the tool.

Writes to the logger `agentloop.tools`; does not know about records or instruments.
"""

from __future__ import annotations

import logging

from agentloop._common.error_text import error_summary, traceback_of
from agentloop._engine.calls.live_call import LiveCall

logger = logging.getLogger("agentloop.tools")


def log_failure(live: LiveCall, error: BaseException) -> None:
    """Log that the body of *live* failed with *error*, which the tool's policy reports to the model.

    A WARNING names tool, call and error; a message at DEBUG has the traceback. Neither shows a secret: both show an
    error as the summary that records have, without its own message.
    """
    words = (live.tool.qualified_name, live.call_id, error_summary(error))
    logger.warning("tool %s failed in call %s: %s", *map(_escape_unprintable, words))
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("traceback of call %s:\n%s", _escape_unprintable(live.call_id), traceback_of(error))


def _escape_unprintable(text: str) -> str:
    """Return *text* with every character escaped that could control a terminal, forge a line or fit no encoding."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
