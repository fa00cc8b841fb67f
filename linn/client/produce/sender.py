"""Sender: sends a producer's batches to the broker, in order, with a limit on batches in flight, and with retries.

Laws: all batches in flight are on one connection: to the topic's leader, or to the broker at hand. Later ones go to
another when all are answered, or their connection is lost. The batches of a buffer are sent in order; after a lost
connection all unanswered batches are sent again in that order. If the broker refuses a batch for now, its buffer waits
until that batch is sent again. A batch that is not confirmed within the request timeout, counted from its first
message, fails and is not sent again. Each confirmation is settled exactly once.

Batches are numbered when they are first sent (see `lane`), so the broker stores every batch once and in order, even if
it is sent several times. Without numbers, a batch that is sent again may be stored twice, and batches in flight after a
refused one may be stored before it, unless `in_flight_max` is 1.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable

import anyio

from linn.client.connection.answer import again
from linn.client.connection.connection import Connection
from linn.client.connection.connector import Connector
from linn.client.produce.confirmation import Confirmation, refused_as
from linn.client.produce.lane import Lane
from linn.client.produce.open_batch import OpenBatch
from linn.core.batch.batch import RecordBatch
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import ConnectionLost, LinnError, ProducerOutOfOrder, ProtocolError, RequestTimeout
from linn.wire.messages import Acks, Message, Publish, Published

_READY_MAX = 2
"""Finished batches that may wait per producer before `room` holds publishers back: the next and one more."""
REMEMBERED_BATCHES = 8
"""Batches that a broker remembers of a producer. No batch is sent so far ahead of an unanswered one: answers of several
partitions come in any order.
"""
_TICKS_PER_TIMEOUT = 4
"""Checks of the time limit per timeout while there are batches: one timer for all of them."""


class Sender:
    """Batches of one producer that are ready or in flight.

    `on_idle` is called when a buffer has nothing in flight any more, `on_tick` before a tick ends: messages of
    different ticks share no batch. `on_moved` is called when an answer tells that another broker leads the topic.
    """

    def __init__(
        self,
        connector: Connector,
        target: str,
        to_exchange: bool,
        acks: Acks,
        in_flight_max: int,
        on_idle: Callable[[PartitionBuffer], None],
        on_tick: Callable[[], None],
        on_moved: Callable[[], None],
    ) -> None:
        self.buffered_bytes = 0
        """Size of finished batches that are not settled."""
        self._connector = connector
        self._target = target
        self._to_exchange = to_exchange
        self._acks = acks
        self._in_flight_max = in_flight_max
        self._on_idle = on_idle
        self._on_tick = on_tick
        self._on_moved = on_moved
        self.epoch = 0
        """Latest leader epoch of the topic that is known; `on_moved` is called for a later one."""
        self._unsettled: dict[InFlightBatch, None] = {}
        """Batches in the order in which they were enqueued."""
        self._in_flight = 0
        self._waiting: deque[PartitionBuffer] = deque()
        self._ready_count = 0
        self.leader: Connection | None = None
        """Connection to the topic's leader; None: there is none, and the broker at hand passes batches on."""
        self.at: Connection | None = None
        """Connection to which the last batch was sent."""
        self._listening_to: Connection | None = None
        self._room: anyio.Event | None = None
        self._watching_time = False
        self.ticks = 0
        """Number of time checks so far."""

    # --- incoming batches ---

    def enqueue(
        self,
        buffer: PartitionBuffer,
        records: RecordBatch,
        confirmation: Confirmation,
        mandatory: bool = False,
        attended: bool = False,
        opened_tick: int | None = None,
    ) -> None:
        """Take a batch; send it within the call if possible.

        Args:
            attended: see `Connection.ask`.
            opened_tick: tick at which its time limit begins; None: now.
        """
        batch = InFlightBatch(self, buffer, records, confirmation, mandatory)
        batch.attended = attended
        batch.asked_tick = self.ticks if opened_tick is None else opened_tick
        buffer.ready.append(batch)
        self._unsettled[batch] = None
        if not self._watching_time:
            self._watching_time = True
            self._connector.timers.after(
                self._connector.options.request_timeout_s / _TICKS_PER_TIMEOUT, self._watch_time
            )
        self.buffered_bytes += records.size
        self._ready_count += 1
        self._queue(buffer)
        self.pump()

    async def room(self, bytes_max: int) -> None:
        """Wait until there is room for another batch. Raises RequestTimeout. Cancellation: nothing happens."""
        if self._has_room(bytes_max):
            return
        with self._connector.time_limit(f"publish to {self._target}"):
            while not self._has_room(bytes_max):
                self._room = self._room or anyio.Event()
                await self._room.wait()

    def _has_room(self, bytes_max: int) -> bool:
        return self._ready_count < _READY_MAX and self.buffered_bytes < bytes_max

    def unsettled(self) -> list[Confirmation]:
        """List the confirmations of all batches that are not settled."""
        return [batch.confirmation for batch in self._unsettled]

    # --- outgoing batches ---

    def pump(self) -> None:
        """Send all batches that may be sent now."""
        while self._waiting and self._in_flight < self._in_flight_max:
            connection = self._chosen()
            if connection is None:
                self._connector.retry()
                return
            if not connection.ready:
                if self._listening_to is not connection:
                    self._listening_to = connection
                    connection.when_ready(self._connection_ready)
                return
            buffer = self._waiting.popleft()
            buffer.queued = False
            if buffer.ready and self._send(connection, buffer):  # The batch may have timed out.
                self._queue(buffer)

    def _chosen(self) -> Connection | None:
        """Choose the connection for the next batch; None: there is none, or batches are in flight on another one."""
        chosen, at = self.leader, self.at
        if chosen is None or chosen.is_ending:
            chosen = self._connector.usable
        if chosen is at:
            return chosen
        if self._in_flight:
            return None
        if self._acks == Acks.NONE and at is not None and not at.is_ending:
            return at  # Nothing tells when batches have arrived, and so later ones stay behind them.
        self.at = chosen
        return chosen

    def _connection_ready(self) -> None:
        self._listening_to = None
        self.pump()

    def _queue(self, buffer: PartitionBuffer) -> None:
        if buffer.ready and not buffer.queued and not buffer.held:
            buffer.queued = True
            self._waiting.append(buffer)

    def _send(self, connection: Connection, buffer: PartitionBuffer) -> bool:
        """Send a buffer's next batch; False if it has to wait for an answer."""
        if not self._prepare_next(buffer):
            return False
        batch = buffer.ready.pop(0)
        self._ready_count -= 1
        message = Publish(self._target, self._to_exchange, self._acks, buffer.partition, batch.mandatory)
        if self._acks == Acks.NONE:
            connection.tell(message, [batch.records])
            self._settle(batch, None, None)
            return True
        batch.attempts += 1
        batch.unknown += 1
        batch.refusal = None
        buffer.in_flight[batch.sequence] = batch
        self._in_flight += 1
        batch.correlation = connection.ask(batch, message, [batch.records], attended=batch.attended)
        if self._room is not None:
            self._make_room()
        return True

    def _prepare_next(self, buffer: PartitionBuffer) -> bool:
        """Number and seal a buffer's next batch; False if it can't be sent now."""
        batch, lane = buffer.ready[0], buffer.lane
        if lane is not None and buffer.in_flight and batch.sequence - min(buffer.in_flight) >= REMEMBERED_BATCHES:
            return False
        if batch.is_sealed:
            return True
        if lane is None:
            batch.records.seal()
        else:
            if lane.needs_new_epoch(batch.records.count):
                if buffer.in_flight:
                    buffer.held = True
                    return False
                try:
                    lane.begin()
                except LinnError as error:
                    self._withdraw(batch)
                    self._settle(batch, None, error)
                    return True
            lane.number(batch.records)
        batch.is_sealed = True
        return True

    # --- outcomes ---

    def confirmed(self, batch: InFlightBatch, message: Message) -> None:
        """Settle a batch with the broker's answer."""
        self._landed(batch)
        batch.confirmation.in_doubt = batch.unknown > 1  # The outcome of this attempt is known now.
        if isinstance(message, Published) and len(message.placements) == 1:
            if message.placements[0].leader_epoch > self.epoch:
                self.epoch = message.placements[0].leader_epoch
                self._on_moved()
            self._settle(batch, message, None)
        else:
            self._settle(batch, None, ProtocolError(f"the broker answered publish with {type(message).__name__}"))
        self._continue(batch.buffer)

    def refused(self, batch: InFlightBatch, error: LinnError) -> None:
        """Retry or fail a batch that the broker refused or whose connection was lost."""
        buffer = batch.buffer
        if batch.sequence not in buffer.in_flight:
            return  # The batch timed out while its connection was ending.
        self._landed(batch)
        batch.attended = False
        batch.refusal = error
        batch.unknown -= not isinstance(error, ConnectionLost)
        # A batch after a refused one is refused with it, without a limit on the number of times.
        is_used_up = self._connector.options._is_used_up(batch.attempts) and not isinstance(error, ProducerOutOfOrder)
        if error.retriable and not is_used_up and not self._connector.closed:
            buffer.put_back(batch)
            self._ready_count += 1
            buffer.held = buffer.held or not isinstance(error, ConnectionLost)
            if isinstance(error, NotLeader):
                self._on_moved()
        else:
            buffer.abandon(batch)
            self._settle(batch, None, refused_as(error, batch.unknown > 0))
        self._continue(buffer)

    def _landed(self, batch: InFlightBatch) -> None:
        del batch.buffer.in_flight[batch.sequence]
        self._in_flight -= 1

    def _continue(self, buffer: PartitionBuffer) -> None:
        buffer.held = buffer.held and bool(buffer.ready)
        if buffer.held and not buffer.in_flight:
            # The last batch after the refused one has its outcome: confirmed, refused, or timed out.
            first = buffer.ready[0]
            if first.refusal is None or isinstance(first.refusal, ProducerOutOfOrder):
                self._release(buffer)
            else:
                self._connector.timers.after(self._connector.backoff_s(first.attempts), lambda: self._release(buffer))
        elif buffer.ready:
            self._queue(buffer)
        elif not buffer.in_flight:
            self._on_idle(buffer)
        if self._waiting:
            self.pump()

    def _release(self, buffer: PartitionBuffer) -> None:
        if buffer.held:
            buffer.held = False
            if not buffer.in_flight:
                buffer.renumber()
        self._continue(buffer)

    def _settle(self, batch: InFlightBatch, answer: Published | None, error: LinnError | None) -> None:
        del self._unsettled[batch]
        self.buffered_bytes -= batch.records.size
        batch.confirmation.settle(answer.placements[0] if answer is not None else None, error)
        if self._room is not None:
            self._make_room()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _watch_time(self) -> None:
        """Fail batches that were not confirmed within the timeout, or up to a tick longer."""
        self._on_tick()
        self.ticks += 1
        newest = self.ticks - _TICKS_PER_TIMEOUT - 1
        for batch in [each for each in self._unsettled if each.asked_tick <= newest]:
            if batch in self._unsettled:
                self._withdraw(batch)
                self._settle(batch, None, self._overdue(batch))
                self._continue(batch.buffer)
        self._watching_time = bool(self._unsettled)
        if self._watching_time:
            self._connector.timers.after(
                self._connector.options.request_timeout_s / _TICKS_PER_TIMEOUT, self._watch_time
            )

    def _withdraw(self, batch: InFlightBatch) -> None:
        buffer, connection = batch.buffer, self.at
        buffer.abandon(batch)
        if batch.sequence in buffer.in_flight:
            if connection is not None:
                connection.forget(batch.correlation)
            self._landed(batch)
        else:
            buffer.ready.remove(batch)
            self._ready_count -= 1

    def _overdue(self, batch: InFlightBatch) -> LinnError:
        """Make the error for a batch that has timed out: a refusal only if every attempt was refused."""
        refusal, within = batch.refusal, f"within {self._connector.options.request_timeout_s:g} s"
        if batch.unknown:
            return RequestTimeout(f"{self._target} did not confirm a batch {within}; it may or may not be stored")
        if refusal is not None and not isinstance(refusal, ProducerOutOfOrder):
            return again(refusal)
        outage = self._connector.outage
        reason = "those before it were not confirmed" if outage is None else outage.error.text
        return RequestTimeout(f"a batch for {self._target} was not sent {within}: {reason}")

    def give_up(self, buffers: list[PartitionBuffer], error: LinnError) -> None:
        """Fail everything that has not been sent, because there is no broker to send it to."""
        self._waiting.clear()
        for buffer in buffers:
            buffer.queued = buffer.held = False
            ready, buffer.ready = buffer.ready, []
            self._ready_count -= len(ready)
            for batch in ready:
                self._settle(batch, None, refused_as(error, batch.unknown > 0))
        self._make_room()


