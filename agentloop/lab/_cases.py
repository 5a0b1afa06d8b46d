"""Cases: inputs without a journal. The first comparison records them, with the agent as it is then."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions import AgentLoopError, UserValueError
from agentloop.journal.file import FileJournal
from agentloop.lab._checks import RunCheck, answer_matches
from agentloop.run import Runner

_NAME = re.compile(r"[\w.-]{1,80}")


def _check_name(_case: Case, _attribute: Any, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise UserValueError(f"Case.name: expected letters, digits, '.', '_' and '-', at most 80, got {name!r}")


def _as_tuple(checks: Iterable[RunCheck]) -> tuple[RunCheck, ...]:
    return tuple(checks)


@attrs.frozen
class Case:
    """An input whose run is compared. Its first comparison runs it for real, tools included, and keeps the journal.

    Delete its journal to record it anew.

    Attributes:
        input: The input, as text.
        name: The name of its journal and its row; made of the input if not given.
        make_context: A function that makes the application's object of the run, in place of the comparison's.
        expect: A text that the answer must hold, letter by letter; None for no such check.
        checks: What must be true of its run; with *expect*, that too.

    Example:
        from agentloop import lab

        case = lab.Case("Where is order o-1?", checks=[lab.called("look_up"), lab.not_called("refund")])
        print(case.name)  # Where-is-order-o-1
    """

    input: str
    name: str = attrs.field(
        default=attrs.Factory(
            lambda self: re.sub(r"[^\w.]+", "-", self.input).strip("-.")[:60] or "case", takes_self=True
        ),
        validator=_check_name,
    )
    make_context: Callable[[], Any] | None = attrs.field(default=None, kw_only=True)
    expect: str | None = attrs.field(default=None, kw_only=True)
    checks: Sequence[RunCheck] = attrs.field(default=(), kw_only=True, converter=_as_tuple)

    @property
    def all_checks(self) -> tuple[RunCheck, ...]:
        """`checks`, and the one that *expect* makes."""
        more = () if self.expect is None else (attrs.evolve(answer_matches(re.escape(self.expect)), name="expected"),)
        return (*self.checks, *more)


async def record_case(case: Case, agent: Agent[Any, Any], config: RunConfig, folder: str | os.PathLike[str]) -> Path:
    """Return the file of the case's journal, made by a run of *agent* if there is none.

    A run that fails is recorded, too: the comparison shows its error.
    """
    path = Path(folder) / f"{case.name}.journal"
    if path.exists() and path.stat().st_size:
        return path
    os.makedirs(folder, mode=0o700, exist_ok=True)
    context = None if case.make_context is None else case.make_context()
    async with FileJournal(path) as journal:
        try:
            await Runner.run(agent, case.input, journal=journal, run_config=config, context=context)
        except AgentLoopError:
            if not await journal.read():  # noqa: ASYNC120 - the journal has the run's error; a cancellation continues
                raise
    return path
