"""What the options of `agentloop run` and `resume` say, and what follows for every run of the process."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from agentloop.abc import Journal
from agentloop.agents import Agent
from agentloop.cli.approver import Approver, Nobody
from agentloop.cli.folder import Folder
from agentloop.cli.streams import Output
from agentloop.config import RunConfig
from agentloop.runtime import Runtime


@attrs.frozen(kw_only=True)
class Job:
    """The agent, how to run it, where to write, who approves, and where runs are kept.

    `max_turns` holds for runs that begin, `more_turns`, where given, for those that go on.
    """

    agent: Agent[Any, Any]
    out: Output
    err: Output
    backend: Literal["asyncio", "trio"] = "asyncio"
    model: str | None = None
    max_turns: int = 10
    more_turns: int | None = None
    concurrency: int = 4
    json: bool = False
    traceback: bool = False
    approver: Approver = attrs.field(factory=Nobody)
    folder: Folder | None = None

    def options(self, *, is_fresh: bool, journal: Journal | None) -> dict[str, Any]:
        """Return the options of `Runner`'s methods for a run that begins, or for one that goes on."""
        turns = self.max_turns if is_fresh else self.more_turns
        limit = {} if turns is None else {"max_turns": turns}
        return {"run_config": RunConfig(model=self.model), "journal": journal, **limit}

    async def open_model(self, runtime: Runtime) -> None:
        """Open the model now, so that a missing key or model is told of before anything runs, and once.

        Raises:
            UserError: what is missing, and what to do about it.
        """
        name = self.model or self.agent.model
        if isinstance(name, str):
            await runtime.providers.open(name)

    def advice(self, lines: int | None) -> str:
        """Return what to do about calls that wait: of the one request, or of that many *lines*."""
        if self.folder is None:
            return "Nothing of it was kept: run again with --journal DIR to decide later, or with --approve always."
        name = self.folder.name
        call = "CALL" if lines is None else "LINE:CALL"
        return (
            f"See: agentloop pending {name}; decide: agentloop approve {name} {call}, or reject; "
            f"then go on: agentloop resume {name}"
        )
