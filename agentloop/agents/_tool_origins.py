"""Where the tools of a run's calls came from, read from its records.

A tool of a source is known by the source's answer for the turn, an agent by the run that the call began, and a tool
that the provider runs by the kind of the call. What remains is a function of the agent's own, as soon as the call has
begun: before that the log can't tell such a call from one of an agent, so it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from agentloop import records as r
from agentloop._common.naming import qualify_name
from agentloop.items import ToolCall
from agentloop.tools import ToolOrigin

_Path = tuple[str, ...]
_Given = dict[str, Mapping[str, str]]
"""By place of a source in the log: the names of its tools, each with the name of the source."""
_FUNCTION = ToolOrigin("function")


def find_tool_origins(records: Iterable[r.Record]) -> dict[str, ToolOrigin]:
    """Return the origins that *records* tell, by the ids of the calls of the run that began with the first of them."""
    fold, path = OriginFold(), None
    for record in records:
        path = record.path if path is None else path
        fold.record(record)
    return {call_id: origin for (at, call_id), origin in fold.origins.items() if at == path}


@attrs.define(eq=False)
class OriginFold:
    """Folds the records of one tree of runs, in the order of the log.

    Attributes:
        origins: By path and call id, what the records so far tell.
    """

    origins: dict[tuple[_Path, str], ToolOrigin] = attrs.field(factory=dict)
    _last: dict[tuple[_Path, str], Mapping[str, str]] = attrs.field(factory=dict)
    _fresh: dict[_Path, _Given] = attrs.field(factory=dict)
    _shown: dict[_Path, _Given] = attrs.field(factory=dict)

    def record(self, record: r.Record) -> None:
        """Fold one record."""
        match record:
            case r.CallbackReturned(what="toolset"):
                self._keep_answer(record)
            case r.TurnStarted():  # its sources were asked before it
                fresh = self._fresh.pop(record.path, {})
                of_agent = {place: names for place, names in fresh.items() if _agent_of(place) == record.agent}
                self._shown[record.path] = of_agent
            case r.ModelResponded():
                for item in record.response.items:
                    if isinstance(item, ToolCall) and (origin := self._find(record.path, item)) is not None:
                        self.origins[record.path, item.call_id] = origin
            case r.RunStarted(path=(*outer, call_id)) if (tuple(outer), call_id) in self.origins:  # not a summary's run
                self.origins[tuple(outer), call_id] = ToolOrigin("agent", record.agent)
            case r.CallStarted() | r.AnswerRequested():
                self.origins.setdefault((record.path, record.call_id), _FUNCTION)
            case _:
                pass

    def _keep_answer(self, record: r.CallbackReturned) -> None:
        """Keep what a source has given; None is its last answer once more."""
        place = record.key.partition(":")[2]
        at = record.path, place
        if record.answer is not None:
            self._last[at] = {_name_of(tool): tool["source"] for tool in record.answer if "source" in tool}
        for given in (self._fresh, self._shown):  # a turn that a later segment continues has no other `TurnStarted`
            given.setdefault(record.path, {})[place] = self._last.get(at, {})

    def _find(self, path: _Path, call: ToolCall) -> ToolOrigin | None:
        if call.kind == "approval":
            return ToolOrigin("provider", call.namespace)
        name = qualify_name(call.name, call.namespace)
        found = (names[name] for names in self._shown.get(path, {}).values() if name in names)
        source = next(found, None)
        return None if source is None else ToolOrigin("source", source)


def _agent_of(place: str) -> str:
    return place.rpartition(":")[0]


def _name_of(described: Mapping[str, str]) -> str:
    return qualify_name(described["name"], described.get("namespace"))
