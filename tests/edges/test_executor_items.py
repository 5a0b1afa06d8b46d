"""The Responses interface's items for executors: shown tools, calls that come, outputs that go back."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from edges.responses_fixture import make_response, make_stream

from agentloop import Agent, HostedTool, ModelSettings, Runner, UserError
from agentloop.executors import (
    CommandResult,
    Display,
    EditOperation,
    EditResult,
    FileChange,
    ShellRequest,
    ShellResult,
    computer_tool,
    editor_tool,
    shell_tool,
)
from agentloop.items import Caller, HostedToolCall, Image, Item, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.models._chat import request as chat_request
from agentloop.models._codec import encode_json
from agentloop.models._messages import request as messages_request
from agentloop.models._messages.answer import MessagesDecoder
from agentloop.models._messages.executors import BASH, COMPUTER, EDITOR, computer_type
from agentloop.models._realtime import items as realtime_items
from agentloop.models._responses.answer import ResponsesDecoder
from agentloop.models._responses.request import encode
from agentloop.models.anthropic import AnthropicModel
from agentloop.testing import ScriptedModel, respond, say

pytestmark = pytest.mark.scenario("EX-01")


class Nothing:
    """A shell, an editor and a computer that do nothing."""

    display = Display(width=640, height=480, environment="linux")

    async def run(self, request: ShellRequest) -> ShellResult:
        """Run nothing."""
        results = [
            CommandResult(command="a", exit_code=0, stdout="out", stderr="err", left_running=("7 (x)",)),
            CommandResult(command="b", timed_out=True),
        ]
        return ShellResult(results=tuple(results))

    async def apply(self, operations: Sequence[EditOperation]) -> EditResult:
        """Change nothing."""
        return EditResult(changes=(FileChange("a", "updated"),))

    async def read(self, path: str) -> str:
        """Read nothing."""
        return ""

    async def perform(self, action: Any) -> None:
        """Do nothing."""

    async def screenshot(self) -> bytes:
        """Show nothing."""
        return b"PNG"


TOOLS = [
    shell_tool(Nothing(), name="sh", needs_approval=False),
    editor_tool(Nothing(), needs_approval=False),
    computer_tool(Nothing(), needs_approval=False),
]
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": 4096},
    "environment": {"type": "local"},
}
LOCAL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_2",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls", "-l"], "env": {"A": "1"}, "working_directory": "/x"},
}
PATCH = {
    "type": "apply_patch_call",
    "id": "apc_1",
    "call_id": "call_3",
    "status": "completed",
    "operation": {"type": "update_file", "path": "a", "diff": "@@\n-x\n+y"},
    "caller": {"type": "program", "caller_id": "prog_1"},
}
CLICKS = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_4",
    "status": "completed",
    "pending_safety_checks": [{"id": "sc_1", "code": "malicious", "message": "Look at it."}],
    "actions": [{"type": "click", "button": "left", "x": 1, "y": 2, "keys": None}],
}
CLICK = {
    "type": "computer_call",
    "id": "cu_2",
    "call_id": "call_5",
    "status": "completed",
    "pending_safety_checks": [],
    "action": {"type": "screenshot"},
}
CALLS = [SHELL, LOCAL, PATCH, CLICKS, CLICK]


def request_of(tools: Sequence[Any] = TOOLS, items: Sequence[Item] = (), **fields: Any) -> ModelRequest:
    """Return a request that shows *tools*."""
    return ModelRequest(system=None, items=items or (UserMessage("Hi"),), tools=tools, **fields)


def read(output: Sequence[Any], tools: Sequence[Any] = TOOLS) -> tuple[Item, ...]:
    """Return the items of an answer, whole and streamed alike."""
    decoder = ResponsesDecoder(request_of(tools))
    decoder.feed_answer(make_response(output))
    whole = decoder.finish()[-1].items  # type: ignore[union-attr]
    streamed = ResponsesDecoder(request_of(tools))
    for event in make_stream(output):
        streamed.feed(json.dumps(event))
    assert streamed.finish()[-1].items == whole  # type: ignore[union-attr]
    return whole  # type: ignore[no-any-return]


def test_the_provider_s_own_tools_are_shown() -> None:
    """Each in the form that the model knows; with `native=False`, and by other interfaces, functions."""
    assert encode(request_of(), "gpt-x")["tools"] == [
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"},
        {"type": "computer"},
    ]
    assert encode(request_of(), "codex-mini-latest")["tools"][0] == {"type": "local_shell"}
    assert encode(request_of(), "computer-use-preview")["tools"][2] == {
        "type": "computer_use_preview",
        "display_width": 640,
        "display_height": 480,
        "environment": "linux",
    }
    program = [shell_tool(Nothing(), allowed_callers=["programmatic"])]
    assert encode(request_of(program), "gpt-x")["tools"][0]["allowed_callers"] == ["programmatic"]
    functions = [shell_tool(Nothing(), native=False), editor_tool(Nothing(), native=False)]
    assert [tool["type"] for tool in encode(request_of(functions), "gpt-x")["tools"]] == ["function"] * 2
    chat = chat_request.encode(request_of(), "m")["tools"]
    assert [(tool["type"], tool["function"]["name"]) for tool in chat] == [
        ("function", "sh"),
        ("function", "apply_patch"),
        ("function", "computer"),
    ]


def test_one_tool_of_each_kind() -> None:
    """The provider's tool has no name by which two could be told apart."""
    two = [shell_tool(Nothing(), name="a"), shell_tool(Nothing(), name="b")]
    with pytest.raises(UserError, match=r"'a' and 'b' are both of the kind 'shell'.*native=False"):
        encode(request_of(two), "gpt-x")
    encode(request_of([two[0], shell_tool(Nothing(), name="b", native=False)]), "gpt-x")


