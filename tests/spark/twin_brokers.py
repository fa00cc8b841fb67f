"""A linn and a Kafka that hold the same records: topics, partitions, offsets, keys, values, headers and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import linn.sync
from benchmarks.peers.kafka_process import kafka_process
from linn.testing.process import BrokerProcess

BASE_MS = 1_700_000_000_000
TIMES_MS = 1_000
"""The times of all records are within so much from BASE_MS."""
TIMEOUT_S = 30.0
TIMEOUT_MS = int(TIMEOUT_S * 1000)


@dataclass(frozen=True)
class Sent:
    """A record as a producer sends it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def some_records(rng: Random, count: int) -> list[Sent]:
    """Make records of which each may lack its key or value, repeat headers, and be older than the one before.

    One that lacks both, and a header without a value, are more than the client of Kafka sends.
    """

    def some_bytes() -> bytes:
        return rng.choice([b"", rng.randbytes(rng.randrange(1, 20)), b"text %d" % rng.randrange(5)])

    def headers() -> tuple[tuple[str, bytes], ...]:
        return tuple((rng.choice(["a", "b", "ä", ""]), some_bytes()) for _ in range(rng.choice([0, 0, 1, 3])))

    def record() -> Sent:
        key, value = rng.choice([(some_bytes(), some_bytes()), (None, some_bytes()), (some_bytes(), None)])
        return Sent(key, value, headers(), BASE_MS + rng.randrange(TIMES_MS))

    return [record() for _ in range(count)]


class TwinBrokers:
    """Both brokers. Whatever is published goes to the same partition and the same offset in each."""

    def __init__(self, client: linn.sync.Client, url: str, address: str) -> None:
        from kafka import KafkaAdminClient

        self.client = client
        waits = {"kafkaConsumer.pollTimeoutMs": "3000", "kafka.default.api.timeout.ms": "4000"}
        waits |= {"kafka.request.timeout.ms": "3000", "fetchOffset.numRetries": "1"}
        self.servers = {
            "linn": {"linn.bootstrap.servers": url},
            "kafka": {"kafka.bootstrap.servers": address, **waits},
        }
        self._address = address
        self._admin = KafkaAdminClient(bootstrap_servers=address)
        self._producers: dict[bool, Any] = {}

    def close(self) -> None:
        """Close the connections."""
        for producer in self._producers.values():
            producer.close(TIMEOUT_S)
        self._admin.close()

    def create(self, topic: str, partitions: int, **settings: Any) -> None:
        """Make an empty topic in both; `settings` are linn's."""
        from kafka.admin import NewTopic

        self.client.admin.create_topic(topic, kind="stream", partitions=partitions, **settings)
        kept = {"retention.ms": "-1"}
        self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=kept)], wait_for_metadata=True)

    def publish(self, topic: str, partition: int, records: Sequence[Sent], batch: int) -> None:
        """Publish to one partition, so many records in each batch of linn; Kafka's have one record, or several."""
        with self.client.producer(topic) as producer:
            for first in range(0, len(records), batch):
                some = records[first : first + batch]
                producer.publish_many(
                    [each.value for each in some],
                    keys=[each.key for each in some],
                    headers=[each.headers for each in some],
                    timestamp_ms=[each.timestamp_ms for each in some],
                    partition=partition,
                )
        sender = self._producer(batch == 1)
        sent = [
            sender.send(topic, each.value, each.key, [*each.headers], partition, each.timestamp_ms) for each in records
        ]
        sender.flush(TIMEOUT_S)
        for future in sent:
            future.get(TIMEOUT_S)

    def _producer(self, is_single: bool) -> Any:
        from kafka import KafkaProducer

        if is_single not in self._producers:
            size, linger_ms = (0, 0) if is_single else (1 << 18, 5)
            self._producers[is_single] = KafkaProducer(
                bootstrap_servers=self._address, batch_size=size, linger_ms=linger_ms
            )
        return self._producers[is_single]

    def forget(self, topic: str) -> int:
        """Delete in Kafka what linn's partition 0 has dropped from its head; returns the offset of what is left."""
        from kafka import TopicPartition

        start = self.client.describe(topic).topics[0].partitions[0].start_offset
        self._admin.delete_records({TopicPartition(topic, 0): start}, timeout_ms=TIMEOUT_MS)
        return int(start)


@contextmanager
def twin_brokers(folder: Path, jars: str) -> Iterator[TwinBrokers]:
    """Run both, with their data in `folder`. Raises PeerFailed."""
    for name in ("linn", "kafka"):
        (folder / name).mkdir()
    with BrokerProcess(folder / "linn", "") as broker, kafka_process(jars, folder / "kafka") as kafka:
        with linn.sync.connect(broker.urls[0]) as client:
            twins = TwinBrokers(client, broker.urls[0], kafka.address)
            try:
                yield twins
            finally:
                twins.close()
