"""Two-phase delivery over the wire: prepare, ready, commit and done, the names, and what restarts and losses keep."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, broker_on, connected, served, simulated, values
from test_draining import stopping

from linn.core.broker.broker import Broker
from linn.core.queue.partition_queue import PartitionQueue
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

ACK, NACK, REJECT, EXTEND, RELEASE, READY, DONE = m.Verdict
PREPARE, COMMIT = m.Phase.PREPARE, m.Phase.COMMIT
QUEUE = ALWAYS + '[topics.t]\ndelivery = "exactly-once"\nlease = "10s"\n'
STREAM = QUEUE + 'kind = "stream"\n'
DRAM = '[topics.t]\ndelivery = "exactly-once"\nlease = "10s"\nstorage = "dram"\n'
ROOM_BYTES = 1 << 30


async def _join(client: RawClient, member: str = "ann", credit: int = 100, **options: Any) -> int:
    subscribe = m.Subscribe("t", credit=credit, member=member, two_phase=True, **options)
    return int((await client.call(subscribe)).subscription)


def _entry(event: Event, verdict: int, first: int | None = None, end: int | None = None) -> m.Settlement:
    """A settlement of a delivery, or of a part of it."""
    deliver = event.message
    assert isinstance(deliver, m.Deliver)
    first = event.batches[0].base_offset if first is None else first
    end = event.batches[-1].end_offset if end is None else end
    return m.Settlement(deliver.partition, deliver.delivery_id, first, end, verdict, 0)


async def _codes(client: RawClient, subscription: int, *entries: m.Settlement) -> list[str]:
    settled = await client.call(m.Settle(subscription, list(entries)))
    return [refusal.code for refusal in settled.refused]


async def _settled(client: RawClient, subscription: int, event: Event, *verdicts: int) -> None:
    for verdict in verdicts:
        assert await _codes(client, subscription, _entry(event, verdict)) == []


async def _unsettled(client: RawClient) -> int:
    return int((await client.administer("topic.show", name="t"))["queue"]["unsettled"])


def _phase(event: Event) -> tuple[int, list[str]]:
    assert isinstance(event.message, m.Deliver)
    return event.message.phase, values(event.batches)


def _partition_queue(broker: Broker) -> PartitionQueue:
    queue = broker.topics["t"].queue
    assert queue is not None
    return queue.partition_queues[0]


async def _resolved(
    client: RawClient, subscription: int, delivery_id: int, partition: int = 0, first: int = 0, end: int = 1 << 40
) -> bool:
    """Ask whether records of a delivery were decided to this consumer: all of its records, unless others are named."""
    return bool((await client.call(m.Resolve(subscription, partition, delivery_id, first, end))).is_decided)


# --- the phases ------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_records_are_prepared_decided_and_done(broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    subscription = await _join(client)
    event = await client.delivery()
    assert _phase(event) == (PREPARE, ["a", "b"])
    await _settled(client, subscription, event, READY)
    assert await _unsettled(client) == 2
    assert _partition_queue(broker).subscription.decided_count == 2
    await _settled(client, subscription, event, DONE)
    assert await _unsettled(client) == 0
    await client.publish("t", ["c"])
    third = await client.delivery()
    await client.publish("t", ["d"])
    await _settled(client, subscription, third, READY, DONE)
    fourth = await client.delivery()
    befores = [it.message.settled_before for it in (event, third, fourth)]  # type: ignore[attr-defined]
    assert befores[0] == 0
    assert befores == sorted(befores)
    assert befores[2] >= 2, "the floor follows what is settled"


@served("[topics.t]\n")
async def test_other_topics_have_no_phases(client: RawClient) -> None:
    await client.publish("t", ["a"])
    subscription = (await client.call(m.Subscribe("t", credit=9, member="ann"))).subscription
    event = await client.delivery()
    assert (event.message.phase, event.message.settled_before) == (0, 0)  # type: ignore[attr-defined]
    assert await _codes(client, subscription, _entry(event, READY)) == ["delivery.wrong_kind"]
    assert await _codes(client, subscription, _entry(event, DONE)) == ["delivery.not_current"]
    assert await client.settle(subscription, event) == []


@served(QUEUE)
async def test_an_ack_settles_nothing_that_was_not_decided(client: RawClient) -> None:
    await client.publish("t", ["a"])
    subscription = await _join(client)
    event = await client.delivery()
    assert await _codes(client, subscription, _entry(event, ACK)) == ["delivery.wrong_kind"]
    assert await _codes(client, subscription, _entry(event, DONE)) == ["delivery.not_current"]
    assert await _unsettled(client) == 1
    await _settled(client, subscription, event, READY, DONE)


@simulated
async def test_a_subscription_says_that_it_has_two_phases_and_who_it_is(env: SimEnv) -> None:
    text = QUEUE + '[topics.plain]\n[topics.once]\ndelivery = "at-most-once"\n'
    async with broker_on(env, text):
        client = await connected(env)
        for subscribe in (
            m.Subscribe("t", two_phase=True),
            m.Subscribe("t", member="ann"),
            m.Subscribe("t"),
            m.Subscribe("plain", member="ann", two_phase=True),
            m.Subscribe("once", member="ann", two_phase=True),
        ):
            with pytest.raises(Refused, match=r"delivery\.wrong_kind"):
                await client.call(subscribe)


@served(QUEUE)
async def test_returned_records_go_to_others_and_none_of_them_is_decided(client: RawClient, other: RawClient) -> None:
    await client.publish("t", ["a", "b", "c", "d"])
    subscription = await _join(client, credit=4)
    event = await client.delivery()
    await _join(other, "bob", 4)
    await client.call(m.Credit(subscription, 0))
    entries = [_entry(event, READY, 0, 1), _entry(event, NACK, 1, 2), _entry(event, RELEASE, 2, 3)]
    assert await _codes(client, subscription, *entries, _entry(event, REJECT, 3, 4)) == []
    assert await _codes(client, subscription, _entry(event, DONE, 0, 4)) == [], "what of it was decided is settled"
    found = [await other.delivery() for _ in range(2)]
    seen = [(*_phase(it), it.message.attempt) for it in found]  # type: ignore[attr-defined]
    assert sorted(seen) == [(PREPARE, ["b"], 2), (PREPARE, ["c"], 1)]
    assert await _unsettled(client) == 2


# --- refusals --------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_ready_is_refused_after_the_lease_and_another_consumer_is_asked(
    slow: RawClient, quick: RawClient
) -> None:
    await slow.publish("t", ["a"])
    late = await _join(slow, "slow", 1)
    held = await slow.delivery()
    busy = await _join(quick, "quick", 1)
    again = await quick.delivery(11)
    assert (*_phase(again), again.message.attempt) == (PREPARE, ["a"], 2)  # type: ignore[attr-defined]
    assert await _codes(slow, late, _entry(held, READY)) == ["delivery.not_current"]
    await _settled(quick, busy, again, READY)
    assert await _codes(slow, late, _entry(again, DONE)) == ["delivery.not_current"], "it is another's name"
    assert await _codes(slow, late, _entry(again, READY)) == ["delivery.not_current"]
    await _settled(quick, busy, again, DONE)
    assert await _unsettled(slow) == 0


@served(QUEUE)
async def test_ready_twice_and_done_twice_are_refused_and_change_nothing(client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    subscription = await _join(client)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    for verdict in (READY, NACK, REJECT, EXTEND, RELEASE):
        entry = _entry(event, verdict)
        entry.ms = 1_000
        assert await _codes(client, subscription, entry) == ["delivery.not_current"]
    whole = m.Settlement(0, event.message.delivery_id, -1, -1, DONE)  # type: ignore[attr-defined]
    other = _entry(event, DONE)
    other.delivery_id += 1
    assert await _codes(client, subscription, whole, other) == ["delivery.not_current"] * 2
    assert await _unsettled(client) == 2
    await _settled(client, subscription, event, DONE)
    assert await _codes(client, subscription, _entry(event, DONE)) == ["delivery.not_current"]
    assert await _unsettled(client) == 0


# --- names -----------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_a_name_that_is_taken_over_is_fenced_and_what_was_decided_goes_with_it(
    old: RawClient, new: RawClient
) -> None:
    await old.publish("t", ["a"])
    await old.publish("t", ["b"])
    first = await _join(old, credit=1)
    decided = await old.delivery()
    await _settled(old, first, decided, READY)
    await old.call(m.Credit(first, 2))
    leased = await old.delivery()
    assert values(leased.batches) == ["b"]
    second = await _join(new)
    again, returned = await new.delivery(), await new.delivery()
    assert _phase(again) == (COMMIT, ["a"])
    assert again.message.delivery_id == decided.message.delivery_id  # type: ignore[attr-defined]
    assert _phase(returned) == (PREPARE, ["b"])
    ended = (await old.push()).message
    assert isinstance(ended, m.Ended)
    assert ended.code == "delivery.fenced"
    for event, verdict in ((decided, DONE), (leased, READY)):
        with pytest.raises(Refused, match=r"delivery\.(fenced|subscription_unknown)"):
            await old.call(m.Settle(first, [_entry(event, verdict)]))
    with pytest.raises(Refused, match=r"delivery\.(fenced|subscription_unknown)"):
        await _resolved(old, first, decided.message.delivery_id)  # type: ignore[attr-defined]
    await _settled(new, second, again, DONE)
    await _settled(new, second, returned, READY, DONE)
    assert await _unsettled(new) == 0


@served(QUEUE)
async def test_what_was_decided_is_repeated_to_its_name_alone(client: RawClient, other: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    subscription = await _join(client)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    await client.call(m.Unsubscribe(subscription))
    await _join(other, "bob")
    assert await other.is_silent(20), "no time ends a decision"
    subscription = await _join(client)
    again = await client.delivery()
    assert _phase(again) == (COMMIT, ["a", "b"])
    assert again.message.attempt == 1  # type: ignore[attr-defined]
    assert await _codes(client, subscription, _entry(again, READY)) == ["delivery.not_current"]
    await _settled(client, subscription, again, DONE)
    assert await _unsettled(client) == 0


@served(QUEUE)
async def test_a_consumer_that_is_never_done_stops_nobody_else(stuck: RawClient, other: RawClient) -> None:
    await stuck.publish("t", ["a"])
    subscription = await _join(stuck, credit=1)
    await _settled(stuck, subscription, await stuck.delivery(), READY)
    busy = await _join(other, "bob", 1)
    for number in range(30):
        await stuck.publish("t", [f"{number}"])
        event = await other.delivery()
        await _settled(other, busy, event, READY, DONE)
        assert event.message.settled_before == 0  # type: ignore[attr-defined]
    assert await _unsettled(other) == 1
    assert await stuck.is_silent(0.1), "its credit is used up by what it has"


# --- credit ----------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_decided_records_count_as_held_until_they_are_done(client: RawClient) -> None:
    await client.publish("t", [str(number) for number in range(6)])
    subscription = await _join(client, credit=2)
    event = await client.delivery()

    async def held() -> int:
        (connection,) = await client.administer("connection.list")
        return int(connection["subscriptions"][0]["held"])

    assert await held() == 2
    await _settled(client, subscription, event, READY)
    assert await held() == 2
    assert await client.is_silent(1)
    assert await _codes(client, subscription, _entry(event, DONE, 0, 1)) == []
    following = await client.delivery()
    assert (values(following.batches), await held()) == (["2"], 2)
    await client.call(m.Credit(subscription, 1))
    assert await _codes(client, subscription, _entry(event, DONE)) == []
    assert (await held(), await client.is_silent(1)) == (1, True)
    await _settled(client, subscription, following, READY, DONE)
    assert (values((await client.delivery()).batches), await held()) == (["3"], 1)


@served(QUEUE)
async def test_repeats_come_in_parts_where_the_credit_is_less(client: RawClient) -> None:
    contents = [str(number) for number in range(7)]
    await client.publish("t", contents)
    subscription = await _join(client)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    await client.call(m.Unsubscribe(subscription))
    subscription = await _join(client, credit=3)
    seen: list[str] = []
    while len(seen) < len(contents):
        part = await client.delivery()
        phase, found = _phase(part)
        assert (phase, len(found)) == (COMMIT, min(3, 7 - len(seen)))
        assert part.message.delivery_id == event.message.delivery_id  # type: ignore[attr-defined]
        assert await client.is_silent(0.1)
        seen += found
        await _settled(client, subscription, part, DONE)
    assert seen == contents
    assert await _unsettled(client) == 0
    await client.publish("t", ["new"])
    assert _phase(await client.delivery()) == (PREPARE, ["new"])


# --- resolve ---------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_a_consumer_in_doubt_is_told_what_was_decided_and_the_rest_is_aborted(
    client: RawClient, other: RawClient
) -> None:
    await client.publish("t", ["a"])
    subscription = await _join(client, credit=1)
    decided = await client.delivery()
    await _settled(client, subscription, decided, READY)
    await client.publish("t", ["b"])
    await client.call(m.Credit(subscription, 2))
    leased = await client.delivery()
    ids = [event.message.delivery_id for event in (decided, leased)]  # type: ignore[attr-defined]
    bobs = await _join(other, "bob", 0)
    assert not await _resolved(other, bobs, ids[0]), "decided to another"
    assert not await _resolved(other, bobs, ids[1]), "leased to another"
    assert await _resolved(client, subscription, ids[0])
    await client.call(m.Credit(subscription, 1))
    await other.call(m.Credit(bobs, 1))
    assert not await _resolved(client, subscription, ids[1])
    assert await _codes(client, subscription, _entry(leased, READY)) == ["delivery.not_current"]
    again = await other.delivery()
    assert (*_phase(again), again.message.attempt) == (PREPARE, ["b"], 2)  # type: ignore[attr-defined]
    assert not await _resolved(client, subscription, 10**9)
    await _settled(client, subscription, decided, DONE)
    assert not await _resolved(client, subscription, ids[0]), "done, so there is nothing to apply"
    with pytest.raises(Refused, match=r"topic\.partition_unknown"):
        await _resolved(client, subscription, ids[0], 7)
    with pytest.raises(Refused, match=r"delivery\.subscription_unknown"):
        await _resolved(client, 999, ids[0])


@served(QUEUE)
async def test_a_consumer_in_doubt_about_a_part_of_a_delivery_is_told_of_that_part(client: RawClient) -> None:
    """The decision of another part says nothing about it, and aborting it leaves the other parts as they are."""
    await client.publish("t", ["a", "b", "c"])
    subscription = await _join(client, credit=3)
    delivery = await client.delivery()
    delivery_id = delivery.message.delivery_id  # type: ignore[attr-defined]
    assert await _codes(client, subscription, _entry(delivery, READY, 0, 1)) == []
    assert not await _resolved(client, subscription, delivery_id, first=1, end=2)
    again = await client.delivery()
    assert (*_phase(again), again.message.attempt) == (PREPARE, ["b"], 2)  # type: ignore[attr-defined]
    assert await _resolved(client, subscription, delivery_id, first=0, end=1)
    assert await _codes(client, subscription, _entry(delivery, READY, 1, 2)) == ["delivery.not_current"]
    assert await _codes(client, subscription, _entry(delivery, READY, 2, 3)) == []
    assert await _resolved(client, subscription, delivery_id, first=2, end=3)


@served(STREAM)
async def test_a_reader_of_a_stream_has_nothing_to_resolve(client: RawClient) -> None:
    subscription = (await client.call(m.Subscribe("t"))).subscription
    with pytest.raises(Refused, match=r"delivery\.wrong_kind"):
        await _resolved(client, subscription, 1)


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
@simulated
async def test_what_was_decided_is_repeated_after_a_restart(env: SimEnv, end: str) -> None:
    """Ready was answered, so it is decided, also after a power failure; a lease is not, and done is for good."""

    async def process(env: SimEnv) -> None:
        async with broker_on(env, QUEUE) as broker:
            client = await connected(env)
            env.disk.sync_delay_s_max = 0.01
            for value in "abc":
                await client.publish("t", [value])
            subscription = await _join(client, credit=1)
            done = await client.delivery()
            await _settled(client, subscription, done, READY, DONE)
            await _settled(client, subscription, await client.delivery(), READY)
            await client.call(m.Credit(subscription, 2))
            await client.delivery()
            await _attempts_are_durable(broker)
            if end == "kill":
                env.kill()
            elif end == "crash":
                env.crash()

    if end == "stop":
        await process(env)
    else:
        assert await env.run_until_death(process)
        env = env.restart()
    async with broker_on(env, QUEUE) as broker:
        client, other = await connected(env), await connected(env)
        assert await _unsettled(client) == 2
        bobs = await _join(other, "bob")
        leased = await other.delivery()
        assert (*_phase(leased), leased.message.attempt) == (PREPARE, ["c"], 2)  # type: ignore[attr-defined]
        subscription = await _join(client)
        again = await client.delivery()
        assert _phase(again) == (COMMIT, ["b"])
        assert again.message.delivery_id < leased.message.delivery_id  # type: ignore[attr-defined]
        assert await _resolved(client, subscription, again.message.delivery_id)  # type: ignore[attr-defined]
        await _settled(client, subscription, again, DONE)
        await _settled(other, bobs, leased, READY, DONE)
        assert await _unsettled(client) == 0
        _partition_queue(broker).subscription.check()


async def _attempts_are_durable(broker: Broker) -> None:
    """Return when a power loss would not take back that a delivery was made."""
    state = _partition_queue(broker).log.state
    assert state is not None
    with trio.fail_after(10):
        while state.partition.committed.offset < state.partition.log.bounds()[1]:
            await trio.sleep(0.01)


@served(QUEUE)
async def test_the_answer_to_ready_waits_for_the_disk(env: SimEnv, broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["a"])
    subscription = await _join(client)
    event = await client.delivery()
    state = _partition_queue(broker).log.state
    assert state is not None
    env.disk.sync_delay_s_max = 5.0
    await _settled(client, subscription, event, READY)
    assert state.partition.committed.offset == state.partition.log.bounds()[1]
    again = await connected(env)
    await _join(again)
    assert _phase(await again.delivery(20)) == (COMMIT, ["a"])


@served(DRAM)
async def test_in_memory_a_decision_lasts_as_long_as_the_broker(client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    subscription = await _join(client)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    await client.call(m.Unsubscribe(subscription))
    subscription = await _join(client)
    again = await client.delivery()
    assert _phase(again) == (COMMIT, ["a", "b"])
    assert await _resolved(client, subscription, again.message.delivery_id)  # type: ignore[attr-defined]
    await _settled(client, subscription, again, DONE)
    await client.publish("t", ["c"])
    assert (await client.delivery()).message.settled_before == 2  # type: ignore[attr-defined]
    assert await _unsettled(client) == 1


@simulated
async def test_a_stop_waits_for_what_was_decided(env: SimEnv) -> None:
    async with stopping(env, QUEUE) as (_, after):
        client = await connected(env)
        await client.publish("t", ["a"])
        subscription = await _join(client)
        event = await client.delivery()
        await _settled(client, subscription, event, READY)

        async def go_on() -> None:
            assert isinstance((await client.push()).message, m.Goodbye)
            await trio.sleep(1.5)
            await _settled(client, subscription, event, DONE)
            await client.until_closed(0.1)

        after.append(go_on)
    async with broker_on(env, QUEUE):
        assert await _unsettled(await connected(env)) == 0


# --- records that go -------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_decided_records_are_not_trimmed_and_a_purge_leaves_them(client: RawClient) -> None:
    await client.publish("t", ["a"])
    await client.publish("t", ["b"])
    subscription = await _join(client, credit=1)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    await client.publish("t", ["c"])
    purged = await client.administer("topic.purge", name="t")
    assert purged == {"purged": 2}
    assert await _unsettled(client) == 1
    await client.call(m.Unsubscribe(subscription))
    subscription = await _join(client)
    again = await client.delivery()
    assert _phase(again) == (COMMIT, ["a"])
    await _settled(client, subscription, again, DONE)
    assert await _unsettled(client) == 0


@served(DRAM + 'kind = "stream"\nretention_bytes = "2KiB"\n')
async def test_records_that_retention_drops_are_no_longer_decided_nor_held(broker: Broker, client: RawClient) -> None:
    for number in range(4):
        await client.publish("t", [f"{number}" * 100])
    subscription = await _join(client, credit=2, shared="work")
    held = await client.delivery()
    assert _phase(held) == (PREPARE, ["0" * 100, "1" * 100])
    await _settled(client, subscription, held, READY)
    assert await client.is_silent(1)
    for _ in range(40):
        await client.publish("t", ["x" * 500])
    await broker.topics["t"].enforce_retention()
    assert broker.topics["t"].partitions[0].start_offset > 4
    assert _phase(await client.delivery())[0] == PREPARE, "their credit is free"
    assert await _codes(client, subscription, _entry(held, DONE)) == ["delivery.not_current"]


@served(DRAM + 'kind = "stream"\n')
async def test_a_repeat_leaves_out_what_retention_has_dropped(broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["a"])
    await client.publish("t", ["b"])
    subscription = await _join(client, shared="work", credit=2)
    await _settled(client, subscription, await client.delivery(), READY)
    await client.call(m.Unsubscribe(subscription))
    await broker.topics["t"].partitions[0].log.trim(before=1)
    subscription = await _join(client, shared="work", credit=2)
    again = await client.delivery()
    assert _phase(again) == (COMMIT, ["b"])
    await _settled(client, subscription, again, DONE)


# --- changes of the topic --------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_how_a_topic_delivers_is_fixed_so_nothing_decided_is_stranded(client: RawClient) -> None:
    await client.publish("t", ["a"])
    subscription = await _join(client)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    for delivery in ("at-least-once", "at-most-once"):
        with pytest.raises(Refused, match=r"config\.not_live"):
            await client.administer("topic.alter", name="t", settings={"delivery": delivery})
    await client.administer("topic.alter", name="t", settings={"lease": "5s", "kind": "both"})
    await _settled(client, subscription, event, DONE)
    assert await _unsettled(client) == 0


@served(QUEUE)
async def test_what_was_decided_survives_a_time_as_a_stream(client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    subscription = await _join(client, credit=1)
    event = await client.delivery()
    await _settled(client, subscription, event, READY)
    await client.administer("topic.alter", name="t", settings={"kind": "stream"})
    assert (await client.push()).message.code == "topic.unknown"  # type: ignore[attr-defined]
    await client.administer("topic.alter", name="t", settings={"kind": "queue"})
    await _join(client)
    found = [_phase(await client.delivery()) for _ in range(2)]
    assert found == [(COMMIT, ["a"]), (PREPARE, ["b"])]


# --- shared subscriptions of streams ---------------------------------------------------------------------------------


@simulated
async def test_shared_subscriptions_of_a_stream_decide_each_for_itself_and_over_a_restart(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, STREAM):
            client = await connected(env)
            await client.publish("t", ["a", "b"])
            for shared in ("work", "audit"):
                subscription = await _join(client, shared=shared)
                event = await client.delivery()
                assert _phase(event) == (PREPARE, ["a", "b"])
                await _settled(client, subscription, event, READY)
                if shared == "audit":
                    await _settled(client, subscription, event, DONE)
            env.kill()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, STREAM):
        client = await connected(env)
        await _join(client, shared="audit")
        assert await client.is_silent(1)
        subscription = await _join(client, shared="work")
        again = await client.delivery()
        assert _phase(again) == (COMMIT, ["a", "b"])
        await _settled(client, subscription, again, DONE)
        rows = await client.administer("subscription.list", topic="t")
        assert {row["subscription"]: row["unsettled"] for row in rows} == {"work": 0, "audit": 0}


# --- a full disk -----------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_a_ready_that_has_no_room_is_in_doubt_until_there_is(env: SimEnv, client: RawClient) -> None:
    await client.publish("t", ["warm"])
    await client.publish("t", ["a"])
    subscription = await _join(client, credit=1)
    await _settled(client, subscription, await client.delivery(), READY, DONE)
    event = await client.delivery()
    delivery_id = event.message.delivery_id  # type: ignore[attr-defined]
    env.disk.capacity_bytes = env.disk.used_bytes
    with pytest.raises(Refused, match=r"storage\.disk_full"):
        await client.call(m.Settle(subscription, [_entry(event, READY)]))
    with pytest.raises(Refused, match=r"storage\.disk_full"):
        await _resolved(client, subscription, delivery_id)
    again = await connected(env)
    second = await _join(again)
    assert await again.is_silent(30), "what may not be decided is not repeated"
    env.disk.capacity_bytes = ROOM_BYTES
    await client.publish("t", ["b"])
    repeated = await again.delivery(5)
    assert _phase(repeated) == (COMMIT, ["a"])
    await _settled(again, second, repeated, DONE)
