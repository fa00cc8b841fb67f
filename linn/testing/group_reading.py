"""GroupReading: checks the partitions, deliveries and commits of consumer groups' members.

Laws:
- A member learns its share before it is sent records of it, so the generation that it knows determines the share of a
  delivery. Nothing is concluded if no generation is known.
- A commit counts only under the share in which its records were delivered: if the member lost the partition and gained
  it again meanwhile, the commit is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from linn.testing.finding import Findings
from linn.testing.history import Answered, Asked, Assigned, Delivered, Disturbed, Entry
from linn.testing.log_lives import LogLives

OWNER = "a partition has one owner in a generation"
FENCED = "only the owner commits"
GOES_ON = "a group goes on where it committed"
READS_ON = "a group reads in order"
GROUP_ONCE = "at most once is never twice"

FENCED_CODE = "group.fenced"
Where = tuple[str, str, int]
"""(topic, group, partition)."""


@dataclass(slots=True)
class _Commit:
    entry: Entry
    event: Asked
    answer: Entry | None = None
    accepted: bool = False


@dataclass(slots=True)
class _Share:
    """Ownership of a partition by a member, from gain to loss."""

    entry: Entry
    event: Assigned
    next: int | None = None


class GroupReading:
    """Checks the reading of groups; takes every entry of a history, in order, after `lives`."""

    def __init__(self, lives: LogLives, findings: Findings) -> None:
        self._lives = lives
        self._findings = findings
        self._owners: dict[tuple[Where, int, int], tuple[Entry, str]] = {}
        self._owned: dict[str, list[tuple[Entry, Assigned]]] = defaultdict(list)
        """Assignments by member."""
        self._shares: dict[tuple[str, int], _Share] = {}
        """Current shares by (member, partition)."""
        self._commits: dict[int, _Commit] = {}
        self._firsts: list[tuple[Entry, Delivered, _Share]] = []
        """The first delivery of each share."""
        self._handed: dict[tuple[Where, int, int], tuple[Entry, Delivered]] = {}
        self._disk_was_full = False
        self._set_back: dict[tuple[str, int], list[int]] = defaultdict(list)
        """Offsets from which reading may restart at any time because of a nack, by (member, partition)."""

    def observe(self, entry: Entry) -> None:
        """Record events of groups."""
        match entry.event:
            case Disturbed(is_disk_full=True):
                self._disk_was_full = True
            case Assigned():
                self._assign(entry, entry.event)
            case Delivered(group=group) if group:
                self._deliver(entry, entry.event)
            case Asked(group=group) if group:
                self._ask(entry, entry.event)
            case Answered(asked, code) if asked in self._commits:
                # A commit refused for another reason, such as a full disk, may count nevertheless.
                if code == FENCED_CODE:
                    del self._commits[asked]
                else:
                    self._commits[asked].answer, self._commits[asked].accepted = entry, code == ""

    def _assign(self, entry: Entry, event: Assigned) -> None:
        is_logged = self._lives.topics[event.topic].durability == "always" and not self._disk_was_full
        life = 0 if is_logged else event.life
        for partition in event.partitions:
            where = event.topic, event.group, partition
            first, owner = self._owners.setdefault((where, event.generation, life), (entry, event.consumer))
            if owner != event.consumer:
                text = f"partition {partition} of {event.topic} has two owners in generation {event.generation}"
                self._findings.add(OWNER, f"{text} of {event.group}", first.index, entry.index)
        before = self._owned[event.consumer][-1][1].partitions if self._owned[event.consumer] else ()
        self._owned[event.consumer].append((entry, event))
        for partition in event.partitions:
            if partition not in before:
                self._shares[event.consumer, partition] = _Share(entry, event)

    def _ask(self, entry: Entry, event: Asked) -> None:
        if event.verdict == "ack":
            self._commits[entry.index] = _Commit(entry, event)
        elif event.verdict == "nack":
            self._set_back[event.consumer, event.partition].append(event.first)

    def _deliver(self, entry: Entry, event: Delivered) -> None:
        self._check_once(entry, event)
        share = self._shares.get((event.consumer, event.partition))
        if share is None or not event.generation:
            return
        if share.next is None:
            self._firsts.append((entry, event, share))
        elif event.first != share.next and not self._may_jump(event, share.next):
            text = f"{event.consumer} reads offset {event.first} where {share.next} is next"
            self._findings.add(READS_ON, text, entry.index)
        share.next = event.end

    def _may_jump(self, event: Delivered, expected: int) -> bool:
        """Whether retention dropped the next record, or reading was reset."""
        is_gap = event.first > expected and not self._lives.topics[event.topic].is_kept
        return is_gap or event.first in self._set_back[event.consumer, event.partition]

    def _check_once(self, entry: Entry, event: Delivered) -> None:
        if self._lives.topics[event.topic].delivery != "at-most-once":
            return
        where = event.topic, event.group, event.partition
        for offset in range(event.first, event.end):
            era = self._lives.era((event.topic, event.partition), event.life, offset)
            first, other = self._handed.setdefault((where, era, offset), (entry, event))
            if first is entry:
                continue
            since, until = sorted((other.life, event.life))
            if self._lives.may_lose(event.topic, first.at_s, since, until) is None:
                text = f"offset {offset} of {where} was handed over twice"
                self._findings.add(GROUP_ONCE, text, first.index, entry.index)

    # --- at the end ---

    def finish(self) -> None:
        """Check commits against deliveries."""
        for commit in self._commits.values():
            if commit.accepted and commit.event.generation:
                self._check_owner(commit)
        for entry, event, share in self._firsts:
            self._check_place(entry, event, share)

    def _check_owner(self, commit: _Commit) -> None:
        """Report a commit that was accepted although another member owned the partition before."""
        event, answer = commit.event, commit.answer
        assert answer is not None
        for member, shares in self._owned.items():
            for entry, share in shares:
                later = share.generation > event.generation and share.life == event.life
                same = (share.topic, share.group) == (event.topic, event.group) and event.partition in share.partitions
                if member == event.consumer or not later or not same or entry.index > commit.entry.index:
                    continue
                text = f"a commit of {event.consumer} counts although {member} owns partition {event.partition}"
                self._findings.add(FENCED, text, entry.index, answer.index)

    def _check_place(self, entry: Entry, event: Delivered, share: _Share) -> None:
        """Check that the first offset of a share was committed, and is not below the start that the broker reported."""
        promise = self._lives.topics[event.topic]
        if promise.delivery == "at-most-once":
            return
        commits = [commit for commit in self._commits.values() if _is_of(commit.event, event)]
        if not all(commit.event.generation for commit in commits):
            return  # The share of these commits is not known.
        earlier = [commit for commit in commits if self._is_before(commit, event, share)]
        earlier.sort(key=lambda commit: (commit.event.life, commit.event.generation, commit.entry.index))
        ends, shown = self._places_after(earlier, event)
        if event.first in ends or (event.first > max(ends) and not promise.is_kept):
            return
        text = f"{event.group} goes on at offset {event.first} of {event.topic}, and is at {ends[-1]}"
        self._findings.add(GOES_ON, text, entry.index, *shown)

    def _places_after(self, commits: list[_Commit], event: Delivered) -> tuple[Sequence[int], list[int]]:
        """Return the possible positions of a group after these commits, the likeliest last, and the events that show
        them.
        """
        ends: list[int] = []
        for commit in reversed(commits):
            ends.insert(0, commit.event.end)
            answer = commit.answer
            if answer is None or not commit.accepted:
                continue
            if self._lives.may_lose(event.topic, answer.at_s, commit.event.life, event.life) is None:
                return ends, [commit.entry.index, answer.index]
            return range(max(earlier.event.end for earlier in commits) + 1), []
        return [0, *ends], []

    @staticmethod
    def _is_before(commit: _Commit, event: Delivered, share: _Share) -> bool:
        """Whether a commit must have come before the share began."""
        mine = commit.event
        if mine.life == event.life:
            return 0 < mine.generation < share.event.generation
        return mine.life < event.life


def _is_of(commit: Asked, event: Delivered) -> bool:
    """Whether a commit concerns the partition and the group of a delivery."""
    return (commit.topic, commit.group, commit.partition) == (event.topic, event.group, event.partition)
