"""Changes that are only checked: refused as they would be, answered as they would be, and not made."""

from __future__ import annotations

import pytest
from raw_client import RawClient, Refused, served

TOML = """
[exchanges.shop]
type = "topic"
[exchanges.spare]
[topics.orders]
kind = "stream"
retention = "3d"
[[topics.orders.bindings]]
exchange = "shop"
key = "order.#"
"""


@served(TOML)
async def test_a_change_that_is_only_checked_is_answered_as_it_would_be_and_not_made(client: RawClient) -> None:
    before = await client.administer("topic.list"), await client.administer("exchange.list")
    bound = {"exchange": "shop", "key": "a"}
    for verb, arguments, answer in (
        ("topic.create", {"name": "new", "settings": {"dead_letter": "orders"}}, {"created": True}),
        ("topic.alter", {"name": "orders", "settings": {"retention": "4d"}}, ["retention"]),
        ("topic.alter", {"name": "orders", "settings": {"retention": "72h"}}, []),
        ("exchange.create", {"name": "new", "settings": {"alternate": "shop"}}, {"created": True}),
        ("exchange.create", {"name": "shop", "settings": {"type": "topic"}}, {"created": False}),
        ("exchange.bind", {"topic": "orders", **bound}, {"created": True}),
        ("exchange.bind", {"topic": "orders", "exchange": "shop", "key": "order.#"}, {"created": False}),
        ("exchange.bind", {"target_exchange": "spare", **bound}, {"created": True}),
    ):
        said = await client.administer(verb, **arguments, validate_only=True)
        assert said.get("changed", said) == answer, (verb, arguments)
    assert (await client.administer("topic.list"), await client.administer("exchange.list")) == before


@served(TOML)
async def test_a_change_that_is_only_checked_is_refused_as_it_would_be(client: RawClient) -> None:
    for verb, arguments in (
        ("topic.create", {"name": "new", "settings": {"storage": "nowhere"}}),
        ("topic.create", {"name": "orders", "settings": {"kind": "queue"}}),
        ("topic.create", {"name": "new", "settings": {"bindings": [{"exchange": "shop", "key": "a", "b": 1}]}}),
        ("topic.alter", {"name": "orders", "settings": {"partitioner": "sticky"}}),
        ("exchange.create", {"name": "new", "settings": {"alternate": "nobody"}}),
        ("exchange.create", {"name": "shop", "settings": {}}),
        ("exchange.bind", {"exchange": "shop", "target_exchange": "shop"}),
    ):
        with pytest.raises(Refused) as checked:
            await client.administer(verb, **arguments, validate_only=True)
        with pytest.raises(Refused) as tried:
            await client.administer(verb, **arguments)
        assert str(checked.value) == str(tried.value), (verb, arguments)
