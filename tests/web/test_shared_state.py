"""`SharedState`: a state that tools and the page of an AG-UI client both change, whole at first and then as patches."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypedDict

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.work import count_work
from web.ag_ui import HAS_CLIENT, apply_patch, check_state, converse, make_input, pydantic, read_by_the_client, ui
from web.harness import ask, send_request

from agentloop import Agent, RunHooks, ToolContext, UserError, tool
from agentloop.asgi import AgentApp, Grant, SharedState, WebLimits, WebRequest
from agentloop.asgi._ag_ui import AGUIForm, read_input
from agentloop.asgi._json_patch import find_patch
from agentloop.asgi._writer import EventWriter
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.testing import ScriptedModel, call, fail, say

Data = dict[str, Any]


@attrs.frozen
class Recipe:
    """What the page shows."""

    title: str = ""
    steps: list[str] = attrs.Factory(list)
    grams: dict[str, int] = attrs.Factory(dict)


Kitchen = SharedState[Recipe]
"""The context of a run: its shared state."""


@tool
async def add_step(ctx: ToolContext[Kitchen], text: str) -> str:
    """Add a step."""
    ctx.context.change(lambda recipe: attrs.evolve(recipe, steps=[*recipe.steps, text]))
    return f"{len(ctx.context.value.steps)} steps"


@tool(needs_approval=True)
async def rename(ctx: ToolContext[Kitchen], title: str) -> str:
    """Rename the recipe."""
    before = ctx.context.value.title
    ctx.context.change(lambda recipe: attrs.evolve(recipe, title=title))
    return f"it was {before}"


@attrs.define(eq=False)
class Cooking:
    """An application whose runs share a recipe, with the states that its `admit` has seen."""

    app: AgentApp
    model: ScriptedModel
    seen: list[SharedState[Any] | None]
    actions: list[str]


def cooking(*steps: Any, tools: Any = (), type: Any = Recipe, **options: Any) -> Cooking:
    """Return an application whose model answers with *steps*."""
    model = ScriptedModel(list(steps))
    seen: list[SharedState[Any] | None] = []
    actions: list[str] = []

    def admit(request: WebRequest) -> Grant:
        seen.append(request.shared_state)
        actions.append(request.action)
        return Grant(options={"context": request.shared_state})

    agent = Agent[Any, Any]("cook", model=model, tools=[add_step, rename, *tools])
    return Cooking(AgentApp(agent, ag_ui=True, shared_state=type, admit=admit, **options), model, seen, actions)


def changes(events: list[Any]) -> list[str]:
    """Return the kinds of the events that tell of the state, and of those that end calls."""
    kinds = ("STATE_SNAPSHOT", "STATE_DELTA", "TOOL_CALL_RESULT", "RUN_FINISHED", "RUN_ERROR")
    return [kind for kind in (str(event.type.value) for event in events) if kind in kinds]


async def test_the_state_is_sent_whole_and_then_each_change_as_a_patch() -> None:
    """A change comes before the output of its call; the page and the server have one state at the end."""
    kitchen = cooking([call("add_step", {"text": "Boil."})], [call("add_step", {"text": "Stir."})], say("Done."))
    given = {"title": "Soup", "steps": ["Wash."]}
    events = await converse(kitchen.app, make_input(state=given))
    assert changes(events)[:2] == ["STATE_SNAPSHOT", "STATE_DELTA"]  # before any output; the second may be in it
    assert changes(events)[-2:] == ["TOOL_CALL_RESULT", "RUN_FINISHED"]
    assert events[1].snapshot == {**given, "grams": {}}
    patches = [operation.model_dump() for event in events if event.type == "STATE_DELTA" for operation in event.delta]
    added = {"op": "add", "path": "/steps/1", "value": "Boil."}, {"op": "add", "path": "/steps/2", "value": "Stir."}
    assert patches == [*added]
    [state] = kitchen.seen
    assert state is not None
    assert state.value == Recipe("Soup", ["Wash.", "Boil.", "Stir."])
    assert check_state(events, given) == {"title": "Soup", "steps": ["Wash.", "Boil.", "Stir."], "grams": {}}


@pytest.mark.parametrize("more", [{}, {"state": None}, {"state": {}}, {"state": {"colour": "red"}}])
async def test_a_client_without_a_state_begins_with_the_defaults(more: Data) -> None:
    """As the protocol's client does, which sends an empty object at first; fields of another page are left out."""
    events = await converse(cooking(say("Hi.")).app, make_input(**more))
    assert events[1].snapshot == {"title": "", "steps": [], "grams": {}}


