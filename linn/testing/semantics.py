"""The conformance suite of delivery semantics: `SemanticsConformance`, to subclass. `subscription_machine` has a model.

    class TestMine(SemanticsConformance):
        @pytest.fixture
        def semantics(self) -> DeliverySemantics:
            return Mine(MySettings())

Laws: a test asks `settles_on_delivery` and `survives_restart`, never for a name. Semantics may differ in how often they
deliver and when a record is dead; but none delivers a record to two consumers at once, skips a record, or delivers a
settled record again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import get_args

from linn.core.errors.tree import DeliveryNotCurrent, LinnError
from linn.core.queue.effects import Effects
from linn.core.queue.event import decode_events, encode_events
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LEASE_MS_MAX, Lease
from linn.core.queue.offset_ranges import Range
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


def begun(semantics: DeliverySemantics, start: int = 0) -> SharedSubscription:
    """Make a subscription that is ready to deliver; the events of `recovered` are already taken."""
    subscription = semantics.shared_subscription(start)
    subscription.recovered(0.0)
    subscription.take_events()
    return subscription


def replayed(semantics: DeliverySemantics, rows: list[bytes], now: float, start: int = 0) -> SharedSubscription:
    """Make a subscription as after a restart: a new one, to which the event log is applied."""
    subscription = semantics.shared_subscription(start)
    for row in rows if semantics.survives_restart else ():
        for event in decode_events(row):
            subscription.apply(event)
    subscription.recovered(now)
    return subscription


def leases(subscription: SharedSubscription, records_max: int, end: int, now: float) -> Iterator[Lease]:
    """Take leases for Ann until nothing is ready. Raises AssertionError if there is no end."""
    for _ in range(LEASES_MAX):
        lease = subscription.acquire(ANN, records_max, end, now)
        if lease is None:
            return
        yield lease
    raise AssertionError(f"records are still ready after {LEASES_MAX} leases")


def taken(subscription: SharedSubscription, consumer: int, count: int) -> list[Lease]:
    """Lease `count` records at time 0, in as many leases as needed."""
    found: list[Lease] = []
    while (missing := count - sum(lease.end - lease.first for lease in found)) > 0:
        lease = subscription.acquire(consumer, missing, END, 0.0)
        assert lease is not None, f"{missing} records are missing, and nothing is ready"
        found.append(lease)
    return found


def offsets_of(lease: Lease | None) -> list[int]:
    """Return the offsets of a lease."""
    return list(range(lease.first, lease.end)) if lease is not None else []


def holder_of(consumer: int) -> Holder:
    """Return a consumer's name, with the time of a decision."""
    return Holder(f"consumer-{consumer}", 0)


def acked(
    subscription: SharedSubscription, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float
) -> Effects:
    """Settle records as their consumer would: by an ack, or in two phases. Raises as `ack` does, or `ready`."""
    if not subscription.is_two_phase:
        return subscription.ack(consumer, delivery_id, ranges, now)
    holder = holder_of(consumer)
    effects = subscription.ready(consumer, delivery_id, ranges, holder, now)
    decided = [it for it in subscription.decided_to(holder.name) if it.decision.delivery_id == delivery_id]
    assert sum(it.end - it.first for it in decided) >= effects.decided
    settled = [subscription.done(holder.name, delivery_id, it.first, it.end).settled for it in decided]
    return Effects(settled=sum(settled))


