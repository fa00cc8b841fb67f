"""The port of dispatch orders: which ready record of a queue is delivered next.

A topic without an order delivers the lowest offset first, and has no index. An order keeps one, of the offsets of ready
records, each with its class: a number that the order has derived from the header columns of the record's batch, such as
a priority, a tenant or the hash of a key.

Laws: an order chooses among ready records and never changes offsets. It does no I/O and reads no clock and no value,
and the same calls have the same answers. A record is in one of three states: added, taken, or unknown to the order.
`take` and `hold` take a record; the broker releases each taken record exactly once: when it is settled, or when it is
ready again, and then it adds the record again at once, with the class that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.loop.memory_budget import IndexedShare

FIFO: Final = "fifo"
"""The value of `order =` in a topic without an order."""
ORDER_WINDOW: Final = 1 << 22
"""Default of the ready records of a partition in an index: 34 to 50 MB in the built-in orders, if it is full."""
INDEX_RECORD_BYTES: Final = 20
"""Memory of a record in an index, as the budget counts it: measured of the built-in order that needs most."""
LEVELS_MAX: Final = 256
"""Limit of the levels of priority: the column of priorities has a byte a record."""
LEVELS_DEFAULT: Final = 10
WEIGHTS_MAX: Final = 1_000
"""Limit of the tenants with a weight: they are part of each description of the topic."""
WEIGHT_MAX: Final = 1_000
"""Limit of a weight: with more, the others would be served once in a thousand records."""


class Taken(NamedTuple):
    """Records that an order takes for one delivery."""

    offsets: Sequence[int]
    """In the order in which they should be delivered."""
    classes: Sequence[int]
    """The class of each."""
    has_more: bool = False
    """Whether to ask again soon even though there are no offsets: the order has stopped searching, to bound the time of
    one call."""


class DispatchOrder(Protocol):
    """The order of one partition of a queue. Synchronous; called in the broker's loop."""

    def classify(self, batch: RecordBatch) -> Sequence[int]:
        """The class of each record of a batch, by its header columns. The body must not be opened.

        Raises BatchMalformed: its records get the class 0.
        """

    def add(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Add ready records, in ascending order: new ones, or records that come back to their place."""

    def take(self, records_max: int) -> Taken:
        """Take the next records, at most `records_max`, which is at least 1.

        Records that are not ready any more, since they were purged or have expired, are returned as others are: the
        broker skips them, and releases them.
        """

    def hold(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Take these records, which were never added: they were leased, decided, delayed or dead when the index was
        built.
        """

    def release(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Release taken records, in ascending order: their key or share is free again."""


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """Settings of a topic for its order."""

    by: str = ""
    """`order_by`: the origin of a record's class; "": the order's default."""
    levels: int = LEVELS_DEFAULT
    weights: Mapping[str, int] = field(default_factory=dict)
    """Shares by the names that `by` finds; 1 for others."""


def _takes_any(options: OrderOptions) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class OrderKind:
    """A dispatch order, as a plugin registers it."""

    name: str
    """The value of `order =` in a topic."""
    make: Callable[[OrderOptions], DispatchOrder]
    """Makes the order of one partition. Does no I/O."""
    takes: frozenset[str] = frozenset()
    """The keys of a topic that it uses: of `order_by`, `weights`, `levels`. Another that is set leads to a warning."""
    by_problem: Callable[[OrderOptions], str | None] = _takes_any
    """The reason why `order_by` is wrong, worded as the end of a line; None if it is right."""
    needs_key_hashes: bool = False
    """Whether the broker adds the column of key hashes to batches that have keys and no such column."""
    settings: None = None
    """None: orders have no table of their own."""


@dataclass(frozen=True, slots=True)
class TopicOrder:
    """The order of a topic; two are equal if no index has to be built anew."""

    name: str
    options: OrderOptions
    window: int
    """The most ready records of a partition in its index."""
    make: Callable[[], DispatchOrder] = field(compare=False)
    """Makes the order of one partition."""
    needs_key_hashes: bool = field(compare=False)
    memory: IndexedShare = field(compare=False)
    """The memory of all indexes of the broker."""
