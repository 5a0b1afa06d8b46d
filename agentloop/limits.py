"""Limits that tools, agents and runs can share: calls in flight, and calls started per window.

A limit holds numbers only; the waiting calls are in the queue of the admission (`_core.admission`), which calls `free`
and `take`; an admitted call calls `begin` and `give`. A limit is bound to the event loop of its first use and is not
thread-safe: a use from a second loop while the first is alive raises `UserError`. Does not know about tasks or clocks:
the time is an argument.

What bounds calls without a limit of yours are the defaults of `ToolExecution`, the first class here.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import attrs
import msgspec

from agentloop._common.checks import (
    FIELDS,
    NAMES,
    check,
    check_count,
    check_seconds,
    optional,
    read_collision_word,
    read_not_found_word,
)
from agentloop._common.errors import UserError, UserTypeError
from agentloop._common.misplaced import takes_options
from agentloop._common.values import ByFields, Value
from agentloop.settings import ToolErrorFormatter


@takes_options("RunConfig(tool_execution=ToolExecution(OPTION=…))")
@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolExecution(ByFields):
    """Settings of the execution of tool calls in a run.

    Example:
        from agentloop import RunConfig, ToolExecution

        config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=4, max_output_chars=10_000))
        print(config.tool_execution.max_function_tool_concurrency)  # 4
    """

    max_function_tool_concurrency: int | None = attrs.field(default=32, validator=optional(NAMES.count()))
    """The number of bodies in flight in one turn; None = no limit."""
    max_calls_per_turn: int | None = attrs.field(default=1000, validator=optional(NAMES.count()))
    """The number of calls of one response that may run; the others receive a refusal as output. None = no limit."""
    queue_timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    """Seconds that a call may wait to start before it is skipped; None = no limit."""
    pre_approval_tool_input_guardrails: bool = attrs.field(default=False, validator=FIELDS.flag())
    cleanup_grace: float = attrs.field(default=5.0, validator=NAMES.seconds(zero=True))
    """Seconds for all cleanup together, from the moment a run is being cancelled."""
    max_output_chars: int | None = attrs.field(default=32_000, validator=optional(NAMES.count()))
    max_threads: int = attrs.field(default=32, validator=NAMES.count())
    mode: Literal["concurrent", "sequential"] | None = attrs.field(
        default=None, validator=FIELDS.one_of(None, "concurrent", "sequential")
    )
    """None: the agent's `tool_execution`."""
    not_found_behavior: Literal["tell_model", "raise"] = attrs.field(
        default="tell_model", converter=read_not_found_word, validator=FIELDS.one_of("tell_model", "raise")
    )
    """The model calls a tool that doesn't exist: tell it, with the name that it may have meant, or end the run."""
    name_collision_policy: Literal["tell_model", "raise"] = attrs.field(
        default="tell_model", converter=read_collision_word, validator=FIELDS.one_of("tell_model", "raise")
    )
    """Two enabled tools have one name: tell the model of the last one and log a warning, or raise `UserError`. A tool
    of a source never wins over a tool of the agent: with `"tell_model"` it is left out. Two sources with tools of one
    name are a `UserError` either way."""
    error_formatter: ToolErrorFormatter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    """`(ToolErrorArgs) -> str | None` writes the text that the model receives in place of an output: of a call that is
    answered without running, or whose tool raised. None from it leaves the library's text."""
    loop_detection: int | None = attrs.field(default=None, validator=optional(NAMES.count(2)))
    """The number of equal calls with equal results, in a row, after which the model receives a warning; the next one
    ends the run. None = no detection."""


