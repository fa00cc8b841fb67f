"""A metadata store of a plugin, behind a guard: an exception that the port does not have is a store that is away.

Laws: a write that fails in an unknown way may have been made. Metadata of a later level than this broker knows is never
read: its entries may have any shape.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from linn.core.cluster.entries import check_level
from linn.core.errors.metadata import MetadataUnavailable, MetadataUnknown
from linn.core.errors.tree import LinnError
from linn.core.metadata.store import NO_LEASE, Changes, MetadataStore, Snapshot, Watch

logger = logging.getLogger("linn.cluster")


class GuardedWatch:
    """A watch whose failures are losses of the watch."""

    def __init__(self, watch: Watch, guard: Callable[[], Any], level: int) -> None:
        """Raises MetadataLater."""
        check_level(watch.snapshot.entries, level)
        self.snapshot = watch.snapshot
        self._watch = watch
        self._guard = guard
        self._level = level

    async def next(self) -> Changes:
        """See `Watch.next`. Raises MetadataLater as well."""
        with self._guard():
            changes = await self._watch.next()
        check_level(changes.entries, self._level)
        return changes


class GuardedStore:
    """A `MetadataStore` that raises LinnErrors alone."""

    def __init__(self, store: MetadataStore, blamed: Callable[[BaseException], str], level: int) -> None:
        """`blamed` describes the code behind an exception, for the log. `level`: the greatest that is read."""
        self.changes_max = store.changes_max
        self._level = level
        self._store = store
        self._blamed = blamed

    @contextmanager
    def _guard(self, kind: type[LinnError] = MetadataUnavailable) -> Iterator[None]:
        try:
            yield
        except LinnError:
            raise
        except Exception as error:
            logger.exception("the metadata store fails in %(blamed)s", {"blamed": self._blamed(error)})
            raise kind(f"the metadata store fails: {type(error).__name__}") from error

    async def load(self) -> Snapshot:
        """See `MetadataStore.load`. Raises MetadataLater as well."""
        with self._guard():
            snapshot = await self._store.load()
        check_level(snapshot.entries, self._level)
        return snapshot

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """See `MetadataStore.watch`. Raises MetadataLater as well."""
        with self._guard():
            async with self._store.watch() as watch:
                yield GuardedWatch(watch, self._guard, self._level)

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`."""
        with self._guard(MetadataUnknown):
            return await self._store.put_all(changes, conditions, lease)

    async def grant_lease(self, ttl_s: float) -> int:
        """See `MetadataStore.grant_lease`."""
        with self._guard():
            return await self._store.grant_lease(ttl_s)

    async def renew_lease(self, lease: int) -> None:
        """See `MetadataStore.renew_lease`."""
        with self._guard():
            await self._store.renew_lease(lease)

    async def revoke_lease(self, lease: int) -> None:
        """See `MetadataStore.revoke_lease`."""
        with self._guard(MetadataUnknown):
            await self._store.revoke_lease(lease)

    async def aclose(self) -> None:
        """See `MetadataStore.aclose`."""
        with self._guard():
            await self._store.aclose()
