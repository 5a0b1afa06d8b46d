"""A model that follows a script: the steps, the helpers that make them, and the model that plays them.

Does not know about runs: it answers requests, one step for each.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, get_args

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.abc import Model
from agentloop.exceptions import UserError, UserTypeError
from agentloop.items import (
    ITEM_TYPES,
    AssistantMessage,
    HandoffCall,
    Item,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelFeature,
    ModelRequest,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.usage import RequestUsage

ALL_FEATURES: frozenset[ModelFeature] = frozenset(get_args(ModelFeature)) - {"tool_search"}
"""The features of a model that replaces any other in a test. It searches for no tool, so the run's own search does."""


@attrs.frozen
class Say:
    """A message of the model."""

    text: str
    usage: RequestUsage | None = None


@attrs.frozen
class CallStep:
    """A tool call; without an id it gets the script's next one."""

    name: str
    arguments: str
    call_id: str | None = None
    namespace: str | None = None


@attrs.frozen
class Respond:
    """Whole items, unchanged."""

    items: tuple[Item, ...]
    usage: RequestUsage | None = None
    response_id: str | None = None
    finish_reason: str | None = None


@attrs.frozen
class Fail:
    """A failure of the model call at this point of the response."""

    error: BaseException


@attrs.frozen
class WaitStep:
    """A wait at this point of the response: for seconds, or until an event is set."""

    until: Any


@attrs.frozen
class StreamOf:
    """Model events, unchanged."""

    events: tuple[ModelEvent, ...]


Piece: TypeAlias = Say | CallStep | Respond | Fail | WaitStep | StreamOf | Reasoning
Response: TypeAlias = Piece | Sequence[Piece]
Step: TypeAlias = Response | Callable[[ModelRequest], Response]
"""One turn of a script: what the model answers. Annotate a script that you keep in a variable: `script: list[Step]`."""
_PIECES = (Say, CallStep, Respond, Fail, WaitStep, StreamOf, Reasoning)


def say(text: str, usage: RequestUsage | None = None) -> Say:
    """Return a step in which the model says *text*.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import ScriptedModel, say

        print(Runner.run_sync(Agent("a", model=ScriptedModel([say("hi")])), "go").final_output)  # hi
    """
    return Say(text, usage)


def call(
    name: str,
    arguments: Mapping[str, Any] | str | None = None,
    call_id: str | None = None,
    namespace: str | None = None,
) -> CallStep:
    """Return a step in which the model calls tool *name*.

    *arguments* are a mapping, or raw text; without *call_id* ids are `call_1 …`.

    Example:
        from agentloop import Agent, Runner, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        steps = [[call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4})], say("ok")]  # two calls in one response
        result = Runner.run_sync(Agent("a", model=ScriptedModel(steps), tools=[add]), "go")
        print([item.output for item in result.new_items if hasattr(item, "output")])  # ['3', '7']
    """
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}), ensure_ascii=False)
    return CallStep(name, text, call_id, namespace)


def reason(text: str) -> Reasoning:
    """Return a step in which the model reasons; the next piece follows from it.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import ScriptedModel, reason, say

        result = Runner.run_sync(Agent("a", model=ScriptedModel([[reason("Easy."), say("4")]])), "2 + 2?")
        print(result.final_output)  # 4
    """
    return Reasoning(summary=(text,))


def respond(
    *items: Item,
    usage: RequestUsage | None = None,
    response_id: str | None = None,
    finish_reason: str | None = None,
) -> Respond:
    """Return a step in which the model answers with *items*, unchanged.

    Raises:
        UserTypeError: if one of them isn't an item.

    Example:
        from agentloop import Agent, RequestUsage, Runner
        from agentloop.items import AssistantMessage
        from agentloop.testing import ScriptedModel, respond

        answer = respond(AssistantMessage("hi"), usage=RequestUsage(input_tokens=10, output_tokens=1))
        print(Runner.run_sync(Agent("a", model=ScriptedModel([answer])), "go").usage.input_tokens)  # 10
    """
    for index, item in enumerate(items):
        if not isinstance(item, ITEM_TYPES):
            raise UserTypeError(f"respond: item {index}: expected an item, got {item!r}")
    return Respond(items, usage, response_id, finish_reason)


