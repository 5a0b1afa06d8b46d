"""Executors: shells, editors and computers that models use, and the tools that give them to a model.

`Shell`, `Editor` and `Computer` are protocols; `LocalShell`, `LocalEditor` and
`Browser` (`open_browser`) are implementations for this machine. `LocalSandboxes` gives each run its own folder,
with a shell and an editor.
`shell_tool`, `editor_tool` and `computer_tool` make ordinary tools of them: a call is planned, approved, admitted,
cancelled and recorded like that of a function. A model whose provider has its own item for such calls (a shell
call, a patch, a computer call) is shown the provider's tool, and its items are answered by the provider's items; every
other model is shown a function.
"""

from agentloop.context import Sandbox, SandboxProvider
from agentloop.executors._browser import Browser, open_browser
from agentloop.executors._local_editor import LocalEditor
from agentloop.executors._local_sandbox import LocalSandbox, LocalSandboxes
from agentloop.executors._local_shell import LocalShell
from agentloop.executors._patch import apply_diff, parse_patch
from agentloop.executors._protocols import (
    Click,
    CommandResult,
    Computer,
    ComputerAction,
    ComputerError,
    CreateFile,
    DeleteFile,
    Display,
    DoubleClick,
    DragPointer,
    EditError,
    EditOperation,
    Editor,
    EditResult,
    ExecutorError,
    FileChange,
    InsertText,
    MovePointer,
    Point,
    PressKeys,
    ReplaceText,
    SandboxError,
    ScrollAt,
    Shell,
    ShellError,
    ShellRequest,
    ShellResult,
    TakeScreenshot,
    TypeText,
    UpdateFile,
    WaitForScreen,
    WriteFile,
)
from agentloop.executors._storage import PrunedSandbox
from agentloop.executors._tools import (
    computer_tool,
    editor_tool,
    needs_acknowledgement,
    read_actions,
    read_commands,
    read_edits,
    shell_tool,
)

__all__ = [
    "Browser",
    "Click",
    "CommandResult",
    "Computer",
    "ComputerAction",
    "ComputerError",
    "CreateFile",
    "DeleteFile",
    "Display",
    "DoubleClick",
    "DragPointer",
    "EditError",
    "EditOperation",
    "EditResult",
    "Editor",
    "ExecutorError",
    "FileChange",
    "InsertText",
    "LocalEditor",
    "LocalSandbox",
    "LocalSandboxes",
    "LocalShell",
    "MovePointer",
    "Point",
    "PressKeys",
    "PrunedSandbox",
    "ReplaceText",
    "Sandbox",
    "SandboxError",
    "SandboxProvider",
    "ScrollAt",
    "Shell",
    "ShellError",
    "ShellRequest",
    "ShellResult",
    "TakeScreenshot",
    "TypeText",
    "UpdateFile",
    "WaitForScreen",
    "WriteFile",
    "apply_diff",
    "computer_tool",
    "editor_tool",
    "needs_acknowledgement",
    "open_browser",
    "parse_patch",
    "read_actions",
    "read_commands",
    "read_edits",
    "shell_tool",
]
