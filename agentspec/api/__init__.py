"""HTTP surface: OpenAI-compatible and REST endpoints over an engine."""
