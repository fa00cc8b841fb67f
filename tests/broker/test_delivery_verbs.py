"""Decided deliveries in the hands of an operator: they are listed, ended, put on record, and warned of."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, after_power_loss, broker_on, connected, served, simulated, values

from linn.core.admin.deliveries import DECIDED_SHOWN_MAX
from linn.core.broker.broker import RETENTION_INTERVAL_S, Broker
from linn.core.queue.decided import OVERDUE_MS
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

QUEUE = ALWAYS + '[topics.t]\ndelivery = "exactly-once"\nlease = "10s"\n'
DEAD = QUEUE + 'dead_letter = "lost"\n[topics.lost]\n'


async def _joined(client: RawClient, name: str = "ledger", credit: int = 10, **options: Any) -> int:
    subscribe = m.Subscribe("t", member=name, two_phase=True, credit=credit, **options)
    return int((await client.call(subscribe)).subscription)


async def _decided(client: RawClient, subscription: int) -> Event:
    """The next delivery, which the broker then decides to its consumer."""
    event = await client.delivery()
    assert event.message.phase == m.Phase.PREPARE
    assert await client.settle(subscription, event, m.Verdict.READY) == []
    return event


async def _with_decision(env: SimEnv, *texts: str) -> tuple[RawClient, int, Event]:
    """A connected consumer to which these records were decided in one delivery."""
    client = await connected(env, name="ledger-program")
    await client.publish("t", list(texts))
    subscription = await _joined(client)
    return client, subscription, await _decided(client, subscription)


async def _listed(client: RawClient, **arguments: Any) -> list[dict[str, Any]]:
    answer = await client.administer("delivery.list", topic="t", **arguments)
    assert answer["more"] == 0
    found: list[dict[str, Any]] = answer["deliveries"]
    return found


def _named(event: Event, outcome: str, **arguments: Any) -> dict[str, Any]:
    deliver = event.message
    assert isinstance(deliver, m.Deliver)
    named = {"topic": "t", "partition": deliver.partition, "delivery_id": deliver.delivery_id, "consumer": "ledger"}
    return named | {"outcome": outcome} | arguments


async def _refusal(client: RawClient, verb: str, arguments: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        await client.administer(verb, **arguments)
    return str(caught.value.code)


# --- listing ---------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_what_is_decided_is_listed_with_its_holder(env: SimEnv) -> None:
    before_ms = env.clock.now_ms()
    client, subscription, event = await _with_decision(env, "a", "b", "c")
    (shown,) = await _listed(client)
    assert before_ms <= shown.pop("since_ms") <= env.clock.now_ms()
    assert shown == {
        "topic": "t",
        "subscription": "",
        "partition": 0,
        "delivery_id": event.message.delivery_id,
        "first": 0,
        "end": 3,
        "consumer": "ledger",
        "attempt": 1,
        "connected": True,
    }
    await client.call(m.Unsubscribe(subscription))
    (shown,) = await _listed(client, consumer="ledger")
    assert not shown["connected"]
    assert await _listed(client, consumer="other") == []
    assert [row["topic"] for row in (await client.administer("delivery.list"))["deliveries"]] == ["t"]
    assert await _refusal(client, "delivery.list", {"partition": 0}) == "config.invalid"
    assert await _listed(client, partition=0, delivery_id=event.message.delivery_id + 1) == []


@served(QUEUE)
async def test_what_is_done_is_no_longer_listed(env: SimEnv) -> None:
    client, subscription, event = await _with_decision(env, "a", "b")
    assert await client.settle(subscription, event, m.Verdict.DONE) == []
    assert await _listed(client) == []
    assert await _refusal(client, "delivery.resolve", _named(event, "done")) == "delivery.not_current"


@simulated
async def test_a_long_list_is_cut_and_says_how_much_is_left_out(env: SimEnv) -> None:
    text = '[topics.t]\ndelivery = "exactly-once"\nstorage = "dram"\n'
    async with broker_on(env, text):
        client = await connected(env)
        count = 2 * (DECIDED_SHOWN_MAX + 3)
        await client.publish("t", ["x"] * count)
        subscription = await _joined(client, credit=count)
        taken = 0
        while taken < count:
            event = await client.delivery()
            deliver, end = event.message, event.batches[-1].end_offset
            entries = [
                m.Settlement(deliver.partition, deliver.delivery_id, at, at + 1, m.Verdict.READY)
                for at in range(event.batches[0].base_offset, end)
                if at % 2
            ]
            assert (await client.call(m.Settle(subscription, entries))).refused == []
            taken = end
        answer = await client.administer("delivery.list", topic="t")
        assert [row["first"] for row in answer["deliveries"]] == [2 * at + 1 for at in range(DECIDED_SHOWN_MAX)]
        assert answer["more"] == 3


@simulated
async def test_named_subscriptions_of_a_stream_are_listed_beside_each_other(env: SimEnv) -> None:
    text = ALWAYS + '[topics.t]\nkind = "stream"\ndelivery = "exactly-once"\n'
    async with broker_on(env, text):
        client = await connected(env)
        await client.publish("t", ["a"])
        for shared in ("audit", "bills"):
            subscription = await _joined(client, name=f"{shared}-1", shared=shared, start=m.START_EARLIEST)
            event = await _decided(client, subscription)
        assert [(row["subscription"], row["consumer"]) for row in await _listed(client)] == [
            ("audit", "audit-1"),
            ("bills", "bills-1"),
        ]
        assert [row["consumer"] for row in await _listed(client, subscription="bills")] == ["bills-1"]
        asked = _named(event, "done", consumer="bills-1")
        assert await _refusal(client, "delivery.resolve", asked) == "delivery.wrong_kind"
        assert await _refusal(client, "delivery.list", {"topic": "t", "subscription": "none"}) == "shared.unknown"
        await client.administer("delivery.resolve", **asked, subscription="bills")
        assert [row["consumer"] for row in await _listed(client)] == ["audit-1"]


@served(QUEUE)
async def test_decided_records_in_numbers(env: SimEnv, broker: Broker) -> None:
    def numbers() -> dict[str, Any]:
        families = {it.metric.name.removeprefix("linn_queue_"): it for it in broker.metrics.collect(["linn_queue_"])}
        return {name: dict(families[name].samples)["t", ""] for name in expected}

    expected = {
        "decided_records": 5,
        "decided_deliveries": 2,
        "pinned_records": 0,
        "unsettled_records": 5,
        "decisions_total": 2,
        "operator_resolutions_total": 0,
        "oldest_decision_seconds": 0,
    }

    client = await connected(env)
    await client.publish("t", ["a", "b"])
    first = await _joined(client, credit=2)
    event = await _decided(client, first)
    await client.publish("t", ["c", "d", "e"])
    second = await _joined(client, name="mails", credit=3)
    done = await _decided(client, second)
    assert numbers() == expected | {"oldest_decision_seconds": numbers()["oldest_decision_seconds"]}
    assert await client.settle(second, done, m.Verdict.DONE) == []
    await trio.sleep(30)
    assert numbers()["pinned_records"] == 3
    assert 30 <= numbers()["oldest_decision_seconds"] < 31
    shown = await client.administer("subscription.show", topic="t")
    assert (shown["decided"], shown["leased"], shown["unsettled"]) == (2, 0, 2)
    assert {it["name"]: it["decided"] for it in shown["by_consumer"]} == {"ledger": 2, "mails": 0}
    assert (await client.administer("topic.show", name="t"))["queue"]["decided"] == 2
    await client.administer("delivery.resolve", **_named(event, "done"))
    ended = dict.fromkeys(expected, 0) | {"decisions_total": 2, "operator_resolutions_total": 1}
    assert numbers() == ended


# --- ending ----------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_a_decision_that_an_operator_calls_done_is_settled(env: SimEnv) -> None:
    client, subscription, event = await _with_decision(env, "a", "b", "c")
    answer = await client.administer("delivery.resolve", **_named(event, "done"))
    assert answer["records"] == 3
    assert [warning["text"] for warning in answer["warnings"]] == [
        "ledger is connected, and may be storing the effect now",
        "if ledger has not stored the effect, it never happens",
    ]
    assert (await client.administer("subscription.show", topic="t"))["unsettled"] == 0
    (refused,) = await client.settle(subscription, event, m.Verdict.DONE)
    assert refused.code == "delivery.not_current"


@served(QUEUE)
async def test_a_decision_that_an_operator_returns_goes_to_another_consumer(env: SimEnv) -> None:
    client, subscription, event = await _with_decision(env, "a", "b", "c")
    await client.call(m.Unsubscribe(subscription))
    other = await connected(env)
    await _joined(other, name="spare")
    assert await other.is_silent(60)
    await client.administer("delivery.resolve", **_named(event, "return"))
    again = await other.delivery()
    assert (values(again.batches), again.message.attempt) == (["a", "b", "c"], 2)


@served(DEAD)
async def test_a_decision_that_an_operator_rejects_goes_to_the_dead_letters(env: SimEnv) -> None:
    client, _, event = await _with_decision(env, "a", "b")
    answer = await client.administer("delivery.resolve", **_named(event, "dead-letter"))
    assert len(answer["warnings"]) == 2
    await trio.sleep(1)
    assert await client.fetch("lost") == ["a", "b"]
    assert (await client.administer("subscription.show", topic="t"))["unsettled"] == 0


@served(QUEUE)
async def test_without_a_dead_letter_topic_the_operator_is_warned(env: SimEnv) -> None:
    client, _, event = await _with_decision(env, "a")
    tried = await client.administer("delivery.resolve", **_named(event, "dead-letter"), validate_only=True)
    assert tried["warnings"][-1]["text"] == "t has no dead-letter topic: the records are dropped"
    assert len(await _listed(client)) == 1, "it was only validated"


@served(QUEUE)
async def test_a_part_of_a_decision_is_ended_by_its_offsets(env: SimEnv) -> None:
    client, subscription, event = await _with_decision(env, "a", "b", "c", "d")
    answer = await client.administer("delivery.resolve", **_named(event, "done", first=1, end=3))
    assert answer["records"] == 2
    assert [(row["first"], row["end"]) for row in await _listed(client)] == [(0, 1), (3, 4)]
    beyond = _named(event, "done", first=1, end=3)
    assert await _refusal(client, "delivery.resolve", beyond) == "delivery.not_current"
    assert await client.settle(subscription, event, m.Verdict.DONE) == []
    assert await _listed(client) == []


@simulated
async def test_what_an_operator_has_ended_survives_a_power_failure(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, QUEUE):
            client, _, event = await _with_decision(env, "a", "b")
            await client.administer("delivery.resolve", **_named(event, "done", first=0, end=1))
            env.crash()

    await env.run_until_death(process)
    env = await after_power_loss(env, QUEUE)
    async with broker_on(env, QUEUE):
        client = await connected(env)
        assert [(row["first"], row["end"], row["connected"]) for row in await _listed(client)] == [(1, 2, False)]


@served(QUEUE)
async def test_requests_that_make_no_sense_are_refused(env: SimEnv) -> None:
    client, _, event = await _with_decision(env, "a")
    wrong = [
        ("config.invalid", {"outcome": "forget"}),
        ("config.invalid", {"outcome": None}),
        ("config.invalid", {"partition": "0"}),
        ("config.invalid", {"first": -1}),
        ("config.invalid", {"consumer": 7}),
        ("config.invalid", {"subscription": 7}),
        ("topic.partition_unknown", {"partition": 1}),
        ("topic.unknown", {"topic": "nowhere"}),
        ("shared.unknown", {"subscription": "none"}),
        ("delivery.not_current", {"consumer": "other"}),
        ("delivery.not_current", {"first": 1}),
        ("delivery.not_current", {"end": 0}),
    ]
    for code, change in wrong:
        assert await _refusal(client, "delivery.resolve", _named(event, "done") | change) == code, change
    assert await _refusal(client, "delivery.list", {"topic": "t", "partition": 1}) == "topic.partition_unknown"
    assert len(await _listed(client)) == 1


# --- the credit of a connected consumer ------------------------------------------------------------------------------


async def _held(client: RawClient) -> int:
    connections = await client.administer("connection.list")
    return sum(subscription["held"] for connection in connections for subscription in connection["subscriptions"])


@served(QUEUE)
async def test_a_connected_consumer_gets_as_many_records_as_were_ended_for_it(client: RawClient) -> None:
    await client.publish("t", list("abcdefgh"))
    subscription = await _joined(client, credit=4)
    event = await _decided(client, subscription)
    assert values(event.batches) == list("abcd")
    assert await client.is_silent(5)
    await client.administer("delivery.resolve", **_named(event, "done", first=1, end=3))
    assert values((await client.delivery()).batches) == list("ef")
    assert await _held(client) == 4


@served(QUEUE)
async def test_what_was_ended_before_it_was_repeated_is_not_repeated_and_frees_no_credit(client: RawClient) -> None:
    await client.publish("t", list("abcdefgh"))
    subscription = await _joined(client, credit=6)
    event = await _decided(client, subscription)
    await client.call(m.Unsubscribe(subscription))
    await _joined(client, credit=2)
    assert values((await client.delivery()).batches) == list("ab"), "of six that wait to be repeated"
    assert await client.is_silent(5)
    await client.administer("delivery.resolve", **_named(event, "done", first=1, end=4))
    again = await client.delivery()
    assert (values(again.batches), again.message.phase) == (["e"], m.Phase.COMMIT)
    assert await _held(client) == 2


@served(QUEUE)
async def test_a_consumer_that_has_nothing_of_a_decision_yet_keeps_its_credit_when_it_ends(client: RawClient) -> None:
    await client.publish("t", list("abcdef"))
    subscription = await _joined(client, credit=3)
    event = await _decided(client, subscription)
    await client.call(m.Unsubscribe(subscription))
    subscription = await _joined(client, credit=0)
    await client.administer("delivery.resolve", **_named(event, "return"))
    assert await _held(client) == 0
    await client.tell(m.Credit(subscription, 6))
    again = await client.delivery()
    assert (values(again.batches), again.message.phase) == (list("abc"), m.Phase.PREPARE)


@simulated
async def test_decided_records_that_can_not_be_read_free_no_credit_when_they_are_ended(env: SimEnv) -> None:
    text = ALWAYS + '[topics.t]\ndelivery = "exactly-once"\npartitions = 2\n'
    async with broker_on(env, text):
        client = await connected(env)
        await client.publish("t", list("abc"), partition=0)
        await client.publish("t", list("de"), partition=1)
        subscription = await _joined(client)
        events = {event.message.partition: event for event in [await _decided(client, subscription) for _ in range(2)]}
        await client.call(m.Unsubscribe(subscription))
        file = env.disk.open("data/segmented-log/t/0/00000000000000000000.log")
        at = file.size() - 12
        file.write_at(bytes([(await file.read(at, 1))[0] ^ 1]), at)
        file.close()
        await _joined(client)
        assert values((await client.delivery()).batches) == list("de")
        assert len(await _listed(client)) == 2, "what can't be read stays decided"
        await client.administer("delivery.resolve", **_named(events[0], "done"))
        assert await _held(client) == 2


# --- on record -------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_a_resolution_is_on_record_with_who_asked(env: SimEnv, caplog: pytest.LogCaptureFixture) -> None:
    client, _, event = await _with_decision(env, "a", "b")
    await client.administer("delivery.resolve", **_named(event, "return"), validate_only=True)
    assert _lines(caplog, "linn.administration") == []
    since_ms = (await _listed(client))[0]["since_ms"]
    await client.administer("delivery.resolve", **_named(event, "return"))
    (record,) = [record for record in caplog.records if record.name == "linn.administration"]
    assert record.levelno == logging.WARNING
    about = record.args
    assert isinstance(about, dict)
    caller = about["caller"]
    assert isinstance(caller, str)
    assert caller.startswith("anonymous at ")
    assert caller.endswith("(ledger-program)")
    assert about == {
        "topic": "t",
        "subscription": "",
        "partition": 0,
        "caller": caller,
        "delivery_id": event.message.delivery_id,
        "consumer": "ledger",
        "is_connected": True,
        "outcome": "return",
        "records": 2,
        "count": "2 records",
        "offsets": "0 to 1",
        "since_ms": since_ms,
        "attempt": 1,
    }


def _lines(caplog: pytest.LogCaptureFixture, logger: str = "linn.queue") -> list[str]:
    """The warnings of a logger, which are forgotten afterwards."""
    found = [it.getMessage() for it in caplog.records if (it.name, it.levelno) == (logger, logging.WARNING)]
    caplog.clear()
    return found


async def _stay(client: RawClient, seconds: float) -> None:
    """Let time pass, and stay connected."""
    for _ in range(int(seconds / RETENTION_INTERVAL_S)):
        await trio.sleep(RETENTION_INTERVAL_S)
        await client.administer("topic.list")


@served(QUEUE)
async def test_old_decisions_of_a_consumer_that_is_here_are_warned_of_once(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    client, subscription, _ = await _with_decision(env, "a", "b")
    await _stay(client, OVERDUE_MS / 1000 - RETENTION_INTERVAL_S)
    assert _lines(caplog) == [], "it is not old"
    await _stay(client, 2 * RETENTION_INTERVAL_S)
    (line,) = _lines(caplog)
    assert "2 records were decided to ledger" in line
    assert "are not done; it is connected; to look at them: linn deliveries list t --consumer ledger" in line
    await client.publish("t", ["c"])
    await client.call(m.Credit(subscription, 3))
    delivery = await client.delivery()
    assert await client.settle(subscription, delivery, m.Verdict.READY) == []
    assert await client.settle(subscription, delivery, m.Verdict.DONE) == []
    await _stay(client, 2 * OVERDUE_MS / 1000)
    assert _lines(caplog) == [], "once until they are done"


@simulated
async def test_old_decisions_of_a_consumer_that_is_away_are_warned_of_once(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    overdue_s = OVERDUE_MS / 1000
    async with broker_on(env, QUEUE):
        client, subscription, _ = await _with_decision(env, "a", "b")
        await client.call(m.Unsubscribe(subscription))
        await _stay(client, overdue_s - RETENTION_INTERVAL_S)
        assert _lines(caplog) == [], "it is not old"
        await _stay(client, 2 * RETENTION_INTERVAL_S)
        (line,) = _lines(caplog)
        assert "2 records were decided to ledger" in line
        assert "it is not connected" in line
        assert line.endswith("linn deliveries list t --consumer ledger")
        await _stay(client, overdue_s)
        subscription = await _joined(client)
        await client.delivery()
        await client.call(m.Unsubscribe(subscription))
        await _stay(client, overdue_s)
        assert _lines(caplog) == [], "once until it is resolved"
        subscription = await _joined(client)
        again = await client.delivery()
        assert await client.settle(subscription, again, m.Verdict.DONE) == []
        await client.publish("t", ["c"])
        await _decided(client, subscription)
        await client.call(m.Unsubscribe(subscription))
        await _stay(client, overdue_s - RETENTION_INTERVAL_S)
        assert _lines(caplog) == [], "it is not old"
        await _stay(client, 2 * RETENTION_INTERVAL_S)
        assert len(_lines(caplog)) == 1


@simulated
async def test_each_holder_is_warned_of_also_after_a_restart(env: SimEnv, caplog: pytest.LogCaptureFixture) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, QUEUE):
            client = await connected(env)
            for name in ("ledger", "mails"):
                await client.publish("t", ["a"])
                await _decided(client, await _joined(client, name=name, credit=1))
            env.crash()

    await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, QUEUE):
        await env.clock.sleep(OVERDUE_MS / 1000 + RETENTION_INTERVAL_S)
        assert [line.rpartition(" ")[2] for line in _lines(caplog)] == ["ledger", "mails"]
