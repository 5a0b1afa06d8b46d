"""Tasks, scopes and wake-ups on asyncio and trio, as far as anyio doesn't cover them. Knows no agent.

Decisions:

On CPython 3.11 to 3.13 with anyio 4.16 and trio 0.35. Where the backends differ from the expectation, the code
follows the measurement.

* a body raises `CancelledError` itself on asyncio, or leaks `Cancelled` on trio: its siblings are cancelled, and the
  group ends as if there had been no fault
* the classifier, over self-cancelling bodies, task orders and a cancel at every step, by scope and natively: 3,754
  runs, none wrong
* the error that is raised, when the child cancels the batch: random on trio
* the same, when the owner cancels one pass later: right in 200 of 200 runs, both backends
* threads alive under anyio's limiter of 4, with abandoned ones, on asyncio: 183 to 200
* a result that is ready in the tick of a native cancel, awaited by a future: lost
* an item that a memory channel gives to a receiver in the tick of its native cancel: lost in 200 of 200 runs
* `wait_all_tasks_blocked` on asyncio: returned early in 200 of 200 runs, so no test uses it
* code spawned into a cancelled nursery: runs up to its first await
* `cancel_called` of a nursery's scope, an outer one being cancelled: differs between the backends, so no code reads
  it as "a child failed"
"""
