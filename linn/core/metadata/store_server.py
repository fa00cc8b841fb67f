"""StoreServer: any metadata store, served to the other processes of one user on one machine.

Laws: a lease belongs to the connection on which it was granted: it ends at once when that connection ends, and by its
`ttl_s` while the connection's process is stopped. A wrong message ends its own connection and no other. A client that
reads nothing holds up no other one; a watch with too many waiting changes is cut off.
"""

from __future__ import annotations

import contextlib
import logging

import trio

from linn.core.env.env import Listener
from linn.core.env.log_fields import log_fields
from linn.core.errors.group import raise_once
from linn.core.errors.metadata import LeaseLost, MetadataError
from linn.core.errors.tree import ConnectionLost, InternalError, LimitExceeded, LinnError
from linn.core.metadata import served_messages as messages
from linn.core.metadata.message_stream import MessageStream
from linn.core.metadata.served_messages import ANSWER_BYTES_MAX, HELLO_BYTES_MAX, REQUEST_BYTES_MAX, REQUESTS_MAX
from linn.core.metadata.store import NO_LEASE, REMOVED, Changes, MetadataStore, Snapshot, Watch

CONNECTIONS_MAX = 256
"""Connections at a time: a worker has two, and a machine has no more than 128 workers."""
LEASES_MAX = 64
"""Leases of a connection that have not ended: a broker has two, and some whose answers were lost."""
HELLO_S = 10.0
"""Time in which a connection must have said hello, so that silent ones don't take all places."""
FAREWELL_S = 1.0
"""Time in which a client takes the reason why its connection ends; after it, the connection ends without."""
WAITING_MAX = 1024
"""Changes that wait for a watcher, which then has missed some seconds of the busiest store."""
WAITING_BYTES_MAX = 8 << 20
"""Bytes of these changes: as many as four of the largest writes."""

logger = logging.getLogger("linn.metadata")


class StoreServer:
    """A server of `store` for clients of the same version of linn."""

    def __init__(self, store: MetadataStore, version: str) -> None:
        """Prepare. `version`: linn's; clients of another one are refused."""
        self._store = store
        self._version = version
        self._connections = 0

    async def serve(self, listener: Listener) -> None:
        """Serve the connections of a listener until it is closed; then end them. The listener is for this user alone.

        Cancellation: connections end, and leases by their `ttl_s`.
        """
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except LimitExceeded as error:
                    logger.warning("%(error)s", log_fields(error))
                    continue
                except ConnectionLost:
                    nursery.cancel_scope.cancel()
                    return
                if self._connections == CONNECTIONS_MAX:
                    logger.warning("the metadata store refuses a connection: it has %d", CONNECTIONS_MAX)
                    await stream.aclose()
                    continue
                self._connections += 1
                nursery.start_soon(self._converse, MessageStream(stream))

    async def _converse(self, stream: MessageStream) -> None:
        conversation = _Conversation(self._store, self._version, stream)
        try:
            await conversation.run()
        finally:
            self._connections -= 1