@pytest.mark.parametrize(("name", "kind"), [("sh", "shell"), ("apply_patch", "apply_patch"), ("computer", "computer")])
def test_the_tool_choice_names_the_provider_s_tool(name: str, kind: str) -> None:
    """By its type."""
    request = request_of(settings=ModelSettings(tool_choice=name))
    assert encode(request, "gpt-x")["tool_choice"] == {"type": kind}


def test_items_become_ordinary_calls_and_go_back_as_they_came() -> None:
    """The arguments are the item's content; the item is built from them again."""
    calls = read(CALLS)
    assert [(one.name, one.kind, json.loads(one.arguments)) for one in calls if isinstance(one, ToolCall)] == [
        ("sh", "shell", SHELL["action"]),
        ("sh", "shell", {name: value for name, value in LOCAL["action"].items() if name != "type"}),  # type: ignore[attr-defined]
        ("apply_patch", "apply_patch", {"operation": PATCH["operation"]}),
        ("computer", "computer", {name: CLICKS[name] for name in ("actions", "pending_safety_checks")}),
        ("computer", "computer", {"action": CLICK["action"]}),
    ]
    assert calls[2].caller == Caller("program", "prog_1")  # type: ignore[union-attr]
    assert write_items(calls) == CALLS


def test_without_a_tool_they_are_the_provider_s_own() -> None:
    """A shell in the provider's container is a hosted tool: its calls are observed."""
    hosted = [HostedToolCall("shell_call", {}, "x")]
    found = read([SHELL, PATCH], [])
    assert [type(one) for one in found] == [type(hosted[0])] * 2
    assert write_items(found) == [SHELL, PATCH]
    request = ModelRequest(
        system=None,
        items=(UserMessage("Hi"),),
        hosted=[HostedTool("shell", {"environment": {"type": "container_auto"}})],
    )
    assert encode(request, "m")["tools"] == [{"type": "shell", "environment": {"type": "container_auto"}}]


def write_items(items: Sequence[Item]) -> list[Any]:
    """Return the JSON of *items* in a request."""
    found: list[Any] = json.loads(encode_json(encode(request_of(items=items), "m")))["input"]
    return found


