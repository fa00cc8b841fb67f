from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from both_loops import on_both_clients, on_both_loops
from scripted_peer import Peer

import linn
from linn.client import Client
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import (
    DeliveryNotCurrent,
    GroupFenced,
    LinnError,
    MessageInvalid,
    SubscriptionWrongKind,
    TopicUnknown,
)
from linn.testing.process import BrokerProcess
from linn.wire import messages as m

LEASE_MS = 60_000


async def publish(client: Client, topic: str, count: int, first: int = 0) -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many([b"%d" % number for number in range(first, first + count)])


async def read(consumer: linn.client.Consumer, count: int) -> list[linn.client.Message]:
    found = []
    async for message in consumer:
        found.append(message)
        if len(found) == count:
            break
    return found


def values(messages: list[linn.client.Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


@on_both_clients
async def test_text_is_the_value_as_text_and_says_which_message_has_none(broker: str, name: str) -> None:
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name)
        async with client.producer(name) as producer:
            await producer.publish_many(["grüße".encode(), b"", b"\xff", None])
        async with client.consumer(name) as consumer:
            greeting, empty, octets, tombstone = await read(consumer, 4)
    assert (greeting.text, empty.text) == ("grüße", "")
    with pytest.raises(MessageInvalid, match=rf"^the value of {name}/0@2 is not UTF-8 text"):
        _ = octets.text
    with pytest.raises(MessageInvalid, match=rf"^{name}/0@3 is a tombstone"):
        _ = tombstone.text


# --- queues ----------------------------------------------------------------------------------------------------------


@on_both_clients
async def test_acked_records_are_gone_and_others_redelivered(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    await publish(client, name, 10)
    async with client.consumer(name) as consumer:
        for message in await read(consumer, 10):
            if message.offset % 2:
                await message.ack()
    async with client.consumer(name) as consumer:
        again = await read(consumer, 5)
        assert values(again) == [0, 2, 4, 6, 8]
        assert {message.attempt for message in again} == {2}


@on_both_loops
async def test_unawaited_acks_are_sent_too(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    await publish(client, name, 3)
    async with client.consumer(name) as consumer:
        for message in await read(consumer, 3):
            message.ack()
        while (await client.admin.topic(name))["queue"]["unsettled"]:
            await anyio.sleep(0.005)


@on_both_clients
async def test_nack_reject_and_extend_reach_the_broker(client: Client, name: str) -> None:
    await client.admin.create_topic(f"{name}-dead")
    await client.admin.create_topic(name, dead_letter=f"{name}-dead", lease="300ms")
    await publish(client, name, 3)
    async with client.consumer(name) as consumer, client.consumer(f"{name}-dead") as dead:
        first, second, third = await read(consumer, 3)
        await first.nack(delay_ms=1)
        await second.reject()
        await third.extend(60_000)
        (again,) = await read(consumer, 1)
        assert (again.offset, again.attempt) == (first.offset, 2)
        assert values(await read(dead, 1)) == [1]
        await anyio.sleep(0.4)
        await third.ack()
        with pytest.raises(MessageInvalid):
            again.nack(delay_ms=-1)


@on_both_clients
async def test_a_whole_batch_is_settled_at_once(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    await publish(client, name, 100)
    async with client.consumer(name, prefetch=40) as consumer:
        seen = []
        async for batch in consumer.batches():
            assert len(batch) <= 40
            seen += [int(value or b"") for value in batch.values]
            await batch.ack()
            if len(seen) == 100:
                break
    assert seen == list(range(100))
    assert (await client.admin.topic(name))["queue"]["unsettled"] == 0


@on_both_loops
async def test_prefetch_bounds_unsettled_records(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    await publish(client, name, 30)
    async with client.consumer(name, prefetch=10) as consumer:
        messages = await read(consumer, 10)
        with anyio.move_on_after(0.05) as scope:
            await read(consumer, 1)
        assert scope.cancelled_caught
        for message in messages[:5]:
            message.ack()
        assert values(await read(consumer, 5)) == [10, 11, 12, 13, 14]


@on_both_clients
async def test_at_most_once_needs_no_ack(client: Client, name: str) -> None:
    await client.admin.create_topic(name, delivery="at-most-once")
    await publish(client, name, 100)
    async with client.consumer(name, prefetch=10) as consumer:
        for message in await read(consumer, 100):
            await message.ack()
    assert (await client.admin.topic(name))["queue"]["unsettled"] == 0


@on_both_clients
async def test_pull_takes_as_many_as_it_asks_for(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    await publish(client, name, 10)
    async with client.consumer(name, mode="pull") as consumer:
        assert [len(batch) for batch in await consumer.pull(4, 0.5)] == [4]
        assert [len(batch) for batch in await consumer.pull(100, 0.5)] == [6]
        assert await consumer.pull(1, 0.01) == []
    async with client.consumer(name, mode="pull", prefetch=3) as consumer:
        for message in await read(consumer, 10):
            message.ack()
    async with client.consumer(name) as consumer:
        with pytest.raises(SubscriptionWrongKind):
            await consumer.pull(1)


@on_both_clients
async def test_a_late_ack_is_refused_and_the_refusal_is_not_lost(client: Client, name: str) -> None:
    await client.admin.create_topic(name, lease="20ms")
    await publish(client, name, 2)
    async with client.consumer(name, renewal_max_s=0) as consumer:
        late, _ = await read(consumer, 2)
        await anyio.sleep(0.1)
        with pytest.raises(DeliveryNotCurrent):
            await late.ack()
        late.ack()
        with pytest.raises(DeliveryNotCurrent):
            await read(consumer, 1_000)
        late.ack()
        with pytest.raises(DeliveryNotCurrent):
            await consumer.aclose()


# --- streams ---------------------------------------------------------------------------------------------------------


@on_both_clients
async def test_a_reader_begins_where_it_is_told(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await publish(client, name, 10)
    await anyio.sleep(0.005)
    between = datetime.now(UTC)
    await anyio.sleep(0.005)
    await publish(client, name, 10, first=10)
    for start, first in (("earliest", 0), (7, 7), (between, 10)):
        async with client.consumer(name, start=start) as consumer:  # type: ignore[arg-type]
            messages = await read(consumer, 3)
            assert values(messages) == [first, first + 1, first + 2]
            await messages[0].ack()  # There is nothing to settle.
    async with client.consumer(name, start="latest") as consumer:
        await publish(client, name, 1, first=20)
        assert values(await read(consumer, 1)) == [20]


@on_both_loops
async def test_a_reader_reads_all_partitions_within_its_prefetch(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=3)
    for first in range(0, 1_000, 100):
        await publish(client, name, 100, first)
    async with client.consumer(name, prefetch=50) as consumer:
        found = await read(consumer, 1_000)
    assert sorted(values(found)) == list(range(1_000))
    for partition in range(3):
        offsets = [message.offset for message in found if message.partition == partition]
        assert offsets == list(range(len(offsets)))


@on_both_clients
async def test_a_group_continues_at_its_commit(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await publish(client, name, 10)
    async with client.consumer(name, group="g") as consumer:
        messages = await read(consumer, 6)
        messages[1].ack()
        messages[3].ack()
    offsets = (await client.admin.group("g"))["offsets"]
    assert [row["offset"] for row in offsets if row["topic"] == name] == [4]
    async with client.consumer(name, group="g") as consumer:
        assert values(await read(consumer, 2)) == [4, 5]


@on_both_clients
async def test_a_nack_sets_a_group_back(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await publish(client, name, 1_000)
    async with client.consumer(name, group="g", prefetch=100) as consumer:
        messages = await read(consumer, 20)
        await messages[10].nack()
        assert values(await read(consumer, 300)) == list(range(10, 310))


@on_both_loops
async def test_nacks_one_after_the_other_set_a_group_back_to_the_first_record(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await publish(client, name, 100)
    async with client.consumer(name, group="g", prefetch=100) as consumer:
        messages = await read(consumer, 20)
        for handle in [message.nack() for message in messages[5:15]]:
            await handle
        found = values(await read(consumer, 95))
        assert sorted(set(found)) == list(range(5, 100)), "some were passed over"


@on_both_loops
async def test_partitions_move_to_a_new_member_and_late_commits_are_fenced(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=2)
    async with client.producer(name) as producer:
        for _ in range(2):  # Batches without keys take turns: ten records in each partition.
            await producer.publish_many([b"%d" % number for number in range(10)])
    async with client.consumer(name, group="g") as one:
        mine = await read(one, 20)
        async with client.consumer(name, group="g") as two:
            theirs = await read(two, 10)
            assert one.partitions != two.partitions
            assert {message.partition for message in theirs} == set(two.partitions[name])
            lost = next(message for message in mine if message.partition == theirs[0].partition)
            with pytest.raises(GroupFenced):
                await lost.ack()
        assert values(await read(one, 10)) == values(theirs)


@on_both_clients
async def test_fetched_records_have_nothing_to_settle(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await publish(client, name, 10)
    fetched = await client.fetch(name, 0, 4)
    (batch,) = fetched.batches
    assert (fetched.start_offset, fetched.high_watermark) == (0, 10)
    assert values(list(batch)) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(SubscriptionWrongKind):
        batch.ack()
    empty = await client.fetch(name, 0, 10, wait_s=0.01)
    assert empty.batches == []


# --- errors, and connections that break ------------------------------------------------------------------------------


@on_both_clients
async def test_wrong_arguments_are_refused_at_once(client: Client) -> None:
    for wrong in ({"prefetch": 0}, {"mode": "fetch"}, {"start": "begin"}, {"start": -5}, {"start": 1.5}):
        with pytest.raises(MessageInvalid):
            client.consumer("t", **wrong)  # type: ignore[arg-type]
    for wrong in (
        {},
        {"topic": "a", "exchange": "b"},
        {"topic": "a", "acks": "some"},
        {"topic": "a", "codec": "gz"},
        {"topic": b"a"},
    ):
        with pytest.raises(MessageInvalid):
            client.producer(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TopicUnknown):
        async with client.consumer("no-such-topic"):
            raise AssertionError


@on_both_clients
async def test_deleting_the_topic_ends_the_iteration_with_the_reason(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.consumer(name) as consumer:
        await client.admin.delete_topic(name)
        for _ in range(2):
            with pytest.raises(TopicUnknown):
                await read(consumer, 1)


@on_both_loops
async def test_closing_ends_an_iteration_elsewhere(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.consumer(name) as consumer, anyio.create_task_group() as tasks:
        found: list[list[linn.client.Message]] = []

        async def iterate() -> None:
            found.append(await read(consumer, 1))

        tasks.start_soon(iterate)
        await anyio.sleep(0.01)
        await consumer.aclose()
    assert found == [[]]


@on_both_loops
async def test_a_cancelled_step_loses_no_message(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.consumer(name) as consumer:
        for _ in range(20):
            with anyio.move_on_after(0.001):
                await read(consumer, 1)
        await publish(client, name, 3)
        assert values(await read(consumer, 3)) == [0, 1, 2]


@pytest.mark.system
@on_both_loops
async def test_consumers_go_on_when_the_broker_was_killed_and_is_back(tmp_path: Path) -> None:
    config = '[broker]\ndefault_storage = "segmented-log"\n'
    with BrokerProcess(tmp_path, config) as process:
        async with linn.connect(process.url, backoff_s=0.01, retries_max=100, backoff_max_s=0.1) as client:
            await client.admin.create_topic("jobs")
            await client.admin.create_topic("log", kind="stream", partitions=2)
            await publish(client, "jobs", 10)
            for first in range(0, 40, 10):
                await publish(client, "log", 10, first)
            async with (
                client.consumer("jobs") as queue,
                client.consumer("log") as reader,
                client.consumer("log", group="g") as member,
                client.consumer("jobs", mode="pull") as puller,
            ):
                held = await read(queue, 10)
                await held[0].ack()
                seen = await read(reader, 15)
                (await read(member, 5))[2].ack()
                await anyio.sleep(0.05)
                process.kill()
                process.start()
                with pytest.raises(DeliveryNotCurrent):
                    await held[1].ack()
                assert values(await read(queue, 9)) == list(range(1, 10))
                seen += await read(reader, 25)
                assert sorted(values(seen)) == list(range(40))
                assert len(await read(member, 37)) == 37
                await publish(client, "jobs", 1, first=10)
                await queue.aclose()
                pulled = [*await puller.pull(99, 5), *await puller.pull(99, 5)]
                assert values([message for batch in pulled for message in batch]) == list(range(1, 11))


@pytest.mark.system
@on_both_loops
async def test_a_stopping_broker_lets_a_consumer_settle_its_leases(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        async with linn.connect(process.url, backoff_s=0.01, retries_max=3) as client:
            await client.admin.create_topic("jobs")
            await publish(client, "jobs", 2)
            async with client.consumer("jobs") as consumer:
                messages = await read(consumer, 2)
                process.signal(15)
                await anyio.sleep(0.1)
                for message in messages:
                    await message.ack()
                assert await anyio.to_thread.run_sync(process.wait) == 0
                with pytest.raises(LinnError):
                    await read(consumer, 1)


# --- what goes over the wire -----------------------------------------------------------------------------------------


async def deliver(peer: Peer, count: int, first: int = 0, delivery_id: int = 1) -> None:
    batch = build_from_records([Record(value=b"%d" % number) for number in range(count)], base_id=1)
    batch.stamp(first, 0)
    await peer.sessions[0].send(m.Deliver(1, 0, delivery_id, 1), 0, [batch])


def settled(peer: Peer) -> list[tuple[int, int, int]]:
    return [
        (entry.first, entry.end, entry.verdict)
        for message in peer.messages(m.Settle)
        for entry in message.entries  # type: ignore[attr-defined]
    ]


@on_both_loops
async def test_acks_in_any_order_are_merged_into_ranges(peer: Peer, client: Client) -> None:
    async with client.consumer("t") as consumer:
        await deliver(peer, 5)
        await deliver(peer, 5, first=5)
        await deliver(peer, 5, first=10, delivery_id=2)
        messages = await read(consumer, 15)
        for index in (4, 0, 2, 1, 3, 9, 8, 7, 6, 5, 10, 14, 11):
            messages[index].ack()
    assert settled(peer) == [(0, 10, 0), (10, 12, 0), (14, 15, 0)]
    assert len(peer.messages(m.Settle)) == 1


@on_both_loops
async def test_different_verdicts_keep_their_order(peer: Peer, client: Client) -> None:
    async with client.consumer("t") as consumer:
        await deliver(peer, 5)
        messages = await read(consumer, 5)
        messages[3].extend(100)
        messages[3].ack()
        messages[2].ack()
        messages[0].nack(5)
        messages[1].nack(5)
    assert settled(peer) == [(3, 4, 3), (3, 4, 0), (2, 3, 0), (0, 2, 1)]


@on_both_loops
async def test_only_the_awaiting_task_gets_the_refusal(peer: Peer, client: Client) -> None:
    peer.answers[m.Settle] = lambda session, event: m.Settled([m.Refusal(0, "delivery.not_current", "gone")])
    async with client.consumer("t") as consumer:
        await deliver(peer, 4)
        one, two, three, four = await read(consumer, 4)
        handles = [one.ack(), two.ack()]
        with pytest.raises(DeliveryNotCurrent, match="gone"):
            await handles[1]
        with pytest.raises(DeliveryNotCurrent, match="gone"):
            await handles[0]
        three.ack()
        four.ack()
        with pytest.raises(DeliveryNotCurrent, match="gone"):
            await read(consumer, 1)
        await deliver(peer, 1, first=4)
        assert values(await read(consumer, 1)) == [0]


@on_both_loops
async def test_closing_waits_for_the_word_on_settlements_before_it_unsubscribes(peer: Peer, client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        del peer.answers[m.Settle]
        async with client.consumer("t") as consumer:
            await deliver(peer, 1)
            (message,) = await read(consumer, 1)
            message.ack()
            tasks.start_soon(consumer.aclose)
            await peer.until(lambda: len(peer.messages(m.Settle)) == 1)
            await client._connector.request(m.Ping())
            assert peer.messages(m.Unsubscribe) == []
            asked = next(event.correlation for event in peer.events if type(event.message) is m.Settle)
            await peer.sessions[0].send(m.Settled([]), asked)
            await peer.until(lambda: len(peer.messages(m.Unsubscribe)) == 1)


@on_both_loops
async def test_credit_is_given_back_in_chunks(peer: Peer, client: Client) -> None:
    peer.answers[m.Subscribe] = lambda session, event: m.Subscribed(1, m.ConsumerKind.SHARED, 0)
    async with client.consumer("t", prefetch=100) as consumer:
        await deliver(peer, 100)
        async for message in consumer:
            message.ack()
            message.ack()
            if message.offset == 99:
                break
    subscribe = peer.messages(m.Subscribe)[0]
    credits = [message.records for message in peer.messages(m.Credit)]  # type: ignore[attr-defined]
    assert subscribe.credit == 100  # type: ignore[attr-defined]
    assert 1 <= len(credits) <= 2
    assert sum(credits) <= 100


@on_both_loops
async def test_with_leases_the_broker_counts_held_records_and_clients_grant_no_credit(
    peer: Peer, client: Client
) -> None:
    async with client.consumer("t", prefetch=100) as consumer:
        await deliver(peer, 100)
        for message in await read(consumer, 100):
            message.ack()
        assert peer.messages(m.Credit) == []
    assert settled(peer) == [(-1, -1, m.Verdict.ACK)]


@on_both_loops
async def test_buffered_messages_are_not_handed_over_once_their_lease_has_ended(peer: Peer, client: Client) -> None:
    async with client.consumer("t") as consumer:
        session = peer.sessions[0]
        for delivery_id, firsts in ((1, (0, 2)), (2, (5,))):
            batches = []
            for first in firsts:
                batch = build_from_records([Record(value=b"%d" % n) for n in range(first, first + 2)], base_id=1)
                batch.stamp(first, 1)
                batches.append(batch)
            await session.send(m.Deliver(1, 0, delivery_id, 1), 0, batches)
        first_message = await anext(consumer)
        assert first_message.value == b"0"
        await session.send(m.LeaseEnded(1, 0, 1))
        await session.send(m.LeaseEnded(1, 0, 77))
        await session.send(m.Ping(), 9)
        await peer.until(lambda: len(peer.messages(m.Pong)) == 1)
        assert [(await anext(consumer)).value for _ in range(2)] == [b"5", b"6"]
        asked = len(peer.messages(m.Settle))
        with pytest.raises(DeliveryNotCurrent, match="delivery 1 is over"):
            await first_message.ack()
        assert len(peer.messages(m.Settle)) == asked, "it is known without asking"


@on_both_loops
async def test_a_settlement_of_a_whole_delivery_names_no_offsets(peer: Peer, client: Client) -> None:
    async with client.consumer("t", prefetch=100) as consumer:
        await deliver(peer, 10)
        batch = await consumer.next_batch()
        messages = list(batch)
        for message in messages[2:4]:
            await message.ack()
        await messages[9].nack()
        await batch.extend(60_000)
        await batch.ack()
    assert settled(peer) == [
        (2, 3, m.Verdict.ACK),
        (3, 4, m.Verdict.ACK),
        (9, 10, m.Verdict.NACK),
        (-1, -1, m.Verdict.EXTEND),
        (-1, -1, m.Verdict.ACK),
    ]


@pytest.mark.parametrize("taken", [0, 1])
@on_both_loops
async def test_a_lease_is_renewed_only_while_the_application_has_records_of_it(
    peer: Peer, taken: int, client: Client
) -> None:
    async with client.consumer("t", prefetch=100) as consumer:
        await deliver(peer, 3)
        await peer.sessions[0].send(m.Ping(), 9)
        await peer.until(lambda: len(peer.messages(m.Pong)) == 1)
        kept = [await anext(consumer) for _ in range(taken)]
        subscription = consumer._subscriptions[0]
        (lease,) = subscription._leases.values()
        lease.until_s -= 20.0  # Less than half of its 30 seconds is left.
        subscription._check_leases()
    released = (taken, 3, m.Verdict.RELEASE) if taken else (-1, -1, m.Verdict.RELEASE)
    extended = (-1, -1, m.Verdict.EXTEND)
    assert settled(peer) == [released, *[extended for _ in kept]]


@on_both_loops
async def test_an_application_that_blocks_the_loop_gets_no_expired_records(peer: Peer, client: Client) -> None:
    peer.answers[m.Subscribe] = lambda session, event: m.Subscribed(1, m.ConsumerKind.SHARED, LEASE_MS)
    async with client.consumer("t") as consumer:
        await deliver(peer, 3)
        assert (await anext(consumer)).value == b"0"
        extended = await anext(consumer)
        (lease,) = consumer._subscriptions[0]._leases.values()
        ended_s = lease.until_s
        await extended.extend(10 * LEASE_MS)
        assert lease.until_s - ended_s >= 9 * LEASE_MS / 1000
        lease.until_s = 0.0
        with anyio.move_on_after(0.1):
            pytest.fail(f"handed over {(await anext(consumer)).value!r}")


@on_both_loops
async def test_a_damaged_batch_is_found_before_it_is_handed_over(peer: Peer, client: Client) -> None:
    async with client.consumer("t") as consumer:
        batch = build_from_records([Record(value=b"good")], base_id=1)
        batch.message[-2] ^= 1
        await peer.sessions[0].send(m.Deliver(1, 0, 1, 1), 0, [batch])
        with pytest.raises(LinnError, match="CRC"):
            await read(consumer, 1)
        await deliver(peer, 1)
        assert values(await read(consumer, 1)) == [0]


@on_both_loops
async def test_messages_are_made_when_they_are_asked_for(peer: Peer, client: Client) -> None:
    async with client.consumer("t") as consumer:
        await deliver(peer, 3)
        batch = await anext(consumer.batches())
        first, *_ = batch
        assert first is not next(iter(batch))
        assert (first.value, first.offset, first.partition, first.topic) == (b"0", 0, 0, "t")
        assert (first.id.int, first.key, first.routing_key, dict(first.labels), first.headers) == (
            1,
            None,
            "",
            {},
            (),
        )


@on_both_loops
async def test_closing_sets_the_credit_to_0_before_it_releases_unread_messages(peer: Peer, client: Client) -> None:
    async with client.consumer("t", prefetch=9) as consumer:
        await deliver(peer, 3)
        await anext(consumer)
    after = peer.events[[type(event.message) for event in peer.events].index(m.Credit) :]
    assert [type(event.message) for event in after[:3]] == [m.Credit, m.Settle, m.Unsubscribe]
    assert peer.messages(m.Credit) == [m.Credit(1, 0)]
    assert settled(peer) == [(1, 3, m.Verdict.RELEASE)]


# --- in a cluster ----------------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_consumer_subscribes_again_when_the_leader_of_its_topic_is_lost(peer: Peer, client: Client) -> None:
    async with client.consumer("t") as consumer:
        await deliver(peer, 2)
        await anext(consumer)
        session = peer.sessions[0]
        for number, code in ((1, "peer.unreachable"), (2, "partition.not_leader")):
            made = m.Subscribed(number + 1, m.ConsumerKind.SHARED, 30_000)
            peer.answers[m.Subscribe] = lambda session, event, made=made: made  # type: ignore[misc]
            await session.send(m.Ended(number, code, "the leader is gone"), 0)
            batch = build_from_records([Record(value=b"again")], base_id=1)
            batch.stamp(5, 1)
            await peer.until(lambda count=number + 1: len(peer.messages(m.Subscribe)) == count)  # type: ignore[misc]
            await session.send(m.Ping(), 9)
            await peer.until(lambda count=number: len(peer.messages(m.Pong)) == count)  # type: ignore[misc]
            await session.send(m.Deliver(number + 1, 0, 9, 2), 0, [batch])
            assert (await anext(consumer)).value == b"again", "neither the error nor void records are handed out"
