"""Sealed states, and what becomes of states that were changed: refused, or read as what they say now."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import script_turns

from agentloop import Agent, AgentLoopError, Runner, RunState, StateError, UserError, tool
from agentloop._storage.signing import SealKey
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.testing import call, say

KEY = SealKey(b"a secret of sixteen bytes or more", "k1")
MUTATIONS = 20_000


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def build() -> Agent[Any, Any]:
    """Return the agent whose state is sealed."""
    return Agent("a", model=script_turns(call("pay", {"amount": 1}, call_id="p"), say("done")), tools=[pay])


@pytest.fixture(scope="module")
def state() -> RunState:
    """The state of a run that waits; small."""

    async def run() -> RunState:
        waiting: RunState = (await Runner.run(build(), "go")).to_state()
        return waiting

    return anyio.run(run)


# ---------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("key", [KEY, b"just sixteen byte", "text of a secret that is long enough"])
def test_a_sealed_state_is_read_with_its_key(state: RunState, key: Any) -> None:
    """The key may be a `SealKey`, bytes or text; the seal names the key and not the secret."""
    text = state.to_string(key=key)
    assert RunState.from_string(build(), text, key=key) == state
    assert RunState.from_json(build(), json.loads(text), key=key) == state
    seal = json.loads(text)["seal"]
    assert seal["key"] == getattr(key, "id", "1")
    assert repr(getattr(key, "secret", key))[2:-1] not in text


def test_a_key_is_found_by_its_id(state: RunState) -> None:
    """Keys can be exchanged, because the old key reads old states while new states get the new key."""
    new = SealKey(b"another secret of enough bytes!!!", "k2")
    keys = {"k1": KEY, "k2": new}
    for key in keys.values():
        assert RunState.from_string(build(), state.to_string(key=key), key=keys) == state
    with pytest.raises(StateError, match="another key"):
        RunState.from_string(build(), state.to_string(key=KEY), key={"k2": new})
    with pytest.raises(StateError, match="another key"):
        RunState.from_string(build(), state.to_string(key=KEY), key={"k1": new})
    with pytest.raises(UserTypeError):
        state.to_string(key=keys)


def test_the_wrong_key_is_refused(state: RunState) -> None:
    """A key with another id or another secret is refused."""
    text = state.to_string(key=KEY)
    with pytest.raises(StateError, match="another key"):
        RunState.from_string(build(), text, key=attrs.evolve(KEY, id="k2"))
    with pytest.raises(StateError, match="broken"):
        RunState.from_string(build(), text, key=attrs.evolve(KEY, secret=b"0" * 32))


def test_a_seal_is_demanded_and_is_not_passed_over(state: RunState) -> None:
    """A reader with a key takes no unsealed state, and a reader without a key takes no sealed one."""
    with pytest.raises(StateError, match="not sealed"):
        RunState.from_string(build(), state.to_string(), key=KEY)
    with pytest.raises(StateError, match="is sealed"):
        RunState.from_string(build(), state.to_string(key=KEY))


def test_a_seal_expires(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal is valid until its time is over; the time is sealed too."""
    brief = attrs.evolve(KEY, expires_in=60.0)
    text = state.to_string(key=brief)
    assert RunState.from_string(build(), text, key=KEY) == state
    data = json.loads(text)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(StateError, match="expired"):
        RunState.from_string(build(), text, key=KEY)
    data["seal"]["expires_at"] += 1000
    with pytest.raises(StateError, match="broken"):
        RunState.from_json(build(), data, key=KEY)
    del data["seal"]["expires_at"]
    with pytest.raises(StateError, match="broken"):
        RunState.from_json(build(), data, key=KEY)


@pytest.mark.scenario("SM-14")
def test_a_state_is_sealed_for_a_name(state: RunState) -> None:
    """Under another name, under none, and with another word for the name in its seal it is refused."""
    text = state.to_string(key=KEY, bound_to="row 1")
    assert RunState.from_string(build(), text, key=KEY, bound_to="row 1") == state
    assert "row 1" not in text
    with pytest.raises(StateError, match="or for another name than 'row 2'"):
        RunState.from_string(build(), text, key=KEY, bound_to="row 2")
    with pytest.raises(StateError, match="give the name"):
        RunState.from_string(build(), text, key=KEY)
    with pytest.raises(StateError, match="sealed for no name, and 'row 1' was given"):
        RunState.from_string(build(), state.to_string(key=KEY), key=KEY, bound_to="row 1")
    for changed in (False, 1, "row 2", None):
        data = json.loads(text)
        data["seal"]["bound"] = changed
        with pytest.raises(StateError, match="broken"):
            RunState.from_json(build(), data, key=KEY, bound_to="row 1")
    del data["seal"]["bound"]
    with pytest.raises(StateError, match="broken"):
        RunState.from_json(build(), data, key=KEY)


