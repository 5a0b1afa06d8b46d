"""The page of a timeline as text: nothing in it can be more than text, it stays small, and it is in the wheel."""

import base64
import hashlib
import html
import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from timeline.stories import START, Story, every_ending, long_run

import agentloop.tracing
from agentloop import Agent, Runner, tool
from agentloop import records as r
from agentloop.cli.trace_server import FollowedJournal, SentMoments, format_change
from agentloop.exceptions import UserError
from agentloop.items import AssistantMessage, ToolCall, UserMessage
from agentloop.lab import list_moments
from agentloop.lab._moments import MomentLog
from agentloop.outcomes import CallOutcome
from agentloop.testing import ScriptedModel, call, say
from agentloop.tracing import Timeline, TimelineFrame, read_timeline, render_html, render_text
from agentloop.tracing._timeline_page import render_follow_page

HOSTILE = (
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "{{data}}{{script}}",
    "<!--<script>",
    "\u2028\u2029\ud800\udc00 \ud800",
    "&lt;b&gt;",
    "\u202eevil",
)


def hostile_run() -> list[r.Record]:
    """Return a run in which every text that a model or an application writes is hostile."""
    text = " ".join(HOSTILE)
    story = Story(text, text)
    story.begin(0)
    call = ToolCall(text, text, json.dumps({"a": text}))
    story.ask(0, 1, AssistantMessage(text), call)
    story.tell(r.GuardrailSettled, 1, "input", text, text, 0.5)
    story.tell(r.CallStarted, 1, call_id=text, tool=text, arguments=text, queued_at=START, waited_for=(text,))
    fields: dict[str, Any] = {"agent": text, "tool": text, "digest": "d"}
    story.tell(r.ApprovalRequested, 1, call_id=text, policy=text, reason=text, **fields)
    story.tell(r.VerdictGiven, 1.5, call_id=text, approved=True, by=text, message=text, **fields)
    story.turn = 0
    story.settle(2, text, "failed", error=text, output=text, reason=text)
    story.tell(r.InputAdded, 2, (UserMessage(text),))
    story.tell(r.GraphChanged, 2, (text,))
    story.tell(r.RunEnded, 3, "failed", error=text, final_output=text)
    return story.records


def data_of(page: str) -> Any:
    """Return the data that the page's script reads."""
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def test_hostile_texts_are_data_alone() -> None:
    """The page has the elements of its template and no more; the texts come back whole from its data."""
    page = render_html(read_timeline(hostile_run()))
    plain = render_html(read_timeline([]))
    for tag in ("<script", "</script", "<img", "<style", "<title", "<!--"):
        assert page.count(tag) == plain.count(tag), tag
    assert "onerror" in json.dumps(data_of(page))
    assert "\ufffd" in json.dumps(data_of(page), ensure_ascii=False)
    page.encode()
    [title] = re.findall("<title>(.*?)</title>", page)
    assert "<script>" in html.unescape(title)
    assert "\\u202eevil" in title


HALF = "a\ud800\u202eb"
"""Half a character, which UTF-8 doesn't have, beside one that turns the text around."""


def make_half() -> Agent[Any, str]:
    """Return an agent whose run has a half in each name and text, as it is or as an escape of JSON."""

    @tool(failure_error_function=lambda ctx, error: HALF)
    def fails(text: str) -> str:
        """Fail."""
        raise ValueError(HALF)

    @tool
    def returns(text: str) -> str:
        """Return a half."""
        return HALF

    given = {"text": HALF}
    plain = call("fails", json.dumps(given, ensure_ascii=False), f"1{HALF}")
    escaped = call("returns", json.dumps(given), f"2{HALF}")
    model = ScriptedModel([[plain, escaped], say(HALF)])
    inner = Agent(f"inner{HALF}", model=model, tools=[fails, returns])
    model = ScriptedModel([call("asks", {"input": HALF}, f"3{HALF}"), say(HALF)])
    return Agent(f"outer{HALF}", model=model, tools=[inner.as_tool("asks")])


