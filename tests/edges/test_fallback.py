"""`FallbackModel`: who is asked, what is shown, and what its breakers remember."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import pytest
from kit.ending import Rendezvous

from agentloop import Agent, RunConfig, Runner, UsageLimits
from agentloop.abc import Model
from agentloop.events import TextDelta as TextDeltaEvent
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, UserMessage
from agentloop.model_events import ItemDone, ModelEvent, ModelRequest, Raw, ResponseDone, ResponseStarted, TextDelta
from agentloop.models import FallbackModel
from agentloop.records import ModelResponded
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing import FunctionModel, ScriptedModel, call, fail, say, wait
from agentloop.testing.conformance import ModelConformance
from agentloop.usage import RequestUsage

REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))
DOWN = ModelTransportError("down", status=503)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Named(Model):
    """A model with a name, which counts how often it is asked and what is open."""

    def __init__(self, name: str, *answers: Any) -> None:
        self.name = name
        self.answers = list(answers)
        self.asked = self.open = self.entered = 0
        self.holds_resources = True

    @property
    def is_open(self) -> bool:
        return self.entered > 0

    async def __aenter__(self) -> Any:
        self.entered += 1
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.entered -= 1

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        self.asked += 1
        self.open += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            # A scope around the answer: the fallback's own must nest with it.
            with anyio.CancelScope():
                yield Events(answer)
        finally:
            self.open -= 1


class Events:
    """The events of an answer; an error among them is raised, None never ends."""

    def __init__(self, events: Any) -> None:
        self.events = [events] if isinstance(events, Exception) or events is None else list(events)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        await anyio.lowlevel.checkpoint()
        if not self.events:
            raise StopAsyncIteration
        event = self.events.pop(0)
        if isinstance(event, Exception):
            raise event
        if event is None:
            await anyio.Event().wait()
        return event


def answer(text: str, **fields: Any) -> list[ModelEvent]:
    message = AssistantMessage(text)
    done = ResponseDone((message,), RequestUsage(input_tokens=1), **fields)
    return [ResponseStarted("r"), Raw({}), TextDelta(text), ItemDone(message), done]


async def ask(model: Model, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    async with model, model.stream(request) as events:
        return [event async for event in events]


async def done(model: Model, request: ModelRequest = REQUEST) -> ResponseDone:
    last = (await ask(model, request))[-1]
    assert isinstance(last, ResponseDone)
    return last


@pytest.mark.scenario("WR-10")
@pytest.mark.backends("asyncio-virtual", "trio-virtual")
async def test_dead_slow_good_answers_and_says_what_happened() -> None:
    """The run has one answer; usage and log name who gave it and who didn't."""
    dead, slow, good = Named("dead", DOWN), Named("slow", [ResponseStarted("s"), None]), Named("good", answer("Hello"))
    agent = Agent("guide", model=FallbackModel([dead, slow, good]))
    started = anyio.current_time()
    shown: list[str] = []
    async with Runner.run_streamed(agent, "Hi") as stream:
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                shown.append(event.text)
    result = stream.result
    assert (result.final_output, shown) == ("Hello", ["Hello"])
    assert anyio.current_time() - started == pytest.approx(60, abs=1)
    assert [(entry.model, entry.attempts) for entry in result.usage.entries] == [("good", 3)]
    assert result.usage.requests == 3
    [record] = [record for record in result.records if isinstance(record, ModelResponded)]
    assert record.response.model == "good"
    assert record.response.provider_data == {
        "fallback": [
            {"model": "dead", "error": "ModelTransportError: down"},
            {
                "model": "slow",
                "error": "ModelTransportError: No answer from slow: it took too long, no output for 60 s",
            },
        ]
    }
    assert (dead.open, slow.open, good.open) == (0, 0, 0)


