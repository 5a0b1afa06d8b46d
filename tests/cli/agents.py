"""Agents for the tests of the command line, which loads this file as a TARGET: each time anew, so scripts are fresh."""

import os
import time
from pathlib import Path
from typing import Any

import anyio
import attrs

from agentloop import (
    Agent,
    AskAgain,
    Capacity,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    ToolContext,
    UserError,
    tool,
)
from agentloop.items import ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.testing import ScriptedModel, call, fail, say, wait
from agentloop.usage import RequestUsage

MANY = 10_000


def asked(request: ModelRequest) -> str:
    """Return the request's text."""
    return next(item.text for item in reversed(request.items) if isinstance(item, UserMessage))


def note(text: str) -> None:
    """Add a line to the file that the test reads."""
    with Path(os.environ["AGENTLOOP_TEST_NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")


def scripted(step: Any) -> ScriptedModel:
    """Return a model that answers every request by the same rule."""
    return ScriptedModel([step] * MANY)


# -- answers


@tool
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def _doubles(request: ModelRequest) -> Any:
    last = request.items[-1]
    return say(f"It is {last.output}.") if isinstance(last, ToolOutput) else call("double", {"number": 21})


doubler = Agent("doubler", model=scripted(_doubles), tools=[double])
stopping = Agent(
    "stopping",
    model=scripted(lambda _: call("double", {"number": 21})),
    tools=[double],
    tool_use_behavior="stop_on_first_tool",
)
endless = Agent("endless", model=scripted(lambda _: call("double", {"number": 1})), tools=[double])
steering = Agent("steering", model=scripted(lambda _: call("double", '{"number": "\x1b[2J"}')), tools=[double])


@tool
async def trip(number: int) -> int:
    """Fail."""
    raise ValueError(f"no step {number}, api_key=hunter2")


def _trips(request: ModelRequest) -> Any:
    last = request.items[-1]
    return say("Never mind.") if isinstance(last, ToolOutput) else call("trip", {"number": 3}, call_id="c1")


clumsy = Agent("clumsy", model=scripted(_trips), tools=[trip])


def _lost(token: str) -> Exception:
    error = UserError(f"no session for {token}")
    error.add_note(f"asked with {token}")
    return error


@tool(secret=("token",), failure_error_function=None)
async def login(token: str) -> str:
    """Fail, and repeat a secret argument in words, note and cause."""
    try:
        raise KeyError(token)
    except KeyError as error:
        raise ValueError(f"refused {token}") from error


@tool(name="login", secret=("token",), failure_error_function=None)
async def login_lost(token: str) -> str:
    """Fail with an error of the library's own kind, which leaves the run bare."""
    raise _lost(token)


def _unsure(ctx: Any, arguments: Any, call_id: str) -> bool:
    raise _lost(arguments["token"])


@tool(name="login", secret=("token",), needs_approval=_unsure)
async def login_unsure(token: str) -> str:
    """Never run."""
    return "in"


def logging_in(tool: FunctionTool) -> Agent[Any, Any]:
    """Return an agent that logs in with a secret."""
    return Agent("secretive", model=scripted(call("login", {"token": "canary-4711"}, call_id="c1")), tools=[tool])


refused, lost, unsure = (logging_in(each) for each in (login, login_lost, login_unsure))


def _echo(request: ModelRequest) -> Any:
    text = asked(request)
    return fail(ValueError(f"can't answer {text!r}: api_key=hunter2")) if text.startswith("bad") else say(f"[{text}]")


echo = Agent("echo", model=scripted(_echo))

# -- runs side by side

_last_asked = anyio.Event()
_together = anyio.Event()
_running = 0
_peak = 0


def _first_after_last(request: ModelRequest) -> Any:
    text = asked(request)
    if text == "last":
        _last_asked.set()
    return [wait(_last_asked), say(text)] if text == "first" else say(text)


crossing = Agent("crossing", model=scripted(_first_after_last))


@tool
async def meet(count: int) -> int:
    """Wait until so many are here, and return how many there were at most."""
    global _running, _peak
    _running += 1
    _peak = max(_peak, _running)
    if _running == count:
        _together.set()
    await _together.wait()
    _running -= 1
    return _peak


meeting = Agent(
    "meeting",
    model=scripted(lambda request: call("meet", {"count": int(asked(request))})),
    tools=[meet],
    tool_use_behavior="stop_on_first_tool",
)

# -- runs that don't end by themselves


@tool
async def hang() -> str:
    """Wait for ever, and note that it was cleaned up."""
    try:
        await anyio.sleep_forever()
    finally:
        note("cleaned")


@tool
async def resist() -> str:
    """Don't let anyone end it."""
    try:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
    finally:
        note("never")


@tool
async def block() -> str:
    """Hold up the whole event loop."""
    note("blocking")
    time.sleep(1_000)  # noqa: ASYNC251  # the point of it
    note("never")
    return ""


hanging = Agent("hanging", model=scripted(lambda _: [call("hang")] * 3), tools=[hang])
resisting = Agent("resisting", model=scripted(lambda _: call("resist")), tools=[resist])
blocking = Agent("blocking", model=scripted(lambda _: call("block")), tools=[block])


def _hangs_at_two(request: ModelRequest) -> Any:
    return call("hang") if asked(request) == "two" else say(asked(request))


hanging_at_two = Agent("hanging at two", model=scripted(_hangs_at_two), tools=[hang])
talkative = Agent("talkative", model=ScriptedModel([say("many words " * 50_000)], chunk=4_096))

# -- no agents

number = 3
nowhere = Agent("nowhere", model="nowhere:model")
keyless = Agent("keyless", model="openai-chat:some-model")

# -- conversations


@tool(needs_approval=True)
async def erase(name: str) -> str:
    """Erase a file."""
    note(f"erased {name}")
    return f"{name} is erased"


def _converses(request: ModelRequest) -> Any:
    """Do what the last message says, and else repeat all messages."""
    since = max(n for n, item in enumerate(request.items) if isinstance(item, UserMessage))
    outputs = [str(item.output) for item in request.items[since:] if isinstance(item, ToolOutput)]
    texts = [item.text for item in request.items if isinstance(item, UserMessage)]
    if outputs:
        return say(outputs[-1])
    match texts[-1].split():
        case ["hang"]:
            return call("hang")
        case ["erase", name]:
            return call("erase", {"name": name})
        case ["bad", *_]:
            return fail(ValueError(f"can't answer {texts[-1]!r}: api_key=hunter2"))
        case _:
            return say(" | ".join(texts))


talker = Agent("talker", model=scripted(_converses), tools=[hang, erase])


async def _refuse_rude_words(ctx: Any, agent: Any, given: Any) -> Any:
    """Reject an added input that is rude."""
    rude = any("stupid" in item.text for item in given[-1:])
    return AskAgain("mind your words") if rude else GuardrailFunctionOutput(tripwire_triggered=False)


def _listens(request: ModelRequest) -> Any:
    """Do what the last message says; after a call, repeat all messages."""
    texts = [item.text for item in request.items if isinstance(item, UserMessage)]
    last = request.items[-1]
    match texts[-1].split():
        case ["climb"] if isinstance(last, UserMessage):
            return call("climb", {"name": "peak"})
        case ["erase", name] if isinstance(last, UserMessage):
            return [call("climb", {"name": "peak"}), call("erase", {"name": name})]
        case _:
            return say(" | ".join(texts))


# -- lanes

_two_at_once = Capacity(2)


@tool(capacity=_two_at_once)
async def climb(ctx: ToolContext[None], name: str) -> str:
    """Report, and wait until the test opens the pipe."""
    await ctx.report(1, 4, "of the way \x1b[2J")
    await anyio.to_thread.run_sync(_wait_for_pipe, abandon_on_cancel=True)
    return f"{name} is climbed"


def _wait_for_pipe() -> None:
    os.close(os.open(os.environ["AGENTLOOP_TEST_NOTES"] + ".pipe", os.O_RDONLY))


def _climbs(request: ModelRequest) -> Any:
    if any(isinstance(item, ToolOutput) for item in request.items):
        return say("All are climbed.")
    return [say("Up we go"), *[call("climb", {"name": f"peak \x1b[2J {n}"}) for n in range(int(asked(request)))]]


climber = Agent("climber", model=scripted(_climbs), tools=[climb])
listener = Agent(
    "listener",
    model=scripted(_listens),
    tools=[climb, erase],
    input_guardrails=[InputGuardrail(_refuse_rude_words)],
)
guide = Agent(
    "guide",
    model=scripted(lambda request: say("Done.") if len(request.items) > 1 else call("go_up", {"input": "3"})),
    tools=[climber.as_tool("go_up", "Climb.")],
)


@tool
async def finish() -> str:
    """Note the end."""
    note("finished")
    return "noted"


def _talks_on(request: ModelRequest) -> Any:
    if any(isinstance(item, ToolOutput) for item in request.items):
        return say("The end.")
    return [say("many words\n" * 20_000), call("finish")]


talking_on = Agent("talking on", model=ScriptedModel([_talks_on] * 2, chunk=64), tools=[finish])

_USED = RequestUsage(input_tokens=1_200, output_tokens=34, total_tokens=1_234)
used = Agent("used", model=scripted(say("hello", _USED)))


@tool(needs_approval=True)
async def show(text: str) -> str:
    """Show a text."""
    raise AssertionError


odd_call = Agent(
    "odd\x1b[2J",
    model=scripted(lambda _: call("show", '{"text": "\x1b]0;title\x07\x9b\u202e\u2066"}', call_id="c\x9b2J\u202e")),
    tools=[show],
)


# -- contexts


@attrs.define
class Shop:
    """What the tools of an application need."""

    name: str = "made for the run"
    runs: int = 0


shop = Shop("the one object")


def make_shop() -> Shop:
    """Return another context each time."""
    return Shop("from a function")


async def make_shop_later() -> Shop:
    """Return one too late."""
    return Shop()


@tool
async def look_around(ctx: ToolContext[Shop]) -> str:
    """Tell about the context."""
    ctx.context.runs += 1
    return f"{ctx.context.name}, run {ctx.context.runs}"


def _looks(request: ModelRequest) -> Any:
    last = request.items[-1]
    return say(str(last.output)) if isinstance(last, ToolOutput) else call("look_around")


@tool(needs_approval=True)
async def look_behind(ctx: ToolContext[Shop]) -> str:
    """Tell about the context, when that is approved."""
    return ctx.context.name


def _looks_behind(request: ModelRequest) -> Any:
    last = request.items[-1]
    return say(str(last.output)) if isinstance(last, ToolOutput) else call("look_behind", call_id="c")


keeper_of_shop = Agent("keeper", model=scripted(_looks), tools=[look_around])
careful_keeper = Agent("careful", model=scripted(_looks_behind), tools=[look_behind])
