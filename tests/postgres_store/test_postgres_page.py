"""The application of the page about PostgreSQL, run with its own queue."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "postgres.md"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.scenario("DU-08")
def test_application_of_the_page_prints_what_it_says(tmp_path: Path, conninfo: str) -> None:
    """A run that pauses, a verdict, and the job that continues it."""
    pytest.importorskip("procrastinate", reason="needs the queue of the page: nox -s tests-postgres")
    text = PAGE.read_text()
    (application,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (tmp_path / "app.py").write_text(application)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "app.py"],
        cwd=tmp_path,
        env={**os.environ, "DATABASE": conninfo},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
