"""Connections that close with a lot behind them, and records that die one by one between others."""

from __future__ import annotations

from typing import Any

import wire
from attack import Peer, WatchedBroker, attacked, request

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.config.topic_settings import PARTITIONS_MAX
from linn.core.gateway.session import PARTITIONS_READ_MAX
from linn.wire import messages as m

CONFIG = """
[topics.wide]
kind = "queue"
storage = "dram"
partitions = 4096
[topics.shared]
kind = "stream"
storage = "dram"
partitions = 4096
[topics.dies]
kind = "queue"
lease = "1h"
dead_letter = "dead"
[topics.dropped]
kind = "queue"
lease = "1h"
[topics.dead]
kind = "stream"
[exchanges.direct]
type = "direct"
[topics.read]
kind = "stream"
storage = "dram"
partitions = 64
"""
SETTLEMENTS = 100


def unsettled(peer: Peer, topic: str) -> Any:
    return peer.administer("topic.show", name=topic)["queue"]["unsettled"]


def reject_every_other(peer: Peer, topic: str, count: int) -> None:
    """Publish records, take all, and reject half of them, no two that lie together."""
    peer.ask(m.Publish(topic), wire.plain([b"x"] * count))
    subscription = peer.subscribe(topic, credit=count)
    entries: list[m.Settlement] = []
    while len(entries) < count // 2:
        _, message, batches = peer.event()
        if isinstance(message, m.Deliver):
            for batch in map(RecordBatch, batches):
                offsets = range(batch.base_offset + batch.base_offset % 2, batch.end_offset, 2)
                entries += [m.Settlement(0, message.delivery_id, at, at + 1, m.Verdict.REJECT) for at in offsets]
    for at in range(0, len(entries), SETTLEMENTS):
        answer = peer.ask(m.Settle(subscription, entries[at : at + SETTLEMENTS]))
        assert answer == m.Settled([])


# --- 31: dead letters ------------------------------------------------------------------------------------------------


def test_records_that_die_between_others_are_copied_in_turns_and_many_at_a_time(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=1.0) as attack:
        peer = attack.connect()
        reject_every_other(peer, "dies", 3_000)
        attack.until(lambda: unsettled(peer, "dies") == 1_500, "the rejected records are copied")
        peer.is_served()
        fetched = peer.ask(m.Fetch("dead", 0, 0, bytes_max=1))
        assert isinstance(fetched, m.Fetched)
        assert fetched.high_watermark == 1_500


def test_dead_records_between_others_without_a_dead_letter_topic_are_dropped_in_turns(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=0.5) as attack:
        peer = attack.connect()
        reject_every_other(peer, "dropped", 3_000)
        attack.until(lambda: unsettled(peer, "dropped") == 1_500, "the rejected records are dropped")
        peer.is_served()


# --- 32: closing -----------------------------------------------------------------------------------------------------


def test_a_connection_with_many_consumers_of_thousands_of_partitions_closes_at_once(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=2.0) as attack:
        peer = attack.connect()
        for _ in range(100):
            peer.subscribe("wide")
        peer.is_served()
        peer.leaves()


def test_a_connection_with_many_members_of_a_group_closes_as_two_changes(broker: WatchedBroker) -> None:
    members = 30
    with attacked(broker, cpu_s=1.0) as attack:
        other, peer, stays = attack.connect(), attack.connect(), attack.connect()
        stays.subscribe("shared", group="g")
        for _ in range(members):
            peer.subscribe("shared", group="g")
            other.is_served()
        (group,) = other.administer("group.list", topic="shared")
        assert group["members"] == members + 1
        peer.is_served()
        peer.leaves()
        attack.until(lambda: other.administer("group.list", topic="shared")[0]["members"] == 1, "the members are gone")
        (left,) = other.administer("group.list", topic="shared")
        assert left["epoch"] == group["epoch"] + 2
        other.is_served()
        stays.is_served()


def test_a_connection_reads_no_more_partitions_than_it_may_and_leaves_them_in_turns(broker: WatchedBroker) -> None:
    readers, asked = PARTITIONS_READ_MAX // PARTITIONS_MAX, 500
    with attacked(broker, cpu_s=1.0, memory_bytes=32 << 20) as attack:
        peer = attack.connect()
        peer.send(request(m.Subscribe("shared"), 7) * asked)
        answers = [peer.frame()[1] for _ in range(asked)]
        assert all(isinstance(answer, m.Subscribed) for answer in answers[:readers])
        assert {answer.code for answer in answers[readers:] if isinstance(answer, m.Failed)} == {"limit.exceeded"}
        first = answers[0]
        assert isinstance(first, m.Subscribed)
        assert peer.ask(m.Unsubscribe(first.subscription)) == m.Done()
        peer.subscribe("shared")  # What one read that has ended is free again.
        peer.is_served()
        peer.leaves()


def test_a_connection_is_a_member_of_groups_of_no_more_partitions_than_it_may_read(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=1.5, memory_bytes=32 << 20) as attack:
        peer = attack.connect()
        for number in range(PARTITIONS_READ_MAX // PARTITIONS_MAX):
            peer.subscribe("shared", group=f"wide-{number}")
        refused = peer.ask(m.Subscribe("shared", group="one-too-many"))
        assert isinstance(refused, m.Failed)
        assert refused.code == "limit.exceeded"
        peer.is_served()
        peer.leaves()


def test_a_thousand_readers_that_leave_together_leave_their_partitions_in_turns(broker: WatchedBroker) -> None:
    # They come before the attack: it is short, so that little of what it costs can pass for a machine that is busy.
    peers = [Peer(broker.address, greeted=True) for _ in range(1_000)]
    for peer in peers:
        peer.subscribe("read")
    with attacked(broker, cpu_s=3.0, memory_bytes=32 << 20) as attack:
        for peer in peers:
            peer.close()
        watcher = attack.connect()
        attack.until(lambda: watcher.administer("broker.show")["connections"] < 100, "most of them are gone")
        watcher.is_served()


def test_a_client_that_half_closes_after_a_large_publish_gets_the_answer(broker: WatchedBroker) -> None:
    records = [Record(value=b"", routing_key=f"key-{number}") for number in range(20_000)]
    large = bytes(build_from_records(records, base_id=1).message)
    with attacked(broker, cpu_s=2.0, memory_bytes=48 << 20) as attack:
        peer = attack.connect()
        peer.send(request(m.Publish("direct", to_exchange=True), 7, 1), large)
        peer.says_no_more()
        correlation, published = peer.frame()
        assert correlation == 7
        assert isinstance(published, m.Published)
        peer.is_closed()
