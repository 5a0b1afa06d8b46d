"""What a notebook shows last in a cell: small, true, and harmless whatever a model or a tool has written."""

import json
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, Runner, tool
from agentloop._common import notebook
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import RunEnded
from agentloop.results import RunResult
from agentloop.state import RunState
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.replaying import Shadowed, ShadowReport, replay
from agentloop.tracing import Timeline, read_timeline

PLAIN_TAGS = {"div", "p", "b", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"}
HOSTILE = (
    "</code></pre></td></table><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "&lt;script&gt;",
    "$$\\href{javascript:alert(1)}{x}$$",
    "\x1b[2J\u202ecba\x00",
    "\ud800",
)


class Reader(HTMLParser):
    """Reads a cell: its texts, and the tags and attributes that it has."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(cell)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)


def read_cell(cell: str) -> str:
    """Return the text of a cell, which has plain tags only, each closed and without attributes, and fits UTF-8."""
    reader = Reader(cell)
    assert reader.tags <= PLAIN_TAGS
    assert not reader.open
    json.dumps(cell).encode()
    cell.encode()
    assert len(cell) < 60_000
    return "\n".join(reader.texts)


def _run(words: str, *, secret: bool = False) -> RunResult[Any]:
    """Run an agent of which every text is *words*, with a call that has settled and one that waits."""

    @tool(name="echo", secret=["text"], secret_output=True)
    async def secret_echo(text: str) -> str:
        """Echo."""
        return text

    @tool(name="echo")
    async def plain_echo(text: str) -> str:
        """Echo."""
        return text

    @tool(needs_approval=True)
    async def ask(text: str) -> str:
        """Ask."""
        return text

    model = ScriptedModel([[call("echo", {"text": words}), call("ask", {"text": "ask"})]])
    return Runner.run_sync(Agent(words, model=model, tools=[secret_echo if secret else plain_echo, ask]), words)


def _cells(result: RunResult[Any]) -> dict[str, str]:
    replayed = replay(result, result.last_agent)
    report = ShadowReport((Shadowed("x.journal", 1, LookupError(result.last_agent.name)),))  # type: ignore[arg-type]
    return {
        "result": result._repr_html_(),
        "state": result.to_state()._repr_html_(),
        "timeline": read_timeline(result.records)._repr_html_(),
        "replayed": replayed._repr_html_(),
        "report": report._repr_html_(),
    }


@pytest.mark.parametrize("words", HOSTILE)
def test_nothing_that_is_written_becomes_a_tag(words: str) -> None:
    """In the agent's name, arguments, outputs and errors: it stays text."""
    for cell in _cells(_run(words)).values():
        read_cell(cell)


@pytest.mark.slow
@given(st.text(), st.text(st.characters(codec=None)), st.integers(0, 100))
def test_any_text_stays_text(title: str, words: str, rows: int) -> None:
    """Half a surrogate pair, controls, quotes and brackets, in every place of a cell."""
    cell = notebook.page(
        title, words, pieces=[notebook.block(words), notebook.table((title,), [(words, title)] * rows)]
    )
    read_cell(cell)
    assert cell.count("<tr>") <= notebook.MOST_ROWS + 1


def test_a_result_shows_its_calls_and_what_waits() -> None:
    """With arguments, outcome and output, and how many turns and calls there were."""
    text = read_cell(_run("hello")._repr_html_())
    for shown in ("hello", "interrupted", "1 turn · 1 call", '{"text": "hello"}', "succeeded", "waits for a verdict"):
        assert shown in text


def test_a_state_and_a_timeline_show_how_the_run_stands() -> None:
    """Also one of records that don't fit, and an empty one."""
    result = _run("hello")
    state = result.to_state()
    assert f"run {state.run_id}" in read_cell(state._repr_html_())
    assert "waits for a verdict" in read_cell(state._repr_html_())
    broken = RunState(state.agent, state.records[1:])
    assert "records that don't fit" in read_cell(broken._repr_html_())
    assert "under way" in read_cell(RunState(state.agent, state.records[:-1])._repr_html_())
    shown = read_cell(read_timeline(state.records)._repr_html_())
    assert "· · echo" in shown
    assert "interrupted" in shown
    assert "under way" in read_cell(Timeline()._repr_html_())


def test_a_replay_shows_its_result_or_its_error() -> None:
    """And a report the journals that were replayed otherwise than recorded."""
    agent = Agent("a", model=ScriptedModel([say("fine")]))
    result = Runner.run_sync(agent, "go")
    replayed = replay(result, agent)
    assert "fine" in read_cell(replayed._repr_html_())
    failed = attrs.evolve(replayed, result=None, error=LookupError("no such thing"))
    assert "LookupError(no such thing)" in read_cell(failed._repr_html_())
    assert "1 journals replayed" in read_cell(_cells(_run("hello"))["report"])


def test_what_a_tool_marks_secret_is_hidden() -> None:
    """Arguments, outputs, and an answer that a secret tool has made."""
    for name, cell in _cells(_run("hidden-7", secret=True)).items():
        if name in ("result", "state", "replayed"):
            assert "[secret]" in cell
        assert '"text": "hidden-7"' not in cell.replace("&quot;", '"')

    @tool(secret_output=True)
    async def key() -> str:
        """Give the key."""
        return "hidden-8"

    agent = Agent("a", model=ScriptedModel([call("key")]), tools=[key], tool_use_behavior="stop_on_first_tool")
    result = Runner.run_sync(agent, "go")
    assert isinstance(result.records[-1], RunEnded)
    for cell in (result._repr_html_(), result.to_state()._repr_html_(), read_timeline(result.records)._repr_html_()):
        assert "hidden-8" not in cell


def test_a_cell_is_small_whatever_the_run_did() -> None:
    """A thousand calls are forty rows, and a long answer its first lines."""
    calls = [
        (ToolCall(f"c{n}", "look", json.dumps("x" * 10_000)), CallOutcome(status="succeeded")) for n in range(1000)
    ]
    long = "line\n" * 10_000
    cell = notebook.run_cell("a", answer=long, is_secret=False, calls=calls, waiting=())
    assert "… and 960 more" in read_cell(cell)
    assert cell.count("line") == notebook.MOST_ROWS - 1


def test_an_answer_that_is_an_object_is_shown_as_its_repr() -> None:
    """As Python itself would show it; `None` is no answer."""
    cell = notebook.run_cell("a", answer={"a": "<b>"}, is_secret=False, calls=(), waiting=())
    assert "{'a': '<b>'}" in read_cell(cell)
    assert "<pre>" not in notebook.run_cell("a", answer=None, is_secret=False, calls=(), waiting=())
