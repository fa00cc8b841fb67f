"""Routing by content in a running broker: content, headers and consistent-hash exchanges, by TOML and made live."""

from __future__ import annotations

import pytest
from raw_client import RawClient, Refused, broker_on, connected, served, simulated

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.config.config import load_config
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import ConfigError
from linn.core.plugins.manager import built_in
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

EXCHANGES = """
[exchanges.orders]
type = "content"

[topics.eu]
kind = "stream"
[[topics.eu.bindings]]
exchange = "orders"
when = 'label.region = "eu"'

[topics.large]
kind = "stream"
[[topics.large.bindings]]
exchange = "orders"
when = 'size > 3 and not header.kind = "test"'

[topics.mine]
kind = "stream"
[[topics.mine.bindings]]
exchange = "orders"
when = 'key starts_with "me-"'

[topics.spare]
kind = "stream"
"""


def a_batch() -> RecordBatch:
    return build_from_records(
        [
            Record(value=b"a", labels={"region": "eu"}),
            Record(value=b"bbbb", labels={"region": "us"}, headers=(("kind", b"real"),)),
            Record(value=b"cccc", labels={"region": "eu"}, headers=(("kind", b"test"),)),
            Record(value=b"dddd", labels={"region": "eu"}, key=b"me-1"),
            Record(value=b"e", key=b"you-1"),
        ],
        base_id=1,
    )


async def publish(client: RawClient, batch: RecordBatch, exchange: str = "orders") -> int:
    answer = await client.call(m.Publish(exchange, to_exchange=True), [batch])
    return int(answer.placements[0].copies)


async def held(client: RawClient, *topics: str) -> dict[str, list[str]]:
    return {topic: await client.fetch(topic) for topic in topics}


@served(EXCHANGES)
async def test_a_content_exchange_looks_at_labels_size_headers_and_keys(client: RawClient) -> None:
    await publish(client, a_batch())
    # Record d has no header "kind", so `not header.kind = "test"` is unknown of it.
    assert await held(client, "eu", "large", "mine") == {
        "eu": ["a", "cccc", "dddd"],
        "large": ["bbbb"],
        "mine": ["dddd"],
    }


@simulated
async def test_a_live_binding_works_at_once_survives_a_restart_and_can_be_removed(env: SimEnv) -> None:
    async with broker_on(env, EXCHANGES):
        client = await connected(env)
        binding = {"exchange": "orders", "topic": "spare", "arguments": {"when": "not label.region exists"}}
        await client.administer("exchange.bind", **binding)
        await publish(client, a_batch())
        assert await client.fetch("spare") == ["e"]
    async with broker_on(env, EXCHANGES):
        client = await connected(env)
        await publish(client, a_batch())
        assert await client.fetch("spare") == ["e", "e"]
        await client.administer("exchange.unbind", **binding)
        await publish(client, a_batch())
        assert await client.fetch("spare") == ["e", "e"]


@simulated
async def test_a_bad_predicate_is_refused_live_and_leaves_nothing_behind(env: SimEnv) -> None:
    async with broker_on(env, EXCHANGES):
        client = await connected(env)
        before = await client.administer("exchange.show", name="orders")
        for arguments in ({"when": "label.region = and"}, {"when": "\ud800"}, {"when": 5}, {}):
            with pytest.raises(Refused) as caught:
                await client.administer("exchange.bind", exchange="orders", topic="spare", arguments=arguments)
            assert caught.value.code in ("predicate.invalid", "exchange.binding_invalid", "config.invalid")
        with pytest.raises(Refused, match=r"column 16: .* in: label.region = \^and"):
            await client.administer(
                "topic.create",
                name="new",
                settings={"bindings": [{"exchange": "orders", "when": "label.region = and"}]},
            )
        assert await client.administer("exchange.show", name="orders") == before
    async with broker_on(env, EXCHANGES):
        client = await connected(env)
        assert await client.administer("exchange.show", name="orders") == before


