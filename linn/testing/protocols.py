"""The conformance suite of protocol servers: `ProtocolConformance`, to subclass.

    class TestLines(ProtocolConformance):
        @pytest.fixture
        def harness(self) -> ProtocolHarness:
            return ProtocolHarness(
                protocol="lines", peer=LinesPeer, greeting=b"HELLO\n", request=b"PING\n", modules=["lines.plugin"]
            )

The suite runs a broker in a simulated world whose only listener speaks the protocol, and sends it valid and invalid
input through the harness.

Laws: no input or silence of a connection affects the service of others; memory and time are bounded; a stop ends every
connection. Each test follows from its seed.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import pytest
import trio

from linn.core.batch.flat_message import Buffer
from linn.core.broker.broker import Broker
from linn.core.env.env import Rng, Stream
from linn.core.errors.tree import ConnectionLost
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import plugin_broker
from linn.testing.sim_env import SimEnv

ADDRESS = "127.0.0.1:5466"
DRAIN_S = 2.0
PATIENCE_S = 30.0
"""Simulated seconds within which everything that is due must happen."""
FLOOD_BYTES = 6 << 20
FLOOD_CHUNK_BYTES = 32 << 10
CUTS_MAX = 40
"""Cuts of a dialogue; a longer one is cut at as many places spread over it."""
STRANGERS: tuple[bytes, ...] = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes.fromhex("16030100f5010000f10303") + bytes(200),
    b"AMQP\x00\x00\x09\x01",
    b"\r\n" * 50,
    bytes(64),
    b"\xff" * 64,
    b"\x7f" + b"\xff" * 7 + b"{" * 200,
)
"""Input as it arrives at public ports: other protocols, scans, nothing, and floods."""

_CONFIG = f"""
[broker]
data_dir = "data"
drain_timeout = "{DRAIN_S:g}s"
message_bytes_max = "64KiB"
batch_bytes_max = "128KiB"
frame_bytes_max = "256KiB"
connection_bytes_max = "256KiB"
inflight_requests_max = 100
[storage.dram]
memory_bytes_max = "256KiB"
"""


class ProtocolPeer(Protocol):
    """A well-behaved client of the protocol over one stream. It need not limit its waits."""

    async def greet(self) -> None:
        """Send the client's greeting and wait until it is accepted."""

    async def ask(self) -> None:
        """Make a request that always succeeds, and check the whole answer."""

    async def be_refused(self) -> str:
        """Make a request that is always refused; return the error that the client gets, including its code."""


@dataclass(frozen=True)
class ProtocolHarness:
    """A protocol's client, and examples of its bytes."""

    protocol: str
    """The name in `[listeners.*]`."""
    peer: Callable[[Stream], ProtocolPeer]
    greeting: bytes
    """The bytes that `greet` sends; empty if the server speaks first, or there is no greeting."""
    request: bytes
    """The bytes that `ask` sends; repeated, they must not make the broker store more."""
    hostile: Sequence[bytes] = ()
    """Additional invalid input, besides `STRANGERS`."""
    floods: Sequence[bytes] = (b"",)
    """Prefixes of endless input, such as the head of the largest frame."""
    settings: str = ""
    """Keys of the listener's table, as TOML."""
    tables: str = ""
    """Additional tables, as TOML, such as topics that `ask` needs."""
    modules: Sequence[str] = ()
    """The plugin's module, unless it is built in, and modules of plugins that `tables` need."""
    silence_s_max: float | None = 60.0
    """Longest silence before a connection is accepted; None: no limit."""
    memory_bytes_max: int = 3 << 20
    """Memory that one connection may make the broker hold, with the limits of `_CONFIG`."""

    @asynccontextmanager
    async def broker(self, env: SimEnv) -> AsyncIterator[Broker]:
        """Run a broker that listens at ADDRESS."""
        listener = f'[listeners.tested]\nprotocol = "{self.protocol}"\naddress = "{ADDRESS}"\n{self.settings}\n'
        async with plugin_broker(env, _CONFIG + listener + self.tables, *self.modules) as broker:
            yield broker

    async def greeted(self, env: SimEnv) -> tuple[Stream, ProtocolPeer]:
        """Connect a client and greet."""
        stream = await env.net.connect(ADDRESS)
        peer = self.peer(stream)
        with trio.fail_after(PATIENCE_S):
            await peer.greet()
        return stream, peer


