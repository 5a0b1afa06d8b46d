"""Providers by name: what each row of the table sends, lacks and says."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from agentloop import Agent, ModelSettings, Runner, tool
from agentloop.exceptions import ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel, model_by_vendor
from agentloop.models._chat_vendors import CHAT_VENDORS, ChatVendor, find_url_variable
from agentloop.models.registry import list_providers, resolve_model

RESOURCES = {
    "AZURE_OPENAI_ENDPOINT": "https://house.openai.azure.com/",
    "AWS_REGION": "eu-west-1",
    "GOOGLE_CLOUD_PROJECT": "house",
}
URLS = {
    "azure": "https://house.openai.azure.com/openai/v1",
    "bedrock": "https://bedrock-mantle.eu-west-1.api.aws/v1",
    "vertex": "https://aiplatform.googleapis.com/v1/projects/house/locations/global/endpoints/openapi",
}
ROWS = pytest.mark.parametrize(("prefix", "row"), CHAT_VENDORS.items(), ids=list(CHAT_VENDORS))
SAID = 'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set but where the resources of the clouds are."""
    for prefix, row in CHAT_VENDORS.items():
        for name in (find_url_variable(prefix), row.key_variable, "GOOGLE_CLOUD_LOCATION"):
            monkeypatch.delenv(name, raising=False)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OCI_GENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in RESOURCES.items():
        monkeypatch.setenv(name, value)


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return word


async def post(model: OpenAIChatModel, requests: list[httpx.Request], **settings: Any) -> Mapping[str, Any]:
    """Return the body that a run with a tool sends."""
    settings = {"max_tokens": 5, **settings}
    agent = Agent("a", model=model, tools=[look_up], model_settings=ModelSettings(**settings))
    await Runner.run(agent, "go")
    body: Mapping[str, Any] = json.loads(requests[-1].content)
    return body


def client_for(requests: list[httpx.Request], refuses: str | None = None) -> httpx.AsyncClient:
    """Return a client whose server keeps the requests, and refuses those with a certain field."""

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if refuses is not None and refuses in json.loads(request.content):
            words = f"{refuses}: Extra inputs are not permitted"
            return httpx.Response(422, json={"error": {"message": words}})
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=SAID)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


