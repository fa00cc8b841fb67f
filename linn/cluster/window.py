"""Windows: limits of requests without an answer, which both sides of a link count in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.wire import messages as m

LANES_MAX = 10_000
"""Open lanes of one link: as many as a broker has clients by default. Each takes about 3 KiB."""
LANE_REQUESTS_MAX = 64
LANE_BYTES_MAX = 1 << 20
"""One lane that waits for room takes at most a sixteenth of the link's bytes; the largest verb is as large."""
REQUESTS_MAX = 4_096
"""Requests of all lanes of one link, each of some KiB with its task."""
BYTES_MAX = 16 << 20
"""Memory for the requests of one link."""
FIRST_BYTES_MAX = 4 << 10
"""Size up to which a lane's only request is always allowed: the lanes of a link take 40 MiB so at most."""
OPEN_CHARACTERS_MAX = 16 << 10
"""Limit of the texts that open a lane. A token with its roles has at most 8 KiB."""

LOG_BYTES, ROW_BYTES = 32, 16
"""Sizes of a log's table without its rows, and of one row, or of one end of a log."""
SETTLEMENT_BYTES = 40
"""Size of one settlement."""


class Limits(NamedTuple):
    """The limits of one link."""

    lanes_max: int = LANES_MAX
    lane_requests_max: int = LANE_REQUESTS_MAX
    lane_bytes_max: int = LANE_BYTES_MAX
    requests_max: int = REQUESTS_MAX
    bytes_max: int = BYTES_MAX


class Window:
    """Requests without an answer, of one lane or of all."""

    __slots__ = ("_bytes", "_bytes_max", "_requests_max", "requests")

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.requests = 0

    def has_room(self, size: int) -> bool:
        """Whether one more request of this size is allowed; a single one may have any size."""
        if not self.requests:
            return True
        return self.requests < self._requests_max and self._bytes + size <= self._bytes_max

    def has_room_for(self, lane: Window, size: int) -> bool:
        """Whether the window of a link allows one more request in a lane, whose own window has room for it.

        A lane may have half as many bytes as are left to all: however many lanes wait, others get some. And one without
        a request may make a small one in any case.
        """
        if not self.requests or (not lane.requests and size <= FIRST_BYTES_MAX):
            return True
        left = self._bytes_max - self._bytes
        return self.requests < self._requests_max and (
            lane._bytes + size <= left // 2 if lane.requests else size <= left
        )

    def take(self, size: int) -> None:
        """Count a request."""
        self.requests += 1
        self._bytes += size

    def give_back(self, size: int) -> None:
        """Count the answer to a request."""
        self.requests -= 1
        self._bytes -= size


WAITING = m.OpenTransactions | m.AddBranch | m.EndTransaction | m.JoinTransaction | m.MarkTransaction
"""Requests about transactions, which may wait for replicas, or for other brokers."""


def counts_in_link(message: m.Message) -> bool:
    """Whether a request counts in the window of its link, not only in that of its lane.

    Followers, consumers, fetches that wait for records, and transactions wait for long, each in a lane of its own: many
    of them would leave no room for other requests.
    """
    if isinstance(message, m.Fetch):
        return not message.wait_max_ms
    return not isinstance(message, m.Replicate | m.Pull | m.Goodbye | WAITING)


def size_of(message: m.Message, batches: Sequence[RecordBatch] = ()) -> int:
    """The size of a request, as windows count it: its batches, the text of a verb's arguments, a follower's tables,
    settlements."""
    size = sum([batch.size for batch in batches])
    if isinstance(message, m.Administer):
        size += len(message.arguments)
    elif isinstance(message, m.Follow):
        size += sum([LOG_BYTES + ROW_BYTES * len(table.epochs) for table in message.logs])
    elif isinstance(message, m.Replicate):
        size += ROW_BYTES * len(message.ends)
    elif isinstance(message, m.Settle):
        size += SETTLEMENT_BYTES * len(message.entries) + sum(map(len, message.reasons))
    elif isinstance(message, m.SettleInTransaction):
        size += SETTLEMENT_BYTES * len(message.entries)
    elif isinstance(message, m.Commit):
        size += len(message.text)
    return size
