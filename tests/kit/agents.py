"""What the scenario tests of whole runs share: guardrails, hooks that write down events, short looks at items."""

from collections.abc import Callable, Iterable
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from agentloop import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunHooks,
    input_guardrail,
    output_guardrail,
)
from agentloop.items import AssistantMessage, HandoffCall, HandoffOutput, Item, ToolCall, ToolOutput, UserMessage
from agentloop.testing import ScriptedModel

TRIPPED = GuardrailFunctionOutput("no", True)
PASSED = GuardrailFunctionOutput("fine")


def scripted(name: str, *steps: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent whose model follows *steps*."""
    return Agent(name, model=ScriptedModel(steps), **fields)


def asked(agent: Agent[Any, Any]) -> list[Any]:
    """Return what the agent's model was asked."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


def brief(items: Iterable[Item]) -> list[str]:
    """Return one line for each item: what it is, and its text or call."""
    lines: list[str] = []
    for item in items:
        match item:
            case UserMessage():
                lines.append(f"user:{item.text}")
            case AssistantMessage():
                lines.append(f"says:{item.text}")
            case ToolCall(call_id=call_id, name=name):
                lines.append(f"call:{name}#{call_id}")
            case ToolOutput(call_id=call_id, output=output):
                lines.append(f"output:{output}#{call_id}")
            case HandoffCall(call_id=call_id, name=name):
                lines.append(f"handoff:{name}#{call_id}")
            case HandoffOutput(call_id=call_id, output=output):
                lines.append(f"handed:{output}#{call_id}")
            case _:
                lines.append(type(item).__name__)
    return lines


def input_guard(
    name: str, answer: Any = PASSED, *, parallel: bool = True, log: list[str] | None = None
) -> InputGuardrail:
    """Return an input guardrail that answers at once (or raises *answer*), and writes its name into *log*."""

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        if log is not None:
            log.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return input_guardrail(guard, name=name, run_in_parallel=parallel)


def output_guard(name: str, answer: Any = PASSED, *, log: list[str] | None = None) -> OutputGuardrail:
    """Return an output guardrail that answers at once (or raises *answer*), and writes its name into *log*."""

    async def guard(ctx: Any, agent: Any, output: Any) -> Any:
        if log is not None:
            log.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return output_guardrail(guard, name=name)


@attrs.define
class Held:
    """Something that starts, waits, and says how it ended: `started`, `go` to let it end, `ending`."""

    started: anyio.Event = attrs.field(factory=anyio.Event)
    go: anyio.Event = attrs.field(factory=anyio.Event)
    ending: str = ""
    clean_up: Callable[[], None] = lambda: None

    async def __call__(self) -> None:
        """Wait for `go`; a cancellation takes some steps of cleaning up before it goes on."""
        self.started.set()
        try:
            await self.go.wait()
            self.ending = "returned"
        except BaseException:
            self.ending = "cancelled"
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            self.ending = "cleaned up"
            self.clean_up()
            raise


class RunTrace(RunHooks):
    """Writes every event of a run into *lines*."""

    def __init__(self, lines: list[str] | None = None, mark: str = "") -> None:
        self.lines = [] if lines is None else lines
        self.mark = mark
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def _add(self, line: str, *args: Any) -> None:
        self.lines.append(self.mark + line)
        self.seen.append((line, args))

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self._add(f"run_end {outcome.status}", ctx, outcome)

    async def on_agent_start(self, ctx: Any, agent: Any) -> None:
        self._add(f"agent_start {agent.name}", ctx, agent)

    async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self._add(f"agent_end {agent.name}", ctx, agent, output)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self._add(f"llm_start {agent.name}", ctx, agent, system, input)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self._add(f"llm_end {agent.name}", ctx, agent, response)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self._add(f"tool_start {tool.name}", ctx, agent, tool)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self._add(f"tool_end {tool.name}", ctx, agent, tool, outcome)

    async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
        self._add(f"handoff {from_agent.name} {to_agent.name}", ctx, from_agent, to_agent)

    def args_of(self, start: str) -> tuple[Any, ...]:
        """Return what the first event whose line begins with *start* was given."""
        return next(args for line, args in self.seen if line.startswith(start))


class AgentTrace(AgentHooks):
    """Writes every event of an agent into *lines*."""

    def __init__(self, lines: list[str], mark: str = "") -> None:
        self.lines, self.mark = lines, mark

    async def on_start(self, ctx: Any, agent: Any) -> None:
        self.lines.append(f"{self.mark}start {agent.name}")

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.lines.append(f"{self.mark}end {agent.name}")

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        self.lines.append(f"{self.mark}out {agent.name} {to_agent.name}")

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        self.lines.append(f"{self.mark}in {agent.name} {from_agent.name}")

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self.lines.append(f"{self.mark}llm_start {agent.name}")

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.lines.append(f"{self.mark}llm_end {agent.name}")

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.lines.append(f"{self.mark}tool_start {tool.name}")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.lines.append(f"{self.mark}tool_end {tool.name}")
