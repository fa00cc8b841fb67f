"""The producer: from a message to a batch that the broker has confirmed."""
