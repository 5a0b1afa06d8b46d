"""`python -m agentloop.cli`: the command line, run by this interpreter."""

from agentloop.cli import main

main()
