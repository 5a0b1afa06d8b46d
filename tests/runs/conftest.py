"""Tests of runs, in folders by subject. Their shared helpers are in `tests/kit`.

| folder | subject |
|---|---|
| `loop` | what a turn asks of the model and what the answer means: definitions, retries, usage, final output |
| `calls` | one call: planning, arguments, threads, resources, results, receipts, and the report of its failure |
| `scheduling` | several calls: how many at once, in which order, and what one that fails does to the others |
| `limits` | what a run may use (turns, time, tokens, capacities), and what the runtime itself may cost |
| `cancellation` | who ends a run or a call early, who comes first, and what leaves the run then |
| `guardrails` | judges of input, output and tool calls |
| `approvals` | calls that wait for a verdict, policies, and pauses |
| `nested` | handoffs and agent tools |
| `streaming` | streamed runs, their consumers, and that they equal plain ones |
| `hooks` | hooks, instruments, spans and progress |
| `storage` | sessions, journals, crashes and killed processes |
| `batches` | many runs under one cap, and the one call that begins or resumes a run |
| `resume` | the stored state of a run, and runs that resume from it |
| `secrets` | what is secret, and what is sealed |
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop the combinations that don't exist: there is no native cancellation on trio."""
    items[:] = [item for item in items if not _native_on_trio(item)]


def _native_on_trio(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("cancelled") == "native" and str(params.get("anyio_backend", "")).startswith("trio")
