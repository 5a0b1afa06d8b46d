"""Timelines from records alone: which record makes which row, phase, mark and arrow, whatever the log holds."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import windows
from timeline.stories import CAUSES, DAY, START, STATUSES, Story, every_ending, long_run

from agentloop import Agent, ContextPolicy, Runner, Summarize, tool
from agentloop import records as r
from agentloop import testing as t
from agentloop._storage.withholding import Withheld, WithheldText
from agentloop.items import AssistantMessage, HandoffCall, Image, Refusal, Text, ToolCall, UserMessage
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.tracing import Timeline, TimelineFold, TimelineRow, read_timeline, render_text
from agentloop.tracing._timeline_content import show_arguments, show_error, show_value
from agentloop.tracing._timeline_words import PHASES


def row_of(timeline: Timeline, name: str) -> TimelineRow:
    """Return the only row of that name."""
    [found] = [row for row in timeline.rows if row.name == name]
    return found


def phases_of(row: TimelineRow) -> list[str]:
    """Return the phases of a row in seconds from the start of its story."""
    return [f"{phase.kind} {phase.start - START:g}-{phase.end - START:g}" for phase in row.phases]


def check(timeline: Timeline) -> None:
    """Check what holds for every timeline: the rows are a tree, and no time is before its beginning."""
    above: list[int] = []
    for position, row in enumerate(timeline.rows):
        del above[row.depth :]
        assert row.parent == (above[-1] if above else None)
        assert len(above) == row.depth
        above.append(position)
        assert timeline.start <= row.start <= row.end <= timeline.end
        for phase in row.phases:
            assert row.start <= phase.start <= phase.end <= row.end
    for arrow in timeline.arrows:
        target = timeline.rows[arrow.target]
        assert arrow.cause in [ending.cancelled_by for ending in target.endings]
        assert timeline.rows[arrow.source] is not None
    for gap in timeline.gaps:
        assert timeline.start <= gap.start <= gap.end <= timeline.end
    for width in (20, 60, 100, 200):
        lines = render_text(timeline, width=width).splitlines()
        assert lines
        assert max(map(len, lines)) <= width


def test_phases_of_calls_are_told_apart() -> None:
    """A call waits, runs, cleans up after its timeout, or goes through hooks after its body."""
    timeline = read_timeline(every_ending())
    assert phases_of(row_of(timeline, "search")) == ["run 2.65-3.3", "after 3.3-3.4"]
    assert phases_of(row_of(timeline, "fetch")) == ["queue 2.66-3.4", "run 3.4-4.4"]
    assert phases_of(row_of(timeline, "slow")) == ["run 2.66-4.7", "cleanup 4.7-5"]
    assert [mark.kind for mark in row_of(timeline, "slow").marks] == ["timeout"]
    assert row_of(timeline, "fetch").phases[0].note == "waited for capacity web"
    assert phases_of(row_of(timeline, "search_again")) == []


def test_every_status_and_cause_has_its_ending() -> None:
    """The story has all of them; each ending says its own."""
    timeline = read_timeline(every_ending())
    endings = [ending for row in timeline.rows if row.kind == "call" for ending in row.endings]
    assert {ending.status for ending in endings} == set(STATUSES)
    assert {ending.cancelled_by for ending in endings} == {None, *CAUSES}


@pytest.mark.scenario("VI-02")
def test_arrows_lead_from_who_cancelled_to_who_was_cancelled() -> None:
    """From the call that the outcome names; else from the call around, the run, or the call itself."""
    timeline = read_timeline(every_ending())
    names = [
        (timeline.rows[arrow.source].name, timeline.rows[arrow.target].name, arrow.cause) for arrow in timeline.arrows
    ]
    assert sorted(names) == [
        ("book", "hotel", "sibling"),
        ("book", "research", "sibling"),
        ("desk", "invoice", "deadline"),
        ("desk", "poll", "caller"),
        ("research", "visit", "parent"),
        ("stop_watch", "watch", "caller"),
        ("undecided", "undecided", "tool"),
    ]


def test_an_approval_is_a_phase_that_outlasts_its_segment() -> None:
    """It ends with the verdict, and says who gave it; the pause is one of the timeline's gaps."""
    timeline = read_timeline(every_ending())
    pay, delete = row_of(timeline, "pay"), row_of(timeline, "delete")
    assert phases_of(pay)[0] == f"approval 8.71-{2 * DAY:g}"
    assert pay.phases[0].note == "approved by alice@example.org"
    assert delete.phases[0].note == "rejected by rule 7"
    assert [mark.kind for mark in delete.marks] == ["rejected"]
    assert dict(pay.facts)["verdict"] == "approved by alice@example.org"
    assert (timeline.gaps[0].start - START, timeline.gaps[0].crashed) == (8.75, False)


