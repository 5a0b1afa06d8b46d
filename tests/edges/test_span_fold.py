"""Spans from records alone: which record opens which span, what closes it, and what stays out of it."""

from collections.abc import Iterable
from typing import Any

import attrs
import pytest

from agentloop import records as r
from agentloop.items import AssistantMessage, HostedToolCall, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.spans import Span, Trace
from agentloop.tracing.fold import SpanFold
from agentloop.usage import RequestUsage

USAGE = RequestUsage(input_tokens=3, output_tokens=1, total_tokens=4)
TRIPPED = "Guardrail tripwire triggered"


@attrs.define
class Folded:
    """The spans of some records, in the order of their start, and what was told of them."""

    spans: list[Span]
    ended: list[Span]
    fold: SpanFold

    def tree(self) -> list[str]:
        """Return a line for each span: its depth as indentation, its kind and name, its time, and its error."""
        lines = []
        for span in self.spans:
            depth, above = 0, span.parent
            while above is not None:
                depth, above = depth + 1, above.parent
            end = "…" if span.ended_at is None else f"{span.ended_at:g}"
            error = f" {span.error}" if span.error else ""
            lines.append(f"{'  ' * depth}{span.kind} {span.name} {span.started_at:g}-{end}{error}")
        return lines

    def only(self, kind: str) -> Span:
        """Return the one span of *kind*."""
        [span] = [span for span in self.spans if span.kind == kind]
        return span


def folded(records: Iterable[r.Record], **options: Any) -> Folded:
    """Fold *records*; each span starts once, and ends at most once, afterwards."""
    spans: list[Span] = []
    ended: list[Span] = []

    def end(span: Span) -> None:
        assert span in spans
        assert span not in ended
        assert span.ended_at is not None
        ended.append(span)

    fold = SpanFold(Trace(workflow_name="work"), spans.append, end, **options)
    for record in records:
        fold.record(record)
    return Folded(spans, ended, fold)


def begun(*, path: tuple[str, ...] = (), at: float = 0.0, agent: str = "a") -> list[r.Record]:
    """Return the start of a run and of its first turn."""
    return [
        r.RunStarted(path, 0, at, run_id="r", agent=agent, input=(), max_turns=10),
        r.TurnStarted(path, 1, at + 1, agent=agent, tools=("t",), handoffs=("h",)),
    ]


def requested(at: float, attempt: int = 1) -> r.Record:
    return r.ModelRequested((), 1, at, digest="d", attempt=attempt)


def responded(at: float, turn: int = 1, usage: RequestUsage | None = USAGE) -> r.Record:
    return r.ModelResponded((), turn, at, response=ModelResponse((AssistantMessage("x"),), usage))


def started(at: float, call_id: str = "c", path: tuple[str, ...] = ()) -> r.Record:
    return r.CallStarted(path, 1, at, call_id=call_id, tool="t", arguments='{"q": "mine"}')


def settled(at: float, call_id: str = "c", **outcome: Any) -> r.Record:
    return r.CallSettled((), 1, at, call_id=call_id, tool="t", outcome=CallOutcome(**outcome))


def judged(at: float, verdict: str, call_id: str | None = None) -> r.Record:
    stage: Any = "input" if call_id is None else "tool_input"
    return r.GuardrailSettled((), 1, at, stage=stage, guardrail="g", verdict=verdict, duration=0.5, call_id=call_id)


def over(at: float, status: Any = "completed", path: tuple[str, ...] = (), **fields: Any) -> r.Record:
    return r.RunEnded(path, 1, at, status=status, **fields)


# ---------------------------------------------------------------------------------------------- the tree


def test_a_run_is_a_tree_of_agent_turns_model_calls_and_tool_calls() -> None:
    """Each piece of work is below the one it belongs to, from record to record; the run's span ends last."""
    two: list[r.Record] = [r.BatchEnded((), 1, 6), r.TurnStarted((), 2, 7, agent="a"), responded(8, 2)]
    found = folded([*begun(), requested(2), responded(3), started(4), settled(5, status="succeeded"), *two, over(9)])
    assert found.tree() == [
        "run work 0-9",
        "  agent a 0-9",
        "    turn turn 1 1-7",
        "      model a 2-3",
        "      tool t 4-5",
        "    turn turn 2 7-9",
    ]
    assert [span.kind for span in found.ended] == ["model", "tool", "turn", "turn", "agent", "run"]
    assert found.only("agent").data == {"tools": (), "handoffs": ()}


