"""Tools of servers that speak the Model Context Protocol (MCP), by stdio or streamable HTTP.

`MCPServer` is a source of tools, for `Agent.toolsets` and `RunConfig.toolsets`. The protocol is that of the official
SDK (the extra `mcp`), of both eras; it is imported when the first connection opens.
"""

from agentloop.mcp._connection import MCPConnectionError, MCPToolError
from agentloop.mcp._server import MCPServer

__all__ = ["MCPConnectionError", "MCPServer", "MCPToolError"]
