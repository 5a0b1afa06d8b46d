"""Forks: a recorded run up to a record, edited, and continued in several ways at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from lab.shop import LEDGER, STORIES, ask, make_agent, read_again, record, state_of

from agentloop import Agent, Conversation, RequestUsage, RunConfig, Runner, StateError, UserError, lab, tool
from agentloop.executors import LocalSandboxes
from agentloop.items import AssistantMessage, Reasoning, ToolCall, ToolOutput
from agentloop.journal import FileJournal, read_journal
from agentloop.lab._edits import edit_records
from agentloop.records import CallStarted, ModelRequested, ModelResponded, RunStarted
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, ScriptedModel, call, say

real = pytest.mark.real_clock


def kinds(records: Any) -> list[str]:
    """Return the kinds of records."""
    return [type(one).__name__ for one in records]


def unnamed(records: Any) -> list[Any]:
    """Return *records* without the run's id."""
    return [one.replace(run_id="") if isinstance(one, RunStarted) else one for one in read_again(records)]


def shows_input_first(records: Any) -> bool:
    """Tell whether input waits beside a request without an answer: a run that resumes there shows it and asks anew."""
    asked = [isinstance(one, ModelRequested) for one in records if isinstance(one, ModelRequested | ModelResponded)]
    return asked[-1:] == [True] and any(one.status == "waiting" for one in state_of(records).inputs)


async def fork_everywhere(kind: str, number: int) -> int:
    """Fork a run of *kind* after each of its records; return after how many one may."""
    records = await record(kind, number)
    whole = state_of(records)
    LEDGER.clear()
    count = 0
    for at in range(1, len(records) + 1):
        model = ScriptedModel([say("Later.")] * 3)
        try:
            made = await lab.fork(whole, make_agent(model), at=at)
        except StateError as error:
            if "is over" not in str(error):
                raise
            continue
        count += 1
        (branch,) = made.branches
        assert unnamed(branch.records[:at]) == unnamed(records[:at])
        assert branch.records[0].run_id != records[0].run_id
        assert not branch.error, (kind, at, branch.error)
        assert branch.origins == (lab.Origin(run_id=whole.run_id, records=at, branch="as is"),)
        if kind == "tripped":  # its request had no answer, so the model may be asked
            assert branch.run.error == made.run.error
        elif shows_input_first(records[:at]):
            assert kinds(branch.records).count("InputShown") == kinds(records).count("InputShown")
        elif kind != "cancelled":  # a fork goes on where the run was cut off
            assert not model.requests
            assert made.diff("as is").first is None, (kind, at, str(made.diff("as is")))
    assert LEDGER == [], (kind, LEDGER)
    return count


@real
@pytest.mark.scenario("LB-14")
@pytest.mark.parametrize("kind", sorted(STORIES))
async def test_a_fork_at_any_record_repeats_nothing_before_it(kind: str) -> None:
    """Its beginning is the log's, and an unchanged agent comes to the same end without a request or a body."""
    assert await fork_everywhere(kind, 3) > 2


@real
@pytest.mark.slow
@pytest.mark.scenario("LB-14")
async def test_fifty_runs_are_forked_at_each_record() -> None:
    """As above, for fifty runs of all kinds."""
    for number in range(4, 9):
        for kind in STORIES:
            await fork_everywhere(kind, number)


def branching_agent(meet: int, arrived: list[str]) -> Agent[Any, Any]:
    """Return an agent whose model takes its time, one second more for each branch."""

    async def play(request: Any) -> Any:
        if not any(isinstance(item, ToolOutput) for item in request.items):
            return call("look", {"item": "tea"}, call_id="c1")
        arrived.append(request.system)
        await anyio.sleep(1 + len(arrived))
        return say(f"{request.system} says {request.items[-1].output}")

    @tool(reads_only=True)
    async def look(item: str) -> str:
        """Look it up."""
        LEDGER.append("look")
        return "5 left"

    return Agent("shop", instructions="The shop", model=FunctionModel(play), tools=[look])


