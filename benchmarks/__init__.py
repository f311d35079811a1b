"""icefloe and the official library side by side, in one run: `python -m benchmarks`."""
