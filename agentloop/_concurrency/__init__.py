"""Tasks, scopes and wake-ups on asyncio and trio, as far as anyio doesn't cover them. Knows no agent."""