def write_outputs(outputs: Sequence[ToolOutput]) -> list[Any]:
    """Return the JSON of outputs of the calls above."""
    return write_items([*read(CALLS), *outputs])[len(CALLS) :]


async def test_outputs_go_back_as_the_provider_s_items() -> None:
    """With the limits, the callers and the safety checks that they have to repeat."""
    model = ScriptedModel([respond(*read(CALLS)), say("done")])
    result = await Runner.run(Agent("a", model=model, tools=TOOLS), "go")
    outputs = [item for item in result.new_items if isinstance(item, ToolOutput)]
    chunks = [
        {"stdout": "out", "stderr": "err\nstill running: 7 (x)", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
    ]
    picture = {"type": "computer_screenshot", "image_url": "data:image/png;base64,UE5H"}
    assert write_outputs(outputs) == [
        {"type": "shell_call_output", "call_id": "call_1", "output": chunks, "max_output_length": 4096},
        {"type": "local_shell_call_output", "id": "call_2", "output": outputs[1].output},
        {
            "type": "apply_patch_call_output",
            "call_id": "call_3",
            "status": "completed",
            "output": '{"changes": [{"path": "a", "change": "updated"}]}',
            "caller": PATCH["caller"],
        },
        {
            "type": "computer_call_output",
            "call_id": "call_4",
            "output": picture,
            "acknowledged_safety_checks": CLICKS["pending_safety_checks"],
        },
        {"type": "computer_call_output", "call_id": "call_5", "output": picture},
    ]


def test_outputs_that_are_no_results_have_a_form() -> None:
    """A rejection, an error, and an output of another kind: the model reads why, in the item that is needed."""
    [shell] = write_outputs([ToolOutput("call_1", "not now", kind="shell", is_error=True)])
    assert shell["output"] == [{"stdout": "", "stderr": "not now", "outcome": {"type": "exit", "exit_code": 1}}]
    for odd in ("[]", '{"results": 5}', '{"results": [5]}', "5", "[" * 100_000):
        [shell] = write_outputs([ToolOutput("call_1", odd, kind="shell")])
        assert shell["output"][0]["stderr"] == odd
    [killed] = write_outputs([ToolOutput("call_1", '{"results": [{"command": "x"}]}', kind="shell")])
    assert killed["output"] == [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}]
    [patch] = write_outputs([ToolOutput("call_3", "a: no such file", kind="apply_patch", is_error=True)])
    assert (patch["status"], patch["output"]) == ("failed", "a: no such file")
    computer, reason = write_outputs([ToolOutput("call_4", "not now", kind="computer", is_error=True)])
    assert computer["output"]["image_url"].startswith("data:image/png;base64,")
    assert "acknowledged_safety_checks" not in computer
    assert reason == {"role": "developer", "content": "The computer gave no screenshot: not now"}
    for image, shown in (
        (Image(file_id="f1"), {"file_id": "f1"}),
        (Image(url="https://x.test/a.png"), {"image_url": "https://x.test/a.png"}),
    ):
        [computer] = write_outputs([ToolOutput("call_5", (image,), kind="computer")])
        assert computer["output"] == {"type": "computer_screenshot", **shown}


@pytest.mark.parametrize("kind", ["shell", "apply_patch", "computer"])
@pytest.mark.parametrize(
    "arguments", ["not json", "[1]", "[" * 100_000, '{"command": "view", "path": "a"}', '{"action": "screenshot"}']
)
def test_calls_of_another_content_go_as_functions(arguments: str, kind: Any) -> None:
    """A model of another interface wrote them."""
    call = ToolCall("c1", "x", arguments, kind=kind)
    output = ToolOutput("c1", "no", kind=kind, is_error=True)
    written = write_items([call, output])
    given = json.loads(written[0].pop("arguments"))
    assert given == (json.loads(arguments) if arguments.startswith("{") else {"arguments": given["arguments"]})
    assert written[0] == {"type": "function_call", "call_id": "c1", "name": "x"}
    assert written[1] == {"type": "function_call_output", "call_id": "c1", "output": "no"}


