"""`MCPServer` as a definition: nothing of the SDK is needed, or imported, before a connection opens."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.agents import script_agent

from agentloop import RunContext, Runner, ToolSource, UserError
from agentloop._common.naming import usable_names
from agentloop.exceptions import UserTypeError
from agentloop.items import File, Text
from agentloop.mcp import MCPServer
from agentloop.mcp._contents import read_contents
from agentloop.testing import say


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected command or url"),
        ({"command": ["x"], "url": "http://x.test"}, "expected command or url"),
        ({"command": "x"}, r"MCPServer\.command: expected a program and its arguments"),
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


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://x.test/mcp", "headers": {"authorization": "key-1"}},
        {"command": ["x"], "env": {"TOKEN": "key-1"}},
        {"url": "http://x.test:80/mcp?key=key-1"},
        {"url": "http://x.test/mcp#key-1"},
        {"url": "http://me:key-1@x.test/mcp"},
        {"url": "http://key-1@x.test"},
        {"url": "//key-1@x.test/a?b"},
        {"command": ["x", "--token", "key-1"]},
        {"command": ("x", "--token=key-1")},
    ],
)
def test_secrets_are_in_no_repr(options: dict[str, Any]) -> None:
    """Headers, variables, queries, users and arguments of a command hold keys; the rest is shown."""
    shown = repr(MCPServer(name="probe", **options))
    assert "key-1" not in shown
    assert "probe" in shown
    assert "x.test" in shown or "'x'" in shown


@given(st.lists(st.text(max_size=90) | st.sampled_from(["a.b", "a/b", "a_b", "a_b_2", "x" * 65]), max_size=8))
@example(["a.b", "a/b", "a_b", "a_b_2", "x" * 65, "x" * 64 + "y", "x" * 64])
def test_names_for_models_are_usable_and_differ(names: list[str]) -> None:
    """Whatever a server calls its tools; a name that is usable stays as it is."""
    found = usable_names(names)
    for name, made in zip(names, found, strict=True):
        assert (made is None) == (name == "")
        if made is not None:
            assert re.fullmatch("[A-Za-z0-9_-]{1,64}", made)
        if made is not None and re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
            assert made == name
    for made in set(filter(None, found)):
        assert len({name for name, other in zip(names, found, strict=True) if other == made}) == 1


@pytest.mark.parametrize(
    ("media_type", "blob", "part"),
    [
        ("text/plain", "bm9uY2U=", Text("nonce")),
        ("text/csv; charset=utf-8", "w6k=", Text("é")),
        ("text/plain", "not base64!", Text("not base64!")),
        ("application/x-bin", "bm9uY2U=", File(data="bm9uY2U=", media_type="application/x-bin", filename="a.txt")),
        (None, "bm9uY2U=", File(data="bm9uY2U=", media_type=None, filename="a.txt")),
    ],
)
def test_text_in_a_blob_is_text(media_type: str | None, blob: str, part: Text | File) -> None:
    """Some models take no files, and would be shown nothing of it."""
    resource = SimpleNamespace(uri="file:///a.txt", blob=blob, mime_type=media_type)
    content = [SimpleNamespace(type="resource", resource=resource)]
    found = read_contents(SimpleNamespace(content=content, structured_content=None))
    assert found == (part.text if isinstance(part, Text) else (part,))


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
    with pytest.raises(UserError, match=r"needs the extra `mcp`: pip install 'agentloop-anyio\[mcp\]'"):
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

    assert {"MCPConnectionError", "MCPToolError"} <= set(agentloop.mcp.__all__)
    assert not issubclass(agentloop.mcp.MCPToolError, UserTypeError)
