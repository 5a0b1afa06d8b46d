"""`FallbackModel`: several models in order, the next of which is asked where one fails.

One request, as the members see it: a member is asked, and its events are held back until the first one that shows
output. A failure before that is the member's, and the next member is asked; the held events are dropped. From the first
output on the answer is this member's: a later failure is raised, since the consumer may have seen the beginning.

A breaker for each member remembers failures, in three states: closed (the member is asked), open (it isn't, until its
time is over), half-open (one request tries it, others don't). If no member may be asked, all are, in their order: a
breaker must not cause its own outage.

Does not know about runs. The usage of an answer counts the members that failed before it as attempts; if all fail, or
the answer tells no usage, a run counts one request. Its own retries ask all members again.

Decisions:

`FallbackModel` is one request for the run. The failed members are in the response's `provider_data` and in the
process's log. Rejected: members as the run's own attempts. The retry settings would then count members and retries
together, and a run with `max_retries=0` could not fall back. One cancel scope encloses a member's whole answer and
loses its deadline with the first output: a scope that ended with the first output would end inside of those that the
member holds open, which trio refuses.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import EllipsisType, TracebackType
from typing import Any, Literal, Self

import anyio
import attrs
from anyio.lowlevel import checkpoint, current_token

from agentloop._common.checks import check_count, check_seconds
from agentloop._common.error_text import error_summary
from agentloop.abc import Model
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError
from agentloop.limits import Limit
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest, Raw, ResponseDone, ResponseStarted
from agentloop.models.registry import resolve_model
from agentloop.settings import ModelSettings

logger: logging.Logger = logging.getLogger("agentloop")

TIMED_OUT = "first_output_timeout"
"""Code of the error for a member that showed no output in time."""
_FAULTS_OF_THE_REQUEST = frozenset({400, 413, 422})
_SHOWS_NOTHING = (ResponseStarted, Raw)


def may_fall_back(error: Exception) -> bool:
    """Tell whether another model may do better, by the class of *error*.

    True for a model that wasn't reached, answered with an error (except the statuses 400, 413 and 422, which find the
    fault in the request), or broke its protocol; False for everything else.
    """
    if isinstance(error, ModelTransportError):
        return error.status not in _FAULTS_OF_THE_REQUEST
    return isinstance(error, ModelBehaviorError)


class FallbackModel(Model):
    """The models *members*, asked in this order until one answers.

    A member that fails, or shows no output for `first_output_timeout` seconds, is followed by the next one, if
    `fall_back_on` returns True for its error (`may_fall_back`: errors of transport and of protocol). Nothing of the
    failed answer is shown. Once a member has shown output, its error is raised. If all fail, the last error is raised,
    with the others as notes. None = no limit beyond the member's own; not given: 60 seconds, or None where
    `ModelSettings.reasoning` requests effort.

    After `failures` failures in a row a member is left out for `cooldown` seconds, or for as long as it asks to be;
    then one request tries it again. `clock` returns seconds that only increase.

    The response's `model` names who answered in the provider's words, its usage's `model` in those of the
    configuration: a run prices it under that name. `provider_data["fallback"]` has the members that failed or were left
    out before; a warning is logged for each failure. The usage counts the failed ones in `attempts`. Members are models
    or model strings. Entering enters all of them, and fails if one of them can't be entered, as without its key: that
    is found at the start, not once the others are down. State that a provider keeps (`previous_response_id`,
    `conversation_id`) is refused, as the other members don't have it.

    Example:
        from agentloop import Agent, Runner
        from agentloop.exceptions import ModelTransportError
        from agentloop.models import FallbackModel
        from agentloop.testing import ScriptedModel, fail, say

        first = ScriptedModel([fail(ModelTransportError("down", status=503))])
        second = ScriptedModel([say("from the second")])
        agent = Agent("a", model=FallbackModel([first, second]))
        print(Runner.run_sync(agent, "go").final_output)  # from the second
    """

    def __init__(
        self,
        members: Iterable[Model | str],
        *,
        first_output_timeout: float | EllipsisType | None = ...,
        failures: int = 3,
        cooldown: float = 30.0,
        fall_back_on: Callable[[Exception], bool] = may_fall_back,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        models = [resolve_model(member) if isinstance(member, str) else member for member in members]
        if not models:
            raise UserError("FallbackModel: expected at least one model")
        for index, model in enumerate(models):
            if not isinstance(model, Model):
                raise UserTypeError(f"members[{index}]: expected a Model or a model string, got {type(model).__name__}")
        check_count("failures", failures)
        self.first_output_timeout = first_output_timeout
        if first_output_timeout is not ...:
            check_seconds("first_output_timeout", first_output_timeout)
        cooldown = check_seconds("cooldown", cooldown) or 0.0
        self._fall_back_on = fall_back_on
        self._members = [_FallbackMember(model, _Breaker(failures, cooldown, clock)) for model in models]
        self._entered: dict[object, list[AsyncExitStack]] = {}
        self.holds_resources: bool = any(model.holds_resources for model in models)

    def __repr__(self) -> str:
        return f"FallbackModel([{', '.join(repr(member.model) for member in self._members)}])"

    @property
    def info(self) -> ModelInfo:
        """The provider `fallback`, and the members' identities as the name: `openai:NAME, anthropic:NAME`.

        The window is the smallest of the members', if all are known: any of them may have to answer.
        """
        members = [member.model.info for member in self._members]
        windows = [one.context_window for one in members]
        known = [window for window in windows if window is not None]
        window = min(known) if len(known) == len(windows) else None
        return ModelInfo("fallback", ", ".join(f"{one.provider}:{one.name}" for one in members), context_window=window)

    @property
    def members(self) -> tuple[Model, ...]:
        """The models, in order."""
        return tuple(member.model for member in self._members)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of requests of all members: a request holds a place of each model that it may ask."""
        return tuple([limit for member in self.members for limit in getattr(member, "limits", ())])

    @property
    def breakers(self) -> tuple[Literal["closed", "open", "half-open"], ...]:
        """The state of each member's breaker, in order."""
        return tuple(member.breaker.state for member in self._members)

    @property
    def is_open(self) -> bool:
        """True if every member can be called now."""
        return all(member.model.is_open for member in self._members)

    @property
    def default_settings(self) -> ModelSettings:
        """Those of the first member."""
        return self._members[0].model.default_settings

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Those that every member has, without conversations, which one provider keeps and the others don't have."""
        shared = frozenset[ModelFeature].intersection(*(member.model.features for member in self._members))
        return shared - {"conversations"}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for member in self._members:
                await stack.enter_async_context(member.model)
            self._entered.setdefault(current_token().native_token, []).append(stack.pop_all())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        token = current_token().native_token
        stack = self._entered[token].pop()
        if not self._entered[token]:
            del self._entered[token]
        await stack.__aexit__(exc_type, exc, tb)  # noqa: ASYNC102 - the members' own shields hold

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Ask the members in order. Entering waits for the first output of the one that answers.

        Raises:
            UserError: if the request continues state that one provider keeps.
            ModelTransportError, ModelBehaviorError: the last member's, if none answers, or that of the member that has
                shown output.
        """
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        for name in ("previous_response_id", "conversation_id"):
            if getattr(request, name) is not None:
                raise UserError(f"{name}: {self!r} can't continue a conversation that one of its providers keeps.")
        async with AsyncExitStack() as stack:
            yield await self._find_answer(stack, request)

    async def _find_answer(self, stack: AsyncExitStack, request: ModelRequest) -> _MemberAnswer:
        """Return the answer of the first member that shows output. *stack* closes it."""
        told: list[dict[str, Any]] = []
        errors: list[Exception] = []
        for member in self._members:
            # Asked here and not before the loop: other requests change breakers while an earlier member is asked.
            if not member.breaker.admits():
                told.append({"model": member.name, "skipped": True})
            elif (answer := await self._ask(stack, member, request, told, errors)) is not None:
                return answer
        if not errors:  # no member may be asked
            told.clear()
            for member in self._members:
                if (answer := await self._ask(stack, member, request, told, errors)) is not None:
                    return answer
        last = errors.pop()
        _tell_earlier(last, errors)
        raise last

    async def _ask(
        self,
        stack: AsyncExitStack,
        member: _FallbackMember,
        request: ModelRequest,
        told: list[dict[str, Any]],
        errors: list[Exception],
    ) -> _MemberAnswer | None:
        """Return the answer of *member*, which *stack* closes; None if it fails before its first output.

        Its failure is added to *told* and *errors*.

        Raises:
            Exception: an error that no other member would do better with.
        """
        async with AsyncExitStack() as attempt:
            attempt.callback(member.breaker.begin())
            try:
                answer = await self._begin_answer(attempt, member, request)
            except Exception as error:
                if not self._fall_back_on(error):
                    _tell_earlier(error, errors)
                    raise
                member.breaker.note_failure(error)
                errors.append(error)
                told.append({"model": member.name, "error": f"{type(error).__name__}: {error}"})
                logger.warning("model %s failed before its first output: %s", member.name, error_summary(error))
                return None
            answer.told = told
            await stack.enter_async_context(attempt.pop_all())
            return answer

    async def _begin_answer(
        self, attempt: AsyncExitStack, member: _FallbackMember, request: ModelRequest
    ) -> _MemberAnswer:
        """Return the answer of *member* once it shows output; *attempt* closes it."""
        limit = self.first_output_timeout
        if limit is ...:
            limit = None if (request.settings.reasoning or {}).get("effort") else 60.0
        # One scope around the member's whole answer, so that scopes inside of it nest; its limit ends with the first
        # output.
        scope = anyio.CancelScope(deadline=float("inf") if limit is None else anyio.current_time() + limit)
        async with AsyncExitStack() as opened:
            opened.enter_context(scope)
            events = await opened.enter_async_context(member.model.stream(request))
            answer = _MemberAnswer(member, events)
            await answer.read_to_output()
            scope.deadline = float("inf")
            if scope.cancel_called:  # on the way to the output, too late to be delivered in it
                await checkpoint()
            await attempt.enter_async_context(opened.pop_all())
            return answer
        raise ModelTransportError(
            f"No answer from {member.name}: it took too long, no output for {limit:g} s", code=TIMED_OUT
        )


def _tell_earlier(error: Exception, errors: Iterable[Exception]) -> None:
    """Add the *errors* of members that were asked before to *error*, which ends the request."""
    for earlier in errors:
        error.add_note(f"Before it another model failed: {type(earlier).__name__}: {earlier}")


@attrs.define(eq=False)
class _Breaker:
    """The memory of one member's failures. Changed by the requests to it, in any event loop."""

    limit: int
    cooldown: float
    clock: Callable[[], float]
    failures: int = 0
    """Failures since the last answer."""
    open_until: float = 0.0
    """On the clock; the breaker is open before, and half-open from then on until a request succeeds."""
    trials: int = 0
    """Number of requests that are asking the member while it isn't closed: more than one only where no member may be
    asked."""

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        if not self.open_until:
            return "closed"
        return "open" if self.clock() < self.open_until else "half-open"

    def admits(self) -> bool:
        """Tell whether the member may be asked now."""
        state = self.state
        return state == "closed" or (state == "half-open" and not self.trials)

    def begin(self) -> Callable[[], None]:
        """Note that the member is asked. Return the function that notes the end of that."""
        if self.state == "closed":
            return _do_nothing
        self.trials += 1
        return self._end_trial

    def _end_trial(self) -> None:
        self.trials -= 1

    def note_success(self) -> None:
        self.failures, self.open_until = 0, 0.0

    def note_failure(self, error: Exception) -> None:
        self.failures += 1
        wait = getattr(error, "retry_after", None) or 0.0
        wait = max(wait, self.cooldown if self.failures >= self.limit else 0.0)
        if wait:  # a longer wait that an earlier failure asked for stays
            self.open_until = max(self.open_until, self.clock() + wait)


