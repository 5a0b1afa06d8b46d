"""Without the extra `otel` nothing of OpenTelemetry is needed, or imported, before an instrument is made."""

import subprocess
import sys

import pytest

from agentloop import UserError
from agentloop.otel import OTelInstrument


def test_package_imports_nothing_of_opentelemetry() -> None:
    """Nor does a run that has other instruments; and the library itself doesn't import the package."""
    program = (
        "import sys, agentloop; print('agentloop.otel' in sys.modules); import agentloop.otel, agentloop.tracing; "
        "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sentence that says what to install."""
    for name in [name for name in sys.modules if name.startswith("agentloop.otel._") and "_instrument" not in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UserError, match=r"needs the extra `otel`: pip install 'agentloop-anyio\[otel\]'"):
        OTelInstrument()


def test_another_missing_module_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation isn't mistaken for a missing extra."""
    monkeypatch.setitem(sys.modules, "agentloop.otel._metrics", None)
    with pytest.raises(ModuleNotFoundError, match="_metrics"):
        OTelInstrument()
