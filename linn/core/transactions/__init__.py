"""Transactions: publishes to any topics, acks and offset commits that take effect together or not at all."""
