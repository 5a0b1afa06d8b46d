"""`python -m tests.exploration --budget SECONDS --seed S`: search the runtime for broken invariants.

It plays rounds until the budget is spent. Each round has a generated world under several schedules on both backends,
the same world cancelled at some steps, pure-core worlds, and malformed inputs. A round is a function of the seed and
its number. The exit status is 1 if an invariant was broken, or if one was never exercised in enough rounds.
"""

import sys

from .session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
