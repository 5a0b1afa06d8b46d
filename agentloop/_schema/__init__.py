"""JSON schemas from signatures, docstrings and types, and values from a model's JSON."""
