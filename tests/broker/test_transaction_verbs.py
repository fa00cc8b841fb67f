"""Transactions in the hands of an operator: they are listed, described and aborted, and what they hold is theirs."""

from __future__ import annotations

import logging

import pytest
from raw_client import ALWAYS, RawClient, Refused, connected, served
from test_transactions import TOPICS, A, B, Owner, refused, states

from linn.core.broker.broker import Broker
from linn.core.queue.decided import OVERDUE_MS
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event


async def _held(client: RawClient, owner: Owner, *texts: str) -> Event:
    """Records of the queue that a transaction holds."""
    await client.publish("q", list(texts))
    subscription = (await client.call(m.Subscribe("q", member="", credit=10))).subscription
    event = await client.delivery()
    assert isinstance(event.message, m.Deliver)
    await owner.settle(subscription, event.message, event.batches)
    return event


async def _names(client: RawClient, **arguments: object) -> list[tuple[str, str]]:
    answer = await client.administer("transaction.list", **arguments)
    return [(each["name"], each["state"]) for each in answer["transactions"]]


@served(TOPICS)
async def test_the_names_are_listed_with_the_oldest_open_transaction_in_front(env: SimEnv, client: RawClient) -> None:
    assert await client.administer("transaction.list") == {"transactions": [], "more": 0}
    owners = {name: await Owner.open(client, name, branch=A + at) for at, name in enumerate("abcd")}
    before_ms = env.clock.now_ms()
    for name in "ca":
        await owners[name].publish("s", ["x"], branch=A + "abcd".index(name))
        await env.clock.sleep(1)
    assert await _names(client) == [("c", "open"), ("a", "open"), ("b", "idle"), ("d", "idle")]
    assert await _names(client, state="open") == [("c", "open"), ("a", "open")]
    assert await _names(client, state="ending") == []
    first = await client.administer("transaction.list", limit=1)
    assert first["more"] == 3
    (shown,) = first["transactions"]
    assert 2 <= shown.pop("open_s") < 2.5
    assert before_ms - 1000 <= shown.pop("since_ms") <= before_ms
    assert shown == {
        "name": "c",
        "state": "open",
        "producer_id": owners["c"].id,
        "epoch": 0,
        "number": owners["c"].number,
        "timeout_s": 60,
        "partitions": 1,
        "branches": 1,
        "offsets": 0,
        "queue_partitions": 0,
    }


@served(TOPICS)
async def test_arguments_that_make_no_sense_are_refused(client: RawClient) -> None:
    for arguments in ({"state": "closed"}, {"state": 1}, {"limit": 0}, {"limit": True}):
        await refused("config.invalid", client.administer("transaction.list", **arguments))
    await refused("transaction.unknown", client.administer("transaction.show", name="nobody"))
    await refused("transaction.unknown", client.administer("transaction.abort", name="nobody"))
    owner = await Owner.open(client)
    for number in (True, "1"):
        await refused("config.invalid", client.administer("transaction.abort", name="billing", number=number))
    with pytest.raises(Refused, match="it is idle") as error:
        await client.administer("transaction.abort", name="billing")
    assert error.value.code == "transaction.unknown"
    with pytest.raises(Refused, match=r'have the name "bilings"$'):
        await client.administer("transaction.show", name="bilings")
    await owner.publish("s", ["a"])


