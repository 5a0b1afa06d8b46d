"""`lab.upgrade_check`: what it says of unfinished runs is what resuming them does, and it does nothing itself."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from kit.resuming import make_journal
from lab.desk import ASKING, CHANGES, LEDGER, SEEN, ReachedModel, build, draw_turns, play, record

from agentloop import (
    Agent,
    AgentLoopError,
    ExternalTool,
    RunConfig,
    Runner,
    RunState,
    UsageLimits,
    UserError,
    lab,
    tool,
    tool_search,
)
from agentloop import records as r
from agentloop._storage.state_codec import read_lines
from agentloop.abc import effects as e
from agentloop.bundles import Todo
from agentloop.config import HistorySettings
from agentloop.config.conditions import MaxTurns
from agentloop.items import CallToAnswer
from agentloop.journal import FileJournal, MemoryJournal, SQLiteJournal
from agentloop.lab._compare import VerdictRule
from agentloop.lab._copies import RecordedSandbox
from agentloop.lab._dry import DryEffects
from agentloop.lab._stub import draw_from
from agentloop.lab._upgrade import _list_calls, _list_due
from agentloop.sessions import MemorySession
from agentloop.settings import ModelSettings
from agentloop.testing import ScriptedModel, call, say
from agentloop.tools import AgentCall


@attrs.frozen(eq=False)
class Waiting:
    """An unfinished run: the lines of its journal, which may be cut, with an input that was added since."""

    name: str
    lines: list[bytes]
    added: bool = False
    rule: VerdictRule = "approve"

    async def journal(self) -> MemoryJournal:
        """Return a journal that holds the run."""
        journal = await make_journal(self.lines)
        if self.added:
            agent, _ = build("nothing")
            state = await RunState.from_journal(agent, journal)
            state.add_input("And be kind.", id="more")
            await state.append_to(journal)
        return journal


async def draw_waiting(rng: random.Random) -> Waiting:
    """Draw a run that isn't over: as it paused or stopped, or cut off after one of its records, mostly in its calls."""
    while True:
        config = {"stop_when": MaxTurns(1)} if rng.random() < 0.1 else {}
        lines, records = await record(draw_turns(rng), **config)
        cut = len(lines) if rng.random() < 0.4 else rng.randint(2, len(lines))
        ended = records[cut - 2]
        if not isinstance(ended, r.RunEnded) or ended.path or ended.resumable:
            kinds = [type(one).__name__ for one in records[: cut - 1]]
            return Waiting(f"{kinds}", lines[:cut], added=rng.random() < 0.1, rule=rng.choice(RULES))


async def records_in(journal: MemoryJournal) -> Sequence[r.Record]:
    """Return the records that *journal* holds."""
    return read_lines(await journal.read(), None).records


RULES: tuple[VerdictRule, ...] = ("approve", "approve", "reject", "ask")


def decide(state: RunState, rule: VerdictRule) -> None:
    """Give a verdict on, or answer, all that waits, as the check does."""
    for one in state.interruptions if rule != "ask" else ():
        if isinstance(one, CallToAnswer):
            state.answer(one, draw_from(one.returns, one.call.call_id))
        elif rule == "approve":
            state.approve(one)
        else:
            state.reject(one)


@attrs.frozen
class Really:
    """What resuming did: the error that it raised, and the records of its segment."""

    error: Exception | None
    records: tuple[r.Record, ...] = ()
    due: tuple[Any, ...] = ()

    @property
    def reached(self) -> bool:
        """True if the run came to its model, paused, or ended well."""
        return self.error is None or isinstance(self.error, ReachedModel)

    @property
    def is_over(self) -> bool:
        """True if the run has ended for good."""
        ends = [one for one in self.records if isinstance(one, r.RunEnded) and not one.path]
        return bool(ends) and not ends[-1].resumable


async def really_resume(waiting: Waiting, kind: str) -> Really:
    """Resume *waiting* with the agents of *kind*, in earnest."""
    journal, (agent, config) = await waiting.journal(), build(kind)
    SEEN.clear()
    LEDGER.clear()
    due: tuple[Any, ...] = ()
    known = 0
    records: list[r.Record] = []

    class Follow:
        def on_record(self, one: r.Record) -> None:
            records.append(one)

    config = attrs.evolve(config, instruments=[Follow()])
    try:
        state = await RunState.from_journal(agent, journal)
        decide(state, waiting.rule)
        due, known = tuple(_list_due(state._fold)), len(state.records)
        await Runner.run(agent, state, journal=journal, run_config=config)
    except (AgentLoopError, ReachedModel) as error:
        return Really(error, tuple(records), due)
    assert known
    return Really(None, tuple(records), due)


