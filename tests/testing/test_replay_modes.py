"""Resume, what-if and shadow replays, sources of every sort, and what can't be replayed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentloop import Agent, RunConfig, Runner, RunState, StateError, UserError, tool
from agentloop.exceptions import JournalError, ReplayDivergence, UserTypeError, UserValueError
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.testing import FunctionModel, call, say
from agentloop.testing.replaying import ShadowReport, replay

BACKENDS: Any = ("asyncio", "trio")
KEY = b"a key that is thirty-two bytes!!"
CANARY = "canary-7f3a"
PAID: list[str] = []
both = pytest.mark.parametrize("backend", BACKENDS)
pytestmark = pytest.mark.filterwarnings("ignore:replay.mode=:DeprecationWarning")


@pytest.mark.filterwarnings("default:replay.mode=:DeprecationWarning")
def test_the_modes_that_the_lab_replaces_say_what_takes_their_place(tmp_path: Path) -> None:
    """The warning is at the caller's line."""
    path = record(tmp_path / "run.jsonl")
    for mode, words in {"what_if": r"goes in 0\.3: lab\.fork", "shadow": r"goes in 0\.3: lab\.compare"}.items():
        place = {"turn": 2, "then": clerk("Done.")} if mode == "what_if" else {}
        with pytest.warns(DeprecationWarning, match=words) as caught:
            replay(path if mode == "what_if" else tmp_path, clerk(), mode=mode, **place)  # type: ignore[call-overload]
        assert caught[0].filename == __file__


def clerk(last: str = "Both are paid.", instructions: str = "Be brief.", *, asks: bool = False) -> Agent[Any, Any]:
    """Return an agent that pays two invoices, one a turn."""

    @tool(needs_approval=asks)
    async def pay(invoice: str) -> str:
        """Pay an invoice."""
        PAID.append(invoice)
        return f"{invoice} is paid"

    steps: Any = (call("pay", {"invoice": "i-1"}), call("pay", {"invoice": "i-2"}), say(last))
    return Agent(
        "clerk", instructions=instructions, tools=[pay], model=FunctionModel(lambda request: steps[request.turn - 1])
    )


def record(path: Path, agent: Agent[Any, Any] | None = None, **options: Any) -> Path:
    """Run an agent, journaled at *path*."""

    async def main() -> None:
        async with FileJournal(path, fsync="never", **options) as journal:
            await Runner.run(agent or clerk(), "Pay i-1 and i-2.", journal=journal)

    anyio.run(main)
    return path


