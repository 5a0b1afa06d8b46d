"""Settings that come with a model, and those made by hand."""

from typing import Any

import pytest

from agentloop import Agent, ModelSettings, RunConfig
from agentloop.testing import ScriptedModel, say


class Warm(ScriptedModel):
    """A model with defaults of its own."""

    @property
    def default_settings(self) -> ModelSettings:
        return ModelSettings(temperature=0.7)


class Cold(ScriptedModel):
    """Another one."""

    @property
    def default_settings(self) -> ModelSettings:
        return ModelSettings(temperature=0.0)


@pytest.mark.scenario("DE-03")
async def test_implicit_settings_follow_the_model_and_explicit_ones_stay(run_mode: Any) -> None:
    """`clone` and `RunConfig.model` change the implicit settings alike."""
    implicit = Agent("a", model=Warm())
    assert implicit.model_settings.temperature == 0.7
    assert implicit.clone(model=Cold()).model_settings.temperature == 0.0
    assert implicit.clone(model=ScriptedModel()).model_settings == ModelSettings()
    explicit = Agent("a", model=Warm(), model_settings=ModelSettings(temperature=0.3))
    assert explicit.clone(model=Cold()).model_settings.temperature == 0.3
    for agent, wanted in ((implicit, 0.0), (explicit, 0.3)):
        other = Cold([say("x")])
        await run_mode(agent, "go", run_config=RunConfig(model=other))
        assert other.requests[0].settings.temperature == wanted
    assert implicit.model_settings.temperature == 0.7
