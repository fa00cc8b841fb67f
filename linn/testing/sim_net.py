"""SimNet: a network between simulated nodes in one process, in virtual time, with delays and chunks by a seed.

Laws: bytes of one direction arrive in order and are never damaged. They may arrive in any chunks. A direction holds a
bounded number of bytes, in flight and unread together; then its sender waits. A cut link holds back everything,
including the end of a connection, and loses nothing, as TCP does until a side gives up; a cut may affect one direction
only. A severed connection is reset for both sides, and any part of the bytes in flight may be lost, even half a frame.
A connection closed with bytes unread is reset. A process that is killed closes its connections; a machine that loses
power goes silent, and its connections are reset when the next process starts there. Use of a dead node raises
`SimulatedCrash`.

All nodes share one space of addresses; a listener is found by the exact text of its address.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

import trio

from linn.core.batch.flat_message import Buffer
from linn.core.env.address import parse_address
from linn.core.env.env import AcceptedStream, Interrupted, Listener, Stream
from linn.core.env.file_region import Sendable
from linn.core.errors.tree import AddressInUse, ConnectFailed, ConnectionLost
from linn.testing.sim_device import LOST_POWER, WAS_KILLED, SimulatedCrash
from linn.testing.sim_file import SimFileRegion
from linn.testing.sim_pipe import Link, Pipe

_BACKLOG = 128
_FREE_PORT_FIRST = 40_000
_CONNECT_TIMEOUT_S = 10.0


class SimStream:
    """One end of a simulated connection."""

    def __init__(self, node: SimNode, incoming: Pipe, outgoing: Pipe, peer: str) -> None:
        self._node = node
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False
        self._receiving = self._interrupted = False
        self.peer = peer
        node.streams[self] = None

    def _check(self) -> None:
        self._node.check_alive()
        if self._closed:
            raise ConnectionLost(f"the connection to {self.peer} is lost: it was closed on this side")

    async def receive_into(self, buffer: memoryview) -> int:
        assert len(buffer), "there is no room to receive into"
        self._receiving, self._interrupted = True, False
        try:
            await trio.lowlevel.checkpoint()
            while True:
                self._check()
                try:
                    count = self._incoming.take(buffer)
                except ConnectionLost as error:
                    raise ConnectionLost(f"the connection to {self.peer} is lost: {error.text}") from error
                if count is not None:
                    return count
                if self._interrupted:
                    raise Interrupted
                await self._incoming.wait_readable()
        finally:
            self._receiving = False

    def peer_uid(self) -> int | None:
        return None

    def interrupt(self) -> None:
        if self._receiving:
            self._interrupted = True
            self._incoming.changed.unpark_all()

    async def wait_readable(self) -> None:
        self._receiving, self._interrupted = True, False
        try:
            await trio.lowlevel.checkpoint()
            self._check()
            while not self._incoming.is_readable():
                if self._interrupted:
                    raise Interrupted
                await self._incoming.wait_readable()
                self._check()
        finally:
            self._receiving = False

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        self._check()
        count = self._incoming.take(buffers[0])
        if count != len(buffers[0]) or len(buffers) == 1:
            return count
        return count + (self._incoming.take(buffers[1]) or 0)

    def send_nowait(self, sendables: Sequence[Sendable]) -> int:
        """Send nothing half of the time, and otherwise a part if there is little room."""
        self._check()
        if self._outgoing.writer_learned_of_loss():
            raise ConnectionLost(f"the connection to {self.peer} is lost: Broken pipe")
        data = b"".join(self._content(item) for item in sendables)
        count = min(len(data), self._outgoing.room()) if self._outgoing.flips_coin() else 0
        if count:
            self._outgoing.put(data[:count])
        return count

    async def send(self, sendables: Sequence[Sendable]) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        for item in sendables:
            rest = memoryview(self._content(item))
            while len(rest):
                room = await self._room()
                self._outgoing.put(bytes(rest[:room]))
                rest = rest[room:]

    def _content(self, item: Sendable) -> Buffer:
        if isinstance(item, Buffer):
            return item
        assert isinstance(item, SimFileRegion), "a stream sends regions of its own Env's files"
        content = item.content()
        if len(content) < len(item):
            raise ConnectionLost(f"the connection to {self.peer} is closed: a file was cut short while it was sent")
        return content

    async def _room(self) -> int:
        """Wait for room to send into."""
        while True:
            self._check()
            if self._outgoing.writer_learned_of_loss():
                raise ConnectionLost(f"the connection to {self.peer} is lost: Broken pipe")
            room = self._outgoing.room()
            if room > 0:
                return room
            await self._outgoing.wait_writable()

    async def aclose(self) -> None:
        self.close()

    def close(self, *, is_reset: bool = False) -> None:
        """Close as `aclose` does, without awaiting."""
        if not self._closed:
            self._closed = True
            self._node.streams.pop(self, None)
            has_unread = self._incoming.abandon()
            self._outgoing.finish(is_reset=is_reset or has_unread)
            self.wake()

    def wake(self) -> None:
        """Wake waiting tasks after a change of their node."""
        self._incoming.changed.unpark_all()
        self._outgoing.changed.unpark_all()


class SimListener:
    """A bound address of a node."""

    def __init__(self, node: SimNode, address: str) -> None:
        self.node = node
        self.address = address
        self._waiting: deque[SimStream] = deque()
        self._closed = False
        self.changed = trio.lowlevel.ParkingLot()
        node.listeners[self] = None

    def offer(self, stream: SimStream) -> None:
        self._waiting.append(stream)
        self.changed.unpark_all()

    def is_full(self) -> bool:
        return len(self._waiting) >= _BACKLOG

    async def accept(self) -> AcceptedStream:
        await trio.lowlevel.checkpoint()
        while True:
            self.node.check_alive()
            if self._closed:
                raise ConnectionLost(f"the listener at {self.address} is closed")
            if self._waiting:
                return self._waiting.popleft()
            await self.changed.park()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.node.listeners.pop(self, None)
        self.node.world.listeners.pop(self.address, None)
        # Without power the waiting clients get no reset.
        if self.node.death != LOST_POWER:
            for stream in self._waiting:
                stream.close(is_reset=True)
        self._waiting.clear()
        self.changed.unpark_all()


class SimNode:
    """Network as seen by one process of a node: the port `Net`."""

    def __init__(self, world: SimNet, name: str) -> None:
        self.world = world
        self.name = name
        self.death: str | None = None
        self.streams: dict[SimStream, None] = {}
        self.listeners: dict[SimListener, None] = {}

    def check_alive(self) -> None:
        if self.death is not None:
            raise SimulatedCrash(f"the simulated machine {self.death}")

    def kill(self) -> None:
        """End the process: the kernel closes its connections and listeners."""
        if self.death is None:
            self._die(WAS_KILLED)
            for stream in list(self.streams):
                stream.close()

    def lose_power(self) -> None:
        """Go silent. Peers notice when `SimNet.node` starts the next process of this name."""
        if self.death is None:
            self._die(LOST_POWER)
            self.world.silent.setdefault(self.name, []).extend(self.streams)

    def _die(self, death: str) -> None:
        self.death = death
        for listener in list(self.listeners):
            listener.close()
        for stream in self.streams:
            stream.wake()

    async def listen(self, address: str, *, socket_mode: int = 0o600, shares_port: bool = False) -> Listener:
        place = parse_address(address)
        await trio.lowlevel.checkpoint()
        self.check_alive()
        if not isinstance(place, str) and place[1] == 0:
            address = f"{address.rpartition(':')[0]}:{self.world.free_port()}"
        if address in self.world.listeners:
            raise AddressInUse(f"can't listen at {address}: Address already in use")
        listener = SimListener(self, address)
        self.world.listeners[address] = listener
        return listener

    async def connect(self, address: str) -> Stream:
        parse_address(address)
        await trio.lowlevel.checkpoint()
        self.check_alive()
        listener = self.world.listeners.get(address)
        if listener is not None:
            await self._reach(listener, address)
            self.check_alive()
        if listener is None or self.world.listeners.get(address) is not listener or listener.is_full():
            raise ConnectFailed(f"can't connect to {address}: Connection refused")
        return self.world.join(self, listener)

    async def _reach(self, listener: SimListener, address: str) -> None:
        """Wait for a round trip and, if necessary, for a cut link to heal."""
        link = self.world.link(self.name, listener.node.name)
        with trio.move_on_after(_CONNECT_TIMEOUT_S):
            while link.is_cut:
                await link.changed.park()
            await trio.sleep(2 * self.world.rng.uniform(*link.delay_s))
        if link.is_cut:
            raise ConnectFailed(f"can't connect to {address}: Connection timed out")


class SimNet:
    """Network of all nodes: their links, and the listeners by address."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(f"{seed}/net")
        self.listeners: dict[str, SimListener] = {}
        self.silent: dict[str, list[SimStream]] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._port_next = _FREE_PORT_FIRST
        self._connection_count = 0

    def node(self, name: str) -> SimNode:
        """The network for a new process of the node `name`; resets connections left by a power loss there."""
        for stream in self.silent.pop(name, ()):
            stream.close(is_reset=True)
        return SimNode(self, name)

    def link(self, a: str, b: str) -> Link:
        return self._links.setdefault((min(a, b), max(a, b)), Link())

    def cut(self, a: str, b: str) -> None:
        """Hold back everything between two nodes until `heal`."""
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Hold back everything that one node sends to another until `heal`; no new connection is made between them."""
        link = self.link(sender, receiver)
        link.cut_senders[sender] = None
        link.wake()

    def heal(self, a: str, b: str) -> None:
        """End every cut between two nodes."""
        link = self.link(a, b)
        link.cut_senders.clear()
        link.wake()

    def sever(self, a: str, b: str) -> None:
        """Reset every connection between two nodes, losing some of the bytes in flight; also across a cut."""
        for pipe in list(self.link(a, b).pipes):
            pipe.sever()

    def slow(self, a: str, b: str, *, delay_s: tuple[float, float], bytes_per_s: float = math.inf) -> None:
        """Change a link's range of delays and its throughput for later sends."""
        link = self.link(a, b)
        link.delay_s, link.bytes_per_s = delay_s, bytes_per_s

    def free_port(self) -> int:
        self._port_next += 1
        return self._port_next

    def join(self, client: SimNode, listener: SimListener) -> SimStream:
        """Connect a client's node to a listener; returns the client's end."""
        link = self.link(client.name, listener.node.name)
        server = listener.node.name
        there, back = Pipe(link, self.rng, client.name, server), Pipe(link, self.rng, server, client.name)
        self._connection_count += 1
        listener.offer(SimStream(listener.node, there, back, f"{client.name}:{self._connection_count}"))
        return SimStream(client, back, there, listener.address)
