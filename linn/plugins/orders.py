"""The built-in dispatch orders: `order =` in a topic. An order of the oldest first is none at all.

Each keeps ready records by class, a lane of offsets for each; see `linn.api.DispatchOrder`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

from linn.api import DispatchOrder, OrderKind, OrderOptions, RecordBatch, Taken, hookimpl

PACK_AFTER = 4_096
"""Taken offsets at the front of a lane after which it is packed."""
SEARCHED_MAX = 4_096
"""Records that one search examines: two milliseconds, if the keys of all of them are taken."""
KEYLESS = 0xFFFFFFFF
"""The class of records without a key; no hash is as large."""
TENANTS_MAX = 65_536
"""Limit of the tenants at a time: each takes up to 500 bytes."""
SHARED = 0
"""The class of all tenants beyond the limit."""
SWEEP_EACH = 1_024
"""Names without a place for which one search for idle tenants is made."""
HEAP_PER_TENANT = 4
"""Entries of a heap, per tenant, beyond which outdated ones are removed."""


class Lane:
    """Ascending offsets: 8 bytes each while they arrive in order, more for returned ones."""

    __slots__ = ("_back", "_new", "_taken")

    def __init__(self) -> None:
        self._new = array("q")
        self._taken = 0
        """Offsets at the front of `_new` that were taken."""
        self._back: list[int] = []
        """A heap of the others."""

    def __len__(self) -> int:
        return len(self._new) - self._taken + len(self._back)

    @property
    def first(self) -> int:
        """The lowest offset. The lane must not be empty."""
        back, new, taken = self._back, self._new, self._taken
        if back and (taken == len(new) or back[0] < new[taken]):
            return back[0]
        return new[taken]

    def add(self, offset: int) -> None:
        """Add one offset."""
        new = self._new
        if self._taken == len(new) or offset > new[-1]:
            new.append(offset)
        else:
            heappush(self._back, offset)

    def extend(self, offsets: Sequence[int]) -> None:
        """Add ascending offsets, at least one."""
        new = self._new
        if self._taken == len(new) or offsets[0] > new[-1]:
            new.extend(offsets)
        else:
            for offset in offsets:
                self.add(offset)

    def take(self, count: int) -> list[int]:
        """Take the lowest offsets, at most `count`, in ascending order."""
        taken, new, back = self._taken, self._new, self._back
        if not back or (taken < len(new) and back[0] > new[min(taken + count, len(new)) - 1]):
            found = new[taken : taken + count].tolist()
            self._taken = taken + len(found)
            self._pack()
            return found
        return [self.take_first() for _ in range(min(count, len(self)))]

    def take_first(self) -> int:
        """Take the lowest offset. The lane must not be empty."""
        back, new, taken = self._back, self._new, self._taken
        if back and (taken == len(new) or back[0] < new[taken]):
            return heappop(back)
        first = new[taken]
        self._taken = taken + 1
        self._pack()
        return first

    def _pack(self) -> None:
        if self._taken == len(self._new):
            del self._new[:]
            self._taken = 0
        elif self._taken >= PACK_AFTER and 2 * self._taken >= len(self._new):
            del self._new[: self._taken]
            self._taken = 0


class PriorityOrder:
    """The highest priority first, and of equal ones the oldest. One delivery is of one level."""

    def __init__(self, options: OrderOptions) -> None:
        self._lanes = [Lane() for _ in range(options.levels)]
        top = options.levels - 1
        self._levels = bytes(min(priority, top) for priority in range(256))
        """The level of each priority."""

    def classify(self, batch: RecordBatch) -> Sequence[int]:
        """The level of each record."""
        priorities = batch.priorities
        return bytes(batch.count) if priorities is None else bytes(priorities).translate(self._levels)

    def add(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Put records behind the others of their levels, or in front of younger ones."""
        if classes[0] == classes[-1] and len(set(classes)) == 1:
            self._lanes[classes[0]].extend(offsets)
            return
        adds = [lane.add for lane in self._lanes]
        for offset, level in zip(offsets, classes, strict=True):
            adds[level](offset)

    def take(self, records_max: int) -> Taken:
        """Take the oldest of the highest level that has any."""
        for level in range(len(self._lanes) - 1, -1, -1):
            if lane := self._lanes[level]:
                offsets = lane.take(records_max)
                return Taken(offsets, bytes((level,)) * len(offsets))
        return Taken((), ())

    def hold(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Nothing: records that are taken do not affect the others."""

    def release(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Nothing, as for `hold`."""


class KeyOrder:
    """One record of a key at a time, and otherwise the oldest: from its delivery until it is settled, also while a
    retry waits, the later ones of its key wait. Records without a key have no order among each other.

    Keys are told apart by their hashes. Two keys with one hash take turns, which costs time and no order.
    """

    def __init__(self) -> None:
        self._offsets, self._hashes = array("q"), array("I")
        self._passed = 0
        """Records at the front of both columns that were examined."""
        self._free: list[tuple[int, int]] = []
        """A heap of (offset, hash): records that came back, or waited for others of their key."""
        self._busy: dict[int, int] = {}
        """The number of taken records by hash, which is 1 unless the order was another before."""
        self._parked: dict[int, Lane] = {}
        """Records that wait for others of their key."""

    def classify(self, batch: RecordBatch) -> Sequence[int]:
        """The hash of each key; KEYLESS in a batch without keys."""
        column = batch.key_hashes
        if column is None:
            return array("I", (KEYLESS,)) * int(batch.count)
        hashes: list[int] = column.tolist()
        if max(hashes, default=0) < KEYLESS:
            return hashes
        return [min(one, KEYLESS - 1) for one in hashes]  # No client of linn makes such a hash.

    def add(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Add records behind the others, or in front of younger ones."""
        known = self._offsets
        if not known or offsets[0] > known[-1]:
            known.extend(offsets)
            self._hashes.extend(classes)
            return
        for offset, one in zip(offsets, classes, strict=True):
            heappush(self._free, (offset, one))

    def take(self, records_max: int) -> Taken:
        """Take the oldest records whose keys are free."""
        offsets: list[int] = []
        classes: list[int] = []
        for _ in range(SEARCHED_MAX):
            if len(offsets) == records_max or (found := self._next()) is None:
                return Taken(offsets, classes)
            offset, one = found
            if one in self._busy:
                parked = self._parked.get(one)
                if parked is None:
                    parked = self._parked[one] = Lane()
                parked.add(offset)
                continue
            if one != KEYLESS:
                self._busy[one] = 1
            offsets.append(offset)
            classes.append(one)
        return Taken(offsets, classes, has_more=True)

    def _next(self) -> tuple[int, int] | None:
        """The oldest record that is not parked."""
        at, free, offsets = self._passed, self._free, self._offsets
        if free and (at == len(offsets) or free[0][0] < offsets[at]):
            return heappop(free)
        if at == len(offsets):
            return None
        found = offsets[at], self._hashes[at]
        self._passed = at = at + 1
        if at >= PACK_AFTER and 2 * at >= len(offsets):
            del offsets[:at], self._hashes[:at]
            self._passed = 0
        return found

    def hold(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Occupy keys."""
        busy = self._busy
        for one in classes:
            if one != KEYLESS:
                busy[one] = busy.get(one, 0) + 1

    def release(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Free keys, each with the oldest record that waits for it."""
        busy, parked = self._busy, self._parked
        for one in classes:
            left = busy.get(one, 0) - 1
            if left > 0:
                busy[one] = left
            elif left == 0:
                del busy[one]
                if (lane := parked.get(one)) is not None:
                    heappush(self._free, (lane.take_first(), one))
                    if not lane:
                        del parked[one]


class _Tenant:
    """A tenant with records that wait, or that were taken."""

    __slots__ = ("in_flight", "lane", "load", "name", "seen", "tick", "weight")

    def __init__(self, name: str, weight: int = 1) -> None:
        self.name = name
        self.weight = weight
        self.lane = Lane()
        self.in_flight = 0
        self.load = 0.0
        """Records in flight for each unit of its weight."""
        self.tick = 0
        """The time, in steps of the order, when it was served last or began to wait."""
        self.seen = 0
        """The number of the last batch that had a record of it."""

    def count(self, change: int) -> None:
        """Count records in flight, or no longer."""
        self.in_flight += change
        self.load = self.in_flight / self.weight


class FairOrder:
    """The tenant with the fewest records in flight for its weight is next, and of equal ones the one that waits
    longest; of a tenant the oldest record. The tenant is a label of the record, or its routing key.

    More than TENANTS_MAX at a time share one place with each other.
    """

    def __init__(self, options: OrderOptions) -> None:
        self._label = options.by.removeprefix("label.") if options.by.startswith("label.") else None
        self._weights = options.weights
        self._numbers: dict[str, int] = {}
        """The class of each tenant, by name."""
        self._tenants: dict[int, _Tenant] = {SHARED: _Tenant("")}
        self._heap: list[tuple[float, int, int]] = []
        """(load, tick, tenant): the next is the first that is still right."""
        self._tick = self._batches = self._refused = 0

    def classify(self, batch: RecordBatch) -> Sequence[int]:
        """The number of each record's tenant."""
        self._batches += 1
        label = self._label
        if label is None:
            numbers = [self._number(pair.routing_key) for pair in batch.pairs()]
        else:
            numbers = [self._number(str(dict(pair.labels).get(label, ""))) for pair in batch.pairs()]
        index = batch.route_index
        return numbers * batch.count if index is None else [numbers[at] for at in index]

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= TENANTS_MAX and not self._forget_idle():
                return SHARED
            number = self._numbers[name] = self._free_number()
            self._tenants[number] = _Tenant(name, self._weights.get(name, 1))
        self._tenants[number].seen = self._batches
        return number

    def _free_number(self) -> int:
        number = len(self._tenants)
        while number in self._tenants:  # Some were forgotten.
            number = (number + 1) % (4 * TENANTS_MAX)
        return number

    def _forget_idle(self) -> bool:
        """Forget tenants without records, now and then; returns whether there is room for another."""
        self._refused += 1
        if self._refused % SWEEP_EACH == 1:
            idle = [
                number
                for number, tenant in self._tenants.items()
                if number != SHARED and not tenant.lane and not tenant.in_flight and tenant.seen < self._batches
            ]
            for number in idle:
                del self._numbers[self._tenants.pop(number).name]
        return len(self._numbers) < TENANTS_MAX

    def add(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Add records to the lanes of their tenants."""
        tenants = self._tenants
        for offset, number in zip(offsets, classes, strict=True):
            tenant = tenants[number]
            if not tenant.lane:
                self._tick += 1
                tenant.tick = self._tick
                heappush(self._heap, (tenant.load, tenant.tick, number))
            tenant.lane.add(offset)

    def take(self, records_max: int) -> Taken:
        """Take one record after the other, each of the tenant that is next."""
        offsets: list[int] = []
        classes: list[int] = []
        heap, tenants = self._heap, self._tenants
        while heap and len(offsets) < records_max:
            load, tick, number = heap[0]
            tenant = tenants.get(number)
            if tenant is None or tenant.load != load or tenant.tick != tick or not tenant.lane:
                heappop(heap)
                continue
            offsets.append(tenant.lane.take_first())
            classes.append(number)
            self._tick += 1
            tenant.tick = self._tick
            tenant.count(1)
            heapreplace(heap, (tenant.load, tenant.tick, number))
        return Taken(offsets, classes)

    def hold(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Count records in flight."""
        self._count(classes, 1)

    def release(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Count records in flight no more."""
        self._count(classes, -1)

    def _count(self, classes: Sequence[int], change: int) -> None:
        heap, tenants = self._heap, self._tenants
        for number, count in Counter(classes).items():
            tenant = tenants[number]
            tenant.count(change * count)
            if tenant.lane:
                heappush(heap, (tenant.load, tenant.tick, number))
        if len(heap) > HEAP_PER_TENANT * len(tenants) + PACK_AFTER:
            self._heap = [(it.load, it.tick, number) for number, it in tenants.items() if it.lane]
            heapify(self._heap)


def _by_problem(options: OrderOptions) -> str | None:
    name = options.by.removeprefix("label.")
    if options.by in ("", "routing_key") or (name and name != options.by):
        return None
    return f'is "label.NAME" or "routing_key", not "{options.by[:80]}"'


@hookimpl
def linn_register_order() -> list[OrderKind]:
    """Register `order = "priority"`, `"fair"` and `"key"`."""
    return [
        OrderKind("priority", _priority, takes=frozenset({"levels"})),
        OrderKind("fair", _fair, takes=frozenset({"order_by", "weights"}), by_problem=_by_problem),
        OrderKind("key", _key, needs_key_hashes=True),
    ]


def _priority(options: OrderOptions) -> DispatchOrder:
    return PriorityOrder(options)


def _fair(options: OrderOptions) -> DispatchOrder:
    return FairOrder(options)


def _key(options: OrderOptions) -> DispatchOrder:
    return KeyOrder()
