"""History: the events that clients of a broker saw, for `linn.testing.invariants` to check.

Laws: an event is recorded when its client sees it, so an event in flight may be recorded after a later action of the
broker; each invariant allows for that. Records are told apart by their values, which are unique. A **life** is the time
from one start of the broker to its end; they are numbered from 1, and an event belongs to the life in which its
connection was made. Offsets, delivery ids and generations are the broker's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

Durability = Literal["memory", "os", "interval", "always"]
"""The durability of records when the broker ends: storage `dram`, or the segmented log's `fsync`."""
How = Literal["stopped", "killed", "lost power", "sync failed"]
"""The end of a life. After a failed sync the content of the disk is unknown: it counts as a power loss."""
Verdict = Literal["ack", "nack", "reject", "extend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPromise:
    """The promises of a topic's settings."""

    name: str
    durability: Durability = "always"
    flush_interval_s: float = 0.1
    """Interval for the durability "interval"."""
    flush_slack_s: float = 1.0
    """Additional time that a sync may take on a slow disk."""
    delivery: Literal["at-least-once", "at-most-once"] = "at-least-once"
    lease_ms: int = 30_000
    redelivery_delay_ms: int = 0
    max_deliveries: int | None = None
    dead_letter: str | None = None
    is_kept: bool = True
    """Whether the log always begins at 0: a stream without retention that was never only a queue."""
    retains: bool = False
    """Whether retention or overflow may drop unsettled records."""
    grows: bool = False
    """Whether partitions were added, after which a key may go to another partition."""
    is_in_order: bool = True
    """Whether the lowest offset is delivered first: it has no other order."""


class DeadLabels(NamedTuple):
    """Labels of a dead letter."""

    topic: str
    partition: int
    offset: int
    reason: str
    attempts: int
    shared: str = ""
    """Named subscription that dead-lettered the record; "": the topic's queue."""


class Copy(NamedTuple):
    """A stored record as a client read it."""

    record: str
    key: str = ""
    dead: DeadLabels | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events."""


# --- the broker's lives ---


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """A partition at the beginning of a life, before any client of that life acted."""

    life: int
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """A life has ended."""

    life: int
    how: How
    since_s: float | None = None
    """The time since which writes may be lost, if it is before the end; on the scale of `Entry.at_s`."""


@dataclass(frozen=True, slots=True)
class Disturbed(Event):
    """A fault began that may keep messages from arriving."""

    what: str
    is_disk_full: bool = False
    """Whether the disk is full; then events besides records may not be written either."""


@dataclass(frozen=True, slots=True)
class Calmed(Event):
    """The end of that fault."""

    what: str


@dataclass(frozen=True, slots=True)
class Altered(Event):
    """A change of a topic's settings, made or requested."""

    topic: str
    change: str


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """A queue, or a named subscription, at the end, after consumers had enough time. They leave when they have read
    everything.
    """

    topic: str
    unsettled: int
    leased: int
    dead: int
    shared: str = ""


# --- publishing ---


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A publish is about to be sent. Records of one producer are numbered in the order of its calls."""

    record: str
    producer: str
    number: int
    topics: tuple[str, ...]
    """Topics in which it is to be stored once."""
    key: str = ""
    committed: bool = True
    """Whether a confirmation means that it is committed; False with acks "none": it is in the log."""


@dataclass(frozen=True, slots=True)
class Confirmed(Event):
    """The broker confirmed a record, with its place if it went to one partition of one topic."""

    life: int
    record: str
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """The broker answered a publish with an error."""

    life: int
    record: str
    code: str


# --- reading ---


@dataclass(frozen=True, slots=True)
class Read(Event):
    """The answer to a fetch from offset `first` on, which was sent when the history had `asked_at` events."""

    life: int
    topic: str
    partition: int
    asked_at: int
    first: int
    start: int
    end: int
    """The high watermark."""
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadThrough(Event):
    """A topic was read from its start to its end, in all partitions, after all publishing had ended."""

    life: int
    topic: str


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """A consumer subscribed; `group` is "" for a queue's, and `shared` names the subscription of a stream.

    A name is never used by another consumer.
    """

    life: int
    consumer: str
    topic: str
    group: str = ""
    releases: bool = False
    """Whether it may release unread records, when it leaves or when half of the lease has passed: the attempt is not
    counted, and no delivery of them is in the history.
    """
    shared: str = ""


@dataclass(frozen=True, slots=True)
class Left(Event):
    """A consumer left: it unsubscribed, or its connection was lost, perhaps with deliveries unread."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Assigned(Event):
    """A member of a group was told its partitions."""

    life: int
    consumer: str
    topic: str
    group: str
    generation: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delivered(Event):
    """Records were delivered to a consumer, from offset `first` on."""

    life: int
    consumer: str
    topic: str
    partition: int
    first: int
    records: tuple[str, ...]
    delivery_id: int = 0
    """0 on a stream."""
    attempt: int = 0
    granted_after_s: float = 0.0
    """The earliest time at which the broker can have granted the lease; 0: not known."""
    group: str = ""
    generation: int = 0
    """The generation that the member knew; 0: not known."""
    shared: str = ""

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.first + len(self.records)


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """A settlement is about to be sent. In a group "ack" commits `end`, and "nack" rereads from `first` on."""

    life: int
    consumer: str
    topic: str
    partition: int
    first: int
    end: int
    verdict: Verdict
    delivery_id: int = 0
    ms: int = 0
    group: str = ""
    generation: int = 0
    shared: str = ""


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """The broker's answer to the settlement with index `asked`; `code` is "" if it was carried out."""

    asked: int
    code: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, its place in the history and the time at which it was seen, in monotonic seconds."""

    index: int
    at_s: float
    event: Event

    def __str__(self) -> str:
        told = ", ".join(f"{field.name}={getattr(self.event, field.name)!r}" for field in fields(self.event))
        return f"{self.index} {self.at_s:.6f} {type(self.event).__name__}({told})"


class History:
    """Events in the order in which they were recorded.

    Example:
        history = History([TopicPromise(name="t")], clock.monotonic)
        history.add(Published("a", "p", 0, ("t",)))
        history.add(Confirmed(1, "a", partition=0, offset=0))
        check(history)
    """

    def __init__(self, topics: list[TopicPromise], monotonic: Callable[[], float]) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.entries: list[Entry] = []
        self._monotonic = monotonic

    def add(self, event: Event) -> int:
        """Record an event; returns its index."""
        index = len(self.entries)
        self.entries.append(Entry(index, self._monotonic(), event))
        return index

    def __len__(self) -> int:
        return len(self.entries)

    def lines(self) -> list[str]:
        """The whole history as text, one event per line. Equal in every process that saw the same."""
        return [str(entry) for entry in self.entries]
