"""Answers and added input from processes that have the database and no agents."""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from kit.secret_cases import ReversingCodec

from agentloop import ExternalTool, Runner, RunState
from agentloop.exceptions import InputRefusedError, JournalError, StateError, UserValueError
from agentloop.items import CallToAnswer, ToolOutput, UserMessage
from agentloop.postgres import LeaseHeld, PostgresJournal, PostgresStore
from agentloop.testing import call, check, replay, say
from agentloop.testing.invariants import Observation

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]

DESK = Path(__file__).with_name("desk.py")
ROOM = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


def asking(**options: Any) -> Any:
    """Return an agent that asks for a room, by the call `c`."""
    room = ExternalTool("room", "Ask for the room.", {}, returns=ROOM, **options)
    return script_agent("clerk", [call("room", {}, call_id="c")], say("done"), tools=[room])


async def pause(agent: Any, store: PostgresStore) -> None:
    """Run *agent* until it waits."""
    async with store.lease("run") as lease:
        result = await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
    assert [type(one) for one in result.interruptions] == [CallToAnswer]


async def go_on(agent: Any, store: PostgresStore) -> Any:
    """Resume the run as another worker, judge its journal, and return the result."""
    async with store.lease("run") as lease:
        result = await Runner.resume(agent, PostgresJournal(store, lease))
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    check(Observation(records=tuple(state.records), agent=agent))
    return result


def outputs(result: Any) -> list[str]:
    """Return the outputs of calls in the history."""
    return [str(item.output) for item in result.to_input_list() if isinstance(item, ToolOutput)]


@pytest.mark.scenario("PE-04")
async def test_an_answer_of_another_process_is_taken_once(conninfo: str, store: PostgresStore) -> None:
    """Not while a worker has the run. One that doesn't fit is refused and the call waits on; so is any second one."""
    agent = asking()
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
        with pytest.raises(LeaseHeld):
            await PostgresJournal(store, "run").answer("c", {"n": 1})
    async with PostgresStore(conninfo) as elsewhere:
        ann, bob = PostgresJournal(store, "run"), PostgresJournal(elsewhere, "run")
        (asked,), (seen,) = await ann.interruptions(), await bob.interruptions()
        assert isinstance(asked, CallToAnswer)
        assert (asked.call.name, asked.agent, dict(asked.returns)) == ("room", "clerk", ROOM)
        before = await ann.read()
        with pytest.raises(UserValueError, match=r"the answer to call 'c' of tool 'room' doesn't fit"):
            await ann.answer(asked, {"n": 0})
        with pytest.raises(StateError, match="no call 'another' waits for an answer"):
            await ann.answer("another", {"n": 1})
        with pytest.raises(StateError, match="call 'c'"):
            await ann.approve(asked)
        assert await bob.read() == before
        await ann.answer(asked, {"n": 7}, by="ann")
        for late in (seen, "c"):
            with pytest.raises(StateError, match="it was answered by 'ann'"):
                await bob.answer(late, {"n": 8}, by="bob")
        assert await bob.interruptions() == ()
        for _ in range(2):  # a second worker finds the end
            result = await go_on(agent, store)
            assert (result.final_output, outputs(result)) == ("done", ['{"n": 7}'])
        assert await ann.interruptions() == ()  # the object that answered reads what others wrote since
        with pytest.raises(StateError):
            await bob.answer(seen, {"n": 8}, by="bob")
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    assert [one.by for one in state.records if type(one).__name__ == "CallAnswered"] == ["ann"]  # type: ignore[union-attr]
    again = await anyio.to_thread.run_sync(lambda: replay(state, agent))
    assert again.records == tuple(state.records)