def test_a_process_that_died_leaves_a_gap_that_says_so() -> None:
    """What was open ends at its last record; the call that is started again has one row with both tries."""
    timeline = read_timeline(every_ending())
    assert [gap.crashed for gap in timeline.gaps] == [False, False, True]
    invoice = row_of(timeline, "invoice")
    assert [phase.kind for phase in invoice.phases] == ["run", "run", "cleanup"]
    assert invoice.phases[0].note == "cut off: its process died"


def test_a_verdict_that_waits_stays_open() -> None:
    """The run is interrupted; no record ends the wait."""
    story = Story()
    story.begin(1)
    story.ask(1, 2, *story.calls("pay"))
    story.tell(r.ApprovalRequested, 2.1, call_id="pay-1", agent="desk", tool="pay", digest="d")
    story.tell(r.RunEnded, 2.2, "interrupted", resumable=True)
    timeline = read_timeline(story.records)
    [phase] = row_of(timeline, "pay").phases
    assert (phase.kind, phase.open, phase.end) == ("approval", True, START + 2.2)
    assert timeline.status == "interrupted"
    text = render_text(timeline)
    assert "waits for a verdict" in text
    assert "no end recorded" not in text


@pytest.mark.parametrize("width", range(72, 130))
def test_the_legend_keeps_a_sign_and_its_words_on_one_line(width: int) -> None:
    """Its lines break between two signs only, however wide they are."""
    legend = render_text(read_timeline(every_ending()), width=width).rpartition("\n\n")[2]
    parts = [part.strip() for line in legend.splitlines() for part in line.split("   ")]
    assert {part[2:] for part in parts if part} <= set(PHASES.values())
    assert {part[1] for part in parts if part} == {" "}


def test_a_nested_run_is_below_its_call() -> None:
    """Its turns and calls are deeper, and its tokens and costs count in the call and in the runs around it."""
    timeline = read_timeline(every_ending())
    research, inner = row_of(timeline, "research"), row_of(timeline, "researcher")
    assert inner.depth == research.depth + 1
    assert inner.path == ("research-4",)
    assert research.tokens == inner.tokens == (300, 33)
    assert timeline.tokens == (900 * 6 + 300, 100 * 6 + 33)
    assert (timeline.cost, timeline.turns, timeline.calls) == ("0.0294", 6, 20)


def test_a_request_has_its_attempts_and_its_first_token() -> None:
    """A failed attempt is a phase of the same row; guardrails are above it."""
    timeline = read_timeline(every_ending())
    first = next(row for row in timeline.rows if row.kind == "model")
    assert phases_of(first) == ["failed 0.02-0.9", "request 1.2-1.76", "answer 1.76-2.6"]
    assert [mark.note for mark in first.marks] == ["first token after 560 ms"]
    assert [ending.status for ending in first.endings] == ["failed", "answered"]
    kinds = [row.kind for row in timeline.rows[:6]]
    assert kinds == ["run", "turn", "guardrail", "model", "hosted", "call"]
    assert dict(first.facts)["reasoning"] == "The fares first, then the total."


