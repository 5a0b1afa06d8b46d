"""Values that a test session gives the searches in it, and gets from them. The pytest plugin sets and reads both."""

from __future__ import annotations

schedules = 5000
"""The default number of schedules of a search; pytest's `--agentloop-schedules` sets it."""

unseen: list[str] | None = None
"""Sentences about what a search couldn't see; None outside of a test session, where they would have no reader."""