@pytest.mark.parametrize("with_moments", [False, True])
async def test_half_a_character_is_in_no_page(with_moments: bool) -> None:
    """The page can be written, and shows what can be seen of a name, also in the states after each record."""
    records = (await Runner.run(make_half(), HALF)).records
    page = render_html(read_timeline(records), moments=list_moments(records) if with_moments else None)
    page.encode()
    moments = data_of(page).get("moments", {"calls": [], "steps": []})
    names = [*(name for each in moments["calls"] for name in each[:2]), *(name for name, *_ in moments["steps"])]
    assert bool(names) == with_moments
    assert not [name for name in names if "\ud800" in name or "\u202e" in name]


async def test_half_a_character_is_followed() -> None:
    """The server of a growing journal sends the rows and states of each beginning of such a run."""
    records = (await Runner.run(make_half(), HALF)).records
    shown: list[r.Record] = []
    log = MomentLog()
    followed = FollowedJournal(lambda: "written", lambda: (read_timeline(shown), log))
    for record in records:
        shown.append(record)
        log.add(record)
        await followed._update()
        event = format_change(followed.head, followed.rows, [], followed.moments.since(SentMoments()))
        changed = json.loads(event.split(b"data: ", 1)[1])
        assert len(changed["moments"]["steps"]) == len(shown)
    assert followed.damage is None


class _Frames(HTMLParser):
    """Keeps the tags and texts of a cell."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(cell)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("records", [every_ending(), hostile_run()])
def test_a_notebook_shows_the_page_in_a_frame_without_rights(records: list[r.Record]) -> None:
    """The cell is one frame that holds the page; no text of the run ends its attribute, or is outside of it."""
    timeline = read_timeline(records)
    cell = TimelineFrame(timeline, 480)._repr_html_()
    found = _Frames(cell)
    page = render_html(timeline)
    attributes = {"sandbox": "allow-scripts", "width": "100%", "height": "480", "srcdoc": page}
    assert (found.tags, found.texts) == ([("iframe", attributes)], [])
    json.dumps(cell).encode()
    cell.encode()


@pytest.mark.parametrize("given", [{"timeline": []}, {"timeline": Timeline(), "height": 0}])
def test_a_frame_is_one_of_a_timeline(given: Any) -> None:
    """What isn't one is refused when the frame is made, not when the notebook shows it."""
    with pytest.raises(UserError, match=r"timeline|height"):
        TimelineFrame(**given)


def test_hostile_texts_control_no_terminal() -> None:
    """No control and no change of direction is in the text; wide letters keep the columns."""
    text = render_text(read_timeline([*hostile_run()]), width=100)
    assert not [char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs")]
    wide = render_text(read_timeline(Story("旅行" * 30 + "e\u0301").records), width=80)
    assert all(
        sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in line) <= 80 for line in wide.splitlines()
    )


@pytest.mark.parametrize("follows", [False, True])
def test_the_policy_allows_the_pages_own_script_and_style_alone(follows: bool) -> None:
    """By their digests; nothing is asked of a network, but for the page that follows a run."""
    page = render_follow_page() if follows else render_html(read_timeline(every_ending()))
    [policy] = re.findall('Content-Security-Policy" content="(.*?)"', page)
    for tag in ("script", "style"):
        [own] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert ("connect-src 'self'" in policy) == bool(data_of(page).get("follow")) == follows
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", re.sub(r"(?s)<script type=.*?</script>", "", page))


@pytest.mark.slow
def test_a_run_of_ten_thousand_records_is_small() -> None:
    """Also one with long texts, of which the page has the beginnings."""
    records = list(long_run(10_000))
    assert len(records) >= 10_000
    assert len(render_html(read_timeline(records)).encode()) < 3_000_000
    long = [
        record.replace(outcome=record.outcome.replace(output="<" * 9_000))
        if isinstance(record, r.CallSettled)
        else record
        for record in records
    ]
    assert len(render_html(read_timeline(long)).encode()) < 3_000_000