def shown(requests: Sequence[Any]) -> dict[Any, Any]:
    """Return what the first request of each run showed, its history apart."""
    found: dict[Any, Any] = {}
    for one in requests:
        tools = [(each.name, each.namespace, each.description, each.params_json_schema) for each in one.tools]
        given = (one.system, tools, [each.name for each in one.handoffs], one.output_schema, repr(one.settings))
        found.setdefault(one.path, given)
    return found


async def compare(waiting: Waiting, kind: str, usual: dict[Waiting, Any]) -> str:
    """Check *waiting* against *kind*, then resume it; assert that both agree. Return the verdict."""
    place = (waiting.name, kind)
    journal, (agent, config) = await waiting.journal(), build(kind)
    before = list(await journal.read())
    LEDGER.clear()
    SEEN.clear()
    report = await lab.upgrade_check(journal, agent, run_config=config, verdict=waiting.rule)
    assert LEDGER == [], place
    assert SEEN == [], place
    assert list(await journal.read()) == before, place
    (row,) = report.rows
    really = await really_resume(waiting, kind)
    requests, called = shown(SEEN), set(LEDGER)
    if waiting not in usual:
        await really_resume(waiting, "nothing")
        usual[waiting] = shown(SEEN)
    if kind in ASKING and row.asks:
        assert any(one.split(" ")[0] in called for one in row.asks), place
        return "asks"
    if row.verdict in ("refused", "fails"):
        assert not really.reached, (place, row)
        assert row.why == str(really.error), place
        assert really.is_over == (row.verdict == "fails"), place
        return row.verdict
    assert really.reached or (kind.endswith("typed") and "typed" in kind), (place, row, really.error)
    assert row.calls == tuple(_list_calls(really.due, really.records)), place
    asked = {one.partition(" (")[0] for one in row.asks}
    turns = [one.agent for one in really.records if isinstance(one, r.TurnStarted) and not one.path]
    if (really.error is not None or turns) and "input_filter" not in asked:
        assert row.agent == (turns[-1] if turns else None), place
    names = {"policy", "needs_approval", "is_enabled", "instructions"}
    assert asked & names == called & names, place
    graph = tuple(each for one in really.records if isinstance(one, r.GraphChanged) for each in one.changes)
    assert row.changes[: len(graph)] == graph, place
    # What the model wasn't shown before can't be shown otherwise.
    known = {one.path for one in await records_in(journal) if isinstance(one, r.ModelRequested)}
    told = {path: given for path, given in requests.items() if path in known}
    differs = [path for path, given in told.items() if path in usual[waiting] and usual[waiting][path] != given]
    is_judged = told.keys() <= usual[waiting].keys()  # the unchanged agent has shown as much
    if is_judged and not kind.startswith(("instructions from", "a tool choice", "another model")):
        assert (row.verdict == "changed") == bool(graph or differs), (place, row, differs)
    return row.verdict


async def compare_drawn(seed: int, runs: int, kinds: int) -> Counter[str]:
    """Compare drawn runs, each with several kinds of change; return how often there was which verdict."""
    rng, verdicts = random.Random(seed), Counter[str]()
    order = sorted(CHANGES)
    for number in range(runs):
        waiting, usual = await draw_waiting(rng), dict[Waiting, Any]()
        for index in range(kinds):
            verdicts[await compare(waiting, order[(number * kinds + index) % len(order)], usual)] += 1
    return verdicts


@pytest.mark.slow
@pytest.mark.scenario("LB-19")
async def test_the_verdict_is_what_resuming_does() -> None:
    """For runs that wait or were cut off, and kinds of change of code, the check and the resumed run agree."""
    await compare_drawn(19, 5, 2)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.scenario("LB-19")
async def test_the_verdict_is_what_resuming_does_for_every_kind_of_change() -> None:
    """As above, for each kind of change at least twice; `nox -s long` takes 1,000 runs, each with 30 kinds."""
    whole = os.environ.get("AGENTLOOP_SWEEP") == "whole"
    verdicts = await compare_drawn(20, 1_000 if whole else 32, 30 if whole else 4)
    assert set(verdicts) >= {"same", "changed", "refused"}


