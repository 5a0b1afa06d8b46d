"""Stored forms of records, items and values; signatures, seals and digests in them."""
