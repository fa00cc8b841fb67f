"""Publishing: from a verified batch to the partitions that store it."""
