"""A publisher that is alone on its connection reads its own answer; nobody else waits for anything because of that."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from both_loops import on_both_loops
from scripted_peer import Peer, impatient, running_peer

import linn
from linn.client.client import Client
from linn.client.produce.confirmation import Confirmation
from linn.client.produce.producer import Producer
from linn.core.errors.tree import ConnectionLost, RequestTimeout, TopicUnknown
from linn.wire import messages as m

ALONE = 20
"""Publishes after which publishers surely read for themselves."""


async def warm(client: Client, producer: Producer) -> None:
    """Publish until the publisher reads."""
    for _ in range(ALONE):
        await producer.publish(b"warm")
    assert client._connector.usable is not None
    assert client._connector.usable.attended_count > 0


async def answer_late(peer: Peer) -> None:
    """Confirm the last publish."""
    event = next(event for event in reversed(peer.events) if event.batches)
    await peer.sessions[0].send(m.Published([m.Placement(0, 0, 1)]), event.correlation)


@on_both_loops
async def test_publishes_one_after_the_other_are_confirmed_in_order(client: linn.client.Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.producer(name) as producer:
        receipts = [await producer.publish(b"%d" % number) for number in range(100)]
        assert [receipt.offset for receipt in receipts] == list(range(100))
        assert client._connector.usable is not None
        assert client._connector.usable.attended_count > 50
    fetched = await client.fetch(name, 0, 0)
    messages = [message for batch in fetched.batches for message in batch]
    assert [message.value for message in messages] == [b"%d" % number for number in range(100)]
    assert [message.id for message in messages] == [receipt.id for receipt in receipts]


@on_both_loops
async def test_a_publish_that_is_not_answered_times_out_while_its_publisher_reads(peer: Peer) -> None:
    async with linn.connect(peer.url, request_timeout_s=8) as client:
        async with client.producer("t") as producer:
            await warm(client, producer)
            answer = peer.answers.pop(m.Publish)
            with pytest.raises(RequestTimeout), anyio.fail_after(30), impatient(client):
                await producer.publish(b"unheard")
            peer.answers[m.Publish] = answer
            with anyio.fail_after(30):
                await producer.publish(b"heard")


@on_both_loops
async def test_a_cancelled_reader_hands_the_link_over(peer: Peer, client: linn.client.Client) -> None:
    async with client.producer("t") as producer:
        await warm(client, producer)
        answer = peer.answers.pop(m.Publish)
        with anyio.move_on_after(0.05) as scope:
            await producer.publish(b"left alone")
        assert scope.cancelled_caught
        peer.answers[m.Publish] = answer
        with anyio.fail_after(30):
            await client.describe("t")
            await answer_late(peer)
            assert (await producer.publish(b"next")).partition == 0


@on_both_loops
async def test_a_request_beside_a_publisher_that_reads_is_answered(peer: Peer, client: linn.client.Client) -> None:
    async with client.producer("t") as producer:
        await warm(client, producer)
        answer = peer.answers.pop(m.Publish)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.publish, b"waits")
            await peer.until(lambda: len(peer.messages(m.Publish)) == ALONE + 1)
            with anyio.fail_after(30):
                for _ in range(3):
                    await client.describe("t")
                await answer_late(peer)
        peer.answers[m.Publish] = answer


@on_both_loops
async def test_a_link_lost_while_a_publisher_reads_is_replaced_and_the_batch_is_resent(peer: Peer) -> None:
    async with linn.connect(peer.url, backoff_s=0.01) as client:
        async with client.producer("t") as producer:
            await warm(client, producer)
            answer = peer.answers.pop(m.Publish)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.publish, b"comes again")
                await peer.until(lambda: len(peer.messages(m.Publish)) == ALONE + 1)
                peer.answers[m.Publish] = answer
                with anyio.fail_after(30):
                    await peer.cut()
        assert peer.logs["t/0"][-1] == b"comes again"


@on_both_loops
async def test_a_client_that_is_closed_fails_the_publisher_that_reads(peer: Peer) -> None:
    async with anyio.create_task_group() as tasks:
        failed: list[ConnectionLost] = []
        async with linn.connect(peer.url) as client:
            producer = client.producer("t")
            await producer.__aenter__()
            await warm(client, producer)
            del peer.answers[m.Publish]

            async def publish() -> None:
                try:
                    await producer.publish(b"in vain")
                except ConnectionLost as error:
                    failed.append(error)

            tasks.start_soon(publish)
            await peer.until(lambda: len(peer.messages(m.Publish)) == ALONE + 1)
        with anyio.fail_after(30):
            while not failed:
                await anyio.sleep(0.001)


@on_both_loops
async def test_a_refusal_reaches_the_publisher_that_reads(peer: Peer, client: linn.client.Client) -> None:
    async with client.producer("t") as producer:
        await warm(client, producer)
        peer.answers[m.Publish] = lambda session, event: m.Failed("topic.unknown", "gone", False)
        with pytest.raises(TopicUnknown):
            await producer.publish(b"refused")


@on_both_loops
async def test_a_consumer_gets_its_messages_at_once_though_a_publisher_reads_the_link(
    client: linn.client.Client, name: str
) -> None:
    """Publishing, a subscription, and publishing again over one connection."""
    await client.admin.create_topic(name, kind="queue")
    async with client.producer(name) as producer:
        for _ in range(ALONE):
            await producer.publish(b"warm")
        async with client.consumer(name) as consumer:
            with anyio.fail_after(30):
                for number in range(50):
                    await producer.publish(b"%d" % number)
                got = [await anext(consumer) for _ in range(ALONE + 50)]
    assert [message.value for message in got[ALONE:]] == [b"%d" % number for number in range(50)]


@on_both_loops
async def test_unsolicited_messages_are_read_after_the_last_publish() -> None:
    """The connection's own task goes on reading when the last publisher has gone."""

    async def goodbye(peer: Peer) -> None:
        await peer.sessions[0].send(m.Goodbye("soon"))

    async with running_peer() as peer, linn.connect(peer.url) as client, client.producer("t") as producer:
        await warm(client, producer)
        connection = client._connector.usable
        assert connection is not None
        await goodbye(peer)
        with anyio.fail_after(30):
            while connection.ready:
                await anyio.sleep(0.001)


