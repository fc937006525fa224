"""Language server: inline completion and edits for every editor that speaks the protocol."""
