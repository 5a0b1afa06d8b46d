"""Agents whose histories grow too long, models that count, and readers of what became of a history."""

from collections.abc import Sequence
from typing import Any

from agentloop import Agent, ContextPolicy, tool
from agentloop import records as r
from agentloop._core.history import valid_history
from agentloop.exceptions import ModelTransportError
from agentloop.items import Item, ToolCall, ToolOutput
from agentloop.testing import FunctionModel, call, fail, respond, say
from agentloop.usage import RequestUsage
from agentloop.window import estimate_tokens

PAGE = 3_000
"""Characters of one output: about a thousand tokens."""


@tool(in_doubt="rerun")
async def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + "x" * PAGE


def reader(pages: int, *, window: int | None = None, usage: bool = True, **changes: Any) -> FunctionModel:
    """Return a model that reads *pages* pages, then says so, and tells how many tokens each request had.

    It answers by the request alone, so that it may be asked anew after a crash. It refuses a request of more than
    *window* tokens, as providers do. Asked for a summary, it says one.
    """

    def answer(request: Any) -> Any:
        tokens = 50 + estimate_tokens(request.items)
        if window is not None and tokens > window:
            return fail(ModelTransportError(f"prompt is too long: {tokens} tokens > {window} maximum", status=400))
        used = RequestUsage(input_tokens=tokens, output_tokens=12) if usage else None
        if (request.system or "").startswith("You summarize"):
            return say("They have read some pages.", usage=used)
        if request.turn <= pages:
            asked = ToolCall(f"call_{request.turn}", "read", f'{{"page": {request.turn}}}')
            return respond(asked, usage=used)
        return say("done", usage=used)

    return FunctionModel(answer, **changes)


def make_agent(policy: ContextPolicy | None, model: Any = None, **changes: Any) -> Agent[Any, Any]:
    """Return an agent that reads."""
    return Agent("reader", model=model or reader(12), context=policy, **{"tools": [read], **changes})


def compactions(records: Sequence[r.Record], path: tuple[str, ...] = ()) -> list[r.HistoryReplaced]:
    """Return the records of the compactions of the run at *path*."""
    return [
        one for one in records if isinstance(one, r.HistoryReplaced) and one.reason == "compaction" and one.path == path
    ]


def summaries(records: Sequence[r.Record]) -> list[r.RunStarted]:
    """Return the beginnings of the runs that made a summary."""
    return [
        one for one in records if isinstance(one, r.RunStarted) and one.path and one.path[-1].startswith("summary-")
    ]


def own(records: Sequence[r.Record], kind: Any) -> list[Any]:
    """Return the records of *kind* of the outermost run."""
    return [one for one in records if isinstance(one, kind) and not one.path]


def check_valid(items: Sequence[Item]) -> None:
    """Check that each call among *items* has its output, and each output its call."""
    assert tuple(items) == valid_history(items)
    called = [item.call_id for item in items if isinstance(item, ToolCall)]
    assert [item.call_id for item in items if isinstance(item, ToolOutput)] == called


__all__ = [
    "PAGE",
    "call",
    "check_valid",
    "compactions",
    "make_agent",
    "own",
    "read",
    "reader",
    "summaries",
]