async def test_the_first_that_answers_is_the_only_one_asked() -> None:
    """Its events pass unchanged, but for the name of who answered."""
    first, second = Named("first", answer("A")), Named("second", answer("B"))
    events = await ask(FallbackModel([first, second]))
    assert events[:-1] == answer("A")[:-1]
    last = events[-1]
    assert isinstance(last, ResponseDone)
    assert (last.model, last.provider_data, second.asked) == ("first", None, 0)
    assert last.usage is not None
    assert last.usage.model == "first"
    kept = await done(FallbackModel([Named("x", answer("A", model="x-2026", provider_data={"a": 1}))]))
    assert (kept.model, kept.provider_data) == ("x-2026", {"a": 1})


@pytest.mark.parametrize(
    ("error", "falls"),
    [
        (ModelTransportError("nobody"), True),
        (ModelTransportError("no", status=401), True),
        (ModelTransportError("no", status=529), True),
        (ModelTransportError("bad", status=400), False),
        (ModelTransportError("bad", status=422), False),
        (ModelBehaviorError("odd"), True),
        (ZeroDivisionError(), False),
        (UserError("no form"), False),
    ],
)
async def test_the_class_of_an_error_decides_whether_the_next_is_asked(error: Exception, falls: bool) -> None:
    """A fault of the request would be one for the next member too; a bug is no reason to ask another."""
    second = Named("second", answer("B"))
    model = FallbackModel([Named("first", error), second])
    if falls:
        assert (await done(model)).model == "second"
    else:
        with pytest.raises(type(error)) as caught:
            await done(model)
        assert caught.value is error
        assert second.asked == 0
    never = FallbackModel([Named("first", error), second], fall_back_on=lambda error: False)
    with pytest.raises(type(error)):
        await done(never)


@pytest.mark.parametrize("shown", [TextDelta("Hel"), ItemDone(AssistantMessage("x"))])
async def test_nobody_else_is_asked_after_output_was_shown(shown: ModelEvent) -> None:
    """The consumer may have seen the beginning of another answer."""
    second = Named("second", answer("B"))
    seen: list[ModelEvent] = []
    model = FallbackModel([Named("first", [ResponseStarted("r"), shown, DOWN]), second], failures=1)
    with pytest.raises(ModelTransportError, match="down"):
        async with model, model.stream(REQUEST) as events:
            async for event in events:
                seen.append(event)
    assert seen == [ResponseStarted("r"), shown]
    assert second.asked == 0
    assert model.breakers == ("open", "closed")


async def test_nothing_of_a_failed_answer_is_shown() -> None:
    """What came before the output is dropped with it."""
    first = Named("first", [ResponseStarted("lost"), Raw({"lost": 1}), DOWN])
    short = Named("short", [ResponseStarted("lost")])
    events = await ask(FallbackModel([first, short, Named("third", answer("B"))]))
    assert events[:-1] == answer("B")[:-1]


async def test_if_all_fail_the_last_error_is_raised_with_the_others() -> None:
    """Its retry advice is that of the last; the run may ask them all again."""
    errors = [ModelTransportError("one"), ModelBehaviorError("two"), ModelTransportError("three", retry_after=2.0)]
    with pytest.raises(ModelTransportError, match="three") as caught:
        await ask(FallbackModel([Named(str(error), error) for error in errors]))
    assert caught.value.retry_after == 2.0
    assert [note.partition(": ")[2] for note in caught.value.__notes__] == [
        "ModelTransportError: one",
        "ModelBehaviorError: two",
    ]


async def test_a_breaker_leaves_out_a_member_that_failed_in_a_row_and_tries_it_again() -> None:
    """Closed, open, half-open, and closed again; a failure of the trial opens it for another time."""
    clock = Clock()
    first, second = Named("first", DOWN, DOWN, DOWN, answer("A")), Named("second", answer("B"))
    model = FallbackModel([first, second], failures=2, cooldown=30, clock=clock)
    assert model.breakers == ("closed", "closed")
    await ask(model)
    assert model.breakers == ("closed", "closed")
    await ask(model)
    assert (model.breakers, first.asked) == (("open", "closed"), 2)
    last = await done(model)
    assert (last.provider_data, first.asked) == ({"fallback": [{"model": "first", "skipped": True}]}, 2)
    clock.now += 30
    assert model.breakers[0] == "half-open"
    await ask(model)
    assert (model.breakers[0], first.asked) == ("open", 3)
    clock.now += 30
    assert (await done(model)).model == "first"
    assert model.breakers[0] == "closed"


