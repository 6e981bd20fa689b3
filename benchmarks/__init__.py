"""Benchmarks against a bare floor and against other libraries."""
