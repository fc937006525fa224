"""Repository index: walk, tokenise, parse, and publish context-sorted segments on disk."""
