"""The values that a log is made of: frozen, comparable, and copied with other fields."""

import copy
import pickle
from typing import Any

import msgspec
import pytest

from agentloop import events as e
from agentloop import items as i
from agentloop import model_events as m
from agentloop import outcomes as o
from agentloop import records as r
from agentloop import usage as u
from agentloop._common.values import Value, field_names

HELLO = i.UserMessage("hello")
SETTLED = r.CallSettled((), 1, 2.0, "c1", "pay", o.CallOutcome(status="succeeded", output="ok"))
VALUES: list[Any] = [
    HELLO,
    i.ToolCall("c1", "pay", "{}"),
    i.ToolOutput("c1", "ok"),
    SETTLED,
    r.RunEnded((), 1, 2.0, "completed"),
    u.RequestUsage(input_tokens=1, raw={"a": [1]}),
    u.Usage(requests=1, entries=(u.RequestUsage(),)),
    m.ResponseDone((HELLO,)),
    e.TextDelta("t", turn=2),
]


def _classes_below(cls: type) -> set[type]:
    return {found for below in cls.__subclasses__() for found in (below, *_classes_below(below))}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_frozen_and_survives_copies(value: Any) -> None:
    """No field can be set; a copy of any kind is equal and has an equal hash."""
    with pytest.raises(AttributeError):
        setattr(value, field_names(type(value))[0], None)  # type: ignore[index]  # every value has fields
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), value.replace()):
        assert (type(other), other, hash(other)) == (type(value), value, hash(value))


def test_replace_changes_the_fields_that_it_names_and_leaves_the_value() -> None:
    """What a constructor converts or refuses, `replace` does, too."""
    assert HELLO.replace(content="bye") == i.UserMessage("bye")
    assert i.UserMessage("hello") == HELLO
    assert SETTLED.replace(turn=3).turn == 3
    with pytest.raises(TypeError, match="nothing"):
        HELLO.replace(nothing=1)


def test_values_of_two_classes_differ() -> None:
    """Equality asks for the class: equal fields alone aren't enough."""
    assert i.UserMessage("hello") != i.SystemMessage("hello")
    assert m.TextDelta("t") != m.ReasoningDelta("t")
    assert HELLO != "hello"


def test_notes_take_no_part_in_equality_and_stay_out_of_reprs() -> None:
    """Whether a value is secret, and what lives in this process alone, is a note on it."""
    noted = SETTLED.replace(outcome=SETTLED.outcome.replace(value=object(), error=ValueError("s3cret"), secret=True))
    assert (noted, hash(noted)) == (SETTLED, hash(SETTLED))
    assert "s3cret" not in repr(noted)
    assert "[secret]" in repr(noted)
    assert u.RequestUsage(raw={"a": 1}) == u.RequestUsage()


def test_only_what_can_hold_an_object_of_the_application_is_tracked_by_the_collector() -> None:
    """The rest is made by the hundred in a turn; the collector would visit it in vain. Verdicts are part of no log."""
    logged = {module.__name__ for module in (e, i, m, o, r, u)}
    public = [cls for cls in _classes_below(Value) if cls.__module__ in logged and not cls.__name__.startswith("_")]
    assert {cls.__name__ for cls in public if cls.__struct_config__.gc} == {
        *("CallOutcome", "OutputSchema", "ModelRequest", "Raw"),
        *("GuardrailSettled", "BodyEnded", "CallSettled", "CallAnswered", "CallbackReturned", "RunEnded"),
        *("AgentUpdated", "CustomEvent", "RawModelEvent"),
    }


def test_every_kind_of_a_union_has_a_tag_of_its_own() -> None:
    """The tag is the kind in the stored form, so it must tell the members of each union apart."""
    for union in (i.Item, i.Part, r.Record, m.ModelEvent, e.Event):
        tags = [member.__struct_config__.tag for member in union.__args__]
        assert len({*tags} - {None}) == len(tags)
        assert msgspec.inspect.type_info(union)


def test_the_fields_of_other_classes_are_none_of_ours() -> None:
    """Fields are those of values and attrs classes."""
    assert field_names(i.Refusal) == ("refusal",)
    assert field_names(int) is None
