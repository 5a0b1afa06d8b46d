"""Calls of executors in a run: ordinary calls of ordinary tools, whichever form a provider gives them."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.watching import Watch
from kit.work import counting_turns
from sweeps.stepping import COMBINATIONS, Kind, Stepped, run_once

import agentloop
from agentloop import (
    Agent,
    Deny,
    PendingCall,
    Policy,
    RunConfig,
    Runner,
    RunState,
    ToolCallError,
    ToolExecution,
    UserError,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import ModelBehaviorError, UserTypeError
from agentloop.executors import (
    Click,
    CommandResult,
    Computer,
    ComputerAction,
    ComputerError,
    CreateFile,
    DeleteFile,
    Display,
    DragPointer,
    EditError,
    EditOperation,
    Editor,
    EditResult,
    FileChange,
    InsertText,
    LocalEditor,
    LocalShell,
    MovePointer,
    Point,
    PressKeys,
    ReplaceText,
    ScrollAt,
    Shell,
    ShellRequest,
    ShellResult,
    TakeScreenshot,
    TypeText,
    UpdateFile,
    WaitForScreen,
    WriteFile,
    _tools,
    computer_tool,
    editor_tool,
    read_actions,
    read_commands,
    read_edits,
    shell_tool,
)
from agentloop.items import Image, ToolCall, ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, normal, replay, respond, say


@attrs.define
class Scripted:
    """A shell, an editor and a computer that do nothing but take time, and count who is inside."""

    seconds: float = 0.02
    error: Exception | None = None
    inside: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(("shell", "editor", "computer"), 0))
    most: dict[str, int] = attrs.field(factory=dict)
    together: int = 0
    done: list[Any] = attrs.field(factory=list)

    async def _work(self, what: str, did: Any) -> None:
        self.inside[what] += 1
        self.most[what] = max(self.most.get(what, 0), self.inside[what])
        self.together = max(self.together, sum(map(bool, self.inside.values())))
        try:
            await anyio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            self.done.append(did)
        finally:
            self.inside[what] -= 1

    async def run(self, request: ShellRequest) -> ShellResult:
        """Run commands."""
        await self._work("shell", request)
        return ShellResult(
            results=tuple(CommandResult(command=one, exit_code=0, stdout="ok\n") for one in request.commands)
        )

    async def apply(self, operations: Sequence[EditOperation]) -> EditResult:
        """Apply edits."""
        await self._work("editor", operations)
        return EditResult(changes=tuple(FileChange(each.path, "updated") for each in operations))

    async def read(self, path: str) -> str:
        """Read a file."""
        return "one\ntwo\nthree\n"

    @property
    def display(self) -> Display:
        """The display."""
        return Display(width=640, height=480)

    async def perform(self, action: ComputerAction) -> None:
        """Do an action."""
        await self._work("computer", action)

    async def screenshot(self) -> bytes:
        """Return a picture."""
        return b"PNG"


def tools_of(executor: Scripted, **options: Any) -> list[Any]:
    """Return its three tools, whose calls run without approval."""
    given = {"needs_approval": False, **options}
    return [shell_tool(executor, **given), editor_tool(executor, **given), computer_tool(executor, **given)]


PATCH = "*** Begin Patch\n*** Update File: a.txt\n-x\n+y\n*** End Patch"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "shell": {"commands": ["ls"], "timeout_ms": None},
    "apply_patch": {"patch": PATCH},
    "computer": {"actions": [{"type": "click", "x": 1, "y": 2, "button": "left"}]},
}


def native_call(name: str, call_id: str, arguments: dict[str, Any] | None = None) -> ToolCall:
    """Return a call as a provider's own item gives it."""
    given = json.dumps(ARGUMENTS[name] if arguments is None else arguments)
    return ToolCall(call_id, name, given, kind=name)  # type: ignore[arg-type]


def outputs_of(result: Any) -> dict[str, ToolOutput]:
    """Return the outputs of a run by call id."""
    return {item.call_id: item for item in result.new_items if isinstance(item, ToolOutput)}


