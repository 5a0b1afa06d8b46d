"""Calls that need approval, on the command line: asked at the terminal, or left pending and decided elsewhere."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from cli.terminal import Terminal
from click.testing import Result

from agentloop import Agent, Ask, PendingCall, RunConfig, Runner, ask_user, tool
from agentloop._common.terminal_text import exact
from agentloop.cli.run_options import Questions, can_ask, find_asking_policy
from agentloop.cli.streams import Output, TypedLines
from agentloop.items import ApprovalRequest, ToolCall
from agentloop.journal import FileJournal, SQLiteJournal
from agentloop.testing import ScriptedModel, call, say

Start = Callable[..., "subprocess.Popen[str]"]
Invoke = Callable[..., Result]
AgentOf = Callable[[str], str]
Noted = Callable[[], list[str]]
OTHER = {"asyncio": "trio", "trio": "asyncio"}


async def test_call_that_was_put_off_is_asked_about_in_another_run() -> None:
    """In a conversation each message is a run, and a model may number its calls anew in each."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("a", model=ScriptedModel([call("pay", call_id="1")] * 2), tools=[pay])
    questions = Questions(Output(io.StringIO()), lines=TypedLines(io.BytesIO(b"later\nyes\n")))
    first, second = [(await Runner.run(agent, "go")).to_state() for _ in range(2)]
    assert not await questions.decide(first, "")
    assert not await questions.decide(first, "")
    assert await questions.decide(second, "")
    assert second.interruptions == ()


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """DIR, which isn't there yet."""
    return str(tmp_path / "kept")


@pytest.fixture
def agent() -> AgentOf:
    """`agent("name")` is the TARGET of an agent in `kept_agents.py`."""
    return lambda name: f"{Path(__file__).with_name('kept_agents.py')}:{name}"


