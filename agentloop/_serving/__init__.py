"""The parts that serving an agent needs, over the web as well as by MCP: states of paused runs, public errors."""
