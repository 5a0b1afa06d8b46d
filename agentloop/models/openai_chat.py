"""`OpenAIChatModel`: models behind the Chat Completions interface, of the vendor and of many other servers.

Says which codec (`_chat`) and which vendor an `HttpModel` gets. Does not know about HTTP.
"""

from __future__ import annotations

from functools import partial
from types import EllipsisType
from typing import Any

from agentloop.models._chat import ChatDecoder, encode
from agentloop.models._codec import HttpCodec
from agentloop.models._http_model import HttpModel
from agentloop.models._openai import OPENAI, make_headers


class OpenAIChatModel(HttpModel):
    """A model behind a Chat Completions server.

    `base_url` is the argument, else OPENAI_BASE_URL, else the vendor's. Without `api_key` the key in OPENAI_API_KEY is
    used, but only for the vendor or the server that OPENAI_BASE_URL names; other servers get no key. `constrained=True`
    lets small models call tools: one call per turn, forced into a schema (the tool choice `"none"` gives a text
    answer). Everything else is as in `HttpModel`.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        auth: Any = None,
        http_client: Any = None,
        constrained: bool = False,
        organization: str | None = None,
        project: str | None = None,
        connect_timeout: float | None = 10.0,
        silence_timeout: float | None = 60.0,
        first_output_timeout: float | EllipsisType | None = ...,
    ) -> None:
        # The vendor's newer models refuse the old name of the field; other servers may not know the new one.
        limit = "max_completion_tokens" if OPENAI.is_at(OPENAI.find_url(base_url)) else "max_tokens"
        codec = HttpCodec(
            path="/chat/completions",
            headers=partial(make_headers, organization=organization, project=project),
            encode=partial(encode, constrained=constrained, max_tokens_field=limit),
            decoder=partial(ChatDecoder, constrained=constrained),
        )
        super().__init__(
            name,
            codec,
            vendor=OPENAI,
            base_url=base_url,
            api_key=api_key,
            auth=auth,
            http_client=http_client,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            first_output_timeout=first_output_timeout,
        )
        self.constrained = constrained


def model_by_name(name: str, *, http_client: Any = None) -> OpenAIChatModel:
    """Return the model for the model string `openai-chat:NAME`."""
    return OpenAIChatModel(name, http_client=http_client)
