"""`AnthropicModel`: models behind the Messages interface of Anthropic, and servers that offer the same interface.

Says which codec (`_messages`) and which vendor an `HttpModel` gets. Does not know about HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Unpack, get_args

from agentloop._common.checks import check_count
from agentloop.exceptions import UserValueError
from agentloop.model_events import ModelRequest
from agentloop.models._codec import HttpCodec, Vendor, without_none
from agentloop.models._http_model import HttpModel
from agentloop.models._messages.answer import MessagesDecoder
from agentloop.models._messages.executors import computer_type
from agentloop.models._messages.request import EDITING_BETA, OutputMode, encode, is_memory
from agentloop.models._pieces import PieceCache
from agentloop.models.timeouts import HttpOptions, ModelTimeouts

ANTHROPIC = Vendor(
    url="https://api.anthropic.com",
    key_variable="ANTHROPIC_API_KEY",
    url_variable="ANTHROPIC_BASE_URL",
    name="anthropic",
)
VERSION = "2023-06-01"
"""The version of the interface that every request names, if the model isn't given another."""
MAX_TOKENS = 16_000


class AnthropicModel(HttpModel):
    """A model behind the Messages interface.

    `base_url` is the argument, else ANTHROPIC_BASE_URL, else the vendor's, in each case without `/v1`. Without
    `api_key` the key in ANTHROPIC_API_KEY is used, but only for the vendor or the server that ANTHROPIC_BASE_URL names.
    `max_tokens` is sent if `ModelSettings` has none, since the interface requires a limit. `version` is that
    of the interface: the one of 2026-10-21 refuses `temperature` and `top_p`. `betas` names features that are not for
    everybody yet; `computer-use-YYYY-MM-DD` among them shows the provider's own computer tool of that date for an
    agent's computer, in place of a function. Everything else is as in `HttpModel`.

    `ModelSettings.reasoning` has `effort`, or the fields of the interface's `thinking`: `type`, `budget_tokens`,
    `display`. A typed output is asked for by the interface's structured output; `output_mode="tool"` is for models
    without it: the answer is then the input of a tool that the model has to call, or may call while it thinks, as the
    interface refuses to force a call then.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        auth: Any = None,
        http_client: Any = None,
        max_tokens: int = MAX_TOKENS,
        output_mode: OutputMode = "format",
        version: str = VERSION,
        betas: Iterable[str] = (),
        timeouts: ModelTimeouts | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        check_count("max_tokens", max_tokens)
        if output_mode not in get_args(OutputMode):
            raise UserValueError(f'output_mode: expected "format" or "tool", got {output_mode!r}')
        betas = tuple(betas)
        computer = computer_type(betas)
        codec = HttpCodec(
            path="/v1/messages",
            headers=partial(_make_headers, version=version, betas=",".join(betas)),
            encode=partial(
                encode, max_tokens=max_tokens, output_mode=output_mode, computer=computer, pieces=PieceCache()
            ),
            decoder=partial(MessagesDecoder, output_mode=output_mode, computer=computer),
            features=frozenset({"context_management", "hosted_tools", "tool_search"}),
        )
        super().__init__(
            name,
            codec,
            vendor=ANTHROPIC,
            base_url=base_url,
            api_key=api_key,
            auth=auth,
            http_client=http_client,
            timeouts=timeouts,
            **options,
        )

    def _headers_of(self, request: ModelRequest) -> dict[str, str]:
        headers = super()._headers_of(request)
        if request.context_trigger is not None or any(map(is_memory, request.tools)):
            headers["anthropic-beta"] = ",".join(filter(None, (headers.get("anthropic-beta"), EDITING_BETA)))
        return headers


def _make_headers(key: str | None, *, version: str, betas: str) -> dict[str, str]:
    return without_none(
        {
            "accept": "text/event-stream",
            "content-type": "application/json",
            "anthropic-version": version,
            "anthropic-beta": betas or None,
            "x-api-key": key,
        }
    )


def model_by_name(name: str, *, http_client: Any = None) -> AnthropicModel:
    """Return the model for the model string `anthropic:NAME`."""
    return AnthropicModel(name, http_client=http_client)
