"""The envelope: written records are read, a torn end is recovered from, and every change is found."""

import hashlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.exceptions import JournalError, UserTypeError, UserValueError
from agentloop.journal._envelope import START, End, Scan, Seal, scan, write_batch

PLAIN, KEYED, OTHER = Seal(None), Seal(b"secret of ours"), Seal(b"another")

RECORDS = st.dictionaries(
    st.sampled_from(["h", "n", "kind", "prev", "kept", "last", "record", "t", "ü", "\ud800"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("hkt"), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
).map(lambda value: json.dumps(value).encode())
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=3), min_size=1, max_size=4)


@attrs.frozen
class Written:
    """A journal's bytes, with the place and number of records at which each batch ends; the first end is the start."""

    data: bytes
    ends: list[int]
    counts: list[int]
    records: list[bytes]

    def is_prefix(self, found: Scan) -> bool:
        """Whether what was found is the first batches, whole."""
        return found.end.count in self.counts and found.records == self.records[: found.end.count]


def write(batches: list[list[bytes]], seal: Seal = PLAIN) -> Written:
    """Return what a journal that syncs each batch would hold."""
    data, end, ends, counts = b"", START, [0], [0]
    for number, batch in enumerate(batches):
        lines, end = write_batch(batch, end, kept=end.count, now=1.7e9 + number, seal=seal)
        data += b"".join(lines)
        ends.append(len(data))
        counts.append(end.count)
    return Written(data, ends, counts, [record for batch in batches for record in batch])


def names(*texts: str) -> list[bytes]:
    """Return a record for each text."""
    return [json.dumps({"kind": text}).encode() for text in texts]


SAMPLE = [names("run_started", "turn_started"), names("call_started"), names("body_ended", "call_settled", "x" * 40)]


# ---------------------------------------------------------------------------------------------- form


def test_a_line_is_canonical_json_with_the_record_as_it_was_given() -> None:
    """Keys are sorted without spaces, lines numbered and chained; the digest is over the line without it."""
    data = write(SAMPLE).data
    lines = [json.loads(line) for line in data.splitlines()]
    assert [json.dumps(line, separators=(",", ":"), sort_keys=True) for line in lines] == [
        re.sub(r'("t":\d+\.)0+\}$', r"\g<1>0}", line).replace('{"kind": ', '{"kind":')
        for line in data.decode().splitlines()
    ]
    assert [line["n"] for line in lines] == list(range(6))
    assert [line["prev"] for line in lines] == ["0" * 32, *(line["h"] for line in lines[:-1])]
    assert [line.get("last") for line in lines] == [None, True, True, None, None, True]
    assert [line["kept"] for line in lines] == [0, 0, 2, 3, 3, 3]
    assert lines[2]["record"] == {"kind": "call_started"}
    assert "key" not in lines[0]


def test_the_digest_can_be_computed_by_anyone_and_the_keyed_one_by_nobody_else() -> None:
    """The digest is SHA-256 over the line's text without `h`, cut to 32 digits."""
    line = write(SAMPLE).data.splitlines()[0]
    without = re.sub(rb'"h":"\w+",', b"", line)
    assert json.loads(line)["h"] == hashlib.sha256(without).hexdigest()[:32]
    keyed = write(SAMPLE, KEYED).data.splitlines()[0]
    assert json.loads(keyed)["h"] != hashlib.sha256(re.sub(rb'"h":"\w+",', b"", keyed)).hexdigest()[:32]
    assert len(json.loads(keyed)["key"]) == 8


@pytest.mark.slow
@given(batches=BATCHES, seal=st.sampled_from([PLAIN, KEYED]))
def test_what_is_written_is_read(batches: list[list[bytes]], seal: Seal) -> None:
    """Records of any content are read back, and writing can continue where reading ended."""
    written = write(batches, seal)
    found = scan(written.data, seal, "J")
    assert found == Scan(written.records, found.end, len(written.data), 0, seal)
    lines, _ = write_batch(names("more"), found.end, kept=found.end.count, now=0.0, seal=seal)
    assert scan(written.data + lines[0], seal, "J").records == [*written.records, *names("more")]


def test_a_clock_before_its_time_writes_lines_that_can_be_read() -> None:
    """The time says when, and nothing depends on it."""
    lines, _ = write_batch(names("a"), START, kept=0, now=-5.25, seal=PLAIN)
    assert scan(lines[0], PLAIN, "J").records == names("a")


def test_nothing_is_read_as_nothing() -> None:
    """An empty file is a journal without records."""
    assert scan(b"", PLAIN, "J") == Scan([], START, 0, 0, PLAIN)
    assert scan(b"", KEYED, "J").end == End(0, b"0" * 32)


# ---------------------------------------------------------------------------------------------- torn ends


