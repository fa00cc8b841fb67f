"""HeldRecords: counts the records that a subscription with leases holds. Pure: no I/O.

Laws: a record is counted once, under its lease or as decided; the end of a lease drops the records under it, but no
decided ones.
"""

from __future__ import annotations

from linn.client.consume.settling import SETTLES_NOTHING, Delivery, PendingSettlement
from linn.wire.messages import Verdict

Key = tuple[int, int]
"""Delivery: partition and id."""


class HeldRecords:
    """Counts of one subscription."""

    __slots__ = ("_decided", "_leased", "count")

    def __init__(self) -> None:
        self.count = 0
        """Number of all held records."""
        self._leased: dict[Key, int] = {}
        """Records by lease: delivered, and neither settled, decided nor lost."""
        self._decided: dict[Key, int] = {}
        """Records by delivery: decided for this consumer, and not done."""

    def delivered(self, delivery: Delivery) -> None:
        """Count the records of a delivery: all of them are decided, or none."""
        counts, key = self._decided if delivery.is_decided else self._leased, _key_of(delivery)
        count = delivery.count(delivery.first, delivery.end)
        counts[key] = counts.get(key, 0) + count
        self.count += count

    def lease_ended(self, key: Key) -> None:
        """Remove the records left under a lease."""
        self.count -= self._leased.pop(key, 0)

    def settled(self, settling: PendingSettlement) -> int:
        """Remove settled records, and return their number. Refused records were no longer held."""
        if settling.verdict in SETTLES_NOTHING and settling.verdict != Verdict.RELEASE:
            return 0
        counts = self._decided if settling.verdict == Verdict.DONE else self._leased
        return self._take(counts, settling.delivery, settling.count)

    def decided(self, delivery: Delivery, records: int) -> None:
        """Count records as decided, whether or not their lease has ended meanwhile."""
        key = _key_of(delivery)
        self._take(self._leased, delivery, records)
        self._decided[key] = self._decided.get(key, 0) + records
        self.count += records

    def aborted(self, delivery: Delivery, records: int) -> None:
        """Remove records that the broker has taken back, unless their lease ended before."""
        self._take(self._leased, delivery, records)

    def is_leased(self, delivery: Delivery) -> bool:
        """Whether records are left under the lease of a delivery."""
        return _key_of(delivery) in self._leased

    def _take(self, counts: dict[Key, int], delivery: Delivery, records: int) -> int:
        key = _key_of(delivery)
        held = counts.get(key, 0)
        taken = min(held, records)
        self.count -= taken
        if taken < held:
            counts[key] = held - taken
        else:
            counts.pop(key, None)
        return taken


def _key_of(delivery: Delivery) -> Key:
    return delivery.partition, delivery.delivery_id
