"""The example agent over every HTTP interface, from outside: equal items against a scripted server and where the local
model's server constrains output, and else a refusal before the first turn.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
from edges.test_three_interfaces import answer_chat, answer_messages, answer_responses, plain
from jsonschema import Draft202012Validator

from agentloop import Agent, Runner
from agentloop.cli.target import load_agent
from agentloop.config import RunConfig
from agentloop.exceptions import UserError, UserValueError
from agentloop.items import AssistantMessage, Item, ToolCall, ToolOutput, UserMessage
from agentloop.journal import read_journal
from agentloop.model_events import ModelRequest, OutputSchema, ResponseDone
from agentloop.models import LocalModel
from agentloop.settings import ModelSettings
from agentloop.state import RunState

ROOT = Path(__file__).parents[2]
TARGET = f"{ROOT / 'examples' / 'repo_helper.py'}:agent"
ANSWERS: dict[str, tuple[str, Callable[[list[Item], bool], bytes]]] = {
    "openai:m": ("/v1/responses", answer_responses),
    "openai-chat:m": ("/v1/chat/completions", answer_chat),
    "anthropic:m": ("/v1/messages", answer_messages),
}
"""The model strings, each with its path and what a server answers there."""
QUESTIONS: dict[str, list[Item]] = {
    "How long is the license?": [ToolCall("c1", "count_lines", '{"path": "LICENSE"}')],
    "What is 17 times 23?": [
        AssistantMessage("I compute."),
        ToolCall("c2", "calculate", '{"a": 17, "operation": "times", "b": 23}'),
    ],
    "And the rest?": [ToolCall("c3", "list_files", '{"folder": "nowhere"}')],
    "Thanks für alles!": [AssistantMessage("Gern.")],
}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server for the three interfaces: its URL, and the paths of its requests."""
    paths: list[str] = []
    by_path = dict(ANSWERS.values())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            said = json.dumps(json.loads(body), ensure_ascii=False)
            [items] = [answer for question, answer in QUESTIONS.items() if question in said]
            paths.append(self.path)
            content = by_path[self.path](items, True)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}", paths
        served.shutdown()


@pytest.mark.scenario("WR-01")
@pytest.mark.slow
@pytest.mark.real_clock
def test_the_example_agent_runs_unchanged_over_every_interface(
    server: tuple[str, list[str]], start: Start, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command with another model string: equal answers, exit codes and items."""
    url, paths = server
    for name, value in (("OPENAI_BASE_URL", f"{url}/v1"), ("ANTHROPIC_BASE_URL", url)):
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(name.replace("BASE_URL", "API_KEY"), "k")
    found: dict[str, Any] = {}
    for model, (path, _) in ANSWERS.items():
        journal = tmp_path / model.partition(":")[0]
        command = ["run", TARGET, "-", "--model", model, "--backend", backend, "--journal", str(journal)]
        child = start(*command, "--concurrency", "1", stdin=subprocess.PIPE, cwd=ROOT)
        out, err = child.communicate("\n".join(QUESTIONS), timeout=60)
        assert paths == [path] * len(QUESTIONS), err
        paths.clear()
        found[model] = child.returncode, out, [read_items(file) for file in sorted(journal.glob("line-*.journal"))]
    code, out, items = found["openai:m"]
    assert code == 1  # one question ended in a tool's failure
    assert "17 times 23 is 391." in out
    assert "Gern." in out
    assert [[item.text for item in run if isinstance(item, UserMessage)] for run in items] == [
        [one] for one in QUESTIONS
    ]
    assert [len([item for item in run if isinstance(item, ToolCall)]) for run in items] == [1, 1, 1, 0]
    assert found["openai-chat:m"] == found["anthropic:m"] == found["openai:m"]


def read_items(journal: Path) -> list[Item]:
    """Return the items of a run, without the marks of their provider."""
    return [plain(item) for item in RunState(load_agent(TARGET), read_journal(journal))._fold.history]


# ---------------------------------------------------------------------------------------------- the local model

NEVER_SAID = {"type": "object", "properties": {"zq": {"const": "xyzzy"}}, "required": ["zq"]}
Interface = Literal["chat", "responses", "messages"]


async def constrains(interface: Interface) -> bool:
    """Tell whether the local server keeps to a schema that it is given in the interface's own words."""
    request = ModelRequest(
        system=None,
        items=(UserMessage("Say hello."),),
        output_schema=OutputSchema(name="probe", schema=NEVER_SAID),
        settings=ModelSettings(max_tokens=40, temperature=0.0),
    )
    async with LocalModel(constrained=False, interface=interface) as model, model.stream(request) as stream:
        done = [event async for event in stream][-1]
    assert isinstance(done, ResponseDone)
    [message] = done.items
    assert isinstance(message, AssistantMessage)
    try:
        return bool(json.loads(message.text) == {"zq": "xyzzy"})
    except ValueError:
        return False


@pytest.mark.local_model
@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
async def test_the_local_server_gives_valid_calls_or_the_agent_is_refused(interface: Interface) -> None:
    """Where a probe shows that the endpoint constrains output, the example agent's calls are valid, and the tool's
    output is the answer; elsewhere tools would be overlooked, so such a model is refused.
    """
    agent = load_agent(TARGET)
    if not await constrains(interface):
        with pytest.raises(UserValueError, match="constrained=False"):
            LocalModel(interface=interface)
        model = LocalModel(constrained=False, interface=interface)
        with pytest.raises(UserError, match="its chat template knows no tools"):
            await Runner.run(agent, "What is 17 times 23?", run_config=RunConfig(model=model))
        return
    tools = {tool.name: tool for tool in agent.tools}
    answers = []
    async with LocalModel(interface=interface) as model:
        for _ in range(2):
            result = await Runner.run(agent, "What is 17 times 23?", run_config=RunConfig(model=model))
            [call] = [item for item in result.new_items if isinstance(item, ToolCall)]
            [output] = [item for item in result.new_items if isinstance(item, ToolOutput)]
            Draft202012Validator(tools[call.name].params_json_schema).validate(json.loads(call.arguments))
            assert result.final_output == output.output
            answers.append(output.output)
    assert answers[0] == answers[1]


@pytest.mark.local_model
@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
async def test_the_local_server_is_a_peer_of_every_interface(interface: Interface) -> None:
    """A run without tools: streamed text, the conversation sent back, and what was used."""
    settings = ModelSettings(max_tokens=30, temperature=0.0)
    agent = Agent("a", instructions="Be brief.", model_settings=settings)
    async with LocalModel(constrained=False, interface=interface) as model:
        config = RunConfig(model=model)
        first = await Runner.run(agent, "Say hello.", run_config=config)
        again = await Runner.run(agent, [*first.to_input_list(), UserMessage("Again.")], run_config=config)
    for result in (first, again):
        assert isinstance(result.final_output, str)
        assert result.final_output
        assert 0 < result.usage.output_tokens <= 30
    assert again.usage.input_tokens > first.usage.input_tokens
