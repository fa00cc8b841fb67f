"""The role of this node in a group, and how it changes: rules S2, S3, L1, L7 and F1.

Laws: a node leads only in the epoch and the session for which the store names it; a restarted one has another session,
and waits to be elected anew. Each new epoch begins a role anew. An older view of the store changes nothing. A node that
is no replica follows no leader: its logs are about to be deleted, and so it must acknowledge nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from linn.core.log.replication.events import Command, GoOffline, Lead, PartView
from linn.core.log.replication.follower import Follower
from linn.core.log.replication.leader import Leader
from linn.core.log.storage import PartitionLog


class Replica:
    """One node's part in a group of logs. Carry out `take_commands` in order, each before the next event."""

    def __init__(self, node: int, session: str, logs: Mapping[int, PartitionLog], minimum: int) -> None:
        """`logs`: by number, 0: the data; `minimum`: the least number of members of the in-sync set."""
        self.node = node
        self.session = session
        self.epoch = 0
        """The latest epoch that this node has seen; 0: none."""
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.watermarks: dict[int, int] = {}
        """Offsets below which everything is known to be committed, by log."""
        self._logs = logs
        self._minimum = minimum
        self._part: PartView | None = None
        self._commands: list[Command] = []

    def take_commands(self) -> list[Command]:
        """The commands since the last call. What a leader commits is noted here."""
        leader, commands = self.leader, self._commands
        self._commands = []
        if leader is not None:
            commands += leader.commands
            leader.commands = []
            self.watermarks |= leader.watermarks()
            if leader.is_over:
                self.leader = None
        return commands

    def viewed(self, part: PartView, now_s: float, *, is_read: bool = False) -> None:
        """The store has, or had, this entry; `is_read`: as the answer to `ReadPart`."""
        if self.leader is not None:
            self.leader.viewed(part, is_read=is_read)
        if part.epoch > self.epoch or self._is_added(part):
            self._begin(part, now_s)

    def _is_added(self, part: PartView) -> bool:
        """Whether this node was no replica in this epoch, and is one now."""
        before = self._part
        is_newer = before is not None and part.epoch == self.epoch and part.revision > before.revision
        return is_newer and before is not None and self.node not in before.replicas and self.node in part.replicas

    def _begin(self, part: PartView, now_s: float) -> None:
        """Take the role of a new epoch."""
        self._commands = self.take_commands()
        self.epoch, self._part = part.epoch, part
        self.leader = self.follower = None
        if part.leader == self.node and part.session == self.session:
            self._commands.append(Lead(part.epoch))
            self.leader = Leader(self.node, part, self._logs, self.watermarks, self._minimum, now_s)
        elif part.leader == self.node:
            self._commands.append(GoOffline(part.epoch, "it was elected in a session that has ended"))
        elif not part.leader:
            self._commands.append(GoOffline(part.epoch, "no leader was elected yet"))
        elif self.node not in part.replicas:
            self._commands.append(GoOffline(part.epoch, "it holds no replica any more"))
        else:
            self._follow(part)

    def _follow(self, part: PartView) -> None:
        self.follower = Follower(part.leader, part.epoch, self.session, self._logs)
        self._commands.append(self.follower.request())

    def follow_again(self) -> None:
        """Follow the same leader anew: the link was lost, or a batch did not fit."""
        if self.follower is not None and self._part is not None:
            self._follow(self._part)

    def set_minimum(self, minimum: int) -> None:
        """Set the least number of members of the in-sync set, which may change at any time."""
        if minimum != self._minimum:
            self._minimum = minimum
            if self.leader is not None:
                self.leader.set_minimum(minimum)

    def session_ended(self) -> None:
        """The lease may have ended: nothing is promised to this session any more."""
        if self.leader is not None:
            self.leader.session_ended(is_expired=True)

    def session_began(self, session: str) -> None:
        """This node has another session. A leader goes on until the store says more; a follower follows in it."""
        self.session = session
        if self.leader is not None:
            self.leader.session_ended(is_expired=False)
        self.follow_again()

    def told(self, number: int, watermark: int) -> int:
        """The leader tells the watermark of a log; returns the one to commit here."""
        known = self.watermarks.get(number, 0)
        if self.follower is not None and self.follower.follows(number):
            known = self.watermarks[number] = max(known, min(watermark, self._logs[number].bounds()[1]))
        return known

    def cut(self, number: int) -> None:
        """A log was cut, or begun anew, as the leader said: it follows from now on."""
        assert self.follower is not None
        self.follower.cut(number)
        start, end = self._logs[number].bounds()
        self.watermarks[number] = max(start, min(self.watermarks.get(number, 0), end))
