"""The fields that a server isn't sent, and the features that it lacks. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from agentloop._common.checks import NAMES, check, is_a
from agentloop._common.errors import ModelTransportError
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.model_events import ModelFeature

_THE_QUESTION = frozenset({"model", "messages", "input", "system", "instructions", "tools", "stream"})
"""Fields without which it would be another question, or no answer that can be read."""


def choose_omitted(options: Mapping[str, Any]) -> set[str]:
    """Return the fields that `omit` in *options* names.

    Raises:
        UserTypeError, UserValueError: it isn't a collection of names, or names a part of the question.
    """
    given = options.get("omit", ())
    if isinstance(given, str):
        raise UserTypeError(f"omit: expected the names of fields, got one text; write omit=({given!r},)")
    check("omit", NAMES.each("the name of a field", is_a(str)), tuple(given))
    if asked := sorted(_THE_QUESTION.intersection(given)):
        raise UserValueError(f"omit: {asked[0]!r} is a part of the question, without which there is none")
    return set(given)


def choose_features(options: Mapping[str, Any], known: frozenset[ModelFeature]) -> frozenset[ModelFeature]:
    """Return the features that a server has: those in *options*, or all that are *known* to its interface.

    Raises:
        UserTypeError, UserValueError: `features` isn't a collection of names, or has one that the interface doesn't
            know.
    """
    given: Collection[ModelFeature] | None = options.get("features")
    if given is None:
        return known
    if isinstance(given, str):
        raise UserTypeError(f"features: expected names, got one text; write features={{{given!r}}}")
    check("features", NAMES.each("the name of a feature", is_a(str)), tuple(given))
    if unknown := sorted(set(given) - known):
        has = ", ".join(sorted(known)) or "none"
        raise UserValueError(f"features: this interface has no {unknown[0]!r}; it has {has}")
    return frozenset(given)


def advise(error: ModelTransportError, sent: Mapping[str, Any]) -> ModelTransportError:
    """Return *error*, which says how to leave out a field of what was *sent* if the server refuses it by name."""
    words = str(error)
    if error.status not in (400, 422) or error.context_too_long:
        return error
    named = (name for name in sent if name not in _THE_QUESTION and re.search(rf"\b{re.escape(name)}\b", words))
    if field := next(named, None):
        error.args = (f"{words} If the server doesn't know the field, give the model omit=({field!r},).",)
    return error