@pytest.mark.scenario("LB-14")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_twenty_branches_take_as_long_as_the_slowest() -> None:
    """All of them run at once, in one nursery."""
    arrived: list[str] = []
    agent = branching_agent(20, arrived)
    result = await Runner.run(agent, "Is there tea?")
    arrived.clear()
    LEDGER.clear()
    began = anyio.current_time()
    branches = [lab.Branch(name=f"b{n}", instructions=f"Branch {n}") for n in range(20)]
    made = await lab.fork(result, agent, turn=2, edits=[lab.SetOutput("c1", "sold out")], branches=branches)
    assert anyio.current_time() - began == pytest.approx(21)  # the slowest alone takes 21
    assert {one.answer for one in made.branches} == {f"Branch {n} says sold out" for n in range(20)}
    assert LEDGER == []


@pytest.mark.scenario("LB-14")
async def test_a_cancelled_fork_leaves_nothing(tmp_path: Path) -> None:
    """No branch is left at work, and no file in the folder, when all are cut off at once."""
    begun, ended = anyio.Event(), list[int]()

    async def play(request: Any) -> Any:
        if request.system == "Wait.":
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(1)
        return say("quick")

    agent = Agent("a", instructions="Go.", model=FunctionModel(play))
    result = await Runner.run(agent, "hi")
    async with anyio.create_task_group() as group:

        async def work() -> None:
            waiting = [lab.Branch(name=name, instructions="Wait.") for name in "ab"]
            await lab.fork(result, agent, at=1, branches=[lab.Branch(), *waiting], folder=tmp_path / "out")

        group.start_soon(work)
        await begun.wait()
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert len(ended) in (1, 2)  # of those that had begun
    assert not (tmp_path / "out").exists()


@real
async def test_branches_differ_as_they_say(tmp_path: Path) -> None:
    """Another model, other instructions, another seed; each is a journal that can be read and continued."""

    async def play(request: Any) -> Any:
        outputs = [item for item in request.items if isinstance(item, ToolOutput)]
        if not outputs:
            return call("refund", {"order": "o-1", "amount": 1}, call_id="r1")
        return say(f"{request.system} {len(asked)}") if not asked.append(request.system) else None

    asked: list[Any] = []
    agent = make_agent(FunctionModel(play), instructions="Old.")
    result = await Runner.run(agent, "Pay me back.")
    LEDGER.clear()
    branches = [
        lab.Branch(),
        lab.Branch(model=ScriptedModel([say("from another")]), name="other model"),
        lab.Branch(instructions="New."),
        lab.Branch(seed=1),
        lab.Branch(agent=Agent("elsewhere", model="none/x"), name="wrong"),
    ]
    made = await lab.fork(result, agent, turn=2, branches=branches[:4], folder=tmp_path, run_config=RunConfig())
    assert [one.name for one in made.branches] == ["as is", "other model", "instructions=New.", "seed=1"]
    assert made["as is"].answer == made.run.answer_text
    assert made["other model"].answer == "from another"
    assert made["instructions=New."].answer.startswith("New. ")
    assert made["seed=1"].answer != made.run.answer_text
    assert [one.requests for one in made.branches] == [0, 1, 1, 1]
    assert len(asked) == 3
    assert LEDGER == []
    assert made.diff("as is").first is None
    for one in made.branches:
        assert one.path is not None
        assert kinds(read_journal(one.path)) == kinds(one.records)
    text = str(made)
    assert "at record" in text
    assert "(turn 1)" in text
    with pytest.raises(UserError, match=r"as-is\.journal' is there already"):
        await lab.fork(result, agent, turn=2, folder=tmp_path)
    bad = await lab.fork(result, agent, turn=2, branches=branches[4:])
    assert "elsewhere" in bad.branches[0].answer or "shop" in bad.branches[0].answer