async def test_a_wait_that_a_member_asks_for_opens_its_breaker_at_once() -> None:
    """Asking it again before would be refused again."""
    clock = Clock()
    busy = ModelTransportError("busy", status=429, retry_after=5.0)
    model = FallbackModel([Named("first", busy, answer("A")), Named("second", answer("B"))], clock=clock)
    assert (await done(model)).model == "second"
    assert model.breakers[0] == "open"
    clock.now += 5
    assert (await done(model)).model == "first"


@pytest.mark.parametrize(("wait", "opens"), [(None, 30), (5.0, 30), (50.0, 50)])
async def test_a_member_is_left_out_for_the_longer_of_its_wait_and_the_cooldown(wait: float | None, opens: int) -> None:
    """With the failure that is one too many; an answer in between begins the count again."""
    clock, failure = Clock(), ModelTransportError("busy", status=503, retry_after=wait)
    first = Named("first", DOWN, answer("A"), DOWN, failure, answer("A"))
    model = FallbackModel([first, Named("second", answer("B"))], failures=2, cooldown=30, clock=clock)
    for _ in range(3):
        await ask(model)
        assert model.breakers[0] == "closed"
    await ask(model)
    clock.now += opens - 1
    assert model.breakers[0] == "open"
    clock.now += 1
    assert (await done(model)).model == "first"


async def test_a_failure_of_a_member_that_had_to_be_asked_does_not_shorten_its_wait() -> None:
    """Where all are open all are asked; the one that asked for a long wait has it still."""
    clock = Clock()
    busy = ModelTransportError("busy", status=429, retry_after=60.0)
    first, second = Named("first", busy, DOWN), Named("second", DOWN, DOWN, answer("B"))
    model = FallbackModel([first, second], failures=2, cooldown=10, clock=clock)
    for _ in range(2):
        with pytest.raises(ModelTransportError):
            await ask(model)
    assert (model.breakers, first.asked) == (("open", "open"), 1)
    with pytest.raises(ModelTransportError):
        await ask(FallbackModel([first], failures=1))
    assert (await done(model)).model == "second"
    assert first.asked == 3
    clock.now += 59
    assert model.breakers[0] == "open"
    clock.now += 1
    assert model.breakers[0] == "half-open"


async def test_where_no_member_may_be_asked_all_are() -> None:
    """A breaker causes no outage of its own."""
    first, second = Named("first", DOWN, answer("A")), Named("second", DOWN)
    model = FallbackModel([first, second], failures=1)
    with pytest.raises(ModelTransportError):
        await ask(model)
    assert model.breakers == ("open", "open")
    assert (await done(model)).model == "first"


async def test_one_request_at_a_time_tries_a_half_open_member() -> None:
    """A second request leaves it out; a trial that is left without a verdict is over."""
    clock = Clock()
    first, second = Named("first", DOWN, None, answer("A")), Named("second", answer("B"))
    model = FallbackModel([first, second], failures=1, clock=clock, first_output_timeout=None)
    await ask(model)
    clock.now += 30
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, model)
        while first.asked < 2:
            await anyio.lowlevel.checkpoint()
        assert (await done(model)).model == "second"
        tasks.cancel_scope.cancel()
    assert (await done(model)).model == "first"


