"""Hostile and mistaken followers and leaders: each ends with a named error, in bounded time and memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
import trio
from followed_topic import TOPIC, LedTopic, partitions_of
from raw_peer import RawPeer, against, dialing, let_in, refused

from linn.cluster import channel
from linn.cluster.channel import SILENCE_S
from linn.cluster.links import Links
from linn.core.batch import schema
from linn.core.batch.builder import build_single
from linn.core.broker.broker import Broker
from linn.core.errors.peers import PeerUnreachable
from linn.core.errors.tree import BatchCorrupt, ConnectionLost
from linn.core.log.replication.events import Cut, LogTable
from linn.testing.protocols import memory_below
from linn.testing.sim_env import SimEnv
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import frames_of

NODE = m.OpenLane("", "n1", "service:node/1", "secret")
HIGH, LOW = TOPIC.int >> 64, TOPIC.int & (2**64 - 1)
FOLLOW = m.Follow(HIGH, LOW, 1, [])
REPLICATE = m.Replicate([], 1 << 20)
Hostile = Callable[[RawPeer, LedTopic], Awaitable[None]]


def followed(scenario: Callable[[SimEnv, Broker, RawPeer, LedTopic], Awaitable[None]]) -> None:
    """Run a scenario with a raw peer that has opened a lane to the leader of a topic."""

    async def main(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        topic = LedTopic(env)
        broker.gateway.followed_logs = topic
        await peer.greet()
        await peer.say(NODE, lane=1)
        await scenario(env, broker, peer, topic)
        with trio.fail_after(2 * SILENCE_S):
            while topic.seats:
                await trio.sleep(0.1)

    against(main)


# --- followers -------------------------------------------------------------------------------------------------------


async def no_lane(peer: RawPeer, topic: LedTopic) -> None:
    await peer.say(FOLLOW, correlation=1)


async def no_number(peer: RawPeer, topic: LedTopic) -> None:
    await peer.say(FOLLOW, lane=1)


async def replicate_before_follow(peer: RawPeer, topic: LedTopic) -> None:
    await peer.say(REPLICATE, lane=1, correlation=1)


async def replicate_after_a_refused_follow(peer: RawPeer, topic: LedTopic) -> None:
    await _follow(peer)
    await peer.say(m.Follow(0, 0, 1, []), lane=1, correlation=2)
    assert isinstance((await peer.next()).message, m.Failed)
    await peer.say(REPLICATE, lane=1, correlation=3)


async def two_replicates_at_once(peer: RawPeer, topic: LedTopic) -> None:
    await _wait_for_news(peer)
    await peer.say(REPLICATE, lane=1, correlation=4)


async def follow_beside_replicate(peer: RawPeer, topic: LedTopic) -> None:
    await _wait_for_news(peer)
    await peer.say(FOLLOW, lane=1, correlation=4)


async def _follow(peer: RawPeer) -> None:
    await peer.say(FOLLOW, lane=1, correlation=1)
    assert isinstance((await peer.next()).message, m.Followed)


async def _wait_for_news(peer: RawPeer) -> None:
    await _follow(peer)
    await peer.say(REPLICATE, lane=1, correlation=2)
    assert isinstance((await peer.next()).message, m.Replicated)
    await peer.say(REPLICATE, lane=1, correlation=3)
    await trio.sleep(1)


async def an_end_beyond_the_log(peer: RawPeer, topic: LedTopic) -> None:
    topic.append(0, [b"x"])
    await _follow(peer)
    await peer.say(m.Replicate([m.LogEnd(0, 2)], 0), lane=1, correlation=2)


async def an_end_before_the_last_one(peer: RawPeer, topic: LedTopic) -> None:
    topic.append(0, [b"x"] * 3)
    await _follow(peer)
    for correlation, end in ((2, 3), (3, 2)):
        await peer.say(m.Replicate([m.LogEnd(0, end)], 0), lane=1, correlation=correlation)
        await trio.sleep(0.5)


async def an_end_of_an_unknown_log(peer: RawPeer, topic: LedTopic) -> None:
    await _follow(peer)
    await peer.say(m.Replicate([m.LogEnd(9, 0)], 0), lane=1, correlation=2)


async def an_answer_of_a_leader(peer: RawPeer, topic: LedTopic) -> None:
    await _follow(peer)
    await peer.say(m.Replicated([]), lane=1, correlation=2)


async def matches_of_a_leader(peer: RawPeer, topic: LedTopic) -> None:
    await peer.say(m.Followed([]), lane=1, correlation=1)


async def a_million_epochs_of_one_log(peer: RawPeer, topic: LedTopic) -> None:
    await _send_rows(peer, 1, 1_000_000)


async def a_million_epochs_of_many_logs(peer: RawPeer, topic: LedTopic) -> None:
    await _send_rows(peer, 100, 10_000)


async def too_many_logs(peer: RawPeer, topic: LedTopic) -> None:
    await _send_rows(peer, 400_000, 0)


async def _send_rows(peer: RawPeer, logs: int, rows: int) -> None:
    frame = schema.load("protocol").Frame.new_message()
    frame.correlation, frame.lane = 1, 1
    tables = frame.init("follow").init("logs", logs)
    for number in range(logs if rows else 0):
        tables[number].init("epochs", rows)
    content = frame.to_bytes()
    with memory_below(64 << 20):
        await peer.stream.send([content])
        await trio.sleep(1)


HOSTILE: Sequence[Hostile] = (
    no_lane,
    no_number,
    replicate_before_follow,
    replicate_after_a_refused_follow,
    two_replicates_at_once,
    follow_beside_replicate,
    an_end_beyond_the_log,
    an_end_before_the_last_one,
    an_end_of_an_unknown_log,
    an_answer_of_a_leader,
    matches_of_a_leader,
    a_million_epochs_of_one_log,
    a_million_epochs_of_many_logs,
    too_many_logs,
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_a_follower_that_breaks_the_protocol_is_closed(hostile: Hostile) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer, topic: LedTopic) -> None:
        await hostile(peer, topic)
        assert await refused(peer) == "protocol.malformed"
        assert broker.connections.traffic["peers"].failed == {"protocol.malformed": 1}

    followed(scenario)


@pytest.mark.parametrize(
    ("follow", "code"),
    [
        (m.Follow(0, 7, 1, []), "topic.unknown"),
        (m.Follow(HIGH, LOW, 0, []), "partition.not_leader"),
        (m.Follow(HIGH, LOW, 2, []), "partition.not_leader"),
        (m.Follow(HIGH, LOW, -1, []), "partition.not_leader"),
        (m.Follow(HIGH, LOW, 1, [m.LogTable(0, 0, -1)]), "protocol.malformed"),
        (m.Follow(HIGH, LOW, 1, [m.LogTable(0, 5, 4)]), "protocol.malformed"),
        (m.Follow(HIGH, LOW, 1, [m.LogTable(9, 0, 4, [m.EpochStart(-1, 0)])]), "protocol.malformed"),
        (m.Follow(HIGH, LOW, 1, [m.LogTable(0, 0, 4, [m.EpochStart(2, 2), m.EpochStart(1, 3)])]), "protocol.malformed"),
        (m.Follow(HIGH, LOW, 1, [m.LogTable(0, 0, 9), m.LogTable(0, 0, 9)]), "protocol.malformed"),
    ],
)
def test_a_follow_that_can_not_be_is_refused_and_ends_nothing(follow: m.Follow, code: str) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer, topic: LedTopic) -> None:
        await peer.say(follow, lane=1, correlation=1)
        event = await peer.next()
        assert isinstance(event.message, m.Failed)
        assert (event.lane, event.correlation, event.message.code) == (1, 1, code)
        if code == "partition.not_leader":
            assert (event.message.leader, event.message.leader_epoch) == (2, 1)
        await peer.say(FOLLOW, lane=1, correlation=2)
        assert (await peer.next()).message == m.Followed([m.LogCut(0, 0), m.LogCut(4096, 0)])
        assert topic.followed_by == [(1, "s1")], "the node and the session of the proof"
        await peer.stream.aclose()

    followed(scenario)


def test_a_follower_that_reads_nothing_costs_its_leader_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "OUTGOING_BYTES_MAX", 256 << 10)

    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer, topic: LedTopic) -> None:
        topic.append(0, [b"x" * 900_000] * 10)
        lanes = range(1, 21)
        for lane in lanes:
            if lane > 1:
                await peer.say(NODE, lane=lane)
            await peer.say(FOLLOW, lane=lane, correlation=lane)
            await peer.say(REPLICATE, lane=lane, correlation=100 + lane)
        began_s = trio.current_time()
        with memory_below(4 << 20), suppress(ConnectionLost):
            while True:
                await peer.say(m.PeerPong(0))
                await trio.sleep(0.5)
                assert sum([seat.taken for seat in topic.seats]) <= 2, "one is on its way, or in the stream"
        assert trio.current_time() <= began_s + 3 * SILENCE_S

    followed(scenario)


# --- leaders ---------------------------------------------------------------------------------------------------------


async def follow(links: Links) -> None:
    lane = await links.open_follow_lane(2)
    await lane.follow(TOPIC, 1, {0: LogTable(0, 5, ((1, 0),))})


async def follow_and_replicate(links: Links) -> None:
    lane = await links.open_follow_lane(2)
    assert await lane.follow(TOPIC, 1, {0: LogTable(0, 5, ((1, 0),))}) == {0: Cut(5), 7: Cut(0)}
    await lane.replicate([(0, 5)], 1 << 20)


def batch(offset: int = 5) -> bytearray:
    """The bytes of a batch as a leader has stored it."""
    built = build_single(b"x" * 50, 1_000, 1)
    built.stamp(offset, 1_000, 0, 1)
    return bytearray(built.message)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (m.Done(), "answered follow with Done"),
        (m.Replicated([]), "answered follow with Replicated"),
        (m.Followed([m.LogCut(0, 5), m.LogCut(0, 4)]), "cuts log 0 at 4, which ends at 5, or a second time"),
        (m.Followed([m.LogCut(0, 6)]), "cuts log 0 at 6, which ends at 5"),
        (m.Followed([m.LogCut(0, -1)]), "cuts log 0 at -1"),
        (m.Followed([m.LogCut(0, -1, True)]), "cuts log 0 at -1"),
        (m.Followed([m.LogCut(3, 1)]), "cuts log 3 at 1, which ends at 0"),
        (m.CloseLane(), "ended a lane that was not closed"),
    ],
)
def test_a_leader_that_answers_follow_with_nonsense_is_given_up(answer: m.Message, text: str) -> None:
    async def nonsense(peer: RawPeer) -> None:
        await let_in(peer)
        await peer.next()
        asked = await peer.next()
        assert isinstance(asked.message, m.Follow)
        await peer.say(answer, lane=1, correlation=asked.correlation)

    dialing(nonsense, PeerUnreachable, text, follow)


@pytest.mark.parametrize(
    ("told", "batches", "text"),
    [
        (m.Followed([]), [], "answered replicate with Followed"),
        (m.Replicated([m.LogNews(0, 0, 5, 1)]), [], "sent 0 batches of logs, and tells another number"),
        (m.Replicated([m.LogNews(0, 0, 5, 1)]), [batch(), batch(6)], "sent 2 batches of logs"),
        (m.Replicated([]), [batch()], "sent 1 batches of logs"),
        (m.Replicated([m.LogNews(1, 0, 5)]), [], "tells of log 1, which is not followed"),
        (m.Replicated([m.LogNews(0, 0, 5), m.LogNews(0, 0, 6)]), [], "tells of log 0"),
        (m.Replicated([m.LogNews(0, -1, 5)]), [], "tells of log 0"),
        (m.Replicated([m.LogNews(0, 0, -5)]), [], "tells of log 0"),
        (m.Replicated([m.LogNews(0, 0, 5, thinned=-1)]), [], "tells of log 0"),
        (m.Replicated([m.LogNews(0, 0, 5, 1)]), [frames_of(m.Ping())[0]], "hold no record batch"),
        (m.Replicated([m.LogNews(0, 0, 5, 1)]), [bytearray(8) + bytes(16)], "an empty frame"),
    ],
)
def test_a_leader_that_answers_replicate_with_nonsense_is_given_up(
    told: m.Message, batches: Sequence[bytearray], text: str
) -> None:
    dialing(answering(told, batches), PeerUnreachable, text, follow_and_replicate)


def answering(told: m.Message, batches: Sequence[bytearray]) -> Callable[[RawPeer], Awaitable[None]]:
    """A leader that matches two logs and then sends this answer."""

    async def listen(peer: RawPeer) -> None:
        await let_in(peer)
        await peer.next()
        asked = await peer.next()
        await peer.say(m.Followed([m.LogCut(0, 5), m.LogCut(7, 0)]), lane=1, correlation=asked.correlation)
        asked = await peer.next()
        assert asked.message == m.Replicate([m.LogEnd(0, 5)], 1 << 20)
        frame = codec.encode(told, asked.correlation, len(batches))
        await peer.stream.send([codec.put_in_lane(frame, 1), *batches])

    return listen


def test_batches_that_nobody_asked_for_are_not_taken() -> None:
    async def listen(peer: RawPeer) -> None:
        await answering(m.Replicated([m.LogNews(0, 0, 5)]), [])(peer)
        frame = codec.encode(m.Replicated([m.LogNews(0, 0, 5, 1)]), 2, 1)
        await peer.stream.send([codec.put_in_lane(frame, 1), batch()])

    async def ask(links: Links) -> None:
        lane = await links.open_follow_lane(2)
        await lane.follow(TOPIC, 1, {0: LogTable(0, 5, ((1, 0),))})
        assert [news.batches for news in await lane.replicate([(0, 5)], 1 << 20)] == [[]]
        await trio.sleep(1)
        await lane.replicate([(0, 5)], 1 << 20)

    dialing(listen, PeerUnreachable, "answers nothing that was asked", ask)


@pytest.mark.parametrize("place", [-1, 90])
def test_a_damaged_batch_is_found_where_it_is_stored(place: int) -> None:
    damaged = batch()
    damaged[place] ^= 1

    async def ask(links: Links) -> None:
        lane = await links.open_follow_lane(2)
        await lane.follow(TOPIC, 1, {0: LogTable(0, 5, ((1, 0),))})
        [news] = await lane.replicate([(0, 5)], 1 << 20)
        log = partitions_of(links._gateway.env)[0].log
        await log.restart_at(5)
        log.append_copy(news.batches)

    dialing(answering(m.Replicated([m.LogNews(0, 0, 5, 1)]), [damaged]), BatchCorrupt, "CRC", ask)
