"""The subscription log's rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.errors.tree import LogCorrupt
from linn.core.queue.dead_letter import Dead, DeadLetters, DeadReason, Intent
from linn.core.queue.event import (
    DELIVERY_ID_MAX,
    OFFSET_MAX,
    Acquired,
    Decided,
    DeliveryIdsStarted,
    Died,
    EventBuffer,
    Explained,
    Intended,
    Returned,
    Settled,
    Skipped,
    Started,
    clip_event,
    decode_events,
    encode_events,
    single_events,
)
from linn.core.queue.event_run import EventRun, Holder, Snapshot
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.subscription import SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce


def events(offset_max: int):
    number = st.integers(0, 2**32 - 1)
    spans = st.tuples(st.integers(0, offset_max - 1), st.integers(1, offset_max)).map(
        lambda pair: (pair[0], min(pair[0] + pair[1], offset_max))
    )
    delivery_ids = st.integers(0, DELIVERY_ID_MAX - 1)
    offsets = st.integers(0, offset_max)
    anything = st.integers(0, OFFSET_MAX)
    holders = st.builds(Holder, st.sampled_from(["ann", "bob", "c" * 249]), st.sampled_from([0, 1, 2**62]))
    return st.one_of(
        st.builds(Started, offsets, delivery_ids),
        st.builds(lambda span, *rest: Acquired(*span, *rest), spans, st.integers(1, 2**32 - 1), delivery_ids),
        st.builds(lambda span: Settled(*span), spans),
        st.builds(lambda span, *rest: Returned(*span, *rest), spans, number, st.integers(0, 1_000_000)),
        st.builds(lambda span, *rest: Died(*span, *rest), spans, number, st.sampled_from(DeadReason)),
        st.builds(lambda span, *rest: Intended(*span, *rest), spans, number, anything),
        st.builds(Skipped, offsets),
        st.builds(DeliveryIdsStarted, delivery_ids),
        st.builds(lambda span, *rest: Decided(*span, *rest), spans, st.integers(1, 2**32 - 1), delivery_ids, holders),
        st.builds(
            lambda span, *rest: Explained(*span, *rest), spans, st.sampled_from(["a", "\N{EURO SIGN}", "b" * 255])
        ),
    )


@given(st.lists(events(OFFSET_MAX)))
def test_any_events_survive_the_codec(some):
    data = encode_events(some)
    holders = {event.holder for event in some if isinstance(event, Decided)}
    texts = {event.cause.encode() for event in some if isinstance(event, Explained)}
    tables = 3 * bool(holders) + sum(9 + len(holder.name) for holder in holders)
    tables += 3 * bool(texts) + sum(1 + len(text) for text in texts)
    assert len(data) == 1 + 32 * len(some) + tables
    assert single_events(decode_events(data)) == some
    assert single_events(decode_events(memoryview(bytearray(data)))) == some


ANN_IN_A_TABLE = bytes.fromhex("03 0100 0500000000000000 03") + b"ann"
"""A record's table of holders: ann, since 5 ms."""
DECIDED = "0900000001000000 0400000000000000 0500000000000000 0700000000000000"
"""A row: offset 4, attempt 1, delivery 7."""


WHY_IN_A_TABLE = bytes.fromhex("04 0100 03") + b"why"
"""A record's table of reasons."""
EXPLAINED = "0a00000000000000 0400000000000000 0500000000000000"
"""A row: offset 4."""


