"""Rows, sums and reports of the lab: what is found, what is worse, and what can't be compared."""

from __future__ import annotations

import datetime
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import attrs
import pydantic
import pytest
from lab.shop import TOOLS, ask, last_text, look_up, make_agent, pay, record, refund, state_of

from agentloop import Agent, RunConfig, Runner, UserError, lab, tool
from agentloop.guardrails import RejectContent, tool_input_guardrail
from agentloop.items import ToolOutput
from agentloop.journal import FileJournal, MemoryJournal, SQLiteJournal
from agentloop.lab import CaseCall, CaseRun, LabReport, Score
from agentloop.lab._rows import _list_other_ends
from agentloop.sessions import SQLiteSession
from agentloop.testing import FunctionModel, ScriptedModel, call, say

pytestmark = pytest.mark.real_clock


def steps(number: int) -> list[Any]:
    """Return the answers of a run that looks an order up and pays it back."""
    return [ask("look_up", number), ask("refund", number, order=f"o-{number}", amount=number), say("Paid back.")]


async def recorded(count: int) -> list[Any]:
    """Return the results of *count* runs."""
    return [await Runner.run(make_agent(steps(n)), f"Order {n}.") for n in range(1, count + 1)]


def renamed(old: Any, **changes: Any) -> list[Any]:
    """Return the shop's tools, one of them changed."""
    return [attrs.evolve(one, **changes) if one is old else one for one in TOOLS]


SEEN: dict[str, Any] = {
    "a word more": lambda model: make_agent(model, instructions="Help well."),
    "a word less": lambda model: make_agent(model, instructions=""),
    "other case": lambda model: make_agent(model, instructions="help."),
    "a space": lambda model: make_agent(model, instructions="Help. "),
    "in parts": lambda model: make_agent(model, instructions=["Help.", "Be kind."]),
    "description": lambda model: make_agent(model, tools=renamed(refund, description="Give money back.")),
    "tool added": lambda model: make_agent(model, tools=[*TOOLS, tool(refund.fn, name="pay_back")]),
    "tool removed": lambda model: make_agent(model, tools=[one for one in TOOLS if one is not pay]),
    "schema": lambda model: make_agent(model, tools=[*TOOLS[1:], with_reason]),
    "order of tools": lambda model: make_agent(model, tools=TOOLS[::-1]),
}
UNSEEN: dict[str, Any] = {
    "another body": lambda model: make_agent(model, tools=[with_other_body, *TOOLS[1:]]),
    "a timeout": lambda model: make_agent(model, tools=renamed(refund, timeout=5.0)),
    "another error text": lambda model: make_agent(model, tools=renamed(refund, failure_error_function="raise")),
    "a limit": lambda model: make_agent(model, tools=renamed(refund, serial="money")),
    "reads only": lambda model: make_agent(model, tools=renamed(refund, reads_only=True)),
}


@tool(name="refund")
async def with_reason(order: str, amount: int, reason: str) -> str:
    """Pay money back."""
    return reason


@tool(name="refund")
async def with_other_body(order: str, amount: int) -> str:
    """Pay money back."""
    raise AssertionError


@tool_input_guardrail
def never(data: Any) -> RejectContent:
    """Refuse every call."""
    return RejectContent("Not today.")


@pytest.mark.scenario("LB-05")
@pytest.mark.parametrize("edit", SEEN)
async def test_a_planted_edit_is_found_in_every_run_that_it_touches(edit: str) -> None:
    """Each edit of what the model sees is told in every row, with the part."""
    results = await recorded(4)
    report = await lab.compare(results, SEEN[edit](ScriptedModel([say("Paid back.")] * 4)))
    part = "instructions" if edit in list(SEEN)[:5] else "definitions"
    assert [row.saw for row in report.rows] == [(f"turn 1: {part}",)] * 4
    assert {row.verdict for row in report.rows} == {"other calls"}


@pytest.mark.scenario("LB-05")
@pytest.mark.parametrize("edit", UNSEEN)
async def test_an_edit_that_no_model_sees_is_not_reported(edit: str) -> None:
    """What only the code sees leaves the rows the same."""
    report = await lab.compare(await recorded(4), UNSEEN[edit](ScriptedModel([])))
    assert [(row.verdict, row.saw, row.requests) for row in report.rows] == [("same", (), 0)] * 4


