"""Going to leaders, beside brokers by script: whose word counts, and what is sent where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from both_loops import on_both_loops
from scripted_peer import Peer, Session, running_peer

import linn
from linn.client.connection.leaders import KEEPALIVE_S
from linn.wire import messages as m
from linn.wire.connection import Event

TOPIC_ID = (1, 2)


class Cluster:
    """Scripted brokers 1, 2 and 3 of the cluster "c". Each says that `leader` leads every topic, in `epoch`."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = dict(enumerate(peers, start=1))
        self.addresses = {node: peer.url.removeprefix("linn://") for node, peer in self.peers.items()}
        self.leader, self.epoch = 2, 5
        self.nodes = dict(self.addresses)
        """The addresses in descriptions."""
        self.answers_as = {node: ("c", node) for node in self.peers}
        """Cluster and node of each welcome."""
        for node, peer in self.peers.items():
            peer.answers[m.Hello] = self.welcome(node)
            peer.answers[m.Describe] = self.describe
            peer.answers[m.Publish] = self.publish

    def welcome(self, node: int) -> Callable[[Session, Event], m.Message]:
        def answer(session: Session, event: Event) -> m.Message:
            cluster, number = self.answers_as[node]
            limits = (64 << 20, 8 << 20, 1 << 20, 0, 64, 16)
            return m.Welcome(1, [], f"broker {node}", *limits, 256, 7, cluster=cluster, node=number)

        return answer

    def describe(self, session: Session, event: Event) -> m.Message:
        assert isinstance(event.message, m.Describe)
        nodes = [m.Node(node, address) for node, address in self.nodes.items()]
        part = m.PartitionInfo(self.leader, 0, 0, self.epoch)
        topics = [
            m.TopicInfo(name, "queue", [part], "", 0, id_high=TOPIC_ID[0], id_low=TOPIC_ID[1])
            for name in event.message.topics
        ]
        return m.Description("cluster", nodes, topics)

    def publish(self, session: Session, event: Event) -> m.Message:
        answer = session.peer.publish(session, event)
        assert isinstance(answer, m.Published)
        answer.placements[0].leader_epoch = self.epoch
        return answer

    def stored(self, node: int) -> list[bytes | None]:
        """Return the values that a broker was sent."""
        return [value for log in self.peers[node].logs.values() for value in log]


@asynccontextmanager
async def running_cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster([await stack.enter_async_context(running_peer()) for _ in range(3)])


@on_both_loops
async def test_a_topic_is_published_to_at_its_leader_with_the_ids_of_the_first_connection() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url) as client:
        async with client.producer("t") as producer:
            await producer.publish(b"x")
        assert client.broker == "broker 1"
        assert [cluster.stored(node) for node in (1, 2, 3)] == [[], [b"x"], []]
        (hello,) = cluster.peers[2].messages(m.Hello)
        assert isinstance(hello, m.Hello)
        assert (hello.producer_id, hello.producer_key) == (256, 7)


@on_both_loops
async def test_an_address_at_which_another_broker_answers_is_not_used() -> None:
    for wrong in (("c", 3), ("d", 2), ("", 0)):
        async with running_cluster() as cluster, linn.connect(cluster.peers[1].url) as client:
            cluster.answers_as[2] = wrong
            async with client.producer("t") as producer:
                await producer.publish(b"x")
            assert [cluster.stored(node) for node in (1, 2, 3)] == [[b"x"], [], []]


@on_both_loops
async def test_a_leader_without_an_address_is_used_through_the_broker_at_hand() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url) as client:
        del cluster.nodes[2]
        async with client.producer("t") as producer:
            await producer.publish(b"x")
        assert cluster.stored(1) == [b"x"]


@on_both_loops
async def test_older_news_of_a_leader_is_ignored() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url) as client:
        async with client.producer("t") as producer:
            await producer.publish(b"one")
            cluster.leader, cluster.epoch = 3, 4
            await client.describe("t")
            await producer.publish(b"two")
        assert [cluster.stored(node) for node in (1, 2, 3)] == [[], [b"one", b"two"], []]