class OneByOne:
    """A stream that sends and receives each byte on its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.peer = stream.peer

    async def send(self, buffers: Sequence[Buffer]) -> None:
        for byte in b"".join(buffers):
            await self._stream.send([bytes([byte])])
            await trio.lowlevel.checkpoint()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        return 0

    async def receive_into(self, buffer: memoryview) -> int:
        return await self._stream.receive_into(buffer[:1])

    async def wait_readable(self) -> None:
        await self._stream.wait_readable()

    def interrupt(self) -> None:
        self._stream.interrupt()

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        return self._stream.receive_nowait([buffers[0][:1]])

    async def aclose(self) -> None:
        await self._stream.aclose()


class ProtocolConformance:
    """The promises of `linn.core.gateway.protocol`. A subclass gives the fixture `harness`."""

    # --- well-behaved clients ----------------------------------------------------------------------------

    def test_a_client_is_let_in_and_answered(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                stream, peer = await harness.greeted(env)
                for _ in range(3):
                    await in_time(peer.ask)
                assert open_connections(broker) == 1
                await stream.aclose()
                await wait_disconnected(broker, 0)

        simulate(scenario)

    def test_bytes_may_come_one_by_one(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env):
                peer = harness.peer(OneByOne(await env.net.connect(ADDRESS)))
                await in_time(peer.greet)
                await in_time(peer.ask)

        simulate(scenario)

    def test_requests_may_come_all_at_once(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                stream = await env.net.connect(ADDRESS)
                await stream.send([harness.greeting + 5 * harness.request])
                assert await in_time(lambda: stream.receive_into(memoryview(bytearray(1 << 16)))) > 0
                await stream.aclose()
                await wait_disconnected(broker, 0)

        simulate(scenario)

    def test_a_request_that_is_refused_is_answered_and_ends_nothing(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env):
                _, peer = await harness.greeted(env)
                with trio.fail_after(PATIENCE_S):
                    assert await peer.be_refused()
                await in_time(peer.ask)

        simulate(scenario)

    # --- hostile clients ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("greeted", [False, True])
    def test_another_protocol_disturbs_nobody(self, harness: ProtocolHarness, greeted: bool) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                _, other = await harness.greeted(env)
                for said in (*STRANGERS, *harness.hostile):
                    await self._say(env, (harness.greeting if greeted else b"") + said)
                    await in_time(other.ask)
                await wait_disconnected(broker, 1)

        simulate(scenario)

    @pytest.mark.parametrize("seed", range(8))
    def test_arbitrary_bytes_disturb_nobody(self, harness: ProtocolHarness, seed: int) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                _, other = await harness.greeted(env)
                for _ in range(15):
                    await self._say(env, damaged(harness.greeting + 3 * harness.request, env.rng))
                await in_time(other.ask)
                await wait_disconnected(broker, 1)

        simulate(scenario, seed)

    def test_a_client_that_disconnects_halfway_leaves_nothing_behind(self, harness: ProtocolHarness) -> None:
        dialogue = harness.greeting + 2 * harness.request

        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                _, other = await harness.greeted(env)
                for place in range(0, len(dialogue), -(-len(dialogue) // CUTS_MAX)):
                    await self._say(env, dialogue[:place], wait_s=0.0)
                await wait_disconnected(broker, 1)
                await in_time(other.ask)

        simulate(scenario)

    def test_a_silent_connection_is_closed(self, harness: ProtocolHarness) -> None:
        if harness.silence_s_max is None:
            return

        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                assert harness.silence_s_max is not None
                silent = await env.net.connect(ADDRESS)
                slow = await env.net.connect(ADDRESS)
                await slow.send([harness.greeting[: len(harness.greeting) // 2]])
                with trio.fail_after(harness.silence_s_max):
                    await until_ended(silent)
                    await until_ended(slow)
                await wait_disconnected(broker, 0)

        simulate(scenario)

    @staticmethod
    async def _say(env: SimEnv, said: bytes, wait_s: float = 1.0) -> None:
        """Connect, send bytes, wait a little, and leave."""
        stream = await env.net.connect(ADDRESS)
        with suppress(ConnectionLost), trio.move_on_after(PATIENCE_S):
            await stream.send([said])
        with trio.move_on_after(wait_s):
            await until_ended(stream)
        await stream.aclose()

    # --- memory ------------------------------------------------------------------------------------------------------

    def test_bytes_without_end_fill_no_memory(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                _, other = await harness.greeted(env)
                for begun in harness.floods:
                    for greeting in (b"", harness.greeting):
                        with memory_below(harness.memory_bytes_max):
                            await flood(env, greeting + begun, b"a" * FLOOD_CHUNK_BYTES)
                await in_time(other.ask)
                await wait_disconnected(broker, 1)

        simulate(scenario)

    def test_a_client_that_never_reads_fills_no_memory(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                _, other = await harness.greeted(env)
                with memory_below(harness.memory_bytes_max):
                    many = max(1, FLOOD_CHUNK_BYTES // max(1, len(harness.request)))
                    await flood(env, harness.greeting, harness.request * many)
                await in_time(other.ask)
                await wait_disconnected(broker, 1)

        simulate(scenario)

    # --- the end -----------------------------------------------------------------------------------------------------

    def test_a_client_that_waits_for_nothing_does_not_hold_up_a_stop(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                stream, peer = await harness.greeted(env)
                await in_time(peer.ask)
                with trio.fail_after(DRAIN_S / 2):
                    await broker.drain()
                await in_time(lambda: until_ended(stream))
                await wait_disconnected(broker, 0)

        simulate(scenario)

    def test_a_stop_ends_every_connection_in_time(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with harness.broker(env) as broker:
                idle, _ = await harness.greeted(env)
                new = await env.net.connect(ADDRESS)
                half = await env.net.connect(ADDRESS)
                await half.send([harness.greeting + harness.request[: len(harness.request) // 2]])
                await env.clock.sleep(0.1)
                with trio.fail_after(DRAIN_S + 1):
                    await broker.drain()
                with trio.fail_after(PATIENCE_S):
                    for stream in (idle, new, half):
                        await until_ended(stream)
                await wait_disconnected(broker, 0)

        simulate(scenario)

    def test_a_broker_that_is_cancelled_waits_for_no_connection(self, harness: ProtocolHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            with trio.move_on_after(1) as scope:
                async with harness.broker(env):
                    stream, peer = await harness.greeted(env)
                    await in_time(peer.ask)
                    await stream.send([harness.request[: len(harness.request) // 2]])
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            assert trio.current_time() < PATIENCE_S

        simulate(scenario)


def simulate(scenario: Callable[[SimEnv], Awaitable[None]], seed: int = 0) -> None:
    """Run a scenario in simulated time; a scenario that hangs ends within a simulated hour."""
    run_simulation(seed, scenario, virtual_s_max=3_600)


async def in_time(work: Callable[[], Awaitable[int | None]]) -> int:
    """Run work that is due. Raises TooSlowError."""
    with trio.fail_after(PATIENCE_S):
        return await work() or 0


async def until_ended(stream: Stream) -> None:
    """Read and discard until the other side has ended the connection."""
    scratch = memoryview(bytearray(1 << 16))
    with suppress(ConnectionLost):
        while await stream.receive_into(scratch):
            pass


async def wait_disconnected(broker: Broker, left: int) -> None:
    """Wait until at most `left` connections are open. Raises AssertionError."""
    with trio.move_on_after(4 * PATIENCE_S):
        while open_connections(broker) != left:
            await broker.env.clock.sleep(0.1)
    assert open_connections(broker) == left, f"{open_connections(broker)} connections, not {left}"


def open_connections(broker: Broker) -> int:
    """The number of connections, including monitoring ones."""
    return sum(len(listener.open) for listener in broker.connections.traffic.values())


async def flood(env: SimEnv, begun: bytes, chunk: bytes) -> None:
    """Send without reading, up to a limit, or until the connection blocks or ends."""
    stream = await env.net.connect(ADDRESS)
    with suppress(ConnectionLost), trio.move_on_after(PATIENCE_S):
        await stream.send([begun])
        for _ in range(FLOOD_BYTES // len(chunk)):
            await stream.send([chunk])
    await stream.aclose()


def damaged(dialogue: bytes, rng: Rng) -> bytes:
    """A client's dialogue, slightly or badly damaged."""
    kind = rng.integer(4)
    if kind == 0 or not dialogue:
        return rng.bytes(1 + rng.integer(2_000))
    place = rng.integer(len(dialogue))
    if kind == 1:
        return dialogue[:place] + rng.bytes(rng.integer(200)) + dialogue[place:]
    if kind == 2:
        return dialogue[:place] + dialogue[place + 1 + rng.integer(8) :]
    flipped = bytearray(dialogue)
    for _ in range(1 + rng.integer(4)):
        flipped[rng.integer(len(flipped))] ^= 1 << rng.integer(8)
    return bytes(flipped)


@contextmanager
def memory_below(bytes_max: int) -> Iterator[None]:
    """Assert that Python's memory never grows by more than `bytes_max`."""
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= bytes_max, f"{peak:,} bytes were held, more than {bytes_max:,}"