@pytest.mark.scenario("VI-05")
def test_secrets_are_not_in_the_page() -> None:
    """What a tool marks secret is masked; without content no message is there."""
    story = Story(asked="canary-input")
    story.begin(0)
    call = ToolCall("login-1", "login", '{"password": "canary-argument"}', secret=("password",))
    story.ask(0, 1, call, AssistantMessage("canary-message"))
    story.start(1, "login")
    story.settle(2, "login", "succeeded", output="canary-output", secret=True)
    story.tell(r.RunEnded, 3, "failed", error="ValueError(canary-error)", final_output="canary-result")
    page = render_html(read_timeline(story.records))
    assert "canary-argument" not in page
    assert "canary-output" not in page
    assert "canary-input" in page
    assert "canary" not in render_html(read_timeline(story.records, content=False))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"path": "a.txt", "lines": 3}', 'path="a.txt", lines=3'),
        ("{}", ""),
        ("", ""),
        ('{"a": [1, {"b": null}]}', 'a=[1,{"b":null}]'),
        ("[1]", "[1]"),
        ("no  json\n", "no json"),
        ('{"cut": "', '{"cut": "'),
        ('{"url": "https://example.org/a/very/long/way/to/page/147"}', 'url="https:/…/way/to/page/147"'),
        ('{"\u202ea": 1}', "\\u202ea=1"),
    ],
)
def test_arguments_are_a_part_of_a_rows_name(arguments: str, shown: str) -> None:
    """On one line and bounded; of a long one the beginning and the end, by which calls differ."""
    story = Story()
    story.begin(0)
    story.ask(0, 1, ToolCall("c", "look", arguments))
    rows = data_of(render_html(read_timeline(story.records)))["rows"]
    assert [row["a"] for row in rows if row["k"] == "call"] == [shown]


def test_title_says_who_was_asked_what() -> None:
    """Short, on one line; without content, or before the first record, what is known."""
    story = Story("desk", "Where is\nmy parcel? " + "Please " * 100)
    for content, title in ((True, "desk: Where is my parcel? Please"), (False, "desk")):
        page = render_html(read_timeline(story.records, content=content))
        data = data_of(page)
        assert data["title"].startswith(title)
        assert len(data["title"]) < 180
        assert data["run"]
        assert f"<title>{html.escape(data['title'])}</title>" in page
    assert data_of(render_html(read_timeline([])))["title"] == "No run yet"


def test_short_body_is_drawn_as_a_body() -> None:
    """A cell of the text shows the phase that takes the most of its time, not the last one."""
    story = Story()
    story.begin(0)
    seconds = [30.0, 0.2, 0.6, 1.0, 1.4]
    calls = [ToolCall(f"work-{at}", "work", "{}") for at in range(len(seconds))]
    story.ask(0, 0.001, *calls)
    for one, took in zip(calls, seconds, strict=True):
        story.tell(r.CallStarted, 0.002, call_id=one.call_id, tool="work", arguments="{}", queued_at=START + 0.001)
        ended = {"outcome": CallOutcome(status="succeeded"), "body_ended_at": START + took + 0.002}
        story.tell(r.CallSettled, took + 0.004, call_id=one.call_id, tool="work", **ended)
    text = render_text(read_timeline(story.records), width=100)
    bars = [line for line in text.splitlines() if "work" in line]
    assert len(bars) == len(seconds)
    for line in bars:
        assert "█" in line
        assert "▁" not in line, text


def test_the_files_of_the_page_are_beside_the_module() -> None:
    """They are no Python, so the package must name them or take the whole folder."""
    folder = Path(agentloop.tracing.__file__).parent / "_page"
    assert {path.name for path in folder.iterdir()} == {"timeline.html", "timeline.css", "timeline.js"}