def _do_nothing() -> None:
    pass


@attrs.frozen(eq=False)
class _FallbackMember:
    model: Model
    breaker: _Breaker

    @property
    def name(self) -> str:
        return self.find_priced_name(None)

    def find_priced_name(self, told: str | None) -> str:
        """Return the configured name, as prices know it; else what its usage *told*, as that of an inner list does."""
        return str(getattr(self.model, "name", None) or told or type(self.model).__name__)


class _MemberAnswer:
    """The events of one member's answer: those held back, then the others as they come. Owned by one `_stream`."""

    def __init__(self, member: _FallbackMember, events: AsyncIterator[ModelEvent]) -> None:
        self._member = member
        self._events = events
        self._held: deque[ModelEvent] = deque()
        self.told: list[dict[str, Any]] = []
        """The members before this one that failed or were left out."""

    async def read_to_output(self) -> None:
        """Read until an event shows output.

        Raises:
            ModelBehaviorError: if the answer ends before it is done.
        """
        while True:
            event = await anext(self._events, None)
            if event is None:
                raise ModelBehaviorError("The model's response ended without being done")
            self._held.append(event)
            if not isinstance(event, _SHOWS_NOTHING):
                return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        if self._held:
            return self._finish(self._held.popleft())
        try:
            return self._finish(await anext(self._events))
        except (ModelTransportError, ModelBehaviorError) as error:
            self._member.breaker.note_failure(error)
            raise

    def _finish(self, event: ModelEvent) -> ModelEvent:
        """Return *event*; the last one says who answered, and who didn't before."""
        if not isinstance(event, ResponseDone):
            return event
        self._member.breaker.note_success()
        name = event.model or self._member.name
        usage = event.usage
        if usage is not None:  # a made-up one would say that the answer took no tokens
            failed = sum("error" in one for one in self.told)
            usage = usage.replace(model=self._member.find_priced_name(usage.model), attempts=usage.attempts + failed)
        data: Mapping[str, Any] | None = event.provider_data
        if self.told:
            data = {**(data or {}), "fallback": self.told}
        return event.replace(model=name, usage=usage, provider_data=data)
