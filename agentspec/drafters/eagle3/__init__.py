"""EAGLE-3: a one-layer head that drafts from the target's own hidden states."""
