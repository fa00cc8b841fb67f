"""Dead letters through an exchange: one copy in each topic behind it, whatever changes, fails or is full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import transfer_run
import trio
from raw_client import HAND_ID, RawClient, Refused, broker_on, connected, records, served, simulated

from linn.api import InterceptorKind, hookimpl
from linn.core.batch.batch import SCATTERED, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.errors.tree import MessageInvalid
from linn.core.ports.principal import Principal
from linn.core.publish.producer_ids import OwnedProducers
from linn.core.publish.request import PublishRequest, PublishResult
from linn.core.queue.dead_letter import DeadReason
from linn.core.queue.dead_letter_history import ENTRIES_MAX, Death, deaths_of, is_cycle, label_of, with_death
from linn.core.security.access import FullAccess
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = transfer_run.TEXT.replace("max_deliveries = 2", "max_deliveries = 1")


async def reject(client: RawClient, topic: str, contents: Sequence[str], verdict: int = m.Verdict.REJECT) -> None:
    """Publish records to a queue, and reject them."""
    await client.publish(topic, contents)
    await settle_all(client, topic, len(contents), verdict)


async def settle_all(client: RawClient, topic: str, count: int, verdict: int = m.Verdict.REJECT) -> None:
    worker = (await client.call(m.Subscribe(topic))).subscription
    while count > 0:
        event = await client.pull(worker, count, wait_max_ms=20_000)
        assert event.batches, "no more came"
        count -= sum(batch.count for batch in event.batches)
        assert await client.settle(worker, event, verdict) == []
    await client.call(m.Unsubscribe(worker))


async def copied(client: RawClient, topic: str) -> list[str]:
    found = await transfer_run.copies_in(client, topic, transfer_run.TARGETS.get(topic, 1))
    return [(record.value or b"").decode() for record in found]


def dropped(broker: Broker, topic: str = "t") -> dict[str, int]:
    """The dead letters of a topic that reached no target, by reason."""
    queue = broker.topics[topic].queue
    assert queue is not None
    return dict(queue.partition_queues[0].dead_letters.dropped)


# --- where copies go -------------------------------------------------------------------------------------------------


@served(TEXT)
async def test_each_topic_behind_the_exchange_gets_one_copy(client: RawClient) -> None:
    await reject(client, "t", ["x", "y"])
    await trio.sleep(1)
    for topic in "abc":
        assert await copied(client, topic) == ["x", "y"]
    assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0


ROUTED = """
[exchanges.e]
type = "direct"
[topics.own]
dead_letter_exchange = "e"
[topics.set]
dead_letter_exchange = "e"
dead_letter_key = "graves"
[topics.k]
kind = "stream"
[[topics.k.bindings]]
exchange = "e"
key = "k"
[topics.graves]
kind = "stream"
[[topics.graves.bindings]]
exchange = "e"
key = "graves"
"""


@served(ROUTED)
async def test_a_copy_goes_by_the_key_of_the_setting_or_by_its_own(client: RawClient) -> None:
    for topic in ("own", "set"):
        await client.call(m.Publish(topic), [records([topic], routing_key="k")])
        await settle_all(client, topic, 1)
    await trio.sleep(1)
    (own,), (given,) = [await transfer_run.copies_in(client, topic, 1) for topic in ("k", "graves")]
    assert (own.value, own.routing_key) == (b"own", "k")
    assert (given.value, given.routing_key) == (b"set", "graves")


@served(ROUTED)
async def test_a_copy_that_finds_no_topic_is_dropped_and_counted(broker: Broker, client: RawClient) -> None:
    await client.call(m.Publish("own"), [build_from_records(_keyed("k", "nowhere", "k"), base_id=1)])
    await settle_all(client, "own", 3)
    await trio.sleep(1)
    assert await copied(client, "k") == ["0", "2"]
    assert dropped(broker, "own") == {"unroutable": 1}
    shown = await client.administer("topic.show", name="own")
    assert shown["queue"]["unsettled"] == 0


def _keyed(*keys: str) -> list[Record]:
    return [Record(value=str(number).encode(), routing_key=key) for number, key in enumerate(keys)]


# --- targets that don't take them ------------------------------------------------------------------------------------


@served(TEXT)
async def test_a_full_topic_holds_up_the_copies_and_no_delivery(broker: Broker, client: RawClient) -> None:
    await client.administer("topic.alter", name="b", settings={"bytes_max": 5400, "message_bytes_max": 5100})
    await client.call(m.Publish("b", partition=0), [records(["x" * 5100])])
    await reject(client, "t", ["dead"])
    await client.publish("t", ["alive"])
    await settle_all(client, "t", 1, m.Verdict.ACK)
    queue = broker.topics["t"].queue
    assert queue is not None
    await trio.sleep(30)
    assert (await copied(client, "a"), queue.partition_queues[0].subscription.dead_count) == ([], 1)
    assert queue.partition_queues[0].dead_letters.retries > 3
    await client.administer("topic.alter", name="b", settings={"bytes_max": "1MiB"})
    await trio.sleep(15)
    assert (await copied(client, "a"), (await copied(client, "b"))[-1:]) == (["dead"], ["dead"])
    assert queue.partition_queues[0].dead_letters.retries == 0


@served(TEXT)
async def test_an_exchange_that_takes_dead_letters_stays_and_one_that_is_missing_is_waited_for(
    broker: Broker, client: RawClient
) -> None:
    for topic in "abc":
        await client.administer("topic.delete", name=topic)
    with pytest.raises(Refused, match="takes the dead letters of t"):
        await client.administer("exchange.delete", name="graves")
    gone = broker.catalog.routers.pop("graves")
    await reject(client, "t", ["x"])
    await trio.sleep(5)
    queue = broker.topics["t"].queue
    assert queue is not None
    assert queue.partition_queues[0].subscription.dead_count == 1
    broker.catalog.routers["graves"] = gone
    settings = {"kind": "stream", "bindings": [{"exchange": "graves"}]}
    await client.administer("topic.create", name="a", settings=settings)
    await trio.sleep(15)
    assert await copied(client, "a") == ["x"]
    await client.administer("topic.alter", name="t", settings={"dead_letter_exchange": None})
    await client.administer("topic.delete", name="a")
    await client.administer("exchange.delete", name="graves")


class Picky:
    """Refuses records whose value is "bad", and marks all others."""

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        bad = [index for index in range(batch.count) if batch.value(index) == b"bad"]
        if bad:
            raise MessageInvalid("bad").of_messages(bad)
        marked = [Record(value=b"marked " + (record.value or b""), labels=record.labels) for record in batch.records()]
        return build_from_records(marked, base_id=1)


class PickyPlugin:
    name = value = "picky"
    dist = None

    def load(self) -> object:
        return self

    @hookimpl
    def linn_register_interceptor(self) -> InterceptorKind:
        return InterceptorKind("picky", None, lambda name, topic, settings: Picky())


@served(
    '[topics.t]\ndead_letter = "d"\n[topics.d]\nkind = "stream"\ninterceptors = ["picky"]\nmessage_bytes_max = 20\n',
    plugins=[PickyPlugin()],
)
async def test_copies_pass_interceptors_and_one_that_is_refused_holds_up_no_other(
    broker: Broker, client: RawClient
) -> None:
    await reject(client, "t", ["good", "bad", "x" * 100])
    await trio.sleep(1)
    assert await copied(client, "d") == ["marked good", "marked " + "x" * 100]
    assert dropped(broker) == {"refused": 1}
    assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0


# --- a step is published again ---------------------------------------------------------------------------------------

STEP = -12345


async def publish_step(
    broker: Broker, contents: Sequence[str], target: str = "graves", *, producer: int = STEP, sequence: int = 0
) -> PublishResult:
    """Publish a step of a source's partition 1, as the broker does."""
    batch = records(contents, labels={"linn.dead.reason": "rejected"})
    batch.number(producer, 0, sequence, SCATTERED)
    owned = OwnedProducers(broker.producer_ids, "broker")
    owned.give(producer)
    request = PublishRequest(target, [batch], target == "graves", 1, wants_returned=True)
    principal = Principal("", "broker", "broker", FullAccess("broker"))
    (result,) = await broker.publisher.publish(request, principal, owned)
    return result