def cut(path: Path, lines: int) -> Path:
    """Leave the first *lines* of a journal and half of the next, as a crash may."""
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:lines]) + whole[lines][: len(whole[lines]) // 2])
    return path


@both
def test_resume_goes_on_where_the_log_breaks_off(tmp_path: Path, backend: Any) -> None:
    """Work in the log isn't done again; the rest runs, live."""
    path = record(tmp_path / "run.jsonl")
    cut(path, [b'"turn_started"' in line for line in path.read_bytes().splitlines()].index(True, 3) + 2)
    PAID.clear()
    torn = replay(path, clerk(), backend=backend)
    assert torn.result is None
    assert torn.error is None
    assert PAID == []
    went_on = replay(path, clerk(), mode="resume", backend=backend)
    assert went_on.replayed == len(torn.records)
    assert PAID == ["i-2"]
    assert went_on.result is not None
    assert went_on.result.final_output == "Both are paid."


@both
def test_resume_refuses_a_log_that_goes_otherwise_today(tmp_path: Path, backend: Any) -> None:
    """The prefix is replayed strictly before anything runs."""
    path = cut(record(tmp_path / "run.jsonl"), 8)
    PAID.clear()
    with pytest.raises(ReplayDivergence, match="instructions"):
        replay(path, clerk(instructions="Be long."), mode="resume", backend=backend)
    assert PAID == []


@both
def test_what_if_goes_its_own_way_from_a_turn_or_a_record(tmp_path: Path, backend: Any) -> None:
    """Another agent continues, or the same with another model; calls before it aren't made."""
    path = record(tmp_path / "run.jsonl")
    PAID.clear()
    other = replay(path, clerk(), mode="what_if", turn=3, then=clerk("Just done."), backend=backend)
    assert other.result is not None
    assert other.result.final_output == "Just done."
    assert PAID == []
    config = RunConfig(model=FunctionModel(lambda request: say("Enough.")))
    earlier = replay(path, clerk(), mode="what_if", record=other.replayed - 8, run_config=config, backend=backend)
    assert earlier.replayed == other.replayed - 8


@pytest.mark.parametrize("where", [{}, {"turn": 9}, {"record": 0}, {"record": 999}, {"turn": 1, "record": 1}])
def test_what_if_needs_a_place_that_there_is(tmp_path: Path, where: Any) -> None:
    """The place is either a turn or a record, within the run."""
    path = record(tmp_path / "run.jsonl")
    with pytest.raises(UserValueError, match=r"turn|record"):
        replay(path, clerk(), mode="what_if", **where)


@both
def test_shadow_replays_every_journal_and_tells_which_went_otherwise(tmp_path: Path, backend: Any) -> None:
    """Whole, torn, foreign, damaged, sealed and empty files are read; nothing runs and nothing is raised."""
    whole = record(tmp_path / "a-whole.jsonl").read_bytes()
    cut(record(tmp_path / "b-torn.journal"), 9)
    record(tmp_path / "c-sealed.journal", key=KEY)
    (tmp_path / "d-damaged.jsonl").write_bytes(whole.replace(b"i-1 is paid", b"i-1 is free"))
    (tmp_path / "e-text.jsonl").write_text("no journal\n")
    (tmp_path / "f-empty.jsonl").write_bytes(b"")
    record(tmp_path / "g-other.jsonl", clerk(instructions="Be long."))
    for name in ("notes.txt", "requests.jsonl", "job.json"):
        (tmp_path / name).write_text("not looked at")
    PAID.clear()
    report = replay(tmp_path, clerk(), mode="shadow", backend=backend)
    assert isinstance(report, ShadowReport)
    assert PAID == []
    said = {Path(one.path).name: str(one.problem) for one in report.problems}
    assert [Path(one.path).name[0] for one in report.files] == list("abcdefg")
    assert [name[0] for name in said] == list("cdefg")
    assert "sealed with a key" in said["c-sealed.journal"]
    assert "was changed" in said["d-damaged.jsonl"]
    assert "line 1 is no line of a journal" in said["e-text.jsonl"]
    assert "it is empty" in said["f-empty.jsonl"]
    assert "record 2" in said["g-other.jsonl"]
    with pytest.raises(AssertionError, match="7 journals replayed, 5 of them otherwise than recorded"):
        report.check()


def test_a_directory_without_journals_fails_the_check(tmp_path: Path) -> None:
    """A pattern that fits nothing must not pass for success."""
    report = replay(tmp_path, clerk(), mode="shadow")
    assert report.files == ()
    with pytest.raises(AssertionError, match=r"no journal to replay in .*: it holds nothing"):
        report.check()
    for name in "abcd":
        (tmp_path / f"{name}.txt").touch()
    with pytest.raises(AssertionError, match=r"it holds 'a.txt', 'b.txt', 'c.txt', …, and journals end with .journal"):
        replay(tmp_path, clerk(), mode="shadow").check()
    with pytest.raises(AssertionError, match=r"no journal to replay$"):
        replay([], clerk(), mode="shadow").check()
    with pytest.raises(UserValueError, match="expected a directory"):
        replay(tmp_path / "absent", clerk(), mode="shadow")


@both
def test_a_sealed_journal_replays_with_its_key_alone(tmp_path: Path, backend: Any) -> None:
    """No key and another key are errors that name the file and don't show a key."""
    path = record(tmp_path / "sealed.jsonl", key=KEY)
    assert replay(path, clerk(), key=KEY, backend=backend).result is not None
    other = b"another key, thirty-two bytes !!"
    for key in (None, other):
        with pytest.raises(JournalError, match=r"sealed\.jsonl.*sealed with a key") as caught:
            replay(path, clerk(), key=key, backend=backend)
        assert "thirty-two" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda folder: folder / "absent.jsonl", JournalError, "absent.jsonl.*no such file"),
        (lambda folder: folder, JournalError, "is a directory"),
        (lambda folder: written(folder, b""), JournalError, "source.jsonl.*is empty"),
        (lambda folder: written(folder, b"\x00\xff\x00"), JournalError, "source.jsonl.*no journal"),
        (lambda folder: written(folder, b'{"a": 1}\n{"b": 2}\n'), JournalError, "source.jsonl.*line 1"),
        (lambda folder: MemoryJournal(), JournalError, "journal is empty"),
        (lambda folder: [], StateError, "has no record"),
        (lambda folder: ["a"], UserTypeError, "element 0 is no record"),
        (lambda folder: 5, UserTypeError, "source: expected a path, a journal"),
    ],
)
def test_what_is_no_log_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], Any], error: type[Exception], words: str
) -> None:
    """A typed error says what is wrong and where; no file is made."""
    before = sorted(tmp_path.iterdir())
    source = make(tmp_path)
    made = [source] if isinstance(source, Path) and source.is_file() else []
    with pytest.raises(error, match=words):
        replay(source, clerk())
    assert sorted(tmp_path.iterdir()) == sorted([*before, *made])