@pytest.mark.scenario("EX-01")
async def test_calls_of_executors_are_ordinary_calls(run_mode: Any) -> None:
    """Planned, run and recorded; the outputs are of the calls' kinds, and the values are in the outcomes."""
    executor = Scripted()
    assert isinstance(executor, Shell)
    assert isinstance(executor, Editor)
    assert isinstance(executor, Computer)
    asked = [native_call(name, f"c{n}") for n, name in enumerate(ARGUMENTS)]
    model = ScriptedModel([respond(*asked), say("done")])
    result = await run_mode(Agent("a", model=model, tools=tools_of(executor)), "go")
    assert result.final_output == "done"
    found = outputs_of(result)
    assert [found[item.call_id].kind for item in asked] == ["shell", "apply_patch", "computer"]
    assert json.loads(str(found["c0"].output)) == {"results": [{"command": "ls", "exit_code": 0, "stdout": "ok\n"}]}
    assert json.loads(str(found["c1"].output)) == {"changes": [{"path": "a.txt", "change": "updated"}]}
    assert found["c2"].output == (Image(data="UE5H", media_type="image/png"),)
    values = [settled.outcome.value for settled in result.calls]
    assert isinstance(values[0], ShellResult)
    assert isinstance(values[1], EditResult)
    assert sorted(executor.done, key=repr) == sorted(
        [
            ShellRequest(commands=["ls"]),  # type: ignore[arg-type]
            (UpdateFile(path="a.txt", diff="-x\n+y"),),
            Click(x=1, y=2),
        ],
        key=repr,
    )
    plain = ScriptedModel([[call(name, given, f"c{n}") for n, (name, given) in enumerate(ARGUMENTS.items())], say("x")])
    result = await run_mode(Agent("a", model=plain, tools=tools_of(Scripted())), "go")
    assert {output.kind for output in outputs_of(result).values()} == {"function"}


@pytest.mark.scenario("EX-01")
async def test_calls_wait_for_approval_by_default(run_mode: Any) -> None:
    """Shells and editors always, a computer where the provider has checks; a state waits and is resumed elsewhere."""
    executor = Scripted()
    checked = ARGUMENTS["computer"] | {"pending_safety_checks": [{"id": "s1", "code": "x", "message": "look"}]}
    asked = [
        native_call("shell", "c0"),
        native_call("apply_patch", "c1"),
        native_call("computer", "c2", checked),
        native_call("computer", "c3"),
    ]
    model = ScriptedModel([respond(*asked), say("done")])
    tools = [shell_tool(executor), editor_tool(executor), computer_tool(executor)]
    agent = Agent("a", model=model, tools=tools)
    result = await run_mode(agent, "go")
    assert [request.call.call_id for request in result.interruptions] == ["c0", "c1", "c2"]
    assert executor.done == [Click(x=1, y=2)]
    state = RunState.from_string(agent, result.to_state().to_string())
    state.approve("c0")
    state.reject("c1", message="not this file")
    state.approve("c2")
    result = await run_mode(agent, state)
    found = outputs_of(result)
    assert found["c1"].output == "not this file"
    assert (found["c1"].is_error, found["c0"].is_error) == (True, False)
    assert [settled.outcome.status for settled in result.calls] == ["succeeded", "rejected", "succeeded", "succeeded"]


class NoRemovals:
    """A policy that reads the commands, whichever form they have."""

    def decide(self, pending: PendingCall) -> Any:
        """Deny `rm`."""
        given = json.loads(pending.call.arguments)
        return Deny("no removals") if any("rm " in one for one in read_commands(given).commands) else None


