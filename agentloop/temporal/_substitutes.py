"""Substitutes, in a workflow, for things of the outside world: models, which it never asks, and instruments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio import workflow

from agentloop.abc import Instrument, Model, ModelProvider
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.records import Record


class NamedModel(Model):
    """A model string, as a model. The worker that performs the activity opens the model of that name.

    It claims every feature: the worker's model refuses a request that it can't express.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def info(self) -> ModelInfo:
        """The parts of the string."""
        provider, _, name = self.name.rpartition(":")
        return ModelInfo(provider or "provider", name)

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Every feature."""
        return frozenset({"conversations", "hosted_tools", "prompts"})

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Not for a workflow."""
        raise AssertionError("a workflow asks models by activities")  # pragma: no cover


class NamedModels(ModelProvider):
    """The models of a workflow: each name as it is, so that nothing is opened there."""

    def get_model(self, name: str) -> Model:
        """Return the substitute of the model *name*."""
        return NamedModel(name)


# A replayed workflow must append the same records, and what `on_run_open` tells would be others.
_OBSERVERS = [name for name in vars(Instrument) if name.startswith("on_") and name != "on_run_open"]


def observe_once(instrument: Instrument) -> Instrument:
    """Return an instrument that passes on what happens to *instrument*, but not while the engine replays a workflow."""

    def make(observe: Callable[..., None]) -> Callable[..., None]:
        def pass_on(_self: Instrument, value: Any) -> None:
            if not workflow.unsafe.is_replaying():
                observe(value)

        return pass_on

    # Only what it overrides: spans are made for an instrument that has a method for them.
    theirs = [name for name in _OBSERVERS if getattr(type(instrument), name) is not getattr(Instrument, name)]
    kind = type("ObserveOnce", (Instrument,), {name: make(getattr(instrument, name)) for name in theirs})
    made: Instrument = kind()
    made.wants_requests = getattr(instrument, "wants_requests", False)
    return made


class RecordList(Instrument):
    """Keeps the records of a run in a list of the workflow's, for its queries."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def on_record(self, record: Record) -> None:
        """Keep *record*."""
        self._records.append(record)
