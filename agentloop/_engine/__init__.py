"""The engine: does the actions that the machine names, inside nurseries, and appends their results to the log.

The core decides and never waits; all awaiting of a run is here.
"""
