"""Agents for the tests of the command line, loaded by it as a TARGET."""

import os
from pathlib import Path

import anyio

from agentloop import Agent, tool
from agentloop.items import UserMessage
from agentloop.model_events import ModelRequest
from agentloop.testing import Response, ScriptedModel, call, say

CLEANED = Path(os.environ.get("AGENTLOOP_TEST_CLEANED", os.devnull))


def _asked(request: ModelRequest) -> str:
    return next(item.text for item in reversed(request.items) if isinstance(item, UserMessage))


class Answering(ScriptedModel):
    """Answers every request by the same rule, whichever run asks."""
