"""Requests and replies of a client, and its questions about messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from linn.client.arguments import (
    U32_MAX,
    HeadersInput,
    checked_headers,
    checked_number,
    checked_span,
    checked_text,
    checked_wait,
    due_ms_of,
    shown,
)
from linn.client.connection.connector import Connector
from linn.client.connection.replying import Reply, reply
from linn.client.performing import Performing
from linn.client.produce.producer import Producer
from linn.client.produce.requester import Requester
from linn.core.errors.inboxes import NoReply
from linn.core.errors.tree import LimitExceeded, MessageInvalid
from linn.message_status import (
    ENDED,
    IDS_MAX,
    SCHEDULED_SHOWN_MAX,
    MessageStatus,
    ScheduledChanged,
    ScheduledMessages,
)
from linn.verbs import CANCEL_SCHEDULED, FIND_MESSAGES, LIST_SCHEDULED, MOVE_SCHEDULED

REQUEST_TIMEOUT_S = 30.0
REPLIES_MAX = 1_000
"""Default limit of the replies to one request, which are kept in memory."""
STATUS_PAUSE_S, STATUS_PAUSE_S_MAX = 0.02, 0.5
"""Pauses between questions about messages that have not ended: each is twice as long as the one before."""


class Requesting:
    """The part of `Client` that asks and replies."""

    def __init__(self, connector: Connector, make_producer: Callable[[str, bool], Producer]) -> None:
        """`make_producer` makes a producer for a topic, or for an exchange (True)."""
        self._connector = connector
        self._performing = Performing(connector)
        self._requester = Requester(connector, make_producer)

    async def request(
        self,
        topic: str | None,
        value: bytes | None,
        *,
        exchange: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **properties: Any,
    ) -> Reply:
        """Publish a request, and return the first reply to it; `properties` as `Producer.publish`.

        The reply comes over this client's connection, is stored nowhere, and arrives at most once. A request that no
        topic takes fails at once, unless `mandatory` is False.

        Raises:
            NoReply: none came within `timeout_s`: there is no worker, or it is slow, or its reply was lost.
            ConnectionLost: the connection for the reply was lost.
            Unroutable, LinnError: as `Producer.publish`.
        After the first two, the request may be carried out. A program that asks again under the same `id` lets workers
        recognise it.
        Cancellation: the request may be carried out, and its reply is dropped.

        Example:
            reply = await client.request("sums", b"1 + 2", timeout_s=5)
            print(reply.text)
        """
        found = await self._replies(topic, value, exchange, 1, timeout_s, properties)
        if not found:
            raise NoReply(f"no reply from {exchange if topic is None else topic} within {timeout_s:g} s")
        return found[0]

    async def request_many(
        self,
        topic: str | None,
        value: bytes | None,
        *,
        exchange: str | None = None,
        replies_max: int = REPLIES_MAX,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **properties: Any,
    ) -> list[Reply]:
        """Publish a request to several workers, and return the replies that come within `timeout_s`.

        It returns earlier with `replies_max` replies, and may return none. For an exchange that leads to the queues of
        several services. See `request` for the rest.

        Raises ConnectionLost: the connection for the replies was lost; and as `Producer.publish`.
        Cancellation: as `request`.

        Example:
            replies = await client.request_many("sums", b"1 + 2", replies_max=1, timeout_s=5)
            print([reply.text for reply in replies])
        """
        checked_number(replies_max, "replies_max", U32_MAX, lowest=1)
        return await self._replies(topic, value, exchange, replies_max, timeout_s, properties)

    async def _replies(
        self,
        topic: str | None,
        value: bytes | None,
        exchange: str | None,
        replies_max: int,
        timeout_s: float,
        properties: dict[str, Any],
    ) -> list[Reply]:
        if (topic is None) == (exchange is None):
            raise MessageInvalid("a request goes to a topic or to an exchange")
        checked_span(timeout_s, "timeout_s")
        target = (topic, False) if topic is not None else (exchange or "", True)
        return await self._requester.replies(target, value, replies_max, timeout_s, properties)

    async def reply(self, to: str, value: bytes | None, *, headers: HeadersInput | None = None) -> None:
        """Reply to a request by its address, the `reply_to` of its message: now or later, from any client.

        To know the address is the right to reply, for as long as the requester's connection lasts.

        Raises InboxUnknown: the requester is gone, or the address was never given out; InboxFull: it does not read;
        MessageInvalid, MessageTooLarge, ConnectionLost, RequestTimeout.
        PeerError: the reply may have reached a requester at another broker.
        Cancellation: the reply may have been sent.

        Example:
            message = await anext(consumer)
            if message.reply_to is not None:
                await client.reply(message.reply_to, b"3")
        """
        checked_text(to, "the address of a reply")
        content = checked_headers(headers)
        id = UUID(bytes=self._connector.env.rng.bytes(16))
        with self._connector.time_limit("reply"):
            await reply(await self._connector.ready(), to, value, content, id)

    async def status(self, topic: str, ids: Sequence[UUID | str], *, wait_s: float = 0.0) -> list[MessageStatus]:
        """Ask what became of messages of a topic with a `status`, also of another producer's; in the order of `ids`.

        Args:
            ids: at most 1,000, as in the receipts of `publish`.
            wait_s: time to wait until each message has ended: it was settled, or is dead, expired, dropped,
                cancelled or aborted. A scheduled one is waited for.
                The broker is asked again and again, at most every 20 ms. A message that is unknown may still come.

        Raises MessageInvalid, LimitExceeded, TopicUnknown, StatusUnsupported, Forbidden, ConnectionLost,
        RequestTimeout.
        Cancellation: nothing is changed.

        Example:
            receipt = await producer.publish(b"two coffees")
            (found,) = await client.status("orders", [receipt.id])
            print(found["state"], found["reason"])
        """
        wait_s, clock = checked_wait(wait_s), self._connector.env.clock
        if len(ids) > IDS_MAX:
            raise LimitExceeded(f"{len(ids):,} ids in one request, more than {IDS_MAX:,}")
        texts = [str(_checked_id(id)) for id in ids]
        until_s, pause_s = clock.monotonic() + wait_s, STATUS_PAUSE_S
        while True:
            found: list[MessageStatus] = await self._performing.perform(FIND_MESSAGES.name, topic=topic, ids=texts)
            left_s = until_s - clock.monotonic()
            if left_s <= 0 or all(each["state"] in ENDED for each in found):
                return found
            await clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, STATUS_PAUSE_S_MAX)

    async def scheduled(self, topic: str, *, count: int = 100, ids: Sequence[str] = ()) -> ScheduledMessages:
        """Ask which messages come into a topic later; the first `count` of them, at most 1,000, in their order.

        `ids`: ask for these alone, and get the messages that still wait, in this order. Who may read the topic can
        fetch the message with the id "partition/number": `fetch(f"__d.{topic}", partition, number, unsettled=True)`.

        Raises MessageInvalid, TopicUnknown, Forbidden, ConnectionLost, RequestTimeout.
        Cancellation: nothing is changed.

        Example:
            receipt = await producer.publish(b"two coffees", delay_ms=60_000)
            found = await client.scheduled("orders")
            print(found["count"], found["first"][0]["due_ms"])
        """
        checked_number(count, "count", SCHEDULED_SHOWN_MAX, 1)
        found: ScheduledMessages = await self._performing.perform(
            LIST_SCHEDULED.name, topic=topic, count=count, ids=_checked_scheduled(ids)
        )
        return found

    async def cancel_scheduled(self, topic: str, ids: Sequence[str]) -> list[ScheduledChanged]:
        """Let messages never come into their topic; return the outcome of each, in the order of `ids`.

        Args:
            ids: at most 1,000, as `Receipt.scheduled` or `scheduled` has them.

        Raises ConfigError, LimitExceeded, TopicUnknown, Forbidden, ConnectionLost, RequestTimeout.
        Cancellation: they may be cancelled, or not.

        Example:
            receipt = await producer.publish(b"two coffees", delay_ms=60_000)
            (changed,) = await client.cancel_scheduled("orders", [receipt.scheduled])
            print(changed["outcome"])
        """
        return await self._changed(CANCEL_SCHEDULED.name, topic, ids)

    async def move_scheduled(
        self, topic: str, ids: Sequence[str], *, at: datetime | int | None = None, delay_ms: int = 0
    ) -> list[ScheduledChanged]:
        """Let messages come into their topic at another time, which is given as for `publish`.

        Returns, raises and is cancelled as `cancel_scheduled`.

        Example:
            receipt = await producer.publish(b"two coffees", delay_ms=60_000)
            await client.move_scheduled("orders", [receipt.scheduled], delay_ms=1_000)
        """
        checked_number(delay_ms, "delay_ms", U32_MAX)
        due_ms = due_ms_of(at, delay_ms) or self._connector.env.clock.now_ms() + delay_ms
        return await self._changed(MOVE_SCHEDULED.name, topic, ids, due_ms=due_ms)

    async def _changed(self, verb: str, topic: str, ids: Sequence[str], **to: int) -> list[ScheduledChanged]:
        texts = _checked_scheduled(ids)
        changed: list[ScheduledChanged] = await self._performing.perform(verb, topic=topic, ids=texts, **to)
        return changed


def _checked_scheduled(ids: Sequence[str]) -> list[str]:
    """Check ids of scheduled messages. Raises MessageInvalid."""
    return [checked_text(id, "the id of a scheduled message") for id in ids]


def _checked_id(id: object) -> UUID:
    """Check the id of a message. Raises MessageInvalid."""
    try:
        return id if isinstance(id, UUID) else UUID(checked_text(id, "the id of a message"))
    except ValueError as error:
        raise MessageInvalid(f"the id of a message is a UUID, not {shown(id)}") from error
