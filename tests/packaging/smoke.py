"""What must work right after the installation, with an extra or without one: `python smoke.py [EXTRA]`.

Run it by the interpreter of an environment that holds nothing else, from a folder that isn't the repository. It uses
the installed package alone: it imports what the extra is for, and works with it once, without a network.
"""

import asyncio
import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio

import agentloop
from agentloop import Agent, Runner, tool
from agentloop._common.extras import describe_foreign
from agentloop.testing import ScriptedModel, call, say

ADAPTERS = {"trio": "trio", "cli": "click", "mcp": "mcp", "postgres": "psycopg", "temporal": "temporalio"}
"""By extra: a module that only this extra brings."""
NAMES_ITS_EXTRA = "needs the extra"


@tool
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


def require(held: bool, otherwise: str) -> None:
    """Raise an error that says *otherwise* unless *held*."""
    if not held:
        raise AssertionError(otherwise)


def agent() -> Agent[Any, Any]:
    """Return an agent whose model calls a tool and then answers."""
    return Agent("counter", model=ScriptedModel([call("double", {"n": 21}), say("It is 42.")]), tools=[double])


def check_run(backend: str) -> None:
    """Run the agent once."""
    result = Runner.run_sync(agent(), "Double 21.", backend=backend)
    assert result.final_output == "It is 42."
    assert [settled.outcome.value for settled in result.calls] == [42]


def check_name() -> None:
    """The distribution has a name of its own, the only one that brings `agentloop`; the version is in the source."""
    assert metadata.version("agentloop-anyio") == agentloop.__version__
    assert set(metadata.packages_distributions()["agentloop"]) == {"agentloop-anyio"}
    assert describe_foreign() is None
    plugins = [point for point in metadata.entry_points(group="pytest11") if point.name == "agentloop"]
    assert [point.dist.name for point in plugins if point.dist] == ["agentloop-anyio"]
    assert plugins[0].value == "agentloop.testing.plugin"


def check_nothing() -> None:
    """Without an extra the package runs on asyncio, and each public module is there or names its extra."""
    present = [name for name in ADAPTERS.values() if find_spec(name) is not None]
    assert not present, f"the environment isn't empty: {present}"
    check_run("asyncio")
    assert asyncio.run(Runner.run(agent(), "Double 21.")).final_output == "It is 42."
    for name in sorted(module.name for module in pkgutil.iter_modules(agentloop.__path__, "agentloop.")):
        if "._" in name:
            continue
        try:
            found = importlib.import_module(name)
        except ImportError as missing:
            require(NAMES_ITS_EXTRA in str(missing), f"{name} doesn't say what to install: {missing}")
        else:
            for public in getattr(found, "__all__", ()):
                getattr(found, public)
    command = subprocess.run([Path(sys.executable).with_name("agentloop")], capture_output=True, text=True, check=False)
    assert command.returncode != 0
    assert "agentloop-anyio[cli]" in command.stderr, command.stderr


def check_trio() -> None:
    """A run on trio."""
    check_run("trio")


def check_cli() -> None:
    """The command writes a first agent, and runs one."""
    program = [str(Path(sys.executable).with_name("agentloop"))]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*program, "init", folder], check=True, capture_output=True)
        assert {path.name for path in Path(folder).iterdir()} == {"agent.py", "test_agent.py"}
        text = "from agentloop import Agent\nfrom agentloop.testing import ScriptedModel, say\n"
        text += "agent = Agent('a', model=ScriptedModel([say('Here.')]))\n"
        Path(folder, "scripted.py").write_text(text, encoding="utf-8")
        command = [*program, "run", "scripted.py:agent", "Where?"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        assert done.stdout == "Here.\n", done.stdout


def check_mcp() -> None:
    """An agent is served, and another one calls it as a tool."""
    from agentloop.mcp import MCPServer

    text = "import anyio\nfrom agentloop import Agent\nfrom agentloop.mcp import serve\n"
    text += "from agentloop.testing import ScriptedModel, say\n"
    text += "anyio.run(serve, Agent('poet', model=ScriptedModel([say('Rain.')])))\n"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "server.py").write_text(text, encoding="utf-8")
        server = MCPServer(name="poet", command=[sys.executable, str(Path(folder, "server.py"))], connect_timeout=60)
        model = ScriptedModel([call("poet", {"input": "Rain?"}), say("Printed.")])
        result = Runner.run_sync(Agent("editor", model=model, toolsets=[server]), "A poem.")
    assert [settled.outcome.output for settled in result.calls] == ["Rain."], result.calls


