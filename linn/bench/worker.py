"""Worker process of `linn bench soak --producers`: many producers, each with its own connection.

A lean client, which leaves the processors to the broker: one loop for all connections, and batches built in advance.
Until its batch is confirmed a producer accumulates records at its rate, as a client that lingers does; the longer it
waits, the larger its next batch is.

Laws: each producer has one batch in flight. The worker ends when its stdin is closed, in any state, and when its time
is up. It prints one JSON object a line: `connected`, a `sample` every second, and in the end `result`.
"""

from __future__ import annotations

import errno
import heapq
import json
import math
import os
import resource
import select
import socket
import sys
import time
from collections import Counter
from typing import Any

import msgspec

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.env.address import parse_address
from linn.core.env.real.file_limits import raise_file_limit
from linn.core.errors.codes import error_from_code
from linn.core.errors.tree import LinnError
from linn.wire import messages as m
from linn.wire.connection import Connection, check_welcome, frames_of, hello
from linn.wire.receive_buffers import SHARED_BYTES_MAX, ReceiveBuffers

BATCH_BYTES_MAX = 512 << 10
"""Largest batch of a producer; smaller where a limit of the broker demands it."""
CONNECTING_MAX = 500
"""Connections that are opened concurrently."""
CONNECT_S = 60.0
"""Time limit for opening all connections."""
LAST_ANSWERS_S = 10.0
"""Time limit for the last confirmations."""
BUCKET_FACTOR = 1.1
"""Growth factor of the histogram of round trips, whose bounds start at a microsecond."""
_SAMPLE_S = 1.0
_POLL_S = 0.05


class LoadPlan(msgspec.Struct, frozen=True):
    """Load of one worker, as its coordinator sends it."""

    address: str
    topic: str
    producers: int
    rate: float
    """Records a second of each producer."""
    size: int
    linger_s: float
    duration_s: float
    source: str | None
    """Address to connect from; None: any."""


class _Producer:
    """A connection, and its batch in flight."""

    __slots__ = ("begun_at", "connection", "in_flight", "is_late", "number", "sent_at", "socket", "unsent")

    def __init__(self, connected: socket.socket, free: ReceiveBuffers) -> None:
        self.socket = connected
        self.number = connected.fileno()
        """Descriptor of the socket; -1 after the connection is lost."""
        self.connection = Connection(free)
        self.begun_at = 0.0
        """Start of the accumulation of records."""
        self.sent_at = 0.0
        self.in_flight = 0
        """Unconfirmed records."""
        self.is_late = False
        """True while the next batch waits for the confirmation of the previous one."""
        self.unsent = memoryview(b"")


