"""Validators of fields and arguments: attrs' validators decide, the messages are ours.

A TypeError or ValueError of a validator becomes a `UserTypeError` or `UserValueError` that names the field and the kind
of value that is needed. `Fields` makes the validators of a class; `check` applies one to an argument.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import attrs
from attrs import validators as v

from agentloop._common.errors import UserTypeError, UserValueError
from agentloop._common.naming import takes
from agentloop._common.values import Value

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], Any]
"""Called with the instance, the attribute and the value."""
Place: TypeAlias = Callable[[Any, str], str]
"""Names a field of an instance in a message."""


def is_a(*kinds: Any) -> Validator:
    """Return attrs' `instance_of` *kinds*: of abstract classes and protocols too, which its own type leaves out."""
    return v.instance_of(kinds)


is_finite: Validator = v.le(sys.float_info.max)
"""Passes numbers above which there are others: neither infinity, nor nan, nor a whole number beyond every float."""
_is_text = is_a(str)
_is_no_flag: Validator = v.not_(is_a(bool))  # True and False are numbers to Python, and are never meant as such
_PLAIN_TEXT = "[^\0\ud800-\udfff]*"
_is_sequence: Validator = v.and_(is_a(Sequence), v.not_(_is_text))

optional: Callable[[Validator], Validator] = v.optional
"""attrs' own; by its own type a field whose default isn't None couldn't be None."""


def is_texts(value: object) -> bool:
    """Tell whether *value* is a list or a tuple of texts."""
    return isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)


def by_class(instance: object, name: str) -> str:
    """Name a field by its class: `ToolExecution.max_threads`."""
    return f"{type(instance).__name__}.{name}"


def by_name(_instance: object, name: str) -> str:
    """Name a field, or an argument, by itself: `max_threads`."""
    return name


class _Named(Value, frozen=True):
    name: str


def _make_attribute(name: str) -> Any:
    """Return a substitute for an attribute where there is none: for an argument, or for a member of a sequence.

    Validators ask an attribute for nothing but its name.
    """
    return _Named(name)


class _Worded(Value, frozen=True):
    """A validator whose refusals are errors of ours."""

    validator: Validator
    said: str
    place: Place
    error: type[UserTypeError | UserValueError] | None
    quoted: bool

    def __call__(self, instance: Any, attribute: Any, value: Any) -> None:
        try:
            self.validator(instance, attribute, value)
        except (TypeError, ValueError) as refusal:
            kind = self.error or (UserTypeError if isinstance(refusal, TypeError) else UserValueError)
            found = f", got {value!r}" if self.quoted else ""
            raise kind(f"{self.place(instance, attribute.name)}: {self.said}{found}") from None


def fits(predicate: Callable[[Any], bool]) -> Validator:
    """Return a validator for what attrs has none for: it refuses, by a TypeError, what *predicate* is false of."""

    def validate(_instance: Any, _attribute: Any, value: Any) -> None:
        if not predicate(value):
            raise TypeError

    return validate


def either(*validators: Validator) -> Validator:
    """Return the validator of what one of *validators* passes: attrs' `or_`, which came with attrs 24.1."""

    def validate(instance: Any, attribute: Any, value: Any) -> None:
        for validator in validators:
            try:
                validator(instance, attribute, value)
            except (TypeError, ValueError):
                continue
            return
        raise TypeError

    return validate


def has(*methods: str) -> Validator:
    """Return the validator of an object of any class that has all of *methods*."""
    return fits(lambda value: all(callable(getattr(value, method, None)) for method in methods))


def _is_function_of(taking: str) -> Validator:
    """Return the validator of a callable that takes the arguments named in *taking*, by position."""
    count = len(taking.split(","))
    return fits(lambda value: callable(value) and takes(value, count))