def check_realtime() -> None:
    """A run over one WebSocket connection to a server of this process."""
    from websockets.sync.server import serve

    from agentloop.models import RealtimeModel

    def talk(connection: Any) -> None:
        connection.send(json.dumps({"type": "session.created", "session": {"id": "s"}}))
        for message in connection:
            if json.loads(message)["type"] == "response.create":
                part = {"type": "output_text", "text": "Here."}
                item = {"id": "i", "type": "message", "role": "assistant", "content": [part]}
                connection.send(json.dumps({"type": "response.created", "response": {"id": "r"}}))
                done = {"id": "r", "status": "completed", "output": [item]}
                connection.send(json.dumps({"type": "response.done", "response": done}))

    async def main(address: str) -> None:
        async with RealtimeModel("any", base_url=address, api_key="key") as model:
            result = await Runner.run(Agent("guide", model=model), "Where?")
        assert result.final_output == "Here.", result.final_output

    with serve(talk, "127.0.0.1", 0) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            anyio.run(main, f"http://127.0.0.1:{server.socket.getsockname()[1]}/v1")
        finally:
            server.shutdown()
            serving.join()


def check_postgres() -> None:
    """The driver is there with its own library; without a server the store says so."""
    from agentloop.exceptions import JournalError
    from agentloop.postgres import PostgresStore

    async def main() -> None:
        store = PostgresStore("host=127.0.0.1 port=1 dbname=none", timeout=1.0)
        try:
            async with store, store.lease("run"):
                raise AssertionError("there is a server at port 1")
        except JournalError as error:
            require("127.0.0.1" in str(error), str(error))

    anyio.run(main)


def check_temporal() -> None:
    """The plugin is made of an agent."""
    from agentloop.temporal import AgentPlugin

    AgentPlugin({"counter": agent()})


def check_oci() -> None:
    """A request is signed by the key of a profile; the server is of this process."""
    import httpx
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from agentloop.models import OCIModel

    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        message = {"role": "assistant", "content": "Here."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "x", "object": "chat.completion", "choices": [choice]})

    async def main(profile: Path) -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            model = OCIModel(
                "any", region="us-chicago-1", interface="chat", config_file=str(profile), http_client=client
            )
            assert (await Runner.run(Agent("guide", model=model), "Where?")).final_output == "Here."
        assert asked[0].headers["authorization"].startswith("Signature "), asked[0].headers

    with tempfile.TemporaryDirectory() as folder:
        made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        key, profile = Path(folder, "key.pem"), Path(folder, "config")
        key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        lines = ["[DEFAULT]", "tenancy=t", "user=u", "fingerprint=f", f"key_file={key}"]
        profile.write_text("\n".join(lines), encoding="utf-8")
        anyio.run(main, profile)


def check_ag_ui() -> None:
    """One request in the protocol is answered by a run."""
    import httpx

    from agentloop.asgi import AgentApp

    async def main() -> None:
        async with AgentApp(agent(), ag_ui=True) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                message = {"id": "m", "role": "user", "content": "Double 21."}
                answer = await client.post("/ag-ui", json={"threadId": "t", "runId": "r", "messages": [message]})
        assert answer.status_code == 200, answer.text
        assert "RUN_FINISHED" in answer.text, answer.text
        assert "42" in answer.text, answer.text

    anyio.run(main)


def check_otel() -> None:
    """An instrument works with the API alone, where no provider is set up."""
    from agentloop import RunConfig
    from agentloop.otel import OTelInstrument

    config = RunConfig(instruments=[OTelInstrument()])
    assert Runner.run_sync(agent(), "Double 21.", run_config=config).final_output == "It is 42."


def check_pydantic() -> None:
    """A typed answer as a pydantic model."""
    import pydantic

    class Weather(pydantic.BaseModel):
        city: str

    model = ScriptedModel([say('{"city": "Oslo"}')])
    assert Runner.run_sync(Agent("reporter", model=model, output_type=Weather), "Where?").final_output.city == "Oslo"


def check_prices() -> None:
    """The price of a request to a well-known model."""
    from agentloop import RequestUsage
    from agentloop.models import prices

    require(prices()("gpt-5-nano", RequestUsage(input_tokens=1_000)) > 0, "no price")


def check_local() -> None:
    """The engine is there; without weights the model says how to get them."""
    from agentloop import UserError

    importlib.import_module("xllamacpp")
    try:
        Runner.run_sync(Agent("helper", model="local:"), "Hello.")
    except UserError as error:
        require("agentloop model install" in str(error), str(error))
    else:
        raise AssertionError("there are weights in an environment without them")


CHECKS: dict[str, Callable[[], None]] = {
    "": check_nothing,
    "trio": check_trio,
    "ag-ui": check_ag_ui,
    "cli": check_cli,
    "local": check_local,
    "mcp": check_mcp,
    "oci": check_oci,
    "otel": check_otel,
    "postgres": check_postgres,
    "prices": check_prices,
    "pydantic": check_pydantic,
    "realtime": check_realtime,
    "temporal": check_temporal,
}

if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    assert Path(agentloop.__file__).is_relative_to(sys.prefix), f"not the installed package: {agentloop.__file__}"
    check_name()
    CHECKS[chosen]()
    print("works:", chosen or "no extra")
