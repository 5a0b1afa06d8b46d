"""Secrets in stored records: sealed by the codec or as digests, in every place that may hold one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import items as i
from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop._storage.record_codec import decode, encode, record_from_json, record_to_json
from agentloop._storage.value_codec import value_from_json, value_to_json
from agentloop._storage.withholding import (
    DIGESTS,
    Secrets,
    Withheld,
    WithheldText,
    find_missing_secrets,
    hide_arguments,
    reveal_arguments,
)
from agentloop.exceptions import StateError
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome

HERE: tuple[tuple[str, ...], int, float] = ((), 1, 2.5)
HUSH = 'hush é"\\\ud800'
ARGUMENTS = json.dumps({"user": "ann", "p": HUSH, "q": [HUSH]}, indent=1)


class Shifting:
    """A codec of one key: what another key sealed can't be opened. Nothing is sealed alike."""

    def __init__(self, key: int = 1) -> None:
        self.key = key
        self.count = 0

    def seal(self, data: bytes) -> bytes:
        """Return every byte shifted by the key, after the key and a count."""
        self.count += 1
        return bytes([self.key, self.count % 256, *((byte + self.key) % 256 for byte in data)])

    def open(self, sealed: bytes) -> bytes:
        """Return what was sealed."""
        if sealed[0] != self.key:
            raise ValueError(f"{HUSH}: another key")
        return bytes((byte - self.key) % 256 for byte in sealed[2:])


SEALED = Secrets(Shifting())
CALL = i.ToolCall("c1", "login", ARGUMENTS, secret=("p", "q"), secret_output=True)
RECORDS: list[tuple[r.Record, Any]] = [
    (
        r.ModelResponded(*HERE, ModelResponse((CALL, i.ApprovalRequest(CALL, "a")))),
        lambda n: n.response.items[0].arguments,
    ),
    (r.RunStarted(*HERE, "r", "a", (), 1, (CALL,)), lambda n: n.shown[0].arguments),
    (r.InputAdded(*HERE, (i.ToolOutput("c1", HUSH, secret=True),)), lambda n: n.items[0].output),
    (r.HistoryReplaced(*HERE, "x", 0, (i.ToolOutput("c1", [i.Text(HUSH)], secret=True),)), lambda n: n.items[0].output),
    (r.CallStarted(*HERE, "c1", "login", ARGUMENTS, secret=("p", "q")), lambda n: n.arguments),
    (r.VerdictGiven(*HERE, "c1", "a", "login", "d", True, None, ARGUMENTS, secret=("p", "q")), lambda n: n.arguments),
    (r.ApprovalRequested(*HERE, "c1", "a", "login", "d", ARGUMENTS, secret=("p", "q")), lambda n: n.arguments),
    (
        r.CallSettled(
            *HERE,
            "c1",
            "login",
            CallOutcome(status="succeeded", output=HUSH, custom_data={"x": (HUSH,)}, secret=True),
            arguments=ARGUMENTS,
            secret=("p", "q"),
        ),
        lambda n: (n.arguments, n.outcome.output, list(n.outcome.custom_data["x"])),
    ),
    (r.BodyEnded(*HERE, "c1", value=[HUSH, b"\x00"], kept=True, secret=True), lambda n: n.value),
    (r.CallAnswered(*HERE, "c1", value=[HUSH], secret=True), lambda n: n.value),
    (
        r.GuardrailSettled(*HERE, "tool_input", "g", "Allow", 0.5, info=HUSH, detail=[HUSH], secret=True),
        lambda n: n.info,
    ),
    (r.CallbackReturned(*HERE, "x", "k", answer={"a": HUSH}, secret=True), lambda n: n.answer),
    (r.RunEnded(*HERE, "completed", HUSH, secret=True), lambda n: n.final_output),
    (r.BodyEnded(*HERE, "c1", value=[CALL], kept=True), lambda n: n.value[0].arguments),
    (
        r.RunStarted(*HERE, "r", "a", (i.UserMessage(HUSH, secret=True), i.UserMessage("open")), 1),
        lambda n: n.input[0].text,
    ),
    (
        r.HistoryReplaced(
            *HERE,
            "x",
            0,
            (i.AssistantMessage([i.Text(HUSH), i.File(data=HUSH)], secret=True), i.SystemMessage(HUSH, secret=True)),
        ),
        lambda n: (n.items[0].content, n.items[1].text),
    ),
]
in_every_record = pytest.mark.parametrize(
    ("record", "secret"), RECORDS, ids=[type(record).__name__ for record, _ in RECORDS]
)


