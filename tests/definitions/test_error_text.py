"""Words of errors without what looks like a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._common.error_text import error_summary, first_line, redact

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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n  The file is locked. \nTry again.", "The file is locked."),
        ("### Error\nThe file is locked.\nTry again.", "The file is locked."),
        ("# Result\n\n \n###### Error\r\n\n  The file is locked.", "The file is locked."),
        ("### Error", "### Error"),
        ("# Result\n## Error\n", "## Error"),
        ("#3 is locked\nTry again.", "#3 is locked"),
        ("####### seven\nTry again.", "####### seven"),
        ("", ""),
    ],
)
def test_summary_has_the_first_line_that_says_something(text: str, line: str) -> None:
    """A heading with lines below it says nothing of the error: servers write one above each of their answers."""
    assert first_line(text) == line
    assert error_summary(ValueError(text)) == f"ValueError({line})"


@given(texts, st.lists(st.sampled_from(["# a", "### Error", "## ", "", " "]), max_size=4))
def test_headings_change_no_summary(text: str, headings: list[str]) -> None:
    """Whatever stands below them. Of nothing but headings, the last one is the summary."""
    if text.strip() and not text.lstrip().startswith("#"):
        assert first_line("\n".join([*headings, text])) == first_line(text)
