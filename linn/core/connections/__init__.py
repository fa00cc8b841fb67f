"""Connections of all protocols: their traffic, and how they end."""
