"""Inboxes: addresses of connections, to which others send replies.

An address is the number of the broker and 16 random bytes, as in `3.9f86d081884c7d659a2feaa0c55ad015`; to know it is
the right to send to it. It may go on with "." and a text by which the requester tells its requests apart.

Laws: a reply is stored nowhere and reaches its requester at most once. A requester that does not read loses replies,
and no replier waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import Rng
from linn.core.errors.inboxes import InboxFull, InboxUnknown

SECRET_BYTES = 16
"""Random bytes of an address: as many as can't be guessed."""
ADDRESS_CHARACTERS_MAX = 128
"""Limit of an address with the text behind it: a number, the secret, and at least 80 characters of the requester."""
_NODE_DIGITS_MAX = 10

TakeReply = Callable[[str, RecordBatch], bool]
"""Takes a reply and the whole address that it was sent to, without waiting; returns False if there is no room."""


class InboxPlace(NamedTuple):
    """The place of an inbox, as an address tells it."""

    node: int
    """The number of the broker; -1: the text is no address."""
    address: str
    """The address without the requester's text."""


def place_of(to: str) -> InboxPlace:
    """Read an address, without knowing whether there is such an inbox."""
    node, _, rest = to.partition(".")
    secret, _, _ = rest.partition(".")
    if len(to) > ADDRESS_CHARACTERS_MAX or len(node) > _NODE_DIGITS_MAX or not node.isdecimal():
        return InboxPlace(-1, "")
    return InboxPlace(int(node), f"{node}.{secret}")


class Inboxes:
    """The inboxes of one broker's connections."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._takers: dict[str, TakeReply] = {}
        self.delivered = 0
        """Replies that were passed to their connections."""
        self.dropped = 0
        """Replies without an inbox, or without room there."""

    def __len__(self) -> int:
        return len(self._takers)

    def open(self, node: int, take: TakeReply) -> str:
        """Open an inbox whose replies `take` gets; returns its address, which names the broker's number `node`."""
        address = f"{node}.{self._rng.bytes(SECRET_BYTES).hex()}"
        self._takers[address] = take
        return address

    def close(self, address: str) -> None:
        """Close an inbox: replies to it are refused from now on. Idempotent."""
        self._takers.pop(address, None)

    def put(self, to: str, batch: RecordBatch) -> None:
        """Pass a reply to the connection with this address. Raises InboxUnknown, InboxFull."""
        take = self._takers.get(place_of(to).address)
        if take is None:
            self.dropped += 1
            raise InboxUnknown("the inbox of the reply is gone, or was never given out")
        if not take(to, batch):
            self.dropped += 1
            raise InboxFull("the requester does not read its replies")
        self.delivered += 1
