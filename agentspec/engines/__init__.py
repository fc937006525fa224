"""Engines that host the target model behind one contract (`agentspec.engines.base`)."""
