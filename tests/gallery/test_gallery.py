"""The applications of the gallery print on both event loops what its page shows.

Those that need an extra are tested with it: in tests/mcp_servers, tests/postgres_store and tests/temporal_engine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.examples import GALLERY, ROOT, load_example, shown_outputs, shown_runs

from agentloop import RunConfig

pytestmark = pytest.mark.real_clock  # some keep their runs in files


def test_every_example_is_in_the_gallery() -> None:
    """Each file is shown with a command and its output, and each folder is named."""
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {name for name, _ in shown_runs()} == files
    page = GALLERY.read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/app.py")}
    assert folders
    assert [name for name in folders if f"examples/{name}/app.py" not in page] == []


@pytest.mark.parametrize(
    "name", ["approval_desk", "batch_extraction", "coding_agent", "refund_lab", "research_fan_out", "support_triage"]
)
async def test_application_prints_what_the_page_shows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The scripted model makes the output exact."""
    await load_example(name).main()
    assert [capsys.readouterr().out] == shown_outputs(name)


def _reader(lines: list[str]) -> Callable[[], str]:
    left = iter([*lines, ""])
    return lambda: next(left)


@pytest.mark.real_clock
async def test_chat_continues_where_an_earlier_program_left_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The second program finds the messages of the first in the file."""
    chat = load_example("chat").chat
    printed = []
    for lines in (["I am Ada.", "How long is nursery?"], ["Who am I?"]):
        await chat(str(tmp_path / "talk.db"), "me", RunConfig(), _reader(lines))
        printed.append(capsys.readouterr().out)
    assert printed == shown_outputs("chat")


@pytest.mark.slow  # two processes
@pytest.mark.real_clock
def test_job_survives_the_kill_of_its_process(anyio_backend: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """No payment is made twice, and the model isn't asked again for what it has answered."""
    load_example("crash_safe_job").main(anyio_backend[0])
    assert [capsys.readouterr().out] == shown_outputs("crash_safe_job")
