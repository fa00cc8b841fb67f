"""Topics: partitions, and what the kind of a topic makes of them."""
