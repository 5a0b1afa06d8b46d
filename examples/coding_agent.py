"""A coding agent: it reads and edits a folder, runs commands in a sandbox, follows skills, keeps a list and a memory.

    python examples/coding_agent.py
    python examples/coding_agent.py openai:gpt-5.5     # a real model in place of the script
    python examples/coding_agent.py local:             # a small one on this machine, which only chooses a tool

The agent is `make_agent`; below it are a project with a fault, and the script that plays the model. Commands can read
the project, and write in their sandbox only; files are changed by the editor, below the folder. While the agent works,
its user asks for one thing more. A history that is too long is made shorter: with the script, after a long log.
"""

import sys
import tempfile
from pathlib import Path

import anyio

from agentloop import Agent, ContextPolicy, ModelSettings, RunConfig, Runner
from agentloop.bundles import Files, FolderMemory, Memory, Skills, Todo
from agentloop.events import CallSettled
from agentloop.executors import LocalSandboxes, ShellResult, shell_tool
from agentloop.records import HistoryReplaced
from agentloop.testing import ScriptedModel, call, say
from agentloop.window import ClearToolOutputs


def make_agent(folder: Path, model: object, *, trusted: bool = False, window: int | None = None) -> Agent:
    """Return the agent for the project in `folder/project`, with skills and a memory beside it.

    Where this system can't isolate commands, each waits for an approval, unless the model is trusted.
    """
    project = folder / "project"
    test = {"commands": [f"cd {project} && sh test.sh"], "timeout_ms": None}
    shell = shell_tool(
        lambda ctx: ctx.sandbox.shell,
        needs_approval=lambda ctx, arguments, call_id: ctx.sandbox.isolation == "none" and not trusted,
        examples=[("Run the tests", test), ("The total is wrong", test), ("Does it work?", test)],
    )
    return Agent(
        "coder",
        instructions=f"You mend the project in {project}. Commands can read it, and only the editor changes it.",
        model=model,
        model_settings=ModelSettings(temperature=0 if model == "local:" else None),
        tools=[shell],
        bundles=[
            Files(project, write=True, needs_approval=False),
            Skills(folder / "skills"),
            Todo(),
            Memory(FolderMemory(folder / "memory"), scope="project", recall_at_start=True),
        ],
        context=ContextPolicy(window=window, steps=[ClearToolOutputs(keep_last=1)]),
        # A small model can choose what to do, and not say what came of it.
        tool_use_behavior="stop_on_first_tool" if model == "local:" else "run_llm_again",
    )


async def mend(agent: Agent, folder: Path, task: str, also: str) -> None:
    """Run the agent on *task*, with *also* when it is done, and print what it did."""
    config = RunConfig(sandbox=LocalSandboxes(folder / "sandboxes"))
    async with Runner.run_streamed(agent, task, run_config=config) as stream:
        await stream.add_input(also, when="idle")
        async for event in stream:
            if isinstance(event, CallSettled):
                value = event.outcome.value
                said = value.results[0].stdout.strip() if isinstance(value, ShellResult) else event.outcome.status
                print(f"{event.call.name}: {said}")
    result = stream.result
    for record in result.records:
        if isinstance(record, HistoryReplaced):
            print(f"the history was made shorter: {', '.join(record.steps)}")
    print(f"waits for approvals: {len(result.interruptions)}" if result.interruptions else result.final_output)


# -- a project, and the script


FILES = {
    "project/total.sh": "echo $(($1 - $2))\n",
    "project/test.sh": '[ "$(sh total.sh 2 3)" = 5 ] && echo passed || echo "2 and 3 are $(sh total.sh 2 3)"\n',
    "project/build.log": "".join(f"step {number}: nothing to do\n" for number in range(900)),
    "skills/mending/SKILL.md": "---\nname: mending\ndescription: How to mend.\n---\nTest before and after.\n",
}
PATCH = "*** Begin Patch\n*** Update File: total.sh\n-echo $(($1 - $2))\n+echo $(($1 + $2))\n*** End Patch"
NOTE = "total.sh subtracted. The test is sh test.sh.\n"


def script(project: Path) -> ScriptedModel:
    """Return a model that knows what to do."""
    shell = call("shell", {"commands": [f"cd {project} && sh test.sh"], "timeout_ms": None})
    return ScriptedModel(
        [
            call("load_skill", {"name": "mending"}),
            call("write_todos", {"todos": [{"text": "test"}, {"text": "mend"}, {"text": "test again"}]}),
            [call("read_file", {"path": "build.log"}), shell],
            call("search_files", {"text": "echo", "pattern": "total.sh"}),
            call("apply_patch", {"patch": PATCH}),
            shell,
            call("write_todos", {"todos": [{"text": "mend and test", "status": "done"}]}),
            say("It adds now, and the test passes."),
            call("memory", {"command": "create", "path": "/memories/faults.md", "file_text": NOTE}),
            say("I noted the fault."),
        ]
    )


def make_files(folder: Path) -> None:
    """Write the project and the skill."""
    folder.chmod(0o755)  # the commands of a root belong to another user, who has to read it
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def show(folder: Path) -> None:
    """Print what became of the project and of the memory."""
    print("total.sh:", (folder / "project" / "total.sh").read_text().strip())
    for note in sorted((folder / "memory").rglob("*.md")):
        print(f"{note.name}: {note.read_text().strip()}")


async def main(model: str | None = None) -> None:
    """Make the project, and have it mended."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_files(folder)
        played = script(folder / "project")
        agent = make_agent(folder, model) if model else make_agent(folder, played, trusted=True, window=6_000)
        await mend(agent, folder, "The sums are wrong.", "Remember the fault for the next time.")
        show(folder)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2], backend="trio")
