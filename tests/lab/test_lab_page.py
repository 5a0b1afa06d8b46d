"""The page of a comparison: one file, nothing that a text could run, and both histories with their first difference."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from lab.shop import ask, make_agent

from agentloop import Runner, lab
from agentloop.lab import LabReport
from agentloop.lab._page import make_entry, render_lab_page
from agentloop.testing import say

pytestmark = pytest.mark.real_clock
HOSTILE = "</script><script>alert(1)</script>{{script}}\u2028<b>"


async def compared(text: str) -> tuple[LabReport, list[Any]]:
    """Return the report of a run that has looked something up, and what the page shows of it."""
    entries: list[Any] = []
    result = await Runner.run(make_agent([ask("look_up", 1, order=text), say(text)]), text)
    changed = make_agent([ask("look_up", 1, order="other"), say("No.")], instructions="New.")
    report = await lab.compare(
        result, changed, observe=lambda row, before, after: entries.append(make_entry(row, before, after))
    )
    return report, entries


def read_data(page: str) -> Any:
    """Return the data of *page*."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.scenario("LB-09")
async def test_the_page_is_one_file_without_network() -> None:
    """Its policy allows its own script and style only, and no text of a run ends an element."""
    report, entries = await compared(HOSTILE)
    page = render_lab_page(report, entries)
    assert page.count("<script") == 2
    assert "alert(1)</script>" not in page
    assert re.search(r"(src|href)=|https?://|@import|url\(", page) is None
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert "</script>" in read_data(page)["rows"][0]["input"]


async def test_the_first_difference_of_two_histories_is_marked() -> None:
    """Steps, where they begin to differ, and the bars of both timelines."""
    report, entries = await compared("o-1")
    (row,) = read_data(render_lab_page(report, entries))["rows"]
    before, after = row["steps"]
    assert [step[1] for step in before] == ["call", "output", "says", "answer"]
    assert before[0][2] == 'look_up {"order": "o-1"}'
    assert after[0][2] == 'look_up {"order": "other"}'
    assert after[1][2].startswith("succeeded (ran): ")
    assert row["differs"] == 0
    assert {bar[0] for bar in row["bars"][0]} == {"guardrail", "turn", "model", "call"}
    assert row["row"]["verdict"] == "other calls"


@pytest.mark.scenario("LB-09")
@pytest.mark.slow
async def test_a_thousand_runs_make_a_page_of_a_few_megabytes() -> None:
    """What it holds of a run is bounded."""
    report, entries = await compared("long " * 1_000)
    many = LabReport(report.agent, report.rows * 1_000)
    assert len(render_lab_page(many, entries * 1_000)) < 6_500_000
