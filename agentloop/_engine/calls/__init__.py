"""The calls of a turn: scheduler, approval, guardrails, one call from its permit to its outcome."""
