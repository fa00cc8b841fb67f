"""Predicates over messages: their text, their tree, and their evaluation."""
