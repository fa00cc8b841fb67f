"""The event loop, shared: turns, long work in steps, the memory budget."""
