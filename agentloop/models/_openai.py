"""The parts that the interfaces of one vendor share: its URL, its environment variables, and its headers."""

from __future__ import annotations

from agentloop.models._codec import Vendor, without_none

OPENAI = Vendor(
    url="https://api.openai.com/v1",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    name="openai",
    cache_key="prompt_cache_key",
)


def make_headers(key: str | None, *, organization: str | None = None, project: str | None = None) -> dict[str, str]:
    """Return the headers of a request with *key*."""
    posted = {"accept": "text/event-stream", "content-type": "application/json"}
    return posted | name_account(key, organization=organization, project=project)


def name_account(key: str | None, *, organization: str | None = None, project: str | None = None) -> dict[str, str]:
    """Return the headers that say whose request it is."""
    return without_none(
        {
            "authorization": f"Bearer {key}" if key else None,
            "openai-organization": organization or None,
            "openai-project": project or None,
        }
    )
