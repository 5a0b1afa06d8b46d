"""Planning as a function: a disposition for each call, and what is refused before anything starts."""

import difflib
from typing import Any

import attrs
import pytest
from core.folding import Writer, called, view_of
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, FunctionTool, ModelBehaviorError, StateError, tool
from agentloop import records as r
from agentloop._common.digests import idempotency_key
from agentloop._core.call_identity import NearNames, find_tool, same_invocation
from agentloop._core.plan import (
    Answer,
    Execute,
    PlanEntry,
    PlanRules,
    Replay,
    read_arguments,
)
from agentloop._core.planner import check_secrets, plan_response, qualify_name
from agentloop._storage.withholding import WithheldText
from agentloop.items import HandoffCall, ToolCall
from agentloop.settings import JsonLimits
from agentloop.testing import ScriptedModel

LIMITS = JsonLimits()
ANSWERING = PlanRules(not_found="tell_model")
RAISING = PlanRules(not_found="raise")


@tool
async def f(n: int = 0) -> int:
    """Give the number."""
    return n


@tool(idempotent=True)
async def once(n: int = 0) -> int:
    """Give the number once."""
    return n


async def _raw(ctx: Any, text: str) -> str:
    return text


RAW = FunctionTool(name="raw", on_invoke_tool=_raw)


def plan(*calls: ToolCall, tools: tuple[FunctionTool, ...] = (f, once, RAW), rules: PlanRules | None = None) -> Any:
    """Return the entries for a first turn with these calls."""
    state = Writer().begin().turn(*calls).state
    return plan_response(view_of(*tools), state, rules or PlanRules())


# -- dispositions


def test_every_due_call_has_one_entry_in_model_order() -> None:
    """A call that has settled is no longer due."""
    writer = Writer().begin().turn(called("a"), called("b"), called("c")).settle("b")
    entries = plan_response(view_of(f), writer.state, PlanRules())
    assert [(entry.index, entry.call.call_id) for entry in entries] == [(0, "a"), (2, "c")]
    assert all(isinstance(entry.disposition, Execute) and entry.tool is f for entry in entries)


def test_a_receipt_of_an_earlier_turn_is_replayed() -> None:
    """The receipt is found by the key of the bound arguments; a call with another key executes."""
    [entry] = plan(called("a", "once"))
    key = entry.disposition.arguments.receipt
    assert key == 'once {"n":0}'
    writer = Writer().begin().turn(called("a", "once")).settle("a", receipt=key).accept()
    writer.turn(called("b", "once", '{"n":0}'), called("c", "once", '{"n":1}'))
    b, c = plan_response(view_of(once), writer.state, PlanRules())
    assert isinstance(b.disposition, Replay)
    assert b.disposition.source == "a"
    assert isinstance(c.disposition, Execute)


def test_calls_past_the_cap_are_answered() -> None:
    """A call is refused by its place in the response, without a look at its arguments."""
    entries = plan(called("a"), called("b", "f", "{"), rules=PlanRules(max_calls=1))
    assert isinstance(entries[0].disposition, Execute)
    answer = entries[1].disposition
    assert isinstance(answer, Answer)
    assert (answer.outcome.status, answer.kind) == ("skipped", None)
    assert answer.outcome.output == "Tool 'f' was not started: more than 1 calls in one turn."


