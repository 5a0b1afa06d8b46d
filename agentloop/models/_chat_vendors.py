"""Vendors and servers that speak Chat Completions, by the prefix of their model strings: a table, and nothing else.

A row says what is different there: the base URL, the variable that holds the key, and what their server doesn't know of
what the library writes by itself. What *you* set is always sent: a server that refuses it says so, and the error names
the option that leaves it out (`omit`). `page` is where the vendor says it; the rows are as of 2026-11-28.

A URL may have parts in braces: the environment variable of that name, which must be set, or has a default after a
colon. Each row's base URL can be replaced by a variable `PREFIX_BASE_URL`, which a proxy, or a test, needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from agentloop.exceptions import UserError, UserValueError
from agentloop.models._codec import Vendor, read_variable
from agentloop.models._omitted import choose_omitted

if TYPE_CHECKING:
    from agentloop.models.openai_chat import OpenAIChatModel


@attrs.frozen(kw_only=True)
class ChatVendor:
    """A vendor or server behind Chat Completions.

    Attributes:
        url: The base URL. A part in braces is an environment variable: `{NAME}`, or `{NAME:default}`.
        key_variable: The environment variable that holds the key.
        needs_key: False for servers that you run yourself, which mostly have none.
        omit: Fields that the library writes by itself and that the server doesn't know.
        strict: False if the server doesn't know `strict` in the definition of a tool.
        max_tokens_field: How it calls the most tokens of an answer.
        page: The vendor's page on its interface.
    """

    url: str
    key_variable: str
    page: str
    needs_key: bool = True
    omit: tuple[str, ...] = ()
    strict: bool = True
    max_tokens_field: str = "max_tokens"

    def list_unset(self) -> list[str]:
        """Return the environment variables that the URL needs and that aren't set."""
        return [name for name, default in _PART.findall(self.url) if not (default or read_variable(name))]

    def fill_url(self) -> str:
        """Return the base URL with the values of its variables; one that isn't set stays in its braces."""

        def replace(part: re.Match[str]) -> str:
            value = read_variable(part[1]) or part[2]
            return value.rstrip("/") if value else part[0]

        return _PART.sub(replace, self.url).replace("//global-", "//")  # Google's global region isn't in the host

    def find_url(self, prefix: str) -> str:
        """Return the base URL, as `fill_url` does.

        Raises:
            UserError: one of its variables isn't set; names it.
        """
        if unset := self.list_unset():
            raise UserError(f"{prefix}: the base URL needs the environment variable {unset[0]}. See {self.page}")
        return self.fill_url()


_PART = re.compile(r"\{([A-Z_]+)(?::([^}]*))?\}")

