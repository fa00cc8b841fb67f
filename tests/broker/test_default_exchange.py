"""The default exchange: the routing key is the topic's name."""

from __future__ import annotations

import pytest
from raw_client import RawClient, Refused, records, served

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.wire import messages as m


@served("[topics.a]\n[topics.b]\n")
async def test_each_message_goes_to_the_topic_that_its_routing_key_names(client: RawClient) -> None:
    keys = ["a", "b", "nobody", "a"]
    batch = build_from_records([Record(value=key.encode(), routing_key=key) for key in keys], base_id=1)
    answer = await client.call(m.Publish("", to_exchange=True), [batch])
    assert answer.placements[0].copies == 3
    assert await client.fetch("a") == ["a", "a"]
    assert await client.fetch("b") == ["b"]


@served("")
async def test_it_follows_the_topics_that_come_and_go(client: RawClient) -> None:

    async def copies() -> int:
        answer = await client.call(m.Publish("", to_exchange=True), [records(["x"], routing_key="late")])
        return int(answer.placements[0].copies)

    assert await copies() == 0
    await client.administer("topic.create", name="late")
    assert await copies() == 1
    await client.administer("topic.delete", name="late")
    assert await copies() == 0


@served("[topics.a]\n")
async def test_nothing_is_bound_to_it(client: RawClient) -> None:
    with pytest.raises(Refused) as refused:
        await client.administer("exchange.bind", exchange="", topic="a", key="k")
    assert refused.value.code in ("exchange.unknown", "exchange.binding_invalid")
