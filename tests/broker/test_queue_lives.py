"""Lives of queues with everything at once: the seeds of `make test`, and fresh ones in the soak.

SIM_SEEDS=1000-2000 python -m pytest -m soak tests/broker/test_queue_lives.py
"""

from __future__ import annotations

import pytest
from choices_of_orders import check_choice
from queue_life import walk
from seeds import failures, tiered

from linn.core.queue.dispatch_order import DispatchOrder, OrderOptions
from linn.core.queue.lease import LeaseBook, LeaseSettings
from linn.core.queue.ordering import Ordering
from linn.core.queue.subscription import SharedSubscription
from linn.plugins.orders import FairOrder, KeyOrder, PriorityOrder
from linn.semantics.at_least_once import AtLeastOnce

PROGRAM = "tests/broker/queue_life.py"
CHUNK = 25


@pytest.mark.parametrize("first", tiered(range(0, 500, CHUNK), 1))
def test_each_record_of_a_queue_comes_to_one_end_whatever_happens(first: int) -> None:
    assert failures(walk, range(first, first + CHUNK), PROGRAM) == {}


@pytest.mark.soak(seeds=20_000, chunk=250)
def test_many_lives(seeds: range) -> None:
    assert failures(walk, seeds, PROGRAM) == {}


# --- the check of choices finds wrong ones ---------------------------------------------------------------------------

VALUES = {0: "0/1/a/0", 1: "0/5/b/1", 2: "0/5/a/2", 3: "0/0/-/3", 4: "0/0/-/4"}
"""Records with priority 1, 5, 5, 0 and 0, and the keys a, b, a, and none."""


@pytest.mark.parametrize(
    ("order", "granted", "in_flight", "is_right"),
    [
        (None, [0], [], True),
        (None, [1], [], False),
        (PriorityOrder(OrderOptions()), [1, 2], [], True),
        (PriorityOrder(OrderOptions()), [2], [], False),
        (PriorityOrder(OrderOptions()), [0], [], False),
        (PriorityOrder(OrderOptions()), [1, 3], [], False),
        (KeyOrder(), [0, 1, 3, 4], [], True),
        (KeyOrder(), [0, 2], [], False),
        (KeyOrder(), [2], [], False),
        (KeyOrder(), [1, 2], [0], False),
        (KeyOrder(), [1, 4], [0, 3], True),
        (FairOrder(OrderOptions()), [1, 3], [0], True),
        (FairOrder(OrderOptions()), [2], [0], False),
        (FairOrder(OrderOptions()), [0, 2], [], False),
        (FairOrder(OrderOptions()), [2, 1, 3], [], False),
        (PriorityOrder(OrderOptions(levels=2)), [0, 1, 2], [], True),
        (FairOrder(OrderOptions()), [1, 3, 4], [0], True),
        (FairOrder(OrderOptions(weights={"a": 4})), [1, 3, 4], [0], False),
    ],
)
def test_a_wrong_choice_is_found(
    order: DispatchOrder | None, granted: list[int], in_flight: list[int], is_right: bool
) -> None:
    subscription = SharedSubscription(AtLeastOnce(LeaseSettings()), 0)
    if order is not None:
        subscription.ordering = Ordering(order, 100, 0)
        subscription.ordering.indexed = len(VALUES)
    ranges = [(offset, offset + 1) for offset in sorted(granted)]
    lease = LeaseBook().grant(1, ranges, 1, 30.0)
    ready = dict.fromkeys([offset for offset in VALUES if offset not in in_flight], 0)
    assert (check_choice(subscription, lease, ready, in_flight, VALUES, len(VALUES)) == []) == is_right


def test_records_that_were_not_ready_or_differ_in_attempts_are_found() -> None:
    subscription = SharedSubscription(AtLeastOnce(LeaseSettings()), 0)
    lease = LeaseBook().grant(1, [(0, 2)], 1, 30.0)
    assert check_choice(subscription, lease, {0: 0}, [], VALUES, 5) != []
    assert check_choice(subscription, lease, {0: 0, 1: 0}, [], VALUES, 1) != []
    assert check_choice(subscription, lease, {0: 0, 1: 1}, [], VALUES, 5) != []
    assert check_choice(subscription, lease, {0: 0, 1: 0}, [], VALUES, 5) == []
