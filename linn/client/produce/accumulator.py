"""Accumulator: puts a producer's messages into batches, one buffer per partition, and hands full ones to `sender`.

Laws: a batch belongs to one buffer, and the messages of a buffer are sent in the order in which they were added. There
is a buffer per partition, or a single one if the broker chooses the partition; `follow` changes that without losing a
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import cast

from linn.client.arguments import U32_MAX, checked_number
from linn.client.connection.connector import Connector
from linn.client.produce.confirmation import Confirmation
from linn.client.produce.lane import Identity, Lane
from linn.client.produce.open_batch import OpenBatch, Prepared
from linn.client.produce.sender import PartitionBuffer, Sender
from linn.core.batch.batch import Codec
from linn.core.batch.builder import build_batch, build_single
from linn.core.batch.key_hash import partition_of
from linn.core.errors.tree import LinnError, MessageInvalid, PartitionUnknown
from linn.wire.messages import MANDATORY_RECORDS_MAX, Acks, TopicInfo

_FORESEEN = ("murmur2", "sticky", "")
"""Partitioners that a client can apply itself; "": the broker names none."""
Watch = Callable[[OpenBatch], Callable[[Confirmation], None]]
"""Factory of watchers for batches with messages of `publish_nowait`."""


class Accumulator:
    """The open batches of one producer. `codec` and `bytes_max` are set before the first message."""

    def __init__(
        self,
        connector: Connector,
        target: str,
        to_exchange: bool,
        acks: Acks,
        in_flight_max: int,
        linger_s: float,
        watch: Watch,
        on_moved: Callable[[], None],
    ) -> None:
        self.codec = Codec.NONE
        self.bytes_max = 0
        self.sender = Sender(
            connector, target, to_exchange, acks, in_flight_max, self._buffer_idle, self._seal_all, on_moved
        )
        self.identity: Identity | None = None
        self.buffers = [PartitionBuffer(-1)]
        self.sticky = self.buffers[0]
        """The buffer for messages that may go to any partition."""
        self.keys_choose = False
        """Whether a message's key decides its buffer."""
        self._connector = connector
        self._linger_s = linger_s
        self._watch = watch

    # --- buffers ---

    def identify(self, identity: Identity) -> None:
        """Number all batches from now on. Called before the first message."""
        self.identity = identity
        self.buffers = [self._new_buffer(-1)]
        self.sticky = self.buffers[0]

    def _new_buffer(self, partition: int) -> PartitionBuffer:
        lane = Lane(self.identity, scattered=partition < 0) if self.identity is not None else None
        return PartitionBuffer(partition, lane)

    def follow(self, info: TopicInfo) -> None:
        """Adapt the buffers to a topic's partitions. Messages of one key may change theirs.

        A topic that the broker creates at the first publish has no partitions until then. When the broker starts or
        stops choosing partitions, the buffers stay until nothing is in flight.
        """
        # With a plugin's partitioner, the broker always chooses.
        count = len(info.partitions) if info.partitioner in _FORESEEN else 0
        chooses = self.buffers[0].partition < 0
        if chooses is not (count == 0):
            if not all(buffer.idle and not buffer.open for buffer in self.buffers):
                return
            if self.identity is not None:
                self.identity.next_epoch(self.identity.epoch)  # A partition may remember earlier lanes.
            self.buffers = [] if chooses else [self._new_buffer(-1)]
        self.buffers += [self._new_buffer(partition) for partition in range(len(self.buffers), count)]
        self.keys_choose = info.partitioner != "sticky" and len(self.buffers) > 1
        if self.sticky not in self.buffers:
            self.sticky = self.buffers[self._connector.env.rng.integer(len(self.buffers))]

    def buffer(self, partition: int) -> PartitionBuffer:
        """Return a partition's buffer, or the sticky one if there is none."""
        buffers = self.buffers
        return (
            buffers[partition] if 0 <= partition < len(buffers) and buffers[partition].partition >= 0 else self.sticky
        )

    def check_partition(self, partition: int) -> None:
        """Check that the application may choose a partition. Raises MessageInvalid, PartitionUnknown."""
        if self.buffers[0].partition < 0:
            raise MessageInvalid("the broker chooses the partitions of this topic or exchange: name none")
        if not 0 <= checked_number(partition, "partition", U32_MAX) < len(self.buffers):
            raise PartitionUnknown(f"there is no partition {partition}: there are {len(self.buffers)}")

    def turn(self) -> None:
        """Move the sticky choice to the next buffer."""
        if len(self.buffers) > 1:
            self.sticky = self.buffers[(self.sticky.partition + 1) % len(self.buffers)]

    def _buffer_idle(self, buffer: PartitionBuffer) -> None:
        if buffer.open is not None and not self._linger_s:
            self.seal(buffer)

    # --- batches ---

    def add(self, message: Prepared, waits: bool) -> tuple[PartitionBuffer, OpenBatch, int]:
        """Add a message to a batch; return buffer, batch and index. `waits`: its publisher waits, and seals."""
        value, properties, size, mandatory = message
        key = properties.key
        if key is None or not self.keys_choose:
            buffer = self.sticky
        else:
            buffer = self.buffers[partition_of(key, len(self.buffers))]
        batch = buffer.open
        if batch is None or batch.mandatory is not mandatory or not batch.has_room(properties, size, self.bytes_max):
            batch = self.begin(buffer, waits, mandatory)
        index = batch.add(value, properties, size)
        if waits:
            batch.awaited.append(index)
        else:
            batch.confirmation.without_waiter = True
        if batch.size >= self.bytes_max or (mandatory and index + 1 >= MANDATORY_RECORDS_MAX):
            self.seal(buffer)
        return buffer, batch, index

    def send_alone(self, value: bytes) -> tuple[int, Confirmation] | None:
        """Send a message that is only a value as its own batch, for a publisher that waits; return id and confirmation.

        Returns None if other messages of its buffer wait or are in flight: then it should share their batch.
        """
        buffer = self.sticky
        if buffer.in_flight or buffer.ready or buffer.open is not None or self._linger_s or self.codec:
            return None
        env = self._connector.env
        message_id = int.from_bytes(env.rng.bytes(16), "big")
        batch = build_single(value, env.clock.now_ms(), message_id, sealed=False)
        if len(self.buffers) > 1:
            self.turn()
        confirmation = Confirmation()
        self.sender.enqueue(buffer, batch, confirmation, attended=True)
        return message_id, confirmation

    def take(self, messages: Iterable[bytes | Prepared]) -> None:
        """Add messages that no publisher waits for; bytes stand for a message that is only a value."""
        for kind, alike in groupby(messages, type):
            if kind is bytes:
                self._put_values(cast("list[bytes]", list(alike)))
            else:
                for message in alike:
                    self.put(cast(Prepared, message))

    def put(self, message: Prepared) -> None:
        """Add a message that no publisher waits for."""
        self.add(message, waits=False)

    def _put_values(self, values: Sequence[bytes]) -> None:
        ends, first = list(accumulate(map(len, values))), 0
        while first < len(values):
            buffer = self.sticky
            batch = buffer.open
            if batch is None or batch.mandatory:
                batch = self.begin(buffer, waits=False, mandatory=False)
            before, first = first, batch.extend(values, ends, first, self.bytes_max)
            batch.confirmation.without_waiter = True
            if batch.size >= self.bytes_max or first == before:
                self.seal(buffer)

    def begin(self, buffer: PartitionBuffer, waits: bool, mandatory: bool) -> OpenBatch:
        """Open a buffer's next batch; seal the open one, if its `mandatory` differs.

        If the buffer has nothing in flight, a publisher that waits seals the new batch itself.
        """
        env = self._connector.env
        if buffer.open is not None:
            self.seal(buffer)
        batch = buffer.open = OpenBatch(int.from_bytes(env.rng.bytes(16), "big"), env.clock.now_ms(), mandatory)
        if not self._linger_s:
            batch.opened_tick = self.sender.ticks
        if self._linger_s or (buffer.idle and not waits):
            self._connector.timers.after(self._linger_s, lambda: self.seal(buffer) if buffer.open is batch else None)
        return batch

    def seal(self, buffer: PartitionBuffer, *, attended: bool = False) -> None:
        """Finish the open batch of a buffer and pass it to the sender. `attended`: see `Connection.ask`."""
        batch, buffer.open = buffer.open, None
        if not batch:
            return
        if buffer is self.sticky:
            self.turn()
        confirmation = batch.confirmation
        if confirmation.without_waiter:
            confirmation.watcher = self._watch(batch)
        try:
            sealed = build_batch(batch.columns(with_key_hashes=buffer.partition < 0), self.codec, sealed=False)
        except LinnError as error:
            confirmation.settle(None, error)
            return
        self.sender.enqueue(buffer, sealed, confirmation, batch.mandatory, attended, batch.opened_tick)

    def seal_if_idle(self, buffer: PartitionBuffer, batch: OpenBatch) -> bool:
        """Send a batch at once if its buffer has nothing in flight and there is no linger time.

        Returns whether it was sent; then its publisher attends.
        """
        if self._linger_s or buffer.open is not batch or not buffer.idle:
            return False
        self.seal(buffer, attended=True)
        return True

    def unsettled(self) -> list[Confirmation]:
        """Seal all open batches; return the confirmations of all batches in flight."""
        self._seal_all()
        return self.sender.unsettled()

    def _seal_all(self) -> None:
        for buffer in self.buffers:
            self.seal(buffer)

    def give_up(self, error: LinnError) -> None:
        """Fail everything that has not been sent."""
        for buffer in self.buffers:
            batch, buffer.open = buffer.open, None
            if batch:
                if batch.confirmation.without_waiter:
                    batch.confirmation.watcher = self._watch(batch)
                batch.confirmation.settle(None, error)
        self.sender.give_up(self.buffers, error)
