"""An item or a part of one holds what its types say, whoever makes it: else the error names class and field."""

import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentloop import items as i
from agentloop.exceptions import UserError, UserTypeError

NEEDED: dict[Any, dict[str, Any]] = {
    i.UrlCitation: {"url": "u"},
    i.FileCitation: {"file_id": "f"},
    i.ContainerFileCitation: {"container_id": "c", "file_id": "f"},
    i.Caller: {"kind": "code"},
    i.Text: {"text": "t"},
    i.Image: {"url": "u"},
    i.Audio: {"data": "d"},
    i.File: {"data": "d"},
    i.Refusal: {"refusal": "no"},
    i.SystemMessage: {"content": "c"},
    i.UserMessage: {"content": "c"},
    i.AssistantMessage: {"content": "c"},
    i.Reasoning: {},
    i.ToolCall: {"call_id": "c", "name": "n"},
    i.ToolOutput: {"call_id": "c", "output": "o"},
    i.HandoffCall: {"call_id": "c", "name": "n"},
    i.HandoffOutput: {"call_id": "c", "output": "o", "source_agent": "a", "target_agent": "b"},
    i.HostedToolCall: {"kind": "k"},
    i.ApprovalRequest: {"call": i.ToolCall("c", "n"), "agent": "a"},
    i.CallToAnswer: {"call": i.ToolCall("c", "n"), "agent": "a", "returns": {}},
    i.Compaction: {"data": {}},
    i.OpaqueItem: {"data": {}},
}
"""What each class needs at least."""
ANYTHING = {(i.HostedToolCall, "output")}
"""The fields that hold whatever a provider gives."""


FIELDS = [
    pytest.param(cls, name, id=f"{cls.__name__}.{name}")
    for cls in NEEDED
    for name in cls.__struct_fields__
    if (cls, name) not in ANYTHING
]


def test_every_class_is_here() -> None:
    """A new one is swept as well."""
    public = {getattr(i, name) for name in i.__all__}
    assert set(NEEDED) == {cls for cls in public if inspect.isclass(cls) and issubclass(cls, msgspec.Struct)}


@pytest.mark.parametrize("given", [object(), 3.5, {1, 2}, b"bytes", [3], ["a", None], lambda: "x"])
@pytest.mark.parametrize(("cls", "name"), FIELDS)
def test_a_value_of_a_wrong_type_is_refused(cls: Any, name: str, given: Any) -> None:
    """When the item is made, not once a model's interface or the log can't write it."""
    if (name, given) == ("data", b"bytes") and cls in (i.Image, i.Audio, i.File):
        return  # bytes become base64
    if (name, given) == ("expires_at", 3.5):
        return  # the one field that is a number of seconds
    with pytest.raises(UserTypeError) as caught:
        cls(**NEEDED[cls] | {name: given})
    parts = isinstance(getattr(cls(**NEEDED[cls]), name), tuple) and name == "content" and cls is not i.Reasoning
    place = "content" if parts or (cls, name) == (i.ToolOutput, "output") else f"{cls.__name__}: {name}: expected "
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(("cls", "name"), FIELDS)
def test_a_field_that_is_none_is_none_by_its_type(cls: Any, name: str) -> None:
    """None is taken where the annotation names it only."""
    hints = {field.name: field.type for field in msgspec.structs.fields(cls)}
    fits = msgspec.inspect.type_info(hints[name])
    may_be_none = isinstance(fits, msgspec.inspect.UnionType) and fits.includes_none
    given = NEEDED[cls] | ({"file_id": "f"} if cls in (i.Image, i.Audio, i.File) and name != "file_id" else {})
    if may_be_none:
        assert getattr(cls(**given | {name: None}), name) is None
    else:
        with pytest.raises(UserTypeError):
            cls(**given | {name: None})


def test_a_flag_is_no_number_and_a_number_no_flag() -> None:
    """Python takes one for the other; stored, they would be something else."""
    with pytest.raises(UserTypeError, match="UrlCitation: start: expected a whole number, got bool"):
        i.UrlCitation("u", start=True)
    with pytest.raises(UserTypeError, match="ToolOutput: is_error: expected True or False, got int"):
        i.ToolOutput("c", "o", is_error=1)  # type: ignore[arg-type]


def test_sequences_become_tuples_and_a_text_is_none() -> None:
    """A text would become its letters."""
    assert i.Reasoning(summary=["a", "b"]).summary == ("a", "b")
    assert i.ToolCall("c", "n", secret=["key"]).secret == ("key",)
    assert i.Text("t", [i.UrlCitation("u")]).annotations == (i.UrlCitation("u"),)  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="Reasoning: summary: expected a sequence of texts, got str"):
        i.Reasoning(summary="thought")
    with pytest.raises(UserTypeError, match="ToolCall: secret: expected a sequence of texts, got str"):
        i.ToolCall("c", "n", secret="key")
    with pytest.raises(UserTypeError, match="Text: annotations: expected a sequence of citations, got str at 0"):
        i.Text("t", ["u"])  # type: ignore[arg-type]


def test_a_call_has_a_known_kind() -> None:
    """The kinds are a closed set: each has its own answer on the wire."""
    with pytest.raises(UserTypeError, match=r"ToolCall: kind: expected function, custom, .*, got 'tool'"):
        i.ToolCall("c", "n", kind="tool")  # type: ignore[arg-type]


def test_a_copy_is_checked_as_well() -> None:
    """`replace` makes an item, too."""
    with pytest.raises(UserTypeError, match="Text: text: expected text, got int"):
        i.Text("t").replace(text=3)


@pytest.mark.parametrize("cls", [i.Image, i.Audio, i.File])
def test_a_path_of_a_file_is_no_field_and_the_error_says_what_is(cls: Any, tmp_path: Path) -> None:
    """Many libraries have one."""
    with pytest.raises(
        UserError, match=rf"{cls.__name__}: Unexpected keyword argument 'path'. Write data=Path\("
    ) as caught:
        cls(path=tmp_path / "x.png")
    assert isinstance(caught.value, TypeError)
    assert cls(data=b"abc").data == "YWJj"