@given(
    st.binary(max_size=100)
    | st.binary(min_size=32, max_size=32).map(lambda row: b"\x01" + row)
    | st.binary(min_size=16, max_size=60).map(lambda snapshot: b"\x02" + snapshot)
    | st.binary(max_size=70).map(lambda rest: ANN_IN_A_TABLE + rest)
    | st.binary(max_size=70).map(lambda rest: WHY_IN_A_TABLE + rest)
    | st.binary(min_size=30, max_size=30).map(lambda row: WHY_IN_A_TABLE + b"\x01\x0a\x00" + row[1:])
    | st.binary(min_size=30, max_size=30).map(lambda row: ANN_IN_A_TABLE + b"\x01\x09\x00" + row[1:])
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
        "06",
        "0600000000000000 0400000000000000 0500000000000000",
        "0b",
        EXPLAINED,  # by nothing: the record has no table
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
        DECIDED,  # to nobody: the record has no table
    ],
)
def test_a_row_that_nothing_can_have_written_is_corrupt(row):
    with pytest.raises(LogCorrupt):
        decode_events(b"\x01" + bytes.fromhex(row).ljust(32, b"\0"))


def test_a_row_names_its_holder_by_the_place_in_the_records_table():
    found = decode_events(ANN_IN_A_TABLE + b"\x01" + bytes.fromhex(DECIDED))
    assert found == [Decided(4, 5, 1, 7, Holder("ann", 5))]


@pytest.mark.parametrize(
    "row",
    [
        DECIDED.replace("09000000", "09000100"),  # a holder that the table does not have
        DECIDED.replace("09000000", "09010000"),  # a reason
        DECIDED.replace("01000000", "00000000"),  # attempt 0
        DECIDED.replace("0500000000000000", "0400000000000000"),  # an empty range
        DECIDED.replace("0400000000000000", "ffffffffffffffff"),  # a negative offset
        DECIDED.replace("0700000000000000", "ffffffffffffff7f"),  # no id left
        "0300000000000000 0400000000000000 0500000000000000" + 16 * "0",  # nobody in the table is named
    ],
)
def test_a_decision_that_nothing_can_have_written_is_corrupt(row):
    with pytest.raises(LogCorrupt):
        decode_events(ANN_IN_A_TABLE + b"\x01" + bytes.fromhex(row))


@pytest.mark.parametrize(
    "table",
    [
        "03",
        "03 01",
        "03 0000",  # no holders
        "03 0100 05000000",  # ends inside an entry
        "03 0100 0500000000000000 04 616e6e",  # ends inside a name
        "03 0100 0500000000000000 00",  # no name
        "03 0100 0500000000000000 03 fffefd",  # not UTF-8
        "03 0100 ffffffffffffffff 03 616e6e",  # a time before 1970
        "03 0200 0500000000000000 03 616e6e 0500000000000000 03 616e6e",  # twice the same
        "03 0200 0500000000000000 03 616e6e 0600000000000000 03 626f62",  # bob has nothing
        "03 0100 0500000000000000 03 616e6e 03 0100 0500000000000000 03 616e6e",  # two tables
    ],
)
def test_a_table_of_holders_that_nothing_can_have_written_is_corrupt(table):
    with pytest.raises(LogCorrupt):
        decode_events(bytes.fromhex(table) + b"\x01" + bytes.fromhex(DECIDED))
    with pytest.raises(LogCorrupt):
        decode_events(bytes.fromhex(table))


def test_a_row_names_its_reason_by_the_place_in_the_records_table():
    row = b"\x01" + bytes.fromhex(EXPLAINED).ljust(32, b"\0")
    assert decode_events(WHY_IN_A_TABLE + row) == [Explained(4, 5, "why")]
    decided = bytes.fromhex(DECIDED)
    both = ANN_IN_A_TABLE + WHY_IN_A_TABLE + row + decided
    assert decode_events(both) == [Explained(4, 5, "why"), Decided(4, 5, 1, 7, Holder("ann", 5))]


