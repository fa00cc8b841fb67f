"""DeadLetters: checks the final dead-letter topics against the consumers' settlements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from linn.testing.finding import Findings
from linn.testing.history import DeadLabels, Entry, ReadThrough
from linn.testing.log_lives import LogLives, Place
from linn.testing.queue_deliveries import Key, QueueDeliveries
from linn.testing.stored_records import Fact, StoredRecords

DEAD_ONCE = "a dead letter comes once"
DEAD_TRUE = "a dead letter tells the truth"
DEAD_THERE = "no dead letter is missing"
SETTLED_ONE_WAY = "a record is acked or dead, not both"


@dataclass(frozen=True, slots=True)
class _Letter:
    place: Place
    offset: int
    fact: Fact
    labels: DeadLabels


class DeadLetters:
    """Checks the dead-letter topics that were read to their end, for the queues or named subscriptions of `queues`. It
    takes every entry of a history, in order.
    """

    def __init__(self, lives: LogLives, stored: StoredRecords, queues: QueueDeliveries, findings: Findings) -> None:
        self._lives = lives
        self._stored = stored
        self._queues = queues
        self._findings = findings
        self._read: dict[str, int] = {}

    def observe(self, entry: Entry) -> None:
        """Record the dead letters that were read."""
        if isinstance(entry.event, ReadThrough):
            self._read[entry.event.topic] = entry.event.life

    def finish(self) -> None:
        """Compare the dead letters with the records."""
        letters: dict[tuple[str, int, int, str], _Letter] = {}
        for topic, life in self._read.items():
            for place in self._stored.places(topic):
                for offset, fact in self._stored.alive(place, life):
                    if fact.dead is not None and fact.dead.shared == self._queues.shared:
                        self._check_letter(_Letter(place, offset, fact, fact.dead), letters)
        for key, deliveries in self._queues.by_record.items():
            topic = key[0][0]
            promise = self._lives.topics[topic]
            if promise.dead_letter in self._read and topic in self._queues.drained:
                record = deliveries[0][1].records[key[2] - deliveries[0][1].first]
                self._check_record(key, record, letters.get((*key[0], key[2], record)))

    def _check_letter(self, letter: _Letter, letters: dict[tuple[str, int, int, str], _Letter]) -> None:
        labels, fact = letter.labels, letter.fact
        source = labels.topic, labels.partition
        name = (*source, labels.offset, fact.record)
        first = letters.setdefault(name, letter)
        if first is not letter and not self._was_forgotten(labels.topic, letter.place[0]):
            text = f"{fact.record!r} of offset {labels.offset} of {source} is there twice"
            self._findings.add(DEAD_ONCE, text, first.fact.index, fact.index)
        known = [
            (key, fact.record) for key, fact in self._stored.facts.get(source, {}).items() if key[1] == labels.offset
        ]
        is_another = known and fact.record not in [record for _, record in known]
        if is_another and not self._was_forgotten(labels.topic):
            text = f"offset {labels.offset} of {source} is {known[0][1]!r} and not {fact.record!r}"
            self._findings.add(DEAD_TRUE, text, fact.index)
        eras = [key[0] for key, record in known if record == fact.record]
        if eras:
            self._check_reason((source, eras[-1], labels.offset), letter)

    def _was_forgotten(self, *topics: str) -> bool:
        """Whether a power loss may have taken the topic's record of the copy."""
        return any(self._lives.may_lose(topic, math.inf, 1, self._lives.life) for topic in topics)

    def _check_reason(self, key: Key, letter: _Letter) -> None:
        labels, promise = letter.labels, self._lives.topics[letter.labels.topic]
        attempts = {event.attempt for _, event in self._queues.by_record.get(key, [])}
        rejected = any(settlement.event.verdict == "reject" for settlement in self._queues.settled.get(key, []))
        text = f"{letter.fact.record!r} is said to be dead by {labels.reason} after {labels.attempts} attempts"
        if labels.reason == "rejected":
            wrong = not rejected or labels.attempts not in attempts
        else:
            wrong = labels.reason != "max_deliveries" or labels.attempts != promise.max_deliveries
        if wrong:
            self._findings.add(DEAD_TRUE, text, letter.fact.index)

    def _check_record(self, key: Key, record: str, letter: _Letter | None) -> None:
        promise = self._lives.topics[key[0][0]]
        target = promise.dead_letter
        assert target is not None
        life = self._queues.by_record[key][0][1].life
        is_missing = letter is None and not (promise.retains and self._stored.was_dropped(key[0], key[2], life))
        for settlement in self._queues.settled.get(key, []):
            if not settlement.accepted:
                continue
            asked, answer = settlement.event, settlement.answer
            assert answer is not None
            kept = self._lives.may_lose(key[0][0], answer.at_s, asked.life, self._lives.life) is None
            if asked.verdict == "ack" and letter is not None and not self._was_forgotten(key[0][0], target):
                text = f"{record!r} was acked and is in {target}"
                self._findings.add(SETTLED_ONE_WAY, text, answer.index, letter.fact.index)
            if asked.verdict == "reject" and is_missing and kept and self._is_kept(target, asked.life):
                self._findings.add(DEAD_THERE, f"{record!r} was rejected and is not in {target}", answer.index)
        used_up = [one for one in self._queues.by_record[key] if one[1].attempt == promise.max_deliveries]
        acked = any(settlement.event.verdict == "ack" for settlement in self._queues.settled.get(key, []))
        if used_up and not acked and is_missing:
            entry, event = used_up[-1]
            if self._is_kept(target, event.life) and self._is_kept(key[0][0], event.life):
                text = f"{record!r} has no attempts left and is not in {target}"
                self._findings.add(DEAD_THERE, text, entry.index, self._queues.drained[key[0][0]].index)

    def _is_kept(self, topic: str, life: int) -> bool:
        """Whether nothing stored in a topic since a life may have been lost."""
        return self._lives.may_lose(topic, math.inf, life, self._lives.life) is None