class InFlightBatch:
    """Finished batch that is ready or in flight; caller of its publish request."""

    __slots__ = (
        "asked_tick",
        "attempts",
        "attended",
        "buffer",
        "confirmation",
        "correlation",
        "is_sealed",
        "mandatory",
        "records",
        "refusal",
        "sender",
        "sequence",
        "unknown",
    )

    def __init__(
        self, sender: Sender, buffer: PartitionBuffer, records: RecordBatch, confirmation: Confirmation, mandatory: bool
    ) -> None:
        self.sender = sender
        self.buffer = buffer
        self.records = records
        self.confirmation = confirmation
        self.mandatory = mandatory
        self.sequence = buffer.next_sequence
        buffer.next_sequence += 1
        self.attempts = 0
        self.is_sealed = False
        """Whether it has its number, if its lane gives numbers."""
        self.correlation = 0
        self.asked_tick = 0
        """Sender tick at which its time limit began."""
        self.refusal: LinnError | None = None
        """Error of the last attempt."""
        self.unknown = 0
        """Number of attempts without an answer, after which the batch may be stored."""
        self.attended = False
        """Whether its publisher reads the answer itself; see `Connection.attend`."""

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Pass the broker's confirmation on."""
        self.sender.confirmed(self, message)

    def failed(self, error: LinnError) -> None:
        """Pass on the broker's refusal, or the end of the connection."""
        self.sender.refused(self, error)

    def __lt__(self, other: InFlightBatch) -> bool:
        return self.sequence < other.sequence


