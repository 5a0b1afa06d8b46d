"""Agents for web clients: runs whose events are server-sent events, by ASGI only, with or without a framework.

`RunResponse` is one run as a response; `AgentApp` is an application with everything that a client needs: start, read
again after a lost connection, cancel, decide on calls that wait. Both work on asyncio and trio.
"""

from agentloop.asgi._app import AgentApp
from agentloop.asgi._http import HTTPRefusal, WebLimits
from agentloop.asgi._journals import JournalFolder, RunJournals
from agentloop.asgi._requests import Grant, WebRequest
from agentloop.asgi._response import RunResponse
from agentloop.asgi._resumption import ResumedRuns
from agentloop.asgi._shared_state import SharedState
from agentloop.asgi._writer import StreamForm
from agentloop.journal._states import ClientStates, FolderStates, MemoryStates, StateStore

__all__ = [
    "AgentApp",
    "ClientStates",
    "FolderStates",
    "Grant",
    "HTTPRefusal",
    "JournalFolder",
    "RunJournals",
    "MemoryStates",
    "ResumedRuns",
    "RunResponse",
    "SharedState",
    "StateStore",
    "StreamForm",
    "WebLimits",
    "WebRequest",
]