@final
class Fields(Value, frozen=True):
    """Makes validators of fields, whose messages name a field as *place* does."""

    place: Place = by_class

    def needs(
        self,
        said: str,
        *validators: Validator,
        error: type[UserTypeError | UserValueError] | None = None,
        quoted: bool = True,
    ) -> Validator:
        """Return the validator of what passes all of *validators*.

        Args:
            said: What the message says; the value follows it if *quoted*.
            error: The type of the error; if it isn't given, it follows from what a validator raises.
        """
        return _Worded(v.and_(*validators), said, self.place, error, quoted)

    def text(self) -> Validator:
        """Return the validator of a text."""
        return self.needs("expected text", _is_text)

    def words(self) -> Validator:
        """Return the validator of a text that isn't empty."""
        return v.and_(self.text(), self.needs("may not be empty", v.min_len(1), quoted=False))

    def plain_text(self, *, quoted: bool = True) -> Validator:
        """Return the validator of a text that every store takes: it can be encoded, and has no NUL character."""
        said = "expected text without NUL that can be encoded"
        return v.and_(self.text(), self.needs(said, v.matches_re(_PLAIN_TEXT), quoted=quoted))

    def plain_words(self) -> Validator:
        """Return the validator of a text that says something, and that every store takes."""
        return v.and_(self.words(), self.plain_text())

    def flag(self, said: str = "expected True or False") -> Validator:
        """Return the validator of True or False."""
        return self.needs(said, is_a(bool))

    def function(self, taking: str = "", *, or_words: str = "") -> Validator:
        """Return the validator of a callable; *taking* names the arguments that it must take, "ctx, error".

        The message also names *or_words*, which a converter has replaced before.
        """
        if taking:
            return self.needs(f"expected {or_words}a callable of ({taking})", _is_function_of(taking))
        return self.needs("expected a callable", v.is_callable())

    def flag_or_function(self, taking: str = "") -> Validator:
        """Return the validator of what is on or off, or is asked."""
        of, is_function = (f" of ({taking})", _is_function_of(taking)) if taking else ("", is_a(Callable))
        return self.needs(f"expected a bool or a callable{of}", either(is_a(bool), is_function))

    def number(self, said: str = "expected a number") -> Validator:
        """Return the validator of a number; True and False are none."""
        return self.needs(said, is_a(int, float), _is_no_flag, error=UserTypeError)

    def share(self) -> Validator:
        """Return the validator of a number above 0 and below 1."""
        return v.and_(self.number(), self.needs("expected a number above 0 and below 1", v.gt(0), v.lt(1)))

    def count(self, least: int = 1) -> Validator:
        """Return the validator of a whole number of at least *least*."""
        whole = self.needs("expected a whole number", is_a(int), _is_no_flag, error=UserTypeError)
        return v.and_(whole, self.needs(f"expected at least {least}", v.ge(least)))

    def seconds(self, *, zero: bool = False) -> Validator:
        """Return the validator of a finite positive number of seconds, zero allowed if *zero*."""
        least = v.ge(0) if zero else v.gt(0)
        finite = self.needs("expected a finite number of seconds above 0", least, is_finite)
        return v.and_(self.number("expected seconds as a number"), finite)

    def a(self, kind: type) -> Validator:
        """Return the validator of an instance of *kind*, a class that one makes by calling it."""
        return self.needs(f"expected {kind.__name__}(…)", is_a(kind))

    def one_of(self, *choices: object) -> Validator:
        """Return the validator of one of *choices*."""
        return self.needs(f"expected one of {', '.join(map(repr, choices))}", v.in_(choices))

    def mapping(self, said: str = "expected a mapping with keys of text") -> Validator:
        """Return the validator of a mapping whose keys are text."""
        return self.needs(said, v.deep_mapping(_is_text, is_a(object), is_a(Mapping)))

    def texts(self, said: str = "expected a sequence of texts") -> Validator:
        """Return the validator of a sequence of texts, which one text is not."""
        return self.needs(said, v.deep_iterable(_is_text, _is_sequence), error=UserTypeError)

    def each(self, what: str, *validators: Validator) -> Validator:
        """Return the validator of a sequence, each member of which is *what*: all of *validators* pass it.

        A member that isn't is named by its place, which attrs' `deep_iterable` doesn't know.
        """
        said = f"expected a sequence, each of it {what}"
        sequence = self.needs(said, _is_sequence, error=UserTypeError)
        member = self.needs(f"expected {what}", *validators)

        def validate(instance: Any, attribute: Any, value: Any) -> None:
            sequence(instance, attribute, value)
            for index, each in enumerate(value):
                member(instance, _make_attribute(f"{attribute.name}[{index}]"), each)

        return validate


