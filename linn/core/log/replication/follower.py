"""A follower of a group in one epoch of one leader.

Laws: each epoch begins anew, of the same leader too (KAFKA-7164): the leader compares the epochs of both logs, the
follower cuts where it says, and only then takes batches. It acknowledges records durable by the topic's policy.
"""

from __future__ import annotations

from collections.abc import Mapping

from linn.core.errors.tree import ProtocolError
from linn.core.log.replication.events import Cut, Follow, Match
from linn.core.log.replication.matching import table_of
from linn.core.log.storage import PartitionLog


class Follower:
    """A follower, from one `Follow` to the next."""

    def __init__(self, leader: int, epoch: int, session: str, logs: Mapping[int, PartitionLog]) -> None:
        self.leader = leader
        self.epoch = epoch
        self.session = session
        self._logs = logs
        self._expected: dict[int, Match] = {}
        """Cuts that are not done."""
        self._matched: dict[int, int] = {}
        """Logs that follow, and the acknowledged end of each."""

    def request(self) -> Follow:
        """The command with the tables of all logs as they are."""
        return Follow(self.leader, self.epoch, self.session, {n: table_of(log) for n, log in self._logs.items()})

    def answered(self, matches: Mapping[int, Match]) -> None:
        """The leader says where to cut. Call `cut` after each one was done. Raises ProtocolError."""
        for number, match in matches.items():
            if match.at < 0 or (isinstance(match, Cut) and match.at > self._end_of(number)):
                raise ProtocolError(f"log {number} is to be cut at {match.at}, and ends at {self._end_of(number)}")
        self._expected = dict(matches)

    def _end_of(self, number: int) -> int:
        return self._logs[number].bounds()[1] if number in self._logs else 0

    def cut(self, number: int) -> None:
        """A cut was done: the log follows from now on."""
        del self._expected[number]
        self._matched[number] = -1

    def follows(self, number: int) -> bool:
        """Whether a log takes batches of the leader."""
        return number in self._matched

    def acknowledge(self, durable: Mapping[int, int]) -> list[tuple[int, int]]:
        """The ends to send, of logs of which more is durable than was acknowledged."""
        ends = []
        for number, acknowledged in self._matched.items():
            end = durable.get(number, acknowledged)
            if end > acknowledged:
                self._matched[number] = end
                ends.append((number, end))
        return ends
