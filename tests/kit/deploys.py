"""What a deploy changes between two versions of an application, and what becomes of runs that cross it, both ways.

Each row of `ROWS` is one of the page about fleets. A run begins on a worker of one version, pauses there, and is
continued by one of the other version: first without a verdict, then with all of them. The journal is what both share.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import attrs
import pytest

from agentloop import Agent, FunctionTool, Handoff, ModelSettings, RunConfig, RunState, StateError, UserError, tool
from agentloop import records as r
from agentloop._storage import record_codec
from agentloop._storage.state_codec import line_encoder
from agentloop.abc import Journal, Model, ModelProvider
from agentloop.config.policies import Allow, Ask
from agentloop.items import ToolCall
from agentloop.journal import MemoryJournal
from agentloop.testing import FunctionModel, call, say
from kit.agents import Run

OpenJournal: TypeAlias = Callable[[], AbstractAsyncContextManager[Journal]]
"""Opens the run's journal for one worker, which closes it when it has finished with the run."""
Direction: TypeAlias = Literal["old to new", "new to old"]
DIRECTIONS: tuple[Direction, ...] = ("old to new", "new to old")

USUAL = (("look", "c1"), ("pay", "p"), ("hold", "h"), ("look", "c2"))
"""The calls that the model makes, one in a turn, of those tools that it is shown."""


class Bodies:
    """Notes which bodies ran, and on which version's worker."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.systems: list[str | None] = []

    def make(self, name: str, label: str, arguments: Sequence[str] = (), **options: Any) -> FunctionTool:
        """Return the tool *name*, whose body notes that it ran."""

        async def body(**given: Any) -> str:
            self.ran.append(f"{name} {label}")
            return f"{name} done"

        body.__signature__ = _signature(arguments)  # type: ignore[attr-defined]
        body.__annotations__ = {**dict.fromkeys(arguments, int), "return": str}
        return tool(name=name, description=options.pop("description", f"{name}."), **options)(body)


def _signature(arguments: Sequence[str]) -> Any:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, kind, annotation=int) for name in arguments])


@attrs.frozen(kw_only=True)
class Version:
    """One version of the application.

    Attributes:
        tools: By name, the options of its tools; those of `Bodies.make`.
        plan: The calls that its model makes.
        fields: Further fields of its agent.
        config: The configuration of its runs.
        handoff: True if it can hand over to another agent.
    """

    tools: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    plan: tuple[tuple[str, str], ...] = USUAL
    fields: dict[str, Any] = attrs.field(factory=dict)
    config: RunConfig = attrs.field(factory=RunConfig)
    handoff: bool = False

    def build(self, label: str, bodies: Bodies) -> Agent[Any, Any]:
        """Return its agent, as a worker has it."""

        def answer(request: Any) -> Any:
            bodies.systems.append(request.system)
            made = {item.call_id for item in request.items if isinstance(item, ToolCall)}
            shown = {one.name: one.params_json_schema for one in (*request.tools, *request.handoffs)}
            for name, call_id in self.plan:
                if name in shown and call_id not in made:
                    return call(name, dict.fromkeys(shown[name].get("properties", ()), 1), call_id)
            return say("done")

        tools = [bodies.make(name, label, **options) for name, options in self.tools.items()]
        target = Agent("target", model=FunctionModel(lambda request: say("taken over")))
        usual = {"name": "clerk", "model": FunctionModel(answer), "tools": tools}
        return Agent(**(usual | {"handoffs": [Handoff(target)] if self.handoff else []} | self.fields))


ASKED = {"needs_approval": True}
TOOLS: dict[str, dict[str, Any]] = {"look": {}, "pay": ASKED, "hold": ASKED}


def version(without: str = "", **changes: Any) -> Version:
    """Return the usual version with *changes*: those of tools by their names, others are fields of `Version`."""
    known = {one.name for one in attrs.fields(Version)}
    tools = {name: options for name, options in TOOLS.items() if name != without}
    tools |= {name: TOOLS.get(name, {}) | options for name, options in changes.items() if name not in known}
    return Version(tools=tools, **{name: value for name, value in changes.items() if name in known})


class _NoKey(ModelProvider):
    def get_model(self, name: str) -> Model:
        raise UserError("no API key")


class _Says:
    """A policy that says the same of each call of `pay`."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, call: Any) -> Any:
        return self.decision if call.call.name == "pay" else Allow()


