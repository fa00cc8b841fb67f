"""Verbs over the wire: one at a time on a connection, in order; who only looks waits for nobody else's change."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
from raw_client import RawClient, Refused, served

from linn import verbs
from linn.core.admin.verb import ARGUMENTS_BYTES_MAX, NESTING_MAX, VALUES_MAX, check_size, decode_arguments
from linn.core.broker.broker import Broker
from linn.core.config.topic_settings import PARTITIONS_MAX
from linn.core.errors.tree import ConfigError, LimitExceeded
from linn.protocols.capnp.administering import DESCRIBED_MAX
from linn.wire import messages as m


@served("")
async def test_verbs_of_one_connection_are_carried_out_in_the_order_in_which_they_came(
    broker: Broker, client: RawClient
) -> None:
    asked = []
    for _ in range(20):
        for verb in ("topic.create", "topic.show", "topic.delete"):
            asked.append(await client.send(m.Administer(verb, '{"name": "t"}')))
    with trio.fail_after(60):
        assert [await client.code_of(correlation) for correlation in asked] == [""] * len(asked)
    assert broker.memory.received.used_bytes == 0


@served("")
async def test_waiting_changes_are_counted_and_reads_do_not_wait(
    broker: Broker, maker: RawClient, other: RawClient, looker: RawClient
) -> None:
    waiting = json.dumps({"name": "u" + " " * 10_000})
    async with broker.administration._lock:
        made = await maker.send(m.Administer("topic.create", '{"name": "t"}'))
        refused = await other.send(m.Administer("topic.create", waiting))
        with trio.fail_after(5):
            for verb in ("broker.show", "topic.list", "exchange.list", "subscription.list", "group.list"):
                await looker.administer(verb)
        assert broker.memory.received.used_bytes >= len(waiting)
        assert await looker.administer("topic.list") == []
    assert await maker.code_of(made) == ""
    assert await other.code_of(refused) == "config.invalid"
    assert broker.memory.received.used_bytes == 0


@served("[topics.wide]\nkind = 'stream'\npartitions = 400\n")
async def test_a_short_look_waits_for_no_long_work_of_others(broker: Broker, looker: RawClient) -> None:
    async with broker.long_work.turn:
        with trio.fail_after(5):
            for verb, arguments in {"topic.list": "{}", "topic.show": '{"name": "wide"}'}.items():
                await looker.call(m.Administer(verb, arguments))
            await looker.call(m.Describe(["wide"]))


@served("")
async def test_a_client_that_disconnects_before_its_changes_leaves_nothing_behind(
    broker: Broker, client: RawClient
) -> None:
    async with broker.administration._lock:
        for number in range(5):
            await client.send(m.Administer("topic.create", json.dumps({"name": f"t{number}"})))
        await trio.sleep(1)
        assert broker.memory.received.used_bytes
        client.stream.close()
        await trio.sleep(30)  # What is under way may still be done for the time of a keepalive.
        assert broker.memory.received.used_bytes == 0
    assert broker.topics == {}


@served('[topics.s]\nkind = "stream"\n')
async def test_lists_in_requests_end(client: RawClient) -> None:
    with pytest.raises(Refused, match=r"limit\.exceeded"):
        await client.call(m.Describe(["x"] * (DESCRIBED_MAX + 1)))
    await client.call(m.Describe(["x"] * DESCRIBED_MAX))
    with pytest.raises(Refused, match=r"limit\.exceeded"):
        await client.administer("metrics.show", names=["x"] * 257)
    await client.call(m.Subscribe("s", group="g"))
    with pytest.raises(Refused, match=r"limit\.exceeded"):
        await client.administer("group.reset", topic="s", group="g", to="latest", partitions=[0] * (PARTITIONS_MAX + 1))


def test_the_size_of_arguments_is_bounded_in_bytes_and_in_values() -> None:
    check_size("v", '"' + "x" * (ARGUMENTS_BYTES_MAX - 2) + '"')
    for text in ("x" * (ARGUMENTS_BYTES_MAX + 1), "\N{SNOWMAN}" * (ARGUMENTS_BYTES_MAX // 2)):
        with pytest.raises(LimitExceeded):
            check_size("v", text)
    check_size("v", "," * VALUES_MAX)
    with pytest.raises(ConfigError):
        check_size("v", "{" + "[" * VALUES_MAX)


@pytest.mark.parametrize(
    "text",
    [
        *('{"name": "\\udcff"}', "[]", "1", "", '{"name": "t"', '{"name": "t", "b": 1}'),
        *('{"name": "t", "settings": {"a": NaN}}', '{"name": "t", "settings": {"a": 1e999}}'),
    ],
)
def test_arguments_are_an_object_of_json_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError):
        decode_arguments(verbs.CREATE_TOPIC, text)


@pytest.mark.parametrize(
    ("verb", "text", "said"),
    [
        (verbs.SHOW_TOPIC, "{}", 'the argument "name" is missing'),
        (verbs.SHOW_TOPIC, '{"name": 5}', 'the argument "name" must be text, not a whole number'),
        (verbs.SHOW_TOPIC, '{"name": null}', 'the argument "name" must be text, not null'),
        (verbs.SHOW_TOPIC, '{"nam": "t"}', 'topic.show takes no argument "nam"; did you mean "name"?'),
        (
            verbs.ALTER_TOPIC,
            '{"name": "t", "settings": []}',
            '"settings" must be a JSON object, not an array',
        ),
        (verbs.PURGE_TOPIC, '{"name": "t", "validate_only": 1}', '"validate_only" must be true or false, not a whole'),
        (verbs.RESET_GROUP, '{"group": "g", "to": "erliest"}', '"latest", not "erliest"; did you mean "earliest"?'),
        (verbs.RESET_GROUP, '{"group": "g", "offset": true}', '"offset" must be a whole number, not true or false'),
        (verbs.RESET_GROUP, '{"group": "g", "partitions": [0, "1"]}', "must be a whole number, not text (item [1])"),
        (verbs.LIST_DELIVERIES, '{"partition": -1}', 'the argument "partition" must be a whole number >= 0, not -1'),
        (verbs.LIST_TRANSACTIONS, '{"state": "closed"}', 'must be one of "idle", "open", "ending", not "closed"'),
    ],
)
def test_a_wrong_argument_is_named_with_what_it_must_be(verb: verbs.Verb[Any, Any], text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        decode_arguments(verb, text)


def test_null_stands_for_an_argument_that_is_left_out() -> None:
    assert decode_arguments(verbs.LIST_GROUPS, '{"topic": null}') == decode_arguments(verbs.LIST_GROUPS, "{}")


@served("")
async def test_every_verb_is_carried_out(broker: Broker) -> None:
    assert broker.administration._handlers.keys() == verbs.VERBS.keys()


def test_arguments_are_nested_up_to_a_limit() -> None:
    deepest = "[" * (NESTING_MAX - 2) + "]" * (NESTING_MAX - 2)
    assert decode_arguments(verbs.CREATE_TOPIC, f'{{"name": "t", "settings": {{"a": {deepest}}}}}')
    with pytest.raises(ConfigError, match="nested deeper"):
        decode_arguments(verbs.CREATE_TOPIC, f'{{"name": "t", "settings": {{"a": [{deepest}]}}}}')
