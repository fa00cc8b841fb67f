"""The gateway: all that a protocol may do with the broker, and the port that a protocol fills."""
