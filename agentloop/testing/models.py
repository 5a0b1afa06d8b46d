"""Models for tests besides the scripted one: a function of yours, and a real model's answers, recorded and replayed.

The cassette's format is in `_cassette`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.lowlevel
import msgspec

from agentloop._common.whole_files import write_whole
from agentloop._engine.runtime.callbacks import resolve
from agentloop._storage.model_codec import request_to_json
from agentloop.abc import Model
from agentloop.exceptions import AgentLoopError, UserTypeError
from agentloop.items import ITEM_TYPES
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.settings import ModelSettings
from agentloop.testing import _cassette as tapes
from agentloop.testing.scripted import ALL_FEATURES, ScriptedModel, respond, say

__all__ = ["CassetteDivergence", "FunctionModel", "RecordingModel", "ReplayModel"]


class FunctionModel(Model):
    """A model that is a function: `fn(request)`, sync or async, gives the answer to each request.

    The answer is text, an item, a list of items, or a step of a `ScriptedModel`: `say(…)`, `call(…)`, a list of these.
    `requests` keeps all requests, in order.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import FunctionModel, say

        agent = Agent("a", model=FunctionModel(lambda request: say(f"turn {request.turn}")))
        print(Runner.run_sync(agent, "go").final_output)  # turn 1
    """

    def __init__(self, fn: Callable[[ModelRequest], Any], *, chunk: int = 16) -> None:
        if not callable(fn):
            raise UserTypeError(f"FunctionModel: expected a function of the request, got {fn!r}")
        self._fn = fn
        self._chunk = chunk
        self._player = ScriptedModel(chunk=chunk)
        self.requests: list[ModelRequest] = []

    def __repr__(self) -> str:
        return f"<FunctionModel {getattr(self._fn, '__name__', self._fn)!r}>"

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Every feature: the function may answer for any provider."""
        return ALL_FEATURES

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        self.requests.append(request)
        answer = _as_response(await resolve(self._fn(request)))
        async with self._player.playing(answer, request) as events:
            yield events

    def stream(self, request: ModelRequest) -> Any:
        """Return a context manager over the events of the function's answer."""
        return self._open(request)


def _as_response(answer: Any) -> Any:
    if isinstance(answer, str):
        return say(answer)
    if isinstance(answer, ITEM_TYPES):
        return respond(answer)  # type: ignore[arg-type]  # an item: mypy doesn't take it from the tuple of types
    if isinstance(answer, Sequence) and answer and all(isinstance(item, ITEM_TYPES) for item in answer):
        return respond(*answer)
    return answer


class RecordingModel(Model):
    """Calls *model*, and writes its requests and answers into a cassette, from which a `ReplayModel` answers.

    The cassette is a JSON file, written anew after each answer, whole or not at all. Texts that look like secrets
    (keys, tokens, authorization headers, passwords) and every text of *secrets* are written as `[redacted]`; headers
    and query parameters of the settings aren't written at all. An answer that was not read to its end is left out.

    Args:
        model: The model to call. It is entered and left with this one.
        path: The path of the cassette. An existing file is replaced.
        secrets: Further texts to redact.
    """

    def __init__(self, model: Model, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        if not isinstance(model, Model):
            raise UserTypeError(f"RecordingModel: expected a Model, got {model!r}")
        self._model = model
        self._path = Path(path)
        self._redactor = tapes.Redactor(secrets)
        self._takes: list[dict[str, Any]] = []
        self.holds_resources: bool = model.holds_resources

    def __repr__(self) -> str:
        return f"<RecordingModel of {self._model!r} into {self._path}>"

    @property
    def info(self) -> ModelInfo:
        """The identity of the recorded model."""
        return self._model.info

    @property
    def is_open(self) -> bool:
        """True if the recorded model is open."""
        return self._model.is_open

    @property
    def default_settings(self) -> ModelSettings:
        """The default settings of the recorded model."""
        return self._model.default_settings

    @property
    def features(self) -> frozenset[ModelFeature]:
        """The features of the recorded model."""
        return self._model.features

    async def __aenter__(self) -> Self:
        await self._model.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await self._model.__aexit__(exc_type, exc, tb)  # noqa: ASYNC102 - the wrapped model's own affair

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        recorded = _RecordedTake()
        raised_by_reader: BaseException | None = None
        try:
            async with self._model.stream(request) as recorded.stream:
                try:
                    yield recorded
                except BaseException as error:
                    raised_by_reader = error
                    raise
        except AgentLoopError as error:
            if recorded.failed or error is not raised_by_reader:
                self._take(request, recorded.events, error)
            raise
        if recorded.complete:
            self._take(request, recorded.events, None)

    def stream(self, request: ModelRequest) -> Any:
        """Return a context manager over the recorded model's events; the answer is written when it is left."""
        return self._open(request)

    def _take(self, request: ModelRequest, events: Sequence[ModelEvent], error: AgentLoopError | None) -> None:
        self._takes.append(self._redactor.redacted(tapes.take(request, events, error)))
        model = self._redactor.redacted(msgspec.to_builtins(self.info))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, tapes.cassette_text(model, self._takes).encode())


