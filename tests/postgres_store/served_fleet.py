"""A worker of a fleet of `serve`: `python served_fleet.py CONNINFO BACKEND NAME DEPLOY` serves until SIGTERM.

The outside world is the table `effects`: each body that begins puts one row into it. There are two deploys. The second
one has a tool more (`audit`), one less (`legacy`), and another schema of a third (`ship`).
"""

import random
import signal
import sys
import uuid
from functools import partial
from typing import Any, Literal, TypeAlias

import anyio
import attrs

from agentloop import Agent, FunctionTool, ToolContext, tool
from agentloop.postgres import Lease, PostgresStore, ServedRun, serve
from agentloop.testing import FunctionModel, call, say

LEASE, GRACE, SLOTS, TURNS = 3.0, 20.0, 16, 3
Deploy: TypeAlias = Literal[1, 2]
TABLES = """
CREATE TABLE effects (
    body uuid PRIMARY KEY, run_id text NOT NULL, key text NOT NULL, tool text NOT NULL, worker text NOT NULL,
    held boolean NOT NULL
);
CREATE TABLE takes (run_id text NOT NULL, epoch bigint NOT NULL, worker text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION note_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO takes (run_id, epoch, worker) VALUES (new.run_id, new.epoch, new.worker);
    RETURN NULL;
END $$;
CREATE TRIGGER note_take AFTER UPDATE OF epoch ON agentloop_leases FOR EACH ROW
    WHEN (old.epoch IS DISTINCT FROM new.epoch) EXECUTE FUNCTION note_take();
"""
"""The outside world, and which worker has taken which run when."""
_NOTE = """
INSERT INTO effects (body, run_id, key, tool, worker, held)
VALUES (%(body)s, %(run_id)s, %(key)s, %(tool)s, %(worker)s, %(held)s) ON CONFLICT DO NOTHING
"""


@attrs.frozen
class Now:
    """What a body is given: the lease under which it runs, and the outside world."""

    lease: Lease
    worker: str
    world: PostgresStore


async def do(ctx: ToolContext[Now], name: str) -> str:
    """Have the effect, take a while."""
    now = ctx.context
    effect = {"body": uuid.uuid4(), "run_id": now.lease.run_id, "key": ctx.idempotency_key, "tool": name}
    effect |= {"worker": now.worker, "held": now.lease.held}  # in the first step of the body
    await now.world.connections.run(lambda db: db.execute(_NOTE, effect), again=True)
    await anyio.sleep(random.uniform(0, 0.4))
    return f"{name} is done"


@tool
async def charge(ctx: ToolContext[Now], n: int) -> str:
    """Do what may not be done twice."""
    return await do(ctx, "charge")


@tool(idempotent=True)
async def look(ctx: ToolContext[Now], n: int) -> str:
    """Do what may be done twice."""
    return await do(ctx, "look")


@tool
async def audit(ctx: ToolContext[Now]) -> str:
    """Do what only the second deploy can, and not twice."""
    return await do(ctx, "audit")


@tool(needs_approval=True)
async def refund(ctx: ToolContext[Now]) -> str:
    """Do what may not be done twice, and not before a verdict."""
    return await do(ctx, "refund")


@tool(needs_approval=True)
async def legacy(ctx: ToolContext[Now]) -> str:
    """Do what only the first deploy can, after a verdict."""
    return await do(ctx, "legacy")


@tool(needs_approval=True, name="ship")
async def ship_first(ctx: ToolContext[Now], to: str) -> str:
    """Ship, as the first deploy does it."""
    return await do(ctx, "ship")


@tool(needs_approval=True, name="ship")
async def ship_then(ctx: ToolContext[Now], to: str, by: str) -> str:
    """Ship, as the second deploy does it."""
    return await do(ctx, "ship")


ASKED = {"refund": 7, "legacy": 5, "ship": 6}
"""Each run whose number divides by it, the first that fits, ends with a call of the tool, which needs a verdict."""


def given(number: int) -> str:
    """Return the input of a run."""
    return next((name for name, divisor in ASKED.items() if number % divisor == 0), "nothing")


def _script(deploy: Deploy) -> Any:
    async def answer(request: Any) -> Any:
        """Call two or three tools in each turn, then ask as the input says."""
        await anyio.sleep(0.1)
        turn, asked = request.turn, request.items[0].text
        if turn <= TURNS:
            calls = [call(name, {"n": turn}, call_id=f"{name}{turn}") for name in ("charge", "look")]
            calls += [call("helper", {"input": "help"}, call_id="helper")] if turn == 1 else []
            return calls + ([call("audit", {}, call_id="audit")] if (deploy, turn) == (2, 2) else [])
        if turn > TURNS + 1 or asked == "nothing" or (asked == "legacy" and deploy == 2):
            return say("over")
        arguments = {"to": "Rome", **({"by": "sea"} if deploy == 2 else {})} if asked == "ship" else {}
        return call(asked, arguments, call_id=asked)

    return FunctionModel(answer)


async def _help(request: Any) -> Any:
    await anyio.sleep(0.1)
    return call("charge", {"n": 0}, call_id="helped") if request.turn == 1 else say("helped")


def make_agent(deploy: Deploy, *more: FunctionTool) -> Agent[Any, Any]:
    """Return the agent of a deploy, with *more* tools."""
    helper = Agent("helper", model=FunctionModel(_help), tools=[charge]).as_tool("helper", "Help.")
    own = [legacy, ship_first] if deploy == 1 else [audit, ship_then]
    return Agent("clerk", model=_script(deploy), tools=[charge, look, refund, helper, *own, *more])


async def work(conninfo: str, name: str, deploy: Deploy) -> None:
    """Serve until SIGTERM."""
    named = PostgresStore(conninfo, worker=name, application=f"deploy {deploy}")
    async with named as store, PostgresStore(conninfo, connections=2) as world:

        def options(run: ServedRun) -> dict[str, Any]:
            return {"context": Now(run.lease, name, world)}

        served = partial(
            serve,
            store,
            make_agent(deploy),
            options=options,
            concurrency=SLOTS,
            grace=GRACE,
            attempts=20,
            lease_seconds=LEASE,
            signals=[signal.SIGTERM],
        )
        async with anyio.create_task_group() as group:
            await group.start(served)
            print("serving", flush=True)
    print("drained", flush=True)


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], sys.argv[3], 1 if sys.argv[4] == "1" else 2, backend=sys.argv[2])
