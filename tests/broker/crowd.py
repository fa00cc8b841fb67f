"""A crowd of real connections from one process, which connect, send requests and close all at once."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from linn.core.batch.batch import RecordBatch
from linn.wire import messages as m
from linn.wire.connection import Connection, frames_of, hello

HELLO = b"".join(frames_of(hello("crowd"), 1))
CORRELATION = 7
ASK_AT_ONCE = 50
"""Or what the requests take while they are carried out would be measured instead of what connections keep."""


class Crowd:
    """Connections to one broker on loopback."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = (host, int(port))
        self._connections: dict[socket.socket, Connection] = {}

    def come(self, count: int, within_s: float = 60) -> None:
        """Connect all at once and wait until each is let in. Raises TimeoutError."""
        new = [socket.socket() for _ in range(count)]
        for one in new:
            one.setblocking(False)
            one.connect_ex(self._address)
            self._connections[one] = Connection()
        self._say(new, HELLO, 1, within_s)
        for one in new:
            self._connections[one].allow_frames(1 << 24)

    def ask(self, message: m.Message, batches: list[RecordBatch] | None = None, within_s: float = 60) -> None:
        """Send a request on each connection and wait for its answer, a few at a time. Raises TimeoutError."""
        said = b"".join(bytes(frame) for frame in frames_of(message, CORRELATION, batches))
        everybody = [*self._connections]
        for first in range(0, len(everybody), ASK_AT_ONCE):
            self._say(everybody[first : first + ASK_AT_ONCE], said, CORRELATION, within_s)

    def _say(self, to: list[socket.socket], said: bytes, correlation: int, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            for one in to:
                selector.register(one, selectors.EVENT_WRITE)
            left = len(to)
            while left:
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    raise TimeoutError(f"{left} of {len(to)} are not answered after {within_s:g} s")
                for key, events in ready:
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if events & selectors.EVENT_WRITE:
                        assert one.send(said) == len(said)
                        selector.modify(one, selectors.EVENT_READ)
                    elif self._is_answered(one, correlation):
                        selector.unregister(one)
                        left -= 1

    def _is_answered(self, one: socket.socket, correlation: int) -> bool:
        connection = self._connections[one]
        count = one.recv_into(connection.buffer())
        assert count, "the broker closed a connection"
        events = list(connection.received(count))
        assert not [event.message for event in events if isinstance(event.message, m.Failed)]
        return any(event.correlation == correlation for event in events)

    def leave(self) -> None:
        """Close all at once."""
        for one in self._connections:
            one.close()
        self._connections.clear()


@contextmanager
def crowd(address: str) -> Iterator[Crowd]:
    """Yield a crowd that is closed in the end, with as many descriptors as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = Crowd(address)
    try:
        yield made
    finally:
        made.leave()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