@pytest.mark.parametrize(
    ("new", "verdict", "why"),
    [
        ([ask("look_up", 1), ask("refund", 1, order="o-1", amount=1), say("Bye.")], "answer differs", "'Bye.'"),
        (
            [[ask("look_up", 1), ask("refund", 1, order="o-1", amount=1)], say("Paid back.")],
            "other way",
            "3 turns, now 2",
        ),
        ([ask("look_up", 1), say("Paid back.")], "other calls", "removed: refund"),
        ([ask("look_up", 2), say("No.")], "other calls", "changed: look_up"),
        ([ask("refund", 1, order="o-1", amount=2), say("No.")], "refused", '"amount": 2} was refused'),
        ([ask("pay", 1, order="o-1", amount=2)], "would ask", "pay waits for a verdict"),
        ([], "error", "UserError"),
        ([ask("look_up", 1), ask("refund", 1, order="o-1", amount=1), say(" Paid  back.\n")], "same", ""),
    ],
)
async def test_each_kind_of_change_has_its_verdict(new: list[Any], verdict: str, why: str) -> None:
    """The row says what became of the run, and why."""
    (row,) = (await lab.compare(await recorded(1), make_agent(new, instructions="New."))).rows
    assert row.verdict == verdict
    assert why in " ".join(row.why)


CHANGED_ENDS: dict[str, Any] = {
    "the tool is gone": (
        {"tools": [one for one in TOOLS if one is not refund]},
        "failed: \"Tool 'refund' not found.\"",
    ),
    "it takes more": ({"tools": [*TOOLS[1:], with_reason]}, 'failed: "Tool refund failed with: '),
    "it is disabled": ({"tools": renamed(refund, is_enabled=lambda ctx, agent: False)}, "failed: "),
    "a guardrail": ({"tools": renamed(refund, tool_input_guardrails=[never])}, "rejected: 'Not today.'"),
}


@pytest.mark.parametrize(
    ("before", "after", "changes"), [("fs", "sf", 0), ("fs", "fs", 0), ("ss", "fs", 1), ("sf", "ff", 1), ("s", "sf", 0)]
)
def test_equal_calls_may_come_in_another_order(before: str, after: str, changes: int) -> None:
    """As where nested runs stand side by side: what counts is how many of them succeed."""

    def made(ends: str) -> list[CaseCall]:
        statuses = {"f": "failed", "s": "succeeded"}
        return [CaseCall(tool="t", arguments="{}", status=statuses[end]) for end in ends]

    assert len(_list_other_ends(made(before), made(after))) == changes


@pytest.mark.parametrize("edit", CHANGED_ENDS)
async def test_an_equal_call_that_ends_otherwise_is_told(edit: str) -> None:
    """The model makes the same calls and gives the same answer, but the tool no longer does its work."""
    options, now = CHANGED_ENDS[edit]

    def answer(request: Any) -> Any:
        return steps(1)[sum(isinstance(item, ToolOutput) for item in request.items)]

    (row,) = (await lab.compare(await recorded(1), make_agent(FunctionModel(answer), **options))).rows
    assert row.verdict == "other calls"
    (why,) = row.why
    assert why.startswith('changed: refund {"order": "o-1", "amount": 1} was succeeded, and is now ' + now)


class Priced(pydantic.BaseModel):
    """A typed answer of pydantic."""

    amount: Decimal


@attrs.frozen
class Paid:
    """A typed answer."""

    orders: tuple[str, ...]
    day: datetime.date


TYPED = {
    Paid: '{"orders": ["o-1"], "day": "2026-01-02"}',
    Priced: '{"amount": "1.50"}',
    list[Paid]: '{"response": [{"orders": [], "day": "2026-01-02"}]}',
    float: '{"response": 1.5}',
}


