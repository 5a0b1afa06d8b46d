"""`OpenAIResponsesModel`: models behind the Responses interface, of the vendor and of servers that speak it.

Says which codec (`_responses_request`, `_responses`) and which vendor an `HttpModel` gets. Does not know about HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import EllipsisType
from typing import Any

from agentloop.models._codec import HttpCodec
from agentloop.models._http_model import HttpModel
from agentloop.models._openai import OPENAI, make_headers
from agentloop.models._pieces import PieceCache
from agentloop.models._responses import ResponsesDecoder
from agentloop.models._responses_request import encode


def make_responses_codec(headers: Callable[[str | None], Mapping[str, str]]) -> HttpCodec:
    """Return the codec of Responses."""
    return HttpCodec(
        path="/responses", headers=headers, encode=partial(encode, pieces=PieceCache()), decoder=ResponsesDecoder
    )


class OpenAIResponsesModel(HttpModel):
    """A model behind a Responses server.

    It knows hosted tools, custom tools, stored prompts, namespaces, tool search, reasoning that is sent back, and
    conversations that the provider keeps. `base_url` is the argument, else OPENAI_BASE_URL, else the vendor's. Without
    `api_key` the key in OPENAI_API_KEY is used, but only for the vendor or the server that OPENAI_BASE_URL names; other
    servers get no key. Everything else is as in `HttpModel`.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        auth: Any = None,
        http_client: Any = None,
        organization: str | None = None,
        project: str | None = None,
        connect_timeout: float | None = 10.0,
        silence_timeout: float | None = 60.0,
        first_output_timeout: float | EllipsisType | None = ...,
    ) -> None:
        super().__init__(
            name,
            make_responses_codec(partial(make_headers, organization=organization, project=project)),
            vendor=OPENAI,
            base_url=base_url,
            api_key=api_key,
            auth=auth,
            http_client=http_client,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            first_output_timeout=first_output_timeout,
        )


def model_by_name(name: str, *, http_client: Any = None) -> OpenAIResponsesModel:
    """Return the model for the model string `openai:NAME`."""
    return OpenAIResponsesModel(name, http_client=http_client)
