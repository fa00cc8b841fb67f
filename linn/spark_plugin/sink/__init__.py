"""The sink: Arrow batches as messages, and the transactions that make each write count once."""
