"""Anthropic Messages. Requests, items, answers and the executors' tools are pure."""
