"""Events and results are shown in words and in JSON."""

import io
import json
from typing import Any

import attrs
import pytest

from agentloop import Agent, Allow, Runner, UserError
from agentloop import events as ev
from agentloop._common.terminal_text import duration
from agentloop.cli import errors
from agentloop.cli.saved_run import RunSummary, summary_of
from agentloop.cli.show import JsonLines, Narrator, json_line, plain, result_json, text_of
from agentloop.cli.streams import Output
from agentloop.guardrails import ToolGuardrailResult, tool_input_guardrail
from agentloop.items import HostedToolCall, Image, Text, ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.testing import ScriptedModel, say

pytestmark = [pytest.mark.anyio]

CALL = ToolCall("call_1", "fetch", '{"url": "x"}')


def _narrator(*, terminal: bool = False) -> tuple[Narrator, io.StringIO, io.StringIO]:
    texts = io.StringIO(), io.StringIO()
    out, err = (Output(text) for text in texts)
    out.is_terminal = err.is_terminal = terminal
    return Narrator(out, err), *texts


async def test_progress_and_nested_calls_are_told_where_they_belong(anyio_backend: object) -> None:
    """A nested run's calls are indented, its text is left out."""
    show, out, err = _narrator()
    await show.event(ev.CallStarted(CALL))
    await show.event(ev.CallProgress(CALL, 1, 4, "half\nway"))
    await show.event(ev.CallProgress(CALL, 0.5))
    await show.event(ev.CallStarted(CALL, path=("call_0",)))
    await show.event(ev.TextDelta("inner", path=("call_0",)))
    assert err.getvalue().splitlines() == [
        '→ fetch {"url": "x"}',
        "… fetch 1 of 4 half way",
        "… fetch 0.5",
        '  → fetch {"url": "x"}',
    ]
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (CallOutcome(status="succeeded", started_at=1.0, ended_at=1.25, output="x"), "✓ fetch 250 ms"),
        (
            CallOutcome(status="timed_out", started_at=1, ended_at=3.5, output="slow"),
            "✗ fetch timed out 2.5 s · slow",
        ),
        (CallOutcome(status="cancelled", cancelled_by="sibling"), "– fetch cancelled by sibling"),
        (CallOutcome(status="rejected", output="\nno\x1b[0m\nmore"), "✗ fetch rejected · no\\x1b[0m"),
    ],
)
async def test_a_settled_call_says_how_it_ended(anyio_backend: object, outcome: CallOutcome, line: str) -> None:
    """The line has its status, who cancelled it, how long its body ran, and for a failure the first line of why."""
    show, _, err = _narrator()
    await show.event(ev.CallSettled(CALL, outcome))
    assert err.getvalue().rstrip() == line


async def _done(text: str = "done") -> RunSummary:
    return summary_of(await Runner.run(Agent("a", model=ScriptedModel([say(text)])), "Hello"))


async def test_on_a_terminal_text_of_an_earlier_turn_is_no_answer(anyio_backend: object) -> None:
    """The text of the last turn is printed once; a tool's output that ends a run is printed after all."""
    show, out, err = _narrator(terminal=True)
    ending = await _done("done\x07")
    await show.event(ev.TextDelta("thinking"))
    await show.event(ev.TurnStarted())
    await show.event(ev.CallStarted(CALL))
    await show.ended(ending)
    assert out.getvalue() == "thinking\ndone\\x07\n"
    again, out, _ = _narrator(terminal=True)
    await again.event(ev.TextDelta("done\x07"))
    await again.ended(ending)
    assert out.getvalue() == "done\\x07\n"
    assert "fetch" in err.getvalue()


async def test_a_run_that_did_not_complete_gives_no_answer(anyio_backend: object) -> None:
    """The text says how the run ended, and why."""
    ending = await _done()
    for changes, said in [
        ({"status": "interrupted"}, "The run was interrupted.\n"),
        ({"status": "stopped", "stop_reason": "budget"}, "The run was stopped: budget.\n"),
    ]:
        show, out, err = _narrator()
        await show.ended(attrs.evolve(ending, final_output=None, **changes))
        assert (out.getvalue(), err.getvalue()) == ("", said)


