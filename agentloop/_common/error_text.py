"""Texts of errors that a model or a log may show, bounded and without secrets: one line for logs, all for the model.

Works on any exception; knows only `EarlierFailure` and `AnswerError` of the library's own. `_core/secret_marks` says
which values are secret, and which other modules hide them.

Decisions:

Error texts are cut before they are searched. The model gets a tool's error with all lines of its message, up to 4,000
characters and without secrets, and the words of an MCP server about a failed call as an output; records and logs have
the first line that isn't a heading. A validation error says what is wrong below its first line, and so do the errors of
many servers, some of them below `### Error`. A message may be megabytes long, and patterns that look for secrets take
time that may grow with the square of it: more than a minute for a million characters, in which no other task ran. Text
that isn't shown needs no search.

An error of a call with secret arguments shows its type only. A search can't decide which of its words repeat an
argument, and in which form (quoted, cut, in other cases, a key of a mapping, one digit after the other). So the
model, records, logs, spans and notes say `TYPE([redacted])`, and of a group this for every leaf. The texts of the
application's own functions for such a call (a guardrail's refusal, a policy's denial, a failure's text) go to the
model, and are as secret as a secret output everywhere else.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from agentloop._common.errors import AnswerError, EarlierFailure

MAX_CHARS = 1_000
MAX_DETAILS, MAX_ANSWER = 4_000, 32_000
"""Characters of an error at most, as a model reads it; and of one that a tool wrote for it, as an output has them."""
REDACTED = "[redacted]"
_MARK = "_agentloop_redacted"

_SECRETS = (  # compiled at their first use: that takes a millisecond, and most programs never redact a text
    # name=value and name: value, if the name says that the value is secret
    # (a prefix of the name is not matched: it is kept anyway, and matching it would cost quadratic time)
    r"(?i)((?:api[_-]?key|secret|token|passw(?:or)?d|credential|authorization)[\w-]{0,40}+[\"']?\s*[=:]\s*)"
    r"(?:bearer\s+|basic\s+)?(\"[^\"]*\"|'[^']*'|(?!\[redacted\])[^\s,;&)}\]]+)",
    r"(?i)\b(bearer\s+|basic\s+)([A-Za-z0-9._~+/=-]{8,})",
    r"()\b((?:sk|pk|rk|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{8,})",
    # user:password@host
    r"(://[^\s:/@]{1,200}+:)([^\s@/]{1,200}+)(?=@)",
)


@functools.cache
def _compile_secrets() -> list[re.Pattern[str]]:
    return [re.compile(pattern) for pattern in _SECRETS]


def redact(text: str) -> str:
    """Return *text* with everything that looks like a secret replaced by `[redacted]`."""
    for pattern in _compile_secrets():
        text = pattern.sub(r"\1[redacted]", text)
    return text


def shorten(text: str, limit: int = MAX_CHARS) -> str:
    """Return *text*, cut to *limit* characters, with an ellipsis as the last one if it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


_NURSERY_WORDS = ("unhandled errors in a TaskGroup", "Exceptions from Trio nursery")
"""Messages that a backend gives every group that leaves a nursery: no use to the model or to a reader of logs."""


def first_line(text: str) -> str:
    """Return the first line that isn't blank, nor a heading (`### Error`) of lines below it."""
    text = text.strip()
    if text.startswith("#"):
        text = re.sub(r"\A(?:#{1,6} [^\n]*\n\s*)+", "", text)
    return text.partition("\n")[0].rstrip()


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group and of its nested groups; for an error that isn't a group, yield that error."""
    left = [error]
    while left:  # no recursion: groups may be nested deeper than the interpreter's limit
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(_members_of(each)))
        else:
            yield each


def redact_message(error: BaseException) -> None:
    """Mark *error* (of a group, every leaf as well) so that every text shows it as `TYPE([redacted])`.

    For the errors of a call with secret arguments: no search can find which words repeat an argument, or in which form.
    The message itself isn't changed: the exception belongs to the code that raised it.
    """
    for each in (error, *leaves(error)):
        each.__dict__[_MARK] = True  # a class may refuse `setattr`, as a frozen one does


def is_redacted(error: BaseException) -> bool:
    """Tell whether no text may show the message of *error*."""
    return _MARK in error.__dict__


def message_of(error: BaseException) -> str:
    """Return the whole message of *error*, or `[redacted]`."""
    if is_redacted(error):
        return REDACTED
    try:
        return str.__str__(str(error))  # a subclass of str may have methods that fail
    except Exception:  # a broken __str__ must not hide the failure it belongs to
        return "(its message can't be shown)"


