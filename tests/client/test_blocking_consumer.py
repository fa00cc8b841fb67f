from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio.from_thread
import pytest
from scripted_peer import Peer, running_peer

import linn
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import (
    BatchCorrupt,
    ConnectionLost,
    DeliveryNotCurrent,
    MessageInvalid,
    RequestTimeout,
)
from linn.sync import Client
from linn.wire import messages as m

WAIT_S = 300.0


def publish(client: Client, topic: str, count: int, first: int = 0) -> None:
    with client.producer(topic) as producer:
        producer.publish_many([b"%d" % number for number in range(first, first + count)])


def read(consumer: linn.sync.Consumer, count: int) -> list[int]:
    return [int(next(consumer).value or b"") for _ in range(count)]


# --- queues ----------------------------------------------------------------------------------------------------------


def test_get_gives_none_when_the_time_has_passed_and_loses_nothing(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    with client.consumer(name) as consumer:
        assert consumer.get(timeout_s=0) is None
        assert consumer.get(timeout_s=0.05) is None
        assert consumer.next_batch(timeout_s=0.01) is None
        publish(client, name, 3)
        found = [consumer.get(timeout_s=WAIT_S), consumer.get(), consumer.get(timeout_s=0)]
        assert [message.value for message in found if message is not None] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("group", [None, "g"])
def test_acks_that_a_lost_connection_made_void_interrupt_nothing(broker: str, name: str, group: str | None) -> None:
    with linn.sync.connect(broker, name=name) as client, linn.sync.connect(broker) as other:
        client.admin.create_topic(name, kind="stream" if group else "queue")
        publish(client, name, 4)
        with client.consumer(name, group) as consumer:
            held = [next(consumer) for _ in range(4)]
            (number,) = [known["number"] for known in other.admin.connections() if known["client"] == name]
            other.admin.close_connection(number)
            while number in {known["number"] for known in other.admin.connections()}:
                pass
            held[0].ack()
            with held[1].process():
                pass
            assert read(consumer, 4) == [0, 1, 2, 3]
            with pytest.raises(DeliveryNotCurrent, match="connection"):
                held[2].ack().wait()
            held[3].ack()


def test_acks_of_adjoining_messages_are_one(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    publish(client, name, 6)
    with client.consumer(name, prefetch=20) as consumer:
        messages = [next(consumer) for _ in range(6)]
        with consumer._settlements._lock:  # The loop can't take them meanwhile.
            zero, one, three, four, two = [messages[place].ack() for place in (0, 1, 3, 4, 2)]
        assert (zero is one, one is three, three is four, four is two) == (True, False, True, False)
        two.wait()
        assert client.admin.topic(name)["queue"]["unsettled"] == 1


def test_iterating_ends_when_the_consumer_is_closed(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    publish(client, name, 2)
    consumer = client.consumer(name)
    for message in consumer:
        message.ack()
        consumer.close()
    assert list(consumer.batches()) == []
    for use in (consumer.get, lambda: consumer.get(timeout_s=0), consumer.next_batch):
        with pytest.raises(ConnectionLost, match="the consumer is closed"):
            use()
    assert client.admin.topic(name)["queue"]["unsettled"] == 1


# --- streams ---------------------------------------------------------------------------------------------------------


def test_after_a_nack_a_group_reads_on_from_there_at_once(client: Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream")
    for first in (0, 10, 20):
        publish(client, name, 10, first)
    with client.consumer(name, "g") as member:
        messages = [next(member) for _ in range(15)]
        messages[3].nack()
        assert read(member, 27) == list(range(3, 30))


def test_a_member_is_handed_nothing_of_a_partition_that_it_lost(client: Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream", partitions=2)
    with client.producer(name) as producer:
        producer.publish_many([b""] * 200, keys=[b"%d" % number for number in range(200)])
    with client.consumer(name, "g") as first:
        next(first)
        with client.consumer(name, "g") as second:
            next(second)
            while not len(first.partitions[name]) == len(second.partitions.get(name, ())) == 1:
                assert first.get(timeout_s=0.01) is not None
            kept, moved = first.partitions[name], second.partitions[name]
            assert kept != moved
            while (message := first.get(timeout_s=0.2)) is not None:
                assert [message.partition] == kept


def test_a_pull_may_begin_in_the_middle_of_a_queue(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    publish(client, name, 10)
    with client.consumer(name, mode="pull") as consumer:
        (batch,) = consumer.pull(3, partition=0, start=5)
        assert [int(message.value or b"") for message in batch] == [5, 6, 7]
        assert consumer.pull(3, partition=0, start=10) == []
        assert sorted(read(consumer, 7)) == [0, 1, 2, 3, 4, 8, 9]
        for partition, start in ((-1, 0), (0, -1), ("0", 0)):
            with pytest.raises(MessageInvalid):
                consumer.pull(1, partition=partition, start=start)


def test_a_wait_that_ends_early_loses_nothing_where_iterations_pull(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    with client.consumer(name, mode="pull") as consumer:
        assert consumer.get(timeout_s=0.05) is None
        publish(client, name, 2)
        assert read(consumer, 2) == [0, 1]
        assert consumer.get(timeout_s=0) is None
        publish(client, name, 3)
        count = 0
        while count < 3:  # An hour would be over the time of any test: no wait goes on once something has come.
            count += sum(len(batch) for batch in consumer.pull(3 - count, wait_s=3600))
        assert count == 3


# --- a peer that errs ------------------------------------------------------------------------------------------------


@contextmanager
def peer_in_thread() -> Iterator[tuple[Peer, Callable[[Callable[[], object]], object]]]:
    """A scripted peer, and a way to run something where it runs."""
    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(running_peer()) as peer:
            yield peer, portal.call


def test_a_damaged_batch_is_raised_and_the_next_one_handed_out() -> None:
    with peer_in_thread() as (peer, run), linn.sync.connect(peer.url) as client:
        with client.consumer("t") as consumer:

            async def push(damage: bool, first: int) -> None:
                batch = build_from_records([Record(value=b"%d" % first)], base_id=1)
                data = bytearray(batch.message)
                data[-1] ^= damage
                (session,) = peer.sessions
                batch = type(batch)(bytes(data))
                await session.send(m.Deliver(1, 0, first, 1), 0, [batch])

            run(lambda: push(True, 1))
            run(lambda: push(False, 2))
            with pytest.raises(BatchCorrupt):
                consumer.get(timeout_s=WAIT_S)
            message = consumer.get(timeout_s=WAIT_S)
            assert message is not None
            assert message.value == b"2"


def test_waiting_for_a_broker_that_does_not_answer_ends_in_time() -> None:
    with peer_in_thread() as (peer, run), linn.sync.connect(peer.url) as client:
        with client.consumer("t") as consumer:
            del peer.answers[m.Settle]

            async def push() -> None:
                (session,) = peer.sessions
                batch = build_from_records([Record(value=b"1")], base_id=1)
                await session.send(m.Deliver(1, 0, 1, 1), 0, [batch])

            run(push)
            message = consumer.get()
            with pytest.raises(RequestTimeout, match=r"settling took longer than 0\.05 s"):
                message.ack().wait(timeout_s=0.05)
            peer.answers[m.Settle] = lambda session, event: m.Settled([])

            async def answer() -> None:
                (session,) = peer.sessions
                (settle,) = [event for event in peer.events if type(event.message) is m.Settle]
                await session.send(m.Settled([]), settle.correlation)

            run(answer)