@pytest.mark.scenario("PV-01")
@ROWS
async def test_a_row_sends_what_its_vendor_knows(
    prefix: str, row: ChatVendor, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address, the key of this vendor and no other, the name of the limit, and nothing that is refused there."""
    monkeypatch.setenv(row.key_variable, f"key-of-{prefix}")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    requests: list[httpx.Request] = []
    async with client_for(requests) as client:
        model = resolve_model(f"{prefix}:some/model", http_client=client)
        assert isinstance(model, OpenAIChatModel)
        body = await post(model, requests)
    assert str(requests[0].url) == f"{URLS.get(prefix, row.url)}/chat/completions"
    assert requests[0].headers["authorization"] == f"Bearer key-of-{prefix}"
    assert body["model"] == "some/model"
    assert body[row.max_tokens_field] == 5
    assert len({"max_tokens", "max_completion_tokens"} & set(body)) == 1
    assert not set(row.omit) & set(body)
    assert ("strict" in body["tools"][0]["function"]) <= row.strict
    assert model.info.provider == prefix


@pytest.mark.scenario("PV-01")
@ROWS
async def test_a_row_says_which_key_it_lacks(prefix: str, row: ChatVendor, anyio_backend: Any) -> None:
    """Before the first request; a server of one's own is asked without one."""
    requests: list[httpx.Request] = []
    async with client_for(requests) as client:
        model = resolve_model(f"{prefix}:m", http_client=client)
        if row.needs_key:
            with pytest.raises(UserError, match=f"no API key. Set the environment variable {row.key_variable}"):
                await Runner.run(Agent("a", model=model), "go")
            assert not requests
        else:
            await Runner.run(Agent("a", model=model), "go")
            assert "authorization" not in requests[0].headers


@pytest.mark.scenario("PV-01")
@pytest.mark.parametrize(
    ("prefix", "variable"),
    [("azure", "AZURE_OPENAI_ENDPOINT"), ("bedrock", "AWS_REGION"), ("vertex", "GOOGLE_CLOUD_PROJECT")],
)
def test_a_row_says_which_part_of_its_address_is_missing(
    prefix: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the variable and the vendor's page; another base URL needs none."""
    monkeypatch.delenv(variable)
    with pytest.raises(UserError, match=f"{prefix}: the base URL needs the environment variable {variable}. See http"):
        resolve_model(f"{prefix}:m")
    monkeypatch.setenv(find_url_variable(prefix), "http://127.0.0.1:9/v1")
    assert resolve_model(f"{prefix}:m").base_url == "http://127.0.0.1:9/v1"  # type: ignore[attr-defined]


@pytest.mark.scenario("PV-01")
@pytest.mark.parametrize("setting", ["parallel_tool_calls", "service_tier"])
async def test_a_field_that_is_refused_names_the_option(setting: str, anyio_backend: Any) -> None:
    """What the user set is sent, and the option leaves it out."""
    values: dict[str, Any] = {"parallel_tool_calls": True, "service_tier": "flex"}
    requests: list[httpx.Request] = []
    async with client_for(requests, refuses=setting) as client:
        model = model_by_vendor("cerebras", "m", http_client=client, api_key="k")
        with pytest.raises(ModelTransportError, match=rf"Extra inputs.*give the model omit=\('{setting}',\)"):
            await post(model, requests, **{setting: values[setting]})
        model = model_by_vendor("cerebras", "m", http_client=client, api_key="k", omit=(setting,))
        assert setting not in await post(model, requests, **{setting: values[setting]})


def test_what_a_server_has_less_can_be_said_of_any_model() -> None:
    """Fields that aren't sent, and features that it doesn't have; nothing without which there is no question."""
    model = OpenAIResponsesModel("m", base_url="http://h/v1", features={"hosted_tools"}, omit=["include"])
    assert model.features == {"hosted_tools"}
    assert AnthropicModel("m", features=()).features == frozenset()
    with pytest.raises(UserValueError, match="this interface has no 'prompts'; it has none"):
        OpenAIChatModel("m", features={"prompts"})
    with pytest.raises(UserTypeError, match="one text"):
        OpenAIResponsesModel("m", features="prompts")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match=r"write omit=\('store',\)"):
        OpenAIChatModel("m", omit="store")
    with pytest.raises(UserTypeError, match=r"omit\[0\]"):
        OpenAIChatModel("m", omit=[3])  # type: ignore[list-item]
    with pytest.raises(UserValueError, match="'messages' is a part of the question"):
        OpenAIChatModel("m", omit=["messages"])
    with pytest.raises(UserValueError, match=r"prefix: expected one of azure, .*, got 'mistrel'"):
        model_by_vendor("mistrel", "m")


def test_what_is_omitted_is_checked_beside_the_row_too() -> None:
    """A text isn't the collection of its letters."""
    with pytest.raises(UserTypeError, match=r"write omit=\('store',\)"):
        model_by_vendor("mistral", "m", omit="store")


@pytest.mark.parametrize(
    ("location", "host"), [("europe-west4", "europe-west4-aiplatform"), ("global", "aiplatform")], ids=str
)
def test_a_region_of_vertex_has_its_own_host(location: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The global one has no name in the host."""
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", location)
    place = f"https://{host}.googleapis.com/v1/projects/house/locations/{location}/endpoints/openapi"
    assert resolve_model("vertex:google/gemini-x").base_url == place  # type: ignore[attr-defined]


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "MISTRAL_BASE_URL"])
def test_the_list_shows_no_secret_of_a_url(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a password nor a query; a URL that a model would refuse is told of."""
    prefix = variable.partition("_")[0].lower()
    monkeypatch.setenv(variable, "https://proxy.test/v1?key=s3cret")
    found = {provider.prefix: provider for provider in list_providers()}
    assert found[prefix].where == "https://proxy.test/v1"
    monkeypatch.setenv(variable, "https://user:s3cret@proxy.test/v1")
    found = {provider.prefix: provider for provider in list_providers()}
    assert found[prefix].where == "…"
    assert f"a right URL in {variable}" in found[prefix].missing


def test_a_wrong_prefix_is_told_of_the_near_one() -> None:
    """The rows are among the known prefixes."""
    with pytest.raises(UserValueError, match=r"Did you mean 'mistral:'\?.*groq:NAME"):
        resolve_model("mistrel:m")


@pytest.mark.scenario("PV-02")
def test_the_list_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prefix is there once, with the variables that it lacks."""
    monkeypatch.setenv("GROQ_API_KEY", "k")
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT")
    found = {provider.prefix: provider for provider in list_providers()}
    assert found["groq"].missing == ()
    assert found["azure"].missing == ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY")
    assert found["azure"].where == "{AZURE_OPENAI_ENDPOINT}/openai/v1"
    assert found["openai"].missing == ("OPENAI_API_KEY",)
    assert found["ollama"].missing == ()
    others = {"openai", "openai-chat", "openai-realtime", "anthropic", "gemini", "oci", "local"}
    assert others | set(CHAT_VENDORS) <= set(found)
