"""The cluster as this node knows it: the state of the metadata store, kept up to date by one watch.

Laws: the state is a whole one, of one revision, and an old one is as good as a new one to a writer that compares
revisions. After the loss of the watch all of it is read again, since changes may have been missed. A state that
can't be read whole, for one bad entry, is not taken over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from linn.core.cluster.catalog_store import CatalogStore
from linn.core.cluster.entries import ClusterState
from linn.core.env.env import Clock, Rng
from linn.core.env.log_fields import log_fields
from linn.core.errors.cluster import MetadataLater
from linn.core.errors.tree import LinnError
from linn.core.metadata.store import MetadataStore, Snapshot

BACK_OFF_S = 0.1
BACK_OFF_S_MAX = 2.0
"""The longest pause between attempts: a store that is back is noticed in this time."""

logger = logging.getLogger("linn.cluster")


class BackOff:
    """Pauses between attempts, twice as long each time, and scattered so that not all nodes come at once."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._next_s = BACK_OFF_S

    async def pause(self) -> None:
        """Wait before the next attempt."""
        pause_s = self._next_s * self._rng.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, BACK_OFF_S_MAX)
        await self._clock.sleep(pause_s)

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next_s = BACK_OFF_S


class ClusterView:
    """The view of one node."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: CatalogStore,
        check: Callable[[ClusterState], None],
        clock: Clock,
        rng: Rng,
    ) -> None:
        """`check` raises a LinnError for a state that is not of this node's cluster, and is not taken over."""
        self.state = ClusterState()
        """The state at the last revision that was read whole."""
        self.version = 0
        """Grows with each change of `state`, and when it is known to be whole again."""
        self.is_whole = False
        """Whether the watch is open: nothing that has happened stays unknown for long."""
        self.problem: LinnError | None = None
        """The error because of which the state is old; None: it is not."""
        self._store = store
        self._catalog = catalog
        self._check = check
        self._restarts = 0
        """Times that the store's revision went back."""
        self._clock = clock
        self._back_off = BackOff(clock, rng)
        self._whole_s = clock.monotonic()
        self._news = trio.Event()
        self._watching = trio.CancelScope()

    def age_s(self) -> float:
        """Time since the state was known to be whole: 0 while the watch is open."""
        return 0.0 if self.is_whole else self._clock.monotonic() - self._whole_s

    async def wait_newer(self, version: int) -> None:
        """Wait until `version` is greater than this."""
        while self.version <= version:
            await self._news.wait()

    async def wait_revision(self, revision: int) -> None:
        """Wait until the state is of this revision or a later one, or the store has begun anew."""
        restarts = self._restarts
        while self.state.revision < revision and restarts == self._restarts:
            await self._news.wait()

    def reload(self) -> None:
        """Read everything again: a write had no answer, and may be done or not."""
        self._watching.cancel()

    async def run(self) -> None:
        """Keep the state up to date until cancelled. Raises MetadataLater: the cluster goes on without this broker."""
        while True:
            try:
                with trio.CancelScope() as self._watching:
                    await self._watch()
            except MetadataLater:
                raise
            except LinnError as error:
                self._note(error)
                self._lose()
                await self._back_off.pause()
            else:
                self._lose()

    async def _watch(self) -> None:
        """Read all, then take over changes. Raises MetadataError, ClusterError: the state is an old one from now on."""
        async with self._store.watch() as watch:
            self._take(watch.snapshot)
            while True:
                changes = await watch.next()
                self.state.apply(changes.revision, changes.entries)
                self._catalog.note_changes(changes.entries)
                self._tell()

    def _take(self, snapshot: Snapshot) -> None:
        state = ClusterState.of(snapshot.revision, snapshot.entries)
        self._restarts += state.revision < self.state.revision
        self._check(state)
        self._catalog.note_snapshot(snapshot.entries)
        if self.problem is not None:
            logger.info("the metadata store can be reached again")
        self.state, self.is_whole, self.problem = state, True, None
        self._back_off.reset()
        self._tell()

    def _lose(self) -> None:
        if self.is_whole:
            self.is_whole, self._whole_s = False, self._clock.monotonic()

    def _note(self, error: LinnError) -> None:
        if self.problem is None or self.problem.code != error.code:
            logger.warning("the view of the cluster is old: %(error)s", log_fields(error))
        self.problem = error

    def _tell(self) -> None:
        self.version += 1
        self._news.set()
        self._news = trio.Event()
