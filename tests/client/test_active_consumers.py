"""Consumers learn which one of them is the single active consumer of a queue: async and blocking."""

from __future__ import annotations

import threading

import anyio
import pytest
from both_loops import on_both_loops

import linn
import linn.sync
from linn.client import Client
from linn.errors import ClientClosed, TopicUnknown

PATIENCE_S = 60.0
"""Time for what comes at all, on a busy machine."""


async def _until_standing_by(consumer: linn.client.Consumer) -> None:
    while consumer.is_active:
        await anyio.sleep(0.001)


@on_both_loops
async def test_a_consumer_learns_when_it_is_the_active_one(client: Client, broker: str, name: str) -> None:
    await client.admin.create_topic(name, consumers="one")
    learned = anyio.Event()

    async def wait(consumer: linn.client.Consumer) -> None:
        await consumer.wait_active()
        learned.set()

    with anyio.fail_after(PATIENCE_S):
        async with linn.connect(broker) as other, other.consumer(name) as second:
            assert second.is_active, "it is the only one"
            async with anyio.create_task_group() as tasks, client.consumer(name, priority=1) as first:
                await first.wait_active()
                await _until_standing_by(second)
                async with client.consumer(name) as third:
                    assert not third.is_active, "from the beginning"
                tasks.start_soon(wait, second)
                await client.admin.topic(name)
                assert not learned.is_set()
                await first.aclose()
                assert not first.is_active
                await learned.wait()
                with pytest.raises(ClientClosed):
                    await first.wait_active()
            await client.admin.delete_topic(name)
            await _until_standing_by(second)
            with pytest.raises(TopicUnknown):
                await second.wait_active()


@on_both_loops
async def test_a_waiting_consumer_learns_of_a_change_of_the_setting(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    with anyio.fail_after(PATIENCE_S):
        async with client.consumer(name) as first, client.consumer(name) as second:
            assert first.is_active
            assert second.is_active, "all consumers of other queues are"
            await client.admin.alter_topic(name, consumers="one")
            await _until_standing_by(second)
            assert first.is_active
            await client.admin.alter_topic(name, consumers="many")
            await second.wait_active()


@on_both_loops
async def test_members_of_a_group_are_active_with_partitions(client: Client, broker: str, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    with anyio.fail_after(PATIENCE_S):
        async with linn.connect(broker) as other, other.consumer(name, "group") as second:
            async with client.consumer(name, "group") as first:
                await second.wait_active()
                assert not first.is_active, "there is one partition"
                await second.aclose()
                await first.wait_active()


def test_a_thread_waits_until_its_consumer_is_active(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name, consumers="one")
    with client.consumer(name) as first, client.consumer(name) as second:
        first.wait_active()
        assert not second.is_active
        waiting = threading.Thread(target=second.wait_active)
        waiting.start()
        first.close()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert second.is_active
