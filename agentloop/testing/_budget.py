"""What a test session tells the searches in it, and they tell the session. The pytest plugin sets and reads both."""

from __future__ import annotations

schedules = 5000
"""The default number of schedules of a search; pytest's `--agentloop-schedules` sets it."""

unseen: list[str] | None = None
"""Sentences about what a search couldn't see; None outside of a test session, where nobody would read them."""