def test_without_turns_their_pieces_belong_to_the_agent() -> None:
    """Without a turn, model and tool calls are below the agent, and all else is the same."""
    found = folded(
        [*begun(), requested(2), responded(3), started(4), settled(5, status="succeeded"), over(9)], turns=False
    )
    assert found.tree() == ["run work 0-9", "  agent a 0-9", "    model a 2-3", "    tool t 4-5"]
    assert found.only("run").data["total_tokens"] == 4


def test_a_handoff_ends_one_agents_span_and_begins_the_others() -> None:
    """Both spans are within the run's; further handoffs of the response are the handoff's error."""
    handed = r.HandedOff((), 1, 4, call_id="h", source_agent="a", target_agent="b")
    second = r.TurnStarted((), 2, 5, agent="b", tools=("u",))
    tree = [
        "run work 0-9",
        "  agent a 0-4",
        "    turn turn 1 1-4",
        "      handoff a -> b 4-4",
        "  agent b 4-9",
        "    turn turn 2 5-9",
    ]
    assert folded([*begun(), handed, second, over(9)]).tree() == tree
    several = folded([*begun(), handed.replace(ignored=("i",)), second, over(9)])
    assert several.only("handoff").error == "Multiple handoffs requested"


def test_a_nested_runs_tree_stands_in_its_calls_span() -> None:
    """The span has the agent's name; records of a run without a start make no span."""
    inner = begun(path=("c",), at=5, agent="in")
    alone = folded([*inner[1:], started(4, path=("nobody",))])
    assert alone.spans == []
    found = folded([*begun(), started(4), *inner, over(7, path=("c",)), settled(8, status="succeeded"), over(9)])
    assert found.tree() == [
        "run work 0-9",
        "  agent a 0-9",
        "    turn turn 1 1-9",
        "      tool t 4-8",
        "        run in 5-7",
        "          agent in 5-7",
        "            turn turn 1 6-7",
    ]
    assert [span.path for span in found.spans] == [(), (), (), (), ("c",), ("c",), ("c",)]


def test_a_call_is_found_by_its_id_while_it_runs() -> None:
    """A body finds its current span by the call's id."""
    found = folded([*begun(), started(4)])
    assert found.fold.call_span((), "c") is found.only("tool")
    assert found.fold.call_span((), "other") is None
    assert found.fold.call_span(("c",), "c") is None
    found.fold.record(settled(5, status="succeeded"))
    assert found.fold.call_span((), "c") is None


def test_what_is_open_when_a_run_ends_ends_with_it() -> None:
    """Cut calls and model calls end with the run, and the run's own error is at agent and run."""
    found = folded([*begun(), requested(2), started(3), over(4, "failed", error="ValueError(no luck)")])
    assert found.tree() == [
        "run work 0-4 ValueError(no luck)",
        "  agent a 0-4 ValueError(no luck)",
        "    turn turn 1 1-4",
        "      model a 2-4",
        "      tool t 3-4",
    ]
    assert len(found.ended) == 5
    found.fold.record(settled(5, status="cancelled"))  # of a run that is over
    assert len(found.spans) == 5


# ---------------------------------------------------------------------------------------------- model calls


def test_each_attempt_of_a_model_call_has_a_span_and_tokens_add_up() -> None:
    """A failed attempt has its error; usage is kept at the attempt, and its tokens, if any, at turn and run too."""
    failed = r.ModelFailed((), 1, 3, error="busy", usage=USAGE, status=503)
    found = folded([*begun(), requested(2), failed, requested(4, attempt=2), responded(5), over(9)])
    first, second = (span for span in found.spans if span.kind == "model")
    told = {"attempt": 1, "turn": 1, "error_type": "Exception", "http_status": 503, "usage": USAGE}
    assert (first.error, first.data) == ("busy", told)
    answer = (AssistantMessage("x"),)
    assert (second.error, second.data) == (None, {"attempt": 2, "turn": 1, "usage": USAGE, "output": answer})
    assert found.only("turn").data["total_tokens"] == found.only("run").data["total_tokens"] == 8
    silent = folded([*begun(), requested(2), responded(3, usage=None), over(9)])
    assert "total_tokens" not in silent.only("run").data
    assert "usage" not in silent.only("model").data


