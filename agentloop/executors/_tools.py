"""The tools that give models an executor: `shell_tool`, `editor_tool`, `computer_tool`.

Each is an ordinary `FunctionTool` with a `kind`. A codec whose provider has an item for such calls shows the provider's
own tool, and gives the item's content as the arguments of an ordinary call; every other codec shows the function. So
arguments come in several shapes, one of each interface, and `read_commands`, `read_edits` and `read_actions` read them
all. The engine knows none of this.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, Unpack

import anyio.lowlevel
import msgspec

from agentloop._common.errors import ModelBehaviorError, UserTypeError
from agentloop._common.json_bytes import encode_shown
from agentloop._common.values import Value
from agentloop._schema.json_text import parse_object
from agentloop.context import RunContext, ToolContext
from agentloop.executors._patch import parse_patch
from agentloop.executors._protocols import (
    Click,
    Computer,
    ComputerAction,
    CreateFile,
    DeleteFile,
    DragPointer,
    EditOperation,
    Editor,
    EditResult,
    InsertText,
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
)
from agentloop.items import Image, ToolKind
from agentloop.settings import JsonLimits
from agentloop.tools import FunctionOptions, FunctionTool

_PIECE = 50_000
"""About so many characters of a file are shown to a model in one step of the event loop."""
ArgumentsT = TypeVar("ArgumentsT")
ExecutorT = TypeVar("ExecutorT")


def _read(arguments: Mapping[str, Any], kind: Any, what: str) -> Any:
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        # msgspec's message names the place below `$`.
        raise ModelBehaviorError(f"Arguments of {what} don't fit: {error}") from None


def _parse(ctx: ToolContext[Any], text: str) -> dict[str, Any]:
    limits = JsonLimits() if ctx.run_config is None else ctx.run_config.json_limits
    return parse_object(text, limits, tool=ctx.tool_name)


def _make_tool(
    run: Callable[[ToolContext[Any], str], Awaitable[Any]],
    schema: Mapping[str, Any],
    kind: ToolKind,
    native: bool,
    given: FunctionOptions,
    display: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> FunctionTool[Any]:
    """Return the tool with the body *run*: serial by its kind, with the options *given* over *defaults*."""
    fixed = [name for name in ("kind", "format", "strict_mode") if name in given]
    if fixed:
        raise UserTypeError(f"{fixed[0]}: the tool of an executor sets it itself")
    fields: dict[str, Any] = {"name": kind, "serial": kind, **defaults}
    fields |= {name: value for name, value in given.items() if value is not None or name not in ("name", "description")}
    shown: ToolKind = kind if native else "function"
    return FunctionTool(on_invoke_tool=run, params_json_schema=schema, kind=shown, format=display, **fields)


def _check(executor: object, protocol: Any, where: str) -> None:
    if not isinstance(executor, protocol):
        raise UserTypeError(f"{where}: expected a {protocol.__name__}, got {type(executor).__name__}")


def _chooser(
    given: ExecutorT | Callable[[ToolContext[Any]], ExecutorT], protocol: Any, where: str
) -> Callable[[ToolContext[Any]], ExecutorT]:
    """Return the function that gives the executor of a call."""
    if isinstance(given, protocol) or not callable(given):
        _check(given, protocol, where)
        executor: Any = given
        return lambda _ctx: executor

    def chosen(ctx: ToolContext[Any]) -> ExecutorT:
        executor: Any = given(ctx)
        _check(executor, protocol, where)
        return executor  # type: ignore[no-any-return]  # the protocol is checked

    return chosen


# ---------------------------------------------------------------------------------------------- shell


class _ShellArguments(Value, frozen=True, forbid_unknown_fields=True):
    """`commands` come in calls of functions and in shell items; `command` in items of other interfaces."""

    commands: tuple[str, ...] = ()
    command: str | tuple[str, ...] | None = None
    restart: bool = False
    timeout_ms: int | None = None
    max_output_length: int | None = None
    env: dict[str, str] | None = None
    working_directory: str | None = None
    user: None = None


_COMMANDS = {
    "type": "object",
    "properties": {
        "commands": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Shell commands, run one after the other, each in a shell of its own.",
        },
        "timeout_ms": {
            "anyOf": [{"type": "integer"}, {"type": "null"}],
            "description": "The most milliseconds for all commands.",
        },
    },
    "required": ["commands", "timeout_ms"],
    "additionalProperties": False,
}


_ABOUT_SHELL = "Run commands in a shell. Each command starts in the same folder, with no input and no terminal."
_ABOUT_SESSION = "Run commands in a shell that stays: folder and variables are kept for the next command."


def read_commands(arguments: Mapping[str, Any]) -> ShellRequest:
    """Return the request in the *arguments* of a call of a shell tool, whichever interface it came by.

    For approvals and policies: `needs_approval=lambda ctx, arguments, call_id: …`.

    Raises:
        ModelBehaviorError: if they don't fit.
    """
    given: _ShellArguments = _read(arguments, _ShellArguments, "a shell")
    commands = list(given.commands)
    if isinstance(given.command, tuple):
        # The program is named with its arguments, variables and folder. Written as a command it needs no shell of
        # another kind, and the person who approves sees all of it.
        words = [*(f"{name}={value}" for name, value in (given.env or {}).items())]
        run = shlex.join(["env", *words, *given.command] if words else given.command)
        place = given.working_directory
        commands.append(run if place is None else f"cd -- {shlex.quote(place)} && {run}")
    elif given.command is not None:
        commands.append(given.command)
    if not commands and not given.restart:
        raise ModelBehaviorError("Arguments of a shell don't fit: expected commands")
    if given.timeout_ms is not None and given.timeout_ms <= 0:
        raise ModelBehaviorError("Arguments of a shell don't fit: timeout_ms must be above 0")
    most = given.max_output_length
    return ShellRequest(
        commands=tuple(commands),
        timeout=None if given.timeout_ms is None else given.timeout_ms / 1000,
        max_output=None if most is None else max(most, 0),
        restart=given.restart,
    )


def shell_tool(
    shell: Shell | Callable[[ToolContext[Any]], Shell],
    *,
    native: bool = True,
    session: bool = False,
    **options: Unpack[FunctionOptions],
) -> FunctionTool[Any]:
    """Return a tool by which a model runs commands in *shell*.

    Its calls wait for approval unless `needs_approval` says otherwise, and those of one turn run one at a time
    (`serial="shell"`), beside calls of other tools. `CallSettled.outcome.value` is the `ShellResult`.

    Args:
        shell: Runs the commands; or a function that chooses it for each call: `lambda ctx: ctx.sandbox.shell`.
        native: True to show the provider's own tool where the interface has one, as newer models know it; False to
            show a function everywhere.
        session: True if what a command changes (the folder, variables, background processes) stays for the next one,
            and `ShellRequest.restart` begins anew. Anthropic models know their own shell as such a session, and are
            shown it only then. `LocalShell` is none.
        options: Those of `tool`, but for `kind`, `format` and `strict_mode`.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.

    Example:
        from agentloop import Agent
        from agentloop.executors import LocalShell, shell_tool

        agent = Agent("a", tools=[shell_tool(LocalShell("."))])  # each command waits for an approval
        print(agent.tools[0].name)  # shell
    """
    choose = _chooser(shell, Shell, "shell_tool")

    async def run(ctx: ToolContext[Any], text: str) -> ShellResult:
        request = read_commands(_parse(ctx, text))
        return _fit(await choose(ctx).run(request), _most_chars(ctx))

    about = _ABOUT_SESSION if session else _ABOUT_SHELL
    shape = {"session": True} if session else None
    return _make_tool(run, _COMMANDS, "shell", native, options, shape, description=about, needs_approval=True)


def _most_chars(ctx: ToolContext[Any]) -> int | None:
    return None if ctx.run_config is None else ctx.run_config.tool_execution.max_output_chars


def _fit(result: ShellResult, limit: int | None) -> ShellResult:
    """Return *result* with outputs so short that its JSON keeps *limit*: cut JSON could not be read back."""
    if limit is None:
        return result
    from agentloop.executors._output import cut_text

    kept = max([len(one.stdout) + len(one.stderr) for one in result.results], default=0)
    while kept > 1 and len(encode_shown(result).decode()) > limit:
        kept //= 2
        result = result.replace(
            results=tuple(
                one.replace(stdout=cut_text(one.stdout, kept // 2), stderr=cut_text(one.stderr, kept // 2))
                for one in result.results
            )
        )
    return result


# ---------------------------------------------------------------------------------------------- editor


class _EditArguments(Value, frozen=True, forbid_unknown_fields=True):
    patch: str | None = None
    operation: CreateFile | UpdateFile | DeleteFile | None = None


class _EditorCommand(Value, frozen=True, forbid_unknown_fields=True):
    """The call of an editor that views and replaces texts."""

    command: str
    path: str
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = None
    insert_text: str | None = None
    view_range: tuple[int, int] | None = None


_PATCH = {
    "type": "object",
    "properties": {"patch": {"type": "string", "description": "The patch, from *** Begin Patch to *** End Patch."}},
    "required": ["patch"],
    "additionalProperties": False,
}
_ABOUT_PATCHES = """Change files by a patch. It is applied as a whole or not at all. Paths are relative. The format:
*** Begin Patch
*** Add File: path
+each line of the new file
*** Update File: path
*** Move to: new path (only to move the file)
@@ a line above the change, as it is in the file
 a line that stays