@in_every_record
def test_what_is_sealed_comes_back_as_it_was(record: r.Record, secret: Any) -> None:
    """The codec opens every sealed secret, in the form in which the model wrote it."""
    text = encode(record_to_json(record, SEALED))
    assert b"hush" not in text
    assert b"$sealed" in text
    back = record_from_json(decode(text), secrets=SEALED)
    assert back == record
    assert secret(back) == secret(record)
    assert b"hush" not in repr(back).encode("utf-8", "replace")


@in_every_record
def test_what_is_a_digest_stays_one(record: r.Record, secret: Any) -> None:
    """Reading and writing keep a digest, with or without a codec; equal secrets have equal digests."""
    text = encode(record_to_json(record))
    assert b"hush" not in text
    assert b"$digest" in text
    back = record_from_json(decode(text))
    assert encode(record_to_json(back)) == text
    assert encode(record_to_json(back, SEALED)) == text
    assert encode(record_to_json(record_from_json(record_to_json(record, SEALED), secrets=SEALED))) == text


@in_every_record
def test_what_can_not_be_opened_stays_sealed(record: r.Record, secret: Any) -> None:
    """A reader without the codec can read the other fields, and write the record again unchanged."""
    text = encode(record_to_json(record, SEALED))
    back = record_from_json(decode(text))
    assert encode(record_to_json(back)) == text
    assert encode(record_to_json(back, SEALED)) == text
    assert secret(record_from_json(record_to_json(back), secrets=SEALED)) == secret(record)


@in_every_record
def test_another_codec_is_told_by_the_place(record: r.Record, secret: Any) -> None:
    """The codec's own words, which may hold anything, are not repeated."""
    written = record_to_json(record, SEALED)
    with pytest.raises(StateError, match=r"can't open a sealed secret: ValueError @ \$\.") as caught:
        record_from_json(written, secrets=Secrets(Shifting(2)))
    assert "hush" not in str(caught.value)


def test_values_that_can_not_be_read_are_marks() -> None:
    """A secret text becomes a marked text, any other value a `Withheld`."""
    settled = record_from_json(record_to_json(RECORDS[7][0]))
    assert isinstance(settled, r.CallSettled)
    assert isinstance(settled.arguments, WithheldText)
    assert isinstance(settled.outcome.output, WithheldText)
    assert isinstance(settled.outcome.custom_data, Withheld)
    assert json.loads(settled.arguments)["user"] == "ann"


def test_a_codec_that_fails_to_seal_is_told_without_its_words() -> None:
    """The codec was given the secret, so its error may repeat it."""

    class Broken(Shifting):
        def seal(self, data: bytes) -> bytes:
            raise ValueError(data)

    with pytest.raises(StateError, match="failed to seal a secret: ValueError") as caught:
        record_to_json(RECORDS[4][0], Secrets(Broken()))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# -- arguments


@given(
    st.dictionaries(
        st.sampled_from(["p", "q", "user", "$digest"]), st.none() | st.text(max_size=6) | st.lists(st.integers())
    ),
    st.booleans(),
)
def test_arguments_come_back_to_the_character(arguments: dict[str, Any], ascii_only: bool) -> None:
    """Blanks, escapes and the order of keys are the model's own."""
    text = json.dumps(arguments, ensure_ascii=ascii_only, indent=2)
    hidden = hide_arguments(text, ("p", "q"), SEALED)
    assert reveal_arguments(hidden, ("p", "q"), SEALED) == text
    assert ("$sealed" in hidden) == bool({"p", "q"} & set(arguments))
    gaps = reveal_arguments(hidden, ("p", "q"), DIGESTS)
    assert hide_arguments(gaps, ("p", "q"), SEALED) == hidden
    call = i.ToolCall("c", "f", gaps, secret=("p", "q"))
    assert find_missing_secrets(call) == [name for name in arguments if name in ("p", "q")]
    assert find_missing_secrets(i.ToolCall("c", "f", text, secret=("p", "q"))) == []


