"""Shared by the readers of histories: a check of each message by its form, and the calls that outputs answer.

A form is a msgspec Struct with the fields that are read here; others are ignored. An answer of the model is read by
the decoder of its interface, once its form is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from agentloop._common.errors import UserTypeError, UserValueError
from agentloop._storage.faults import fault_text
from agentloop.exceptions import ModelBehaviorError
from agentloop.items import Item, Part, ToolCall
from agentloop.model_events import ModelRequest, ResponseDone
from agentloop.models._codec import EventDecoder

Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
"""A name or an id: neither is ever empty."""
JsonDict: TypeAlias = dict[str, Any]


def read_messages(given: object, name: str) -> Iterator[tuple[str, JsonDict]]:
    """Yield each message of *given* as plain data, with its place: `messages[3]`.

    Raises:
        UserTypeError: *given* isn't a sequence of objects. Names the first that isn't one.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UserTypeError(f"{name}: expected a sequence of messages, got {type(given).__name__}")
    for index, message in enumerate(given):
        plain = to_plain(message)
        if not isinstance(plain, dict):
            raise UserTypeError(f"{name}[{index}]: expected a message as a dict, got {type(message).__name__}")
        yield f"{name}[{index}]", plain


def to_plain(value: Any) -> Any:
    """Return *value* as plain data: the clients' own objects, which programs keep among their dicts, are written."""
    if isinstance(value, Mapping):
        return {key: to_plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(member) for member in value]
    # Only what was set: a field's default may be one that the interface refuses.
    return value.model_dump(mode="json", exclude_unset=True) if hasattr(type(value), "model_dump") else value


def check(value: object, form: Any, place: str) -> Any:
    """Return *value* as a *form*: a Struct, or a union of some.

    Raises:
        UserTypeError: naming the first field below *place* that doesn't fit.
    """
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise UserTypeError(fault_text(error, place)) from None
    except UnicodeEncodeError:  # of a tag that is no text of Unicode
        raise UserTypeError(f"expected text without lone surrogates @ {place}") from None


class EarlierCalls:
    """The calls of a history, by the ids that their messages have.

    Some servers number the calls of each answer from the same start; a run needs one id for each call. So a call whose
    id was there before gets another one, and its output, too. The id that it had is kept for the way back.
    """

    def __init__(self) -> None:
        self._by_given_id: dict[str, ToolCall] = {}
        self._ids: dict[str, None] = {}

    def make_request(self, turn: int) -> ModelRequest:
        """Return a request with the calls so far, for the decoder of the answer that comes *turn*-th."""
        return ModelRequest(system=None, items=(), turn=turn, call_ids=self._ids.keys())

    def add(self, given_id: str, call: ToolCall) -> None:
        """Note *call*, which had the id *given_id*."""
        self._by_given_id[given_id] = call
        self._ids[call.call_id] = None

    def find(self, given_id: str, place: str) -> ToolCall:
        """Return the latest call that had the id *given_id*.

        Raises:
            UserValueError: there is none, so the output at *place* answers nothing: no provider takes it.
        """
        call = self._by_given_id.get(given_id)
        if call is None:
            raise UserValueError(f"{place}: no call before it has the id {given_id!r}")
        return call


def read_answer(decoder: EventDecoder, answer: JsonDict, place: str) -> tuple[Item, ...]:
    """Return the items of the whole *answer*, at *place* of the history.

    Raises:
        UserValueError: the decoder refuses it.
    """
    try:
        decoder.feed_answer(answer)
        done = decoder.finish()[-1]
    except ModelBehaviorError as error:
        raise UserValueError(f"{place}: {error}") from None
    assert isinstance(done, ResponseDone)
    return tuple(done.items)


def read_content(content: str | list[Any], read: Callable[[Any], Part], place: str) -> str | tuple[Part, ...]:
    """Return the *content* at *place*: a text as it is, and each of its parts as *read* returns it.

    Raises:
        UserTypeError: a part has none of its sources, as an image without a URL. Names it.
    """
    if isinstance(content, str):
        return content
    parts: list[Part] = []
    for index, part in enumerate(content):
        try:
            parts.append(read(part))
        except UserTypeError as error:
            raise UserTypeError(f"{place}[{index}]: {error}") from None
    return tuple(parts)
