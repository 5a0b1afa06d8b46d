"""`Runner.run_or_resume`: one call that begins the run of a journal, resumes it, or returns its result."""

from typing import Any

import pytest
from kit.agents import script_agent
from kit.resuming import make_journal
from kit.secret_cases import ReversingCodec

from agentloop import Agent, Runner, RunState, StateError, ToolCallError, UserError, tool
from agentloop.items import UserMessage
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.testing import call, say


def make_clerk(done: list[int], *answers: Any) -> Agent[Any, Any]:
    """Return an agent with a tool that notes its calls in *done*."""

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        done.append(n)
        return f"paid {n}"

    return script_agent("clerk", *answers, tools=[pay])


async def test_empty_journal_begins_a_run() -> None:
    """The journal then holds the whole run."""
    journal, done = MemoryJournal(), list[int]()
    agent = make_clerk(done, call("pay", {"n": 1}), say("paid"))
    result = await Runner.run_or_resume(agent, "Pay.", journal=journal, max_turns=3)
    assert (result.final_output, done) == ("paid", [1])
    assert (await RunState.from_journal(agent, journal)).status == "completed"


async def test_unfinished_run_is_resumed_and_repeats_nothing() -> None:
    """A call that has settled isn't run again, and an answered request isn't asked again."""
    whole, done = MemoryJournal(), list[int]()
    await Runner.run_or_resume(make_clerk(done, call("pay", {"n": 1}), say("paid")), "Pay.", journal=whole)
    lines = await whole.read()
    first_turn = next(index for index, line in enumerate(lines) if b'"batch_ended"' in line)
    journal = await make_journal(lines[: first_turn + 1])
    agent = make_clerk(done, say("paid"))
    result = await Runner.run_or_resume(agent, "Pay.", journal=journal)
    assert (result.final_output, done, result.usage.requests) == ("paid", [1], 2)


async def test_completed_run_returns_its_result_and_asks_no_model() -> None:
    """The second call reads the journal alone."""
    journal, agent = MemoryJournal(), script_agent("a", say("yes"))
    first = await Runner.run_or_resume(agent, "Well?", journal=journal)
    lines = await journal.read()
    again = await Runner.run_or_resume(script_agent("a"), "Well?", journal=journal)
    assert again.final_output == first.final_output == "yes"
    assert await journal.read() == lines


async def test_journal_is_read_once_and_checked_once_before_it_is_written() -> None:
    """A long one takes long. The run itself reads it again, since it may have been written to meanwhile."""
    reads = 0

    class Counted(MemoryJournal):
        async def read(self) -> list[bytes]:
            nonlocal reads
            reads += 1
            return await super().read()

    async def count(records: list[bytes], *answers: Any) -> int:
        nonlocal reads
        journal = Counted()
        if records:
            await journal.append(records)
        reads = 0
        result = await Runner.run_or_resume(script_agent("a", *answers), "Well?", journal=journal)
        assert result.final_output == "yes"
        return reads

    whole = MemoryJournal()
    await Runner.run_or_resume(script_agent("a", say("yes")), "Well?", journal=whole)
    lines = await whole.read()
    begun = next(index for index, line in enumerate(lines) if b'"turn_started"' in line)
    assert await count([], say("yes")) == 2
    assert await count(lines[: begun + 1], say("yes")) == 2
    assert await count(lines) == 1


async def test_run_that_has_failed_for_good_is_refused() -> None:
    """The error names the failure; the tool isn't called again."""

    @tool(failure_error_function=None)
    async def explode() -> str:
        """Fail."""
        raise ValueError("broken")

    def failing(*answers: Any) -> Agent[Any, Any]:
        return script_agent("a", *answers, tools=[explode])

    journal = MemoryJournal()
    with pytest.raises(ToolCallError, match="broken"):
        await Runner.run_or_resume(failing(call("explode")), "go", journal=journal)
    with pytest.raises(StateError, match=r"is over: call 'call_1' of tool 'explode' failed: ValueError\(broken\)"):
        await Runner.run_or_resume(failing(), "go", journal=journal)


async def test_another_input_is_refused_and_named() -> None:
    """A journal that was given for the wrong input is found before anything runs."""
    journal = MemoryJournal()
    await Runner.run_or_resume(script_agent("a", say("yes")), "One?", journal=journal)
    with pytest.raises(UserError, match=r"input: the run in MemoryJournal\(\) began with another one: 'One\?'"):
        await Runner.run_or_resume(script_agent("a"), "Two?", journal=journal)


@pytest.mark.parametrize("codec", [None, ReversingCodec()], ids=["digests", "sealed"])
async def test_secret_input_is_compared_and_not_shown(codec: Any) -> None:
    """A secret of which the journal has the digest alone is still known; an error doesn't quote it."""
    journal = MemoryJournal(codec=codec)
    secret = [UserMessage("hunter2", secret=True)]
    await Runner.run_or_resume(script_agent("a", say("yes")), secret, journal=journal)
    assert (await Runner.run_or_resume(script_agent("a"), iter(secret), journal=journal)).final_output == "yes"
    with pytest.raises(UserError) as raised:
        await Runner.run_or_resume(script_agent("a"), [UserMessage("hunter3", secret=True)], journal=journal)
    assert "hunter" not in str(raised.value)


async def test_something_else_than_a_journal_is_refused() -> None:
    """The error names the argument."""
    with pytest.raises(
        UserError, match=r"journal: expected a Journal, got 'run\.journal': for instance FileJournal\('run\.journal'\)"
    ):
        await Runner.run_or_resume(script_agent("a"), "go", journal="run.journal")  # type: ignore[arg-type]


def test_state_knows_its_input() -> None:
    """A state of nothing has none."""
    state = RunState(script_agent("a"), ())
    assert state.input == ()
    assert not state.began_with("go")


@pytest.mark.real_clock
async def test_journal_in_a_file_begins_and_resumes(tmp_path: Any) -> None:
    """The file doesn't exist at first."""
    for answers in ([say("yes")], []):
        async with FileJournal(tmp_path / "run.journal") as journal:
            result = await Runner.run_or_resume(script_agent("a", *answers), "Well?", journal=journal)
        assert result.final_output == "yes"
