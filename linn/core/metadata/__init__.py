"""The metadata store: the port, and the stores that need no other program."""
