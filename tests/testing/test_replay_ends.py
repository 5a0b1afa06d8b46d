"""Replay of runs that were ended from outside at every moment: by their caller, and by the timeouts around them."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from testing.recording import OneClock

from agentloop import Agent, Rate, RunConfig, RunHooks, Runner, RunTimeoutError, ToolExecution, ask_user, tool
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.config.budget import UsageLimits
from agentloop.context import ToolContext
from agentloop.exceptions import ReplayDivergence, ToolCallError, ToolTimeoutError, UserError
from agentloop.guardrails import Allow, RejectContent, tool_input_guardrail, tool_output_guardrail
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, World, call, run_deterministic, run_one, say
from agentloop.testing.replaying import replay
from agentloop.testing.replaying._driver import Replaying
from agentloop.testing.replaying._recorded import RecordedRun
from agentloop.testing.simulation._faults import Fatal, Raises, Returns

BACKENDS: Any = ("asyncio", "trio")
WAYS: Any = (("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope"))
"""Backends and kinds of a caller's cancellation: trio has scopes only."""


@tool
async def quick() -> str:
    """Answer."""
    return "ok"


@tool
async def slow() -> str:
    """Answer later."""
    await anyio.sleep(1)
    return "ok"


@tool
async def waits() -> str:
    """Wait to be ended."""
    await anyio.sleep_forever()
    return "never"


@tool
async def cleans() -> str:
    """Wait to be ended, and take some time for it."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
    return "never"


def comes_out_the_same(records: Any, agent: Any, config: RunConfig | None = None, on: Any = BACKENDS) -> None:
    """Replay *records* on the backends *on*."""
    for backend in on:
        assert replay(records, agent, run_config=config or RunConfig(), backend=backend).records == tuple(records)


# ------------------------------------------------------------------------------------------------ timeouts

TIMES: Any = {"own": (0.5, None), "late": (0.5, 0.55), "early": (0.55, 0.5)}
"""The timeouts of a nested run and of its call: a body that ends late lets both of them pass."""


def ask_once(name: str, request: Any) -> Any:
    """Answer with a call of the tool *name*, then with a text."""
    return call(name, call_id="b") if request.turn == 1 else say("x")


def nest(kinds: Any, bodies: Any) -> World:
    """Return a world whose agent calls several agents, each with timeouts of a kind and the call of one body."""
    tools: list[Any] = []
    turn: list[Any] = []
    for number, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
        timeout, around = TIMES[kind]
        model = FunctionModel(partial(ask_once, body.name))
        inner: Any = Agent(f"in{number}", tools=[body], model=model)
        tools.append(inner.as_tool(f"in{number}", "Do.", run_config=RunConfig(timeout=timeout), timeout=around))
        turn.append(call(f"in{number}", {"input": "x"}, call_id=f"n{number}"))
    return World(agent=Agent("a", tools=tools), script=[turn, say("done")])


def ends_the_same(kinds: Any, bodies: Any, backend: Any, order: Any, chosen: int, on: Any = BACKENDS) -> Any:
    """Record that world on *backend*, replay it on the backends *on*, and return the records."""
    world = nest(kinds, bodies)
    world = World(agent=world.agent, script=world.script, order=order)
    records = run_one(world, backend=backend, scheduler=lambda labels: chosen % len(labels)).records
    comes_out_the_same(records, world.agent, on=on)
    return records


@pytest.mark.parametrize("kinds", [["late"], ["own", "late"], ["late", "late"]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_timeout_of_a_call_that_passes_while_its_nested_run_ends_by_its_own(backend: Any, kinds: Any) -> None:
    """The calls of the nested run were ended by its deadline, and the run itself by its call, while it cleaned up."""
    records = ends_the_same(kinds, [cleans] * len(kinds), backend, "steps", 0)
    path = (f"n{len(kinds) - 1}",)
    settled = next(one for one in records if isinstance(one, r.CallSettled) and one.path == path)
    ended = next(one for one in records if isinstance(one, r.RunEnded) and one.path == path)
    assert (settled.outcome.cancelled_by, ended.status) == ("deadline", "cancelled")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["passes", "steps"])
@pytest.mark.parametrize("chosen", [0, -1])
def test_timeouts_of_nested_runs_and_of_their_calls(chosen: int, order: Any) -> None:
    """In each order of the two, with bodies that end at once or late, alone and beside another one."""
    for count in (1, 2):
        drawn = itertools.product(
            itertools.product(TIMES, repeat=count), itertools.product((waits, cleans), repeat=count)
        )
        for number, (kinds, bodies) in enumerate(drawn):
            backend, other = BACKENDS[number % 2], BACKENDS[number // 2 % 2]
            ends_the_same(kinds, bodies, backend, order, chosen, on=[other])


# ------------------------------------------------------------------------------------------------ the caller


class Cancels(Instrument):
    """An instrument that keeps the records of a run, and cancels the run in the step of the record with a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Any] = []
        self.cancel: Callable[[], object] = lambda: None

    def on_record(self, record: Any) -> None:
        """Keep *record*, and cancel the run if it is the one."""
        self.records.append(record)
        if len(self.records) == self.number + 1:
            self.cancel()