@pytest.mark.scenario("PE-04")
async def test_of_two_processes_that_answer_at_once_one_counts(conninfo: str, store: PostgresStore) -> None:
    """Each is a process of its own; the other one is told whose answer stands."""
    agent = asking()
    await pause(agent, store)
    said: dict[str, str] = {}

    async def answer(name: str, n: int) -> None:
        command = [sys.executable, str(DESK), conninfo, "run", "c", json.dumps({"n": n}), name]
        said[name] = (await anyio.run_process(command)).stdout.decode().strip()

    async with anyio.create_task_group() as group:
        group.start_soon(answer, "ann", 1)
        group.start_soon(answer, "bob", 2)
    (first,) = [name for name in said if said[name] == "taken"]
    (second,) = said.keys() - {first}
    assert said[second] == f"StateError: no call 'c' waits for an answer: it was answered by {first!r}"
    assert outputs(await go_on(agent, store)) == [f'{{"n": {1 if first == "ann" else 2}}}']


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize("faster", ["answer", "worker"])
async def test_an_answer_that_lost_the_race_says_who_was_faster(
    conninfo: str, store: PostgresStore, faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process answers, or runs on, between the reading of the log and the append. Nothing of it is appended."""
    agent = asking()
    await pause(agent, store)
    bob = PostgresJournal(store, "run")
    append, raced = bob.append, False

    async def race(lines: Sequence[bytes]) -> None:
        nonlocal raced
        if not raced:
            raced = True
            async with PostgresStore(conninfo) as elsewhere:
                await PostgresJournal(elsewhere, "run").answer("c", error="No room is left.", by="ann")
                if faster == "worker":
                    await go_on(agent, elsewhere)
        await append(lines)

    monkeypatch.setattr(bob, "append", race)
    with pytest.raises(StateError, match="it was answered by 'ann'" if faster == "answer" else "is over"):
        await bob.answer("c", {"n": 3}, by="bob")
    assert raced
    (output,) = outputs(await go_on(agent, store))
    assert "No room is left." in output


async def test_a_secret_answer_is_sealed_in_the_rows(store: PostgresStore) -> None:
    """The desk has the codec and no agents; without one the rows hold only a digest, and nobody can go on."""
    agent, codec = asking(secret_output=True), ReversingCodec()
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease, codec=codec))
    await PostgresJournal(store, "run", codec=codec).answer("c", {"n": 84129053771})
    assert b"84129053771" not in b"".join(await PostgresJournal(store, "run").read())
    async with store.lease("run") as lease:
        result = await Runner.resume(agent, PostgresJournal(store, lease, codec=codec))
    assert outputs(result) == ['{"n": 84129053771}']


# ---------------------------------------------------------------------------------------------- added input


@pytest.mark.scenario("PE-01", "PE-02")
async def test_input_of_another_process_is_shown_once(conninfo: str, store: PostgresStore) -> None:
    """Not while a worker has the run; twice with one id is once; what was taken back is not shown."""
    agent = asking()
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
        with pytest.raises(LeaseHeld):
            await PostgresJournal(store, "run").add_input("now")
    async with PostgresStore(conninfo) as elsewhere:
        ann, bob = PostgresJournal(store, "run"), PostgresJournal(elsewhere, "run")
        assert await ann.add_input("Be quick.", by="ann") == "input_1"
        assert await bob.add_input([UserMessage("On floor 2.")], id="floor", by="bob") == "floor"
        held = await ann.read()
        assert await ann.add_input([UserMessage("On floor 2.")], id="floor", by="bob") == "floor"
        with pytest.raises(InputRefusedError, match="floor") as other:
            await ann.add_input("On floor 3.", id="floor")
        assert other.value.reason == "other_input"
        assert await bob.read() == held
        gone = await bob.add_input("Never mind.", when="idle")
        await ann.withdraw(gone, by="ann")
        with pytest.raises(InputRefusedError) as twice:
            await bob.withdraw(gone)
        assert twice.value.reason == "withdrawn"
        await bob.answer("c", {"n": 7})
    result = await go_on(agent, store)
    shown = [item.text for item in result.to_input_list() if isinstance(item, UserMessage)]
    assert shown == ["go", "Be quick.", "On floor 2."]
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    assert [(one.id, one.status) for one in state.inputs] == [
        ("input_1", "shown"),
        ("floor", "shown"),
        (gone, "withdrawn"),
    ]
    with pytest.raises(InputRefusedError) as over:
        await PostgresJournal(store, "run").add_input("more")
    assert over.value.reason == "over"


@pytest.mark.scenario("PE-01", "PE-09")
async def test_inputs_of_many_at_once_have_one_order(conninfo: str, store: PostgresStore) -> None:
    """Those that are refused too often are told; each of the others is in the journal, under the id that it was given.

    One desk for each, so that each reads and appends by itself.
    """
    agent = asking()
    await pause(agent, store)
    given: dict[str, str] = {}

    async def add(text: str) -> None:
        desk, added = PostgresJournal(store, "run"), ""
        while not added:
            with suppress(StateError):  # others were faster ten times
                added = await desk.add_input(text)
        given[added] = text

    async with anyio.create_task_group() as group:
        for n in range(12):
            group.start_soon(add, f"note {n}")
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    assert [one.id for one in state.inputs] == [f"input_{n + 1}" for n in range(12)]
    assert {one.id: one.items[0].text for one in state.inputs} == given  # type: ignore[union-attr]
    assert len(set(given.values())) == 12


async def test_a_run_that_nobody_began_takes_no_input(store: PostgresStore) -> None:
    """Its journal is empty."""
    with pytest.raises(JournalError, match="no run has written to it"):
        await PostgresJournal(store, "run").add_input("hello")
    with pytest.raises(JournalError, match="no run has written to it"):
        await PostgresJournal(store, "run").answer("c", 1)
