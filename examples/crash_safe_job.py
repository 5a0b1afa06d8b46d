"""A job that survives `kill -9`: each step is in a journal before the next one relies on it.

    python examples/crash_safe_job.py

It starts a process that pays three invoices and is killed while it pays the second, and then another process with the
same command. The second one continues where the journal ends: no answer of the model is asked for again, no invoice is
paid twice. The payment in doubt is made once more with the same idempotency key, which the bank knows already.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from agentloop import Agent, Runner, ToolContext, tool
from agentloop.items import ToolOutput
from agentloop.journal import FileJournal
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say

INVOICES = ("i-1", "i-2", "i-3")


class Bank:
    """A bank with a file: a payment whose key it knows is not made again, as real payment services have it."""

    def __init__(self, file: Path, dies_at: str) -> None:
        self.file = file
        self.dies_at = dies_at

    def pay(self, invoice: str, key: str) -> bool:
        """Pay, and return whether it was new. The process dies when the money is gone, but nobody knows it yet."""
        known = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        if key in known:
            return False
        self.file.write_text(known + json.dumps({"invoice": invoice, "key": key}) + "\n", encoding="utf-8")
        if invoice == self.dies_at:
            print(f"  {invoice} is paid, and the process dies", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return True


@tool(idempotent=True)
async def pay(ctx: ToolContext[Bank], invoice: str) -> str:
    """Pay an invoice.

    Args:
        invoice: Its number.
    """
    new = ctx.context.pay(invoice, ctx.idempotency_key)
    print(f"  {invoice} is paid" if new else f"  {invoice} was paid before", flush=True)
    return f"{invoice} is paid"


def answer(request: ModelRequest) -> object:
    """Play the model: pay one invoice after the other."""
    paid = sum(isinstance(item, ToolOutput) for item in request.items)
    print(f"  the model is asked in turn {request.turn}", flush=True)
    return [call("pay", {"invoice": INVOICES[paid]})] if paid < len(INVOICES) else say("All invoices are paid.")


agent = Agent("clerk", instructions="Pay the invoices, one by one.", model=FunctionModel(answer), tools=[pay])


async def work(folder: Path, dies_at: str) -> None:
    """Do the job, from the beginning or from where an earlier process has left it."""
    bank = Bank(folder / "bank.jsonl", dies_at)
    async with FileJournal(folder / "job.journal") as journal:
        result = await Runner.run_or_resume(agent, f"Pay {', '.join(INVOICES)}.", journal=journal, context=bank)
    print(f"  {result.final_output} ({result.usage.requests} requests in all)", flush=True)


def main(backend: str = "trio") -> None:
    """Start the job twice; the first process dies in the middle."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "work", folder, backend]
        for name, dies_at in (("the first process", "i-2"), ("the second process", "")):
            print(name, flush=True)
            done = subprocess.run([*command, dies_at], stdout=subprocess.PIPE, text=True, check=False)
            print(done.stdout, end="")
        payments = Path(folder, "bank.jsonl").read_text(encoding="utf-8").splitlines()
        print("payments:", [json.loads(line)["invoice"] for line in payments])


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        _, _, folder, backend, dies_at = sys.argv
        anyio.run(work, Path(folder), dies_at, backend=backend)
    else:
        main()
