"""Measuring verify kernels on the GPU at hand: random steps, times, and the tuner that makes a deployment's table."""
