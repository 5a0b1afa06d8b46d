"""A program whose steps begin runs, decide on them and resume them, each in a process of its own.

    begin BACKEND LEDGER            writes the state of a run that waits to standard output
    approve                         reads a state, approves every call that waits, writes the state
    reject MESSAGE                  reads a state, rejects every call that waits, writes the state
    finish BACKEND LEDGER           reads a state, resumes it, writes a report
    batch BACKEND LEDGER FOLDER     runs several at once, each with a journal in FOLDER, or resumes them

The tools append what they do to the file LEDGER, so that the parent process sees what ran, and how often.
`make_command` gives the command line of a step, `ENVIRONMENT` its environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio

from agentloop import (
    Agent,
    FunctionTool,
    Runner,
    RunState,
    ToolContext,
    tool,
)
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.testing import ScriptedModel, call, say
from kit.agents import make_usage, script_turns

_PATH = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, _PATH))}


def make_command(*args: str) -> list[str]:
    """Return the command line of a step; `-P` keeps the working folder out of the child's import path."""
    return [sys.executable, "-P", "-m", "kit.child_runs", *args]


class Ledger:
    """A file that tools write lines to, each in one write."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, *words: str) -> None:
        """Append a line and flush it to the disk."""
        with open(self._path, "ab", buffering=0) as file:
            file.write((" ".join(words) + "\n").encode())
            os.fsync(file.fileno())


def make_waiting_agent(ledger: Ledger) -> Agent[Any, Any]:
    """Return an agent with a nested one; both have a call that waits."""

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        ledger.write("pay", str(amount))
        return f"paid {amount}"

    @tool(idempotent=True)
    async def look() -> str:
        """Look."""
        ledger.write("look")
        return "seen"

    inner = Agent(
        "inner", tools=[pay], model=script_turns(call("pay", {"amount": 5}, call_id="q"), say("in", make_usage(11)))
    )
    outer = Agent("outer", tools=[look, pay, inner.as_tool("sub", "Sub.")])
    first = [
        call("look", call_id="l"),
        call("sub", {"input": "x"}, call_id="s"),
        call("pay", {"amount": 1}, call_id="p"),
    ]
    outer.model = script_turns(first, call("look", call_id="l2"), say("done", make_usage(11)))
    return outer


TURNS = 4
RUNS = 6


def make_journaled_agent(ledger: Ledger) -> Agent[Any, Any]:
    """Return an agent with two calls a turn, one of them idempotent; bodies take a hundredth of a second."""

    async def work(ctx: ToolContext[Any], n: int) -> str:
        ledger.write("start", ctx.tool_name, str(n), ctx.idempotency_key)
        await anyio.sleep(0.01)
        ledger.write("end", ctx.tool_name, str(n), ctx.idempotency_key)
        return f"{ctx.tool_name} {n}"

    tools: list[FunctionTool] = [
        tool(work, name="once", description="Once."),
        tool(work, name="idem", description="Idempotent.", idempotent=True),
    ]

    def answer(request: ModelRequest) -> Any:
        """Answer by the run's input and its turn alone: a process may be anywhere in a run."""
        run, turn = (
            int(request.items[0].text.split()[1]),
            1 + sum(isinstance(i, ToolOutput) for i in request.items) // 2,
        )
        if turn == TURNS:
            return say(f"{run} is done", make_usage(11))
        return [call(name, {"n": 100 * run + turn}, call_id=f"{name}{turn}") for name in ("once", "idem")]

    return Agent("worker", tools=tools, model=ScriptedModel([answer] * (TURNS * RUNS)))


def make_report(state: RunState) -> dict[str, Any]:
    """Return what a parent process checks of a run."""
    fold = state._fold
    assert fold.ended is not None
    outcomes = {call_id: call.outcome for call_id, call in fold.calls.items() if call.outcome is not None}
    return {
        "status": fold.ended.status,
        "output": fold.ended.final_output,
        "calls": {call_id: outcome.status for call_id, outcome in outcomes.items()},
        "outputs": {call_id: outcome.output for call_id, outcome in outcomes.items()},
        "requests": fold.usage.requests,
        "turns": fold.turn,
    }


async def run_batch(ledger: Ledger, folder: Path) -> list[dict[str, Any]]:
    """Run or resume all runs of *folder* at once, and return their reports in order."""
    inputs = [f"run {run}" for run in range(RUNS)]
    runs = await Runner.run_many(make_journaled_agent(ledger), inputs, journals=folder, fail_fast=True)
    return [make_report(run.result.to_state()) for run in runs]


def main(what: str, *args: str) -> None:
    """Do the step *what*."""
    match what:
        case "begin":
            backend, ledger = args
            result = Runner.run_sync(make_waiting_agent(Ledger(ledger)), "go", backend=backend)  # type: ignore[arg-type]
            print(result.to_state().to_string())
        case "approve" | "reject":
            state = RunState.from_string(make_waiting_agent(Ledger(os.devnull)), sys.stdin.read())
            for waiting in state.interruptions:
                if what == "approve":
                    state.approve(waiting)
                else:
                    state.reject(waiting, message=args[0])
            print(state.to_string())
        case "finish":
            backend, ledger = args
            agent = make_waiting_agent(Ledger(ledger))
            state = RunState.from_string(agent, sys.stdin.read())
            result = Runner.run_sync(agent, state, backend=backend)  # type: ignore[arg-type]
            print(json.dumps(make_report(result.to_state())))
        case "batch":
            backend, ledger, folder = args
            print(json.dumps(anyio.run(run_batch, Ledger(ledger), Path(folder), backend=backend)))
        case _:
            raise SystemExit(f"no {what!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
