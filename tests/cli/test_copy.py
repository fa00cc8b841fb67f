"""`linn copy`: the other broker has the same messages in the same order, and everybody goes on where they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import linn.sync
from linn.testing.process import BrokerProcess

TEXT = "\u00e9"
SOURCE_TOPICS: dict[str, dict[str, Any]] = {
    "visits": {"kind": "stream", "partitions": 3},
    "jobs": {"kind": "queue"},
    "orders": {"kind": "both", "partitions": 2},
}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[linn.sync.Client, linn.sync.Client, str, str]]:
    """Clients of two brokers, and their URLs; topics of the same names are on both."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with (
        BrokerProcess(tmp_path / "old") as old,
        BrokerProcess(tmp_path / "new") as new,
        linn.sync.connect(old.url) as source,
        linn.sync.connect(new.url) as target,
    ):
        for client in (source, target):
            for topic, settings in SOURCE_TOPICS.items():
                client.admin.create_topic(topic, **settings)
        yield source, target, old.url, new.url


def copied(within: Any, old: str, new: str, *topics: str) -> dict[str, Any]:
    done = within("copy", *topics, "--to", new, "--json", url=old)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held(client: linn.sync.Client, topic: str, partition: int) -> list[tuple[object, ...]]:
    """List what a copy keeps of each message."""
    offset, found = 0, []
    while batches := (fetched := client.fetch(topic, partition, offset)).batches:
        for message in (message for batch in batches for message in batch):
            record = message.record()
            content = record.value, record.key, record.routing_key, dict(record.labels), record.headers
            found.append((*content, message.id, record.timestamp_ms, record.priority))
        offset = fetched.next_offset
    return found


def pulled(consumer: linn.sync.Consumer, count: int) -> list[Any]:
    """Pull so many messages, and settle none of them."""
    found: list[Any] = []
    while len(found) < count:
        found += [message for batch in consumer.pull(count, wait_s=5) for message in batch]
    return found


def test_a_copy_keeps_order_partition_and_everything_of_a_message(within: Any, brokers: Any) -> None:
    source, target, old, new = brokers
    with source.producer("visits") as producer:
        for number in range(300):
            producer.publish_nowait(
                None if number == 7 else b"%d" % number,
                key=b"%d" % (number % 5) if number % 2 else None,
                routing_key=f"a.{number}",
                labels={"n": number, TEXT: True},
                headers=[("h", b"1"), ("h", None)],
                priority=number % 3 // 2,
                timestamp_ms=1_700_000_000_000 + number,
                id=UUID(int=number + 1),
            )
    assert copied(within, old, new, "visits") == {"copied": 300, "topics": {"visits": 300}, "offsets": 0}
    for partition in range(3):
        assert held(target, "visits", partition) == held(source, "visits", partition)
    assert sum(len(held(target, "visits", partition)) for partition in range(3)) == 300


def test_groups_go_on_at_the_same_message_although_its_offset_differs(within: Any, brokers: Any) -> None:
    """Transactions leave markers at the source, which take offsets and are not copied."""
    source, target, old, new = brokers
    for number in range(10):
        with source.transaction("t") as transaction:
            transaction.publish_many("visits", [b"%d" % number] * 3, partition=1)
    with source.producer("visits") as producer:
        producer.publish_many([b"end"] * 5, partition=2)
    with source.consumer("visits", group="readers", mode="pull") as consumer:
        for message in pulled(consumer, 35):
            if message.value < b"4":
                message.ack().wait()
    at = {row["partition"]: row["offset"] for row in source.admin.group("readers")["offsets"]}
    assert at[1] > 12, "markers"
    assert copied(within, old, new, "visits")["offsets"] == 1
    there = {row["partition"]: row["offset"] for row in target.admin.group("readers")["offsets"]}
    assert there == {0: None, 1: 12, 2: None}
    with target.consumer("visits", group="readers") as consumer:
        found = [next(consumer) for _ in range(23)]
    assert next(message.value for message in found if message.partition == 1) == b"4"


def test_of_a_queue_what_is_unsettled_is_copied_and_nothing_else(within: Any, brokers: Any) -> None:
    source, target, old, new = brokers
    with source.producer("jobs") as producer:
        producer.publish_many([b"%d" % number for number in range(20)])
    with source.consumer("jobs", mode="pull") as consumer:
        for message in pulled(consumer, 20):
            (message.ack() if int(message.value) % 3 else message.nack()).wait()
    assert copied(within, old, new, "jobs")["copied"] == 7
    with target.consumer("jobs") as consumer:
        assert [int(next(consumer).value) for _ in range(7)] == [*range(0, 20, 3)]