@pytest.mark.parametrize("turns", range(6))
@on_both_loops
async def test_two_publishers_do_not_both_read_when_one_is_answered_first(
    peer: Peer, turns: int, client: linn.client.Client
) -> None:
    async with client.producer("t") as producer:
        await warm(client, producer)
        connection = client._connector.usable
        assert connection is not None
        while connection._recall is not None:
            await anyio.sleep(0.001)
        answer = peer.answers.pop(m.Publish)
        answered_soon = Confirmation()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.attend, answered_soon)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                answered_soon.settle(m.Placement(0, 0, 1))
                tasks.start_soon(producer.publish, b"waits")
                await peer.until(lambda: len(peer.messages(m.Publish)) == ALONE + 1)
                await client.describe("t")
                await answer_late(peer)
            peer.answers[m.Publish] = answer
            await producer.publish(b"next")
        assert client._connector.usable is connection


@on_both_loops
async def test_a_publish_that_times_out_while_it_is_being_sent_leaves_the_link_as_it_is(peer: Peer) -> None:
    peer.message_bytes_max = 64 << 20
    async with linn.connect(peer.url, request_timeout_s=8) as client, client.producer("t") as producer:
        await warm(client, producer)
        connection = client._connector.usable
        peer.reading = anyio.Event()
        with pytest.raises(RequestTimeout), anyio.fail_after(30), impatient(client):
            await producer.publish(bytes(32 << 20))
        peer.reading.set()
        with anyio.fail_after(30):
            while connection is not None and not connection.drained:
                await anyio.sleep(0.001)
            await producer.publish(b"heard")
        assert client._connector.usable is connection


@on_both_loops
async def test_a_publish_that_times_out_while_its_link_is_ending_is_settled_once(peer: Peer) -> None:
    async with linn.connect(peer.url, backoff_s=0.01) as client, client.producer("t") as producer:
        await warm(client, producer)
        answer = peer.answers.pop(m.Publish)
        async with anyio.create_task_group() as tasks:

            async def publish() -> None:
                with pytest.raises(RequestTimeout):
                    await producer.publish(b"unheard")

            tasks.start_soon(publish)
            await peer.until(lambda: len(peer.messages(m.Publish)) == ALONE + 1)
            assert client._connector.usable is not None
            client._connector.usable.lose(ConnectionLost("the line is cut"))
            for _ in range(6):  # The time is up before the connection has told those who wait.
                producer._sender._watch_time()
        peer.answers[m.Publish] = answer
        with anyio.fail_after(30):
            await producer.publish(b"heard")


@on_both_loops
async def test_a_blocked_loop_during_a_hand_over_of_reading_blocks_nobody_for_ever() -> None:
    """The connection's own task may have gone back to reading before the publisher gets its turn."""

    async def work() -> None:
        while True:
            threading.Event().wait(0.006)
            await anyio.lowlevel.checkpoint()

    async with running_peer() as peer, linn.connect(peer.url) as client, client.producer("t") as producer:
        await warm(client, producer)
        connection = client._connector.usable
        assert connection is not None
        for _ in range(20):
            while connection._recall is not None:
                await anyio.sleep(0.001)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                with anyio.fail_after(30):
                    await producer.publish(b"")
                tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_link_that_is_given_up_while_a_publisher_reads_is_replaced_at_once(tmp_path: Path) -> None:
    """Over a Unix socket the next connection has the same descriptor before the publisher gets its turn."""
    peer, path = Peer(), str(tmp_path / "s")
    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as serving:
        serving.start_soon(listener.serve, peer.accept)
        async with linn.connect(f"linn+unix://{path}") as client, client.producer("t") as producer:
            await warm(client, producer)
            answer = peer.answers.pop(m.Publish)
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(producer.publish, b"comes again")
                    await peer.until(lambda: len(peer.messages(m.Publish)) == ALONE + 1)
                    peer.answers[m.Publish] = answer
                    assert client._connector.usable is not None
                    client._connector.usable.lose(ConnectionLost("it has been silent"))
        serving.cancel_scope.cancel()