@pytest.mark.scenario("EX-01")
@pytest.mark.parametrize("given", [{"commands": ["ls", "rm -r x"]}, {"command": ["rm", "x"]}, {"command": "rm x"}])
async def test_policies_hold_for_every_form(run_mode: Any, given: dict[str, Any]) -> None:
    """`read_commands` gives the commands of calls of any interface."""
    executor = Scripted()
    policy: Policy = NoRemovals()  # type: ignore[assignment]
    model = ScriptedModel([respond(native_call("shell", "c0", given)), say("done")])
    config = RunConfig(policies=[policy])
    result = await run_mode(Agent("a", model=model, tools=tools_of(executor)), "go", run_config=config)
    assert "no removals" in str(outputs_of(result)["c0"].output)
    assert executor.done == []


@pytest.mark.scenario("CO-09", "EX-04")
async def test_categories_run_concurrently_and_calls_within_one_at_a_time(run_mode: Any) -> None:
    """Two calls of each of the four categories, and functions beside them."""
    executor, custom, free = Scripted(), Scripted(), Scripted()

    @tool(kind="custom")
    async def write(text: str) -> str:
        """Take a text."""
        await custom._work("shell", text)
        return text

    @tool
    async def look(n: int) -> str:
        """Look."""
        await free._work("shell", n)
        return str(n)

    asked = [native_call(name, f"{name}{n}") for n in range(2) for name in ARGUMENTS]
    asked += [ToolCall(f"w{n}", "write", "x", kind="custom") for n in range(2)]
    asked += [ToolCall(f"l{n}", "look", f'{{"n": {n}}}') for n in range(2)]
    model = ScriptedModel([respond(*asked), say("done")])
    await run_mode(Agent("a", model=model, tools=[*tools_of(executor), write, look]), "go")
    assert executor.most == {"shell": 1, "editor": 1, "computer": 1}
    assert executor.together == 3
    assert custom.most == {"shell": 1}
    assert free.most == {"shell": 2}
    assert len(executor.done) == 6


async def test_a_category_can_be_made_concurrent(run_mode: Any) -> None:
    """By `serial=None`, or a group of its own for each of two shells."""
    executor = Scripted()
    model = ScriptedModel([respond(*(native_call("shell", f"c{n}") for n in range(3))), say("done")])
    agent = Agent("a", model=model, tools=[shell_tool(executor, needs_approval=False, serial=None)])
    await run_mode(agent, "go")
    assert executor.most == {"shell": 3}


@pytest.mark.scenario("SF-12")
async def test_a_failure_of_another_category_cancels_functions_and_is_raised(run_mode: Any) -> None:
    """The function that runs is cancelled and joined; one that has ended keeps its output; the original is raised."""
    ended: list[str] = []

    @tool
    async def slow() -> str:
        """Take long."""
        try:
            await anyio.sleep(60)
        finally:
            ended.append("slow")
        return "never"

    @tool
    async def quick() -> str:
        """Be done."""
        return "kept"

    broken = computer_tool(Scripted(error=ComputerError("screen is gone")), failure_error_function=None)
    asked = [ToolCall("s", "slow"), ToolCall("q", "quick"), native_call("computer", "c")]
    agent = Agent("a", model=ScriptedModel([respond(*asked)]), tools=[slow, quick, broken])
    with pytest.raises(ComputerError, match="screen is gone") as caught:
        await run_mode(agent, "go")
    assert ended == ["slow"]
    assert caught.value.run_data is not None
    outcomes = {settled.call.call_id: settled.outcome for settled in caught.value.run_data.calls}
    assert (outcomes["s"].status, outcomes["s"].cancelled_by) == ("cancelled", "sibling")
    assert outcomes["q"].output == "kept"


@pytest.mark.scenario("TC-06")
async def test_a_tool_local_cancellation_leaves_the_shell_s_output(run_mode: Any) -> None:
    """A function that is cancelled by the application, beside a shell call that runs on."""

    @tool
    async def waits(ctx: agentloop.ToolContext[Any]) -> str:
        """Cancel itself."""
        ctx.cancel_call(ctx.tool_call_id, "enough")
        await anyio.sleep(60)
        return "never"

    model = ScriptedModel([respond(native_call("shell", "c0"), ToolCall("w", "waits")), say("done")])
    result = await run_mode(Agent("a", model=model, tools=[*tools_of(Scripted()), waits]), "go")
    assert "ok" in str(outputs_of(result)["c0"].output)
    assert "ToolCancelledError(enough)" in str(outputs_of(result)["w"].output)


