"""The windows of the vendors' models, by the beginnings of their names: as their documentation tells them.

A dated name (`gpt-4.1-2025-04-14`) has the window of its family. A name that isn't here has none that we know: a
`ContextPolicy` then asks for one, which is better than a guess.
"""

from collections.abc import Mapping

WINDOWS: Mapping[str, Mapping[str, int]] = {
    "openai": {
        "gpt-5": 400_000,
        "gpt-5.1": 400_000,
        "gpt-5.2": 400_000,
        "gpt-5-chat": 128_000,
        "gpt-4.5": 128_000,
        "gpt-4.1": 1_047_576,
        "gpt-4o": 128_000,
        "gpt-4-turbo": 128_000,
        "gpt-4-32k": 32_768,
        "gpt-4": 8_192,
        "gpt-3.5-turbo": 16_385,
        "gpt-realtime": 32_000,
        "gpt-oss": 131_072,
        "chatgpt-4o": 128_000,
        "o1": 200_000,
        "o1-mini": 128_000,
        "o1-preview": 128_000,
        "o3": 200_000,
        "o4-mini": 200_000,
    },
    "anthropic": {"claude": 200_000, "claude-2.0": 100_000, "claude-instant": 100_000},
    "gemini": {
        **dict.fromkeys(("gemini-2.5", "gemini-2.0", "gemini-1.5-flash"), 1_048_576),
        "gemini-1.5-pro": 2_097_152,
    },
}


def find_context_window(provider: str, name: str) -> int | None:
    """Return the tokens that the window of the vendor's model *name* holds; None if nothing is known of it.

    The longest beginning counts that is the whole name, or ends before a hyphen: `gpt-4.5` isn't a `gpt-4`.
    """
    known = WINDOWS.get(provider, {})
    found = [each for each in known if name == each or name.startswith(f"{each}-")]
    return known[max(found, key=len)] if found else None