@pytest.mark.parametrize("output_type", TYPED, ids=lambda kind: kind.__name__)
async def test_a_typed_answer_of_a_journal_is_the_same_answer(output_type: Any, tmp_path: Path) -> None:
    """A journal has the answer as JSON, and the lab's run an object: both are one answer, and another one differs."""

    def agent(text: str, instructions: str = "Help.") -> Any:
        return Agent("a", model=ScriptedModel([say(text)]), output_type=output_type, instructions=instructions)

    async with FileJournal(tmp_path / "run.journal") as journal:
        result = await Runner.run(agent(TYPED[output_type]), "Go.", journal=journal)
    for source in (tmp_path / "run.journal", result):
        (row,) = (await lab.compare(source, agent(TYPED[output_type]))).rows
        assert (row.verdict, row.why) == ("same", ())
    other = TYPED[output_type].replace("1", "3")
    (row,) = (await lab.compare(tmp_path / "run.journal", agent(other, "New."))).rows
    assert row.verdict == "answer differs"
    assert "(" not in row.why[0], "the answers are quoted as JSON"


@pytest.mark.scenario("LB-07")
async def test_only_what_became_worse_than_the_baseline_fails() -> None:
    """A check that failed before may fail again; another verdict further down the list is worse."""
    results = await recorded(2)
    checks = [lab.not_called("refund"), lab.called("look_up", times=1)]
    base = await lab.compare(results, make_agent(), checks=checks)
    assert base.exit_code() == 1
    assert base.exit_code(base) == 0
    again = LabReport.from_json(base.to_json())
    assert again == base

    def careless(request: Any) -> Any:
        return say("Paid back.") if "2" in last_text(request) else say("No.")

    agent = make_agent(FunctionModel(careless), instructions="New.")
    report = await lab.compare(results, agent, checks=checks)
    assert report.exit_code(base) == 1
    worse = report.find_worse(base)
    assert worse["run 0", 0] == (
        "other calls, was same",
        "check 'called look_up once' fails: look_up is called never, expected once",
    )
    with pytest.raises(AssertionError, match=re.escape("run 0: other calls, was same")):
        report.check(base)
    base.check(base)
    kind = make_agent(FunctionModel(lambda request: say("Paid back, gladly.")), instructions="New.")
    polite = await lab.compare(results, kind)
    assert {row.verdict for row in polite.rows} == {"other calls"}


async def test_another_answer_is_no_worse_by_itself() -> None:
    """Checks and judges decide whether it is."""
    results = await recorded(1)
    base = await lab.compare(results, make_agent(), judges=[is_paid])
    for answer, code in (("Paid, gladly.", 0), ("No.", 1)):
        report = await lab.compare(
            results, make_agent([*steps(1)[:2], say(answer)], instructions="New."), judges=[is_paid]
        )
        assert report.rows[0].verdict == "answer differs"
        assert report.exit_code(base) == code


async def test_the_baseline_reads_well_in_a_diff() -> None:
    """A field a line, and nothing but the changed lines differs."""
    results = await recorded(2)
    one = (await lab.compare(results, make_agent())).to_json(made="Monday").splitlines()
    agent = make_agent(tools=renamed(refund, timeout=5.0))
    two = (await lab.compare(results, agent)).to_json(made="Tuesday").splitlines()
    assert [(old, new) for old, new in zip(one, two, strict=True) if old != new] == [
        (' "made": "Monday",', ' "made": "Tuesday",')
    ]


@pytest.mark.scenario("LB-08")
async def test_a_journal_that_cannot_be_compared_has_a_row_that_says_so(tmp_path: Path) -> None:
    """Of schema 1, of an older library, torn, sealed, of another agent, empty, and no journal at all."""

    async def write(name: str, agent: Any, **options: Any) -> Path:
        path = tmp_path / f"{name}.journal"
        async with FileJournal(path, **options) as journal:
            await Runner.run(agent, "Order 1.", journal=journal)
        return path

    await write("sealed", make_agent(steps(1)), key=b"k" * 32)
    await write("another", Agent("other", model=ScriptedModel([say("hi")])))
    torn = await write("torn", make_agent(steps(1)))
    data = torn.read_bytes()
    torn.write_bytes(data[: data.rindex(b"call_settled") + 20])
    damaged = await write("damaged", make_agent(steps(1)))
    damaged.write_bytes(damaged.read_bytes().replace(b"look_up", b"look_it", 1))
    (tmp_path / "empty.journal").write_bytes(b"")
    (tmp_path / "prose.journal").write_text("Once upon a time")
    report = await lab.compare(tmp_path, make_agent())
    found = {row.name: (row.verdict, row.why) for row in report.rows}
    assert found["another"] == ("not comparable", ("it is a run of agent 'other', not of 'shop'",))
    assert found["torn"] == ("same", ("the recorded run ends in turn 2",))
    for name in ("sealed", "damaged", "empty", "prose"):
        assert found[name][0] == "not comparable", name
        assert found[name][1][0]
    assert report.exit_code() == 0


