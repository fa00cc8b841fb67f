"""The laws of replication, checked all along at all brokers: what is committed never changes, but for records that
thinning takes out of a log with published ones, and an epoch has one leader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from uuid import UUID

import trio
from broker_world import BrokerWorld, SimBroker

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.core.log.partition import Partition
from linn.core.replicas.log_numbers import is_data
from linn.core.replicas.replication import Replication
from linn.testing.sim_device import SimulatedCrash

LOOK_S = 2.0
READ_ALL = 1 << 40
LogKey = tuple[UUID, int]


class CommittedRecords:
    """Records below the watermark of any broker, by log and offset."""

    def __init__(self, world: BrokerWorld, brokers: Sequence[SimBroker]) -> None:
        self.records: dict[LogKey, dict[int, RecordBatch]] = {}
        """The batch with each record, as it was seen first."""
        self._world = world
        self._brokers = brokers
        self._done: dict[tuple[int, LogKey], tuple[Partition, int]] = {}
        """The log that was looked at, and up to where, by broker and log."""
        self._leaders: dict[tuple[UUID, int], int] = {}
        """The broker that leads, by topic and epoch."""

    async def run(self) -> None:
        """Look at all brokers from time to time, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look at all brokers now."""
        for broker in self._brokers:
            if not broker.has_ended and not broker.env.is_dead:
                replication = broker.broker.administration.replication
                assert isinstance(replication, Replication)
                for id, replica in list(replication.replicas.items()):
                    if replica.leader is not None:
                        leader = self._leaders.setdefault((id, replica.leader.part.epoch), broker.number)
                        assert leader == broker.number, f"nodes {leader} and {broker.number} lead in one epoch"
                    for number, partition in list(replica.logs.items()):
                        with contextlib.suppress(LinnError, SimulatedCrash):  # It is closed or trimmed meanwhile.
                            await self._look_at(broker, (id, number), partition)

    async def _look_at(self, broker: SimBroker, key: LogKey, partition: Partition) -> None:
        known = self.records.setdefault(key, {})
        end = partition.high_watermark
        looked_at, done = self._done.get((broker.number, key), (None, 0))
        offset = max(done if looked_at is partition else 0, partition.log.bounds()[0])
        while offset < end:
            for batch in await partition.log.read(offset, READ_ALL):
                if batch.end_offset > end:
                    break
                for offset in range(batch.base_offset, batch.end_offset):
                    first = known.setdefault(offset, batch)
                    is_same = _seen(first) == _seen(batch) or (is_data(key[1]) and _is_thinned(first, batch, offset))
                    assert is_same, f"offset {offset} of log {key} has changed at node {broker.number}"
                offset = batch.end_offset
            else:
                continue
            break
        self._done[broker.number, key] = partition, offset

    def check_epochs(self) -> None:
        """Check that each epoch has one leader in one session, and that epochs do not go back."""
        leaders: dict[tuple[str, int], tuple[int, str]] = {}
        last: dict[str, int] = {}
        for write in self._world.store.history:
            for key, part in write.changes.items():
                if key.startswith("parts/") and isinstance(part, dict):
                    leader = part["leader"], part["session"]
                    assert leaders.setdefault((key, part["epoch"]), leader) == leader, "an epoch has two leaders"
                    assert part["epoch"] >= last.get(key, 0), "an epoch goes back"
                    last[key] = part["epoch"]


def _seen(batch: RecordBatch) -> tuple[int, int, int]:
    """Base offset, leader epoch, and what the producer sealed."""
    return batch.base_offset, batch.leader_epoch, batch.crc


def _is_thinned(first: RecordBatch, batch: RecordBatch, offset: int) -> bool:
    """Whether two batches differ by thinning alone: where both have a record at an offset, it is the same."""
    places = [(it, it.index_at(offset)) for it in (first, batch)]
    found = [it.record(at) for it, at in places if at < it.count and it.offset(at) == offset]
    return len(found) < 2 or (found[0] == found[1] and first.leader_epoch == batch.leader_epoch)