class Waiting(RunHooks):
    """Hooks that let the other tasks run."""

    async def on_agent_start(self, *given: Any) -> None:
        """Wait."""
        await anyio.lowlevel.checkpoint()

    async def on_llm_end(self, *given: Any) -> None:
        """Wait."""
        await anyio.lowlevel.checkpoint()

    async def on_tool_end(self, *given: Any) -> None:
        """Wait."""
        await anyio.lowlevel.checkpoint()


def cancelled_at(
    number: int, agent: Any, backend: Any, kind: str, *, streamed: bool, options: Any, deadline: float | None = None
) -> list[Any]:
    """Run *agent* on *backend*, cancelled in the step of record *number*, and return its records.

    *kind*: by a scope around it, natively, or if it is *streamed* by "stop"; "call ID" cancels only that call. The
    scope around it has the *deadline*.
    """
    cancels = Cancels(number)
    given = {name: value() if callable(value) else value for name, value in options.items()}
    config: Any = given.pop("run_config", RunConfig())

    async def work() -> None:
        watched = attrs.evolve(config, instruments=[cancels], effects=OneClock())
        if not streamed:
            await Runner.run(agent, "go", run_config=watched, **given)
            return
        async with Runner.run_streamed(agent, "go", run_config=watched, **given) as stream:
            if kind == "stop":
                cancels.cancel = stream.cancel
            elif kind.startswith("call "):
                cancels.cancel = lambda: stream.cancel_call(kind.removeprefix("call "))
            async for _ in stream:
                pass

    async def main() -> None:
        with anyio.move_on_after(deadline) as scope:
            cancels.cancel = scope.cancel
            if kind != "native":
                return await work()
            task = asyncio.ensure_future(work())
            cancels.cancel = task.cancel
            await asyncio.gather(task, return_exceptions=True)
        return None

    with suppress(RunTimeoutError, ToolTimeoutError, ToolCallError):
        run_deterministic(main, backend=backend)
    return cancels.records


def simple(request: Any) -> Any:
    """Answer with two calls, then with a text."""
    return [call("quick", call_id="c1"), call("slow", call_id="c2")] if request.turn == 1 else say("done")


def outer(request: Any) -> Any:
    """Answer with a call of an agent beside another one, then with a text."""
    calls = [call("inner", {"input": "x"}, call_id="n"), call("slow", call_id="s")]
    return calls if request.turn == 1 else say("done")


def of_two() -> Any:
    """Return an agent that calls two tools."""
    return Agent("a", tools=[quick, slow], model=FunctionModel(simple))


def of_nested() -> Any:
    """Return an agent that calls an agent."""
    return Agent("a", tools=[of_two().as_tool("inner", "Do."), slow], model=FunctionModel(outer))


def asking(request: Any) -> Any:
    """Answer with a question between two calls, then with a text."""
    calls = [call("quick", call_id="c1"), call("ask_user", {"question": "?"}, "q"), call("slow", call_id="c2")]
    return calls if request.turn == 1 else say("done")


def of_words() -> Any:
    """Return an agent that says something."""
    return Agent("a", model=FunctionModel(lambda _: say("done")))


def of_asking() -> Any:
    """Return an agent that asks its user."""
    return Agent("a", tools=[quick, slow, ask_user()], model=FunctionModel(asking))


def of_nested_asking() -> Any:
    """Return an agent that calls an agent that asks its user."""
    return Agent("a", tools=[of_asking().as_tool("inner", "Do."), slow], model=FunctionModel(outer))


@tool(timeout=0.5)
async def breaks_late() -> str:
    """Take too long, and fail to clean up."""
    try:
        await anyio.sleep_forever()
    finally:
        raise LookupError("while cleaning up")


