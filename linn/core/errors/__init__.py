"""The tree of errors, and shared parts of error messages."""
