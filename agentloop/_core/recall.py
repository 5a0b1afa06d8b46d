"""The outputs that a model may read again: those in the log of the run, as they were before they were cleared."""

from itertools import chain

from agentloop._core.run_fold import RunFold
from agentloop._storage.withholding import WithheldText
from agentloop.items import Text, ToolOutput


def find_output(state: RunFold, call_id: str) -> str:
    """Return the text of the output of call *call_id* of the run of *state*, or of an earlier run of its session.

    Raises:
        LookupError: there is none that the model may read; the text says why.
    """
    assert state.started is not None  # a call of it asks
    began_with = state.started.shown or state.started.input
    items = chain(reversed(state.new_items), reversed(began_with))  # the latest first: the log has all of it
    found = next((item for item in items if isinstance(item, ToolOutput) and item.call_id == call_id), None)
    if found is None:
        raise LookupError(f"There is no output of a call {call_id!r} in this conversation.")
    texts = [found.output] if isinstance(found.output, str) else [p.text for p in found.output if isinstance(p, Text)]
    if found.secret or any(isinstance(text, WithheldText) for text in texts):
        raise LookupError(f"The output of call {call_id!r} can't be read again: it is withheld.")
    if not texts:
        raise LookupError(f"The output of call {call_id!r} has no text.")
    return "\n".join(texts)
