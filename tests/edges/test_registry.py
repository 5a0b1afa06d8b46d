"""Model strings, the package's lazy names, and the keeper of shared models."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
import httpx
import pytest

import agentloop.models
from agentloop import Agent
from agentloop.abc import Model
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.models import (
    AnthropicModel,
    GeminiModel,
    HttpModel,
    LocalModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RealtimeModel,
    registry,
)
from agentloop.models._shared import Shared
from agentloop.models.registry import Providers, resolve_model


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


# ---------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "base_url", "name"),
    [
        ("openai-chat:gpt-x", "https://api.openai.com/v1", "gpt-x"),
        ("openai-chat:ft:gpt:me", "https://api.openai.com/v1", "ft:gpt:me"),
        ("http://127.0.0.1:8080/v1#qwen", "http://127.0.0.1:8080/v1", "qwen"),
        ("https://host/v1#org/name:8b", "https://host/v1", "org/name:8b"),
        ("http://127.0.0.1:8080/v1:org/name:8b", "http://127.0.0.1:8080/v1", "org/name:8b"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1", "default"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "default"),
    ],
)
def test_a_model_string_names_server_and_model(text: str, base_url: str, name: str) -> None:
    """The string names the vendor, or any server by its URL."""
    model = resolve_model(text)
    assert isinstance(model, OpenAIChatModel)
    assert (model.base_url, model.name) == (base_url, name)
    assert isinstance(model, Model)


@pytest.mark.parametrize("model", [OpenAIChatModel("m", base_url="http://h/v1"), LocalModel()], ids=["http", "local"])
def test_an_agent_is_defined_with_a_model_before_any_event_loop_runs(model: Model) -> None:
    """An agent may be defined at module level, so no check of a model needs a loop (3.11 reads its properties)."""
    assert not model.is_open
    assert Agent(name="a", model=model).model is model


def test_gemini_has_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is behind its vendor's Chat Completions, with a key of its own."""
    monkeypatch.setenv("GEMINI_API_KEY", "g-key")
    monkeypatch.setenv("OPENAI_API_KEY", "o-key")
    model = resolve_model("gemini:gemini-x")
    assert isinstance(model, GeminiModel)
    assert model.base_url == "https://generativelanguage.googleapis.com/v1beta/openai"
    assert model._headers["authorization"] == "Bearer g-key"


def test_an_installed_package_brings_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is the function that makes the model; the list of prefixes has it."""
    info = tmp_path / "parrots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agentloop.models]\nparrot = edges.parrot:make_parrot\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = resolve_model("parrot:polly")
    assert isinstance(model, HttpModel)
    assert (model.name, model.base_url) == ("polly", "https://api.parrot.test/v1")
    with pytest.raises(UserValueError, match=r"Did you mean 'parrot:'.*parrot:NAME"):
        resolve_model("parot:polly")


def test_the_responses_interface_has_its_prefix() -> None:
    """The vendor's own service is the default."""
    model = resolve_model("openai:gpt-x")
    assert isinstance(model, OpenAIResponsesModel)
    assert (model.base_url, model.name) == ("https://api.openai.com/v1", "gpt-x")


def test_the_messages_interface_has_its_prefix() -> None:
    """The vendor's own service is the default."""
    model = resolve_model("anthropic:claude-x")
    assert isinstance(model, AnthropicModel)
    assert (model.base_url, model.name) == ("https://api.anthropic.com", "claude-x")


def test_the_realtime_interface_has_its_prefix() -> None:
    """The vendor's own service is the default; an HTTP client has no part in it."""
    model = resolve_model("openai-realtime:gpt-realtime-2", http_client=object())
    assert isinstance(model, RealtimeModel)
    assert (model.base_url, model.name) == ("https://api.openai.com/v1", "gpt-realtime-2")


def test_a_query_in_the_url_goes_with_every_request() -> None:
    """Some servers want their version there."""
    model = resolve_model("http://h/v1?version=2#m")
    assert isinstance(model, OpenAIChatModel)
    assert (model.base_url, model._query) == ("http://h/v1", {"version": "2"})


