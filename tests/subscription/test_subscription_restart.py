"""Effects of a restart: state that is kept, records that are returned, and ids that are never given out twice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

import pytest

from linn.core.errors.tree import DeliveryNotCurrent, LogCorrupt
from linn.core.queue import record_states
from linn.core.queue.dead_letter import Intent
from linn.core.queue.effects import Effects
from linn.core.queue.event import Acquired, Intended, Returned, Settled, decode_events, encode_events
from linn.core.queue.lease import LEASE_MS_MAX, LeaseSettings
from linn.core.queue.subscription import DELIVERY_ID_GAP, SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce

END = 1_000
ANN = 1


def make(**settings: object) -> SharedSubscription:
    return SharedSubscription(AtLeastOnce(LeaseSettings(lease_ms=10_000, **settings)), 0)


def restarted(log: list[bytes], **settings: object) -> SharedSubscription:
    subscription = make(**settings)
    for data in log:
        for event in decode_events(data):
            subscription.apply(event)
    return subscription


def test_leased_records_are_returned_with_their_attempts_and_old_ids_are_dead():
    before = make()
    settled, held = before.acquire(ANN, 2, END, 0.0), before.acquire(ANN, 3, END, 0.0)
    before.ack(ANN, settled.delivery_id, None, 0.0)
    after = restarted([encode_events(before.take_events())])
    assert after.recovered(0.0) == Effects(ready=3)
    with pytest.raises(DeliveryNotCurrent):
        after.ack(ANN, held.delivery_id, None, 0.0)
    lease = after.acquire(ANN, 9, END, 0.0)
    assert (lease.first, lease.end, lease.attempt) == (2, 5, 2)
    assert after.settled_before() == 2


def test_attempts_that_were_used_up_by_a_crash_make_a_dead_letter():
    before = make(max_deliveries=1)
    before.acquire(ANN, 2, END, 0.0)
    after = restarted([encode_events(before.take_events())], max_deliveries=1)
    assert after.recovered(0.0) == Effects(dead=2)


def test_delivery_ids_jump_at_each_restart_although_nothing_was_logged_in_between():
    log, delivery_ids = [], []
    for _ in range(3):
        subscription = restarted(log)
        subscription.recovered(0.0)
        log.append(encode_events(subscription.take_events()))
        delivery_ids.append(subscription.acquire(ANN, 1, END, 0.0).delivery_id)
    assert [later - earlier for earlier, later in pairwise(delivery_ids)] == [DELIVERY_ID_GAP] * 2


def delayed(is_snapshot: bool = False) -> list[bytes]:
    """The log of a subscription that returned two records at 1000 s, for 5 s."""
    before = make(redelivery_delay_ms=5_000)
    before.nack(ANN, before.acquire(ANN, 2, END, 1_000.0).delivery_id, None, 1_000.0)
    log = [encode_events(before.take_events())]
    return [encode_events(before.snapshot_events())] if is_snapshot else log


@pytest.mark.parametrize("is_snapshot", [False, True])
@pytest.mark.parametrize("started", [1_002.0, 1_004.999, 900.0])
def test_a_delay_ends_after_a_restart_when_it_would_have_ended_without_one(started, is_snapshot):
    after = restarted(delayed(is_snapshot))
    assert after.recovered(started) == Effects(delayed=2)
    assert after.next_deadline() == 1_005.0
    assert after.expire(1_004.999) == Effects()
    assert after.expire(1_005.0) == Effects(ready=2)


def test_a_delay_that_ended_while_the_broker_was_down_is_over_at_the_start():
    after = restarted(delayed())
    after.recovered(2_000.0)
    assert after.acquire(ANN, 9, 2, 2_000.0) is None, "time that passes changes nothing by itself"
    assert after.expire(2_000.0) == Effects(ready=2)
    assert after.acquire(ANN, 9, 2, 2_000.0).attempt == 2


def test_a_delay_that_seems_longer_than_any_is_cut_by_an_event():
    log = delayed()
    after = restarted(log)
    after.recovered(-604_000.0)
    assert after.next_deadline() == LEASE_MS_MAX / 1000 - 604_000, "the clock was years ahead, and is set right now"
    again = restarted([*log, encode_events(after.take_events())])
    assert again.snapshot_events() == after.snapshot_events()


def test_the_end_of_a_delay_is_an_event_and_its_log_gives_the_same_state_anywhere():
    first = restarted(delayed())
    first.recovered(1_001.0)
    first.expire(1_006.0)
    events = first.take_events()
    assert Returned(0, 2, 1, 0) in events
    other = restarted([*delayed(), encode_events(events)])
    assert other.snapshot_events() == first.snapshot_events(), "before any clock is asked"
    assert other.ready_count(2) == 2


def test_a_lease_lost_with_the_broker_is_delayed_once_however_often_it_starts():
    before = make(redelivery_delay_ms=5_000)
    before.acquire(ANN, 2, END, 0.0)
    log = [encode_events(before.take_events())]
    for started in (10.0, 13.0, 14.0):
        after = restarted(log, redelivery_delay_ms=5_000)
        after.recovered(started)
        assert after.next_deadline() == 15.0
        log.append(encode_events(after.take_events()))


def test_a_step_that_was_begun_is_known_after_a_restart():
    before = make()
    lease = before.acquire(ANN, 4, END, 0.0)
    before.reject(ANN, lease.delivery_id, None, 0.0)
    before.intend(0, 3, Intent(2, 77))
    before.dead_lettered(0, 1)
    after = restarted([encode_events(before.take_events())])
    after.recovered(0.0)
    assert [(dead.first, dead.end) for dead in after.dead()] == [(1, 3), (3, 4)]
    intent, _ = after.dead()
    assert after.intended() == [intent]
    assert (intent.first, intent.end, intent.intent) == (1, 3, Intent(2, 77))


def explained() -> SharedSubscription:
    """Records 0 and 1 that died for a reason, 2 returned for one and leased again, 3 acked after it, 4 without any."""
    subscription = make(max_deliveries=2)
    lease = subscription.acquire(ANN, 5, END, 0.0)
    subscription.nack(ANN, lease.delivery_id, [(1, 5)], 0.0, reason="first")
    subscription.reject(ANN, lease.delivery_id, [(0, 1)], 0.0, "rejected")
    again = subscription.acquire(ANN, 4, END, 0.0)
    subscription.nack(ANN, again.delivery_id, [(1, 2)], 0.0, reason="second")
    subscription.ack(ANN, again.delivery_id, [(3, 4)], 0.0)
    return subscription


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_the_last_reason_of_a_record_survives_a_restart_until_it_is_settled(is_snapshot):
    before = explained()
    log = [encode_events(before.take_events())]
    log += [encode_events(before.snapshot_events())] * is_snapshot
    for subscription in (before, restarted(log, max_deliveries=2)):
        assert [subscription.cause_of(offset) for offset in range(6)] == [
            "rejected",
            "second",
            "first",
            "",
            "first",
            "",
        ]
    after = restarted(log, max_deliveries=2)
    assert after.recovered(0.0) == Effects(dead=2), "the last attempt was lost with the broker"
    assert [after.cause_of(offset) for offset in (2, 4)] == ["first", "first"]
    after.dead_lettered(0, 5)
    assert [after.cause_of(offset) for offset in range(5)] == [""] * 5
    assert after._states.causes.count == 0


def test_a_reason_goes_with_its_record():
    for end in (lambda it: it.skip_to(5), lambda it: (it.consumer_gone(ANN, 0.0), it.dead_lettered(0, 5))):
        subscription = explained()
        end(subscription)
        assert subscription._states.causes.count == 0


def test_reasons_are_one_printable_line_of_a_limited_length():
    subscription = make()
    for reason, kept in [
        ("\x1b[31mred\r\n\x00\u202e", "[31mred"),
        ("\N{EURO SIGN}" * 1_000, "\N{EURO SIGN}" * 85),
        ("a" + "\N{EURO SIGN}" * 1_000, "a" + "\N{EURO SIGN}" * 84),
        ("lone \udcff surrogate", "lone   surrogate"),
        (" \t\n", "lone   surrogate"),  # No reason: the one before stays.
    ]:
        lease = subscription.acquire(ANN, 1, END, 0.0)
        subscription.nack(ANN, lease.delivery_id, None, 0.0, reason=reason)
        assert subscription.cause_of(0) == kept
        assert len(kept.encode()) <= 255


def test_reasons_are_kept_up_to_a_limit_and_those_of_the_dead_come_first(monkeypatch):
    monkeypatch.setattr(record_states, "CAUSES_MAX", 4)
    subscription = make()
    lease = subscription.acquire(ANN, 10, END, 0.0)
    for offset in range(3):
        subscription.nack(ANN, lease.delivery_id, [(offset, offset + 1)], 0.0, reason=f"nack {offset}")
    for offset in range(3, 6):
        subscription.reject(ANN, lease.delivery_id, [(offset, offset + 1)], 0.0, f"reject {offset}")
    assert [subscription.cause_of(offset) for offset in range(6)] == [
        *("nack 0", "nack 1", ""),
        *("reject 3", "reject 4", ""),
    ]
    assert restarted([encode_events(subscription.take_events())]).cause_of(4) == "reject 4"


def test_a_snapshot_replaces_all_earlier_rows_of_the_log():
    before = make()
    held = before.acquire(ANN, 4, END, 0.0)
    before.ack(ANN, held.delivery_id, [(1, 2)], 0.0)
    history = encode_events(before.take_events())
    snapshot = encode_events(before.snapshot_events())
    alone, after_history = restarted([snapshot]), restarted([history, snapshot])
    assert alone.snapshot_events() == after_history.snapshot_events()
    assert alone.recovered(0.0) == Effects(ready=3)


def alternating(count: int) -> tuple[SharedSubscription, list[bytes]]:
    """A subscription of which every second record is settled and the others wait, and its log, a record per lease."""
    before, log = make(), []
    for first in range(0, count, 1_000):
        held = before.acquire(ANN, 1_000, count, first / 1_000)
        for offset in range(held.first, held.end, 2):
            before.nack(ANN, held.delivery_id, [(offset, offset + 1)], first / 1_000, 3_600_000)
            before.ack(ANN, held.delivery_id, [(offset + 1, offset + 2)], first / 1_000)
        log.append(encode_events(before.take_events()))
    return before, log


def calls_of(work: Callable[[], object]) -> int:
    """The number of calls of Python functions: a measure of work that other processes do not affect."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(profiler)
    return calls


