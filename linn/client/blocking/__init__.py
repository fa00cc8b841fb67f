"""The blocking client: the async client in a thread of its own, behind calls that block."""
