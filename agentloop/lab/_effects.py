"""The firewall: the one door of every run in the lab. Nothing of the outside world happens unless it is allowed.

    a model call    equal to a recorded one: the recorded answer. Any other: the candidate's model, through the cache;
                    with tools that the provider runs itself only if `unmatched` is "live"
    a tool call     equal to a recorded one (tool, arguments, occurrence): the recorded outcome. Any other: the body of
                    a tool that only reads; else what `unmatched` says
    a call in the background   as any; its result comes in the turn in which it came
    a nested run    runs, through this same door
    a guardrail, a callback   runs as code under test, watched; with `recorded_guards` a guardrail has its verdict
    a session       has what the log says that it had; is never written
    a clock         the log's: time passes by what the recorded work took

A run of the lab follows the log until the log says no more: it was cut off there, or it hides a secret. Then the lab
ends the run, by cancelling it, and `end` says why; a fork continues where the log was cut off. A nested run that its
call cut off ends without the others.

Two kinds of effects are no more than watched: what a guardrail or a callback does by itself can't be prevented from
here. Callbacks without a result that counts (`on_handoff`) and those that keep something elsewhere (`output_store`)
aren't called.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import anyio
import attrs

from agentloop import guardrails as g
from agentloop import records as r
from agentloop._common.values import Value
from agentloop.abc import Instrument
from agentloop.abc import effects as e
from agentloop.context import RunContext
from agentloop.exceptions import UserError, UserValueError
from agentloop.items import Text, UserMessage
from agentloop.lab._cache import AnswerCache, key_of
from agentloop.lab._copies import RecordedSandbox
from agentloop.lab._recorded_errors import rebuilt, rebuilt_model_error
from agentloop.lab._recording import (
    PARTS,
    EndKind,
    Path,
    RecordedCall,
    RecordedExchange,
    Recording,
    normal_items,
    parts_of,
)
from agentloop.lab._stub import draw_value
from agentloop.lab._watch import watch
from agentloop.model_events import ModelRequest, ModelResponse
from agentloop.outcomes import SUCCESSES, CallOutcome
from agentloop.state import RunState
from agentloop.tools import ExternalBody, FunctionTool

Unmatched: TypeAlias = Literal["refuse", "stub", "simulate", "live"]
_CUT = "characters cut"
Source: TypeAlias = Literal["recorded", "ran", "refused", "stub", "simulated", "live"]
"""Where the outcome of a call in the lab came from."""


class SimulatedCall(Value, frozen=True, kw_only=True):
    """The argument of a simulation: the call of a tool that the recorded run hasn't made.

    Attributes:
        tool: The tool's name, with its namespace.
        arguments: Its arguments as JSON values.
        context: The application's object of the run.
    """

    _unshown = frozenset({"context"})

    tool: str
    arguments: Mapping[str, Any]
    context: Any = None


Simulation: TypeAlias = Callable[[SimulatedCall], Any | Awaitable[Any]]


class Results(Value, frozen=True, eq=False):
    """A source without a tool: each turn begins once the bodies in the background have ended that had by then."""

    effects: LabEffects

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Any:
        """Wait for them."""
        path = self.effects.note_own_source()
        await self.effects.add_results()
        if not path:
            await self.effects.add_late_inputs()
        return ()


class LabBudget:
    """How many requests the candidate's models may get in a comparison; None = no limit. Shared by its runs."""

    def __init__(self, most: int | None) -> None:
        self.most, self.spent = most, 0

    def spend(self) -> None:
        """Count one more request.

        Raises:
            UserError: if there is none left.
        """
        if self.most is not None and self.spent >= self.most:
            raise UserError(f"the budget of {self.most} model requests is spent")
        self.spent += 1