# ------------------------------------------------------------------------------------------------ single rows


async def check(kind: str, turns: Sequence[Any], **options: Any) -> lab.UpgradeRow:
    """Return the row of the run that yesterday's agents made of *turns*, for the agents of today."""
    lines, _ = await record(turns)
    agent, config = build(kind)
    (row,) = (await lab.upgrade_check(await make_journal(lines), agent, run_config=config, **options)).rows
    return row


@pytest.mark.scenario("LB-19")
async def test_a_row_says_what_waits_and_what_becomes_of_it() -> None:
    """It has the calls that wait, what each open call would do, the changes, and whose model is asked next."""
    pays = [call("pay", {"item": "a"}, call_id="p1")]
    row = await check("approval dropped", [pays])
    assert row.verdict == "changed"
    assert row.status == "interrupted"
    assert row.waiting == ("pay (p1) of agent 'desk'",)
    assert [str(one) for one in row.calls] == ["pay (p1) runs"]
    assert row.changes == ("agent 'desk': tool 'pay' has another policy",)
    assert row.agent == "desk"
    assert [str(one) for one in (await check("nothing", [pays], verdict="reject")).calls] == [
        "pay (p1) settles: rejected"
    ]
    assert [str(one) for one in (await check("nothing", [pays], verdict="ask")).calls] == ["pay (p1) waits"]


@pytest.mark.scenario("LB-19")
async def test_a_call_that_may_have_taken_effect_is_told_apart() -> None:
    """A run that died in a body: by the tool of today the call runs again, is told as unknown, or ends the run."""
    lines, records = await record([[call("charge", {"item": "a"}, call_id="c1")]])
    cut = next(index for index, one in enumerate(records) if isinstance(one, r.CallStarted)) + 2
    found = {}
    for kind in ("nothing", "in doubt, run again", "in doubt, raise"):
        agent, config = build(kind)
        (row,) = (await lab.upgrade_check(await make_journal(lines[:cut]), agent, run_config=config)).rows
        found[kind] = (row.verdict, [str(one) for one in row.calls])
    assert found == {
        "nothing": ("same", ["charge (c1) settles: unknown"]),
        "in doubt, run again": ("changed", ["charge (c1) runs again"]),
        "in doubt, raise": ("fails", []),
    }


@pytest.mark.scenario("LB-19")
async def test_functions_that_have_a_say_are_named() -> None:
    """The run continues as if they let it, also where a guardrail runs beside the request."""
    lines, records = await record([[call("charge", {"item": "a"}, call_id="c1")]])
    answered = next(index for index, one in enumerate(records) if isinstance(one, r.ModelResponded)) + 2
    agent, config = build("approval asked of a function")
    (row,) = (await lab.upgrade_check(await make_journal(lines[:answered]), agent, run_config=config)).rows
    assert ([str(one) for one in row.calls], row.asks) == (["charge (c1) runs"], ("needs_approval (c1)",))
    agent, config = build("an input guardrail")
    (row,) = (await lab.upgrade_check(await make_journal(lines[:2]), agent, run_config=config)).rows
    assert (row.verdict, row.asks) == ("same", ("guardrail read_input",))


@pytest.mark.scenario("LB-19")
async def test_runs_that_are_over_have_no_row() -> None:
    """A completed run is left out, and so is one that has failed for good."""
    done, _ = await record([])
    agent, _ = build("nothing")
    failed = await make_journal([])
    with pytest.raises(ReachedModel):
        await Runner.run(agent, "go", journal=failed)
    report = await lab.upgrade_check([await make_journal(done), failed], agent)
    assert report.rows == ()
    assert report.exit_code == 0
    assert str(report) == "Unfinished runs, resumed with agent 'desk': none"


@pytest.mark.scenario("LB-19")
async def test_a_journal_that_cannot_be_read_is_refused() -> None:
    """An empty one, one that begins with nonsense, and one with a header only have a row with the reason."""
    lines, _ = await record([[call("pay", {"item": "a"}, call_id="p1")]])
    agent, _ = build("nothing")
    broken = [await make_journal(each) for each in ([], [b"{}"], lines[:1])]
    report = await lab.upgrade_check(broken, agent)
    assert [row.verdict for row in report.rows] == ["refused"] * 3
    assert [row.why for row in report.rows] == [
        "it is empty, or nothing whole is in it",
        "the journal doesn't begin with a header",
        "the log is of no run: it has no RunStarted",
    ]
    assert report.exit_code == 1


