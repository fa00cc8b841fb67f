"""Batches that can't be decoded, and labels that leave no room: neither takes other records along, or holds them up."""

from __future__ import annotations

import gc

from raw_client import RawClient, records, served, values

from linn.core.batch import flat_message
from linn.core.batch.batch import NUMBER_BYTES, RecordBatch, seal
from linn.core.batch.builder import build_from_records
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Record
from linn.core.batch.routes import LABELS_MAX
from linn.core.log.storage_stats import BYTES_MAX, CutBatches
from linn.wire import messages as m

QUEUE = '[topics.q]\ndead_letter = "dead"\n[topics.dead]\nkind = "stream"\n'


def undecodable(count: int = 4) -> RecordBatch:
    """A batch whose end offsets decrease, with a CRC that fits."""
    whole = records(["x" * 8] * count)
    body, *columns = whole.raw_fields
    assert body is not None
    fields = flat_message.decode(body, 0, 13)
    ends = bytearray(fields[0] or b"")
    ends[4:8], ends[8:12] = ends[8:12], ends[4:8]
    malformed = flat_message.encode(b"", [ends, *fields[1:]])
    message = flat_message.encode(bytes(whole.message[DATA_AT : DATA_AT + NUMBER_BYTES]), [malformed, *columns])
    seal(message)
    return RecordBatch(message)


async def reject_all(client: RawClient, topic: str, count: int) -> None:
    """Reject so many records, in one request."""
    subscription = (await client.call(m.Subscribe(topic, credit=count))).subscription
    entries: list[m.Settlement] = []
    while count:
        event = await client.delivery()
        assert isinstance(event.message, m.Deliver)
        first, end = event.batches[0].base_offset, event.batches[-1].end_offset
        entries.append(m.Settlement(0, event.message.delivery_id, first, end, m.Verdict.REJECT))
        count -= end - first
    assert (await client.call(m.Settle(subscription, entries))).refused == []


async def dead_letters(client: RawClient, count: int) -> list[Record]:
    """Wait for so many dead letters."""
    found: list[Record] = []
    while len(found) < count:
        event = await client.ask(m.Fetch("dead", 0, len(found), wait_max_ms=5_000))
        assert event.batches, "no more came"
        found += [record for batch in event.batches for record in batch.records()]
    return found


@served(QUEUE)
async def test_rejected_records_around_an_undecodable_batch_are_dead_letters_without_it(client: RawClient) -> None:
    for batch in (records(["a", "b"]), undecodable(), records(["c"])):
        await client.call(m.Publish("q"), [batch])
    await reject_all(client, "q", 7)
    assert [record.value for record in await dead_letters(client, 3)] == [b"a", b"b", b"c"]
    shown = await client.administer("topic.show", name="q")
    assert shown["queue"]["unsettled"] == 0


@served("[topics.q]\n")
async def test_a_batch_that_can_not_be_cut_is_dropped_alone_however_small_the_request(client: RawClient) -> None:
    for batch in (records(["a", "b"]), undecodable(40_000), records(["c"])):
        await client.call(m.Publish("q"), [batch])
    subscription = (await client.call(m.Subscribe("q"))).subscription
    assert [values((await client.pull(subscription, 1, 1_000)).batches) for _ in range(3)] == [["a"], ["b"], ["c"]]


@served(QUEUE)
async def test_a_record_with_too_many_labels_still_gets_the_dead_letter_labels(client: RawClient) -> None:
    crowded = Record(value=b"crowded", labels={f"label-{number:03}": True for number in range(LABELS_MAX)})
    await client.call(m.Publish("q"), [build_from_records([crowded, Record(value=b"plain")], base_id=1)])
    await reject_all(client, "q", 2)
    crowded, plain = await dead_letters(client, 2)
    assert (crowded.value, plain.value) == (b"crowded", b"plain")
    assert crowded.labels is not None
    assert set(crowded.labels) == set(plain.labels or {})


@served(QUEUE)
async def test_dead_letters_of_many_large_records_are_copied_in_batches_that_can_be_sent(client: RawClient) -> None:
    for number in range(24):
        await client.publish("q", [f"{number}:" + "x" * 900_000])
    await reject_all(client, "q", 24)
    event = await client.ask(m.Fetch("dead", 0, 0, bytes_max=16 << 20, wait_max_ms=5_000))
    assert max(batch.size for batch in event.batches) < 3 << 20
    assert len(await dead_letters(client, 24)) == 24


def test_batches_that_are_cut_are_kept_within_a_bound_and_no_longer_than_their_partition() -> None:
    cut = CutBatches()
    large = records([bytes(BYTES_MAX // 3)])
    partitions = [Place() for _ in range(4)]
    for partition in partitions:
        cut.keep(partition, large)
    assert [cut.at(partition, 0) is large for partition in partitions] == [False, False, True, True]
    assert cut.at(partition, 1) is None
    cut.keep(partition, records(["small"]))
    assert cut.at(partition, 0) is large
    del partition
    partitions.clear()
    gc.collect()
    assert len(cut) == 0


def test_batches_that_are_cut_count_for_all_that_they_keep_in_memory() -> None:
    cut = CutBatches()
    small = bytes(records([bytes(20_000)]).message)
    partitions = [Place() for _ in range(100)]
    for partition in partitions:
        read = memoryview(bytearray(small.ljust(1 << 20, b"\0")))  # As a log gives it, with what was read beside it.
        cut.keep(partition, RecordBatch(read[: len(small)]))
    assert 1 < len(cut) <= BYTES_MAX >> 20


class Place:
    """Stands for a partition."""