class LoadWorker:
    """Producers of one process."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._free = ReceiveBuffers(SHARED_BYTES_MAX)
        self._producers: dict[int, _Producer] = {}
        self._epoll = select.epoll()
        self._due: list[tuple[float, int]] = []
        """Heap of (due time of the next batch, descriptor)."""
        self._batches: list[tuple[int, bytes]] = []
        self._begun_at = 0.0
        self._ends_at = math.inf
        self._confirmed = 0
        self._publishes = 0
        self._blocked = 0
        self._lost = 0
        self._errors: Counter[str] = Counter()
        self._round_trips: Counter[int] = Counter()

    # --- connecting ---

    def connect(self) -> None:
        """Open all connections. Raises LinnError, OSError, TimeoutError."""
        deadline = time.monotonic() + CONNECT_S
        left, waiting = self._plan.producers, 0
        greeting = b"".join(map(bytes, frames_of(hello("linn-bench"), 1)))
        while left or waiting:
            while left and waiting < CONNECTING_MAX:
                self._begin_connect()
                left, waiting = left - 1, waiting + 1
            ready = self._epoll.poll(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{left + waiting:,} connections were not let in within {CONNECT_S:g} s")
            for number, events in ready:
                producer = self._producers[number]
                if events & select.EPOLLOUT:
                    self._raise_failed(producer.socket)
                    producer.socket.send(greeting)
                    self._epoll.modify(number, select.EPOLLIN)
                elif self._is_welcome(producer):
                    waiting -= 1

    def _begin_connect(self) -> None:
        place = parse_address(self._plan.address)
        if isinstance(place, str):
            made, where = socket.socket(socket.AF_UNIX), place
            made.connect(where)  # A Unix socket has no connect that goes on by itself.
            made.setblocking(False)
        else:
            family, kind, _, _, sockaddr = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
            made = socket.socket(family, kind)
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._plan.source is not None:
                made.bind((self._plan.source, 0))
            refused = made.connect_ex(sockaddr)
            if refused not in (0, errno.EINPROGRESS):
                raise OSError(refused, os.strerror(refused))
        self._producers[made.fileno()] = _Producer(made, self._free)
        self._epoll.register(made, select.EPOLLOUT)

    @staticmethod
    def _raise_failed(connected: socket.socket) -> None:
        failed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))

    def _is_welcome(self, producer: _Producer) -> bool:
        count = producer.socket.recv_into(producer.connection.buffer())
        if not count:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the broker lets no more in: see its connections_max")
        for event in producer.connection.received(count):
            if isinstance(event.message, m.Failed):
                raise error_from_code(event.message.code, event.message.text)
            welcome = check_welcome(event.message)
            producer.connection.allow_frames(welcome.frame_bytes_max)
            producer.connection.release()
            if not self._batches:
                self._make_batches(min(BATCH_BYTES_MAX, welcome.batch_bytes_max, welcome.frame_bytes_max) // 2)
            return True
        return False

    def _make_batches(self, bytes_max: int) -> None:
        """Build publishes of all sizes: the records of one linger time, twice as many, and so on."""
        plan = self._plan
        records = max(1, int(plan.rate * plan.linger_s))
        value = os.urandom(plan.size)
        while not self._batches or records * (plan.size + 16) <= bytes_max:
            batch = build_from_records([Record(value=value) for _ in range(records)], base_id=1)
            frames = b"".join(map(bytes, frames_of(m.Publish(plan.topic), 1, [batch])))
            self._batches.append((records, frames))
            records *= 2

    # --- the load ---

    def run(self, stdin: int) -> None:
        """Publish until the time is up or stdin is closed."""
        plan, now = self._plan, time.monotonic()
        self._begun_at, self._ends_at = now, now + plan.duration_s
        batch_s = self._batches[0][0] / plan.rate
        for place, producer in enumerate(self._producers.values()):
            # The first batches are spread evenly over the time of one.
            producer.begun_at = now - batch_s + place / len(self._producers) * batch_s
            self._plan_next(producer)
        self._epoll.register(stdin, select.EPOLLIN)
        sample_at, stops_at = now + _SAMPLE_S, self._ends_at + LAST_ANSWERS_S
        while now < stops_at and (now < self._ends_at or self._is_waiting()):
            self._send_due(now)
            until = min(self._due[0][0] if self._due else math.inf, sample_at, now + _POLL_S)
            for number, events in self._epoll.poll(max(0.0, until - now)):
                if number == stdin:
                    return
                if number in self._producers:
                    self._handle(self._producers[number], events)
            now = time.monotonic()
            if now >= sample_at:
                sample_at = now + _SAMPLE_S
                send({"sample": self._counts()})

    def _is_waiting(self) -> bool:
        return any(producer.in_flight for producer in self._producers.values())

    def _send_due(self, now: float) -> None:
        if now >= self._ends_at:
            self._due.clear()
            return
        while self._due and self._due[0][0] <= now:
            producer = self._producers.get(heapq.heappop(self._due)[1])
            if producer is not None and producer.in_flight:
                producer.is_late = True
            elif producer is not None:
                self._send(producer, now)

    def _send(self, producer: _Producer, now: float) -> None:
        """Send the accumulated records; what exceeds the largest batch is not produced at all."""
        accumulated = (now - producer.begun_at) * self._plan.rate + 0.5
        count, frames = self._batches[0]
        for larger in self._batches[1:]:
            if larger[0] > accumulated:
                break
            count, frames = larger
        is_full = count == self._batches[-1][0]
        producer.begun_at = now if is_full else min(now, producer.begun_at + count / self._plan.rate)
        producer.sent_at, producer.in_flight, producer.unsent = now, count, memoryview(frames)
        self._publishes += 1
        self._push(producer)
        self._plan_next(producer)

    def _plan_next(self, producer: _Producer) -> None:
        if producer.number >= 0:
            due_at = producer.begun_at + self._batches[0][0] / self._plan.rate
            heapq.heappush(self._due, (due_at, producer.number))

    def _push(self, producer: _Producer) -> None:
        try:
            sent = producer.socket.send(producer.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose(producer)
            return
        producer.unsent = producer.unsent[sent:]
        if producer.unsent:
            self._blocked += 1
            self._epoll.modify(producer.socket, select.EPOLLIN | select.EPOLLOUT)

    def _handle(self, producer: _Producer, events: int) -> None:
        if events & select.EPOLLOUT:
            self._epoll.modify(producer.socket, select.EPOLLIN)
            self._push(producer)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._receive(producer)

    def _receive(self, producer: _Producer) -> None:
        connection = producer.connection
        try:
            count = producer.socket.recv_into(connection.buffer())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._lose(producer)
            return
        for event in connection.received(count):
            self._answered(producer, event.message)
        connection.release()

    def _answered(self, producer: _Producer, message: m.Message) -> None:
        now = time.monotonic()
        if isinstance(message, m.Published) and (refused := message.placements[0].refused):
            self._errors[refused[0].code] += 1  # Its messages are alike: all are refused.
        elif isinstance(message, m.Published):
            if now <= self._ends_at:
                self._confirmed += producer.in_flight
            self._round_trips[bucket((now - producer.sent_at) * 1000)] += 1
        elif isinstance(message, m.Failed):
            self._errors[message.code] += 1
        else:
            return
        producer.in_flight = 0
        if producer.is_late and now < self._ends_at:
            producer.is_late = False
            self._send(producer, now)

    def _lose(self, producer: _Producer) -> None:
        if self._producers.pop(producer.number, None) is not None:
            producer.number = -1
            producer.socket.close()
            producer.in_flight = 0
            self._lost += 1

    # --- the result ---

    def _counts(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"confirmed": self._confirmed, "processor_s": used.ru_utime + used.ru_stime}

    def result(self) -> dict[str, Any]:
        """Return all counts."""
        return {
            **self._counts(),
            "seconds": min(time.monotonic(), self._ends_at) - self._begun_at,
            "publishes": self._publishes,
            "blocked": self._blocked,
            "lost": self._lost,
            "unanswered": sum(producer.in_flight > 0 for producer in self._producers.values()),
            "errors": dict(self._errors),
            "round_trips": dict(self._round_trips),
        }


def bucket(took_ms: float) -> int:
    """Return the number of the histogram bucket of a round trip."""
    return max(0, math.ceil(math.log(max(took_ms, 1e-3) * 1000, BUCKET_FACTOR)))


def bound_ms(number: int) -> float:
    """Return the upper bound of a bucket."""
    return float(BUCKET_FACTOR**number / 1000)


def send(message: dict[str, Any]) -> None:
    """Send a message to the coordinator. Raises BrokenPipeError."""
    print(json.dumps(message), flush=True)


def main() -> None:
    """Run the plan on stdin; end at once when the coordinator is gone."""
    try:
        _work()
    except BrokenPipeError:
        os._exit(0)  # Without the flush of stdout, which would fail again.


def _work() -> None:
    """Read the plan, connect, wait for the start, run, and send the result. Raises BrokenPipeError."""
    raise_file_limit()
    worker = LoadWorker(msgspec.json.decode(sys.stdin.buffer.readline(), type=LoadPlan))
    try:
        worker.connect()
    except (LinnError, OSError) as error:
        text = error.text if isinstance(error, LinnError) else error.strerror or str(error)
        send({"error": text, "errno": getattr(error, "errno", None)})
        return
    send({"connected": True})
    if sys.stdin.buffer.readline():
        worker.run(sys.stdin.fileno())
        send({"result": worker.result()})


if __name__ == "__main__":
    main()
