"""Edits of one file: where it comes from, how the model is asked, how patches are applied, what is answered."""
