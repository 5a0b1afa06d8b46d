"""A server without the SDK, so that it starts at once and may break every rule: by stdio or HTTP, a program of its own.

It speaks the era with a handshake. The name of a tool says what it does.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Send = Callable[[dict[str, Any]], None]

ANY = {"type": "object"}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS: list[dict[str, Any]] = [
    {"name": name, "inputSchema": ANY}
    for name in (
        *("echo", "wait", "die", "never", "huge", "nonsense", "twice", "flood", "garbage", "noise", "refuse", "child"),
        *("with.dots/and slashes", "", "x" * 200),
    )
]
TOOLS += [
    {"name": "structured", "inputSchema": ANY, "outputSchema": NUMBER},
    {"name": "strict", "inputSchema": {**NUMBER, "additionalProperties": False}},
    {"name": "remote_reference", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://x.test/s"}}}},
    {"name": "no_schema", "inputSchema": {"type": "object", "properties": {"a": {"type": 5}}}},
    {"name": "as_task", "inputSchema": ANY, "execution": {"taskSupport": "required"}},
    {"name": "maybe_task", "inputSchema": ANY, "execution": {"taskSupport": "optional"}},
    {"name": "again", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
    {"name": "same", "inputSchema": ANY, "annotations": {"idempotentHint": True}},
    {"name": "purge", "inputSchema": ANY, "annotations": {"destructiveHint": True}},
    {"name": "change", "inputSchema": ANY},
    {"name": "fail", "inputSchema": ANY},
    {"name": "client", "inputSchema": ANY},
]
CHANGING: list[dict[str, Any]] = [
    {"name": "changing", "description": "Takes a.", "inputSchema": {**ANY, "required": ["a"]}},
    {"name": "changing", "description": "Takes b.", "inputSchema": {**ANY, "required": ["b"]}},
]
"""What the tool `changing` is now, and next; a call of `change` takes the first away."""
CLIENT: dict[str, Any] = {}
"""What the client says that it is."""
write_lock = threading.Lock()
half_written = threading.Event()


def text(words: str) -> dict[str, Any]:
    """Return a result that is this text."""
    return {"content": [{"type": "text", "text": words}]}


def call(request: dict[str, Any], send: Send, raw: Callable[[bytes], None]) -> None:
    """Do what a tool's name says, and send the answer unless that isn't one."""
    name, given = request["params"]["name"], request["params"].get("arguments") or {}
    token = request["params"].get("_meta", {}).get("progressToken")

    def report(step: int) -> None:
        send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": step, "total": 10, "message": f"step {step}"},
            }
        )

    result = text("ok")
    match name:
        case "echo" | "again" | "same":
            time.sleep(given.get("seconds", 0))
            result = text(json.dumps(given))
            if (flag := given.get("dies_without")) and not os.path.exists(flag):
                open(flag, "w").close()
                os._exit(3)
        case "wait":
            for step in range(10):
                report(step)
                time.sleep(given["seconds"] / 10)
        case "die":
            if given.get("how") == "half":
                raw(b'{"jsonrpc": "2.0", "id": ')
            os._exit(3)
        case "never":
            return
        case "huge":
            result = text("x" * given["bytes"])
        case "nonsense":
            result = {"content": 5}
        case "twice":
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": text("first")}
            send(answer)
            send({**answer, "result": text("second")})
            send({**answer, "id": 12345})
            return
        case "flood":
            while True:
                report(1)
        case "garbage":
            for _ in range(given["lines"]):
                raw(b"this is no message\n")
        case "noise":
            sys.stderr.write("y" * 100_000 + "\nlast \x1b[31mwords\n")
            sys.stderr.flush()
        case "refuse":
            error = {"code": -32602, "message": "these arguments are refused"}
            send({"jsonrpc": "2.0", "id": request["id"], "error": error})
            return
        case "child":
            result = text(str(subprocess.Popen(["sleep", "600"], start_new_session=False).pid))
        case "client":
            result = text(json.dumps(CLIENT))
        case "fail":
            picture = {"type": "image", "data": "aW1n", "mimeType": "image/png"}
            result = {"content": [*text(given["says"])["content"], picture, *text("Hint: unlock it.")["content"]]}
            result["isError"] = True
        case "change":
            CHANGING.append(CHANGING.pop(0))
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        case "structured":
            result = {"content": [], "structuredContent": {"n": given.get("n", "no number")}}
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def answer(request: dict[str, Any], send: Send, raw: Callable[[bytes], None]) -> None:
    """Answer one request."""
    match request["method"]:
        case "initialize":
            info = {"name": "raw", "version": "1"}
            CLIENT.update(request["params"]["clientInfo"])
            version = request["params"]["protocolVersion"]
            result: Any = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            count = int(os.environ.get("RAW_TOOLS", "0"))
            result = {"tools": [*TOOLS, CHANGING[0], *({"name": f"t{n}", "inputSchema": ANY} for n in range(count))]}
            if os.environ.get("RAW_NO_OBJECT"):
                result["tools"].append({"name": "no_object", "inputSchema": {"type": "string"}})
            if os.environ.get("RAW_PAGES"):
                result["nextCursor"] = "again"
        case "tools/call":
            call(request, send, raw)
            return
        case _:
            error = {"code": -32601, "message": "no such method"}
            send({"jsonrpc": "2.0", "id": request["id"], "error": error})
            return
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def serve_stdio() -> None:
    """Serve lines, each request in a thread."""

    def raw(data: bytes) -> None:
        with write_lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def send(message: dict[str, Any]) -> None:
        raw(json.dumps(message).encode() + b"\n")

    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            threading.Thread(target=answer, args=(request, send, raw), daemon=True).start()
    if os.environ.get("RAW_STAYS"):
        time.sleep(600)


class Handler(BaseHTTPRequestHandler):
    """Answers each request by a stream of events."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a message."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session = self.headers.get("mcp-session-id")
        if request["method"] not in ("initialize", "server/discover") and session != SESSION:
            self.refuse()
            return
        if "id" not in request:
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        name = request.get("params", {}).get("name")
        self.send_response(200)
        self.send_header("mcp-session-id", SESSION)
        self.send_header("connection", "close")
        self.close_connection = True
        plain = name == "huge"
        self.send_header("content-type", "application/json" if plain else "text/event-stream")
        if name == "huge" and request["params"]["arguments"].get("packed"):
            self.send_header("content-encoding", "gzip")
        self.end_headers()

        def raw(data: bytes) -> None:
            self.wfile.write(b"data: " + data)
            self.wfile.flush()

        def send(message: dict[str, Any]) -> None:
            data = json.dumps(message).encode()
            if plain:
                self.wfile.write(data)
            else:
                raw(data + b"\n\n")

        try:
            answer(request, send, raw)
            if name == "never":
                time.sleep(600)
        except OSError:
            pass

    def refuse(self) -> None:
        """Say that the session is unknown, in the words of one server or another."""
        status, _, body = os.environ.get("RAW_REFUSAL", "404 ").partition(" ")
        self.send_response(int(status))
        self.send_header("content-type", "application/json" if body else "text/plain")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        """Refuse a stream for what nobody asked for."""
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_DELETE(self) -> None:
        """End the session, or say nothing."""
        if os.environ.get("RAW_MUTE"):
            time.sleep(600)
        if self.headers["mcp-session-id"] == SESSION:
            self.do_GET()
        else:
            self.refuse()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


SESSION = f"session-{os.getpid()}"

if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        serve_stdio()
    else:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
