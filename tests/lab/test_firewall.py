"""The firewall of the lab: what is answered from the log, what may run, and what never does."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

import pytest
from lab.shop import (
    LEDGER,
    STORIES,
    TOOLS,
    ask,
    last_text,
    look_up,
    make_agent,
    read_again,
    record,
    refund,
    state_of,
)

from agentloop import Agent, AgentLoopError, AskAgain, Capacity, RunConfig, Runner, RunState, lab, tool
from agentloop.guardrails import (
    Allow,
    GuardrailFunctionOutput,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.items import UserMessage
from agentloop.journal import MemoryJournal
from agentloop.records import CallSettled, GuardrailSettled, ModelRequested, RunEnded
from agentloop.testing import FunctionModel, ScriptedModel, call, say
from agentloop.tools import HostedTool

pytestmark = pytest.mark.real_clock


@pytest.fixture(autouse=True)
def empty_ledger() -> None:
    LEDGER.clear()


async def record_all(count: int) -> list[Any]:
    """Return *count* recorded runs of all kinds, as states."""
    kinds = list(STORIES)
    found = [state_of(await record(kinds[n % len(kinds)], n)) for n in range(count)]
    LEDGER.clear()
    return found


@pytest.mark.scenario("LB-02")
@pytest.mark.parametrize("kind", STORIES)
async def test_an_unchanged_agent_gives_the_same_without_a_request(kind: str) -> None:
    """Each kind of run is followed to its end, and its models are never asked."""
    records = await record(kind, 7)
    LEDGER.clear()
    model = ScriptedModel([])
    report = await lab.compare(state_of(records), make_agent(model))
    (row,) = report.rows
    assert (row.verdict, row.saw, row.requests, row.refused) == ("same", (), 0, 0), row.why
    assert model.requests == []
    assert LEDGER == []


@pytest.mark.scenario("LB-01", "LB-02")
@pytest.mark.slow
async def test_two_hundred_runs_are_the_same_and_touch_nothing() -> None:
    """Of 200 runs of all kinds, 200 are the same, without a request and without a body."""
    states = await record_all(200)
    report = await lab.compare(states, make_agent())
    assert [row.verdict for row in report.rows] == ["same"] * 200
    assert report.requests == 0
    assert LEDGER == []


@pytest.mark.scenario("LB-01")
async def test_changed_instructions_run_no_body_that_does_not_only_read() -> None:
    """The candidate's model calls everything that it has; only `look_up` runs."""
    states = await record_all(len(STORIES))

    def bold(request: Any) -> Any:
        if request.turn > 1 or not request.tools:
            return say("That was all.")
        names = [one.name for one in request.tools if one.name != "ask_helper"]
        return [ask(name, 99, order="new", **({"amount": 3} if name in ("refund", "pay") else {})) for name in names]

    agent = make_agent(instructions="Be bold.")
    agent.model = FunctionModel(bold)
    for target in (*agent.handoffs, *(one.body.agent for one in agent.functions if one.name == "ask_helper")):
        target.model = agent.model  # type: ignore[union-attr]
    report = await lab.compare(states, agent, verdict="approve")
    assert {one.partition(" ")[0] for one in LEDGER} == {"look_up"}
    assert [row.name for row in report.rows if row.verdict == "same"] == ["run 8"]  # tripped before any request
    assert report.count("refused") >= 8


