"""A topic gets more partitions, and those who publish and read go along."""

from __future__ import annotations

import anyio
import pytest
from both_loops import on_both_loops
from hypothesis import given
from hypothesis import strategies as st
from scripted_peer import Peer, Session, running_peer

import linn
from linn.client.connection.connector import Connector
from linn.client.connection.url import BrokerUrl
from linn.client.options import ClientOptions
from linn.client.produce.accumulator import Accumulator
from linn.client.produce.open_batch import Prepared
from linn.client.produce.properties import PLAIN
from linn.core.batch.key_hash import partition_of
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

KEYS = [b"key-%d" % number for number in range(40)]


@on_both_loops
async def test_a_producer_notices_that_its_topic_has_grown(broker: str, name: str) -> None:
    async with linn.connect(broker, metadata_age_max_s=0.02) as client:
        await client.admin.create_topic(name, kind="stream", partitions=1)
        async with client.producer(name) as producer:
            await producer.publish_many([b"before"] * len(KEYS), keys=KEYS)
            await client.admin.alter_topic(name, partitions=4)
            used: set[int | None] = set()
            while len(used) < 4:
                used = {(await producer.publish(b"after", key=key)).partition for key in KEYS}
            receipts = {key: await producer.publish(b"at last", key=key) for key in KEYS}
            many = await producer.publish_many([b"many"] * len(KEYS), keys=KEYS)
    assert {key: receipt.partition for key, receipt in receipts.items()} == {key: partition_of(key, 4) for key in KEYS}
    assert sorted(many.partitions) == [0, 1, 2, 3]


@on_both_loops
async def test_a_producer_asks_again_on_a_new_connection(name: str) -> None:
    async with running_peer() as peer:
        async with linn.connect(peer.url, backoff_s=0.01) as client, client.producer(name) as producer:
            peer.partitions = 3
            await peer.cut()
            await peer.until(lambda: len(peer.messages(m.Describe)) == 2)
            while producer._accumulator.buffers[-1].partition != 2:
                await anyio.sleep(0.001)
            placed = {key: (await producer.publish(b"", key=key)).partition for key in KEYS}
    assert placed == {key: partition_of(key, 3) for key in KEYS}


@on_both_loops
async def test_a_closed_producer_asks_no_more(peer: Peer, name: str) -> None:
    async with linn.connect(peer.url, metadata_age_max_s=0.02) as client:
        async with client.producer(name):
            await peer.until(lambda: len(peer.messages(m.Describe)) == 3)
        asked = len(peer.messages(m.Describe))
        await anyio.sleep(0.08)
        assert len(peer.messages(m.Describe)) <= asked + 1


@on_both_loops
async def test_a_broker_that_can_not_say_is_asked_again(peer: Peer, name: str) -> None:
    async with linn.connect(peer.url, metadata_age_max_s=0.02) as client, client.producer(name) as producer:

        def refuse(session: Session, event: Event) -> m.Message:
            return m.Failed("linn.internal", "not now", True)

        peer.answers[m.Describe] = refuse
        await peer.until(lambda: len(peer.messages(m.Describe)) >= 3)
        assert (await producer.publish(b"")).partition == 0
        peer.partitions, peer.answers[m.Describe] = 2, peer.describe
        while len(producer._accumulator.buffers) < 2:
            await anyio.sleep(0.001)


@on_both_loops
async def test_a_topic_that_the_broker_makes_gets_its_keys_placed(peer: Peer, name: str) -> None:
    peer.partitions = 0
    async with linn.connect(peer.url, metadata_age_max_s=0.02) as client, client.producer(name) as producer:
        await producer.publish(b"first", key=b"k")
        assert peer.messages(m.Publish)[-1].partition == -1  # type: ignore[attr-defined]
        peer.partitions = 4
        while (await producer.publish(b"later", key=b"k")).partition is None:
            await anyio.sleep(0.005)
        assert peer.messages(m.Publish)[-1].partition == partition_of(b"k", 4)  # type: ignore[attr-defined]


# --- buffers, without a broker ---------------------------------------------------------------------------------------


def described(partitions: int, partitioner: str) -> m.TopicInfo:
    infos = [m.PartitionInfo(0, 0, 0)] * partitions
    return m.TopicInfo("t", "queue", infos, "", 0, partitioner)


class World:
    """A client that has no connection: what is published waits."""

    def __init__(self) -> None:
        connector = Connector([BrokerUrl("127.0.0.1:1", None)], ClientOptions(), SimEnv(1), None)  # type: ignore[arg-type]
        self.accumulator = Accumulator(
            connector, "t", False, m.Acks.LEADER, 8, 60.0, lambda batch: lambda confirmation: None, lambda: None
        )
        self.accumulator.bytes_max = 1_000_000

    def messages(self) -> int:
        open_batches = [buffer.open for buffer in self.accumulator.buffers if buffer.open]
        ready = [batch.records.count for buffer in self.accumulator.buffers for batch in buffer.ready]
        return sum(len(batch.values) for batch in open_batches) + sum(ready)


STEPS = st.one_of(
    st.tuples(st.just("follow"), st.integers(0, 9), st.sampled_from(["murmur2", "sticky", "", "round-robin"])),
    st.tuples(st.just("add"), st.sampled_from([None, *KEYS]), st.just("")),
    st.tuples(st.just("seal"), st.integers(0, 9), st.just("")),
)


@given(st.lists(STEPS, max_size=40))
async def test_lanes_follow_a_topic_and_lose_nothing(steps: list[tuple[str, object, str]]) -> None:
    world, added = World(), 0
    accumulator = world.accumulator
    for step, argument, partitioner in steps:
        before = len(accumulator.buffers)
        if step == "follow":
            assert isinstance(argument, int)
            accumulator.follow(described(argument, partitioner))
        elif step == "seal":
            assert isinstance(argument, int)
            accumulator.seal(accumulator.buffer(argument))
        else:
            assert argument is None or isinstance(argument, bytes)
            properties = PLAIN._replace(key=argument)
            buffer, _, _ = accumulator.add(Prepared(b"", properties, 0, False), waits=False)
            added += 1
            if argument is not None and accumulator.keys_choose:
                assert buffer.partition == partition_of(argument, len(accumulator.buffers))
        assert world.messages() == added
        assert accumulator.sticky in accumulator.buffers
        numbers = [buffer.partition for buffer in accumulator.buffers]
        assert numbers in ([-1], list(range(len(numbers))))
        assert len(numbers) >= before or numbers == [-1]


@pytest.mark.parametrize(("busy", "chosen"), [(False, 3), (True, 1)])
async def test_lanes_chosen_by_the_broker_change_only_when_nothing_is_in_flight(busy: bool, chosen: int) -> None:
    accumulator = World().accumulator
    if busy:
        accumulator.add(Prepared(b"", PLAIN, 0, False), waits=False)
    accumulator.follow(described(3, "murmur2"))
    assert len(accumulator.buffers) == chosen