@served(TEXT)
async def test_a_topic_that_is_bound_between_two_tries_gets_the_step_once(broker: Broker, client: RawClient) -> None:
    await publish_step(broker, ["x"])
    settings = {"kind": "stream", "bindings": [{"exchange": "graves"}]}
    await client.administer("topic.create", name="late", settings=settings)
    for _ in range(3):
        await publish_step(broker, ["x"])
    for topic in ("a", "b", "c", "late"):
        assert await copied(client, topic) == ["x"]


@served(TEXT)
async def test_a_topic_that_has_more_partitions_by_then_knows_the_step(broker: Broker, client: RawClient) -> None:
    await publish_step(broker, ["x"], "a")
    await client.administer("topic.alter", name="a", settings={"partitions": 2})
    await publish_step(broker, ["x"], "a")
    assert [await client.fetch("a", partition) for partition in (0, 1)] == [["x"], []]
    await publish_step(broker, ["y"], "a", sequence=1)
    assert [await client.fetch("a", partition) for partition in (0, 1)] == [["x"], ["y"]]


@served(TEXT)
async def test_a_topic_that_was_made_again_gets_the_step_and_a_smaller_one_does_not_wedge(
    broker: Broker, client: RawClient
) -> None:
    await publish_step(broker, ["x", "y"])
    await client.administer("topic.delete", name="a")
    settings = {"kind": "stream", "bindings": [{"exchange": "graves"}]}
    await client.administer("topic.create", name="a", settings=settings)
    await publish_step(broker, ["x"])  # The source's retention has dropped the other one.
    assert [await copied(client, topic) for topic in "abc"] == [["x"], ["x", "y"], ["x", "y"]]


