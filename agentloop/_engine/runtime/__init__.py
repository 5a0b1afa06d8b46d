"""What a run has while it is under way: its log, cleanup, threads, resources; and the one module of the backends."""