# ---------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"status": "succeeded", "output": "fine"}, None),
        ({"status": "replayed", "output": "fine"}, None),
        ({"status": "rejected", "output": "no"}, None),
        ({"status": "failed", "output": "sorry"}, "Error running tool (non-fatal)"),
        ({"status": "failed"}, "Error running tool"),
        ({"status": "timed_out", "output": "late"}, "Error running tool (non-fatal)"),
        ({"status": "timed_out"}, "Error running tool"),
        ({"status": "cancelled", "cancelled_by": "parent"}, "Tool execution cancelled"),
    ],
)
@pytest.mark.parametrize("ran", [True, False])
def test_a_calls_span_says_how_it_ended(outcome: dict[str, Any], error: str | None, ran: bool) -> None:
    """A call that never started has a span too, since it was asked for and answered."""
    records = [*begun(), *([started(4)] if ran else []), settled(5, **outcome), over(9)]
    span = folded(records).only("tool")
    assert (span.error, span.data["status"], span.data.get("output")) == (
        error,
        outcome["status"],
        outcome.get("output"),
    )
    assert span.data.get("arguments") == ('{"q": "mine"}' if ran else None)
    assert (span.started_at, span.ended_at) == (4 if ran else 5, 5)


SEARCHED = HostedToolCall("web_search_call", {"action": {"query": "rain"}}, "ws", "completed")
ROLLED = HostedToolCall("mcp_call", {"name": "roll"}, "mcp", "failed", {"no": "dice"}, "c9")
LISTED = HostedToolCall("mcp_list_tools", {"server_label": "dice"}, "list", None, [])


def _hosted(at: float) -> r.Record:
    items = (LISTED, SEARCHED, ROLLED, AssistantMessage("x"))
    return r.ModelResponded((), 1, at, response=ModelResponse(items, USAGE), cost="0.03")


@pytest.mark.scenario("WR-06")
def test_a_call_of_the_provider_has_a_span_below_that_of_the_request() -> None:
    """Its times are the request's, as the log has no others. What only lists tools is no call."""
    found = folded([*begun(), requested(2), _hosted(5), over(9)])
    assert found.tree()[3:] == [
        "      model a 2-5",
        "        hosted_tool web_search_call 2-5",
        "        hosted_tool mcp_call 2-5 Error running tool",
    ]
    assert [span.kind for span in found.ended][:3] == ["hosted_tool", "hosted_tool", "model"]
    searched, rolled = (span.data for span in found.spans if span.kind == "hosted_tool")
    assert searched == {"call_id": "ws", "status": "completed", "data": SEARCHED.data, "output": None}
    failure = {"call_id": "c9", "status": "failed", "error_type": "failed"}
    assert rolled == {**failure, "data": ROLLED.data, "output": {"no": "dice"}}
    assert found.only("model").data["cost"] == "0.03"


def test_a_call_of_the_provider_shows_nothing_sensitive() -> None:
    """Its arguments and output are left out. A log that begins with the answer has its span in the turn's."""
    found = folded([*begun(), _hosted(5), over(9)], sensitive=False)
    assert found.tree()[2:4] == ["    turn turn 1 1-9", "      hosted_tool web_search_call 5-5"]
    assert [span.data for span in found.spans if span.kind == "hosted_tool"] == [
        {"call_id": "ws", "status": "completed"},
        {"call_id": "c9", "status": "failed", "error_type": "failed"},
    ]


def test_what_is_sensitive_stays_out_where_it_must() -> None:
    """Arguments, outputs and the messages of all errors stay out, also those of the model call and of the run."""
    records = [
        *begun(),
        requested(2),
        r.ModelFailed((), 1, 3, error="mine: busy"),
        started(4),
        settled(5, status="failed", output="mine", error=ValueError("mine")),
        over(9, "failed", error="ValueError(mine)"),
    ]
    told = folded(records)
    assert told.only("tool").data["error"] == "mine"
    hidden = folded(records, sensitive=False)
    shown = [str((span.name, span.error, span.data)) for span in hidden.spans]
    assert [line for line in shown if "mine" in line] == []
    assert hidden.only("model").error == "The model call failed"
    assert hidden.only("run").error == "ValueError"
    known = {"call_id": "c", "attempt": 1, "turn": 1}
    assert hidden.only("tool").data == {**known, "status": "failed", "error_type": "ValueError"}
    assert [line.split(" ")[:2] for line in hidden.tree()] == [line.split(" ")[:2] for line in told.tree()]


# ---------------------------------------------------------------------------------------------- guardrails


def test_a_guardrails_span_stands_where_it_judges_and_is_as_long_as_it_took() -> None:
    """A tool guardrail's span is below the call, any other below the turn."""
    found = folded([*begun(), judged(2, "passed"), started(4), judged(5, "Allow", "c"), over(9)])
    of_input, of_call = (span for span in found.spans if span.kind == "guardrail")
    assert of_input.parent is found.only("turn")
    assert of_call.parent is found.only("tool")
    assert (of_input.started_at, of_input.ended_at, of_input.data) == (
        1.5,
        2,
        {"stage": "input", "verdict": "passed"},
    )
    assert [span.error for span in found.spans] == [None] * len(found.spans)


