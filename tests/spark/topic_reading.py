"""Everything that is committed in a topic, for tests that compare it with what Spark read or wrote."""

from __future__ import annotations

from linn.sync import Client, Message


def committed(client: Client, topic: str) -> list[Message]:
    """The committed messages of a topic, by partition and offset."""
    found: list[Message] = []
    for partition in range(len(client.describe(topic).topics[0].partitions)):
        offset, end = 0, client.find_offset(topic, partition, "latest")
        while offset < end:
            fetched = client.fetch(topic, partition, offset)
            found += [message for batch in fetched.batches for message in batch]
            offset = fetched.next_offset
    return found
