"""A real server that wants a token, with an authorisation server beside it: by HTTP, a program of its own.

Every token that it gives, and what it was asked for, is written to the file that `MCP_LOG` names, one line each. Its
tool `revoke` forgets all access tokens, as a server does that was started anew. Its user agrees to everything at once.
"""

import os
import sys
import time
from secrets import token_urlsafe
from typing import Any

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

PORT = int(sys.argv[1])
SECONDS = int(os.environ.get("TOKEN_SECONDS", "3600"))
ADDRESS = f"http://127.0.0.1:{PORT}"


def note(text: str) -> None:
    """Append a line to the log."""
    with open(os.environ["MCP_LOG"], "a") as log:
        log.write(text + "\n")


class Provider:
    """An authorisation server in memory."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Return a registered client."""
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Register a client."""
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Return where the user's browser goes: back to the client, at once."""
        note("authorize")
        code = AuthorizationCode(
            code=token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        """Return a code that was given."""
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        """Return tokens for a code."""
        del self.codes[authorization_code.code]
        return self._give(str(client.client_id), authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        """Return a refresh token that was given."""
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        """Return new tokens for a refresh token, which counts once."""
        note("refresh")
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        return self._give(str(client.client_id), refresh_token.scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Return an access token that counts."""
        return self.access.get(token)

    async def revoke_token(self, token: Any) -> None:
        """Forget a token."""
        self.access.pop(token.token, None)

    def _give(self, client: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = token_urlsafe(24), token_urlsafe(24)
        note(f"token {access}")
        note(f"token {refresh}")
        ends = int(time.time()) + SECONDS
        self.access[access] = AccessToken(
            token=access, client_id=client, scopes=scopes, expires_at=ends + 3600, resource=resource
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes, resource=resource)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=SECONDS, scope=" ".join(scopes))


provider = Provider()
server = MCPServer(
    "guarded",
    auth_server_provider=provider,
    auth=AuthSettings(
        issuer_url=AnyHttpUrl(ADDRESS),
        resource_server_url=AnyHttpUrl(f"{ADDRESS}/mcp"),
        validate_token_resource=False,
        client_registration_options=ClientRegistrationOptions(enabled=True),
    ),
)


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    note(f"add {a} {b}")
    return a + b


@server.tool()
async def revoke(refresh: bool = False) -> str:
    """Forget the access tokens; the refresh tokens, too, if asked to."""
    provider.access.clear()
    if refresh:
        provider.refresh.clear()
    return "revoked"


if __name__ == "__main__":
    server.run("streamable-http", port=PORT)