class _Conversation:
    """One connection with a client."""

    def __init__(self, store: MetadataStore, version: str, stream: MessageStream) -> None:
        self._store = store
        self._version = version
        self._stream = stream
        self._slots = trio.Semaphore(REQUESTS_MAX)
        self._leases: dict[int, None] = {}
        self._waiting_bytes = 0

    async def run(self) -> None:
        """Converse until the connection ends; then end its leases."""
        try:
            await self._talk()
        except ConnectionLost:
            pass
        except LinnError as error:
            logger.warning("a connection of the metadata store ends: %(error)s", log_fields(error))
            await self._say_farewell(error)
        except Exception:
            logger.exception("a connection of the metadata store ends")
        finally:
            await self._stream.aclose()
        await self._end_leases()

    async def _talk(self) -> None:
        """Raises ConnectionLost, LinnError."""
        with trio.move_on_after(HELLO_S) as waiting:
            hello = await self._stream.receive(messages.HELLO, HELLO_BYTES_MAX)
        if waiting.cancelled_caught:
            raise MetadataError(f"a client of the metadata store said nothing for {HELLO_S:g} s")
        if hello.version != self._version:
            raise MetadataError(
                f"this metadata store is of linn {self._version}, and its client of linn {hello.version:.40}: "
                "both must be the same version"
            )
        try:
            async with trio.open_nursery() as nursery:
                await (self._watch(nursery) if hello.watches else self._serve_requests(nursery))
        except BaseExceptionGroup as group:
            _, others = group.split(LinnError)
            if others is not None:  # Such as the cancellation of the server in the same moment.
                raise others from None
            raise_once(group)

    async def _say_farewell(self, error: LinnError) -> None:
        with trio.move_on_after(FAREWELL_S):
            with contextlib.suppress(ConnectionLost):
                await self._stream.send(_frame(messages.Failed(0, error.code, error.text)))

    async def _end_leases(self) -> None:
        for lease in self._leases:
            try:
                await self._store.revoke_lease(lease)
            except LinnError as error:
                logger.warning("a lease ends only by its time: %(error)s", log_fields(error))

    # --- requests ---

    async def _serve_requests(self, nursery: trio.Nursery) -> None:
        """Perform requests, several at a time: a renewal does not wait for a write. Raises as `MessageStream`."""
        await self._stream.send(_frame(messages.Done(0)))
        while True:
            await self._slots.acquire()
            request = await self._stream.receive(messages.REQUEST, REQUEST_BYTES_MAX)
            nursery.start_soon(self._answer, request)

    async def _answer(self, request: messages.Request) -> None:
        try:
            try:
                frame = _frame(await self._perform(request))
            except LinnError as error:
                if isinstance(error, LeaseLost) and isinstance(request, messages.Put | messages.Renew):
                    self._leases.pop(request.lease, None)
                frame = _frame(messages.Failed(request.number, error.code, error.text))
            except Exception:
                logger.exception("a request to the metadata store failed")
                text = "the metadata store failed in a way that linn did not foresee; its log has the traceback"
                frame = _frame(messages.Failed(request.number, InternalError.code, text))
            await self._stream.send(frame)
        finally:
            self._slots.release()

    async def _perform(self, request: messages.Request) -> messages.Done | messages.Entries:
        match request:
            case messages.Load():
                return _entries(request.number, await self._store.load())
            case messages.Put():
                if request.lease != NO_LEASE:
                    self._check_own(request.lease)
                changes = {**request.changes, **dict.fromkeys(request.removed, REMOVED)}
                revision = await self._store.put_all(changes, request.conditions, request.lease)
                return messages.Done(request.number, revision)
            case messages.Grant():
                if len(self._leases) >= LEASES_MAX:
                    raise LimitExceeded(f"a connection to the metadata store has at most {LEASES_MAX} leases")
                lease = await self._store.grant_lease(request.ttl_s)
                self._leases[lease] = None
                return messages.Done(request.number, lease)
            case messages.Renew():
                self._check_own(request.lease)
                await self._store.renew_lease(request.lease)
            case messages.Revoke():
                if request.lease in self._leases:
                    await self._store.revoke_lease(request.lease)
                    self._leases.pop(request.lease, None)
        return messages.Done(request.number)

    def _check_own(self, lease: int) -> None:
        """Raise LeaseLost unless the lease was granted on this connection."""
        if lease not in self._leases:
            raise LeaseLost(f"lease {lease} has ended: it was not granted on this connection")

    # --- a watch ---

    async def _watch(self, nursery: trio.Nursery) -> None:
        """Send all keys and all changes. Raises LinnError: the store's watch is lost, or the client is too slow."""
        async with self._store.watch() as watch:
            sender, receiver = trio.open_memory_channel[bytes](WAITING_MAX)
            sender.send_nowait(_frame(_entries(0, watch.snapshot)))
            nursery.start_soon(self._send_waiting, receiver)
            nursery.start_soon(self._wait_end)
            await self._collect(watch, sender)

    async def _collect(self, watch: Watch, sender: trio.MemorySendChannel[bytes]) -> None:
        while True:
            frame = _frame(_entries(0, await watch.next()))
            self._waiting_bytes += len(frame)
            try:
                if self._waiting_bytes > WAITING_BYTES_MAX:
                    raise trio.WouldBlock
                sender.send_nowait(frame)
            except trio.WouldBlock as error:
                raise MetadataError("a client does not read the changes of the metadata store") from error

    async def _send_waiting(self, receiver: trio.MemoryReceiveChannel[bytes]) -> None:
        await self._stream.send(await receiver.receive())
        async for frame in receiver:
            await self._stream.send(frame)
            self._waiting_bytes -= len(frame)

    async def _wait_end(self) -> None:
        """Wait for the end of the connection: the client of a watch has no more to say."""
        await self._stream.receive(messages.HELLO, HELLO_BYTES_MAX)
        raise MetadataError("a client of the metadata store said hello twice")


def _entries(number: int, found: Snapshot | Changes) -> messages.Entries:
    entries = {key: tuple(stored) if stored is not None else None for key, stored in found.entries.items()}
    return messages.Entries(number, found.revision, entries)


def _frame(answer: messages.Answer) -> bytes:
    """Raises MetadataError: the answer is too large."""
    try:
        return messages.framed(answer, ANSWER_BYTES_MAX)
    except LimitExceeded as error:
        raise MetadataError(error.text) from error
