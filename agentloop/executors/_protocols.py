"""The protocols `Shell`, `Editor` and `Computer`, and the values they take and give: requests, actions, results.

Definitions only. Does not know how a model asks for these actions (`_tools`), nor how they are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from msgspec.structs import force_setattr

from agentloop._common.values import Value
from agentloop.exceptions import AgentLoopError

# -- errors


class ExecutorError(AgentLoopError):
    """An executor could not do what it was asked for. Base of the errors below."""


class ShellError(ExecutorError):
    """A command could not be started, or processes of it could not be ended; the message names them."""


class EditError(ExecutorError):
    """Edits were refused or failed. Every file is as before, unless the message names one that isn't."""


class SandboxError(ExecutorError):
    """A sandbox could not be made or opened."""


class ComputerError(ExecutorError):
    """An action of a computer failed."""


# -- shell


class ShellRequest(Value, frozen=True, kw_only=True):
    """Commands for a shell, to be run one after the other.

    Attributes:
        commands: Texts for the shell. A command that fails does not stop the next one, a time limit does.
        timeout: Seconds for all commands together; None = the shell's own limit.
        max_output: The most characters of output to keep of each command, stdout and stderr together; None = the
            shell's own limit.
        restart: True if the model wants a new session first: only from a model that is shown a session
            (`shell_tool(session=True)`), and then without commands.
    """

    commands: tuple[str, ...]
    timeout: float | None = None
    max_output: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "commands", tuple(self.commands))


class CommandResult(Value, frozen=True, kw_only=True):
    """The end of one command.

    Attributes:
        command: Its text.
        exit_code: Its status, 128 + N if signal N ended it; None if the time limit did.
        stdout, stderr: Its output as text. If there was more than the limit, the head and the tail are kept, and a
            note between them says how much was cut.
        timed_out: True if the time limit ended it.
        left_running: Descriptions of processes that could not be ended; empty if all have ended.
    """

    command: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    left_running: tuple[str, ...] = ()


class ShellResult(Value, frozen=True, kw_only=True):
    """The ends of the commands that were run, in order. A command after one that timed out is not run."""

    results: tuple[CommandResult, ...]


@runtime_checkable
class Shell(Protocol):
    """Runs shell commands. `LocalShell` runs them on this machine."""

    async def run(self, request: ShellRequest) -> ShellResult:
        """Run the commands and return their results. No process of them outlives the call.

        Cancellation: all processes are ended before it returns.

        Raises:
            ShellError: if a command could not be started.
        """
        ...


# -- editor


class _Operation(Value, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=False):
    path: str


class CreateFile(_Operation, frozen=True, kw_only=True, tag="create_file"):
    """Create a file that does not exist. `diff` has its lines, each with a `+` before it."""

    diff: str


class UpdateFile(_Operation, frozen=True, kw_only=True, tag="update_file"):
    """Change a file by a diff in the V4A format (`apply_diff`), and move it to `move_to` if that is given."""

    diff: str
    move_to: str | None = None


class DeleteFile(_Operation, frozen=True, kw_only=True, tag="delete_file"):
    """Delete a file."""


class ReplaceText(_Operation, frozen=True, kw_only=True, tag="replace_text"):
    """Replace the only occurrence of the text `old` in a file by `new`."""

    old: str
    new: str


class InsertText(_Operation, frozen=True, kw_only=True, tag="insert_text"):
    """Insert the lines of `text` after line `line` of a file; 0 is the beginning."""

    line: int
    text: str


class WriteFile(_Operation, frozen=True, kw_only=True, tag="write_file"):
    """Write `text` as the whole content of a file, whether it exists or not."""

    text: str


EditOperation: TypeAlias = CreateFile | UpdateFile | DeleteFile | ReplaceText | InsertText | WriteFile
"""One change of one file. Paths are relative to the editor's root, with `/` between their parts."""


class FileChange(Value, frozen=True):
    """One file that was changed. `moved_from` is its path before, if it was moved."""

    path: str
    change: Literal["created", "updated", "deleted", "moved"]
    moved_from: str | None = None


class EditResult(Value, frozen=True, kw_only=True):
    """The files that were changed, in the order of the operations; one entry for each file."""

    changes: tuple[FileChange, ...]


@runtime_checkable
class Editor(Protocol):
    """Changes files of one tree. `LocalEditor` changes those below a folder of this machine."""

    async def apply(self, operations: Sequence[EditOperation]) -> EditResult:
        """Apply all *operations*, in order, or none.

        Cancellation: every file is as before.

        Raises:
            EditError: if an operation is refused or fails; every file is as before.
        """
        ...

    async def read(self, path: str) -> str:
        """Return the text of a file, or of a folder the names in it, one a line, folders with a `/` at the end.

        Raises:
            EditError: if it can't be read.
        """
        ...


# -- computer


class _Action(Value, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=False):
    pass


class _Aimed(_Action, frozen=True, kw_only=True):
    x: int
    y: int
    keys: tuple[str, ...] | None = None


class Click(_Aimed, frozen=True, kw_only=True, tag="click"):
    """Click at a point, in pixels from the top left corner. `keys` are held meanwhile, here and in other actions."""

    button: Literal["left", "right", "wheel", "back", "forward"] = "left"
    count: int = 1


class DoubleClick(_Aimed, frozen=True, kw_only=True, tag="double_click"):
    """Click twice at a point, with the left button."""


class MovePointer(_Aimed, frozen=True, kw_only=True, tag="move"):
    """Move the pointer to a point."""


class ScrollAt(_Aimed, frozen=True, kw_only=True, tag="scroll"):
    """Scroll by pixels, to the right and down, with the pointer at a point."""

    scroll_x: int
    scroll_y: int


class Point(Value, frozen=True, forbid_unknown_fields=False):
    """A point in pixels from the top left corner."""

    x: int
    y: int


class DragPointer(_Action, frozen=True, kw_only=True, tag="drag"):
    """Press the left button at the first point, move along the others, release it at the last."""

    path: tuple[Point, ...]
    keys: tuple[str, ...] | None = None


class PressKeys(_Action, frozen=True, kw_only=True, tag="keypress"):
    """Press keys together: `("CTRL", "L")`."""

    keys: tuple[str, ...]


class TypeText(_Action, frozen=True, kw_only=True, tag="type"):
    """Type a text into what has the focus."""

    text: str


class TakeScreenshot(_Action, frozen=True, kw_only=True, tag="screenshot"):
    """Do nothing: a screenshot is taken after every call."""


class WaitForScreen(_Action, frozen=True, kw_only=True, tag="wait"):
    """Give what is shown some seconds to change."""

    seconds: float = 1.0


ComputerAction: TypeAlias = (
    Click | DoubleClick | MovePointer | ScrollAt | DragPointer | PressKeys | TypeText | TakeScreenshot | WaitForScreen
)
"""One action of a user of a computer."""


class Display(Value, frozen=True, kw_only=True):
    """A computer's display: its size in pixels, and the kind of system that it shows."""

    width: int
    height: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"] = "browser"


@runtime_checkable
class Computer(Protocol):
    """A computer with a display, a pointer and a keyboard. `Browser` is one that shows web pages."""

    @property
    def display(self) -> Display:
        """The display. It does not change."""
        ...

    async def perform(self, action: ComputerAction) -> None:
        """Do one action.

        Raises:
            ComputerError: if it fails.
        """
        ...

    async def screenshot(self) -> bytes:
        """Return what the display shows, as a PNG image.

        Raises:
            ComputerError: if it fails.
        """
        ...