@pytest.mark.parametrize("streamed", [False, True])
def test_the_editor_of_messages(streamed: bool) -> None:
    """The provider's text editor: shown, its calls read, and written back; other executors are functions there."""
    tools = messages_request.encode(request_of(), "m", max_tokens=10)["tools"]
    assert [tool.get("type") for tool in tools] == [None, "text_editor_20250728", None]
    assert tools[1]["name"] == EDITOR
    given = {"command": "str_replace", "path": "a", "old_str": "x", "new_str": "y"}
    block = {"type": "tool_use", "id": "tu_1", "name": EDITOR, "input": given}
    decoder = MessagesDecoder(request_of())
    answer = {"type": "message", "id": "m", "role": "assistant", "content": [block], "model": "m"}
    if streamed:
        decoder.feed(json.dumps({"type": "message_start", "message": {**answer, "content": [], "usage": {}}}))
        begun = {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}
        decoder.feed(json.dumps(begun))
        delta = {"type": "input_json_delta", "partial_json": json.dumps(given)}
        decoder.feed(json.dumps({"type": "content_block_delta", "index": 0, "delta": delta}))
        decoder.feed(json.dumps({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}))
        decoder.feed(json.dumps({"type": "message_stop"}))
    else:
        decoder.feed_answer({**answer, "stop_reason": "tool_use", "usage": {}})
    [call] = decoder.finish()[-1].items  # type: ignore[union-attr]
    assert call == ToolCall("tu_1", "apply_patch", json.dumps(given), kind="apply_patch")
    foreign = ToolCall("c2", "apply_patch", '{"operation": {"type": "delete_file", "path": "a"}}', kind="apply_patch")
    items = [UserMessage("Hi"), call, foreign, *(ToolOutput(one, "ok", kind="apply_patch") for one in ("tu_1", "c2"))]
    request = request_of(items=items, settings=ModelSettings(tool_choice="apply_patch"))
    body = json.loads(encode_json(messages_request.encode(request, "m", max_tokens=10)))
    assert body["messages"][1]["content"] == [
        block,
        {"type": "tool_use", "id": "c2", "name": "apply_patch", "input": json.loads(foreign.arguments)},
    ]
    assert body["tool_choice"] == {"type": "tool", "name": EDITOR}
    two = [editor_tool(Nothing(), name="a"), editor_tool(Nothing(), name="b")]
    with pytest.raises(UserError, match="'a' and 'b' are both editors"):
        messages_request.encode(request_of(two, settings=ModelSettings(tool_choice="a")), "m", max_tokens=10)
    own = MessagesDecoder(request_of([]))  # a function of the application may have the name
    own.feed_answer({**answer, "stop_reason": "tool_use", "usage": {}})
    assert own.finish()[-1].items[0].kind == "function"  # type: ignore[union-attr]


def test_a_cut_call_is_no_call() -> None:
    """The limit ended the answer within it."""
    half = SHELL | {"status": "incomplete"}
    decoder = ResponsesDecoder(request_of())
    message = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hm"}]}
    answer = make_response([message, half], "incomplete", incomplete_details={"reason": "max_output_tokens"})
    decoder.feed_answer(answer)
    assert len(decoder.finish()[-1].items) == 1  # type: ignore[union-attr]