@on_both_loops
async def test_a_later_epoch_in_a_confirmation_makes_a_producer_ask_and_go() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url) as client:
        async with client.producer("t") as producer:
            await producer.publish(b"one")
            cluster.leader, cluster.epoch = 3, 6
            await producer.publish(b"two")
            await cluster.peers[3].until(lambda: bool(cluster.peers[3].messages(m.Hello)))
            while not cluster.stored(3):
                await producer.publish(b"more")
        assert cluster.stored(2)[:2] == [b"one", b"two"]
        assert set(cluster.stored(2)[2:]) <= {b"more"}


@on_both_loops
async def test_batches_in_flight_are_answered_or_repeated_before_later_ones_go_elsewhere() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url, backoff_s=0.001) as client:
        async with client.producer("t") as producer, anyio.create_task_group() as tasks:
            await producer.publish(b"one")
            answer, cluster.peers[2].answers[m.Publish] = cluster.publish, lambda session, event: None
            tasks.start_soon(producer.publish, b"two")
            await cluster.peers[2].until(lambda: len(cluster.peers[2].messages(m.Publish)) == 2)
            cluster.leader, cluster.epoch = 3, 6
            await client.describe("t")
            await cluster.peers[3].until(lambda: bool(cluster.peers[3].messages(m.Hello)))
            tasks.start_soon(producer.publish_many, [b"three"])
            await client.describe("t")
            assert cluster.stored(3) == []
            cluster.peers[2].answers[m.Publish] = answer
            await cluster.peers[2].cut()
        assert cluster.stored(3) + cluster.stored(1) == [b"two", b"three"]
        batches = [event.batches[0] for event in cluster.peers[2].events if isinstance(event.message, m.Publish)]
        later = [
            event.batches[0]
            for node in (1, 3)
            for event in cluster.peers[node].events
            if isinstance(event.message, m.Publish)
        ]
        numbers = [(batch.producer_id, batch.first_sequence) for batch in batches]
        assert next((batch.producer_id, batch.first_sequence) for batch in later) == numbers[1]
        assert len({(batch.producer_id, batch.first_sequence) for batch in later}) == 2


@on_both_loops
async def test_without_confirmations_a_producer_stays_where_it_began() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url) as client:
        async with client.producer("t", acks="none") as producer:
            producer.publish_nowait(b"one")
            await producer.flush()
            cluster.leader, cluster.epoch = 3, 6
            await client.describe("t")
            await cluster.peers[3].until(lambda: bool(cluster.peers[3].messages(m.Hello)))
            producer.publish_nowait(b"two")
            await producer.flush()
        assert [cluster.stored(node) for node in (1, 2, 3)] == [[], [b"one", b"two"], []]


@on_both_loops
async def test_a_consumer_subscribes_at_the_leader_and_goes_on_through_the_broker_at_hand() -> None:
    async with running_cluster() as cluster, linn.connect(cluster.peers[1].url, backoff_s=0.001) as client:
        async with client.consumer("t"):
            assert len(cluster.peers[2].messages(m.Subscribe)) == 1
            assert cluster.peers[1].messages(m.Subscribe) == []
            del cluster.nodes[2]
            await cluster.peers[2].cut()
            await cluster.peers[1].until(lambda: bool(cluster.peers[1].messages(m.Subscribe)))


@on_both_loops
async def test_a_broker_alone_is_asked_for_no_leader() -> None:
    async with running_peer() as peer, linn.connect(peer.url) as client:
        async with client.consumer("t"):
            pass
        assert peer.messages(m.Describe) == []


def test_a_frozen_leader_is_noticed_before_a_publish_fails() -> None:
    assert linn.client.ClientOptions().request_timeout_s / 2 > 3 * KEEPALIVE_S