@pytest.mark.parametrize(("name", "error"), [("", UserValueError), (5, UserTypeError), ("row 1", UserError)])
def test_a_name_without_a_seal_is_refused(state: RunState, name: Any, error: type[Exception]) -> None:
    """It would promise what nothing checks; a wrong one is refused with a key, too."""
    key = None if name == "row 1" else KEY
    with pytest.raises(error, match="bound_to"):
        state.to_string(key=key, bound_to=name)
    with pytest.raises(error, match="bound_to"):
        RunState.from_string(build(), state.to_string(), key=key, bound_to=name)


@pytest.mark.parametrize(
    ("key", "error"), [(b"short", UserValueError), ("short", UserValueError), (object(), UserTypeError)]
)
def test_what_is_no_key_is_refused(state: RunState, key: Any, error: type[Exception]) -> None:
    """The value is refused before anything is sealed or read; the secret isn't quoted."""
    for use in (
        lambda: state.to_string(key=key),
        lambda: RunState.from_string(build(), state.to_string(key=KEY), key=key),
    ):
        with pytest.raises(error) as caught:
            use()
        assert "short" not in str(caught.value)
    assert "secret" not in repr(KEY)


@pytest.mark.parametrize(
    "seal", [None, 1, [], "", {}, {"algorithm": "none"}, {"algorithm": "HMAC-SHA256"}, {"mac": 1}, {"extra": True}]
)
def test_what_is_no_seal_is_refused(state: RunState, seal: Any) -> None:
    """A malformed value in the place of the seal is refused."""
    data = json.loads(state.to_string(key=KEY))
    data["seal"] = {**data["seal"], **seal} if isinstance(seal, dict) and "extra" in seal else seal
    with pytest.raises(StateError):
        RunState.from_json(build(), data, key=KEY)


# ---------------------------------------------------------------------------------------------- mutations


def flipped(rng: random.Random, text: str) -> str:
    """Return *text* with one bit of one byte flipped."""
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    place = rng.randrange(len(raw))
    raw[place] ^= 1 << rng.randrange(8)
    return raw.decode("utf-8", "surrogateescape")


def cut(rng: random.Random, text: str) -> str:
    """Return *text* without a piece."""
    start = rng.randrange(len(text))
    return text[:start] + text[start + rng.randrange(1, 40) :]


def doubled(rng: random.Random, text: str) -> str:
    """Return *text* with a piece of it put somewhere else too."""
    start, place = rng.randrange(len(text)), rng.randrange(len(text))
    return text[:place] + text[start : start + rng.randrange(1, 40)] + text[place:]


_STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 10**30, 1.5, "", "0", "1", "p", "pay", "a", "go", "os.system", "\ud800",
    "completed", "call_settled", "run_started", "run_ended", "header", [], {}, [[]], [None], [1, "p"],
    {"kind": "run_started"}, {"$bytes": "!"}, {"$map": [[1, 2]]}, {"$map": 1}, {"$float": "nan"}, {"$item": {}},
    {"$value": {"type": "Agent"}},
    {"$sealed": "x"}, {"$digest": "x"}, {"$import": "antigravity"}, {"py/object": "antigravity.Fly"},
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a JSON value as its container and key."""
    found: list[tuple[Any, Any]] = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in inner:
        found.append((value, key))
        found += places(member)
    return found


def restructured(rng: random.Random, text: str) -> str:
    """Return *text* with one of its values exchanged, dropped, doubled, or put under another key."""
    data = json.loads(text)
    everywhere = places(data)
    container, key = rng.choice(everywhere)
    match rng.randrange(5):
        case 0:
            container[key] = rng.choice(_STRANGE)
        case 1:
            del container[key]
        case 2:
            other, name = rng.choice(everywhere)
            container[key] = json.loads(json.dumps(other[name]))
        case 3 if isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), json.loads(json.dumps(container[key])))
        case 4 if isinstance(container, list):
            rng.shuffle(container)
        case _ if isinstance(container, dict):
            container[rng.choice([str(one) for one in _STRANGE[9:20]])] = container.pop(key)
    return json.dumps(data)


MUTATORS: list[Callable[[random.Random, str], str]] = [flipped, cut, doubled, restructured, restructured]


def mutated(rng: random.Random, text: str) -> str:
    """Return *text* changed once or a few times, in ways that leave it JSON and in ways that don't."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        try:
            text = rng.choice(MUTATORS)(rng, text)
        except ValueError:  # it is no JSON any more
            text = flipped(rng, text) if text else "{"
    return text