class SemanticsConformance:
    """The promises of `linn.core.queue.semantics`. A subclass gives the fixture `semantics`."""

    def test_every_kind_of_acks_has_a_meaning(self, semantics: DeliverySemantics) -> None:
        for acks in get_args(Acks):
            assert isinstance(semantics.confirm_when(acks), ConfirmWhen)

    def test_stronger_acks_never_confirm_earlier(self, semantics: DeliverySemantics) -> None:
        found = [list(ConfirmWhen).index(semantics.confirm_when(acks)) for acks in ("none", "leader", "all")]
        assert found == sorted(found)

    def test_its_promises_do_not_change(self, semantics: DeliverySemantics) -> None:
        before = semantics.settles_on_delivery, semantics.survives_restart
        subscription = begun(semantics)
        subscription.acquire(ANN, 5, END, 0.0)
        assert (semantics.settles_on_delivery, semantics.survives_restart) == before
        assert all(type(promise) is bool for promise in before)

    # --- delivering --------------------------------------------------------------------------------------------------

    def test_it_begins_where_it_is_told_to(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics, 7)
        assert subscription.settled_before() == 7
        assert offsets_of(subscription.acquire(ANN, 1, END, 0.0)) == [7]

    def test_there_is_nothing_beyond_the_end(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        assert subscription.acquire(ANN, 5, 0, 0.0) is None
        assert [offset for lease in leases(subscription, 5, 2, 0.0) for offset in offsets_of(lease)] == [0, 1]
        assert subscription.acquire(BOB, 5, 2, 0.0) is None

    def test_each_record_is_given_once_at_a_time_and_none_is_skipped(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        given: list[int] = []
        for lease in leases(subscription, 7, END, 0.0):
            assert lease.attempt == 1
            given += offsets_of(lease)
            given += offsets_of(subscription.acquire(BOB, 2, END, 0.0))
        assert given == list(range(END))

    def test_delivery_ids_grow(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        ids = [lease.delivery_id for lease in leases(subscription, 9, END, 0.0)]
        assert ids == sorted(set(ids))

    def test_subscriptions_have_nothing_in_common(self, semantics: DeliverySemantics) -> None:
        one, other = begun(semantics), begun(semantics)
        one.acquire(ANN, 50, END, 0.0)
        assert other.settled_before() == 0
        assert offsets_of(other.acquire(ANN, 1, END, 0.0)) == [0]

    # --- settling ----------------------------------------------------------------------------------------------------

    def test_acked_records_are_settled_for_good(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        for lease in leases(subscription, 30, END, 0.0):
            acked(subscription, ANN, lease.delivery_id, None, 0.0)
        assert subscription.settled_before() == END
        subscription.expire(LONG_S)
        subscription.consumer_gone(ANN, LONG_S)
        assert subscription.acquire(BOB, 30, END, LONG_S) is None
        assert subscription.next_deadline() is None

    def test_settling_on_delivery_happens_then_and_no_earlier(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        lease = subscription.acquire(ANN, 5, END, 0.0)
        assert lease is not None
        if semantics.settles_on_delivery:
            assert subscription.settled_before() == lease.end
            assert subscription.leased_count == 0
        else:
            assert subscription.settled_before() == 0
            assert subscription.leased_count == lease.end - lease.first

    def test_a_part_can_be_acked(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        for lease in taken(subscription, ANN, 5):
            part = [(offset, offset + 1) for offset in offsets_of(lease) if offset in (0, 1, 3)]
            if part:
                acked(subscription, ANN, lease.delivery_id, part, 0.0)
        assert subscription.settled_before() == (5 if semantics.settles_on_delivery else 2)
        subscription.consumer_gone(ANN, 0.0)
        subscription.expire(LONG_S)
        found = [offset for letter in subscription.dead() for offset in range(letter.first, letter.end)]
        for lease in leases(subscription, 5, 5, LONG_S):
            found += offsets_of(lease)
        assert found == ([] if semantics.settles_on_delivery else [2, 4])

    def test_a_refused_request_changes_nothing(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        lease = subscription.acquire(ANN, 5, END, 0.0)
        assert lease is not None
        subscription.take_events()
        before = subscription.statistics()
        id = lease.delivery_id
        requests: list[Callable[[], object]] = [
            lambda: subscription.ack(BOB, id, None, 0.0),
            lambda: subscription.ack(ANN, id + 10**9, None, 0.0),
            lambda: subscription.ack(ANN, id, [(4, 9)], 0.0),
            lambda: subscription.ready(BOB, id, None, holder_of(BOB), 0.0),
            lambda: subscription.ready(ANN, id + 10**9, None, holder_of(ANN), 0.0),
            lambda: subscription.ready(ANN, id, [(4, 9)], holder_of(ANN), 0.0),
            lambda: subscription.done(holder_of(ANN).name, id, 0, 5),
            lambda: subscription.nack(ANN, id, [(-1, 2)], 0.0),
            lambda: subscription.nack(ANN, id, None, 0.0, delay_ms=-1),
            lambda: subscription.reject(BOB, id, None, 0.0),
            lambda: subscription.extend(ANN, id, None, 0, 0.0),
            lambda: subscription.extend(ANN, id, None, LEASE_MS_MAX + 1, 0.0),
            lambda: subscription.extend(ANN, id, [(-(1 << 63), 2)], 1_000, 0.0),
            lambda: subscription.extend(ANN, id, [(0, 1 << 62)], 1_000, 0.0),
            lambda: subscription.extend(ANN, id, [(1, 1)], 1_000, 0.0),
        ]
        for request in requests:
            with suppress(LinnError):
                assert request() == Effects()
            assert subscription.statistics() == before
            assert subscription.take_events() == []

    def test_a_nacked_record_is_redelivered_or_the_nack_refused(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        for lease in taken(subscription, ANN, 5):
            try:
                subscription.nack(ANN, lease.delivery_id, None, 0.0)
            except DeliveryNotCurrent:
                assert semantics.settles_on_delivery
                return
        assert subscription.settled_before() == 0
        subscription.expire(LONG_S)
        dead = sum(letter.end - letter.first for letter in subscription.dead())
        assert dead + sum(len(offsets_of(lease)) for lease in leases(subscription, 5, 5, LONG_S)) == 5

    def test_a_leaving_consumers_records_are_returned(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        subscription.acquire(ANN, 5, END, 0.0)
        subscription.consumer_gone(ANN, 0.0)
        assert subscription.leased_count == 0
        assert not subscription.holds(ANN)
        assert subscription.consumer_gone(ANN, 0.0) == Effects()

    def test_a_lease_that_nobody_settles_ends(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        lease = subscription.acquire(ANN, 5, END, 0.0)
        assert lease is not None
        deadline = subscription.next_deadline()
        assert (deadline is None) == semantics.settles_on_delivery
        subscription.expire(LONG_S)
        assert subscription.leased_count == 0

    def test_every_record_comes_to_an_end(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        now = 0.0
        for round_number in range(ROUNDS_MAX):
            now += LONG_S
            subscription.expire(now)
            for lease in leases(subscription, END, END, now):
                if round_number == ROUNDS_MAX - 1:
                    acked(subscription, ANN, lease.delivery_id, None, now)
            subscription.consumer_gone(ANN, now)
            for dead in subscription.dead():
                subscription.dead_lettered(dead.first, dead.end)
        assert subscription.settled_before() == END

    # --- two phases --------------------------------------------------------------------------------------------------

    def test_decided_records_are_their_holders_until_they_are_done(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        if not subscription.is_two_phase:
            return
        (lease, *_) = taken(subscription, ANN, 5)
        name, count = holder_of(ANN).name, lease.end - lease.first
        assert subscription.ready(ANN, lease.delivery_id, None, holder_of(ANN), 0.0) == Effects(decided=count)
        rows = [encode_events(subscription.take_events())]
        subscription.consumer_gone(ANN, 0.0)
        subscription.purge(5)
        subscription.expire(LONG_S)
        rows.append(encode_events(subscription.take_events()))
        for survivor in (subscription, replayed(semantics, rows, LONG_S)):
            assert survivor.settled_before() == 0
            assert survivor.acquire(BOB, 5, 5, LONG_S) is None
            (decided,) = survivor.decided_to(name)
            assert (decided.first, decided.end, decided.decision.attempt) == (lease.first, lease.end, lease.attempt)
            for other, id in ((holder_of(BOB).name, lease.delivery_id), (name, lease.delivery_id + 1)):
                refused = subscription.statistics()
                with suppress(DeliveryNotCurrent):
                    survivor.done(other, id, lease.first, lease.end)
                assert subscription.statistics() == refused
            assert survivor.done(name, lease.delivery_id, lease.first, lease.end) == Effects(settled=count)
            assert survivor.settled_before() == lease.end

    def test_a_lease_that_has_ended_is_not_decided(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        if not subscription.is_two_phase:
            return
        (lease, *_) = taken(subscription, ANN, 5)
        subscription.expire(LONG_S)
        before = subscription.statistics()
        with suppress(DeliveryNotCurrent):
            subscription.ready(ANN, lease.delivery_id, None, holder_of(ANN), LONG_S)
        assert subscription.statistics() == before

    # --- the log's bounds --------------------------------------------------------------------------------------------

    def test_records_lost_by_the_log_are_skipped(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        subscription.acquire(ANN, 5, END, 0.0)
        subscription.skip_to(20)
        assert subscription.settled_before() == 20
        assert subscription.leased_count == 0
        assert offsets_of(subscription.acquire(BOB, 1, END, 0.0)) == [20]

    def test_a_purge_leaves_leased_records(self, semantics: DeliverySemantics) -> None:
        subscription = begun(semantics)
        lease = subscription.acquire(ANN, 5, END, 0.0)
        assert lease is not None
        subscription.purge(END)
        assert subscription.acquire(BOB, 5, END, 0.0) is None
        acked(subscription, ANN, lease.delivery_id, None, 0.0)
        assert subscription.settled_before() == END

    # --- surviving ---------------------------------------------------------------------------------------------------

    def test_settled_records_stay_settled_after_a_restart(self, semantics: DeliverySemantics) -> None:
        before = begun(semantics)
        taken(before, ANN, 5)
        held = taken(before, BOB, 5)
        for lease in held:
            acked(before, BOB, lease.delivery_id, None, 0.0)
        rows = [encode_events(before.take_events())]
        after = replayed(semantics, rows, 0.0)
        if not semantics.survives_restart:
            assert after.settled_before() == 0
            return
        assert after.settled_before() == before.settled_before()
        assert after.settled == before.settled
        dead = [offset for letter in after.dead() for offset in range(letter.first, letter.end)]
        given: list[int] = []
        after.expire(LONG_S)
        for lease in leases(after, 50, END, LONG_S):
            assert lease.delivery_id > held[-1].delivery_id
            given += offsets_of(lease)
        settled = range(10) if semantics.settles_on_delivery else range(5, 10)
        assert sorted(given + dead) == [offset for offset in range(END) if offset not in settled]

    def test_a_snapshot_says_what_all_events_say(self, semantics: DeliverySemantics) -> None:
        before = begun(semantics)
        rows = []
        for number in range(6):
            lease = before.acquire(ANN, 4, END, 0.0)
            assert lease is not None
            if number % 2:
                acked(before, ANN, lease.delivery_id, None, 0.0)
            rows.append(encode_events(before.take_events()))
        snapshot = [encode_events(before.snapshot_events(0.0))]
        one, other = replayed(semantics, rows, 0.0), replayed(semantics, snapshot, 0.0)
        assert (one.settled_before(), one.settled) == (other.settled_before(), other.settled)
        assert one.ready_count(END) == other.ready_count(END)
