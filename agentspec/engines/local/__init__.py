"""Embedded engine: a lean torch forward, prefix cache and scheduler in this process."""
