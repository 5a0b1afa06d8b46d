"""What the window of a model holds: known for the vendors' own names, at the vendors' own servers."""

import pytest

from agentloop.models import FallbackModel, LocalModel, OpenAIChatModel, OpenAIResponsesModel
from agentloop.models._windows import find_context_window
from agentloop.testing import FunctionModel, say


@pytest.mark.parametrize(
    ("provider", "name", "window"),
    [
        ("openai", "gpt-5", 400_000),
        ("openai", "gpt-5-mini-2025-08-07", 400_000),
        ("openai", "gpt-5-chat-latest", 128_000),
        ("openai", "gpt-4.1-2025-04-14", 1_047_576),
        ("openai", "gpt-4", 8_192),
        ("openai", "gpt-4.9", None),
        ("openai", "o1-mini", 128_000),
        ("anthropic", "claude-sonnet-4-5", 200_000),
        ("gemini", "gemini-2.5-flash", 1_048_576),
        ("openai", "mine", None),
        ("our.server", "gpt-5", None),
    ],
)
def test_a_vendors_name_has_a_known_window(provider: str, name: str, window: int | None) -> None:
    """By its family; another version of it has none that we know."""
    assert find_context_window(provider, name) == window


def test_another_server_may_serve_anything_by_a_name() -> None:
    """So nothing is known of it."""
    assert OpenAIResponsesModel("gpt-5", api_key="k").info.context_window == 400_000
    assert OpenAIChatModel("gpt-5", base_url="http://127.0.0.1:8080/v1").info.context_window is None


def test_a_fallback_has_the_smallest_window_of_its_members() -> None:
    """If each is known."""
    known = OpenAIResponsesModel("gpt-5", api_key="k")
    assert FallbackModel([known, LocalModel(n_ctx=4_096)]).info.context_window == 4_096
    assert FallbackModel([known, FunctionModel(lambda request: say("hi"))]).info.context_window is None
