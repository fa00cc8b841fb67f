"""Connections of all protocols: what each carries, and how they end."""