@attrs.frozen(kw_only=True)
class Row:
    """A row of the table: two versions, and what becomes of a run in each direction.

    `forward` and `back` are the bodies that ran, with the version whose worker ran them; or "refused: " and a pattern
    of what the worker of the other version says, which then writes nothing.

    `cut` names the call at which the first worker died, in place of a pause: it had the model's answer, and no more.
    `continues` replaces the version that continues, where no worker could have begun with it.
    """

    old: Version = attrs.field(factory=version)
    new: Version = attrs.field(factory=version)
    forward: str = "look old, pay new, hold new, look new"
    back: str = "look new, pay old, hold old, look old"
    cut: str | None = None
    continues: Version | None = None
    newer_library: bool = False


KEYLESS = version(fields={"model": "mine:big"}, config=RunConfig(model_provider=_NoKey()))
ROWS: dict[str, Row] = {
    "nothing": Row(),
    "instructions and settings": Row(
        old=version(fields={"instructions": "Old."}),
        new=version(fields={"instructions": "New.", "model_settings": ModelSettings(temperature=0.5)}),
    ),
    "a tool was added": Row(
        new=version(more={}, plan=(*USUAL, ("more", "m"))),
        forward="look old, pay new, hold new, look new, more new",
    ),
    "a tool has another body and description": Row(new=version(look={"description": "Look closely."})),
    "a tool that was called is gone": Row(
        new=version(without="look"),
        forward="look old, pay new, hold new",
        back="pay old, look old, hold old, look old",
    ),
    "the tool of a pending call is gone": Row(
        new=version(without="pay"),
        forward="refused: call 'p' waits for tool 'pay'",
        back="look new, hold old, pay old, look old",
    ),
    "the tool of a pending call was renamed": Row(
        new=version(without="pay", pay_out=ASKED, plan=(("look", "c1"), ("pay_out", "p"), *USUAL[2:])),
        forward="refused: call 'p' waits for tool 'pay'",
        back="refused: call 'p' waits for tool 'pay_out'",
    ),
    "the tool of a pending call has another schema": Row(
        new=version(pay={"arguments": ["amount"]}),
        forward="refused: tool 'pay'",
        back="refused: tool 'pay'",
    ),
    "a tool that was called has another schema": Row(new=version(look={"arguments": ["n"]})),
    "a handoff of a pending call is gone": Row(
        old=version(handoff=True, plan=(("transfer_to_target", "t"),)),
        cut="t",
        forward="refused: waits for handoff 'transfer_to_target' of agent 'clerk'",
        back="look new, pay old",
    ),
    "the agent is gone": Row(
        new=version(fields={"name": "cashier"}), forward="refused: 'clerk'", back="refused: 'cashier'"
    ),
    "the key is missing": Row(continues=KEYLESS, forward="refused: no API key", back="refused: no API key"),
    "a waiting call's tool needs no approval now": Row(
        new=version(pay={"needs_approval": False}), back="look new, pay new, hold old, look old"
    ),
    "a policy lets a waiting call pass now": Row(
        old=version(pay={"needs_approval": False}, config=RunConfig(policies=[_Says(Ask("much"))])),
        new=version(pay={"needs_approval": False}, config=RunConfig(policies=[_Says(Allow())])),
        back="look new, pay new, hold old, look old",
    ),
    "a tool that was called needs an approval now": Row(
        new=version(look=ASKED), back="look old, pay old, hold old, look old"
    ),
    "a tool that was called has a timeout now": Row(new=version(look={"timeout": 60.0})),
    "the runs have a timeout now": Row(new=version(config=RunConfig(timeout=3600.0))),
    "a tool that was called is serial now": Row(new=version(look={"serial": "looks"})),
    "a tool that was called is not shown now": Row(
        new=version(look={"is_enabled": lambda ctx, agent: False}),
        forward="look old, pay new, hold new",
        back="pay old, look old, hold old, look old",
    ),
    "the library is newer": Row(newer_library=True, back="refused: Unknown schema version 3; supported: 1, 2"),
}