async def test_one_of_many_requests_that_come_by_an_earlier_member_tries_a_half_open_one() -> None:
    """All of them have seen it half-open before they asked the earlier member: each member is asked in its turn."""
    clock, meeting = Clock(), Rendezvous(4)

    class Meeting(Named):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
            if clock.now > 1_030:
                await meeting.wait()
            async with super().stream(request) as events:
                yield events

    first, second, third = (
        Meeting("first", DOWN, answer("A"), DOWN),
        Named("second", DOWN, None),
        Named("c", answer("C")),
    )
    model = FallbackModel([first, second, third], failures=1, clock=clock, first_output_timeout=None)
    assert (await done(model)).model == "c"
    clock.now += 30
    assert (await done(model)).model == "first"
    assert model.breakers == ("closed", "half-open", "closed")
    clock.now += 30
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask, model)
        while second.asked + third.asked < 6:
            await anyio.lowlevel.checkpoint()
        assert (second.asked, third.asked) == (2, 4)
        tasks.cancel_scope.cancel()


async def test_a_member_that_several_requests_try_is_tried_until_the_last_of_them_ends() -> None:
    """Where no member may be asked, all are; one of these that ends makes no room beside the others."""
    clock = Clock()
    first, second = Named("first", DOWN, None, None, answer("A")), Named("second", DOWN, answer("B"))
    model = FallbackModel([first, second], failures=1, clock=clock, first_output_timeout=None)
    with pytest.raises(ModelTransportError):
        await ask(model)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(ask, model)
            async with anyio.create_task_group() as other:
                other.start_soon(ask, model)
                while first.asked < 3:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        clock.now += 30
        assert model.breakers == ("half-open", "half-open")
        assert (await done(model)).model == "second"
        tasks.cancel_scope.cancel()


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
async def test_the_limit_for_the_first_output_ends_with_it() -> None:
    """An answer that has begun may take long; requested effort lifts the default limit."""

    class Slow(Named):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
            async def events() -> AsyncIterator[ModelEvent]:
                yield TextDelta("A")
                await anyio.sleep(100)
                yield ResponseDone((AssistantMessage("A"),))

            if not self.asked:
                await anyio.sleep(70)
            self.asked += 1
            yield events()

    assert (await done(FallbackModel([Slow("slow"), Named("b", answer("B"))]))).model == "b"
    effort = REQUEST.replace(settings=ModelSettings(reasoning={"effort": "high"}))
    assert (await done(FallbackModel([Slow("slow"), Named("b", answer("B"))]), effort)).model == "slow"
    begun = Slow("slow")
    begun.asked = 1
    assert (await done(FallbackModel([begun], first_output_timeout=5))).model == "slow"


class Reporting(Named):
    """A model whose provider calls it by a longer name than the configuration."""

    def __init__(self, name: str, *answers: Any) -> None:
        told = RequestUsage(input_tokens=1, model=f"{name}-2026")
        super().__init__(
            name,
            *(
                [event.replace(usage=told) if isinstance(event, ResponseDone) else event for event in events]
                for events in answers
            ),
        )


async def test_the_usage_names_the_member_as_it_is_configured() -> None:
    """That is the name under which prices are listed; the response keeps the provider's. A list may hold a list."""
    inner = FallbackModel([Named("dead", DOWN), Reporting("good", answer("A", model="good-2026"))])
    last = await done(FallbackModel([Named("first", DOWN), inner]))
    assert last.usage is not None
    assert (last.usage.model, last.usage.attempts, last.model) == ("good", 3, "good-2026")


@pytest.mark.scenario("WR-10")
async def test_a_request_is_priced_as_one_to_the_member_that_answered() -> None:
    """Not as one to the first of the list, which may cost another sum; nor by the name that the provider tells."""
    priced: list[str] = []

    def price(name: str, usage: RequestUsage) -> Decimal:
        priced.append(name)
        return Decimal(usage.input_tokens)

    model = FallbackModel([Named("dead", DOWN), Reporting("good", answer("A", model="good-2026"))])
    config = RunConfig(price=price, limits=UsageLimits(cost=5))
    result = await Runner.run(Agent("a", model=model), "Hi", run_config=config)
    [record] = [record for record in result.records if isinstance(record, ModelResponded)]
    assert (priced, record.cost) == (["good"], "1")


async def test_an_answer_without_usage_gets_none() -> None:
    """A made-up one would say that the answer took no tokens."""
    silent = [event.replace(usage=None) if isinstance(event, ResponseDone) else event for event in answer("B")]
    model = FallbackModel([Named("first", DOWN), Named("second", silent)])
    assert (await done(model)).usage is None