@pytest.mark.scenario("EX-01")
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_timeouts_and_errors_follow_the_tool_s_policies(run_mode: Any, name: str) -> None:
    """As with functions: a text for the model, or an error that ends the run."""
    model = ScriptedModel([respond(native_call(name, "c0")), say("done")])
    result = await run_mode(Agent("a", model=model, tools=tools_of(Scripted(60), timeout=0.05)), "go")
    assert outputs_of(result)["c0"].output == f"Tool '{name}' timed out after 0.05 seconds."
    model = ScriptedModel([respond(native_call(name, "c0")), say("done")])
    result = await run_mode(Agent("a", model=model, tools=tools_of(Scripted(error=EditError("no")))), "go")
    assert outputs_of(result)["c0"].output == f"Tool {name} failed with: EditError(no)"
    agent = Agent(
        "a",
        model=ScriptedModel([respond(native_call(name, "c0"))]),
        tools=tools_of(Scripted(error=OSError("no")), failure_error_function=None),
    )
    with pytest.raises(ToolCallError, match=f"Error running tool {name}: OSError: no"):
        await run_mode(agent, "go")


@pytest.mark.scenario("EX-01")
async def test_a_journal_of_executor_calls_replays_without_the_executors(run_mode: Any) -> None:
    """The kinds are in the records, stored and read."""
    journal = MemoryJournal()
    asked = [native_call(name, f"c{n}") for n, name in enumerate(ARGUMENTS)]
    model = ScriptedModel([respond(*asked), say("done")])
    agent = Agent("a", model=model, tools=tools_of(Scripted()))
    result = await run_mode(agent, "go", journal=journal)
    broken = Agent("a", model=ScriptedModel([]), tools=tools_of(Scripted(error=EditError("not there"))))
    again = await anyio.to_thread.run_sync(lambda: replay(journal, broken))
    assert again.result is not None
    assert again.result.final_output == "done"
    assert normal(again.records) == normal(result.records)
    items = again.result.new_items
    assert [item.kind for item in items if isinstance(item, ToolCall)] == [*ARGUMENTS]


async def test_long_outputs_keep_their_form(run_mode: Any) -> None:
    """The JSON of a shell's result stays readable within `max_output_chars`, however it is escaped."""

    class Loud(Scripted):
        async def run(self, request: ShellRequest) -> ShellResult:
            long = "\x1b" * 20_000
            return ShellResult(results=(CommandResult(command="x", exit_code=0, stdout=long, stderr=long),))

    model = ScriptedModel([respond(native_call("shell", "c0")), say("done")])
    config = RunConfig(tool_execution=ToolExecution(max_output_chars=4_000))
    result = await run_mode(Agent("a", model=model, tools=tools_of(Loud())), "go", run_config=config)
    text = str(outputs_of(result)["c0"].output)
    assert len(text) <= 4_000
    [kept] = json.loads(text)["results"]
    assert "was cut" in kept["stdout"]
    assert "was cut" in kept["stderr"]
    unlimited = RunConfig(tool_execution=ToolExecution(max_output_chars=None))
    model = ScriptedModel([respond(native_call("shell", "c0")), say("done")])
    result = await run_mode(Agent("a", model=model, tools=tools_of(Loud())), "go", run_config=unlimited)
    assert len(str(outputs_of(result)["c0"].output)) > 40_000


