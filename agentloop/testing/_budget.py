"""How many schedules a search goes over where it isn't told; pytest's `--agentloop-schedules` sets it."""

schedules = 5000
