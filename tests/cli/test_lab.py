"""`agentloop lab`: the table, the files that it writes, its exit codes, and an interruption."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import Result

from agentloop.cli.lab_run import _Progress
from agentloop.lab import LabReport, LabRow, read_report
from agentloop.lab._page import render_lab_page

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

AGENT = '''
import os
from pathlib import Path

import anyio

from agentloop import Agent, RunConfig, lab, tool
from agentloop.items import ToolOutput, UserMessage
from agentloop.lab import Score
from agentloop.testing import FunctionModel, call, say


@tool(reads_only=True)
async def look_up(order: str) -> str:
    """Look an order up."""
    return "paid 10"


@tool
async def refund(order: str) -> str:
    """Pay money back."""
    with open("bank.txt", "a") as file:
        file.write(order)
    return "done"


async def play(request):
    if os.path.exists("hang.txt") and "7" in str(request.items[0].content):
        Path("hanging.txt").touch()
        await anyio.sleep_forever()
    outputs = [item for item in request.items if isinstance(item, ToolOutput)]
    wants = ["look_up", "refund"] if "look" in request.system else ["refund"]
    if len(outputs) < len(wants):
        return call(wants[len(outputs)], {"order": "o-1"})
    return say("Paid back." + (" Thanks!" if "thank" in request.system else ""))


def judge(run):
    return Score(float("Thanks" in run.answer_text), "it thanks" if "Thanks" in run.answer_text else "it doesn't")


prompt = Path("prompt.txt").read_text()
agent = Agent("desk", instructions=prompt, model=FunctionModel(play), tools=[look_up, refund])
checks = [lab.called("look_up", times=1)]
config = RunConfig(price=lambda name, usage: 1)
cases = [lab.Case("Order 1.", "first", checks=checks)]
wrong = 7
simulate = lambda given: "simulated"
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Path:
    """A folder with the agent and the journals of ten runs."""
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(AGENT)
    Path("prompt.txt").write_text("look first")
    Path("requests.txt").write_text("".join(f"Order {n}.\n" for n in range(10)))
    done = invoke("run", "shop.py:agent", "--input", "requests.txt", "--journal", "job")
    assert done.exit_code == 0, done.output
    Path("bank.txt").unlink()
    return tmp_path


def compare(invoke: Invoke, *more: str) -> Result:
    """Run the command on the shop's journals."""
    return invoke("lab", "job", "--agent", "shop.py:agent", *more)


def test_an_unchanged_agent_is_the_same(shop: Path, invoke: Invoke, backend: str) -> None:
    """On both event loops, and nothing is paid."""
    done = compare(invoke, "--backend", backend)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "10 runs of desk: 10 same"
    assert not Path("bank.txt").exists()


@pytest.mark.slow
@pytest.mark.scenario("LB-07")
def test_a_bad_edit_is_worse_than_the_baseline(shop: Path, invoke: Invoke) -> None:
    """The table, the lines that say what is worse, and the exit code; a good edit is none."""
    assert compare(invoke, "--checks", "shop.py:checks", "--report", "base.json").exit_code == 0
    Path("prompt.txt").write_text("look first, and thank")
    good = compare(invoke, "--checks", "shop.py:checks", "--against", "base.json", "--judge", "shop.py:judge")
    assert (good.exit_code, good.stdout.splitlines()[0]) == (0, "10 runs of desk: 10 answer differs")
    assert "judge: 1 it thanks" in good.stdout
    Path("prompt.txt").write_text("be quick")
    bad = compare(invoke, "--checks", "shop.py:checks", "--against", "base.json")
    assert bad.exit_code == 1
    assert "worse: line-000001" in bad.stdout or "worse: " in bad.stdout
    assert len(re.findall("^worse: ", bad.stdout, re.MULTILINE)) == 10
    assert not Path("bank.txt").exists()


def test_files_that_it_writes(shop: Path, invoke: Invoke) -> None:
    """A report, a page and JUnit XML, readable by their owner only, and no partial report."""
    done = compare(
        invoke, *("--report", "lab.json", "--html", "lab.html", "--junit", "lab.xml", "--config", "shop.py:config")
    )
    assert done.exit_code == 0
    report = json.loads(Path("lab.json").read_text())
    assert [row["verdict"] for row in report["rows"]] == ["same"] * 10
    assert report["sums"]["turns"] == [30, 30]
    page = Path("lab.html").read_text()
    assert "<script>" in page
    assert re.search(r"https?://", page) is None
    assert len(ElementTree.parse("lab.xml").getroot()) == 10
    assert {path.stat().st_mode & 0o777 for path in map(Path, ("lab.json", "lab.html", "lab.xml"))} == {0o600}
    assert list(Path().glob("*.partial")) == []


def test_only_the_runs_of_a_query(shop: Path, invoke: Invoke) -> None:
    """By status, tool and name."""
    for where, count in {"status=completed": 10, "status=failed": 0, "tool=refund,status=completed": 10}.items():
        done = compare(invoke, "--where", where)
        assert done.stdout.startswith(f"{count} runs of desk"), where
        assert done.exit_code == (0 if count else 2)
    assert compare(invoke, "--where", "age=7").exit_code == 2


def test_calls_that_were_not_recorded(shop: Path, invoke: Invoke) -> None:
    """They can be simulated; to run them for real it needs a terminal."""
    Path("prompt.txt").write_text("look first, then")
    assert compare(invoke, "--unmatched", "simulate", "--simulate", "shop.py:simulate").exit_code == 0
    done = compare(invoke, "--unmatched", "live")
    assert (done.exit_code, "terminal" in done.stderr) == (2, True)
    assert not Path("bank.txt").exists()


