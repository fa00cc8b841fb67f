"""Publishing over the native protocol: requests in order, answered when they are confirmed."""

from __future__ import annotations

from collections.abc import Sequence

from linn.api import (
    RESERVE_BYTES,
    Acks,
    LimitExceeded,
    LinnError,
    Mark,
    ProtocolError,
    PublishRequest,
    PublishResult,
    RecordBatch,
    RequestUnknown,
)
from linn.protocols.capnp.keepalive import wait_while
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.wire import messages as m
from linn.wire.connection import Event

_ACKS: tuple[Acks, ...] = ("none", "leader", "all")
"""Acks by their number in the schema."""
LEAVE_S = 2.5
"""Time for the waiting publishes of a client that has finished sending: work in turns takes less."""


class Publishing:
    """The publishes of a connection: a `PublishLane`, and the receiver of its outcomes."""

    def __init__(self, responder: Responder, subscribing: Subscribing) -> None:
        self._responder = responder
        self._subscribing = subscribing
        self._lane = responder.session.publish_lane(self, responder.spawn)
        self._memory = responder.gateway.memory.received

    @property
    def is_waiting(self) -> bool:
        """Whether a publish waits for room."""
        return self._lane.is_waiting

    @property
    def waiting_bytes(self) -> int:
        """Bytes of waiting batches, counted against the connection's and the broker's budgets."""
        return self._lane.waiting_bytes

    def is_full(self) -> bool:
        """Whether so many bytes wait that no more should be read; few, if memory is short.

        A connection with subscriptions is still read, up to its own limit, because its settlements make room.
        """
        waiting = self._lane.waiting_bytes
        if waiting >= self._responder.settings.connection_bytes_max:
            return True
        return waiting > RESERVE_BYTES and self._memory.is_over and self._subscribing.is_empty

    def close(self) -> None:
        """Drop waiting publishes, because the connection is gone."""
        self._lane.close()

    async def wait_done(self) -> None:
        """Wait until no publish waits, for a limited time: a publish without room may wait for ever."""
        await wait_while(lambda: self._lane.is_waiting, self._responder.gateway.env.clock, LEAVE_S)

    def publish(self, event: Event) -> None:
        """Carry out a publish, or queue it after waiting ones."""
        publish = event.message
        assert isinstance(publish, m.Publish)
        wants_returned = publish.mandatory and publish.to_exchange
        try:
            self._check(publish, event.batches, wants_returned)
        except LinnError as error:
            self._lane.count_error(None if publish.to_exchange else publish.target, error)
            raise
        acks = _ACKS[publish.acks]
        request = PublishRequest(
            publish.target, event.batches, publish.to_exchange, publish.partition, acks, wants_returned, publish.topics
        )
        self._lane.publish(request, event.correlation)

    def _check(self, publish: m.Publish, batches: Sequence[RecordBatch], wants_returned: bool) -> None:
        """Check a publish. Raises LinnError."""
        if not batches:
            raise ProtocolError("a publish without batches")
        if publish.acks >= len(_ACKS):
            raise RequestUnknown(f"acks {publish.acks} is not known to this version")
        if publish.topics and (self._responder.session.forwards or not publish.to_exchange):
            raise ProtocolError("only brokers say which topics an exchange has chosen")
        if wants_returned and sum([batch.count for batch in batches]) > m.MANDATORY_RECORDS_MAX:
            raise LimitExceeded(f"a mandatory publish of more than {m.MANDATORY_RECORDS_MAX} records")

    # --- outcomes ---

    def stored(self, ticket: int, results: Sequence[PublishResult], awaits: Sequence[tuple[Mark, int]]) -> None:
        """See `PublishAnswers.stored`."""
        if not ticket:
            for refused in [refused for result in results for refused in result.refused]:
                self._responder.fail(ticket, refused.error)  # Logged: no client waits for the answer.
        placements = [
            m.Placement(*result[:-1], refused=_refused(result) if result.refused else []) for result in results
        ]
        answer = m.Published(placements)
        if awaits:
            self._responder.when_passed(awaits, ticket, answer)
        else:
            self._responder.reply(ticket, answer)

    def refused(self, ticket: int, error: LinnError) -> None:
        """See `PublishAnswers.refused`."""
        self._responder.fail(ticket, error)

    def failed(self, ticket: int, error: Exception) -> None:
        """See `PublishAnswers.failed`."""
        self._responder.fail_unforeseen(ticket, error)

    def room(self) -> None:
        """See `PublishAnswers.room`."""
        self._responder.budget_changed()


def _refused(result: PublishResult) -> list[m.RefusedRecords]:
    return [m.RefusedRecords(refused.error.code, refused.error.text, refused.records) for refused in result.refused]
