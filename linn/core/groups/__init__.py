"""Consumer groups of streams: members, the partitions that they own, and the offsets that they commit."""
