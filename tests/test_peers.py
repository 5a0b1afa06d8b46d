"""The comparison with other libraries measures what its page says; agentloop's own row is a promise."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow  # a second of waiting bodies
@pytest.mark.real_clock
def test_a_run_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Cancelled, all bodies have cleaned up; when one call fails, its siblings are cancelled, and no task is left."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    import_module("benchmarks.peers").main(["--only", "agentloop"])
    _, _, *cells = capsys.readouterr().out.splitlines()[-1].split(" | ")
    found = [cell.strip(" |") for cell in cells]
    assert found == ["100 of 100", "0", "yes", "ToolCallError", "9 cancelled", "0"]
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert " | ".join(["20 of 20", *found]) in page


def test_nothing_installed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A library that isn't there is a wrong option, not an empty table."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    peers = import_module("benchmarks.peers")
    monkeypatch.setattr(peers, "found", lambda only: [])
    with pytest.raises(SystemExit):
        peers.main([])
    assert "none of agentloop, openai-agents" in capsys.readouterr().err
