"""The options of `agentloop run` and `resume`: the agent, its backend, the outputs, and the approver of calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import anyio
import attrs

from agentloop._common.masking import mask_arguments
from agentloop._common.naming import qualify_name
from agentloop._common.terminal_text import exact
from agentloop._schema.json_check import find_violation
from agentloop.abc import Journal, Session
from agentloop.agents import Agent
from agentloop.cli.journal_folder import Folder
from agentloop.cli.streams import Output, TypedLines
from agentloop.config import RunConfig
from agentloop.exceptions import AgentLoopError, UserValueError
from agentloop.items import ApprovalRequest, CallToAnswer, Interruption
from agentloop.run import Runtime
from agentloop.state import RunState

CONTEXT_HELP = "module:name or file.py:name of the context; a function or class there is called for each run."
PRICE_HELP = "module:function or file.py:function of (model name, usage): the cost of a request, summed up at the end."


class Approver(Protocol):
    """Decides on the calls of a run that wait for a verdict."""

    async def decide(self, state: RunState, where: str) -> bool:
        """Give verdicts on the waiting calls of *state*. Return False if none was given.

        *where* names the run among several concurrent ones.
        """
        ...


class Nobody:
    """An approver that gives no verdict: every call stays pending."""

    async def decide(self, state: RunState, where: str) -> bool:
        """Return False."""
        return False


class Everything:
    """An approver that approves every call."""

    async def decide(self, state: RunState, where: str) -> bool:
        """Approve every call that waits for a verdict. Return False if there is none: no answer is known here."""
        asked = [request for request in state.interruptions if isinstance(request, ApprovalRequest)]
        for request in asked:
            state.approve(request)
        return bool(asked)


def call_name(request: Interruption) -> str:
    """Return the name of a waiting call on the command line: its id, after the ids of the calls around it."""
    return "/".join((*request.path, request.call.call_id))


def describe_call(request: Interruption) -> str:
    """Format the call of *request*: its tool and its complete arguments, with secret ones masked."""
    call = request.call
    tool = qualify_name(call.name, call.namespace)
    return exact(f"{tool} {mask_arguments(call.arguments, call.secret)}")


def find_asking_policy(request: Interruption) -> str:
    """Return why *request* waits: its policy and reason, or for its answer; empty if the tool itself asks."""
    if isinstance(request, CallToAnswer):
        return "waits for its answer"
    if request.policy is None:
        return ""
    return exact(request.policy if request.reason is None else f"{request.policy}: {request.reason}")


@attrs.define(eq=False)
class Questions:
    """An approver that asks the user at the terminal, one call at a time, while other runs continue.

    Owned by the command; concurrent runs share it. `hidden` removes the progress bar from the terminal while a question
    is shown.
    """

    err: Output
    hidden: Callable[[], AbstractContextManager[None]] = nullcontext
    screen: anyio.Lock = attrs.field(factory=anyio.Lock)
    """The lock of the terminal: only its holder writes there."""
    lines: TypedLines = attrs.field(factory=lambda: TypedLines(sys.stdin.buffer))
    _later: set[tuple[str, tuple[str, ...], str]] = attrs.field(factory=set)

    async def decide(self, state: RunState, where: str) -> bool:
        """Ask about each waiting call, except those that the user has put off. Return True if any verdict was given.

        Cancellation: a checkpoint while it waits for the terminal or for input; a cut question gives no verdict.
        """
        decided = False
        for request in state.interruptions:
            place = (state.run_id, request.path, request.call.call_id)
            # An answer of "always" may have decided on later calls too.
            if place in self._later or request not in state.interruptions:
                continue
            async with self.screen:
                with self.hidden():
                    if isinstance(request, CallToAnswer):
                        answered = await self._ask_for_answer(state, request, where)
                    else:
                        answered = await self._ask(state, request, where)
            decided = decided or answered
            if not answered:
                self._later.add(place)
        return decided

    async def _ask(self, state: RunState, request: ApprovalRequest, where: str) -> bool:
        inside = f", inside {exact('/'.join(request.path))}" if request.path else ""
        at = f", {where}" if where else ""
        why = f"  {asked}\n" if (asked := find_asking_policy(request)) else ""
        await self.err.write(f"? {describe_call(request)}\n  {exact(request.agent)} asks for it{inside}{at}\n{why}")
        while True:
            await self.err.write("  [y]es, [n]o (and why), [a]lways, ne[v]er, [e]dit, [l]ater: ")
            typed = await self.lines.next()
            if typed is None:
                await self.err.write("\n")
                return False
            word, _, rest = typed.strip().partition(" ")
            match word.lower():
                case "y" | "yes":
                    state.approve(request)
                case "a" | "always":
                    state.approve(request, always=True)
                case "n" | "no":
                    state.reject(request, message=rest.strip() or None)
                case "v" | "never":
                    state.reject(request, message=rest.strip() or None, always=True)
                case "l" | "later":
                    return False
                case "e" | "edit":
                    if not await self._edit(state, request):
                        continue
                case "":
                    continue
                case _:
                    hint = "; other arguments are typed after e" if word.startswith("{") else ""
                    await self.err.write(f"  Type one of y, n, a, v, e, l{hint}.\n")
                    continue
            return True

    async def _ask_for_answer(self, state: RunState, request: CallToAnswer, where: str) -> bool:
        inside = f", inside {exact('/'.join(request.path))}" if request.path else ""
        at = f", {where}" if where else ""
        wants = exact(describe_answer(request.returns))
        await self.err.write(
            f"? {describe_call(request)}\n  {exact(request.agent)} asks you{inside}{at}\n  {wants}; empty: later\n"
        )
        while True:
            await self.err.write("  Answer: ")
            typed = await self.lines.next()
            if not (typed or "").strip():
                return False
            try:
                state.answer(request, read_answer(typed or "", request.returns))
            except AgentLoopError as error:
                await self.err.write(f"  {exact(str(error))}\n")
            else:
                return True

    async def _edit(self, state: RunState, request: ApprovalRequest) -> bool:
        """Ask for arguments until they fit; return False if none are given."""
        now = exact(mask_arguments(request.call.arguments, request.call.secret))
        await self.err.write(f"  Now: {now}\n")
        while True:
            await self.err.write("  Arguments, as a JSON object on one line: ")
            typed = await self.lines.next()
            if not (typed or "").strip():
                return False
            try:
                state.approve(request, arguments=typed)
            except AgentLoopError as error:
                await self.err.write(f"  {exact(str(error))}\n")
            else:
                return True


def read_answer(typed: str, returns: Mapping[str, Any]) -> Any:
    """Return the answer in *typed*: JSON, or plain text where *returns* takes text and JSON doesn't fit.

    Raises:
        UserValueError: it is neither.
    """
    text = typed.strip()
    choices = returns.get("enum")
    if isinstance(choices, list) and text.isdecimal() and text not in choices and int(text) not in choices:
        return choices[int(text) - 1] if 1 <= int(text) <= len(choices) else text
    takes_text = find_violation(text, returns) is None
    if takes_text and returns.get("type") == "string":
        return text
    try:
        value = json.loads(text)
    except ValueError:
        if takes_text:
            return text
        raise UserValueError(f"the answer doesn't fit: expected {describe_answer(returns)}") from None
    return text if takes_text and find_violation(value, returns) is not None else value


def describe_answer(returns: Mapping[str, Any]) -> str:
    """Return in words what an answer has to be, for a person who types it."""
    choices = returns.get("enum")
    if isinstance(choices, list):
        return "one of " + ", ".join(f"{number} {choice}" for number, choice in enumerate(choices, 1))
    if returns.get("type") == "string":
        return "a text"
    if not returns:
        return "any JSON"
    return f"JSON that fits {json.dumps(returns, ensure_ascii=False)}"


def can_ask(err: Output, *, input_is_taken: bool) -> bool:
    """Tell whether a user at a terminal can be asked: not if standard input gives the requests (*input_is_taken*)."""
    if input_is_taken or not err.is_terminal:
        return False
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # closed, or none at all
        return False


def approver_for(choice: Literal["ask", "never", "always"] | None, err: Output, *, can_ask: bool) -> Approver:
    """Return the approver for *choice*. With None it asks the user if that is possible, else calls stay pending."""
    if choice == "always":
        return Everything()
    return Questions(err) if choice == "ask" or (choice is None and can_ask) else Nobody()


@attrs.frozen(kw_only=True)
class CliOptions:
    """The options of one command: the agent and its model, the backend, the outputs, the approver and the folder.

    Immutable; the command makes it. `max_turns` limits new runs, `more_turns`, if given, resumed ones. `sandbox` is the
    folder of the runs' sandboxes, `session` the conversation that they continue. `price` gives the
    cost of a request, `make_context` the context of a run.
    """

    agent: Agent[Any, Any]
    out: Output
    err: Output
    backend: Literal["asyncio", "trio"] = "asyncio"
    model: str | None = None
    max_turns: int = 10
    more_turns: int | None = None
    concurrency: int = 4
    json: bool = False
    traceback: bool = False
    approver: Approver = attrs.field(factory=Nobody)
    folder: Folder | None = None
    sandbox: str | None = None
    session: Session | None = None
    price: Callable[..., Any] | None = None
    make_context: Callable[[], Any] | None = None

    @property
    def run_config(self) -> RunConfig:
        """The configuration of every run of the command."""
        config = RunConfig(model=self.model, price=self.price)
        if self.sandbox is None:
            return config
        from agentloop.executors import LocalSandboxes

        return attrs.evolve(config, sandbox=LocalSandboxes(self.sandbox))

    def options(self, *, is_fresh: bool, journal: Journal | None, context: Any) -> dict[str, Any]:
        """Return the options of `Runner`'s methods for a new run (*is_fresh*), or for a resumed one."""
        turns = self.max_turns if is_fresh else self.more_turns
        limit = {} if turns is None else {"max_turns": turns}
        return {
            "run_config": self.run_config,
            "journal": journal,
            "session": self.session,
            "context": context,
            **limit,
        }

    async def open_model(self, runtime: Runtime) -> None:
        """Open the model before the first run, so that a missing key or model is reported once, and before any effect.

        Raises:
            UserError: if something is missing; it says what to do.
        """
        name = self.model or self.agent.model
        if isinstance(name, str):
            await runtime.providers.open(name)

    def advice(self, lines: int | None) -> str:
        """Return the advice on waiting calls: of the only request (None), or of that many *lines*."""
        if self.session is not None:
            return "It is left undecided, and the conversation continues without it."
        if self.folder is None:
            return "Nothing of it was kept: run again with --journal DIR to decide later, or with --approve always."
        name = self.folder.name
        call = "CALL" if lines is None else "LINE:CALL"
        return (
            f"See: agentloop pending {name}; decide: agentloop approve {name} {call}, reject or answer; "
            f"then go on: agentloop resume {name}"
        )