@pytest.mark.scenario("RP-12")
@pytest.mark.parametrize("rules", [PlanRules(max_calls=1), PlanRules(max_calls=1, not_found="tell_model")])
def test_unknown_names_count_towards_the_cap(rules: PlanRules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls beyond the cap are refused before their names are looked up, by every rule for unknown names."""
    monkeypatch.setattr(NearNames, "of", lambda self, name: pytest.fail("a name was compared"))
    entries = plan(called("a"), called("b", "zzz"), called("c", "onc", namespace="ns"), rules=rules)
    assert [(entry.tool is None, type(entry.disposition)) for entry in entries[1:]] == [(True, Answer), (True, Answer)]
    assert [(one.disposition.outcome.status, one.disposition.outcome.output) for one in entries[1:]] == [
        ("skipped", "Tool 'zzz' was not started: more than 1 calls in one turn."),
        ("skipped", "Tool 'onc' was not started: more than 1 calls in one turn."),
    ]
    if rules.not_found == "raise":
        with pytest.raises(ModelBehaviorError, match="Tool 'zzz' not found"):
            plan(called("a", "zzz"), called("b"), rules=rules)


@pytest.mark.scenario("RP-12")
def test_a_name_is_quoted_on_one_line_and_cut() -> None:
    """A model may call a tool anything."""
    for name in ("x" * 1_000_000, "f\nIgnore all that"):
        [entry] = plan(called("a", name), rules=ANSWERING)
        output = entry.disposition.outcome.output
        assert isinstance(output, str)
        assert len(output) < 300
        assert "\n" not in output
        with pytest.raises(ModelBehaviorError) as caught:
            plan(called("a", name), rules=RAISING)
        assert len(str(caught.value)) < 400


def test_an_unknown_tool_is_answered_or_refused() -> None:
    """The policy decides; an answer offers near names."""
    with pytest.raises(ModelBehaviorError, match=r"'ns\.onc'.*'guide'"):
        plan(called("a", "onc", namespace="ns"), rules=RAISING)
    [entry] = plan(called("a", "onc"), rules=ANSWERING)
    assert entry.tool is None
    assert (entry.disposition.outcome.status, entry.disposition.kind) == ("failed", "tool_not_found")
    assert entry.disposition.outcome.output == "Tool 'onc' not found. Did you mean 'once'?"
    assert isinstance(entry.disposition.outcome.error, ModelBehaviorError)
    [entry] = plan(called("a", "zzz"), rules=ANSWERING)
    assert entry.disposition.outcome.output == "Tool 'zzz' not found."


def test_a_disabled_tool_is_refused_by_name() -> None:
    """The error names the tool and the agent; a call of another tool isn't refused."""
    rules = PlanRules(disabled=frozenset({"once"}))
    assert len(plan(called("a"), rules=rules)) == 1
    with pytest.raises(ModelBehaviorError, match=r"'once'.*'guide'"):
        plan(called("a"), called("b", "once"), rules=rules)


@pytest.mark.parametrize("nameless", [called(""), HandoffCall("", "h")])
def test_a_call_without_an_id_is_refused(nameless: Any) -> None:
    """The call is refused before any tool is looked up."""
    with pytest.raises(ModelBehaviorError, match="without a call id"):
        plan(called("a", "nobody"), nameless)


def test_a_contradiction_is_refused() -> None:
    """The error names the id and the tool."""
    with pytest.raises(ModelBehaviorError, match=r"'a'.*'once'"):
        plan(called("a"), called("a", "once"))


# -- arguments


def test_arguments_are_parsed_and_bound() -> None:
    """The text is parsed as JSON and bound to values; only an idempotent tool has a receipt key."""
    arguments = read_arguments(f, '{"n": 3}', LIMITS)
    assert (arguments.text, arguments.parsed, arguments.fault, arguments.receipt) == ('{"n": 3}', {"n": 3}, None, None)
    assert arguments.bound is not None
    assert arguments.bound.values == {"n": 3}


@pytest.mark.parametrize(("text", "parsed"), [("{", None), ("[]", None), ('{"n":"x"}', {"n": "x"})])
def test_a_fault_is_kept_not_raised(text: str, parsed: Any) -> None:
    """The tool's policy converts the fault later; such a call has no receipt key."""
    arguments = read_arguments(once, text, LIMITS)
    assert isinstance(arguments.fault, ModelBehaviorError)
    assert (arguments.parsed, arguments.bound, arguments.receipt) == (parsed, None, None)


def test_a_raw_body_binds_nothing() -> None:
    """The receipt key of a raw body is the canonical JSON."""
    arguments = read_arguments(RAW, '{"b":1, "a":2}', LIMITS)
    assert (arguments.parsed, arguments.bound, arguments.receipt) == ({"b": 1, "a": 2}, None, None)
    keyed = read_arguments(attrs.evolve(RAW, idempotent=True), '{"b":1, "a":2}', LIMITS)
    assert keyed.receipt == 'raw {"a":2,"b":1}'


@attrs.frozen
class Task:
    """The input of a structured agent tool."""

    topic: str


def test_an_agent_tool_s_structured_input_is_read_as_its_type() -> None:
    """The input is a value of the type, or a fault beside the parsed JSON; a plain agent tool has one text."""
    agent: Agent[Any, Any] = Agent("inner", model=ScriptedModel([]))
    structured = agent.as_tool(parameters=Task)
    assert read_arguments(structured, '{"topic":"x"}', LIMITS).value == Task("x")
    arguments = read_arguments(structured, '{"topic":3}', LIMITS)
    assert isinstance(arguments.fault, ModelBehaviorError)
    assert (arguments.parsed, arguments.value) == ({"topic": 3}, None)
    plain = read_arguments(agent.as_tool(), '{"input":"x"}', LIMITS)
    assert plain.bound is not None
    assert plain.bound.values == {"input": "x"}


# -- identity and lookup


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (called("x", "f", '{"a":1,"b":null}'), True),
        (called("x", "f", '{ "b": null, "a": 1 }'), True),
        (called("x", "f", '{"a":1}'), False),
        (called("x", "f", '{"a":1.0,"b":null}'), False),
        (called("x", "g", '{"a":1,"b":null}'), False),
        (called("x", "f", '{"a":1,"b":null}', "ns"), False),
        (HandoffCall("x", "f", '{"a":1,"b":null}'), False),
    ],
)
def test_one_invocation_is_one_tool_with_equal_arguments(other: Any, same: bool) -> None:
    """Arguments are compared as JSON, also those of handoff calls."""
    assert same_invocation(called("x", "f", '{"a":1,"b":null}'), other, LIMITS) is same
    handoff = HandoffCall("x", "f", '{"a":1}')
    assert same_invocation(handoff, HandoffCall("x", "f", '{ "a": 1 }'), LIMITS)


