"""Replies: the address that a request carries, and the message that is sent there."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import anyio

from linn.client.arguments import as_bytes
from linn.client.connection.answer import Answer
from linn.client.connection.connection import Connection
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Headers, Record
from linn.core.errors.inboxes import InboxFull, InboxUnknown
from linn.core.errors.peers import PeerError
from linn.core.errors.tree import ConnectionLost, MessageInvalid, MessageTooLarge
from linn.wire import messages

REPLY_TO = "linn.reply_to"
"""Header of a request: the address for replies, as UTF-8."""
ADDRESS_BYTES_MAX = 128
"""Limit of an address: brokers give out none that is longer."""


class Reply(NamedTuple):
    """A reply to a request.

    Example:
        reply = await client.request("sums", b"1 + 2")
        print(reply.text, dict(reply.headers))
    """

    value: bytes | None
    headers: Headers = ()

    @property
    def text(self) -> str:
        """The value as text. Raises MessageInvalid if it is None or not UTF-8."""
        if self.value is None:
            raise MessageInvalid("the reply's value is None and has no text")
        try:
            return self.value.decode()
        except UnicodeDecodeError as error:
            raise MessageInvalid("the reply is not UTF-8 text: read it from `value`") from error


def address_in(headers: Headers) -> str | None:
    """Return the address for replies in a message's headers; None: it asks for no reply, or has no valid address."""
    for name, value in headers:
        if name == REPLY_TO and value is not None and len(value) <= ADDRESS_BYTES_MAX:
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
    return None


def replies_in(batch: RecordBatch) -> list[Reply]:
    """Read the replies of a batch. Raises BatchError."""
    batch.check_crc()
    return [Reply(record.value, record.headers) for record in map(batch.record, range(batch.count))]


async def reply(connection: Connection, to: str, value: bytes | None, headers: Headers, id: UUID) -> None:
    """Send a reply, and wait until the broker has passed it to the requester's connection.

    Raises MessageInvalid, MessageTooLarge, InboxUnknown, InboxFull, PeerError, ConnectionLost.
    Cancellation: it may have been sent.
    """
    value = as_bytes(value, "a reply") if value is not None else None
    size = len(value or b"") + sum([len(name.encode()) + len(content or b"") for name, content in headers])
    if size > connection.welcome.message_bytes_max:
        text = f"a reply of {size:,} bytes, more than the {connection.welcome.message_bytes_max:,} of any message"
        raise MessageTooLarge(text)
    record = Record(value=value, headers=headers, timestamp_ms=connection.clock.now_ms())
    batch = build_from_records([record], base_id=id.int)
    while not (connection.ready or connection.is_ending):
        changed = anyio.Event()
        connection.when_ready(changed.set)
        await changed.wait()
    answer = Answer()
    correlation = connection.ask(answer, messages.Reply(to), [batch])
    try:
        await answer.wait()
    finally:
        connection.forget(correlation)


async def is_delivered(connection: Connection, to: str, value: bytes | None, headers: Headers, id: UUID) -> bool:
    """Send a reply; returns False if it did not reach the requester, as far as is known.

    Raises MessageInvalid, MessageTooLarge. Cancellation: it may have been sent.
    """
    try:
        await reply(connection, to, value, headers, id)
    except (InboxUnknown, InboxFull, PeerError, ConnectionLost):
        return False
    return True