@pytest.mark.scenario("LB-08")
async def test_a_log_of_an_older_library_says_so() -> None:
    """Schema 1 lacks what the lab needs; so do requests without their parts."""
    records = await record("answered", 1)
    first: Any = records[0]
    old = [first.replace(schema="1"), *records[1:]]
    older = [one.replace(digest="0" * 32) if type(one).__name__ == "ModelRequested" else one for one in records]
    report = await lab.compare([state_of(old), state_of(older)], make_agent())
    assert report.rows[0].why == ("its log began in schema 1, which lacks what the lab needs",)
    assert report.rows[1].why == ("an older library wrote it, without the parts of the requests",)
    assert report.exit_code() == 2


async def test_every_run_of_a_sqlite_file_has_a_row(tmp_path: Path) -> None:
    """Its name is the run's id."""
    for name in ("one", "two"):
        async with SQLiteJournal(tmp_path / "runs.db", name) as journal:
            await Runner.run(make_agent(steps(1)), "Order 1.", journal=journal)
    report = await lab.compare(tmp_path / "runs.db", make_agent())
    assert [(row.name, row.verdict) for row in report.rows] == [("one", "same"), ("two", "same")]


@pytest.mark.scenario("LB-10")
async def test_equal_seeds_and_cache_give_equal_reports(tmp_path: Path) -> None:
    """Byte by byte, also with several runs at once and values that are made up."""
    results = await recorded(6)

    def new() -> Any:
        model = FunctionModel(lambda request: ask("refund", 1, order="x", amount=1) if request.turn == 1 else say("ok"))
        return make_agent(model, instructions="New.")

    reports = [
        await lab.compare(results, new(), unmatched="stub", seed=7, cache=tmp_path / "cache", concurrency=n, repeat=2)
        for n in (1, 4)
    ]
    assert reports[0].to_json() == reports[1].to_json()
    assert reports[0].to_junit() == reports[1].to_junit()
    assert str(reports[0]) == str(reports[1])


async def test_repeated_runs_have_intervals() -> None:
    """A model whose answers vary is the same in a share of its runs."""
    results = await recorded(1)
    answers = iter([say("Paid back."), say("Paid back."), say("No."), say("Paid back.")])
    agent = Agent("shop", model=FunctionModel(lambda request: next(answers)))
    report = await lab.compare(results, agent, repeat=4, judges=[is_paid])
    assert [row.repeat for row in report.rows] == [0, 1, 2, 3]
    sums = report.sums()
    assert sums["scores"]["is_paid"][0] == 0.75
    assert 0 <= sums["same"][0] <= sums["same"][1] <= 1
    assert "same: " in str(report)


def is_paid(run: CaseRun) -> Score:
    """Judge by the answer."""
    return Score(float("Paid" in run.answer_text), "it says so")


async def test_a_judge_is_a_function_or_a_question_for_a_model() -> None:
    """A model judges by a typed answer, and is shown the run but no instruction of it."""
    results = await recorded(1)
    judge = ScriptedModel([say('{"value": 0.25, "reason": "It is curt."}')])
    report = await lab.compare(results, make_agent(), judges=[is_paid, "Is it kind?"], judge_model=judge)
    (row,) = report.rows
    assert row.scores == {"is_paid": Score(1.0, "it says so"), "Is it kind?": Score(0.25, "It is curt.")}
    shown = last_text(judge.requests[0])
    assert "Order 1." in shown
    assert "Paid back." in shown
    assert "Is it kind?" in (judge.requests[0].system or "")
    with pytest.raises(UserError, match="judge_model"):
        await lab.compare(results, Agent("shop"), judges=["Is it kind?"])