def test_other_interfaces_read_the_history_as_functions() -> None:
    """A run that falls back to another provider goes on with the same calls and outputs."""
    items = [UserMessage("Hi"), *read([SHELL, CLICK])]
    items += [
        ToolOutput("call_1", '{"results": []}', kind="shell"),
        ToolOutput("call_5", (Image(data="UE5H", media_type="image/png"),), kind="computer"),
    ]
    request = request_of(items=items)
    chat = json.loads(encode_json(chat_request.encode(request, "m")))["messages"]
    assert chat[1]["tool_calls"][0]["function"]["name"] == "sh"
    assert chat[2] == {"role": "tool", "tool_call_id": "call_1", "content": '{"results": []}'}
    encode_json(messages_request.encode(request, "m", max_tokens=10))
    realtime = [realtime_items.encode_item(item, {}) for item in items[1:4]]
    assert [item["type"] for item in realtime] == ["function_call", "function_call", "function_call_output"]


def test_the_vendor_s_types_fit() -> None:
    """Calls, outputs and tools are of the types of the vendor's own client."""
    responses = pytest.importorskip("openai.types.responses")
    pydantic = pytest.importorskip("pydantic")
    shown = pydantic.TypeAdapter(responses.ToolParam)
    for model in ("gpt-x", "computer-use-preview", "codex-mini-latest"):
        for tool in encode(request_of(), model)["tools"]:
            shown.validate_python(tool)
    item = pydantic.TypeAdapter(responses.ResponseInputItemParam)

    async def run() -> Any:
        model = ScriptedModel([respond(*read(CALLS)), say("done")])
        return await Runner.run(Agent("a", model=model, tools=TOOLS), "go")

    result = anyio.run(run)
    outputs = [item for item in result.new_items if isinstance(item, ToolOutput)]
    for written in write_items([*read(CALLS), *outputs]):
        item.validate_python(written)
    for call in CALLS:
        pydantic.TypeAdapter(responses.ResponseOutputItem).validate_python(call)


# -- bash and computer of Messages

SESSION = shell_tool(Nothing(), name="sh", needs_approval=False, session=True)
COMPUTER_TYPE = "computer_20251124"


def read_blocks(*blocks: Any, tools: Sequence[Any], computer: str | None = COMPUTER_TYPE) -> list[Item]:
    """Return the items of an answer with these blocks."""
    decoder = MessagesDecoder(request_of(tools), computer=computer)
    answer = {"type": "message", "id": "m", "role": "assistant", "content": list(blocks), "model": "m"}
    decoder.feed_answer({**answer, "stop_reason": "tool_use", "usage": {}})
    return list(decoder.finish()[-1].items)  # type: ignore[union-attr]


def use(name: str, given: Any) -> dict[str, Any]:
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": f"tu_{name}", "name": name, "input": given}


def test_a_session_and_a_computer_are_the_provider_s_in_messages() -> None:
    """Shown, called, and chosen by the provider's names; without the beta the computer is a function."""
    tools = [SESSION, TOOLS[2]]
    request = request_of(tools, settings=ModelSettings(tool_choice="sh"))
    body = messages_request.encode(request, "m", max_tokens=10, computer=COMPUTER_TYPE)
    size = {"display_width_px": 640, "display_height_px": 480}
    assert body["tools"] == [
        {"type": "bash_20250124", "name": BASH},
        {"type": COMPUTER_TYPE, "name": COMPUTER, **size},
    ]
    assert body["tool_choice"] == {"type": "tool", "name": BASH}
    plain = messages_request.encode(request_of(tools), "m", max_tokens=10)["tools"]
    assert [(tool.get("type"), tool["name"]) for tool in plain] == [("bash_20250124", BASH), (None, "computer")]
    shell, click = read_blocks(use(BASH, {"command": "ls"}), use(COMPUTER, {"action": "screenshot"}), tools=tools)
    assert shell == ToolCall("tu_bash", "sh", '{"command": "ls"}', kind="shell")
    assert click == ToolCall("tu_computer", "computer", '{"action": "screenshot"}', kind="computer")
    [own] = read_blocks(use(BASH, {}), tools=[])  # a function of the application may have the name
    assert own == ToolCall("tu_bash", "bash", "{}")
    two = [SESSION, shell_tool(Nothing(), session=True)]
    with pytest.raises(UserError, match="'sh' and 'shell' are both shells"):
        messages_request.encode(request_of(two), "m", max_tokens=10)


