"""Schemas of a server, and checks of values by them, both in bounded work. Pure.

A schema is a program, and its writer decides how long it runs: `allOf` that doubles with each of forty references, or a
pattern that backtracks. What is checked here is checked once more by the server, so a check may end early.

Theory. Three bounds hold for every schema:

* A schema that is too large, too deep, or has too many references is refused (`make_check` raises).
* Keywords whose work isn't linear in what they look at are left to the server (`_LEFT_TO_THE_SERVER`).
* Each keyword that is evaluated costs steps: one, and one more for each member that it may look through (`Meter`).
  When the steps of a check are used up, the rest is left to the server: the value fits as far as we know. The steps are
  few enough to make a check on the event loop.

Invariant: every evaluation passes `_metered`. A validator makes others for the parts of its schema, and those have its
own class, also where a part names another `$schema` (`_bounded`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

import attrs

_MOST_VALUES, _MOST_CHARACTERS, _MOST_DEPTH, _MOST_REFERENCES = 10_000, 1_000_000, 64, 1_000
_MOST_STEPS = 2_000
MOST_STEPS_OF_SCHEMAS = 5_000_000
_CHARACTERS_PER_STEP = 2_000
"""An error shows the value that it is about, so each evaluation may have to write the value as text."""
_LEFT_TO_THE_SERVER = ("pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COMPARED_WHOLE = ("const", "enum", "dependencies", "dependentRequired")
_MOST_FAULTS = 3
_LONGEST_FAULT = 300

Check = Callable[[Any], "str | None"]


def make_check(schema: Mapping[str, Any], meter: Meter, *, secret: bool = False) -> Check:
    """Return the check of values by *schema*: what is wrong with them, as text, or None.

    References to other documents aren't followed: nothing is fetched. A required property that has a default may be
    missing.

    Args:
        schema: The schema, as the server gave it.
        meter: The steps that are left for looking through this server's schemas.
        secret: True to say only where a value is wrong, and by which keyword of the schema, and nothing of the value.

    Raises:
        ValueError: *schema* isn't a JSON schema, is larger than the bounds, or too few steps are left.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    kind = validator_for(dict(schema), default=Draft202012Validator)
    copied = _Copy()
    own = copied.copy(schema)
    try:
        wrong = _collect_faults(_bounded(kind)(kind.META_SCHEMA), own, meter, 1)
    except (_TooMuchWork, RecursionError):
        raise ValueError("it takes too long to look through") from None
    if wrong:
        raise ValueError(_describe_fault(wrong[0]))
    validator = _bounded(kind)(own, registry=Registry())
    # To find what a reference names in another way than by a path, the whole schema may have to be looked through.
    cost = copied.values if copied.has_names else 1
    describe = _locate_fault if secret else _describe_fault

    def check(value: Any) -> str | None:
        from jsonschema.exceptions import ValidationError
        from referencing.exceptions import Unresolvable

        try:
            found = _collect_faults(validator, value, Meter(_MOST_STEPS, cost), _MOST_FAULTS)
            return "; ".join(map(describe, found)) or None
        except _TooMuchWork:
            return None
        except (Unresolvable, ValidationError, RecursionError) as error:
            return f"the server's schema can't be used: {type(error).__name__}"

    return check


