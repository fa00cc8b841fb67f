"""The plan of a seed: a configuration, its clients, and the course of each life of the broker."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from linn.testing.history import Durability, TopicPromise

ADDRESS = "127.0.0.1:5466"
STORAGES: tuple[Durability, ...] = ("always", "always", "always", "os", "interval", "memory")
FLUSH_INTERVAL_S = 0.1
NODES = ("a", "b", "c")
"""The clients' machines."""
EXCHANGE = "e"
DEAD = "dead"

Death = Literal["stopped", "killed", "lost power", "lost power in an operation", "sync failed"]
"""A machine whose sync failed is turned off before the broker is started again: what its page cache shows may not be on
the disk, and no later sync would put it there."""
DEATHS: tuple[Death, ...] = (
    "stopped",
    "killed",
    "killed",
    "lost power",
    "lost power",
    "lost power in an operation",
    "lost power in an operation",
    "sync failed",
)
ORDERS = ("priority", "fair", "key")
OVERFLOWS = ("block", "reject", "drop-head")
FAULTS = ("cut", "cut one way", "slow", "sever", "sever", "jump", "full disk", "slow disk", "alter")


@dataclass
class TopicPlan:
    """A topic, as TOML says it."""

    name: str
    kind: str
    partitions: int
    storage: Durability
    settings: dict[str, object] = field(default_factory=dict)
    """Further settings of TOML; durations in ms are written as text."""
    key: str | None = None
    """Bound to the exchange with it; None: not bound."""
    kinds: tuple[str, ...] = ()
    """Kinds that it is altered to, now and then; at the end it gets its own back."""
    grows: bool = False

    def toml(self) -> str:
        settings = {"kind": self.kind, "partitions": self.partitions, "storage": self.storage, "retention": "forever"}
        lines = [f"[topics.{self.name}]"]
        for key, value in (settings | self.settings).items():
            lines.append(f"{key} = {value}" if type(value) is int and not key.endswith("_ms") else _text(key, value))
        if self.key is not None:
            lines += [f"[[topics.{self.name}.bindings]]", f'exchange = "{EXCHANGE}"', f'key = "{self.key}"']
        return "\n".join(lines) + "\n"

    def promise(self, flush_slack_s: float) -> TopicPromise:
        said: Any = self.settings
        retains = "retention" in said or "retention_bytes" in said or said.get("overflow") == "drop-head"
        return TopicPromise(
            name=self.name,
            durability=self.storage,
            flush_interval_s=FLUSH_INTERVAL_S,
            flush_slack_s=flush_slack_s,
            delivery=said.get("delivery", "at-least-once"),
            lease_ms=said.get("lease_ms", 30_000),
            redelivery_delay_ms=said.get("redelivery_delay_ms", 0),
            max_deliveries=said.get("max_deliveries"),
            dead_letter=said.get("dead_letter"),
            is_kept=self.kind != "queue" and "queue" not in self.kinds and not retains,
            retains=retains,
            grows=self.grows,
            is_in_order="order" not in said,
        )


@dataclass
class ProducerPlan:
    name: str
    node: str
    topic: str | None
    """None: to the exchange."""
    partition: int
    acks: Literal["none", "leader"]
    is_python: bool
    batch: int
    window: int
    keys: int
    """Number of keys; 0: none."""
    size: int
    pause_s: float
    priorities: int = 1
    """Number of priorities."""
    later: float = 0.0
    """Share of batches that come later."""


@dataclass
class ConsumerPlan:
    name: str
    node: str
    topic: str
    group: str
    mode: Literal["pull", "push", "python"]
    credit: int
    nack: float
    reject: float
    extend: float
    late: float
    """Share of deliveries that are held beyond the lease."""
    leave: float
    """Chance to leave after a delivery, in order or not."""
    shared: str = ""
    """The named subscription of a stream that it competes for, under its own name."""


@dataclass
class LifePlan:
    lasts_s: float
    death: Death
    dies_at: int
    """The number of the operation, or sync, in which power is lost or which fails, from now on."""
    dies_early: bool
    """Whether that counts from before the start."""
    faults: list[tuple[float, str]]
    """(when, which), from the start on."""
    down_s: float


