"""The library's advice is shown as it was written: redaction takes none of its words for a secret."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentloop
from agentloop import UserError
from agentloop._common.error_text import redact
from agentloop.models import OpenAIChatModel

OF_SECRETS = ("signing.py", "withholding.py")
"""The modules that seal secrets: their texts name secrets often, and their errors may quote a codec."""
PACKAGE = Path(next(iter(agentloop.__path__)))


def texts_of(path: Path) -> Iterator[str]:
    """Yield the words of each exception that the module at *path* raises, with `…` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.JoinedStr):
                    yield "".join(str(piece.value) if isinstance(piece, ast.Constant) else "…" for piece in part.values)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


@pytest.mark.slow
def test_no_error_of_the_library_is_redacted_in_its_own_words() -> None:
    """Redaction leaves every text of the library unchanged, though it would redact an `api_key=…`."""
    texts = [text for path in PACKAGE.rglob("*.py") if path.name not in OF_SECRETS for text in texts_of(path)]
    assert len(texts) > 500
    assert [text for text in texts if redact(text) != text] == []


async def test_missing_key_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redaction leaves the advice whole, so that it reaches the terminal."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UserError) as caught:
        async with OpenAIChatModel("m"):
            pass
    assert "OPENAI_API_KEY, or give `api_key`" in redact(str(caught.value))
