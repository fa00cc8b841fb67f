"""Transactions of a client: what it publishes, acks and commits in one takes effect together, or not at all."""
