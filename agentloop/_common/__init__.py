"""Helpers that every other module may import: errors of values, checks of fields, names, digests, texts of errors."""
