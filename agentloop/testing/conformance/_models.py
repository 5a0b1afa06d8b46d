"""What any model must do, as a test class: subclass it, say how one is made, and pytest runs the rest.

```python
@pytest.mark.anyio
class TestOurModel(ModelConformance):
    def make_model(self):
        return OurModel("http://127.0.0.1:8000")
```

Nothing here imports pytest: what fails is an AssertionError that says what was expected. Every test makes the model it
needs, enters it and leaves it.

PYTEST_DONT_REWRITE: what is asserted has words of its own; a difference of megabytes takes pytest minutes to show.
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
from agentloop.model_events import ArgumentsDelta, ItemDone, ModelEvent, ModelRequest, ResponseDone, TextDelta
from agentloop.settings import ModelSettings
from agentloop.testing.conformance._parts import STEPS, cancelled_after, within
from agentloop.usage import RequestUsage

EVENTS: tuple[type, ...] = get_args(ModelEvent)


class ModelConformance:
    """Tests of what `Model` promises. A subclass gives `make_model`, and what else it can.

    `request`: what the models are asked. `patience`: seconds that anything may take.

    A test asks its model some fifty times at most. Tests of a failing or a stalled model pass without looking where the
    subclass doesn't give one.
    """

    request = ModelRequest(system="Answer briefly.", items=[UserMessage("Say hello.")])
    patience = 10.0

    def make_model(self) -> Model:
        """Return a model that answers `request` as often as it is asked, with whatever it likes."""
        raise NotImplementedError

    def make_failing_model(self) -> Model | None:
        """Return a model whose every answer fails, at once or after a few events: a server that refuses, say."""
        return None

    def make_stalled_model(self) -> Model | None:
        """Return a model whose answers never end, after some events or none."""
        return None

    async def all_closed(self) -> None:
        """Wait until what answers the models has seen each response closed. A subclass that can tell overrides this."""

    @asynccontextmanager
    async def entered(self, model: Model) -> AsyncIterator[Model]:
        """Enter *model* for a block; when it is left, every response must have been closed."""
        async with model:
            yield model
            with within(self.patience, "every response should have been closed"):
                await self.all_closed()

    # ------------------------------------------------------------------------------------------ what it is

    async def test_it_is_a_model(self) -> None:
        """It has the methods and attributes; one without them is found before a run is."""
        model = self.make_model()
        assert isinstance(model, Model), f"{model!r} lacks methods or attributes of agentloop.abc.Model"
        for name, kind in (("holds_resources", bool), ("is_open", bool), ("default_settings", ModelSettings)):
            assert isinstance(getattr(model, name), kind), f"{name} should be a {kind.__name__} of {model!r}"

    async def test_an_entered_model_is_open(self) -> None:
        """Entering gives the model itself, ready to be asked."""
        model = self.make_model()
        async with model as given:
            assert given is model, f"entering should give the model itself, not {given!r}"
            assert model.is_open is True, f"an entered model is open: {model!r}"

    # ------------------------------------------------------------------------------------------ one answer

    async def test_an_answer_ends_with_its_one_done(self) -> None:
        """Events of the library's types, exactly one `ResponseDone`, last."""
        async with self.entered(self.make_model()) as model:
            self._whole(await self._ask(model))

    async def test_items_that_are_done_are_the_answers(self) -> None:
        """Each `ItemDone` shows an item of the `ResponseDone`, in its order."""
        async with self.entered(self.make_model()) as model:
            events = await self._ask(model)
        items = iter(self._whole(events).items)
        for event in events:
            if isinstance(event, ItemDone):
                assert any(item == event.item for item in items), f"{event.item!r} was done and isn't in the answer"

    async def test_pieces_are_those_of_the_answer(self) -> None:
        """Texts that come in pieces add up to the messages' text; pieces of arguments are of a call in the answer."""
        async with self.entered(self.make_model()) as model:
            events = await self._ask(model)
        items = self._whole(events).items
        pieces = [event.text for event in events if isinstance(event, TextDelta)]
        parts = [part for item in items if isinstance(item, AssistantMessage) for part in item.content]
        text = "".join(part.text for part in parts if isinstance(part, Text))
        assert not pieces or "".join(pieces) == text, f"the pieces {pieces} should add up to {text!r}"
        calls = {item.call_id for item in items if isinstance(item, ToolCall | HandoffCall)}
        strange = {event.call_id for event in events if isinstance(event, ArgumentsDelta)} - calls
        assert not strange, f"arguments of calls that aren't in the answer: {sorted(strange)}"

    async def test_calls_of_an_answer_have_ids_of_their_own(self) -> None:
        """Two calls with one id can't be answered apart."""
        async with self.entered(self.make_model()) as model:
            done = self._whole(await self._ask(model))
        ids = [item.call_id for item in done.items if isinstance(item, ToolCall | HandoffCall)]
        assert len(set(ids)) == len(ids), f"two calls of one answer have the same id: {ids}"
        assert all(ids), "a call without an id can't be answered"

    async def test_after_its_end_an_answer_stays_ended(self) -> None:
        """Asking for another event gives none, as with any iterator."""
        async with self.entered(self.make_model()) as model, model.stream(self.request) as events:
            async for _ in events:
                pass
            assert [event async for event in events] == [], "events came after the end"

    # ------------------------------------------------------------------------------------------ several answers

    async def test_it_can_be_asked_again(self) -> None:
        """Each answer is whole, and the request is left as it is."""
        before = deepcopy(self.request)
        async with self.entered(self.make_model()) as model:
            for _ in range(3):
                self._whole(await self._ask(model))
        assert self.request == before, f"the model changed the request: {self.request!r}"

    async def test_answers_of_one_time_dont_mix(self) -> None:
        """Two that are read in turn, and several tasks' at once, are whole each."""
        async with self.entered(self.make_model()) as model:
            async with model.stream(self.request) as one, model.stream(self.request) as other:
                first = await _first(one, 1)
                second = [event async for event in other]
                first += [event async for event in one]
            self._whole(first)
            self._whole(second)
            found: list[Sequence[ModelEvent]] = []

            async def ask() -> None:
                found.append(await self._ask(model))

            with within(self.patience, "eight concurrent answers should have come"):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(ask)
            for events in found:
                self._whole(events)

    async def test_several_may_enter_it(self) -> None:
        """Runs at the same time each enter a model; the first to leave doesn't close it for the others."""
        async with self.entered(self.make_model()) as model:
            async with self.entered(model):
                self._whole(await self._ask(model))
            self._whole(await self._ask(model))
        async with self.entered(model):
            self._whole(await self._ask(model))

    def test_it_serves_one_event_loop_after_the_other(self) -> None:
        """Nothing of a loop that has ended holds it back."""
        model = self.make_model()

        async def use() -> None:
            async with self.entered(model):
                self._whole(await self._ask(model))

        for _ in range(2):
            anyio.run(use)

    # ------------------------------------------------------------------------------------------ leaving

    async def test_an_answer_that_is_left_is_closed(self) -> None:
        """Before its first event and after it; the next answer is whole."""
        async with self.entered(self.make_model()) as model:
            for count in (0, 1):
                with within(self.patience, "a response that is left should have been closed"):
                    async with model.stream(self.request) as events:
                        await _first(events, count)
                    await self.all_closed()
                self._whole(await self._ask(model))

    async def test_an_error_of_who_reads_comes_out_as_it_is(self) -> None:
        """It isn't the model's to swallow, or to take for a fault of the wire."""
        async with self.entered(self.make_model()) as model:
            for error in (RuntimeError("the reader's"), ModelTransportError("the reader's")):
                came: BaseException | None = None
                try:
                    async with model.stream(self.request) as events:
                        await _first(events, 1)
                        raise error
                except Exception as caught:
                    came = caught
                assert came is error, f"{error!r} of the reader came out as {came!r}"
            self._whole(await self._ask(model))

    async def test_a_cancelled_request_is_over_and_the_next_is_whole(self) -> None:
        """Cancelled at any moment it raises nothing else, ends soon, and leaves nothing behind."""
        async with self.entered(self.make_model()) as model:
            for steps in STEPS:
                with within(self.patience, f"a request cancelled after {steps} steps should have ended"):
                    await cancelled_after(steps, lambda: self._ask(model))
                    await self.all_closed()
                self._whole(await self._ask(model))

    async def test_a_cancelled_scope_lets_no_answer_come(self) -> None:
        """Somewhere between entering and the end there is a checkpoint."""
        async with self.entered(self.make_model()) as model:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await self._ask(model)
            assert scope.cancelled_caught, "a whole answer came in a cancelled scope"

    async def test_an_answer_that_never_ends_can_be_cancelled(self) -> None:
        """At any moment, and by a deadline while nothing comes."""
        model = self.make_stalled_model()
        if model is None:
            return
        async with self.entered(model):
            for steps in STEPS:
                with within(self.patience, f"an endless answer cancelled after {steps} steps should have ended"):
                    returned = await cancelled_after(steps, lambda: self._ask(model))
                    await self.all_closed()
                assert not returned, "an answer that never ends has ended: make_stalled_model() gave another model"
            with within(self.patience, "an endless answer past its deadline should have ended"):
                with anyio.move_on_after(0.05) as scope:
                    await self._ask(model)
                await self.all_closed()
            assert scope.cancelled_caught, "the deadline of an endless answer was swallowed"

    # ------------------------------------------------------------------------------------------ failing

    async def test_failures_are_typed_and_never_a_short_answer(self) -> None:
        """`ModelTransportError` or `ModelBehaviorError`, each time it is asked; a failed answer has no last event."""
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
                        f"ModelTransportError or ModelBehaviorError is needed, not {error!r}"
                    ) from error
                else:
                    raise AssertionError(f"the failing model didn't fail: {seen}")
                assert not any(isinstance(event, ResponseDone) for event in seen), "a failed answer said it was done"

    # ------------------------------------------------------------------------------------------ parts

    async def _ask(self, model: Model) -> list[ModelEvent]:
        async with model.stream(self.request) as events:
            return [event async for event in events]

    def _whole(self, events: Sequence[ModelEvent]) -> ResponseDone:
        """Return the last event of an answer that is whole."""
        strange = [event for event in events if not isinstance(event, EVENTS)]
        assert not strange, f"these are no events of a model: {strange}"
        done = [event for event in events if isinstance(event, ResponseDone)]
        assert len(done) == 1, f"exactly one ResponseDone is needed, not {len(done)}: {str(events)[:500]}"
        assert events[-1] is done[0], f"ResponseDone should be the last event, and {events[-1]!r} is"
        assert all(isinstance(item, ITEM_TYPES) for item in done[0].items), f"these are no items: {done[0].items}"
        usage = done[0].usage
        if usage is not None:
            assert isinstance(usage, RequestUsage), f"usage should be a RequestUsage or None, not {usage!r}"
            assert min(usage.input_tokens, usage.output_tokens) >= 0, f"tokens can't be fewer than none: {usage}"
        return done[0]


async def _first(events: AsyncIterator[ModelEvent], count: int) -> list[ModelEvent]:
    """Return the first *count* events, and ask for no other."""
    found: list[ModelEvent] = []
    while len(found) < count:
        try:
            found.append(await anext(events))
        except StopAsyncIteration:
            break
    return found


__all__ = ["ModelConformance"]
