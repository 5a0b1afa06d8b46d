"""The display of one run from its events: as text for people, or as JSON lines for programs.

Secrets are masked here. Does not run agents.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from agentloop import events as ev
from agentloop._common.error_text import error_summary, first_line
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.naming import qualify_name
from agentloop._common.terminal_text import duration, format_line, harmless
from agentloop._common.values import field_names
from agentloop._engine.calls.output_text import render
from agentloop._schema.function_schema import to_json_value
from agentloop.agents import Agent
from agentloop.cli import errors
from agentloop.cli.run_options import call_name
from agentloop.cli.saved_run import RunSummary
from agentloop.cli.streams import Output
from agentloop.guardrails import InputGuardrailResult, ToolGuardrailResult, ToolInputGuardrail, ToolOutputGuardrail
from agentloop.items import (
    ITEM_TYPES,
    ApprovalRequest,
    AssistantMessage,
    CallToAnswer,
    Content,
    Interruption,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.outcomes import CallOutcome

# JSON escapes the controls below a space itself, and no others: a terminal takes these as orders, too.
_CONTROL_IN_JSON = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_MARKS = {"succeeded": ("✓", "green"), "replayed": ("✓", "green"), "cancelled": ("–", "yellow")}


class Show(Protocol):
    """The display of one run. The task that reads the run's events calls it."""

    async def follow(self, events: AsyncIterable[ev.Event]) -> None:
        """Show the events of one run segment. An error of *events* propagates."""

    async def ended(self, ending: RunSummary) -> None:
        """Show the result, of a completed run or another."""

    async def failed(self, error: Exception) -> None:
        """Show the error that ended the run."""

    def cancelling(self) -> None:
        """Leave the terminal as it was found: a signal has come, and after a second one nothing can."""

    def cancelled(self) -> None:
        """Show that a signal ended the run. Called after the event loop has ended."""


class TerminalShow(Show, Protocol):
    """A display at which a user may type while the run works."""

    @property
    def typing(self) -> Callable[[str], None] | None:
        """Shows the line that is typed as it is so far; None if the terminal does that."""

    async def note(self, line: str) -> None:
        """Show a line about what was typed."""


class Sink(Protocol):
    """A text output, as `Output`."""

    is_terminal: bool

    def goes_where(self, other: Any) -> bool:
        """Tell whether both outputs lead to the same file."""
        ...

    async def write(self, text: str) -> None:
        """Write *text*."""
        ...


def text_of(content: Content) -> str:
    """Return the text of an output, with the name of the type in place of each part that isn't text."""
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, Text) else f"[{type(part).__name__}]" for part in content)


def answer_of(ending: RunSummary) -> str:
    """Return the final output as text: a string unchanged, other values as JSON."""
    return text_of(render(ending.final_output))


_WANTED = {ApprovalRequest: "approval", CallToAnswer: "an answer"}


def explain_unfinished(ending: RunSummary) -> str | None:
    """Return the reason why a run is not completed, or None if it is."""
    if ending.status == "completed":
        return None
    if ending.waiting:
        calls = ", ".join(harmless(f"{call_name(request)} ({request.call.name})") for request in ending.waiting)
        kinds = {type(request) for request in ending.waiting}
        wanted = " or ".join(words for kind, words in _WANTED.items() if kind in kinds)
        count = len(ending.waiting)
        return f"{count} calls wait for {wanted}: {calls}" if count > 1 else f"1 call waits for {wanted}: {calls}"
    return f"The run was {ending.status}" + (f": {ending.stop_reason}" if ending.stop_reason else "") + "."


# ------------------------------------------------------------------------------------------------ for people