async def watch_a_change(body: Callable[..., Any], free: Callable[[], None]) -> None:
    """Run *body* as a tool: the client has its change while it waits to be freed."""
    kitchen = cooking([call("work")], say("Done."), tools=[tool(body, name="work")])
    async with send_request(kitchen.app, "POST", "/ag-ui", make_input()) as client:
        with anyio.fail_after(60):
            await client.until(lambda: b'"STATE_DELTA"' in client.body)
            assert b"TOOL_CALL_RESULT" not in client.body
            assert b"still here" not in client.body
            free()
            await client.end()
    assert b"TOOL_CALL_RESULT" in client.body


def rename_to(title: str) -> Callable[[Recipe], Recipe]:
    """Return a change of the title."""
    return lambda recipe: attrs.evolve(recipe, title=title)


async def test_a_change_is_sent_while_its_call_works() -> None:
    """No other event is needed."""
    free = anyio.Event()

    async def work(ctx: ToolContext[Kitchen]) -> str:
        """Change the title, and wait."""
        ctx.context.change(rename_to("Soup"))
        await free.wait()
        return "done"

    await watch_a_change(work, free.set)


@pytest.mark.real_clock
async def test_a_change_is_sent_that_is_made_while_a_frame_is_sent() -> None:
    """Nobody waits for an event at that moment: the next wait ends at once, and the client gets no comment for it."""
    asked = read_input(json.dumps(make_input()).encode(), (), SharedState(Recipe))
    state, sent, titles = asked.shared_state, list[bytes](), iter(["Soup", "Stew", "Broth"])
    assert state is not None

    async def send(message: Any) -> None:
        body = message.get("body", b"")
        sent.append(body)
        if body and (title := next(titles, None)) is not None:
            state.change(rename_to(title))
            await anyio.wait_all_tasks_blocked()  # what the change wakes has had its turn
        elif body:
            scope.cancel()

    writer = EventWriter(send, WebLimits(keep_alive=3600.0), AGUIForm(asked))
    with anyio.fail_after(60), anyio.CancelScope() as scope:
        await writer.open()
        await writer.pump(anyio.sleep_forever)
    begin, *deltas = sent[1:]
    assert b"RUN_STARTED" in begin
    assert [title in delta for title, delta in zip([b"Soup", b"Stew", b"Broth"], deltas, strict=True)] == [True] * 3


@pytest.mark.real_clock
async def test_a_change_of_a_thread_is_sent_while_its_call_works() -> None:
    """A sync body has a thread."""
    free = threading.Event()

    def work(ctx: ToolContext[Kitchen]) -> str:
        """Change the title, and wait."""
        ctx.context.change(rename_to("Soup"))
        return "done" if free.wait(60) else "left alone"

    await watch_a_change(work, free.set)


@pytest.mark.real_clock
async def test_no_change_of_calls_side_by_side_is_lost() -> None:
    """Also where they are made by threads."""

    def work(ctx: ToolContext[Kitchen], name: str) -> str:
        """Add steps."""
        for at in range(10):
            ctx.context.change(lambda recipe: attrs.evolve(recipe, steps=[*recipe.steps, f"{name}{at}"]))  # noqa: B023
        return "done"

    calls = [call("work", {"name": name}) for name in "abc"]
    kitchen = cooking(calls, say("Done."), tools=[tool(work)])
    events = await converse(kitchen.app, make_input())
    steps = check_state(events, {})["steps"]
    assert sorted(steps) == sorted(f"{name}{at}" for name in "abc" for at in range(10))
    assert [step for step in steps if step[0] == "a"] == [f"a{at}" for at in range(10)]


async def test_the_run_that_resumes_has_the_state_that_the_client_sends() -> None:
    """The user has changed it while the run waited; the tool sees that, and a bad state costs no paused run."""
    kitchen = cooking([call("add_step", {"text": "Boil."})], [call("rename", {"title": "Stew"})], say("Done."))
    events = await converse(kitchen.app, make_input())
    [asked] = events[-1].outcome.interrupts
    state = check_state(events, {})
    assert state["steps"] == ["Boil."]
    yes = [{"interruptId": asked.id, "status": "resolved", "payload": {"approved": True}}]
    refused = await ask(kitchen.app, "POST", "/ag-ui", make_input(state={"title": 1}, resume=yes))
    assert (refused.status, kitchen.actions) == (400, ["start"])
    events = await converse(kitchen.app, make_input(state={**state, "title": "Broth"}, resume=yes))
    assert kitchen.actions == ["start", "decide"]
    assert changes(events) == ["STATE_SNAPSHOT", "STATE_DELTA", "TOOL_CALL_RESULT", "RUN_FINISHED"]
    assert [event.content for event in events if event.type == "TOOL_CALL_RESULT"] == ["it was Broth"]
    assert check_state(events, {}) == {"title": "Stew", "steps": ["Boil."], "grams": {}}


