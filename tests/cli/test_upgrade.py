"""`agentloop upgrade-check`: the table, JSON, the exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]

AGENT = '''
from pathlib import Path

from agentloop import Agent, tool
from agentloop.items import ToolOutput
from agentloop.testing import FunctionModel, call, say


@tool(needs_approval=True)
async def pay(item: str) -> str:
    """Pay."""
    Path("paid.txt").write_text(item)
    return "paid"


async def play(request):
    Path("asked.txt").touch()
    if "wait" not in request.items[0].text or isinstance(request.items[-1], ToolOutput):
        return say("Done.")
    return call("pay", {"item": "tea"}, call_id="c1")


old = Agent("shop", model=FunctionModel(play), tools=[pay])
louder = old.clone(instructions="Be loud.")
poorer = old.clone(tools=[])
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Path:
    """A folder with the agents, and the journals of a run that waits and of one that is over."""
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(AGENT)
    Path("requests.txt").write_text("wait\nno\n")
    invoke("run", "shop.py:old", "--input", "requests.txt", "--journal", "jobs")
    Path("asked.txt").unlink()
    return tmp_path


@pytest.mark.scenario("LB-19")
def test_the_table_says_which_runs_continue(shop: Path, invoke: Invoke) -> None:
    """Each unfinished run has its verdict with the reason, the exit code is 1 if one can't continue; nothing is run."""
    before = {path: path.read_bytes() for path in Path("jobs").iterdir() if path.is_file()}
    done = invoke("upgrade-check", "jobs", "--agent", "shop.py:old")
    assert (done.exit_code, done.stdout) == (0, "Unfinished runs, resumed with agent 'shop': 1 same\n")
    done = invoke("upgrade-check", "jobs", "--agent", "shop.py:louder")
    assert done.exit_code == 0
    assert "changed: agent 'shop': its model is shown other instructions" in done.stdout
    done = invoke("upgrade-check", "jobs", "--agent", "shop.py:poorer")
    assert done.exit_code == 1
    assert "call 'c1' waits for tool 'pay' of agent 'shop'" in done.stdout
    assert "Traceback" not in done.output
    assert {path: path.read_bytes() for path in Path("jobs").iterdir() if path.is_file()} == before
    assert not Path("asked.txt").exists()
    assert not Path("paid.txt").exists()


@pytest.mark.scenario("LB-19")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_json_has_every_run(shop: Path, invoke: Invoke, backend: str) -> None:
    """One object: the agent, and a row for each unfinished run, with what its calls would do."""
    done = invoke("upgrade-check", "jobs", "--agent", "shop.py:old", "--json", "--backend", backend)
    data = json.loads(done.stdout)
    (row,) = data["rows"]
    assert (data["agent"], row["verdict"], row["calls"][0]["does"]) == ("shop", "same", "runs")
    rejected = invoke("upgrade-check", "jobs", "--agent", "shop.py:old", "--json", "--verdict", "reject")
    (row,) = json.loads(rejected.stdout)["rows"]
    assert (row["calls"][0]["does"], row["calls"][0]["status"]) == ("settles", "rejected")
    one = invoke("upgrade-check", "jobs", "--agent", "shop.py:old", "--run", row["name"], "--json")
    assert [each["name"] for each in json.loads(one.stdout)["rows"]] == [row["name"]]
