"""Readers with a filter: they get the records that it wants, at their own offsets, and never look at others twice."""

from __future__ import annotations

from random import Random

import pytest
import trio
from raw_client import RawClient, Refused, broker_on, connected, records, served, simulated, values

from linn.core.batch.batch import Codec, RecordBatch
from linn.core.batch.builder import build_from_records, pick_batch
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.groups.reader import TOLD_INTERVAL_S
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

STREAM = '[topics.t]\nkind = "stream"\n'
QUEUE = "[topics.q]\n"
LATE = "label.late = true"

Found = dict[int, str]
"""Values by offset."""


def found_in(batches: list[RecordBatch]) -> Found:
    """The records of batches, each where it says that it is."""
    found: Found = {}
    for batch in batches:
        batch.check_stored()
        for index, record in enumerate(batch.records()):
            found[batch.offset(index)] = (record.value or b"").decode()
    return found


async def publish_mixed(client: RawClient, random: Random, batches: int) -> Found:
    """Publish batches with none, some or all of their records wanted; returns the wanted ones."""
    wanted: Found = {}
    offset = 0
    for _ in range(batches):
        share = random.choice((0, 0, 0.5, 1))
        late = [random.random() < share for _ in range(random.randrange(1, 9))]
        made = [
            Record(value=f"{offset + index}".encode(), labels={"late": is_late} if is_late else {})
            for index, is_late in enumerate(late)
        ]
        codec = random.choice((Codec.NONE, Codec.ZSTD))
        await client.call(m.Publish("t"), [build_from_records(made, base_id=1, codec=codec)])
        wanted |= {offset + index: f"{offset + index}" for index, is_late in enumerate(late) if is_late}
        offset += len(late)
    return wanted


async def fetch_all(client: RawClient, begin: int, bytes_max: int, where: str = LATE) -> Found:
    """Fetch with a filter to the end, going on where each answer says."""
    found: Found = {}
    offset = begin
    while True:
        event = await client.ask(m.Fetch("t", 0, offset, bytes_max=bytes_max, where=where))
        assert isinstance(event.message, m.Fetched)
        new = found_in(event.batches)
        assert all(offset <= at < event.message.next_offset for at in new)
        assert not new.keys() & found.keys()
        found |= new
        if event.message.next_offset == event.message.high_watermark:
            return found
        assert event.message.next_offset > offset
        offset = event.message.next_offset


@served(STREAM)
async def test_a_fetch_finds_what_its_filter_wants_from_any_offset_in_pieces_of_any_size(env: SimEnv) -> None:
    client, random = await connected(env), Random(1)
    wanted = await publish_mixed(client, random, 60)
    end = max(wanted) + 1
    for _ in range(30):
        begin, bytes_max = random.randrange(end), random.choice((1, 500, 5_000, 1 << 20))
        expected = {offset: value for offset, value in wanted.items() if offset >= begin}
        assert await fetch_all(client, begin, bytes_max) == expected


@served(STREAM)
async def test_one_batch_carries_the_wanted_records_of_another_with_their_offsets(client: RawClient) -> None:
    made = [Record(value=b"%d" % n, labels={"late": n in (3, 17, 40)}) for n in range(50)]
    await client.call(m.Publish("t"), [build_from_records(made, base_id=1)])
    (batch,) = (await client.ask(m.Fetch("t", 0, 0, where=LATE))).batches
    assert found_in([batch]) == {3: "3", 17: "17", 40: "40"}
    assert (batch.base_offset, batch.end_offset) == (0, 50)


@served(STREAM)
async def test_a_fetch_that_finds_nothing_waits_and_says_how_far_it_looked(client: RawClient, other: RawClient) -> None:
    for number in range(20):
        await client.publish("t", [f"{number}"])
    waiting = await client.send(m.Fetch("t", 0, 0, wait_max_ms=5_000, where=LATE))
    await other.publish("t", ["more"])
    await trio.sleep(6)
    event = await client.answer(waiting)
    fetched = event.message
    assert isinstance(fetched, m.Fetched)
    assert (event.batches, fetched.high_watermark, fetched.next_offset) == ([], 21, 21)
    waiting = await client.send(m.Fetch("t", 0, 21, wait_max_ms=50_000, where=LATE))
    await other.publish("t", ["not it"])
    await other.call(m.Publish("t"), [records(["it"], labels={"late": True})])
    with trio.fail_after(1):
        assert found_in((await client.answer(waiting)).batches) == {22: "it"}


