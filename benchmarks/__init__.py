"""Benchmarks: replay of recorded edits, end to end, device kernels."""
