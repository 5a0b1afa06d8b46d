"""What the options of `agentloop run` say, and what follows for every run of the process."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from agentloop.agents import Agent
from agentloop.cli.streams import Output
from agentloop.config import RunConfig
from agentloop.runtime import Runtime


@attrs.frozen(kw_only=True)
class Job:
    """The agent, how to run it, and where to write."""

    agent: Agent[Any, Any]
    out: Output
    err: Output
    backend: Literal["asyncio", "trio"] = "asyncio"
    model: str | None = None
    max_turns: int = 10
    concurrency: int = 4
    json: bool = False
    traceback: bool = False

    @property
    def how(self) -> dict[str, Any]:
        """The options of `Runner`'s methods."""
        return {"max_turns": self.max_turns, "run_config": RunConfig(model=self.model)}

    async def open_model(self, runtime: Runtime) -> None:
        """Open the model now, so that a missing key or model is told of before anything runs, and once.

        Raises:
            UserError: what is missing, and what to do about it.
        """
        name = self.model or self.agent.model
        if isinstance(name, str):
            await runtime.providers.open(name)