@tool
async def breaks() -> str:
    """Fail to clean up what a part of it cancels."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("while cleaning up")
    return "never"


def of_breaking(body: Any) -> Any:
    """Return an agent that calls a tool that fails to clean up, beside another one."""
    turn = [call(body.name, call_id="c1"), call("slow", call_id="c2")]
    model = FunctionModel(lambda request: turn if request.turn == 1 else say("done"))
    return Agent("a", tools=[body, slow], model=model)


@tool_input_guardrail
async def allows(_: Any) -> Any:
    """Let the other tasks run, then allow the call."""
    await anyio.lowlevel.checkpoint()
    return Allow()


@tool_output_guardrail
async def allows_output(_: Any) -> Any:
    """Let the other tasks run, then allow the output."""
    await anyio.lowlevel.checkpoint()
    return Allow()


@tool(tool_input_guardrails=[allows], tool_output_guardrails=[allows_output])
def in_thread() -> str:
    """Answer from a thread."""
    return "ok"


def of_threads() -> Any:
    """Return an agent that calls a guarded tool several times, for which it has one thread."""
    turn = [call("in_thread", call_id=f"c{number}") for number in range(3)]
    model = FunctionModel(lambda request: turn if request.turn == 1 else say("done"))
    return Agent("a", tools=[in_thread], model=model)


@tool(failure_error_function=None)
async def raises() -> str:
    """Fail, and with it the turn."""
    raise ValueError("at once")


def of_raising() -> Any:
    """Return an agent that calls a tool that fails, and then others."""
    turn = [call("raises", call_id="c0"), call("slow", call_id="c1"), call("slow", call_id="c2")]
    return Agent("a", tools=[raises, slow], model=FunctionModel(lambda _: turn))


@tool(timeout=0.5, timeout_behavior="raise_exception")
async def late() -> str:
    """Take too long."""
    await anyio.sleep_forever()
    return "never"


def of_late() -> Any:
    """Return an agent that calls a tool whose timeout is an error, and then others."""
    calls = [call("late", call_id="c0"), call("slow", call_id="c1"), call("slow", call_id="c2")]
    return Agent("a", tools=[late, slow], model=FunctionModel(lambda _: calls))


ONE_THREAD = RunConfig(tool_execution=ToolExecution(max_threads=1))
ONE_BY_ONE = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))


class Stuck(MemorySession):
    """A session that never comes to write."""

    async def add_items(self, items: Any) -> None:
        """Wait to be ended."""
        await anyio.sleep_forever()


PROGRAMS: Any = {
    "two": (of_two, {}),
    "session": (of_two, {"session": MemorySession}),
    "hooks": (of_two, {"hooks": Waiting}),
    "hooks and session": (of_two, {"hooks": Waiting, "session": MemorySession}),
    "timeout": (of_two, {"run_config": RunConfig(timeout=0.5)}),
    "threads": (of_threads, {"run_config": ONE_THREAD}),
    "raising": (of_raising, {}),
    "breaking": (partial(of_breaking, breaks), {}),
    "breaking late": (partial(of_breaking, breaks_late), {}),
    "asking": (of_asking, {}),
    "asking, one by one": (of_asking, {"run_config": ONE_BY_ONE}),
    "asking, nested": (of_nested_asking, {}),
    "failure": (of_late, {"run_config": ONE_BY_ONE}),
    "one by one": (of_two, {"run_config": ONE_BY_ONE}),
    "nested": (of_nested, {}),
    "nested, hooks and session": (of_nested, {"hooks": Waiting, "session": MemorySession}),
}


@pytest.mark.parametrize("session", [None, MemorySession])
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_run_that_was_cancelled_in_a_hook_behind_the_answer_of_its_model(backend: Any, kind: str, session: Any) -> None:
    """It ends in the hook, before it plans its calls: none of them is settled, unlike in a run without hooks."""
    options: Any = {"hooks": Waiting, **({} if session is None else {"session": session})}
    records = cancelled_at(3, of_two(), backend, kind, streamed=False, options=options)
    kinds = [type(one).__name__ for one in records if not isinstance(one, r.SessionSaved)]
    assert kinds == ["RunStarted", "TurnStarted", "ModelRequested", "ModelResponded", "CancelRequested", "RunEnded"]
    comes_out_the_same(records, of_two())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_in_the_step_that_notes_a_deadline(backend: Any, kind: str, streamed: bool) -> None:
    """It has precedence, so the call names the caller, before or after the log has the cancellation."""
    make, options = PROGRAMS["timeout"]
    records = cancelled_at(7, make(), backend, kind, streamed=streamed, options=options)
    assert isinstance(records[7], r.DeadlinePassed)
    settled = [one.outcome.cancelled_by for one in records[7:] if isinstance(one, r.CallSettled)]
    assert settled == ["parent"]
    assert any(isinstance(one, r.CancelRequested) for one in records)
    comes_out_the_same(records, make(), options["run_config"])


def find_number(records: Any, kind: Any, path: Any = (), call_id: str | None = None) -> int:
    """Return the number of the last record of a kind."""
    numbers = range(len(records) - 1, -1, -1)
    return next(
        number
        for number in numbers
        if isinstance(records[number], kind)
        and records[number].path == path
        and call_id in (None, getattr(records[number], "call_id", None))
    )


@pytest.mark.parametrize(("backend", "kind"), WAYS)
@pytest.mark.parametrize("path", [(), ("n",)])
def test_cancellation_in_the_step_of_the_last_end_beside_a_question(path: Any, backend: Any, kind: str) -> None:
    """On asyncio the run is about to pause as it notices it, and leaves the question open; on trio it settles it."""
    make, _ = PROGRAMS["asking, nested" if path else "asking"]
    whole = cancelled_at(-1, make(), backend, kind, streamed=False, options={})
    number = find_number(whole, r.CallSettled, path)
    records = cancelled_at(number, make(), backend, kind, streamed=False, options={})
    settled = [one.call_id for one in records[number + 1 :] if isinstance(one, r.CallSettled) and one.path == path]
    assert settled == (["q"] if backend == "trio" else [])
    comes_out_the_same(records, make())


@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_in_the_step_in_which_a_nested_run_pauses(backend: Any, kind: str) -> None:
    """The call around it has yet to pause, and the other calls have settled."""
    make, _ = PROGRAMS["asking, nested"]
    whole = cancelled_at(-1, make(), backend, kind, streamed=False, options={})
    number = find_number(whole, r.RunEnded, ("n",))
    assert whole[number].status == "interrupted"
    comes_out_the_same(cancelled_at(number, make(), backend, kind, streamed=False, options={}), make())


@pytest.mark.parametrize(("backend", "kind"), WAYS)
@pytest.mark.parametrize("at", [r.CallStarted, r.AnswerRequested])
def test_cancellation_as_a_question_makes_room_for_a_call(at: Any, backend: Any, kind: str) -> None:
    """That call settles behind the question, since it has begun: calls that still wait settle before."""
    make, options = PROGRAMS["asking, one by one"]
    whole = cancelled_at(-1, make(), backend, kind, streamed=False, options=options)
    number = find_number(whole, at, call_id="q")
    records = cancelled_at(number, make(), backend, kind, streamed=False, options=options)
    settled = [one.call_id for one in records[number:] if isinstance(one, r.CallSettled)]
    assert settled == ["q", "c2"]
    comes_out_the_same(records, make(), options["run_config"])


@pytest.mark.parametrize(("make", "at"), [(of_two, r.BatchEnded), (of_words, r.ModelResponded)])
def test_cancellation_that_only_the_cut_of_a_write_to_the_session_shows(make: Any, at: Any) -> None:
    """The write is shielded: the run notices its end behind it, or not at all, where it has come to its end."""
    whole = cancelled_at(-1, make(), "asyncio", "native", streamed=True, options={})
    number = next(number for number, one in enumerate(whole) if isinstance(one, at))
    records = cancelled_at(number, make(), "asyncio", "native", streamed=True, options={"session": Stuck})
    names = [type(one).__name__ for one in records[number + 1 :]]
    assert names == ["CleanupCut", *(["CancelRequested"] if make is of_two else []), "RunEnded"]
    comes_out_the_same(records, make())


class Writing(MemorySession):
    """A session that takes some time to write."""

    async def add_items(self, items: Any) -> None:
        """Write later."""
        await anyio.sleep(0.4)
        await super().add_items(items)


class Ending(RunHooks):
    """A hook that takes some time at the end of the run."""

    async def on_run_end(self, *given: Any) -> None:
        """Wait."""
        await anyio.sleep(0.2)


def of_handing() -> Any:
    """Return an agent that calls a tool, and hands off in the same turn."""
    turn = [call("quick", call_id="c1"), call("transfer_to_b", {}, call_id="h")]
    other: Any = Agent("b", model=FunctionModel(lambda _: say("done")))
    return Agent("a", tools=[quick], handoffs=[other], model=FunctionModel(lambda _: turn))


def of_writing(session: Any, timeout: float | None, around: float | None) -> Any:
    """Return an agent that calls an agent with a session, within two timeouts."""
    config = None if timeout is None else RunConfig(timeout=timeout)
    inner: Any = of_words().as_tool("inner", "Do.", session=session(), run_config=config, timeout=around)
    return Agent("a", tools=[inner, slow], model=FunctionModel(outer))


def late_writes(session: Any) -> dict[str, tuple[Callable[[], Any], dict[str, Any], float | None]]:
    """Return, by name, a maker of an agent, options, and its caller's deadline, which passes as *session* writes."""
    own: Any = {"session": session}
    limited: Any = {"run_config": RunConfig(timeout=0.2)}
    return {
        "turn": (of_two, {**own, "run_config": RunConfig(timeout=1.2)}, None),
        "handoff": (of_handing, {**own, **limited}, None),
        "end": (of_words, {**own, **limited}, None),
        "caller": (of_handing, own, 0.2),
        "nested": (partial(of_writing, session, 0.2, None), {}, None),
        "call": (partial(of_writing, session, None, 0.2), {}, None),
        "outer run": (partial(of_writing, session, None, None), limited, None),
    }