@served(STREAM)
async def test_a_reader_with_a_filter_is_pushed_what_it_wants_within_its_credit(
    client: RawClient, reader: RawClient
) -> None:
    wanted = await publish_mixed(client, Random(2), 60)
    subscription = (await reader.call(m.Subscribe("t", where=LATE))).subscription
    found: Found = {}
    covered = 0
    while len(found) < len(wanted):
        await reader.call(m.Credit(subscription, 3))
        await trio.sleep(0.1)
        await reader.call(m.Ping())
        new: Found = {}
        while reader.pushed:
            batches = reader.pushed.popleft().batches
            new |= found_in(batches)
            for batch in batches:
                assert batch.base_offset == covered, "deliveries follow one another without a gap"
                covered = batch.end_offset
        assert len(new) == min(3, len(wanted) - len(found))
        found |= new
    assert found == wanted


@served(STREAM)
async def test_a_reader_that_gets_nothing_is_told_how_far_it_has_come(client: RawClient, reader: RawClient) -> None:
    await reader.call(m.Subscribe("t", credit=100, where=LATE))
    for number in range(40):
        await client.publish("t", [f"{number}"])
        await trio.sleep(TOLD_INTERVAL_S / 10)
    await reader.call(m.Ping())
    told = [event.message.passed_to for event in reader.pushed if isinstance(event.message, m.Deliver)]
    assert told == sorted(set(told))
    assert 30 <= told[-1] <= 40
    assert len(told) <= 5
    await client.call(m.Publish("t"), [records(["it"], labels={"late": True})])
    await reader.call(m.Ping())
    (batch,) = reader.pushed[-1].batches
    assert (batch.base_offset, batch.end_offset) == (told[-1], 41)
    assert found_in([batch]) == {40: "it"}


@served(STREAM)
async def test_a_pull_with_a_filter_waits_for_a_wanted_record(client: RawClient, reader: RawClient) -> None:
    subscription = (await reader.call(m.Subscribe("t", where=LATE))).subscription
    waiting = await reader.send(m.Pull(subscription, 10, 5_000))
    for number in range(40):
        await client.publish("t", [f"{number}"])
        await trio.sleep(0.1)
    assert not reader.is_answered(waiting)
    await client.call(m.Publish("t"), [records(["it"], labels={"late": True})])
    with trio.fail_after(1):
        assert values((await reader.answer(waiting)).batches) == ["it"]
    assert (await reader.pull(subscription, 10, 1_000)).batches == []


# --- groups ----------------------------------------------------------------------------------------------------------


async def committed(client: RawClient) -> int | None:
    """The group's committed offset."""
    (shown,) = (await client.administer("group.show", group="g"))["offsets"]
    offset: int | None = shown["offset"]
    return offset


@served(STREAM)
async def test_what_a_groups_filter_passes_over_is_committed_behind_what_its_member_has_acked(
    client: RawClient, member: RawClient
) -> None:
    subscription = (await member.call(m.Subscribe("t", "g", credit=100, where=LATE))).subscription
    for number in range(5):
        await client.publish("t", [f"{number}"])
    assert await committed(client) == 5, "nothing is left to ack"
    await client.call(m.Publish("t"), [records(["it"], labels={"late": True})])
    await client.publish("t", ["6", "7"])
    await member.call(m.Ping())
    (batch,) = member.pushed.pop().batches
    assert await committed(client) == 5, "a delivery is not acked"
    entry = m.Settlement(0, 1, batch.offset(0), batch.end_offset)
    assert (await member.call(m.Settle(subscription, [entry]))).refused == []
    assert await committed(client) == 8
    await client.publish("t", ["8"])
    assert await committed(client) == 9


@simulated
async def test_a_group_continues_behind_what_was_passed_over_after_a_restart(env: SimEnv) -> None:
    async with broker_on(env, STREAM):
        client, member = await connected(env), await connected(env)
        await member.call(m.Subscribe("t", "g", credit=100, where=LATE))
        for number in range(50):
            await client.publish("t", [f"{number}"])
            await trio.sleep(TOLD_INTERVAL_S / 10)
    async with broker_on(env, STREAM):
        client = await connected(env)
        assert (await committed(client) or 0) >= 50 - 11