@pytest.mark.slow
@given(batches=BATCHES, seal=st.sampled_from([PLAIN, KEYED]), data=st.data())
def test_a_journal_cut_anywhere_gives_its_whole_batches(
    batches: list[list[bytes]], seal: Seal, data: st.DataObject
) -> None:
    """A write that stopped halfway is no damage."""
    written = write(batches, seal)
    cut = data.draw(st.integers(0, len(written.data)))
    found = scan(written.data[:cut], seal, "J")
    whole = max(number for number, end in enumerate(written.ends) if end <= cut)
    assert (found.end.count, found.size) == (written.counts[whole], written.ends[whole])
    assert found.torn == cut - written.ends[whole]
    assert written.is_prefix(found)


@pytest.mark.slow
@given(batches=BATCHES, seal=st.sampled_from([PLAIN, KEYED]), block=st.integers(8, 300), data=st.data())
def test_blocks_of_the_last_batch_that_never_came_are_a_torn_end(
    batches: list[list[bytes]], seal: Seal, block: int, data: st.DataObject
) -> None:
    """A power failure leaves holes of zeros in what wasn't synced, whole lines of it behind them or not."""
    written = write(batches, seal)
    start = written.ends[-2]
    tail = bytearray(written.data[start:])
    blocks = range(0, len(tail), block)
    lost = data.draw(st.sets(st.sampled_from(blocks), min_size=1))
    for at in lost:
        tail[at : at + block] = b"\0" * len(tail[at : at + block])
    found = scan(written.data[:start] + tail, seal, "J")
    assert (found.size, found.end.count) == (start, written.counts[-2])
    assert written.is_prefix(found)


def test_a_hole_of_several_unsynced_batches_gives_what_stands_before_it() -> None:
    """Where syncs are put off, the lines say that nothing after the last one was past losing."""
    first, end = write_batch(names("a"), START, kept=0, now=0.0, seal=PLAIN)
    second, end = write_batch(names("b"), end, kept=1, now=0.0, seal=PLAIN)
    third, end = write_batch(names("c"), end, kept=1, now=0.0, seal=PLAIN)
    fourth, end = write_batch(names("d"), end, kept=3, now=0.0, seal=PLAIN)
    hole = b"\0" * len(second[0])
    assert scan(first[0] + hole + third[0], PLAIN, "J").records == names("a")
    with pytest.raises(JournalError, match="J: line 2 is damaged or missing, and whole ones follow"):
        scan(first[0] + hole + third[0] + fourth[0], PLAIN, "J")


# ---------------------------------------------------------------------------------------------- damage

MUTATIONS: list[Callable[[bytes, int, int], bytes]] = [
    lambda data, at, byte: data[:at] + bytes([data[at] ^ (byte or 1)]) + data[at + 1 :],
    lambda data, at, byte: data[:at] + bytes([byte]) + data[at:],
    lambda data, at, byte: data[:at] + data[at + 1 :],
]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    batches=BATCHES, seal=st.sampled_from([PLAIN, KEYED]), mutate=st.sampled_from(MUTATIONS), byte=st.integers(0, 255)
)
def test_one_changed_byte_is_refused_or_costs_the_last_batch_alone(
    batches: list[list[bytes]], seal: Seal, mutate: Callable[[bytes, int, int], bytes], byte: int
) -> None:
    """A change in the middle is an error; one at the end may look like a write that stopped."""
    written = write(batches, seal)
    for at in range(len(written.data)):
        changed = mutate(written.data, at, byte)
        if changed == written.data:
            continue  # a byte put beside its like
        try:
            found = scan(changed, seal, "J")
        except JournalError:
            continue
        assert written.is_prefix(found)
        assert found.size >= written.ends[-2], f"whole batches are forgotten for a byte at {at}"


@pytest.mark.slow
def test_twenty_thousand_mutations() -> None:
    """Any changed, dropped, doubled or exchanged part gives an error, or the first batches as they were."""
    chance = random.Random(5)
    batches = [names(*(f"{number}.{part}" for part in range(chance.randint(1, 4)))) for number in range(6)]
    refused = 0
    for seal in (PLAIN, KEYED):
        written = write(batches, seal)
        for _ in range(10_000):
            changed = mutated(written.data, chance)
            try:
                found = scan(changed, seal, "J")
            except JournalError:
                refused += 1
            else:
                assert written.is_prefix(found)
    assert refused > 10_000


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return *data* with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        lines = data.splitlines(keepends=True) or [b""]
        at, to = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(8):
            case 0:
                data = data[:at] + chance.randbytes(1) + data[at + 1 :]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:at] + data[at:to] * 2 + data[to:]
            case 3:
                lines[one], lines[other] = lines[other], lines[one]
                data = b"".join(lines)
            case 4:
                data = b"".join(lines[:one] + lines[one + 1 :])
            case 5:
                data = b"".join([*lines[:one], lines[other], *lines[one:]])
            case 6:
                data = data[:at] + b"\0" * (to - at) + data[to:]
            case _:
                data = re.sub(rb'"n":\d', b'"n":%d' % chance.randrange(9), data, count=chance.randint(1, 4))
    return data


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lines: lines[1:], "line 1 isn't the one that belongs there"),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3 is damaged or missing"),
        (lambda lines: [*lines[:3], lines[4], lines[3], lines[5]], "line 4 isn't the one that belongs there"),
        (lambda lines: [*lines, lines[-1]], "line 7 isn't the one that belongs there"),
        (lambda lines: [*lines, lines[0]], "line 7 isn't the one that belongs there"),
        (lambda lines: [*lines[:5], lines[5].replace(b"xx", b"xy")], "line 6 was changed"),
        (lambda lines: [*lines[:2], lines[2].replace(b"call_", b"cull_"), *lines[3:]], "line 3"),
        (lambda lines: [b"# notes\n", *lines], "line 1 is no line of a journal"),
    ],
)
def test_what_no_crash_can_do_is_told_by_line(change: Callable[[list[bytes]], list[bytes]], complaint: str) -> None:
    """The error names the line where lines were removed, exchanged, repeated or edited."""
    data = write(SAMPLE).data
    changed = b"".join(change(data.splitlines(keepends=True)))
    with pytest.raises(JournalError, match=complaint):
        scan(changed, PLAIN, "J")


