"""Stored forms of records, items and values; what is signed, sealed or withheld in them; SQLite files."""
