"""The built-in orders, by the suite for orders and by their own rules."""

from __future__ import annotations

import pytest

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.routes import Pair
from linn.core.queue.dispatch_order import OrderOptions
from linn.plugins import orders
from linn.plugins.orders import KEYLESS, SHARED, FairOrder, KeyOrder, Lane, PriorityOrder
from linn.testing.orders import OrderConformance, OrderHarness, OrderUser

pytestmark = pytest.mark.quick


def batch_of(count: int, **columns: object) -> RecordBatch:
    return build_batch(BatchColumns([b"v"] * count, 1, 1, **columns))


def by_tenant(*tenants: object) -> RecordBatch:
    pairs = tuple(Pair("", (("tenant", tenant),)) for tenant in tenants)
    return batch_of(len(tenants), pairs=pairs, pair_index=list(range(len(tenants))) if len(tenants) > 1 else None)


class TestPriority(OrderConformance):
    @pytest.fixture
    def harness(self) -> OrderHarness:
        return OrderHarness(lambda: PriorityOrder(OrderOptions()))


class TestFairByKey(OrderConformance):
    @pytest.fixture
    def harness(self) -> OrderHarness:
        return OrderHarness(lambda: FairOrder(OrderOptions()))


class TestFairByLabel(OrderConformance):
    @pytest.fixture
    def harness(self) -> OrderHarness:
        return OrderHarness(lambda: FairOrder(OrderOptions(by="label.tenant")))


class TestKey(OrderConformance):
    @pytest.fixture
    def harness(self) -> OrderHarness:
        return OrderHarness(KeyOrder)


# --- lanes ---


def test_a_lane_gives_the_lowest_whatever_came_back() -> None:
    lane = Lane()
    lane.extend(range(10_000))
    assert lane.take(6_000) == list(range(6_000))
    for offset in (17, 5, 9_999_999):
        lane.add(offset)
    assert lane.first == 5
    assert lane.take(3) == [5, 17, 6_000]
    assert len(lane) == 10_000 - 6_001 + 1
    assert lane.take(99_999)[-1] == 9_999_999
    assert not lane


# --- priority ---


def test_the_highest_priority_is_first_and_one_take_is_of_one_level() -> None:
    user = OrderUser(PriorityOrder(OrderOptions()))
    user.arrive(batch_of(6, priorities=[0, 3, 9, 3, 9, 0]))
    assert [user.take(10), user.take(10), user.take(1), user.take(10)] == [[2, 4], [1, 3], [0], [5]]


def test_a_priority_above_the_levels_counts_as_the_highest() -> None:
    user = OrderUser(PriorityOrder(OrderOptions(levels=10)))
    user.arrive(batch_of(4, priorities=[9, 255, 8, 10]))
    assert user.take(10) == [0, 1, 3]


def test_what_comes_back_keeps_its_level_and_its_place() -> None:
    user = OrderUser(PriorityOrder(OrderOptions()))
    user.arrive(batch_of(4, priorities=[5, 5, 0, 5]))
    assert user.take(2) == [0, 1]
    user.come_back([0])
    assert user.take(9) == [0, 3]


# --- key ---


def test_one_record_of_a_key_is_taken_at_a_time() -> None:
    user = OrderUser(KeyOrder())
    user.arrive(batch_of(5, key_hashes=[7, 7, 8, 7, 8]))
    assert user.take(10) == [0, 2]
    assert user.take(10) == []
    user.release([0])
    assert user.take(10) == [1]
    user.come_back([1])
    assert user.take(10) == [1], "a retry is before the later ones of its key"
    user.release([2, 1])
    assert user.take(10) == [3, 4]


def test_records_without_keys_have_no_order_among_each_other() -> None:
    user = OrderUser(KeyOrder())
    user.arrive(batch_of(3))
    user.arrive(batch_of(3, key_hashes=[0, 0, KEYLESS]))
    assert user.take(10) == [0, 1, 2, 3, 5], "a key may have the hash 0, or any other"


def test_a_key_that_several_records_held_is_free_after_the_last() -> None:
    user = OrderUser(KeyOrder())
    user.order.hold([0, 5], [7, 7])
    user.taken = {0: 7, 5: 7}
    user.end = 6
    user.arrive(batch_of(1, key_hashes=[7]))
    assert user.take(9) == []
    user.release([5])
    assert user.take(9) == []
    user.release([0])
    assert user.take(9) == [6]


def test_a_long_search_stops_and_goes_on() -> None:
    order = KeyOrder()
    order.hold([0], [7])
    order.add(range(1, 10_000), [7] * 9_999)
    order.add([10_000], [8])
    searches = 1
    while not (taken := order.take(5)).offsets:
        assert taken.has_more
        searches += 1
    assert (list(taken.offsets), searches) == ([10_000], 3)


# --- fair ---


def test_the_tenant_with_the_fewest_in_flight_is_next() -> None:
    user = OrderUser(FairOrder(OrderOptions(by="label.tenant")))
    user.arrive(by_tenant("flood", "flood", "flood", "flood", "ann", "bob", "ann"))
    assert user.take(1) == [0]
    assert user.take(2) == [4, 5]
    assert user.take(2) == [1, 6], "both have one, and the flood waits longer"
    user.release([0, 1])
    user.arrive(by_tenant("bob"))
    assert user.take(1) == [2], "the flood has none in flight by now"


def test_weights_are_shares_of_what_is_in_flight() -> None:
    user = OrderUser(FairOrder(OrderOptions(by="label.tenant", weights={"big": 3, "other": 2})))
    user.arrive(by_tenant(*["big", "small", "other"] * 20))
    tenants = ("big", "small", "other")
    held = [offset for _ in range(12) for offset in user.take(1)]
    assert [sum(offset % 3 == at for offset in held) for at in range(len(tenants))] == [6, 2, 4]
    user.release([offset for offset in held if offset % 3 == 0])
    assert [offset % 3 for _ in range(6) for offset in user.take(1)] == [0] * 6, "what it lacks"


def test_a_flood_does_not_delay_the_others() -> None:
    user = OrderUser(FairOrder(OrderOptions(by="label.tenant")))
    user.arrive(by_tenant(*["flood"] * 5_000))
    held = user.take(8)
    for at in range(7):
        user.release(held[:1])
        user.arrive(by_tenant(f"tenant {at}"))
        held = [*held[1:], *(found := user.take(1))]
        assert found == [user.end - 1], "each newcomer is next"


def test_the_routing_key_is_the_tenant_unless_another_is_named() -> None:
    user = OrderUser(FairOrder(OrderOptions()))
    user.arrive(batch_of(3, pairs=(Pair("a", ()), Pair("b", ())), pair_index=[0, 0, 1]))
    assert user.take(2) == [0, 2]


def test_a_label_that_is_no_text_is_a_tenant_by_its_text_and_none_is_one_as_well() -> None:
    order = FairOrder(OrderOptions(by="label.tenant"))
    first, again, other = (next(iter(order.classify(by_tenant(value)))) for value in (7, "7", True))
    assert first == again != other
    assert next(iter(order.classify(batch_of(2)))) not in (first, other, SHARED)


def test_a_million_tenants_share_what_the_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "TENANTS_MAX", 20)
    user = OrderUser(FairOrder(OrderOptions(by="label.tenant")))
    user.arrive(by_tenant(*range(30)))
    assert [*user.added.values()].count(SHARED) == 10
    assert sorted(user.take(30)) == list(range(30))
    user.release(range(30))
    later = [next(iter(user.order.classify(by_tenant(f"later {at}")))) for at in range(2_000)]
    assert set(later[:900]) == {SHARED}
    assert SHARED not in later[1_016:1_030], "idle tenants made room"


@pytest.mark.parametrize(("by", "wrong"), [("", False), ("routing_key", False), ("label.a", False), ("label.", True)])
def test_only_labels_and_routing_keys_name_tenants(by: str, wrong: bool) -> None:
    (fair,) = [kind for kind in orders.linn_register_order() if kind.name == "fair"]
    assert (fair.by_problem(OrderOptions(by=by)) is not None) == wrong
