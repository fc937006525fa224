"""Trains EAGLE-3 heads: prompts, the target's own outputs, test-time training, checkpoints that resume anywhere."""
