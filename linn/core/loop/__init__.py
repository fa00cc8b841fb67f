"""Sharing the event loop: turns, long work in steps, the memory budget."""
