"""The run whose stored state and journal are frozen under `tests/fixtures`, and how these files are made.

Each schema has its own state, and from schema 2 on its own journal. The files of a released schema are never made
again. As long as the present schema is not released, after a change of what is stored:

    PYTHONPATH=tests python -m kit.frozen_state
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    ModelRetrySettings,
    ModelSettings,
    RunContext,
    RunHooks,
    Runner,
    RunState,
    handoff,
    input_guardrail,
    tool,
)
from agentloop._common.json_bytes import encode
from agentloop.exceptions import ModelTransportError
from agentloop.guardrails import Allow, RejectContent, tool_input_guardrail, tool_output_guardrail
from agentloop.items import Reasoning, ToolCall, UserMessage
from agentloop.journal import FileJournal
from agentloop.records import InputAdded
from agentloop.sessions import MemorySession
from agentloop.testing import call, fail, respond, say
from agentloop.usage import RequestUsage
from kit.agents import script_turns

FOLDER = Path(__file__).parents[1] / "fixtures"
STATES = sorted(FOLDER.glob("state-schema-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
"""The states by their schemas, oldest first."""
JOURNALS = [path for state in STATES if (path := state.with_name(f"{state.stem}.journal")).exists()]
RUN_ID = "0123456789abcdef0123456789abcdef"
CONTEXT = {"owner": "Ann", "raw": b"\x00\xff", "limit": 1 << 70}
_BY_CHANCE = {"at", "queued_at", "body_ended_at", "first_delta_at", "started_at", "ended_at"}


@attrs.frozen
class Point:
    """A value a tool returns."""

    x: int
    y: float


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool_input_guardrail
def allowed(data: Any) -> Allow:
    """Allow."""
    return Allow({"checked": True})


@tool_output_guardrail
def hidden(data: Any) -> RejectContent:
    """Hide."""
    return RejectContent("Hidden.")


@tool(idempotent=True, tool_input_guardrails=[allowed], custom_data_extractor=lambda ctx, value: (value.x, b"\x01"))
async def locate(place: str = "here") -> Point:
    """Locate."""
    return Point(1, 2.5)


@tool(tool_output_guardrails=[hidden])
async def peek() -> str:
    """Peek."""
    return "what nobody may see"


@tool
async def broken() -> str:
    """Fail."""
    raise ValueError("no luck")


@input_guardrail(name="polite", run_in_parallel=False)
async def polite(ctx: RunContext[Any], agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass."""
    return GuardrailFunctionOutput({"score": 0.5}, False)


def build_agent() -> Agent[Any, Any]:
    """Return the agent of the run: guarded, with a handoff to one that has a nested agent of its own name."""
    usage = RequestUsage(input_tokens=10, output_tokens=3, total_tokens=13, cached_tokens=2)
    inner = Agent(
        "clerk",
        instructions="You work inside.",
        tools=[pay],
        model=script_turns(call("pay", {"amount": 2}, call_id="inner_pay"), say("inside is done", usage)),
    )
    calls = [
        call("inside", {"input": "please"}, call_id="nested"),
        call("pay", {"amount": 1}, call_id="own_pay"),
        call("pay", {"amount": 3}, call_id="other_pay"),
    ]
    answers = iter([fail(ModelTransportError("busy", status=503, should_retry=True)), calls])
    clerk = Agent("clerk", instructions="You work at the desk.", tool_execution="sequential")
    clerk.tools = [pay, inner.as_tool("inside", "Asks inside.")]
    clerk.model_settings = ModelSettings(retry=ModelRetrySettings(1, initial_delay=0.0, jitter=False))
    clerk.model = script_turns(say("-"), lambda request: next(answers), say("all is done", usage))
    root = Agent("guide", tools=[locate, peek, broken], input_guardrails=[polite], tool_execution="sequential")
    root.handoffs = [handoff(clerk, tool_name="over", nest_handoff_history=True)]
    root.model = script_turns(
        [
            respond(Reasoning("rs_1", ("because",)), usage=usage, response_id="resp_1"),
            respond(ToolCall("located", "locate", '{"place": "there"}', provider_data={"id": "fc_1"})),
            call("locate", {"place": "there"}, call_id="again"),
            call("peek", call_id="peeked"),
            call("broken", call_id="failed"),
            call("over", call_id="handed"),
        ]
    )
    return root


class _Stop(RunHooks):
    """Ends a run after the turn in which the model was asked."""

    stop: Callable[[], None]

    async def on_llm_start(self, *_: Any) -> None:
        self.stop()


async def make_state() -> RunState:
    """Return the state of a run of three entries: stopped after a turn, given input, and paused for a last verdict."""
    root, session, hooks = build_agent(), MemorySession(), _Stop()
    async with Runner.run_streamed(
        root, "Please.", context=CONTEXT, max_turns=7, session=session, hooks=hooks
    ) as stream:
        hooks.stop = lambda: stream.cancel("after_turn")
        async for _ in stream:
            pass
    state = stream.state
    # As the library did when the schema was frozen. Today the record has an id, and the run shows the input later.
    state._append(InputAdded((), state._fold.turn, 0.5, (UserMessage("Be quick."),)))
    state = (await Runner.run(root, state, session=session)).to_state()
    state.reject("other_pay", message="Too much.")
    state.approve("own_pay", arguments={"amount": 10}, always=True)
    waiting: RunState = (await Runner.run(root, state, session=session)).to_state()
    return waiting


def fix_chance(value: Any) -> Any:
    """Return the JSON of a state with constants in place of ids and times."""
    if isinstance(value, list):
        return [fix_chance(member) for member in value]
    if not isinstance(value, dict):
        return value
    fixed = {"answer": 0.5, "duration": 0.25, "idempotency_key": "0" * 32, "library": "0.0.0"}
    return {
        key: 1_700_000_000.5 if key in _BY_CHANCE else fixed.get(key, fix_chance(member))
        for key, member in value.items()
    }


async def write_journal(path: Path, data: Any) -> None:
    """Write the journal that the run of *data*, the JSON of a state, would have written."""
    head = {"kind": "header", "schema": data["schema"], "library": data["library"], "run_id": RUN_ID}
    await anyio.Path(path).unlink(missing_ok=True)
    async with FileJournal(path) as journal:
        await journal.append([encode({**head, "graph": data["graph"], "redaction": "digests"})])
        await journal.append([encode(record) for record in data["records"]])


async def main() -> None:
    """Make the files of the present schema."""
    data = fix_chance((await make_state()).to_json())
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False)
    for record in data["records"]:
        if record["kind"] == "run_started" and not record["path"]:
            text = text.replace(record["run_id"], RUN_ID)
    schema = RunState.schema_version
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"state-schema-{schema}.json").write_text(text + "\n")
    await write_journal(FOLDER / f"state-schema-{schema}.journal", json.loads(text))


if __name__ == "__main__":
    anyio.run(main)