def test_an_answer_as_a_whole_has_no_first_token() -> None:
    """And an answer without its request, a request without its answer, and usage of a failed one are taken too."""
    story = Story()
    story.begin(0)
    story.tell(r.ModelResponded, 1, ModelResponse(()))
    story.begin(2)
    story.tell(r.ModelFailed, 3, "Gone()", usage=None)
    story.begin(4)
    story.tell(r.ModelRequested, 5, "d", attempt=2)
    story.tell(r.TurnStarted, 6, agent="desk")
    timeline = read_timeline(story.records)
    models = [row for row in timeline.rows if row.kind == "model"]
    assert [[phase.kind for phase in row.phases] for row in models] == [[], ["failed"], ["request"]]
    assert [row.open for row in models] == [False, False, True]
    assert not any(row.marks for row in models)


def test_a_handoff_has_a_row_and_further_ones_are_ignored() -> None:
    """A log may hold a handoff whose request is unknown."""
    story = Story()
    story.begin(0)
    story.ask(0, 1, HandoffCall("h1", "transfer_to_b"), HandoffCall("h2", "transfer_to_c"))
    story.tell(r.HandedOff, 1.1, "h1", "desk", "b", ignored=("h2", "h9"))
    story.begin(2)
    story.tell(r.HandedOff, 2.1, "h7", "b", "c")
    timeline = read_timeline(story.records)
    rows = [row for row in timeline.rows if row.kind == "handoff"]
    assert [row.name for row in rows] == ["desk → b", "transfer_to_c", "b → c"]
    assert [row.ending.status for row in rows if row.ending] == ["handed_over", "ignored", "handed_over"]
    assert timeline.calls == 0


def test_marks_tell_what_happened_to_a_run() -> None:
    """A cancellation that was asked for, input that came, other definitions, cleanup that was cut."""
    story = Story()
    story.begin(0)
    story.tell(r.InputAdded, 1, (UserMessage("more"),), "i")
    story.tell(r.InputAdded, 1, (UserMessage("more"),), "j")
    story.tell(r.InputShown, 1.5, "i")
    story.tell(r.InputWithdrawn, 1.5, "j")
    story.tell(r.HistoryReplaced, 2, "compacted", 0, ())
    story.tell(r.GraphChanged, 3, ("tool x is gone",))
    story.tell(r.SandboxOpened, 4, "box-1")
    story.tell(r.CancelRequested, 5)
    story.tell(r.CleanupCut, 6, "close")
    story.tell(r.SessionSaved, 7, 1)
    story.tell(r.RunEnded, 8, "cancelled", error="Cancelled()", final_output={"a": 1})
    run = read_timeline(story.records).rows[0]
    assert [mark.kind for mark in run.marks] == ["note"] * 6 + ["cancel_requested", "cleanup_cut"]
    assert dict(run.facts)["sandbox"] == "box-1"
    assert dict(run.facts)["final output"] == '{"a":1}'
    ending = run.ending
    assert ending is not None
    assert (ending.status, ending.error) == ("cancelled", "Cancelled()")


def test_without_content_only_types_and_names_are_left() -> None:
    """Arguments, outputs, messages, reasons and the messages of errors are missing; who decided isn't."""
    story_text = repr(read_timeline(every_ending()))
    timeline = read_timeline(every_ending(), content=False)
    text = repr(timeline) + render_text(timeline, width=400)
    assert not timeline.has_content
    for content in ("Book the trip", "12 fares", "no seat left", "the user left", "Let me look", "fares first", '"of"'):
        assert content in story_text
        assert content not in text
    assert "SoldOut([redacted])" in text
    assert "alice@example.org" in text


@pytest.mark.slow
@pytest.mark.scenario("VI-01")
def test_every_beginning_of_a_log_has_a_timeline() -> None:
    """A log may end anywhere; none at all is an empty timeline. A fold that goes on gives the same."""
    records = every_ending()
    fold = TimelineFold()
    for count in range(len(records) + 1):
        timeline = read_timeline(records[:count])
        assert timeline == fold.timeline()
        assert timeline.records == count
        check(timeline)
        if count < len(records):
            fold.record(records[count])
    assert read_timeline([]).rows == ()


