"""Running agents in tests: a model that follows a script, and logs compared without what chance put into them."""

from agentloop.testing.normal import normal
from agentloop.testing.scripted import ScriptedModel, call, fail, reason, respond, say, stream_of, wait

__all__ = ["ScriptedModel", "call", "fail", "normal", "reason", "respond", "say", "stream_of", "wait"]
