"""Worlds run on deterministic event loops: generated, searched, crashed, shrunk."""