@pytest.mark.parametrize("text", ["local:", "local:smollm2-135m"])
def test_the_local_model_has_its_prefix(text: str) -> None:
    """The prefix works with a model's name or without."""
    model = resolve_model(text, http_client=object())
    assert isinstance(model, LocalModel)
    assert model.name == "smollm2-135m"


def test_a_given_client_is_used() -> None:
    """The client serves a model named by prefix and one named by URL."""
    client = httpx.AsyncClient()
    for text in ("openai-chat:m", "http://h/v1#m"):
        model = resolve_model(text, http_client=client)
        assert isinstance(model, OpenAIChatModel)
        assert model._http_client is client


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "openai-chta:m",
            r"Did you mean 'openai-chat:'\?.*openai-chat:NAME, openai:NAME, .*realtime:NAME, local:NAME, "
            r"azure:NAME, .*, litellm:NAME, URL#NAME",
        ),
        ("gpt-x", "'gpt-x' is no known.*did you mean 'openai-chat:gpt-x'.*openai-chat:NAME"),
        ("local", "Did you mean 'local:'"),
        ("", "''"),
        ("ftp://h/v1#m", "'ftp://h/v1#m'"),
        ("openai-chat:", "name"),
        ("local:other", "'other'"),
        ("http://[::1", "URL"),
        ("http://", "http or https"),
    ],
)
def test_an_unknown_model_string_is_refused_with_what_there_is(text: str, match: str) -> None:
    """The error lists the known forms, and the nearest name."""
    with pytest.raises(UserValueError, match=match):
        resolve_model(text)


def test_a_model_string_that_may_hold_a_password_is_not_quoted() -> None:
    """The error doesn't quote it, nor a very long string."""
    for text in ("http://me:s3cret@h/v1#m", "me:s3cret@h", "s3cret@h", "s3cret" * 50):
        with pytest.raises(UserValueError) as caught:
            resolve_model(text)
        assert "s3cret" not in str(caught.value)


def test_something_other_than_text_is_a_type_error() -> None:
    """The error names the value's type alone."""
    with pytest.raises(UserTypeError, match="int"):
        resolve_model(3)  # type: ignore[arg-type,unused-ignore]


