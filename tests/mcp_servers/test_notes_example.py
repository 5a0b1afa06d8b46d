"""The applications of the gallery with MCP servers print what its page shows."""

import pytest
from kit.examples import load_example, shown_outputs

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")


@pytest.mark.slow  # two server processes
@pytest.mark.real_clock
async def test_both_servers_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    """One server is a program of the official SDK, the other one an agent; one call is approved."""
    await load_example("mcp_notes").main()
    assert [capsys.readouterr().out] == shown_outputs("mcp_notes")


@pytest.mark.slow  # a server process
@pytest.mark.real_clock
async def test_research_is_remembered_for_its_user_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A library by MCP, a page that isn't public, and a second conversation that needs neither."""
    await load_example("research_agent").main()
    assert [capsys.readouterr().out] == shown_outputs("research_agent")
