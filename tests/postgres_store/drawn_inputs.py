"""Processes that are killed right after an input or an answer was acknowledged.

`python drawn_inputs.py STORE COUNT SEED BACKEND`: STORE is "memory", "file", or the address of a database. Each moment
is a process of its own, a fork. It runs an agent, gives it an input or the answer to a call at a drawn record, tells us
once that is acknowledged, and kills itself by SIGKILL after some more records, mostly none. Then another process
resumes the run and counts. ("memory" loses no process: the run is cancelled there, and its journal goes on.) Prints one
line of JSON: the moments of each kind, and the faults.
"""

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from agentloop import Agent, ExternalTool, Instrument, RunConfig, Runner, RunState, tool
from agentloop import records as r
from agentloop.exceptions import InputRefusedError, StateError
from agentloop.items import ToolOutput, UserMessage
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.testing import ScriptedModel, call, say

AT_ONCE = 10
TEXT, ANSWER = "and one more thing", "room 7"


@tool(idempotent=True)
async def look(n: int) -> str:
    """Look."""
    await anyio.lowlevel.checkpoint()
    return f"seen {n}"


def make_agent(*, asks: bool) -> Agent[Any, Any]:
    """Return the agent, whose model answers by the number of the turn, in any process; *asks*: for a room, at first."""

    def answer(request: Any) -> Any:
        turn = request.turn
        room = [call("room", {}, call_id="c")] if asks and turn == 1 else []
        return [call("look", {"n": turn}, call_id=f"l{turn}"), *room] if turn < 4 else say("done")

    room = ExternalTool("room", "Ask for a room.", {}, returns={"type": "string"})
    return Agent("desk", model=ScriptedModel([answer] * 40), tools=[look, room])


class At(Instrument):
    """Sets `come` at record *place*, and calls *die* so many records after `armed` was set."""

    def __init__(self, place: int, more: int, die: Any) -> None:
        self.come, self.armed = anyio.Event(), False
        self._left, self._more, self._die = place, more, die

    def on_record(self, record: r.Record) -> None:
        """Count."""
        self._left -= 1
        if self._left == 0:
            self.come.set()
        if self.armed:
            self._more -= 1
            self.check()

    def check(self) -> None:
        """Die, if it is time."""
        if self._more <= 0:
            self._die()


async def act(moment: dict[str, Any], journal: Any, acknowledged: Any, die: Any) -> None:
    """Run the agent, give it what the moment says, acknowledge, die."""
    at = At(moment["place"], moment["more"], die)
    agent = make_agent(asks=moment["what"] == "answer")

    config = RunConfig(instruments=[at])
    run = Runner.run_streamed(agent, "go", journal=journal, run_config=config)
    async with run as stream, anyio.create_task_group() as group:

        async def give() -> None:
            await at.come.wait()
            with suppress(InputRefusedError, StateError):
                if moment["what"] == "input":
                    await stream.add_input(TEXT, when=moment["when"], id="more")
                else:
                    await stream.answer("c", ANSWER)
                acknowledged()
                at.armed = True
                at.check()

        group.start_soon(give)
        async for _ in stream:
            pass
        group.cancel_scope.cancel()
    if moment["what"] == "answer" and stream.result.interruptions:
        await answer_by_path(agent, journal)
        acknowledged()
        die()


async def answer_by_path(agent: Agent[Any, Any], journal: Any) -> None:
    """Answer the call in the journal."""
    state = await RunState.from_journal(agent, journal)
    state.answer("c", ANSWER)
    await state.append_to(journal)


async def judge(moment: dict[str, Any], journal: Any, acknowledged: bool) -> list[str]:
    """Resume the run to its end; return what is wrong."""
    agent = make_agent(asks=moment["what"] == "answer")
    result = await Runner.resume(agent, journal)
    if result.interruptions:
        await answer_by_path(agent, journal)
        result = await Runner.resume(agent, journal)
    records = (await RunState.from_journal(agent, journal)).records
    kinds = Counter(type(one).__name__ for one in records)
    shown = sum(isinstance(one, UserMessage) and one.text == TEXT for one in result.to_input_list())
    answers = [one.output for one in result.to_input_list() if isinstance(one, ToolOutput) and one.call_id == "c"]
    faults = []
    if moment["what"] == "input" and not int(acknowledged) <= shown <= 1:
        faults.append(f"shown {shown} times, acknowledged: {acknowledged}")
    if shown != kinds["InputShown"] or kinds["InputAdded"] > 1:
        faults.append(f"{kinds['InputAdded']} inputs, {kinds['InputShown']} shown, {shown} in the history")
    asked = moment["what"] == "answer"
    if answers != [ANSWER] * asked or kinds["CallAnswered"] != asked:
        faults.append(f"answers {answers}, {kinds['CallAnswered']} records")
    if result.final_output != "done":
        faults.append(f"final output {result.final_output!r}")
    return [f"{moment}: {fault}" for fault in faults]


