"""agentspec: a coding-assistant backend whose speculative decoding knows the repository being edited."""

__version__ = "0.1.0"
