"""Publishing: what is confirmed when, what is refused, and what waits."""

from __future__ import annotations

import struct

import pytest
import trio
from raw_client import (
    ALWAYS,
    HEAD,
    RawClient,
    Refused,
    broker_on,
    connected,
    places,
    records,
    served,
    simulated,
    values,
)

from linn.core.batch.batch import Codec, RecordBatch, seal
from linn.core.batch.builder import BatchColumns, build_batch, build_from_records
from linn.core.batch.key_hash import key_hash
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


@served("[topics.t]\n")
async def test_confirmations_have_the_placement_of_each_batch(client: RawClient) -> None:
    answer = await client.call(m.Publish("t"), [records(["a", "b"]), records(["c"])])
    assert places(answer) == [(0, 0, 2), (0, 2, 1)]
    assert await client.fetch("t") == ["a", "b", "c"]


@served(ALWAYS + "[topics.t]\n")
async def test_with_fsync_always_nothing_is_confirmed_before_it_is_synced(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:
    await client.publish("t", ["first"])  # It makes the log's files, each of which is synced.
    env.disk.sync_delay_s_max = 60
    log = broker.topics["t"].partitions[0].log
    for acks in (m.Acks.LEADER, m.Acks.ALL):
        placement = await client.publish("t", ["a"], acks=acks)
        assert log.durable() > placement.base_offset
    unconfirmed = await client.publish("t", ["b"], acks=m.Acks.NONE)
    assert log.durable() <= unconfirmed.base_offset, "acks none does not wait"
    assert await client.fetch("t", offset=unconfirmed.base_offset) == [], "and nobody reads it yet"


@served(ALWAYS + "[topics.t]\n")
async def test_one_sync_confirms_all_that_wait_for_it(env: SimEnv, client: RawClient) -> None:
    before = len([1 for operation, _ in env.disk.operations if operation == "sync"])
    correlations = [await client.send(m.Publish("t"), [records([str(i)])]) for i in range(200)]
    for correlation in correlations:
        await client.answer(correlation)
    after = len([1 for operation, _ in env.disk.operations if operation == "sync"])
    assert after - before < 100
    assert await client.fetch("t") == [str(i) for i in range(200)]


@served("[topics.t]\n")
async def test_a_batch_that_belongs_to_a_transaction_without_a_producer_is_refused(client: RawClient) -> None:
    for place, kind in ((86, "<H"), (112, "<Q")):
        message = bytearray(records(["a"]).message)
        struct.pack_into(kind, message, place, 1)
        seal(message)
        with pytest.raises(Refused) as refused:
            await client.call(m.Publish("t"), [RecordBatch(message)])
        assert refused.value.code == "batch.malformed"
    assert await client.fetch("t") == []


@served("[topics.t]\n")
async def test_a_publish_that_wants_no_answer_gets_none(client: RawClient) -> None:
    await client.tell(m.Publish("t", acks=m.Acks.NONE), [records(["a"])])
    await client.tell(m.Publish("nope", acks=m.Acks.NONE), [records(["a"])])
    assert await client.fetch("t", wait_max_ms=1000) == ["a"]
    assert await client.is_silent(1)


def _corrupt() -> RecordBatch:
    message = bytearray(records(["abcdef"]).message)
    message[-9] ^= 1
    return RecordBatch(message)


@simulated
async def test_an_invalid_publish_is_refused_by_name_and_stores_nothing_of_what_is_refused(env: SimEnv) -> None:
    text = "[exchanges.e]\n[topics.t]\nmessage_bytes_max = 100\npartitions = 2\n"
    async with broker_on(env, text):
        client = await connected(env)
        key, header = {"key": b"k" * 60}, {"headers": (("h", b"v" * 60),)}
        wrong = [
            (m.Publish("nope"), records(["a"]), "topic.unknown"),
            (m.Publish("t", to_exchange=True), records(["a"]), "exchange.unknown"),
            (m.Publish("e"), records(["a"]), "topic.unknown"),
            (m.Publish("t", partition=2), records(["a"]), "topic.partition_unknown"),
            (m.Publish("t", partition=2**31 - 1), records(["a"]), "topic.partition_unknown"),
            (m.Publish("t"), records(["a" * 101]), "message.too_large"),
            (m.Publish("t"), records(["a" * 60] * 9, **key), "message.too_large"),
            (m.Publish("t"), records(["a" * 60] * 9, **header), "message.too_large"),
            (m.Publish("t"), records(["a"], delay_ms=5, due_ms=5), "message.invalid"),
            (m.Publish("t"), records(["a"], due_ms=-1), "message.invalid"),
            (m.Publish("t"), records(["a"], due_ms=2**63 - 1), "message.invalid"),
            (m.Publish("t"), records(["a"], priority=5), "message.unsupported"),
            (m.Publish("t"), _corrupt(), "batch.corrupt"),
            (m.Publish("t", acks=7), records(["a"]), "protocol.request_unknown"),
        ]
        for publish, batch, code in wrong:
            with pytest.raises(Refused) as refused:
                await client.call(publish, [records(["fine"]), batch])
            assert refused.value.code == code
        with pytest.raises(Refused, match=r"protocol\.malformed"):
            await client.call(m.Publish("t"))
        by_record = [
            code for _, _, code in wrong if code in ("message.too_large", "message.unsupported", "message.invalid")
        ]
        stored = [await client.fetch("t", partition) for partition in (0, 1)]
        assert [*stored[0], *stored[1]] == ["fine"] * len(by_record), "a refused record takes no other with it"
        assert (await client.publish("t", ["a" * 100] * 50)).copies == 50, "the limit is each message's own"


@served("[topics.t]\nmessage_bytes_max = 1000\n")
async def test_a_compressed_batch_is_held_to_the_same_limit(client: RawClient) -> None:
    large = build_from_records([Record(value=b"x" * 1001)], base_id=1, codec=Codec.ZSTD)
    assert large.size < 1000
    with pytest.raises(Refused, match=r"message\.too_large"):
        await client.call(m.Publish("t"), [large])
    fine = build_from_records([Record(value=b"x" * 1000)] * 3, base_id=1, codec=Codec.ZSTD)
    await client.call(m.Publish("t"), [fine])
    assert await client.fetch("t") == ["x" * 1000] * 3


@simulated
async def test_an_unknown_topic_is_made_where_the_broker_allows_it(env: SimEnv) -> None:
    async with broker_on(env, "", HEAD + "auto_create_topics = true\n"):
        client = await connected(env)
        correlations = [await client.send(m.Publish("new"), [records([str(i)])]) for i in range(5)]
        offsets = [(await client.answer(c)).message.placements[0].base_offset for c in correlations]
        assert offsets == [0, 1, 2, 3, 4]
        await client.call(m.Subscribe("other"))
        with pytest.raises(Refused, match=r"config\.invalid"):
            await client.publish("../x", ["a"])
        with pytest.raises(Refused, match=r"exchange\.unknown"):
            await client.publish("e", ["a"], to_exchange=True)
        assert [topic["name"] for topic in await client.administer("topic.list")] == ["new", "other"]


@served('[topics.t]\nkind = "stream"\npartitions = 3\n')
async def test_records_with_key_hashes_keep_to_the_partition_of_their_key(client: RawClient) -> None:
    made = [Record(value=b"%d" % i, key=b"k%d" % (i % 5)) for i in range(20)]
    keys = [record.key or b"" for record in made]
    columns = BatchColumns(
        [record.value for record in made], 0, 1, keys=keys, key_hashes=[key_hash(key) for key in keys]
    )
    for _ in range(2):
        answer = await client.call(m.Publish("t"), [build_batch(columns)])
        assert answer.placements[0].copies == 20
    for partition in range(3):
        event = await client.ask(m.Fetch("t", partition, 0))
        for record in (record for batch in event.batches for record in batch.records()):
            assert key_hash(record.key or b"") % 3 == partition
        got = values(event.batches)
        assert got[: len(got) // 2] == sorted(got[: len(got) // 2], key=int), "in order"
    plain = [(await client.publish("t", ["x"])).partition for _ in range(6)]
    assert sorted(plain) == [0, 0, 1, 1, 2, 2], "without hashes partitions take turns"


FULL = (
    "[storage.segmented-log]\nindex_interval_bytes = 512\n"
    '[topics.t]\nlease = "1h"\nbytes_max = "4KiB"\nmessage_bytes_max = 1000\noverflow = "{}"\n'
)


async def _fill(client: RawClient) -> int:
    """Publish until there is no room; how many records are there."""
    count = 0
    while True:
        shown = await client.administer("topic.show", name="t")
        if shown["partitions"][0]["bytes"] > 3000:
            return count
        await client.publish("t", [f"{count:<500}"])
        count += 1


@served(FULL.format("block"))
async def test_a_full_topic_that_blocks_makes_publishes_wait_in_order_and_nothing_else(client: RawClient) -> None:
    count = await _fill(client)
    blocked = [await client.send(m.Publish("t"), [records([f"{value:<900}"])]) for value in ("x", "y", "z")]
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    first = await client.delivery()
    for _ in range(20):
        await trio.sleep(5)
        await client.call(m.Ping())
    assert not any(client.is_answered(correlation) for correlation in blocked)
    await client.settle(worker, first)
    await client.call(m.Credit(worker, 100))
    seen = [value.strip() for value in values(first.batches)]
    while len(seen) < count + 3:
        delivered = await client.delivery()
        seen += [value.strip() for value in values(delivered.batches)]
        assert await client.settle(worker, delivered) == []
    assert seen == [*[str(i) for i in range(count)], "x", "y", "z"]
    offsets = [(await client.answer(correlation)).message.placements[0].base_offset for correlation in blocked]
    assert offsets == [count, count + 1, count + 2]


@served(FULL.format("block"))
async def test_a_full_topic_has_room_as_soon_as_enough_is_settled(client: RawClient) -> None:
    for value in ("a", "b", "c", "d"):
        await client.publish("t", [f"{value:<500}"])
    worker = (await client.call(m.Subscribe("t", credit=2))).subscription
    await trio.sleep(1)
    blocked = await client.send(m.Publish("t"), [records([f"{'x':<900}"])])
    await trio.sleep(1)
    await client.settle(worker, await client.delivery())
    with trio.fail_after(5):
        assert (await client.answer(blocked)).message.placements[0].base_offset == 4


@served(FULL.format("reject"))
async def test_a_full_topic_that_rejects_reports_it_and_accepts_records_again_later(client: RawClient) -> None:
    count = await _fill(client)
    with pytest.raises(Refused, match=r"topic\.full"):
        await client.publish("t", ["x" * 950])
    worker = (await client.call(m.Subscribe("t", credit=count))).subscription
    settled = 0
    while settled < count:
        delivered = await client.delivery()
        settled += sum(batch.count for batch in delivered.batches)
        await client.settle(worker, delivered)
    await client.publish("t", ["x" * 950])


@served(FULL.format("drop-head") + 'kind = "stream"\n')
async def test_a_full_topic_that_drops_its_head_keeps_the_newest(client: RawClient) -> None:
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    for number in range(50):
        await client.publish("t", [f"{number:<500}"])
        await trio.sleep(0.1)
    shown = (await client.administer("topic.show", name="t"))["partitions"][0]
    assert shown["end"] == 50
    assert shown["start"] >= 44
    kept = await client.fetch("t", offset=shown["start"])
    assert [int(value) for value in kept] == list(range(shown["start"], 50))
    await client.settle(worker, await client.delivery())
    await client.call(m.Credit(worker, 100))
    assert int(values((await client.delivery()).batches)[0]) == shown["start"], "consumers go on at what is left"


@served(FULL.format("block"))
async def test_a_batch_larger_than_a_topics_limit_is_stored_in_an_empty_topic(client: RawClient) -> None:
    await client.publish("t", ["x" * 900] * 5)
    blocked = await client.send(m.Publish("t"), [records(["y"])])
    assert await client.is_silent(5)
    assert not client.is_answered(blocked)
