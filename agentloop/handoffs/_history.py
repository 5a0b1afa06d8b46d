"""The summary that a handoff's target sees in place of the whole conversation.

Text to text, pure: does not know about agents, runs or models.

Decisions:

A summary of a summary. A nested history opens the summary of an earlier handoff and copies its lines. Lines of a
message are indented, so that a message can't imitate a line of the summary, or its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentloop._common.masking import MASK, mask_arguments
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)

DEFAULT_WRAPPER = ("<CONVERSATION HISTORY>", "</CONVERSATION HISTORY>")
_INDENT = "   "
_ENTRY = re.compile(r"^([0-9]+)\. ", re.MULTILINE)
_MESSAGES = (SystemMessage, UserMessage, AssistantMessage)
_INTRO = "For context, here is what was said before you took over:"


def nest_history(items: Iterable[Item], wrapper: tuple[str, str] = DEFAULT_WRAPPER) -> tuple[Item, ...]:
    """Return *items* as summary messages, with the items that have no textual form between them.

    Items with a textual form become numbered lines of a summary message; messages with images or files, and items
    unknown here, keep their position between summaries. Reasoning is dropped. The lines of an earlier handoff's
    summary, with any wrapper, are copied into the new one, so that summaries never nest and no line is in two of them.

    *wrapper* is the line before and the line after those of a summary.
    """
    nested: list[Item] = []
    begun: tuple[str, ...] = ()  # entries of an earlier summary that begins this one, unchanged
    count = 0  # number of those entries
    lines: list[str] = []
    secret = False

    def close() -> None:
        nonlocal secret, begun, count
        if begun or lines:
            # Indented, a line of a message is never taken for an entry or for the closing line.
            numbered = [
                f"{number}. {line}".replace("\n", f"\n{_INDENT}") for number, line in enumerate(lines, count + 1)
            ]
            text = "\n".join([_INTRO, wrapper[0], *begun, *numbered, wrapper[1]])
            nested.append(AssistantMessage(text, secret=secret))
            lines.clear()
            secret, begun, count = False, (), 0

    for item in items:
        if isinstance(item, Reasoning):
            continue
        if not begun and not lines and (summary := _read_numbered_summary(item)) is not None:
            entries, count = summary
            begun = (entries,)
            secret = isinstance(item, _MESSAGES) and item.secret
            continue
        found = _read_summary_lines(item)
        if found is None and (line := _format_line(item)) is not None:
            found = [line]
        if found is None:
            close()
            nested.append(item)
            continue
        lines.extend(found)
        # The next model needs the text of secret messages, so the summary is marked secret and not masked.
        secret = secret or (isinstance(item, _MESSAGES) and item.secret)
    close()
    return tuple(nested)


def _read_numbered_summary(item: Item) -> tuple[str, int] | None:
    """Return the text and the number of a summary's entries if they are numbered as `nest_history` does it, else None.

    It takes the same few steps for a summary of any length, since each handoff makes one from the one before.
    """
    if not isinstance(item, AssistantMessage) or not item.text.startswith(f"{_INTRO}\n"):
        return None
    _, _, rest = item.text.partition("\n")[2].partition("\n")
    entries, newline, _ = rest.rpartition("\n")
    numbers = _ENTRY.findall(entries)
    indented = entries.count(f"\n{_INDENT}")
    if not newline or not numbers or len(numbers) + indented != entries.count("\n") + 1:
        return None
    if not entries.startswith("1. ") or numbers[-1] != str(len(numbers)):
        return None
    return entries, len(numbers)


def _read_summary_lines(item: Item) -> list[str] | None:
    if not isinstance(item, AssistantMessage) or not item.text.startswith(f"{_INTRO}\n"):
        return None
    _, _opening, *entries = item.text.split("\n")
    if len(entries) < 2 or not entries[0].startswith("1. "):
        return None
    lines: list[str] = []
    for line in entries[:-1]:
        if line.startswith(_INDENT):
            lines[-1] += f"\n{line.removeprefix(_INDENT)}"
        else:
            lines.append(line.partition(". ")[2])
    return lines


def _format_line(item: Item) -> str | None:
    match item:
        case SystemMessage() | UserMessage() | AssistantMessage():
            if not all(isinstance(part, Text) for part in item.content):
                return None
            who = {SystemMessage: "system", UserMessage: "user", AssistantMessage: "assistant"}[type(item)]
            return f"{who}: {item.text}"
        case ToolCall(name=name, arguments=arguments, secret=secret):
            return f"call: {name}({mask_arguments(arguments, secret)})"
        case HandoffCall(name=name, arguments=arguments):
            return f"call: {name}({arguments})"
        case ToolOutput(secret=True):
            return f"output: {MASK}"
        case ToolOutput(output=str() as output):
            return f"output: {output}"
        case HandoffOutput(output=output):
            return f"output: {output}"
        case _:
            return None
