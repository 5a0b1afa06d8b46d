"""`LocalModel`: a small model on the user's own machine, in a child process that exists as long as the block.

Owns the process and its log; the model of one of its interfaces talks to the server in it. Does not know about the
engine's own interface.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from os import PathLike
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import IO, Any, Literal, Self

import anyio
import attrs
from anyio.abc import Process

from agentloop._common.checks import check_count
from agentloop._common.child_environment import child_environment
from agentloop.abc import Model
from agentloop.exceptions import ModelTransportError, UserError, UserValueError
from agentloop.model_events import ModelEvent, ModelInfo, ModelRequest
from agentloop.models._http_model import HttpModel
from agentloop.models._install import INSTALL_COMMAND, find_weights, has_engine
from agentloop.models._shared import Shared
from agentloop.models.anthropic import AnthropicModel
from agentloop.models.openai_chat import OpenAIChatModel
from agentloop.models.openai_responses import OpenAIResponsesModel

DEFAULT_NAME = "smollm2-135m"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 3.0
_MAX_TOKENS = 1024
"""The limit that is sent over an interface that requires one; the server's own."""
_WHERE_CODE_IS = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables by which the child may find its engine, if this process found it by them."""
_SERVER = Path(__file__).with_name("_local_server.py")


@attrs.frozen(eq=False)
class _Child:
    """The running child, and the model that sends requests to it."""

    process: Process
    log: IO[bytes]
    supports_tools: bool
    model: HttpModel


class LocalModel(Model):
    """A model on this machine, without a network: the embedded one, or a GGUF file at `path`.

    Entering starts a child process (about half a second, 250 MiB for the embedded model) that serves on the loopback
    interface with one thread. Leaving ends the child, and so does any death of this process. Several runs may enter one
    model at once and share the child; the last to leave ends it. `n_ctx` is the context in tokens that at most
    `n_parallel` simultaneous answers share; further requests wait.

    `constrained` makes every answer a call of one of the request's tools (see `OpenAIChatModel`), which works for a
    model this small. With `constrained=False` tools are refused unless the file's chat template supports them.

    `interface` is that by which the server is asked: `"chat"`, `"responses"` or `"messages"`. Only by the first does it
    constrain output, so the others need `constrained=False`.

    Raises:
        UserValueError: if an argument has no such value, or the interface doesn't constrain output.
    """

    holds_resources: bool = True

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        path: str | PathLike[str] | None = None,
        constrained: bool = True,
        interface: Literal["chat", "responses", "messages"] = "chat",
        n_ctx: int = 8192,
        n_parallel: int = 2,
    ) -> None:
        if path is None and name != DEFAULT_NAME:
            raise UserValueError(f"name: the embedded model is {DEFAULT_NAME!r}; {name!r} needs path= to its GGUF file")
        if interface not in ("chat", "responses", "messages"):
            raise UserValueError(f'interface: expected "chat", "responses" or "messages", got {interface!r}')
        if constrained and interface != "chat":
            raise UserValueError(f"interface: the server doesn't constrain {interface!r}; give constrained=False")
        check_count("n_ctx", n_ctx, least=256)
        check_count("n_parallel", n_parallel)
        self.name = name
        self.path: Path | None = None if path is None else Path(path)
        self.constrained = constrained
        self.interface: Literal["chat", "responses", "messages"] = interface
        self.n_ctx = n_ctx
        self.n_parallel = n_parallel
        self._children = Shared(self._start, _stop)

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    @property
    def info(self) -> ModelInfo:
        """The provider `local`, the name, and the context that the model is started with."""
        return ModelInfo("local", self.name, context_window=self.n_ctx)

    @property
    def is_entered(self) -> bool:
        """True if the child runs for the current event loop."""
        return self._children.current() is not None

    @property
    def is_open(self) -> bool:
        """True if the model can be called now."""
        return self.is_entered

    @property
    def pid(self) -> int | None:
        """The child's process id, or None while it doesn't run."""
        child = self._children.current()
        return None if child is None else child.process.pid

    async def __aenter__(self) -> Self:
        await self._children.enter()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._children.leave()  # noqa: ASYNC102 - shielded inside

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the model. Leaving early frees the server for another request at once.

        Raises:
            UserError: if the model isn't entered, or the request has tools that it would silently ignore.
            ModelTransportError: if the child has died; quotes its last lines.
            ModelBehaviorError: the response breaks the protocol, or ended before it was complete.
        """
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        child = self._children.current()
        if child is None:
            raise UserError(f"{self!r} isn't entered: use `async with model:`, or give it to a run, which enters it.")
        if not self.constrained and not child.supports_tools and (request.tools or request.handoffs):
            raise UserError(f"{self!r}: its chat template knows no tools, which it would ignore; use constrained=True.")
        try:
            async with child.model.stream(request) as events:
                yield events
        except ModelTransportError as error:
            if (code := child.process.returncode) is None:
                raise
            raise ModelTransportError(f"The local model's process has ended ({code}). {_tail(child.log)}") from error

    def _weights(self) -> Path:
        """Return the file to load.

        Raises:
            UserError: if the file or the engine is missing; names the command to run.
        """
        file = self.path or find_weights()
        if not has_engine() or file is None:
            what = "weights are" if has_engine() else "engine is"
            raise UserError(f"The local model's {what} not installed. Run `{INSTALL_COMMAND}`.")
        if not file.is_file():
            raise UserError(f"{self!r}: there is no file {str(file)!r}")
        return file

    async def _start(self) -> _Child:
        file = self._weights()
        # Not a pipe: a pipe would have to be read all the time, or the child would block on it.
        log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the child
        process: Process | None = None
        try:
            # Its own session, so that a Ctrl-C in the terminal reaches this process only, which then ends the child.
            process = await anyio.open_process(
                self._command(file),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
                env=child_environment(*_WHERE_CODE_IS),
            )
            said = await _first_line(process, log)
            model = self._make_client(said["url"])
            await model.__aenter__()
            return _Child(process, log, bool(said["supports_tools"]), model)
        except BaseException:
            with log:
                if process is not None:
                    await _end(process)  # noqa: ASYNC102 - shielded inside
            raise

    def _make_client(self, url: str) -> HttpModel:
        match self.interface:
            case "chat":
                return OpenAIChatModel(self.name, base_url=f"{url}/v1", constrained=self.constrained)
            case "responses":
                return OpenAIResponsesModel(self.name, base_url=f"{url}/v1")
            case "messages":
                return AnthropicModel(self.name, base_url=url, max_tokens=_MAX_TOKENS)

    def _command(self, file: Path) -> list[str]:
        options = {
            "--model": file.resolve(),
            "--name": self.name,
            "--n-ctx": self.n_ctx,
            "--n-parallel": self.n_parallel,
        }
        # -P: no imports from the script's own folder.
        return [sys.executable, "-P", str(_SERVER), *(f"{name}={value}" for name, value in options.items())]


