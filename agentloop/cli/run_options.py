"""The options of `agentloop run` and `resume`: the agent, its backend, where to write, and who approves calls."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import anyio
import attrs

from agentloop._common.masking import masked_arguments
from agentloop.abc import Journal
from agentloop.agents import Agent
from agentloop.cli.journal_folder import Folder
from agentloop.cli.streams import Output
from agentloop.config import RunConfig
from agentloop.exceptions import AgentLoopError
from agentloop.items import ApprovalRequest
from agentloop.runtime import Runtime
from agentloop.state import RunState

_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_CHUNK = 4_096


class Approver(Protocol):
    """Decides on what a run waits for."""

    async def decide(self, state: RunState, where: str) -> bool:
        """Give verdicts on calls that wait; False where none was given. *where* tells runs side by side apart."""
        ...


class Nobody:
    """Leaves everything pending."""

    async def decide(self, state: RunState, where: str) -> bool:
        """Decide nothing."""
        return False


class Everything:
    """Approves whatever is asked."""

    async def decide(self, state: RunState, where: str) -> bool:
        """Approve every call that waits."""
        for request in state.interruptions:
            state.approve(request)
        return True


def exact(text: str) -> str:
    """Return *text* on one line, with every character written out that could hide what it says or steer a terminal."""
    return "".join(_escaped(char) if unicodedata.category(char) in _HIDDEN else char for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def call_name(request: ApprovalRequest) -> str:
    """Return how a call that waits is called on the command line: its id, after those of the calls around it."""
    return "/".join((*request.path, request.call.call_id))


def described(request: ApprovalRequest) -> str:
    """Return what *request* asks for: tool and arguments, all of them, those that are secret masked."""
    call = request.call
    tool = f"{call.namespace}.{call.name}" if call.namespace else call.name
    return exact(f"{tool} {masked_arguments(call.arguments, call.secret)}")


def asked_because(request: ApprovalRequest) -> str:
    """Return which policy asks about *request*, and why; an empty text where the tool itself does."""
    if request.policy is None:
        return ""
    return exact(request.policy if request.reason is None else f"{request.policy}: {request.reason}")


@attrs.define(eq=False)
class Questions:
    """Asks at the terminal, one call at a time, while other runs go on.

    `hidden` takes the progress bar off the terminal while a question stands there.
    """

    err: Output
    hidden: Callable[[], AbstractContextManager[None]] = nullcontext
    screen: anyio.Lock = attrs.field(factory=anyio.Lock)
    """Whoever holds it has the terminal for himself."""
    _typed: bytearray = attrs.field(factory=bytearray)
    _later: set[tuple[str, tuple[str, ...], str]] = attrs.field(factory=set)

    async def decide(self, state: RunState, where: str) -> bool:
        """Ask about each call that waits, but those that were put off before."""
        decided = False
        for request in state.interruptions:
            place = (where, request.path, request.call.call_id)
            # An answer of "always" may have decided on the next ones too.
            if place in self._later or request not in state.interruptions:
                continue
            async with self.screen:
                with self.hidden():
                    answered = await self._ask(state, request, where)
            decided = decided or answered
            if not answered:
                self._later.add(place)
        return decided

    async def _ask(self, state: RunState, request: ApprovalRequest, where: str) -> bool:
        inside = f", inside {exact('/'.join(request.path))}" if request.path else ""
        at = f", {where}" if where else ""
        why = f"  {asked}\n" if (asked := asked_because(request)) else ""
        await self.err.write(f"? {described(request)}\n  {exact(request.agent)} asks for it{inside}{at}\n{why}")
        while True:
            await self.err.write("  [y]es, [n]o (and why), [a]lways, ne[v]er, [e]dit, [l]ater: ")
            typed = await self._line()
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
                case _:
                    continue
            return True

    async def _edit(self, state: RunState, request: ApprovalRequest) -> bool:
        await self.err.write("  Arguments, as a JSON object on one line: ")
        typed = await self._line()
        if not (typed or "").strip():
            return False
        try:
            state.approve(request, arguments=typed)
        except AgentLoopError as error:
            await self.err.write(f"  {exact(str(error))}\n")
            return False
        return True

    async def _line(self) -> str | None:
        """Return what was typed up to Return; None at the end of the input (Ctrl-D)."""
        descriptor = sys.stdin.fileno()
        while b"\n" not in self._typed:
            await anyio.wait_readable(descriptor)
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                self._typed.clear()
                return None
            self._typed += chunk
        line, _, rest = bytes(self._typed).partition(b"\n")
        self._typed[:] = rest
        return line.decode("utf-8", "replace")


def can_ask(err: Output, *, input_is_taken: bool) -> bool:
    """Tell whether somebody sits at a terminal who can be asked; not where the requests come from it."""
    if input_is_taken or not err.is_terminal:
        return False
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # closed, or none at all
        return False


def approver_for(choice: Literal["ask", "never", "always"] | None, err: Output, *, can_ask: bool) -> Approver:
    """Return who decides: by *choice*, or where None was made, the user if he can be asked, else nobody yet."""
    if choice == "always":
        return Everything()
    return Questions(err) if choice == "ask" or (choice is None and can_ask) else Nobody()


@attrs.frozen(kw_only=True)
class CliOptions:
    """The agent, how to run it, where to write, who approves, and where runs are kept.

    `max_turns` holds for runs that begin, `more_turns`, where given, for those that go on.
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

    def options(self, *, is_fresh: bool, journal: Journal | None) -> dict[str, Any]:
        """Return the options of `Runner`'s methods for a run that begins, or for one that goes on."""
        turns = self.max_turns if is_fresh else self.more_turns
        limit = {} if turns is None else {"max_turns": turns}
        return {"run_config": RunConfig(model=self.model), "journal": journal, **limit}

    async def open_model(self, runtime: Runtime) -> None:
        """Open the model now, so that a missing key or model is told of before anything runs, and once.

        Raises:
            UserError: what is missing, and what to do about it.
        """
        name = self.model or self.agent.model
        if isinstance(name, str):
            await runtime.providers.open(name)

    def advice(self, lines: int | None) -> str:
        """Return what to do about calls that wait: of the one request, or of that many *lines*."""
        if self.folder is None:
            return "Nothing of it was kept: run again with --journal DIR to decide later, or with --approve always."
        name = self.folder.name
        call = "CALL" if lines is None else "LINE:CALL"
        return (
            f"See: agentloop pending {name}; decide: agentloop approve {name} {call}, or reject; "
            f"then go on: agentloop resume {name}"
        )
