"""The public JSON form of values: plain data, read back where a reader exists, with secrets as in the stored form."""

import json
from typing import Any

import anyio
import attrs
import pytest
from core.record_strategies import RECORDS
from core.test_stored_secrets import ARGUMENTS, CALL, HERE, HUSH, Shifting
from definitions.item_strategies import ITEMS
from hypothesis import given

import agentloop
from agentloop import (
    Agent,
    Allow,
    HostedTool,
    ModelBehaviorError,
    ModelSettings,
    Prompt,
    Runner,
    RunResult,
    StateError,
    item_from_json,
    record_from_json,
    to_json,
    tool,
)
from agentloop import events as ev
from agentloop import items as i
from agentloop import model_events as m
from agentloop import records as r
from agentloop._storage.model_codec import model_error_from_json, model_event_from_json
from agentloop._storage.record_codec import record_to_json
from agentloop.exceptions import ModelRefusalError, ModelTimeoutError, ModelTransportError, UserTypeError
from agentloop.guardrails import GuardrailFunctionOutput, InputGuardrailResult, tool_output_guardrail
from agentloop.outcomes import CallOutcome
from agentloop.testing import ScriptedModel, call, say
from agentloop.usage import RequestUsage, Usage


def _pure(value: dict[str, Any]) -> dict[str, Any]:
    """Return *value*, which must be JSON's own types alone."""
    text = json.dumps(value, allow_nan=False)
    assert json.loads(text) == value
    return value


@pytest.mark.slow
@given(RECORDS)
def test_a_record_has_its_stored_form_and_is_read_back(record: r.Record) -> None:
    """What is read is written alike; without secrets it is equal."""
    written = _pure(to_json(record))
    assert written == record_to_json(record)
    read = record_from_json(written)
    assert to_json(read) == written
    sealed = to_json(record, codec=(codec := Shifting()))
    assert record_to_json(record_from_json(sealed, codec=codec)) == written


@given(ITEMS)
def test_an_item_is_read_back(item: i.Item) -> None:
    """By the codec that sealed its secrets it is equal."""
    codec = Shifting()
    assert item_from_json(_pure(to_json(item, codec=codec)), codec=codec) == item
    written = _pure(to_json(item))
    assert to_json(item_from_json(written)) == written


def test_what_does_not_fit_is_refused_with_its_place() -> None:
    """The errors of the readers name places, and the writer names the type."""
    with pytest.raises(StateError, match=r"Malformed item: .* @ \$\.call_id"):
        item_from_json({"type": "tool_call", "call_id": 1, "name": "n", "arguments": "{}"})
    with pytest.raises(StateError, match="Malformed record"):
        record_from_json({"kind": "nothing"})
    with pytest.raises(UserTypeError, match="got int"):
        to_json(1)


@tool(secret=("p",), secret_output=True)
async def login(user: str, p: str) -> str:
    """Log in."""
    return HUSH


@tool_output_guardrail
def quote(data: Any) -> Allow:
    """Quote the output."""
    return Allow({"seen": data.output})


GUARDED = attrs.evolve(login, tool_output_guardrails=(quote,))
INPUT = InputGuardrailResult(guardrail=quote, output=GuardrailFunctionOutput(HUSH), duration=0.5, secret=True)


def _run() -> tuple[RunResult[Any], list[ev.Event]]:
    async def main() -> tuple[RunResult[Any], list[ev.Event]]:
        turns = [call("login", {"user": "ann", "p": HUSH}, call_id="c1"), say("done")]
        agent = Agent("guide", model=ScriptedModel(turns), tools=[GUARDED])
        async with Runner.run_streamed(agent, "go") as stream:
            events = [event async for event in stream]
        return stream.result, events

    return anyio.run(main)


def test_events_and_results_of_a_run_are_plain_and_hide_its_secrets() -> None:
    """Each event has its kind, path and turn; nothing that the run's secret tool took or gave is shown."""
    result, events = _run()
    written = [_pure(to_json(event)) for event in events]
    assert {one["type"] for one in written} >= {"agent_updated", "item_created", "call_settled", "guardrail_settled"}
    assert all({"path", "turn"} <= one.keys() for one in written)
    assert written[0] == {"type": "agent_updated", "path": [], "turn": 0, "agent": "guide"}
    whole = _pure(result.to_json())
    assert (whole["status"], whole["final_output"], whole["last_agent"]) == ("completed", "done", "guide")
    assert whole["tool_output_guardrail_results"][0]["guardrail"] == "quote"
    assert whole["calls"][0]["outcome"]["status"] == "succeeded"
    text = json.dumps([written, whole])
    assert json.dumps(HUSH)[1:-1] not in text
    assert "$digest" in text