ON_PAGE: dict[str, tuple[str, ...]] = {
    "instructions, model, settings": ("instructions and settings",),
    "one tool more; another body or description": ("a tool was added", "a tool has another body and description"),
    "a tool is gone that the run has called": ("a tool that was called is gone",),
    "a tool, handoff or agent is gone that a pending call needs": (
        "the tool of a pending call is gone",
        "the tool of a pending call was renamed",
        "a handoff of a pending call is gone",
    ),
    "another schema of the tool of a pending call": ("the tool of a pending call has another schema",),
    "… of a tool whose calls have ended": ("a tool that was called has another schema",),
    "the tool of a waiting call needs no approval now, or a policy or callable wouldn't ask": (
        "a waiting call's tool needs no approval now",
        "a policy lets a waiting call pass now",
    ),
    "a tool that was called needs an approval now": ("a tool that was called needs an approval now",),
    "a tool that was called has a timeout now, or `RunConfig` has one": (
        "a tool that was called has a timeout now",
        "the runs have a timeout now",
    ),
    "a tool that was called is `serial` now, or was": ("a tool that was called is serial now",),
    "a tool that was called runs in the workflow now (`ToolActivity(in_workflow=True)`), or did": (),
    "a worker without the model's key": ("the key is missing",),
    "an agent is gone that the run is in": ("the agent is gone",),
    "a callback that must be deterministic (a guardrail, `is_enabled`) decides otherwise": (
        "a tool that was called is not shown now",
    ),
    "the worker's library is newer": ("the library is newer",),
    "the worker's library is older": ("the library is newer",),
}
"""By the rows of the page's table, the rows that show what a journal does; none where it has nothing to do with it."""


@attrs.frozen
class Worker:
    """A worker of one version: it continues the run as far as it comes."""

    version: Version
    label: str
    bodies: Bodies
    run: Run
    open_journal: OpenJournal
    library: Callable[[], AbstractAsyncContextManager[None]]

    async def begin(self) -> tuple[str, ...]:
        """Begin the run and return the calls that wait."""
        async with self.library(), self.open_journal() as journal:
            result = await self.run(self.agent, "go", journal=journal, run_config=self.version.config)
            return tuple(request.call.call_id for request in result.interruptions)

    async def begin_and_die(self, call_id: str) -> None:
        """Begin the run, and die as soon as the model's answer with the call is in the journal."""
        kept = MemoryJournal()
        await self.run(self.agent, "go", journal=kept, run_config=self.version.config)
        self.bodies.ran.clear()
        lines = await kept.read()
        asked = f'"call_id":"{call_id}"'.encode()
        at = next(n for n, line in enumerate(lines) if b'"kind":"model_responded"' in line and asked in line)
        async with self.open_journal() as journal:
            await journal.append(lines[: at + 1])

    async def go_on(self) -> Any:
        """Continue the run and return the result."""
        async with self.library(), self.open_journal() as journal:
            state = await RunState.from_journal(self.agent, journal)
            return await self.run(self.agent, state, journal=journal, run_config=self.version.config)

    async def read(self) -> list[bytes]:
        """Return what the journal holds."""
        async with self.open_journal() as journal:
            return list(await journal.read())

    async def approve(self) -> None:
        """Approve all calls that wait, as a desk does that knows no agents."""
        async with self.library(), self.open_journal() as journal:
            state = await RunState.from_journal(self.agent, journal)
            known = len(state.records)
            for request in state.interruptions:
                if not _is_decided(state, request.call.call_id):
                    state.approve(request)
            await journal.append(list(map(line_encoder(None), state.records[known:])))

    @property
    def agent(self) -> Agent[Any, Any]:
        """The worker's agent, made anew as in another process."""
        return self.version.build(self.label, self.bodies)


def _is_decided(state: RunState, call_id: str) -> bool:
    return any(isinstance(record, r.VerdictGiven) and record.call_id == call_id for record in state.records)


