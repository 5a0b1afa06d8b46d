"""The codec of a run's state: to JSON and back, and to and from the lines of a journal.

Nothing stored is imported or executed. Does not know about folds or agents: a state is its records, the application's
context and a description of the agents' graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs
import msgspec

from agentloop import records as r
from agentloop._common.checks import NAMES, check
from agentloop._common.errors import JournalError, StateError, UserError, UserTypeError
from agentloop._common.json_bytes import decode, encode
from agentloop._common.turns import collect_in_turns
from agentloop._common.version import __version__
from agentloop._schema.conversion import each_fault, structure
from agentloop._storage import record_codec as rc
from agentloop._storage.signing import Keys, check_seal, make_seal
from agentloop._storage.value_codec import value_from_json, value_to_json
from agentloop._storage.withholding import Secrets
from agentloop.abc import Codec, Journal

if TYPE_CHECKING:
    from cattrs import BaseConverter

logger = logging.getLogger("agentloop")

_FIELDS = {"schema", "library", "graph", "context", "records", "seal"}


# -- states


@attrs.frozen
class Stored:
    """A stored run, read and checked: its records, the application's context, the agents' graph when it was stored."""

    records: tuple[r.Record, ...]
    context: Any
    graph: Mapping[str, Any] | None


def state_to_json(
    stored: Stored, secrets: Secrets, serializer: Callable[[Any], Any] | None, strict: bool
) -> dict[str, Any]:
    """See `RunState.to_json`."""
    head = _head_to_json(stored, secrets, serializer, strict)
    return {**head, "records": [rc.record_to_json(record, secrets) for record in stored.records]}


def state_to_string(stored: Stored, secrets: Secrets, serializer: Callable[[Any], Any] | None, strict: bool) -> str:
    """See `RunState.to_string`: the text of a state that isn't sealed."""
    texts = {name: encode(value) for name, value in _head_to_json(stored, secrets, serializer, strict).items()}
    texts["records"] = rc.records_to_array(stored.records, secrets)
    return msgspec.json.encode({name: msgspec.Raw(text) for name, text in texts.items()}, order="sorted").decode()


def seal_state(data: dict[str, Any], key: Keys, bound_to: str | None) -> str:
    """Return the text of a state with its seal; *data* is the result of `state_to_json`."""
    return encode({**data, "seal": make_seal(encode(data), key, bound_to)}).decode()


def _head_to_json(
    stored: Stored, secrets: Secrets, serializer: Callable[[Any], Any] | None, strict: bool
) -> dict[str, Any]:
    head: dict[str, Any] = {"schema": rc.SCHEMA_VERSION, "library": __version__, "graph": stored.graph}
    context = _context_to_json(stored.context, serializer, strict, secrets.converter)
    return head if context is None else {**head, "context": context}


def _context_to_json(
    context: Any, serializer: Callable[[Any], Any] | None, strict: bool, converter: BaseConverter | None
) -> dict[str, Any] | None:
    if context is None:
        return None
    if serializer is not None:
        return {"serialized": True, "value": value_to_json(serializer(context))}
    if isinstance(context, Mapping):
        return {"serialized": False, "value": value_to_json(dict(context), Secrets(converter=converter))}
    if converter is not None and type(plain := converter.unstructure(context)) is not type(context):
        return {"serialized": True, "value": value_to_json(plain)}
    kind = type(context).__name__
    if strict:
        raise StateError(f"the context, a {kind}, can't be stored without a context_serializer")
    hint = "give a context_serializer, or the context again on resume"
    logger.warning("the context, a %s, is not stored with the state: %s", kind, hint)
    return None


class _PlainState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The text of a whole state with its records read, the rest left as it is. Fields are in the order of keys."""

    context: msgspec.Raw = msgspec.Raw()
    graph: msgspec.Raw
    library: msgspec.Raw
    records: list[r.Record]
    schema: str


class _ReadRecords(tuple[r.Record, ...]):
    """Records in place of their JSON values. Its own class, so that no caller's data can be taken for them."""


_read_state = msgspec.json.Decoder(_PlainState).decode


def text_to_data(text: str) -> Any:
    """Return the JSON values of a state's text; its records are read already if all are plain (see `record_codec`).

    Raises:
        StateError: it isn't JSON.
    """
    if not isinstance(text, str):
        raise UserTypeError(f"text: expected a state's text, got {type(text).__name__}")
    whole = text.encode("utf-8", "surrogatepass")
    state = rc.read_plain(whole, _read_state, lambda found: found.records)
    if state is None or state.schema != rc.SCHEMA_VERSION:
        return decode(whole)
    parts = {"graph": state.graph, "library": state.library, "context": state.context}
    values = {name: decode(bytes(part)) for name, part in parts.items() if part}
    return {**values, "schema": state.schema, "records": _ReadRecords(state.records)}


