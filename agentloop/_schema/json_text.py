"""JSON text that a model wrote: a strict parser within limits, and a canonical form.

Pure and without I/O. Sizes, depth and digits are checked by scanning before anything is built, so that hostile text
costs time linear in its length, with any nesting. Does not know about types: `agentloop._schema.function_schema` fits
the parsed value to a signature.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agentloop._common.errors import ModelBehaviorError
from agentloop._common.strict_json import STRING, InvalidJson, is_deeper, make_object, read_written
from agentloop.settings import JsonLimits

_QUOTED = 200
"""Characters of the model's text that a message may quote."""

# An unterminated string matches up to the end of the text. If it didn't match, the search would start again at each
# quote inside it, in quadratic time.
_TOKEN = re.compile(rf"{STRING}|[-0-9][0-9.eE+-]*+", re.DOTALL)
_LIKE_A_NUMBER = re.compile(r"[0-9.eE+-]++")
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")

_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}


class _Fault(Exception):
    """JSON that parses but is refused; the text completes "Arguments of tool NAME …"."""


class _Repeated(_Fault):
    """A repeated key; the text quotes it."""


def quote(text: str, most: int = _QUOTED) -> str:
    """Return *text* in single quotes on one line, special characters escaped, cut to *most* characters with "…"."""
    literal = repr(text[: most + 1])[1:-1]
    return f"'{literal if len(literal) <= most else literal[: most - 1] + '…'}'"


def place_of(error: json.JSONDecodeError, quoted: bool = True) -> str:
    """Return where text isn't JSON, why, and the words around that place: "at character 12, unterminated string: '…'".

    A short text is quoted whole. *quoted*: False to leave out the text, which may hold a secret.
    """
    reason = error.msg.removesuffix(" at").removesuffix(" starting")
    where = f"at character {error.pos + 1}, {reason[:1].lower()}{reason[1:]}"
    if not quoted:
        return where
    text, start = error.doc, max(error.pos - _QUOTED // 2, 0)
    if len(text) <= _QUOTED or start == 0:
        return f"{where}: {quote(text)}"
    return f"{where}: …{quote(text[start : error.pos + _QUOTED // 2])}"


def parse_object(text: str, limits: JsonLimits, *, tool: str, quoted: bool = True) -> dict[str, Any]:
    """Return the JSON object that the model wrote as arguments of *tool*; blank text counts as `{}`.

    Surrogates without a partner become U+FFFD, since no UTF-8 text, such as a request, can hold them.

    Raises:
        ModelBehaviorError: not JSON, not an object, beyond *limits*, a repeated key, or a number that isn't finite.
            The message names the tool and, if *quoted*, at most 200 characters of *text*.
    """
    try:
        value = _parse(text, limits)
        if isinstance(value, str) and limits.read_strings and value.lstrip().startswith("{"):
            value = _parse(value, limits)  # a model that writes JSON in JSON does so with whole arguments, too
    except _Fault as fault:
        words = "repeat a key" if isinstance(fault, _Repeated) and not quoted else str(fault)
        raise ModelBehaviorError(f"Arguments of tool {tool} {words}") from None
    except json.JSONDecodeError as error:
        raise ModelBehaviorError(f"Arguments of tool {tool} aren't valid JSON: {place_of(error, quoted)}") from None
    if not isinstance(value, dict):
        words = f"{_KINDS[type(value)]}: {quote(text)}" if quoted else _KINDS[type(value)]
        raise ModelBehaviorError(f"Arguments of tool {tool} must be a JSON object, not {words}")
    return value


def canonical(value: Any) -> str:
    """Return the canonical JSON text (ASCII, sorted keys, no blanks) of a value; `1`, `1.0` and `true` stay distinct.

    Raises:
        TypeError, ValueError: if *value* is not a JSON value (NaN and infinities aren't).
    """
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_arguments(text: str, limits: JsonLimits) -> str:
    """Return the canonical JSON of argument text, or `raw:` and the text itself if the text is refused.

    Two texts have the same result only if they are the same arguments; no JSON text begins with `raw`.
    """
    try:
        return canonical(_parse(text, limits))
    except (_Fault, ValueError, RecursionError):
        # A text with a lone surrogate can't be encoded, so it is escaped; `rawx:` keeps the two forms distinct.
        return f"rawx:{canonical(text)}" if _holds_surrogate(text) else f"raw:{text}"


def _parse(text: str, limits: JsonLimits) -> Any:
    if not text.strip():
        return {}
    # Nearly all arguments are too small to break a limit. Cheap counts show that without a scan of the text.
    most = limits.max_bytes
    if most is not None and 4 * len(text) > most:
        _check_size(text, most)
    most = limits.max_depth
    if most is not None and text.count("{") + text.count("[") > most and is_deeper(text, most):
        raise _Fault(f"are nested too deeply (the limit is {limits.max_depth} levels)")
    most = limits.max_digits
    if most is not None and len(text) > most and max(map(len, _LIKE_A_NUMBER.findall(text)), default=0) > most:
        _check_digits(text, most)
    try:
        value = read_written(text)
        if text.isascii() and "\\u" not in text:
            return value
        return _replace_surrogates(value) if _MAYBE_SURROGATE.search(text) else value
    except RecursionError:
        raise _Fault("are nested too deeply") from None
    except InvalidJson as refused:
        raise _word(refused) from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # from `int`: the interpreter's own limit, if JsonLimits sets none
        raise _Fault("hold a number with too many digits") from None


def _check_size(text: str, most: int) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise _Fault(f"are too large ({size} bytes, the limit is {most})")


def _check_digits(text: str, most: int) -> None:
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token[0] != '"' and len(token) > most and sum(map(str.isdigit, token)) > most:
            raise _Fault(f"hold a number with too many digits (the limit is {most})")


def _word(refused: InvalidJson) -> _Fault:
    match refused.reason:
        case "repeated":
            return _Repeated(f"repeat the key {quote(refused.at)}")
        case "infinite":
            return _Fault("hold a number beyond the range of a float")
        case _:
            return _Fault(f"hold {refused.at}, which isn't JSON")


def _holds_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _replace_surrogates(value: Any) -> Any:
    """Return *value* with every surrogate that has no partner replaced by U+FFFD."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_replace_surrogates(member) for member in value]
        case dict():
            return make_object(
                [(_replace_surrogates(key), _replace_surrogates(member)) for key, member in value.items()]
            )
        case _:
            return value
