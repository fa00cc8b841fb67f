"""Transactions of a client: publishes, acks and commits that take effect together, or not at all."""
