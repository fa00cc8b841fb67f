"""Kafka's broker as a process, from its JARs and without a client library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.jars import class_path, java
from benchmarks.peers.server_process import free_ports, running
from benchmarks.peers.tool import run_tool

HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable={makes_topics}
log.segment.bytes=268435456
"""


class KafkaProcess(NamedTuple):
    """A broker that is its own controller, and accepts connections."""

    port: int
    pid: int

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"


def kafka_jars(release: str) -> str:
    """Fetch the broker and its tools once; returns their class path. Raises PeerMissing."""
    java()
    tools = [f"org.apache.kafka:{name}:{release}" for name in ("kafka_2.13", "kafka-tools")]
    return class_path([*tools, "org.slf4j:slf4j-nop:1.7.36"])


@contextmanager
def kafka_process(jars: str, folder: Path, partitions: int = 0) -> Iterator[KafkaProcess]:
    """Format a data folder and run the broker on it.

    `partitions`: a topic that is asked for is made with so many; 0: topics are made by request only.

    Raises PeerFailed, ToolFailed.
    """
    port, controller = free_ports(2)
    properties = folder / "server.properties"
    made = {"partitions": partitions or 1, "makes_topics": "true" if partitions else "false"}
    properties.write_text(PROPERTIES.format(port=port, controller=controller, data=folder / "data", **made))
    start = [java(), *HEAP, "-cp", jars]
    run_tool([*start, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)])
    with running([*start, "kafka.Kafka", str(properties)], folder, port) as pid:
        yield KafkaProcess(port, pid)
