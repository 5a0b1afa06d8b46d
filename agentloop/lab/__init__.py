"""The lab: yesterday's runs against today's agent.

`compare` runs recorded runs again with an agent as it is now, and says what became of each: an answer to "I changed the
prompt, what breaks?". Nothing of the outside world happens meanwhile: models are asked only what the log doesn't
answer, and of the tools only those run that only read.
"""

from agentloop.lab._cases import Case
from agentloop.lab._checks import (
    Check,
    Judge,
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
from agentloop.lab._effects import SimulatedCall
from agentloop.lab._report import LabReport, read_report
from agentloop.lab._rows import Figures, LabRow
from agentloop.lab._runs import CaseCall, CaseRun

__all__ = [
    "Case",
    "CaseCall",
    "CaseRun",
    "Check",
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