@pytest.fixture
def noted(notes: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Return a function that reads the notes of all tools, those of this process too."""
    monkeypatch.setenv("AGENTLOOP_TEST_NOTES", str(notes))
    return lambda: notes.read_text().splitlines() if notes.exists() else []


def finished(child: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Return the exit code and both outputs of a child that ends by itself."""
    out, err = child.communicate(timeout=30)
    return child.returncode, out, err


# -- journals of a program


@tool(needs_approval=True)
async def erase(path: str) -> str:
    """Erase a file."""
    return f"{path} is gone"


def eraser(*steps: object) -> Agent[None]:
    """Return an agent whose calls need approval, with the answers of its model."""
    return Agent("eraser", model=ScriptedModel(steps), tools=[erase, ask_user()])


PLACES: dict[str, Callable[[Path], list[FileJournal | SQLiteJournal]]] = {
    "file": lambda at: [FileJournal(at / "a.journal")],
    "sealed": lambda at: [FileJournal(at / "a.journal", key=b"k" * 32)],
    "folder": lambda at: [FileJournal(at / f"{name}.journal") for name in "ab"],
    "sqlite": lambda at: [SQLiteJournal(at / "runs.sqlite", name, key=b"k" * 32) for name in "ab"],
    "folder of sqlite": lambda at: [SQLiteJournal(at / "runs.sqlite", name) for name in "ab"],
}


@pytest.mark.parametrize("kind", PLACES)
def test_the_calls_in_journals_of_a_program_are_decided_on(
    invoke: Invoke, tmp_path: Path, kind: str, backend: str
) -> None:
    """`pending`, `approve`, `reject` and `answer` take a journal or a folder of them; the program resumes the run."""
    asked = [
        call("erase", {"path": "x"}, call_id="1"),
        call("erase", {"path": "y"}, call_id="2"),
        call("ask_user", {"question": "Sure?"}, call_id="3"),
    ]
    at = tmp_path / "journals"
    at.mkdir()

    async def begin() -> None:
        for journal in PLACES[kind](at):
            async with journal:
                await Runner.run(eraser(asked), "Erase.", journal=journal)

    async def resume() -> list[list[str]]:
        told = []
        for journal in PLACES[kind](at):
            async with journal:
                result = await Runner.resume(eraser(say("Done.")), journal)
                told.append([str(settled.outcome.output) for settled in result.calls])
        return told

    anyio.run(begin, backend=backend)
    (tmp_path / "key").write_bytes(b"k" * 32)
    place = {"file": at / "a.journal", "sealed": at / "a.journal", "sqlite": at / "runs.sqlite"}.get(kind, at)
    key = ("--key-file", str(tmp_path / "key")) if kind in ("sealed", "sqlite") else ()
    runs = [journal.run_id for journal in PLACES[kind](at)] if "sqlite" in kind else ["a", "b"][: len(PLACES[kind](at))]
    names = [f"{run}:" for run in runs] if len(runs) > 1 else [""]
    listed = invoke("pending", str(place), *key)
    assert listed.exit_code == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [f"{name}{n}" for name in names for n in "123"]
    for name in names:
        assert invoke("approve", str(place), f"{name}1", *key).exit_code == 0
        assert invoke("reject", str(place), f"{name}2", "--message", "no", *key).exit_code == 0
        decided = invoke("answer", str(place), f"{name}3", "yes", *key)
        assert decided.stdout == f"{name}3 is answered.\n"
    assert "Nothing else waits. To go on: resume the run in your program, by Runner.resume" in decided.stderr
    for name in names:  # a decided call is found by the run that it is of
        run = ("--run", name.rstrip(":")) if name else ()
        again = invoke("approve", str(place), "1", *run, *key)
        assert again.exit_code == 2
        assert "it was approved; with --replace" in again.stderr
    assert anyio.run(resume, backend=backend) == [["x is gone", "no", "yes"]] * len(names)


def test_what_is_no_run_of_a_program_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    """The error names what is missing, and what resumes such a journal."""

    async def begin() -> None:
        for name in "ab":
            async with FileJournal(tmp_path / f"{name}.journal") as journal:
                await Runner.run(eraser(call("erase", {"path": "x"})), "Erase.", journal=journal)

    anyio.run(begin)
    place = str(tmp_path)
    assert "2 calls of that name wait: a:call_1, b:call_1" in invoke("approve", place, "call_1").stderr
    assert "no call 'z' waits in its 2 runs; --run NAME chooses one" in invoke("approve", place, "z").stderr
    assert "no run is there by the name 'c'" in invoke("pending", place, "--run", "c").stderr
    for wrong in (place, f"{place}/a.journal"):
        assert "a program resumes its own journal: Runner.resume" in invoke("resume", wrong).stderr
    assert "is no line of a journal" in invoke("pending", __file__).stderr

    async def hold() -> None:
        async with FileJournal(f"{place}/a.journal") as journal:
            assert await journal.try_lock()
            refused = await anyio.to_thread.run_sync(lambda: invoke("approve", place, "a:call_1"))
            assert "under way in another process" in refused.stderr

    anyio.run(hold)


# -- decided elsewhere


@pytest.mark.slow
def test_paused_in_one_process_approved_in_another_resumed_in_a_third(
    start: Start, agent: AgentOf, kept: str, backend: str, noted: Noted
) -> None:
    """Each process says what to run next, and only the last, on the other backend, runs the call."""
    code, out, err = finished(start("run", agent("deleting"), "a", "--journal", kept, "--backend", backend))
    assert (code, out) == (3, "")
    assert "1 call waits for approval: call_a (delete)" in err
    assert f"agentloop pending {kept}" in err
    assert f"agentloop resume {kept}" in err
    code, out, err = finished(start("pending", kept))
    assert (code, out) == (0, 'call_a  deleting  delete {"path": "a"}\n')
    code, out, err = finished(start("approve", kept, "call_a"))
    assert (code, out) == (0, "call_a is approved.\n")
    assert f"Nothing else waits. To go on: agentloop resume {kept}" in err
    assert noted() == []
    code, out, err = finished(start("resume", kept, "--backend", OTHER[backend]))
    assert (code, out) == (0, "a is gone\n"), err
    assert noted() == ["deleted a"]


def test_a_rejection_is_told_to_the_model(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """The model gets the rejection in the words given; the body never runs."""
    assert invoke("run", agent("deleting"), "a b", "--journal", kept).exit_code == 3
    told = invoke("reject", kept, "call_b", "--message", "keep b")
    assert "1 more waits" in told.stderr
    assert invoke("approve", kept, "call_a").exit_code == 0
    assert invoke("resume", kept).stdout == "a is gone; keep b\n"
    assert noted() == ["deleted a"]


def test_what_nobody_decided_on_is_still_pending(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """Resuming runs the approved calls once and asks about the rest again; without a verdict, no call runs."""
    invoke("run", agent("deleting"), "a b", "--journal", kept)
    assert invoke("resume", kept).exit_code == 3
    assert noted() == []
    invoke("approve", kept, "call_b")
    result = invoke("resume", kept)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "1 call waits for approval: call_a (delete)" in result.stderr
    assert noted() == ["deleted b"]
    invoke("approve", kept, "call_a")
    assert invoke("resume", kept).stdout == "a is gone; b is gone\n"
    assert noted() == ["deleted b", "deleted a"]


@pytest.mark.scenario("SM-02")
@pytest.mark.parametrize(("agents", "name"), [("deleting", "call_a"), ("boss", "outer/call_x")])
def test_a_second_verdict_is_refused_unless_it_is_to_replace_the_first(
    invoke: Invoke, agent: AgentOf, kept: str, noted: Noted, agents: str, name: str
) -> None:
    """The error says how the call was decided, and what to write; nothing is appended. A call of a nested run, too."""
    invoke("run", agent(agents), "a", "--journal", kept)
    assert invoke("approve", kept, name).exit_code == 0
    before = (Path(kept) / "run.journal").read_bytes()
    refused = invoke("reject", kept, name, "--message", "no")
    assert refused.exit_code == 2
    assert "it was approved; with --replace another verdict takes its place" in refused.stderr
    assert (Path(kept) / "run.journal").read_bytes() == before
    assert invoke("reject", kept, name, "--message", "no", "--replace").exit_code == 0
    if agents == "boss":
        assert invoke("reject", kept, "call_x").exit_code == 0
    resumed = invoke("resume", kept)
    assert resumed.exit_code == 0
    assert agents == "boss" or resumed.stdout == "no\n"
    assert noted() == []
    late = invoke("approve", kept, name, "--replace")
    assert late.exit_code != 0


@pytest.mark.scenario("SM-01")
def test_a_run_under_way_elsewhere_takes_no_verdict(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """Its process has the journal, and appends itself: the error says so, and the file stays as it is."""
    invoke("run", agent("deleting"), "a", "--journal", kept)
    path = Path(kept) / "run.journal"
    before = path.read_bytes()

    async def hold() -> None:
        async with FileJournal(path) as journal:
            assert await journal.try_lock()
            refused = await anyio.to_thread.run_sync(lambda: invoke("approve", kept, "call_a"))
            assert refused.exit_code == 2
            assert "under way in another process" in refused.stderr

    anyio.run(hold)
    assert path.read_bytes() == before
    assert invoke("approve", kept, "call_a").exit_code == 0


def test_other_arguments_can_be_approved(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """Other arguments make another invocation; a value that is no JSON object is refused, and no verdict is kept."""
    invoke("run", agent("deleting"), "a", "--journal", kept)
    for wrong in ("{", "[]", "NaN"):
        assert invoke("approve", kept, "call_a", "--arguments", wrong).exit_code == 2
    assert invoke("pending", kept).stdout != ""
    assert invoke("approve", kept, "call_a", "--arguments", '{"path": "z"}').exit_code == 0
    assert invoke("resume", kept).stdout == "z is gone\n"
    assert noted() == ["deleted z"]


@pytest.mark.parametrize(
    ("command", "answer"), [("approve", "a is gone; b is gone\n"), ("reject", "no; no\n")], ids=["approve", "reject"]
)
def test_always_holds_for_the_later_calls_of_the_run(
    invoke: Invoke, agent: AgentOf, kept: str, noted: Noted, command: str, answer: str
) -> None:
    """`always` approves the later calls of the run; without it each call is asked about."""
    invoke("run", agent("one_by_one"), "a b", "--journal", kept)
    message = ("--message", "no") if command == "reject" else ()
    assert invoke(command, kept, "call_a", "--always", *message).exit_code == 0
    assert invoke("resume", kept).stdout == answer


def test_without_always_each_call_is_asked_about(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """A verdict holds for one call."""
    invoke("run", agent("one_by_one"), "a b", "--journal", kept)
    invoke("approve", kept, "call_a")
    assert invoke("resume", kept).exit_code == 3
    assert invoke("pending", kept).stdout.startswith("call_b")


def test_nested_calls_are_named_by_their_path(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """A call of the same id in another run of the tree isn't meant; a short name is enough if it fits one call."""
    assert invoke("run", agent("boss"), "go", "--journal", kept).exit_code == 3
    names = [line.split()[0] for line in invoke("pending", kept).stdout.splitlines()]
    assert names == ["outer/call_x", "call_x"]
    assert invoke("approve", kept, "outer/call_x").exit_code == 0
    assert invoke("reject", kept, "call_x").exit_code == 0
    assert invoke("resume", kept).stdout == "x is gone\n"
    assert noted() == ["deleted x"]


@pytest.mark.parametrize("call", ["call_z", "3:call_a", ""])
def test_a_call_that_does_not_wait_is_refused(invoke: Invoke, agent: AgentOf, kept: str, call: str) -> None:
    """An approval of a call that doesn't wait leaves the journal as it is."""
    invoke("run", agent("deleting"), "a", "--journal", kept)
    before = (Path(kept) / "run.journal").read_bytes()
    result = invoke("approve", kept, call)
    assert result.exit_code in (1, 2)
    assert "waits for" in result.stderr
    assert (Path(kept) / "run.journal").read_bytes() == before


def test_lines_of_a_batch_wait_by_themselves(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """Each line waits in its own place; its calls are named with the line, or without where that is enough."""
    result = invoke("run", agent("deleting"), "--journal", kept, input="a\na\n\nb\n")
    assert result.exit_code == 3
    assert result.stdout == (
        "Pending: 1 call waits for approval: call_a (delete)\n" * 2
        + "Pending: 1 call waits for approval: call_b (delete)\n"
    )
    assert "3 of 3 requests wait for a person." in result.stderr
    assert "LINE:CALL" in result.stderr
    names = [line.split()[0] for line in invoke("pending", kept).stdout.splitlines()]
    assert names == ["1:call_a", "2:call_a", "4:call_b"]
    twice = invoke("approve", kept, "call_a")
    assert twice.exit_code == 2
    assert "2 calls of that name wait: 1:call_a, 2:call_a" in twice.stderr
    assert invoke("approve", kept, "2:call_a").stdout == "2:call_a is approved.\n"
    assert invoke("reject", kept, "2:call_a", "--message", "no", "--replace").exit_code == 0
    assert invoke("approve", kept, "call_b").stdout == "4:call_b is approved.\n"
    resumed = invoke("resume", kept)
    assert (resumed.exit_code, resumed.stdout.splitlines()[1:]) == (3, ["no", "b is gone"])
    assert noted() == ["deleted b"]


def test_json_tells_what_waits(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The result and the list describe a waiting call in one form."""
    result = invoke("run", agent("deleting"), "--journal", kept, "--json", input="a\n")
    told = json.loads(result.stdout)
    assert told["status"] == "interrupted"
    waiting = {"tool": "delete", "arguments": '{"path": "a"}', "agent": "deleting", "path": []}
    waiting |= {"policy": None, "reason": None}
    assert told["interruptions"] == [{"call": "call_a", **waiting}]
    assert json.loads(invoke("pending", kept, "--json").stdout) == {"call": "1:call_a", "line": 1, **waiting}
    invoke("approve", kept, "1:call_a")
    assert invoke("pending", kept, "--json").output == ""


class Strict:
    """A policy that says why it asks, over two lines and in colour."""

    def decide(self, call: PendingCall) -> Ask:
        """Ask."""
        return Ask("not on\nFridays\x1b[0m")


def test_which_policy_asks_and_why_is_told(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The list and the JSON name policy and reason; the list writes them on one line, without terminal controls."""
    invoke("run", agent("deleting"), "a", "--journal", kept)
    (path := Path(kept) / "run.journal").unlink()

    @tool
    async def delete() -> str:
        """Delete."""
        return "gone"

    async def again() -> None:
        async with FileJournal(path) as journal:
            config = RunConfig(policies=[Strict()])
            model = ScriptedModel([call("delete", call_id="d1")])
            await Runner.run(Agent("a", model=model, tools=[delete]), "go", journal=journal, run_config=config)

    anyio.run(again)
    assert invoke("pending", kept).stdout == "d1  a  delete {}  (Strict: not on\\nFridays\\x1b[0m)\n"
    told = json.loads(invoke("pending", kept, "--json").stdout)
    assert (told["policy"], told["reason"]) == ("Strict", "not on\nFridays\x1b[0m")


@pytest.mark.parametrize(
    ("policy", "reason", "said"), [(None, None, ""), ("Strict", None, "Strict"), ("A, B", "so; so", "A, B: so; so")]
)
def test_who_asks_in_words(policy: str | None, reason: str | None, said: str) -> None:
    """The policies and their reasons are joined; the text is empty where the tool itself asks."""
    assert find_asking_policy(ApprovalRequest(ToolCall("c", "f"), "a", policy=policy, reason=reason)) == said


def test_without_a_folder_nothing_can_be_decided_later(invoke: Invoke, agent: AgentOf, noted: Noted) -> None:
    """The error says that nothing was kept, and what to do."""
    result = invoke("run", agent("deleting"), "a")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "Nothing of it was kept: run again with --journal DIR" in result.stderr
    assert noted() == []


def test_always_approves_all_there_is(invoke: Invoke, agent: AgentOf, backend: str, noted: Noted) -> None:
    """The option approves every call, with a folder and without one, for one request and many."""
    one = invoke("run", agent("one_by_one"), "a b", "--approve", "always", "--backend", backend)
    assert (one.exit_code, one.stdout) == (0, "a is gone; b is gone\n")
    many = invoke("run", agent("deleting"), "--approve", "always", "--backend", backend, input="c\nd\n")
    assert (many.exit_code, many.stdout) == (0, "c is gone\nd is gone\n")
    assert sorted(noted()) == [f"deleted {name}" for name in "abcd"]


def test_secrets_of_a_call_are_shown_nowhere(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """Secret arguments appear neither in the output, in words or JSON, nor in the list, nor in the folder."""
    shown = [
        invoke("run", agent("unlocking"), "go", "--journal", kept).output,
        invoke("pending", kept).output,
        invoke("pending", kept, "--json").output,
        invoke("resume", kept, "--json").output,
        invoke("run", agent("unlocking"), "go", "--json", "--approve", "always").output,
    ]
    assert "a is gone (with password)" in shown[-1]
    assert "delete" in shown[1]
    assert all("hunter2" not in text for text in shown)
    assert b"hunter2" not in (Path(kept) / "run.journal").read_bytes()


def test_secret_outputs_are_shown_and_kept_nowhere(invoke: Invoke, agent: AgentOf, kept: str, tmp_path: Path) -> None:
    """A secret answer is printed by the run that made it; its journal can't repeat it."""
    for options in ((), ("--json",), ("--journal", kept)):
        result = invoke("run", agent("peeking"), "go", *options)
        assert result.exit_code == 0
        assert "seen" in result.stdout
        assert "hunter2" not in result.output
    assert b"hunter2" not in (Path(kept) / "run.journal").read_bytes()
    told = str(tmp_path / "told")
    assert invoke("run", agent("telling"), "go", "--journal", told).stdout == "hunter2\n"
    assert invoke("resume", told).stdout == "[secret]\n"


# -- asked at the terminal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "code", "answer", "deleted"),
    [
        (("y", "yes"), 0, "a is gone; b is gone", ["a", "b"]),
        (("a",), 0, "a is gone; b is gone", ["a", "b"]),
        (("n keep it", "y"), 0, "keep it; b is gone", ["b"]),
        (("v never",), 0, "never; never", []),
        (("what?", "", "y", "l"), 3, "1 call waits for approval: call_b (delete)", ["a"]),
        (("l",), 3, "1 call waits for approval: call_a (delete)", []),
        (("\x04",), 3, "1 call waits for approval: call_a (delete)", []),
    ],
)
def test_at_a_terminal_each_call_is_asked_about(
    start: Start,
    agent: AgentOf,
    backend: str,
    noted: Noted,
    answers: tuple[str, ...],
    code: int,
    answer: str,
    deleted: list[str],
) -> None:
    """Every answer has its effect: yes, no and why, always, never, later; Ctrl-D is later; others are asked again."""
    terminal = Terminal(start, "run", agent("one_by_one"), "a b", "--backend", backend)
    for each in answers:
        terminal.answer(each)
    assert terminal.finish() == code, terminal.shown
    assert answer in terminal.shown
    assert '? delete {"path": "a"}\n  one by one asks for it\n' in terminal.shown
    assert noted() == [f"deleted {name}" for name in deleted]


@pytest.mark.slow
def test_at_a_terminal_arguments_can_be_edited(start: Start, agent: AgentOf, noted: Noted) -> None:
    """The terminal reports an input that is no JSON object and asks again; only the typed arguments are run."""
    terminal = Terminal(start, "run", agent("deleting"), "a")
    terminal.answer('{"path": "y"}')  # not here: it would be approved by what the menu doesn't offer
    terminal.wait_for("Type one of y, n, a, v, e, l; other arguments are typed after e.")
    terminal.answer("e")
    terminal.wait_for('Now: {"path": "a"}')
    terminal.wait_for("on one line: ")
    terminal.type("")  # back to the menu
    terminal.answer("e")
    for typed in ("[1]", '{"path": 1}', '{"path": "z"}'):
        terminal.wait_for("on one line: ")
        terminal.type(typed)
    assert terminal.finish() == 0, terminal.shown
    assert "must be a JSON object" in terminal.shown
    assert "z is gone" in terminal.shown
    assert noted() == ["deleted z"]


@pytest.mark.slow
def test_call_that_is_asked_about_is_shown_once(start: Start, agent: AgentOf) -> None:
    """The question is enough; a call that is left pending has a line of its own."""
    terminal = Terminal(start, "run", agent("deleting"), "a")
    terminal.answer("y")
    assert terminal.finish() == 0, terminal.shown
    assert terminal.shown.count('? delete {"path": "a"}') == 1
    left = Terminal(start, "run", agent("deleting"), "a", "--approve", "never")
    left.wait_for("waits for approval")
    assert left.finish() == 3, left.shown


@pytest.mark.slow
def test_what_was_put_off_at_the_terminal_is_kept(start: Start, agent: AgentOf, kept: str, noted: Noted) -> None:
    """The journal keeps the verdicts that were given, so the next process asks about the rest alone."""
    terminal = Terminal(start, "run", agent("boss"), "go", "--journal", kept)
    terminal.answer("y")
    terminal.answer("later")
    assert terminal.finish() == 3, terminal.shown
    assert "  deleting asks for it, inside outer\n" in terminal.shown
    assert noted() == ["deleted x"]
    terminal = Terminal(start, "resume", kept)
    terminal.answer("n")
    assert terminal.finish() == 0, terminal.shown
    assert noted() == ["deleted x"]


@pytest.mark.slow
def test_questions_of_many_runs_come_one_at_a_time(
    start: Start, agent: AgentOf, tmp_path: Path, noted: Noted, backend: str
) -> None:
    """Each question names its line; the progress bar is out of the way."""
    file = tmp_path / "requests.txt"
    file.write_text("a\nb\nc\n")
    terminal = Terminal(start, "run", agent("deleting"), "--input", str(file), "--backend", backend)
    for _ in range(3):
        terminal.answer("y")
    assert terminal.finish() == 0, terminal.shown
    assert sorted(noted()) == ["deleted a", "deleted b", "deleted c"]
    for line in (1, 2, 3):
        assert terminal.shown.count(f"deleting asks for it, line {line}\n") == 1
    assert [terminal.shown.index(f"{name} is gone\n") for name in "abc"] == sorted(
        terminal.shown.index(f"{name} is gone\n") for name in "abc"
    )


@pytest.mark.slow
def test_a_call_cannot_hide_what_it_asks_for(start: Start, agent: AgentOf) -> None:
    """Characters that reorder, hide or break lines are written out; all of the arguments are there."""
    terminal = Terminal(start, "run", agent("tricking"), "go")
    terminal.answer("n")
    assert terminal.finish() == 0
    assert '? delete {"path": "a\\u202etxt.exe"\\n, "password": "[secret]"}\n' in terminal.shown
    assert exact("a\u200b\x1b[2Jb\u2028") == "a\\u200b\\x1b[2Jb\\u2028"


@pytest.mark.slow
def test_never_asks_nobody_even_at_a_terminal(start: Start, agent: AgentOf, noted: Noted) -> None:
    """The option holds at a terminal as in a script."""
    terminal = Terminal(start, "run", agent("deleting"), "a", "--approve", "never")
    assert terminal.finish() == 3
    assert "[l]ater" not in terminal.shown
    assert noted() == []


@pytest.mark.slow
def test_ctrl_c_ends_a_question(start: Start, agent: AgentOf, kept: str, backend: str) -> None:
    """The call is still pending after Ctrl-C."""
    terminal = Terminal(start, "run", agent("deleting"), "a", "--journal", kept, "--backend", backend)
    terminal.wait_for("[l]ater: ")
    terminal.child.send_signal(2)
    assert terminal.finish() == 130
    assert finished(start("pending", kept))[1].startswith("call_a")


def test_asking_needs_a_terminal(invoke: Invoke, agent: AgentOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, `--approve ask` is refused before anything runs."""
    result = invoke("run", agent("deleting"), "a", "--approve", "ask")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--approve ask needs a terminal" in result.stderr
    err = Output(None)
    err.is_terminal = True
    monkeypatch.setattr("sys.stdin", None)
    assert not can_ask(err, input_is_taken=False)
    assert not can_ask(err, input_is_taken=True)
