"""Settings of a run and of a model: frozen values, checked when they are made.

Does not know about agents, tools and models, so that every module may import it; `config` has the settings that do, and
`limits` those of a run's calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from attrs.validators import and_, ge

from agentloop._common.checks import (
    FIELDS,
    NAMES,
    check,
    either,
    fits,
    is_a,
    is_finite,
    optional,
)
from agentloop._common.errors import UserValueError
from agentloop._common.misplaced import takes_options
from agentloop._common.values import ByFields, Value

__all__ = [
    "CachePolicy",
    "Conversation",
    "JsonLimits",
    "ModelRetrySettings",
    "ModelSettings",
    "Prompt",
    "RetryAdvice",
    "RetryContext",
    "RetryPolicy",
    "SessionSettings",
    "ToolErrorArgs",
]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class JsonLimits(ByFields):
    """Bounds on JSON that a model writes: bytes, nesting depth, digits of one number (None = no bound); how it is read.

    Attributes:
        read_strings: True to read `"5"` or `"[1, 2]"` as JSON where the type admits no string, as local and routed
            models often write numbers and lists. It is tried only after the value didn't fit.

    Example:
        from agentloop import RunConfig
        from agentloop.settings import JsonLimits

        config = RunConfig(json_limits=JsonLimits(max_bytes=10_000, max_depth=8))
        print(config.json_limits.max_depth)  # 8
    """

    max_bytes: int | None = attrs.field(default=1_000_000, validator=optional(NAMES.count()))
    max_depth: int | None = attrs.field(default=64, validator=optional(NAMES.count()))
    max_digits: int | None = attrs.field(default=1_000, validator=optional(NAMES.count()))
    read_strings: bool = attrs.field(default=True, validator=NAMES.flag())


class RetryAdvice(Value, frozen=True, kw_only=True):
    """The advice of a failed model request on a retry.

    Attributes:
        retryable: True if a retry may help and does no harm.
        retry_after: The seconds that the provider wants to pass first, clamped to a sane range; None if it gives none.
        reason: The reason in a few words.
    """

    retryable: bool
    retry_after: float | None = None
    reason: str = ""


class RetryContext(Value, frozen=True, kw_only=True):
    """The argument of a retry policy: the error of attempt number *attempt* (from 1), and the advice from it."""

    error: BaseException
    attempt: int
    advice: RetryAdvice


RetryPolicy: TypeAlias = Callable[[RetryContext], bool | Awaitable[bool]]
"""A function, sync or async, that decides whether a failed request is made again."""


@attrs.frozen(eq=False, repr=False)
class ModelRetrySettings(ByFields):
    """Settings for retries of a failed model request, within its turn.

    The wait before retry n is `initial_delay * multiplier ** (n - 1)` seconds, at most `max_delay`, with *jitter*
    between half and all of that; never less than the provider's Retry-After. A request is not retried once a part of
    its response was shown to the consumer of a stream (a plain run shows none). A cancellation is never retried.

    Attributes:
        max_retries: The number of attempts after the first.
        initial_delay, max_delay: Seconds.
        policy: `(RetryContext) -> bool`, sync or async, decides in place of `RetryContext.advice`. None: the advice
            decides. It is to retry after no answer, timeouts and status 408, 409, 429 and from 500 on, unless the
            provider says otherwise or the account's quota is spent.

    Example:
        from agentloop import ModelRetrySettings, ModelSettings

        patient = ModelSettings(retry=ModelRetrySettings(max_retries=5))
        print(patient.retry.max_retries)  # 5
    """

    max_retries: int = attrs.field(validator=NAMES.count(0))
    initial_delay: float = attrs.field(default=0.25, validator=NAMES.seconds(zero=True))
    max_delay: float = attrs.field(default=2.0, validator=NAMES.seconds(zero=True))
    multiplier: float = attrs.field(
        default=2.0,
        validator=and_(NAMES.number(), NAMES.needs("expected a finite number of at least 1", ge(1), is_finite)),
    )
    jitter: bool = attrs.field(default=True, validator=NAMES.flag())
    policy: RetryPolicy | None = attrs.field(default=None, validator=optional(FIELDS.function()))


_BREAKPOINTS = ("tools", "instructions", "items")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CachePolicy(ByFields):
    """The parts of a prompt that a provider keeps, so that a later request with the same beginning costs less.

    Models whose provider doesn't know a field leave it out: a cache changes no answer.

    Attributes:
        key: Text that requests with the same beginning have in common, so that they reach the same cache.
        ttl: The time that a beginning is kept at least, in the provider's words: `"5m"`, `"30m"`, `"1h"`.
        retention: The time that it is kept at most, in the provider's words: `"in_memory"`, `"24h"`.
        breakpoints: Ends of beginnings that are worth keeping: `"tools"`, `"instructions"` (after each part of them but
            the last, or after the only one) and `"items"` (after the newest item that can hold a mark). Providers take
            four marks in a request: the last of each place comes first, then the later parts of the instructions.

    Example:
        from agentloop import Agent, CachePolicy, ModelSettings

        long = ModelSettings(cache=CachePolicy(ttl="1h", breakpoints=["tools", "instructions"]))
        agent = Agent("a", instructions=["A long manual …", "Today's news …"], model_settings=long)
        print(agent.model_settings.cache.ttl)  # 1h
    """

    key: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    ttl: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    retention: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    breakpoints: Sequence[Literal["tools", "instructions", "items"]] = attrs.field(
        default=(),
        validator=FIELDS.each("tools, instructions or items", fits(lambda member: member in _BREAKPOINTS)),
    )


@attrs.frozen(eq=False, repr=False)
class Prompt(ByFields):
    """A prompt that the provider has stored: its id there, a version, and the values of its variables.

    The values are texts, or parts of `agentloop.items` (an image, a file). Models whose provider stores no prompts
    raise `UserError` before the request.

    Example:
        from agentloop import Agent, Prompt

        agent = Agent("a", prompt=Prompt("pmpt_123", version="2", variables={"city": "Bern"}))
        print(agent.prompt.variables["city"])  # Bern
    """

    id: str = attrs.field(validator=FIELDS.words())
    version: str | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.text()))
    variables: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=FIELDS.mapping())


@takes_options("Agent(…, model_settings=ModelSettings(OPTION=…))")
@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelSettings(ByFields):
    """Settings of a model's requests. None means not given: the next level decides (run over agent over model).

    Example:
        from agentloop import Agent, ModelSettings

        agent = Agent("a", model="openai:gpt-5", model_settings=ModelSettings(temperature=0.2, max_tokens=500))
        print(agent.model_settings.temperature)  # 0.2
    """

    temperature: float | None = attrs.field(default=None, validator=optional(FIELDS.number()))
    top_p: float | None = attrs.field(default=None, validator=optional(FIELDS.number()))
    frequency_penalty: float | None = attrs.field(default=None, validator=optional(FIELDS.number()))
    presence_penalty: float | None = attrs.field(default=None, validator=optional(FIELDS.number()))
    max_tokens: int | None = attrs.field(default=None, validator=optional(NAMES.count()))
    tool_choice: str | Mapping[str, Any] | None = attrs.field(
        default=None,
        validator=optional(FIELDS.needs("expected text or a mapping", either(is_a(str), FIELDS.mapping()))),
    )
    parallel_tool_calls: bool | None = attrs.field(default=None, validator=optional(FIELDS.flag()))
    reasoning: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    reasoning_item_ids: Literal["keep", "omit"] | None = attrs.field(
        default=None, validator=FIELDS.one_of(None, "keep", "omit")
    )
    """`"omit"` sends the reasoning of earlier turns without the provider's ids, for one that doesn't keep it."""
    verbosity: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    truncation: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    context_management: Sequence[Mapping[str, Any]] | None = attrs.field(
        default=None,
        validator=optional(FIELDS.each("mappings", is_a(Mapping))),
    )
    """When the provider compacts a long conversation, in its own words."""
    store: bool | None = attrs.field(default=None, validator=optional(FIELDS.flag()))
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    include: Sequence[str] | None = attrs.field(default=None, validator=optional(FIELDS.texts()))
    top_logprobs: int | None = attrs.field(default=None, validator=optional(NAMES.count(0)))
    service_tier: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    cache: CachePolicy | None = attrs.field(default=None, validator=optional(FIELDS.a(CachePolicy)))
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    """Seconds for one attempt of a request."""
    retry: ModelRetrySettings | None = attrs.field(default=None, validator=optional(FIELDS.a(ModelRetrySettings)))
    """None: two retries if the error allows them, one after an answer that fell silent, none after `timeout`.
    `ModelRetrySettings(max_retries=0)` never retries."""
    extra_headers: Mapping[str, str] | None = attrs.field(
        default=None, repr=False, validator=optional(FIELDS.mapping())
    )
    extra_query: Mapping[str, str] | None = attrs.field(default=None, repr=False, validator=optional(FIELDS.mapping()))
    extra_body: Mapping[str, Any] | None = attrs.field(default=None, repr=False, validator=optional(FIELDS.mapping()))
    extra_args: Mapping[str, Any] | None = attrs.field(default=None, repr=False, validator=optional(FIELDS.mapping()))

    def resolve(self, override: ModelSettings | None) -> ModelSettings:
        """Return a copy in which the values that *override* gives replace those of this object.

        Example:
            from agentloop import ModelSettings

            usual = ModelSettings(temperature=0.2, max_tokens=500)
            print(usual.resolve(ModelSettings(temperature=1.0)).max_tokens)  # 500
        """
        if override is None:
            return self
        changes = {
            field.name: value
            for field in attrs.fields(ModelSettings)
            if (value := getattr(override, field.name)) is not None
        }
        return attrs.evolve(self, **changes) if changes else self


class Conversation(Value, frozen=True):
    """A conversation that the model's provider keeps, and how a run continues it: by its id, or after a response.

    The run then sends only the items that the provider doesn't have yet. Give one of the three.

    Attributes:
        id: The id of a conversation of the provider, which has been made there before.
        after: The id of a response that the provider keeps; the run continues after it, and after its own responses.
        auto: True to let the provider keep the run's own responses, from the first one on.

    Raises:
        UserTypeError, UserValueError: none of the three is given, or *id* beside one of the others.

    Example:
        from agentloop import Agent, Conversation, Runner
        from agentloop.testing import ScriptedModel, respond, say
        from agentloop.items import AssistantMessage

        first, second = respond(AssistantMessage("Noted."), response_id="resp_1"), say("In May.")
        agent = Agent("a", model=ScriptedModel([first, second]))
        result = Runner.run_sync(agent, "I was born in May.", conversation=Conversation(auto=True))
        later = Runner.run_sync(agent, "When?", conversation=Conversation(after=result.last_response_id))
        print(later.final_output)  # In May.
    """

    id: str | None = None
    after: str | None = None
    auto: bool = False

    def __post_init__(self) -> None:
        check("Conversation.id", optional(NAMES.words()), self.id)
        check("Conversation.after", optional(NAMES.words()), self.after)
        check("Conversation.auto", NAMES.flag(), self.auto)
        by_response = self.after is not None or self.auto
        if by_response == (self.id is not None):
            given = (
                "id and after are two ways to continue the same thing, choose one"
                if by_response
                else "nothing is given"
            )
            raise UserValueError(f"Conversation: {given}: write Conversation(id=…), (after=…) or (auto=True)")


class ToolErrorArgs(Value, frozen=True, kw_only=True):
    """The argument of a `tool_error_formatter`: the kind of text, the call, and the text it may replace.

    The kinds: there is no such tool (`"tool_not_found"`), a verdict rejected the call (`"approval_rejected"`), and the
    tool raised `error`, whose text its own `failure_error_function` doesn't write (`"tool_exception"`).
    """

    kind: Literal["tool_not_found", "approval_rejected", "tool_exception"]
    tool: str
    call_id: str
    error: BaseException | None
    default: str


ToolErrorFormatter: TypeAlias = Callable[[ToolErrorArgs], str | Awaitable[str | None] | None]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SessionSettings(ByFields):
    """Settings of a session's use. `limit` is the number of its latest items that a run is shown; None = all.

    Example:
        from agentloop import HistorySettings, RunConfig, SessionSettings

        latest = SessionSettings(limit=20)  # the model sees the latest 20 items
        config = RunConfig(history=HistorySettings(session_settings=latest))
        print(config.history.session_settings.limit)  # 20
    """

    limit: int | None = attrs.field(default=None, validator=optional(NAMES.count(0)))
