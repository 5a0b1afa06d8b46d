"""`ModelTimeouts`: how long a model waits for its server. One value for every model that has a server."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypedDict

import attrs

from agentloop._common.checks import FIELDS, NAMES, check, is_a, optional
from agentloop._common.values import ByFields
from agentloop.exceptions import UserTypeError
from agentloop.limits import Capacity, Limit, Rate, TokenRate
from agentloop.model_events import ModelFeature
from agentloop.models._patience import ANSWER_TIMEOUT, Patience
from agentloop.settings import ModelSettings

_SECONDS = optional(FIELDS.seconds())


def _check_first(instance: Any, attribute: Any, value: Any) -> None:
    if value is not ...:
        _SECONDS(instance, attribute, value)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelTimeouts(ByFields):
    """Timeouts of one answer of a model, in seconds: to connect, between pieces, in total. None is no limit.

    Give one where a server is slower than most, or where you would rather fail early.
    `ModelSettings.timeout` bounds a whole attempt, with any model.

    Attributes:
        connect: For a connection.
        first_output: For the head of the answer, and for each piece until its first output. If you don't give it, it is
            300, or 600 where `ModelSettings.reasoning` asks for effort, because a model that thinks is silent for
            minutes.
        read: Between two pieces of an answer that has begun.
        total: For the whole answer, from the request on, without the time that your code takes between two events. So
            an answer that never ends is given up.

    Raises:
        UserTypeError, UserValueError: a field is not a positive number of seconds; the message names it.

    Example:
        from agentloop.models import ModelTimeouts, OpenAIChatModel

        timeouts = ModelTimeouts(connect=2, read=300)
        model = OpenAIChatModel("big", base_url="http://127.0.0.1:8000/v1", timeouts=timeouts)
        print(model.timeouts.total)  # 7200.0
    """

    connect: float | None = attrs.field(default=10.0, validator=_SECONDS)
    first_output: float | EllipsisType | None = attrs.field(default=..., validator=_check_first)
    read: float | None = attrs.field(default=60.0, validator=_SECONDS)
    total: float | None = attrs.field(default=ANSWER_TIMEOUT, validator=_SECONDS)


class HttpOptions(TypedDict, total=False):
    """Further arguments of a model that has a server.

    `limits` are those of its requests, in all runs: a `Capacity`, `Rate` or `TokenRate`, or several. `omit` names
    fields that aren't sent, `features` what of the interface the server has; see `HttpModel`. The others are
    what `ModelTimeouts` replaced; each is accepted for one more release, with a warning.
    """

    limits: Limit | Sequence[Limit]
    omit: Sequence[str]
    features: Collection[ModelFeature]
    connect_timeout: float | None
    first_output_timeout: float | EllipsisType | None
    silence_timeout: float | None
    answer_timeout: float | None


_LASTING = ("limits", "omit", "features")
_NOW = {
    "connect_timeout": "connect",
    "first_output_timeout": "first_output",
    "silence_timeout": "read",
    "answer_timeout": "total",
}


def choose_limits(options: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Return the limits in *options*.

    Raises:
        UserTypeError: one of them isn't a limit of requests.
    """
    given = options.get("limits", ())
    limits = (given,) if isinstance(given, Limit) else given
    check("limits", NAMES.each("a Capacity, Rate or TokenRate", is_a(Capacity, Rate, TokenRate)), limits)
    return tuple(limits)


def choose_timeouts(timeouts: ModelTimeouts | None, options: Mapping[str, Any]) -> ModelTimeouts:
    """Return *timeouts*, or those that former arguments in *options* give; the usual ones if there are none.

    Raises:
        UserTypeError, UserValueError: both are given, or there is no such argument, or it has no such value.
    """
    former = {name: value for name, value in options.items() if name not in _LASTING}
    if unknown := [name for name in former if name not in _NOW]:
        raise UserTypeError(f"{unknown[0]}: a model has no such argument")
    if timeouts is not None:
        check("timeouts", NAMES.a(ModelTimeouts), timeouts)
    if not former:
        return timeouts or ModelTimeouts()
    if timeouts is not None:
        raise UserTypeError(f"{next(iter(former))}: give timeouts=ModelTimeouts(…) only, which has this time too")
    fields = ", ".join(f"{_NOW[name]}={value!r}" for name, value in former.items() if value is not ...)
    warnings.warn(
        f"{', '.join(former)}: write timeouts=ModelTimeouts({fields}), as the next release has only that",
        DeprecationWarning,
        stacklevel=_find_level(),
    )
    return ModelTimeouts(**{_NOW[name]: value for name, value in former.items()})


def _find_level() -> int:
    """Return the level of the code that makes the model, for a warning of our caller: no constructor of ours."""
    level = 2
    while str(sys._getframe(level).f_globals.get("__name__")).startswith("agentloop.models."):
        level += 1
    return level


def patience_of(timeouts: ModelTimeouts, settings: ModelSettings) -> Patience:
    """Return the timeouts of one request with these *settings*."""
    first = timeouts.first_output
    if isinstance(first, EllipsisType):
        first = 600.0 if (settings.reasoning or {}).get("effort") else 300.0
    return Patience(timeouts.connect, first, timeouts.read, timeouts.total)