def state_from_json(
    data: Mapping[str, Any],
    *,
    context: Any,
    context_deserializer: Callable[[Any], Any] | None,
    context_type: Any,
    key: Keys | None,
    bound_to: str | None = None,
    codec: Codec | None,
    converter: BaseConverter | None,
) -> Stored:
    """See `RunState.from_json`."""
    if not isinstance(data, Mapping):
        raise StateError(f"Malformed state: expected an object, got {type(data).__name__}")
    check_bound_to(bound_to, key)
    _check_state_seal(data, key, bound_to)
    data = rc.upgrade(data)
    unknown = sorted(str(name) for name in set(data) - _FIELDS)
    if unknown:
        raise StateError(f"Malformed state: {len(unknown)} unknown fields")
    records = data.get("records")
    if not isinstance(records, _ReadRecords):  # else read already, by `text_to_data`
        records = rc.records_from_list(records, path="$.records", secrets=Secrets(codec))
    if context_deserializer is None and context_type is not None:
        context_deserializer = partial(structure_context, context_type=context_type, converter=converter)
    restored = _restore_context(data.get("context"), context, context_deserializer)
    return Stored(tuple(records), restored, _check_graph(data.get("graph")))


def check_bound_to(bound_to: object, key: Keys | None) -> None:
    if bound_to is None:
        return
    check("bound_to", NAMES.words(), bound_to)
    if key is None:
        raise UserError("bound_to: it is a part of the seal, so it also needs a key: key=")


def _check_state_seal(data: Mapping[str, Any], key: Keys | None, bound_to: str | None) -> None:
    seal = data.get("seal")
    if key is None:
        if seal is not None:
            raise StateError("the state is sealed: give its key")
        return
    check_seal(encode({name: value for name, value in data.items() if name != "seal"}), seal, key, bound_to)


def _restore_context(stored: object, given: Any, deserializer: Callable[[Any], Any] | None) -> Any:
    if given is not None or stored is None:
        return given
    if not isinstance(stored, Mapping) or set(stored) != {"serialized", "value"}:
        raise StateError("Malformed state: expected a stored context @ $.context")
    value = value_from_json(stored["value"], path="$.context.value")
    if deserializer is not None:
        return deserializer(value)
    if stored["serialized"]:
        logger.warning(
            "the stored context was made by a serializer, and there is no context_deserializer: it is as stored"
        )
    return value


def structure_context(value: Any, *, context_type: Any, converter: BaseConverter | None) -> Any:
    """Return the context of type *context_type* for its stored JSON values; *converter* is the application's own.

    Raises:
        StateError: if a part of *value* doesn't fit; names each part. Values aren't quoted.
    """
    try:
        return structure(value, context_type, converter)
    except Exception as error:
        places = ", ".join(f"$.context.value{place}" for place, _ in each_fault(error))
        raise StateError(f"the stored context doesn't fit {context_type!r} @ {places}") from None


def _check_graph(data: object) -> Mapping[str, Any] | None:
    """Return a stored graph. It is checked as deep as `agent_graph.changes` reads it, and no deeper."""
    if data is not None and not _is_graph(data):
        raise StateError("Malformed state: expected a graph of agents @ $.graph")
    return data


def _is_graph(data: object) -> TypeGuard[Mapping[str, Any]]:
    agents = data.get("agents") if isinstance(data, Mapping) else None
    return isinstance(agents, Mapping) and all(map(_is_agent, agents.values()))


def _is_agent(agent: object) -> bool:
    if not isinstance(agent, Mapping):
        return False
    tools, handoffs = agent.get("tools") or {}, agent.get("handoffs") or {}
    every = (tools, handoffs, *tools.values()) if isinstance(tools, Mapping) else (tools,)
    return all(isinstance(part, Mapping) for part in every)


# -- journals


def header(run_id: str, graph: bytes, *, sealed: bool) -> bytes:
    """Return the first line of a run's journal; *graph* is canonical JSON text."""
    head = {
        "kind": "header",
        "schema": rc.SCHEMA_VERSION,
        "library": __version__,
        "run_id": run_id,
        "redaction": "sealed" if sealed else "digests",
    }
    return b'{"graph":%b,%b' % (graph, encode(head)[1:])  # keys are sorted, and this is the first one


