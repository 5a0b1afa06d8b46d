"""The default number of schedules of a search; pytest's `--agentloop-schedules` sets it."""

schedules = 5000
