"""A client used where it can't be: before it was entered, after it was closed, in another event loop or thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from both_loops import on_both_loops
from scripted_peer import Peer

import linn
from linn.client import Client, Consumer, Message, Producer
from linn.core.errors.tree import ClientClosed, ClientUnreachable, ConnectionLost
from linn.wire import messages as m


@on_both_loops
async def test_a_consumer_used_without_a_with_block_raises_an_error(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    consumer = client.consumer(name, mode="pull")
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: anext(consumer),
        lambda: anext(consumer.batches()),
        consumer.next_batch,
        lambda: consumer.pull(1),
    ]
    for step in steps:
        with pytest.raises(ClientClosed, match="the consumer was not entered"):
            await step()
    async with consumer:
        pass
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)


@on_both_loops
async def test_closed_is_not_retriable(broker: str, name: str) -> None:
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name)
        producer = client.producer(name)
        failed = [await failure(producer.publish(b"not entered"))]
        async with producer, client.consumer(name, mode="pull") as consumer:
            pass
        failed += [await failure(producer.publish(b"1")), await failure(consumer.pull(1))]
    failed += [await failure(client.describe()), await failure(client.admin.topics())]
    assert [(type(error), error.code, error.retriable) for error in failed] == 5 * [
        (ClientClosed, "client.closed", False)
    ]


async def failure(call: Awaitable[object]) -> ConnectionLost:
    """The error that an awaited call raises."""
    with pytest.raises(ConnectionLost) as caught:
        await call
    return caught.value


@on_both_loops
async def test_closing_the_client_fails_its_open_requests_with_client_closed(peer: Peer) -> None:
    del peer.answers[m.Describe]
    failed: list[ConnectionLost] = []
    async with anyio.create_task_group() as tasks:
        async with linn.connect(peer.url) as client:

            async def describe() -> None:
                failed.append(await failure(client.describe("t")))

            tasks.start_soon(describe)
            await peer.until(lambda: len(peer.messages(m.Describe)) == 1)
    assert [(type(error), error.retriable) for error in failed] == [(ClientClosed, False)]


def test_a_blocking_client_that_is_closed_is_not_to_be_tried_again(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name)
        with client.producer(name) as producer, client.consumer(name) as consumer:
            pass
        calls: list[Callable[[], object]] = [lambda: producer.publish_nowait(b"1"), lambda: consumer.get(timeout_s=0)]
        refused = [closed(call) for call in calls]
    refused.append(closed(client.describe))
    assert [(type(error), error.retriable) for error in refused] == 3 * [(ClientClosed, False)]


def closed(call: Callable[[], object]) -> ConnectionLost:
    """The error that a call raises."""
    with pytest.raises(ConnectionLost) as caught:
        call()
    return caught.value


def calls_of(client: Client, producer: Producer, consumer: Consumer, message: Message) -> Iterator[Callable[[], Any]]:
    """All that touches a client: what is called returns an awaitable, or does it at once."""
    yield client.describe
    yield client.admin.topics
    yield lambda: client.fetch("t", 0, 0)
    yield client.producer("t").__aenter__
    yield client.consumer("t").__aenter__
    yield lambda: producer.publish(b"wrong")
    yield lambda: producer.publish(b"wrong", key=b"k")
    yield lambda: producer.publish_nowait(b"wrong")
    yield lambda: producer.publish_nowait(b"wrong", key=b"k")
    yield lambda: producer.publish_many([b"wrong"])
    yield producer.flush
    yield producer.aclose
    yield consumer.__anext__
    yield consumer.next_batch
    yield lambda: consumer.pull(1)
    yield consumer.aclose
    yield message.ack
    yield message.batch.ack
    yield lambda: message.nack()


async def carried_out(call: Callable[[], Any]) -> None:
    """Call, and await what that gives."""
    await call()


async def refused_everywhere(calls: Iterator[Callable[[], Any]]) -> int:
    """Make all of these calls, each of which is refused; how many they are."""
    count = 0
    for call in calls:
        with pytest.raises(ClientUnreachable, match="not the event loop"):
            await carried_out(call)
        count += 1
    return count


@pytest.mark.parametrize("other", ["trio", "asyncio"])
def test_another_event_loop_in_another_thread_is_refused_without_harm(broker: str, name: str, other: str) -> None:
    async def right(topic: str) -> None:
        async with linn.connect(broker) as client:
            await client.admin.create_topic(topic)
            async with client.producer(topic) as producer, client.consumer(topic, mode="pull") as consumer:
                await producer.publish_many([b"1", b"2", b"3"])
                message = await anext(consumer)
                acked = message.ack()  # Another ack would join this one.

                def wrong() -> int:
                    return anyio.run(refused_everywhere, calls_of(client, producer, consumer, message), backend=other)

                with anyio.fail_after(30):
                    assert await anyio.to_thread.run_sync(wrong) == 19
                await acked
                assert [(await anext(consumer)).value for _ in range(2)] == [b"2", b"3"]
                assert (await producer.publish(b"4")).offset == 3

    for own in ("trio", "asyncio"):
        anyio.run(right, f"{name}-{own}", backend=own)


@on_both_loops
async def test_a_thread_without_an_event_loop_is_refused_too(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer, client.consumer(name) as consumer:
        await producer.publish(b"1")
        message = await anext(consumer)
        for call in (lambda: producer.publish_nowait(b"wrong"), message.ack, message.batch.ack):
            with pytest.raises(ClientUnreachable):
                await anyio.to_thread.run_sync(call)
        await message.ack()
        assert (await producer.publish(b"2")).offset == 1


def test_another_event_loop_of_the_same_thread_is_refused_and_the_client_goes_on(broker: str, name: str) -> None:
    own, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    made: asyncio.Future[tuple[Client, Producer]] = own.create_future()
    go_on = asyncio.Event()

    async def right() -> int | None:
        async with linn.connect(broker) as client, client.producer(name) as producer:
            await client.admin.create_topic(name)
            made.set_result((client, producer))
            await go_on.wait()
            return (await producer.publish(b"1")).offset

    async def wrong() -> None:
        client, producer = made.result()
        for call in (client.describe, lambda: producer.publish(b"x"), lambda: producer.publish_nowait(b"x")):
            with pytest.raises(ClientUnreachable):
                await carried_out(call)

    try:
        task = own.create_task(right())
        own.run_until_complete(made)
        other.run_until_complete(wrong())
        go_on.set()
        assert own.run_until_complete(asyncio.wait_for(task, 30)) == 0
    finally:
        own.close()
        other.close()
