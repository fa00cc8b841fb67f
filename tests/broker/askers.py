"""Clients in one process that send requests as fast as they are answered, and the count of each one's answers."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.wire import messages as m
from linn.wire.connection import Connection, frames_of, hello

CORRELATION = 7


class Wish(NamedTuple):
    """A request that one client repeats."""

    request: bytes
    under_way: int
    """Requests that it has not been answered yet, at any time."""


def wish(message: m.Message, under_way: int, batches: list[RecordBatch] | None = None) -> Wish:
    """A request that any client can make."""
    return Wish(b"".join(frames_of(message, CORRELATION, batches)), under_way)


class Asker:
    """A connection to a broker on loopback."""

    def __init__(self, address: str, wish: Wish) -> None:
        """Connect and say hello."""
        host, port = address.split(":")
        self.answered = 0
        self.socket = socket.create_connection((host, int(port)))
        self._wish = wish
        self._connection = Connection()
        self._unsent = b""
        self.socket.sendall(b"".join(frames_of(hello("asker"), 1)))
        while not list(self._connection.received(self.socket.recv_into(self._connection.buffer()))):
            pass
        self._connection.allow_frames(1 << 26)
        self.socket.setblocking(False)

    def begin(self) -> None:
        """Make the first requests."""
        self._ask(self._wish.under_way)

    def go_on(self) -> None:
        """Take what answers there are, and ask as often again."""
        count = self.socket.recv_into(self._connection.buffer())
        assert count, "the broker closed the connection"
        answers = [event.message for event in self._connection.received(count)]
        assert not any(isinstance(answer, m.Failed) for answer in answers), answers
        self.answered += len(answers)
        self._ask(len(answers))

    def _ask(self, requests: int) -> None:
        data = self._unsent + self._wish.request * requests
        try:
            self._unsent = data[self.socket.send(data) :]
        except BlockingIOError:
            self._unsent = data


def answered(address: str, wishes: Sequence[Wish], warm_up_s: float, for_s: float) -> list[int]:
    """The number of answers that each client gets in a time, after all of them have begun."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        askers = [Asker(address, wish) for wish in wishes]
        for asker in askers:
            stack.enter_context(asker.socket)
            selector.register(asker.socket, selectors.EVENT_READ, asker)
            asker.begin()
        _go_on(selector, warm_up_s)
        before = [asker.answered for asker in askers]
        _go_on(selector, for_s)
        return [asker.answered - count for asker, count in zip(askers, before, strict=True)]


def _go_on(selector: selectors.BaseSelector, for_s: float) -> None:
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        for key, _ in selector.select(0.1):
            key.data.go_on()
