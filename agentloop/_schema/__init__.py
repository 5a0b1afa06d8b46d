"""Signatures, docstrings and types as JSON schema, and a model's JSON as values."""
