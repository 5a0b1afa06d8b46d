"""The names that are exported are those of the semantic conventions."""

import re
import warnings
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.semconv", reason="needs the extra test-otel: nox -s tests-otel")

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes

from agentloop.otel import _attributes as ours

PACKAGE = Path(ours.__file__).parent
OWN = "agentloop."
NEWER = {"gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration", "gen_ai.workflow.duration"}
"""Metrics that came after the conventions had moved to a repository of their own, so the package doesn't have them."""


def _texts_of(*modules: object) -> set[str]:
    """Return the names that these modules of the conventions define."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every name is marked: they have moved
        return {value for module in modules for value in vars(module).values() if isinstance(value, str)}


def test_every_name_is_one_of_the_conventions_or_has_our_prefix() -> None:
    """Read from the source, so that a name that no test exports is checked as well."""
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py"))
    names = set(re.findall(r'"((?:[a-z_]+\.)+[a-z_]+)"', source)) - set(ours._PROVIDERS) - set(ours._PROVIDERS.values())
    names -= {name for _, name in ours._PROVIDER_ENDS}
    names -= NEWER
    known = _texts_of(gen_ai_attributes, gen_ai_metrics, error_attributes, http_attributes, server_attributes)
    assert len(names) > 40
    assert {name for name in names if not name.startswith(OWN)} <= known


def test_operations_providers_and_token_types_are_well_known_values() -> None:
    """As far as the conventions list them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
        providers = {one.value for one in gen_ai_attributes.GenAiProviderNameValues}
        tokens = {one.value for one in gen_ai_attributes.GenAiTokenTypeValues}
    assert set(ours.OPERATIONS.values()) <= operations
    extra = {"openai", "anthropic"}  # the names that agentloop's models have themselves
    assert {*ours._PROVIDERS.values(), *(name for _, name in ours._PROVIDER_ENDS), *extra} <= providers | {"cohere"}
    assert {"input", "output"} <= tokens


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openai", "openai"),
        ("anthropic", "anthropic"),
        ("api.groq.com", "groq"),
        ("mine.openai.azure.com", "azure.ai.openai"),
        ("bedrock-runtime.eu-central-1.amazonaws.com", "aws.bedrock"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_provider_known_by_its_host_has_the_name_of_the_conventions(provider: str, name: str) -> None:
    """Any other is named as it is."""
    assert ours.name_provider(provider) == name


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://example.com/v1", ("example.com", 443)),
        ("http://127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("wss://example.com", ("example.com", 443)),
        ("ws://example.com", ("example.com", 80)),
        ("http://example.com:port", None),
        ("nowhere", None),
    ],
)
def test_the_server_is_that_of_the_base_url(url: str, server: tuple[str, int] | None) -> None:
    """Without a port it is the scheme's own; a URL that is none tells nothing."""
    found = ours._read_server(url)
    assert found == ({} if server is None else {"server.address": server[0], "server.port": server[1]})
