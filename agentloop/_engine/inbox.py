"""The reader's side of a run's inbox: the run's own loop shows the model the added inputs that are due.

Which input is due is decided in `_core/inbox.py`. Senders, who are in other tasks and threads, have `run/_inbox.py`.
"""

from __future__ import annotations

from agentloop._core.inbox import due_input
from agentloop._engine.run_guardrails import judge_added_input
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.records import InputShown


async def show_inputs(run: LiveRun, *, ends: bool = False) -> bool:
    """Show the model the added inputs that are due, one after the other; tell whether there was one.

    Each is judged by the input guardrails first. The last look into the inbox is the last step: what the caller does
    then, without waiting, nothing can come between. *ends*: the run would end otherwise.

    Raises:
        InputGuardrailTripwireTriggered: a guardrail trips.
        Exception: the error of a guardrail.
    """
    shown = False
    while (added := due_input(run.state, ends=ends)) is not None:
        if added.call_id is None and (run.agent.input_guardrails or run.settings.config.input_guardrails):
            await judge_added_input(run, added)
            if added.id not in run.state.inbox:
                continue  # a guardrail has rejected it
        run.tree.log.append(InputShown(*run.here(), added.id))
        shown = True
    return shown
