"""The engine: the only room that awaits. It does the actions that the machine names, in nurseries, and logs the results."""
