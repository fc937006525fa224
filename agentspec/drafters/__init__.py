"""Drafters: candidates from many sources, fused into one calibrated draft tree."""
