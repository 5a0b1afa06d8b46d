"""`agentloop models`."""

from collections.abc import Callable

import pytest
from click.testing import Result

from agentloop.models._chat_vendors import CHAT_VENDORS, find_url_variable


@pytest.mark.scenario("PV-02")
def test_the_command_lists_prefixes_with_keys_found_or_missing(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is printed."""
    for prefix, row in CHAT_VENDORS.items():
        monkeypatch.delenv(find_url_variable(prefix), raising=False)
        monkeypatch.delenv(row.key_variable, raising=False)
    monkeypatch.setenv("GROQ_API_KEY", "a-secret")
    monkeypatch.setenv("AZURE_BASE_URL", "http://127.0.0.1:9/v1")
    lines = invoke("models").stdout.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert rows["groq:NAME"].split() == ["ready", "https://api.groq.com/openai/v1"]
    assert rows["azure:NAME"].split() == ["needs", "AZURE_OPENAI_API_KEY", "http://127.0.0.1:9/v1"]
    assert "a-secret" not in "".join(lines)
    ready = invoke("models", "--ready").stdout
    assert "groq:NAME" in ready
    assert "azure:NAME" not in ready
