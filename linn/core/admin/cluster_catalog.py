"""The catalog of a broker in a cluster: it follows the changes of other brokers, and opens the topics that it leads.

Laws: changes of other brokers take effect in the order of the metadata store, under the lock of this broker's own
changes. A topic is open at one broker, which leads it and has everything that was committed before; at the others it is
closed, and requests for its records are refused with the name of its leader. Its logs are open at all of its replicas.
A transient topic is open at its holder alone, as long as its entry is in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import trio

from linn.core.admin.entry_store import EntryStore
from linn.core.admin.exchanges import ExchangeAdministration
from linn.core.admin.led_logs import LedLogs
from linn.core.admin.stored_entries import EXCHANGE, ROLE, TOPIC, USER, settings_of_topics
from linn.core.admin.topics import TopicAdministration
from linn.core.admin.users import UserAdministration
from linn.core.cluster.entries import ClusterState, PartEntry
from linn.core.cluster.node import ClusterNode
from linn.core.cluster.placement import part_key
from linn.core.env.log_fields import log_fields
from linn.core.errors.group import raise_once
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, SyncFailed
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.storage import PartitionId
from linn.core.loop.waiting import first_of
from linn.core.metadata.levels import TRANSIENT_LEVEL
from linn.core.metadata.store import Stored
from linn.core.replicas.log_numbers import logs_of, timing_logs_there
from linn.core.replicas.replication import Replication
from linn.core.replicas.topic_replica import TopicReplica
from linn.core.topics.catalog import Catalog
from linn.core.topics.holder import Holder, holder_of
from linn.core.topics.timing_logs import timing_topic
from linn.core.topics.topic import Topic
from linn.core.transactions.cluster_coordinator import ClusterCoordinator
from linn.verbs import TRANSACTIONS_TOPIC

RETRY_S = 5.0
"""Pause before what failed is tried again, such as opening a topic on a full disk."""
LEADER_WAIT_S = 5.0
"""Limit of the wait for the leader of a new topic: elections take milliseconds while the store answers."""

logger = logging.getLogger("linn.cluster")


class ClusterCatalog:
    """The catalog as the cluster has it."""

    def __init__(
        self,
        node: ClusterNode,
        catalog: Catalog,
        entries: EntryStore,
        topics: TopicAdministration,
        exchanges: ExchangeAdministration,
        users: UserAdministration,
        groups: GroupCoordinator,
        transactions: ClusterCoordinator,
        logs: LedLogs,
        replication: Callable[[Callable[[str], None]], Replication],
    ) -> None:
        """`replication` makes the replicas, given a function that is called with the ids of topics to settle."""
        self._node = node
        self._catalog = catalog
        self._entries = entries
        self._topics = topics
        self._exchanges = exchanges
        self._users = users
        self._groups = groups
        self._transactions = transactions
        self._logs = logs
        self.replication = replication(self._settle_soon)
        self._woken = self._settled = trio.Event()
        self._unsettled: dict[str, None] = {}
        """Ids of topics that are to be opened or closed, perhaps."""
        self._failed: dict[str, tuple[Stored | None, str]] = {}
        """Changes that could not be put into effect yet, by key, with the last error."""

    async def run(self, change: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
        """Follow the cluster until cancelled. `change` carries out a change in its turn. Raises SyncFailed."""
        view = self._node.view
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.replication.run)
                while True:
                    version, self._woken = view.version, trio.Event()
                    await change(self._catch_up)
                    with trio.move_on_after(RETRY_S if self._unsettled or self._failed else float("inf")):
                        await first_of(partial(view.wait_newer, version), self._woken.wait)
        except BaseExceptionGroup as group:
            raise_once(group)

    def _settle_soon(self, id: str) -> None:
        self._unsettled[id] = None
        self._woken.set()

    async def _catch_up(self) -> None:
        store = self._node.catalog
        changes = {key: stored for key, (stored, _) in self._failed.items()} | store.take(self._entries.revisions)
        for key in sorted(changes, key=lambda key: _rank(key, changes[key])):
            await self._try_to_follow(key, changes[key])
        store.followed()
        self._unsettled |= dict.fromkeys(sorted(store.take_moved()))
        by_id = {str(topic.id): topic for topic in self._catalog.topics.values()}
        for id in list(self._unsettled):
            del self._unsettled[id]  # Now: its role may change while it is opened.
            if id in by_id and not await self._try_to_settle(by_id[id]):
                self._unsettled[id] = None

    # --- following ---

    async def _try_to_follow(self, key: str, stored: Stored | None) -> None:
        """Put another broker's change into effect; after a failure it is tried again later. Raises SyncFailed."""
        _, known = self._failed.pop(key, (None, ""))
        try:
            await self._follow(key, stored.value if stored is not None else None)
        except SyncFailed:
            raise
        except LinnError as error:
            self._failed[key] = stored, error.text
            if error.text != known:
                about = {"key": key} | log_fields(error)
                logger.error("this broker can't follow a change of %(key)s yet: %(error)s", about)
        self._entries.note(key, stored.revision if stored is not None else None)

    async def _follow(self, key: str, entry: Any) -> None:
        settings = settings_of_topics({key: entry}) if entry is not None else {}
        prefix, slash, name = key.partition("/")
        if prefix + slash == EXCHANGE:
            if entry is None or not self._is_own(entry):
                await self._exchanges.follow(name, entry)
        elif prefix + slash in (USER, ROLE):
            await self._users.follow(key, entry)
        elif prefix + slash == TOPIC:
            topic = self._catalog.topics.get(name)
            if topic is not None and (entry is None or entry["id"] != str(topic.id)):
                await self._topics.drop(topic)
                await self.forget(topic)
            if entry is not None and not self._is_own(entry):
                await self._topics.follow(name, settings[name], entry)
                self._unsettled[entry["id"]] = None

    def _is_own(self, entry: Any) -> bool:
        """Whether this broker alone writes an entry. If it does not know it, it had no answer as it wrote it."""
        holder = holder_of(entry)
        return holder is not None and holder.node == self.number

    async def forget(self, topic: Topic) -> None:
        """Delete the logs of a topic that is gone, as far as possible: the next start goes on. Raises SyncFailed."""
        try:
            for queue in topic.subscriptions.values():
                queue.end_consumers()
            await self._resign(topic)
            await self.replication.close(topic)
            await self._logs.delete(topic)
        except SyncFailed:
            raise
        except LinnError as error:
            text = "some logs of the deleted topic %(topic)s are left until the next start: %(error)s"
            logger.warning(text, {"topic": topic.name} | log_fields(error))

    @property
    def number(self) -> int:
        """See `Elsewhere.number`."""
        return self._node.number

    def check_level(self, what: str) -> None:
        """See `Elsewhere.check_level`."""
        self._node.view.state.check_level(TRANSIENT_LEVEL, what)

    def holder(self, epoch: int) -> Holder:
        """See `Elsewhere.holder`."""
        self.check_level("topics and exchanges that end with a broker")
        return Holder(self._node.number, epoch)

    def conditions_of(self, topic: Topic) -> Mapping[str, int]:
        """See `Elsewhere.conditions_of`."""
        if topic.holder is not None:
            return {}
        part = self._part(topic)
        if part is None or (part.leader, part.session) != (self._node.number, self._node.session):
            raise NotLeader(f"topic {topic.name} is not led by this broker any more")  # It closes it in a moment.
        key = part_key(str(topic.id))
        return {key: self._node.view.state.revision_of(key)}

    async def count_nodes(self, enough: int) -> int:
        """See `Elsewhere.count_nodes`."""
        known = len(self._node.view.state.nodes)
        if known < enough:
            # A broker is ready when it is registered: the store has it, though this view may be a moment behind.
            snapshot = await self._node.store.load()
            known = len(ClusterState.of(snapshot.revision, snapshot.entries).nodes)
        return known

    # --- leading ---

    async def _try_to_settle(self, topic: Topic) -> bool:
        """Open or close a topic as the cluster has decided; False: it failed, and is to be tried again."""
        if topic.name == AUDIT_TOPIC:
            return True
        try:
            await self._settle(topic)
        except SyncFailed:
            raise
        except LinnError as error:
            about = {"topic": topic.name} | log_fields(error)
            level = logging.INFO if isinstance(error, NotLeader) else logging.ERROR  # It may be led elsewhere by now.
            logger.log(level, "topic %(topic)s can't be opened yet: %(error)s", about)
            return False
        return True

    async def _settle(self, topic: Topic) -> None:
        part, replica = self._part(topic), self.replication.replicas.get(topic.id)
        if replica is None and part is not None and self._node.number in part.replicas:
            await self._logs.make_way(topic.name, str(topic.id))
            await self._logs.record(topic.name, await self._topics.entry_of(topic))
            replica = await self.replication.open(topic, [*logs_of(topic), *await timing_logs_there(topic)])
        if part is not None and self._node.number not in part.replicas:
            await self._drop(topic, part)
            return
        if replica is None:
            return
        if replica.has_ended:
            await self._resign(topic)
        if replica.is_recovered and topic.led_by is not None:
            await self._open(topic, replica)

    async def _drop(self, topic: Topic, part: PartEntry) -> None:
        """Delete this node's logs of a topic that is held by others now. Raises StorageError: some are left.

        An entry that is older than these logs deletes nothing: the store was set back in time.
        """
        replica = self.replication.replicas.get(topic.id)
        if self._logs.id_of(topic.name) != str(topic.id) or (replica is not None and part.epoch < replica.epoch):
            return
        await self._resign(topic)
        await self.replication.close(topic)
        topic.logs = None
        await self._logs.drop(topic.name)
        logger.info("topic %(topic)s is held by other nodes now: its logs here are deleted", {"topic": topic.name})

    async def _open(self, topic: Topic, replica: TopicReplica) -> None:
        replica.serves = True
        try:
            # A number is used again: a new subscription must not find the state of a former one.
            await replica.keep_subscriptions([entry.number for entry in topic.entries.values()])
            await topic.open()
            if replica.has(PartitionId(timing_topic(topic.name), 0)):
                await topic.timing.open()
            if topic.name == TRANSACTIONS_TOPIC:
                await self._transactions.adopt(topic.partitions[0])
            else:
                await topic.open_positions(self._groups)
        except LinnError:
            self._close(topic, replica)
            raise
        topic.led_by = None
        self._topics.leadership_changed(topic)
        self._settled.set()
        self._settled = trio.Event()
        if replica.has_ended:
            await self._resign(topic)

    async def _resign(self, topic: Topic) -> None:
        replica = self.replication.replicas.get(topic.id)
        if replica is None or not replica.serves:
            return
        was_open = topic.led_by is None
        self._close(topic, replica)
        if was_open:
            self._topics.leadership_changed(topic)

    def _close(self, topic: Topic, replica: TopicReplica) -> None:
        self._groups.release(topic.name, self._not_leader(topic))  # Its members read the partitions.
        if topic.name == TRANSACTIONS_TOPIC:
            self._transactions.release(self._not_leader(topic))
        topic.resign(partial(self._not_leader, topic))
        replica.serves = False

    def _part(self, topic: Topic) -> PartEntry | None:
        return self._node.view.state.parts.get(part_key(str(topic.id)))

    def close(self, topic: Topic) -> None:
        """Close a new topic until its leader is known."""
        topic.led_by = partial(self._not_leader, topic)

    def _not_leader(self, topic: Topic) -> NotLeader:
        if topic.holder is not None:
            return self._led_by(topic, topic.holder.node, topic.holder.epoch)
        part = self._part(topic)
        if part is None or not part.leader:
            return NotLeader(f"topic {topic.name} has no leader yet")
        if not part.isr:
            text = f"topic {topic.name} has no leader: node {part.leader}, which held its records, has lost them"
            return NotLeader(text)
        return self._led_by(topic, part.leader, part.epoch)

    def _led_by(self, topic: Topic, leader: int, epoch: int) -> NotLeader:
        state = self._node.view.state
        if leader == self._node.number:
            return NotLeader(f"topic {topic.name} is not open yet at this broker, which leads it")
        if leader not in state.sessions:
            return NotLeader(f"topic {topic.name} has no leader: node {leader} is down")
        place = f"node {leader}, at {', '.join(self._node.client_addresses(leader))}"
        return NotLeader(f"topic {topic.name} is led by {place}", leader=leader, epoch=epoch)

    async def wait_led(self, name: str, *, is_alive: bool = True) -> None:
        """Wait until a topic is open here, or another broker leads it, which `is_alive`; at most LEADER_WAIT_S."""
        view = self._node.view
        with trio.move_on_after(LEADER_WAIT_S):
            while (topic := self._catalog.topics.get(name)) is not None:
                version, part = view.version, self._part(topic)
                if topic.led_by is None or topic.led_by().leader:
                    return
                if not is_alive and part is not None and part.leader not in (0, self._node.number):
                    return
                await first_of(partial(view.wait_newer, version), self._settled.wait)


def _rank(key: str, stored: Stored | None) -> tuple[int, str]:
    """The place of a change: new exchanges come first, because topics may be bound to them, and deleted ones last."""
    if not key.startswith(EXCHANGE):
        return 1, key
    return (2 if stored is None else 0), key
