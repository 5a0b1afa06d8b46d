"""What a handoff's target is shown in place of the whole conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentloop._common.masking import MASK, masked_arguments
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
    """Return *items* as summary segments around the messages that text can't stand for.

    What has a textual form goes into numbered lines of a summary message; messages with images or files, and items
    unknown here, keep their place between segments. Reasoning is left out. A summary of an earlier handoff, whatever
    its wrapper, is opened and its lines are taken over, so that summaries never nest and nothing stands in two of them.

    *wrapper* are the lines before and after a segment's.
    """
    nested: list[Item] = []
    begun: tuple[str, ...] = ()  # the entries of a summary that begins the segment, as they stand
    count = 0  # how many entries they are
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
        if not begun and not lines and (summary := _entries_of_summary(item)) is not None:
            entries, count = summary
            begun = (entries,)
            secret = isinstance(item, _MESSAGES) and item.secret
            continue
        found = _lines_of_summary(item)
        if found is None and (line := _line(item)) is not None:
            found = [line]
        if found is None:
            close()
            nested.append(item)
            continue
        lines.extend(found)
        # The next model is to see what was said, so that the summary is secret in place of being masked.
        secret = secret or (isinstance(item, _MESSAGES) and item.secret)
    close()
    return tuple(nested)


def _entries_of_summary(item: Item) -> tuple[str, int] | None:
    """Return the entries of a summary, and how many they are, if they are numbered as `nest_history` does it.

    It takes the same few steps for a summary of any length: one is made at each handoff, of the one before.
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


def _lines_of_summary(item: Item) -> list[str] | None:
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


def _line(item: Item) -> str | None:
    match item:
        case SystemMessage() | UserMessage() | AssistantMessage():
            if not all(isinstance(part, Text) for part in item.content):
                return None
            who = {SystemMessage: "system", UserMessage: "user", AssistantMessage: "assistant"}[type(item)]
            return f"{who}: {item.text}"
        case ToolCall(name=name, arguments=arguments, secret=secret):
            return f"call: {name}({masked_arguments(arguments, secret)})"
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
