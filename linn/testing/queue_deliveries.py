"""QueueDeliveries: checks deliveries to the consumers of queues or named subscriptions, and their settlements.

Laws: delivery ids of a partition grow with every lease, so they give the order of the leases, even if deliveries arrive
late. A delivery that no client saw may have been lost on its way; attempts are checked exactly only if nothing was
disturbed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from linn.testing.finding import Findings
from linn.testing.history import (
    Altered,
    Answered,
    Asked,
    Calmed,
    Delivered,
    Disturbed,
    Drained,
    Ended,
    Entry,
    Joined,
    Left,
)
from linn.testing.log_lives import LogLives, Place
from linn.testing.stored_records import LOST, StoredRecords

IDS = "delivery ids are never reused"
AT_MOST_ONCE = "at most once is never twice"
SETTLED = "what is settled stays settled"
CURRENT = "only a current delivery settles"
ATTEMPTS = "attempts count right"
HOLDS = "a lease holds until its deadline"
PLACE = "what is returned goes back to its place"
IN_ORDER = "a queue hands out in order"
LEASES = "every lease ends"

LEAVING_S = 1.0
"""Time after which, in a calm network, the broker knows that a consumer has left; until then it may deliver to it."""
NOT_CURRENT = "delivery.not_current"
Key = tuple[Place, int, int]
"""(place, era, offset): one stored record."""


@dataclass(slots=True)
class Settlement:
    """A consumer's request to settle, and the broker's answer."""

    entry: Entry
    event: Asked
    answer: Entry | None = None
    code: str | None = None
    """None: no answer came."""

    @property
    def accepted(self) -> bool:
        """Whether the broker answered that it was carried out."""
        return self.code == ""


class QueueDeliveries:
    """Checks the queues of all topics, or their subscriptions with the name `shared`. It takes every entry of a
    history, in order, after `lives` and `stored`.
    """

    def __init__(self, lives: LogLives, stored: StoredRecords, findings: Findings, shared: str = "") -> None:
        self.shared = shared
        self._lives = lives
        self._stored = stored
        self._findings = findings
        self.deliveries: list[tuple[Entry, Delivered]] = []
        self.settlements: dict[int, Settlement] = {}
        """Settlements by the index of the request."""
        self.drained: dict[str, Entry] = {}
        self.by_record: dict[Key, list[tuple[Entry, Delivered]]] = {}
        """Deliveries of each record, ordered by delivery id at the end."""
        self.settled: dict[Key, list[Settlement]] = {}
        self._noise: list[Entry] = []
        """Disturbances, departures and alterations, at which deliveries may have gone unseen."""
        self._left_last = -1
        self._disturbances = 0
        self._disk_was_full = False
        self._altered: dict[str, None] = {}
        self._releasers: dict[str, str] = {}
        """The topic of each consumer that may release unread records."""
        self._busy_s: dict[str, float] = {}
        """The time of the last delivery to each consumer."""
        self._released_s: dict[str, float] = {}
        """The time, by topic, since which records may have been released."""

    def observe(self, entry: Entry) -> None:
        """Record events of queues."""
        match entry.event:
            case Delivered(delivery_id=id, consumer=consumer, shared=self.shared) if id:
                self.deliveries.append((entry, entry.event))
                self._busy_s[consumer] = entry.at_s
            case Asked(group="", shared=self.shared):
                self.settlements[entry.index] = Settlement(entry, entry.event)
            case Answered(asked, code) if asked in self.settlements:
                self.settlements[asked].answer, self.settlements[asked].code = entry, code
            case Drained(topic, shared=self.shared):
                self.drained[topic] = entry
            case Disturbed(is_disk_full=is_full):
                self._disk_was_full = self._disk_was_full or is_full
                self._noise.append(entry)
                self._disturbances += 1
            case Calmed() | Ended():
                self._noise.append(entry)
            case Joined(consumer=consumer, topic=topic, releases=True, shared=self.shared):
                self._releasers[consumer] = topic
                self._released_from(topic, entry.at_s + self._lives.topics[topic].lease_ms / 2000)
            case Left(consumer=consumer) if not self.drained:
                self._noise.append(entry)
                self._left_last = entry.index
                if consumer in self._releasers:
                    # Its unread records were returned when it began to leave, at some time after its last delivery.
                    self._released_from(self._releasers[consumer], self._busy_s.get(consumer, entry.at_s))
            case Altered(topic):
                self._noise.append(entry)
                self._altered[topic] = None

    def _released_from(self, topic: str, at_s: float) -> None:
        self._released_s[topic] = min(at_s, self._released_s.get(topic, math.inf))

    # --- at the end ---

    def finish(self) -> None:
        """Make the checks that need the whole history."""
        self._arrange()
        self._check_ids()
        for key, deliveries in self.by_record.items():
            self._check_attempts(key, deliveries)
            settlements = self.settled.get(key, [])
            if self._lives.topics[key[0][0]].delivery == "at-most-once":
                self._check_at_most_once(key, deliveries)
            else:
                self._check_settlements(key, deliveries, settlements)
        for settlement in self.settlements.values():
            self._check_refusal(settlement)
        self._check_order()
        self._check_drained()

    def _arrange(self) -> None:
        for entry, event in self.deliveries:
            for offset in range(event.first, event.end):
                self.by_record.setdefault(self._key(event, offset), []).append((entry, event))
        for deliveries in self.by_record.values():
            deliveries.sort(key=lambda one: one[1].delivery_id)
        for settlement in self.settlements.values():
            for offset in range(settlement.event.first, settlement.event.end):
                self.settled.setdefault(self._key(settlement.event, offset), []).append(settlement)

    def _key(self, event: Delivered | Asked, offset: int) -> Key:
        place = event.topic, event.partition
        return place, self._lives.era(place, event.life, offset), offset

    def _check_ids(self) -> None:
        holders: dict[tuple[Place, int, int], tuple[Entry, Delivered]] = {}
        for entry, event in self.deliveries:
            life = event.life if self._lives.topics[event.topic].durability == "memory" else 0
            place = event.topic, event.partition
            first, other = holders.setdefault((place, life, event.delivery_id), (entry, event))
            if (other.consumer, other.attempt) != (event.consumer, event.attempt):
                self._findings.add(IDS, f"delivery {event.delivery_id} of {place} is two", first.index, entry.index)

    def _check_at_most_once(self, key: Key, deliveries: list[tuple[Entry, Delivered]]) -> None:
        for (first, one), (second, other) in pairwise(deliveries):
            if self._lives.may_lose(key[0][0], first.at_s, one.life, other.life) is None:
                text = f"offset {key[2]} of {key[0]} was handed over twice"
                self._findings.add(AT_MOST_ONCE, text, first.index, second.index)

    def _check_attempts(self, key: Key, deliveries: list[tuple[Entry, Delivered]]) -> None:
        promise = self._lives.topics[key[0][0]]
        if promise.delivery == "at-most-once":
            return
        where = f"offset {key[2]} of {key[0]}"
        first, event = deliveries[0]
        if event.attempt < 1 or (event.attempt != 1 and not self._is_noisy(None, first)):
            self._findings.add(ATTEMPTS, f"{where} begins with attempt {event.attempt}", first.index)
        for entry, event in deliveries:
            if promise.max_deliveries is not None and event.attempt > promise.max_deliveries:
                text = f"{where} has attempt {event.attempt} of {promise.max_deliveries}"
                self._findings.add(ATTEMPTS, text, entry.index)
        for (first, one), (second, other) in pairwise(deliveries):
            if one.delivery_id == other.delivery_id:
                continue
            forgotten = other.life > one.life and (self._disk_was_full or self._lives.lost_power(one.life, other.life))
            too_few = other.attempt <= one.attempt and not forgotten
            too_many = other.attempt > one.attempt + 1 and not self._is_noisy(first, second)
            if too_few or too_many:
                text = f"{where} has attempt {other.attempt} after attempt {one.attempt}"
                self._findings.add(ATTEMPTS, text, first.index, second.index)

    def _is_noisy(self, first: Entry | None, last: Entry) -> bool:
        """Whether a delivery may have gone unseen between two events; unread records of a consumer may be older."""
        if self._disturbances or self._left_last > (first.index if first is not None else 0):
            return True
        since_s = first.at_s - LEAVING_S if first is not None else -math.inf
        return any(noise.index <= last.index and noise.at_s >= since_s for noise in self._noise)

    def _check_settlements(
        self, key: Key, deliveries: list[tuple[Entry, Delivered]], settlements: list[Settlement]
    ) -> None:
        for settlement in settlements:
            if not settlement.accepted:
                continue
            asked, answer = settlement.event, settlement.answer
            assert answer is not None
            for entry, event in deliveries:
                if event.delivery_id <= asked.delivery_id:
                    continue
                if entry.index < settlement.entry.index and event.life == asked.life:
                    text = f"{asked.verdict} of delivery {asked.delivery_id} counts after delivery {event.delivery_id}"
                    self._findings.add(CURRENT, f"offset {key[2]} of {key[0]}: {text}", entry.index, answer.index)
                settles = asked.verdict in ("ack", "reject")
                if settles and self._lives.may_lose(key[0][0], answer.at_s, asked.life, event.life) is None:
                    text = f"offset {key[2]} of {key[0]} comes again after an {asked.verdict} that counts"
                    self._findings.add(SETTLED, text, answer.index, entry.index)
            if asked.verdict == "nack":
                self._check_place(key, settlement, deliveries)

    def _check_place(self, key: Key, nack: Settlement, deliveries: list[tuple[Entry, Delivered]]) -> None:
        """Check that a record returned without delay comes before records that were never delivered."""
        promise, asked, answer = self._lives.topics[key[0][0]], nack.event, nack.answer
        if promise.redelivery_delay_ms or asked.ms or self._is_inexact(key[0][0]) or not promise.is_in_order:
            return
        assert answer is not None
        attempt = next((event.attempt for _, event in deliveries if event.delivery_id == asked.delivery_id), 0)
        if not attempt or attempt == promise.max_deliveries:
            return
        again = next((event.delivery_id for _, event in deliveries if event.delivery_id > asked.delivery_id), None)
        for entry, event in self._of(key[0], asked.life):
            overtakes = event.attempt == 1 and event.first > key[2] and event.granted_after_s > answer.at_s
            if self._is_noisy(answer, entry):
                return  # It may have been leased again without any client seeing it.
            if overtakes and (again is None or event.delivery_id < again):
                text = f"offset {key[2]} of {key[0]} was returned, and offset {event.first} came before it"
                self._findings.add(PLACE, text, answer.index, entry.index)

    def _of(self, place: Place, life: int) -> list[tuple[Entry, Delivered]]:
        return [
            (entry, event)
            for entry, event in self.deliveries
            if (event.topic, event.partition) == place and event.life == life
        ]

    def _is_inexact(self, topic: str) -> bool:
        """Whether retention or a change of kind may have ended leases."""
        return topic in self._altered or self._lives.topics[topic].retains

    def _check_refusal(self, settlement: Settlement) -> None:
        """Check that a delivery refused as not current had ended: its lease expired, or it was settled before."""
        asked, answer = settlement.event, settlement.answer
        promise = self._lives.topics[asked.topic]
        if settlement.code != NOT_CURRENT or promise.delivery == "at-most-once" or self._is_inexact(asked.topic):
            return
        assert answer is not None
        mine = [earlier for earlier in self.settlements.values() if _is_earlier(earlier, settlement)]
        if any(earlier.event.verdict != "extend" for earlier in mine):
            return
        granted = [
            (entry, event)
            for entry, event in self.deliveries
            if event.consumer == asked.consumer
            and (event.topic, event.partition, event.delivery_id) == (asked.topic, asked.partition, asked.delivery_id)
            and event.first <= asked.first
            and asked.end <= event.end
        ]
        if not granted or not granted[0][1].granted_after_s:
            return
        entry, event = granted[0]
        deadlines = [event.granted_after_s + promise.lease_ms / 1000]
        deadlines += [earlier.entry.at_s + earlier.event.ms / 1000 for earlier in mine]
        if answer.at_s < min(deadlines):
            text = f"delivery {asked.delivery_id} of {asked.topic} was refused before its lease can have ended"
            self._findings.add(HOLDS, text, entry.index, settlement.entry.index, answer.index)

    def _check_order(self) -> None:
        """Check that records that were never delivered are handed out from the lowest offset on.

        Records released unread return to their place and count as never delivered: they may come later.
        """
        runs: dict[tuple[Place, int], list[tuple[Entry, Delivered]]] = defaultdict(list)
        for entry, event in self.deliveries:
            if event.attempt == 1:
                runs[(event.topic, event.partition), event.life].append((entry, event))
        for (place, _), run in runs.items():
            if not self._lives.topics[place[0]].is_in_order:
                continue
            run.sort(key=lambda one: (one[1].delivery_id, one[1].first))
            for (first, one), (second, other) in pairwise(run):
                may_be_released = second.at_s >= self._released_s.get(place[0], math.inf)
                if other.first < one.first and not may_be_released:
                    text = f"offset {other.first} of {place} came after offset {one.first}"
                    self._findings.add(IN_ORDER, text, first.index, second.index)

    # --- drained queues ---

    def _check_drained(self) -> None:
        for topic, entry in self.drained.items():
            event = entry.event
            assert isinstance(event, Drained)
            if event.unsettled or event.leased or event.dead:
                text = f"{topic} still has {event.unsettled} unsettled, {event.leased} leased, {event.dead} dead"
                self._findings.add(LEASES, text, entry.index)
            elif not self._lives.topics[topic].retains:
                self._check_all_settled(topic, entry)

    def _check_all_settled(self, topic: str, entry: Entry) -> None:
        """Check that each confirmed record was delivered and, for at-least-once, settled."""
        if self._lives.topics[topic].delivery == "at-most-once" and (self._noise or self._disturbances):
            return
        delivered: dict[str, list[Key]] = defaultdict(list)
        for key, deliveries in self.by_record.items():
            if key[0][0] == topic:
                delivered[deliveries[0][1].records[key[2] - deliveries[0][1].first]].append(key)
        for record, (confirmed, answer) in self._stored.confirmed.items():
            published = self._stored.published[record][1]
            if topic not in published.topics:
                continue
            life, committed = answer.life, published.committed
            if self._lives.may_lose(topic, confirmed.at_s, life, self._lives.life, committed=committed) is not None:
                continue
            if not delivered[record]:
                if self._lives.topics[topic].max_deliveries is not None and self._noise:
                    continue  # Its deliveries may all have been lost on their way.
                self._findings.add(LOST, f"{record!r} never came out of {topic}", confirmed.index, entry.index)
            elif not any(self._may_be_settled(key) for key in delivered[record]):
                self._findings.add(LOST, f"{topic} dropped {record!r}, which nobody settled", confirmed.index)

    def _may_be_settled(self, key: Key) -> bool:
        promise = self._lives.topics[key[0][0]]
        if promise.delivery == "at-most-once":
            return True
        if any(settlement.event.verdict in ("ack", "reject") for settlement in self.settled.get(key, [])):
            return True
        used_up = any(event.attempt == promise.max_deliveries for _, event in self.by_record[key])
        return used_up or (promise.max_deliveries is not None and bool(self._noise))


def _is_earlier(one: Settlement, other: Settlement) -> bool:
    """Whether the same consumer had sent another request for the same delivery earlier."""
    mine, theirs = one.event, other.event
    return (
        one.entry.index < other.entry.index
        and (mine.consumer, mine.topic, mine.partition) == (theirs.consumer, theirs.topic, theirs.partition)
        and mine.delivery_id == theirs.delivery_id
        and mine.first < theirs.end
        and theirs.first < mine.end
    )
