"""Explore an application's agents without a test: `pytest --agentloop-explore`.

`_pytest` has the items of a test session, `_search` the rounds of one agent, `_rounds` what one round does, `_judges`
what counts as a fault, `_state` the state of the program, `_values` arguments, `_found` the faults that were kept.
Imported only where the option was given.
"""
