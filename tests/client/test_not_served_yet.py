"""Features that topics do not support yet are refused by name, in both clients, and never silently ignored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from both_loops import on_both_loops

import linn
from linn.client import Client
from linn.errors import FeatureUnsupported, SubscriptionWrongKind

PROPERTIES = [("priority", 9, "priorities"), ("ttl_ms", 5, "TTLs")]
SERVED = {("stream", "priority"), ("queue", "ttl_ms"), ("both", "ttl_ms")}
STARTS: list[Any] = ["latest", 0, 7, datetime(2026, 1, 1, tzinfo=UTC)]


@on_both_loops
async def test_a_topic_refuses_message_fields_that_it_would_ignore(client: Client, name: str) -> None:
    for kind in ("queue", "both", "stream"):
        topic = f"{name}-{kind}"
        await client.admin.create_topic(topic, kind=kind)  # type: ignore[arg-type]
        for key, value, said in PROPERTIES:
            if (kind, key) in SERVED:
                continue
            async with client.producer(topic) as producer:
                with pytest.raises(FeatureUnsupported, match=f"{topic} is a .*, which does not serve {said}"):
                    await producer.publish(b"1", **{key: value})
                with pytest.raises(FeatureUnsupported, match=said):
                    await producer.publish_many([b"1", b"2"], **{key: value})
        assert (await client.admin.topic(topic))["partitions"][0]["end"] == 0


@on_both_loops
async def test_a_stream_carries_priorities_to_its_readers(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.producer(name) as producer, client.consumer(name, start="earliest") as reader:
        await producer.publish(b"low")
        await producer.publish(b"high", priority=9)
        assert [(m.value, m.priority) for m in [await anext(reader), await anext(reader)]] == [
            (b"low", 0),
            (b"high", 9),
        ]


@on_both_loops
async def test_a_consumer_of_a_queue_has_no_start(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    for start in STARTS:
        with pytest.raises(SubscriptionWrongKind, match=f"{name} is a queue: its consumers get what is not settled"):
            async with client.consumer(name, start=start) as consumer:
                await anext(consumer)
    async with client.producer(name) as producer, client.consumer(name, start="earliest") as consumer:
        await producer.publish(b"1")
        assert (await anext(consumer)).value == b"1"


def test_the_blocking_client_is_refused_the_same(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name)
    with client.producer(name) as producer:
        for key, value, said in PROPERTIES[:1]:
            with pytest.raises(FeatureUnsupported, match=said):
                producer.publish(b"1", **{key: value})  # type: ignore[arg-type]
    for start in STARTS:
        with (
            pytest.raises(SubscriptionWrongKind, match="choose no start"),
            client.consumer(name, start=start) as consumer,
        ):
            consumer.get(timeout_s=10)
