"""StoredRecords: compares all clients' views of the logs: records have one place, and stay there.

A record that a client saw at an offset is a fact, for that offset's era. Facts that contradict one another, or that a
later life has lost although it must not, are findings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from linn.testing.finding import Findings
from linn.testing.history import (
    Confirmed,
    Copy,
    DeadLabels,
    Delivered,
    Entry,
    Published,
    Read,
    ReadThrough,
    Recovered,
    Refused,
)
from linn.testing.log_lives import LogLives, Place

STAYS = "a committed record never changes"
LOST = "nothing confirmed is lost"
READABLE = "confirmed means readable"
WATERMARK = "watermarks never go back"
START = "offsets never go back"
ORDER = "a partition keeps the order of each producer"
ONCE = "a record is stored once"
KEYS = "a key stays in its partition"
REFUSED = "what was refused is not stored"
FOREIGN = "only what was published is stored"


@dataclass(slots=True)
class Fact:
    """A record at its place."""

    record: str
    life: int
    """The earliest life in which it was seen."""
    index: int
    at_s: float
    committed: bool
    dead: DeadLabels | None = None


class StoredRecords:
    """Checks stored records; takes every entry of a history, in order, after `lives`."""

    def __init__(self, lives: LogLives, findings: Findings) -> None:
        self._lives = lives
        self._findings = findings
        self.published: dict[str, tuple[int, Published]] = {}
        """The (index, event) of each record."""
        self.confirmed: dict[str, tuple[Entry, Confirmed]] = {}
        self.facts: dict[Place, dict[tuple[int, int], Fact]] = {}
        """Facts by (era, offset)."""
        self._keys: dict[tuple[str, str], tuple[int, int]] = {}
        self._floors: dict[Place, _Floor] = {}
        self._starts: dict[Place, _Floor] = {}
        self._begins: dict[Place, dict[int, int]] = {}
        """The highest start seen in each life."""
        self._partitions: dict[str, set[int]] = {}
        """The partitions of each topic at the broker's start."""

    def observe(self, entry: Entry) -> None:
        """Record the records and their places that an event shows."""
        match entry.event:
            case Published():
                self.published[entry.event.record] = entry.index, entry.event
            case Confirmed():
                self._confirm(entry, entry.event)
            case Recovered():
                self._begin(entry.event)
                self._recover(entry, entry.event)
            case Read():
                self._begin(entry.event)
                self._read(entry, entry.event)
            case Delivered():
                self._deliver(entry, entry.event)

    # --- events ---

    def _confirm(self, entry: Entry, event: Confirmed) -> None:
        self.confirmed[event.record] = entry, event
        published = self.published[event.record][1]
        if event.offset >= 0:
            place = (published.topics[0], event.partition)
            self._know(entry, event.life, place, event.offset, Copy(event.record, published.key), published.committed)
            if published.committed:
                self._raise(entry, event.life, place, event.offset + 1)

    def _deliver(self, entry: Entry, event: Delivered) -> None:
        place = event.topic, event.partition
        for offset, record in enumerate(event.records, event.first):
            self._know(entry, event.life, place, offset, Copy(record))
        self._raise(entry, event.life, place, event.end)

    def _read(self, entry: Entry, event: Read) -> None:
        place = event.topic, event.partition
        if event.life == self._lives.life:
            self._compare_bounds(entry, event, place)
        for offset, copy in enumerate(event.copies, event.first):
            self._know(entry, event.life, place, offset, copy)
        if event.start <= event.first < event.end and not event.copies:
            text = f"{place} answers a fetch from {event.first} with nothing although it goes up to {event.end}"
            self._findings.add(READABLE, text, entry.index)
        if event.start and self._lives.topics[event.topic].is_kept:
            self._findings.add(LOST, f"{place} has no retention and begins at {event.start}", entry.index)
        self._raise(entry, event.life, place, event.end)
        if event.life == self._lives.life:
            self._starts.setdefault(place, _Floor()).raise_to(event.start, entry.index, False)

    def _begin(self, event: Recovered | Read) -> None:
        starts = self._begins.setdefault((event.topic, event.partition), {})
        starts[event.life] = max(event.start, starts.get(event.life, 0))

    def _compare_bounds(self, entry: Entry, event: Read, place: Place) -> None:
        floor = self._floors.setdefault(place, _Floor()).at(event.asked_at)
        if floor is not None and event.end < floor[1]:
            name = READABLE if floor[3] else WATERMARK
            text = f"{place} ends at {event.end}, and was known to go up to {floor[1]} before it was asked"
            self._findings.add(name, text, floor[2], entry.index)
        start = self._starts.setdefault(place, _Floor()).at(event.asked_at)
        if start is not None and event.start < start[1]:
            text = f"{place} begins at {event.start}, and had begun at {start[1]} before it was asked"
            self._findings.add(START, text, start[2], entry.index)

    def _raise(self, entry: Entry, life: int, place: Place, end: int) -> None:
        """Record that the watermark was seen at `end`."""
        if life == self._lives.life:
            self._floors.setdefault(place, _Floor()).raise_to(end, entry.index, isinstance(entry.event, Confirmed))

    def _recover(self, entry: Entry, event: Recovered) -> None:
        self._partitions.setdefault(event.topic, set()).add(event.partition)
        place = event.topic, event.partition
        self._starts[place] = _Floor()
        self._floors[place] = _Floor()
        self._floors[place].raise_to(event.end, entry.index, False)
        if event.start and self._lives.topics[event.topic].is_kept:
            self._findings.add(LOST, f"{place} has no retention and begins at {event.start}", entry.index)
        for (era, offset), fact in self.facts.get(place, {}).items():
            if offset >= event.end and self._lives.era(place, event.life - 1, offset) == era:
                self._check_loss(place, offset, fact, event.life, entry.index)

    def _know(self, entry: Entry, life: int, place: Place, offset: int, copy: Copy, committed: bool = True) -> None:
        era = self._lives.era(place, life, offset)
        facts = self.facts.setdefault(place, {})
        known = facts.get((era, offset))
        if known is not None and known.record != copy.record:
            text = f"offset {offset} of {place} was {known.record!r} and is {copy.record!r}"
            self._findings.add(STAYS, text, known.index, entry.index)
            return
        if known is None:
            known = facts[era, offset] = Fact(copy.record, life, entry.index, entry.at_s, committed)
            self._check_origin(place, copy, entry.index)
        elif committed and not known.committed:
            known.committed, known.index = True, entry.index
        known.dead = known.dead or copy.dead
        lost_in = self._lives.lost_in(place, life, offset)
        if lost_in is not None:
            self._check_loss(place, offset, known, lost_in, entry.index)

    def _check_loss(self, place: Place, offset: int, fact: Fact, life: int, index: int) -> None:
        since = max(fact.life, self._lives.known_before(place, life))
        if self._lives.may_lose(place[0], fact.at_s, since, life, committed=fact.committed) is None:
            text = f"{fact.record!r} was at offset {offset} of {place} and is gone in life {life}"
            self._findings.add(LOST, text, fact.index, index)

    def _check_origin(self, place: Place, copy: Copy, index: int) -> None:
        if copy.dead is not None:
            return
        origin = self.published.get(copy.record)
        if origin is None or (place[0] not in origin[1].topics and self._is_no_dead_letter_topic(place[0])):
            self._findings.add(FOREIGN, f"{place} holds {copy.record!r}", index)
            return
        key = origin[1].key
        if key and place[0] in origin[1].topics and not self._lives.topics[place[0]].grows:
            partition, earlier = self._keys.setdefault((place[0], key), (place[1], index))
            if partition != place[1]:
                text = f"key {key!r} of {place[0]} is in partitions {partition} and {place[1]}"
                self._findings.add(KEYS, text, earlier, index)

    def _is_no_dead_letter_topic(self, topic: str) -> bool:
        return all(promise.dead_letter != topic for promise in self._lives.topics.values())

    # --- at the end ---

    def alive(self, place: Place, life: int) -> list[tuple[int, Fact]]:
        """Return the records of a life that any client saw, with their offsets, in order."""
        found = [
            (offset, fact)
            for (era, offset), fact in self.facts.get(place, {}).items()
            if fact.life <= life and self._lives.era(place, life, offset) == era
        ]
        return sorted(found, key=lambda each: each[0])

    def finish(self, entries: list[Entry]) -> None:
        """Make the checks that need the whole history."""
        for place in self.facts:
            for life in range(1, self._lives.life + 1):
                self._check_order(place, life)
        for life in range(1, self._lives.life + 1):
            self._check_once(life)
        for entry in entries:
            if isinstance(entry.event, Refused):
                self._check_refused(entry, entry.event)
            elif isinstance(entry.event, ReadThrough):
                self._check_there(entry, entry.event)

    def _check_there(self, entry: Entry, event: ReadThrough) -> None:
        """Check that all confirmed records are in a log that keeps everything."""
        if not self._lives.topics[event.topic].is_kept:
            return
        there = {fact.record for place in self.places(event.topic) for _, fact in self.alive(place, event.life)}
        for record, (confirmed, answer) in self.confirmed.items():
            published = self.published[record][1]
            if event.topic in published.topics and record not in there:
                life, committed = answer.life, published.committed
                if self._lives.may_lose(event.topic, confirmed.at_s, life, event.life, committed=committed) is None:
                    self._findings.add(LOST, f"{record!r} is not in {event.topic}", confirmed.index, entry.index)

    def _check_order(self, place: Place, life: int) -> None:
        last: dict[str, tuple[int, Fact]] = {}
        seen: dict[str, Fact] = {}
        for _, fact in self.alive(place, life):
            origin = self.published.get(fact.record)
            if origin is None or fact.dead is not None or place[0] not in origin[1].topics:
                continue
            event, earlier = origin[1], seen.setdefault(fact.record, fact)
            if earlier is not fact:
                self._findings.add(ONCE, f"{place} holds {fact.record!r} twice", earlier.index, fact.index)
                continue
            before = last.get(event.producer)
            if before is not None and before[0] > event.number:
                text = f"{place} has {fact.record!r} behind {before[1].record!r}"
                self._findings.add(ORDER, text, before[1].index, fact.index)
            last[event.producer] = event.number, fact

    def _check_once(self, life: int) -> None:
        """Check that no record is in two partitions of a topic."""
        for topic, promise in self._lives.topics.items():
            if promise.grows:
                continue
            seen: dict[str, tuple[Place, Fact]] = {}
            for place in self.places(topic):
                for _, fact in self.alive(place, life):
                    earlier, first = seen.setdefault(fact.record, (place, fact))
                    if earlier != place and fact.dead is None:
                        text = f"{earlier} and {place} hold {fact.record!r}"
                        self._findings.add(ONCE, text, first.index, fact.index)

    def _check_refused(self, entry: Entry, event: Refused) -> None:
        published = self.published[event.record][1]
        is_whole = len(published.topics) == 1 and self._partitions[published.topics[0]] == {0}
        if event.code.startswith("storage.") and not is_whole:
            return  # The disk may have had room for the part of one partition, and not for the next.
        for place, facts in self.facts.items():
            for fact in facts.values():
                if fact.record == event.record and place[0] in published.topics:
                    text = f"{event.record!r} was refused with {event.code} and is in {place}"
                    self._findings.add(REFUSED, text, entry.index, fact.index)

    def was_dropped(self, place: Place, offset: int, life: int) -> bool:
        """Whether a client saw the log begin after an offset, in this life or later."""
        return any(start > offset for seen, start in self._begins.get(place, {}).items() if seen >= life)

    def places(self, topic: str) -> Iterator[Place]:
        """Return the partitions of a topic that any client saw."""
        return (place for place in self.facts if place[0] == topic)


class _Floor:
    """The greatest value seen up to each index of the history."""

    def __init__(self) -> None:
        self._indices: list[int] = []
        self._steps: list[tuple[int, int, bool]] = []

    def raise_to(self, value: int, index: int, by_confirmation: bool) -> None:
        """Record a value."""
        if not self._steps or value > self._steps[-1][0]:
            self._indices.append(index)
            self._steps.append((value, index, by_confirmation))

    def at(self, asked_at: int) -> tuple[int, int, int, bool] | None:
        """Return the greatest value seen before, as (place, value, index, by confirmation); None if there is none."""
        place = bisect_left(self._indices, asked_at) - 1
        return (place, *self._steps[place]) if place >= 0 else None
