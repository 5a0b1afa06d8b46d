"""The lanes of a run: one line for each piece of work under way, kept from events. Values only; draws nothing.

A lane is a request to the model, or a call: queued until its body starts, then at work. Nested runs have lanes of their
own below the call that they belong to, by the path of their events.
"""

from __future__ import annotations

import attrs

from agentloop import events as ev
from agentloop._common.terminal_text import format_line
from agentloop.cli.show import format_arguments, format_progress
from agentloop.cli.target import name_model
from agentloop.items import ToolCall

_Key = tuple[tuple[str, ...], str]
_MODEL = ""
"""In place of a call's id in the key of the lane of a request to the model."""


@attrs.define
class WorkLane:
    """One piece of work. All texts are harmless. `since` is a time of the caller's clock, of its present state."""

    name: str
    words: str
    depth: int
    since: float
    state: str = ""
    queued: bool = False


@attrs.define(eq=False)
class LaneBoard:
    """The lanes of one run segment, in the order of their beginnings. `model` replaces the agents' models."""

    model: str | None = None
    _lanes: dict[_Key, WorkLane] = attrs.field(factory=dict)
    _models: dict[tuple[str, ...], str] = attrs.field(factory=dict)

    @property
    def lanes(self) -> list[WorkLane]:
        """The lanes at this moment, nested ones below their calls."""
        return [lane for _, lane in sorted(self._lanes.items(), key=lambda each: self._place(each[0]))]

    def _place(self, key: _Key) -> tuple[int, ...]:
        """Return the positions of the calls around a lane, then its own: calls before their nested runs."""
        order = {call_id: index for index, (_, call_id) in enumerate(self._lanes)}
        path, call_id = key
        return (*(order.get(outer, -1) for outer in path), order[call_id] if call_id else -1)

    def clear(self) -> None:
        """Remove all lanes: the run segment is over."""
        self._lanes.clear()

    def note(self, event: ev.Event, now: float) -> None:
        """Change the lanes as *event*, which came at *now*, says."""
        path = event.path
        match event:
            case ev.AgentUpdated(agent):
                model = self.model or agent.model
                self._models[path] = "" if model is None else format_line(name_model(model))
            case ev.TurnStarted():
                self._lanes[path, _MODEL] = WorkLane("model", self._models.get(path, ""), len(path), now)
            case ev.ReasoningDelta():
                self._say(path, "reasons")
            case ev.TextDelta():
                self._say(path, "writes")
            case ev.ArgumentsDelta():
                self._say(path, "calls tools")
            case ev.ItemCreated(ToolCall() as call):
                self._add(path, call, now, queued=True)
            case ev.CallStarted(call):
                self._lanes.pop((path, _MODEL), None)
                self._add(path, call, now, queued=False)
            case ev.CallProgress(call):
                if (lane := self._lanes.get((path, call.call_id))) is not None:
                    lane.state = format_progress(event)
            case ev.CallSettled(call):
                self._lanes.pop((path, _MODEL), None)
                self._remove_call(path, call.call_id)
            case ev.ApprovalRequested(request) | ev.AnswerRequested(request):
                self._remove_call(path, request.call.call_id)
            case ev.TurnEnded() | ev.RunEnded():
                for key in [key for key in self._lanes if key[0] == path]:
                    del self._lanes[key]
            case _:
                pass

    def _say(self, path: tuple[str, ...], state: str) -> None:
        if (lane := self._lanes.get((path, _MODEL))) is not None:
            lane.state = state

    def _add(self, path: tuple[str, ...], call: ToolCall, now: float, *, queued: bool) -> None:
        self._lanes[path, call.call_id] = WorkLane(
            format_line(call.name), format_arguments(call), len(path), now, "queued" if queued else "", queued
        )

    def _remove_call(self, path: tuple[str, ...], call_id: str) -> None:
        """Remove the lane of a call, and those of a run nested in it."""
        inner = (*path, call_id)
        for key in [key for key in self._lanes if key == (path, call_id) or key[0][: len(inner)] == inner]:
            del self._lanes[key]
