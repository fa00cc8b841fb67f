"""Hostile and mistaken peers: each ends with a named error, in bounded time and memory, and costs others nothing."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from raw_peer import (
    ANN,
    CLIENTS,
    CONFIG,
    ONE,
    PEERS,
    TWO,
    Member,
    RawPeer,
    against,
    dialing,
    keep_alive,
    let_in,
    refused,
)

from linn.cluster import channel
from linn.cluster.channel import SILENCE_S
from linn.cluster.introduction import Dialer
from linn.cluster.links import Links
from linn.cluster.server import INTRODUCTION_S
from linn.cluster.window import LANE_BYTES_MAX, LANE_REQUESTS_MAX, LANES_MAX, OPEN_CHARACTERS_MAX, Limits
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.cluster.peers import PeerPlace
from linn.core.env.env import Stream
from linn.core.errors.peers import PeerRefused, PeerUnknown, PeerUnreachable
from linn.core.errors.tree import ConnectionLost, LinnError
from linn.core.gateway.requests import FetchRequest
from linn.core.publish.request import PublishRequest
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import plugin_broker
from linn.testing.protocols import ProtocolConformance, ProtocolHarness, memory_below
from linn.testing.sim_env import SimEnv
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

# --- who is not let in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        m.OpenLane("10.0.0.9:1", "tests", "ann", "scram"),
        m.CloseLane(),
        m.PeerChallenge("0" * 64),
        m.PeerProof("earth", 1, "s1", 2, "s2", "0" * 64, "0" * 64),
        m.PeerWelcome("0" * 64, 1, 1, 1, 1, 1, 1),
        m.Follow(0, 0, 1, []),
        m.Followed([]),
        m.Replicate([], 1),
        m.Replicated([]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_client_that_sends_what_brokers_send_is_closed(message: m.Message) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        client = RawPeer(await env.net.connect(CLIENTS))
        await client.say(hello("a client"))
        assert isinstance((await client.next()).message, m.Welcome)
        await client.say(message)
        assert await refused(client) == "protocol.malformed"

    against(scenario)


def test_a_client_that_uses_a_lane_is_closed() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        client = RawPeer(await env.net.connect(CLIENTS))
        await client.say(hello("a client"))
        await client.next()
        await client.say(m.Administer("topic.list"), lane=1, correlation=1)
        assert await refused(client) == "protocol.malformed"

    against(scenario)


def test_a_broker_at_a_listener_for_clients_notices_it() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        broker_there = RawPeer(await env.net.connect(CLIENTS))
        with pytest.raises(Exception, match="does not listen for brokers"):
            await broker_there.greet()
        await broker_there.stream.aclose()

    against(scenario)


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (replace(ONE, secret=b"another secret, also long"), "peer.refused"),
        (replace(ONE, cluster="mars"), "peer.refused"),
        (replace(ONE, node=2, session="s2"), "peer.refused"),
        (replace(ONE, session="an old one"), "peer.stale"),
        (replace(ONE, node=3), "peer.stale"),
    ],
)
def test_a_broker_that_is_not_the_one_it_should_be_is_refused(member: Member, code: str) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        peer.member = member
        with pytest.raises(Exception, match=f"\\[{code}\\]"):
            await peer.greet()
        assert await refused(peer) == ""
        assert broker.connections.traffic["peers"].failed == {code: 1}

    against(scenario)


def test_a_recorded_proof_opens_nothing() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        dialer = Dialer(ONE, 2, PeerPlace("s2", PEERS), b"n" * 32, b"")
        await peer.say(dialer.hello("raw"))
        proof = dialer.prove((await peer.next()).message)
        await peer.say(proof)
        assert isinstance((await peer.next()).message, m.PeerWelcome)
        replayed = RawPeer(await env.net.connect(PEERS))
        await replayed.say(dialer.hello("raw"))
        await replayed.next()
        await replayed.say(proof)
        assert await refused(replayed) == "peer.refused"
        await peer.stream.aclose()

    against(scenario)


def test_a_client_at_the_listener_for_brokers_is_told_so() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.say(hello("a client"))
        assert await refused(peer) == "peer.refused"

    against(scenario)


@pytest.mark.parametrize("message", [m.OpenLane("", "", "ann", ""), m.Administer("topic.list"), m.Ping(), m.Pong()])
@pytest.mark.parametrize("after_hello", [False, True])
def test_nothing_is_served_before_the_proof(message: m.Message, after_hello: bool) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        if after_hello:
            await peer.say(m.Hello(1, 1, ["peer"], "n1"))
            assert isinstance((await peer.next()).message, m.PeerChallenge)
        await peer.say(message, lane=1, correlation=1)
        assert await refused(peer) == "protocol.malformed"

    against(scenario)


def test_a_broker_without_a_cluster_links_with_nobody() -> None:
    async def main(env: SimEnv) -> None:
        async with plugin_broker(env, CONFIG):
            peer = RawPeer(await env.net.connect(PEERS))
            await peer.say(m.Hello(1, 1, ["peer"], "n1"))
            assert await refused(peer) == "peer.refused"

    run_simulation(3, main, virtual_s_max=600)


@pytest.mark.parametrize("begun", [b"", frames_of(m.Hello(1, 1, ["peer"], "n1"))[0][:20]])
def test_silence_before_the_proof_is_short(begun: bytes) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        if begun:
            await peer.stream.send([begun])
        began_s = trio.current_time()
        assert await refused(peer) == ("request.timeout" if begun else "")
        assert trio.current_time() < began_s + INTRODUCTION_S + 2

    against(scenario)


# --- what a broker that was let in can't do ---------------------------------------------------------------------------


Hostile = Callable[[RawPeer], Awaitable[None]]
OPEN = m.OpenLane("10.0.0.9:1", "tests", "ann", "scram")


async def a_lane_twice(peer: RawPeer) -> None:
    await peer.say(OPEN, lane=1)
    await peer.say(OPEN, lane=1)


async def a_request_in_no_lane(peer: RawPeer) -> None:
    await peer.say(m.Administer("topic.list"), lane=7, correlation=1)


async def a_request_of_the_link(peer: RawPeer) -> None:
    await peer.say(m.Administer("topic.list"), correlation=1)


async def a_second_proof(peer: RawPeer) -> None:
    await peer.say(m.PeerProof("earth", 1, "s1", 2, "s2", "0" * 64, "0" * 64))


async def a_request_without_a_number(peer: RawPeer) -> None:
    await peer.say(OPEN, lane=1)
    await peer.say(m.Administer("topic.list"), lane=1)


async def the_same_number_twice(peer: RawPeer) -> None:
    await peer.say(OPEN, lane=1)
    frames = [codec.put_in_lane(frames_of(m.Administer("topic.list"), 1)[0], 1)] * 2
    await peer.stream.send(frames)


async def a_request_after_the_end_of_its_lane(peer: RawPeer) -> None:
    await peer.say(OPEN, lane=1)
    frames = [frames_of(m.CloseLane())[0], frames_of(m.Administer("topic.list"), 1)[0]]
    await peer.stream.send([codec.put_in_lane(frame, 1) for frame in frames])


async def a_flood_of_requests(peer: RawPeer) -> None:
    await peer.say(OPEN, lane=1)
    asked = m.Administer("topic.create", '{"name": "t"}')
    frames = [codec.put_in_lane(frames_of(asked, number)[0], 1) for number in range(1, LANE_REQUESTS_MAX + 2)]
    await peer.stream.send(frames)


async def a_flood_of_bytes(peer: RawPeer) -> None:
    await peer.say(OPEN, lane=1)
    asked = m.Administer("topic.create", "x" * (LANE_BYTES_MAX // 2 + 1))
    await peer.stream.send([codec.put_in_lane(frames_of(asked, number)[0], 1) for number in (1, 2, 3)])


async def a_flood_of_lanes(peer: RawPeer) -> None:
    frame = frames_of(OPEN)[0]
    await peer.stream.send([codec.put_in_lane(frame, number) for number in range(1, LANES_MAX + 2)])


async def a_lane_of_long_texts(peer: RawPeer) -> None:
    await peer.say(m.OpenLane("", "x" * OPEN_CHARACTERS_MAX, "ann", ""), lane=1)


async def a_frame_too_large(peer: RawPeer) -> None:
    await peer.stream.send([struct.pack("<II", 0, 1 << 28), bytes(64)])


async def an_answer_to_nothing(peer: RawPeer) -> None:
    await peer.say(m.Administered("{}"), lane=1, correlation=1)


HOSTILE: Sequence[Hostile] = (
    a_lane_twice,
    a_request_in_no_lane,
    a_request_of_the_link,
    a_second_proof,
    a_request_without_a_number,
    the_same_number_twice,
    a_request_after_the_end_of_its_lane,
    a_flood_of_requests,
    a_flood_of_bytes,
    a_flood_of_lanes,
    a_lane_of_long_texts,
    an_answer_to_nothing,
    a_frame_too_large,
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_a_broker_that_breaks_the_protocol_is_closed(hostile: Hostile) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        async with broker.administration._lock:  # Nothing that changes anything is answered.
            await hostile(peer)
            code = await refused(peer)
        assert code == ("protocol.frame_too_large" if hostile is a_frame_too_large else "protocol.malformed")
        assert list(broker.topics) == []

    against(scenario)


def test_a_request_of_a_broker_in_the_lane_of_a_client_is_refused_and_ends_nothing() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        await peer.say(OPEN, lane=1)
        await peer.say(m.JoinTransaction(1, 1, "t", 0, 0), lane=1, correlation=1)
        event = await peer.next()
        assert isinstance(event.message, m.Failed)
        assert (event.lane, event.correlation, event.message.code) == (1, 1, "protocol.request_unknown")
        await peer.say(m.CloseLane(), lane=1)
        assert (await peer.next())[1:] == (m.CloseLane(), [], 1)
        await peer.stream.aclose()

    against(scenario)


@pytest.mark.parametrize("begun", [0, 3, 20])
def test_a_broker_that_falls_silent_is_closed(begun: int) -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        if begun:
            await peer.stream.send([frames_of(m.Ping())[0][:begun]])
        began_s = trio.current_time()
        assert await refused(peer) == ""
        assert SILENCE_S - 1 <= trio.current_time() - began_s <= SILENCE_S + 2
        assert broker.connections.traffic["peers"].failed == {"connection.lost": 1}

    against(scenario)


def test_a_broker_that_pings_and_reads_nothing_is_closed() -> None:
    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        began_s = trio.current_time()
        with suppress(ConnectionLost):
            while True:
                await peer.say(m.Ping())
                await trio.sleep(1)
        assert trio.current_time() <= began_s + 3 * SILENCE_S

    against(scenario)


def test_a_broker_that_asks_without_reading_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "OUTGOING_BYTES_MAX", 256 << 10)

    async def scenario(env: SimEnv, broker: Broker, peer: RawPeer) -> None:
        await peer.greet()
        await peer.say(OPEN, lane=1)
        await trio.sleep(0.5)
        asked = b"".join(codec.put_in_lane(frames_of(m.Administer("x" * 80), number)[0], 1) for number in range(1, 51))
        with memory_below(2 << 20), trio.move_on_after(60) as scope, suppress(ConnectionLost):
            for _ in range(400):
                await peer.stream.send([asked])
        assert not scope.cancelled_caught

    against(scenario)


# --- hostile listeners ------------------------------------------------------------------------------------------------


async def read(links: Links) -> None:
    await links.reading(ANN).fetch(2, FetchRequest("t", 0, 0, 1000), 0)


async def find(links: Links) -> None:
    await links.reading(ANN).find_offset(2, "t", 0, 0, 0)


async def look(links: Links) -> None:
    await links.reading(ANN).bounds(2, ["t"])


def test_a_listener_that_says_nothing_is_given_up() -> None:
    async def silent(peer: RawPeer) -> None:
        await peer.next()

    dialing(silent, PeerUnreachable, "did not answer within 4 s")


def test_a_listener_that_sends_rubbish_is_given_up() -> None:
    async def rubbish(peer: RawPeer) -> None:
        await peer.stream.send([b"HTTP/1.1 400 Bad Request" * 100])

    dialing(rubbish, PeerUnreachable, "no link to node 2: ")


def test_a_listener_without_the_secret_learns_no_request() -> None:
    heard: list[m.Message] = []

    async def pretend(peer: RawPeer) -> None:
        heard.append((await peer.next()).message)
        await peer.say(m.PeerChallenge("0" * 64))
        heard.append((await peer.next()).message)
        await peer.say(m.PeerWelcome("0" * 64, 1 << 20, *Limits()))
        while True:
            heard.append((await peer.next()).message)

    dialing(pretend, PeerRefused, "has not proved that it knows the cluster's secret")
    assert {type(message) for message in heard} == {m.Hello, m.PeerProof}


@pytest.mark.parametrize(
    "answer",
    [
        (m.Administered("{}"), 1, 99),
        (m.Administered("{}"), 9, 1),
        (m.CloseLane(), 1, 0),
        (m.Pong(), 1, 99),
        (m.Administered("{}"), 0, 1),
        (m.Failed("topic.full", "a failure of the link"), 0, 0),
    ],
)
def test_a_listener_that_answers_nonsense_is_given_up(answer: tuple[m.Message, int, int]) -> None:
    async def nonsense(peer: RawPeer) -> None:
        await let_in(peer)
        await peer.next()
        await peer.next()
        await peer.say(answer[0], lane=answer[1], correlation=answer[2])

    dialing(nonsense, PeerUnknown, "it may have been done or not")


@pytest.mark.parametrize("answer", [m.Administered("{}"), m.Done(), m.Published([]), m.Fetch("t", 0, 0)])
@pytest.mark.parametrize("ask", [read, find, look])
def test_a_listener_that_answers_a_read_with_something_else_is_given_up(
    answer: m.Message, ask: Callable[[Links], Awaitable[None]]
) -> None:
    async def nonsense(peer: RawPeer) -> None:
        await let_in(peer)
        await peer.next()
        asked = await peer.next()
        await peer.say(answer, lane=1, correlation=asked.correlation)
        await trio.sleep_forever()

    dialing(nonsense, PeerUnreachable, "it can be done again", ask)


async def publish(links: Links, *batches: RecordBatch) -> None:
    told, ended = list[object](), trio.Event()

    def tell(outcome: object) -> None:
        told.append(outcome)
        ended.set()

    await links.passing(ANN).begin(2, PublishRequest("t", batches), {}, tell)
    await ended.wait()
    assert len(told) == 1
    if isinstance(told[0], LinnError):
        raise told[0]


@pytest.mark.parametrize("answer", [m.Done(), m.Published([]), m.Published([m.Placement(0, 0, 1)] * 2)])
@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_listener_that_answers_a_publish_with_something_else_is_given_up(
    answer: m.Message, is_numbered: bool
) -> None:
    async def nonsense(peer: RawPeer) -> None:
        await let_in(peer)
        await peer.next()
        asked = await peer.next()
        await peer.say(answer, lane=1, correlation=asked.correlation)
        await trio.sleep_forever()

    async def ask(links: Links) -> None:
        batch = build_from_records([Record(value=b"a")], base_id=1)
        if is_numbered:
            batch.number(256, 0, 0, 0)
        await publish(links, batch)

    if is_numbered:
        dialing(nonsense, PeerUnreachable, "it can be done again", ask)
    else:
        dialing(nonsense, PeerUnknown, "node 2 answered", ask)


def test_a_listener_that_floods_a_broker_with_pings_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "OUTGOING_BYTES_MAX", 64 << 10)
    pings = bytes(frames_of(m.Ping())[0]) * 1_000

    async def flood(peer: RawPeer) -> None:
        await let_in(peer)
        with memory_below(5 << 19), suppress(ConnectionLost):
            for _ in range(40):
                await peer.stream.send([pings])

    dialing(flood, PeerUnknown, "it may have been done or not")


# --- the promises of every protocol ----------------------------------------------------------------------------------


class ConformingPeer:
    """A well-behaved broker, for the suite."""

    def __init__(self, stream: Stream) -> None:
        self._peer = RawPeer(stream)
        self._last = 0

    async def greet(self) -> None:
        await self._peer.greet()
        await self._peer.say(OPEN, lane=1)
        trio.lowlevel.spawn_system_task(self._stay_alive)

    async def _stay_alive(self) -> None:
        with suppress(ConnectionLost):
            await keep_alive(self._peer)

    async def ask(self) -> None:
        assert await self._asked("topic.list") == m.Administered("[]")

    async def be_refused(self) -> str:
        failed: Any = await self._asked("no.verb")
        return f"{failed.text} [{failed.code}]"

    async def _asked(self, verb: str) -> m.Message:
        self._last += 1
        await self._peer.say(m.Administer(verb), lane=1, correlation=self._last)
        await self._peer.say(m.PeerPong(0))
        return (await self._peer.next()).message


class _Harness(ProtocolHarness):
    @asynccontextmanager
    async def broker(self, env: SimEnv) -> AsyncIterator[Broker]:
        async with super().broker(env) as broker:
            broker.gateway.membership = TWO
            yield broker


class TestPeers(ProtocolConformance):
    @pytest.fixture
    def harness(self) -> ProtocolHarness:
        greeting = bytes(frames_of(m.Hello(1, 1, ["peer"], "n1"))[0])
        return _Harness(
            protocol="peers",
            peer=ConformingPeer,
            greeting=greeting,
            request=bytes(frames_of(m.Ping())[0]),
            hostile=[struct.pack("<II", 0, 2**31), struct.pack("<II", 2**32 - 1, 1), greeting],
            floods=[b"", struct.pack("<II", 0, (16 << 10) // 8 - 1), struct.pack("<II", 0, 1 << 13)],
        )
