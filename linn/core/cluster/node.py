"""This broker as a node of a cluster: how it joins, what runs while it is a part of it, and how it is described."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from linn.core.cluster.catalog_store import CatalogStore
from linn.core.cluster.controlling import Controlling
from linn.core.cluster.entries import (
    CLUSTER,
    LOSSES,
    SESSIONS,
    STARTS,
    ClusterEntry,
    ClusterState,
    SessionEntry,
    unnoted_session,
)
from linn.core.cluster.folder import Folder, FolderNote, loss_at_start
from linn.core.cluster.health import NO_TOPICS, ClusterHealth, health
from linn.core.cluster.member import Member, Self
from linn.core.cluster.operations import Operations
from linn.core.cluster.peer_clocks import PeerClocks
from linn.core.cluster.placement import part_key
from linn.core.cluster.plan import PartPolicy
from linn.core.cluster.view import BackOff, ClusterView
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.cluster import (
    ClusterEmptied,
    ClusterRefused,
    MetadataInvalid,
    NodeTaken,
    SecretDiffers,
)
from linn.core.errors.group import raise_once
from linn.core.errors.metadata import MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import ABSENT, MetadataStore
from linn.descriptions import ClusterDescription, NodeDescription

if TYPE_CHECKING:
    from linn.core.config.configured import ClusterSettings

ID_BYTES = 16
SECRET_CHANGES_AFTER = 2
"""Session timeouts without any other node after which a node's secret becomes the cluster's: all nodes that run have a
session again by then, also if the store was away."""
FREE_AFTER = 2
"""Session timeouts for which a start waits for its number: a node that has died is given up after one, and some of the
store's time."""
AGAIN_S = 0.5
"""Interval of questions whether it is free."""
WAITING_INTERVAL_S = 5.0
"""Interval of the log's line about a store that a start waits for."""

ALONE: ClusterDescription = {
    "name": None,
    "id": None,
    "node": None,
    "is_registered": False,
    "nodes": [],
    "controller": None,
    "controller_epoch": None,
    "store": None,
    "store_latency_s": 0.0,
    "revision": 0,
    "view_age_s": 0.0,
    "problem": None,
    "level": None,
    "session_timeout_s": 0.0,
    "failing": 0,
    "topics": {
        "topics": 0,
        "leaderless": 0,
        "below_minimum": 0,
        "unfit": 0,
        "out_of_sync": 0,
        "too_few_replicas": 0,
        "moving": 0,
        "away": 0,
    },
    "troubled": [],
    "troubled_more": 0,
}
"""The description of a broker without a cluster."""

logger = logging.getLogger("linn.cluster")


