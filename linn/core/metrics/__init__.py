"""Metrics: pulled from the running broker, never pushed by it."""
