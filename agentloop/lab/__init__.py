"""The lab: yesterday's runs against today's agent. Its parts are imported at first use.

`compare` runs recorded runs again with an agent as it is now, and says what became of each: an answer to "I changed the
prompt, what breaks?". Nothing of the outside world happens meanwhile: models are asked only what the log doesn't
answer, and of the tools only those run that only read. The command line has it as `agentloop lab`.

`fork` continues a recorded run from one of its records in several ways at once, behind the same firewall: an answer to
"what if the tool had said 'sold out'?". The command line has it as `agentloop fork`.

`upgrade_check` says what each run that waits would do if it were resumed with another agent: an answer to "may I deploy
this?". The command line has it as `agentloop upgrade-check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use

if TYPE_CHECKING:
    from agentloop.lab._cases import Case
    from agentloop.lab._checks import (
        Judge,
        RunCheck,
        Score,
        answer_matches,
        asked_before,
        called,
        cost_below,
        judge_by,
        not_called,
        order,
    )
    from agentloop.lab._compare import compare
    from agentloop.lab._diff import RunDiff, diff_runs
    from agentloop.lab._edits import DropCall, Edit, SetInput, SetOutput
    from agentloop.lab._effects import SimulatedCall
    from agentloop.lab._enter import EnteredCall, enter
    from agentloop.lab._fork import Branch, fork
    from agentloop.lab._fork_tree import Fork, ForkedRun, Origin
    from agentloop.lab._moments import Moment, MomentCall, MomentRun, list_moments, moment_at
    from agentloop.lab._pytest import for_each_journal
    from agentloop.lab._report import LabReport, read_report
    from agentloop.lab._rows import Figures, LabRow
    from agentloop.lab._runs import CaseCall, CaseRun, RunStep
    from agentloop.lab._upgrade import UpgradeCall, UpgradeReport, UpgradeRow, upgrade_check

__all__ = [
    "upgrade_check",
    "UpgradeReport",
    "UpgradeRow",
    "UpgradeCall",
    "enter",
    "EnteredCall",
    "fork",
    "Fork",
    "ForkedRun",
    "Branch",
    "Origin",
    "Edit",
    "SetOutput",
    "SetInput",
    "DropCall",
    "RunStep",
    "for_each_journal",
    "moment_at",
    "list_moments",
    "MomentRun",
    "MomentCall",
    "Moment",
    "diff_runs",
    "RunDiff",
    "Case",
    "CaseCall",
    "CaseRun",
    "RunCheck",
    "Figures",
    "Judge",
    "LabReport",
    "LabRow",
    "Score",
    "SimulatedCall",
    "answer_matches",
    "asked_before",
    "called",
    "compare",
    "cost_below",
    "judge_by",
    "not_called",
    "order",
    "read_report",
]

_LAZY = {
    "upgrade_check": "_upgrade",
    "UpgradeReport": "_upgrade",
    "UpgradeRow": "_upgrade",
    "UpgradeCall": "_upgrade",
    "enter": "_enter",
    "EnteredCall": "_enter",
    "fork": "_fork",
    "Fork": "_fork_tree",
    "ForkedRun": "_fork_tree",
    "Branch": "_fork",
    "Origin": "_fork_tree",
    "Edit": "_edits",
    "SetOutput": "_edits",
    "SetInput": "_edits",
    "DropCall": "_edits",
    "RunStep": "_runs",
    "for_each_journal": "_pytest",
    "moment_at": "_moments",
    "list_moments": "_moments",
    "MomentRun": "_moments",
    "MomentCall": "_moments",
    "Moment": "_moments",
    "diff_runs": "_diff",
    "RunDiff": "_diff",
    "Case": "_cases",
    "RunCheck": "_checks",
    "Judge": "_checks",
    "Score": "_checks",
    "answer_matches": "_checks",
    "asked_before": "_checks",
    "called": "_checks",
    "cost_below": "_checks",
    "judge_by": "_checks",
    "not_called": "_checks",
    "order": "_checks",
    "compare": "_compare",
    "SimulatedCall": "_effects",
    "LabReport": "_report",
    "read_report": "_report",
    "Figures": "_rows",
    "LabRow": "_rows",
    "CaseCall": "_runs",
    "CaseRun": "_runs",
}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