class ClusterNode:
    """One node. Call `join`, `count_start` and `run` in this order, then `leave`, then `stopped`."""

    def __init__(self, settings: ClusterSettings, store: MetadataStore, env: Env, data_dir: str) -> None:
        self._settings = settings
        self.store = store
        self._env = env
        self._folder = Folder(env.disk, data_dir)
        self._running = trio.CancelScope()
        self.clocks = PeerClocks(env.clock)
        self.catalog = CatalogStore(store, env.clock, env.rng)
        self.view = ClusterView(store, self.catalog, self._folder.check_cluster, env.clock, env.rng)
        self.policy_of_storage: Callable[[str | None], PartPolicy] = lambda _: PartPolicy()
        """Returns what a storage promises, None: the default one; set before the node runs."""
        self.failing_count: Callable[[], int] = int
        """Returns the number of topics of which the disk here takes no records; set before the node runs."""
        itself = Self(settings.node, env.process.host(), settings.rack, settings.session_timeout_s, settings.level)
        self._member = Member(itself, store, self.view, self._folder, env)
        self._health = -1, health(ClusterState(), ())
        """The version of the view, and what followed from it."""
        about = self.catalog, self.view, self._member, self.policy_of
        self._control = Controlling(settings.node, store, *about, env)

    # --- starting ---

    async def join(self) -> None:
        """Find or make the cluster, and check that the data folder belongs to it as this node.

        Waits for the metadata store as long as it takes, and with another secret than the cluster's for some seconds.

        Raises:
            ClusterForeign, ClusterEmptied, NodeTaken: the folder, the store or the number is not this node's.
            SecretDiffers: nodes that are alive have another secret. SecretUnusable: it can't be read.
            MetadataInvalid, MetadataLater: the metadata can't be used. LogCorrupt, StorageError: of the folder.
        """
        note = await self._folder.load()
        self._folder.check(self._settings.node)
        state = await self._load_patiently()
        while state.cluster is None and note is None:
            await self._make_cluster(state)
            state = await self._load_patiently()
        state = await self._check_secret(await self._raised(await self._wait_number(state)))
        assert state.cluster is not None, "made, or checked"
        boot_id = self._env.process.boot_id()
        if note is None:
            folder_id = self._env.rng.bytes(ID_BYTES).hex()
            note = FolderNote(folder_id, state.cluster.id, self._settings.node, boot_id, lost="all")
        else:
            entry = state.nodes.get(self.number)
            lost = loss_at_start(note, boot_id, entry.handled if entry is not None else "")
            note = msgspec.structs.replace(note, boot_id=boot_id, lost=lost, told="")
        await self._folder.save(note)

    async def _wait_number(self, state: ClusterState) -> ClusterState:
        """Wait for the end of the session of another folder with this number: its machine may be gone since a moment.

        Raises NodeTaken: it is alive after that time. Raises what `join` does.
        """
        until_s, has_told = self._env.clock.monotonic() + FREE_AFTER * self._settings.session_timeout_s, False
        while True:
            try:
                self._member.check(state)
            except NodeTaken as error:
                if self._env.clock.monotonic() >= until_s:
                    raise
                if not has_told:
                    logger.warning("the start waits for the end of a session: %(error)s", log_fields(error))
                has_told = True
            else:
                return state
            await self._env.clock.sleep(AGAIN_S)
            state = await self._load_patiently()

    async def _raised(self, state: ClusterState) -> ClusterState:
        """Raise the level of workers to the one of this version, unless a worker of an older version still runs."""
        if not self._settings.are_workers:
            return state
        try:
            write = Operations(state, {}, self.policy_of).upgrade(self.level_known).write
        except ClusterRefused as error:
            logger.warning("the workers stay at level %(level)d: %(error)s", {"level": state.level} | log_fields(error))
            return state
        if write is not None:
            await self._try_to_put(CLUSTER, write.changes[CLUSTER], write.conditions)
        return await self._load_patiently()

    async def _check_secret(self, state: ClusterState) -> ClusterState:
        """Compare the secret with the cluster's, which becomes this one's if no other node is alive for some seconds.

        Raises what `join` does.
        """
        if self._settings.secret is None or self._settings.are_workers:
            return state
        secret, has_waited = self._settings.secret.reveal(self._env), False
        while True:
            cluster = state.cluster
            if cluster is None:
                raise ClusterEmptied("the metadata store has nothing of the cluster any more")
            check, others = secret_check(secret, cluster.id), state.nodes.keys() - {self.number}
            if hmac.compare_digest(check, cluster.secret_check):
                return state
            if cluster.secret_check and (alive := sorted(others & state.sessions.keys())):
                names = f"nodes {', '.join(map(str, alive))} are" if alive[1:] else f"node {alive[0]} is"
                raise SecretDiffers(f"{names} alive with another secret: give this node the secret of the cluster")
            if has_waited or not cluster.secret_check:
                absent = dict.fromkeys([f"{SESSIONS}{number}" for number in others], ABSENT) if has_waited else {}
                changed = msgspec.structs.replace(cluster, secret_check=check)
                await self._try_to_put(CLUSTER, changed, {CLUSTER: state.revision_of(CLUSTER), **absent})
            else:
                wait_s = SECRET_CHANGES_AFTER * self._settings.session_timeout_s
                about = {"seconds": wait_s}
                logger.warning(
                    "the secret is not the cluster's: it is from now on if no node is alive for %(seconds)g s", about
                )
                await self._env.clock.sleep(wait_s)
                has_waited = True
            state = await self._load_patiently()
            self._member.check(state)

    async def _try_to_put(self, key: str, entry: ClusterEntry, conditions: Mapping[str, int]) -> bool:
        """Write an entry; returns False if it is unknown whether it was written, or another one is there."""
        try:
            await self.store.put_all({key: entry}, conditions)
        except (RevisionConflict, MetadataUnavailable, MetadataUnknown) as error:
            logger.debug("entry %(key)s was not written, or is unknown: %(error)s", {"key": key} | log_fields(error))
            return False
        return True

    async def _load_patiently(self) -> ClusterState:
        """Read the store as soon as it can be read. Raises MetadataInvalid, MetadataLater."""
        back_off, noted_s = BackOff(self._env.clock, self._env.rng), -WAITING_INTERVAL_S
        while True:
            try:
                snapshot = await self.store.load()
            except MetadataUnavailable as error:
                now_s = self._env.clock.monotonic()
                if now_s - noted_s >= WAITING_INTERVAL_S:
                    noted_s = now_s
                    logger.warning("the start waits for the metadata store: %(error)s", log_fields(error))
                await back_off.pause()
            else:
                return ClusterState.of(snapshot.revision, snapshot.entries)

    async def _make_cluster(self, state: ClusterState) -> None:
        """Make the cluster unless another node does. Raises MetadataInvalid."""
        if state.revisions:
            some = min(state.revisions)
            raise MetadataInvalid(f'the metadata store has entries such as {some}, and no entry "{CLUSTER}"')
        entry = ClusterEntry(self._env.rng.bytes(ID_BYTES).hex(), self.level_known)
        if await self._try_to_put(CLUSTER, entry, {CLUSTER: ABSENT}):
            logger.info("made the cluster %(cluster)s", {"cluster": self._settings.name})

    async def count_start(self, least: int) -> int:
        """Take the next number of a start in the whole cluster, at least `least`. Waits for the store.

        Raises MetadataInvalid, MetadataLater.
        """
        while True:
            state = await self._load_patiently()
            number = max(state.starts + 1, least)
            try:
                await self.store.put_all({STARTS: number}, {STARTS: state.revision_of(STARTS)})
            except (RevisionConflict, MetadataUnavailable, MetadataUnknown) as error:
                # A number that may have been taken is not used: the next one is.
                logger.debug("the start is counted again: %(error)s", log_fields(error))
            else:
                return number

    # --- running ---

    async def run(self, addresses: Mapping[str, str]) -> None:
        """Be a part of the cluster until it is left, or until cancelled.

        `addresses`: by listener, as others reach them. Raises NodeTaken, MetadataLater, SyncFailed.
        """
        self._member.addresses = addresses
        try:
            async with trio.open_nursery() as nursery:
                self._running = nursery.cancel_scope
                for task in (self.view.run, self._member.run, self._control.run):
                    nursery.start_soon(task)
        except BaseExceptionGroup as group:
            raise_once(group)

    async def wait_registered(self) -> None:
        """Wait until this node has a session, and sees it in the metadata store: others can count on it."""
        await self.view.wait_revision((await self._member.wait_registered()).revision)

    async def leave(self) -> None:
        """End `run`, and tell the cluster that this node stops. Waits at most 2 s."""
        self._running.cancel()
        await self._member.leave()

    async def stopped(self, *, is_synced: bool) -> None:
        """Note that all logs were closed, and close the store. `is_synced`: nothing can be lost any more.

        Raises StorageError.
        """
        await self.store.aclose()
        if is_synced and self._folder.note is not None:
            await self._folder.save(msgspec.structs.replace(self._folder.note, boot_id=""))

    def client_addresses(self, node: int) -> list[str]:
        """The addresses of a node that is alive, without that of its listener for brokers."""
        addresses = self.view.state.sessions[node].addresses
        return sorted({address for name, address in addresses.items() if name != self._settings.listener})

    def policy_of(self, key: str) -> PartPolicy:
        """The promises of a partition's topic, by the partition's key."""
        topic = self.catalog.topic_of_part(key)
        return self.policy_of_storage(topic.storage)._replace(min_in_sync=topic.min_in_sync) if topic else PartPolicy()

    def has_topic(self, id: str) -> bool:
        """Whether the cluster has a topic with this id, as far as this node knows."""
        return part_key(id) in self.view.state.parts or self.catalog.is_held(id)

    def session_lease(self) -> int:
        """The lease of this node's session, with which its entries end. Raises MetadataUnavailable: it has none."""
        if (current := self._member.current) is None:
            raise MetadataUnavailable("this broker has no session in the metadata store yet")
        return current.lease.lease

    # --- describing ---

    @property
    def number(self) -> int:
        """The number of this node."""
        return self._settings.node

    @property
    def level_known(self) -> int:
        """The greatest level that this node knows."""
        return self._settings.level

    @property
    def catch_up_bytes(self) -> int:
        """The rate at which this node copies topics with which it is not in sync."""
        return self._settings.catch_up_bytes

    @property
    def cluster_id(self) -> str:
        """The id of the cluster to which this node's folder belongs; "": it has not joined yet."""
        return self._folder.note.cluster_id if self._folder.note is not None else ""

    @property
    def session(self) -> str:
        """The last session of this node, which may be registered in a moment; "": it has none yet."""
        return self._member.session

    @property
    def registered_session(self) -> str:
        """The last session of this node that the store has had; "": none."""
        return self._member.registered_session

    @property
    def is_controller(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        return self._control.is_controller

    @property
    def is_registered(self) -> bool:
        """Whether this node has a session that can't have ended."""
        return self._member.is_alive

    @property
    def store_latency_s(self) -> float:
        """Duration of the last renewal of the session."""
        return self._member.store_latency_s

    @property
    def health(self) -> ClusterHealth:
        """The health of the cluster's topics, as this node knows it."""
        version, found = self._health
        if version != self.view.version:
            found = health(self.view.state, self.catalog.topics.values())
            self._health = self.view.version, found
        return found

    def describe(self, troubled_max: int = 0) -> ClusterDescription:
        """Describe the cluster as this node knows it, with so many of the topics in trouble."""
        state, problem, found = self.view.state, self.view.problem, self.health
        controller = state.controller
        numbers = sorted({*state.nodes, *state.sessions})
        return {
            "name": self._settings.name,
            "id": state.cluster.id if state.cluster is not None else None,
            "node": self.number,
            "is_registered": self.is_registered,
            "nodes": [self._describe_node(number) for number in numbers],
            "controller": controller.node if controller is not None else None,
            "controller_epoch": state.revision_of("controller") or None,
            "store": self._settings.store,
            "store_latency_s": round(self.store_latency_s, 6),
            "revision": state.revision,
            "view_age_s": round(self.view.age_s(), 3),
            "problem": str(problem) if problem is not None else None,
            "level": state.cluster.level if state.cluster is not None else None,
            "session_timeout_s": self._settings.session_timeout_s,
            "failing": self.failing_count(),
            "topics": {
                "topics": found.topics,
                "leaderless": found.counts["leaderless"],
                "below_minimum": found.counts["below minimum"],
                "unfit": found.counts["unfit"],
                "out_of_sync": found.counts["out of sync"],
                "too_few_replicas": found.counts["too few replicas"],
                "moving": found.moving,
                "away": found.away,
            },
            "troubled": [each.describe() for each in found.troubled[:troubled_max]],
            "troubled_more": max(0, len(found.troubled) - troubled_max),
        }

    def _describe_node(self, number: int) -> NodeDescription:
        state = self.view.state
        entry, session, ends = state.nodes.get(number), state.sessions.get(number), state.ended.get(number, ())
        is_unnoted = unnoted_session(state, number) is not None
        last = ends[-1] if ends and not is_unnoted else None
        topics, ahead_s = self.health.nodes.get(number, NO_TOPICS), self.clocks.ahead_s().get(number)
        return {
            "node": number,
            "state": "alive" if session is not None else last.reason if last is not None else "gone",
            "since_ms": session.since_ms if session is not None else last.at_ms if last is not None else None,
            "session": session.session if session is not None else None,
            "host": entry.host if entry is not None else "",
            "rack": entry.rack if entry is not None else "",
            "addresses": dict(session.addresses) if session is not None else {},
            "lost": _told(session, entry.handled if entry is not None else ""),
            "is_draining": entry.draining if entry is not None else False,
            "leads": topics.leads,
            "holds": topics.holds,
            "out_of_sync": topics.out_of_sync,
            "version": state.versions.get(number, "") if session is not None else "",
            "levels": list(session.levels) if session is not None else [],
            "clock_ahead_s": None if ahead_s is None else round(ahead_s, 3),
            "ends": [{"session": end.session, "at_ms": end.at_ms, "reason": end.reason} for end in ends],
        }


def secret_check(secret: str, cluster_id: str) -> str:
    """The keyed hash by which nodes compare their secrets. It can be used to try guesses of a secret."""
    return hmac.digest(secret.encode(), b"linn cluster secret 1" + cluster_id.encode(), "sha256").hex()


def _told(session: SessionEntry | None, handled: str) -> Any:
    """The loss that a node tells and that is not handled."""
    return session.lost if session is not None and session.session != handled else LOSSES[0]