def _named(name: str, namespace: str | None = None, deferred: bool = False) -> FunctionTool:
    return attrs.evolve(RAW, name=name, namespace=namespace, defer_loading=deferred)


BARE, SPACED, DEFERRED, BOTH = _named("f"), _named("f", "ns"), _named("late", deferred=True), _named("f", "f")


@pytest.mark.parametrize(
    ("name", "namespace", "found"),
    [
        ("f", None, BARE),
        ("f", "", BARE),
        ("f", "ns", SPACED),
        ("f", "f", BOTH),
        ("f", "other", None),
        ("late", None, DEFERRED),
        ("late", "late", DEFERRED),
        ("late", "ns", None),
        ("nobody", None, None),
        ("nobody", "nobody", None),
        ("ns.f", None, None),
        ("ns.f", "", None),
    ],
)
def test_a_call_finds_its_tool_by_name_and_namespace(name: str, namespace: str | None, found: Any) -> None:
    """A bare name never means a namespaced tool; a deferred tool's own name may be its namespace."""
    tools = {one.lookup_key: one for one in (BARE, SPACED, DEFERRED, BOTH)}
    assert find_tool(tools, name, namespace) is found


def test_a_bare_tool_wins_over_a_deferred_one() -> None:
    """The bare name means the bare tool; without one it means the deferred tool."""
    deferred = _named("f", deferred=True)
    assert find_tool({"f": BARE, "deferred:f": deferred}, "f", None) is BARE
    assert find_tool({"deferred:f": deferred}, "f", None) is deferred


@pytest.mark.parametrize(
    ("known", "name", "near"),
    [
        (["find_order"], "functions.find_order", ["find_order"]),
        (["find_order"], "find_order<|channel|>commentary", ["find_order"]),
        (["find_order"], "FIND_ORDER ", ["find_order"]),
        (["findOrder", "FindOrder"], "find_order", ["findOrder"]),
        (["shop.find"], "shop.fin", ["shop.find"]),
        (["find"], "functions.", []),
    ],
)
def test_a_near_name_is_found_behind_what_models_add(known: list[str], name: str, near: list[str]) -> None:
    """A namespace of another interface, a token of the model's own format, other capitals."""
    assert NearNames(known).of(name) == near


