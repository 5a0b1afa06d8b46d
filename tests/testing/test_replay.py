"""Strict replay: a recorded run comes out the same to the byte, on either backend, and nothing of the user's runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from exploration.generators import GeneratorConfig, Seeded, draw_world

from agentloop import Agent, RunConfig, Runner, ToolExecution, input_guardrail, tool
from agentloop._storage.record_codec import decode, encode, record_from_json, record_to_json
from agentloop.exceptions import ReplayDivergence
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.records import Record
from agentloop.testing import ScriptedModel, call, fail, say
from agentloop.testing.replaying import replay
from agentloop.testing.simulation.generated import draw_tape
from agentloop.testing.simulation.runs import CancelAt, World, run_one

BACKENDS = ("asyncio", "trio")


def as_lines(records: Any) -> list[bytes]:
    """Return *records* as the bytes a journal holds."""
    return [encode(record_to_json(record)) for record in records]


def stored(records: Any) -> list[Record]:
    """Return *records* as another process reads them."""
    return [record_from_json(decode(line)) for line in as_lines(records)]


def drawn(seed: int) -> World:
    """Return a world with everything that worlds may have."""
    chance = Seeded(seed)
    fields = draw_world(chance, GeneratorConfig(approvals=chance.one_in(3), secrets=False, slow_readers=False))
    order = chance.pick(["gate", "passes", "steps"])
    cancel = CancelAt(chance.whole(0, 60), chance.pick(["scope", "native"])) if chance.one_in(4) else None
    return World(**fields, order=order, cancel=cancel, tape=draw_tape(chance))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 120, 10))
def test_recorded_worlds_come_out_the_same_to_the_byte_on_both_backends(first: int) -> None:
    """The worlds have handoffs, nested runs, guardrails, approvals over several entries, faults and cancellations."""
    for seed in range(first, first + 10):
        world = drawn(seed)
        recorded = run_one(world, backend=BACKENDS[seed % 2], streamed=bool(seed // 2 % 2))
        if not recorded.records:
            continue
        wanted = as_lines(recorded.records)
        agent: Any = world.agent
        for backend in BACKENDS:
            config: Any = world.options["run_config"]
            replayed = replay(stored(recorded.records), agent(), run_config=config, backend=backend)
            assert as_lines(replayed.records) == wanted, f"seed {seed} on {backend}"


RAN: list[str] = []


@input_guardrail
def looks(ctx: Any, agent: Any, given: Any) -> Any:
    """Note that it ran, and pass."""
    from agentloop import GuardrailFunctionOutput

    RAN.append("guardrail")
    return GuardrailFunctionOutput("seen")


def worker(instructions: str | Callable[..., str] = "Be brief.", *, unit: str = "grams") -> Agent[Any, Any]:
    """Return an agent that calls two tools at once, one of which fails."""

    @tool(description=f"Weigh something, in {unit}.")
    async def weigh(n: int) -> int:
        RAN.append("weigh")
        await anyio.sleep(0.001)
        return n * 2

    @tool
    async def breaks() -> str:
        RAN.append("breaks")
        raise ValueError("no luck")

    script = [[call("weigh", {"n": 4}), call("breaks")], say("done")]
    return Agent(
        "worker",
        instructions=instructions,
        tools=[weigh, breaks],
        input_guardrails=[looks],
        model=ScriptedModel(script),
    )


def record(agent: Agent[Any, Any], path: Path, **options: Any) -> None:
    """Run *agent* on a stock event loop, journaled."""

    async def main() -> None:
        journal = FileJournal(path, fsync="never")
        try:
            await Runner.run(agent, "go", journal=journal, **options)
        finally:
            await journal.aclose()

    anyio.run(main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_journal_replays_and_nothing_of_the_users_runs(tmp_path: Path, backend: Any) -> None:
    """The replay runs no body, guardrail, callback or model."""
    record(worker(lambda ctx, agent: RAN.append("instructions") or "Be brief."), tmp_path / "run.journal")
    assert {"weigh", "breaks", "guardrail", "instructions"} <= set(RAN)
    RAN.clear()
    agent = worker(lambda ctx, agent: RAN.append("instructions") or "Be brief.")
    replayed = replay(tmp_path / "run.journal", agent, backend=backend)
    assert RAN == []
    assert isinstance(agent.model, ScriptedModel)
    assert not agent.model.requests
    assert replayed.result is not None
    assert replayed.result.final_output == "done"
    assert replayed.replayed == len(replayed.records)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (lambda: worker("Be long."), "ModelRequested"),
        (lambda: worker(unit="pounds"), "ModelRequested"),
    ],
    ids=["prompt", "tool"],
)
def test_a_changed_definition_diverges_at_the_first_request(tmp_path: Path, changed: Any, kind: str) -> None:
    """The digest of what the model is shown covers both."""
    record(worker(), tmp_path / "run.journal")
    with pytest.raises(ReplayDivergence) as caught:
        replay(tmp_path / "run.journal", changed())
    assert type(caught.value.wanted).__name__ == kind
    assert str(caught.value.n) in str(caught.value)


def test_a_changed_limit_diverges_where_it_first_shows(tmp_path: Path) -> None:
    """The log ran a second call that is refused now."""
    record(worker(), tmp_path / "run.journal")
    config = RunConfig(tool_execution=ToolExecution(max_calls_per_turn=1))
    with pytest.raises(ReplayDivergence) as caught:
        replay(tmp_path / "run.journal", worker(), run_config=config)
    assert caught.value.n > 3


@pytest.mark.filterwarnings("ignore:replay.mode=:DeprecationWarning")
def test_what_if_another_model_had_answered(tmp_path: Path) -> None:
    """The first turn is replayed, and the other model answers the second one."""
    record(worker(), tmp_path / "run.journal")
    other = ScriptedModel([say("something else")])
    RAN.clear()
    replayed = replay(tmp_path / "run.journal", worker(), mode="what_if", turn=2, run_config=RunConfig(model=other))
    assert replayed.result is not None
    assert replayed.result.final_output == "something else"
    assert "weigh" not in RAN


def test_a_failed_run_replays_its_failure() -> None:
    """The error has the recorded words."""
    agent = Agent("a", model=ScriptedModel([fail(ValueError("broken"))]))

    async def main() -> MemoryJournal:
        journal = MemoryJournal()
        with pytest.raises(ValueError, match="broken"):
            await Runner.run(agent, "go", journal=journal)
        return journal

    replayed = replay(anyio.run(main), agent)
    assert replayed.result is None
    assert "broken" in str(replayed.error)