async def test_a_runs_retries_ask_all_members_again() -> None:
    """An attempt in which all fail counts as one request; the answer counts the member that failed before it."""
    first, second = Named("first", DOWN), Named("second", DOWN, answer("B"))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, initial_delay=0))
    result = await Runner.run(Agent("a", model=FallbackModel([first, second]), model_settings=settings), "Hi")
    assert (result.final_output, result.usage.requests, first.asked) == ("B", 3, 2)


async def test_entering_enters_all_members_and_an_error_leaves_those_entered() -> None:
    """Each entry is left once, also where several overlap."""
    first, second = Named("first", answer("A")), Named("second", answer("B"))
    model = FallbackModel([first, second])
    assert model.holds_resources
    assert not model.is_open
    async with model, model:
        assert model.is_open
        assert (first.entered, second.entered) == (2, 2)
    assert (first.entered, second.entered) == (0, 0)

    class Broken(Named):
        async def __aenter__(self) -> Any:
            raise UserError("no key")

    with pytest.raises(UserError, match="no key"):
        async with FallbackModel([first, Broken("broken", None)]):
            pass
    assert first.entered == 0


@pytest.mark.parametrize("field", ["previous_response_id", "conversation_id"])
async def test_state_of_one_provider_is_refused(field: str) -> None:
    """The other members don't have it."""
    with pytest.raises(UserError, match=field):
        await ask(FallbackModel([Named("a", answer("A"))]), REQUEST.replace(**{field: "x"}))


async def test_a_refusal_tells_what_failed_before_it() -> None:
    """The error of the first member isn't lost, although the second one's doesn't fall back."""
    refused = UserError("no form")
    with pytest.raises(UserError, match="no form") as caught:
        await ask(FallbackModel([ScriptedModel([fail(DOWN)]), ScriptedModel([fail(refused)])]), REQUEST)
    assert caught.value.__notes__ == [f"Before it another model failed: {type(DOWN).__name__}: {DOWN}"]


def test_a_definition_that_cannot_work_is_refused() -> None:
    """By the argument's name."""
    with pytest.raises(UserError, match="at least one"):
        FallbackModel([])
    with pytest.raises(UserTypeError, match=r"members\[0\].*int"):
        FallbackModel([3])  # type: ignore[list-item]
    with pytest.raises(UserValueError, match="failures"):
        FallbackModel([ScriptedModel([])], failures=0)
    with pytest.raises(UserValueError, match="first_output_timeout"):
        FallbackModel([ScriptedModel([])], first_output_timeout=0)


def test_members_may_be_model_strings() -> None:
    """The first one's settings are the model's own. Its identity names them all, so it has no name of one of them."""
    model = FallbackModel(["http://h/v1#qwen", ScriptedModel([])])
    assert model.info.name.startswith("h:qwen, ")
    assert not hasattr(model, "name")
    assert model.members[0].name == "qwen"  # type: ignore[attr-defined]
    assert model.default_settings == ModelSettings()
    assert repr(model).startswith("FallbackModel([OpenAIChatModel('qwen'")


class TestFallbackModel(ModelConformance):
    """The suite, over a member that fails and one that answers."""

    def make_model(self) -> Model:
        """Return a model whose first member is dead."""
        return FallbackModel(
            [FunctionModel(lambda request: fail(DOWN)), ScriptedModel([[say("Hello"), call("f")]] * 100)]
        )

    def make_failing_model(self) -> Model:
        """Return a model whose members all fail."""
        return FallbackModel([ScriptedModel([fail(DOWN)] * 9), ScriptedModel([[say("Hel"), fail(DOWN)]] * 9)])

    def make_stalled_model(self) -> Model:
        """Return a model whose second member stalls."""
        return FallbackModel([ScriptedModel([fail(DOWN)] * 99), ScriptedModel([[say("H"), wait(anyio.Event())]] * 99)])