def fail(error: BaseException) -> Fail:
    """Return a step in which the model call raises *error* at this point of the response.

    Example:
        from agentloop import Agent, Runner
        from agentloop.exceptions import ModelRefusalError
        from agentloop.testing import ScriptedModel, fail

        try:
            Runner.run_sync(Agent("a", model=ScriptedModel([fail(ModelRefusalError("No."))])), "go")
        except ModelRefusalError as error:
            print(error.refusal)  # No.
    """
    return Fail(error)


def wait(until: Any) -> WaitStep:
    """Return a step in which the model waits: for a number of seconds, or for an `anyio.Event`."""
    return WaitStep(until)


def stream_of(events: Iterable[ModelEvent]) -> StreamOf:
    """Return a step in which the model sends exactly *events*, its last one (`ResponseDone`) included."""
    return StreamOf(tuple(events))


def list_steps(name: str, steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return *steps* as a tuple.

    Raises:
        UserTypeError: they are something else, such as one step.
    """
    try:
        return tuple(steps)
    except TypeError:
        raise UserTypeError(f"{name}: expected a list of steps, [call(…), say(…)], got {steps!r}") from None


class ScriptedModel(Model):
    """A model that gives its script's responses, one for each request, and keeps all requests in `requests`.

    A step is one response: a helper (`say`, `call`, `reason`, `respond`, `fail`, `wait`, `stream_of`), a list of
    them, or a callable of the request that gives one. Text and arguments come as deltas before their item. One request
    more than there are steps is an error; but a script that ends with `fail` fails further attempts at that request,
    too.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import ScriptedModel, say

        model = ScriptedModel([say("first"), say("second")])
        agent = Agent("a", model=model)
        print(Runner.run_sync(agent, "1").final_output, Runner.run_sync(agent, "2").final_output)  # first second
    """

    def __init__(self, steps: Iterable[Step] = (), *, chunk: int = 16) -> None:
        self._steps = list(list_steps("steps", steps))
        for index, step in enumerate(self._steps):
            if not callable(step):
                _pieces(step, f"steps[{index}]")
        self._chunk = chunk
        self._next = 0
        self._last: Response = ()
        self._ids = 0
        self.requests: list[ModelRequest] = []
        self.ran_out: bool = False
        """True once it got one request more than there are steps."""

    def __repr__(self) -> str:
        return f"<ScriptedModel {self._next} of {len(self._steps)} steps taken>"

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Every feature: a script may be that of any provider."""
        return ALL_FEATURES

    @property
    def steps_left(self) -> int:
        """The number of steps that were not requested."""
        return len(self._steps) - self._next

    def skip(self, count: int) -> None:
        """Leave out the next *count* steps: those that the run took before its process crashed."""
        self._next += count

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        earlier = self.requests[-1] if self.requests else None
        self.requests.append(request)
        if self._next < len(self._steps):
            step = self._steps[self._next]
            self._next += 1
            self._last = step(request) if callable(step) else step
        elif earlier is None or not self._fails_again(earlier, request):
            self.ran_out = True
            steps = "1 step" if len(self._steps) == 1 else f"{len(self._steps)} steps"
            raise UserError(
                f"ScriptedModel: its script has {steps}, and the model was asked once more; add a step"
                f"{_describe_last(request.items)}"
            )
        async with self.playing(self._last, request) as events:
            yield events

    def _fails_again(self, earlier: ModelRequest, request: ModelRequest) -> bool:
        """Return True if *request* is another attempt at the *earlier* one, and the script ends with its failure."""
        last = self._last if isinstance(self._last, Sequence) else [self._last]
        fails = bool(last) and isinstance(last[-1], Fail)
        return fails and (request.path, request.turn) == (earlier.path, earlier.turn)

    @asynccontextmanager
    async def playing(self, response: Response, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Play *response* within the block, without taking a step of the script; yields its events."""
        yield _Playing(self._play(_pieces(response, "step"), request))

    def stream(self, request: ModelRequest) -> Any:
        """Return a context manager over the next step's events."""
        return self._open(request)

    def _call_id(self, taken: set[str]) -> str:
        """Return the next id that is not in *taken*: another script's model may have made calls here before."""
        while True:
            self._ids += 1
            if f"call_{self._ids}" not in taken:
                return f"call_{self._ids}"

    def _play(self, pieces: Sequence[Piece], request: ModelRequest) -> Iterator[ModelEvent | WaitStep | Fail]:
        items: list[Item] = []
        usage: RequestUsage | None = None
        response_id: str | None = None
        finish_reason: str | None = None
        done = False
        taken: set[str] = set()
        if any(isinstance(piece, CallStep) and piece.call_id is None for piece in pieces):
            taken = {item.call_id for item in request.items if isinstance(item, ToolCall | HandoffCall)}
        if not any(isinstance(piece, StreamOf) for piece in pieces):
            yield ResponseStarted()
        for piece in pieces:
            match piece:
                case WaitStep() | Fail():
                    yield piece
                case StreamOf(events):
                    yield from events
                    done = True
                case Respond(more, use, ident, why):
                    usage, response_id, finish_reason = use or usage, ident or response_id, why or finish_reason
                    for item in more:
                        yield from self._item(item, items)
                case Say(text, use):
                    usage = use or usage
                    yield from self._item(AssistantMessage(text), items)
                case CallStep(name, arguments, call_id, namespace):
                    made = ToolCall(
                        call_id if call_id is not None else self._call_id(taken), name, arguments, namespace
                    )
                    yield from self._item(made, items)
                case Reasoning():
                    yield from self._item(piece, items)
        if not done:
            yield ResponseDone(tuple(items), usage, response_id, finish_reason=finish_reason)

    def _item(self, item: Item, items: list[Item]) -> Iterator[ModelEvent]:
        items.append(item)
        step = self._chunk
        match item:
            case AssistantMessage(content=content):
                place = len(items) - 1
                for part in content:
                    text = part.text if isinstance(part, Text) else ""
                    yield from (TextDelta(text[at : at + step], place) for at in range(0, len(text), step))
            case ToolCall(call_id=call_id, arguments=arguments):
                yield from (ArgumentsDelta(call_id, arguments[at : at + step]) for at in range(0, len(arguments), step))
            case Reasoning(summary=summary):
                yield from (ReasoningDelta(text, "summary") for text in summary)
            case _:
                pass
        yield ItemDone(item)


class _Playing:
    """One response being played: a checkpoint before its first event, none after it but for `wait`."""

    def __init__(self, events: Iterator[ModelEvent | WaitStep | Fail]) -> None:
        self._events = events
        self._begun = False

    def __aiter__(self) -> _Playing:
        return self

    async def __anext__(self) -> ModelEvent:
        if not self._begun:
            self._begun = True
            await checkpoint()
        for event in self._events:
            if isinstance(event, Fail):
                raise event.error
            if not isinstance(event, WaitStep):
                return event
            if isinstance(event.until, int | float):
                await anyio.sleep(event.until)
            else:
                await event.until.wait()
        raise StopAsyncIteration


def _describe_last(items: Sequence[Item]) -> str:
    """Return the latest of *items* in words, as it is the reason of the request: an output, or a wrong answer."""
    last = items[-1] if items else None
    if isinstance(last, ToolOutput) and not last.secret:
        said = last.output if isinstance(last.output, str) else ""
    else:
        said = last.text if isinstance(last, UserMessage) and not last.secret else ""
    return f". It was to answer to: {' '.join(said.split())[:300]!r}" if said else ""


def _pieces(response: Any, where: str) -> Sequence[Piece]:
    pieces = [response] if isinstance(response, _PIECES) else response
    if not isinstance(pieces, Sequence) or isinstance(pieces, str):
        raise UserTypeError(f"{where}: expected helpers such as say(…) or call(…), got {response!r}")
    for piece in pieces:
        if not isinstance(piece, _PIECES):
            raise UserTypeError(f"{where}: expected helpers such as say(…) or call(…), got {piece!r}")
    return pieces