@asynccontextmanager
async def open_journal(store: str, name: str, *, again: bool = False) -> Any:
    """Open the journal *name*; *again* once its process is dead, whose lease in a database we end at once."""
    if store == "file":
        yield FileJournal(name)
        return
    from agentloop.postgres import PostgresJournal, PostgresStore

    run_id = Path(name).name
    async with PostgresStore(store) as opened:
        if again:
            end_lease = "UPDATE agentloop_leases SET ends_at = NULL WHERE run_id = %s"
            await opened.connections.run(lambda database: database.execute(end_lease, (run_id,)))
        async with opened.lease(run_id) as lease:
            yield PostgresJournal(opened, lease)


def draw(seed: str, number: int) -> dict[str, Any]:
    """Return moment *number*."""
    drawn = random.Random(f"{seed} {number}")
    what = drawn.choice(["input", "answer"])
    place = drawn.randint(1, 24) if what == "input" else drawn.randint(4, 9)
    more = drawn.choice([0, 0, 0, 1, 2, 5, 1000])
    return {"number": number, "what": what, "when": drawn.choice(["turn", "idle"]), "place": place, "more": more}


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def begin(store: str, name: str, moment: dict[str, Any], backend: str) -> tuple[int, int]:
    """Begin the process of *moment*; return its id, and the pipe that has a byte once it was acknowledged."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:

        async def work() -> None:
            async with open_journal(store, name) as journal:
                await act(moment, journal, lambda: os.write(writer, b"a"), die)

        try:
            anyio.run(work, backend=backend)
        except BaseException:  # told by the exit code, and on standard error
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    return child, reader


def begin_judging(store: str, name: str, moment: dict[str, Any], acknowledged: bool, backend: str) -> tuple[int, int]:
    """Begin a process that resumes the run of *moment*; return its id, and the pipe that has what is wrong."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:

        async def work() -> list[str]:
            async with open_journal(store, name, again=True) as journal:
                return await judge(moment, journal, acknowledged)

        try:
            found = anyio.run(work, backend=backend)
        except BaseException as error:  # told to the parent
            found = [f"{moment}: {error!r}"]
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    return child, reader


async def in_memory(moment: dict[str, Any]) -> tuple[bool, list[str]]:
    """The same in this process: a cancellation in the place of a death."""
    journal, told = MemoryJournal(), []
    with anyio.CancelScope() as scope:
        await act(moment, journal, lambda: told.append(True), scope.cancel)
    return bool(told), await judge(moment, journal, bool(told))


def end(child: int, reader: int) -> tuple[bool, bytes]:
    """Wait for a process; return whether it was killed, and what it said."""
    said = b"".join(iter(lambda: os.read(reader, 65536), b""))
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), said


def main(store: str, count: int, seed: str, backend: str) -> None:
    """Do all moments, some at once, and print what came of them."""
    kinds: Counter[str] = Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, count, AT_ONCE):
            moments = [draw(seed, number) for number in range(first, min(first + AT_ONCE, count))]
            if store == "memory":
                for moment in moments:
                    acknowledged, found = anyio.run(in_memory, moment, backend=backend)
                    kinds[f"{moment['what']} acknowledged"] += acknowledged
                    faults += found
                continue
            names = {moment["number"]: str(Path(folder) / f"{seed}-{moment['number']}.jsonl") for moment in moments}
            begun = [begin(store, names[moment["number"]], moment, backend) for moment in moments]
            judging = []
            for moment, (child, reader) in zip(moments, begun, strict=True):
                killed, said = end(child, reader)
                kinds[f"{moment['what']} acknowledged"] += bool(said)
                kinds["killed"] += killed
                judging.append(begin_judging(store, names[moment["number"]], moment, bool(said), backend))
            for child, reader in judging:
                faults += json.loads(end(child, reader)[1])
    print(json.dumps({"moments": count, **kinds, "faults": faults}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