@pytest.mark.parametrize(
    ("given", "output", "shown"),
    [
        (
            {"command": "ls"},
            {
                "results": [
                    {"command": "ls", "exit_code": 2, "stdout": "a\n", "stderr": "bad\n", "left_running": ["7 (x)"]},
                    {"command": "b", "timed_out": True},
                ]
            },
            "a\nbad\n(exit code 2)\n(still running: 7 (x))\n(timed out)",
        ),
        ({"command": "true"}, {"results": [{"command": "true", "exit_code": 0}]}, "(no output)"),
        ({"restart": True}, {"results": []}, "The shell was restarted."),
        ({"command": "ls"}, "rejected", "rejected"),
        ({"command": "ls"}, [1], "[1]"),
        ({"commands": ["ls"]}, {"results": []}, '{"results": []}'),
    ],
)
def test_outputs_of_a_session_are_text(given: Any, output: Any, shown: str) -> None:
    """As in a terminal. Another interface's call, and what is no result of a shell, stay as they are."""
    call = ToolCall("c1", "sh", json.dumps(given), kind="shell")
    text = output if isinstance(output, str) else json.dumps(output)
    items = [UserMessage("Hi"), call, ToolOutput("c1", text, kind="shell")]
    request = request_of([SESSION], items=items)
    body = json.loads(encode_json(messages_request.encode(request, "m", max_tokens=10)))
    foreign = "commands" in given
    assert body["messages"][1]["content"][0]["name"] == ("sh" if foreign else BASH)
    assert body["messages"][2]["content"][0]["content"] == shown


def test_parts_of_a_session_and_a_screenshot_go_back_as_blocks() -> None:
    """A screenshot is the picture that a computer's call wants; parts that a guardrail gave stay parts."""
    picture = [Image(data="UE5H", media_type="image/png")]
    calls = [
        ToolCall("c1", "sh", '{"command": "x"}', kind="shell"),
        ToolCall("c2", "computer", '{"action": "screenshot"}', kind="computer"),
    ]
    outputs = [ToolOutput(call.call_id, picture, kind=call.kind) for call in calls]
    request = request_of([SESSION, TOOLS[2]], items=[UserMessage("Hi"), *calls, *outputs])
    body = json.loads(encode_json(messages_request.encode(request, "m", max_tokens=10, computer=COMPUTER_TYPE)))
    assert [block["name"] for block in body["messages"][1]["content"]] == [BASH, COMPUTER]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "UE5H"}}
    assert [block["content"] for block in body["messages"][2]["content"]] == [[block]] * 2


async def test_calls_of_the_provider_s_own_tools_run_as_ordinary_calls() -> None:
    """By the model itself: the beta that names the computer's version is the header that turns it on."""
    model = AnthropicModel("m", api_key="k", betas=["computer-use-2025-01-24", "computer-use-2025-11-24", "other"])
    body = model._codec.encode(request_of([TOOLS[2]]), "m")
    assert body["tools"][0]["type"] == COMPUTER_TYPE
    assert computer_type(["other"]) is None
    seen: list[ShellRequest] = []

    class Session(Nothing):
        async def run(self, request: ShellRequest) -> ShellResult:
            seen.append(request)
            return ShellResult(results=())

    tools = [shell_tool(Session(), needs_approval=False, session=True), TOOLS[2]]
    script = [
        respond(
            ToolCall("c1", "shell", '{"restart": true}', kind="shell"),
            ToolCall("c2", "shell", '{"command": "ls"}', kind="shell"),
            ToolCall("c3", "computer", '{"action": "screenshot"}', kind="computer"),
        ),
        say("done"),
    ]
    result = await Runner.run(Agent("a", model=ScriptedModel(script), tools=tools), "go")
    assert [call.outcome.status for call in result.calls] == ["succeeded"] * 3
    assert seen == [ShellRequest(commands=(), restart=True), ShellRequest(commands=("ls",))]
