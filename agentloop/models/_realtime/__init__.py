"""Realtime sessions. Requests, items and answers are pure; `conversation` and `line` are what a server keeps."""
