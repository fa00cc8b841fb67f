"""Kafka of two versions, one broker or three: from Maven Central, driven by confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.peers import tool_output
from benchmarks.peers.cargo import Supply
from benchmarks.peers.jars import java, java_version
from benchmarks.peers.kafka_process import KafkaProcess, kafka_jars, kafka_processes
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.plan import CHUNK, LINGER_MS, WINDOW, of_three
from benchmarks.peers.server_process import until_answered, values_of
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool

VERSIONS = {"kafka-3.9": "3.9.2", "kafka-4.1": "4.1.2"}
BATCH_BYTES = 256 << 10
TIMEOUT_S = 30.0
POLL_S = 0.001
"""Between two looks at what is unconfirmed: without a report per record the client says nothing of it by itself."""
FLUSH = {"page cache": "9223372036854775807", "fsync": "1"}
"""flush.messages: after so many records a log is synced, before the publish is confirmed."""
OF_THREE = "acks=all, enable.idempotence, three replicas, min.insync.replicas=2"
TOOL_HEAP = ("-Xms512m", "-Xmx512m")


class KafkaServer:
    """Brokers that are their own controllers; topics have one partition, with a replica at each broker."""

    def __init__(self, version: str, processes: Sequence[KafkaProcess], jars: str, durability: Durability) -> None:
        self.version = version
        self.pids = [process.pid for process in processes]
        self._address = ",".join(process.address for process in processes)
        self._jars = jars
        self._durability = durability
        self._client: dict[str, Any] = {
            "bootstrap.servers": self._address,
            "socket.nagle.disable": True,
            "log_level": 2,
        }
        self._admin = AdminClient(self._client)
        until_answered(self._check_whole, KafkaException, "Kafka")

    def _check_whole(self) -> None:
        """Raises KafkaException until the client knows all brokers."""
        if len(self._admin.list_topics(timeout=2).brokers) < len(self.pids):
            raise KafkaException("some brokers have not joined")

    def create(self, topic: str, kind: Kind) -> None:
        replicas = len(self.pids)
        config = {"flush.messages": FLUSH[self._durability], "file.delete.delay.ms": "0"}
        config["min.insync.replicas"] = str(max(1, replicas - 1))
        made = self._admin.create_topics([NewTopic(topic, 1, replication_factor=replicas, config=config)])
        made[topic].result(TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def leader_pid(self, topic: str) -> int:
        """The process that leads a topic."""
        return self.pids[self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader - 1]

    # --- publishing ---

    def _producer(self, topic: str, **settings: Any) -> Producer:
        limits: dict[str, Any] = {"queue.buffering.max.messages": WINDOW, "on_delivery": _raise_error}
        if len(self.pids) > 1:  # Where a partition may get another leader, only numbered batches keep their order.
            limits["enable.idempotence"] = True
        producer = Producer(self._client | {"acks": "all"} | limits | settings)
        until_answered(lambda: _partition_of(producer, topic), KafkaException, f"Kafka's {topic}")
        return producer

    def _batching_producer(self, topic: str, **settings: Any) -> Producer:
        batching = {"linger.ms": LINGER_MS, "batch.size": BATCH_BYTES, "batch.num.messages": WINDOW}
        return self._producer(topic, **({"delivery.report.only.error": True} | batching | settings))

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        producer = self._producer(topic, **{"linger.ms": 0})
        with watch:
            times = [time.perf_counter()]
            for value in supply.singles():
                producer.produce(topic, value)
                while len(producer):  # A poll returns with the record's own report, or with news of a lost broker.
                    if not producer.poll(TIMEOUT_S):
                        raise PeerFailed(f"Kafka did not confirm a record within {TIMEOUT_S:g} s")
                times.append(time.perf_counter())
        return times

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        producer = self._batching_producer(topic)
        produce = producer.produce
        with watch:
            for values in supply.chunks(CHUNK):
                _until_unconfirmed(producer, WINDOW - CHUNK)
                for value in values:
                    produce(topic, value)
            _until_unconfirmed(producer, 0)

    def publish_bulk(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        producer = self._batching_producer(topic)
        messages: list[dict[str, Any]] = [{"value": value} for value in supply.cargo.values]
        with watch:
            for first, end in supply.spans(CHUNK):
                _until_unconfirmed(producer, WINDOW - CHUNK)
                if producer.produce_batch(topic, messages[first:end]) != CHUNK:
                    raise PeerFailed("Kafka's client did not take a whole batch")
            _until_unconfirmed(producer, 0)

    def publish_transactions(self, topic: str, supply: Supply, watch: Stopwatch) -> None:
        producer = self._batching_producer(topic, **{"transactional.id": uuid.uuid4().hex, "linger.ms": 0})
        producer.init_transactions(TIMEOUT_S)  # The name is open before the clock runs.
        messages: list[dict[str, Any]] = [{"value": value} for value in supply.cargo.values]
        with watch:
            for first, end in supply.spans(CHUNK):
                producer.begin_transaction()
                if producer.produce_batch(topic, messages[first:end]) != CHUNK:
                    raise PeerFailed("Kafka's client did not take a whole batch")
                producer.commit_transaction(TIMEOUT_S)

    # --- consuming ---

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        place = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.auto.offset.store": False}
        consumer = Consumer(self._client | {"group.id": uuid.uuid4().hex, "fetch.queue.backoff.ms": 1} | place)
        try:
            yield consumer
        finally:
            consumer.close()

    @contextmanager
    def _member(self, topic: str, watch: Stopwatch) -> Iterator[Consumer]:
        """A member of a group. The watch begins when it has its partition: joining takes some tenths of a second."""
        with self._consumer() as consumer:
            consumer.subscribe([topic], on_assign=lambda *_: watch.begin())
            yield consumer

    def work_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        with self._member(topic, watch) as consumer:
            for number in range(1, expected + 1):
                message: Any = consumer.poll(TIMEOUT_S)
                received.append(message.value())
                consumer.store_offsets(message)
                if not number % WINDOW:
                    consumer.commit()
            consumer.commit(message=message, asynchronous=False)
            watch.end()
        return values_of(received)

    def work_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        with self._member(topic, watch) as consumer:
            while len(received) < expected:
                messages = consumer.consume(min(CHUNK, expected - len(received)), TIMEOUT_S)
                received.extend(_values(messages))
                if not len(received) % WINDOW:
                    consumer.commit(message=messages[-1])
            consumer.commit(message=messages[-1], asynchronous=False)
            watch.end()
        return values_of(received)

    def read_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        with self._consumer() as consumer, watch:
            consumer.assign([TopicPartition(topic, 0, 0)])
            poll: Any = consumer.poll  # Where it has nothing, the error of None says so.
            for _ in range(expected):
                received.append(poll(TIMEOUT_S).value())
        return values_of(received)

    def read_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        with self._consumer() as consumer, watch:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while len(received) < expected:
                received.extend(_values(consumer.consume(min(CHUNK, expected - len(received)), TIMEOUT_S)))
        return values_of(received)

    # --- load tools ---

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        # It has no bound on records: its memory for unconfirmed ones holds the window.
        memory = max(WINDOW * record_bytes, 2 * BATCH_BYTES)
        properties = [f"bootstrap.servers={self._address}", "acks=all", f"linger.ms={LINGER_MS}"]
        properties += [f"batch.size={BATCH_BYTES}", f"buffer.memory={memory}"]
        options = ["--topic", topic, "--num-records", str(count), "--record-size", str(record_bytes)]
        text, seconds, cpu_s = self._tool(
            "ProducerPerformance", *options, "--throughput", "-1", "--producer-props", *properties
        )
        return ToolRun(tool_output.producer_performance(text), seconds, cpu_s)

    def tool_read(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        options = ["--bootstrap-server", self._address, "--topic", topic, "--messages", str(count)]
        text, seconds, cpu_s = self._tool("ConsumerPerformance", *options, "--timeout", "10000")
        return ToolRun(tool_output.consumer_performance(text), seconds, cpu_s)

    def _tool(self, name: str, *options: str) -> tuple[str, float, float]:
        return run_tool([java(), *TOOL_HEAP, "-cp", self._jars, f"org.apache.kafka.tools.{name}", *options])


def _raise_error(error: KafkaError | None, message: Message) -> None:
    # Raised from the client's poll.
    if error is not None:
        raise KafkaException(error)


def _partition_of(producer: Producer, topic: str) -> None:
    """Raises KafkaException until the topic has a leader."""
    found = producer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    for error in (found.error, *(partition.error for partition in found.partitions.values())):
        if error is not None:
            raise KafkaException(error)


def _until_unconfirmed(producer: Producer, count: int) -> None:
    """Wait until so many records are unconfirmed, at most. Raises PeerFailed, KafkaException."""
    if len(producer) <= count:
        producer.poll(0)
        return
    deadline = time.monotonic() + TIMEOUT_S
    while len(producer) > count:
        producer.poll(POLL_S)
        if time.monotonic() > deadline:
            raise PeerFailed(f"Kafka left {len(producer)} records unconfirmed for {TIMEOUT_S:g} s")


def _values(messages: Sequence[Message]) -> list[Any]:
    if not messages:
        raise PeerFailed(f"Kafka delivered nothing for {TIMEOUT_S:g} s")
    return [message.value() for message in messages]


class KafkaPeer:
    """One version, started from its jars, in KRaft mode."""

    def __init__(self, release: str, brokers: int = 1) -> None:
        self._release = release
        self._brokers = brokers
        self.facts = facts(release)
        if brokers > 1:
            self.facts = of_three(
                self.facts,
                {
                    "page cache": f"{OF_THREE}, flush.messages at its default (never)",
                    "fsync": f"{OF_THREE}, flush.messages=1",
                },
            )

    def check(self) -> None:
        """Java, and the jars, which are fetched once."""
        self._jars = kafka_jars(self._release)

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[KafkaServer]:
        """Formatted data folders, and the brokers on them."""
        with kafka_processes(self._jars, folder, self._brokers) as processes:
            name = f"{self._release} on Java {java_version()}"
            yield KafkaServer(name, processes, self._jars, durability)


def facts(release: str) -> Facts:
    """Remarks on a version."""
    calls = f"`producer.produce(topic, value)`, `delivery.report.only.error`, at most {WINDOW:,} unconfirmed"
    bulk = f"`producer.produce_batch(topic, messages)` of {CHUNK:,} that were made before, else the same"
    return Facts(
        name=f"Kafka {release.rpartition('.')[0]}",
        client=f"confluent-kafka {version('confluent-kafka')} (C: librdkafka)",
        settings={
            "page cache": "acks=all, one replica, flush.messages at its default (never)",
            "fsync": "acks=all, one replica, flush.messages=1: a sync per batch that arrives",
        },
        calls={
            "publish one at a time": "`producer.produce`, `producer.poll`: its delivery report; linger.ms=0",
            "publish to a queue, a call per record": calls,
            "consume a queue, an ack per record": f"`poll()`, `store_offsets(message)`; a commit every {WINDOW:,}",
            "publish to a stream, a call per record": calls,
            "read a stream, record by record": "`consumer.poll()`",
            "publish to a queue in bulk": bulk,
            "consume a queue in bulk": f"`consumer.consume({CHUNK:,})`; a commit every {WINDOW:,}",
            "publish to a stream in bulk": bulk,
            "read a stream in bulk": f"`consumer.consume({CHUNK:,})`",
            "publish to a stream in transactions": (
                f"`begin_transaction()`, `produce_batch(topic, messages)` of {CHUNK:,}, `commit_transaction()`, which "
                "sends what waits"
            ),
            "publish to a stream, by load tool": f"ProducerPerformance (Java), buffer.memory of {WINDOW:,} records",
            "read a stream, by load tool": "ConsumerPerformance (Java)",
        },
        notes=(
            "The broker has a heap of 1 GiB and the collector G1.",
            f"linger.ms={LINGER_MS}, batch.size={BATCH_BYTES >> 10} KiB where publishing is not one at a time; "
            "linger.ms=0 in transactions, whose commit sends what waits.",
            "Its queue is a group of one consumer that commits its place: records have no acks of their own. Share "
            "groups, which have them, are for production from 4.2 on.",
            "The broker uses several cores, and so does librdkafka, which has threads of its own.",
            "Each run of its tools is a new Java process: a run of a few seconds is partly the compiler's warm-up, and "
            "its CPU time is mostly that.",
        ),
    )


PEERS = {name: KafkaPeer(release) for name, release in VERSIONS.items()}
PEERS |= {f"{name}-three": KafkaPeer(release, 3) for name, release in VERSIONS.items()}
