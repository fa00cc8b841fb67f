"""The leader of a group in one epoch: watermarks and the in-sync set.

Laws (rules of `tests/models/replication.py`):

- A watermark is the least acknowledged end of the counted members: the in-sync set as the store has it, with members
  whose removal is not known to be done, and members whose addition was asked for. While the set is below the least
  number, it moves no further than to the end that the log had when the epoch began.
- An acknowledgement counts in the epoch and from the session in which its follower was matched.
- The set never shrinks below the least number: its members hold everything, dead or not; the controller goes lower.
- A node is added when it follows in this epoch, has everything below all watermarks, and these have reached the ends
  that the logs had when the epoch began; and only in the session in which it follows, which the store compares.
- A change whose outcome is unknown is settled by a revision of the entry after the one on which it depends; until then
  both sets are counted.
- After this node's session has ended the set stays as it is. The leader goes on while all members follow it: then no
  other node can lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import ProtocolError
from linn.core.log.replication.events import (
    ChangeIsr,
    Command,
    Commit,
    GoOffline,
    Lag,
    LogTable,
    Match,
    PartView,
    ReadPart,
    Recovered,
)
from linn.core.log.replication.matching import check_table, match_logs, table_of
from linn.core.log.storage import PartitionLog

LOST_S = 2.0
"""Time without a word, or a link, after which a member is removed: publishes wait for as long when a follower dies. It
is told in whole pauses between pings (0.5 s), which come in time however long the follower's disk takes for records: it
syncs in threads. So three pings in a row are missing. At most 2.75 s after the last word the store is asked."""
LAG_S = 10.0
"""Time that a member may be behind before it is removed."""
READ_AGAIN_S = 0.5
"""Pause between reads of an entry that may have been changed, and before a change after one that was refused."""
UNKNOWN = -1


@dataclass(slots=True)
class _Log:
    """A watermark, and what moves it."""

    log: PartitionLog
    promised: int
    """The end when the epoch began."""
    watermark: int
    durable: int = 0


@dataclass(slots=True)
class _Peer:
    """Another node, as far as it follows."""

    session: str = ""
    """The session in which it follows; empty: it does not."""
    heard_s: float = 0.0
    """When its last word came."""
    silent_s: Callable[[], float] = float
    """The time since then."""
    ends: dict[int, int] = field(default_factory=dict)
    """Ends acknowledged in this epoch, by log."""
    goal: dict[int, int] = field(default_factory=dict)
    """The ends of the logs at `goal_s`: when it has them, it was in sync then."""
    goal_s: float = 0.0
    in_sync_s: float = 0.0


class Leader:
    """A leader, from its election to its end. Commands collect in `commands`, in order."""

    def __init__(
        self,
        node: int,
        part: PartView,
        logs: Mapping[int, PartitionLog],
        watermarks: Mapping[int, int],
        minimum: int,
        now_s: float,
    ) -> None:
        """`watermarks`: what the last leader told; `minimum`: the least number of members of the in-sync set."""
        self.part = part
        self.commands: list[Command] = []
        self.is_over = False
        """Whether another may lead: it does nothing more."""
        self._node = node
        self._minimum = minimum
        self._logs = {number: _Log(log, log.bounds()[1], watermarks.get(number, 0)) for number, log in logs.items()}
        self._removed: set[int] = set()
        """Logs that were deleted in this epoch, of which followers may still tell."""
        self._began_s = self._now_s = now_s
        self._peers: dict[int, _Peer] = {}
        self._change: ChangeIsr | None = None
        """The change of the in-sync set that was asked for."""
        self._is_unknown = False
        """Whether the outcome of the change is unknown."""
        self._is_refused = False
        """Whether it was refused when it was tried again: then it never will be made, but may have been."""
        self._again_s = now_s
        """When the entry may be read, or a change be asked for, again."""
        self._is_frozen = self._is_expired = self._has_recovered = False
        self._counted = part.isr
        self._advance_all()

    # --- watermarks --------------------------------------------------------------------------------------------------

    @property
    def has_enough(self) -> bool:
        """Whether enough members follow, or may be back in a moment, for new records to be committed."""
        return len([node for node in self._counted if node == self._node or self._may_follow(node)]) >= self._minimum

    def _may_follow(self, node: int) -> bool:
        return self._now_s - self._peer(node).heard_s < LOST_S

    def watermarks(self) -> dict[int, int]:
        """The offset of each log below which everything is committed."""
        return {number: log.watermark for number, log in self._logs.items()}

    def set_minimum(self, minimum: int) -> None:
        """Set the least number of members: with a lower one, what waits may be committed."""
        self._minimum = minimum
        self._advance_all()

    def add_log(self, number: int, log: PartitionLog) -> None:
        """Lead another log, which has just been made: followers follow again to learn of it."""
        self._logs[number] = _Log(log, log.bounds()[1], log.bounds()[0])

    def remove_log(self, number: int) -> None:
        """A log was deleted: it holds up nothing any more."""
        del self._logs[number]
        self._removed.add(number)
        for peer in self._peers.values():
            peer.ends.pop(number, None)
            peer.goal.pop(number, None)
        self._advance_all()

    def durable(self, number: int, offset: int) -> None:
        """The leader's own log is durable up to an offset, by the topic's policy."""
        self._logs[number].durable = offset
        self._advance(number)

    def acknowledged(self, node: int, session: str, ends: Iterable[tuple[int, int]]) -> None:
        """A follower holds its logs up to these offsets, durably by the topic's policy.

        Raises ProtocolError: an end beyond the leader's, or before the last one.
        """
        peer = self._peer(node)
        if self.is_over or peer.session != session:
            return  # It was matched in another session, and has said this before.
        for number, end in ends:
            if number in self._removed:
                continue
            if number not in self._logs:
                raise ProtocolError(f"node {node} acknowledges log {number}, which the leader does not have")
            last = self._logs[number].log.bounds()[1]
            if not max(0, peer.ends.get(number, UNKNOWN)) <= end <= last:
                raise ProtocolError(f"node {node} holds log {number} up to {end}, which ends at {last}")
            peer.ends[number] = end
            self._advance(number)
        if all(peer.ends.get(number, UNKNOWN) >= end for number, end in peer.goal.items()):
            peer.in_sync_s = peer.goal_s
            self._set_goal(peer)

    def _advance_all(self) -> None:
        for number in self._logs:
            self._advance(number)
        self._note_recovered()

    def _advance(self, number: int) -> None:
        log = self._logs[number]
        offset = log.durable
        for member in self._counted:
            if member != self._node:
                offset = min(offset, self._peer(member).ends.get(number, UNKNOWN))
        if len(self.part.isr) < self._minimum:
            offset = min(offset, log.promised)
        if offset > log.watermark and not self.is_over:
            log.watermark = offset
            self.commands.append(Commit(number, offset))
            self._note_recovered()

    def _note_recovered(self) -> None:
        if not self._has_recovered and self._is_recovered():
            self._has_recovered = True
            self.commands.append(Recovered())

    def _is_recovered(self) -> bool:
        return all(log.watermark >= log.promised for log in self._logs.values())

    # --- followers ---------------------------------------------------------------------------------------------------

    def followed(
        self,
        node: int,
        epoch: int,
        session: str,
        tables: Mapping[int, LogTable],
        silent_s: Callable[[], float],
        now_s: float,
    ) -> dict[int, Match]:
        """Match a follower's logs with the leader's; returns where each has to be cut. A log that it lacks is empty.

        Its acknowledgements count from now on, and none from before. The caller closes the node's other links: an
        older one must not end what this one has begun. `silent_s` tells the time since the node's last word.

        Raises NotLeader: it means another epoch, or this one is over. ProtocolError: a table is wrong.
        """
        if self.is_over or epoch != self.part.epoch:
            text = f"node {self._node} leads in epoch {self.part.epoch}, not {epoch}"
            raise NotLeader(text, leader=self.part.leader, epoch=self.part.epoch)
        for table in tables.values():
            check_table(table)
        peer = self._peer(node)
        peer.session, peer.heard_s, peer.silent_s, peer.ends = session, now_s, silent_s, {}
        self._now_s = now_s
        self._set_goal(peer)
        nothing = LogTable(0, 0, ())
        return {
            number: match_logs(table_of(log.log), tables.get(number, nothing)) for number, log in self._logs.items()
        }

    def unfollowed(self, node: int, session: str, now_s: float) -> None:
        """The link to a follower is lost."""
        peer = self._peer(node)
        if peer.session == session:
            peer.session, peer.heard_s = "", now_s - peer.silent_s()

    def _peer(self, node: int) -> _Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(heard_s=self._began_s, in_sync_s=self._began_s)
        return peer

    def _set_goal(self, peer: _Peer) -> None:
        peer.goal = {number: log.log.bounds()[1] for number, log in self._logs.items()}
        peer.goal_s = self._now_s

    def lags(self, now_s: float) -> dict[int, Lag]:
        """Measure how far the other replicas are behind, by node."""
        return {node: self._lag(node, now_s) for node in sorted(self.part.replicas - {self._node})}

    def _lag(self, node: int, now_s: float) -> Lag:
        peer = self._peer(node)
        is_linked = bool(peer.session) and self._may_follow(node)
        behind_s = now_s - min(peer.in_sync_s, peer.heard_s)
        if not peer.ends:
            return Lag(is_linked, None, behind_s)
        missing = 0
        for number, log in self._logs.items():
            start, end = log.log.bounds()
            missing += end - max(start, peer.ends.get(number, start))
        return Lag(is_linked, missing, 0.0 if is_linked and not missing else behind_s)

    # --- the in-sync set ---------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Time has passed: end, or ask for changes of the in-sync set. Several times a second."""
        self._now_s = now_s
        if self.is_over:
            return
        for peer in self._peers.values():
            if peer.session:
                peer.heard_s = now_s - peer.silent_s()
        if self._is_expired and any(
            member != self._node and not self._peer(member).session for member in self._counted
        ):
            self._end("its session has ended, and a member of the in-sync set does not follow")
        elif self._change is not None:
            if self._is_unknown and now_s >= self._again_s:
                self._read()
        elif not self._is_frozen and now_s >= self._again_s:
            self._change_isr()

    def _change_isr(self) -> None:
        outside = self.part.replicas - self.part.isr - self.part.unfit
        added = {node: self._peer(node).session for node in outside if self._may_join(node)}
        removed = frozenset() if added else self._leaving()
        if added or removed:
            self._change = ChangeIsr(self.part.revision, (self.part.isr | added.keys()) - removed, added)
            self._counted = self.part.isr | added.keys()
            self.commands.append(self._change)

    def _may_join(self, node: int) -> bool:
        peer = self._peer(node)
        holds = all(peer.ends.get(number, UNKNOWN) >= log.watermark for number, log in self._logs.items())
        return bool(peer.session) and self._may_follow(node) and holds and self._is_recovered()

    def _leaving(self) -> frozenset[int]:
        """The members to remove, the longest lost first, as far as the least number allows."""
        lost = [(peer.heard_s, member) for member in self.part.isr if self._is_lost(member, peer := self._peer(member))]
        return frozenset(member for _, member in sorted(lost)[: max(0, len(self.part.isr) - self._minimum)])

    def _is_lost(self, member: int, peer: _Peer) -> bool:
        if member == self._node:
            return False
        if not self._may_follow(member):
            return True
        if peer.session and all(
            peer.ends.get(number, UNKNOWN) >= log.log.bounds()[1] for number, log in self._logs.items()
        ):
            peer.in_sync_s = self._now_s
        return self._now_s - peer.in_sync_s >= LAG_S

    def changed(self, change: ChangeIsr, revision: int) -> None:
        """The store has made a change; `revision` is that of the entry since then."""
        if change is self._change:
            unfit = self.part.unfit - (self.part.isr - change.isr)
            self._settle(self.part._replace(revision=revision, isr=change.isr, unfit=unfit))

    def refused(self, change: ChangeIsr) -> None:
        """The store has not made a change: the entry or a session is another one. An earlier try may have been made."""
        if change is self._change:
            self._is_refused = True
            if not self._is_unknown:
                self._settle(self.part)
            self._read()

    def lost_answer(self, change: ChangeIsr) -> None:
        """It is unknown whether a change was made, or yet will be."""
        if change is self._change:
            self._is_unknown = True
            self._read()

    def _read(self) -> None:
        self._again_s = self._now_s + READ_AGAIN_S
        self.commands.append(ReadPart())

    def viewed(self, part: PartView, *, is_read: bool = False) -> None:
        """The entry as the store has it, or had it: older ones change nothing. `is_read`: the answer to `ReadPart`."""
        if self.is_over:
            return
        if part.epoch > self.part.epoch:
            self.is_over = True  # The role in that epoch follows; if it is to lead again, what waits goes on waiting.
        elif part.revision > self.part.revision:
            self._settle(part)  # A change that depends on the revision before was made by now, or never will be.
        elif is_read and self._change is not None and self._is_unknown:
            if self._is_refused:
                self._settle(self.part)
            else:  # It may still be made; tried again, it can't be made twice.
                self.commands.append(self._change)

    def _settle(self, part: PartView) -> None:
        self.part, self._change = part, None
        self._is_unknown = self._is_refused = False
        self._counted = part.isr
        self._advance_all()

    # --- the end -----------------------------------------------------------------------------------------------------

    def session_ended(self, *, is_expired: bool) -> None:
        """This node's session is another one now, or (`is_expired`) there is none as far as it knows."""
        self._is_frozen, self._is_expired = True, is_expired

    def session_held(self, session: str) -> None:
        """This node's session can't have ended, and is this one: perhaps the one in which it was elected."""
        self._is_expired = False
        if session == self.part.session:
            self._is_frozen = False

    def _end(self, reason: str) -> None:
        self.is_over = True
        self.commands.append(GoOffline(self.part.epoch, reason))
