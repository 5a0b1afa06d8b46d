"""Checks of a run's configuration: what `config` can't look at, since it knows nothing of the values it holds."""

from __future__ import annotations

from agentloop.budget import UsageLimits
from agentloop.conditions import as_condition
from agentloop.config import RunConfig
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.policies import Policy


def check_run_config(config: object) -> RunConfig:
    """Return *config*, a `RunConfig` all of whose fields hold what they are for.

    Raises:
        UserTypeError: naming the field.
    """
    if not isinstance(config, RunConfig):
        raise UserTypeError(f"run_config: a RunConfig is needed, not {config!r}")
    if config.limits is not None and not isinstance(config.limits, UsageLimits):
        raise UserTypeError(f"RunConfig.limits: UsageLimits are needed, not {config.limits!r}")
    for field, kind in (("input_guardrails", InputGuardrail), ("output_guardrails", OutputGuardrail)):
        for index, guardrail in enumerate(getattr(config, field)):
            if not isinstance(guardrail, kind):
                raise UserTypeError(f"RunConfig.{field}[{index}]: a {kind.__name__} is needed, not {guardrail!r}")
    for index, policy in enumerate(config.policies):
        if not isinstance(policy, Policy):
            raise UserTypeError(f"RunConfig.policies[{index}]: a Policy (with `decide`) is needed, not {policy!r}")
    if config.stop_when is not None:
        as_condition(config.stop_when)
    return config
