"""TCP proxies between brokers on loopback, each direction of each pair of which can be cut.

A cut loses no byte and closes no connection: bytes wait, as they do in a network that drops packets, and arrive when
the cut is healed. A connection is known by the process that dialed it, which Linux tells in `/proc`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest
import trio
from ports import free_ports

POLL_S = 0.01
CHUNK_BYTES = 65536
TCP_TABLE = Path("/proc/net/tcp")


class PeerProxies:
    """One proxy before the listener for brokers of each node."""

    def __init__(self, numbers: range) -> None:
        ports = free_ports(len(numbers))
        self._backends = dict(zip(numbers, ports, strict=True))
        self._proxies: dict[int, int] = {}
        self._cuts: set[tuple[int, int]] = set()
        self.pids: Callable[[], Mapping[int, int]] = dict
        """Returns the processes of brokers by their numbers; set by the cluster."""

    def lines(self, number: int) -> str:
        """The addresses of a broker's listener for others, in TOML: they are told of the proxy."""
        backend, proxy = self._backends[number], self._proxies[number]
        return f'address = "127.0.0.1:{backend}"\nadvertise = "127.0.0.1:{proxy}"'

    def cut(self, *directions: tuple[int, int]) -> None:
        """Hold all bytes up that one node sends to another, for each (from, to)."""
        self._cuts.update(directions)

    def heal(self) -> None:
        """Let everything through."""
        self._cuts.clear()

    async def run(self, is_over: Event, ready: Event) -> None:
        """Serve until it is over."""
        async with trio.open_nursery() as nursery:
            for number in self._backends:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                self._proxies[number] = listener.socket.getsockname()[1]
                serve = partial(self._serve, number)
                nursery.start_soon(partial(trio.serve_listeners, serve, [listener]))
            ready.set()
            while not is_over.is_set():
                await trio.sleep(POLL_S)
            nursery.cancel_scope.cancel()

    async def _serve(self, number: int, dialed: trio.SocketStream) -> None:
        dialer = self._dialer(dialed.socket.getpeername()[1], self._proxies[number])
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            listener = await trio.open_tcp_stream("127.0.0.1", self._backends[number])
            async with dialed, listener, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, dialed, listener, (dialer, number), nursery.cancel_scope)
                nursery.start_soon(self._pump, listener, dialed, (number, dialer), nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, target: trio.SocketStream, way: tuple[int, int], scope: trio.CancelScope
    ) -> None:
        """Pass bytes on while the way is not cut; the end of either side, which is held up as well, ends both."""
        data: bytes | bytearray = b"?"
        while data:
            try:
                data = await source.receive_some(CHUNK_BYTES)
            except trio.BrokenResourceError:
                data = b""
            while way in self._cuts:
                await trio.sleep(POLL_S)
            if data:
                try:
                    await target.send_all(data)
                except trio.BrokenResourceError:
                    break
        scope.cancel()

    def _dialer(self, port: int, proxy: int) -> int:
        """The number of the broker that has connected from a port; 0: none, any more."""
        ends = f"0100007F:{port:04X} 0100007F:{proxy:04X}"
        inodes = [line.split()[9] for line in TCP_TABLE.read_text().splitlines() if ends in line]
        for number, pid in self.pids().items():
            with suppress(OSError):
                opened = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
                if any(f"socket:[{inode}]" in opened for inode in inodes):
                    return number
        return 0


@contextmanager
def peer_proxies(count: int = 3) -> Iterator[PeerProxies]:
    """Run proxies for brokers with the numbers from 1 while the block runs; skips the test where /proc is missing."""
    if not TCP_TABLE.exists():
        pytest.skip("connections can't be told apart: there is no /proc/net/tcp")
    proxies, is_over, ready = PeerProxies(range(1, count + 1)), Event(), Event()
    thread = Thread(target=partial(trio.run, proxies.run, is_over, ready), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield proxies
    finally:
        is_over.set()
        thread.join(20)
