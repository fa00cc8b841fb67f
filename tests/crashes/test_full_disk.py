"""A disk that is full, under a broker that is a process: what goes on, what is refused, and the ways out."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import trio
from small_disk import FileSizeQuota, Scarce, SmallDisk

import linn
from linn.client.client import IN_FLIGHT_MAX, Client
from linn.client.consume.message import Message
from linn.core.errors.tree import DiskFull
from linn.testing import CrashableBroker
from linn.testing.process import BrokerNotReady, BrokerProcess

TOPICS = {
    "events": {"kind": "stream"},
    "jobs": {"kind": "queue", "lease": "1h", "max_deliveries": 100},
    "fleeting": {"kind": "stream", "storage": "dram"},
}
VALUE = bytes(20_000)
WITHIN_S = 200.0
"""The time for anything that the broker does by itself."""


def broker_on(scarce: Scarce, **more: dict[str, object]) -> CrashableBroker:
    """A broker with its data on a small file system, and its log elsewhere."""
    broker = CrashableBroker(scarce.folder.parent, topics=TOPICS | more)
    broker.data_dir = scarce.folder / "data"
    return broker


async def publish_until_full(client: Client, topic: str, value: bytes = VALUE) -> list[bytes]:
    """Publish numbered records until the disk is full; returns the confirmed ones."""
    confirmed: list[bytes] = []
    async with client.producer(topic) as producer:
        while True:
            numbered = b"%06d " % len(confirmed) + value
            try:
                await producer.publish(numbered)
            except DiskFull:
                return confirmed
            confirmed.append(numbered)


async def everything_in(client: Client, topic: str) -> list[bytes]:
    values: list[bytes] = []
    offset = 0
    while True:
        fetched = await client.fetch(topic, 0, offset)
        if not fetched.batches:
            return values
        for batch in fetched.batches:
            values += [bytes(value) for value in batch.values]
        offset = fetched.batches[-1].end_offset


async def warm(client: Client) -> None:
    """Have one record delivered: the first delivery of all makes the state log, which needs room."""
    async with client.producer("jobs") as producer, client.consumer("jobs") as consumer:
        await producer.publish(b"warm")
        await (await anext(consumer)).ack()


async def take(client: Client, count: int) -> list[Message]:
    async with client.consumer("jobs", prefetch=count) as consumer:
        return [await anext(consumer) for _ in range(count)]


def delivery_id_of(message: Message) -> int:
    assert message.batch._delivery is not None
    return message.batch._delivery.delivery_id


@pytest.fixture(params=["a file system of its own", "a quota"])
def scarce(request: pytest.FixtureRequest, tmp_path: Path) -> Scarce:
    if request.param == "a quota":
        return FileSizeQuota(tmp_path / "scarce")
    disk: SmallDisk = request.getfixturevalue("small_disk")
    return disk


async def test_publishing_goes_on_once_there_is_room(scarce: Scarce) -> None:
    with broker_on(scarce) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            async with client.producer("events") as producer:
                await producer.publish(b"before")
            scarce.fill(broker.pid)
            confirmed = await publish_until_full(client, "events")
            assert await everything_in(client, "events") == [b"before", *confirmed]
            async with client.producer("fleeting") as producer:
                await producer.publish(b"others go on")
            scarce.make_room(broker.pid)
            async with client.producer("events") as producer:
                await producer.publish(b"after")
        broker.crash()
        async with linn.connect(broker.url) as client:
            assert await everything_in(client, "events") == [b"before", *confirmed, b"after"]
        assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize("in_flight_max", [IN_FLIGHT_MAX, 1])
async def test_a_client_that_repeats_loses_nothing_over_a_full_disk(small_disk: SmallDisk, in_flight_max: int) -> None:
    """The order is kept also with several in flight, though the log's last page has room for the small ones."""
    values = [b"%06d " % number + (VALUE if number % 2 else b"") for number in range(50)]
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url, retries_max=100, backoff_max_s=0.1) as client:
            async with client.producer("events", in_flight_max=in_flight_max, batch_bytes_max=1) as producer:
                await producer.publish(values[0])
                small_disk.fill(broker.pid)
                for value in values[1:]:
                    producer.publish_nowait(value)
                # Carried out behind the publishes: a broker does what one connection asks for in order.
                (refused,) = await client.admin.metrics("linn_publish_errors_total")
                behind = [["producer.out_of_order"]] if in_flight_max > 1 else []
                assert sorted(labels for labels, _ in refused["samples"]) == [*behind, ["storage.disk_full"]]
                small_disk.make_room(broker.pid)
                with trio.fail_after(WITHIN_S):
                    await producer.flush()
            assert await everything_in(client, "events") == values


