"""Agents that follow a script, with their tools, guardrails and configuration."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import attrs

from agentloop import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    Instrument,
    OutputGuardrail,
    RunConfig,
    RunResult,
    ToolExecution,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop.testing import ScriptedModel, call, say
from agentloop.usage import RequestUsage

Run: TypeAlias = Callable[..., Awaitable[RunResult[Any]]]
"""The type of the `run_mode` fixture's value."""

# ---------------------------------------------------------------------------------------------- agents and scripts


def make_agent(tools: Iterable[Any], *steps: Any, done: str | None = "done", **fields: Any) -> Agent[Any, Any]:
    """Return an agent named `guide` that follows *steps*, then says *done* (unless None)."""
    script = [*steps, say(done)] if done is not None else list(steps)
    return Agent("guide", model=ScriptedModel(script), tools=list(tools), **fields)


def script_agent(name: str, *steps: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent whose model follows *steps* and nothing else."""
    return Agent(name, model=ScriptedModel(steps), **fields)


def call_each(*names: str) -> list[Any]:
    """Return one step of a script: a call of each tool in *names*, with ids `c1`, `c2` and so on."""
    return [call(name, call_id=f"c{index}") for index, name in enumerate(names, 1)]


def script_turns(*steps: Any) -> ScriptedModel:
    """Return a model that answers turn n of a run with the n-th step, however often it is asked, in any process.

    A step that is callable gets the request and returns the answer.
    """

    def pick(request: Any) -> Any:
        assert 1 <= request.turn <= len(steps), f"there is no step for turn {request.turn}"
        step = steps[request.turn - 1]
        return step(request) if callable(step) else step

    return ScriptedModel([pick] * 200)


def make_usage(tokens: int) -> RequestUsage:
    """Return the usage of a request of *tokens* tokens in all, one of them output."""
    return RequestUsage(input_tokens=tokens - 1, output_tokens=1, total_tokens=tokens)


def configure_run(*instruments: Instrument, config: RunConfig | None = None, **execution: Any) -> RunConfig:
    """Return *config* (or the default) with these instruments and these fields of `ToolExecution`."""
    return attrs.evolve(config or RunConfig(), instruments=instruments, tool_execution=ToolExecution(**execution))


# ---------------------------------------------------------------------------------------------- tools


@tool
async def fine() -> str:
    """Succeed."""
    return "fine"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def make_gated_tool(ran: list[Any], name: str = "gated", **options: Any) -> FunctionTool:
    """Return a tool of one number that needs approval; each run of its body appends `(name, n)` to *ran*."""

    async def work(n: int = 0) -> str:
        ran.append((name, n))
        return f"{name} {n}"

    options.setdefault("needs_approval", True)
    return tool(name=name, **options)(work)


def make_free_tool(ran: list[Any], name: str = "free", **options: Any) -> FunctionTool:
    """Return a tool like that of `make_gated_tool` which needs no approval."""
    return make_gated_tool(ran, name, needs_approval=False, **options)


# ---------------------------------------------------------------------------------------------- guardrails

TRIPPED = GuardrailFunctionOutput("no", True)
PASSED = GuardrailFunctionOutput("fine")


def make_input_guard(
    name: str, answer: Any = PASSED, *, parallel: bool = True, log: list[str] | None = None
) -> InputGuardrail:
    """Return an input guardrail that gives *answer* at once, or raises it, and appends its name to *log*."""
    return input_guardrail(_answer_at_once(name, answer, log), name=name, run_in_parallel=parallel)


def make_output_guard(name: str, answer: Any = PASSED, *, log: list[str] | None = None) -> OutputGuardrail:
    """Return an output guardrail that gives *answer* at once, or raises it, and appends its name to *log*."""
    return output_guardrail(_answer_at_once(name, answer, log), name=name)


def _answer_at_once(name: str, answer: Any, log: list[str] | None) -> Callable[..., Awaitable[Any]]:
    async def guard(ctx: Any, agent: Any, judged: Any) -> Any:
        if log is not None:
            log.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return guard