@served(TEXT)
async def test_a_step_known_from_long_ago_holds_up_nothing(broker: Broker, client: RawClient) -> None:
    for sequence in range(20):
        await publish_step(broker, [str(sequence)], sequence=sequence)
    await publish_step(broker, ["0"])
    assert await copied(client, "a") == [str(number) for number in range(20)]


@served(TEXT)
async def test_a_client_can_not_use_a_producer_of_the_broker(client: RawClient) -> None:
    for producer in (STEP, -1, -(1 << 62)):
        batch = records(["forged"])
        batch.number(producer, 0, 0, SCATTERED)
        with pytest.raises(Refused, match=r"producer\.foreign"):
            await client.call(m.Publish("a"), [batch])
    batch = records(["forged"], labels={"linn.dead.reason": "rejected"})
    batch.number(HAND_ID, 0, 0, SCATTERED)
    with pytest.raises(Refused, match=r"message\.invalid"):
        await client.call(m.Publish("a"), [batch])


@pytest.mark.parametrize("seed", range(24))
def test_each_topic_has_one_copy_of_each_record_however_often_power_is_lost(seed: int) -> None:
    transfer_run.walk(seed)


# --- history and cycles ----------------------------------------------------------------------------------------------

CIRCLE = "".join(
    f'[topics.{name}]\nmax_deliveries = 1\nlease = "10s"\ndead_letter = "{then}"\n'
    for name, then in (("x", "y"), ("y", "z"), ("z", "x"))
)


async def _history(client: RawClient, topic: str) -> list[list[Any]]:
    (record,) = (await client.ask(m.Fetch(topic, 0, 0))).batches[0].records()
    return json.loads(str(record.labels["linn.dead.history"]))  # type: ignore[no-any-return]


@served(CIRCLE)
async def test_a_cycle_of_three_topics_ends_where_nobody_rejects(broker: Broker, client: RawClient) -> None:
    await client.publish("x", ["a"])
    for topic in "xyz":
        await settle_all(client, topic, 1, m.Verdict.NACK)
    await settle_all(client, "x", 1, m.Verdict.NACK)
    await trio.sleep(1)
    assert dropped(broker, "x") == {"cycle": 1}
    for topic in "xyz":
        assert (await client.administer("topic.show", name=topic))["queue"]["unsettled"] == 0


@served(CIRCLE)
async def test_a_cycle_with_a_rejection_goes_on_and_its_history_counts(broker: Broker, client: RawClient) -> None:
    await client.publish("x", ["a"])
    for _ in range(3):
        for topic, verdict in (("x", m.Verdict.NACK), ("y", m.Verdict.REJECT), ("z", m.Verdict.NACK)):
            await settle_all(client, topic, 1, verdict)
    await trio.sleep(1)
    (record,) = (await client.ask(m.Fetch("x", 0, 3))).batches[0].records()
    deaths = deaths_of(record.labels["linn.dead.history"])
    assert [death[:3] for death in deaths] == [
        ("x", "max_deliveries", 3),
        ("y", "rejected", 3),
        ("z", "max_deliveries", 3),
    ]
    assert all(death.first_ms < death.last_ms for death in deaths)
    assert [dropped(broker, topic) for topic in "xyz"] == [{}, {}, {}]


def test_a_history_keeps_the_latest_deaths_within_its_limits() -> None:
    deaths: list[Death] = []
    for number in range(50):
        deaths = with_death(deaths, f"t{number}", DeadReason.REJECTED, number)
    assert [death.topic for death in deaths_of(label_of(deaths))] == [f"t{number}" for number in range(18, 50)]
    assert len(deaths_of(label_of(deaths))) == ENTRIES_MAX
    long = [death._replace(topic=death.topic * 80) for death in deaths]
    assert len(label_of(long)) <= 4096
    assert deaths_of(label_of(long))[-1] == long[-1]
    for unreadable in (None, 7, "", "[[1]]", "no json"):
        assert deaths_of(unreadable) == []


def test_a_cycle_is_what_came_round_without_a_rejection() -> None:
    expired, rejected = DeadReason.EXPIRED, DeadReason.REJECTED
    once = with_death([], "a", expired, 1)
    assert not is_cycle([], "a", expired)
    assert is_cycle(once, "a", expired)
    assert not is_cycle(once, "a", rejected)
    assert not is_cycle(once, "b", expired)
    assert not is_cycle(with_death(once, "b", rejected, 2), "a", expired)
    assert is_cycle(with_death(with_death(once, "b", rejected, 2), "a", expired, 3), "a", expired)


@simulated
async def test_a_history_survives_a_restart_and_grows(env: SimEnv) -> None:
    text = '[storage.segmented-log]\nfsync = "always"\n' + CIRCLE
    async with broker_on(env, text):
        client = await connected(env)
        await reject(client, "x", ["a"])
        await trio.sleep(1)
        assert [death[:3] for death in await _history(client, "y")] == [["x", "rejected", 1]]
    async with broker_on(env, text):
        client = await connected(env)
        await settle_all(client, "y", 1)
        await trio.sleep(1)
        assert [death[:3] for death in await _history(client, "z")] == [["x", "rejected", 1], ["y", "rejected", 1]]
