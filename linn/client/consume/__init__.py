"""The consumer: from a subscription to messages that the application has settled."""