def line_encoder(codec: Codec | None, converter: BaseConverter | None = None) -> Callable[[r.Record], bytes]:
    """Return a function that writes a record as a line of a journal: it hides secrets by *codec*, and writes the
    application's types by *converter*."""
    return partial(rc.record_to_line, secrets=Secrets(codec, converter))


@attrs.frozen
class JournalContents:
    """The lines of a journal, read: its records, and the run id and graph of its first header.

    `is_current` is False if the last header names an older schema than the library writes.
    """

    records: tuple[r.Record, ...]
    run_id: str | None
    graph: Mapping[str, Any] | None
    is_current: bool


def read_lines(lines: Iterable[bytes], codec: Codec | None) -> JournalContents:
    """Return the contents of a journal's *lines*.

    The first line is a header. Another one follows where a library with a newer schema has continued the journal.

    Raises:
        JournalError: the first line isn't a header.
        StateError: a line doesn't fit; names it and the part.
    """
    heads: list[Mapping[str, Any]] = []
    return _contents(heads, list(_read_records(lines, Secrets(codec), heads)))


async def read_lines_in_turns(lines: Iterable[bytes], codec: Codec | None) -> JournalContents:
    """Return the contents of a journal's *lines* as `read_lines`; other tasks have their turns meanwhile."""
    heads: list[Mapping[str, Any]] = []
    return _contents(heads, await collect_in_turns(_read_records(lines, Secrets(codec), heads)))


def _read_records(lines: Iterable[bytes], secrets: Secrets, heads: list[Mapping[str, Any]]) -> Iterator[r.Record]:
    """Yield the record of each line that has one; add each header to *heads*."""
    schema = ""
    for index, line in enumerate(lines):
        if schema == rc.SCHEMA_VERSION and (record := rc.read_plain_line(line)) is not None:
            yield record
            continue
        data = decode(line)
        if isinstance(data, dict) and data.get("kind") == "header":
            rc.upgrade(data)  # refuses an unknown schema
            heads.append(data)
            schema = data["schema"]
            if data.get("run_id") != heads[0].get("run_id"):
                raise JournalError(f"the header in line {index + 1} of the journal is of another run")
            continue
        if not heads:
            raise JournalError("the journal doesn't begin with a header")
        if isinstance(data, dict):
            data = rc.upgrade_record(data, schema)
        if data is not None:
            yield rc.record_from_json(data, path=f"$[{index}]", secrets=secrets)


def _contents(heads: Sequence[Mapping[str, Any]], records: Iterable[r.Record]) -> JournalContents:
    is_current = heads[-1]["schema"] == rc.SCHEMA_VERSION
    return JournalContents(tuple(records), heads[0].get("run_id"), _check_graph(heads[0].get("graph")), is_current)


def codec_of(journal: Journal) -> Codec | None:
    """Return the codec that seals the secrets of *journal*'s run, or None."""
    codec: Codec | None = getattr(journal, "codec", None)  # `SealingJournal` adds no more
    return codec


async def journal_lines(journal: Journal) -> list[bytes]:
    """Return the lines that *journal* holds.

    Raises:
        JournalError: the journal can't be read, or its lines aren't those that were written.
    """
    try:
        return await journal.read()
    except JournalError:
        raise
    except Exception as error:
        raise JournalError(f"the journal can't be read: {type(error).__name__}: {error}") from error


async def state_from_journal(journal: Journal) -> Stored:
    """See `RunState.from_journal`."""
    found = await find_in_journal(journal)
    if found is None:
        raise JournalError("the journal is empty: no run has written to it")
    return found


async def find_in_journal(journal: Journal) -> Stored | None:
    """Return what *journal* holds of its run, read once; None if no run has written to it.

    Other tasks have their turns while a long one is decoded.

    Raises:
        JournalError, StateError: as for `RunState.from_journal`.
    """
    if not isinstance(journal, Journal):
        raise UserTypeError(f"journal: expected a Journal, got {journal!r}; `Runner.run` goes on from a RunState")
    lines = await journal_lines(journal)
    return stored_run(await read_lines_in_turns(lines, codec_of(journal))) if lines else None


def stored_run(held: JournalContents) -> Stored:
    """Return the run that a journal with these contents holds.

    Raises:
        JournalError: the records are of another run than the header says.
    """
    begun = held.records[0] if held.records else None
    if isinstance(begun, r.RunStarted) and begun.run_id != held.run_id:
        raise JournalError("the journal's records are of another run than its header says")
    return Stored(held.records, None, held.graph)
