"""The opening of a run's journal, new or continued: the records it holds must be the beginning of the run's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from agentloop._common.turns import collect_in_turns
from agentloop._engine.runtime.journal_writer import JournalWriter
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._storage import state_codec as stored_state
from agentloop._storage.journal_claims import claim
from agentloop._storage.record_codec import records_to_lines
from agentloop._storage.withholding import Secrets
from agentloop.abc import Journal
from agentloop.exceptions import JournalError
from agentloop.records import Record, VerdictGiven
from agentloop.state import describe_verdict


async def open_journal(journal: Journal, run: LiveRun) -> None:
    """Claim *journal*, begin it for *run* or continue it, and start its writer.

    Raises:
        JournalError: the journal is another run's, or holds records that the state doesn't.
    """
    release = claim(journal, run.tree.shared.loop_lives)
    try:
        await _open(journal, run, release)
    except BaseException:
        release()
        raise


async def _open(journal: Journal, run: LiveRun, release: Callable[[], None]) -> None:
    """Read the journal, check it against the log, start the writer, and add the records it lacks."""
    codec, converter = stored_state.codec_of(journal), run.settings.config.converter

    def header() -> bytes:
        graph = run.tree.graph.describe_as_text()
        return stored_state.header(run.tree.log.state.run_id, graph, sealed=codec is not None)

    held = await stored_state.journal_lines(journal)
    records = run.tree.log.state.records
    if held and not records:
        raise JournalError("the journal holds a run already: go on with it by Runner.resume, or give an empty one")
    known = await stored_state.read_lines_in_turns(held, codec) if held else None
    assert run.limit_scope is not None  # a run with a journal has one
    assert run.resources.host is not None  # and it has begun
    # A journal of an older schema continues in this one, behind a header that says so.
    begun = known is not None and known.is_current
    encode = partial(records_to_lines, secrets=Secrets(codec, converter))
    writer = JournalWriter(journal, encode, None if begun else header, run.cleanup, run.limit_scope.cancel, release)
    if records:
        as_plain = stored_state.line_encoder(None, converter)  # digests for secrets: equal records have equal lines
        held_records = known.records if known is not None else ()
        known_lines = await collect_in_turns(map(as_plain, held_records))
        for number in _find_missing(held_records, known_lines, await collect_in_turns(map(as_plain, records))):
            writer.add(records[number])
    run.tree.log.follow(journal=writer)
    run.resources.host.host(JournalWriter.run, writer, "agentloop journal")


def _find_missing(records: Sequence[Record], known: Sequence[bytes], lines: Sequence[bytes]) -> range:
    """Return the range of the records of a log that the journal, which has the first of them, lacks.

    *records* are those of the journal, and *known* their lines.

    Raises:
        JournalError: the journal is longer than the log, or differs from it.
    """
    same = 0
    for line, wanted in zip(known, lines, strict=False):
        if line != wanted:
            break
        same += 1
    if same == len(known):
        return range(len(known), len(lines))
    other, counts = records[same], f"the journal holds {len(known)} records, the state {len(lines)}"
    if isinstance(other, VerdictGiven) and same:
        raise JournalError(
            f"{counts}: the state is an older one; meanwhile somebody else has decided, and call {other.call_id!r} was "
            f"{describe_verdict(other)}: read the state from the journal again"
        )
    if len(known) > len(lines):
        raise JournalError(f"{counts}: the state is an older one")
    raise JournalError(f"the journal is another run's: its record {same} is not the state's")