class Limit:
    """Base of all limits: the interface for the admission. If `ordered`, calls take it strictly in arrival order."""

    ordered = False
    weighed = False
    """True if a ticket takes an `amount` of it that follows from its weight, and not one."""
    freed_by_calls = True
    """True if calls that end make room; else time does, or the consumer of the stream."""
    name: str | None = None
    hold: Hold | None = None
    """When the server of a model wants no further request; None if it never said so."""
    line: Any = None
    """The queue of waiting calls that need the limit, or None. The admission owns it and sets it."""

    @property
    def name_shown(self) -> str:
        """The limit's name, or its class name if it has none."""
        return self.name or type(self).__name__

    def free(self, now: float) -> float:
        """Return the number of further calls that may start at *now* (seconds on the loop's clock)."""
        raise NotImplementedError

    def room(self, now: float) -> bool:
        """Return True if one more call may start at *now*."""
        return self.free(now) > 0

    def take(self, now: float) -> None:
        """Count a call that is admitted at *now*."""
        raise NotImplementedError

    def amount(self, weight: int) -> int:
        """Return what a ticket of *weight* takes, in the units of `free`. Called for limits that are weighed only."""
        raise NotImplementedError

    def take_amount(self, amount: int) -> None:
        """Count a ticket that is admitted and takes *amount*. Called for limits that are weighed only."""
        raise NotImplementedError

    def begin(self, now: float) -> None:
        """Count the body of an admitted call, which begins at *now*. Called for limits that calls don't free only."""

    def give(self) -> None:
        """Count a call that has ended; of a limit that calls don't free: an admitted call whose body never began."""
        raise NotImplementedError

    def report_room(self) -> None:
        """Report to the admission that there may be more room than before."""
        if self.line is not None:
            self.line.mark()

    def next_room(self, now: float) -> float:
        """Return the time (on the clock of *now*) at which time alone makes room; infinity if it never does."""
        return math.inf