async def test_half_a_character_is_an_output(run_mode: Any) -> None:
    """A shell of the application may decode bytes that are no UTF-8 as Python decodes names of files."""

    class Bytes(Scripted):
        async def run(self, request: ShellRequest) -> ShellResult:
            said = b"caf\xe9".decode(errors="surrogateescape")
            return ShellResult(results=(CommandResult(command="ls", exit_code=0, stdout=said),))

    model = ScriptedModel([respond(native_call("shell", "c0")), say("done")])
    result = await run_mode(Agent("a", model=model, tools=tools_of(Bytes())), "go")
    [kept] = json.loads(str(outputs_of(result)["c0"].output))["results"]
    assert kept["stdout"].startswith("caf")


async def test_a_body_outside_of_runs(tmp_path: Any) -> None:
    """`run_body` runs an executor's tool as it runs others."""
    result = await shell_tool(Scripted()).run_body({"commands": ["ls"], "timeout_ms": 5})
    assert result.results[0].stdout == "ok\n"
    shown = await editor_tool(Scripted()).run_body({"command": "view", "path": "a", "view_range": [2, -1]})
    assert shown == "2\ttwo\n3\tthree"
    assert (await editor_tool(Scripted()).run_body({"command": "view", "path": "a"})).startswith("1\tone\n2")


@pytest.mark.scenario("SM-13")
async def test_a_large_file_is_shown_in_many_steps_of_the_loop() -> None:
    """Other tasks go on meanwhile: ten times the size are many times the steps."""

    async def steps(text: str) -> int:
        before = turns.count
        await _tools._number_lines(text, None)
        return turns.count - before

    async with counting_turns() as turns:
        await anyio.lowlevel.checkpoint()
        few, many = await steps("a\n" * 50_000), await steps("a\n" * 500_000)
    assert few >= 1
    assert many >= 5 * few


@given(
    text=st.lists(st.sampled_from(["a", "\n", "\r\n", "\x0c", "b"]), max_size=12).map("".join),
    bounds=st.none() | st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
)
def test_lines_are_numbered_as_they_are_counted(text: str, bounds: tuple[int, int] | None) -> None:
    """Wherever the text is cut into pieces."""
    lines = text.splitlines()
    first, last = bounds or (1, -1)
    wanted = [f"{n}\t{line}" for n, line in enumerate(lines, 1) if first <= n <= (len(lines) if last == -1 else last)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tools, "_PIECE", 2)
        assert anyio.run(_tools._number_lines, text, bounds) == "\n".join(wanted)


@pytest.mark.parametrize(("backend", "kind"), COMBINATIONS)
@pytest.mark.scenario("EX-01", "PC-01", "PC-03")
def test_cancelled_at_every_step(backend: Any, kind: Kind) -> None:
    """The sweep of functions: every body that began has ended, and every started call has one outcome."""

    def once(at: int | None) -> tuple[Stepped, Scripted, Watch]:
        executor, watch = Scripted(), Watch()
        asked = [native_call(name, f"{name}{n}") for n in range(2) for name in ARGUMENTS]
        agent = Agent("a", model=ScriptedModel([respond(*asked), say("done")]), tools=tools_of(executor))

        async def program() -> Any:
            return await Runner.run(agent, "go", run_config=RunConfig(instruments=(watch,)))

        return run_once(backend, program, at=at, kind=kind), executor, watch

    whole, *_ = once(None)
    assert whole.steps > 10
    for at in range(whole.steps):
        _, executor, watch = once(at)
        assert set(executor.inside.values()) == {0}, at
        started = [record.call_id for record in watch.records if isinstance(record, r.CallStarted)]
        settled = [record.call_id for record in watch.records if isinstance(record, r.CallSettled)]
        assert set(started) <= set(settled), at
        assert len(settled) == len(set(settled)), at
        if watch.records:
            assert isinstance(watch.records[-1], r.RunEnded), at


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.scenario("EX-01", "EX-02", "EX-03")
async def test_real_executors_cancelled_at_many_moments(tmp_path: Any) -> None:
    """A run with a shell and an editor of this machine: what the log says has happened has, and nothing else."""
    tools = [
        shell_tool(LocalShell(tmp_path, grace=0.1), needs_approval=False),
        editor_tool(LocalEditor(tmp_path), needs_approval=False),
    ]
    for n, after in enumerate((0.001, 0.01, 0.03, 0.06, 0.1, 0.2)):
        patch = f"*** Begin Patch\n*** Add File: f{n}\n+x\n*** End Patch"
        asked = [
            native_call("apply_patch", "p", {"patch": patch}),
            native_call("shell", "s", {"commands": ["sleep 1000"]}),
        ]
        watch = Watch()
        config = RunConfig(instruments=(watch,))
        with anyio.move_on_after(after):
            await Runner.run(Agent("a", model=ScriptedModel([respond(*asked)]), tools=tools), "go", run_config=config)
        settled = {one.call_id: one.outcome.status for one in watch.records if isinstance(one, r.CallSettled)}
        assert await anyio.Path(tmp_path, f"f{n}").exists() == (settled.get("p") == "succeeded")
        assert settled.get("s") in (None, "cancelled", "not_started")


