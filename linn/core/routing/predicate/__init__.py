"""Predicates over messages: their text, their tree, and whether one is true of a message."""
