"""linn-kafka-format: bodies of batches that are Kafka's record batches, version 2."""
