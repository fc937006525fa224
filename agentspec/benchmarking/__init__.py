"""Measuring: traces of recorded edits, their replay against drafters, and the end-to-end editing loop."""
