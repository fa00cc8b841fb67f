"""The choice of each built-in order, spelled by its rule over plain dicts: what a lease may be, of all that was ready.

A value is "PARTITION/PRIORITY/KEY/NUMBER"; records without a known value are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from linn.core.queue.event import LOST
from linn.core.queue.lease import Lease
from linn.core.queue.subscription import SharedSubscription
from linn.plugins.orders import FairOrder, KeyOrder, PriorityOrder

KEYLESS = "-"
"""The key of records without one."""


def check_choice(
    subscription: SharedSubscription,
    lease: Lease,
    ready: Mapping[int, int],
    in_flight: Collection[int],
    values: Mapping[int, str],
    end: int,
) -> list[str]:
    """The rules that a lease breaks, in words. `ready`: attempts by offset; `end`: nothing further on may be leased."""
    granted = [offset for first, stop in lease.granted_from(0) for offset in range(first, stop)]
    found: list[str] = []
    if not {*granted} <= {*ready} or granted[-1] >= end:
        return [f"{granted} were not ready: {sorted(ready)}"]
    if {*granted} & {*in_flight}:
        found.append(f"{granted} are in two hands")
    if len({ready[offset] for offset in granted}) > 1:
        found.append(f"{granted} have different attempts")
    ordering = subscription.ordering
    if ordering is None:
        return found + _by_offset(granted, ready)
    left = [offset for offset in ready if offset < ordering.indexed and offset not in granted]
    if not all(offset in values for offset in (*granted, *left, *in_flight)):
        return found
    if isinstance(ordering.order, PriorityOrder):
        return found + _by_priority(granted, left, values, len(ordering.order._lanes) - 1)
    if isinstance(ordering.order, KeyOrder):
        return found + _by_key(granted, left, in_flight, values)
    if isinstance(ordering.order, FairOrder) and not subscription.dead_count:
        return found + _by_tenant(granted, left, in_flight, values, ordering.order._weights)
    return found


def _by_offset(granted: list[int], ready: Mapping[int, int]) -> list[str]:
    passed = [offset for offset, attempts in ready.items() if offset < granted[0] and not attempts & LOST]
    return [f"fifo: {passed} are before {granted[0]}"] if passed else []


def _by_priority(granted: list[int], left: list[int], values: Mapping[int, str], top: int) -> list[str]:
    levels = {offset: min(int(values[offset].split("/")[1]), top) for offset in (*granted, *left)}
    level = levels[granted[0]]
    higher = [offset for offset in left if levels[offset] > level]
    older = [offset for offset in left if levels[offset] == level and offset < granted[-1]]
    mixed = [offset for offset in granted if levels[offset] != level]
    return [f"priority: {higher} are higher, {older} older, {mixed} of another level"] if higher + older + mixed else []


def _by_key(granted: list[int], left: list[int], in_flight: Collection[int], values: Mapping[int, str]) -> list[str]:
    keys = {offset: values[offset].split("/")[2] for offset in (*granted, *left, *in_flight)}
    keys = {offset: f"-{offset}" if key == KEYLESS else key for offset, key in keys.items()}
    busy = [offset for offset in in_flight if keys[offset] in {keys[one] for one in granted}]
    older = [offset for offset in left for one in granted if keys[offset] == keys[one] and offset < one]
    twice = len({keys[offset] for offset in granted}) < len(granted)
    return [f"key: {busy} of one key are in flight, {older} are older"] if busy or older or twice else []


def _by_tenant(
    granted: list[int],
    left: list[int],
    in_flight: Collection[int],
    values: Mapping[int, str],
    weights: Mapping[str, int],
) -> list[str]:
    tenants = {offset: values[offset].split("/")[2] for offset in (*granted, *left, *in_flight)}
    before, taken = Counter(tenants[it] for it in in_flight), Counter(tenants[it] for it in granted)
    waiting = {tenants[offset] for offset in left}
    found = [
        f"fair: {one} got {count} and had {before[one]}, {other} waits with {before[other] + taken[other]}"
        for one, count in taken.items()
        for other in waiting
        if (before[one] + count - 1) * weights.get(other, 1) > (before[other] + taken[other]) * weights.get(one, 1)
    ]
    older = [offset for offset in left for one in granted if tenants[offset] == tenants[one] and offset < one]
    return found + ([f"fair: {older} are older"] if older else [])
