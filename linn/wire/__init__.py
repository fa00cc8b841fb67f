"""The native protocol without I/O, for client and broker: frames, messages, and a connection's state machine."""