async def test_settlements_are_refused_or_kept_never_lost(small_disk: SmallDisk) -> None:
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url) as client:
            await warm(client)
            async with client.producer("jobs") as producer:
                await producer.publish_many([b"%04d" % number for number in range(2000)])
            small_disk.fill(broker.pid)
            acked: list[int] = []
            async with client.consumer("jobs") as consumer:
                held = [await anext(consumer) for _ in range(1000)]
                with contextlib.suppress(DiskFull):
                    for message in held[::2]:
                        await message.ack()
                        acked.append(message.offset)
                assert len(acked) < 500, "the disk was not full"
                assert [bytes(message.value or b"") for message in held[:3]] == [b"0000", b"0001", b"0002"]
                small_disk.make_room(broker.pid)
                # The refused one is settled already, and its event is written with the next one.
                await held[999].ack()
                acked += [held[2 * len(acked)].offset, held[999].offset]
        broker.crash()
        async with linn.connect(broker.url) as client:
            left = [message.offset for message in await take(client, 2000 - len(acked))]
            assert sorted(left + acked) == list(range(1, 2001))


async def test_a_broker_starts_on_a_full_disk_and_its_streams_are_read(small_disk: SmallDisk) -> None:
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            small_disk.fill(broker.pid)
            confirmed = await publish_until_full(client, "events", VALUE[:100])
        broker.crash()
        assert small_disk.is_full()
        async with linn.connect(broker.url, retries_max=0) as client:
            assert await everything_in(client, "events") == confirmed
            await publish_until_full(client, "events")
            small_disk.make_room(broker.pid)
            async with client.producer("events") as producer:
                await producer.publish(b"after")


async def test_a_queue_on_a_full_disk_waits_and_then_redelivers_leased_records(small_disk: SmallDisk) -> None:
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            await warm(client)
            async with client.producer("jobs") as producer:
                await producer.publish_many([b"%04d" % number for number in range(1000)])
            await fill_with_settlements(client, small_disk)
            ids = {delivery_id_of(message) for message in await take(client, 100)}
        broker.crash()
        assert small_disk.is_full()
        async with linn.connect(broker.url) as client, client.consumer("jobs", prefetch=2000) as consumer:
            with trio.move_on_after(0.5) as waited:
                await anext(consumer)
            assert waited.cancelled_caught, "an id of a delivery that is not on the disk could be given twice"
            small_disk.make_room(broker.pid)
            with trio.fail_after(WITHIN_S):
                message = await anext(consumer)
            assert delivery_id_of(message) not in ids
            assert message.attempt > 1
            await message.ack()
        assert "Traceback" not in broker.log_text()


async def fill_with_settlements(client: Client, disk: SmallDisk) -> None:
    """Fill the disk down to the last bytes of the queue's state log."""
    disk.fill()
    async with client.consumer("jobs", prefetch=1000) as consumer:
        with contextlib.suppress(DiskFull):
            for number in range(1000):
                message = await anext(consumer)
                if number % 3 == 0:
                    await message.ack()
            pytest.fail("there was room for everything")


async def test_a_torn_tail_is_cut_off_on_a_full_disk(small_disk: SmallDisk) -> None:
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            confirmed = await publish_until_full(client, "events")
        broker.kill()
        (segment,) = (broker.data_dir / "segmented-log" / "events" / "0").glob("*.log")
        with segment.open("ab", buffering=0) as file:
            file.write(os.urandom(50))
        small_disk.fill()
        broker.start()
        async with linn.connect(broker.url) as client:
            assert await everything_in(client, "events") == confirmed


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_deleting_a_topic_makes_room_on_a_full_disk(small_disk: SmallDisk, kind: str) -> None:
    with broker_on(small_disk, doomed={"kind": kind}) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            await publish_until_full(client, "doomed")
            small_disk.fill(broker.pid)
            await client.admin.delete_topic("doomed")
            async with client.producer("events") as producer:
                await producer.publish(VALUE)
        broker.kill()