def written(folder: Path, content: bytes) -> Path:
    """Return a file of *content*."""
    path = folder / "source.jsonl"
    path.write_bytes(content)
    return path


@both
def test_a_run_that_paused_for_verdicts_and_went_on_replays_as_one(tmp_path: Path, backend: Any) -> None:
    """The run is replayed from its journal and its state, over three entries, with each verdict at its place."""
    path = tmp_path / "run.jsonl"

    async def main() -> Any:
        async with FileJournal(path, fsync="never") as journal:
            result = await Runner.run(clerk(asks=True), "Pay i-1 and i-2.", journal=journal)
            paused = result.to_state()
            while result.status == "interrupted":
                state = result.to_state()
                state.approve(state.interruptions[0])
                result = await Runner.run(clerk(asks=True), state, journal=journal)
            return paused, result

    paused, result = anyio.run(main)
    PAID.clear()
    replayed = replay(path, clerk(asks=True), backend=backend)
    assert replayed.result is not None
    assert replayed.result.final_output == "Both are paid."
    assert replayed.records == tuple(result.records)
    waits = replay(RunState.from_string(clerk(asks=True), paused.to_string()), clerk(asks=True), backend=backend)
    assert waits.result is not None
    assert waits.result.status == "interrupted"
    assert PAID == []


def child(note: str = "") -> Agent[Any, Any]:
    """Return an agent with a tool whose argument and output are secret."""

    @tool(secret=("token",), secret_output=True)
    async def unlock(door: str, token: str) -> str:
        return f"opened with {token}"

    steps: Any = (call("unlock", {"door": "front", "token": CANARY}), say("Open."))
    model = FunctionModel(lambda request: steps[request.turn - 1])
    return Agent("keeper", instructions=note or None, tools=[unlock], model=model)


@both
def test_secrets_stay_out_of_replays_and_what_they_say(tmp_path: Path, backend: Any) -> None:
    """A journal without a codec holds digests of them; a divergence and a report show no more."""
    path = record(tmp_path / "run.jsonl", child())
    assert CANARY.encode() not in path.read_bytes()
    replayed = replay(path, child(), backend=backend)
    assert CANARY not in repr(replayed) + repr(replayed.records)
    changed = child()
    changed.tools.clear()
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, changed, backend=backend)
    assert CANARY not in f"{caught.value} {caught.value.wanted!r} {caught.value.got!r}"
    report = replay(tmp_path, child("Be careful."), mode="shadow", backend=backend)
    assert report.problems
    assert CANARY not in str(report)


@both
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_verdict_on_a_call_with_a_secret_is_replayed(backend: Any, approved: bool, streamed: bool) -> None:
    """The request for it has a digest of the arguments, which a log without a codec doesn't have."""

    @tool(secret=("token",), needs_approval=True)
    async def unlock(door: str, token: str) -> str:
        """Unlock."""
        return f"{door} is open"

    steps: Any = (call("unlock", {"door": "front", "token": CANARY}, call_id="c"), say("Done."))
    agent = Agent("keeper", tools=[unlock], model=FunctionModel(lambda request: steps[request.turn - 1]))
    journal = MemoryJournal()

    async def run(given: Any) -> Any:
        if not streamed:
            return await Runner.run(agent, given, journal=journal)
        async with Runner.run_streamed(agent, given, journal=journal) as stream:
            await stream.finished()
        return stream.result

    async def recorded() -> None:
        state = (await run("Open the door.")).to_state()
        state.approve("c") if approved else state.reject("c")
        assert (await run(state)).final_output == "Done."

    anyio.run(recorded, backend=backend)
    replayed = replay(journal, agent, backend=backend)
    assert replayed.result is not None
    assert replayed.result.final_output == "Done."
    assert CANARY not in repr(replayed.records)


# ---------------------------------------------------------------------------------------------- inside a loop


@pytest.mark.parametrize("mode", ["strict", "resume", "what_if", "shadow"])
async def test_replay_inside_a_running_loop_is_refused_and_says_what_to_await(mode: Any, tmp_path: Path) -> None:
    """Replay refuses at once, in every mode and before reading the source; the loop's own error would name neither."""
    with pytest.raises(UserError, match=r"inside a running event loop.*sync code.*await anyio\.to_thread\.run_sync"):
        replay(tmp_path / "nothing.jsonl", clerk(), mode=mode)


@both
@pytest.mark.real_clock
async def test_what_it_says_to_await_works(backend: Any) -> None:
    """A thread has no running loop, whichever loop it was started from."""
    result = await Runner.run(clerk(), "Pay i-1 and i-2.")
    replayed = await anyio.to_thread.run_sync(lambda: replay(result, clerk(), backend=backend))
    assert replayed.records == tuple(result.records)
