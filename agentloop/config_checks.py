"""Checks of a run's configuration: what `config` can't look at, since it knows nothing of the values it holds."""

from __future__ import annotations

from agentloop._common.checks import NAMES, Validator, check, fits, has, is_a, optional
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


_ONE: dict[str, tuple[str, Validator]] = {
    "model": ("a Model or a model string", is_a(str, Model)),
    "limits": ("UsageLimits(…)", is_a(UsageLimits)),
    "model_provider": ("a ModelProvider (with `get_model`)", has("get_model")),
    "output_store": ("a store (with `put`)", has("put")),
    "effects": ("Effects (with `perform`)", has("perform")),
}
_SEVERAL: dict[str, tuple[str, Validator]] = {
    "input_guardrails": ("an InputGuardrail", is_a(InputGuardrail)),
    "output_guardrails": ("an OutputGuardrail", is_a(OutputGuardrail)),
    "policies": ("a Policy (with `decide`)", is_a(Policy)),
    "instruments": ("an Instrument", fits(_is_instrument)),
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
    for field, (needed, validator) in _ONE.items():
        check(f"RunConfig.{field}", optional(NAMES.needs(f"{needed} is needed", validator)), getattr(config, field))
    for field, (needed, validator) in _SEVERAL.items():
        check(f"RunConfig.{field}", NAMES.each(needed, validator), getattr(config, field))
    if config.stop_when is not None:
        try:
            as_condition(config.stop_when)
        except UserTypeError as error:
            raise UserTypeError(f"RunConfig.stop_when: {error}") from None


run_config_checks.append(_look_at)