@pytest.mark.parametrize("hooks", [None, pytest.param(Ending, marks=pytest.mark.slow)])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("session", [Writing, Stuck])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*late_writes(Stuck)])
def test_deadline_that_passes_during_a_write_to_the_session(
    name: str, backend: Any, session: Any, streamed: bool, hooks: Any
) -> None:
    """The run notices it behind the write, which is cut if it takes too long; its log may end with any record."""
    make, options, deadline = late_writes(session)[name]
    config = attrs.evolve(options.get("run_config", RunConfig()), tool_execution=ToolExecution(cleanup_grace=0.5))
    given = {**options, "run_config": config, **({} if hooks is None else {"hooks": hooks})}
    records = cancelled_at(-1, make(), backend, "", streamed=streamed, options=given, deadline=deadline)
    cuts = [one.section for one in records if isinstance(one, r.CleanupCut)]
    assert ("session save" in cuts) == (session is Stuck)
    for stop in range(1, len(records) + 1):
        comes_out_the_same(records[:stop], make(), config)


def test_write_to_the_session_that_is_cut_has_a_cause() -> None:
    """A log whose run goes on behind it isn't followed, nor one with a deadline that the run hasn't."""
    config = RunConfig(timeout=1.2)
    options: Any = {"session": Stuck, "run_config": config}
    late = cancelled_at(-1, of_two(), "asyncio", "", streamed=False, options=options)
    whole = cancelled_at(-1, of_two(), "asyncio", "", streamed=False, options={"session": MemorySession})
    number = next(number for number, one in enumerate(whole) if isinstance(one, r.SessionSaved))
    cut = next(one for one in late if isinstance(one, r.CleanupCut))
    at = whole[number].at
    for backend in BACKENDS:
        with pytest.raises(ReplayDivergence):
            replay([*whole[:number], cut.replace(at=at), *whole[number + 1 :]], of_two(), backend=backend)
        with pytest.raises(ReplayDivergence):
            replay(late, of_two(), backend=backend)