@served(TOPICS)
async def test_a_description_says_from_where_a_transaction_holds_readers_back(client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.add(B)
    await client.publish("s", ["plain", "plain"])
    await owner.publish("s", ["a"], branch=B)
    await owner.publish("s", ["b"])
    await owner.publish("both", ["c"])
    await _held(client, owner, "d", "e")
    shown = await client.administer("transaction.show", name="billing")
    assert (shown["partitions"], shown["branches"], shown["queue_partitions"]) == (2, 2, 1)
    assert shown["wrote"] == [
        {"topic": "both", "partition": 0, "held_from": 0},
        {"topic": "s", "partition": 0, "held_from": 2},
    ]
    assert shown["holds"] == [{"topic": "q", "subscription": "", "partition": 0, "records": 2}]
    assert shown["commits"] == []
    await owner.end(commit=True, branches=[A, B])
    after = await client.administer("transaction.show", name="billing")
    assert (after["state"], after["open_s"], after["wrote"], after["holds"]) == ("idle", None, [], [])


@served(TOPICS)
async def test_a_description_has_the_offsets_that_would_be_committed(client: RawClient) -> None:
    owner = await Owner.open(client)
    await client.publish("s", ["a", "b"])
    subscription = (await client.call(m.Subscribe("s", "readers", member="ann", credit=10))).subscription
    event = await client.push()
    while not isinstance(event.message, m.Deliver):
        event = await client.push()
    await owner.settle(subscription, event.message, event.batches)
    shown = await client.administer("transaction.show", name="billing")
    assert shown["offsets"] == 1
    assert shown["commits"] == [{"group": "readers", "topic": "s", "partition": 0, "offset": 2}]


@served(TOPICS)
async def test_with_a_number_only_that_transaction_is_aborted(client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.publish("s", ["a"])
    checked = await client.administer("transaction.abort", name="billing", validate_only=True)
    await owner.end(commit=True)
    await owner.publish("s", ["b"])
    for only in ({}, {"validate_only": True}):
        request = client.administer("transaction.abort", name="billing", number=checked["number"], **only)
        await refused("transaction.unknown", request)
    await owner.end(commit=True)
    assert await client.fetch("s") == ["a", "b"]
    await owner.publish("s", ["c"])
    aborted = await client.administer("transaction.abort", name="billing", number=owner.number)
    assert aborted["number"] == owner.number


@served(ALWAYS + TOPICS)
async def test_a_transaction_whose_end_is_under_way_is_not_aborted(env: SimEnv, client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.publish("s", ["a"])
    env.disk.sync_delay_s_max = 12.0
    end = await client.send(m.EndTransaction(owner.id, owner.epoch, owner.number, True, [A]))
    while await _names(client, state="ending") != [("billing", "ending")]:
        await env.clock.sleep(0.01)
    with pytest.raises(Refused, match="under way") as error:
        await client.administer("transaction.abort", name="billing")
    assert error.value.code == "transaction.busy"
    await client.answer(end)
    assert await client.fetch("s") == ["a"]


@served(TOPICS)
async def test_an_operator_aborts_a_transaction_and_is_on_record(
    env: SimEnv, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client, operator = await connected(env), await connected(env, name="the-operator")
    owner = await Owner.open(client)
    await owner.publish("s", ["a"])
    await client.publish("s", ["plain"])
    await _held(client, owner, "b")
    checked = await operator.administer("transaction.abort", name="billing", validate_only=True)
    assert checked["number"] == owner.number
    assert len(checked["warnings"]) == 1
    assert (checked["partitions"], checked["offsets"], checked["queue_partitions"]) == (1, 0, 1)
    assert await client.fetch("s") == []
    with caplog.at_level(logging.WARNING, "linn.administration"):
        aborted = await operator.administer("transaction.abort", name="billing")
    assert aborted["open_s"] >= checked["open_s"]
    assert aborted | {"open_s": None} == checked | {"open_s": None}
    (record,) = [it for it in caplog.records if it.name == "linn.administration"]
    assert record.levelno == logging.WARNING
    assert "the-operator" in record.getMessage()
    assert f'transaction {owner.number} of "billing"' in record.getMessage()
    assert await client.fetch("s") == ["plain"]
    assert sum(await states(client)) == 1
    with pytest.raises(Refused, match="operator") as error:
        await owner.end(commit=True)
    assert error.value.code == "transaction.aborted"
    assert {reason.value: count for reason, count in broker.transactions.aborted.items() if count} == {"operator": 1}


@served(TOPICS)
async def test_records_that_a_transaction_holds_are_listed_as_its_own_and_resolved_by_its_end_only(
    client: RawClient,
) -> None:
    owner = await Owner.open(client)
    event = await _held(client, owner, "a", "b")
    (listed,) = (await client.administer("delivery.list"))["deliveries"]
    assert (listed["consumer"], listed["first"], listed["end"]) == ('transaction "billing"', 0, 2)
    for consumer, count in (('transaction "billing"', 1), ("ann", 0), ('transaction "other"', 0)):
        found = await client.administer("delivery.list", topic="q", consumer=consumer)
        assert len(found["deliveries"]) == count
    place = {"topic": "q", "partition": 0, "delivery_id": event.message.delivery_id}
    for consumer in ('transaction "billing"', f"\0{owner.id}/{owner.number}", "ann"):
        with pytest.raises(Refused, match="held by a transaction: `linn deliveries list`") as error:
            await client.administer("delivery.resolve", **place, consumer=consumer, outcome="done")
        assert error.value.code == "transaction.invalid"
    await owner.end(commit=True)
    assert (await client.administer("delivery.list"))["deliveries"] == []
    assert await states(client) == (0, 0)


@served(TOPICS)
async def test_no_warning_speaks_of_a_transaction_as_a_consumer_that_is_away(
    env: SimEnv, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await Owner.open(client, timeout_ms=2 * OVERDUE_MS)
    await _held(client, owner, "a")
    with caplog.at_level(logging.WARNING):
        await env.clock.sleep(1.8 * OVERDUE_MS / 1000)
    assert [it.getMessage() for it in caplog.records if it.name == "linn.queue"] == []
