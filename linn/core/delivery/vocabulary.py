"""The vocabulary of consuming. The numbers are the native protocol's."""

from __future__ import annotations

from enum import IntEnum

CONNECTION_LEASE_MS = (1 << 32) - 1
"""The duration of a lease that only the end of its consumer's connection ends: the largest that the protocol has."""


class ConsumerKind(IntEnum):
    """The kind of consumer that a subscribe creates."""

    SHARED = 0
    """A consumer of a queue or of a shared subscription: records are leased, or settled on delivery."""
    GROUP = 1
    """A member of a stream's consumer group: partitions are divided among members, offsets are stored."""
    READER = 2
    """A reader of a stream: no state is stored."""


class Verdict(IntEnum):
    """A consumer's verdict on a range of records."""

    ACK = 0
    NACK = 1
    REJECT = 2
    EXTEND = 3
    RELEASE = 4
    READY = 5
    """The consumer can apply the records of a two-phase delivery; the broker answers with the decision to commit."""
    DONE = 6
    """The consumer has applied them."""


class Phase(IntEnum):
    """The phase of a two-phase delivery in which a broker sends its records."""

    NONE = 0
    PREPARE = 1
    COMMIT = 2
    """The records were decided to this consumer before, and it has not reported them done."""


class Place(IntEnum):
    """A place whose offset can be requested."""

    TIME = 0
    EARLIEST = 1
    LATEST = 2