@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_as_the_owner_of_the_calls_is_about_to_step(backend: Any, kind: str) -> None:
    """A call has failed, so the owner hears of its cancellation late; but the call beside it never begins."""
    make, _ = PROGRAMS["raising"]
    whole = cancelled_at(-1, make(), backend, kind, streamed=False, options={})
    number = find_number(whole, r.CallStarted, call_id="c1")
    records = cancelled_at(number, make(), backend, kind, streamed=False, options={})
    settled = [(one.call_id, one.outcome.cancelled_by) for one in records[number:] if isinstance(one, r.CallSettled)]
    assert settled == [("c1", "parent"), ("c2", "parent")]
    comes_out_the_same(records, make())


@pytest.mark.parametrize("call_id", ["c0", "c1"])
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_as_a_body_leaves_its_thread_to_another_call(backend: Any, kind: str, call_id: str) -> None:
    """That call has begun, and its guardrails have allowed it; it has yet to start, and never does."""
    make, options = PROGRAMS["threads"]
    whole = cancelled_at(-1, make(), backend, kind, streamed=False, options=options)
    number = find_number(whole, r.BodyEnded, call_id=call_id)
    records = cancelled_at(number, make(), backend, kind, streamed=False, options=options)
    assert not any(isinstance(one, r.CallStarted) for one in records[number:])
    comes_out_the_same(records, make(), options["run_config"])


