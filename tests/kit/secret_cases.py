"""Runs of which everything readable is searched for a secret."""

import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from agentloop import AgentHooks, Instrument, RunConfig, RunHooks, Span
from agentloop._storage.record_codec import encode, record_to_json
from agentloop.exceptions import AgentLoopError
from agentloop.journal import MemoryJournal
from agentloop.records import Record
from kit.agents import Run

PASSWORD = "hunter2 é\"quote'\\slash\nline"
OUTPUT = "output-7731 é\"quote'\\slash\nline"
# What would give either of them away: no sign in these is ever escaped.
CANARIES = ("hunter2", "slash", "quote'", "output-7731")


class ReprInstrument(Instrument):
    """An instrument that keeps everything it receives, and the repr of each value at that moment."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.words: list[str] = []

    def _keep(self, value: Any) -> None:
        self.told.append(value)
        self.words.append(repr(value))

    def on_record(self, record: Record) -> None:
        self._keep(record)
        self.words.append(encode(record_to_json(record)).decode())

    def on_span_start(self, span: Span) -> None:
        self._keep((span.name, dict(span.data), span.error))

    def on_span_end(self, span: Span) -> None:
        self._keep((span.name, dict(span.data), span.error))

    def on_late_result(self, report: Any) -> None:
        self._keep(report)

    def on_still_running(self, report: Any) -> None:
        self._keep(report)


class ReprHooks(RunHooks):
    """Keeps the reprs of everything that the hooks of a run receive."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.words.append(repr(ctx))

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.words += [repr(ctx), repr(outcome)]

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self.words.append(repr(input))

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.words.append(repr(response))

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self.words.append(repr(outcome))


class SecretCase:
    """Runs an agent with instruments, hooks, journal and log captured, and gathers all that could be read there."""

    def __init__(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        self._run = run
        self._caplog = caplog
        caplog.set_level(logging.DEBUG)
        self.watcher = ReprInstrument()
        self.words = self.watcher.words
        self.journal = MemoryJournal()
        self.error: Exception | None = None
        self.result: Any = None

    async def run(self, agent: Any, given: Any = "go", *, journal: bool = True, **config: Any) -> Any:
        """Run *agent* to its end, a failure included; return the result or the error's data."""
        options: dict[str, Any] = {"journal": self.journal} if journal else {}
        options["run_config"] = RunConfig(instruments=(self.watcher,), **config)
        options["hooks"] = ReprHooks(self.words)
        try:
            self.result = await self._run(agent, given, **options)
        except Exception as error:
            self.error = error
        return self.result if self.error is None else getattr(self.error, "run_data", None)

    async def read(self) -> str:
        """Return everything that could be read, in one text."""
        words = [*self.words, *map(repr, self.watcher.told), self._caplog.text]
        words += [repr(getattr(record, "args", ())) for record in self._caplog.records]
        words += (line.decode() for line in await self.journal.read())
        if self.error is not None:
            words += _words_of(self.error)
        data = self.result if self.error is None else getattr(self.error, "run_data", None)
        words += _words_of_data(data)
        return "\n".join(words)

    async def check(self) -> None:
        """Check that no canary is in what could be read, and that there was something to read."""
        text = await self.read()
        assert "CallSettled(" in text or "ApprovalRequested(" in text
        for canary in CANARIES:
            at = text.find(canary)
            assert at < 0, text[max(0, at - 500) : at + 100]


def _words_of(error: BaseException) -> Iterator[str]:
    """Give what an error of the library says, with its notes; an error of the application may say what it likes."""
    if isinstance(error, AgentLoopError):
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        yield repr(vars(error))
        yield "".join(traceback.format_exception_only(error))
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield from _words_of(other)


def _words_of_data(data: Any) -> Iterator[str]:
    if data is None:
        return
    yield repr(data)
    for name in ("new_items", "raw_responses", "calls", "records", "tool_input_guardrail_results"):
        yield repr(getattr(data, name))
    yield repr(data.tool_output_guardrail_results)
    if hasattr(data, "to_state"):
        state = data.to_state()
        yield from (repr(state), state.to_string(), repr(state.interruptions))
        yield repr(data.to_input_list("all"))


class ReversingCodec:
    """A codec that can be opened without a key; `open` refuses a value that `seal` has not made."""

    def __init__(self) -> None:
        self.sealed = 0

    def seal(self, data: bytes) -> bytes:
        """Return the bytes backwards, after a mark and a count, so that no two sealed values are equal."""
        self.sealed += 1
        return b"sealed:%d:" % self.sealed + data[::-1]

    def open(self, sealed: bytes) -> bytes:
        """Return the value that was sealed."""
        mark, _, data = sealed.split(b":", 2)
        if mark != b"sealed":
            raise ValueError("not sealed by this codec")
        return data[::-1]


class ReprAgentHooks(AgentHooks):
    """Keeps the reprs of everything that the hooks of an agent receive."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    async def on_start(self, ctx: Any, agent: Any) -> None:
        self.words.append(repr(ctx))

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.words.append(repr(ctx))

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self.words += [repr(ctx), repr(input)]

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.words.append(repr(ctx))

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.words += [repr(ctx), repr(outcome)]
