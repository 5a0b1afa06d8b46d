"""Resources and prompts of real servers, as functions and as tools."""

import json
from typing import Any

import pytest
from kit.agents import script_agent
from kit.results import read_outputs, read_requests, read_statuses
from mcp_servers.processes import MARKS, Servers

from agentloop import Runner, UserError
from agentloop.exceptions import UserTypeError
from agentloop.items import AssistantMessage, File, Text, UserMessage
from agentloop.mcp import MCPPrompt, MCPResource, MCPServer, MCPToolError
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = MARKS


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_application_reads_resources_and_prompts(servers: Servers, mode: str) -> None:
    """Lists with templates, texts and files; messages of a prompt are the input of a run."""
    server = servers.make("honest_server.py", mode=mode)
    async with server:
        listed = await server.list_resources()
        assert await server.read_resource("note://today") == (Text("Buy milk."),)
        (logo,) = await server.read_resource("note://logo")
        assert await server.read_resource("note://of/monday") == (Text("Nothing on monday."),)
        assert await server.list_prompts() == (
            MCPPrompt(name="tidy", description="Tidy a folder.", required=("folder",), optional=("hard",)),
        )
        messages = await server.get_prompt("tidy", {"folder": "home"})
        with pytest.raises(MCPToolError):
            await server.read_resource("note://nowhere/at/all")
        agent = script_agent("a", say("done"))
        await Runner.run(agent, messages)
    assert (
        MCPResource(uri="note://today", name="today", description="What is to do today.", media_type="text/plain")
        in listed
    )
    assert listed[-1].uri == "note://of/{day}"
    assert [one.is_template for one in listed] == [False, False, True]
    assert isinstance(logo, File)
    assert (logo.media_type, logo.filename) == ("image/png", "logo")
    assert messages == (UserMessage("Tidy home, hard: no."), AssistantMessage("I begin."))
    assert read_requests(agent)[0].items[: len(messages)] == messages


async def test_models_read_resources_and_prompts(servers: Servers) -> None:
    """Four tools that the application asked for, under its prefix; they only read."""
    names = {"list_resources", "read_resource", "list_prompts", "get_prompt"}
    server = servers.make("honest_server.py", prefix="h_", resources=True, prompts=True, filter=names)
    agent = script_agent(
        "a",
        [
            call("h_list_resources", call_id="resources"),
            call("h_read_resource", {"uri": "note://today"}, call_id="today"),
            call("h_list_prompts", call_id="prompts"),
            call("h_get_prompt", {"name": "tidy", "arguments": {"folder": "home"}}, call_id="tidy"),
            call("h_get_prompt", {"name": "nothing"}, call_id="unknown"),
        ],
        say("done"),
        toolsets=[server],
    )
    result = await Runner.run(agent, "go")
    assert read_statuses(result) == [*["succeeded"] * 4, "failed"]
    outputs = read_outputs(result.new_items)
    assert [json.loads(line)["uri"] for line in outputs["resources"].splitlines()][-1] == "note://of/{day}"
    assert outputs["today"] == (Text("Buy milk."),)
    assert json.loads(outputs["prompts"])["required"] == ["folder"]
    assert {tool.name for tool in read_requests(agent)[0].tools} == {f"h_{name}" for name in names}
    assert outputs["tidy"] == "user: Tidy home, hard: no.\n\nassistant: I begin."


async def test_server_without_resources_has_none(servers: Servers) -> None:
    """A server that doesn't know the request lists none; its own tools keep their names."""
    server = servers.make(resources=True, prompts=True, filter=["list_resources", "list_prompts"])
    async with server:
        assert await server.list_resources() == ()
        assert await server.list_prompts() == ()
        calls = [call("list_resources"), call("list_prompts")]
        result = await Runner.run(script_agent("a", calls, say("done"), toolsets=[server]), "go")
    assert list(read_outputs(result.new_items).values()) == ["There are none."] * 2
    with pytest.raises(UserError, match=r"MCPServer 'probe': get_prompt works only inside `async with server:`"):
        await server.get_prompt("tidy")


@pytest.mark.parametrize(
    ("function", "given", "place"),
    [
        ("read_resource", (3,), "uri"),
        ("get_prompt", (None,), "name"),
        ("get_prompt", ("tidy", "folder"), "arguments"),
        ("get_prompt", ("tidy", []), "arguments"),
        ("get_prompt", ("tidy", {"folder": 3}), "arguments"),
        ("get_prompt", ("tidy", {3: "home"}), "arguments"),
    ],
)
async def test_wrong_types_are_named_before_anything_is_asked(
    function: str, given: tuple[Any, ...], place: str
) -> None:
    """The server doesn't see them, and needn't be there."""
    server = MCPServer(name="probe", command=["no-such-program"])
    with pytest.raises(UserTypeError, match=f"^{place}: expected "):
        await getattr(server, function)(*given)