class _Copy:
    """Copies a schema, and counts."""

    def __init__(self) -> None:
        self.values = 0
        self.has_names = False
        """True if a reference may mean a part by a name, and not by its path."""
        self._characters = 0
        self._references = 0

    def copy(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of *value*, a part of the schema at this depth.

        Raises:
            ValueError: the schema passes a bound.
        """
        self.values += 1
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        if isinstance(value, Mapping):
            self._note(value, depth)
            made: Any = {key: self.copy(one, depth + 1) for key, one in value.items()}
        elif isinstance(value, list | tuple):
            made = [self.copy(one, depth + 1) for one in value]
        else:
            self._characters += len(value) if isinstance(value, str) else 0
            made = value
        if self.values > _MOST_VALUES or self._characters > _MOST_CHARACTERS:
            raise ValueError(f"it has more than {_MOST_VALUES} values, or {_MOST_CHARACTERS} characters")
        return made

    def _note(self, part: Mapping[str, Any], depth: int) -> None:
        self._characters += sum(map(len, part))
        for key in _REFERENCES:
            if isinstance(named := part.get(key), str):
                self._references += 1
                self.has_names = self.has_names or key != "$ref" or not (named == "#" or named.startswith("#/"))
        if depth and any(isinstance(part.get(key), str) for key in ("$id", "id")):
            self.has_names = True
        if self._references > _MOST_REFERENCES:
            raise ValueError(f"it has more than {_MOST_REFERENCES} references")


class _TooMuchWork(Exception):
    """The steps of a check are used up."""


class Meter:
    """The steps that are left for some checks, and the sizes of the parts of the value that is checked now."""

    def __init__(self, steps: int = MOST_STEPS_OF_SCHEMAS, reference: int = 1) -> None:
        self.left = steps
        self.reference = reference
        """The steps of one reference."""
        self._sizes: dict[int, int] = {}
        self._weighed = 0

    def begin(self, value: Any) -> None:
        """Begin the check of *value*: note the size in characters, roughly, of each list and object in it.

        Raises:
            _TooMuchWork: it has too many parts.
        """
        self._sizes, self._weighed = {}, 0
        self._weigh(value)

    def _weigh(self, value: Any) -> int:
        self._weighed += 1
        if self._weighed > _MOST_VALUES:
            raise _TooMuchWork
        if isinstance(value, str):
            return len(value)
        if isinstance(value, dict):
            size = sum(len(key) + self._weigh(one) for key, one in value.items())
        elif isinstance(value, list):
            size = sum(map(self._weigh, value))
        else:
            return 8
        self._sizes[id(value)] = size
        return size

    def spend(self, keyword: str, wanted: Any, value: Any) -> None:
        """Pay for one evaluation of *keyword* with the content *wanted* on a part of the value.

        Raises:
            _TooMuchWork: too few steps are left.
        """
        steps = self.reference if keyword in _REFERENCES else 1
        steps += _count(wanted) if keyword in _COMPARED_WHOLE else _breadth(wanted)
        size = len(value) if isinstance(value, str) else self._sizes.get(id(value), 0)
        self.left -= steps + _breadth(value) + size // _CHARACTERS_PER_STEP
        if self.left < 0:
            raise _TooMuchWork


_meter: ContextVar[Meter] = ContextVar("agentloop_mcp_meter")


def _breadth(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _collect_faults(validator: Any, value: Any, meter: Meter, most: int) -> list[Any]:
    """Return what is wrong with *value*, at most so many faults, as errors of `jsonschema`.

    Raises:
        _TooMuchWork: the steps of *meter* are used up.
    """
    found: list[Any] = []
    token = _meter.set(meter)
    try:
        meter.begin(value)
        for error in validator.iter_errors(value):
            found.append(error)
            if len(found) == most:
                break
    finally:
        _meter.reset(token)
    return found


def _describe_fault(error: Any) -> str:
    text = error.message if len(error.message) <= _LONGEST_FAULT else f"{error.message[:_LONGEST_FAULT]}…"
    where = ".".join(map(str, error.absolute_path))
    return f"{where}: {text}" if where else text


def _locate_fault(error: Any) -> str:
    return f"{'.'.join(map(str, error.absolute_path)) or 'the whole'} ({error.validator})"


Keyword = Callable[[Any, Any, Any, Any], Any]


@cache
def _bounded(kind: Any) -> Any:
    """Return the class of validators *kind* with a meter, and without what is left to the server."""
    from jsonschema.validators import extend

    changed: dict[str, Keyword] = {name: _metered(name, work) for name, work in kind.VALIDATORS.items()}
    changed |= dict.fromkeys(_LEFT_TO_THE_SERVER, _leave)
    if "required" in changed:
        changed["required"] = _metered("required", _without_defaults(kind.VALIDATORS["required"]))
    others = _without_patterns(kind.VALIDATORS["additionalProperties"])
    made: Any = extend(kind, {**changed, "additionalProperties": _metered("additionalProperties", others)})
    fields = [(field.name, field.alias) for field in attrs.fields(made) if field.init]

    def evolve(self: Any, **changes: Any) -> Any:
        return made(**{alias: getattr(self, name) for name, alias in fields if alias not in changes}, **changes)

    made.evolve = evolve
    return made


def _metered(name: str, work: Keyword) -> Keyword:
    def evaluate(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        _meter.get().spend(name, wanted, value)
        return work(validator, wanted, value, schema)

    return evaluate


def _leave(validator: Any, wanted: Any, value: Any, schema: Any) -> None:
    """Check nothing: the server does."""


def _without_defaults(work: Keyword) -> Keyword:
    """Return `required` for properties without a default: one that has a default is the server's to fill in."""

    def evaluate(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        described = schema.get("properties")
        described = described if isinstance(described, dict) else {}
        needed = [name for name in wanted if not _has_default(described.get(name))]
        return work(validator, needed, value, schema)

    return evaluate


def _has_default(described: Any) -> bool:
    return isinstance(described, dict) and "default" in described


def _without_patterns(work: Keyword) -> Keyword:
    """Return `additionalProperties` where no pattern says which properties are none of these."""

    def evaluate(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        return None if "patternProperties" in schema else work(validator, wanted, value, schema)

    return evaluate
