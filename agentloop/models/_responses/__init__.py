"""Responses. Requests, items, answers and the executors' items are pure; `links` are its WebSocket connections."""
