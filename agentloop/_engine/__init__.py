"""The shell: the only awaits. It does what the machine says is due, inside nurseries, and appends what happened."""