async def test_checks_say_what_is_wrong() -> None:
    """Each check in the two directions."""
    kept: list[CaseRun] = []
    config = RunConfig(price=lambda name, usage: 1)
    results = await recorded(1)
    await lab.compare(
        results, make_agent(), run_config=config, observe=lambda row, before, after: kept.append(after or before)
    )
    run = kept[0].replace(cost=None)
    wrong = {
        "": [
            lab.called("refund"),
            lab.called("refund", times=1, order="o-1"),
            lab.not_called("pay"),
            lab.not_called("refund", amount=9),
            lab.order("look_up", "refund"),
            lab.order("refund", "pay"),
            lab.order("pay", "hang"),
            lab.answer_matches("(?i)paid"),
            lab.asked_before("pay"),
        ],
        "refund(amount=9) isn't called": [lab.called("refund", amount=9)],
        "refund is called once, expected 2 times": [lab.called("refund", times=2)],
        "refund is called once, expected never": [lab.not_called("refund")],
        "look_up is called, and refund wasn't before": [lab.order("refund", "look_up")],
        "refund is called, and pay wasn't before": [lab.order("look_up", "pay", "refund")],
        "the answer is 'Paid back.'": [lab.answer_matches("^No")],
        "1 of 1 calls of refund ran unasked": [lab.asked_before("refund")],
        "nothing has a price: give run_config=RunConfig(price=…)": [lab.cost_below(1)],
    }
    for text, checks in wrong.items():
        assert [one.verify(run) or "" for one in checks] == [text] * len(checks)
    assert lab.cost_below("4").verify(run.replace(cost=Decimal(3))) is None
    assert lab.cost_below("3").verify(run.replace(cost=Decimal(3))) == "it costs 3"


@pytest.mark.parametrize(
    "make",
    [lambda: lab.cost_below(0.5), lambda: lab.answer_matches("("), lambda: Score(2.0), lambda: lab.Case("x", "a/b")],
    ids=["cost", "pattern", "score", "name"],
)
def test_a_wrong_check_is_refused_where_it_is_made(make: Any) -> None:
    """The error names the argument."""
    with pytest.raises(UserError, match=r"cost_below|answer_matches|Score|Case"):
        make()


async def test_a_case_is_recorded_at_its_first_comparison(tmp_path: Path) -> None:
    """Then it is a journal like others, with its own checks."""
    case = lab.Case("Order 1.", expect="Paid back", checks=[lab.called("refund", times=1)])
    report = await lab.compare([case], make_agent(steps(1)), cases=tmp_path)
    assert (tmp_path / "Order-1.journal").exists()
    assert report.rows[0].checks == {"called refund once": None, "expected": None}
    changed = make_agent([say("No.")], instructions="New.")
    report = await lab.compare([case], changed, cases=tmp_path)
    assert report.rows[0].failed == ("called refund once", "expected")
    assert report.exit_code() == 1


async def test_rows_that_are_done_are_taken_over() -> None:
    """An interrupted comparison goes on where it was."""
    results = await recorded(3)
    whole = await lab.compare(results, make_agent())
    ran: list[str] = []
    rest = await lab.compare(
        results, make_agent(), done=whole.rows[:2], observe=lambda row, before, after: ran.append(row.name)
    )
    assert ran == ["run 2"]
    assert rest == whole


async def test_where_chooses_the_runs() -> None:
    """By the recorded run."""
    states = [state_of(await record(kind, 1)) for kind in ("answered", "ended")]
    report = await lab.compare(states, make_agent(), where=lambda run: run.status == "failed")
    assert [row.name for row in report.rows] == ["run 1"]


