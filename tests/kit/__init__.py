"""Helpers that the tests of runs share, by purpose.

| module | holds |
|---|---|
| `agents` | agents that follow a script, with their tools, guardrails and configuration |
| `results` | readers of what a run did: of its result, its records, its items, its models' requests |
| `watching` | instruments and hooks that keep everything they receive |
| `ending` | meeting points, clocks, and ways to end a run early |
| `resuming` | pauses, verdicts, stored states and journals |
| `crashes` | a run whose journal is cut at any record, and the promises that its resumed run keeps |
| `work` | counted work: of a function, between two checkpoints, and the turns of other tasks |
| `secret_cases` | runs of which everything readable is searched for a secret |
| `uv_loop` | uvloop's loop with a clock that `advance_clock` can put forward |
| `memory_paths` | paths that a store of memory may take for another path, and stores that are given the same ones |
| `processes` | which processes a test has left |
| `child_runs` | a program whose steps run in processes of their own |
| `frozen_state` | the run whose stored state is frozen under `tests/fixtures` |
| `deploys` | what a deploy changes between two versions of an application, and runs that cross it |
| `docs_scripts` | the scripts that write the reference and the picture of the documentation |
"""