@real
@pytest.mark.scenario("LB-18")
async def test_no_request_is_made_if_no_journal_can_be_written(tmp_path: Path) -> None:
    """A file in the folder's place, above it, a folder that no file can be made in; a name is cut by its bytes."""
    model = ScriptedModel([call("c", {}, call_id="c1"), say("done"), say("again")])

    @tool(name="c", reads_only=True)
    async def count() -> str:
        """Count."""
        return "5"

    agent = Agent("a", model=model, tools=[count])
    result = await Runner.run(agent, "go")
    asked = len(model.requests)
    (tmp_path / "file").write_text("")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere" / "file")
    for place in ("file", "file/below", "broken"):
        with pytest.raises(UserError, match=f"folder: no journal can be written in '.*{place}'"):
            await lab.fork(result, agent, turn=2, branches=[lab.Branch(seed=1)], folder=tmp_path / place)
    assert len(model.requests) == asked
    for name in ("long" * 40, "\U00020000" * 80):
        made = await lab.fork(result, agent, turn=2, branches=[lab.Branch(name=name)], folder=tmp_path / "out")
        path = made.branches[0].path
        assert path is not None
        assert path.stem == name[: 80 // len(name[0].encode())]
        assert kinds(read_journal(path)) == kinds(made.branches[0].records)


async def test_a_fork_of_a_fork_names_both_origins(tmp_path: Path) -> None:
    """Of a file and of a value alike; a diff says the first difference, and what follows from it."""
    steps = [ask("look_up", 1), ask("refund", 1, order="o-1", amount=5), say("Done.")]
    agent = make_agent(steps)
    result = await Runner.run(agent, "Help me.")
    again = make_agent([ask("refund", 2, order="o-2", amount=7), say("Nothing paid."), say("Another end.")])
    first = await lab.fork(
        result, again, turn=2, edits=[lab.SetOutput("look_up-1", {"paid": 0})], branches=[lab.Branch(name="b")],
        folder=tmp_path,
    )  # fmt: skip
    one = first["b"]
    assert one.answer == "Nothing paid."
    assert one.refused == 1
    text = str(first.diff("b"))
    assert text.splitlines()[0] == "the first 1 steps are the same; then"
    assert '+ turn 1, output: succeeded: {"paid": 0}' in text
    assert 'changed: refund {"order": "o-1", "amount": 5} is now {"order": "o-2", "amount": 7}' in text
    assert "ends with 'Done.', then 'Nothing paid.'" in text
    for source in (one, tmp_path / "b.journal"):
        second = await lab.fork(source, make_agent([say("Another end.")]), turn=3, branches=[lab.Branch(seed=2)])
        names = [(origin.run_id, origin.records, origin.edits, origin.branch) for origin in second.branches[0].origins]
        assert [name[3] for name in names] == ["b", "seed=2"]
        assert names[0][0] == result.to_state().run_id
        assert names[0][2] == ("set call:look_up-1.output",)
        assert names[1][0] == one.records[0].run_id
        assert second.branches[0].answer == "Another end."
        assert second.diff("seed=2").first == 4
        assert names[0][0] in str(second)


@real
@pytest.mark.scenario("LB-15")
async def test_an_edit_that_no_run_could_have_made_is_refused_with_its_rule() -> None:
    """The call, the outcome, the order, the history, the session: the first rule that is broken is named."""
    records = await record("parallel", 3)
    state, agent = state_of(records), make_agent([say("x")])
    settled = next(n for n, one in enumerate(records, 1) if type(one).__name__ == "BatchEnded")
    started = next(n for n, one in enumerate(records, 1) if isinstance(one, CallStarted))

    async def refused(edit: Any, at: int, **more: Any) -> str:
        with pytest.raises(UserError) as caught:
            await lab.fork(more.get("state", state), agent, at=at, edits=[edit])
        return str(caught.value)

    assert "has made no such call" in await refused(lab.SetOutput("c9", "x"), settled)
    assert "has made no such call" in await refused(lab.DropCall("c9"), settled)
    assert "hasn't settled there" in await refused(lab.SetOutput("refund-3", "x"), started)
    assert "the output has no JSON form" in await refused(lab.SetOutput("refund-3", object()), settled)
    assert "expected SetOutput" in await refused("drop call:c1", settled)
    alone = await record("failed", 3)
    batch = next(n for n, one in enumerate(alone, 1) if type(one).__name__ == "BatchEnded")
    text = await refused(lab.DropCall("break_down-3"), batch, state=state_of(alone))
    assert re.search(r"drop call:break_down-3': record \d+ \(BatchEnded\) doesn't fit those before it", text)
    rejected = await record("rejected", 3)
    text = await refused(lab.SetOutput("pay-3", "paid"), len(rejected) - 5, state=state_of(rejected))
    assert "was rejected and never started" in text or "hasn't settled" in text
    handed = await record("handed off", 3)
    place = next(n for n, one in enumerate(handed, 1) if type(one).__name__ == "HandedOff")
    text = await refused(lab.DropCall("transfer_to_colleague-3"), place, state=state_of(handed))
    assert "doesn't fit those before it" in text
    ended = await record("ended", 3)
    cut = max(n for n, one in enumerate(ended, 1) if type(one).__name__ == "CallSettled")
    text = await refused(lab.DropCall("end_it-3"), cut, state=state_of(ended))
    assert "call 'hang-3' was cancelled because of it" in text


@real
@pytest.mark.scenario("LB-15")
async def test_what_an_edit_may_change() -> None:
    """A call among several goes with its records; an input takes the place of another; a failure becomes a success."""
    records = await record("parallel", 3)
    batch = next(n for n, one in enumerate(records, 1) if type(one).__name__ == "BatchEnded")
    made = edit_records(
        records[:batch], [lab.DropCall("refund-3"), lab.SetInput("Another."), lab.SetOutput("look_up-3", [1])]
    )
    assert "refund-3" not in str(made)
    assert "'Another.'" in str(made[0])
    assert "'[1]'" in str(made)
    failed = await record("failed", 3)
    settled = next(n for n, one in enumerate(failed, 1) if type(one).__name__ == "CallSettled")
    made = edit_records(failed[:settled], [lab.SetOutput("break_down-3", "fine")])
    outcome = made[-1].outcome
    assert (outcome.status, outcome.output, made[-1].error) == ("succeeded", "fine", None)
    nested = await record("nested", 3)
    inner = next(n for n, one in enumerate(nested, 1) if one.path and type(one).__name__ == "CallSettled")
    for name in ("look_up-3", "ask_helper-3/look_up-3"):
        assert "'gone'" in str(edit_records(nested[:inner], [lab.SetOutput(name, "gone")])[-1])
    outer = next(n for n, one in enumerate(nested, 1) if not one.path and type(one).__name__ == "CallSettled")
    left = edit_records(nested[: outer - 1], [])
    assert len(left) == outer - 1
    with pytest.raises(UserError, match="several runs have such a call"):
        both = [*nested]
        answer = next(one for one in both if isinstance(one, ModelResponded) and one.path)
        both.insert(both.index(answer), answer.replace(path=("x",)))
        lab.SetOutput("look_up-3", "x").apply(both)


@real
@pytest.mark.scenario("LB-15")
async def test_edits_keep_reasoning_sessions_and_replaced_histories_whole() -> None:
    """Rules that the order of records doesn't know."""
    from agentloop.records import HistoryReplaced, SessionSaved

    records = await record("parallel", 3)
    index = next(n for n, one in enumerate(records) if isinstance(one, ModelResponded))
    answer = records[index]
    first, second, last = answer.response.items
    items = (first, second, Reasoning(), last)
    reasoned = answer.replace(response=answer.response.replace(items=items))
    assert isinstance(last, ToolCall)
    thought = [*records[:index], reasoned, *records[index + 1 :]]
    with pytest.raises(UserError, match="the reasoning before it needs an item that follows"):
        lab.DropCall(last.call_id).apply(thought)
    saved = [*records, SessionSaved((), 1, 0.0, 3)]
    with pytest.raises(UserError, match="the session was saved with it"):
        lab.DropCall("refund-3").apply(saved)
    replaced = [*records, HistoryReplaced((), 1, 0.0, "compaction", 0, (AssistantMessage("short"),))]
    for edit in (lab.DropCall("refund-3"), lab.SetOutput("refund-3", "x"), lab.SetInput("x")):
        with pytest.raises(UserError, match=r"the history was replaced at record \d+ \(compaction\)"):
            edit.apply(replaced)


@real
async def test_wrong_arguments_are_named() -> None:
    """Where it lies, what it is made of, which branches."""
    records = await record("answered", 3)
    state, agent = state_of(records), make_agent([])
    for words, given in {
        "at: expected the number of a record": {},
        "at: expected the number of a record, from 1 to": {"at": 99},
        "turn: the run has no turn 9": {"turn": 9},
        "agent: expected an Agent": {"at": 1, "agent": 3},
        "branches: expected Branch objects": {"at": 1, "branches": ["x"]},
        "branches: expected different names": {"at": 1, "branches": [lab.Branch(), lab.Branch(name="as-is")]},
        "simulate: expected a function": {"at": 1, "unmatched": "simulate"},
    }.items():
        with pytest.raises(UserError, match=words):
            await lab.fork(state, **{"agent": agent, **given})
    with pytest.raises(UserError, match="expected one run, got 2"):
        await lab.fork([state, state], agent, at=1)
    with pytest.raises(StateError, match="not of 'other'"):
        await lab.fork(state, Agent("other"), at=1)
    with pytest.raises(StateError, match="is over: it has completed"):
        await lab.fork(state, agent, at=len(records))
    made = await lab.fork(state, agent, at=1)
    with pytest.raises(UserError, match=r"branch: expected one of \['as is'\], got 'x'"):
        made["x"]


@real
async def test_the_page_shows_the_tree_and_no_markup_of_a_run() -> None:
    """Branches, answers, costs; a text of a run is text."""
    used = RequestUsage(input_tokens=1, output_tokens=1)
    agent = Agent(
        "a", instructions="<i>", model=ScriptedModel([say("<b>one</b>", used), say("<script>x</script>", used)])
    )
    config = RunConfig(price=lambda name, usage: 2)
    result = await Runner.run(agent, "hi", run_config=config)
    made = await lab.fork(result, agent, at=1, branches=[lab.Branch(), lab.Branch(seed=1)], run_config=config)
    page = made.to_html()
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert "<dt>cost since</dt><dd>2</dd>" in page
    assert "forked at record 1" in page
    assert "Fork" in made._repr_html_()


@real
async def test_a_fork_of_a_journal_on_disk(tmp_path: Path) -> None:
    """The log is read, and left as it is."""
    path = tmp_path / "run.journal"
    agent = Agent("a", model=ScriptedModel([say("one")]))
    async with FileJournal(path) as journal:
        await Runner.run(agent, "hi", journal=journal)
    before = path.read_bytes()
    place = next(n for n, one in enumerate(read_journal(path), 1) if isinstance(one, ModelRequested))
    made = await lab.fork(path, agent, at=place)
    assert made.branches[0].answer == "one"
    assert path.read_bytes() == before


@real
async def test_a_run_with_a_sandbox_a_session_or_a_kept_conversation_is_forked(tmp_path: Path) -> None:
    """The lab opens no sandbox and no session; a conversation that the provider keeps can't be continued."""

    @tool
    async def look(item: str) -> str:
        """Look."""
        return "5 left"

    def make(*steps: Any) -> Agent[Any, Any]:
        return Agent("a", model=ScriptedModel(list(steps)), tools=[look])

    steps = [call("look", {"item": "tea"}, call_id="c1"), say("yes")]
    session = MemorySession()
    options = {
        "sandbox": {"run_config": RunConfig(sandbox=LocalSandboxes(tmp_path / "sandboxes"))},
        "session": {"session": session},
    }
    for name, given in options.items():
        result = await Runner.run(make(*steps), "Is there tea?", **given)  # type: ignore[arg-type]
        items = await session.get_items()
        for at in range(1, len(result.records)):
            made = await lab.fork(result, make(), at=at)
            assert made.branches[0].answer == "yes", (name, at)
            assert made.branches[0].requests == 0
        assert await session.get_items() == items
        entered = await lab.enter(result, make(), "c1")
        assert entered.value == "5 left"
    kept = await Runner.run(make(*steps), "Is there tea?", conversation=Conversation(id="conv-1"))
    place = next(n for n, one in enumerate(kept.records, 1) if type(one).__name__ == "CallSettled")
    as_it_is = await lab.fork(kept, make(), at=place)
    assert as_it_is.branches[0].answer == "yes"
    other = await lab.fork(kept, make(say("no")), at=place, edits=[lab.SetOutput("c1", "sold out")])
    assert other.branches[0].answer == "from turn 2 on: the provider kept the earlier conversation"