def test_what_is_settled_of_both_kinds_and_of_shared_subscriptions_is_settled_there(within: Any, brokers: Any) -> None:
    source, target, old, new = brokers
    with source.producer("orders") as producer:
        for partition in range(2):
            producer.publish_many([b"%d" % number for number in range(10)], partition=partition)
    source.admin.create_subscription("orders", "team")
    for options, settles in (({}, lambda n: n < 4 or n == 6), ({"shared": "team"}, lambda n: n == 8)):
        with source.consumer("orders", mode="pull", **options) as consumer:
            for message in pulled(consumer, 20):
                (message.ack() if settles(int(message.value)) else message.nack()).wait()
    assert copied(within, old, new, "orders")["copied"] == 20
    for name, unsettled in (("", [4, 5, 7, 8, 9]), ("team", [0, 1, 2, 3, 4, 5, 6, 7, 9])):
        assert target.admin.subscription("orders", name)["unsettled"] == 2 * len(unsettled)
        with target.consumer("orders", mode="pull", shared=name) as consumer:
            found = pulled(consumer, 2 * len(unsettled))
        for partition in range(2):
            assert [int(message.value) for message in found if message.partition == partition] == unsettled
        assert {message.attempt for message in found} == {1}
    assert len(held(target, "orders", 0)) == 10


def test_without_names_all_topics_are_copied(within: Any, brokers: Any) -> None:
    _, _, old, new = brokers
    assert copied(within, old, new)["topics"] == dict.fromkeys(SOURCE_TOPICS, 0)


def test_nothing_is_copied_where_one_topic_can_not_be(within: Any, brokers: Any) -> None:
    source, target, old, new = brokers
    with source.producer("visits") as producer:
        producer.publish(b"v")
    with target.producer("jobs") as producer:
        producer.publish(b"there already")
    target.admin.alter_topic("orders", partitions=5)
    with source.consumer("visits", group="readers"):
        done = within("copy", "--to", new, url=old)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines == [
        "linn: jobs: the target has messages in it: delete it there, and import the definitions again",
        'linn: orders: "partitions" is 2 here and 5 at the target: import the definitions there',
        "linn: visits: group readers has members: stop them",
        "linn: nothing was copied",
    ]
    assert all(not held(target, "visits", partition) for partition in range(3))


def test_messages_in_flight_and_decided_ones_are_not_copied_behind_a_consumers_back(within: Any, brokers: Any) -> None:
    source, _, old, new = brokers
    with source.producer("jobs") as producer:
        producer.publish(b"v")
    with source.consumer("jobs") as consumer:
        next(consumer)
        done = within("copy", "jobs", "--to", new, url=old)
    assert done.returncode == 1
    assert "in flight: stop its consumers" in done.stderr


def test_what_is_behind_an_open_transaction_is_not_left_out_silently(within: Any, brokers: Any) -> None:
    source, _, old, new = brokers
    with source.transaction("billing") as transaction:
        transaction.publish("visits", b"open", key=b"k")
        with source.producer("visits") as producer:
            producer.publish(b"behind", key=b"k")
        done = within("copy", "visits", "--to", new, url=old)
    assert done.returncode == 1
    assert "transaction billing has not ended" in done.stderr
    assert copied(within, old, new, "visits")["copied"] == 2


def test_a_queue_that_is_settled_exactly_once_is_copied_and_partitions_are_kept_or_the_copy_refused(
    within: Any, brokers: Any
) -> None:
    source, target, old, new = brokers
    for client in (source, target):
        client.admin.create_topic("ledgers", delivery="exactly-once", partitions=2)
        client.admin.create_topic("turns", kind="stream", partitions=2, partitioner="round-robin")
    for topic in ("ledgers", "turns"):
        with source.producer(topic) as producer:
            producer.publish_many(
                [b"%d" % number for number in range(10)], keys=[b"%d" % number for number in range(10)]
            )
    assert copied(within, old, new, "ledgers")["copied"] == 10
    assert [held(target, "ledgers", 0), held(target, "ledgers", 1)] == [
        held(source, "ledgers", 0),
        held(source, "ledgers", 1),
    ]
    done = within("copy", "turns", "--to", new, url=old)
    assert (done.returncode, "with partitioner=sticky" in done.stderr) == (1, True)
    target.admin.delete_topic("turns")
    target.admin.create_topic("turns", kind="stream", partitions=2, partitioner="sticky")
    assert copied(within, old, new, "turns")["copied"] == 10


def test_a_topic_that_is_missing_there_and_a_url_that_is_none(within: Any, brokers: Any) -> None:
    source, _, old, new = brokers
    source.admin.create_topic("more")
    done = within("copy", "more", "--to", new, url=old)
    assert (done.returncode, "[topic.unknown]" in done.stderr) == (1, True)
    done = within("copy", "more", "--to", "http://there", url=old)
    assert (done.returncode, "--to" in done.stderr) == (2, True)