@pytest.mark.parametrize("seed", range(60))
def test_records_in_any_order_have_a_timeline(seed: int) -> None:
    """A log of another library, or one that was put together by hand, may hold anything."""
    chance = random.Random(seed)
    records = [record for record in every_ending() if chance.random() < 0.8]
    begin, rest = records[:1], records[1:]
    for _ in range(seed):
        one, other = chance.randrange(len(rest)), chance.randrange(len(rest))
        rest[one], rest[other] = rest[other], rest[one]
    check(read_timeline([*begin, *rest]))
    check(read_timeline(rest))


@pytest.mark.slow
@given(st.lists(st.decimals().map(str) | st.text(max_size=10), min_size=1, max_size=4))
@example(["1e999999", "1e999999"])
@example(["1e-999999", "0e-999999"])
@example(["Infinity", "-Infinity", "sNaN"])
def test_any_cost_has_a_timeline(costs: list[str]) -> None:
    """What can't be summed up and written out is left out."""
    told = itertools.cycle(costs)
    priced = (r.ModelResponded, r.CallStarted)
    timeline = read_timeline(
        [record.replace(cost=next(told)) if isinstance(record, priced) else record for record in every_ending()]
    )
    check(timeline)
    assert len(timeline.cost or "") < 200


def test_a_record_of_an_unknown_run_makes_no_row() -> None:
    """A nested run whose call is unknown is below the run's turn."""
    story = Story()
    story.begin(0)
    story.path = ("lost", "deeper")
    story.tell(r.RunStarted, 1, run_id="x", agent="inner", input=(), max_turns=1)
    story.path = ("nowhere",)
    story.begin(2)
    timeline = read_timeline(story.records)
    assert [(row.name, row.depth) for row in timeline.rows] == [("desk", 0), ("Turn 1 · desk", 1), ("inner", 2)]
    story.path = ()
    assert read_timeline([story.records[2]]).rows == ()


def test_clocks_that_go_backwards_make_no_negative_time() -> None:
    """A run was resumed on a machine whose clock was late."""
    story = Story()
    story.begin(10)
    story.ask(10, 11, *story.calls("a"))
    story.start(11, "a")
    story.tell(r.RunResumed, 3, "desk", 10)
    story.start(3, "a")
    story.settle(4, "a", "succeeded", body=2.0)
    story.tell(r.GuardrailSettled, 5, "output", "late", "tripped", 900.0)
    story.tell(r.RunEnded, 5.5, "failed", error="Tripped()", turn_ended_at=START + 1)
    timeline = read_timeline(story.records)
    check(timeline)
    ending = row_of(timeline, "late").ending
    assert ending is not None
    assert ending.reason == "the run ends by it"


def _settled(call: ToolCall, outcome: CallOutcome, **fields: Any) -> list[r.Record]:
    story = Story()
    story.begin(0)
    story.ask(0, 1, AssistantMessage("secret words", secret=True), call)
    secret = call.secret
    story.tell(r.CallStarted, 1, call_id=call.call_id, tool=call.name, arguments=call.arguments, secret=secret)
    story.tell(
        r.CallSettled, 2, call_id=call.call_id, tool=call.name, outcome=outcome, arguments=call.arguments, **fields
    )
    return story.records


@pytest.mark.scenario("VI-05")
def test_values_marked_secret_are_masked() -> None:
    """Arguments by name, outputs and messages whole."""
    call = ToolCall("c", "login", '{"user": "u", "password": "hunter2"}', secret=("password",))
    outcome = CallOutcome(status="succeeded", output="hunter2 it was", secret=True)
    timeline = read_timeline(_settled(call, outcome, secret=("password",)))
    assert "hunter2" not in repr(timeline)
    assert "secret words" not in repr(timeline)
    facts = dict(row_of(timeline, "login").facts)
    assert facts["arguments"] == '{"user": "u", "password": "[secret]"}'
    assert facts["output"] == "[secret]"