-a line to remove
+a line to add
*** Delete File: path
*** End Patch"""


def read_edits(arguments: Mapping[str, Any]) -> tuple[EditOperation, ...]:
    """Return the operations in the *arguments* of a call of an editor tool, whichever interface it came by.

    A call that only views a file has none.

    Raises:
        ModelBehaviorError: if the arguments don't fit, or hold no patch that can be read.
    """
    if "command" in arguments:
        return _read_editor_command(_read(arguments, _EditorCommand, "an editor"))
    given: _EditArguments = _read(arguments, _EditArguments, "an editor")
    if given.operation is not None:
        return (given.operation,)
    if given.patch is None:
        raise ModelBehaviorError("Arguments of an editor don't fit: expected a patch")
    return parse_patch(given.patch)


def _read_editor_command(given: _EditorCommand) -> tuple[EditOperation, ...]:
    match given:
        case _EditorCommand(command="view"):
            return ()
        case _EditorCommand(command="create", file_text=str(text)):
            return (WriteFile(path=given.path, text=text),)
        case _EditorCommand(command="str_replace", old_str=str(old)):
            return (ReplaceText(path=given.path, old=old, new=given.new_str or ""),)
        case _EditorCommand(command="insert", insert_line=int(line)):
            added = given.insert_text if given.insert_text is not None else given.new_str
            if added is not None:
                return (InsertText(path=given.path, line=line, text=added),)
    raise ModelBehaviorError(f"Arguments of an editor don't fit: {given.command!r} is unknown or lacks an argument")


def editor_tool(
    editor: Editor | Callable[[ToolContext[Any]], Editor], *, native: bool = True, **options: Unpack[FunctionOptions]
) -> FunctionTool[Any]:
    """Return a tool by which a model changes files with *editor*.

    Its calls wait for approval unless `needs_approval` says otherwise, and those of one turn run one at a time
    (`serial="apply_patch"`), beside calls of other tools. `CallSettled.outcome.value` is the `EditResult`.

    Args:
        editor: Changes the files; or a function that chooses it for each call: `lambda ctx: ctx.sandbox.editor`.
        native: True to show the provider's own tool where the interface has one, as newer models know it; False to
            show a function everywhere.
        options: Those of `tool`, but for `kind`, `format` and `strict_mode`.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.

    Example:
        from agentloop import Agent
        from agentloop.executors import LocalEditor, editor_tool

        agent = Agent("a", tools=[editor_tool(LocalEditor("."))])
        print(agent.tools[0].name)  # apply_patch
    """
    choose = _chooser(editor, Editor, "editor_tool")

    async def apply(ctx: ToolContext[Any], text: str) -> EditResult | str:
        arguments = _parse(ctx, text)
        operations = read_edits(arguments)
        if operations:
            return await choose(ctx).apply(operations)
        given: _EditorCommand = _read(arguments, _EditorCommand, "an editor")
        return await _number_lines(await choose(ctx).read(given.path), given.view_range)

    return _make_tool(apply, _PATCH, "apply_patch", native, options, description=_ABOUT_PATCHES, needs_approval=True)


async def _number_lines(text: str, bounds: tuple[int, int] | None) -> str:
    """Return the lines of *text* with their numbers, from the first of *bounds* to the second; -1 is the end.

    Cancellation: it is looked for, and other tasks run, once in some thousand characters.
    """
    first, last = bounds if bounds is not None else (1, -1)
    shown: list[str] = []
    at = number = 0
    while at < len(text) and (last == -1 or number < last):
        end = text.find("\n", at + _PIECE) + 1 or len(text)
        for number, line in enumerate(text[at:end].splitlines(), number + 1):  # noqa: B020 - it counts further
            if first <= number and (last == -1 or number <= last):
                shown.append(f"{number}\t{line}")
        at = end
        await anyio.lowlevel.checkpoint()
    return "\n".join(shown)


# ---------------------------------------------------------------------------------------------- computer


class _ComputerArguments(Value, frozen=True, forbid_unknown_fields=True):
    actions: tuple[ComputerAction, ...] | None = None
    action: ComputerAction | None = None
    pending_safety_checks: tuple[dict[str, Any], ...] | None = None


class _PointerCommand(Value, frozen=True, forbid_unknown_fields=False):
    """The call of a computer that names its action by a word."""

    action: str
    coordinate: tuple[int, int] | None = None
    start_coordinate: tuple[int, int] | None = None
    text: str | None = None
    scroll_direction: str | None = None
    scroll_amount: int = 0
    duration: float = 1.0


_POINT = {"x": {"type": "integer"}, "y": {"type": "integer"}}
_KEYS = {"type": "array", "items": {"type": "string"}}


def _action(kind: str, **fields: Any) -> dict[str, Any]:
    properties = {"type": {"type": "string", "enum": [kind]}, **fields}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_BUTTONS = {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]}
_PATH = {
    "type": "array",
    "items": {"type": "object", "properties": _POINT, "required": ["x", "y"], "additionalProperties": False},
}
_ACTIONS = {
    "type": "object",
    "properties": {
        "actions": {
            "type": "array",
            "items": {
                "anyOf": [
                    _action("click", **_POINT, button=_BUTTONS),
                    _action("double_click", **_POINT),
                    _action("move", **_POINT),
                    _action("scroll", **_POINT, scroll_x={"type": "integer"}, scroll_y={"type": "integer"}),
                    _action("drag", path=_PATH),
                    _action("keypress", keys=_KEYS),
                    _action("type", text={"type": "string"}),
                    _action("wait"),
                    _action("screenshot"),
                ]
            },
        }
    },
    "required": ["actions"],
    "additionalProperties": False,
}
_PIXELS_A_STEP = 100
"""Pixels of one step of a wheel, in calls that count steps."""
_CLICKS = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("wheel", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def read_actions(arguments: Mapping[str, Any]) -> tuple[ComputerAction, ...]:
    """Return the actions in the *arguments* of a call of a computer tool, whichever interface it came by.

    Raises:
        ModelBehaviorError: if the arguments don't fit.
    """
    if isinstance(arguments.get("action"), str):
        return _read_pointer_command(_read(arguments, _PointerCommand, "a computer"))
    given: _ComputerArguments = _read(arguments, _ComputerArguments, "a computer")
    if given.actions is not None:
        return given.actions
    if given.action is None:
        raise ModelBehaviorError("Arguments of a computer don't fit: expected actions")
    return (given.action,)


def _read_pointer_command(given: _PointerCommand) -> tuple[ComputerAction, ...]:
    held = tuple(given.text.split("+")) if given.text else None
    match given:
        case _PointerCommand(action="screenshot"):
            return (TakeScreenshot(),)
        case _PointerCommand(action="wait"):
            return (WaitForScreen(seconds=given.duration),)
        case _PointerCommand(action="type", text=str(text)):
            return (TypeText(text=text),)
        case _PointerCommand(action="key") if held is not None:
            return (PressKeys(keys=held),)
        case _PointerCommand(action="mouse_move", coordinate=(x, y)):
            return (MovePointer(x=x, y=y),)
        case _PointerCommand(action="left_click_drag", start_coordinate=(x, y), coordinate=(to_x, to_y)):
            return (DragPointer(path=(Point(x, y), Point(to_x, to_y)), keys=held),)
        case _PointerCommand(action="scroll", coordinate=(x, y), scroll_direction=str(direction)) if (
            direction in _DIRECTIONS
        ):
            right, down = (each * given.scroll_amount * _PIXELS_A_STEP for each in _DIRECTIONS[direction])
            return (ScrollAt(x=x, y=y, scroll_x=right, scroll_y=down, keys=held),)
        case _PointerCommand(action=word, coordinate=(x, y)) if word in _CLICKS:
            button, count = _CLICKS[word]
            return (Click(x=x, y=y, button=button, count=count, keys=held),)  # type: ignore[arg-type]
    raise ModelBehaviorError(f"Arguments of a computer don't fit: {given.action!r} is unknown or lacks an argument")


def needs_acknowledgement(ctx: RunContext[Any], arguments: Mapping[str, Any], call_id: str) -> bool:
    """Tell whether the provider wants a person to look at the call: it has pending safety checks.

    The default `needs_approval` of `computer_tool`. An approved call's output acknowledges the checks.
    """
    return bool(arguments.get("pending_safety_checks"))


def computer_tool(computer: Computer, *, native: bool = True, **options: Unpack[FunctionOptions]) -> FunctionTool[Any]:
    """Return a tool by which a model uses *computer*. The output of a call is a screenshot, taken after its actions.

    Its calls wait for approval if the provider has pending safety checks (`needs_acknowledgement`), and those of one
    turn run one at a time (`serial="computer"`), beside calls of other tools.

    Args:
        computer: Does the actions.
        native: True to show the provider's own tool where the interface has one, as models trained for it know it;
            False to show a function everywhere.
        options: Those of `tool`, but for `kind`, `format` and `strict_mode`.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.
    """
    _check(computer, Computer, "computer_tool")

    async def act(ctx: ToolContext[Any], text: str) -> Image:
        for action in read_actions(_parse(ctx, text)):
            await computer.perform(action)
        shown = await computer.screenshot()
        return Image(data=base64.b64encode(shown).decode(), media_type="image/png")

    display = computer.display
    about = (
        f"Use a computer with a display of {display.width} x {display.height} pixels ({display.environment}). "
        "The output is a screenshot."
    )
    shape = {"width": display.width, "height": display.height, "environment": display.environment}
    defaults = {"description": about, "needs_approval": needs_acknowledgement}
    return _make_tool(act, _ACTIONS, "computer", native, options, shape, **defaults)
