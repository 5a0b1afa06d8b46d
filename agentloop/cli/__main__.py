"""`python -m agentloop.cli`: the command line of this very interpreter."""

from agentloop.cli import main

main()