async def test_junit_has_a_test_for_each_row() -> None:
    """Failed by checks, skipped where nothing could be compared."""
    other = await Runner.run(Agent("other", model=ScriptedModel([say("hi")])), "go")
    report = await lab.compare([*await recorded(1), other], make_agent(), checks=[lab.not_called("refund")])
    suite = xml.fromstring(report.to_junit())
    assert suite.attrib["tests"] == "2"
    assert [one.find("failure") is not None for one in suite] == [True, False]
    assert [one.find("skipped") is not None for one in suite] == [False, True]


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    """The error names them."""
    agent: Any = make_agent()
    for text, given in {
        "simulate": {"unmatched": "simulate"},
        "repeat": {"repeat": 0},
        "concurrency": {"concurrency": 0},
    }.items():
        with pytest.raises(UserError, match=text):
            await lab.compare([], agent, **given)
    with pytest.raises(UserError, match="agent"):
        await lab.compare([], "agent")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there is no"):
        await lab.compare(tmp_path / "nothing", agent)
    with pytest.raises(UserError, match="holds no journal"):
        await lab.compare(tmp_path, agent)
    with pytest.raises(UserError, match="journals"):
        await lab.compare(7, agent)  # type: ignore[arg-type]


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    """The error names the file and what it is."""
    path = tmp_path / "report.json"
    for text in ("[]", "{", '{"agentloop lab": 9}', json.dumps({"agentloop lab": 1, "agent": "a", "rows": [{}]})):
        path.write_text(text)
        with pytest.raises(Exception, match=re.escape(str(path))):
            lab.read_report(path)


def test_a_stub_fits_what_the_tool_returns() -> None:
    """By its schema, or by what its function says."""
    from agentloop.lab._stub import draw_value

    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 3, "maximum": 4},
            "kind": {"enum": ["a", "b"]},
            "many": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "minItems": 2},
            "text": {"type": "string", "minLength": 6},
        },
    }
    made = draw_value(attrs.evolve(refund, output_schema=schema), "seed")
    assert made == draw_value(attrs.evolve(refund, output_schema=schema), "seed")
    assert made["n"] in (3, 4)
    assert made["kind"] in ("a", "b")
    assert len(made["many"]) == 2
    assert len(made["text"]) == 6
    assert draw_value(refund, "seed") == "stub"
    assert isinstance(draw_value(look_up, "seed"), dict)
    assert call("x")


async def test_a_check_or_a_judge_that_fails_costs_no_other_row() -> None:
    """A check that raises isn't passed; a judge that raises gives no score, and the row says so."""

    def broken(run: CaseRun) -> Score:
        raise ValueError("no network")

    def careless(run: CaseRun) -> str | None:
        raise KeyError("city")

    report = await lab.compare(
        await recorded(2), make_agent(), checks=[lab.RunCheck("careless", careless)], judges=[broken, is_paid]
    )
    for row in report.rows:
        assert row.checks == {"careless": "it raised KeyError('city')"}
        assert list(row.scores) == ["is_paid"]
        assert row.notes == ("judge 'broken' failed: ValueError(no network)",)


async def test_a_sealed_secret_is_opened_by_the_codec_of_its_journal() -> None:
    """Then nothing ends the comparison."""

    class Reverse:
        def seal(self, data: bytes) -> bytes:
            return data[::-1]

        def open(self, sealed: bytes) -> bytes:
            return sealed[::-1]

    @tool(secret=["word"])
    async def unlock(word: str) -> str:
        """Unlock."""
        return "open"

    def agent() -> Agent[Any, Any]:
        return Agent("a", model=ScriptedModel([call("unlock", {"word": "swordfish"}), say("ok")]), tools=[unlock])

    journal = MemoryJournal(codec=Reverse())
    await Runner.run(agent(), "go", journal=journal)
    report = await lab.compare(journal, agent())
    assert (report.rows[0].verdict, report.requests) == ("same", 0)
    assert "swordfish" not in report.to_json() + str(report)


async def test_a_folder_may_hold_journals_of_every_ending(tmp_path: Path) -> None:
    """Files of today and of older versions, and SQLite files with several runs; other databases are left out."""
    agent = Agent("a", model=ScriptedModel([say("one")] * 5))
    for name in ("b.journal", "c.jsonl"):
        async with FileJournal(tmp_path / name) as journal:
            await Runner.run(agent, "hi", journal=journal)
    for run_id in ("run-1", "run-2"):
        async with SQLiteJournal(tmp_path / "a.sqlite", run_id) as journal:
            await Runner.run(agent, "hi", journal=journal)
    async with SQLiteSession(tmp_path / "sessions.db", "s") as session:
        await session.add_items([])
    (tmp_path / "requests.jsonl").write_text("not a journal")
    report = await lab.compare(tmp_path, agent)
    assert [(row.name, row.verdict) for row in report.rows] == [(name, "same") for name in ("b", "c", "run-1", "run-2")]