def same_values(one: str, other: str) -> bool:
    """Tell whether two texts are the same JSON values, however they are written."""
    try:
        return json.dumps(json.loads(one), sort_keys=True) == json.dumps(json.loads(other), sort_keys=True)
    except (ValueError, RecursionError):
        return False


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_no_mutation_of_a_sealed_state_is_accepted(state: RunState) -> None:
    """Each mutation raises a `StateError`, except one that only writes the same values in another way."""
    rng = random.Random(5)
    agent, text = build(), state.to_string(key=KEY)
    for number in range(MUTATIONS):
        changed = mutated(rng, text)
        if same_values(changed, text):
            continue
        try:
            RunState.from_string(agent, changed, key=KEY)
        except StateError:
            continue
        pytest.fail(f"mutation {number} was accepted: {changed!r}")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_mutation_of_an_unsealed_state_is_an_error_or_means_what_it_says(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutation raises at most a `StateError` and imports nothing; a state that is read is stored again unchanged."""
    import builtins

    rng = random.Random(7)
    agent, text = build(), state.to_string()
    RunState.from_string(agent, text)
    asked: set[str] = set()
    imported = builtins.__import__

    def watching(name: str, *args: Any, **named: Any) -> Any:
        asked.add(name)
        return imported(name, *args, **named)

    accepted = 0
    monkeypatch.setattr(builtins, "__import__", watching)
    for number in range(MUTATIONS):
        changed = mutated(rng, text)
        try:
            read = RunState.from_string(agent, changed)
        except StateError:
            continue
        except Exception as error:
            monkeypatch.undo()
            raise AssertionError(f"mutation {number}: {error!r} for {changed!r}") from error
        accepted += 1
        read.interruptions
        assert RunState.from_json(agent, read.to_json()) == read
    monkeypatch.undo()
    assert 20 < accepted < MUTATIONS / 2, "the mutations are too wild, or nothing is checked"
    assert not {name for name in asked if name.partition(".")[0] in {"antigravity", "os", "subprocess", "pickle"}}


@pytest.mark.slow
@pytest.mark.backends("asyncio")
async def test_a_mutated_state_that_is_read_runs_or_fails_typed(state: RunState) -> None:
    """A changed log may mean another run; it then runs as that run, or fails with an `AgentLoopError`."""
    rng = random.Random(3)
    text, ran = state.to_string(), 0
    while ran < 400:
        try:
            read = RunState.from_string(build(), mutated(rng, text))
            for waiting in read.interruptions:
                read.approve(waiting)
            await Runner.run(build(), read)
        except AgentLoopError:
            continue
        ran += 1


@pytest.mark.parametrize(
    "expires",
    [10**5000, -(10**5000), 1e300, float("nan"), True, "soon", [], {}],
    ids=["vast", "long ago", "far", "no number", "bool", "text", "list", "object"],
)
def test_a_seal_with_an_absurd_time_is_refused(state: RunState, expires: Any) -> None:
    """An absurd expiry time, even a number that can't be written, raises a `StateError`."""
    data = json.loads(state.to_string(key=KEY))
    data["seal"]["expires_at"] = expires
    with pytest.raises(StateError):
        RunState.from_json(build(), data, key=KEY)


@pytest.mark.parametrize("depth", [501, 1_500, 20_000])
def test_a_state_of_runs_nested_without_end_is_refused(state: RunState, depth: int) -> None:
    """The interpreter's stack bounds the depth that can be read, so a deeper state is refused with a `StateError`."""
    data = state.to_json()
    started = next(record for record in data["records"] if record["kind"] == "run_started")
    depths = [*range(min(depth, 600)), depth]
    data["records"] = [dict(started, path=[f"c{level}" for level in range(deep)]) for deep in depths]
    with pytest.raises(StateError, match=r"nest deeper|doesn't fit"):
        RunState.from_json(build(), data).interruptions