@pytest.mark.parametrize(
    "text", ['{"p": "hush', "[1]", "$sealed:hush", "$digest:x", '{"$sealed": "hush"}', '{"p": {"$sealed": "hush"}}']
)
def test_a_model_can_not_write_what_reads_as_a_secret(text: str) -> None:
    """Text that looks like a mark in a live call is hidden like any other, and comes back as the model wrote it."""
    for secrets in (SEALED, Secrets(Shifting(9))):
        hidden = hide_arguments(text, ("p",), secrets)
        assert reveal_arguments(hidden, ("p",), secrets) == text
        assert find_missing_secrets(i.ToolCall("c", "f", text, secret=("p",))) == []


def test_arguments_that_do_not_parse_are_missing_whole() -> None:
    """Such a text has no separate arguments, so each secret one counts as missing."""
    gaps = reveal_arguments(hide_arguments('{"p": "hush', ("p",), DIGESTS), ("p",), DIGESTS)
    assert gaps.startswith("$digest:")
    assert find_missing_secrets(i.ToolCall("c", "f", gaps, secret=("p",))) == ["p"]
    assert find_missing_secrets(i.ToolCall("c", "f", "{}", secret=("p",)), gaps) == ["p"]


@pytest.mark.parametrize("flag", [True, "p", [1], None, {"p": 1}, []])
@pytest.mark.parametrize("value", ["$sealed:!", '{"p": {"$sealed": "!"}}', 5, {"$sealed": "x"}])
def test_hostile_flags_raise_nothing_but_state_errors(flag: Any, value: Any) -> None:
    """The flags are data like the rest."""
    for record, _ in RECORDS:
        written = {**record_to_json(record), "secret": flag}
        for field in ("arguments", "value", "output", "final_output", "info"):
            if field in written:
                written[field] = value
        try:
            record_to_json(record_from_json(written, secrets=SEALED), SEALED)
        except StateError as error:
            assert "@ $" in str(error)  # noqa: PT017 - most combinations are no error


def test_items_in_values_are_hidden_too() -> None:
    """A value may hold a call: by default as digests, in the clear only where that is asked for."""
    written = encode(value_to_json({"calls": [CALL]}))
    assert b"hush" not in written
    assert b"hush" in encode(value_to_json({"calls": [CALL]}, None))
    assert value_from_json(value_to_json([CALL], SEALED), secrets=SEALED) == [CALL]
    assert isinstance(value_from_json(value_to_json([CALL]))[0].arguments, WithheldText)


def test_flags_survive_and_take_no_part_in_equality() -> None:
    """The secret flags of a record are stored with it, and equality ignores them."""
    for record, _ in RECORDS:
        back = record_from_json(record_to_json(record, SEALED), secrets=SEALED)
        if hasattr(record, "secret"):
            assert back.secret == record.secret  # type: ignore[union-attr]
            assert record.replace(secret=type(record.secret)()) == record


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "interrupted", "stopped"])
def test_the_end_of_a_run_is_secret_where_it_gives_an_output_that_a_secret_made(status: Any) -> None:
    """An end without an output has no secret to hide; its error and reason were redacted where they arose."""
    fold = RunFold()
    call = i.ToolCall("c1", "f", "{}", secret_output=True)
    fold.apply(r.RunStarted((), 0, 0.0, "r", "a", (i.UserMessage("go"),), 1))
    fold.apply(r.TurnStarted((), 1, 0.0, "a"))
    fold.apply(r.ModelResponded((), 1, 0.0, ModelResponse((call,))))
    fold.apply(r.CallSettled((), 1, 0.0, "c1", "f", CallOutcome(status="succeeded", output="x")))
    ended = fold.apply(r.RunEnded((), 1, 0.0, status))
    assert isinstance(ended, r.RunEnded)
    assert ended.secret is (status == "completed")
