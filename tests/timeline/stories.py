"""Made-up runs, as records: one with every status and every cause of a cancellation, and long ones."""

from collections.abc import Iterator
from typing import Any

from agentloop import records as r
from agentloop.items import AssistantMessage, HandoffCall, HostedToolCall, Item, Reasoning, ToolCall, UserMessage
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage

START = 1_760_000_000.0
DAY = 86_400.0
MODEL = ModelInfo("openai", "gpt-large", "https://api.example.org/v1")
STATUSES = ("succeeded", "failed", "timed_out", "cancelled", "rejected", "replayed", "skipped", "unknown")
CAUSES = ("tool", "caller", "sibling", "deadline", "parent")


class Story:
    """Records of one run, told in seconds from its start."""

    def __init__(self, agent: str = "desk", asked: str = "Book the trip, and tell me what it costs.") -> None:
        self.records: list[r.Record] = []
        self.path: tuple[str, ...] = ()
        self.turn = 0
        self.agent = agent
        self.tell(r.RunStarted, 0, run_id="7f3a91c2", agent=agent, input=(UserMessage(asked),), max_turns=10)

    def tell(self, kind: Any, at: float, *given: Any, **fields: Any) -> None:
        """Append a record of *kind* at the time *at*."""
        self.records.append(kind(self.path, self.turn, START + at, *given, **fields))

    def begin(self, at: float, turn: int | None = None) -> None:
        """Begin a turn."""
        self.turn = self.turn + 1 if turn is None else turn
        self.tell(r.TurnStarted, at, agent=self.agent)

    def ask(self, at: float, until: float, *items: Item, first: float | None = None, tokens: int = 900) -> None:
        """Ask the model, which answers at *until*."""
        self.tell(r.ModelRequested, at, "d", model=MODEL)
        usage = RequestUsage(input_tokens=tokens, output_tokens=tokens // 9, total_tokens=tokens + tokens // 9)
        response = ModelResponse(items, usage, finish_reason="tool_calls" if len(items) > 1 else "stop")
        given = START + first if first is not None else START + at + (until - at) * 0.4
        self.tell(r.ModelResponded, until, response, cost="0.0042", first_delta_at=given)

    def start(self, at: float, name: str, *, queued: float | None = None, waited: tuple[str, ...] = ()) -> None:
        """Start the body of the call *name*, whose id is its name with a number."""
        queued_at = None if queued is None else START + queued
        self.tell(
            r.CallStarted, at, call_id=f"{name}-{self.turn}", tool=name, arguments=f'{{"of": "{name}"}}',
            queued_at=queued_at, waited_for=waited,
        )  # fmt: skip

    def settle(self, at: float, name: str, status: Any, *, error: str | None = None, body: float | None = None,
               cancelled_at: float | None = None, by_call: str | None = None, **fields: Any) -> None:  # fmt: skip
        """Settle the call *name*."""
        reached = None if cancelled_at is None else START + cancelled_at
        ended_by = None if by_call is None else f"{by_call}-{self.turn}"
        outcome = CallOutcome(status=status, cancelled_at=reached, cancelled_by_call=ended_by, **fields)
        body_ended = None if body is None else START + body
        self.tell(
            r.CallSettled, at, call_id=f"{name}-{self.turn}", tool=name, outcome=outcome, error=error,
            body_ended_at=body_ended,
        )  # fmt: skip

    def calls(self, *names: str) -> tuple[ToolCall, ...]:
        """Return calls of the present turn, one of each name."""
        return tuple(ToolCall(f"{name}-{self.turn}", name, f'{{"of": "{name}"}}') for name in names)


def every_ending() -> list[r.Record]:
    """Return a run of two days with each status, each cause, a pause, a crash, and a nested run that is cancelled."""
    story = Story()
    _tell_first_turn(story)
    _tell_cancellations(story)
    _tell_approvals(story)
    _tell_sibling_failure(story)
    _tell_deadline(story)
    return story.records


def _tell_first_turn(story: Story) -> None:
    story.begin(0.01)
    story.tell(r.ModelRequested, 0.02, "d", model=MODEL)
    story.tell(r.GuardrailSettled, 0.5, "input", "polite", "passed", 0.45)
    story.tell(r.ModelFailed, 0.9, "TransportError(connection reset)", error_kind="transport")
    names = ("search", "fetch", "slow", "charge", "search_again", "unknown_tool", "unasked")
    items = (Reasoning(summary=("The fares first, then the total.",)), AssistantMessage("Let me look that up."))
    story.ask(
        1.2, 2.6, *items, HostedToolCall("web_search_call", {"q": "fares"}, "ws1", "completed"), *story.calls(*names)
    )
    story.settle(2.6, "unknown_tool", "rejected", output="There is no such tool.", reason="no such tool")
    story.settle(2.61, "search_again", "replayed", output="12 fares", started_at=None)
    story.settle(2.62, "unasked", "skipped", output="A final answer was given.")
    story.start(2.65, "search")
    story.start(2.66, "slow")
    story.start(3.4, "fetch", queued=2.66, waited=("capacity web",))
    story.start(3.5, "charge", queued=2.66, waited=("serial group money",))
    story.settle(3.4, "search", "succeeded", output="12 fares", body=3.3)
    story.settle(4.4, "fetch", "succeeded", output="<html>…")
    story.settle(5.0, "slow", "timed_out", cancelled_at=4.7, cleanup="done", error="ToolTimeoutError(2 s)")
    story.settle(5.2, "charge", "unknown", error="CallInDoubt(the process died)")
    story.tell(r.BatchEnded, 5.21)


def _tell_cancellations(story: Story) -> None:
    story.begin(5.22)
    story.ask(5.25, 6.2, *story.calls("poll", "watch", "stop_watch", "undecided"))
    for name in ("poll", "watch", "stop_watch", "undecided"):
        story.start(6.22, name)
    story.settle(6.8, "undecided", "cancelled", cancelled_by="tool", reason="nothing to do")
    story.tell(r.CancelRequested, 7.0, "watch-2", by_call="stop_watch-2")
    story.settle(7.1, "stop_watch", "succeeded", output="stopped")
    story.settle(
        7.2, "watch", "cancelled", cancelled_by="caller", by_call="stop_watch", cancelled_at=7.0, cleanup="done"
    )
    story.tell(r.CancelRequested, 7.6, "poll-2")
    story.settle(
        7.9, "poll", "cancelled", cancelled_by="caller", cancelled_at=7.6, cleanup="done", reason="the user left"
    )
    story.tell(r.BatchEnded, 7.91)


def _tell_approvals(story: Story) -> None:
    story.begin(7.95)
    story.ask(8.0, 8.7, *story.calls("pay", "delete"))
    for name in ("pay", "delete"):
        story.tell(
            r.ApprovalRequested, 8.71, call_id=f"{name}-3", agent="desk", tool=name, digest="d", policy="Amounts"
        )
    story.tell(r.RunEnded, 8.75, "interrupted", resumable=True)
    late = 2 * DAY
    verdict: dict[str, Any] = {"agent": "desk", "digest": "d"}
    story.tell(r.VerdictGiven, late, call_id="pay-3", tool="pay", approved=True, by="alice@example.org", **verdict)
    story.tell(r.VerdictGiven, late + 30, call_id="delete-3", tool="delete", approved=False, by="rule 7", **verdict)
    story.tell(r.RunResumed, late + 60, "desk", 10)
    story.settle(late + 60.1, "delete", "rejected", output="Not today.")
    story.start(late + 60.1, "pay")
    story.settle(late + 61.2, "pay", "succeeded", output="paid", body=late + 61.0)
    story.tell(r.GuardrailSettled, late + 61.15, "tool_output", "no secrets", "Allow", 0.1, call_id="pay-3")
    story.tell(r.BatchEnded, late + 61.2)


def _tell_sibling_failure(story: Story) -> None:
    at = 2 * DAY + 61.3
    story.begin(at)
    story.ask(at, at + 0.8, *story.calls("book", "hotel", "research"))
    for name in ("book", "hotel", "research"):
        story.start(at + 0.85, name)
    inner, story.path, story.turn, story.agent = story.turn, ("research-4",), 0, "researcher"
    story.tell(
        r.RunStarted, at + 0.9, run_id="7f3a91c2", agent="researcher", input=(UserMessage("Sights?"),), max_turns=3
    )
    story.begin(at + 0.9)
    story.ask(at + 0.9, at + 1.5, *story.calls("visit", "index"), tokens=300)
    story.start(at + 1.55, "visit")
    story.start(at + 1.56, "index")
    story.settle(at + 2.0, "index", "succeeded", output="3 pages")
    story.path, story.turn, story.agent = (), inner, "desk"
    story.settle(at + 2.2, "book", "failed", error="SoldOut(no seat left)")
    story.settle(at + 2.3, "hotel", "cancelled", cancelled_by="sibling", by_call="book", cancelled_at=at + 2.2)
    story.path, story.turn = ("research-4",), 1
    story.settle(at + 2.9, "visit", "cancelled", cancelled_by="parent", cancelled_at=at + 2.2, cleanup="cut")
    story.tell(r.CleanupCut, at + 2.9, "close page", "visit-1")
    story.tell(r.RunEnded, at + 2.95, "cancelled", error="Cancelled()")
    story.path, story.turn = (), inner
    story.settle(at + 3.0, "research", "cancelled", cancelled_by="sibling", by_call="book", cancelled_at=at + 2.2,
                 cleanup="done")  # fmt: skip
    story.tell(r.RunEnded, at + 3.05, "failed", error="ToolCallError(book: SoldOut: no seat left)", resumable=True)


def _tell_deadline(story: Story) -> None:
    at = 2 * DAY + 90
    story.tell(r.RunResumed, at, "desk", 10)
    story.tell(r.BatchEnded, at + 0.01)
    story.begin(at + 0.02)
    handoff = HandoffCall("transfer-5", "transfer_to_billing")
    story.ask(at + 0.05, at + 0.9, AssistantMessage("Billing takes over."), handoff)
    story.tell(r.HandedOff, at + 0.95, "transfer-5", "desk", "billing")
    story.agent = "billing"
    story.begin(at + 1.0)
    story.ask(at + 1.0, at + 1.9, *story.calls("invoice", "mail"))
    story.start(at + 1.95, "invoice")
    story.start(at + 1.96, "mail")
    # The process dies here; another one goes on.
    story.tell(r.RunResumed, at + 20, "billing", 10)
    story.settle(at + 20.1, "mail", "unknown", output="It is unknown whether it took effect.")
    story.start(at + 20.1, "invoice")
    story.tell(r.DeadlinePassed, at + 21.5)
    story.settle(at + 21.9, "invoice", "cancelled", cancelled_by="deadline", cancelled_at=at + 21.5, cleanup="done")
    story.tell(r.RunEnded, at + 22.0, "failed", error="RunTimeoutError(25 s)", resumable=True)


def long_run(records: int) -> Iterator[r.Record]:
    """Yield about *records* records: turns of four calls side by side, now and then one with an agent tool."""
    story = Story()
    at = 0.0
    while len(story.records) < records:
        story.begin(at)
        names = ("search", "fetch", "slow", "store")
        story.ask(
            at + 0.01, at + 0.8, AssistantMessage(f"Step {story.turn}: looking for more. " * 3), *story.calls(*names)
        )
        for number, name in enumerate(names):
            queued = at + 0.82 if number > 1 else None
            story.start(at + 0.85 + number / 10, name, queued=queued, waited=("capacity web",))
        story.settle(at + 1.4, "search", "succeeded", output="found " * 20)
        story.settle(at + 1.5, "fetch", "failed", error="HTTPError(503)")
        story.settle(at + 1.7, "slow", "cancelled", cancelled_by="sibling", by_call="fetch", cancelled_at=at + 1.5)
        story.settle(at + 1.8, "store", "timed_out", cancelled_at=at + 1.6, cleanup="done")
        story.tell(r.BatchEnded, at + 1.81)
        at += 1.9
    story.tell(r.RunEnded, at, "completed", final_output="done")
    yield from story.records
