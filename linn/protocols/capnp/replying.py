"""Replies over the native protocol: the connection's inbox, and replies to others."""

from __future__ import annotations

from functools import partial

from linn.api import RESERVE_BYTES, ProtocolError, RecordBatch
from linn.protocols.capnp.outbox import Outbox
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event, frames_to


class Replying:
    """The replies that one connection sends."""

    __slots__ = ("_memory", "_responder", "waiting_bytes")

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._memory = responder.gateway.memory.received
        self.waiting_bytes = 0
        """Bytes of replies that wait for another broker."""

    def is_full(self) -> bool:
        """Whether so many bytes wait for other brokers that no more should be read; few, if memory is short."""
        waiting = self.waiting_bytes
        return waiting >= self._responder.settings.connection_bytes_max or (
            waiting > RESERVE_BYTES and self._memory.is_over
        )

    def reply(self, event: Event) -> None:
        """Send a reply to an inbox; answered when it is in the output of the requester's connection.

        Raises ProtocolError, and the errors of `SessionInbox.reply_nowait`.
        """
        asked, responder = event.message, self._responder
        assert isinstance(asked, m.Reply)
        if len(event.batches) != 1:
            raise ProtocolError("a reply is one batch")
        (batch,) = event.batches
        inbox = responder.session.inbox
        node = inbox.reply_nowait(asked.to, batch)
        if node is None:
            responder.reply(event.correlation, m.Done())
            return

        size = batch.size
        self.waiting_bytes += size
        self._memory.used_bytes += size

        async def work() -> None:
            try:
                await inbox.reply_elsewhere(node, asked.to, batch)
            finally:
                self.waiting_bytes -= size
                self._memory.give_back(size)
            responder.reply(event.correlation, m.Done())

        responder.in_task(event, work)


class Receiving(Replying):
    """The replies that one connection sends, and its inbox, if its client opens one."""

    __slots__ = ("_outbox",)

    def __init__(self, responder: Responder, outbox: Outbox) -> None:
        super().__init__(responder)
        self._outbox = outbox

    def open(self, event: Event) -> None:
        """Open the inbox, and answer with its address."""
        # It holds on to the outbox alone, so that a connection leaves no cycle behind.
        address = self._responder.session.inbox.open(partial(_put, self._outbox))
        self._responder.reply(event.correlation, m.Inbox(address))


def _put(outbox: Outbox, to: str, batch: RecordBatch) -> bool:
    """Send a reply to the requester; returns False if its output is full."""
    if outbox.is_full:
        return False
    outbox.put(frames_to(m.Reply(to), 0, [batch]))
    return True
