"""Links between brokers inside TLS: the proof says whose certificate it is, and nobody in between can pass it on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from raw_peer import SECRET
from tls_world import HOST, inline, pair, self_signed, tls_table

from linn.cluster.links import Links
from linn.core.broker.broker import Broker
from linn.core.cluster.peers import PeerPlace
from linn.core.env.env import AcceptedStream, Listener
from linn.core.env.real.env import RealEnv
from linn.core.env.tls import TlsFiles, client_context, server_tls
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.peers import PeerRefused, PeerUnreachable
from linn.core.errors.tree import ConnectionLost
from linn.core.ports.principal import Principal
from linn.testing.plugin_broker import plugin_broker

ANN = Principal("10.0.0.9:1", "tests", "ann", login="scram")


class Member:
    """Broker `node`, which knows the places that it is told."""

    cluster, secret = "earth", SECRET

    def __init__(self, node: int) -> None:
        self.node = node
        self.session = f"s{node}"
        self.places: dict[int, PeerPlace] = {1: PeerPlace("s1", "127.0.0.1:1")}

    def place_of(self, node: int) -> PeerPlace | None:
        return self.places.get(node)

    def note_clock(self, node: int, ahead_s: float) -> None:
        """No clock is compared here."""

    def client_addresses(self, listener: str) -> Sequence[tuple[int, str]]:
        return ()


@asynccontextmanager
async def two_brokers(folder: Path, tls: str = 'tls = "edge"') -> AsyncIterator[tuple[Member, Links, Broker]]:
    """Run two brokers; the second has a listener for brokers in TLS."""
    one, two = Member(1), Member(2)
    for name in ("one", "two"):
        (folder / name).mkdir()
    plain = '[listeners.native]\naddress = "127.0.0.1:0"\n'
    peers = f'[listeners.peers]\nprotocol = "peers"\naddress = "127.0.0.1:0"\n{tls}\n'
    first = f'[broker]\ndata_dir = "{folder}/one/data"\n{plain}'
    second = f'[broker]\ndata_dir = "{folder}/two/data"\n{tls_table(folder)}{plain}{peers}'
    async with plugin_broker(RealEnv(), first) as dialing, plugin_broker(RealEnv(), second) as broker:
        dialing.gateway.membership, broker.gateway.membership = one, two
        one.places[2] = PeerPlace("s2", broker.addresses["peers"], is_tls=True)
        yield one, Links(dialing.gateway), broker


async def test_brokers_link_in_tls_without_an_authority(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (_, links, _broker):
        assert await links.perform(2, "topic.list", "{}", ANN) == "[]"


async def test_a_proxy_with_a_certificate_of_its_own_is_refused(tmp_path: Path) -> None:
    """The certificate is even one that the same authority has signed for the same address."""

    env = RealEnv()

    async def pass_on(client: AcceptedStream, to: str) -> None:
        certificate, key = pair(HOST, "proxy.example")
        tls = server_tls(TlsFiles(certificate, key), 0)
        context = client_context()
        context.load_verify_locations(str(tmp_path / "ca.pem"))
        there = TlsStream(await env.net.connect(to), context, server_name=HOST)
        await there.handshake(inline)
        ours = TlsStream(client, tls.context, is_server=True, server_end_point=tls.server_end_point)
        await ours.handshake(inline)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_copy, ours, there)
                nursery.start_soon(_copy, there, ours)
        finally:
            await ours.aclose()
            await there.aclose()

    async def serve(listener: Listener, to: str) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(pass_on, await listener.accept(), to)

    async with two_brokers(tmp_path) as (one, links, broker), trio.open_nursery() as nursery:
        listener = await env.net.listen(f"{HOST}:0")
        nursery.start_soon(serve, listener, broker.addresses["peers"])
        one.places[2] = one.places[2]._replace(address=listener.address)
        with pytest.raises(PeerRefused, match="another TLS connection"):
            await links.perform(2, "topic.list", "{}", ANN)
        nursery.cancel_scope.cancel()
        await listener.aclose()


async def test_a_certificate_without_a_binding_is_refused_by_name(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (_, links, broker):
        self_signed(tmp_path, "ed25519")
        broker.reload_files()
        with pytest.raises(PeerRefused, match="not signed with Ed25519"):
            await links.perform(2, "topic.list", "{}", ANN)


async def test_a_broker_without_tls_at_one_with_tls_notices_it(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (one, links, _):
        one.places[2] = one.places[2]._replace(is_tls=False)
        with pytest.raises(PeerUnreachable, match="speaks only TLS"):
            await links.perform(2, "topic.list", "{}", ANN)


async def test_a_broker_with_tls_at_one_without_notices_it(tmp_path: Path) -> None:
    async with two_brokers(tmp_path, tls="") as (_, links, _broker):
        with pytest.raises(PeerUnreachable, match="no link to node 2"):
            await links.perform(2, "topic.list", "{}", ANN)


async def _copy(source: TlsStream, target: TlsStream) -> None:
    buffer = memoryview(bytearray(65536))
    try:
        while count := await source.receive_into(buffer):
            await target.send([bytes(buffer[:count])])
    except ConnectionLost:
        pass
    await target.aclose()