@pytest.mark.parametrize("verdict", ["tripped", "RaiseException"])
def test_a_tripwire_marks_its_span_and_the_turn(verdict: str) -> None:
    """An earlier error of the turn stays; before the first turn it is the agent's."""
    found = folded([*begun(), judged(2, verdict), over(9)])
    assert (found.only("guardrail").error, found.only("turn").error) == (TRIPPED, TRIPPED)
    early = folded([begun()[0], judged(1, verdict), over(9)])
    assert (early.only("guardrail").error, early.only("agent").error) == (TRIPPED, TRIPPED)


# ---------------------------------------------------------------------------------------------- messages


def _run(path: tuple[str, ...] = (), text: str = "mine") -> r.Record:
    return r.RunStarted(path, 0, 0, run_id="r", agent="a", input=(UserMessage(text),), max_turns=10)


def _asks(path: tuple[str, ...], *items: Any) -> list[r.Record]:
    return [
        r.ModelRequested(path, 1, 2, digest="d"),
        r.ModelResponded(path, 1, 3, response=ModelResponse(items, response_id="resp", finish_reason="stop")),
    ]


def test_messages_are_in_the_spans_of_the_run_and_of_the_answer() -> None:
    """What a run is given, and what the model answers, unless sensitive data is left out; facts of the answer stay."""
    records = [_run(), *_asks((), AssistantMessage("mine"))]
    shown = folded(records)
    assert shown.only("run").data == {"run_id": "r", "input": (UserMessage("mine"),)}
    assert shown.only("model").data["output"] == (AssistantMessage("mine"),)
    hidden = folded(records, sensitive=False)
    assert hidden.only("run").data == {"run_id": "r"}
    assert hidden.only("model").data == {"attempt": 1, "turn": 1, "response_id": "resp", "finish_reason": "stop"}


def test_what_a_tool_marks_secret_is_masked_in_messages() -> None:
    """Of arguments, outputs and messages that are given anew; a provider's data, which may repeat it, is left out."""
    given = (
        UserMessage("mine", secret=True, provider_data={"raw": "mine"}),
        ToolOutput("c", "mine", secret=True),
        UserMessage("seen"),
    )
    begin = r.RunStarted((), 0, 0, run_id="r", agent="a", input=given, max_turns=10, conversation_id="conv")
    asked = ToolCall("c", "t", '{"key": "mine", "open": 1}', secret=("key",), provider_data={"raw": "mine"})
    found = folded([begin, *_asks((), asked, ToolCall("d", "t"))])
    run, model = found.only("run"), found.only("model")
    assert run.data["conversation_id"] == "conv"
    assert [item.content[0].text for item in run.data["input"] if isinstance(item, UserMessage)] == ["[secret]", "seen"]
    assert [item.output for item in run.data["input"] if isinstance(item, ToolOutput)] == ["[secret]"]
    assert [item.arguments for item in model.data["output"]] == ['{"key": "[secret]", "open": 1}', "{}"]
    assert "mine" not in repr([run.data, [item.provider_data for item in (*run.data["input"], *model.data["output"])]])


@pytest.mark.parametrize("known", [True, False])
def test_messages_of_a_run_in_a_call_with_secret_arguments_are_left_out(known: bool) -> None:
    """At any depth: they may repeat them. So are those in a call that an earlier run segment started."""
    call = r.CallStarted((), 1, 1, call_id="c", tool="t", arguments="{}", secret=("key",) if known else ())
    inner = [_run(("c",)), *_asks(("c",), AssistantMessage("mine"))]
    deeper = [
        r.CallStarted(("c",), 1, 4, call_id="d", tool="t", arguments="{}"),
        _run(("c", "d")),
        *_asks(("c", "d"), AssistantMessage("mine")),
    ]
    found = folded([*begun(), *([call] if known else []), *inner, *deeper])
    assert "mine" not in repr([span.data for span in found.spans])
    assert [span.data.get("run_id") for span in found.spans if span.kind == "run"] == ["r", "r", "r"]
    opened = folded([*begun(), call.replace(secret=()), *inner])
    assert "mine" in repr([span.data for span in opened.spans if span.path])


def test_a_resumed_run_is_known_by_its_id() -> None:
    """Its first record doesn't have the id, so that the maker of the fold gives it."""
    resumed = r.RunResumed((), 1, 5, agent="a", max_turns=10)
    assert folded([resumed], run_id="r").only("run").data == {"run_id": "r"}
    assert folded([resumed]).only("run").data == {}
