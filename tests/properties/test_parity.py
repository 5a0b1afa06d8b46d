"""Generated runs in all four ways: plain and streamed, on asyncio and on trio. They must be the same run.

A generated run depends on no choice that the specification leaves open: a call whose failure is raised runs alone or in
sequence, and the guardrails beside one that trips wait for ever. All else runs side by side.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrail,
    RunConfig,
    RunHooks,
    Runner,
    ToolContext,
    ToolExecution,
    handoff,
    tool,
)
from agentloop import events as ev
from agentloop.abc import Instrument
from agentloop.exceptions import ModelTransportError
from agentloop.guardrails import (
    Allow,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, normal, reason, say, wait

Kind = Literal["ok", "fail", "cancel", "reject", "replace", "rewrite", "garbled", "unknown", "nested", "raise", "trip"]
Verdict = Literal["pass", "trip", "raise"]
HARMLESS: tuple[Kind, ...] = ("ok", "ok", "fail", "cancel", "reject", "replace", "rewrite", "garbled", "unknown")
ENDING: tuple[Kind, ...] = ("raise", "trip")
HOOKS = ("on_agent_start", "on_llm_start", "on_llm_end", "on_handoff", "on_agent_end", "on_run_end")

# ---------------------------------------------------------------------------------------------- what is generated


@attrs.frozen
class Call:
    """One call: how it ends, after how many checkpoints; a nested one has turns of its own."""

    kind: Kind
    delay: int = 0
    turns: "tuple[Turn, ...]" = ()


@attrs.frozen
class Turn:
    """One response: attempts that fail first, then text, reasoning, calls, and maybe a handoff."""

    calls: tuple[Call, ...]
    flaky: int = 0
    text: bool = False
    handoff: bool = False


@attrs.frozen
class Script:
    """One run."""

    turns: tuple[Turn, ...]
    blocking: tuple[Verdict, ...]
    beside: tuple[Verdict, ...]
    output: tuple[Verdict, ...]
    sequential: bool
    cap: int | None
    buffer: int
    max_turns: int
    broken_hook: str | None
    broken_at: int
    behavior: str
    nested_history: bool


@st.composite
def verdicts(draw: st.DrawFn) -> tuple[Verdict, ...]:
    """Return a few verdicts; mostly all pass."""
    found: list[Verdict] = ["pass"] * draw(st.integers(0, 3))
    ending: Verdict = draw(st.sampled_from([*["pass"] * 14, "trip", "raise"]))  # type: ignore[arg-type]
    if found and ending != "pass":
        found[draw(st.integers(0, len(found) - 1))] = ending
    return tuple(found)


@st.composite
def turns(draw: st.DrawFn, *, depth: int, sequential: bool) -> tuple[Turn, ...]:
    """Return turns; where calls run side by side, a call that ends the run is alone in its turn."""
    found: list[Turn] = []
    for _ in range(draw(st.integers(0, 3 - depth))):
        kinds = draw(st.lists(st.sampled_from([*HARMLESS, *ENDING, *["nested"] * (2 - depth)]), min_size=1, max_size=4))
        if not sequential and any(kind in ENDING for kind in kinds):
            kinds = [kind for kind in kinds if kind not in ENDING] if draw(st.booleans()) else [ENDING[len(kinds) % 2]]
        # A nested run may end in a failure that the model is shown: that is harmless for its siblings.
        calls = tuple(
            Call(
                kind,
                draw(st.integers(0, 3)),
                draw(turns(depth=depth + 1, sequential=sequential)) if kind == "nested" else (),
            )
            for kind in kinds
        )
        flaky = draw(st.sampled_from([0, 0, 0, 1, 3]))
        found.append(Turn(calls, flaky, draw(st.booleans()), draw(st.booleans()) if depth == 0 else False))
    return tuple(found)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Return one run."""
    sequential = draw(st.booleans())
    return Script(
        turns=draw(turns(depth=0, sequential=sequential)),
        blocking=draw(verdicts()),
        beside=draw(verdicts()),
        output=draw(verdicts()),
        sequential=sequential,
        cap=draw(st.sampled_from([None, 1, 2, 32])),
        buffer=draw(st.sampled_from([1, 2, 7, 256])),
        max_turns=draw(st.sampled_from([2, 10])),
        broken_hook=draw(st.sampled_from([*[None] * 20, *HOOKS])),
        broken_at=draw(st.integers(1, 2)),
        behavior=draw(st.sampled_from(["run_llm_again", "run_llm_again", "stop_on_first_tool"])),
        nested_history=draw(st.booleans()),
    )


# ---------------------------------------------------------------------------------------------- how it is played


