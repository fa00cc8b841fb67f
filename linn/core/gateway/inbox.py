"""The inbox of a session, and the replies that the session sends to others."""

from __future__ import annotations

from typing import Protocol

from linn.core.batch.batch import BatchLimits, Format, RecordBatch
from linn.core.connections.inboxes import Inboxes, TakeReply, place_of
from linn.core.errors.tree import FormatUnknown
from linn.core.ports.principal import Principal


class PeerReplier(Protocol):
    """Sends one principal's replies to the inboxes of other brokers."""

    async def reply(self, node: int, to: str, batch: RecordBatch) -> None:
        """Send a reply to an inbox of a node.

        Raises InboxUnknown, InboxFull; PeerUnreachable, PeerRefused, PeerStale: it was not sent; PeerUnknown: it may
        have reached the requester. Cancellation: likewise.
        """

    def close(self) -> None:
        """Close idle lanes. Idempotent."""


class InboxLinks(Protocol):
    """Links to the other brokers of the cluster."""

    def replying(self, principal: Principal) -> PeerReplier:
        """Make a replier for a principal; `close` it."""


class SessionInbox:
    """The inbox of one session. To know an address is the right to reply to it."""

    __slots__ = ("_address", "_inboxes", "_is_over", "_limits", "_links", "_node", "_principal", "_replier")

    def __init__(
        self, inboxes: Inboxes, node: int, limits: BatchLimits, principal: Principal, links: InboxLinks | None
    ) -> None:
        """
        Args:
            inboxes: of this broker, whose number in its cluster is `node`; 0: it is in none.
            limits: of a reply.
            links: to the other brokers of the cluster; None: replies go to inboxes of this broker alone.
        """
        self._inboxes = inboxes
        self._node = node
        self._limits = limits
        self._principal = principal
        self._links = links
        self._address = ""
        self._replier: PeerReplier | None = None
        self._is_over = False

    def open(self, take: TakeReply) -> str:
        """Open the inbox, which is closed with the session; returns its address.

        `take` gets each reply. A second call changes nothing, and returns the same address.
        """
        if not self._address and not self._is_over:
            self._address = self._inboxes.open(self._node, take)
        return self._address

    def reply_nowait(self, to: str, batch: RecordBatch) -> int | None:
        """Send a reply to an inbox of this broker; if another one has it, returns that node, for `reply_elsewhere`.

        Raises InboxUnknown, InboxFull, FormatUnknown, BatchTooLarge, BatchCorrupt, BatchMalformed.
        """
        batch.verify(self._limits)
        if batch.format != Format.NATIVE:
            raise FormatUnknown("replies are in linn's own format")
        node = place_of(to).node
        if self._links is not None and node not in (-1, self._node):
            return node
        self._inboxes.put(to, batch)
        return None

    async def reply_elsewhere(self, node: int, to: str, batch: RecordBatch) -> None:
        """Send a reply to an inbox of another broker. Raises and is cancelled as `PeerReplier.reply`."""
        assert self._links is not None, "`reply_nowait` names a node only if there are links"
        if self._replier is None:
            self._replier = self._links.replying(self._principal)
        await self._replier.reply(node, to, batch)

    def close(self) -> None:
        """Close the inbox, because the connection is lost. Idempotent."""
        self._is_over = True
        if self._address:
            self._inboxes.close(self._address)
        if self._replier is not None:
            self._replier.close()