@tool
async def found() -> str:
    """Be found."""
    raise NotImplementedError


class Source:
    """A source of tools that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def tools(self, ctx: Any, agent: Any) -> Any:
        """Give a tool."""
        self.asked += 1
        return [found]


@pytest.mark.scenario("LB-19")
async def test_a_source_of_tools_is_asked_only_if_it_may_be() -> None:
    """Without leave a run that needs it isn't known; with it the run has the source's tools."""
    lines, _ = await record([[call("pay", {"item": "a"}, call_id="p1")]])
    agent, _ = build("nothing")
    source = Source()
    agent = agent.clone(toolsets=[source])
    (row,) = (await lab.upgrade_check(await make_journal(lines), agent)).rows
    assert (row.verdict, source.asked) == ("unknown", 0)
    assert "toolsets=True" in row.why
    (row,) = (await lab.upgrade_check(await make_journal(lines), agent, toolsets=True)).rows
    assert (row.verdict, row.why, source.asked) == ("changed", "", 2)


@pytest.mark.scenario("LB-19")
async def test_a_model_string_needs_no_key() -> None:
    """The check names the new model, and opens none."""
    pays = [call("pay", {"item": "a"}, call_id="p1")]
    lines, _ = await record([pays])
    agent, _ = build("nothing")
    report = await lab.upgrade_check(await make_journal(lines), agent.clone(model="openai-chat:gpt-5"))
    assert report.rows[0].changes == ("agent 'desk': its model is openai:gpt-5, was FunctionModel:FunctionModel",)
    report = await lab.upgrade_check(await make_journal(lines), agent.clone(model="no-such:model"))
    assert report.rows[0].verdict == "same"


class Sandboxes:
    """A provider of sandboxes that no check may ask."""

    async def create(self, run_id: str) -> Any:
        """Refuse."""
        raise NotImplementedError

    async def find(self, name: str, run_id: str) -> Any:
        """Refuse."""
        raise NotImplementedError


@pytest.mark.scenario("LB-19")
async def test_a_sandbox_is_neither_made_nor_found() -> None:
    """A run that has one needs a provider among the options, which isn't asked."""
    lines, records = await record([[call("pay", {"item": "a"}, call_id="p1")]], sandbox=RecordedSandboxes())
    assert any(isinstance(one, r.SandboxOpened) for one in records)
    agent, config = build("nothing")
    (row,) = (await lab.upgrade_check(await make_journal(lines), agent, run_config=config)).rows
    assert (row.verdict, "RunConfig.sandbox" in row.why) == ("refused", True)
    config = attrs.evolve(config, sandbox=Sandboxes())
    (row,) = (await lab.upgrade_check(await make_journal(lines), agent, run_config=config)).rows
    assert (row.verdict, row.why) == ("same", "")


class RecordedSandboxes:
    """A provider of sandboxes of which only the name counts."""

    async def create(self, run_id: str) -> Any:
        """Return a sandbox."""
        return RecordedSandbox("box")

    async def find(self, name: str, run_id: str) -> Any:
        """Return it again."""
        return RecordedSandbox(name)


@pytest.mark.scenario("LB-19")
async def test_an_answer_may_have_a_shape_that_cannot_be_drawn_or_be_late() -> None:
    """A call that the application answers gets an answer, or an error, or nothing where its time has passed."""
    asking = ExternalTool("ask", "Ask.", {}, returns={"type": "string", "pattern": "^[0-9]{20}$"}, timeout=60)
    agent = Agent("desk", model=ScriptedModel([call("ask", {}, call_id="q1")]), tools=[asking])
    records = (await Runner.run(agent, "go")).records
    late = [one.replace(expires_at=one.at) if isinstance(one, r.AnswerRequested) else one for one in records]
    for held, text in ((records, "ask (q1) settles: failed"), (late, "ask (q1) settles: timed_out")):
        (row,) = (await lab.upgrade_check(RunState(agent, held), agent)).rows
        assert [str(one) for one in row.calls] == [text]


