"""The conformance suite of models: subclass `ModelConformance`, define `make_model`, and pytest runs its tests.

```python
@pytest.mark.anyio
class TestOurModel(ModelConformance):
    def make_model(self):
        return OurModel("http://127.0.0.1:8000")
```

Nothing here imports pytest. A failed test raises an AssertionError that says what was expected. Every test makes the
model it needs, enters it and leaves it.

PYTEST_DONT_REWRITE: each assertion has its own message; pytest would need minutes to show a difference of megabytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import get_args

import anyio

from agentloop.abc import Model
from agentloop.exceptions import ModelBehaviorError, ModelTransportError
from agentloop.items import ITEM_TYPES, AssistantMessage, HandoffCall, Text, ToolCall, UserMessage
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelFeature,
    ModelRequest,
    ResponseDone,
    TextDelta,
)
from agentloop.settings import ModelSettings
from agentloop.testing._suite_parts import STEPS, cancel_after, within
from agentloop.usage import RequestUsage

EVENTS: tuple[type, ...] = get_args(ModelEvent)
FEATURES: tuple[str, ...] = get_args(ModelFeature)


class ModelConformance:
    """Tests of the protocol `Model`. A subclass defines `make_model`, and the other methods if it can.

    `request` is the request of every test. `patience` is the maximum duration of a step in seconds.

    A test makes some fifty requests at most. Tests of a failing or a stalled model pass without a check if the subclass
    has no such model.
    """

    request: ModelRequest = ModelRequest(system="Answer briefly.", items=[UserMessage("Say hello.")])
    patience: float = 10.0

    def make_model(self) -> Model:
        """Return a model that answers `request` any number of times, with any answer."""
        raise NotImplementedError

    def make_failing_model(self) -> Model | None:
        """Return a model whose every answer fails, at once or after a few events; None if there is no such model."""
        return None

    def make_stalled_model(self) -> Model | None:
        """Return a model whose answers never end, after some events or none; None if there is no such model."""
        return None

    async def all_closed(self) -> None:
        """Wait until the server of the models has seen every response closed. Override this if the server can tell."""

    @asynccontextmanager
    async def entered(self, model: Model) -> AsyncIterator[Model]:
        """Enter *model* for a block, and require at its end that every response has been closed."""
        async with model:
            yield model
            with within(self.patience, "every response should have been closed"):
                await self.all_closed()

    # ------------------------------------------------------------------------------------------ protocol

    async def test_it_is_a_model(self) -> None:
        """The model has all methods and attributes of the protocol. A missing one is found before a run needs it."""
        model = self.make_model()
        assert isinstance(model, Model), f"{model!r} lacks methods or attributes of agentloop.abc.Model"
        for name, kind in (
            ("holds_resources", bool),
            ("is_open", bool),
            ("default_settings", ModelSettings),
            ("features", frozenset),
        ):
            assert isinstance(getattr(model, name), kind), f"{name} should be a {kind.__name__} of {model!r}"
        unknown = [name for name in model.features if name not in FEATURES]
        assert not unknown, f"features of {model!r}: {unknown} are none of {FEATURES}"

    async def test_an_entered_model_is_open(self) -> None:
        """Entering a model returns the model itself, open for requests."""
        model = self.make_model()
        async with model as given:
            assert given is model, f"entering should give the model itself, not {given!r}"
            assert model.is_open is True, f"an entered model is open: {model!r}"

    # ------------------------------------------------------------------------------------------ one answer

    async def test_an_answer_ends_with_its_one_done(self) -> None:
        """An answer has events of the library's types only, and exactly one `ResponseDone` as the last."""
        async with self.entered(self.make_model()) as model:
            self._check_whole(await self._read_answer(model))

    async def test_items_that_are_done_are_the_answers(self) -> None:
        """Each `ItemDone` has an item of the `ResponseDone`, in the same order."""
        async with self.entered(self.make_model()) as model:
            events = await self._read_answer(model)
        items = iter(self._check_whole(events).items)
        for event in events:
            if isinstance(event, ItemDone):
                assert any(item == event.item for item in items), f"{event.item!r} was done and isn't in the answer"

    async def test_pieces_are_those_of_the_answer(self) -> None:
        """Pieces of text add up to the text of the messages; pieces of arguments belong to a call in the answer."""
        async with self.entered(self.make_model()) as model:
            events = await self._read_answer(model)
        items = self._check_whole(events).items
        pieces = [event.text for event in events if isinstance(event, TextDelta)]
        parts = [part for item in items if isinstance(item, AssistantMessage) for part in item.content]
        text = "".join(part.text for part in parts if isinstance(part, Text))
        assert not pieces or "".join(pieces) == text, f"the pieces {pieces} should add up to {text!r}"
        calls = {item.call_id for item in items if isinstance(item, ToolCall | HandoffCall)}
        strange = {event.call_id for event in events if isinstance(event, ArgumentsDelta)} - calls
        assert not strange, f"arguments of calls that aren't in the answer: {sorted(strange)}"

    async def test_calls_of_an_answer_have_ids_of_their_own(self) -> None:
        """Each call of an answer has its own id: outputs of two calls with one id are ambiguous."""
        async with self.entered(self.make_model()) as model:
            done = self._check_whole(await self._read_answer(model))
        ids = [item.call_id for item in done.items if isinstance(item, ToolCall | HandoffCall)]
        assert len(set(ids)) == len(ids), f"two calls of one answer have the same id: {ids}"
        assert all(ids), "a call without an id can't be answered"

    async def test_after_its_end_an_answer_stays_ended(self) -> None:
        """An ended answer gives no further event, as any iterator."""
        async with self.entered(self.make_model()) as model, model.stream(self.request) as events:
            async for _ in events:
                pass
            assert [event async for event in events] == [], "events came after the end"

    # ------------------------------------------------------------------------------------------ several answers

    async def test_it_can_be_asked_again(self) -> None:
        """A second and a third answer are complete, and the request is unchanged."""
        before = deepcopy(self.request)
        async with self.entered(self.make_model()) as model:
            for _ in range(3):
                self._check_whole(await self._read_answer(model))
        assert self.request == before, f"the model changed the request: {self.request!r}"

    async def test_answers_of_one_time_dont_mix(self) -> None:
        """Two answers that are read alternately are complete, and so are those of several tasks at once."""
        async with self.entered(self.make_model()) as model:
            async with model.stream(self.request) as one, model.stream(self.request) as other:
                first = await _read_first(one, 1)
                second = [event async for event in other]
                first += [event async for event in one]
            self._check_whole(first)
            self._check_whole(second)
            found: list[Sequence[ModelEvent]] = []

            async def ask() -> None:
                found.append(await self._read_answer(model))

            with within(self.patience, "eight concurrent answers should have come"):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(ask)
            for events in found:
                self._check_whole(events)

    async def test_several_may_enter_it(self) -> None:
        """Several runs may enter one model at the same time; the first that leaves doesn't close it for the others."""
        async with self.entered(self.make_model()) as model:
            async with self.entered(model):
                self._check_whole(await self._read_answer(model))
            self._check_whole(await self._read_answer(model))
        async with self.entered(model):
            self._check_whole(await self._read_answer(model))

    def test_it_serves_one_event_loop_after_the_other(self) -> None:
        """The model works on a second event loop after the first has ended."""
        model = self.make_model()

        async def use() -> None:
            async with self.entered(model):
                self._check_whole(await self._read_answer(model))

        for _ in range(2):
            anyio.run(use)

    # ------------------------------------------------------------------------------------------ leaving

    async def test_an_answer_that_is_left_is_closed(self) -> None:
        """An answer that is left, before or after its first event, is closed; the next answer is complete."""
        async with self.entered(self.make_model()) as model:
            for count in (0, 1):
                with within(self.patience, "a response that is left should have been closed"):
                    async with model.stream(self.request) as events:
                        await _read_first(events, count)
                    await self.all_closed()
                self._check_whole(await self._read_answer(model))

    async def test_an_error_of_who_reads_comes_out_as_it_is(self) -> None:
        """An error of the reader leaves the block unchanged: the model neither swallows it nor takes it for its own."""
        async with self.entered(self.make_model()) as model:
            for error in (RuntimeError("the reader's"), ModelTransportError("the reader's")):
                came: BaseException | None = None
                try:
                    async with model.stream(self.request) as events:
                        await _read_first(events, 1)
                        raise error
                except Exception as caught:
                    came = caught
                assert came is error, f"{error!r} of the reader came out as {came!r}"
            self._check_whole(await self._read_answer(model))

    async def test_a_cancelled_request_is_over_and_the_next_is_whole(self) -> None:
        """A request that is cancelled at any moment raises nothing else, ends soon, and leaves nothing behind."""
        async with self.entered(self.make_model()) as model:
            for steps in STEPS:
                with within(self.patience, f"a request cancelled after {steps} steps should have ended"):
                    await cancel_after(steps, lambda: self._read_answer(model))
                    await self.all_closed()
                self._check_whole(await self._read_answer(model))

    async def test_a_cancelled_scope_lets_no_answer_come(self) -> None:
        """An answer has a checkpoint between entering its block and its end."""
        async with self.entered(self.make_model()) as model:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await self._read_answer(model)
            assert scope.cancelled_caught, "a whole answer came in a cancelled scope"

    async def test_an_answer_that_never_ends_can_be_cancelled(self) -> None:
        """An endless answer can be cancelled at any moment, and by a deadline while no event comes."""
        model = self.make_stalled_model()
        if model is None:
            return
        async with self.entered(model):
            for steps in STEPS:
                with within(self.patience, f"an endless answer cancelled after {steps} steps should have ended"):
                    returned = await cancel_after(steps, lambda: self._read_answer(model))
                    await self.all_closed()
                assert not returned, "an answer that never ends has ended: make_stalled_model() gave another model"
            with within(self.patience, "an endless answer past its deadline should have ended"):
                with anyio.move_on_after(0.05) as scope:
                    await self._read_answer(model)
                await self.all_closed()
            assert scope.cancelled_caught, "the deadline of an endless answer was swallowed"

    # ------------------------------------------------------------------------------------------ failing

    async def test_failures_are_typed_and_never_a_short_answer(self) -> None:
        """Each failed answer raises `ModelTransportError` or `ModelBehaviorError`, and has no `ResponseDone`."""
        model = self.make_failing_model()
        if model is None:
            return
        async with self.entered(model):
            for _ in range(2):
                seen: list[ModelEvent] = []
                try:
                    async with model.stream(self.request) as events:
                        async for event in events:
                            seen.append(event)
                except (ModelTransportError, ModelBehaviorError):
                    pass
                except Exception as error:
                    raise AssertionError(
                        f"expected ModelTransportError or ModelBehaviorError, got {error!r}"
                    ) from error
                else:
                    raise AssertionError(f"the failing model didn't fail: {seen}")
                assert not any(isinstance(event, ResponseDone) for event in seen), "a failed answer said it was done"

    # ------------------------------------------------------------------------------------------ parts

    async def _read_answer(self, model: Model) -> list[ModelEvent]:
        async with model.stream(self.request) as events:
            return [event async for event in events]

    def _check_whole(self, events: Sequence[ModelEvent]) -> ResponseDone:
        """Require that *events* are a complete answer, and return its last event."""
        strange = [event for event in events if not isinstance(event, EVENTS)]
        assert not strange, f"these are no events of a model: {strange}"
        done = [event for event in events if isinstance(event, ResponseDone)]
        assert len(done) == 1, f"expected exactly one ResponseDone, got {len(done)}: {str(events)[:500]}"
        assert events[-1] is done[0], f"ResponseDone should be the last event, and {events[-1]!r} is"
        assert all(isinstance(item, ITEM_TYPES) for item in done[0].items), f"these are no items: {done[0].items}"
        usage = done[0].usage
        if usage is not None:
            assert isinstance(usage, RequestUsage), f"usage should be a RequestUsage or None, not {usage!r}"
            assert min(usage.input_tokens, usage.output_tokens) >= 0, f"tokens can't be fewer than none: {usage}"
        return done[0]


async def _read_first(events: AsyncIterator[ModelEvent], count: int) -> list[ModelEvent]:
    """Return the first *count* events, without a request for another."""
    found: list[ModelEvent] = []
    while len(found) < count:
        try:
            found.append(await anext(events))
        except StopAsyncIteration:
            break
    return found


__all__ = ["ModelConformance"]