@pytest.mark.parametrize("change", [{"kind": "both"}, {"partitions": 6}])
async def test_a_change_on_a_full_disk_is_whole_or_refused_and_stops_no_start(
    small_disk: SmallDisk, change: dict[str, object]
) -> None:
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            async with client.producer("events") as producer:
                await producer.publish(b"before")
            await client.admin.create_topic("altered", kind="stream", partitions=2)
            before = await client.admin.topic("altered")
            small_disk.fill()
            with contextlib.suppress(DiskFull):
                await client.admin.alter_topic("altered", **change)
            found = (await client.admin.topic("altered"))["settings"]
            assert found in (before["settings"], before["settings"] | change)
        broker.kill()
        small_disk.fill()
        broker.start()
        async with linn.connect(broker.url) as client:
            assert (await client.admin.topic("altered"))["settings"] == found
            small_disk.make_room()
            await client.admin.alter_topic("altered", **change)
            after = await client.admin.topic("altered")
            assert after["settings"] == before["settings"] | change
        assert "Traceback" not in broker.log_text()


async def test_shortening_retention_makes_room_on_a_full_disk(small_disk: SmallDisk) -> None:
    settings = '[storage.segmented-log]\nsegment_bytes_max = "1MiB"\n[topics.long]\nkind = "stream"\n'
    broker = BrokerProcess(small_disk.folder.parent, settings)
    broker.data_dir = small_disk.folder / "data"
    with broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            await publish_until_full(client, "long")
            small_disk.fill()
            await client.admin.alter_topic("long", retention_bytes=2 << 20)
        async with linn.connect(broker.url, retries_max=100, backoff_max_s=0.1) as client:
            async with client.producer("long") as producer:
                with trio.fail_after(WITHIN_S):
                    await producer.publish(VALUE)


async def test_a_start_without_disk_space_reports_it_and_works_once_there_is_some(small_disk: SmallDisk) -> None:
    with broker_on(small_disk):
        pass
    small_disk.fill()
    grown = broker_on(small_disk, added={"kind": "stream"})
    with pytest.raises(BrokerNotReady) as caught:
        grown.start()
    assert caught.value.returncode == 5
    assert "[storage.disk_full]" in caught.value.text
    assert "Traceback" not in caught.value.text
    small_disk.make_room()
    with grown:
        async with linn.connect(grown.url) as client, client.producer("added") as producer:
            await producer.publish(b"there")


async def test_a_record_not_handed_over_on_a_full_disk_goes_to_the_next_consumer(small_disk: SmallDisk) -> None:
    """A record of an at-most-once queue that was handed to no consumer must not count as delivered."""
    once: dict[str, object] = {"kind": "queue", "delivery": "at-most-once"}
    with broker_on(small_disk, once=once) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            async with client.producer("once") as producer:
                await producer.publish_many([b""] * 5_000)
            small_disk.fill(broker.pid)
            handed: list[int] = []
            refused = 0
            while refused < 3:
                try:
                    async with client.consumer("once", prefetch=10) as consumer:
                        with trio.fail_after(WITHIN_S):
                            while True:
                                handed.append((await anext(consumer)).offset)
                except DiskFull:
                    refused += 1
            small_disk.make_room(broker.pid)
            async with client.consumer("once", prefetch=1_000) as consumer:
                with trio.fail_after(WITHIN_S):
                    while len(handed) < 5_000:
                        handed.append((await anext(consumer)).offset)
            assert sorted(handed) == list(range(5_000))


async def purge_again_and_again(client: Client) -> None:
    """The last page of a log may have room for an event or two."""
    with trio.fail_after(WITHIN_S):
        while await client.admin.purge_topic("jobs"):
            async with client.producer("jobs") as producer:
                await producer.publish_many([b""] * 50)


async def test_a_purge_on_a_full_disk_is_not_reported_as_done(small_disk: SmallDisk) -> None:
    with broker_on(small_disk) as broker:
        async with linn.connect(broker.url, retries_max=0) as client:
            async with client.producer("jobs") as producer:
                await producer.publish_many([b""] * 50)
            small_disk.fill(broker.pid)
            with pytest.raises(DiskFull):
                await purge_again_and_again(client)
