"""The controller's task on each node: one of them holds the office, and carries out the plan.

Law: the office is a key under the holder's lease, and every write is compared with its revision: a former holder
writes nothing.
"""

from __future__ import annotations

import logging

import trio

from linn.core.cluster.catalog_store import CatalogStore
from linn.core.cluster.entries import CONTROLLER, SESSIONS, ControllerEntry
from linn.core.cluster.member import Member
from linn.core.cluster.moves import moves
from linn.core.cluster.placement import place
from linn.core.cluster.plan import KEYS_MAX, PolicyOf, Write, plan
from linn.core.cluster.preferred_leaders import PreferredLeaders
from linn.core.cluster.view import BackOff, ClusterView
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import LeaseLost, MetadataError, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import ABSENT, MetadataStore

logger = logging.getLogger("linn.cluster")


class Controlling:
    """The office of the controller, held or not."""

    def __init__(
        self,
        node: int,
        store: MetadataStore,
        catalog: CatalogStore,
        view: ClusterView,
        member: Member,
        policy_of: PolicyOf,
        env: Env,
    ) -> None:
        self._node = node
        self._store = store
        self._catalog = catalog
        self._view = view
        self._member = member
        self._policy_of = policy_of
        self._env = env
        self._preferred = PreferredLeaders()
        self._back_off = BackOff(env.clock, env.rng)

    @property
    def is_controller(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        current, found = self._member.current, self._view.state.controller
        return current is not None and found == ControllerEntry(self._node, current.session)

    async def run(self) -> None:
        """Stand for the office, and do its work while holding it, until cancelled."""
        while True:
            version = self._view.version
            if not (self._view.is_whole and self._member.is_alive):
                await self._back_off.pause()
                continue
            try:
                revision = await self._step()
            except MetadataUnknown:
                self._view.reload()
                await self._back_off.pause()
            except (RevisionConflict, LeaseLost):
                await self._view.wait_newer(version)  # The cause is on its way.
            except MetadataError as error:
                logger.debug("the controller waits: %(error)s", log_fields(error))
                await self._back_off.pause()
            else:
                self._back_off.reset()
                if revision is None:
                    with trio.move_on_after(self._preferred.wait_s(self._env.clock.monotonic())):
                        await self._view.wait_newer(version)
                else:
                    await self._view.wait_revision(revision)

    async def _step(self) -> int | None:
        """Take the steps that are due; returns the revision of the last write, None if there was none.

        Raises MetadataError: some of it may be done.
        """
        view, current = self._view, self._member.current
        assert current is not None, "the node has a session"
        mine, key = ControllerEntry(self._node, current.session), f"{SESSIONS}{self._node}"
        if view.state.controller is None:
            conditions = {CONTROLLER: ABSENT, key: current.revision}
            revision = await self._store.put_all({CONTROLLER: mine}, conditions, current.lease.lease)
            logger.info("this node is the controller, in epoch %(epoch)d", {"epoch": revision})
            return revision
        if view.state.controller != mine:
            self._preferred = PreferredLeaders()
            return None
        last: int | None = None
        for write in self._writes():
            last = await self._store.put_all(write.changes, write.conditions)
        return last

    def _writes(self) -> list[Write]:
        """The writes that are due. Several steps may change the same entry: the next one waits for the view."""
        state, keys_max = self._view.state, min(KEYS_MAX, self._store.changes_max)
        if planned := plan(state, self._env.clock.now_ms(), self._policy_of, keys_max):
            return planned
        due = self._preferred.due(state, self._env.clock.monotonic())
        if moving := moves(state, self._policy_of, keys_max, due):
            return moving
        return place(state, self._catalog.topics.values(), keys_max)
