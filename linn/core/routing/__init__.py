"""Routing: exchanges, bindings, and the topics that a batch goes to."""