class Narrator:
    """Writes the events of a run to the error output, and its answer to the output.

    The text of the answer appears as it comes: on the output if that is a terminal, otherwise on the error output. If
    both lead to the same file, the answer appears once.

    With *starts* False a call has one line, when it settles: something else shows those under way. With *asks* False no
    line tells that a call waits: the user is asked about it.
    """

    def __init__(
        self, out: Sink, err: Sink, *, with_traceback: bool = False, starts: bool = True, asks: bool = True
    ) -> None:
        self._out = out
        self._err = err
        self._with_traceback = with_traceback
        self._starts = starts
        self._asks = asks
        self._live = out if out.is_terminal or out.goes_where(err) else err
        self.typing: Callable[[str], None] | None = None
        """None, because the terminal itself shows what is typed."""
        self._said = ""
        """The text of the root run in this turn that was shown so far."""

    @property
    def in_line(self) -> bool:
        """True while the last line of the answer's text is not complete."""
        return bool(self._said) and not self._said.endswith("\n")

    async def follow(self, events: AsyncIterable[ev.Event]) -> None:
        """Show each event as it comes."""
        async for event in events:
            await self.event(event)

    async def event(self, event: ev.Event) -> None:
        """Show calls as they start and settle, and the answer's text."""
        match event:
            case ev.TextDelta(text) if not event.path:
                self._said += text
                await self._live.write(harmless(text) if self._live.is_terminal else text)
            case ev.CallStarted(call) if self._starts:
                await self._line(event, "→", "cyan", call, format_arguments(call))
            case ev.CallStarted():
                await self._end_line()  # the lanes need whole lines above them
            case ev.CallProgress(call) if self._starts:
                await self._line(event, "…", "cyan", call, format_progress(event))
            case ev.ApprovalRequested(request) if self._asks:
                await self._line(
                    event, "?", "yellow", request.call, f"{format_arguments(request.call)} waits for approval"
                )
            case ev.AnswerRequested(request) if self._asks:
                await self._line(
                    event, "?", "yellow", request.call, f"{format_arguments(request.call)} waits for its answer"
                )
            case ev.CallSettled(call, outcome):
                mark, style = _MARKS.get(outcome.status, ("✗", "red"))
                arguments = "" if self._starts else f"{format_arguments(call)} "
                await self._line(event, mark, style, call, f"{arguments}{_format_outcome(outcome)}")
            case ev.TurnStarted() if not event.path:
                await self._end_line()
                self._said = ""
            case _:
                pass

    async def note(self, line: str) -> None:
        """Write the line."""
        await self._end_line()
        await self._err.write(f"{line}\n")

    async def ended(self, ending: RunSummary) -> None:
        """Write the answer to the output, or the reason why there is none to the error output."""
        if (reason := explain_unfinished(ending)) is not None:
            await self._end_line()
            await self._err.write(f"{reason}\n")
            return
        answer = answer_of(ending)
        # On a terminal, or with both outputs in one file, an answer that was the model's last text is already shown.
        already = self._live is self._out and bool(self._said) and answer == self._said
        await self._end_line()
        if not already:
            await self._out.write((harmless(answer) if self._out.is_terminal else answer) + "\n")

    async def failed(self, error: Exception) -> None:
        """Write the error to the error output."""
        await self._end_line()
        await self._err.write(errors.words_for(error, with_traceback=self._with_traceback))

    def cancelling(self) -> None:
        """Do nothing: lines are final as they are written."""

    def cancelled(self) -> None:
        """Do nothing: `app` announced the cancellation when the signal came."""

    async def _line(self, event: ev.Event, mark: str, style: str, call: ToolCall, words: str) -> None:
        await self._end_line()
        indent, name = "  " * len(event.path), harmless(call.name)
        if self._err.is_terminal:
            await self._err.write(styled(indent, (f"{mark} ", style), (name, "bold"), f" {words}"))
        else:
            await self._err.write(f"{indent}{mark} {name} {words}\n")

    async def _end_line(self) -> None:
        if self.in_line:
            self._said = f"{self._said}\n"
            await self._live.write("\n")


def styled(*parts: str | tuple[str, str]) -> str:
    """Return a line of *parts*, texts or pairs of text and style, with the orders of the terminal at standard error."""
    from rich.console import Console  # only terminals need it
    from rich.text import Text as Styled

    console = Console(stderr=True, highlight=False)
    with console.capture() as captured:
        console.print(Styled.assemble(*parts), soft_wrap=True)
    return captured.get()


def format_arguments(call: ToolCall) -> str:
    """Return the arguments of *call* on one line, harmless and cut, with secret ones masked."""
    return format_line(mask_arguments(call.arguments, call.secret))


def format_progress(event: ev.CallProgress) -> str:
    """Return the progress of a call on one line, harmless and cut."""
    of = "" if event.total is None else f" of {event.total:g}"
    return format_line(f"{event.progress:g}{of} {event.message or ''}")


def _format_outcome(outcome: CallOutcome) -> str:
    words = [] if outcome.status == "succeeded" else [outcome.status.replace("_", " ")]
    if outcome.cancelled_by is not None:
        words.append(f"by {outcome.cancelled_by}")
    if outcome.started_at is not None and outcome.ended_at is not None:
        words.append(duration(outcome.ended_at - outcome.started_at))
    if outcome.status != "succeeded" and outcome.output is not None:
        words.append(f"· {MASK if outcome.secret else format_line(first_line(text_of(outcome.output)))}")
    return " ".join(words)


# ------------------------------------------------------------------------------------------------ for programs

# Fields left out of JSON: live objects of this process, data of a provider, and the flags that select what to mask.
_LEFT_OUT = frozenset({"value", "custom_data", "provider_data", "secret", "secret_output"})


