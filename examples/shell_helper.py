"""A small local model that answers by shell commands, each of which a person approves at the terminal.

    python -m examples.shell_helper "Which files are in the docs folder?"

The model chooses the command; it runs in the current folder, with nothing inherited and no process left behind. The
command line asks in the same manner: `agentloop run examples/shell_helper.py:agent "…"`.
"""

import json
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from agentloop import Agent, ModelSettings, Runner, RunResult, RunState, open_runtime
from agentloop.executors import LocalShell, ShellResult, read_commands, shell_tool

shell = shell_tool(
    LocalShell(Path.cwd(), timeout=20),
    failure_error_function="raise",
    examples=[  # the model copies them closely, the last ones most
        ("Show the first lines of notes.txt", {"commands": ["head notes.txt"], "timeout_ms": None}),
        ("How many lines does setup.cfg have?", {"commands": ["wc -l setup.cfg"], "timeout_ms": None}),
        ("Which files are in the tests folder?", {"commands": ["ls -p tests/"], "timeout_ms": None}),
        ("Which files are in the src folder?", {"commands": ["ls -p src/"], "timeout_ms": None}),
    ],
)

agent = Agent(
    "shell helper",
    instructions="You answer questions about files by a shell command.",
    model="local:",
    model_settings=ModelSettings(temperature=0),
    tools=[shell],
    tool_use_behavior="stop_on_first_tool",
)


async def ask(result: RunResult[str]) -> RunState:
    """Ask at the terminal about each call that waits, and return the state with the verdicts."""
    state = result.to_state()
    for request in result.interruptions:
        commands = read_commands(json.loads(request.call.arguments)).commands
        question = f"Run {' && '.join(commands)!r}? [y/N] "
        answer = await anyio.to_thread.run_sync(input, question)
        if answer.strip().lower() in ("y", "yes"):
            state.approve(request)
        else:
            state.reject(request, message="The person at the terminal said no.")
    return state


async def main(question: str) -> None:
    """Answer one question."""
    async with open_runtime():
        result = await Runner.run(agent, question)
        while result.interruptions:
            result = await Runner.run(agent, await ask(result))
    for settled in result.calls:
        value = settled.outcome.value
        if isinstance(value, ShellResult):
            print("".join(one.stdout + one.stderr for one in value.results), end="")
        else:
            print(settled.outcome.output)


if __name__ == "__main__":
    anyio.run(main, " ".join(sys.argv[1:]) or "Which files are in the examples folder?", backend="trio")
