"""The parts of a run under way: its log, cleanup, threads, resources; and the one module that knows the backends."""
