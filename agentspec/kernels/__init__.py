"""Exact acceptance, sampling, and the tree mask and attention that verify a draft."""