def test_a_final_output_of_a_secret_tool_is_hidden() -> None:
    """As in the record of the run's end."""
    result, _ = _run()
    ended = result.records[-1]
    assert isinstance(ended, r.RunEnded)
    secret = attrs.evolve(result, final_output=HUSH, records=(ended.replace(secret=True),))
    assert "$sealed" in secret.to_json(codec=Shifting())["final_output"]


VALUES: list[Any] = [
    ev.TextDelta("t", path=("c1",), turn=2),
    ev.RawModelEvent({1: object()}),
    ev.CallProgress(CALL, 0.5, message="half"),
    ev.CustomEvent(CALL, {"found": object()}),
    ev.CallSettled(CALL, CallOutcome(status="failed", error=ValueError(HUSH), output=HUSH, secret=True)),
    ev.ApprovalRequested(i.ApprovalRequest(CALL, "a")),
    ev.AnswerRequested(i.CallToAnswer(call=CALL, agent="a", returns={"type": "string"})),
    i.CallToAnswer(call=CALL, agent="a", returns={"type": "string"}, expires_at=2.0),
    ev.GuardrailSettled(INPUT),
    ev.UsageNote(4_096, 0),
    CallOutcome(status="succeeded", output="ok", value=object()),
    m.ModelResponse((CALL,), RequestUsage(input_tokens=1)),
    RequestUsage(input_tokens=1, raw={"a": [1]}),
    Usage(requests=1, entries=(RequestUsage(total_tokens=3),)),
    m.ModelRequest(
        system="be brief",
        items=(i.UserMessage("hi"), CALL),
        tools=(login,),
        hosted=(HostedTool("web_search", {"depth": 1}),),
        prompt=Prompt("p1", variables={"who": "ann"}),
        output_schema=m.OutputSchema(name="n", schema={"type": "object"}),
        settings=ModelSettings(temperature=0.5, extra_headers={"authorization": HUSH}),
    ),
    r.CallStarted(*HERE, "c1", "login", ARGUMENTS, secret=("p", "q")),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_other_value_is_plain(value: Any) -> None:
    """JSON's own types alone, whatever the value holds, and no secret."""
    assert json.dumps(HUSH)[1:-1] not in json.dumps(_pure(to_json(value)))


def test_a_request_names_what_the_provider_keeps_and_runs() -> None:
    """Hosted tools and a stored prompt are written with their options."""
    [request] = [value for value in VALUES if isinstance(value, m.ModelRequest)]
    written = to_json(request)
    assert written["hosted"] == [{"kind": "web_search", "config": {"depth": 1}}]
    assert written["prompt"]["id"] == "p1"


def test_a_delta_of_arguments_has_no_text() -> None:
    """It may be a part of a secret: the tool isn't known yet."""
    assert to_json(ev.ArgumentsDelta("c1", HUSH)) == {
        "type": "arguments_delta",
        "path": [],
        "turn": 0,
        "call_id": "c1",
    }


MODEL_EVENTS: list[m.ModelEvent] = [
    m.ResponseStarted("r1"),
    m.TextDelta("t"),
    m.TextDelta("t", 2),
    m.ReasoningDelta("t", "summary"),
    m.HostedProgress("search", "running", "h1"),
    m.ArgumentsDelta("c1", "{"),
    m.ItemDone(i.UserMessage("x")),
    m.Raw({"a": [1]}),
    m.ResponseDone((i.UserMessage("x"),), RequestUsage(input_tokens=1), "r1", "q1", "stop"),
]


@pytest.mark.parametrize("event", MODEL_EVENTS, ids=repr)
def test_an_event_of_a_model_is_read_back(event: m.ModelEvent) -> None:
    """Equal to the original."""
    assert model_event_from_json(_pure(to_json(event))) == event


@pytest.mark.parametrize(
    "error",
    [
        ModelTimeoutError(2.5),
        ModelTransportError("no", status=503, code="busy", retry_after=1.0, should_retry=True, request_id="q"),
        ModelRefusalError("no"),
        ModelBehaviorError("bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_model_is_read_back(error: Exception) -> None:
    """With its message and the fields that a retry depends on."""
    read = model_error_from_json(_pure(to_json(error)))
    assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))


def test_what_no_model_raises_is_named() -> None:
    """An error of another class comes back as the base class, and an unknown event is refused."""
    assert str(model_error_from_json({"kind": "Odd", "message": "x"})) == "Odd: x"
    with pytest.raises(ValueError, match="no event is called 'odd'"):
        model_event_from_json({"kind": "odd"})


def test_the_names_are_there_without_an_import() -> None:
    """They are imported at their first use."""
    assert agentloop.to_json is to_json
