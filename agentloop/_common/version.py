"""The version of the library, and the name by which it presents itself to servers."""

__version__ = "0.1.0"
"""The version of this source. The build reads it here, so the package never asks an installation for it."""

USER_AGENT = f"agentloop/{__version__}"
"""The sender that a request names."""
