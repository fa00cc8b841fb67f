"""A naive shared subscription: a state per record, every rule written the slow way. It shares no code with linn's."""

from __future__ import annotations

from dataclasses import dataclass, field

SUSPECTS_MAX = 2
"""The most records of one lease that were lost in their first attempt."""
WEEK_S = 7 * 24 * 3600.0
"""The longest delay."""


@dataclass
class Record:
    state: str = "new"  # new, leased, decided, ready, delayed, dead, settled
    attempts: int = 0
    ready_at: float = 0.0
    reason: str = ""
    intent: tuple[int, int] | None = None
    decision: tuple[str, int, int] | None = None  # holder, time, delivery id
    was_waiting: bool = False  # Dead, and was not delivered before that since the index was made.
    lost: bool = False  # it came back, last time, because its consumer was lost


@dataclass
class Held:
    consumer: int
    attempt: int
    deadline: float
    offsets: set[int]
    lost: bool = False
    is_sparse: bool = False  # Of several ranges: a named range means the records in it that are held.


@dataclass
class Model:
    lease_ms: int
    max_deliveries: int | None
    delay_ms: int
    delay_max_ms: int
    backoff: str
    records: list[Record] = field(default_factory=list)
    leases: dict[int, Held] = field(default_factory=dict)
    cursor: int = 0
    order: str = "fifo"
    classes: dict[int, int] = field(default_factory=dict)

    def offsets(self, *states: str) -> list[int]:
        return [offset for offset, record in enumerate(self.records) if record.state in states]

    def promote(self, now: float) -> int:
        due = [offset for offset in self.offsets("delayed") if self.records[offset].ready_at <= now]
        for offset in due:
            self.records[offset].state = "ready"
        return len(due)

    def acquire(
        self, records_max: int, start: int | None = None, *, skips_lost: bool = False
    ) -> tuple[list[int], int] | None:
        """(offsets, attempt) of the lease that is due, from offset `start` on. Time that passed changes nothing."""
        if self.order != "fifo":
            return self.acquire_in_order(records_max, skips_lost)
        waiting = [offset for offset in self.offsets("ready", "new") if offset >= (start or 0)]
        if skips_lost and start is None:
            waiting = [offset for offset in waiting if not self.records[offset].lost]
        if not waiting:
            return None
        first = end = waiting[0]
        lowest = self.records[first]
        if start is None:
            records_max = self.lease_max(lowest, records_max)
        while (
            end < len(self.records)
            and end - first < records_max
            and self.records[end].state in ("ready", "new")
            and self.records[end].attempts == lowest.attempts
            and self.records[end].lost == lowest.lost
            and (end < self.cursor) == (first < self.cursor)
        ):
            end += 1
        self.cursor = max(self.cursor, end)
        return list(range(first, end)), lowest.attempts + 1

    def acquire_in_order(self, records_max: int, skips_lost: bool) -> tuple[list[int], int] | None:
        """The first records of the order with equal attempts; everything is in its window."""
        waiting = self.offsets("ready", "new")
        if self.order == "priority":
            top = max((self.classes[offset] for offset in waiting), default=0)
            waiting = [offset for offset in waiting if self.classes[offset] == top]
        if self.order == "key":
            in_flight = self.offsets("leased", "decided", "delayed", "dead")
            busy = {self.classes[offset] for offset in in_flight if not self.records[offset].was_waiting}
            waiting = [
                offset
                for at, offset in enumerate(waiting)
                if self.classes[offset] not in {*busy, *(self.classes[earlier] for earlier in waiting[:at])}
            ]
        if not waiting:
            return None
        first = self.records[waiting[0]]
        if first.lost and skips_lost:
            return None
        attempts = first.attempts
        records = [self.records[offset] for offset in waiting]
        same = [(record.attempts, record.lost) == (attempts, first.lost) for record in records]
        count = same.index(False) if False in same else len(same)
        return waiting[: min(count, self.lease_max(first, records_max))], attempts + 1

    def lease_max(self, record: Record, records_max: int) -> int:
        """The limit of the records of a lease that are like this one."""
        is_last = self.max_deliveries is not None and record.attempts + 1 >= self.max_deliveries
        if not record.lost:
            return records_max
        return min(records_max, SUSPECTS_MAX if record.attempts == 1 and not is_last else 1)

    def grant(self, delivery_id: int, consumer: int, offsets: list[int], attempt: int, now: float) -> None:
        is_sparse = offsets[-1] - offsets[0] >= len(offsets)
        lost, deadline = self.records[offsets[0]].lost, now + self.lease_ms / 1000
        self.leases[delivery_id] = Held(consumer, attempt, deadline, set(offsets), lost, is_sparse)
        for offset in offsets:
            self.records[offset] = Record("leased", attempt)

    def current(self, consumer: int, delivery_id: int, ranges, now: float) -> list[int] | None:
        """The offsets that a request is about; None if it must be refused."""
        held = self.leases.get(delivery_id)
        if held is None or held.consumer != consumer or held.deadline <= now:
            return None
        if ranges is None:
            return sorted(held.offsets)
        named = [offset for first, end in ranges for offset in range(first, end)]
        if held.is_sparse and len(set(named)) == len(named):
            if not all(held.offsets & {*range(first, end)} for first, end in ranges):
                return None
            return sorted(held.offsets & {*named})
        good = (
            len(set(named)) == len(named) and set(named) <= held.offsets and all(first < end for first, end in ranges)
        )
        return sorted(named) if good else None

    def release(self, delivery_id: int, offsets: list[int]) -> None:
        held = self.leases[delivery_id]
        held.offsets -= set(offsets)
        if not held.offsets:
            del self.leases[delivery_id]

    def settle(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.records[offset] = Record("settled")

    def put_back(
        self, offsets: list[int], attempts: int, now: float, delay_ms: int | None = None, lost: bool = False
    ) -> str:
        """Returns the state that the records got."""
        if self.max_deliveries is not None and attempts >= self.max_deliveries:
            self.kill(offsets, attempts, "max_deliveries")
            return "dead"
        if delay_ms is None:
            factor = {"fixed": 1, "linear": attempts, "exponential": 2 ** (attempts - 1)}[self.backoff]
            delay_ms = min(self.delay_ms * factor, self.delay_max_ms)
        state = "delayed" if delay_ms else "ready"
        for offset in offsets:
            self.records[offset] = Record(state, attempts, now + delay_ms / 1000, lost=lost)
        return state

    def kill(self, offsets: list[int], attempts: int, reason: str) -> None:
        for offset in offsets:
            self.records[offset] = Record("dead", attempts, reason=reason)

    def decide(self, offsets: list[int], attempt: int, decision: tuple[str, int, int]) -> None:
        for offset in offsets:
            self.records[offset] = Record("decided", attempt, decision=decision)

    def decided_to(self, holder: str, delivery_id: int, first: int, end: int) -> list[int]:
        """The offsets of [first, end) that are decided to a holder by a delivery."""
        return [
            offset
            for offset in self.offsets("decided")
            if first <= offset < end
            and (decision := self.records[offset].decision)
            and (decision[0], decision[2]) == (holder, delivery_id)
        ]

    def end_lease(self, delivery_id: int, now: float, named: list[int] | None = None, lost: bool = False) -> str:
        """End a lease, or the named part of it. Returns the state that the records got."""
        held = self.leases[delivery_id]
        ended = sorted(held.offsets if named is None else named)
        held.offsets -= set(ended)
        if not held.offsets:
            del self.leases[delivery_id]
        return self.put_back(ended, held.attempt, now, lost=lost)

    def expire(self, now: float) -> None:
        for delivery_id in [key for key, held in self.leases.items() if held.deadline <= now]:
            self.end_lease(delivery_id, now, lost=True)
        self.promote(now)

    def skip_to(self, offset: int) -> int:
        """Returns how many records were lost."""
        self.records += [Record() for _ in range(offset - len(self.records))]
        lost = [below for below in range(offset) if self.records[below].state != "settled"]
        self.settle(lost)
        for delivery_id, held in list(self.leases.items()):
            held.offsets -= set(lost)
            if not held.offsets:
                del self.leases[delivery_id]
        self.cursor = max(self.cursor, offset)
        return len(lost)

    def restart(self, now: float) -> None:
        """Delays end when they would have ended, by whatever clock there is now; none lasts longer than any may."""
        for offset in self.offsets("delayed"):
            self.records[offset].ready_at = min(self.records[offset].ready_at, now + WEEK_S)
        for delivery_id, held in list(self.leases.items()):
            self.end_lease(delivery_id, now, lost=held.lost)

    def next_deadline(self) -> float | None:
        times = [held.deadline for held in self.leases.values()]
        times += [self.records[offset].ready_at for offset in self.offsets("delayed")]
        return min(times, default=None)

    def settled_before(self) -> int:
        unsettled = [offset for offset, record in enumerate(self.records) if record.state != "settled"]
        return min(unsettled, default=len(self.records))
