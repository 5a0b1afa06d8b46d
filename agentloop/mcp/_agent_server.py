"""The SDK's server whose tools are agents: progress, cancellation, approvals. Imported by `_serving` only.

An approval is asked in the way of the client's era. With a session the question goes back over it while the run's tool
waits. Without one the call ends with the question and the run's state, and the client calls again with both: the run is
resumed. The SDK seals that state, so a client can neither read nor change it. A seal can be used twice, so the server
keeps a ticket for each state (`ClientStates`), and a state is resumed once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from cryptography.fernet import Fernet
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel

from agentloop import events as ev
from agentloop._common.error_text import error_summary
from agentloop._common.masking import mask_arguments
from agentloop._common.naming import replace_unusable
from agentloop._common.version import __version__
from agentloop._engine.calls.output_text import render
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions._public import describe_error
from agentloop.items import ApprovalRequest, CallToAnswer, Interruption
from agentloop.journal._states import ClientStates
from agentloop.run import Runner
from agentloop.state import RunState

_USED = "This answer was given before, or to another server: what it decides has been decided. Call again without it."


class _States:
    """The states of paused runs that the clients of one server carry: each is taken once, and hides its secrets.

    The key of the secrets is this process's, as that of the SDK's seal is.
    """

    def __init__(self) -> None:
        self._tickets = ClientStates()
        self._cipher = Fernet(Fernet.generate_key())

    async def put(self, state: RunState) -> str:
        """Return what the client carries."""
        return await self._tickets.put(state.to_string(codec=self))

    async def take(self, agent: Agent[Any, Any], carried: str) -> RunState:
        """Return the state in *carried*, once.

        Raises:
            ToolError: it was taken before, or was not put here.
        """
        state = await self._tickets.take(carried)
        if state is None:
            raise ToolError(_USED)
        return RunState.from_string(agent, state, codec=self)

    def seal(self, data: bytes) -> bytes:
        """Return *data* as only this object reads it, as a `Codec`."""
        return self._cipher.encrypt(data)

    def open(self, sealed: bytes) -> bytes:
        """Return what was sealed."""
        return self._cipher.decrypt(sealed)


class ApprovalAnswer(BaseModel):
    """The answer to the question whether a call may run."""

    approve: bool


logger = logging.getLogger("agentloop.mcp")
MakeContext: TypeAlias = Callable[[], Any] | None


def make_server(
    agents: Sequence[Agent[Any, Any]], name: str, run_config: RunConfig | None, make_context: MakeContext = None
) -> MCPServer[Any]:
    """Return a server with one tool for each agent."""
    server: MCPServer[Any] = MCPServer(name, version=__version__)
    states = _States()
    for agent in agents:
        _add_tool(server, agent, run_config, make_context, states)
    return server


def _add_tool(
    server: MCPServer[Any],
    agent: Agent[Any, Any],
    config: RunConfig | None,
    make_context: MakeContext,
    states: _States,
) -> None:
    async def ask(input: str, ctx: Context) -> Any:
        try:
            options = {"run_config": config, "context": None if make_context is None else make_context()}
            return await _run(agent, options, input, ctx, states)
        except (MCPError, ToolError):
            raise
        except Exception as error:  # its words may quote paths, addresses and keys, and go to a stranger
            logger.error("a run for an MCP client has failed: %s", error_summary(error))
            described = describe_error(error)
            raise ToolError(f"{described['type']}: {described['message']}") from error

    words = agent.handoff_description or f"Ask the agent {agent.name}."
    server.add_tool(ask, name=replace_unusable(agent.name), description=words, structured_output=False)


_NO_ANSWER = "The client can't be asked for the answer to this call."


async def _run(agent: Agent[Any, Any], options: dict[str, Any], text: str, ctx: Any, states: _States) -> Any:
    """Run *agent* to its final output, or to a question that the client has to bring back with its answer.

    Raises:
        ToolError: the client brings a state that was used before, or that has no ticket here.
    """
    given: str | RunState = text
    if ctx.request_state is not None:
        given = await states.take(agent, ctx.request_state)
        answers = ctx.input_responses or {}
        for asked in given.interruptions:
            _decide(given, asked, answers.get(_key(asked)))
    steps = 0
    while True:
        async with Runner.run_streamed(agent, given, **options) as stream:
            async for event in stream:
                if (words := _describe(event)) is not None:
                    steps += 1
                    await ctx.report_progress(steps, None, words)
        result = stream.result
        if not result.interruptions:
            return render(result.final_output)
        given = result.to_state()
        try:
            for asked in given.interruptions:
                await _ask(given, asked, ctx)
        except NoBackChannelError:
            return await _ask_with_result(given, states)


async def _ask(state: RunState, asked: Interruption, ctx: Any) -> None:
    """Ask the client's user, and decide on *asked*; it is rejected if the client can't ask.

    Raises:
        NoBackChannelError: no question can be sent before the end of this request.
    """
    if isinstance(asked, CallToAnswer):
        return state.answer(asked, error=_NO_ANSWER)
    if _can_ask(ctx.client_capabilities):
        try:
            found = await ctx.elicit(_question(asked), ApprovalAnswer)
            return _approve(state, asked, found.action == "accept" and found.data.approve)
        except NoBackChannelError:
            raise
        except MCPError as error:
            logger.info("an MCP client hasn't asked its user: %s", error_summary(error))
    state.reject(asked, message="The client can't ask its user for approval.")
    return None


def _can_ask(capabilities: Any) -> bool:
    """Tell whether a client with these capabilities, which it sends with each request, shows forms to its user."""
    kinds = None if capabilities is None else capabilities.elicitation
    return kinds is not None and (kinds.form is not None or kinds.url is None)


def _describe(event: object) -> str | None:
    match event:
        case ev.TurnStarted():
            return f"turn {event.turn}"
        case ev.CallStarted():
            return f"{event.call.name} started"
        case ev.CallSettled():
            return f"{event.call.name} {event.outcome.status}"
        case _:
            return None


def _question(asked: ApprovalRequest) -> str:
    arguments = mask_arguments(asked.call.arguments, asked.call.secret)
    return f"{asked.agent} wants to call {asked.call.name} with {arguments}. Approve?"


def _key(asked: Interruption) -> str:
    return "/".join((*asked.path, asked.call.call_id))


async def _ask_with_result(state: RunState, states: _States) -> InputRequiredResult:
    """Return the questions of *state* as the end of this request."""
    schema = ApprovalAnswer.model_json_schema()
    requests: dict[str, Any] = {
        _key(asked): ElicitRequest(params=ElicitRequestFormParams(message=_question(asked), requested_schema=schema))
        for asked in state.interruptions
        if isinstance(asked, ApprovalRequest)
    }
    return InputRequiredResult(input_requests=requests, request_state=await states.put(state))


def _decide(state: RunState, asked: Interruption, answer: object) -> None:
    if isinstance(asked, CallToAnswer):
        return state.answer(asked, error=_NO_ANSWER)
    accepted = isinstance(answer, ElicitResult) and answer.action == "accept"
    content: Any = answer.content if accepted else None  # type: ignore[attr-defined]  # `Any` without the extra
    return _approve(state, asked, content is not None and content.get("approve") is True)


def _approve(state: RunState, asked: ApprovalRequest, approved: bool) -> None:
    if approved:
        state.approve(asked)
    else:
        state.reject(asked)