class PartitionBuffer:
    """Batches of one partition: the open one, ready ones, and ones in flight."""

    __slots__ = ("held", "in_flight", "lane", "next_sequence", "open", "partition", "queued", "ready")

    def __init__(self, partition: int, lane: Lane | None = None) -> None:
        self.lane = lane
        """Numbers of its batches; None without numbers."""
        self.partition = partition
        """Number of the partition; -1: the broker or an exchange chooses."""
        self.open: OpenBatch | None = None
        self.ready: list[InFlightBatch] = []
        """Ready batches in ascending order; a short list, because publishers wait when it grows."""
        self.in_flight: dict[int, InFlightBatch] = {}
        """Batches by sequence."""
        self.next_sequence = 0
        self.queued = False
        """Whether it waits for its turn to send."""
        self.held = False
        """Whether sending is suspended: a batch was refused, and is sent again when the batches after it are answered.
        """

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self.in_flight and not self.ready

    def put_back(self, batch: InFlightBatch) -> None:
        """Queue a batch again, before all later ones."""
        insort(self.ready, batch)

    def abandon(self, batch: InFlightBatch) -> None:
        """Note that a batch is not sent again although it may not be stored: no batch can follow its number."""
        if self.lane is not None and batch.is_sealed:
            self.lane.is_over = True

    def renumber(self) -> None:
        """Give new numbers to batches that were refused because an earlier batch is missing.

        This renumbers all ready batches: a batch after one that is out of order is not stored either.
        """
        if self.lane is not None and self.ready and isinstance(self.ready[0].refusal, ProducerOutOfOrder):
            self.lane.is_over = True
            for batch in self.ready:
                batch.is_sealed = False
                batch.refusal = None
