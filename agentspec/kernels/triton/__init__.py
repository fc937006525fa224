"""Verification on the device in Triton: attention, drawing, walking, compaction, merging. Needs triton.

Every kernel also runs under `TRITON_INTERPRET=1` without a GPU, where it is tested against the torch and Python
definitions. Tensors of one call lie on one device.
"""