CHAT_VENDORS: Mapping[str, ChatVendor] = MappingProxyType(
    {
        "azure": ChatVendor(
            url="{AZURE_OPENAI_ENDPOINT}/openai/v1",
            key_variable="AZURE_OPENAI_API_KEY",
            max_tokens_field="max_completion_tokens",
            page="https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle",
        ),
        "bedrock": ChatVendor(
            url="https://bedrock-mantle.{AWS_REGION}.api.aws/v1",
            key_variable="AWS_BEARER_TOKEN_BEDROCK",
            max_tokens_field="max_completion_tokens",
            page="https://docs.aws.amazon.com/bedrock/latest/userguide/inference-chat-completions-mantle.html",
        ),
        "vertex": ChatVendor(
            url="https://{GOOGLE_CLOUD_LOCATION:global}-aiplatform.googleapis.com/v1/projects/{GOOGLE_CLOUD_PROJECT}/locations"
            "/{GOOGLE_CLOUD_LOCATION:global}/endpoints/openapi",
            key_variable="VERTEX_ACCESS_TOKEN",  # an access token, which lives an hour
            page="https://docs.cloud.google.com/vertex-ai/generative-ai/docs/migrate/openai/auth-and-credentials",
        ),
        "mistral": ChatVendor(
            url="https://api.mistral.ai/v1",
            key_variable="MISTRAL_API_KEY",
            omit=("stream_options",),  # refused with 422; a stream's last chunk has the use of tokens in any case
            page="https://docs.mistral.ai/api",
        ),
        "groq": ChatVendor(
            url="https://api.groq.com/openai/v1",
            key_variable="GROQ_API_KEY",
            max_tokens_field="max_completion_tokens",
            page="https://console.groq.com/docs/openai",
        ),
        "deepseek": ChatVendor(
            url="https://api.deepseek.com",
            key_variable="DEEPSEEK_API_KEY",
            strict=False,  # only the beta of the service knows it
            page="https://api-docs.deepseek.com",
        ),
        "xai": ChatVendor(url="https://api.x.ai/v1", key_variable="XAI_API_KEY", page="https://docs.x.ai/docs"),
        "openrouter": ChatVendor(
            url="https://openrouter.ai/api/v1",
            key_variable="OPENROUTER_API_KEY",
            page="https://openrouter.ai/docs/api-reference/overview",
        ),
        "together": ChatVendor(
            url="https://api.together.xyz/v1",
            key_variable="TOGETHER_API_KEY",
            page="https://docs.together.ai/docs/openai-api-compatibility",
        ),
        "fireworks": ChatVendor(
            url="https://api.fireworks.ai/inference/v1",
            key_variable="FIREWORKS_API_KEY",
            page="https://docs.fireworks.ai/tools-sdks/openai-compatibility",
        ),
        "cerebras": ChatVendor(
            url="https://api.cerebras.ai/v1",
            key_variable="CEREBRAS_API_KEY",
            max_tokens_field="max_completion_tokens",
            page="https://inference-docs.cerebras.ai/resources/openai",
        ),
        "huggingface": ChatVendor(
            url="https://router.huggingface.co/v1",
            key_variable="HF_TOKEN",
            page="https://huggingface.co/docs/inference-providers",
        ),
        "github": ChatVendor(
            url="https://models.github.ai/inference",
            key_variable="GITHUB_TOKEN",
            page="https://docs.github.com/rest/models/inference",
        ),
        "ollama": ChatVendor(
            url="http://127.0.0.1:11434/v1",
            key_variable="OLLAMA_API_KEY",
            needs_key=False,
            page="https://docs.ollama.com/openai",
        ),
        "lmstudio": ChatVendor(
            url="http://127.0.0.1:1234/v1",
            key_variable="LMSTUDIO_API_KEY",
            needs_key=False,
            page="https://lmstudio.ai/docs/app/api/endpoints/openai",
        ),
        "vllm": ChatVendor(
            url="http://127.0.0.1:8000/v1",
            key_variable="VLLM_API_KEY",
            needs_key=False,
            page="https://docs.vllm.ai/en/latest/serving/openai_compatible_server",
        ),
        "litellm": ChatVendor(
            url="http://127.0.0.1:4000/v1",
            key_variable="LITELLM_API_KEY",
            needs_key=False,
            page="https://docs.litellm.ai/docs/providers/litellm_proxy",
        ),
    }
)
"""The rows, by prefix."""


def model_by_vendor(prefix: str, name: str, *, http_client: Any = None, **options: Any) -> OpenAIChatModel:
    """Return the model for the model string `PREFIX:NAME`. *options* are those of `OpenAIChatModel`.

    Raises:
        UserError: the base URL needs an environment variable that isn't set; names it.
        UserValueError: there is no such prefix; lists them.

    Example:
        from agentloop.models import model_by_vendor

        model = model_by_vendor("mistral", "mistral-small-latest", api_key="k", omit=("parallel_tool_calls",))
        print(model)  # OpenAIChatModel('mistral-small-latest', base_url='https://api.mistral.ai/v1')
    """
    from agentloop.models.openai_chat import OpenAIChatModel  # most calls need the table only

    if (row := CHAT_VENDORS.get(prefix)) is None:
        raise UserValueError(f"prefix: expected one of {', '.join(CHAT_VENDORS)}, got {prefix!r}")
    variable = find_url_variable(prefix)
    vendor = Vendor(
        url=read_variable(variable) or row.find_url(prefix),
        key_variable=row.key_variable,
        url_variable=variable,
        name=prefix,
        needs_key=row.needs_key,
    )
    options["omit"] = {*row.omit, *choose_omitted(options)}
    return OpenAIChatModel(
        name,
        http_client=http_client,
        vendor=vendor,
        strict=options.pop("strict", row.strict),
        max_tokens_field=options.pop("max_tokens_field", row.max_tokens_field),
        **options,
    )


def find_url_variable(prefix: str) -> str:
    """Return the environment variable that replaces the base URL of *prefix*."""
    return f"{prefix.upper()}_BASE_URL"


def describe_url(prefix: str) -> str:
    """Return the base URL of *prefix*, with the names of its variables that aren't set."""
    return read_variable(find_url_variable(prefix)) or CHAT_VENDORS[prefix].fill_url()


def list_missing(prefix: str) -> Iterator[str]:
    """Yield the environment variables that a model of *prefix* needs and that aren't set."""
    row = CHAT_VENDORS[prefix]
    if not read_variable(find_url_variable(prefix)):
        yield from row.list_unset()
    if row.needs_key and not read_variable(row.key_variable):
        yield row.key_variable
