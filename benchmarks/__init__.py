"""What agentloop costs over the bare event loop: `python -m benchmarks`, read with `benchmarks/README.md`."""
