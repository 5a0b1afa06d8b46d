"""Names made from names, and what a callable takes."""

from typing import Any

import pytest

from agentloop._common.naming import snake_case, takes


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("helper", "helper"),
        ("Research agent", "research_agent"),
        ("  A--B c/2 ", "a_b_c_2"),
        ("Müller", "m_ller"),
        ("日本", "agent"),
        ("", "agent"),
    ],
)
def test_a_tools_name_is_made_of_any_name(name: str, made: str) -> None:
    """A name has letters, digits and underscores, and is never empty."""
    assert snake_case(name) == made


class Called:
    """An object that takes one argument."""

    def __call__(self, first: object) -> None:
        """Take it."""


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (lambda: None, {0}),
        (lambda first, second=None: None, {1, 2}),
        (lambda *all: None, {0, 1, 2, 3}),
        (lambda first, *, key: None, set()),
        (lambda first, *, key=None: None, {1}),
        (Called(), {1}),
        (Called().__call__, {1}),
        (len, {1}),
        (3, set()),
        (None, set()),
    ],
)
def test_what_a_value_can_be_called_with(value: Any, counts: set[int]) -> None:
    """A callable takes so many positional arguments and no others; any other value takes none."""
    assert {count for count in range(4) if takes(value, count)} == counts


def test_a_builtin_without_a_signature_is_taken_to_take_anything() -> None:
    """Only a call can show how many arguments such a builtin takes."""
    assert all(takes(dict, count) for count in range(4))
