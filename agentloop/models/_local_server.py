"""The local model's child process: the engine's own HTTP server on the loopback interface.

The parent starts it by file, not by module name, so that no module in the user's current folder can replace it. So it
imports the standard library and the engine only, and knows nothing of agentloop. It writes one line of JSON to
standard output: its URL, or the error. It ends when its standard input ends, so that it can't outlive its parent,
however that one dies.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import urllib.request
from importlib import import_module
from typing import Any, NoReturn

MAX_ANSWER_TOKENS = 1024


def _end_with_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)  # the engine's threads hold nothing that needs a cleanup


def _parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentloop.models._local_server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--n-ctx", type=int, required=True)
    parser.add_argument("--n-parallel", type=int, required=True)
    return parser.parse_args(arguments)


def _start(options: argparse.Namespace) -> Any:
    # By name: the extension module has no types for a checker.
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.name}
    params.n_ctx = options.n_ctx
    params.n_parallel = options.n_parallel
    params.n_predict = MAX_ANSWER_TOKENS  # for a request without a limit: a small model may never stop by itself
    # A second thread only spins: one gives 104 tokens/s, two give 5 to 30 on a busy machine of two cores.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.offline = True
    params.verbosity = -1
    return xllamacpp.Server(params)


def _supports_tools(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{url}/props", timeout=30) as answer:
        return bool(json.load(answer).get("chat_template_caps", {}).get("supports_tools"))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Serve until standard input ends, the parent process has ended, or a signal comes."""
    parent = os.getppid()
    threading.Thread(target=_end_with_input, daemon=True).start()
    options = _parse_options(arguments)
    report = os.dup(1)
    os.dup2(2, 1)  # the engine prints to standard output too, and the parent's pipe is for the report only
    try:
        server = _start(options)
        said = {"url": server.listening_address, "supports_tools": _supports_tools(server.listening_address)}
    except Exception as error:
        os.write(report, json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}).encode() + b"\n")
        os._exit(1)
    os.write(report, json.dumps(said).encode() + b"\n")
    # Another process may have inherited the other end of standard input, so that it never ends. This notices then.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