@pytest.mark.parametrize("body", [breaks, breaks_late])
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_in_the_step_in_which_a_body_fails_to_clean_up(backend: Any, kind: str, body: Any) -> None:
    """It has precedence over what the body had to clean up for: its timeout, or a scope of its own."""
    whole = cancelled_at(-1, of_breaking(body), backend, kind, streamed=False, options={})
    number = find_number(whole, r.BodyEnded, call_id="c1")
    records = cancelled_at(number, of_breaking(body), backend, kind, streamed=False, options={})
    settled = [(one.call_id, one.outcome.cancelled_by) for one in records if isinstance(one, r.CallSettled)]
    assert settled == [("c1", "parent"), ("c2", "parent")]
    comes_out_the_same(records, of_breaking(body))


@pytest.mark.parametrize("kind", ["scope", "native"])
def test_cancellation_that_is_noticed_between_a_failure_and_the_stop_of_its_batch(kind: str) -> None:
    """The owner of the batch was ready to stop it: the calls that wait name the failed one, in spite of the end."""
    make, options = PROGRAMS["failure"]
    records = cancelled_at(5, make(), "asyncio", kind, streamed=False, options=options)
    assert [type(one).__name__ for one in records[5:7]] == ["CallSettled", "CancelRequested"]
    settled = [one.outcome.cancelled_by for one in records[6:] if isinstance(one, r.CallSettled)]
    assert settled == ["sibling", "sibling"]
    comes_out_the_same(records, make(), options["run_config"])


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_in_the_step_of_each_record(backend: Any, kind: str, program: str) -> None:
    """Whatever the record is: what the run still does, and what not, is in the log."""
    make, options = PROGRAMS[program]
    count = len(cancelled_at(-1, make(), backend, kind, streamed=False, options=options))
    for number in range(count):
        records = cancelled_at(number, make(), backend, kind, streamed=number % 2 == 1, options=options)
        comes_out_the_same(records, make(), options.get("run_config"), on=[BACKENDS[number // 2 % 2]])


@pytest.mark.parametrize("order", ["passes", "steps"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_run_that_its_calls_timeout_ended_has_no_deadline_of_its_own(backend: Any, order: Any) -> None:
    """Both pass in one moment, as does another nested run's: the log tells which of them ended the run."""
    half = RunConfig(timeout=0.5)

    def make(name: str, body: Any, timeout: float | None) -> Any:
        model = FunctionModel(lambda _: call(body.name, call_id="c"))
        return Agent(name, tools=[body], model=model).as_tool(name, "Do.", run_config=half, timeout=timeout)

    agent: Agent[Any, Any] = Agent("a", tools=[make("late", cleans, 0.5), make("soon", waits, None)])
    turn = [call("late", {"input": "x"}, "c1"), call("soon", {"input": "x"}, "c2")]
    seen = run_one(World(agent=agent, script=[turn, say("done")], order=order), backend=backend)
    ends = {one.path: one.status for one in seen.records if isinstance(one, r.RunEnded)}
    assert ends == {("c1",): "cancelled", ("c2",): "failed", (): "completed"}
    for other in BACKENDS:
        assert replay(seen.records, agent, backend=other).records == seen.records


@pytest.mark.parametrize("kind", ["stop", "call c1", "call c2"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cancellation_by_an_instrument_in_the_step_of_each_record(backend: Any, kind: str) -> None:
    """Its record comes in that step, too, whatever the run would do next without waiting."""
    for number in range(len(cancelled_at(-1, of_two(), backend, kind, streamed=True, options={}))):
        records = cancelled_at(number, of_two(), backend, kind, streamed=True, options={})
        comes_out_the_same(records, of_two(), on=[BACKENDS[number % 2]])


def of_ends() -> Iterator[list[r.Record]]:
    """Yield the logs of runs that an instrument ends in the step of each record."""
    for kind in ("stop", "call c1", "call c2"):
        for number in range(len(cancelled_at(-1, of_two(), "asyncio", kind, streamed=True, options={}))):
            yield cancelled_at(number, of_two(), "asyncio", kind, streamed=True, options={})


def diverges_at(records: Sequence[r.Record]) -> int | None:
    """Return the number of the record at which a replay of *records* differs."""
    try:
        replay(records, of_two(), backend="asyncio")
    except ReplayDivergence as error:
        return error.n
    return None


def test_end_that_no_moment_explains_is_a_divergence_of_the_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay tries other moments of an end, which may lead it further, and then says where it differed at first."""
    compared = 0
    for records in of_ends():
        with monkeypatch.context() as patch:
            patch.setattr(Replaying, "_try_moments", lambda _, effects, backend: effects)
            first = diverges_at(records)
        if first is not None:
            assert first < len(records) - 1
            assert diverges_at([*records[:-1], records[-1].replace(error="another")]) == first
            compared += 1
    assert compared


@pytest.mark.parametrize("changed", [False, True])
def test_other_moments_are_not_tried_of_a_changed_agent(monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    """It is the change that makes the difference, and a run that comes out the same by chance would hide it."""
    tried: list[Any] = []
    monkeypatch.setattr(Replaying, "_try_moments", lambda _, effects, backend: tried.append(effects) or effects)
    records = next(of_ends())
    wrong = RecordedRun.of([*records[:-1], records[-1].replace(error="another")])
    with pytest.raises(ReplayDivergence):
        Replaying(wrong, of_two(), RunConfig()).run("asyncio", lambda: changed)
    assert len(tried) == (not changed)


def test_record_of_a_cancellation_that_no_run_appends_is_refused() -> None:
    """A run appends it once. A moment that is tried only cancels: where the record comes is compared."""
    for records in of_ends():
        for place in [n for n, one in enumerate(records) if isinstance(one, r.CancelRequested) and not one.call_id]:
            assert diverges_at([*records[: place + 1], *records[place:]]) is not None


# ------------------------------------------------------------------------------------------------ background, sources


@tool(background=True)
async def digs() -> str:
    """Work in the background."""
    return "done"


@pytest.mark.parametrize("order", ["passes", "steps", "gate"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_fatal_error_of_a_background_body(backend: Any, nested: bool, order: Any) -> None:
    """No body runs in a replay: the run raises the recorded error once it has the result that such a body leaves."""
    turn = [call("digs", call_id="d1"), call("digs", call_id="d2"), call("slow", call_id="c")]
    agent: Agent[Any, Any] = Agent("a", tools=[digs, slow])
    behaviors: Any = {"d1": Returns(0, 0.5), "d2": Raises(1, 0.75, fatal=True)}
    script: Any = [turn, say("waits"), say("done")]
    world = World(agent=agent, script=script, behaviors=behaviors, order=order)
    if nested:
        agent = Agent("o", tools=[agent.as_tool("inner", "Do.")])
        own = {f"n/{call_id}": one for call_id, one in behaviors.items()}
        outer_script = [[call("inner", {"input": "x"}, call_id="n")], say("over")]
        world = World(agent=agent, script=outer_script, nested={"n": script}, behaviors=own, order=order)
    seen = run_one(world, backend=backend)
    assert isinstance(seen.error, Fatal)
    comes_out_the_same(seen.records, agent)


@tool(background=True)
async def finds() -> str:
    """Tell of an empty well."""
    return "The well gave no output today."


@tool(background=True, secret_output=True)
async def hides() -> str:
    """Work in the background, and tell nobody."""
    return "done"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["finds", "hides"])
@pytest.mark.parametrize("fatal", ["", "background", "later"])
def test_result_that_looks_like_that_of_a_fatal_body(fatal: str, name: str, backend: Any) -> None:
    """What ended the run shows by what the run did after it, and not by a part of what a tool said."""
    agent: Agent[Any, Any] = Agent("a", tools=[finds, hides, slow])
    behaviors: Any = {"b": Raises(1, 0.5, fatal=True)} if fatal == "background" else {}
    behaviors |= {"c2": Raises(1, 0.5, fatal=True)} if fatal == "later" else {}
    script: Any = [[call(name, call_id="b"), call("slow", call_id="c1")], call("slow", call_id="c2"), say("done")]
    seen = run_one(World(agent=agent, script=script, behaviors=behaviors), backend=backend)
    assert isinstance(seen.error, Fatal) == bool(fatal)
    comes_out_the_same(seen.records, agent)


class Gives:
    """A source of tools."""

    def __init__(self, *tools: Any) -> None:
        self._tools = tools

    async def tools(self, ctx: Any, agent: Any) -> Any:
        """Return them."""
        return self._tools


@pytest.mark.parametrize("policy", ["raise", "tell_model"])
@pytest.mark.parametrize("sources", [[Gives(quick)], [Gives(slow), Gives(slow, quick)], [Gives(slow), Gives(slow)]])
def test_sources_that_give_one_tool(sources: Any, policy: Any) -> None:
    """That of the agent, or of another source: it is one tool, which is shown once."""
    agent: Agent[Any, Any] = Agent("a", tools=[quick], toolsets=sources)
    config = RunConfig(tool_name_collision_policy=policy)
    script: Any = [[call("quick", call_id="c1"), call("quick", call_id="c2")], say("done")]
    seen = run_one(World(agent=agent, script=script, options={"run_config": config}))
    assert seen.error is None
    comes_out_the_same(seen.records, agent, config)


def test_sources_with_different_tools_of_one_name() -> None:
    """The run fails, and its replay by the same words."""
    other = tool(slow.body.fn, name="quick")  # type: ignore[union-attr]
    for sources in ([Gives(slow), Gives(tool(quick.body.fn, name="slow"))], [Gives(other)]):  # type: ignore[union-attr]
        agent: Agent[Any, Any] = Agent("a", tools=[quick], toolsets=sources)
        config = RunConfig(tool_name_collision_policy="raise")
        seen = run_one(World(agent=agent, script=[say("never")], options={"run_config": config}))
        assert isinstance(seen.error, UserError)
        comes_out_the_same(seen.records, agent, config)


# ------------------------------------------------------------------------------------------------ limits


@tool(timeout=0.9, idle_timeout=0.4)
async def reports(ctx: ToolContext[Any]) -> str:
    """Report now and then, and never end."""
    while True:
        await anyio.sleep(0.3)
        await ctx.report(1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_timeout_of_a_body_that_reported(backend: Any) -> None:
    """A replay hears of no report, and yet its call has run out of its whole time, as the model is told."""
    agent: Agent[Any, Any] = Agent("a", tools=[reports])
    seen = run_one(World(agent=agent, script=[call("reports", call_id="c1"), say("done")]), backend=backend)
    settled = seen.records[find_number(seen.records, r.CallSettled, (), "c1")]
    assert "0.9 seconds" in str(settled)
    comes_out_the_same(seen.records, agent)


def of_rates(count: int, per: float) -> Any:
    """Return an agent with a tool that starts so often in so many seconds."""
    return Agent("a", tools=[tool(slow.body.fn, name="rated", capacity=Rate(count, per))])  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chosen", [0, -1])
def test_calls_that_wait_for_a_rate_in_one_line(chosen: int, backend: Any) -> None:
    """Only the first of them is known to have waited; the later one may have the earlier record."""
    turn = [call("rated", call_id=f"c{number}") for number in range(5)]
    world = World(agent=of_rates(2, 1.3), script=[turn, say("done")], order="steps")
    seen = run_one(world, backend=backend, scheduler=lambda labels: chosen % len(labels))
    assert sum(isinstance(one, r.CallStarted) and bool(one.waited_for) for one in seen.records) < 3
    comes_out_the_same(seen.records, of_rates(2, 1.3))


@pytest.mark.parametrize("kind", ["RejectContent", "Allow"])
def test_costs_of_calls_that_a_guardrail_judges(kind: str) -> None:
    """There was room for them in the budget, also if they never started, and no record has what they cost."""

    @tool_input_guardrail
    def judges(_: Any) -> Any:
        return RejectContent("no") if kind == "RejectContent" else Allow()

    async def work(n: int) -> str:
        return f"{n}"

    def priced() -> Any:
        return Agent("a", tools=[tool(work, name="priced", cost=lambda _: 3, tool_input_guardrails=[judges])])

    config = RunConfig(limits=UsageLimits(cost=5))
    turn = [call("priced", {"n": number}, call_id=f"c{number}") for number in (1, 2)]
    seen = run_one(World(agent=priced(), script=[turn, say("done")], options={"run_config": config}))
    assert any(isinstance(one, r.CallSettled) and one.outcome.status != "succeeded" for one in seen.records)
    comes_out_the_same(seen.records, priced(), config)
