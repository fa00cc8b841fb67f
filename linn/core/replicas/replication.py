"""The replicas that this broker has of the cluster's topics, and their news from the metadata store.

Laws: a replica hears of the changes of its topic's entry in order, and of each session of this node. Nothing here waits
for the catalog, whose changes may take long: a role changes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

import trio

from linn.core.cluster.following import FollowerSeat, FollowLane
from linn.core.cluster.node import ClusterNode
from linn.core.cluster.part_store import PartStore, view_of
from linn.core.cluster.peers import PeerLinks
from linn.core.cluster.placement import part_key
from linn.core.env.env import Env, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.group import raise_once
from linn.core.errors.metadata import MetadataError, RevisionConflict
from linn.core.errors.peers import PeerUnreachable
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, LogCorrupt, StorageError, SyncFailed, TopicUnknown
from linn.core.log.replication.events import ChangeIsr, LogTable
from linn.core.log.storage import PartitionId
from linn.core.loop.waiting import first_of
from linn.core.metadata.levels import THIN_LEVEL
from linn.core.replicas.departure import CATCH_UP_S, Departure
from linn.core.replicas.replication_counts import ReplicationCounts
from linn.core.replicas.topic_replica import TopicReplica
from linn.core.security.quota import Bucket
from linn.core.topics.topic import Topic

logger = logging.getLogger("linn.cluster")

TICK_S = 0.25
"""Interval of what depends on time: it decides after seconds."""
HOUSEKEEPING_S = 10.0
EPOCH_WAIT_S = 5.0
"""Longest wait to learn of an epoch that this node has begun: the watch tells within milliseconds."""


class Replication:
    """All replicas of this broker; the ports `FollowedLogs` and `ReplicaHost`."""

    def __init__(
        self,
        node: ClusterNode,
        links: Callable[[], PeerLinks | None],
        env: Env,
        spawn: Spawn,
        settle: Callable[[str], None],
    ) -> None:
        """`settle` is called with the id of a topic whose role here has changed."""
        self.clock = env.clock
        self.rng = env.rng
        self.counts = ReplicationCounts()
        self.spawn = spawn
        self.replicas: dict[UUID, TopicReplica] = {}
        self._node = node
        self._env = env
        self._links = links
        self._settle = settle
        self._parts = PartStore(node.number, node.store)
        self._looking: dict[UUID, None] = {}
        """Topics whose replicas have not seen the last state."""
        self._reading: dict[UUID, None] = {}
        self._moving: set[UUID] = set()
        """Topics that this node hands over to the successor that the store names."""
        self._catching_up = Bucket()
        self._catching_up.rate = node.catch_up_bytes
        self._beginning: set[UUID] = set()
        """Topics for which this node is about to lead again."""
        self._wake = trio.Event()
        self._seen: dict[UUID, int] = {}
        """Revisions of the entries that the replicas have seen."""

    @property
    def number(self) -> int:
        """See `ReplicaHost.number`."""
        return self._node.number

    @property
    def session(self) -> str:
        """See `ReplicaHost.session`."""
        return self._node.session

    @property
    def thins(self) -> bool:
        """See `ReplicaHost.thins`."""
        return self._node.view.state.level >= THIN_LEVEL

    # --- replicas ----------------------------------------------------------------------------------------------------

    async def open(self, topic: Topic, ids: list[PartitionId]) -> TopicReplica:
        """Open this broker's replica of a topic: these logs, and others as the leader has them.

        Raises LogCorrupt, StorageError: nothing is open.
        """
        try:
            replica = await self._load(topic, ids)
        except LogCorrupt:
            if not await self._retreat(part_key(str(topic.id)), is_damaged=True):
                raise
            for id in ids:
                await _cut_damaged(topic, id)
            replica = await self._load(topic, ids)
        topic.logs = self.replicas[topic.id] = replica
        self._tell_session(replica)
        self.look_again(topic.id)
        self.spawn(replica.run)
        return replica

    async def _load(self, topic: Topic, ids: list[PartitionId]) -> TopicReplica:
        replica = TopicReplica(topic, part_key(str(topic.id)), self)
        try:
            await replica.load(ids)
        except LinnError:
            await replica.close()
            raise
        return replica

    async def close(self, topic: Topic) -> None:
        """Close this broker's replica of a topic, if it has one. Raises StorageError."""
        replica = self.replicas.pop(topic.id, None)
        self._seen.pop(topic.id, None)
        if replica is not None:
            await replica.close()

    async def depart(self) -> None:
        """Let other brokers lead this one's topics, and follow no more: it is about to stop. See `Departure`."""
        await Departure(self._node, self.replicas.values(), self._env).run()

    def failing_count(self) -> int:
        """The number of topics of which the disk has not taken the last records."""
        return sum([replica.is_failing for replica in self.replicas.values()])

    def _tell_session(self, replica: TopicReplica) -> None:
        replica.session_changed(self._node.session, is_held=self._node.is_registered)

    # --- running -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep all replicas informed until cancelled. Raises SyncFailed."""
        try:
            async with trio.open_nursery() as nursery:
                for task in (self._watch, self._tick, self._read, self._keep):
                    nursery.start_soon(task)
        except BaseExceptionGroup as group:
            raise_once(group)

    async def _watch(self) -> None:
        view = self._node.view
        while True:
            version, self._wake = view.version, trio.Event()
            looking, self._looking = self._looking, {}
            for id in looking:
                self._look(id)
            # An election of a thousand topics is many changes of the view, of a few entries each.
            revision_of, seen = view.state.revision_of, self._seen
            for id in [id for id, it in self.replicas.items() if revision_of(it.key) != seen.get(id)]:
                self._look(id)
            await first_of(partial(view.wait_newer, version), self._wake.wait)

    def _look(self, topic: UUID) -> None:
        replica = self.replicas.get(topic)
        part = view_of(self._node.view.state, replica.key) if replica is not None else None
        if replica is not None and part is not None:
            self._seen[topic] = part.revision
            self._tell_session(replica)  # It may be elected in this one.
            replica.viewed(part)

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(TICK_S)
            for replica in list(self.replicas.values()):
                self._tell_session(replica)
                replica.tick()
                if replica.is_stranded and self._node.is_registered and replica.topic.id not in self._beginning:
                    self._beginning.add(replica.topic.id)
                    self.spawn(partial(self._try_to_begin_epoch, replica))
                if replica.leader is not None and replica.topic.id not in self._moving and self._successor(replica):
                    self._moving.add(replica.topic.id)
                    self.spawn(partial(self._try_to_move, replica))

    async def _try_to_begin_epoch(self, replica: TopicReplica) -> None:
        """Lead again: this node has stepped down, and the cluster has not given it up."""
        try:
            await self._parts.begin_epoch(self._node.view.state, replica.key)
        except MetadataError as error:
            logger.debug("no epoch was begun: %(error)s", log_fields(error))
        finally:
            self._beginning.discard(replica.topic.id)

    def _successor(self, replica: TopicReplica) -> int:
        """The node to which this one is to hand a topic over; 0: none."""
        part = self._node.view.state.parts.get(replica.key)
        return part.successor if part is not None and part.successor != self.number else 0

    async def _try_to_move(self, replica: TopicReplica) -> None:
        """Hand a topic over to its successor, if that can have all that was taken; else it is tried again soon."""
        about = {"topic": replica.topic.name, "node": self._successor(replica)}
        replica.hold()
        try:
            with trio.move_on_after(CATCH_UP_S) as scope, suppress(NotLeader):
                await replica.committed()
            view, policy = self._node.view, self._node.policy_of(replica.key)
            if scope.cancelled_caught:
                logger.info("topic %(topic)s is not handed over to node %(node)d yet: it is behind", about)
                return
            revision = await self._parts.hand_over(view.state, replica.key, policy)
            if revision is not None:
                with trio.move_on_after(EPOCH_WAIT_S):
                    await view.wait_revision(revision)
                logger.info("topic %(topic)s is handed over to node %(node)d", about)
        except MetadataError as error:
            logger.debug("topic %(topic)s is not handed over yet: %(error)s", about | log_fields(error))
        finally:
            replica.release()
            self._moving.discard(replica.topic.id)

    async def pace(self, bytes: int) -> None:
        """See `ReplicaHost.pace`."""
        self._catching_up.take(bytes, self.clock.monotonic())
        while (pause_s := self._catching_up.pause_s(self.clock.monotonic())) > 0:
            await self.clock.sleep(pause_s)

    async def _read(self) -> None:
        """Read the entries that leaders want to know for certain, all of them at once."""
        while True:
            await self.clock.sleep(TICK_S)
            if self._reading:
                reading, self._reading = self._reading, {}
                try:
                    state = await self._parts.read()
                except LinnError as error:
                    logger.debug("the entries of topics were not read: %(error)s", log_fields(error))
                    self._reading = reading | self._reading
                    continue
                for replica in [self.replicas[topic] for topic in reading if topic in self.replicas]:
                    part = view_of(state, replica.key)
                    if part is not None:
                        replica.viewed(part, is_read=True)

    async def _keep(self) -> None:
        while True:
            await self.clock.sleep(HOUSEKEEPING_S)
            for replica in list(self.replicas.values()):
                try:
                    await replica.enforce_retention()
                except SyncFailed:
                    raise
                except StorageError as error:
                    about = {"topic": replica.topic.name} | log_fields(error)
                    logger.error("the logs of topic %(topic)s were not kept in order: %(error)s", about)

    # --- what replicas ask for ---------------------------------------------------------------------------------------

    def settle(self, topic: UUID) -> None:
        """See `ReplicaHost.settle`."""
        self._settle(str(topic))

    def look_again(self, topic: UUID) -> None:
        """See `ReplicaHost.look_again`."""
        self._looking[topic] = None
        self._wake.set()

    def read(self, topic: UUID) -> None:
        """See `ReplicaHost.read`."""
        self._reading[topic] = None

    async def change_isr(self, key: str, change: ChangeIsr) -> int:
        """See `ReplicaHost.change_isr`."""
        return await self._parts.change_isr(self._node.view.state, key, change)

    async def begin_epoch(self, topic: UUID) -> None:
        """See `ReplicaHost.begin_epoch`."""
        view = self._node.view
        revision = await self._parts.begin_epoch(view.state, part_key(str(topic)))
        with trio.move_on_after(EPOCH_WAIT_S):
            await view.wait_revision(revision)
        self._look(topic)

    def retreat(self, topic: UUID, *, is_damaged: bool) -> None:
        """See `ReplicaHost.retreat`."""
        self.spawn(partial(self._hand_over, self.replicas[topic], is_damaged=is_damaged))

    async def _hand_over(self, replica: TopicReplica, *, is_damaged: bool) -> None:
        about = {"topic": replica.topic.name, "reason": "its log is damaged" if is_damaged else "the disk is full"}
        replica.hold()
        try:
            with trio.move_on_after(CATCH_UP_S), suppress(NotLeader):
                await replica.committed()
            moved = await self._retreat(replica.key, is_damaged=is_damaged)
        except MetadataError as error:
            logger.warning("topic %(topic)s is led on here, although %(reason)s: %(error)s", about | log_fields(error))
        else:
            text = "is led by another node now" if moved else "is led on here, as no other node can lead it"
            logger.warning(f"topic %(topic)s {text}: %(reason)s", about)
        finally:
            replica.release()

    async def _retreat(self, key: str, *, is_damaged: bool) -> bool:
        """Let another member lead; returns whether this node is out of the way. Raises MetadataError."""
        view, number = self._node.view, self._node.number
        policy = self._node.policy_of(key)
        revision = await self._parts.retreat(view.state, key, policy, is_damaged=is_damaged)
        if revision is not None:
            with trio.move_on_after(EPOCH_WAIT_S):
                await view.wait_revision(revision)
            return True
        part = view.state.parts.get(key)
        return is_damaged and part is not None and number in part.unfit and number not in part.isr

    async def recovered(self, topic: UUID) -> None:
        """See `ReplicaHost.recovered`."""
        view = self._node.view
        while True:
            version = view.version
            try:
                revision = await self._parts.recovered(view.state, part_key(str(topic)))
            except RevisionConflict:
                await view.wait_newer(version)  # The cause is on its way.
            else:
                break
        with trio.move_on_after(EPOCH_WAIT_S):
            await view.wait_revision(revision)
        self._look(topic)

    async def open_lane(self, node: int) -> FollowLane:
        """See `ReplicaHost.open_lane`."""
        links = self._links()
        if links is None:
            raise PeerUnreachable("this broker has no listener for other brokers")
        return await links.open_follow_lane(node)

    # --- followers ---------------------------------------------------------------------------------------------------

    def follow(
        self,
        node: int,
        session: str,
        topic_id: UUID,
        epoch: int,
        logs: Mapping[int, LogTable],
        silent_s: Callable[[], float],
    ) -> FollowerSeat:
        """See `FollowedLogs.follow`."""
        replica = self.replicas.get(topic_id)
        if replica is None:
            raise TopicUnknown(f"this broker has no topic of the id {topic_id}")
        return replica.follow(node, session, epoch, logs, silent_s)


async def _cut_damaged(topic: Topic, id: PartitionId) -> None:
    """Set the damaged part of a closed log aside, so that it can be opened. Raises StorageError."""
    tail = await topic.engine.damaged_tail(id, cut=True)
    if tail is not None:
        about = {"partition": str(id), "place": tail.place, "reason": tail.reason, "bytes": tail.bytes}
        logger.warning("%(partition)s: %(bytes)d bytes from %(place)s on are set aside: %(reason)s", about)
