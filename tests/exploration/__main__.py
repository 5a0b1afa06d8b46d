"""`python -m tests.exploration --budget SECONDS --seed S`: search the runtime for broken promises.

It plays rounds until the budget is spent: each a drawn world under several schedules on both backends, the same
cancelled at some steps, worlds of the core alone, and malformed inputs. What a round does depends on the seed and its
number only. It ends with 1 where an invariant was broken, or where one was never put to the test.
"""

import sys

from .session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
