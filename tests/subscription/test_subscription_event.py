"""The subscription log's rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.errors.tree import LogCorrupt
from linn.core.queue.dead_letter import DeadLetters, DeadLetterTarget, DeadReason
from linn.core.queue.event import (
    DELIVERY_ID_MAX,
    OFFSET_MAX,
    Acquired,
    DeadLetterIntended,
    DeliveryIdsStarted,
    Died,
    EventBuffer,
    Returned,
    Settled,
    Skipped,
    Started,
    clip_event,
    decode_events,
    encode_events,
    single_events,
)
from linn.core.queue.event_run import EventRun, Snapshot
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.subscription import SharedSubscription


def events(offset_max: int):
    number = st.integers(0, 2**32 - 1)
    spans = st.tuples(st.integers(0, offset_max - 1), st.integers(1, offset_max)).map(
        lambda pair: (pair[0], min(pair[0] + pair[1], offset_max))
    )
    delivery_ids = st.integers(0, DELIVERY_ID_MAX - 1)
    offsets = st.integers(0, offset_max)
    anything = st.integers(0, OFFSET_MAX)
    return st.one_of(
        st.builds(Started, offsets, delivery_ids),
        st.builds(lambda span, *rest: Acquired(*span, *rest), spans, st.integers(1, 2**32 - 1), delivery_ids),
        st.builds(lambda span: Settled(*span), spans),
        st.builds(lambda span, *rest: Returned(*span, *rest), spans, number, st.integers(0, 1_000_000)),
        st.builds(lambda span, *rest: Died(*span, *rest), spans, number, st.sampled_from(DeadReason)),
        st.builds(lambda span, *rest: DeadLetterIntended(*span, *rest), spans, number, anything),
        st.builds(Skipped, offsets),
        st.builds(DeliveryIdsStarted, delivery_ids),
    )


@given(st.lists(events(OFFSET_MAX)))
def test_any_events_survive_the_codec(some):
    data = encode_events(some)
    assert len(data) == 1 + 32 * len(some)
    assert single_events(decode_events(data)) == some
    assert single_events(decode_events(memoryview(bytearray(data)))) == some


@given(
    st.binary(max_size=100)
    | st.binary(min_size=32, max_size=32).map(lambda row: b"\x01" + row)
    | st.binary(min_size=16, max_size=60).map(lambda snapshot: b"\x02" + snapshot)
)
def test_any_bytes_are_events_or_corrupt(data):
    try:
        found = decode_events(data)
    except LogCorrupt:
        return
    assert encode_events(found) == data


@pytest.mark.parametrize(
    "row",
    [
        "00",  # no such kind
        "09",
        "0300000000000000 0500000000000000 0500000000000000",  # an empty range
        "0300000000000000 0500000000000000 0400000000000000",  # a range that ends before it begins
        "0300000000000000 ffffffffffffffff 0400000000000000",  # a negative offset
        "0301000000000000 0400000000000000 0500000000000000",  # a reason where there is none
        "0500000000000000 0400000000000000 0500000000000000",  # no reason
        "0505000000000000 0400000000000000 0500000000000000",  # no such reason
        "0300000001000000 0400000000000000 0500000000000000",  # a number where there is none
        "0300010000000000 0400000000000000 0500000000000000",  # the zero isn't
        "0200000000000000 0400000000000000 0500000000000000",  # attempt 0
        "0700000000000000 0400000000000000 0500000000000000",  # an offset that is a range
        "0800000000000000 0000000000000000 0000000000000000 ffffffffffffff7f",  # no id left for the next restart
    ],
)
def test_a_row_that_nothing_can_have_written_is_corrupt(row):
    with pytest.raises(LogCorrupt):
        decode_events(b"\x01" + bytes.fromhex(row).ljust(32, b"\0"))


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x02", b"\x01" + bytes(31)])
def test_another_version_or_half_a_row_is_corrupt(data):
    with pytest.raises(LogCorrupt):
        decode_events(data)


@pytest.mark.parametrize(
    "run",
    [
        "03000000 01000000 0500000000000000",  # ends inside a column
        "03000000 01000000 0500000000000000 0500000000000000",  # an empty range
        "03000000 00000000",  # no rows
        "01000000 01000000 0500000000000000 0600000000000000",  # a kind that has no ranges
        "03010000 01000000 0500000000000000 0600000000000000",  # the zero isn't
        "03000000 02000000 0500000000000000 0600000000000000 0700000000000000 0800000000000000",  # they overlap
        "03000000 01000000 0500000000000000 0600000000000000" * 2,  # a kind twice
        "02000000 01000000 0500000000000000 0600000000000000 00000000 0000000000000000",  # attempt 0
        "05000000 01000000 0500000000000000 0600000000000000 01000000 09",  # no such reason
    ],
)
def test_a_snapshot_that_nothing_can_have_written_is_corrupt(run):
    with pytest.raises(LogCorrupt):
        decode_events(b"\x02" + bytes.fromhex("0500000000000000 0100000000000000" + run))


@pytest.mark.parametrize(
    "runs",
    [
        [Settled(4, 6)],  # nothing is known of 3
        [Settled(3, 5), Returned(4, 6, 1, 0)],
        [Settled(3, 5), Returned(6, 7, 1, 0)],
    ],
)
def test_a_snapshot_of_offsets_in_two_states_or_in_none_is_corrupt(runs):
    columns = [(type(row).kind, (row.first,), (row.end,), *([(1,), (0,)] * isinstance(row, Returned))) for row in runs]
    snapshot = Snapshot(3, 1, tuple([EventRun(*some) for some in columns]))
    with pytest.raises(LogCorrupt):
        SharedSubscription(LeaseSettings(), 0).apply(snapshot)


@given(st.lists(events(60), max_size=40), st.integers(0, 60))
def test_a_run_has_the_effect_of_its_rows(some, end):
    def replayed(log):
        subscription = SharedSubscription(LeaseSettings(), 0)
        try:
            for event in log:
                kept = clip_event(event, end)
                if kept is not None:
                    subscription.apply(kept)
                    subscription.check()
        except LogCorrupt:
            return None
        return subscription.snapshot_events(0.0)

    # Of one kind, mostly: that is what makes runs.
    some.sort(key=lambda event: event.kind)
    state = replayed(some)
    assert replayed(decode_events(encode_events(some))) == state
    if state is not None:
        assert replayed(decode_events(encode_events(state))) == state
        # A snapshot as it was written before snapshots had a version of their own.
        assert replayed(decode_events(encode_events(single_events(state)))) == state


@given(st.lists(events(60), max_size=25), st.integers(0, 30))
def test_any_events_lead_to_a_sound_state_or_are_corrupt(some, start):
    subscription = SharedSubscription(LeaseSettings(max_deliveries=3), start)
    for event in some:
        try:
            subscription.apply(event)
        except LogCorrupt:
            return
        subscription.check()
    subscription.recovered(0.0)
    subscription.check()
    subscription.take_events()
    again = SharedSubscription(LeaseSettings(max_deliveries=3), 0)
    for event in subscription.snapshot_events(0.0):
        again.apply(event)
    assert again.snapshot_events(0.0) == subscription.snapshot_events(0.0)


def test_the_buffer_joins_only_similar_events():
    buffer = EventBuffer()
    buffer.acquired(0, 1, 2, 7)
    buffer.acquired(1, 2, 1, 8)
    buffer.acquired(2, 3, 1, 9)
    apart = [Returned(0, 1, 2, 5), Returned(1, 2, 1, 5), Returned(2, 3, 1, 6)]
    dead = [Died(0, 1, 2, DeadReason.REJECTED), Died(1, 2, 3, DeadReason.REJECTED), Died(2, 3, 3, DeadReason.EXPIRED)]
    for event in (*apart, *dead):
        buffer.add(event)
    assert buffer.take() == [Acquired(0, 1, 2, 7), Acquired(1, 3, 1, 9), *apart, *dead]


def test_the_buffer_joins_adjacent_events_and_puts_settled_offsets_last():
    buffer = EventBuffer()
    buffer.settled(4, 5)
    for event in (Returned(0, 1, 2, 5), Returned(1, 2, 2, 5), Died(2, 3, 1, DeadReason.EXPIRED)):
        buffer.add(event)
    buffer.settled(3, 4)
    assert buffer.take() == [Returned(0, 2, 2, 5), Died(2, 3, 1, DeadReason.EXPIRED), Settled(3, 5)]
    assert not buffer


def test_settled_dead_letters_leave_no_intent_behind():
    dead = DeadLetters()
    dead.add(0, 4, 1, DeadReason.REJECTED)
    dead.intend(0, 4, DeadLetterTarget(0, 9))
    assert dead.take(0, 4) == [(0, 4)]
    assert len(dead) == 0
