"""The tree of errors, and the words that errors share."""