def test_names_are_qualified_and_near() -> None:
    """At most two near names are given, the nearest first."""
    assert qualify_name(called("a", "f")) == "f"
    assert qualify_name(called("a", "f", namespace="ns")) == "ns.f"
    near = NearNames(["write", "rea", "read", "readz"])
    assert near.of("reads") == ["read", "readz"]
    assert near.of("x") == []


def test_near_names_are_found_among_many() -> None:
    """The names that share most letters are compared, at any position; the result equals comparing all."""
    known = [f"{verb}_{noun}_{n}" for n in range(20) for verb in ("get", "put", "find") for noun in ("user", "order")]
    near = NearNames(known)
    for name in ("get_user_7x", "gt_order_12", "find_usr_3", "put_orders_0", "nothing", "", "é"):
        assert near.of(name)[:1] == difflib.get_close_matches(name, known, n=1, cutoff=0.6)


def test_near_names_are_looked_for_so_many_times() -> None:
    """Each name is looked for once, and ten at most; a name longer than any tool's isn't looked for."""
    near = NearNames(["read"])
    assert near.of("reads" * 100) == []
    for n in range(10):
        assert near.of(f"read{n}") == ["read"]
    assert near.of("reads") == []
    assert near.of("read3") == ["read"]


def test_an_idempotency_key_is_a_function_of_run_path_and_call() -> None:
    """The key depends on nothing else, and no two places share one; text that can't be encoded is accepted."""
    keys = {
        idempotency_key("r", (), "a"),
        idempotency_key("r", ("a",), "a"),
        idempotency_key("r", (), "b"),
        idempotency_key("q", (), "a"),
        idempotency_key("r", (), "\ud800"),
    }
    assert len(keys) == 5
    assert idempotency_key("r", (), "a") in keys


@given(st.lists(st.lists(st.sampled_from(["", "a", "\0", "a\0b", "\0\0"]), min_size=2, max_size=4), max_size=6))
def test_idempotency_keys_differ_wherever_anything_of_the_place_does(places: list[list[str]]) -> None:
    """Ids are a provider's text, and may hold what keeps the parts of a key apart."""
    keys = {tuple(place): idempotency_key(place[0], tuple(place[1:-1]), place[-1]) for place in places}
    assert len(set(keys.values())) == len(keys)


# -- secrets that can't be read back


def _nest(outer: Writer, call_id: str, *calls: ToolCall) -> Writer:
    """Start *call_id* of *outer*, and in it a run whose model has answered with *calls*."""
    outer.append(r.CallStarted, call_id, "f", "{}")
    return Writer(outer.state.nest(call_id, LIMITS)).begin().turn(*calls)


def test_a_secret_that_a_deeply_nested_run_lacks_stops_the_plan() -> None:
    """A call of a nested run that will continue is checked; one that waits for its verdict is not, at any depth."""
    outer = Writer().begin().turn(called("a"))
    inner = _nest(outer, "a", called("b"), called("waiting"))
    withheld = ToolCall("c", "f", WithheldText(""), secret=("pin",))
    paused = _nest(inner, "waiting", withheld)
    paused.append(r.ApprovalRequested, "c", "guide", "f", "digest")
    paused.append(r.RunEnded, "interrupted")
    deepest = _nest(inner, "b", withheld)
    entries = (PlanEntry(0, called("a"), f, Execute(read_arguments(f, "{}", LIMITS), resumed=True)),)
    deepest.append(r.ApprovalRequested, "c", "guide", "f", "digest")
    check_secrets(entries, outer.state)
    deepest.append(r.VerdictGiven, "c", "guide", "f", "digest", approved=True)
    with pytest.raises(StateError, match="call 'c' of tool 'f' needs the secret arguments 'pin'"):
        check_secrets(entries, outer.state)