# ------------------------------------------------------------------------------------------ arguments and options

FORMS: list[tuple[Any, dict[str, Any], Any]] = [
    (read_commands, {"commands": ["a", "b"], "timeout_ms": 1500, "max_output_length": 7}, (("a", "b"), 1.5, 7)),
    (read_commands, {"commands": ["a"], "timeout_ms": None, "max_output_length": None}, (("a",), None, None)),
    (read_commands, {"command": "ls -l"}, (("ls -l",), None, None)),
    (read_commands, {"restart": True}, ((), None, None)),
    (
        read_commands,
        {"command": ["echo", "a b"], "env": {"A": "1 2"}, "working_directory": "/x y", "timeout_ms": 5, "user": None},
        (("cd -- '/x y' && env 'A=1 2' echo 'a b'",), 0.005, None),
    ),
    (read_commands, {"command": ["ls"], "env": {}}, (("ls",), None, None)),
    (read_edits, {"patch": PATCH}, (UpdateFile(path="a.txt", diff="-x\n+y"),)),
    (read_edits, {"operation": {"type": "delete_file", "path": "a"}}, (DeleteFile(path="a"),)),
    (read_edits, {"operation": {"type": "create_file", "path": "a", "diff": "+x"}}, (CreateFile(path="a", diff="+x"),)),
    (read_edits, {"command": "view", "path": "a"}, ()),
    (read_edits, {"command": "create", "path": "a", "file_text": "x"}, (WriteFile(path="a", text="x"),)),
    (
        read_edits,
        {"command": "str_replace", "path": "a", "old_str": "x", "new_str": "y"},
        (ReplaceText(path="a", old="x", new="y"),),
    ),
    (read_edits, {"command": "str_replace", "path": "a", "old_str": "x"}, (ReplaceText(path="a", old="x", new=""),)),
    (
        read_edits,
        {"command": "insert", "path": "a", "insert_line": 2, "insert_text": "t"},
        (InsertText(path="a", line=2, text="t"),),
    ),
    (
        read_edits,
        {"command": "insert", "path": "a", "insert_line": 2, "new_str": "t"},
        (InsertText(path="a", line=2, text="t"),),
    ),
    (read_actions, {"action": {"type": "wait"}}, (WaitForScreen(),)),
    (read_actions, {"actions": []}, ()),
    (
        read_actions,
        {"actions": [{"type": "drag", "path": [{"x": 1, "y": 2}], "keys": None}, {"type": "type", "text": "t"}]},
        (DragPointer(path=(Point(1, 2),)), TypeText(text="t")),
    ),
    (
        read_actions,
        {"action": "left_click", "coordinate": [1, 2], "text": "ctrl+shift"},
        (Click(x=1, y=2, keys=("ctrl", "shift")),),
    ),
    (read_actions, {"action": "triple_click", "coordinate": [1, 2]}, (Click(x=1, y=2, count=3),)),
    (read_actions, {"action": "screenshot"}, (TakeScreenshot(),)),
    (read_actions, {"action": "wait", "duration": 2}, (WaitForScreen(seconds=2),)),
    (read_actions, {"action": "type", "text": "hi"}, (TypeText(text="hi"),)),
    (read_actions, {"action": "key", "text": "ctrl+l"}, (PressKeys(keys=("ctrl", "l")),)),
    (read_actions, {"action": "mouse_move", "coordinate": [1, 2]}, (MovePointer(x=1, y=2),)),
    (
        read_actions,
        {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]},
        (DragPointer(path=(Point(1, 2), Point(3, 4))),),
    ),
    (
        read_actions,
        {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "up", "scroll_amount": 3},
        (ScrollAt(x=1, y=2, scroll_x=0, scroll_y=-300),),
    ),
]


