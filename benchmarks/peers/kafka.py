"""Kafka: the broker and its load tools from Maven Central, driven by confluent-kafka, which is librdkafka."""

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
from benchmarks.peers.cargo import Supply, Tally
from benchmarks.peers.jars import class_path, java
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.server_process import free_ports, running, until_answered
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool

VERSION = "3.9.1"
ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    "org.slf4j:slf4j-nop:1.7.36",
)
CHUNK = 1_000
LINGER_MS = 5
BATCH_BYTES = 256 << 10
UNCONFIRMED_MAX = 1_000_000
TIMEOUT_S = 30.0
FLUSH = {"page cache": "9223372036854775807", "fsync": "1"}
"""flush.messages: after so many records a log is synced, before the publish is confirmed."""
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
TOOL_HEAP = ("-Xms512m", "-Xmx512m")
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.segment.bytes=268435456
"""


class KafkaServer:
    """A broker that is its own controller; topics have one partition."""

    version = VERSION

    def __init__(self, port: int, pid: int, jars: str, durability: Durability) -> None:
        self.pids = [pid]
        self._address = f"127.0.0.1:{port}"
        self._jars = jars
        self._durability = durability
        self._client: dict[str, Any] = {
            "bootstrap.servers": self._address,
            "socket.nagle.disable": True,
            "log_level": 2,
        }
        self._admin = AdminClient(self._client)
        until_answered(lambda: self._admin.list_topics(timeout=2), KafkaException, "Kafka")

    def create(self, topic: str, kind: Kind) -> None:
        config = {"flush.messages": FLUSH[self._durability]}
        made = self._admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1, config=config)])
        made[topic].result(TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def _producer(self, **settings: Any) -> Producer:
        return Producer(self._client | {"acks": "all", "queue.buffering.max.messages": UNCONFIRMED_MAX} | settings)

    def publish_singly(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> list[float]:
        producer = self._producer(**{"linger.ms": 0})
        producer.list_topics(topic, timeout=TIMEOUT_S)
        confirmed = Confirmed()
        taken: list[float] = []
        with watch:
            for value in supply.singles():
                started = time.perf_counter()
                producer.produce(topic, value, on_delivery=confirmed)
                while confirmed.count < supply.taken:
                    producer.poll(TIMEOUT_S)
                taken.append(time.perf_counter() - started)
        return taken

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        producer = self._producer(**{"linger.ms": LINGER_MS, "batch.size": BATCH_BYTES})
        producer.list_topics(topic, timeout=TIMEOUT_S)
        confirmed = Confirmed()
        with watch:
            for values in supply.chunks(CHUNK):
                for value in values:
                    self._produce(producer, topic, value, confirmed)
                producer.poll(0)
            producer.flush(TIMEOUT_S)
        if confirmed.count != supply.taken:
            raise PeerFailed(f"Kafka confirmed {confirmed.count} of {supply.taken} records")

    def _produce(self, producer: Producer, topic: str, value: bytes, confirmed: Confirmed) -> None:
        while True:
            try:
                return producer.produce(topic, value, on_delivery=confirmed)
            except BufferError:
                producer.poll(0.01)

    def _consumer(self) -> Consumer:
        place = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1}
        return Consumer(self._client | {"group.id": uuid.uuid4().hex} | place)

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        consumer = self._consumer()
        try:
            with watch:
                consumer.assign([TopicPartition(topic, 0, 0)])
                while not tally.is_full:
                    tally.add(_values(consumer.consume(min(CHUNK, tally.left), TIMEOUT_S)))
        finally:
            consumer.close()

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        consumer = self._consumer()

        def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            # Joining a group takes some tenths of a second, once, and is no work of a queue's.
            watch.begin()

        try:
            consumer.subscribe([topic], on_assign=on_assign)
            while not tally.is_full:
                messages = consumer.consume(min(CHUNK, tally.left), TIMEOUT_S)
                tally.add(_values(messages))
                if not tally.is_full:
                    consumer.commit(message=messages[-1])
            consumer.commit(message=messages[-1], asynchronous=False)
            watch.end()
        finally:
            consumer.close()

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        properties = [f"bootstrap.servers={self._address}", "acks=all", f"linger.ms={LINGER_MS}"]
        properties.append(f"batch.size={BATCH_BYTES}")
        options = ["--topic", topic, "--num-records", str(count), "--record-size", str(record_bytes)]
        text, seconds, cpu_s = self._tool(
            "ProducerPerformance", *options, "--throughput", "-1", "--producer-props", *properties
        )
        return ToolRun(tool_output.producer_performance(text), seconds, cpu_s)

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        options = ["--bootstrap-server", self._address, "--topic", topic, "--messages", str(count)]
        text, seconds, cpu_s = self._tool("ConsumerPerformance", *options, "--timeout", "10000")
        return ToolRun(tool_output.consumer_performance(text), seconds, cpu_s)

    def _tool(self, name: str, *options: str) -> tuple[str, float, float]:
        return run_tool([java(), *TOOL_HEAP, "-cp", self._jars, f"org.apache.kafka.tools.{name}", *options])


class Confirmed:
    """Counts confirmations; the client calls it with each. Raises KafkaException from the client's poll."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.count += 1


def _values(messages: Sequence[Message]) -> list[bytes]:
    if not messages:
        raise PeerFailed(f"Kafka delivered nothing for {TIMEOUT_S:g} s")
    values: list[bytes] = []
    for message in messages:
        value = message.value()
        if not isinstance(value, bytes):
            raise PeerFailed(f"Kafka: {message.error()}")
        values.append(value)
    return values


class KafkaPeer:
    """Started from its jars, in KRaft mode."""

    tool_kind: Kind = "stream"
    warm_up_s = 4.0
    facts = Facts(
        name="Kafka",
        client=f"confluent-kafka {version('confluent-kafka')} (C: librdkafka)",
        tool="ProducerPerformance, ConsumerPerformance (Java)",
        settings={
            "page cache": "acks=all, one replica, flush.messages at its default (never)",
            "fsync": "acks=all, one replica, flush.messages=1",
        },
        queue=f"a group of one consumer that commits its place after each {CHUNK:,} records: records have no acks",
        batched=f"linger.ms={LINGER_MS}, batch.size={BATCH_BYTES >> 10} KiB, at most {UNCONFIRMED_MAX:,} unconfirmed",
        notes=(
            "The broker has eight seconds of work before anything is measured, in which Java compiles it.",
            "The broker uses several cores, and so does librdkafka, which has threads of its own.",
            "Each run of its tools is a new Java process: a run of a few seconds is partly the compiler's warm-up, and "
            "its CPU time is mostly that.",
            "flush.messages=1 syncs once per batch that arrives.",
        ),
    )

    def check(self) -> None:
        """Java, and the jars, which are fetched once."""
        java()
        self._jars = class_path(ARTIFACTS)

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[KafkaServer]:
        """A formatted data folder, and the broker on it."""
        port, controller = free_ports(2)
        properties = folder / "server.properties"
        properties.write_text(PROPERTIES.format(port=port, controller=controller, data=folder / "data"))
        start = [java(), *HEAP, "-cp", self._jars]
        cluster = "AAAAAAAAAAAAAAAAAAAAAQ"
        run_tool([*start, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)])
        with running([*start, "kafka.Kafka", str(properties)], folder, port) as pid:
            yield KafkaServer(port, pid, self._jars, durability)


PEERS = {"kafka": KafkaPeer()}