@simulated
async def test_headers_and_consistent_hash_exchanges_made_live_route_and_come_back(env: SimEnv) -> None:
    topics = "".join(f'[topics.t{number}]\nkind = "stream"\n' for number in range(3))
    batch = build_from_records(
        [Record(value=b"%d" % n, key=b"k%d" % (n % 7), labels={"kind": "odd" if n % 2 else "even"}) for n in range(70)],
        base_id=1,
    )
    async with broker_on(env, topics):
        client = await connected(env)
        await client.administer("exchange.create", name="h", settings={"type": "headers"})
        arguments = {"labels": {"kind": "odd"}, "exists": ["key"]}
        await client.administer("exchange.bind", exchange="h", topic="t0", arguments=arguments)
        await client.administer("exchange.create", name="s", settings={"type": "consistent-hash", "hash_on": "key"})
        for topic in ("t1", "t2"):
            await client.administer("exchange.bind", exchange="s", topic=topic)
        await publish(client, batch, "h")
        await publish(client, batch, "s")
        found = await held(client, "t0", "t1", "t2")
        assert found["t0"] == [str(number) for number in range(1, 70, 2)]
        assert sorted(map(int, found["t1"] + found["t2"])) == list(range(70))
        by_key = [{int(value) % 7 for value in found[topic]} for topic in ("t1", "t2")]
        assert not by_key[0] & by_key[1], "a key is in one place"
    async with broker_on(env, topics):
        client = await connected(env)
        await publish(client, batch, "s")
        again = await held(client, "t1", "t2")
        assert {topic: got[len(found[topic]) :] for topic, got in again.items()} == {
            topic: found[topic] for topic in again
        }, "and the same place after a restart"


@served(EXCHANGES)
async def test_values_that_no_predicate_expects_fail_nothing(client: RawClient) -> None:
    odd = [
        Record(value=None, key=b"\xff", labels={"region": float("nan")}),
        Record(value=b"", labels={"region": True}, headers=(("kind", None), ("kind", b"\xff"))),
        Record(value=b"12345", labels={"region": 5}, headers=(("kind", b"real"), ("kind", b"test"))),
        Record(value=b"12345", headers=(("kind", b"test"), ("kind", b"real"))),
    ]
    assert await publish(client, build_from_records(odd, base_id=1)) == 1
    assert await held(client, "eu", "large", "mine") == {"eu": [], "large": ["12345"], "mine": []}


WRONG = """\
[exchanges.orders]
type = "content"

[topics.eu]
[[topics.eu.bindings]]
exchange = "orders"
when = "label.region == 'eu'"
"""


def refusal_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(TomlSource(text, "linn.toml"), built_in())
    return caught.value.text


def test_a_bad_predicate_in_toml_is_shown_with_file_line_key_and_place() -> None:
    assert refusal_of(WRONG) == (
        "linn.toml:7: topics.eu.bindings[0].when: predicate, column 14: "
        "equality is written \"=\", at the ^ in: label.region ^== 'eu'"
    )
    over_lines = WRONG.replace("\"label.region == 'eu'\"", '"""\nlabel.region = \'eu\'\n  adn key exists"""')
    assert "linn.toml:7: topics.eu.bindings[0].when: predicate, line 2, column 3: " in refusal_of(over_lines)


def test_other_wrong_bindings_in_toml_are_shown_by_their_key() -> None:
    misspelt = WRONG.replace("when", "wehn")
    assert refusal_of(misspelt) == ('linn.toml:7: topics.eu.bindings[0].wehn: unknown key "wehn"; did you mean "when"?')
    weight = WRONG.replace('"content"', '"consistent-hash"').replace("when = \"label.region == 'eu'\"", 'key = "0"')
    assert refusal_of(weight).startswith("linn.toml:7: topics.eu.bindings[0].key: the key of a binding is its weight")
    headers = WRONG.replace('"content"', '"headers"').replace("when = \"label.region == 'eu'\"", "headers = { a = 1 }")
    assert refusal_of(headers).startswith("linn.toml:7: topics.eu.bindings[0].headers: header a must be text, not 1")