@pytest.mark.parametrize(("read", "given", "expected"), FORMS)
def test_every_form_of_arguments_is_read(read: Any, given: dict[str, Any], expected: Any) -> None:
    """Those of functions, and those of each interface's own items."""
    found = read(given)
    if isinstance(found, ShellRequest):
        found = (found.commands, found.timeout, found.max_output)
    assert found == expected


@pytest.mark.parametrize(
    ("read", "given", "message"),
    [
        (read_commands, {}, "expected commands"),
        (read_commands, {"commands": "ls"}, "Expected `array`"),
        (read_commands, {"commands": ["ls"], "timeout_ms": 0}, "timeout_ms must be above 0"),
        (read_commands, {"command": ["ls"], "user": "root"}, "user"),
        (read_commands, {"commands": ["ls"], "color": 1}, "color"),
        (read_edits, {}, "expected a patch"),
        (read_edits, {"patch": "x"}, "begins with"),
        (read_edits, {"operation": {"type": "rename", "path": "x"}}, "rename"),
        (read_edits, {"command": "undo_edit", "path": "x"}, "'undo_edit' is unknown"),
        (read_edits, {"command": "insert", "path": "x", "insert_line": 1}, "lacks an argument"),
        (read_actions, {}, "expected actions"),
        (read_actions, {"action": "left_click"}, "lacks an argument"),
        (read_actions, {"action": "zoom", "coordinate": [1, 2]}, "'zoom' is unknown"),
        (read_actions, {"actions": [{"type": "click", "x": 1}]}, "y"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(read: Any, given: Any, message: str) -> None:
    """The executor isn't reached; the model reads what was wrong."""
    with pytest.raises(ModelBehaviorError, match=message):
        read(given)
    executor = Scripted()
    name = {read_commands: "shell", read_edits: "apply_patch", read_actions: "computer"}[read]
    model = ScriptedModel([respond(native_call(name, "c0", given)), say("done")])
    result = await Runner.run(Agent("a", model=model, tools=tools_of(executor)), "go")
    assert message in str(outputs_of(result)["c0"].output)
    assert executor.done == []


def test_options_of_the_tools() -> None:
    """Names, descriptions and policies can be given; what the executor decides can't."""
    shell = shell_tool(Scripted(), name="sh", description="Be careful.", timeout=5, needs_approval=False)
    assert (shell.name, shell.description, shell.timeout, shell.kind) == ("sh", "Be careful.", 5, "shell")
    unnamed = shell_tool(Scripted(), name=None, description=None, native=False)
    assert (unnamed.name, unnamed.kind, unnamed.needs_approval) == ("shell", "function", True)
    assert computer_tool(Scripted()).format == {"width": 640, "height": 480, "environment": "browser"}
    for make, protocol in ((shell_tool, "Shell"), (editor_tool, "Editor"), (computer_tool, "Computer")):
        with pytest.raises(UserTypeError, match=f"{make.__name__}: expected a {protocol}, got int"):
            make(5)  # type: ignore[operator]
        with pytest.raises(UserError, match="kind: the tool of an executor sets it itself"):
            make(Scripted(), kind="custom")  # type: ignore[operator]