@pytest.mark.scenario("LB-19")
async def test_a_state_and_a_result_are_checked_as_a_journal_is() -> None:
    """The check takes what `compare` takes; the state isn't changed."""
    agent, _ = build("nothing")
    yesterday = agent.clone(model=play([[call("pay", {"item": "a"}, call_id="p1")]]))
    result = await Runner.run(yesterday, "go")
    state = result.to_state()
    count = len(state.records)
    today, config = build("a tool removed")
    report = await lab.upgrade_check([result, state], today, run_config=config)
    assert [row.changes[0] for row in report.rows] == ["agent 'desk': tool 'charge' is gone"] * 2
    assert len(state.records) == count


@pytest.mark.scenario("LB-19")
@pytest.mark.real_clock
async def test_a_file_of_many_runs_is_read_run_by_run(tmp_path: Path) -> None:
    """A folder with files and a SQLite file: a row for each unfinished run, and nothing is written."""
    agent, config = build("nothing")
    yesterday = agent.clone(model=play([[call("pay", {"item": "a"}, call_id="p1")]]))
    async with FileJournal(tmp_path / "one.journal") as journal:
        await Runner.run(yesterday, "go", journal=journal)
    for name in ("r1", "r2"):
        async with SQLiteJournal(tmp_path / "runs.db", name) as journal:
            await Runner.run(yesterday, "go", journal=journal)
    files = [tmp_path / "one.journal", tmp_path / "runs.db"]
    before = [await anyio.Path(file).read_bytes() for file in files]
    report = await lab.upgrade_check(tmp_path, agent, run_config=config)
    assert [(row.name, row.verdict) for row in report.rows] == [("one", "same"), ("r1", "same"), ("r2", "same")]
    assert [await anyio.Path(file).read_bytes() for file in files] == before


@pytest.mark.scenario("LB-19")
async def test_the_agents_log_nothing_of_the_check(caplog: pytest.LogCaptureFixture) -> None:
    """A warning that a resumed run would write about changed agents is in the row instead."""
    row = await check("a new tool", [[call("pay", {"item": "a"}, call_id="p1")]])
    assert row.changes == (
        "agent 'desk': tool 'more' is new",
        "agent 'desk': its model is shown other definitions (tools, settings or the type of the answer)",
    )
    lines, _ = await record(
        [
            [call("look", {"item": "a"}, call_id="l1"), call("transfer_to_back", call_id="t1")],
            call("file_it", {"item": "a"}, call_id="f1"),
        ]
    )
    agent, _ = build("nothing")
    agent.tools = [each for each in agent.tools if each.name != "look"]
    back = agent.handoffs[0].agent
    report = await lab.upgrade_check(
        await make_journal(lines), back.clone(handoffs=[agent.clone(name="other", handoffs=[])])
    )
    assert (report.rows[0].verdict, report.rows[0].why) == ("changed", "")
    assert caplog.records == []


async def test_wrong_arguments_are_named() -> None:
    """Something else than an agent, or another verdict than the three, is refused."""
    agent, _ = build("nothing")
    with pytest.raises(UserError, match="agent: expected an Agent, got 3"):
        await lab.upgrade_check([], 3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="verdict: expected 'approve', 'reject' or 'ask', got 'yes'"):
        await lab.upgrade_check([], agent, verdict="yes")  # type: ignore[arg-type]


async def test_the_report_as_text_and_json() -> None:
    """The text has the runs of which there is something to say; the JSON has all."""
    lines, _ = await record([[call("pay", {"item": "a"}, call_id="p1")]])
    agent, config = build("a policy that allows")
    report = await lab.upgrade_check(await make_journal(lines), agent, run_config=config)
    assert [str(one) for one in report.rows[0].calls] == ["pay (p1) runs"]
    assert str(report).splitlines() == [
        "Unfinished runs, resumed with agent 'desk': 1 same",
        "1 of them depend on what your functions will say, too: policy",
    ]
    agent, config = build("approval asked of a function")
    report = await lab.upgrade_check(await make_journal(lines), agent, run_config=config)
    assert str(report).splitlines() == [
        "Unfinished runs, resumed with agent 'desk': 1 changed",
        "changed  run",
        "         changed: agent 'desk': tool 'charge' has another policy",
        "         waits: pay (p1) of agent 'desk'",
        "         then: pay (p1) runs",
    ]
    assert (report.count("changed"), report.count("same")) == (1, 0)
    agent, config = build("a tool that needs approval removed")
    report = await lab.upgrade_check(await make_journal(lines), agent, run_config=config)
    assert "refused  run\n         call 'p1' waits for tool 'pay'" in str(report)
    (row,) = json.loads(report.to_json())["rows"]
    assert (row["verdict"], row["why"]) == ("refused", report.rows[0].why)
    assert "1 refused" in report._repr_html_()


