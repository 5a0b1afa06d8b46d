"""`MCPServer` as a definition: nothing of the SDK is needed, or imported, before a connection opens."""

import subprocess
import sys
from typing import Any

import pytest
from kit.agents import script_agent

from agentloop import RunContext, Runner, ToolSource, UserError, UserTypeError
from agentloop.mcp import MCPServer
from agentloop.testing import say


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either command or url is needed"),
        ({"command": ["x"], "url": "http://x.test"}, "either command or url is needed"),
        ({"command": "x"}, r"MCPServer\.command: a program and its arguments are needed"),
        ({"command": []}, r"MCPServer\.command"),
        ({"url": ""}, r"MCPServer\.url"),
        ({"url": "http://x.test", "headers": 3}, r"MCPServer\.headers"),
        ({"url": "http://x.test", "timeout": -1}, "timeout"),
        ({"url": "http://x.test", "max_message_bytes": 0}, "max_message_bytes"),
        ({"url": "http://x.test", "filter": 3}, "filter"),
        ({"url": "http://x.test", "options": 3}, "options"),
    ],
)
def test_wrong_field_is_named(options: dict[str, Any], message: str) -> None:
    """At construction."""
    with pytest.raises(UserError, match=message):
        MCPServer(name="x", **options)


def test_secrets_are_in_no_repr() -> None:
    """Headers and variables of the environment hold keys."""
    shown = repr(MCPServer(name="x", url="http://x.test", headers={"authorization": "key-1"}))
    shown += repr(MCPServer(name="x", command=["x"], env={"TOKEN": "key-1"}))
    assert "key-1" not in shown


def test_server_is_a_source() -> None:
    """Of tools."""
    assert isinstance(MCPServer(name="x", command=["x"]), ToolSource)


def test_package_imports_nothing_of_the_sdk() -> None:
    """A fresh interpreter makes a server without it."""
    program = (
        "import sys, agentloop.mcp as m; m.MCPServer(name='x', command=['x']); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('mcp', 'httpx2', 'jsonschema')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with the sentence that says what to install."""
    monkeypatch.setitem(sys.modules, "mcp.client", None)
    agent = script_agent("a", say("done"), toolsets=[MCPServer(name="x", command=["x"])])
    with pytest.raises(UserError, match=r"needs the extra `mcp`: in a clone of agentloop, pip install '\.\[mcp\]'"):
        await Runner.run(agent, "go")
    with pytest.raises(UserError, match="extra `mcp`"):
        async with MCPServer(name="x", command=["x"]):
            pass


async def test_outside_of_a_run_it_has_to_be_entered() -> None:
    """There is nobody to hold the connection."""
    with pytest.raises(UserError, match="shared_resource works only inside a run"):
        await MCPServer(name="x", command=["x"]).tools(RunContext(context=None), None)


def test_error_types_are_public() -> None:
    """Applications catch them in their error functions."""
    import agentloop.mcp

    assert agentloop.mcp.__all__ == ["MCPConnectionError", "MCPServer", "MCPToolError", "build_server", "serve"]
    assert not issubclass(agentloop.mcp.MCPToolError, UserTypeError)
