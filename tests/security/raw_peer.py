"""The other end of a link with a broker, which says what a test tells it, as the dialer and as the listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
import trio

from linn.cluster.channel import SILENCE_S
from linn.cluster.introduction import Dialer, Doorkeeper
from linn.cluster.links import Links
from linn.cluster.window import Limits
from linn.core.broker.broker import Broker
from linn.core.cluster.peers import PeerPlace
from linn.core.env.env import Stream
from linn.core.errors.tree import ConnectionLost, LinnError
from linn.core.ports.principal import Principal
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import plugin_broker
from linn.testing.protocols import wait_disconnected
from linn.testing.sim_env import SimEnv
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of

SECRET = b"a secret of this cluster, 32 byt"
PEERS, CLIENTS = "127.0.0.1:6002", "127.0.0.1:5002"
CONFIG = f"""
[broker]
data_dir = "data"
drain_timeout = "2s"
[listeners.native]
address = "{CLIENTS}"
[listeners.peers]
protocol = "peers"
address = "{PEERS}"
"""
ADDRESS = "127.0.0.1:5466"


@dataclass
class Member:
    """Broker `node`, which knows nodes 1 and 2."""

    node: int
    session: str
    cluster: str = "earth"
    secret: bytes = SECRET

    def place_of(self, node: int) -> PeerPlace | None:
        return PeerPlace(f"s{node}", PEERS) if node in (1, 2) else None

    def note_clock(self, node: int, ahead_s: float) -> None:
        pass


ONE, TWO = Member(1, "s1"), Member(2, "s2")


class RawPeer:
    """The other end of a connection to a listener, which says what a test tells it."""

    def __init__(self, stream: Stream, member: Member = ONE) -> None:
        self.stream = stream
        self.member = member
        self.codec = Connection(from_peer=True)
        self.codec.allow_frames(1 << 20)

    async def say(self, message: m.Message, lane: int = 0, correlation: int = 0) -> None:
        await self.stream.send([codec.put_in_lane(frames_of(message, correlation)[0], lane)])

    async def next(self) -> Event:
        """The next message that is no ping. Raises ConnectionLost: there is none."""
        while True:
            for event in self.codec.received(0):
                if not isinstance(event.message, m.Ping):
                    return event
            count = await self.stream.receive_into(self.codec.buffer())
            if not count:
                raise ConnectionLost("it is closed")
            for event in self.codec.received(count):
                if not isinstance(event.message, m.Ping):
                    return event

    async def greet(self) -> m.PeerWelcome:
        dialer = Dialer(self.member, 2, PeerPlace("s2", PEERS), b"n" * 32, b"")
        await self.say(dialer.hello("raw"))
        await self.say(dialer.prove((await self.next()).message))
        return dialer.check((await self.next()).message)

    async def ending(self) -> str:
        """The code with which the connection is closed; "" without one."""
        code = ""
        try:
            while True:
                message = (await self.next()).message
                if isinstance(message, m.Failed):
                    code = message.code
        except ConnectionLost:
            return code


@asynccontextmanager
async def peers_broker(env: SimEnv) -> AsyncIterator[Broker]:
    async with plugin_broker(env, CONFIG) as broker:
        broker.gateway.membership = TWO
        yield broker


def against(scenario: Callable[[SimEnv, Broker, RawPeer], Awaitable[None]]) -> None:
    """Run a scenario with a raw peer, while another broker is served all along."""

    async def main(env: SimEnv) -> None:
        async with peers_broker(env) as broker:
            bystander = RawPeer(await env.net.connect(PEERS))
            await bystander.greet()
            await bystander.say(m.OpenLane("10.0.0.9:1", "tests", "ann", "scram"), lane=1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_alive, bystander)
                await scenario(env, broker, RawPeer(await env.net.connect(PEERS)))
                await bystander.say(m.Administer("topic.list"), lane=1, correlation=1)
                with trio.fail_after(5):
                    while (event := await bystander.next()).correlation != 1:
                        pass
                assert event == (1, m.Administered("[]"), [], 1)
                nursery.cancel_scope.cancel()
            await bystander.stream.aclose()
            await wait_disconnected(broker, 0)

    run_simulation(3, main, virtual_s_max=600)


async def keep_alive(peer: RawPeer) -> None:
    while True:
        await trio.sleep(0.5)
        await peer.say(m.PeerPong(0))


async def refused(peer: RawPeer, seconds: float = 2 * SILENCE_S) -> str:
    with trio.fail_after(seconds):
        return await peer.ending()


ANN = Principal("10.0.0.9:1", "tests", "ann", login="scram")


async def create_topic(links: Links) -> None:
    """Ask for a change that may have been made when there is no answer."""
    await links.perform(2, "topic.create", '{"name": "t"}', ANN)


def dialing(
    listen: Callable[[RawPeer], Awaitable[None]],
    error: type[LinnError],
    text: str,
    ask: Callable[[Links], Awaitable[None]] = create_topic,
) -> None:
    """Let a broker dial a listener that does what a test tells it; the broker's caller gets this error in time."""

    async def main(env: SimEnv) -> None:
        async with plugin_broker(env, CONFIG.replace(PEERS, "127.0.0.1:6001")) as broker:
            broker.gateway.membership = ONE
            listener = await env.net.listen(PEERS)

            async def serve(nursery: trio.Nursery) -> None:
                while True:
                    nursery.start_soon(converse, RawPeer(await listener.accept()))

            async def converse(peer: RawPeer) -> None:
                with suppress(ConnectionLost):
                    await listen(peer)
                    await trio.sleep_forever()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, nursery)
                with trio.fail_after(3 * SILENCE_S), pytest.raises(error, match=text):
                    await ask(Links(broker.gateway))
                nursery.cancel_scope.cancel()

    run_simulation(3, main, virtual_s_max=600)


async def let_in(peer: RawPeer) -> None:
    """Prove the secret as a listener does."""
    door = Doorkeeper(TWO, b"d" * 32, b"")
    await peer.say(door.challenge((await peer.next()).message))
    admitted = door.admit((await peer.next()).message)
    await peer.say(m.PeerWelcome(admitted.proof, 1 << 20, *Limits()))
