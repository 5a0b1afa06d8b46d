"""The calls of one turn: their batch, approval and guardrails, and one call from its permit to its outcome."""
