"""Transactions: publishes to any topics, acks and offsets that take effect together, or not at all."""