FIELDS = Fields()
"""Validators that name class and field."""
NAMES = Fields(by_name)
"""Validators that name the field or the argument only."""


def check(name: str, validator: Validator, value: object) -> None:
    """Return if *value*, given for the argument *name*, passes *validator*, one of `NAMES`.

    Raises:
        UserTypeError, UserValueError: naming the argument.
    """
    validator(None, _make_attribute(name), value)


def check_seconds(name: str, value: float | None, *, zero: bool = False) -> float | None:
    """Return *value* if it is None or a finite positive number of seconds (zero allowed if *zero*).

    Raises:
        UserTypeError, UserValueError: naming the argument.
    """
    if value is None:
        return None
    check(name, NAMES.seconds(zero=zero), value)
    return float(value)


@functools.cache  # asked once a run
def _count(least: int) -> Validator:
    return NAMES.count(least)


def check_count(name: str, value: int | None, *, least: int = 1) -> int | None:
    """Return *value* if it is None (no limit) or a whole number of at least *least*.

    Raises:
        UserTypeError, UserValueError: naming the argument.
    """
    if value is not None:
        check(name, _count(least), value)
    return value


def check_id(name: str, value: str) -> str:
    """Return *value* if it is text that says something, and that every store takes.

    Raises:
        UserTypeError, UserValueError: naming the argument.
    """
    check(name, NAMES.text(), value)
    check(name, NAMES.needs("expected text that isn't empty", v.min_len(1)), value)
    check(name, NAMES.plain_text(), value)
    return value


# -- two words for what becomes of a failure
#
# Five options ask the same thing: is the model told, and the run continues, or does the run end with the error? You
# answer all of them with the same two words. Earlier versions had five pairs, and people who come from another library
# know one of these. So we accept them where an option is given, and translate them there, once: the engine reads one
# spelling. Logs keep the older word (`stored_word`), because the digest of a tool's policy is made of it: a run that
# was stored by an earlier version would otherwise look as if its tools had changed.

OnFailure: TypeAlias = Literal["tell_model", "raise"]

TIMEOUT_WORDS = {"error_as_result": "tell_model", "raise_exception": "raise"}
NOT_FOUND_WORDS = {"return_error_to_model": "tell_model", "raise_error": "raise"}
COLLISION_WORDS = {"warn": "tell_model", "error": "raise"}


def _read(word: Any, older: dict[str, str]) -> Any:
    """Return the word that *word* means now; what isn't a word is left to the validator, which names the option."""
    return older.get(word, word) if isinstance(word, str) else word


def read_timeout_word(word: Literal["tell_model", "raise", "error_as_result", "raise_exception"]) -> OnFailure:
    """Return *word*, given for `timeout_behavior`, in today's spelling."""
    return _read(word, TIMEOUT_WORDS)  # type: ignore[no-any-return]


def read_not_found_word(word: Literal["tell_model", "raise", "return_error_to_model", "raise_error"]) -> OnFailure:
    """Return *word*, given for `tool_not_found_behavior`, in today's spelling."""
    return _read(word, NOT_FOUND_WORDS)  # type: ignore[no-any-return]


def read_collision_word(word: Literal["tell_model", "raise", "warn", "error"]) -> OnFailure:
    """Return *word*, given for `tool_name_collision_policy`, in today's spelling."""
    return _read(word, COLLISION_WORDS)  # type: ignore[no-any-return]


def stored_word(behavior: OnFailure) -> str:
    """Return the word by which logs know a tool's `timeout_behavior`."""
    return next(older for older, now in TIMEOUT_WORDS.items() if now == behavior)
