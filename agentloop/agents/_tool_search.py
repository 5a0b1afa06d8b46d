"""The search for deferred tools: which of them a turn shows, and which fit a query.

Pure. A run's log has the names that its searches have found (`CallOutcome.found`) and those that a turn shows
(`TurnStarted.tools`), so what is decided here follows from the log and the definitions.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import attrs

from agentloop._common.values import Value
from agentloop.tools import FunctionTool

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
"""The words of a text, and those of names: `getUserByID`, `get_user` and `get-user` are of several."""
_SMALL = frozenset(
    ["a", "an", "and", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "to", "with"]
)
"""Words of English that say nothing of a tool: a query of several words would find nearly every tool by them."""
_NAME_WEIGHT = 3
"""How many times a word of the name counts: it says more than one of the description."""
_SATURATION = 1.2
_LENGTH = 0.75
"""The usual parameters of BM25: how soon more of one word counts no more, and how much long texts are discounted."""


class TurnTools(Value, frozen=True, eq=False):
    """The tools of one turn of an agent that searches: those shown, the deferred ones, and those hidden among these."""

    tools: tuple[FunctionTool, ...]
    deferred: tuple[FunctionTool, ...]

    def offered(self) -> tuple[FunctionTool, ...]:
        """Return the shown tools as the model is shown them: a tool that was found isn't deferred any more."""
        return tuple([_as_found(tool) if tool.defer_loading else tool for tool in self.tools])


def choose_shown(tools: Sequence[FunctionTool], found: Collection[str]) -> TurnTools:
    """Return those of *tools* that a turn shows: those that aren't deferred, and those with a name in *found*."""
    return TurnTools(
        tuple([tool for tool in tools if not tool.defer_loading or tool.qualified_name in found]),
        tuple([tool for tool in tools if tool.defer_loading]),
    )


@lru_cache(maxsize=1024)
def _as_found(tool: FunctionTool) -> FunctionTool:
    """Return the same copy each time: codecs keep what they wrote by the object, and a copy costs some 40 µs."""
    return attrs.evolve(tool, defer_loading=False)


class FoundText(str):
    """The value of a search of which the log has the output, as text, and the names that it found."""

    found: tuple[str, ...]

    def __new__(cls, text: str, found: tuple[str, ...]) -> FoundText:
        """Make the text, with the names."""
        made = super().__new__(cls, text)
        made.found = found
        return made


def list_found(value: object) -> tuple[str, ...]:
    """Return the names of the tools in the value of a search, or in what an output guardrail has made of it."""
    if isinstance(value, FoundText):
        return value.found
    found = value.get("found") if isinstance(value, dict) else None
    if not isinstance(found, list):
        return ()
    return tuple(one["name"] for one in found if isinstance(one, dict) and isinstance(one.get("name"), str))


def rank(query: str, tools: Sequence[FunctionTool], limit: int | None) -> list[FunctionTool]:
    """Return the *tools* that fit *query* best, at most *limit*: the best first, of equal ones the first declared.

    By BM25 over the words of names, descriptions and parameters. A tool without a word of the query isn't found; a
    query that is a tool's name finds that tool first.
    """
    texts = [Counter(_words_of(tool)) for tool in tools]
    usual = sum(text.total() for text in texts) / max(len(texts), 1)
    wanted = _weigh(query, texts)
    scored = []
    for place, (tool, text) in enumerate(zip(tools, texts, strict=True)):
        is_named = query.strip() in (tool.name, tool.qualified_name)
        score = math.inf if is_named else _score(text, wanted, usual)
        if score > 0:
            scored.append((-score, place, tool))
    best = heapq.nsmallest(len(scored) if limit is None else limit, scored, key=itemgetter(0, 1))
    return [tool for _, _, tool in best]


def _weigh(query: str, texts: Sequence[Counter[str]]) -> dict[str, float]:
    """Return the weight of each word of *query*, in its order: the sums are then the same in every process."""
    holders = Counter(word for text in texts for word in text)
    return {
        word: math.log(1 + (len(texts) - holders[word] + 0.5) / (holders[word] + 0.5))
        for word in _words(query)
        if word not in _SMALL
    }


def _score(text: Counter[str], wanted: Mapping[str, float], usual: float) -> float:
    """Return how well *text* fits the *wanted* words; *usual* is the mean length of all texts."""
    score = 0.0
    for word, weight in wanted.items():
        if word in text:
            damping = _SATURATION * (1 - _LENGTH + _LENGTH * text.total() / usual)
            score += weight * text[word] * (_SATURATION + 1) / (text[word] + damping)
    return score


def _words_of(tool: FunctionTool) -> Iterator[str]:
    for _ in range(_NAME_WEIGHT):
        yield from _words(tool.qualified_name)
    yield from _words(tool.description)
    parameters = tool.params_json_schema.get("properties")
    for name, schema in parameters.items() if isinstance(parameters, Mapping) else ():
        yield from _words(str(name))
        if isinstance(schema, Mapping) and isinstance(about := schema.get("description"), str):
            yield from _words(about)


def _words(text: Any) -> Iterator[str]:
    """Yield the words of *text* in lower case, without the `s` of a plural."""
    for word in _WORDS.findall(text):
        word = word.casefold()
        yield word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