@attrs.frozen(kw_only=True, eq=False)
class LabRules:
    """The rules of the firewall, the same for all runs of a comparison.

    Raises:
        UserError: `simulate` is given without the rule of that name, or this without it.
    """

    unmatched: Unmatched = "refuse"
    simulate: Simulation | None = None
    recorded_guards: bool = False
    toolsets: bool = False
    continues: bool = False
    """True if a run continues where the log says no more: at an end from outside, or a call without an outcome."""
    fresh: bool = False
    """True to ask models also what the log answers."""
    seed: int = 0
    cache: AnswerCache = attrs.field(factory=lambda: AnswerCache(None))
    budget: LabBudget = attrs.field(factory=lambda: LabBudget(None))

    def __attrs_post_init__(self) -> None:
        if (self.unmatched == "simulate") != (self.simulate is not None):
            raise UserValueError("simulate: expected a function together with unmatched='simulate'")


@attrs.define(eq=False)
class SeenRequest:
    """A request of the lab's run. `changed` names the parts that no recorded request has; `asked` is True if the
    candidate's model was asked, or its kept answer used."""

    path: Path
    turn: int
    changed: tuple[str, ...] = ()
    asked: bool = False


class LabEffects(Instrument):
    """The effects of one run in the lab, in place of the application's. Made for one run; not thread-safe.

    Attributes:
        records: The log of the run so far, in all its segments.
        seen: Its model requests.
        sources: By path and call id, where the outcome of a call came from.
        notes: What code under test did beyond the process.
        ended: Why the run was ended before its own end; None if it wasn't.
        requests: How many requests the candidate's models really got.
    """

    performs_background = True

    def __init__(
        self, recording: Recording, rules: LabRules, *, repeat: int = 0, begun: Sequence[r.Record] = ()
    ) -> None:
        self._recording, self._rules, self._repeat = recording, rules, repeat
        self.records: list[r.Record] = list(begun)
        started = begun[0] if begun else recording.started
        assert isinstance(started, r.RunStarted)
        self._run_id = started.run_id
        self.seen: list[SeenRequest] = []
        self.sources: dict[tuple[Path, str], Source] = {}
        self.notes: list[str] = []
        self.ended: EndKind | None = None
        self.ended_in = 0
        self.requests = 0
        self.scope = anyio.CancelScope()
        self._now = begun[-1].at if begun else recording.records[0].at
        self._digest: dict[Path, str] = {}
        self._matched: dict[tuple[Path, str], RecordedCall] = {}
        self._nested: dict[Path, anyio.CancelScope] = {}
        """The scopes of nested runs whose call the log shows as cut."""
        self._asked: Counter[str] = Counter()
        self._turns: dict[Path, int] = {one.path: one.turn for one in self.records if isinstance(one, r.TurnStarted)}
        self._arriving: set[tuple[Path, str]] = set()
        """The background calls that have settled, and whose bodies haven't come to the door yet."""
        self._due: dict[tuple[Path, str], _Due] = {}
        """The bodies that wait for the turn in which their results came."""
        self._sources_asked: dict[int, tuple[Path, str]] = {}
        """The sources of tools that are asked now, by task."""
        self._own_sources: set[tuple[Path, str]] = set()
        self._awaiting: set[Path] = set()
        """The runs that would end, and wait for a result."""
        self._ending: set[tuple[Path, str]] = set()
        """The background calls whose bodies end now, and whose results aren't in the log yet."""
        self.give: Callable[..., Awaitable[str]] | None = None
        """Gives input to the run under way (`RunStream.add_input`), if it gets what the recorded run got."""

    @property
    def follows(self) -> bool:
        """True as long as all answers of models came from the log."""
        return not any(one.asked for one in self.seen)

    @property
    def _may_end(self) -> bool:
        """True if the run ends where the log says no more."""
        return self.follows and not self._rules.continues

    @property
    def runs_bodies(self) -> bool:
        """True if calls that the log doesn't have do to the world what they do."""
        return self._rules.unmatched == "live"

    @property
    def may_ask_sources(self) -> bool:
        """True if sources of tools may be asked that aren't made of bundles."""
        return self._rules.toolsets

    @property
    def turn_sources(self) -> tuple[Results]:
        """A source that keeps a turn from its beginning until the results are there that had come by then."""
        return (Results(self),)

    def note_own_source(self) -> Path:
        """Note that the current task asks the lab's own source: the log doesn't tell of that. Return the run's path."""
        asked = self._sources_asked.pop(anyio.get_current_task().id)
        self._own_sources.add(asked)
        return asked[0]

    # -- what the log of the run needs

    def wall(self) -> float:
        """Return the time of the lab's run: that of the log, and what the work since then has taken."""
        return self._now

    def expect(self, record: r.Record) -> r.Record | None:
        """Take *record* of the lab's run, and return it with the recorded outcome of a call that was matched.

        Return None for one that only the lab's own source makes.
        """
        match record:
            case r.CallbackReturned(path, what="toolset", key=key) if (path, key) in self._own_sources:
                return None
            case r.ModelRequested():
                self._digest[record.path] = record.digest
            case r.TurnStarted():
                self._turns[record.path] = record.turn
            case r.RunEnded(path):
                self._arriving = {one for one in self._arriving if one[0] != path}
                self._ending = {one for one in self._ending if one[0] != path}
            case r.CallSettled(path, call_id=call_id):
                record = self._take_outcome(record)
                if record.background:
                    self._arriving.add((path, call_id))
            case r.InputAdded(path, call_id=str(call_id)):
                record = self._take_result(record, call_id)
            case _:
                pass
        return record

    def on_record(self, record: r.Record) -> None:
        """Keep *record* as the log has it: what is secret in it is marked."""
        self.records.append(record)

    def _take_outcome(self, settled: r.CallSettled) -> r.CallSettled:
        """Return *settled* with the recorded outcome, unless the candidate's own code decided otherwise."""
        call = self._matched.get((settled.path, settled.call_id))
        if call is None or call.settled is None:
            return settled
        then, now = call.settled.outcome, settled.outcome
        ends = (then.status in SUCCESSES, then.status == "rejected") == (
            now.status in SUCCESSES,
            now.status == "rejected",
        )
        was_cut = isinstance(then.output, str) and _CUT in then.output  # and is cut a second time
        if not ends or not (was_cut or _as_json(then.output) == _as_json(now.output)):
            return settled
        times = {"started_at": now.started_at, "ended_at": now.ended_at}
        return settled.replace(
            outcome=then.replace(value=now.value, error=now.error, **times), error=call.settled.error
        )

    def _take_result(self, added: r.InputAdded, call_id: str) -> r.InputAdded:
        """Return *added* as it was recorded, where it is the recorded result: what was cut isn't cut a second time."""
        place = (added.path, call_id)
        call = self._matched.get(place) if place in self._ending else None
        self._ending.discard(place)
        self._arriving.discard(place)
        if call is None or call.result is None or (call.path, call.call_id) != place:
            return added
        return added.replace(items=call.result.items)

    # -- the door

    async def perform(self, effect: e.Effect) -> Any:
        """Answer *effect*, or perform it where the rules allow that.

        Cancellation: as that of the effect; where the log says no more, the run is cancelled from here.

        Raises:
            UserError: what the effect needs isn't allowed; names it and the option that allows it.
            BaseException: the recorded error of the effect, or its own.
        """
        match effect:
            case e.NewId():
                return self._run_id
            case e.Now():
                return self.wall()
            case e.Random():
                return 0.5
            case e.Sleep(seconds):
                self._now += seconds
                return None
            case e.CallModel():
                return await self._call_model(effect)
            case e.CallTool():
                return await self._call_tool(effect)
            case e.Guard():
                return await self._guard(effect)
            case e.LoadSession(path):
                return self._load_session(path)
            case e.SaveSession():
                return None
            case e.AwaitInput(path):
                return await self._await_input(effect, path)
            case e.CallCallback():
                return await self._call_callback(effect)

    async def end(self, path: Path, turn: int, why: EndKind) -> Any:
        """End the run at *path*, where the log says no more: only it if its call was cut, else the whole run."""
        for length in range(len(path), 0, -1):
            if (scope := self._nested.get(path[:length])) is not None:
                scope.cancel()
                await anyio.sleep_forever()
        if self.ended is None:
            self.ended, self.ended_in = why, turn
        self.scope.cancel()
        await anyio.sleep_forever()

    def _pass(self, began: float, seconds: float) -> None:
        """Let the time pass that work took which began at *began*, beside other work."""
        self._now = max(self._now, began + seconds)

    async def add_inputs(self, turn: int, *, before: float = math.inf) -> None:
        """Give the run under way what the application had added to the recorded one by the end of *turn*.

        Only what lies *before* that place in the log: what came behind a result is shown behind it.

        Raises:
            InputRefusedError: the run has no turn left.
        """
        if (give := self.give) is None:
            return
        for added in self._recording.take_inputs(turn, before):
            await give(added.items, when=added.when, id=added.id or None, by=added.by)

    def add_inputs_to(self, state: RunState) -> None:
        """Add to *state*, which is resumed, what the application had added before it resumed the recorded run."""
        resumed = sum(isinstance(one, r.RunResumed) and not one.path for one in state.records)
        before = self._recording.find_resumption(resumed)
        for added in self._recording.take_inputs(self._find_answered_turn(), before):
            state.add_input(added.items, when=added.when, id=added.id or None, by=added.by)

    async def add_late_inputs(self) -> None:
        """Give what was added by the end of the turn that is over, behind results of its calls."""
        await self.add_inputs(self._find_answered_turn())

    async def add_first_inputs(self) -> None:
        """Give what was added by the end of the turn under way, as a segment begins in it, before results of its calls.

        Raises:
            InputRefusedError: as `add_inputs`.
        """
        turn = self._find_answered_turn()
        await self.add_inputs(turn, before=self._find_next_result((), turn))

    def _find_answered_turn(self) -> int:
        """Return the last turn that has an answer; a fork may begin another one anew."""
        answers = (one.turn for one in reversed(self.records) if isinstance(one, r.ModelResponded) and not one.path)
        return next(answers, 0)

    def _find_next_result(self, path: Path, turn: int) -> float:
        """Return the place of the first result of a call in this *turn* that came by its end, which comes now, too.

        What came behind it waits for the next turn's begin. Infinity if there is none, or if all of them are there.
        """
        calls = self._recording.started_in(path, turn)
        ended = [one for one in calls if one.result is not None and one.result.turn <= turn]
        if not ended:
            return math.inf
        came = {one.call_id for one in self.records if isinstance(one, r.InputAdded) and one.path == path}
        return min((one.result_at for one in ended if one.call_id not in came), default=math.inf)

    async def _await_input(self, effect: e.AwaitInput, path: Path) -> Any:
        """Let the bodies end whose results came first, as the run would end; also one that only begins now."""
        left = sorted([due for (where, _), due in self._due.items() if where == path], key=_Due.order)
        first = left[0].turn if left else 0
        begun = [one for one in self.records if one.path == path]
        ran = sum(isinstance(one, r.CallSettled) and one.background for one in begun)
        ended = sum(isinstance(one, r.InputAdded) and one.call_id is not None for one in begun)
        if first == math.inf and ran - ended > len(left):
            left = []  # another one comes to the door first
        for due in left if first == math.inf else left[:1]:  # those that came later in that turn come before the next
            due.ready.set()
        self._awaiting.add(path)
        try:
            return await effect.do()
        finally:
            self._awaiting.discard(path)

    async def add_results(self, *, before: float = math.inf, turn: int | None = None) -> None:
        """Let the bodies in the background end whose results came by now in the recorded run, and wait for that.

        Only those *before* that place in the log. One after the other, in the order in which they came, with what the
        application had added between them, by the end of *turn*: a model is shown them in it.
        """
        known, idle = len(self.records), 0
        while idle < _PASSES:
            late = [due for due in self._list_late() if due.at < before]
            if not self._arriving and not self._ending and not late:
                break
            if late and not self._ending and (not self._arriving or idle > _PASSES // 2):
                first = min(late, key=_Due.order)
                await self.add_inputs(self._find_answered_turn() if turn is None else turn, before=first.at)
                first.ready.set()
            await anyio.lowlevel.checkpoint()
            known, idle = len(self.records), idle + 1 if len(self.records) == known else 0

    def _list_late(self) -> list[_Due]:
        """Return the bodies whose results came by the turns under way."""
        return [due for (path, _), due in self._due.items() if due.turn <= self._turns.get(path, 0)]

    # -- models

    async def _call_model(self, effect: e.CallModel) -> ModelResponse:
        path, turn, began = effect.path, effect.turn, self._now
        digest = self._digest[path]
        exchange = None if self._rules.fresh else self._find_exchange(effect, digest)
        before = math.inf if exchange is None else self._find_next_result(path, turn)
        await self.add_results(before=before, turn=None if path else turn)
        if not path:
            await self.add_inputs(turn, before=before)
        if exchange is not None and not (exchange.end == "cut" and self._rules.continues):
            self.seen.append(SeenRequest(path, turn))
            if exchange.end is not None:
                await self.end(path, turn, exchange.end)
            self._pass(began, exchange.seconds)
            await anyio.lowlevel.checkpoint()
            if exchange.responded is not None:
                return exchange.responded.response
            assert exchange.failed is not None
            error = rebuilt_model_error(exchange.failed)
            error.should_retry = False  # type: ignore[attr-defined]
            raise error
        recorded = self._recording
        if self._may_end and recorded.is_cut and (path, turn) not in recorded.by_place:
            await self.end(path, turn, "cut")
        self.seen.append(SeenRequest(path, turn, self._find_changes(effect, digest), asked=True))
        if effect.attempt == 1 and recorded.started.kept and not path:
            await self.end(path, turn, "kept")
        return await self._ask(effect, began)

    def _find_exchange(self, effect: e.CallModel, digest: str) -> RecordedExchange | None:
        """Return the recorded exchange whose request is equal, part by part, ids apart."""
        found = self._recording.find_exchange(effect.path, effect.turn, digest)
        if found is None and not self.follows:
            # Only an answer that isn't from the log can have brought other ids.
            key = (normal_items(effect.request.items), *parts_of(digest)[1:])
            left = [one for one in self._recording.by_history.get(key, ()) if not one.used]
            found = left[0] if left else None
            if found is not None:
                found.used = True
        if found is None or _is_other_model(found, effect.model):
            return None
        return found

    def _find_changes(self, effect: e.CallModel, digest: str) -> tuple[str, ...]:
        """Return what of a request differs from the recorded one of its turn; nothing if there was none."""
        then = self._recording.by_place.get((effect.path, effect.turn))
        if then is None:
            return ()
        old, new = parts_of(then.digest), parts_of(digest)
        changed = [name for name, was, now in zip(PARTS, old, new, strict=False) if was != now]
        return (*changed, *(["model"] if _is_other_model(then, effect.model) else []))

    async def _ask(self, effect: e.CallModel, began: float) -> ModelResponse:
        rules = self._rules
        key = key_of(effect.request, effect.model.info, self._repeat)
        self._asked[key] += 1
        place = f"{key}-{self._asked[key]}" if self._asked[key] > 1 else key
        secret = _may_quote_secrets(effect.request)
        kept = None if secret else rules.cache.find(place)
        if kept is None:
            if effect.request.hosted and rules.unmatched != "live":
                kinds = ", ".join(sorted({one.kind for one in effect.request.hosted}))
                raise UserError(
                    f"hosted tools ({kinds}) run for real: the lab sends them with unmatched='live' (--unmatched live) "
                    "only, because the provider runs them"
                )
            rules.budget.spend()
            self.requests += 1
            clock = time.monotonic()
            response: ModelResponse = await effect.do()
            kept = response, round(time.monotonic() - clock, 3)
            if not secret:
                rules.cache.keep(place, *kept)
        else:
            await anyio.lowlevel.checkpoint()
        self._pass(began, kept[1])
        return kept[0]

    # -- tools

    async def _call_tool(self, effect: e.CallTool) -> Any:
        path, call_id, began, tool = effect.path, effect.call_id, self._now, effect.definition
        call = self._recording.find_call(tool.qualified_name, effect.arguments, path, call_id)
        if tool.background:
            return await self._call_in_background(effect, call, began)
        if self._is_cut_by_sibling(path, call_id):
            await anyio.sleep_forever()
        if effect.nested:
            return await self._run_nested(effect, call)
        if isinstance(tool.body, ExternalBody):
            self.sources[path, call_id] = "recorded"  # the answer is in the log, or the run waits for it
            return await effect.do()
        return await self._call_body(effect, call, began)

    async def _call_in_background(self, effect: e.CallTool, call: RecordedCall | None, began: float) -> Any:
        """Return the value of a body in the background; a recorded result in the turn in which it came.

        With a limit or a thread it doesn't wait for its turn: calls of an earlier one may wait for what it holds.
        """
        place, tool = (effect.path, effect.call_id), effect.definition
        self._arriving.discard(place)
        waits = call is not None and not tool.capacity and not tool.runs_in_thread
        if call is not None and waits and not (call.end == "cut" and self._rules.continues):
            self._due[place] = due = _Due(self._find_turn(effect, call), call.result_at)
            if effect.path in self._awaiting and (due.turn < math.inf or call.result is None):
                due.ready.set()  # a fork of a run that waited for it
            try:
                await due.ready.wait()
            finally:
                del self._due[place]
        if call is not None:
            self._ending.add(place)
        try:
            value = await self._call_body(effect, call, began)
        except Exception:
            self._ending.add(place)
            raise
        if self.sources[place] in ("ran", "live"):  # these take real time
            self._ending.discard(place)
        else:
            self._ending.add(place)
        return value

    def _find_turn(self, effect: e.CallTool, call: RecordedCall) -> float:
        """Return the turn of the lab's run in which the result of *call* comes; infinity for the end of the run."""
        if call.settled is not None and not call.settled.background:
            return 0  # it ran in the foreground
        result = call.result
        if result is None:
            return math.inf
        if effect.definition.on_end == "cancel" and (call.path, result.id) in self._recording.withdrawn:
            return math.inf  # the end of the run cancelled it
        starts = (one for one in reversed(self.records) if isinstance(one, r.CallStarted))
        start = next(one for one in starts if (one.path, one.call_id) == (effect.path, effect.call_id))
        return start.turn + result.turn - call.turn

    async def _call_body(self, effect: e.CallTool, call: RecordedCall | None, began: float) -> Any:
        path, call_id, tool = effect.path, effect.call_id, effect.definition
        turn = next((one.turn for one in reversed(self.seen) if one.path == path), 0)
        if call is None:
            if self._may_end and self._recording.is_cut and self._recording.lacks_outcome(path, call_id):
                await self.end(path, turn, "cut")
            return await self._call_unmatched(effect, began)
        if call.end == "cut" and self._rules.continues:
            return await self._call_unmatched(effect, began)
        if call.end is not None:
            await self.end(path, turn, call.end)
        settled = call.settled
        assert settled is not None
        outcome = settled.outcome
        if outcome.cancelled_by == "sibling" and not self._has_call(path, outcome.cancelled_by_call):
            return await self._call_unmatched(effect, began)
        self.sources[path, call_id] = "recorded"
        call.definition = tool
        self._matched[path, call_id] = call
        self._pass(began, call.seconds)
        await anyio.lowlevel.checkpoint()
        return _play(call, tool)

    def _is_cut_by_sibling(self, path: Path, call_id: str) -> bool:
        """Tell whether the log shows that a call which has failed by now kept this one from its start."""
        settled = self._recording.outcomes.get((path, call_id))
        if settled is None or not self.follows or settled.outcome.started_at is not None:
            return False
        outcome = settled.outcome
        return outcome.cancelled_by == "sibling" and (path, outcome.cancelled_by_call) in self._matched

    def _has_call(self, path: Path, call_id: str | None) -> bool:
        """Tell whether the lab's run has the call *call_id*, which the log shows to fail."""
        answers = (one for one in reversed(self.records) if isinstance(one, r.ModelResponded) and one.path == path)
        last = next(answers, None)
        return last is not None and any(getattr(item, "call_id", None) == call_id for item in last.response.items)

    async def _run_nested(self, effect: e.CallTool, call: RecordedCall | None) -> Any:
        path = (*effect.path, effect.call_id)
        self.sources[effect.path, effect.call_id] = "ran"
        settled = None if call is None else call.settled
        if call is None or settled is None or call.end is not None or settled.outcome.status == "succeeded":
            return await effect.do()
        with anyio.CancelScope() as scope:
            self._nested[path] = scope
            return await effect.do()
        del self._nested[path]
        self._matched[effect.path, effect.call_id] = call
        return _play(call, effect.definition)

    async def _call_unmatched(self, effect: e.CallTool, began: float) -> Any:
        rules, tool, place = self._rules, effect.definition, (effect.path, effect.call_id)
        if tool.reads_only:
            self.sources[place] = "ran"
            return await self._measure(effect.do, began)
        match rules.unmatched:
            case "live":
                self.sources[place] = "live"
                return await self._measure(effect.do, began)
            case "simulate":
                assert rules.simulate is not None
                self.sources[place] = "simulated"
                arguments = json.loads(effect.arguments) if tool.kind != "custom" else {"input": effect.arguments}
                call = SimulatedCall(tool=tool.qualified_name, arguments=arguments, context=effect.context.context)
                made = rules.simulate(call)
                return await made if inspect.isawaitable(made) else made
            case "stub":
                self.sources[place] = "stub"
                return draw_value(tool, f"{rules.seed} {tool.qualified_name} {effect.arguments}")
            case _:
                self.sources[place] = "refused"
                return f"Tool '{tool.name}' is not available in this replay."

    async def _measure(self, do: Callable[[], Awaitable[Any]], began: float) -> Any:
        clock = time.monotonic()
        try:
            return await do()
        finally:
            self._pass(began, round(time.monotonic() - clock, 3))

    # -- the application's code

    async def _guard(self, effect: e.Guard) -> Any:
        if self._rules.recorded_guards and (found := self._find_verdict(effect)) is not None:
            return _as_verdict(found)
        with watch(self.notes, f"guardrail {effect.name}"):
            return await effect.do()

    def _find_verdict(self, effect: e.Guard) -> r.GuardrailSettled | None:
        found = self._recording.guardrails.get((effect.path, effect.stage, effect.name, effect.call_id))
        return found.pop(0) if found else None

    def _load_session(self, path: Path) -> list[Any]:
        started = self._recording.starts(path)
        if started is None or started.shown is None:
            return []
        before = len(started.shown) - len(started.input)
        return list(started.shown[:before])

    async def _call_callback(self, effect: e.CallCallback) -> Any:
        match effect.what:
            case "on_handoff":
                return None
            case "failure_error_function" if (call := self._matched.get((effect.path, effect.key))) is not None:
                assert call.settled is not None
                if call.settled.background:  # the error is the lab's: the end of the run cancels the body
                    return await effect.do()
                return call.settled.outcome.output  # None: the error ended the run
            case "sandbox":
                return RecordedSandbox(effect.key)
            case "output_store":
                return "(not kept in the lab)"
            case "toolset":
                self._sources_asked[anyio.get_current_task().id] = effect.path, effect.key
                return await effect.do()
            case _:
                with watch(self.notes, f"callback {effect.what}"):
                    return await effect.do()


def _is_told(outcome: CallOutcome, tool: Any) -> bool:
    """Tell whether the model heard of an end though the tool lets its errors end the run: it is played as a value.

    The recorded outcome takes its place, but for an idempotent tool, whose values are receipts for equal calls.
    """
    ends = outcome.status not in SUCCESSES and outcome.output is not None
    return ends and tool is not None and tool.failure_error_function is None


def _way_of(outcome: CallOutcome) -> str:
    """Return how an outcome is treated further: a success may be a receipt for an equal call."""
    return outcome.status if outcome.status == "rejected" else "success" if outcome.status in SUCCESSES else "failure"


def _as_json(output: Any) -> Any:
    """Return what an output says: the log gives back a value as JSON with sorted keys."""
    try:
        return json.loads(output) if isinstance(output, str) else output
    except ValueError:
        return output


def _is_other_model(then: RecordedExchange, model: Any) -> bool:
    now = model.info
    return then.model is not None and (then.model.provider, then.model.name) != (now.provider, now.name)


@attrs.frozen(eq=False)
class _Due:
    """A body that waits for the *turn* in which its result came, and lies *at* that place in the log; infinity: the
    run's end."""

    turn: float
    at: int
    ready: anyio.Event = attrs.field(factory=anyio.Event)

    def order(self) -> tuple[float, int]:
        """Return what the results of a run are sorted by."""
        return self.turn, self.at


_PASSES = 200
"""Of the event loop: more than a body that gives a recorded result needs from its call to the result in the log."""


def _read_result(added: r.InputAdded) -> Any:
    """Return the output in the result of a background call: what comes behind its head."""
    [message] = added.items
    assert isinstance(message, UserMessage)
    first = message.content[0]
    assert isinstance(first, Text)
    _, _, text = first.text.partition("\n")
    return text if text or len(message.content) == 1 else list(message.content[1:])


def _play(call: RecordedCall, tool: FunctionTool[Any]) -> Any:
    """Return the value of a recorded body, or raise its error.

    What the model heard of the error is the answer of the tool's `failure_error_function`. An end that isn't the
    body's own, such as a timeout, is raised as an error, too: `LabEffects.expect` puts the recorded outcome in its
    place.
    """
    settled = call.settled
    assert settled is not None
    outcome, body = settled.outcome, call.body
    if call.result is not None:
        return _read_result(call.result)
    if outcome.status == "succeeded":
        return body.value if body is not None and body.kept and not body.failed else outcome.output
    if outcome.status in ("rejected", "failed") and body is not None and not body.failed:
        # A guardrail has decided on the body's value, and decides again.
        return body.value if body.kept else outcome.output
    if _is_told(outcome, tool):
        return outcome.output
    raise rebuilt(settled.error or outcome.status, fatal=body is not None and body.fatal)


def _may_quote_secrets(request: ModelRequest) -> bool:
    """Tell whether the answer may quote something secret, of the input or of a tool: then it is kept nowhere."""
    said = any(getattr(one, "secret", False) for one in request.items)
    return said or any(getattr(one, "secret", ()) or getattr(one, "secret_output", False) for one in request.tools)


def _as_verdict(settled: r.GuardrailSettled) -> Any:
    detail: Any = settled.detail
    if settled.verdict == "ask_again":
        return g.AskAgain(detail if isinstance(detail, str) else "", settled.info)
    if settled.call_id is None:
        return g.GuardrailFunctionOutput(settled.info, settled.verdict == "tripped")
    match settled.verdict:
        case "RejectContent":
            return g.RejectContent(detail if isinstance(detail, str) else "", settled.info)
        case "RaiseException":
            return g.RaiseException(settled.info)
        case "Rewrite":
            return g.Rewrite(detail if isinstance(detail, dict) else {}, settled.info)
        case "ReplaceOutput":
            return g.ReplaceOutput(detail, settled.info)
        case _:
            return g.Allow(settled.info)
