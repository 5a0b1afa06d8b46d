"""The options of a run that is resumed: wrong ones get the error that a new run gives, whatever is left of the run."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kit.agents import script_agent
from kit.resuming import make_journal

from agentloop import AgentHooks, Runner, UserError
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import say

WRONG: dict[str, Callable[[], dict[str, Any]]] = {
    "agent": lambda: {"agent": "clerk"},
    "turns below one": lambda: {"max_turns": -1},
    "turns as text": lambda: {"max_turns": "3"},
    "hooks": lambda: {"hooks": object()},
    "hooks of an agent": lambda: {"hooks": AgentHooks()},
    "session": lambda: {"session": "chat.sqlite"},
    "configuration": lambda: {"run_config": {}},
    "error handlers": lambda: {"error_handlers": {"max_turn": print}},
    "conversation": lambda: {"conversation_id": 1},
    "two conversations": lambda: {"conversation_id": "c", "previous_response_id": "r"},
    "responses in turn": lambda: {"auto_previous_response_id": "yes"},
    "two histories": lambda: {"session": MemorySession(), "conversation_id": "c"},
}


async def find_error(run: Awaitable[Any]) -> tuple[type[Exception], str]:
    """Return class and words of the error of *run*."""
    with pytest.raises(UserError) as raised:
        await run
    return raised.type, str(raised.value)


@pytest.mark.parametrize("left", ["nothing", "its end", "all"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_option_has_the_same_error_whatever_the_journal_holds(wrong: str, left: str) -> None:
    """A run that has yet to begin, to end, or is over; the journal stays as it is."""
    given = WRONG[wrong]()
    agent = given.pop("agent", script_agent("clerk", say("yes")))
    expected = await find_error(Runner.run(agent, "Well?", **given))
    whole = MemoryJournal()
    await Runner.run(script_agent("clerk", say("yes")), "Well?", journal=whole)
    lines = list(await whole.read())
    lines = {"nothing": [], "its end": lines[:-1], "all": lines}[left]
    journal = await make_journal(lines)
    assert await find_error(Runner.run_or_resume(agent, "Well?", journal=journal, **given)) == expected
    if lines:
        assert await find_error(Runner.resume(agent, journal, **given)) == expected
    assert list(await journal.read()) == lines


@pytest.mark.parametrize("left", ["its end", "all"])
async def test_session_is_refused_for_a_run_that_the_provider_remembers(left: str) -> None:
    """Its journal says so, finished or not: the options name no conversation."""
    whole = MemoryJournal()
    await Runner.run(script_agent("clerk", say("yes")), "Well?", journal=whole, conversation_id="c")
    lines = list(await whole.read())
    journal = await make_journal(lines if left == "all" else lines[:-1])
    with pytest.raises(UserError, match="can't be used together"):
        await Runner.resume(script_agent("clerk"), journal, session=MemorySession())


async def test_options_that_fit_change_nothing_of_a_completed_run() -> None:
    """Those that only a run needs are neither used nor refused."""
    journal, session = MemoryJournal(), MemorySession()
    await Runner.run(script_agent("clerk", say("yes")), "Well?", journal=journal)
    result = await Runner.resume(script_agent("clerk"), journal, max_turns=1, session=session, error_handlers={})
    assert (result.final_output, await session.get_items()) == ("yes", [])