class Plan:
    """All decisions of a run that are made beforehand."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"{seed}/plan")
        self.is_calm = rng.random() < 0.25
        """No faults but deaths: exact properties can be checked then."""
        self.exchange = rng.choice(["fanout", "direct"])
        self.storages: dict[str, Durability] = {}
        self.segment_bytes = rng.choice([4096, 4096, 8192, 1 << 20])
        self.topics = [self._topic(f"t{number}") for number in range(rng.choice([1, 2, 2, 3]))]
        self.topics[0].key = "k0"
        if any("dead_letter" in topic.settings for topic in self.topics):
            storage = rng.choice(["always", rng.choice(STORAGES)])
            self.topics.append(TopicPlan(DEAD, "stream", rng.choice([1, 2]), storage))
        self.producers = [self._producer(f"p{number}") for number in range(rng.choice([1, 2, 2, 3]))]
        self.consumers = [consumer for topic in self.topics for consumer in self._consumers(topic)]
        self.consumers += self._sharing()
        self._add_orders_and_limits()
        deaths = rng.choice([0, 1, 1, 2, 2, 3])
        self.lives = [self._life() for _ in range(deaths)]
        self.last_s = rng.uniform(0.3, 2.0)
        self.last_faults = self._faults(self.last_s)
        self.records_max = rng.choice([8, 16, 30])
        """Limit of the records of one producer."""
        self.sync_delay_s = rng.choice([0.002, 0.02, 0.1])
        self.ends_with_restart = rng.random() < 0.4
        self._add_delays()

    # --- topics ---

    def _topic(self, name: str) -> TopicPlan:
        rng = self.rng
        topic = TopicPlan(name, rng.choice(["queue", "queue", "stream", "both"]), rng.choice([1, 1, 2, 3]), "always")
        topic.storage = rng.choice(STORAGES)
        if rng.random() < 0.5:
            topic.key = rng.choice(["k0", "k1"])
        settings = topic.settings
        if rng.random() < 0.2:
            settings["delivery"] = "at-most-once"
        else:
            settings["lease_ms"] = rng.choice([1000, 2000, 5000])
            self._redelivery(settings)
        if topic.kind != "queue" and rng.random() < 0.2:
            settings["retention_bytes"] = rng.choice([2000, 8000])
        if topic.kind != "queue" and rng.random() < 0.1:
            settings["retention"] = "20s"
        if not self.is_calm and rng.random() < 0.25:
            topic.kinds = ("queue", "both", "stream")
        topic.grows = not self.is_calm and rng.random() < 0.15
        return topic

    def _add_orders_and_limits(self) -> None:
        """Drawn apart, so that they change nothing else."""
        rng = random.Random(f"{self.seed}/orders")
        for topic in self.topics:
            if topic.name == DEAD or topic.kind == "stream":
                continue
            if rng.random() < 0.35:
                topic.settings["order"] = rng.choice(ORDERS)
            if topic.kind == "queue" and not topic.kinds and rng.random() < 0.25:
                topic.settings |= {"records_max": rng.choice([4, 10]), "overflow": rng.choice(OVERFLOWS)}
            for producer in self.producers:
                if producer.topic == topic.name and topic.settings.get("order") == "priority":
                    producer.priorities = 3

    def _add_delays(self) -> None:
        """Drawn apart as well. A clock that is set back by a day delays records by as much."""
        rng = random.Random(f"{self.seed}/delays")
        faults = [name for life in self.lives for _, name in life.faults] + [name for _, name in self.last_faults]
        storages = {topic.name: topic.storage for topic in self.topics}
        for producer in self.producers if "jump" not in faults else ():
            if storages.get(producer.topic or "") == "always" and producer.acks == "leader" and rng.random() < 0.4:
                producer.later = 0.3

    def _redelivery(self, settings: dict[str, object]) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            settings["redelivery_delay_ms"] = rng.choice([100, 700])
            settings["redelivery_backoff"] = rng.choice(["fixed", "linear", "exponential"])
        if rng.random() < 0.6:
            settings["max_deliveries"] = rng.choice([1, 2, 3, 5])
        if rng.random() < 0.7:
            settings["dead_letter"] = DEAD

    # --- clients ---

    def _producer(self, name: str) -> ProducerPlan:
        rng = self.rng
        bound = [topic for topic in self.topics if topic.key is not None]
        to_exchange = bool(bound) and rng.random() < 0.4
        sources = [topic for topic in self.topics if topic.name != DEAD]
        topic = None if to_exchange else rng.choice(sources)
        explicit = topic is not None and rng.random() < 0.3
        return ProducerPlan(
            name=name,
            node=rng.choice(NODES),
            topic=topic.name if topic is not None else None,
            partition=rng.randrange(topic.partitions) if topic is not None and explicit else -1,
            acks=rng.choice(["leader", "leader", "leader", "none"]),
            is_python=rng.random() < 0.4,
            batch=rng.choice([1, 1, 3, 6]),
            window=rng.choice([1, 1, 4]),
            keys=rng.choice([0, 0, 3]) if not explicit else 0,
            size=rng.choice([0, 30, 400]),
            pause_s=rng.choice([0.02, 0.1]),
        )

    def _consumers(self, topic: TopicPlan) -> list[ConsumerPlan]:
        rng = self.rng
        found: list[ConsumerPlan] = []
        if topic.name == DEAD:
            return found
        if topic.kind != "stream" or topic.kinds:
            found += [
                self._consumer(topic, f"{topic.name}.q{number}", "") for number in range(rng.choice([1, 2, 2, 3]))
            ]
        if topic.kind != "queue" or topic.kinds:
            for group in range(rng.choice([0, 1, 1, 2])):
                by_hand = rng.random() < 0.7  # What the Python client knows of generations is not to be seen.
                for number in range(rng.choice([1, 2, 3])):
                    found.append(self._consumer(topic, f"{topic.name}.g{group}.{number}", f"g{group}"))
                    if by_hand and found[-1].mode == "python":
                        found[-1].mode = "push"
        return found

    def _sharing(self) -> list[ConsumerPlan]:
        """Consumers of named subscriptions, which a stream has as long as it stays one.

        Drawn apart, so that they change nothing else.
        """
        rng, found = random.Random(f"{self.seed}/shared"), list[ConsumerPlan]()
        for topic in self.topics:
            if topic.name == DEAD or topic.kind == "queue" or topic.kinds or rng.random() >= 0.3:
                continue
            for shared in ("work", "audit")[: rng.choice([1, 1, 2])]:
                for number in range(rng.choice([1, 2])):
                    found.append(self._consumer(topic, f"{topic.name}.{shared}{number}", "", rng))
                    found[-1].shared = shared
        return found

    def _consumer(self, topic: TopicPlan, name: str, group: str, rng: random.Random | None = None) -> ConsumerPlan:
        rng = rng or self.rng
        return ConsumerPlan(
            name=name,
            node=rng.choice(NODES),
            topic=topic.name,
            group=group,
            mode=rng.choice(["pull", "push", "push", "python"]),
            credit=rng.choice([1, 3, 10]),
            nack=rng.choice([0, 0.2, 0.4]),
            reject=rng.choice([0, 0.1]),
            extend=rng.choice([0, 0.2]),
            late=rng.choice([0, 0, 0.1]),
            leave=rng.choice([0, 0, 0.05]),
        )

    # --- the broker's lives ---

    def _life(self) -> LifePlan:
        rng = self.rng
        lasts_s = rng.choice([0.1, 0.5, 1.0, 2.5]) * rng.uniform(0.5, 1.5)
        return LifePlan(
            lasts_s=lasts_s,
            death=rng.choice(DEATHS),
            dies_at=rng.choice([rng.randrange(12), rng.randrange(120)]),
            dies_early=rng.random() < 0.2,
            faults=self._faults(lasts_s),
            down_s=rng.choice([0.0, 0.3, 3.0]),
        )

    def _faults(self, lasts_s: float) -> list[tuple[float, str]]:
        if self.is_calm:
            return []
        rng = self.rng
        return sorted((rng.uniform(0, lasts_s), rng.choice(FAULTS)) for _ in range(rng.choice([0, 1, 2, 4])))

    # --- the configuration ---

    def promises(self) -> list[TopicPromise]:
        """The promises of the topics."""
        faults = [name for life in self.lives for _, name in life.faults] + [name for _, name in self.last_faults]
        slack_s = 3.0 if "slow disk" in faults or "full disk" in faults else 20 * self.sync_delay_s + 0.1
        return [topic.promise(slack_s) for topic in self.topics]

    def toml(self, life: int) -> str:
        """The broker of one life; its name is the life's number."""
        head = f'[broker]\ndata_dir = "data"\ndrain_timeout = "1s"\nname = "{life}"\ntransaction_storage = "always"\n'
        head += f'[listeners.native]\naddress = "{ADDRESS}"\n'
        head += '[storage.memory]\nengine = "dram"\nmemory_bytes_max = "6KiB"\nscratch_bytes_max = "4KiB"\n'
        for name in ("os", "interval", "always"):
            head += f'[storage.{name}]\nengine = "segmented-log"\nfsync = "{name}"\n'
            head += f'segment_bytes_max = {self.segment_bytes}\nindex_interval_bytes = 512\nflush_interval = "100ms"\n'
        head += f'[exchanges.{EXCHANGE}]\ntype = "{self.exchange}"\n'
        return head + "".join(topic.toml() for topic in self.topics)

    def late_s_max(self) -> float:
        """The longest time that a consumer may hold a lease."""
        leases: list[Any] = [topic.settings.get("lease_ms", 0) for topic in self.topics]
        return 1.6 * max(leases) / 1000 if any(consumer.late for consumer in self.consumers) else 0.0

    def topics_of(self, key: str) -> tuple[str, ...]:
        """The topics to which the exchange routes this routing key."""
        return tuple(t.name for t in self.topics if t.key is not None and (self.exchange == "fanout" or t.key == key))


def _text(key: str, value: object) -> str:
    return f'{key.removesuffix("_ms")} = "{value}ms"' if key.endswith("_ms") else f'{key} = "{value}"'
