"""Batching: puts a producer's messages into batches, lane by lane, and hands those that are finished to `shipping`.

Laws: a batch goes to one lane, and the messages of a lane are shipped in the order in which they were added. A topic's
lanes are as many as its partitions, or one where the broker chooses; `follow` changes that without losing a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, cast

from linn.client.produce.confirmation import Confirmation
from linn.client.produce.open_batch import OpenBatch, Prepared
from linn.client.produce.partition_buffer import Lane
from linn.client.produce.sender import Shipping
from linn.core.batch.batch import Codec
from linn.core.batch.builder import build_batch, build_single
from linn.core.batch.key_hash import partition_of
from linn.core.errors.tree import LinnError
from linn.wire.messages import MANDATORY_RECORDS_MAX, Acks, TopicInfo

if TYPE_CHECKING:
    from linn.client.client import Client

_FORESEEN = ("murmur2", "sticky", "")
"""Partitioners whose choice a client can make itself; "" is a broker that names none."""
Watch = Callable[[OpenBatch], Callable[[Confirmation], None]]
"""Makes the watcher of a batch that holds messages of `publish_nowait`."""


class Batching:
    """One producer's. `codec` and `bytes_max` are set before the first message."""

    def __init__(
        self,
        client: Client,
        target: str,
        to_exchange: bool,
        acks: Acks,
        in_flight_max: int,
        linger_s: float,
        watch: Watch,
    ) -> None:
        self.codec = Codec.NONE
        self.bytes_max = 0
        self.shipping = Shipping(client, target, to_exchange, acks, in_flight_max, self._lane_idle, self._seal_all)
        self.lanes = [Lane(-1)]
        self.sticky = self.lanes[0]
        """The lane of messages that may go to any."""
        self.keys_choose = False
        """Whether the key of a message says which lane it takes."""
        self._client = client
        self._linger_s = linger_s
        self._watch = watch

    # --- lanes ---

    def follow(self, info: TopicInfo) -> None:
        """Have the lanes that fit a topic. Messages with one key may change theirs.

        A topic that the broker makes when it is first published to has none until then. Where the broker comes to
        choose, or stops choosing, the lanes stay what they are until nothing is on its way.
        """
        # The broker chooses for good where a plugin does it.
        count = len(info.partitions) if info.partitioner in _FORESEEN else 0
        chooses = self.lanes[0].partition < 0
        if chooses is not (count == 0):
            if not all(lane.idle and not lane.open for lane in self.lanes):
                return
            self.lanes = [] if chooses else [Lane(-1)]
        self.lanes += [Lane(partition) for partition in range(len(self.lanes), count)]
        self.keys_choose = info.partitioner != "sticky" and len(self.lanes) > 1
        if self.sticky not in self.lanes:
            self.sticky = self.lanes[self._client.env.rng.integer(len(self.lanes))]

    def lane(self, partition: int) -> Lane:
        """A partition's; that of messages that may go to any where there is none."""
        lanes = self.lanes
        return lanes[partition] if 0 <= partition < len(lanes) and lanes[partition].partition >= 0 else self.sticky

    def turn(self) -> None:
        """Messages that may go to any lane take the next one."""
        if len(self.lanes) > 1:
            self.sticky = self.lanes[(self.sticky.partition + 1) % len(self.lanes)]

    def _lane_idle(self, lane: Lane) -> None:
        if lane.open is not None and not self._linger_s:
            self.seal(lane)

    # --- batches ---

    def add(self, message: Prepared, waits: bool) -> tuple[Lane, OpenBatch, int]:
        """Put a message into a batch, at the index that is returned; `waits`: its publisher waits, and seals."""
        value, properties, size, mandatory = message
        key = properties.key
        if key is None or not self.keys_choose:
            lane = self.sticky
        else:
            lane = self.lanes[partition_of(key, len(self.lanes))]
        batch = lane.open
        if batch is None or batch.mandatory is not mandatory:
            batch = self.begin(lane, waits, mandatory)
        index = batch.add(value, properties, size)
        if batch.size >= self.bytes_max or (mandatory and index + 1 >= MANDATORY_RECORDS_MAX):
            self.seal(lane)
        return lane, batch, index

    def send_alone(self, value: bytes) -> tuple[int, Confirmation] | None:
        """Send a message that is only a value as a batch of its own, for a publisher that waits: its id, and what it
        waits for. None: others are on their way or wait for company, so it should go with them.
        """
        lane = self.sticky
        if lane.in_flight or lane.ready or lane.open is not None or self._linger_s or self.codec:
            return None
        env = self._client.env
        message_id = int.from_bytes(env.rng.bytes(16), "big")
        batch = build_single(value, env.clock.now_ms(), message_id)
        if len(self.lanes) > 1:
            self.turn()
        confirmation = Confirmation()
        self.shipping.enqueue(lane, batch, confirmation, attended=True)
        return message_id, confirmation

    def take(self, messages: Iterable[bytes | Prepared]) -> None:
        """Add messages that nobody waits for; bytes are one that is only a value."""
        for kind, alike in groupby(messages, type):
            if kind is bytes:
                self._put_values(cast("list[bytes]", list(alike)))
            else:
                for message in alike:
                    self.put(cast(Prepared, message))

    def put(self, message: Prepared) -> None:
        """Add a message that nobody waits for."""
        _, batch, index = self.add(message, waits=False)
        batch.confirmation.without_waiter = True
        if message.mandatory:
            batch.unwatched.append(index)

    def _put_values(self, values: Sequence[bytes]) -> None:
        ends, first = list(accumulate(map(len, values))), 0
        while first < len(values):
            lane = self.sticky
            batch = lane.open
            if batch is None or batch.mandatory:
                batch = self.begin(lane, waits=False, mandatory=False)
            first = batch.extend(values, ends, first, self.bytes_max)
            batch.confirmation.without_waiter = True
            if batch.size >= self.bytes_max:
                self.seal(lane)

    def begin(self, lane: Lane, waits: bool, mandatory: bool) -> OpenBatch:
        """Begin a lane's next batch, behind one that is open for messages of the other kind.

        A publisher that waits sends it itself where nothing is on the way.
        """
        env = self._client.env
        if lane.open is not None:
            self.seal(lane)
        batch = lane.open = OpenBatch(int.from_bytes(env.rng.bytes(16), "big"), env.clock.now_ms(), mandatory)
        if not self._linger_s:
            batch.opened_tick = self.shipping.ticks
        if self._linger_s or (lane.idle and not waits):
            self._client._timers.after(self._linger_s, lambda: self.seal(lane) if lane.open is batch else None)
        return batch

    def seal(self, lane: Lane, *, attended: bool = False) -> None:
        """Finish the open batch of a lane and have it sent. `attended`: see `Link.ask`."""
        batch, lane.open = lane.open, None
        if not batch:
            return
        if lane is self.sticky:
            self.turn()
        confirmation = batch.confirmation
        if confirmation.without_waiter:
            confirmation.watcher = self._watch(batch)
        try:
            sealed = build_batch(batch.columns(with_key_hashes=lane.partition < 0), self.codec)
        except LinnError as error:
            confirmation.settle(None, error)
            return
        self.shipping.enqueue(lane, sealed, confirmation, batch.mandatory, attended, batch.opened_tick)

    def seal_if_idle(self, lane: Lane, batch: OpenBatch) -> bool:
        """Send a batch at once where nothing of its lane is on the way, unless messages are to wait for others.

        Whether it was sent; its publisher attends then.
        """
        if self._linger_s or lane.open is not batch or not lane.idle:
            return False
        self.seal(lane, attended=True)
        return True

    def unsettled(self) -> list[Confirmation]:
        """Finish all open batches; the confirmations of all that is on its way."""
        self._seal_all()
        return self.shipping.unsettled()

    def _seal_all(self) -> None:
        for lane in self.lanes:
            self.seal(lane)

    def give_up(self, error: LinnError) -> None:
        """Fail all that has not been sent."""
        for lane in self.lanes:
            batch, lane.open = lane.open, None
            if batch:
                if batch.confirmation.without_waiter:
                    batch.confirmation.watcher = self._watch(batch)
                batch.confirmation.settle(None, error)
        self.shipping.give_up(self.lanes, error)
