"""ServedStore: a metadata store in another process of this machine, behind a `StoreServer`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import trio

from linn.core.env.env import Net
from linn.core.errors.codes import error_from_code
from linn.core.errors.metadata import LeaseLost, MetadataError, MetadataUnavailable, MetadataUnknown
from linn.core.errors.tree import ConnectFailed, ConnectionLost, LimitExceeded
from linn.core.metadata import served_messages as messages
from linn.core.metadata.message_stream import MessageStream
from linn.core.metadata.served_messages import ANSWER_BYTES_MAX, HELLO_BYTES_MAX, REQUEST_BYTES_MAX, REQUESTS_MAX
from linn.core.metadata.store import NO_LEASE, REMOVED, Changes, Snapshot, Stored

A = TypeVar("A", messages.Done, messages.Entries)
CHANGES_MAX = 128
"""Limit of the keys of a write: etcd's, so that no write fits this store alone."""

WRITES_MAX = REQUESTS_MAX // 2
"""Writes at a time. Others wait here, so that renewals get through when the store writes slowly."""


class ServedStore:
    """A `MetadataStore` behind an address.

    A lease ends at once when the connection on which it was granted is lost, and so when this process ends. No call
    has a time limit of its own: the caller has a cancel scope where the server may be stopped.
    """

    changes_max = CHANGES_MAX

    def __init__(self, address: str, net: Net, version: str) -> None:
        """Prepare; the first call connects. `version`: linn's, which must be the server's."""
        self._address = address
        self._net = net
        self._version = version
        self._dialing = trio.Lock()
        self._writing = trio.Semaphore(WRITES_MAX)
        self._link: _Link | None = None
        self._streams: dict[MessageStream, None] = {}
        """Open connections."""
        self._leases_granted = 0
        self._is_closed = False

    # --- the port ---

    async def load(self) -> Snapshot:
        """See `MetadataStore.load`."""
        link = await self._connected()
        return _snapshot(await link.ask(lambda number: messages.Load(number), messages.Entries))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[ServedWatch]:
        """See `MetadataStore.watch`."""
        stream = await self._dial(watches=True)
        try:
            watch = ServedWatch(stream)
            await watch.begin()
            yield watch
        finally:
            await self._close(stream)

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`."""
        if len(changes) > CHANGES_MAX or len(conditions) > CHANGES_MAX:
            raise LimitExceeded(f"a write to the metadata store has at most {CHANGES_MAX} keys and conditions")
        values = {key: value for key, value in changes.items() if value is not REMOVED}
        removed = [key for key, value in changes.items() if value is REMOVED]
        compared = dict(conditions)
        async with self._writing:
            link = await self._connected()
            known = link.lease(lease) if lease != NO_LEASE else NO_LEASE
            done = await link.ask(
                lambda number: messages.Put(number, values, removed, compared, known), messages.Done, is_write=True
            )
        return done.result

    async def grant_lease(self, ttl_s: float) -> int:
        """See `MetadataStore.grant_lease`."""
        link = await self._connected()
        done = await link.ask(lambda number: messages.Grant(number, ttl_s), messages.Done)
        self._leases_granted += 1
        link.leases[self._leases_granted] = done.result
        return self._leases_granted

    async def renew_lease(self, lease: int) -> None:
        """See `MetadataStore.renew_lease`."""
        link = await self._connected()
        known = link.lease(lease)
        await link.ask(lambda number: messages.Renew(number, known), messages.Done)

    async def revoke_lease(self, lease: int) -> None:
        """See `MetadataStore.revoke_lease`."""
        link = await self._connected()
        if lease in link.leases:
            known = link.leases[lease]
            await link.ask(lambda number: messages.Revoke(number, known), messages.Done, is_write=True)
            link.leases.pop(lease, None)

    async def aclose(self) -> None:
        """See `MetadataStore.aclose`. Its leases end at once; its watches are lost."""
        self._is_closed = True
        for stream in list(self._streams):
            await self._close(stream)

    # --- connections ---

    async def _connected(self) -> _Link:
        """Return the connection for requests, a new one if there is none. Raises MetadataUnavailable, MetadataError."""
        async with self._dialing:
            if self._link is None or not self._link.is_open():
                if self._link is not None:
                    await self._close(self._link.stream)
                self._link = None
                self._link = _Link(await self._dial(watches=False))
            return self._link

    async def _dial(self, *, watches: bool) -> MessageStream:
        """Connect and say hello. Raises MetadataUnavailable, MetadataError."""
        if self._is_closed:
            raise MetadataUnavailable("the metadata store was closed on this side")
        try:
            stream = MessageStream(await self._net.connect(self._address))
        except ConnectFailed as error:
            raise MetadataUnavailable(f"the metadata store can't be reached: {error.text}") from error
        self._streams[stream] = None
        try:
            await stream.send(messages.framed(messages.Hello(self._version, watches), HELLO_BYTES_MAX))
            if not watches:
                answer = await stream.receive(messages.ANSWER, ANSWER_BYTES_MAX)
                if answer != messages.Done(0):
                    raise _failure(answer)
        except BaseException as error:
            await self._close(stream)
            if isinstance(error, ConnectionLost):
                raise MetadataUnavailable(f"the metadata store is gone: {error.text}") from error
            raise
        return stream

    async def _close(self, stream: MessageStream) -> None:
        self._streams.pop(stream, None)
        await stream.aclose()


class ServedWatch:
    """A `Watch` over a connection of its own."""

    snapshot: Snapshot

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream

    async def begin(self) -> None:
        """Receive the snapshot. Raises MetadataUnavailable, MetadataError."""
        self.snapshot = _snapshot(await self._receive())

    async def next(self) -> Changes:
        """See `Watch.next`."""
        answer = await self._receive()
        entries = {key: None if stored is None else Stored(*stored) for key, stored in answer.entries.items()}
        return Changes(answer.revision, entries)

    async def _receive(self) -> messages.Entries:
        try:
            answer = await self._stream.receive(messages.ANSWER, ANSWER_BYTES_MAX)
        except ConnectionLost as error:
            raise MetadataUnavailable(f"the watch of the metadata store is lost: {error.text}") from error
        if not isinstance(answer, messages.Entries):
            raise _failure(answer)
        return answer


class _Link:
    """The connection for requests. One of the waiting tasks receives for all of them."""

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self.leases: dict[int, int] = {}
        """The server's numbers of the leases granted here; a server that is started again begins at 1 again."""
        self._last_number = 0
        self._answers: dict[int, messages.Answer | None] = {}
        """Answers to the requests of waiting tasks; None: it has not come yet."""
        self._is_receiving = False
        self._changed = trio.lowlevel.ParkingLot()
        self._fault: MetadataError | None = None
        """The reason why it has ended."""

    def is_open(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self._fault is None and (self._is_receiving or self.stream.is_open())

    def lease(self, lease: int) -> int:
        """Return the server's number of a lease. Raises LeaseLost: it was granted on another connection."""
        if lease not in self.leases:
            raise LeaseLost(f"the lease {lease} has ended, with its connection")
        return self.leases[lease]

    async def ask(self, make: Callable[[int], messages.Request], kind: type[A], *, is_write: bool = False) -> A:
        """Send a request and wait for its answer, of that kind.

        Raises the error of a `Failed`; LimitExceeded: nothing was sent; MetadataUnavailable, MetadataError, and instead
        of these, for a write that was sent, MetadataUnknown: the connection has ended.
        """
        self._last_number += 1
        number = self._last_number
        frame = messages.framed(make(number), REQUEST_BYTES_MAX)
        self._answers[number] = None
        was_sent = True
        try:
            was_sent = await self._send(frame)
            if not was_sent:
                await self._end(_gone(ConnectionLost("it has ended")))
            while (answer := self._answers[number]) is None:
                await self._receive_or_wait()
            if not isinstance(answer, kind | messages.Failed):
                await self._end(_failure(answer))
        except MetadataError as error:
            if is_write and was_sent:
                raise MetadataUnknown(f"it is not known whether the write was made: {error.text}") from error
            raise
        finally:
            del self._answers[number]
        if isinstance(answer, messages.Failed):
            raise error_from_code(answer.code, answer.text)
        return answer

    async def _send(self, frame: bytes) -> bool:
        try:
            return await self.stream.send(frame)
        except ConnectionLost as error:
            await self._end(_gone(error))

    async def _end(self, fault: MetadataError) -> NoReturn:
        """End the connection, for all waiting tasks. Raises MetadataError."""
        if self._fault is None:
            self._fault = fault
        self._changed.unpark_all()
        await self.stream.aclose()
        raise self._fault

    async def _receive_or_wait(self) -> None:
        """Receive an answer, or wait while another task does. Raises MetadataError."""
        if self._fault is not None:
            raise type(self._fault)(self._fault.text)
        if self._is_receiving:
            await self._changed.park()
            return
        self._is_receiving = True
        try:
            await self._receive()
        except ConnectionLost as error:
            await self._end(_gone(error))
        except MetadataError as error:
            await self._end(error)
        finally:
            self._is_receiving = False
            self._changed.unpark_all()

    async def _receive(self) -> None:
        answer = await self.stream.receive(messages.ANSWER, ANSWER_BYTES_MAX)
        if answer.number > self._last_number or not answer.number:
            raise _failure(answer)
        if answer.number in self._answers:  # Otherwise its task was cancelled.
            self._answers[answer.number] = answer


def _snapshot(answer: messages.Entries) -> Snapshot:
    return Snapshot(answer.revision, {key: Stored(*stored) for key, stored in answer.entries.items() if stored})


def _gone(error: ConnectionLost) -> MetadataUnavailable:
    return MetadataUnavailable(f"the connection to the metadata store is lost: {error.text}")


def _failure(answer: messages.Answer) -> MetadataError:
    """Make the error of an answer that ends a connection."""
    if isinstance(answer, messages.Failed):
        error = error_from_code(answer.code, answer.text)
        return error if isinstance(error, MetadataError) else MetadataError(answer.text)
    return MetadataError(f"the metadata store answered what no store answers: {type(answer).__name__}")