# ------------------------------------------------------------------------------------------------ no false alarms


@tool(needs_approval=True)
async def pay(item: str) -> str:
    """Pay."""
    raise NotImplementedError


@tool
async def look(item: str) -> str:
    """Look."""
    return item


@tool(defer_loading=True)
async def mail(item: str) -> str:
    """Send a mail."""
    raise NotImplementedError


async def enabled(ctx: Any, agent: Any) -> bool:
    """Enable."""
    return True


async def instruct(ctx: Any, agent: Any) -> str:
    """Return other instructions each time."""
    return f"Be quick: {len(agent.tools)} {random.random()}"


LOOKS, PAYS = call("look", {"item": "a"}, call_id="l1"), call("pay", {"item": "a"}, call_id="p1")
UNCHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "tool choice": ({"model_settings": ModelSettings(tool_choice="look")}, {}, [LOOKS, PAYS]),
    "tool search": (
        {"tools": [pay, look, mail, tool_search(native=False)]},
        {},
        [[call("tool_search", {"query": "mail"}, call_id="s1"), PAYS]],
    ),
    "enabled by a function": ({"tools": [pay, attrs.evolve(look, is_enabled=enabled)]}, {}, [LOOKS, PAYS]),
    "instructions from a function": ({"instructions": instruct}, {}, [LOOKS, PAYS]),
    "a list of what is to do": (
        {"bundles": [Todo()]},
        {},
        [[call("write_todos", {"todos": [{"text": "a"}]}, call_id="t1"), PAYS]],
    ),
    "last turn": ({}, {"at_limit": "answer", "limits": UsageLimits(requests=1)}, [PAYS]),
    "input filter": ({}, {"history": HistorySettings(call_model_input_filter=lambda data: data)}, [PAYS]),
    "a session in an agent tool": (
        {"tools": [pay, Agent("inner").as_tool("inner", "Help.", session=MemorySession("s"))]},
        {},
        [[call("inner", {"input": "x"}, call_id="i1"), PAYS]],
    ),
}


@pytest.mark.scenario("LB-19")
@pytest.mark.parametrize("name", UNCHANGED)
async def test_an_unchanged_agent_is_the_same(name: str) -> None:
    """Whatever its turns show otherwise by themselves: tools found, a tool choice that is done with, a last turn."""
    fields, options, turns = UNCHANGED[name]
    model = ScriptedModel(turns)
    agent = Agent(**{"name": "desk", "model": model, "tools": [pay, look], **fields})
    for one in agent.functions:
        if isinstance(one.body, AgentCall):
            one.body.agent.model = ScriptedModel([say("Helped.")] * 2)
    config = RunConfig(**options)
    journal = MemoryJournal()
    await Runner.run(agent, "go", journal=journal, run_config=config)
    (row,) = (await lab.upgrade_check(journal, agent, run_config=config)).rows
    assert (row.verdict, row.changes, row.why) == ("same", (), "")
    lines = list(await journal.read())
    for cut in range(2, len(lines)):  # as if its process had died there
        for row in (await lab.upgrade_check(await make_journal(lines[:cut]), agent, run_config=config)).rows:
            assert (row.verdict, row.changes, row.why) == ("same", (), ""), cut


@pytest.mark.scenario("LB-19")
async def test_an_output_that_would_be_the_answer_is_not_judged() -> None:
    """It isn't known, so it can't end the run by not fitting the answer's type."""
    pays = ScriptedModel([call("pay", {"item": "a"}, call_id="p1")])
    ends = {"tools": [pay], "tool_use_behavior": "stop_on_first_tool", "output_type": list[int], "output_retries": 0}
    agent = Agent(**{"name": "desk", "model": pays, **ends})
    (row,) = (await lab.upgrade_check(await Runner.run(agent, "go"), agent)).rows
    assert (row.verdict, row.why, row.agent) == ("same", "", None)


async def test_what_has_no_callback_is_answered_at_once() -> None:
    """Ids, times, chances and waits come from the door, too."""
    dry = DryEffects(may_ask_sources=False)
    assert isinstance(await dry.perform(e.NewId()), str)
    assert isinstance(await dry.perform(e.Now()), float)
    assert await dry.perform(e.Random()) == 0.5
    assert await dry.perform(e.Sleep(60)) is None