# A subclass of a group may override these attributes, so they are read from the base class.


def _members_of(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    members: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(group)
    return members


def _group_message_of(group: BaseExceptionGroup[BaseException]) -> str:
    message: str = BaseExceptionGroup.message.__get__(group)
    return message


class _Form(NamedTuple):
    """How much of an error is shown: what is taken of a message, and the characters of the whole."""

    take: Callable[[str], str]
    most: int

    def show(self, message: str) -> str:
        """Return what is shown of *message*, without secrets."""
        # Cut before searching: text that is never shown needs no search, and a hostile message may be megabytes long.
        return redact(shorten(self.take(message), self.most))

    def show_error(self, error: BaseException) -> str:
        """Return `TYPE(MESSAGE)`; *error* isn't a group."""
        return f"{type(error).__name__}({self.show(message_of(error))})"

    def describe(self, error: BaseException) -> str:
        """Return `TYPE(MESSAGE)`; of a group, every leaf."""
        if not isinstance(error, BaseExceptionGroup):
            return shorten(self.show_error(error), self.most)
        message = _group_message_of(error)
        said = "" if is_redacted(error) or message in _NURSERY_WORDS else f"{self.show(message)}: "
        return shorten(f"{type(error).__name__}({said}{self._join(leaves(error))})", self.most)

    def _join(self, errors: Iterator[BaseException]) -> str:
        """Return the forms of the first *errors*, up to the size of a text: a group may have any number of leaves."""
        words: list[str] = []
        size = 0
        for error in errors:
            words.append(self.show_error(error))
            size += len(words[-1]) + 2
            if size > self.most:
                break
        return ", ".join(words)


_SUMMARY_FORM = _Form(first_line, MAX_CHARS)
_WHOLE_FORM = _Form(str.strip, MAX_DETAILS)
_ANSWER_FORM = _Form(str.strip, MAX_ANSWER)


def is_fatal(error: BaseException) -> bool:
    """Tell whether no policy may answer *error*: it is no `Exception`, or the stored summary of such an error."""
    return not isinstance(error, Exception) or (isinstance(error, EarlierFailure) and error.fatal)


_SUMMARY = re.compile(r"(?P<name>\w+)\((?P<message>.*?)\)?\Z", re.DOTALL)


def summary_parts(summary: str) -> tuple[str, str]:
    """Return the type's name and the message in a summary."""
    match = _SUMMARY.match(summary)
    if match is None:
        return "Exception", summary
    return match["name"], summary[len(match["name"]) + 1 : -1] if summary.endswith(")") else match["message"]


def tool_failure(tool: str, name: str, message: str) -> str:
    """Return the message of the `ToolCallError` for an error of type *name*."""
    return f"Error running tool {tool}: {name}: {message}"


def error_summary(error: BaseException) -> str:
    """Return `TYPE(MESSAGE)`: the first line, redacted and bounded; of a group, every leaf. For logs and records."""
    if isinstance(error, EarlierFailure):
        return str(error)  # a summary already
    return _SUMMARY_FORM.describe(error)


def error_details(error: BaseException) -> str:
    """Return `TYPE(MESSAGE)` with all lines, redacted and bounded; of a group, every leaf. For a model."""
    if isinstance(error, EarlierFailure):
        return error.details
    return (_ANSWER_FORM if isinstance(error, AnswerError) else _WHOLE_FORM).describe(error)


def summary_and_details(error: BaseException) -> tuple[str, str]:
    """Return `error_summary(error)` and `error_details(error)`. Most messages have one line, which is both."""
    details = error_details(error)
    is_both = "\n" not in details and len(details) < MAX_CHARS and not isinstance(error, EarlierFailure)
    return (details if is_both else error_summary(error)), details


# -- tracebacks


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, its cause or else its context, and so on, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def traceback_of(error: BaseException) -> str:
    """Return the frames of *error* and of the errors that led to it, the first cause first, each with its summary.

    A redacted error and all that led to it are shown by type only, since each of them may repeat the secret.
    """
    blocks: list[str] = []
    types_alone = False
    for each in chain_of(error):
        types_alone = types_alone or is_redacted(each)
        words = f"{type(each).__name__}({REDACTED})" if types_alone else error_summary(each)
        blocks.append("\n".join([*map(_format_frame, traceback.extract_tb(each.__traceback__)), words]))
    return "\n\n".join(reversed(blocks))


def _format_frame(frame: traceback.FrameSummary) -> str:
    """Return the location and the source line of *frame*, redacted, as the line may hold a secret literal."""
    return redact(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}')
