"""A run without a policy does nothing of it: not one call, record or module more."""

import subprocess
import sys
from typing import Any

import pytest
from kit.windows import compactions, make_agent, reader

from agentloop import ContextPolicy, Runner
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say

pytestmark = pytest.mark.scenario("CX-07")


def places_of(policy: ContextPolicy | None) -> tuple[set[str], list[type]]:
    """Return the modules of whose code something ran in a run with *policy*, and the kinds of its records."""
    called: set[str] = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            called.add(frame.f_globals.get("__name__", ""))

    model = ScriptedModel([*[call("read", {"page": page}) for page in range(4)], say("done")])
    agent = make_agent(policy, model)
    sys.setprofile(note)
    try:
        result = Runner.run_sync(agent, "Read.")
    finally:
        sys.setprofile(None)
    return called, [type(one) for one in result.records]


def test_no_code_of_the_window_runs() -> None:
    """With a policy it does, which shows that the test would see it."""
    ours = ("agentloop.window", "agentloop._core.context_size", "agentloop._compacting")
    places_of(ContextPolicy(window=99_000))  # imports
    without, plain = places_of(None)
    assert not [name for name in without if name.startswith(ours)]
    with_one, watched = places_of(ContextPolicy(window=99_000))
    assert [name for name in with_one if name.startswith(ours)]
    assert plain == watched
    assert r.HistoryReplaced not in plain


def test_a_policy_that_has_nothing_to_do_adds_no_record() -> None:
    """It looks, and that is all."""
    result = Runner.run_sync(make_agent(ContextPolicy(window=99_000), reader(4)), "Read.")
    plain = Runner.run_sync(make_agent(None, reader(4)), "Read.")
    assert not compactions(result.records)
    assert [type(one) for one in result.records] == [type(one) for one in plain.records]


def test_no_module_of_the_window_is_imported() -> None:
    """In a process that runs an agent without one."""
    program = (
        "import sys\n"
        "from agentloop import Agent, RunConfig, Runner\n"
        "from agentloop.testing import ScriptedModel, say\n"
        "Runner.run_sync(Agent('a', model=ScriptedModel([say('hi')])), 'go', run_config=RunConfig())\n"
        "print([name for name in sys.modules if name.startswith(('agentloop.window', 'agentloop._compact'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
