"""`OpenAIChatModel` and `GeminiModel`: models behind the Chat Completions interface, of its vendor and of many servers.

Says which codec (`_chat`) and which vendor an `HttpModel` gets. Does not know about HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

from agentloop.models._chat.answer import ChatDecoder
from agentloop.models._chat.request import STREAM_OPTIONS, encode
from agentloop.models._codec import HttpCodec, Vendor
from agentloop.models._http_model import HttpModel
from agentloop.models._openai import OPENAI, make_headers
from agentloop.models._pieces import PieceCache
from agentloop.models.timeouts import HttpOptions, ModelTimeouts

GEMINI = Vendor(
    url="https://generativelanguage.googleapis.com/v1beta/openai", key_variable="GEMINI_API_KEY", name="gemini"
)


def make_chat_codec(
    headers: Callable[[str | None], Mapping[str, str]],
    *,
    max_tokens_field: str = "max_tokens",
    constrained: bool = False,
    extra_content: bool = False,
    replay_reasoning: bool = False,
    custom_tools: bool = False,
    stream_usage: bool = True,
    strict: bool = True,
) -> HttpCodec:
    """Return the codec of Chat Completions. With *extra_content*, calls go back with the vendor's own part of them."""
    return HttpCodec(
        path="/chat/completions",
        headers=headers,
        encode=partial(
            encode,
            constrained=constrained,
            max_tokens_field=max_tokens_field,
            extra_content=extra_content,
            replay_reasoning=replay_reasoning,
            custom_tools=custom_tools,
            stream_usage=stream_usage,
            strict=strict,
            pieces=PieceCache(),
        ),
        decoder=partial(ChatDecoder, constrained=constrained),
        dispensable=(STREAM_OPTIONS,),
    )


class OpenAIChatModel(HttpModel):
    """A model behind a Chat Completions server.

    `base_url` is the argument, else OPENAI_BASE_URL, else the vendor's. Without `api_key` the key in OPENAI_API_KEY is
    used, but only for the vendor or the server that OPENAI_BASE_URL names; other servers get no key. `constrained=True`
    lets small models call tools: one call per turn, forced into a schema (the tool choice `"none"` gives a text
    answer). Tools of free text are known to the vendor only, and refused for others. `replay_reasoning=True` sends
    earlier reasoning back as `reasoning_content`, and the `reasoning_details` that it came with, for servers that want
    them. Streams are asked for their use of tokens (`stream_options`), which limits and prices need. A server that
    refuses this field by name is asked without it from then on; `stream_usage=False` never sends it. With
    `strict=False` no tool says that it is strict, for servers that refuse the word; `max_tokens_field` is their name
    for the most tokens of an answer. `vendor` is whose server it is, if it isn't OpenAI's. Everything else is as in
    `HttpModel`.
    """

    _home: ClassVar[Vendor] = OPENAI

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        auth: Any = None,
        http_client: Any = None,
        constrained: bool = False,
        replay_reasoning: bool = False,
        stream_usage: bool = True,
        strict: bool = True,
        max_tokens_field: str | None = None,
        vendor: Vendor | None = None,
        organization: str | None = None,
        project: str | None = None,
        timeouts: ModelTimeouts | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        vendor = vendor or self._home
        url = vendor.find_url(base_url)
        if max_tokens_field is None:
            # The vendor's newer models refuse the old name of the field; other servers may not know the new one.
            max_tokens_field = "max_completion_tokens" if OPENAI.is_at(url) else "max_tokens"
        codec = make_chat_codec(
            partial(make_headers, organization=organization, project=project),
            max_tokens_field=max_tokens_field,
            constrained=constrained,
            extra_content=GEMINI.is_at(url),
            replay_reasoning=replay_reasoning,
            custom_tools=OPENAI.is_at(url),
            stream_usage=stream_usage,
            strict=strict,
        )
        super().__init__(
            name,
            codec,
            vendor=vendor,
            base_url=base_url,
            api_key=api_key,
            auth=auth,
            http_client=http_client,
            timeouts=timeouts,
            **options,
        )
        self.constrained = constrained


class GeminiModel(OpenAIChatModel):
    """A Gemini model behind its vendor's Chat Completions interface, with the key in GEMINI_API_KEY.

    The signatures of thoughts, which come with calls, go back with them. Everything else is as in `OpenAIChatModel`.
    """

    _home: ClassVar[Vendor] = GEMINI


def model_by_name(name: str, *, http_client: Any = None) -> OpenAIChatModel:
    """Return the model for the model string `openai-chat:NAME`."""
    return OpenAIChatModel(name, http_client=http_client)


def gemini_by_name(name: str, *, http_client: Any = None) -> GeminiModel:
    """Return the model for the model string `gemini:NAME`."""
    return GeminiModel(name, http_client=http_client)