def test_every_form_of_content_has_words() -> None:
    """Parts that are no text are named; what was stored in a form that can't be read is said to be so."""
    parts = (Text("see "), Image(url="https://example.org/x.png"), Refusal("no"))
    assert show_value(parts, secret=False) == "see [Image]no"
    assert show_value({"a": (1, None)}, secret=False).replace(" ", "").startswith('{"a":')
    assert show_value(Withheld("$sealed", "x"), secret=False) == "[sealed]"
    assert show_value(Withheld("$digest", "x"), secret=False) == "[secret]"
    assert show_arguments(WithheldText("$digest:00ff"), ()) == "[secret]"
    assert show_arguments(WithheldText("$sealed:00ff"), ("*",)) == "[sealed]"
    assert show_error("no form of an error", content=False) == "no([redacted])"


# -- generated runs


@tool
async def look(n: int) -> str:
    """Look."""
    return str(n)


@tool(needs_approval=True)
async def delete(n: int) -> str:
    """Delete."""
    return str(n)


def make_agent() -> Agent[Any, Any]:
    """Return an agent with a tool, one that needs a verdict, an agent tool, and a handoff."""
    inner: Agent[Any, Any] = Agent("inner", tools=[look])
    other: Agent[Any, Any] = Agent("other", tools=[look])
    return Agent("outer", tools=[look, delete, inner.as_tool("ask", "Ask.")], handoffs=[other])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.scenario("VI-01")
@t.worlds(
    make_agent,
    models=t.scripts(),
    tools=t.tool_behaviours(),
    cancels=t.cancel_points(),
    verdicts=t.approvals(),
    max_examples=20,
)
def test_every_generated_run_has_a_timeline(world: t.World) -> None:
    """Whole, and cut at every record; each call of the log has its row, and each cancelled one an arrow."""
    for run in t.run(world, modes=["plain"]).runs:
        records: Sequence[r.Record] = run.records
        timeline = read_timeline(records)
        check(timeline)
        settled = [record for record in records if isinstance(record, r.CallSettled)]
        calls = {row.call_id for row in timeline.rows}  # a handoff may settle, too
        assert {record.call_id for record in settled} <= calls
        cancelled = sum(record.outcome.cancelled_by is not None for record in settled)
        assert len(timeline.arrows) == cancelled
        for count in range(0, len(records), 3):
            check(read_timeline(records[:count]))


def test_a_long_run_is_folded_whole() -> None:
    """Ten thousand records; the sums are those of all turns."""
    timeline = read_timeline(long_run(2_000))
    check(timeline)
    assert timeline.turns == sum(row.kind == "turn" for row in timeline.rows)
    assert timeline.calls == 4 * timeline.turns
    assert timeline.tokens == (900 * timeline.turns, 100 * timeline.turns)


def test_a_compaction_is_a_mark_with_its_sizes() -> None:
    """And with the steps that made the history shorter. The summary's run is a row below its own."""
    policy = ContextPolicy(window=4_000, steps=[Summarize(keep_turns=1)])
    result = Runner.run_sync(windows.make_agent(policy, windows.reader(5)), "Read.")
    timeline = read_timeline(result.records)
    check(timeline)
    [mark] = timeline.rows[0].marks
    [replaced] = windows.compactions(result.records)
    sizes = f"{replaced.tokens_before:,} to {replaced.tokens:,} tokens"
    assert mark.note == f"history made shorter by Summarize: {sizes}"
    assert [row.depth for row in timeline.rows if row.kind == timeline.rows[0].kind] == [0, 1]


def test_a_call_in_the_background_runs_until_its_result() -> None:
    """Its bar goes on behind its turn."""
    story = Story()
    story.begin(0)
    story.ask(0, 1, ToolCall("dig-1", "dig", "{}"))
    story.start(1, "dig")
    story.settle(1, "dig", "succeeded", output="runs")
    story.records[-1] = story.records[-1].replace(background=True)
    story.begin(2)
    story.tell(r.InputAdded, 9, items=(UserMessage("dug"),), id="result_dig-1", call_id="dig-1")
    timeline = read_timeline(story.records)
    check(timeline)
    assert row_of(timeline, "dig").end - START == 9
    assert phases_of(row_of(timeline, "dig"))[-1] == "run 1-9"