@served(STREAM)
async def test_a_member_that_nacks_gets_the_wanted_records_from_there_again(
    client: RawClient, member: RawClient
) -> None:
    wanted = await publish_mixed(client, Random(3), 30)
    subscription = (await member.call(m.Subscribe("t", "g", credit=1_000, where=LATE))).subscription
    await member.call(m.Ping())
    delivered = [batch for event in member.pushed for batch in event.batches]
    assert found_in(delivered) == wanted
    member.pushed.clear()
    back = sorted(wanted)[len(wanted) // 2]
    nack = m.Settlement(0, 1, back, back + 1, m.Verdict.NACK)
    assert (await member.call(m.Settle(subscription, [nack]))).refused == []
    await member.call(m.Ping())
    again = [batch for event in member.pushed for batch in event.batches]
    assert again[0].base_offset == back
    assert found_in(again) == {offset: value for offset, value in wanted.items() if offset >= back}


# --- what is refused -------------------------------------------------------------------------------------------------


@served(STREAM + QUEUE)
async def test_a_filter_that_is_none_is_refused_with_its_place(client: RawClient) -> None:
    for where, text in (("label.a = ", "column 11"), ("header.x exists", "header.x"), ("size > 3", "size")):
        for request in (m.Subscribe("t", where=where), m.Subscribe("t", "g", where=where), m.Fetch("t", 0, 0)):
            if isinstance(request, m.Fetch):
                request = m.Fetch("t", 0, 0, where=where)
            with pytest.raises(Refused, match=text) as refused:
                await client.call(request)
            assert refused.value.code == "predicate.invalid"
    with pytest.raises(Refused, match="is a queue"):
        await client.call(m.Subscribe("q", where=LATE))
    with pytest.raises(Refused, match="is a stream"):
        await client.call(m.Fetch("t", 0, 0, unsettled=True))


@served(STREAM)
async def test_what_nothing_is_wanted_of_is_not_opened(client: RawClient) -> None:
    for late in (False, True):
        batch = build_from_records(
            [Record(value=b"x" * 100, labels={"late": late}) for _ in range(9)], base_id=1, codec=Codec.ZSTD
        )
        await client.call(m.Publish("t"), [batch])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordBatch, "body", None)
        (batch,) = (await client.ask(m.Fetch("t", 0, 0, where=LATE))).batches
    assert (batch.codec, batch.base_offset, batch.end_offset) == (Codec.ZSTD, 0, 18)
    assert list(found_in([batch])) == list(range(9, 18))


# --- queues ----------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_the_unsettled_records_of_a_queue_are_fetched_alone(client: RawClient, worker: RawClient) -> None:
    await client.publish("q", [f"{number}" for number in range(50)])
    subscription = (await worker.call(m.Subscribe("q", credit=50))).subscription
    event = await worker.delivery()
    assert isinstance(event.message, m.Deliver)
    left = (3, 17, 40)
    entries = [
        m.Settlement(0, event.message.delivery_id, offset, offset + 1) for offset in range(50) if offset not in left
    ]
    await worker.call(m.Settle(subscription, entries))
    for begin in (0, 4, 17, 18, 41):
        event = await client.ask(m.Fetch("q", 0, begin, unsettled=True))
        assert found_in(event.batches) == {offset: str(offset) for offset in left if offset >= begin}
        assert isinstance(event.message, m.Fetched)
        assert event.message.next_offset == 50
        assert len(event.batches) <= 1


@served(STREAM)
async def test_a_log_whose_batches_have_gaps_is_read_from_anywhere(env: SimEnv, broker: Broker) -> None:
    client, random = await connected(env), Random(5)
    partition = broker.topics["t"].partitions[0]
    stored: Found = {}
    for _ in range(30):
        count = random.randrange(1, 9)
        whole = records([f"{partition.high_watermark + index}" for index in range(count)])
        places = sorted(random.sample(range(count), random.randrange(1, count + 1)))
        part = pick_batch(whole, places, range(count))
        base = partition.append(part)
        stored |= {base + place: str(base + place) for place in places}
    end = partition.high_watermark
    for begin in range(end):
        expected = {offset: value for offset, value in stored.items() if offset >= begin}
        found, offset = Found(), begin
        while offset < end:
            event = await client.ask(m.Fetch("t", 0, offset, bytes_max=random.choice((1, 1_000, 9_000))))
            assert isinstance(event.message, m.Fetched)
            new = found_in(event.batches)
            assert not new.keys() & found.keys()
            found |= new
            assert event.message.next_offset > offset
            offset = event.message.next_offset
        assert found == expected
    reader = await connected(env)
    await reader.call(m.Subscribe("t", credit=1_000))
    await reader.call(m.Ping())
    assert found_in([batch for event in reader.pushed for batch in event.batches]) == stored


@served(STREAM)
async def test_a_groups_member_gets_what_is_wanted_though_the_reader_is_far_behind_it_already(
    client: RawClient,
) -> None:
    for number in range(20):
        made = Record(value=b"%d" % number, labels={"late": number == 3})
        await client.call(m.Publish("t"), [build_from_records([made], base_id=1)])
    await client.call(m.Subscribe("t", "g", credit=100, where=LATE))
    event = await client.push()
    while not isinstance(event.message, m.Deliver):
        event = await client.push()
    assert found_in(event.batches) == {3: "3"}
