"""Tree verification as a FlashInfer attention variant: its source, its build and its wrappers. Needs flashinfer.

Contract: `agentspec.kernels.paged_tree_attention`.
"""
