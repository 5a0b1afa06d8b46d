"""The step that the SDK's OAuth leaves out: a token that the server refuses is renewed before the user is asked again.

The SDK renews a token once its time is over. A server may refuse one earlier, because it was started anew or the token
was withdrawn, and then the SDK sends the user to the browser, although it has what it needs to renew the token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2

_LONG_AGO = 1.0


class RenewFirst(httpx2.Auth):  # type: ignore[misc]  # as `Any`, see pyproject.toml
    """The flow of an `OAuthClientProvider`, begun once more for a request that was answered with 401."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    async def async_auth_flow(  # noqa: ASYNC900 - as httpx asks for it, which closes it
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Pass on the provider's flow. It renews the token where we say that its time is over."""
        tokens = self._provider.context
        flow, is_first = self._provider.async_auth_flow(request), True
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                if response.status_code == 401 and outgoing is request and is_first and tokens.can_refresh_token():
                    is_first, tokens.token_expiry_time = False, _LONG_AGO
                    await flow.aclose()
                    flow = self._provider.async_auth_flow(request)
                    outgoing = await anext(flow)
                else:
                    outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


def with_renewal(auth: Any) -> Any:
    """Return *auth* with that step if it is the SDK's, else as it is."""
    return RenewFirst(auth) if hasattr(getattr(auth, "context", None), "can_refresh_token") else auth