async def test_events_of_guardrails_and_agents_name_them(anyio_backend: object) -> None:
    """The events name guardrails and agents; live objects don't get into JSON."""

    @tool_input_guardrail
    def careful(data: Any) -> Allow:
        """Let everything pass."""
        return Allow()

    result = ToolGuardrailResult(guardrail=careful, output=Allow({"looked": object}), duration=0.5, call=CALL)
    value = plain(ev.GuardrailSettled(result))["result"]
    assert value["guardrail"] == "careful"
    assert value["call"]["name"] == "fetch"
    assert json.loads(json_line(value))
    assert plain(ev.AgentUpdated(Agent("helper")))["agent"] == "helper"
    outcome = CallOutcome(status="failed", error=ValueError("token=abc"), value=object(), custom_data=object())
    assert plain(outcome)["error"] == "ValueError(token=[redacted])"
    assert not {"value", "custom_data"} & set(plain(outcome))
    assert plain(object()) == "object"


@pytest.mark.parametrize(
    ("value", "shown"),
    [({"a": (1, None)}, {"a": [1, None]}), (float("nan"), "nan"), ({1: "x"}, {"1": "x"}), (None, None), ("→", "→")],
)
async def test_any_final_output_has_a_place_in_json(anyio_backend: object, value: object, shown: object) -> None:
    """The output is written as JSON where it has that form, else as text; never in a form that JSON lacks."""
    ending = await _done()
    line = json_line(result_json(attrs.evolve(ending, final_output=value)))
    assert json.loads(line, parse_constant=pytest.fail)["final_output"] == shown


async def test_json_writes_one_result_whatever_follows(anyio_backend: object) -> None:
    """An error after the result goes to the error output alone; raw provider events are left out."""
    out, err = io.StringIO(), io.StringIO()
    show = JsonLines(Output(out), Output(err))
    await show.event(ev.RawModelEvent({"secret": 1}))
    await show.ended(await _done())
    await show.failed(RuntimeError("late"))
    show.cancelled()
    assert [json.loads(line)["status"] for line in out.getvalue().splitlines()] == ["completed"]
    assert err.getvalue() == "Error: RuntimeError: late\n"


async def test_json_leaves_out_pieces_of_arguments_that_a_tool_of_a_source_may_hide(anyio_backend: object) -> None:
    """Which tools a source has is known in the run alone; whole calls have their secrets masked."""

    class Source:
        async def tools(self, ctx: Any, agent: Any) -> list[Any]:
            return []

    out = io.StringIO()
    show = JsonLines(Output(out), Output(io.StringIO()))
    for number, toolsets in enumerate(([Source()], [])):
        await show.event(ev.AgentUpdated(Agent("a", toolsets=toolsets)))
        await show.event(ev.ArgumentsDelta(f"call_{number}", "piece"))
    pieces = [line for line in map(json.loads, out.getvalue().splitlines()) if line["kind"] == "ArgumentsDelta"]
    assert [line["call_id"] for line in pieces] == ["call_1"]


def test_json_has_the_class_as_kind_and_a_kind_of_the_value_s_own_beside_it() -> None:
    """Items and events may be of a kind of their own."""
    assert plain(HostedToolCall("web_search_call", {"a": 1}, "ws1")) == {
        "kind": "HostedToolCall",
        "of": "web_search_call",
        "data": {"a": 1},
        "id": "ws1",
        "status": None,
        "output": None,
        "call_id": None,
    }


@pytest.mark.backends("asyncio")
async def test_parts_that_are_no_text_are_named(anyio_backend: object) -> None:
    """A terminal can't show such a part, so its kind is printed."""
    assert text_of((Text("see "), Image("https://example.org/x.png"))) == "see [Image]"
    assert duration(-1) == "0 ms"


class _Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.backends("asyncio")
async def test_errors_have_words_even_where_they_have_none_themselves(anyio_backend: object) -> None:
    """An error is shown by its type, message and notes; a user's mistake needs no type."""
    noted = ValueError("wrong")
    noted.add_note("also failed: password=hunter2")
    assert errors.words_for(noted) == "Error: ValueError: wrong\n  also failed: password=[redacted]\n"
    assert errors.words_for(ValueError()) == "Error: ValueError\n"
    assert errors.words_for(UserError("do this")) == "Error: do this\n"
    assert errors.words_for(_Broken()) == "Error: _Broken: (its message can't be shown)\n"
