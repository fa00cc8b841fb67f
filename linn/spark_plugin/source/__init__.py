"""The source: the offsets that a job reads, and record batches as Arrow."""
