"""The broker as a whole: start, listeners, and the order in which everything stops."""
