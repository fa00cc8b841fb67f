"""Kafka's brokers as processes, from their JARs and without a client library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.jars import class_path, java
from benchmarks.peers.server_process import free_ports, running
from benchmarks.peers.tool import run_tool

HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={least}
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
    with kafka_processes(jars, folder, 1, partitions) as (process,):
        yield process


@contextmanager
def kafka_processes(jars: str, folder: Path, count: int, partitions: int = 0) -> Iterator[Sequence[KafkaProcess]]:
    """Run so many brokers of one cluster, each a controller as well, with their data in `folder`.

    They accept connections of their controllers; those of clients a moment later, once they have elected one.

    Raises PeerFailed, ToolFailed.
    """
    ports, controllers = free_ports(count), free_ports(count)
    about = {
        "voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1)),
        "partitions": partitions or 1,
        "makes_topics": "true" if partitions else "false",
        "replicas": count,
        "least": max(1, count - 1),
    }
    start, processes = [java(), *HEAP, "-cp", jars], list[KafkaProcess]()
    with ExitStack() as stack:
        for node, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
            own = folder / f"kafka-{node}"
            own.mkdir()
            properties = own / "server.properties"
            properties.write_text(
                PROPERTIES.format(node=node, port=port, controller=controller, data=own / "data", **about)
            )
            run_tool([*start, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)])
            ready = controller if count > 1 else port
            pid = stack.enter_context(running([*start, "kafka.Kafka", str(properties)], own, ready))
            processes.append(KafkaProcess(port, pid))
        yield processes
