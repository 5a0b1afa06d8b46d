"""Tasks, scopes and wake-ups on asyncio and trio, as far as anyio doesn't cover them. Knows no agent.

You can read this room without the rest of the library. Each module has its theory at its head:

* `nursery`: tasks that one owner waits for, and how the owner's cancellation reaches them
* `beside`: several pieces of work at once, of which one error leaves
* `backend`: whose a cancellation is, and the questions that we ask asyncio or trio directly
* `cleanup`: shielded sections with one common deadline
* `interrupts`: Ctrl-C on trio

What we do by hand where anyio has a word for it (`cancelled_outside`, `enclosing_cancelled`, `new_scope`, the class of
scopes in `nursery.find_scope_class`) is either not public in anyio, or takes 1 µs or more each time. It is done only in
this room.

Decisions:

On CPython 3.11 to 3.13 with anyio 4.16 and trio 0.35. Where the backends differ from the expectation, the code
follows the measurement.

* code raises `CancelledError` itself on asyncio, or leaks `Cancelled` on trio: its siblings are cancelled, and the
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
