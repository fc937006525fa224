"""Settings that make other programs use an agentspec server."""
