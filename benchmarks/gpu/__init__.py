"""Benchmarks that need a GPU: `python benchmarks/gpu/run.py`."""