@pytest.mark.parametrize("form", ["history", "snapshot"])
def test_records_that_differ_one_by_one_are_replayed_in_bulk(form):
    before, log = alternating(20_000)
    if form == "snapshot":
        log = [encode_events(before.snapshot_events())]
    assert calls_of(lambda: restarted(log)) < 4 * 20_000, "a row by itself takes 20 and more"
    after = restarted(log)
    after.check()
    assert after.recovered(0.0) == Effects(delayed=10_000)
    assert after.settled == before.settled


def test_records_returned_at_a_start_do_not_slow_the_next_one():
    before = make()
    held = before.acquire(ANN, 2_000, 2_000, 0.0)
    before.ack(ANN, held.delivery_id, [(offset, offset + 1) for offset in range(1, 2_000, 2)], 0.0)
    log = [encode_events(before.take_events())]
    for _ in range(2):
        after = restarted(log, max_deliveries=2)
        assert after.recovered(0.0) == Effects(ready=1_000)
        log.append(encode_events(after.take_events()))
        assert len(log[-1]) < 100
    lease = after.acquire(ANN, 9, 2_000, 0.0)
    assert (lease.first, lease.end, lease.attempt) == (0, 1, 2)


@pytest.mark.parametrize(
    "events",
    [
        [Settled(0, 4), Acquired(3, 5, 1, 1)],
        [Settled(2, 4), Returned(0, 3, 1, 0)],
        [Acquired(0, 4, 1, 1), Intended(0, 4, 0, 0)],
    ],
)
def test_a_history_that_can_not_have_been_is_corrupt(events):
    with pytest.raises(LogCorrupt):
        restarted([encode_events(events)])
