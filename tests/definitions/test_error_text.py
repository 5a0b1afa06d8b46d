"""Words of errors without what looks like a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._common.error_text import redact

VALUE = "A1b2C3d4e5"
TOLD = [
    f"api_key={VALUE}",
    f"API-Key: {VALUE}; next",
    f'{{"my_token": "{VALUE}"}}',
    f"password='{VALUE} and more'",
    f"Authorization: Bearer {VALUE}",
    f"sent bearer {VALUE}.",
    f"sk-{VALUE}",
    f"https://user:{VALUE}@host/path",
]
# What its patterns are made of, and what they leave: put together in all ways, these make their edge cases.
PIECES = [
    *("api_key", "token", "password", "secret", "authorization", "bearer ", "basic ", "sk-", "ghp_", "http://", "://"),
    *("=", ":", " ", '"', "'", ",", ";", ")", "(", "]", "[", "@", "/", "-", "_", "\n", "x", VALUE),
    *("[redacted]", "[redacted", "redacted]"),
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)


@pytest.mark.parametrize("text", TOLD)
def test_what_looks_like_a_secret_is_redacted(text: str) -> None:
    """The secret's name stays, so that the message keeps its meaning."""
    told = redact(text)
    assert VALUE not in told
    assert "[redacted]" in told


@given(texts | st.sampled_from(TOLD))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    """An error's text passes through several hands that redact."""
    once = redact(text)
    assert redact(once) == once


def test_what_was_redacted_stays_as_it_is() -> None:
    """A redacted text is no secret, so it doesn't get another bracket each time."""
    for text in ("api_key=[redacted]", "password: [redacted], next", "http://user:[redacted]@host"):
        assert redact(text) == text