@pytest.mark.parametrize(
    "table",
    [
        "04",
        "04 0000",  # no reasons
        "04 0100 04 776879",  # ends inside a reason
        "04 0100 00",  # an empty one
        "04 0100 03 fffefd",  # not UTF-8
        "04 0200 03 776879 03 776879",  # twice the same
        "04 0200 03 776879 01 78",  # one that explains nothing
        "04 0100 03 776879 04 0100 03 776879",  # two tables
    ],
)
def test_a_table_of_reasons_that_nothing_can_have_written_is_corrupt(table):
    for rest in (b"", b"\x01" + bytes.fromhex(EXPLAINED).ljust(32, b"\0")):
        with pytest.raises(LogCorrupt):
            decode_events(bytes.fromhex(table) + rest)


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
        "09000000 01000000 0500000000000000 0600000000000000 01000000 0000000000000000 0000",  # no table of holders
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
        SharedSubscription(AtLeastOnce(LeaseSettings()), 0).apply(snapshot)


@given(st.lists(events(60), max_size=40), st.integers(0, 60))
def test_a_run_has_the_effect_of_its_rows(some, end):
    def replayed(log):
        subscription = SharedSubscription(AtLeastOnce(LeaseSettings()), 0)
        try:
            for event in log:
                kept = clip_event(event, end)
                if kept is not None:
                    subscription.apply(kept)
                    subscription.check()
        except LogCorrupt:
            return None
        return subscription.snapshot_events()

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
    subscription = SharedSubscription(AtLeastOnce(LeaseSettings(max_deliveries=3)), start)
    for event in some:
        try:
            subscription.apply(event)
        except LogCorrupt:
            return
        subscription.check()
    subscription.recovered(0.0)
    subscription.check()
    subscription.take_events()
    again = SharedSubscription(AtLeastOnce(LeaseSettings(max_deliveries=3)), 0)
    for event in subscription.snapshot_events():
        again.apply(event)
    assert again.snapshot_events() == subscription.snapshot_events()


def test_a_run_of_decisions_has_the_effect_of_its_rows():
    ann, bob = Holder("ann", 1), Holder("bob", 2)
    run = EventRun(Decided.kind, (4, 6), (6, 9), (1, 2), (50, 40), (), (ann, bob))
    rows = single_events([run])
    assert rows == [Decided(4, 6, 1, 50, ann), Decided(6, 9, 2, 40, bob)]
    one, other = (
        SharedSubscription(AtLeastOnce(LeaseSettings()), 0),
        SharedSubscription(AtLeastOnce(LeaseSettings()), 0),
    )
    one.apply(run)
    for row in rows:
        other.apply(row)
    assert one.snapshot_events() == other.snapshot_events()


def test_decisions_about_lost_records_are_clipped():
    ann, bob = Holder("ann", 1), Holder("bob", 2)
    run = EventRun(Decided.kind, (4, 6), (6, 9), (1, 2), (50, 40), (), (ann, bob))
    assert clip_event(run, 9) == run
    assert clip_event(run, 7) == EventRun(Decided.kind, (4, 6), (6, 7), (1, 2), (50, 40), (), (ann, bob))
    assert clip_event(run, 6) == EventRun(Decided.kind, (4,), (6,), (1,), (50,), (), (ann,))
    assert clip_event(run, 4) is None
    decided = Decided(4, 6, 1, 50, ann)
    assert [clip_event(decided, end) for end in (6, 5, 4)] == [decided, Decided(4, 5, 1, 50, ann), None]


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
    buffer.settled.add(4, 5)
    for event in (Returned(0, 1, 2, 5), Returned(1, 2, 2, 5), Died(2, 3, 1, DeadReason.EXPIRED)):
        buffer.add(event)
    buffer.settled.add(3, 4)
    assert buffer.take() == [Returned(0, 2, 2, 5), Died(2, 3, 1, DeadReason.EXPIRED), Settled(3, 5)]
    assert not buffer


def test_settled_dead_letters_leave_no_intent_behind():
    dead = DeadLetters()
    dead.add(0, 4, 1, DeadReason.REJECTED)
    dead.intend(0, 4, Intent(0, 9))
    assert dead.take(0, 4) == [(0, 4, Dead(1, DeadReason.REJECTED))]
    assert len(dead) == 0