async def _pass(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@tool
async def ok(ctx: ToolContext[Any], delay: int) -> dict[str, int]:
    await _pass(delay)
    return {"delay": delay}


@tool(name="fail")
async def failing(delay: int) -> str:
    await _pass(delay)
    raise ValueError(f"failed after {delay}")


@tool
async def cancel(ctx: ToolContext[Any], delay: int) -> str:
    await _pass(delay)
    ctx.cancel_call(ctx.tool_call_id, "enough")
    await anyio.lowlevel.checkpoint()
    return "never"


@tool(tool_input_guardrails=[tool_input_guardrail(lambda data: RejectContent("not this", output_info="no"))])
async def reject(delay: int) -> str:
    return "never"


@tool(tool_output_guardrails=[tool_output_guardrail(lambda data: ReplaceOutput(f"less than {data.value}"))])
async def replace(delay: int) -> str:
    await _pass(delay)
    return "all"


@tool(
    tool_input_guardrails=[tool_input_guardrail(lambda d: Rewrite({"delay": 1}) if d.arguments["delay"] else Allow())]
)
async def rewrite(ctx: ToolContext[Any], delay: int) -> str:
    await _pass(delay)
    return ctx.tool_arguments


@tool(name="raise", failure_error_function=None)
async def raising(delay: int) -> str:
    await _pass(delay)
    raise LookupError(f"raised after {delay}")


@tool(tool_output_guardrails=[tool_output_guardrail(lambda data: RaiseException("that"))])
async def trip(delay: int) -> str:
    await _pass(delay)
    return "anything"


TOOLS = (ok, failing, cancel, reject, replace, rewrite, raising, trip)


class Player:
    """Plays one script once: the model's part by path and turn, so that who asks first makes no difference."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.turns: dict[tuple[str, ...], tuple[Turn, ...]] = {(): script.turns}
        self.attempts: dict[tuple[tuple[str, ...], int], int] = {}
        self.lines: list[str] = []
        self.of_calls: dict[str, list[str]] = {}
        self.judged = anyio.Event()
        self.settled = 0
        self.model = ScriptedModel([self.answer] * 400)

    def answer(self, request: Any) -> Any:
        """Return the response to *request*."""
        path, number = request.path, request.turn
        script = self.turns[path]
        pieces: list[Any] = [wait(self.judged)] if not path and number == 1 and self.script.beside else []
        if number > len(script):
            return [*pieces, say(f"end of {'/'.join(path) or 'all'}")]
        turn = script[number - 1]
        tried = self.attempts[path, number] = self.attempts.get((path, number), 0) + 1
        if tried <= turn.flaky:
            return [*pieces, fail(ModelTransportError(f"busy {tried}", status=503))]
        if turn.text:
            pieces += [say(f"turn {number}"), reason("hm")]
        for place, one in enumerate(turn.calls):
            call_id = "/".join([*path, f"{number}.{place}"])
            arguments: Mapping[str, Any] | str = {"delay": one.delay}
            if one.kind == "nested":
                self.turns[(*path, call_id)] = one.turns
                arguments = {"input": f"go {call_id}"}
            elif one.kind == "garbled":
                arguments = '{"delay": '
            pieces.append(call("ok" if one.kind == "garbled" else one.kind, arguments, call_id=call_id))
        if turn.handoff:
            name = "transfer_to_b" if request.system == "You are a." else "transfer_to_a"
            pieces.append(call(name, call_id=f"h{number}"))
        return pieces

    def agent(self) -> Agent[Any, Any]:
        """Return the agent to start with."""
        script = self.script
        nested: Agent[Any, Any] = Agent("nested", instructions="You are nested.", tools=list(TOOLS))
        nested.tools.append(nested.as_tool())  # type: ignore[attr-defined]
        tools = [*TOOLS, nested.as_tool()]
        common: dict[str, Any] = {"tools": tools, "tool_use_behavior": script.behavior}
        a: Agent[Any, Any] = Agent("a", instructions="You are a.", handoffs=[], **common)
        b: Agent[Any, Any] = Agent("b", instructions="You are b.", handoffs=[handoff(a)], **common)
        a.handoffs.append(handoff(b))  # type: ignore[attr-defined]
        a.input_guardrails = [
            *self.guards(InputGuardrail, "blocking", script.blocking, run_in_parallel=False),
            *self.guards(InputGuardrail, "beside", script.beside),
        ]
        return a

    def guards(self, make: Callable[..., Any], name: str, kinds: tuple[Verdict, ...], **options: Any) -> list[Any]:
        """Return guardrails of these verdicts. Only the first that doesn't pass settles then."""
        ending = next((place for place, kind in enumerate(kinds) if kind != "pass"), None)

        def guard(place: int, kind: Verdict) -> Any:
            async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
                if ending is not None and place != ending:
                    await anyio.sleep_forever()
                await _pass(place)
                if kind == "raise":
                    raise ArithmeticError(f"{name} {place}")
                self.settled += name == "beside" and kind == "pass"
                if self.settled == len(kinds):
                    self.judged.set()  # the model answers after the last verdict: what comes first isn't left to chance
                return GuardrailFunctionOutput(f"{name} {place}", tripwire_triggered=kind == "trip")

            return make(judge, name=f"{name}_{place}", **options)

        return [guard(place, kind) for place, kind in enumerate(kinds)]

    def hooks(self) -> RunHooks:
        """Return hooks that write down every call they get, and raise once where the script says so."""
        player, script = self, self.script
        counts = dict.fromkeys(HOOKS, 0)

        def told(name: str, *words: Any) -> None:
            player.lines.append(" ".join([name, *map(str, words)]))
            counts[name] += 1
            if name == script.broken_hook and counts[name] == script.broken_at:
                raise ZeroDivisionError(f"{name} is broken")

        class Hooks(RunHooks):
            async def on_agent_start(self, ctx: Any, agent: Any) -> None:
                told("on_agent_start", agent.name)

            async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
                told("on_agent_end", agent.name, output)

            async def on_llm_start(self, ctx: Any, agent: Any, system: Any, given: Any) -> None:
                told("on_llm_start", agent.name, len(given))

            async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
                told("on_llm_end", agent.name, ctx.usage.requests)

            async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
                told("on_handoff", from_agent.name, to_agent.name)

            async def on_run_end(self, ctx: Any, outcome: Any) -> None:
                told("on_run_end", outcome.status, type(outcome.error).__name__)

            async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
                player.of_calls.setdefault(ctx.tool_call_id, []).append("start")

            async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
                player.of_calls.setdefault(ctx.tool_call_id, []).append(f"end {outcome.status} {outcome.output}")

        return Hooks()


async def play(script: Script, *, streamed: bool) -> dict[str, Any]:
    """Run *script* and return all that can be observed of the run from outside."""
    player, session = Player(script), MemorySession()
    seen: list[Any] = []

    class Watching(Instrument):
        def on_record(self, record: Any) -> None:
            seen.append(record)

    config = RunConfig(
        model=player.model,
        model_settings=ModelSettings(retry=ModelRetrySettings(2, initial_delay=0.0, max_delay=0.0)),
        tool_execution=ToolExecution(
            mode="sequential" if script.sequential else None, max_function_tool_concurrency=script.cap
        ),
        tool_not_found_behavior="tell_model",
        output_guardrails=player.guards(OutputGuardrail, "output", script.output),
        stream_buffer=script.buffer,
        nest_handoff_history=script.nested_history,
        instruments=(Watching(),),
    )
    options: dict[str, Any] = {
        "session": session,
        "hooks": player.hooks(),
        "run_config": config,
        "max_turns": script.max_turns,
    }
    told: dict[str, Any] = {}
    items: list[Any] | None = None
    try:
        if not streamed:
            result = await Runner.run(player.agent(), "go", **options)
        else:
            items = []
            async with Runner.run_streamed(player.agent(), "go", **options) as stream:
                async for one in stream:
                    if isinstance(one, ev.ItemCreated) and not one.path:
                        items.append(one.item)
            result = stream.result
        data: Any = result
        told |= {"status": result.status, "output": result.final_output, "model": result.to_input_list()}
        assert items is None or tuple(items) == result.new_items
    except Exception as error:
        data = getattr(error, "run_data", None)
        told |= {"error": type(error).__name__, "words": str(error), "cause": repr(error.__cause__)}
    if data is not None:
        told |= {"items": data.new_items, "usage": data.usage, "agent": data.last_agent.name}
        told["calls"] = [(one.call.call_id, one.outcome.status, one.outcome.output) for one in data.calls]
        for stage in ("input", "output", "tool_input", "tool_output"):
            found = getattr(data, f"{stage}_guardrail_results")
            told[stage] = sorted((one.guardrail.name, repr(one.output)) for one in found)
    told["session"] = await session.get_items()
    told["hooks"] = player.lines
    told["hooks of calls"] = player.of_calls
    told["records"] = normal(seen)
    return told


@pytest.mark.slow
@pytest.mark.scenario("SP-01", "US-02")
@settings(max_examples=120)
@given(script=scripts())
def test_run_is_the_same_plain_and_streamed_on_both_backends(script: Script) -> None:
    """Output or error, items, usage, session, hooks, guardrail results and the log's normal form are the same."""

    async def main(streamed: bool) -> dict[str, Any]:
        with anyio.fail_after(60):
            return await play(script, streamed=streamed)

    wanted = anyio.run(main, False, backend="asyncio")
    event(f"ends with {wanted.get('error') or wanted['status']}")
    for backend, streamed in (("asyncio", True), ("trio", False), ("trio", True)):
        got = anyio.run(main, streamed, backend=backend)
        for part, value in wanted.items():
            assert got.get(part) == value, f"{part} differs on {backend}, {'streamed' if streamed else 'plain'}"
        assert got.keys() == wanted.keys()