async def cross(row: Row, direction: Direction, run: Run, open_journal: OpenJournal) -> None:
    """Have a run of *row* cross the deploy, and judge what becomes of it."""
    bodies = Bodies()

    def worker(label: str) -> Worker:
        is_newer = row.newer_library and label == "new"
        library = _newer_library if is_newer else _this_library
        return Worker(row.old if label == "old" else row.new, label, bodies, run, open_journal, library)

    labels = ("old", "new") if direction == "old to new" else ("new", "old")
    first, second = map(worker, labels)
    if row.continues is not None:
        second = attrs.evolve(second, version=row.continues)
    expected = row.forward if direction == "old to new" else row.back
    cut = row.cut if direction == "old to new" else None
    if cut is not None:
        await first.begin_and_die(cut)
        waiting: tuple[str, ...] = ()
    else:
        waiting = await first.begin()
        assert waiting
    begun = list(bodies.ran)
    if expected.startswith("refused: "):
        for is_decided in (False, True):
            if is_decided:
                await first.approve()
            before = await first.read()
            with pytest.raises(StateError, match=expected.removeprefix("refused: ")):
                await second.go_on()
            assert await first.read() == before
            assert bodies.ran == begun
        result = await finish(first)
        assert set(bodies.ran) <= {f"{name} {first.label}" for name in (*TOOLS, "pay_out")}
    else:
        paused = await second.go_on()  # nobody has decided yet
        assert tuple(request.call.call_id for request in paused.interruptions) == waiting
        assert bodies.ran == begun
        result = await finish(second)
        assert ", ".join(bodies.ran) == expected
        assert bodies.systems[-1] == second.version.fields.get("instructions")
    assert result.final_output in ("done", "taken over")


async def cross_again(direction: Direction, run: Run, open_journal: OpenJournal, *, back: bool) -> None:
    """Have a run cross deploys before it makes a call whose tool has another schema in each version.

    It waits for the version whose model has made it: the one that the run didn't begin with, or, after a way *back*,
    the one that it began with and had left.
    """
    bodies = Bodies()
    versions = {"old": version(), "new": version(hold={"arguments": ["n"]})}
    labels = ("old", "new") if direction == "old to new" else ("new", "old")
    begins, other = (Worker(versions[label], label, bodies, run, open_journal, _this_library) for label in labels)
    assert await begins.begin() == ("p",)
    if back:
        await other.go_on()
    await begins.approve()
    makes, refuses = (begins, other) if back else (other, begins)
    paused = await makes.go_on()
    assert [request.call.call_id for request in paused.interruptions] == ["h"]
    for is_decided in (False, True):
        if is_decided:
            await refuses.approve()
        before, begun = await refuses.read(), list(bodies.ran)
        with pytest.raises(StateError, match="call 'h' waits for tool 'hold'"):
            await refuses.go_on()
        assert await refuses.read() == before
        assert bodies.ran == begun
    assert (await makes.go_on()).final_output == "done"
    assert bodies.ran == [f"look {begins.label}", *(f"{name} {makes.label}" for name in ("pay", "hold", "look"))]


async def finish(worker: Worker) -> Any:
    """Give each verdict and have *worker* continue until the run has ended; return the result."""
    for _ in range(len(USUAL) + 1):
        await worker.approve()
        result = await worker.go_on()
        if result.status == "completed":
            return result
    raise AssertionError("the run doesn't end")


def _this_library() -> AbstractAsyncContextManager[None]:
    return nullcontext()


class _NewerLibrary:
    """For a block, the library of a later release: it writes another schema, and reads the ones before it."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()

    async def __aenter__(self) -> None:
        upgrades = {**record_codec.UPGRADES, record_codec.SCHEMA_VERSION: lambda data: data}
        later = str(int(record_codec.SCHEMA_VERSION) + 1)
        self.patch.setattr(record_codec, "UPGRADES", upgrades)
        self.patch.setattr(record_codec, "SUPPORTED", (*upgrades, later))
        self.patch.setattr(record_codec, "SCHEMA_VERSION", later)

    async def __aexit__(self, *error: object) -> None:
        self.patch.undo()


def _newer_library() -> AbstractAsyncContextManager[None]:
    return _NewerLibrary()
