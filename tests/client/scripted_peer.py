"""A small peer that speaks the native protocol, to do to a client what no broker does on demand.

It stores what is published in one log per topic, and a test changes single answers with `on`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import anyio
from anyio.abc import SocketStream

from linn.client.client import Client
from linn.core.batch.batch import RecordBatch
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of

Answer = Callable[["Session", Event], "m.Message | None"]


class Session:
    """One connection of a client's."""

    def __init__(self, peer: Peer, stream: SocketStream) -> None:
        self.peer = peer
        self.stream = stream
        self.sending = anyio.Lock()

    async def send(self, message: m.Message, correlation: int = 0, batches: list[RecordBatch] | None = None) -> None:
        async with self.sending:
            await self.stream.send(b"".join(bytes(frame) for frame in frames_of(message, correlation, batches)))

    async def run(self) -> None:
        connection = Connection()
        connection.allow_frames(64 << 20)
        async with self.stream:
            try:
                while True:
                    await self.peer.reading.wait()
                    data = await self.stream.receive(64 << 10)
                    while data:
                        space = connection.buffer()
                        part, data = data[: len(space)], data[len(space) :]
                        space[: len(part)] = part
                        for event in connection.received(len(part)):
                            await self.handle(event)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def handle(self, event: Event) -> None:
        self.peer.events.append(event)
        answer = self.peer.answers.get(type(event.message), lambda session, event: None)(self, event)
        if answer is not None:
            await self.send(answer, event.correlation)
        self.peer.changed.set()
        self.peer.changed = anyio.Event()


class Peer:
    """Listens on a free port. `answers` by class of message; None: no answer."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sessions: list[Session] = []
        self.logs: dict[str, list[bytes | None]] = {}
        self.changed = anyio.Event()
        self.reading = anyio.Event()
        self.reading.set()
        self.partitions = 1
        self.message_bytes_max = 1 << 20
        self.keepalive_ms = 0
        self.url = ""
        self.answers: dict[type[m.Message], Answer] = {
            m.Hello: self.welcome,
            m.Describe: self.describe,
            m.Publish: self.publish,
            m.Subscribe: lambda session, event: m.Subscribed(1, m.ConsumerKind.SHARED, 30_000),
            m.Unsubscribe: lambda session, event: m.Done(),
            m.Settle: lambda session, event: m.Settled([]),
            m.Credit: lambda session, event: m.Done() if event.correlation else None,
            m.Ping: lambda session, event: m.Pong(),
        }

    def welcome(self, session: Session, event: Event) -> m.Message:
        limits = (64 << 20, 8 << 20, self.message_bytes_max, self.keepalive_ms, 64, 16)
        return m.Welcome(1, ["zstd"], "peer", *limits)

    def describe(self, session: Session, event: Event) -> m.Message:
        assert isinstance(event.message, m.Describe)
        partitions = [m.PartitionInfo(0, 0, 0)] * self.partitions
        return m.Description(
            "peer", [], [m.TopicInfo(name, "queue", partitions, "", 0) for name in event.message.topics]
        )

    def publish(self, session: Session, event: Event) -> m.Message:
        publish = event.message
        assert isinstance(publish, m.Publish)
        log = self.logs.setdefault(f"{publish.target}/{publish.partition}", [])
        offset = len(log)
        for batch in event.batches:
            log += [record.value for record in batch.records()]
        return m.Published([m.Placement(publish.partition, offset, len(log) - offset)])

    def messages(self, kind: type[m.Message]) -> list[m.Message]:
        """The received messages of one class, in order."""
        return [event.message for event in self.events if type(event.message) is kind]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a message makes `condition` true."""
        while not condition():
            await self.changed.wait()

    async def cut(self) -> None:
        """Cut all connections."""
        for session in self.sessions:
            await session.stream.aclose()
        self.sessions.clear()

    async def accept(self, stream: SocketStream) -> None:
        session = Session(self, stream)
        self.sessions.append(session)
        await session.run()


@asynccontextmanager
async def running_peer() -> AsyncIterator[Peer]:
    peer = Peer()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        peer.url = f"linn://127.0.0.1:{port}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, peer.accept)
            yield peer
            tasks.cancel_scope.cancel()


@contextmanager
def impatient(client: Client, request_timeout_s: float = 0.1) -> Iterator[None]:
    """Let a client wait no longer than this for an answer that never comes, and for all others as long as it did.

    It looks at the time as often as it did before: a quarter of its own `request_timeout_s` may pass.
    """
    patient = client.options
    client._connector.options = replace(patient, request_timeout_s=request_timeout_s)
    try:
        yield
    finally:
        client._connector.options = patient
