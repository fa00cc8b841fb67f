"""Brokers of a simulated cluster, linked without a metadata store: each is told where the others are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from linn.cluster.links import Links
from linn.core.broker.broker import Broker
from linn.core.cluster.peers import PeerPlace
from linn.core.ports.principal import Principal
from linn.testing.plugin_broker import plugin_broker
from linn.testing.sim_env import SimEnv
from linn.testing.sim_net import SimNet

SECRET = b"a secret of this cluster, 32 byt"
ANN = Principal("10.0.0.9:4711", "tests", "ann", login="scram")
"""A user who is connected to another broker than the one that carries out her verbs."""


def address_of(node: int) -> str:
    return f"127.0.0.1:{6000 + node}"


def client_address_of(node: int) -> str:
    return f"127.0.0.1:{5000 + node}"


@dataclass
class Member:
    """A broker's membership, which tests set."""

    node: int
    session: str
    cluster: str = "earth"
    secret: bytes = SECRET
    places: dict[int, PeerPlace] = field(default_factory=dict)

    clocks: dict[int, float] = field(default_factory=dict)

    def place_of(self, node: int) -> PeerPlace | None:
        return self.places.get(node)

    def note_clock(self, node: int, ahead_s: float) -> None:
        self.clocks[node] = ahead_s


class PeerBroker:
    """One broker of the world."""

    def __init__(self, env: SimEnv, broker: Broker, member: Member) -> None:
        self.env = env
        self.broker = broker
        self.member = member
        self.links = Links(broker.gateway)

    @property
    def linked(self) -> int:
        """The number of connections at its listener for brokers."""
        return len(self.broker.connections.traffic["peers"].open)


def toml(node: int, more: str = "", peers: str = "") -> str:
    return (
        f'[broker]\nname = "n{node}"\ndata_dir = "data"\ndrain_timeout = "2s"\n'
        f'[listeners.native]\naddress = "{client_address_of(node)}"\n'
        f'[listeners.peers]\nprotocol = "peers"\naddress = "{address_of(node)}"\n{peers}\n{more}'
    )


@asynccontextmanager
async def peer_broker(env: SimEnv, member: Member, more: str = "", peers: str = "") -> AsyncIterator[PeerBroker]:
    """Run one broker of a cluster."""
    async with plugin_broker(env, toml(member.node, more, peers)) as broker:
        broker.gateway.membership = member
        yield PeerBroker(env, broker, member)


def members(count: int, is_tls: bool = False) -> dict[int, Member]:
    """Memberships of brokers that know one another."""
    found = {node: Member(node, f"s{node}") for node in range(1, count + 1)}
    for member in found.values():
        member.places = {node: PeerPlace(f"s{node}", address_of(node), is_tls) for node in found}
    return found


@asynccontextmanager
async def peer_world(
    env: SimEnv, count: int = 2, more: str = "", known: Mapping[int, Member] | None = None
) -> AsyncIterator[Sequence[PeerBroker]]:
    """Run brokers 1 to `count`, on nodes n1, n2 and so on of the network of `env`."""
    async with AsyncExitStack() as stack:
        brokers = []
        for node, member in (known or members(count)).items():
            machine = SimEnv(node, name=f"n{node}", world=env.world)
            brokers.append(await stack.enter_async_context(peer_broker(machine, member, more)))
        yield brokers


def net_of(env: SimEnv) -> SimNet:
    return env.world


async def until(condition: object, seconds: float = 30.0) -> None:
    """Wait in virtual time until a function returns something true."""
    assert callable(condition)
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.05)