@pytest.mark.scenario("LB-03")
async def test_a_matched_call_has_its_recorded_outcome_whatever_the_order() -> None:
    """Value, error, custom data and status are the recorded ones where the candidate calls in another order."""
    kept: list[Any] = []

    @tool(custom_data_extractor=lambda ctx, value: {"seen": value["n"]})
    async def count(n: int) -> dict[str, int]:
        """Count."""
        return {"z": 1, "n": n}

    @tool
    async def fail(n: int) -> str:
        """Fail."""
        raise ValueError(f"no {n}\nreally")

    def agent(model: Any, instructions: str) -> Agent[Any, Any]:
        return Agent("a", instructions=instructions, model=model, tools=[count, fail])

    calls = [call("count", {"n": 1}, call_id="x"), call("count", {"n": 2}, call_id="y"), call("fail", {"n": 3})]
    result = await Runner.run(agent(ScriptedModel([calls, say("ok")]), "One."), "go")
    then = {one.outcome.output: one.outcome for one in result.calls}
    other = [call("fail", {"n": 3}), call("count", {"n": 2}), call("count", {"n": 1})]
    report = await lab.compare(
        result, agent(ScriptedModel([other, say("ok")]), "Two."), observe=lambda row, before, after: kept.append(after)
    )
    now = {one.outcome.output: one.outcome for one in kept[0].records if isinstance(one, CallSettled)}
    assert now.keys() == then.keys()
    for output, outcome in now.items():
        assert (outcome.status, outcome.custom_data) == (then[output].status, then[output].custom_data)
        assert outcome.value == then[output].value
        assert type(outcome.error).__name__ == type(then[output].error).__name__
    assert report.rows[0].verdict == "same"
    assert {one.source for one in kept[0].calls} == {"recorded"}


async def test_a_call_that_the_log_has_once_is_refused_the_second_time() -> None:
    """Occurrence counts: the second of two equal calls was never made."""
    agent = make_agent([ask("refund", 1, order="o", amount=5), say("ok")])
    result = await Runner.run(agent, "go")
    twice = [[ask("refund", 1, order="o", amount=5), ask("refund", 2, order="o", amount=5)], say("ok")]
    report = await lab.compare(result, make_agent(twice, instructions="Twice."))
    assert report.rows[0].verdict == "refused"
    assert report.rows[0].refused == 1
    assert report.rows[0].why[1] == 'added: refund {"order": "o", "amount": 5}'


@pytest.mark.parametrize(
    ("unmatched", "told"), [("refuse", "Tool 'refund' is not available in this replay."), ("stub", "stub")]
)
async def test_an_unmatched_call_gets_what_the_rule_says(unmatched: Any, told: str) -> None:
    """The model is told that the tool isn't available, or gets a value of its schema; no body runs."""
    kept: list[Any] = []
    result = await Runner.run(make_agent([say("no")]), "go")
    LEDGER.clear()
    new = make_agent([ask("refund", 1, order="o", amount=5), say("ok")], instructions="Pay.")
    await lab.compare(result, new, unmatched=unmatched, observe=lambda row, before, after: kept.append(after))
    assert kept[0].calls[0].output == told
    assert LEDGER == []


async def test_an_unmatched_call_is_simulated_or_run_if_that_is_wanted() -> None:
    """A simulation gets the call; `live` runs the body."""
    result = await Runner.run(make_agent([say("no")]), "go")
    kept: list[Any] = []

    def new() -> Agent[Any, Any]:
        return make_agent([ask("refund", 1, order="o", amount=5), say("ok")], instructions="Pay.")

    async def simulate(given: lab.SimulatedCall) -> str:
        return f"{given.tool} {given.arguments['amount']} {given.context}"

    def keep(row: Any, before: Any, after: Any) -> None:
        kept.append(after.calls[0])

    await lab.compare(result, new(), unmatched="simulate", simulate=simulate, context=lambda: "ctx", observe=keep)
    assert (kept[0].output, kept[0].source) == ("refund 5 ctx", "simulated")
    assert LEDGER == []
    await lab.compare(result, new(), unmatched="live", observe=keep)
    assert kept[1].source == "live"
    assert LEDGER == ["refund o 5"]


async def test_a_recorded_verdict_is_given_again_and_no_other() -> None:
    """An equal call is approved as recorded; one with other arguments would ask."""
    records = await record("approved", 3)
    other = make_agent([ask("pay", 9, order="o-3", amount=6), say("ok")], instructions="Pay more.")
    report = await lab.compare(state_of(records), other)
    assert report.rows[0].verdict == "would ask"
    equal = make_agent([ask("pay", 9, order="o-3", amount=5), say("Paid.")], instructions="Pay.")
    report = await lab.compare(state_of(records), equal)
    assert (report.rows[0].verdict, report.rows[0].saw) == ("same", ("turn 1: instructions",))


