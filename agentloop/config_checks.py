"""Checks of a run's configuration: what `config` can't look at, since it knows nothing of the values it holds."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop._common import checks
from agentloop.abc import Instrument, Model
from agentloop.budget import UsageLimits
from agentloop.conditions import as_condition
from agentloop.config import RunConfig, run_config_checks
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.policies import Policy

_TOLD = tuple(name for name in vars(Instrument) if name.startswith("on_"))


def _is_instrument(value: object) -> bool:
    """Tell whether *value* has a method of an instrument's: who has only some hears only of these."""
    return not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in _TOLD)


_ONE: dict[str, tuple[str, checks.Fits]] = {
    "model": ("a Model or a model string", lambda value: isinstance(value, str | Model)),
    "limits": ("UsageLimits(…)", lambda value: isinstance(value, UsageLimits)),
    "model_provider": ("a ModelProvider (with `get_model`)", checks.has("get_model")),
    "output_store": ("a store (with `put`)", checks.has("put")),
    "effects": ("Effects (with `perform`)", checks.has("perform")),
}
_SEVERAL: dict[str, tuple[str, checks.Fits]] = {
    "input_guardrails": ("an InputGuardrail", lambda value: isinstance(value, InputGuardrail)),
    "output_guardrails": ("an OutputGuardrail", lambda value: isinstance(value, OutputGuardrail)),
    "policies": ("a Policy (with `decide`)", lambda value: isinstance(value, Policy)),
    "instruments": ("an Instrument", _is_instrument),
}


def check_run_config(config: object) -> RunConfig:
    """Return *config*, a `RunConfig` all of whose fields hold what they are for: sequences may have been changed.

    Raises:
        UserTypeError: naming the field.
    """
    if not isinstance(config, RunConfig):
        raise UserTypeError(f"run_config: a RunConfig is needed, not {config!r}")
    _look_at(config)
    return config


def _look_at(config: RunConfig) -> None:
    for field, (needed, fits) in _ONE.items():
        checks.check(f"RunConfig.{field}", needed, fits, getattr(config, field), optional=True)
    for field, (needed, fits) in _SEVERAL.items():
        members = getattr(config, field)
        if isinstance(members, str) or not isinstance(members, Sequence):
            raise UserTypeError(f"RunConfig.{field}: a sequence is needed, each of it {needed}, not {members!r}")
        for index, member in enumerate(members):
            checks.check(f"RunConfig.{field}[{index}]", needed, fits, member)
    if config.stop_when is not None:
        try:
            as_condition(config.stop_when)
        except UserTypeError as error:
            raise UserTypeError(f"RunConfig.stop_when: {error}") from None


run_config_checks.append(_look_at)