async def test_a_change_before_a_pause_or_an_end_is_sent_before_it() -> None:
    """The client sends back what it has."""

    class Marking(RunHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
            ctx.context.change(rename_to("asked"))

    kitchen = cooking(fail(RuntimeError("pw")))
    app = AgentApp(
        Agent[Any, Any]("cook", model=kitchen.model),
        ag_ui=True,
        shared_state=Recipe,
        admit=lambda request: Grant(options={"context": request.shared_state, "hooks": Marking()}),
    )
    events = await converse(app, make_input())
    assert changes(events) == ["STATE_SNAPSHOT", "STATE_DELTA", "RUN_ERROR"]
    assert check_state(events, {})["title"] == "asked"


async def test_runs_of_agent_tools_share_the_state() -> None:
    """Their events aren't shown, but what they change is."""
    inner = Agent[Any, Any](
        "helper", model=ScriptedModel([call("add_step", {"text": "Peel."}), say("Peeled.")]), tools=[add_step]
    )
    kitchen = cooking([call("helper", {"input": "x"})], say("Done."), tools=[inner.as_tool("helper", "Help.")])
    events = await converse(kitchen.app, make_input())
    assert changes(events) == ["STATE_SNAPSHOT", "STATE_DELTA", "TOOL_CALL_RESULT", "RUN_FINISHED"]
    assert check_state(events, {})["steps"] == ["Peel."]


NESTED: Data = {}
for _ in range(40):
    NESTED = {"x": NESTED}


@pytest.mark.parametrize(
    ("state", "type", "sentence"),
    [
        ({"title": 1}, Recipe, "The shared state doesn't fit: $.title: "),
        ({"steps": ["a", {}]}, Recipe, "$.steps[1]: "),
        ({"grams": {"salt": "much"}}, Recipe, "The shared state doesn't fit: $.grams"),
        ([], Recipe, "$: "),
        ("text", Recipe, "$: "),
        (1, dict[str, Any], "$: "),
        ({"title": "secret" * 100}, Recipe, "too large (613 bytes, the limit is 500)"),
        (NESTED, dict[str, Any], "nested too deeply (the limit is 32 levels)"),
        ({"x": float("nan")}, dict[str, Any], "NaN, which isn't JSON"),
    ],
)
async def test_a_state_that_does_not_fit_is_refused(state: Any, type: Any, sentence: str) -> None:
    """400 with the place, before anything of a run; the contents of a long state aren't told."""
    kitchen = cooking(say("Hi."), type=type, limits=WebLimits(max_shared_state=500))
    refused = await ask(kitchen.app, "POST", "/ag-ui", json.dumps(make_input(state=state)).encode())
    assert refused.status == 400, refused.body
    assert sentence in refused.json["error"]
    assert "secretsecret" not in refused.json["error"]
    assert (kitchen.actions, kitchen.model.requests) == ([], [])


async def test_a_body_nested_without_end_is_refused() -> None:
    """Before the state is looked at."""
    kitchen = cooking(say("Hi."))
    text = json.dumps(make_input(state="here")).replace('"here"', '{"x":' * 9_000 + "1" + "}" * 9_000)
    assert (await ask(kitchen.app, "POST", "/ag-ui", text.encode())).status == 400


async def test_without_a_shared_state_that_of_the_client_is_left_out() -> None:
    """Whatever it is, as before; `admit` gets none."""
    seen = []
    app = AgentApp(
        Agent("a", model=ScriptedModel([say("Hi.")])),
        ag_ui=True,
        admit=lambda request: seen.append(request.shared_state),
    )
    response = await ask(app, "POST", "/ag-ui", make_input(state={"title": 1}))
    assert (response.status, b"STATE" in response.body, seen) == (200, False, [None])


async def test_a_run_of_another_protocol_has_a_state_of_its_own() -> None:
    """So the tools of an agent work for each client; two requests share nothing."""
    kitchen = cooking(*2 * [call("add_step", {"text": "Boil."}), say("Done.")])
    for _ in range(2):
        assert (await ask(kitchen.app, "POST", "/runs", {"input": "Cook."})).status == 200
    assert [state and state.value.steps for state in kitchen.seen] == [["Boil."], ["Boil."]]


async def test_a_change_that_does_not_fit_is_an_error_of_its_call() -> None:
    """The state is as it was, and nothing is sent of it."""

    @tool
    async def grow(ctx: ToolContext[Kitchen]) -> str:
        """Make it too long."""
        ctx.context.change(rename_to("x" * 600))
        return "grown"

    kitchen = cooking([call("grow")], say("Pity."), tools=[grow], limits=WebLimits(max_shared_state=500))
    events = await converse(kitchen.app, make_input())
    assert changes(events) == ["STATE_SNAPSHOT", "TOOL_CALL_RESULT", "RUN_FINISHED"]
    [output] = [event.content for event in events if event.type == "TOOL_CALL_RESULT"]
    assert "the limit is 500" in output
    [state] = kitchen.seen
    assert state is not None
    assert state.value == Recipe()


def refuse(state: SharedState[Any], change: Any) -> str:
    """Return the words with which a change is refused, which leaves the state as it is."""
    before = state.value
    with pytest.raises(UserError) as refused:
        state.change(change)
    assert state.value == before
    return str(refused.value)


def test_a_change_returns_the_new_state() -> None:
    """Functions that return something else are told so; after each the state takes changes again."""
    state = SharedState(Recipe)

    async def late(recipe: Recipe) -> Recipe:
        return recipe

    assert "got None: return it" in refuse(state, lambda recipe: None)
    assert "returns the new state at once" in refuse(state, late)
    assert "return the new state" in refuse(state, lambda recipe: state.change(rename_to("a")))
    assert "$.title" in refuse(state, lambda recipe: Recipe(1))  # type: ignore[arg-type]
    assert "$" in refuse(state, lambda recipe: [])
    assert refuse(state, lambda recipe: Recipe("x" * 100_000))
    with pytest.raises(ZeroDivisionError):
        state.change(lambda recipe: 1 / 0)  # type: ignore[arg-type, return-value]
    state.change(rename_to("Soup"))
    assert state.value.title == "Soup"


def test_a_value_that_was_read_is_the_readers_own() -> None:
    """Only `change` changes the state."""
    state = SharedState(Recipe)
    state.value.steps.append("Boil.")
    assert state.value.steps == []


def test_the_repr_hides_the_state() -> None:
    """It is the client's, and a context is often logged."""
    state = SharedState(Recipe)
    state.change(rename_to("secret"))
    assert repr(state) == "SharedState(Recipe)"
    assert "secret" not in repr(WebRequest(action="start", scope={}, shared_state=state))


@dataclass
class Plain:
    """A dataclass."""

    words: list[str] = field(default_factory=list)


class Loose(TypedDict, total=False):
    """A TypedDict."""

    words: list[str]


class Modelled(pydantic.BaseModel):  # type: ignore[misc]
    """A model of pydantic, whose field has another name in JSON."""

    model_config = pydantic.ConfigDict(populate_by_name=True)
    words: list[str] = pydantic.Field(default_factory=list, alias="someWords")


@pytest.mark.parametrize(
    ("type", "change", "shown"),
    [
        (Plain, lambda value: Plain([*value.words, "a"]), {"words": ["a"]}),
        (Loose, lambda value: {"words": [*value.get("words", ()), "a"]}, {"words": ["a"]}),
        (Modelled, lambda value: Modelled(words=[*value.words, "a"]), {"someWords": ["a"]}),
        (dict[str, Any], lambda value: {**value, "words": ["a", None]}, {"words": ["a", None]}),
        (dict, lambda value: {**value, "half": "\ud83d"}, {"half": "?"}),
    ],
)
async def test_types_of_every_kind_are_shared(type: Any, change: Any, shown: Data) -> None:
    """As they are written elsewhere."""

    @tool
    async def work(ctx: ToolContext[Any]) -> str:
        """Change it."""
        ctx.context.change(change)
        return "done"

    kitchen = cooking([call("work")], say("Done."), tools=[work], type=type)
    assert check_state(await converse(kitchen.app, make_input()), {}) == shown


@attrs.frozen
class Needy:
    """A class with a field that must be given."""

    title: str


def test_types_that_no_client_can_begin_with_are_refused() -> None:
    """When the application is made."""
    agent = Agent("a", model=ScriptedModel([]))
    for wrong, words in ((list[str], "an object in JSON"), (str, "an object in JSON"), (ModuleType, "no JSON form")):
        with pytest.raises(UserTypeError, match=words):
            AgentApp(agent, ag_ui=True, shared_state=wrong)
    with pytest.raises(UserValueError, match=r"a default for every field of Needy.*title"):
        AgentApp(agent, ag_ui=True, shared_state=Needy)
    with pytest.raises(UserError, match="needs ag_ui=True"):
        AgentApp(agent, shared_state=Recipe)


# ------------------------------------------------------------------------------------------------ patches

NAMES = st.sampled_from(["a", "b", "a/b", "~", "~1", "", "-", "0", "toString"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, "", "a", "é"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
STATES = st.dictionaries(NAMES, VALUES, max_size=4)


async def test_a_change_of_nearly_all_is_sent_whole() -> None:
    """A patch would be longer than the state."""

    @tool
    async def work(ctx: ToolContext[Any]) -> str:
        """Change each member."""
        ctx.context.change(lambda value: dict.fromkeys(value, 1))
        return "done"

    kitchen = cooking([call("work")], say("Done."), tools=[work], type=dict[str, Any])
    events = await converse(kitchen.app, make_input(state={str(at): 0 for at in range(100)}))
    assert changes(events) == ["STATE_SNAPSHOT", "STATE_SNAPSHOT", "TOOL_CALL_RESULT", "RUN_FINISHED"]


@given(old=STATES, new=STATES)
def test_a_patch_makes_the_new_value_of_the_old_one(old: Any, new: Any) -> None:
    """By the rules of RFC 6902; equal values have none."""
    patch = list(find_patch(old, new))
    assert json.dumps(apply_patch(old, patch), sort_keys=True) == json.dumps(new, sort_keys=True)
    assert list(find_patch(old, json.loads(json.dumps(old)))) == []


@pytest.mark.parametrize(
    ("old", "new", "operations"),
    [
        ([1, 2, 3], [1, 3], ["remove /1"]),
        ([1, 3], [1, 2, 3], ["add /1"]),
        ([1, 2, 3], [], ["remove /2", "remove /1", "remove /0"]),
        ([{"a": 1, "b": 2}, 5], [{"a": 1, "b": 3}, 5], ["replace /0/b"]),
        ({"a/b": 1, "~": 1}, {"a/b": 2}, ["replace /a~1b", "remove /~0"]),
        ([1, 1.0, 1], [True, 1, 1], ["replace /0", "replace /1"]),
    ],
)
def test_a_patch_is_short(old: Any, new: Any, operations: list[str]) -> None:
    """An item that comes or goes is one operation; numbers and flags are kept apart."""
    patch = list(find_patch(old, new))
    assert [f"{operation['op']} {operation['path']}" for operation in patch] == operations
    assert json.dumps(apply_patch(old, patch)) == json.dumps(new)


def test_work_for_a_patch_grows_as_the_state_does() -> None:
    """A long list in which one item has changed."""

    def work(size: int) -> int:
        old: list[Any] = [{"done": False, "name": str(at)} for at in range(size)]
        new = [*old[: size // 2], {"done": True, "name": "x"}, *old[size // 2 + 1 :]]
        return count_work(lambda meter: list(find_patch(old, new))).total

    work(10)
    assert 0 < work(1_000) <= 11 * work(100)


@pytest.mark.parametrize("name", ["__proto__", "constructor"])
async def test_names_that_the_javascript_client_refuses_in_patches_are_sent_whole(name: str) -> None:
    """It would leave the change out; all other names are patched."""

    @tool
    async def work(ctx: ToolContext[Any]) -> str:
        """Add a member below such a name."""
        ctx.context.change(lambda value: {**value, name: {"prototype": {"x": 2}}})
        return "done"

    kitchen = cooking([call("work")], say("Done."), tools=[work], type=dict[str, Any])
    events = await converse(kitchen.app, make_input(state={"long": "x" * 200, name: {"prototype": {"x": 1}}}))
    assert changes(events) == ["STATE_SNAPSHOT", "STATE_SNAPSHOT", "TOOL_CALL_RESULT", "RUN_FINISHED"]


@pytest.mark.skipif(not HAS_CLIENT, reason="needs the npm package @ag-ui/client: nox -s tests-web")
def test_the_javascript_client_applies_the_patches() -> None:
    """Of many states that were drawn, one after the other, as of one run."""
    frames: list[Any] = [ui.RunStartedEvent(thread_id="t", run_id="r"), ui.StateSnapshotEvent(snapshot={})]
    states: list[Any] = [{}]

    @given(STATES)
    def draw(state: Any) -> None:
        patch: Any = list(find_patch(states[-1], state))
        frames.extend([ui.StateDeltaEvent(delta=patch)] if patch else [])
        states.append(state)

    draw()
    frames.append(ui.RunFinishedEvent(thread_id="t", run_id="r", outcome=ui.RunFinishedSuccessOutcome()))
    body = b"".join(b"data: %b\n\n" % frame.model_dump_json(by_alias=True).encode() for frame in frames)
    found = read_by_the_client(body, make_input())
    assert (found["state"], found["said"]) == (states[-1], [])