def test_cases_are_recorded_at_first(shop: Path, invoke: Invoke) -> None:
    """A list of cases in a file takes the place of journals."""
    done = invoke("lab", "shop.py:cases", "--agent", "shop.py:agent")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "1 runs of desk: 1 same")
    assert Path(".agentloop/cases/first.journal").exists()
    Path("prompt.txt").write_text("be quick")
    assert invoke("lab", "shop.py:cases", "--agent", "shop.py:agent").exit_code == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--checks", "shop.py:wrong"], "expected a list of checks"),
        (["--config", "shop.py:wrong"], "expected a RunConfig"),
        (["--against", "prompt.txt"], "prompt.txt: not a report of the lab"),
        (["--against", "nothing.json"], "nothing.json"),
        (["--unmatched", "simulate"], "simulate"),
        (["--report", "nowhere/lab.json"], "nowhere"),
    ],
)
def test_wrong_use_ends_with_two(shop: Path, invoke: Invoke, more: list[str], says: str) -> None:
    """The message names what is wrong."""
    done = compare(invoke, *more)
    assert done.exit_code == 2
    assert says in done.stderr


def test_journals_that_are_none(shop: Path, invoke: Invoke) -> None:
    """A folder without journals, a place that isn't there, and an object that is no case."""
    Path("empty").mkdir()
    for given in ("empty", "nothing", "shop.py:wrong"):
        done = invoke("lab", given, "--agent", "shop.py:agent")
        assert done.exit_code == 2
        assert "Error: " in done.stderr


@pytest.mark.scenario("LB-06")
@pytest.mark.slow
def test_ctrl_c_leaves_a_report_and_the_same_command_continues(shop: Path, invoke: Invoke, start: Start) -> None:
    """The rows so far are shown and kept; the next command makes the rest, and its report is whole."""
    Path("prompt.txt").write_text("look first, and thank")
    Path("hang.txt").touch()
    words = ("lab", "job", "--agent", "shop.py:agent", "--report", "lab.json", "--html", "lab.html")
    child = start(*words, "--concurrency", "2")
    kept = Path("lab.json.partial")
    while not (Path("hanging.txt").exists() and kept.exists() and len(kept.read_text().splitlines()) == 10):
        assert child.poll() is None, child.communicate()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out.startswith("9 runs of desk: 9 answer differs")
    assert "9 of 10 runs were compared" in err
    Path("hang.txt").unlink()
    with kept.open("a") as file:
        file.write('{"row": {"na')  # as a crash leaves it
    done = invoke(*words)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "10 runs of desk: 10 answer differs")
    assert not kept.exists()
    assert len(json.loads(Path("lab.json").read_text())["rows"]) == 10
    assert Path("lab.html").read_text().count('"differs":') == 10


@pytest.mark.parametrize("mark", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\ud83d", "é"])
def test_rows_of_any_text_are_kept_and_written(mark: str, tmp_path: Path) -> None:
    """No character ends a line of what is kept, and none keeps a file from being written."""
    rows = [LabRow(name=f"{mark}{n}", verdict="answer differs", why=(f"one{mark}two",)) for n in range(3)]
    place = tmp_path / "lab.json"
    for row in rows:
        progress = _Progress(place, "settings")
        progress.add(row, None, None)
    again = _Progress(place, "settings")
    assert again.rows == rows
    assert _Progress(place, "others").rows == []
    again = _Progress(place, "settings")
    assert again.rows == []
    for row in rows:
        again.add(row, None, None)
    made = LabReport("desk", tuple(rows))
    place.write_text(made.to_json(), encoding="utf-8", newline="")
    assert read_report(place).rows == made.rows
    ElementTree.fromstring(made.to_junit().encode())
    page = render_lab_page(made, again.entries()).encode().decode()
    data = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert [one["row"]["name"] for one in json.loads(data)["rows"]] == [row.name for row in rows]


# ------------------------------------------------------------------------------------------------ show and diff


@pytest.mark.scenario("LB-16")
def test_show_tells_what_a_run_was_about(shop: Path, invoke: Invoke) -> None:
    """At its end, at a record, and by parts."""
    done = invoke("show", "job", "--line", "1")
    assert done.exit_code == 0
    assert done.stdout.startswith("after record ")
    assert "desk: turn 3, completed" in done.stdout
    assert "user: Order 0." in done.stdout
    done = invoke("show", "job", "--line", "1", "--at", "3", "--waiting")
    assert "after record 3 of " in done.stdout
    assert "the model works on its request" in done.stdout
    assert "user: " not in done.stdout
    wrong = invoke("show", "job", "--line", "1", "--at", "99")
    assert (wrong.exit_code, "expected from 1 to" in wrong.stderr) == (2, True)
    assert invoke("show", "nothing").exit_code == 2


def test_diff_tells_the_first_difference(shop: Path, invoke: Invoke) -> None:
    """By the exit code, too."""
    Path("prompt.txt").write_text("be quick")
    assert invoke("run", "shop.py:agent", "Order 1.", "--journal", "quick").exit_code == 0
    journals = sorted(Path("job").glob("*.journal"))
    assert invoke("diff", str(journals[0]), str(journals[1])).exit_code == 0
    done = invoke("diff", str(journals[0]), "quick")
    assert done.exit_code == 1
    assert '- turn 1, call: look_up {"order": "o-1"}' in done.stdout
    assert 'removed: look_up {"order": "o-1"}' in done.stdout
    assert invoke("diff", "nothing", "quick").exit_code == 2
