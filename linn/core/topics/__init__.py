"""Topics: partitions, and the subscriptions that the topic's kind gives them."""
