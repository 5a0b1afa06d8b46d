"""The calls of one turn: their scheduler, approval and guardrails, and one call from its permit to its outcome."""