async def _first_line(process: Process, log: IO[bytes]) -> dict[str, Any]:
    """Return the child's report, the first line of its output: `url` and `supports_tools`.

    Raises:
        ModelTransportError: if the report is an error, or the child ends or takes too long before it.
    """
    assert process.stdout is not None
    line = b""
    try:
        with anyio.fail_after(START_TIMEOUT):  # noqa: ASYNC912 - receiving is a cancel point
            while b"\n" not in line:
                line += await process.stdout.receive()
    except TimeoutError:
        raise ModelTransportError(f"The local model didn't start within {START_TIMEOUT:g} seconds.") from None
    except anyio.EndOfStream:
        raise ModelTransportError(f"The local model's process ended while starting. {_tail(log)}") from None
    said: dict[str, Any] = json.loads(line.partition(b"\n")[0])
    if "error" in said:
        raise ModelTransportError(f"The local model can't start: {said['error']}")
    return said


def _tail(log: IO[bytes]) -> str:
    """Return the last lines that the child wrote to standard error, with an introduction."""
    log.seek(0, 2)
    log.seek(max(0, log.tell() - 4096))
    lines = log.read().decode("utf-8", "replace").strip().splitlines()[-5:]
    return "Its last words:\n" + "\n".join(lines) if lines else "It left no word."


async def _stop(child: _Child) -> None:
    async with AsyncExitStack() as stack:
        stack.callback(child.log.close)
        stack.push_async_callback(_end, child.process)
        await child.model.__aexit__(None, None, None)


async def _end(process: Process) -> None:
    """End the child and wait for it: by a signal to terminate, then by a kill. Bounded, and shielded."""
    try:
        with anyio.move_on_after(STOP_TIMEOUT, shield=True):
            if process.returncode is None:
                process.terminate()
            await process.wait()
    finally:
        with anyio.move_on_after(STOP_TIMEOUT, shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


def model_by_name(name: str, *, http_client: Any = None) -> LocalModel:
    """Return the model for `local:NAME`; an empty name is the embedded one. It opens its own connection pool."""
    return LocalModel(name or DEFAULT_NAME)
