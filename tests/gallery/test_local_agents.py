"""The agents of the gallery with the model on this machine: its words are its own affair, its calls are valid."""

from typing import Any

import pytest
from kit.examples import has_local_model, load_example

from agentloop.bundles import _web as web_module

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.local_model,
    pytest.mark.skipif(not has_local_model(), reason="the local model isn't installed"),
]
TOOLS = {
    "coding_agent": {
        *("list_files", "find_files", "search_files", "read_file", "apply_patch", "shell"),
        *("load_skill", "read_skill_file", "write_todos", "memory"),
    },
    "research_agent": {"search", "fetch_page", "memory"},
}


@pytest.mark.slow
@pytest.mark.backends("trio")
async def test_the_coding_agent_chooses_its_tools(capsys: pytest.CaptureFixture[str]) -> None:
    """One for the task, and one for what its user asks for meanwhile."""
    await load_example("coding_agent").main("local:")
    *called, _answer, _file = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0] for line in called if line.partition(":")[0] in TOOLS["coding_agent"]]
    assert len(names) == 2 or "waits for approvals: 1" in called  # where commands can't be isolated


@pytest.mark.backends("asyncio")
async def test_the_research_agent_chooses_its_tool(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name is looked up: the model chooses addresses, and a test needs no network."""
    pytest.importorskip("mcp", reason="needs the extra mcp")

    async def look_up(*args: Any, **options: Any) -> Any:
        raise OSError("there is no network")

    monkeypatch.setattr(web_module.anyio, "getaddrinfo", look_up)
    example = load_example("research_agent")
    monkeypatch.setattr(example, "QUESTIONS", example.QUESTIONS[:1])
    await example.main("local:")
    question, called, *_answer = capsys.readouterr().out.splitlines()
    assert question == "ada: When were nurseries described?"
    assert called.strip().partition(":")[0] in TOOLS["research_agent"]