class JsonLines:
    """Writes one JSON object a line: every event, then the result. Texts of errors are redacted."""

    def __init__(self, out: Output, err: Output, *, with_traceback: bool = False) -> None:
        self._out = out
        self._err = err
        self._with_traceback = with_traceback
        self._over = False
        self._secretive: dict[tuple[str, ...], bool] = {}
        """By path, True if the active agent has tools with secret arguments, or may get some from a source."""

    async def follow(self, events: AsyncIterable[ev.Event]) -> None:
        """Write each event as it comes."""
        async for event in events:
            await self.event(event)

    async def event(self, event: ev.Event) -> None:
        """Write the event, unless it is a raw event of a provider or a piece of arguments that may be secret.

        Other events have the content of those.
        """
        if isinstance(event, ev.AgentUpdated):
            agent = event.agent
            self._secretive[event.path] = bool(agent.toolsets) or any(tool.secret for tool in agent.functions)
        may_tell = isinstance(event, ev.ArgumentsDelta) and self._secretive.get(event.path, True)
        if not may_tell and not isinstance(event, ev.RawModelEvent):
            await self._write(_with_kind(event, plain(event)))

    async def ended(self, ending: RunSummary) -> None:
        """Write the result."""
        self._over = True
        await self._write(result_json(ending))

    async def failed(self, error: Exception) -> None:
        """Write a result with the error, and the error to the error output."""
        if not self._over:
            self._over = True
            await self._write(error_json(error))
        await self._err.write(errors.words_for(error, with_traceback=self._with_traceback))

    def cancelling(self) -> None:
        """Do nothing: lines are final as they are written."""

    def cancelled(self) -> None:
        """Write a result with the status `"cancelled"`, if none was written."""
        if not self._over:
            self._out.write_last(json_line(cancelled_json()), encoding="utf-8")

    async def _write(self, value: Mapping[str, Any]) -> None:
        await self._out.write(json_line(value), encoding="utf-8")


def json_line(value: Mapping[str, Any]) -> str:
    """Return *value* as one line of JSON, without a character that could control a terminal."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def result_json(ending: RunSummary) -> dict[str, Any]:
    """Return a run's result as a JSON object."""
    usage = {name: value for name, value in msgspec.structs.asdict(ending.usage).items() if name != "entries"}
    return _build_result(
        ending.status,
        _to_plain_json(ending.final_output),
        stop_reason=ending.stop_reason,
        agent=ending.agent,
        usage=usage,
        interruptions=[request_json(request) for request in ending.waiting],
    )


def request_json(request: Interruption) -> dict[str, Any]:
    """Return a waiting call as a JSON object with masked secret arguments; `returns` is of one to be answered."""
    call = request.call
    if isinstance(request, CallToAnswer):
        more: dict[str, Any] = {"returns": dict(request.returns), "expires_at": request.expires_at}
    else:
        more = {"policy": request.policy, "reason": request.reason}
    return {
        "call": call_name(request),
        "tool": qualify_name(call.name, call.namespace),
        "arguments": mask_arguments(call.arguments, call.secret),
        "agent": request.agent,
        "path": list(request.path),
        **more,
    }


def error_json(error: Exception) -> dict[str, Any]:
    """Return the result object of a run that failed."""
    said = {"type": errors.kind_of(error), "message": errors.message_of(error)}
    return _build_result("failed", None, error=said)


def cancelled_json() -> dict[str, Any]:
    """Return the result object of a run that a signal ended."""
    return _build_result("cancelled", None)


def _build_result(status: str, output: Any, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"stop_reason": None, "agent": None, "usage": None, "error": None, "interruptions": []}
    return {"kind": "RunResult", "status": status, "final_output": output, **fields, **more}


def plain(value: Any) -> Any:
    """Return a value of an event as JSON: attrs values by field, agents and guardrails by name, errors as summaries."""
    if isinstance(value, Agent | ToolInputGuardrail | ToolOutputGuardrail):
        return value.name
    value = _mask_secrets(value)
    names = field_names(type(value))
    if names is not None:
        fields = {name: plain(getattr(value, name)) for name in names if name not in _LEFT_OUT}
        return _with_kind(value, fields) if isinstance(value, ITEM_TYPES) else fields
    if isinstance(value, BaseException):
        return error_summary(value)
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if value is not None and not isinstance(value, str | int | float | Mapping):
        return type(value).__name__
    return _to_plain_json(value)


def _with_kind(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return *fields* with the class of *value* as `kind`; its own kind (a hosted tool's, a call's) is `of`."""
    return {"kind": type(value).__name__, **{"of" if name == "kind" else name: of for name, of in fields.items()}}


def _mask_secrets(value: Any) -> Any:
    """Return *value* with everything masked that is marked as secret."""
    if isinstance(value, ToolCall) and value.secret:
        return value.replace(arguments=mask_arguments(value.arguments, value.secret))
    if isinstance(value, ToolOutput | CallOutcome) and value.secret and value.output is not None:
        return value.replace(output=MASK)
    if isinstance(value, SystemMessage | UserMessage | AssistantMessage) and value.secret:
        return value.replace(content=MASK)
    judged_secret = (isinstance(value, InputGuardrailResult) and value.secret) or (
        isinstance(value, ToolGuardrailResult) and (value.call.secret or value.call.secret_output)
    )
    if judged_secret:
        masked: Any = MASK  # the whole output of the guardrail, which may quote the secret anywhere
        return value.replace(output=masked)
    return value


def _to_plain_json(value: Any) -> Any:
    try:
        found = to_json_value(value)
        json.dumps(found, allow_nan=False)
    except Exception:  # a value's own conversion may raise any error; its text is always available
        return text_of(render(value))
    return found
