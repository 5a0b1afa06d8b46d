"""Tools of servers that speak the Model Context Protocol (MCP), and agents as such a server.

`MCPServer` is a source of tools, for `Agent.toolsets` and `RunConfig.toolsets`; `serve` and `build_server` give agents
to the clients of others. The protocol is that of the official SDK (the extra `mcp`), of both eras, by stdio and
streamable HTTP; it is imported when the first connection opens.
"""

from agentloop.mcp._connection import MCPConnectionError, MCPToolError
from agentloop.mcp._library import MCPPrompt, MCPResource
from agentloop.mcp._questions import Elicitation
from agentloop.mcp._server import MCPServer
from agentloop.mcp._serving import build_server, serve

__all__ = [
    "Elicitation",
    "MCPConnectionError",
    "MCPPrompt",
    "MCPResource",
    "MCPServer",
    "MCPToolError",
    "build_server",
    "serve",
]
