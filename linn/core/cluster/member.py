"""The membership of this node: its number, its session in the metadata store, and its leave.

Laws: a session is registered only if the number belongs to this data folder or to no living node, compared in the
write. A lost lease is followed by a new session, and the node serves on meanwhile. A session that another process
replaced ends the broker: two of them with one folder are one too many.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import NamedTuple

import msgspec
import trio

from linn.core.cluster.entries import (
    CLUSTER,
    ENDED,
    NODES,
    SESSIONS,
    VERSIONS,
    ClusterState,
    Loss,
    NodeEntry,
    SessionEnd,
    SessionEntry,
    unnoted_session,
    with_end,
)
from linn.core.cluster.folder import Folder, FolderNote, is_handled
from linn.core.cluster.plan import end_write
from linn.core.cluster.session import RENEWALS_PER_TTL, SessionLease
from linn.core.cluster.view import BackOff, ClusterView
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.cluster import ClusterEmptied, ClusterForeign, NodeTaken
from linn.core.errors.metadata import LeaseLost, MetadataError, MetadataUnknown, RevisionConflict
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.metadata.levels import LEVEL_MIN
from linn.core.metadata.store import REMOVED, MetadataStore

LEAVE_S_MAX = 2.0
"""Time that a stop waits for the store: without it the session ends by itself."""
SESSION_BYTES = 8

logger = logging.getLogger("linn.cluster")


class Self(NamedTuple):
    """Facts about this node, which do not change while it runs."""

    number: int
    host: str
    rack: str
    session_timeout_s: float
    level: int
    """The greatest level that it knows."""


class Registered(NamedTuple):
    """A session that is in the store."""

    session: str
    lease: SessionLease
    revision: int


class Member:
    """The session of this node."""

    def __init__(self, itself: Self, store: MetadataStore, view: ClusterView, folder: Folder, env: Env) -> None:
        self.addresses: Mapping[str, str] = {}
        self.session = ""
        """The last session that was begun, registered or not; "": none."""
        self.registered_session = ""
        """The last session that the store has had; "": none."""
        self._begun: Registered | None = None
        """The same with its lease, without the revision."""
        self.current: Registered | None = None
        """The last session; None: there is none yet."""
        self.store_latency_s = 0.0
        """Duration of the last renewal."""
        self._has_registered = trio.Event()
        self._self = itself
        self._store = store
        self._view = view
        self._folder = folder
        self._env = env
        self._clock = env.clock
        self._back_off = BackOff(env.clock, env.rng)

    @property
    def is_alive(self) -> bool:
        """Whether the store can't have given this node up, as far as its own clock says."""
        return self.current is not None and not self.current.lease.is_expired(self._clock.monotonic())

    async def run(self) -> None:
        """Keep a session registered until cancelled. Raises NodeTaken."""
        while True:
            self.current = await self._register_patiently()
            self.registered_session = self.current.session
            self._has_registered.set()
            await self._keep(self.current)

    async def wait_registered(self) -> Registered:
        """Wait for the first session; returns the current one."""
        await self._has_registered.wait()
        assert self.current is not None, "it stays until the node leaves"
        return self.current

    # --- registering ---

    async def _register_patiently(self) -> Registered:
        """Register a new session as soon as the store lets it. Raises NodeTaken."""
        noted = ""
        while True:
            try:
                registered = await self._register()
            except SyncFailed:
                raise
            except (MetadataError, ClusterEmptied, ClusterForeign, StorageError) as error:
                if error.code != noted and not isinstance(error, RevisionConflict | MetadataUnknown):
                    noted = error.code
                    logger.warning("the node is not registered yet: %(error)s", log_fields(error))
                await self._back_off.pause()
            else:
                self._back_off.reset()
                logger.info("registered as node %(node)d", {"node": self._self.number})
                return registered

    async def _register(self) -> Registered:
        """Register a new session. Raises NodeTaken, ClusterEmptied, ClusterForeign, MetadataError."""
        sent_s = self._clock.monotonic()
        lease = SessionLease(
            await self._store.grant_lease(self._self.session_timeout_s), self._self.session_timeout_s, sent_s
        )
        self.session = session = self._env.rng.bytes(SESSION_BYTES).hex()
        self._begun = Registered(session, lease, 0)
        key = f"{SESSIONS}{self._self.number}"
        while True:
            state = await self._checked_state()
            try:
                mine = state.sessions.get(self._self.number)
                if mine is None or mine.session != session:
                    await self._put_session(state, session, lease)
                elif await self._put_node(state, session=session):
                    return Registered(session, lease, state.revision_of(key))
            except (RevisionConflict, MetadataUnknown):
                # What was read has changed, or what was written may be there.
                await self._back_off.pause()

    async def _checked_state(self) -> ClusterState:
        """Read the store. Raises NodeTaken, ClusterEmptied, ClusterForeign, MetadataError."""
        snapshot = await self._store.load()
        state = ClusterState.of(snapshot.revision, snapshot.entries)
        self.check(state)
        return state

    def check(self, state: ClusterState) -> None:
        """Check that the data folder and the number fit the state of the store.

        Raises ClusterEmptied, ClusterForeign, NodeTaken.
        """
        self._folder.check_cluster(state)
        entry, session = state.nodes.get(self._self.number), state.sessions.get(self._self.number)
        folder_id = self._folder.note.folder_id if self._folder.note is not None else None
        if entry is not None and session is not None and entry.folder_id != folder_id:
            text = f"node {self._self.number} is alive on {entry.host} with another data folder"
            raise NodeTaken(f"{text}: stop that broker, or give this one another number")

    async def _put_session(self, state: ClusterState, session: str, lease: SessionLease) -> None:
        """Write the session's entry, after the node's. Raises MetadataError."""
        number, entry = self._self.number, state.nodes.get(self._self.number)
        ended = unnoted_session(state, number)
        if ended is not None:
            write = end_write(state, number, ended, self._clock.now_ms())
            await self._store.put_all(write.changes, write.conditions)
        if entry is None or entry.folder_id != self._note.folder_id:
            await self._note_loss("all")  # What the cluster knows of this number is another folder's.
        if not await self._put_node(state):
            return  # Read again, for its revision.
        if is_handled(self._note, state.nodes[number].handled):
            await self._note_loss("none")
        if self._note.lost != "none":
            await self._folder.save(msgspec.structs.replace(self._note, told=session))
        key, node = f"{SESSIONS}{number}", f"{NODES}{number}"
        lost, levels = self._note.lost, (LEVEL_MIN, self._self.level)
        value = SessionEntry(session, self._clock.now_ms(), dict(self.addresses), levels, lost)
        # The level that was checked is the one that the cluster has: it may be raised at the same time.
        conditions = {it: state.revision_of(it) for it in (key, node, CLUSTER)}
        await self._store.put_all({key: value, f"{VERSIONS}{number}": version("linn")}, conditions, lease.lease)

    async def _put_node(self, state: ClusterState, session: str | None = None) -> bool:
        """Write the node's entry if it is not as it should be; returns whether it was. Raises MetadataError."""
        number, mine = self._self.number, NodeEntry(self._note.folder_id, self._self.host, self._self.rack)
        before = state.nodes.get(number, mine)
        now = msgspec.structs.replace(
            before,
            folder_id=mine.folder_id,
            host=mine.host,
            rack=mine.rack,
            session=session or before.session,
        )
        if state.nodes.get(number) == now:
            return True
        key = f"{NODES}{number}"
        await self._store.put_all({key: now}, {key: state.revision_of(key)})
        return False

    @property
    def _note(self) -> FolderNote:
        assert self._folder.note is not None, "the folder belongs to a cluster"
        return self._folder.note

    async def _note_loss(self, lost: Loss) -> None:
        """Note a loss durably, before it is told or after it was handled. Raises StorageError."""
        await self._folder.save(msgspec.structs.replace(self._note, lost=lost, told=""))

    # --- keeping ---

    async def _keep(self, current: Registered) -> None:
        """Renew the lease until it is lost, or the session is gone from the store. Raises NodeTaken, StorageError."""
        while not current.lease.is_lost:
            with trio.move_on_after(current.lease.wait_s(self._clock.monotonic())):
                if await self._watch(current):
                    return
            await self._renew(current.lease)

    async def _watch(self, current: Registered) -> bool:
        """Check the view at each change; returns True once the session is gone. Raises NodeTaken, StorageError."""
        await self._view.wait_revision(current.revision)
        while True:
            version, state = self._view.version, self._view.state
            found, entry = state.sessions.get(self._self.number), state.nodes.get(self._self.number)
            if found is None:
                logger.warning("the session is gone from the metadata store: another one begins")
                return True
            if found.session != current.session:
                raise NodeTaken(f"another process has registered as node {self._self.number}: this one ends")
            if entry is not None and entry.handled == current.session and self._note.lost != "none":
                with trio.CancelScope(shield=True):
                    await self._try_to_forget_loss()
            await self._view.wait_newer(version)

    async def _try_to_forget_loss(self) -> None:
        """Note that the loss was handled; on a full disk it is told once more. Raises SyncFailed."""
        try:
            await self._note_loss("none")
        except SyncFailed:
            raise
        except StorageError as error:
            logger.warning("a handled loss could not be noted: %(error)s", log_fields(error))

    async def _renew(self, lease: SessionLease) -> None:
        sent_s = self._clock.monotonic()
        try:
            with trio.move_on_after(lease.ttl_s / RENEWALS_PER_TTL) as scope:
                await self._store.renew_lease(lease.lease)
        except LeaseLost as error:
            lease.lost()
            logger.warning("the cluster has given this node up; it registers again: %(error)s", log_fields(error))
            return
        except MetadataError as error:
            logger.debug("the lease was not renewed: %(error)s", log_fields(error))
            lease.failed(self._clock.monotonic())
            return
        if scope.cancelled_caught:
            lease.failed(self._clock.monotonic())
        else:
            lease.renewed(sent_s)
            self.store_latency_s = self._clock.monotonic() - sent_s

    # --- leaving ---

    async def leave(self) -> None:
        """End the session, so that no node has to wait for its end. Waits at most 2 s; a failure is only logged."""
        # Also one that is being registered: others may see it before this node knows that it is.
        leaving, self._begun, self.current = self._begun, None, None
        if leaving is None or leaving.lease.is_lost:
            return
        with trio.move_on_after(LEAVE_S_MAX, shield=True) as scope:
            try:
                await self._note_leave(leaving)
                await self._store.revoke_lease(leaving.lease.lease)
            except MetadataError as error:
                logger.warning("the cluster was not told that this node leaves: %(error)s", log_fields(error))
        if scope.cancelled_caught:
            logger.warning("the cluster was not told that this node leaves: the metadata store does not answer")

    async def _note_leave(self, current: Registered) -> None:
        """Remove the session with a note of it. Raises MetadataError."""
        number = self._self.number
        key, ended = f"{SESSIONS}{number}", f"{ENDED}{number}"
        while True:
            snapshot = await self._store.load()
            state = ClusterState.of(snapshot.revision, snapshot.entries)
            found = state.sessions.get(number)
            if found is None or found.session != current.session:
                return
            ends = with_end(state.ended.get(number, ()), SessionEnd(current.session, self._clock.now_ms(), "left"))
            conditions = {key: state.revision_of(key), ended: state.revision_of(ended)}
            try:
                await self._store.put_all({key: REMOVED, ended: ends}, conditions)
            except (RevisionConflict, MetadataUnknown):
                continue
            return