def test_the_package_imports_no_client_until_one_is_used() -> None:
    """In a fresh interpreter the package loads neither httpx nor the models' modules."""
    program = (
        "import sys, agentloop.models, agentloop.models.registry as r; r.resolve_model('http://h/v1#m');"
        "r.resolve_model('local:'); assert not {'httpx', 'xllamacpp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_gives_its_names_and_no_others() -> None:
    """The package gives the lazy names too."""
    for name in agentloop.models.__all__:
        assert getattr(agentloop.models, name) is not None
    assert dir(agentloop.models) == sorted(agentloop.models.__all__)
    with pytest.raises(AttributeError, match="Nothing"):
        agentloop.models.Nothing


# ---------------------------------------------------------------------------------------------- shared models


class Witness(Model):
    """Notes which task enters and leaves it."""

    holds_resources = True

    def __init__(self, fail_enter: bool = False, fail_exit: Exception | None = None) -> None:
        self.entered: list[int] = []
        self.left: list[int] = []
        self.fail_enter = fail_enter
        self.fail_exit = fail_exit

    def stream(self, request: Any) -> Any:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        if self.fail_enter:
            raise UserError("not today")
        self.entered.append(anyio.get_current_task().id)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        self.left.append(anyio.get_current_task().id)
        if self.fail_exit is not None:
            raise self.fail_exit


@pytest.fixture
def witnesses(monkeypatch: pytest.MonkeyPatch) -> dict[str, Witness]:
    """Models by string, in place of those that exist."""
    made: dict[str, Witness] = {}
    monkeypatch.setattr(registry, "resolve_model", lambda name, *, http_client: made.setdefault(name, Witness()))
    return made


async def test_a_shared_model_is_entered_once_and_left_in_the_same_task(witnesses: dict[str, Witness]) -> None:
    """The model is entered once, for any number of requests from any tasks, also at the same time."""
    got: list[Model] = []

    async def open_one(providers: Providers, name: str) -> None:
        got.append(await providers.open(name))

    async with Providers() as providers:
        async with anyio.create_task_group() as tasks:
            for name in ("a", "a", "b", "a"):
                tasks.start_soon(open_one, providers, name)
        assert sorted(witnesses) == ["a", "b"]
        assert all(len(witness.entered) == 1 and not witness.left for witness in witnesses.values())
        assert {id(model) for model in got} == {id(witness) for witness in witnesses.values()}
    for witness in witnesses.values():
        assert witness.left == witness.entered
        assert witness.entered != [anyio.get_current_task().id]


async def test_shared_models_outlive_a_body_that_is_cancelled(witnesses: dict[str, Witness]) -> None:
    """The models are open until the body has ended its cleanup, and are closed all the same."""
    with anyio.CancelScope() as scope:
        async with Providers() as providers:
            await providers.open("a")
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                assert not witnesses["a"].left
    assert scope.cancelled_caught
    assert witnesses["a"].left == witnesses["a"].entered


async def test_the_bodys_error_leaves_bare_and_wins(witnesses: dict[str, Witness]) -> None:
    """The body's error is raised, also when a model can't be closed."""
    witnesses["a"] = Witness(fail_exit=OSError("late"))
    error = KeyError("body")
    with pytest.raises(KeyError) as caught:
        async with Providers() as providers:
            await providers.open("a")
            raise error
    assert caught.value is error


async def test_errors_of_closing_leave_bare_with_the_others_as_notes(witnesses: dict[str, Witness]) -> None:
    """The first error is raised without a group; every model is closed."""
    for name in "abc":
        witnesses[name] = Witness(fail_exit=None if name == "b" else OSError("late"))
    with pytest.raises(OSError, match="late") as caught:
        async with Providers() as providers:
            for name in "abc":
                await providers.open(name)
    assert len(caught.value.__notes__) == 1
    assert all(witness.left for witness in witnesses.values())


async def test_a_model_that_cannot_be_entered_raises_there_and_can_be_tried_again(
    witnesses: dict[str, Witness],
) -> None:
    """The error is raised without a group, and the other models stay entered."""
    witnesses["a"] = Witness(fail_enter=True)
    async with Providers() as providers:
        await providers.open("b")
        with pytest.raises(UserError, match="not today"):
            await providers.open("a")
        witnesses["a"].fail_enter = False
        assert await providers.open("a") is witnesses["a"]
        assert not witnesses["b"].left


async def test_shared_models_are_given_within_the_block_only() -> None:
    """Outside the block no code would close them; an unknown string raises as ever."""
    providers = Providers()
    with pytest.raises(UserError, match="block"):
        await providers.open("local:")
    async with providers:
        with pytest.raises(UserValueError, match="no known"):
            await providers.open("what")
    with pytest.raises(UserError, match="block"):
        await providers.open("local:")


async def test_a_shared_value_is_opened_by_the_first_and_closed_by_the_last() -> None:
    """A value that fails to open is tried again by the next user; a cancelled one leaves nothing."""
    log: list[str] = []
    ready, fail = anyio.Event(), True

    async def open_value() -> int:
        log.append("open")
        await ready.wait()
        if fail:
            raise OSError
        return 7

    async def close_value(value: int) -> None:
        log.append(f"close {value}")

    shared = Shared(open_value, close_value)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await shared.enter()
    assert shared.current() is None
    ready.set()
    with pytest.raises(OSError):
        await shared.enter()
    fail = False
    log.clear()
    ready = anyio.Event()

    async def user() -> None:
        assert await shared.enter() == 7

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(user)
        tasks.start_soon(user)
        ready.set()
    assert (shared.current(), log) == (7, ["open"])
    await shared.leave()
    assert shared.current() == 7
    await shared.leave()
    assert (shared.current(), log) == (None, ["open", "close 7"])
