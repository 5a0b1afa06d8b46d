"""Values of other libraries: histories in the forms of providers, in and out, and tools.

A program that comes from another library has its conversations as the messages of a provider. `from_chat`,
`from_responses` and `from_anthropic` make items of them, for the input of `Runner.run` or for a session; `to_chat`,
`to_responses` and `to_anthropic` write items for a client of the provider. They read and write as the models here do.

`OpenAPITools` is a source of tools that an OpenAPI document describes; `from_langchain` and `from_pydantic_ai` make
tools of those libraries' tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use

if TYPE_CHECKING:
    from agentloop.interop._anthropic import from_anthropic, to_anthropic
    from agentloop.interop._chat import from_chat, to_chat
    from agentloop.interop._foreign import from_langchain, from_pydantic_ai
    from agentloop.interop._openapi import OpenAPIError, OpenAPITools
    from agentloop.interop._responses import from_responses, to_responses

__all__ = [
    "OpenAPIError",
    "OpenAPITools",
    "from_anthropic",
    "from_chat",
    "from_langchain",
    "from_pydantic_ai",
    "from_responses",
    "to_anthropic",
    "to_chat",
    "to_responses",
]

_LAZY = {
    "OpenAPIError": "_openapi",
    "OpenAPITools": "_openapi",
    "from_anthropic": "_anthropic",
    "from_chat": "_chat",
    "from_langchain": "_foreign",
    "from_pydantic_ai": "_foreign",
    "from_responses": "_responses",
    "to_anthropic": "_anthropic",
    "to_chat": "_chat",
    "to_responses": "_responses",
}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
