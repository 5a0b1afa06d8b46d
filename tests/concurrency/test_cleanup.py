"""Sections of a cleanup that wait for work in between."""

import math

import anyio

from agentloop._concurrency.cleanup import Cleanup


async def test_a_paused_section_has_no_deadline_until_it_is_resumed() -> None:
    """The cleanup begins meanwhile; then the section has its deadline, and an earlier one that is set later."""
    cleanup = Cleanup(5.0)
    with (section := cleanup.section(late=True)) as scope:
        section.pause()
        cleanup.begin()
        assert scope.deadline == math.inf
        section.resume()
        assert scope.deadline == cleanup.deadline
        cleanup.end_by(anyio.current_time() + 1)
        assert scope.deadline == cleanup.deadline
        section.pause()
        cleanup.end_by(anyio.current_time() + 0.5)
        assert scope.deadline == math.inf
    assert not scope.cancel_called
    assert not cleanup._sections


async def test_a_section_that_is_resumed_after_the_deadline_has_the_grace_once_more() -> None:
    """As one that begins then: other work took the time until there."""
    cleanup = Cleanup(5.0)
    with (section := cleanup.section(late=True)) as scope:
        section.pause()
        cleanup.end_by(ended := anyio.current_time() - 1)
        section.resume()
        assert scope.deadline == ended + 5
    assert not scope.cancel_called


async def test_a_section_within_another_cleanup_ends_with_that_one() -> None:
    """Also one that has been paused."""
    outer = Cleanup(1.0)
    with (section := Cleanup(5.0, outer).section(late=True)) as scope:
        section.pause()
        section.resume()
        outer.begin()
        assert scope.deadline == outer.deadline
    assert not outer._sections