class LoopBinding(msgspec.Struct, eq=False):
    """The event loop to which a shareable limit belongs, and the callback for changes of its numbers by the user.

    Owned by the limit; `bind` mutates it.
    """

    loop: Any = None
    """An object that represents the loop without a reference to it."""
    alive: Callable[[], bool] | None = None
    changed: Callable[[], None] | None = None
    _lock: Any = msgspec.field(default_factory=threading.Lock)
    """Guards `bind`: if the earlier loop has ended and two loops in two threads bind at once, only one succeeds."""

    def tell(self) -> None:
        """Notify the loop that the numbers have changed, if it is still alive."""
        if self.changed is not None and self.alive is not None and self.alive():
            self.changed()

    def bind(self, what: object, loop: Any, alive: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Bind *what* to the event loop that *loop* represents.

        Raises:
            UserError: if it is bound to another loop that is still alive.
        """
        if self.loop is loop:
            return
        with self._lock:
            if self.loop is not None and self.alive is not None and self.alive():
                raise UserError(f"{what!r} belongs to another event loop, which is still running")
            self.loop, self.alive, self.changed = loop, alive, changed


class CapacityStatistics(Value, frozen=True, kw_only=True):
    """`tokens_in_use` of `total_tokens` (None: no limit), and the `peak` of use so far."""

    tokens_in_use: int
    total_tokens: int | None
    peak: int


class Capacity(Limit):
    """A limit of *tokens* calls in flight (None = no limit), across all users of this object.

    Example:
        from agentloop import Capacity, tool

        database = Capacity(10, "database")

        @tool(capacity=database)  # at most ten calls at once, in all runs of the event loop together
        async def query(sql: str) -> str:
            "Ask the database."
            return "no rows"

        print(database.statistics().tokens_in_use)  # 0
    """

    def __init__(self, tokens: int | None, name: str | None = None) -> None:
        self._total = check_count("tokens", tokens)
        if name is not None:
            check("name", NAMES.text(), name)
        self.name = name
        self._in_use = 0
        self._peak = 0
        self.binding: LoopBinding = LoopBinding()

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Capacity({self._total}{name})"

    @property
    def total_tokens(self) -> int | None:
        """The number of calls that may be in flight. Settable while in use; lowering it never interrupts a call."""
        return self._total

    @total_tokens.setter
    def total_tokens(self, value: int | None) -> None:
        self._total = check_count("total_tokens", value)
        self.report_room()
        self.binding.tell()

    def statistics(self) -> CapacityStatistics:
        """Return the numbers of this moment."""
        return CapacityStatistics(tokens_in_use=self._in_use, total_tokens=self._total, peak=self._peak)

    def free(self, now: float) -> float:
        """Return the number of free tokens; negative after `total_tokens` was lowered below the use."""
        return math.inf if self._total is None else self._total - self._in_use

    def take(self, now: float) -> None:
        """Take a token."""
        self._in_use += 1
        if self._in_use > self._peak:
            self._peak = self._in_use

    def give(self) -> None:
        """Give a token back."""
        self._in_use -= 1
        if self.line is not None:
            self.line.mark()


class OrderedCapacity(Capacity):
    """A capacity whose calls start strictly in arrival order: a serial group of one turn."""

    ordered = True


class RateStatistics(Value, frozen=True, kw_only=True):
    """`started_in_window` calls of the `count` allowed per `per` seconds, as of the last check or start."""

    started_in_window: int
    count: int
    per: float


class Rate(Limit):
    """A limit of *count* calls whose bodies start within any window of *per* seconds.

    A call takes its start when it is admitted, and its window begins when its body does: a journal, a guardrail or a
    hook may take time between the two. A call whose body never begins gives its start back.

    Example:
        from agentloop import Rate, tool

        @tool(capacity=Rate(5, per=1.0))  # at most five calls start within a second
        async def search(text: str) -> str:
            "Search the web."
            return "nothing"

        print(search.capacity[0].count)  # 5
    """

    freed_by_calls = False

    def __init__(self, count: int, per: float, name: str | None = None) -> None:
        checked_count, checked_per = check_count("count", count), check_seconds("per", per)
        if checked_count is None or checked_per is None:
            raise UserTypeError("Rate: count and per are both needed")
        self.count: int = checked_count
        self.per: float = checked_per
        if name is not None:
            check("name", NAMES.text(), name)
        self.name = name
        self._starts: deque[float] = deque()
        self._admitted = 0
        """Number of admitted calls whose bodies haven't begun."""
        self.binding: LoopBinding = LoopBinding()

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Rate({self.count}, {self.per:g}{name})"

    def statistics(self) -> RateStatistics:
        """Return the numbers of this moment."""
        return RateStatistics(started_in_window=len(self._starts), count=self.count, per=self.per)

    def free(self, now: float) -> float:
        """Return the number of further calls for whose starts the window that ends at *now* has room."""
        starts = self._starts
        # A start after *now* comes from the clock of another loop and says nothing about this one.
        while starts and (starts[0] + self.per <= now or starts[0] > now):
            starts.popleft()
        return self.count - len(starts) - self._admitted

    def take(self, now: float) -> None:
        """Take one of the starts for an admitted call."""
        self._admitted += 1

    def begin(self, now: float) -> None:
        """Count a start: it stays spent until its window has passed."""
        self._admitted -= 1
        self._starts.append(now)
        self.report_room()  # there is none yet, but from now on time makes it

    def give(self) -> None:
        """Give back the start of a call whose body never began."""
        self._admitted -= 1
        self.report_room()

    def next_room(self, now: float) -> float:
        """Return the time at which the oldest start leaves the window; infinity if there is none."""
        self.free(now)
        return self._starts[0] + self.per if self._starts else math.inf

    def shrink(self, free: int, until: float, now: float) -> None:
        """Leave *free* starts at most up to *until*: the server has counted others, which it forgets then."""
        from bisect import insort  # for this only

        for _ in range(int(self.free(now)) - max(free, 0)):
            insort(self._starts, min(until - self.per, now))


class TokenRateStatistics(Value, frozen=True, kw_only=True):
    """`tokens_in_window` of the `tokens` allowed per `per` seconds, as of the last check or start."""

    tokens_in_window: int
    tokens: int
    per: float


class TokenStart(msgspec.Struct, eq=False):
    """The count of one request in a `TokenRate`: *tokens* from *at* on, expected first and told by the answer later.

    `counted` as long as it is in the window.
    """

    at: float
    tokens: int
    counted: bool = True


class TokenRate(Limit):
    """A limit of *tokens* of model requests, input and output together, within any window of *per* seconds.

    A request waits until there is room for the tokens that it will probably take: those of its input, as counted or
    estimated, and as many more as the requests before it took. Until the first answer tells, a tenth of the limit is
    kept for each. Once the answer has told what a request took, that counts. A request that is larger than the whole
    limit waits for an empty window.

    For models only: `limits=` of a model or of a provider, `RunConfig(model_limits=…)`.

    Example:
        from agentloop import Agent, Rate, RunConfig, Runner, TokenRate
        from agentloop.testing import ScriptedModel, say

        account = [Rate(60, per=60), TokenRate(100_000, per=60)]  # what the provider allows in a minute, to all runs
        agent = Agent("a", model=ScriptedModel([say("hi")]))
        print(Runner.run_sync(agent, "go", run_config=RunConfig(model_limits=account)).final_output)  # hi
    """

    weighed = True
    freed_by_calls = False

    def __init__(self, tokens: int, per: float = 60.0, name: str | None = None) -> None:
        checked_tokens, checked_per = check_count("tokens", tokens), check_seconds("per", per)
        if checked_tokens is None or checked_per is None:
            raise UserTypeError("TokenRate needs both: tokens and per")
        self.tokens: int = checked_tokens
        self.per: float = checked_per
        if name is not None:
            check("name", NAMES.text(), name)
        self.name = name
        self._starts: deque[TokenStart] = deque()
        self._spent = 0
        """The sum of the tokens of `_starts`."""
        self._admitted = 0
        """The tokens of admitted requests that haven't begun."""
        self._more: float | None = None
        """By how much more than their input alone the last requests took, on average; None before the first answer."""
        self._spread = 0.0
        """The average distance from that."""
        self._told: tuple[TokenStart, float] | None = None
        """The count of others, as the server told it, and when it said so."""
        self.binding: LoopBinding = LoopBinding()

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"TokenRate({self.tokens}, {self.per:g}{name})"

    def statistics(self) -> TokenRateStatistics:
        """Return the numbers of this moment."""
        return TokenRateStatistics(tokens_in_window=self._spent + self._admitted, tokens=self.tokens, per=self.per)

    def amount(self, weight: int) -> int:
        """Return the tokens that a request with *weight* tokens of input will probably take: at most the limit."""
        more = self.tokens / 10 if self._more is None else self._more + self._spread
        return min(max(int(weight + more), 1), self.tokens)

    def free(self, now: float) -> float:
        """Return the tokens for which the window that ends at *now* has room; negative if answers took more."""
        starts = self._starts
        while starts and (starts[0].at + self.per <= now or starts[0].at > now):
            over = starts.popleft()
            over.counted = False
            self._spent -= over.tokens
        return self.tokens - self._spent - self._admitted

    def take_amount(self, amount: int) -> None:
        """Take the tokens of an admitted request."""
        self._admitted += amount

    def begin_amount(self, now: float, amount: int) -> TokenStart:
        """Count the tokens of an admitted request, which begins now, in the window; return the count, to correct it."""
        self._admitted -= amount
        start = TokenStart(now, amount)
        self._starts.append(start)
        self._spent += amount
        self.report_room()
        return start

    def give_amount(self, amount: int) -> None:
        """Give back the tokens of a request that never began."""
        self._admitted -= amount
        self.report_room()

    def _learn(self, more: int) -> None:
        """Note that a request took *more* tokens than those of its input."""
        if self._more is None:
            self._more, self._spread = float(more), abs(more) / 2  # one answer doesn't tell how they differ
        self._spread += 0.1 * (abs(more - self._more) - self._spread)
        self._more += 0.1 * (more - self._more)

    def settle(self, start: TokenStart, tokens: int, input_tokens: int) -> None:
        """Count *tokens*, which the answer told, for the request of *start*, whose input was estimated before."""
        self._learn(tokens - input_tokens)
        less = start.tokens - tokens
        if start.counted:
            self._spent -= less
        start.tokens = tokens
        if self._told is not None and less > 0 and start.at <= self._told[1] and self._told[0].counted:
            # The server knew of this request when it told what it has left, which is no more for our mistake.
            self._told[0].tokens += less
            self._spent += less
        self.report_room()

    def next_room(self, now: float) -> float:
        """Return the time at which the oldest request leaves the window; infinity if there is none."""
        self.free(now)
        return self._starts[0].at + self.per if self._starts else math.inf

    def shrink(self, free: int, until: float, now: float) -> None:
        """Leave *free* tokens at most up to *until*: the server has counted others, which it forgets then."""
        others = int(self.free(now)) - max(free, 0)
        if others > 0:
            from bisect import insort  # for this only

            start = TokenStart(min(until - self.per, now), others)
            insort(self._starts, start, key=lambda one: one.at)
            self._spent += others
            self._told = start, now


class Hold(Limit):
    """A time up to which the server of a model wants no request of any run (`Retry-After`)."""

    freed_by_calls = False

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self.until: float = -math.inf
        """A time on the clock of the loop."""

    def extend(self, until: float) -> None:
        """Let no request start before *until*."""
        self.until = max(self.until, until)

    def free(self, now: float) -> float:
        """Return infinity, or 0 before its time."""
        return math.inf if now >= self.until else 0

    def take(self, now: float) -> None:
        """Do nothing: it counts no request."""

    def begin(self, now: float) -> None:
        """Do nothing."""

    def give(self) -> None:
        """Do nothing."""

    def next_room(self, now: float) -> float:
        """Return its time; infinity if that has passed."""
        return self.until if now < self.until else math.inf
