"""Models: the protocol that a provider implements, and the models that come with the library.

The models are imported at first use. Any object with `Model`'s methods is a model; `HttpModel` makes one of an
`HttpCodec`, the pure part of a provider's HTTP interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use
from agentloop.abc import Model, ModelProvider
from agentloop.model_events import (
    ArgumentsDelta,
    HostedProgress,
    ItemDone,
    ModelEvent,
    ModelFeature,
    ModelInfo,
    ModelRequest,
    OutputSchema,
    RateState,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
    ToolDefinition,
)

if TYPE_CHECKING:
    from agentloop.models._chat_vendors import model_by_vendor
    from agentloop.models._codec import Decoder, HttpCodec, Vendor
    from agentloop.models._http_model import HttpModel
    from agentloop.models._prices import Prices, prices
    from agentloop.models.anthropic import AnthropicModel
    from agentloop.models.fallback import FallbackModel
    from agentloop.models.local import LocalModel
    from agentloop.models.oci import OCIModel
    from agentloop.models.openai_chat import GeminiModel, OpenAIChatModel
    from agentloop.models.openai_responses import OpenAIResponsesModel
    from agentloop.models.realtime import RealtimeModel
    from agentloop.models.timeouts import ModelTimeouts
    from agentloop.models.wrapper import WrapperModel

__all__ = [
    "AnthropicModel",
    "ArgumentsDelta",
    "FallbackModel",
    "GeminiModel",
    "HttpCodec",
    "Decoder",
    "HostedProgress",
    "HttpModel",
    "ItemDone",
    "LocalModel",
    "Model",
    "ModelEvent",
    "ModelFeature",
    "ModelInfo",
    "ModelProvider",
    "ModelRequest",
    "ModelTimeouts",
    "OCIModel",
    "OpenAIChatModel",
    "OpenAIResponsesModel",
    "OutputSchema",
    "Prices",
    "RateState",
    "Raw",
    "RealtimeModel",
    "ReasoningDelta",
    "ResponseDone",
    "ResponseStarted",
    "TextDelta",
    "ToolDefinition",
    "Vendor",
    "WrapperModel",
    "model_by_vendor",
    "prices",
]

_LAZY = {
    "AnthropicModel": "anthropic",
    "FallbackModel": "fallback",
    "GeminiModel": "openai_chat",
    "HttpCodec": "_codec",
    "Decoder": "_codec",
    "HttpModel": "_http_model",
    "ModelTimeouts": "timeouts",
    "LocalModel": "local",
    "OCIModel": "oci",
    "OpenAIChatModel": "openai_chat",
    "OpenAIResponsesModel": "openai_responses",
    "Prices": "_prices",
    "RealtimeModel": "realtime",
    "Vendor": "_codec",
    "WrapperModel": "wrapper",
    "model_by_vendor": "_chat_vendors",
    "prices": "_prices",
}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