async def test_guardrails_run_as_code_under_test_and_are_watched(tmp_path: Path) -> None:
    """A guardrail that has become strict shows; what it writes and where it connects is told."""

    @input_guardrail
    async def strict(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        Path(tmp_path, "note").write_text("x")  # noqa: ASYNC240 - what is to be noticed
        with socket.socket() as made, pytest.raises(OSError):
            made.connect(("127.0.0.1", 1))
        return GuardrailFunctionOutput(None, True)

    def make(guards: Any) -> Agent[Any, Any]:
        return Agent("a", model=ScriptedModel([say("hi")]), input_guardrails=guards)

    result = await Runner.run(make([]), "go")
    (row,) = (await lab.compare(result, make([strict]))).rows
    assert row.verdict == "error"
    assert row.why == ("InputGuardrailTripwireTriggered(Input guardrail strict tripped)",)
    assert any("guardrail strict writes to" in note for note in row.notes)
    assert any("guardrail strict connects to ('127.0.0.1', 1)" in note for note in row.notes)


async def test_recorded_guards_take_the_verdict_of_the_log() -> None:
    """The guardrail isn't called where the log has its verdict."""
    ran: list[int] = []

    @input_guardrail(name="watch")
    async def watching(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        ran.append(1)
        return GuardrailFunctionOutput(None, False)

    agent = Agent("a", model=ScriptedModel([say("hi")]), input_guardrails=[watching])
    result = await Runner.run(agent, "go")
    assert ran == [1]
    assert (await lab.compare(result, agent, recorded_guards=True)).count("same") == 1
    assert ran == [1]
    assert (await lab.compare(result, agent)).count("same") == 1
    assert ran == [1, 1]


PASSED = GuardrailFunctionOutput()
ANSWERS: dict[str, tuple[str, Any]] = {
    "passed": ("input", PASSED),
    "input tripped": ("input", GuardrailFunctionOutput("why", True)),
    "output tripped": ("output", GuardrailFunctionOutput("why", True)),
    "asks again": ("output", AskAgain("Name your source.", "why")),
    "allows": ("tool_input", Allow("why")),
    "rejects": ("tool_input", RejectContent("Not so.", "why")),
    "raises": ("tool_input", RaiseException("why")),
    "rewrites": ("tool_input", Rewrite({"order": "other"}, "why")),
    "rejects an output": ("tool_output", RejectContent("Not so.", "why")),
    "replaces an output": ("tool_output", ReplaceOutput("Replaced.", "why")),
}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_every_answer_of_a_guardrail_is_given_again(kind: str, stored: bool) -> None:
    """With `recorded_guards` it isn't asked, and says what it said: the run goes the same way."""
    stage, given = ANSWERS[kind]
    asked: list[str] = []

    def answer(default: Any) -> Any:
        asked.append(kind)
        return given if len(asked) == 1 else default

    @input_guardrail
    def at_input(ctx: Any, agent: Any, shown: Any) -> Any:
        return answer(PASSED) if stage == "input" else PASSED

    @output_guardrail
    def at_output(ctx: Any, agent: Any, output: Any) -> Any:
        return answer(PASSED) if stage == "output" else PASSED

    @tool_input_guardrail
    def at_call(data: Any) -> Any:
        return answer(Allow()) if stage == "tool_input" else Allow()

    @tool_output_guardrail
    def at_return(data: Any) -> Any:
        return answer(Allow()) if stage == "tool_output" else Allow()

    @tool(tool_input_guardrails=[at_call], tool_output_guardrails=[at_return])
    async def find(order: str) -> str:
        """Find."""
        return f"found {order}"

    steps = [call("find", {"order": "o"}), say("one"), say("two")]
    guards: dict[str, Any] = {"input_guardrails": [at_input], "output_guardrails": [at_output]}
    agent = Agent("a", model=ScriptedModel(steps), tools=[find], **guards)
    try:
        records = list((await Runner.run(agent, "go")).records)
    except AgentLoopError as error:
        records = list(cast("Any", error).run_data.records)
    assert asked
    asked.clear()
    kept: list[Any] = []
    log = RunState(agent, read_again(records) if stored else records)
    report = await lab.compare(log, agent, recorded_guards=True, observe=lambda row, before, after: kept.append(after))
    assert (report.rows[0].verdict, report.rows[0].requests) == ("same", 0), report.rows[0].why
    assert asked == []
    said = [[one.verdict for one in log if isinstance(one, GuardrailSettled)] for log in (records, kept[0].records)]
    assert said[0] == said[1]


class Hosting(ScriptedModel):
    """A model whose provider runs tools."""

    features = frozenset({"hosted_tools"})


SERVER = HostedTool("mcp", {"server_url": "https://example.com/mcp", "require_approval": "never"})


@pytest.mark.parametrize("unmatched", ["refuse", "stub", "simulate"])
async def test_tools_that_the_provider_runs_are_not_sent_unless_that_is_allowed(unmatched: Any, tmp_path: Path) -> None:
    """A recorded answer and a kept one need no provider; any other request is an error, which names the option."""
    rule: dict[str, Any] = {"unmatched": unmatched, "simulate": str if unmatched == "simulate" else None}
    before = Agent("a", model=Hosting([say("hi")]), tools=[SERVER])
    result = await Runner.run(before, "go")
    assert (await lab.compare(result, before, **rule)).count("same") == 1
    model = Hosting([say("hi")])
    changed = Agent("a", instructions="New.", model=model, tools=[SERVER])
    (row,) = (await lab.compare(result, changed, cache=tmp_path, **rule)).rows
    assert (row.verdict, model.requests) == ("error", [])
    assert "hosted tools (mcp)" in row.why[0]
    assert "unmatched='live'" in row.why[0]
    (row,) = (await lab.compare(result, changed, cache=tmp_path, unmatched="live")).rows
    assert (row.verdict, len(model.requests)) == ("same", 1)
    (row,) = (await lab.compare(result, changed, cache=tmp_path, **rule)).rows
    assert (row.verdict, len(model.requests)) == ("same", 1)


class LimitedModels:
    """A provider with a limit of its requests."""

    def __init__(self) -> None:
        self.limits = (Capacity(1, "provider"),)

    def get_model(self, name: str) -> Any:
        """Return a model that says its name."""
        return FunctionModel(lambda request: say(name))

    async def __aenter__(self) -> LimitedModels:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


@pytest.mark.parametrize("instructions", [None, "New."])
@pytest.mark.parametrize("of", ["configuration", "provider"])
async def test_no_request_waits_for_a_limit(of: str, instructions: str | None) -> None:
    """A recorded answer would take a place that requests of other runs need, or let real time pass."""
    provider, kept = LimitedModels(), list[Any]()
    config = (
        RunConfig(model_provider=provider)
        if of == "provider"
        else RunConfig(model_provider=provider, model_limits=[Capacity(1, "account")])
    )
    if of == "configuration":
        provider.limits = ()
    inner = Agent("inner", model="small")
    tools = [inner.as_tool("ask_inner", "Ask.", run_config=config)]
    made = Agent("a", model=ScriptedModel([call("ask_inner", {"input": "x"}), say("big")]), tools=tools)
    result = await Runner.run(made, "go", run_config=config)
    assert all(one.queued_at is not None for one in result.records if isinstance(one, ModelRequested))
    changed = made.clone(instructions=instructions, model="big") if instructions else made
    report = await lab.compare(
        result, changed, run_config=config, observe=lambda row, before, after: kept.append(after.records)
    )
    assert report.rows[0].verdict == ("other calls" if instructions else "same")
    requested = [one for one in kept[0] if isinstance(one, ModelRequested)]
    assert [one.queued_at for one in requested] == [None] * (1 if instructions else 3)


@pytest.mark.parametrize("secret", [False, True])
async def test_an_answer_to_something_secret_is_kept_nowhere(secret: bool, tmp_path: Path) -> None:
    """It may quote it."""
    agent = Agent("a", model=ScriptedModel([say("hello")]))
    result = await Runner.run(agent, [UserMessage("My pin is 4711.", secret=secret)])
    changed = Agent("a", instructions="New.", model=FunctionModel(lambda request: say("Your pin is 4711.")))
    for _ in range(2):
        await lab.compare(result, changed, cache=tmp_path)
    texts = [path.read_text() for path in tmp_path.iterdir()]  # noqa: ASYNC240
    assert ["4711" in text for text in texts] == ([] if secret else [True])


async def test_an_answer_with_half_a_character_is_kept_as_any_other(tmp_path: Path) -> None:
    """UTF-8 has none; JSON does."""
    result = await Runner.run(Agent("a", model=ScriptedModel([say("hello")])), "go")
    changed = Agent("a", instructions="New.", model=ScriptedModel([say("\ud83d")]))
    one = await lab.compare(result, changed, cache=tmp_path)
    two = await lab.compare(result, changed, cache=tmp_path)
    assert one.count("answer differs") == 1
    assert (one.requests, two.to_json()) == (1, one.to_json())


async def test_a_session_is_neither_read_nor_written() -> None:
    """Its items come from the log."""

    class Session:
        def __init__(self) -> None:
            self.items: list[Any] = []
            self.used = 0

        async def get_items(self, limit: int | None = None) -> list[Any]:
            self.used += 1
            return list(self.items)

        async def add_items(self, items: Any) -> None:
            self.used += 1
            self.items += items

        async def pop_item(self) -> Any:
            return None

        async def clear(self) -> None:
            return None

    session = Session()
    agent = Agent("a", model=ScriptedModel([say("one"), say("two")]))
    await Runner.run(agent, "first", session=session)
    result = await Runner.run(agent, "second", session=session)
    used = session.used
    report = await lab.compare(result, agent)
    assert (report.rows[0].verdict, report.rows[0].saw) == ("same", ())
    assert session.used == used


async def test_a_source_of_tools_is_asked_only_if_that_is_allowed() -> None:
    """A server is the outside world."""
    asked: list[int] = []

    class Source:
        name = "source"

        async def tools(self, ctx: Any, agent: Any) -> Any:
            asked.append(1)
            return [look_up]

    agent = Agent("a", model=ScriptedModel([say("hi")]), toolsets=[Source()])
    result = await Runner.run(agent, "go")
    assert len(asked) == 1
    (row,) = (await lab.compare(result, agent)).rows
    assert row.verdict == "error"
    assert "toolsets=True" in row.why[0]
    assert len(asked) == 1
    assert (await lab.compare(result, agent, toolsets=True)).count("same") == 1


@pytest.mark.scenario("LB-04")
@pytest.mark.parametrize("part", ["arguments", "output"])
async def test_a_secret_that_the_log_hides_ends_the_comparison_there(part: str) -> None:
    """The row says from which turn, and shows no secret."""
    secret = "swordfish-4711"

    @tool(secret=["word"] if part == "arguments" else [], secret_output=part == "output")
    async def unlock(word: str) -> str:
        """Unlock."""
        return secret

    def make(model: Any) -> Agent[Any, Any]:
        return Agent("a", model=model, tools=[unlock, look_up])

    word = secret if part == "arguments" else "open"
    steps = [call("look_up", {"order": "o"}), call("unlock", {"word": word}), say("open")]
    journal = MemoryJournal()
    await Runner.run(make(ScriptedModel(steps)), "go", journal=journal)
    model = ScriptedModel([])
    report = await lab.compare(journal, make(model))
    (row,) = report.rows
    assert row.verdict == "not comparable"
    assert row.why == ("from turn 2 on: the log hides a secret",)
    assert secret not in str(report) + report.to_json() + report.to_junit()
    assert model.requests == []


async def test_a_model_that_was_changed_is_asked() -> None:
    """An equal request to another model is no equal request."""

    class Other(ScriptedModel):
        name = "other"

    result = await Runner.run(Agent("a", model=ScriptedModel([say("hi")])), "go")
    (row,) = (await lab.compare(result, Agent("a", model=Other([say("hi")])))).rows
    assert (row.verdict, row.saw, row.requests) == ("same", ("turn 1: model",), 1)


async def test_the_cache_answers_equal_requests_of_later_comparisons(tmp_path: Path) -> None:
    """The candidate's model is asked once, ids of calls apart."""
    result = await Runner.run(make_agent([say("no")]), "go")
    steps = [ask("refund", 1, order="o", amount=1), say("ok")]  # refused, since a body that runs takes real time
    first = make_agent(steps, instructions="Look.")
    one = await lab.compare(result, first, cache=tmp_path / "cache")
    model = ScriptedModel([])
    two = await lab.compare(result, make_agent(model, instructions="Look."), cache=tmp_path / "cache")
    assert model.requests == []
    assert one.to_json() == two.to_json()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()} == {0o600}


async def test_the_budget_bounds_the_requests() -> None:
    """What would exceed it is an error of its row."""
    results = [await Runner.run(make_agent([say("no")]), f"go {n}") for n in range(3)]
    model = FunctionModel(lambda request: say(last_text(request)))
    agent = Agent("shop", instructions="New.", model=model)
    report = await lab.compare(results, agent, budget=2, concurrency=1)
    assert report.count("error") == 1
    assert "the budget of 2 model requests is spent" in str(report)


async def test_input_that_was_added_later_is_added_at_the_same_point() -> None:
    """The application had stopped the run after a turn, and added a message."""
    agent = make_agent([ask("look_up", 1), say("Anything else?")])
    from agentloop.config.conditions import MaxTurns

    first = await Runner.run(agent, "go", run_config=RunConfig(stop_when=MaxTurns(1)))
    state = first.to_state()
    state.add_input("And hurry.")
    result = await Runner.run(agent, state)
    model = ScriptedModel([])
    report = await lab.compare(result, make_agent(model))
    assert (report.rows[0].verdict, report.rows[0].requests) == ("same", 0)


async def test_a_secret_answer_of_the_labs_run_is_shown_nowhere() -> None:
    """Its record is marked as that of any run, so reports mask it and journals of branches seal it."""
    secret = "swordfish-4711"

    @tool(secret_output=True)
    async def tell() -> str:
        """Tell the word."""
        return secret

    def teller(*steps: Any) -> Agent[Any, Any]:
        model = ScriptedModel([*steps])
        return Agent("teller", model=model, tools=[tell], tool_use_behavior="stop_on_first_tool")

    result = await Runner.run(teller(call("tell", {}, call_id="t")), "go")
    assert result.final_output == secret
    report = await lab.compare(result, teller())
    assert [(row.verdict, row.requests) for row in report.rows] == [("same", 0)]
    made = await lab.fork(result, teller(), at=1, branches=[lab.Branch()])
    [branch] = made.branches
    assert secret not in str(report) + report.to_json() + report.to_junit() + str(made) + made.to_html() + branch.answer
    ended = branch.records[-1]
    assert isinstance(ended, RunEnded)
    assert ended.secret


@pytest.mark.parametrize("stops", [1, 2, 3])
async def test_a_run_that_was_resumed_where_it_had_stopped_is_resumed(stops: int) -> None:
    """It stops as often as the recorded run, also by a condition; and where the recorded run stopped for good."""
    from agentloop.config.conditions import MaxTurns

    agent = make_agent([*(ask("look_up", n) for n in range(3)), say("Anything else?")])
    config = RunConfig(stop_when=MaxTurns(1))
    result = await Runner.run(agent, "go", run_config=config)
    for _ in range(stops):
        result = await Runner.run(agent, result.to_state(), run_config=config)
    assert (result.status == "completed") == (stops == 3)
    report = await lab.compare(result, make_agent(ScriptedModel([])), run_config=config)
    [row] = report.rows
    assert row.after is not None
    assert (row.verdict, row.requests, row.after.turns) == ("same", 0, 1 + stops)


def test_tools_of_the_shop_cover_every_kind() -> None:
    """One only reads, one needs an approval."""
    assert [one.name for one in TOOLS if one.reads_only] == ["look_up"]
    assert refund.needs_approval is False
