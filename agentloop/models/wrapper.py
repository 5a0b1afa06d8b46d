"""`WrapperModel`: the base of a model that adds something to another one. Does not know what it adds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from agentloop.abc import Model
from agentloop.exceptions import UserTypeError
from agentloop.limits import Limit
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.settings import ModelSettings


class WrapperModel(Model):
    """A model that is another one, *wrapped*, in everything that a subclass doesn't change.

    A subclass overrides `stream`, to look at requests and events, to change them, or to ask again: an async context
    manager that gives the events of `super().stream(request)`. The page on providers of your own has an example.

    Entering enters *wrapped*, and leaving leaves it, as often as *wrapped* may be entered. Name, identity, features and
    default settings are those of *wrapped*, so a run logs, prices and refuses the same.

    Cancellation: as that of *wrapped*.

    Raises:
        UserTypeError: if *wrapped* isn't a model, as the name of one.
    """

    def __init__(self, wrapped: Model) -> None:
        if not isinstance(wrapped, Model):
            raise UserTypeError(f"wrapped: expected a model, got {type(wrapped).__name__}")
        self.wrapped = wrapped
        """The model that is asked."""
        self.holds_resources: bool = wrapped.holds_resources

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.wrapped!r})"

    @property
    def name(self) -> str | None:
        """The wrapped model's name, by which requests are priced; None if it has none."""
        found = getattr(self.wrapped, "name", None)
        return found if isinstance(found, str) else None

    @property
    def is_open(self) -> bool:
        """True if the wrapped model can be called now."""
        return self.wrapped.is_open

    @property
    def default_settings(self) -> ModelSettings:
        """The wrapped model's."""
        return self.wrapped.default_settings

    @property
    def info(self) -> ModelInfo:
        """The wrapped model's."""
        return self.wrapped.info

    @property
    def features(self) -> frozenset[ModelFeature]:
        """The wrapped model's."""
        return self.wrapped.features

    @property
    def limits(self) -> Sequence[Limit]:
        """The wrapped model's limits of requests."""
        return tuple(getattr(self.wrapped, "limits", ()))

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the wrapped model. Raises as it does."""
        return self.wrapped.stream(request)

    async def __aenter__(self) -> Self:
        await self.wrapped.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await self.wrapped.__aexit__(exc_type, exc, tb)  # noqa: ASYNC102 - it is the wrapped model's to shield
