"""The dry door: the effects of a run that is resumed to see what that would do. Nothing behind it is done.

The engine resumes such a run as it resumes any: with the same checks, plans and records. What it asks of the world gets
no more than lets it come to its next request to a model, where it ends:

    a model call      ends the run; in a nested run only this one, whose call then has a value
    a tool call       is noted, and has a value that fits what the tool returns; the body isn't called
    an external call  has its answer from the log, or waits
    a guardrail       isn't called: it lets everything pass
    a callback        isn't called: it answers so that the run continues as it is; one whose answer can't be made up (a
                      filter of what the model is shown) ends the run as a model call does
    a source of tools isn't asked, unless the check allows it

Which of the application's functions would have had a say is noted, because what they would say isn't known.
"""

from __future__ import annotations

import time
from typing import Any

import anyio
import attrs

from agentloop import guardrails as g
from agentloop.abc import Instrument
from agentloop.abc import effects as e
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.lab._agents import Candidate
from agentloop.lab._copies import ClosedSandboxes, RecordedSandbox
from agentloop.lab._recording import Path
from agentloop.lab._stub import draw_value
from agentloop.records import Record
from agentloop.tools import ExternalBody, ToolsToFinalOutput

_SAYS_NOTHING = ("on_handoff", "custom_data_extractor", "output_store", "sandbox", "toolset")
"""Callbacks that don't decide how a run continues."""
_ANSWERS: dict[str, Any] = {
    "is_enabled": True,
    "needs_approval": False,
    "policy": g.Allow(),
    "instructions": "",
    "prompt": None,
    "stop_when": False,
    "tool_use_behavior": ToolsToFinalOutput(is_final=False),
    "input_builder": "",
    "custom_output_extractor": "",
    "failure_error_function": "",
    "timeout_error_function": None,
    "tool_error_formatter": None,
    "on_handoff": None,
    "custom_data_extractor": None,
    "output_store": "(not kept in the lab)",
}


class DryEffects(Instrument):
    """The effects of one dry run, and the instrument that gets its records. Made for one run.

    Attributes:
        records: The records of the segment so far.
        asked: The application's functions that would have been called to decide, as `(path, what, key)`.
        has_bodies: True if a body would have run.
        is_closed: True if the run needed a source of tools that may not be asked.
    """

    def __init__(self, *, may_ask_sources: bool) -> None:
        self.may_ask_sources = may_ask_sources
        self.runs_bodies = False
        self.records: list[Record] = []
        self.asked: dict[tuple[Path, str, str], None] = {}
        self.has_bodies = self.is_closed = False
        self.scope = anyio.CancelScope()
        self._nested: dict[Path, anyio.CancelScope] = {}

    turn_sources = ()

    def on_record(self, record: Record) -> None:
        """Keep *record*."""
        self.records.append(record)

    async def perform(self, effect: e.Effect) -> Any:
        """Answer *effect* without doing it. Cancellation: the run is cancelled from here where it comes to a model."""
        match effect:
            case e.NewId():
                return "dry"
            case e.Now():
                return time.time()
            case e.Random():
                return 0.5
            case e.Sleep() | e.SaveSession():
                return None
            case e.LoadSession():
                return []
            case e.CallModel(path):
                return await self._end(path)
            case e.CallTool():
                return await self._call_tool(effect)
            case e.Guard(path, stage, name):
                self.asked[path, f"guardrail {name}", effect.call_id or ""] = None
                return g.Allow() if stage in ("tool_input", "tool_output") else g.GuardrailFunctionOutput()
            case e.AwaitInput():
                return await effect.do()
            case e.CallCallback():
                return await self._call_callback(effect)

    async def _end(self, path: Path) -> Any:
        """End the run at *path*, the outermost one or the innermost of those that are nested."""
        (self._nested[path] if path else self.scope).cancel()
        await anyio.sleep_forever()

    async def _call_tool(self, effect: e.CallTool) -> Any:
        if isinstance(effect.definition.body, ExternalBody):
            return await effect.do()
        if effect.nested:
            path = (*effect.path, effect.call_id)
            with anyio.CancelScope() as scope:
                self._nested[path] = scope
                return await effect.do()
        self.has_bodies = True
        await anyio.lowlevel.checkpoint()
        return draw_value(effect.definition, effect.call_id)

    async def _call_callback(self, effect: e.CallCallback) -> Any:
        if effect.what not in _SAYS_NOTHING:
            self.asked[effect.path, effect.what, effect.key] = None
        match effect.what:
            case "sandbox":
                return RecordedSandbox(effect.key)
            case "toolset":
                try:
                    return await effect.do()
                except Exception:
                    self.is_closed = not self.may_ask_sources
                    raise
            case what if what in _ANSWERS:
                return _ANSWERS[what]
            case _:
                return await self._end(effect.path)


class DryCandidate(Candidate):
    """A candidate that has a model, and a sandbox, only where the application's has: a run isn't resumed without."""

    def _copy_config(self, given: RunConfig) -> RunConfig:
        copy = super()._copy_config(given)
        return copy if given.sandbox is None else attrs.evolve(copy, sandbox=ClosedSandboxes())

    def copy_model(self, given: Agent[Any, Any]) -> Any:
        """Return the model, which isn't opened; None if there is none."""
        return None if given.model is None else self._open_late(given.model)

    def config_for(self, dry: DryEffects) -> RunConfig:
        """Return the configuration of one dry run."""
        return attrs.evolve(self.config, effects=dry, instruments=(dry,))
