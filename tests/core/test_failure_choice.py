"""The most severe of several failures is raised."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.ending import Fatal

from agentloop._core.failure_choice import Failure, choose
from agentloop.exceptions import ToolCancelledError

FATAL_LATE = Failure(index=9, error=Fatal("fatal late"), phase="body")
FATAL = Failure(index=8, error=KeyboardInterrupt("fatal"), phase="body")
POST_LATE = Failure(index=7, error=ValueError("post late"), phase="post")
POST = Failure(index=6, error=ValueError("post"), phase="post")
BODY_LATE = Failure(index=5, error=ValueError("body late"), phase="body")
BODY = Failure(index=4, error=ValueError("body"), phase="body")
CANCELLED_POST = Failure(index=3, error=ToolCancelledError("cancelled post"), phase="post")
CANCELLED_LATE = Failure(index=2, error=ToolCancelledError("cancelled late"), phase="body")
CANCELLED = Failure(index=1, error=ToolCancelledError("cancelled"), phase="body")

RANKED = [FATAL, FATAL_LATE, POST, POST_LATE, BODY, BODY_LATE, CANCELLED_POST, CANCELLED, CANCELLED_LATE]


@given(chosen=st.sets(st.sampled_from(range(len(RANKED))), min_size=1), data=st.data())
def test_class_then_phase_then_model_order_decides(chosen: set[int], data: st.DataObject) -> None:
    """The choice doesn't depend on the order of the failures; the others are notes, most severe first."""
    failures = [Failure(index=f.index, error=_fresh(f.error), phase=f.phase) for f in RANKED]
    given_order = data.draw(st.permutations(sorted(chosen)))
    raised = choose([failures[place] for place in given_order])
    first, *rest = sorted(chosen)
    assert raised is failures[first].error
    notes = getattr(raised, "__notes__", [])
    assert len(notes) == len(rest)
    for note, place in zip(notes, rest, strict=True):
        assert str(failures[place].error) in note


def _fresh(error: BaseException) -> BaseException:
    return type(error)(*error.args)


def test_one_failure_has_no_notes() -> None:
    """A single failure is raised as it is."""
    error = ValueError("alone")
    assert choose([Failure(index=0, error=error, phase="body")]) is error
    assert not hasattr(error, "__notes__")


def test_one_error_of_two_calls_is_no_note_on_itself() -> None:
    """Two calls may raise the very same object."""
    error = ValueError("shared")
    failures = [Failure(index=index, error=error, phase="body") for index in range(2)]
    assert choose(failures) is error
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_notes_don_t_depend_on_the_order_of_failures(order: tuple[int, ...]) -> None:
    """The notes are in rank order."""
    failures = [Failure(index=index, error=ValueError(f"no {index}"), phase="body") for index in range(3)]
    raised = choose(failures[place] for place in order)
    assert raised.__notes__ == ["also failed: ValueError(no 1)", "also failed: ValueError(no 2)"]


def test_a_note_holds_no_secret() -> None:
    """Notes are read by people, and still the same redaction holds."""
    first = Failure(index=0, error=ValueError("no"), phase="body")
    second = Failure(index=1, error=ValueError("password=hunter2"), phase="body")
    assert "hunter2" not in "".join(choose([first, second]).__notes__)