@pytest.mark.parametrize("data", [b"# A page\n\nwith text\n", b"SQLite format 3\0", b'{"a":1}\n', b"x", b"\n"])
def test_a_file_that_is_no_journal_is_not_taken_for_a_torn_one(data: bytes) -> None:
    """An append to a file taken for a torn journal would empty it."""
    with pytest.raises(JournalError, match="J: line 1 is no line of a journal"):
        scan(data, PLAIN, "J")


def test_lines_of_another_chain_do_not_fit() -> None:
    """A line of another run is refused, though it has the same number and key."""
    ours = write(SAMPLE, KEYED).data.splitlines(keepends=True)
    theirs = write([names("a", "b"), names("c"), names("d", "e", "f")], KEYED).data.splitlines(keepends=True)
    with pytest.raises(JournalError, match="J: line 6 isn't the one that belongs there"):
        scan(b"".join([*ours[:5], theirs[5]]), KEYED, "J")


# ---------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("writer", "reader", "complaint"),
    [
        (KEYED, PLAIN, r"it was sealed with a key \(id \w{8}\), and none was given"),
        (KEYED, OTHER, r"it was sealed with a key \(id \w{8}\), not the one given \(id \w{8}\)"),
        (PLAIN, KEYED, "it wasn't sealed with a key, and a key was given"),
    ],
)
def test_the_wrong_key_is_told_from_damage(writer: Seal, reader: Seal, complaint: str) -> None:
    """The error names the kind of key and doesn't show it."""
    with pytest.raises(JournalError, match=complaint) as caught:
        scan(write(SAMPLE, writer).data, reader, "J")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(KEYED)


@attrs.define
class Forger(Seal):
    """Computes digests as well as anyone without the key can, and names a key that it doesn't have."""

    made: Seal
    key_id: bytes | None

    def digest(self, body: bytes) -> bytes:
        """Return another key's digest, or none's."""
        return self.made.digest(body)


@pytest.mark.parametrize("made", [PLAIN, OTHER], ids=["without a key", "with another key"])
@pytest.mark.parametrize("first", range(6))
def test_lines_digested_anew_are_refused_under_a_key(made: Seal, first: int) -> None:
    """Lines may be forged from any place to the end, in a chain that fits; they are refused all the same."""
    forger: Any = Forger(made, KEYED.key_id)
    lines = write(SAMPLE, KEYED).data.splitlines(keepends=True)
    whole = End(first, re.findall(rb'"h":"(\w+)"', b"".join(lines))[first - 1] if first else b"0" * 32)
    for kept in (0, first):
        forged, _ = write_batch(names(*"abcdef")[first:], whole, kept=kept, now=0.0, seal=forger)
        with pytest.raises(JournalError, match=r"J: line \d"):
            scan(b"".join(lines[:first] + forged), KEYED, "J")


@pytest.mark.slow
@given(batches=BATCHES, others=BATCHES, data=st.data())
def test_no_change_of_a_keyed_journal_gives_other_records(
    batches: list[list[bytes]], others: list[list[bytes]], data: st.DataObject
) -> None:
    """Any mix of cut and joined lines of two journals gives an error, or the first batches of one of them."""
    one, other = write(batches, KEYED), write(others, KEYED)
    lines = one.data.splitlines(True) + other.data.splitlines(True) + write(others, OTHER).data.splitlines(True)
    mixed = b"".join(data.draw(st.lists(st.sampled_from(lines), max_size=8)))
    try:
        found = scan(mixed, KEYED, "J")
    except JournalError:
        return
    assert one.is_prefix(found) or other.is_prefix(found)


@pytest.mark.parametrize(("key", "error"), [("text", UserTypeError), (5, UserTypeError), (b"", UserValueError)])
def test_a_key_is_bytes_that_are_not_empty(key: Any, error: type[Exception]) -> None:
    """Any other key is refused where it is given, and the error doesn't show it."""
    with pytest.raises(error, match="key: expected bytes"):
        Seal(key)
