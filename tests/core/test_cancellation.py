"""The table of who ends a call early: every cell is there, and they fit together."""

from itertools import product
from typing import get_args

from agentloop._core.cancellation import CAUSES, CUTS, Cause, Stage, is_graver
from agentloop.outcomes import FROM_ABOVE

STAGES = get_args(Stage)


def test_the_table_names_every_cause_at_every_stage() -> None:
    """No combination is left to the code that looks it up."""
    assert set(CUTS) == set(product(CAUSES, STAGES))
    assert set(CAUSES) == set(get_args(Cause))


def test_a_cut_names_its_cause() -> None:
    """A timeout has a status of its own, and every other cause is in the outcome as it is in the table."""
    for (cause, stage), cut in CUTS.items():
        if cut is not None:
            assert (cut.status, cut.by) == (("timed_out", None) if cause == "timeout" else ("cancelled", cause))
            assert cut.softly is ((cause, stage) == ("sibling", "after"))


def test_what_ends_the_whole_batch_asks_no_policy_of_the_tool() -> None:
    """The end of the run has no output, since the call is due again; a sibling's failure is the run's already."""
    for cause, stage in CUTS:
        cut = CUTS[cause, stage]
        if cut is not None:
            assert (cut.policy is None) is (cause in ("sibling", *FROM_ABOVE))
            assert (cut.output("f") is not None) is (cause == "sibling")


def test_of_two_causes_the_graver_one_stays() -> None:
    """The order is total, and a cause doesn't replace itself."""
    for index, cause in enumerate(CAUSES):
        assert is_graver(cause, None)
        assert [is_graver(cause, other) for other in CAUSES] == [place < index for place in range(len(CAUSES))]