class _RecordedTake:
    """A stream of the recorded model that keeps its events as they are read."""

    stream: AsyncIterator[ModelEvent]

    def __init__(self) -> None:
        self.events: list[ModelEvent] = []
        self.complete = False
        self.failed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        try:
            event = await anext(self.stream)
        except StopAsyncIteration:
            self.complete = True
            raise
        except AgentLoopError:
            self.failed = True
            raise
        self.events.append(event)
        return event


class CassetteDivergence(AgentLoopError):
    """A request differs from the recorded one.

    Attributes:
        path, turn: The place of the request in the run.
        differences: `(place, recorded, asked)`, redacted; empty if no answer was recorded for that path and turn.
    """

    def __init__(
        self, message: str, path: tuple[str, ...], turn: int, differences: tuple[tuple[str, Any, Any], ...] = ()
    ) -> None:
        super().__init__(message)
        self.path = path
        self.turn = turn
        self.differences = differences


class ReplayModel(Model):
    """Answers from a cassette that a `RecordingModel` wrote.

    An answer is found by the place of its request in the run (nested runs, turn, attempt), so the order of requests of
    parallel nested runs doesn't matter; a model that is used for several runs gives their answers one run after the
    other. Every part of the request that the cassette holds must be equal to the recorded one.

    Args:
        path: The cassette.
        secrets: The further texts that were redacted in the recording.
        ignore: Parts of requests that may differ: `"system"`, `"items"`, `"tools"`, `"handoffs"`, `"output_schema"`,
            `"settings"`, `"tool_choice"`.

    Raises:
        StateError: if the file isn't a cassette that this release can read.
        CassetteDivergence: when a request differs from the recorded one; its text names the differences.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, secrets: Iterable[str] = (), ignore: Iterable[str] = ()
    ) -> None:
        self._path = Path(path)
        self._redactor = tapes.Redactor(secrets)
        self._ignore = tapes.check_parts(ignore)
        self._info, self._takes = tapes.read_cassette(self._path)
        self._used: set[int] = set()

    def __repr__(self) -> str:
        return f"<ReplayModel {self._path}: {len(self._used)} of {len(self._takes)} answers given>"

    @property
    def info(self) -> ModelInfo:
        """The identity of the recorded model, so that a log says the same as when it was recorded."""
        return super().info if self._info is None else self._info

    @property
    def unused(self) -> int:
        """The number of answers in the cassette that were not requested."""
        return len(self._takes) - len(self._used)

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Every feature: the recorded model had those that its requests used."""
        return ALL_FEATURES

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        taken = self._find_take(request)
        yield _ReplayedTake(taken.events, taken.error)

    def stream(self, request: ModelRequest) -> Any:
        """Return a context manager over the events that were recorded for *request*."""
        return self._open(request)

    def _find_take(self, request: ModelRequest) -> tapes.Take:
        for index, taken in enumerate(self._takes):
            if index not in self._used and taken.place == (tuple(request.path), request.turn):
                break
        else:
            raise self._refuse_unrecorded(request)
        asked = self._redactor.redacted(request_to_json(request))
        found = tuple(
            (place, recorded, now)
            for place, recorded, now in tapes.differences(taken.request, asked)
            if place.split(".")[0].split("[")[0] not in self._ignore
        )
        if found:
            raise self._refuse_changed(request, index, found)
        self._used.add(index)
        return taken

    def _refuse_unrecorded(self, request: ModelRequest) -> CassetteDivergence:
        where = tapes.in_words(tuple(request.path), request.turn)
        recorded = sum(taken.place == (tuple(request.path), request.turn) for taken in self._takes)
        times = f"; it was asked {recorded} times there when it was recorded" if recorded else ""
        return CassetteDivergence(
            f"{self._path}: no answer was recorded for {where}{times}. Record the cassette again if the agent is meant "
            "to ask there",
            tuple(request.path),
            request.turn,
        )

    def _refuse_changed(
        self, request: ModelRequest, index: int, found: tuple[tuple[str, Any, Any], ...]
    ) -> CassetteDivergence:
        where = tapes.in_words(tuple(request.path), request.turn)
        changes = "".join(
            f"\n  {place}: recorded {tapes.short(was)}, now {tapes.short(now)}" for place, was, now in found[:8]
        )
        more = f"\n  and {len(found) - 8} more" if len(found) > 8 else ""
        return CassetteDivergence(
            f"{self._path}: the model is asked something else in {where} than it was for answer {index + 1} of the "
            f"cassette:{changes}{more}\nRecord it again if the change is meant, or name the part in `ignore`",
            tuple(request.path),
            request.turn,
            found,
        )


class _ReplayedTake:
    def __init__(self, events: Sequence[ModelEvent], error: AgentLoopError | None) -> None:
        self._events = iter(events)
        self._error = error
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        if not self._begun:
            self._begun = True
            await anyio.lowlevel.checkpoint()
        for event in self._events:
            return event
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration
