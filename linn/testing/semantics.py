"""The conformance suite of delivery semantics: `SemanticsConformance`, to subclass.

    class TestMine(SemanticsConformance):
        @pytest.fixture
        def semantics(self) -> DeliverySemantics:
            return Mine(MySettings())

Laws: a test asks for the decisions of a semantics, never for its name. The broker's state machine carries the decisions
out: under any semantics no record is delivered to two consumers at once, skipped, or delivered again after it is
settled, and every record is settled in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from linn.core.delivery.vocabulary import CONNECTION_LEASE_MS
from linn.core.queue.effects import Effects
from linn.core.queue.event import decode_events, encode_events
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LEASE_MS_MAX, Lease
from linn.core.queue.semantics import Acks, ConfirmWhen, DeliverySemantics
from linn.core.queue.subscription import SharedSubscription

END = 100
ANN, BOB = 1, 2
LONG_S = 2 * LEASE_MS_MAX / 1000
"""A time after which every lease has ended and every delay has passed."""
LEASES_MAX = 2 * END
"""Maximum number of leases that a test takes in a row: each record is ready once."""
ROUNDS_MAX = 200
"""Maximum number of deliveries of one record in a test; it acks then if the semantics delivers without limit."""


def begun(semantics: DeliverySemantics, rows: list[bytes] | None = None, now: float = 0.0) -> SharedSubscription:
    """Make a subscription that is ready to deliver, from its event log if it has one."""
    subscription = SharedSubscription(semantics, 0)
    for row in (rows or []) if semantics.survives_restart else []:
        for event in decode_events(row):
            subscription.apply(event)
    subscription.recovered(now)
    return subscription


def leases(subscription: SharedSubscription, end: int, now: float) -> Iterator[Lease]:
    """Take leases for Ann until nothing is ready. Raises AssertionError if there is no end."""
    for _ in range(LEASES_MAX):
        lease = subscription.acquire(ANN, END, end, now)
        if lease is None:
            return
        yield lease
    raise AssertionError(f"records are still ready after {LEASES_MAX} leases")


def acked(subscription: SharedSubscription, delivery_id: int, now: float) -> Effects:
    """Settle a lease of Ann's as a consumer would: by an ack, or in two phases. Raises as `ack` does, or `ready`."""
    if not subscription.semantics.is_two_phase:
        return subscription.ack(ANN, delivery_id, None, now)
    subscription.ready(ANN, delivery_id, None, Holder("ann", 0), now)
    decided = [it for it in subscription.decided_to("ann") if it.decision.delivery_id == delivery_id]
    return Effects(sum([subscription.done("ann", delivery_id, it.first, it.end).settled for it in decided]))


class SemanticsConformance:
    """The promises of `linn.core.queue.semantics`. A subclass gives the fixture `semantics`."""

    def test_every_kind_of_acks_has_a_meaning(self, semantics: DeliverySemantics) -> None:
        for acks in get_args(Acks):
            assert isinstance(semantics.confirm_when(acks), ConfirmWhen)

    def test_stronger_acks_never_confirm_earlier(self, semantics: DeliverySemantics) -> None:
        found = [list(ConfirmWhen).index(semantics.confirm_when(acks)) for acks in ("none", "leader", "all")]
        assert found == sorted(found)

    def test_its_promises_do_not_change(self, semantics: DeliverySemantics) -> None:
        promises = []
        for _ in range(2):
            found = semantics.settles_on_delivery, semantics.survives_restart, semantics.is_two_phase
            promises.append((*found, semantics.lease_ms, semantics.lease_records_max))
            assert all(type(promise) is bool for promise in found)
            for lease in leases(begun(semantics), END, 0.0):
                assert lease.attempt == 1
        assert promises[0] == promises[1]

    def test_records_are_not_settled_on_delivery_and_in_two_phases(self, semantics: DeliverySemantics) -> None:
        assert not (semantics.settles_on_delivery and semantics.is_two_phase)

    def test_leases_have_a_duration_and_a_size(self, semantics: DeliverySemantics) -> None:
        assert 1 <= semantics.lease_ms <= LEASE_MS_MAX or semantics.lease_ms == CONNECTION_LEASE_MS
        assert semantics.lease_records_max >= 1

    def test_a_returned_record_has_a_delay_within_bounds_or_is_dead(self, semantics: DeliverySemantics) -> None:
        for attempts in (*range(1, 40), 10**9):
            for asked_ms in (None, 0, 1, 5_000, LEASE_MS_MAX):
                delay_ms = semantics.redelivery_ms(attempts, asked_ms)
                assert delay_ms is None or 0 <= delay_ms <= LEASE_MS_MAX
                assert semantics.redelivery_ms(attempts, asked_ms) == delay_ms, "the same question, the same answer"

    # --- with the broker's state machine -----------------------------------------------------------------------------

    def test_each_record_is_given_once_at_a_time_and_none_is_skipped(self, semantics: DeliverySemantics) -> None:
        given: list[int] = []
        for lease in leases(begun(semantics), END, 0.0):
            assert lease.end - lease.first <= semantics.lease_records_max
            given += range(lease.first, lease.end)
        assert given == list(range(END))

    def test_a_lease_that_nobody_settles_ends(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        assert subscription.acquire(ANN, 5, END, 0.0) is not None
        assert (subscription.leased_count == 0) == semantics.settles_on_delivery
        assert (subscription.next_deadline() is None) == semantics.settles_on_delivery
        subscription.expire(LONG_S)
        assert subscription.leased_count == 0

    def test_every_record_is_settled_in_the_end(self, semantics: DeliverySemantics) -> None:
        subscription, now = begun(semantics), 0.0
        for round_number in range(ROUNDS_MAX):
            now += LONG_S
            subscription.expire(now)
            for lease in leases(subscription, END, now):
                if round_number == ROUNDS_MAX - 1:
                    acked(subscription, lease.delivery_id, now)
            subscription.consumer_gone(ANN, now)
            for dead in subscription.dead():
                subscription.dead_lettered(dead.first, dead.end)
        assert subscription.settled_before() == END

    def test_settled_records_stay_settled_after_a_restart(self, semantics: DeliverySemantics) -> None:
        before = begun(semantics)
        for lease in leases(before, END // 2, 0.0):
            acked(before, lease.delivery_id, 0.0)
        assert before.acquire(BOB, 5, END, 0.0) is not None
        rows = [encode_events(before.take_events())]
        for survivor in (begun(semantics, rows), begun(semantics, [encode_events(before.snapshot_events())])):
            expected = before.settled_before() if semantics.survives_restart else 0
            assert survivor.settled_before() == expected
            survivor.expire(LONG_S)
            dead = [offset for each in survivor.dead() for offset in range(each.first, each.end)]
            given = [offset for lease in leases(survivor, END, LONG_S) for offset in range(lease.first, lease.end)]
            assert sorted(given + dead) == list(range(expected, END))
