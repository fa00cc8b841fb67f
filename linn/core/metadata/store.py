"""The metadata store: a port for the small values on which all brokers of a cluster agree, with their revisions.

Law: every write that depends on what its writer has read names the revisions of the keys that it read; the store
compares and writes in one step. Leases say only when to give up on their holder: a write that must not come from a
former holder has the revision of the holder's key among its conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from linn.core.env.env import Env

REMOVED: Final = object()
"""The value of a key that a write removes."""
ABSENT = 0
"""The revision of a key that does not exist, in a condition."""
NO_LEASE = 0


class Stored(NamedTuple):
    """A key's value."""

    revision: int
    """The store's revision at which the key was last written: at least 1."""
    value: Any
    """JSON, as `json.loads` returns it."""


class Snapshot(NamedTuple):
    """All keys of the store at one revision."""

    revision: int
    entries: Mapping[str, Stored]


class Changes(NamedTuple):
    """Keys that one or several writes have changed, in one step, up to a revision."""

    revision: int
    entries: Mapping[str, Stored | None]
    """None: the key was removed."""


class Watch(Protocol):
    """All changes after a snapshot, in order, none left out."""

    snapshot: Snapshot

    async def next(self) -> Changes:
        """Wait for the next changes.

        Raises MetadataUnavailable: the watch is lost, and changes may be missed; open another one.
        Cancellation: nothing is lost.
        """


class MetadataEntries(Protocol):
    """The part of a metadata store that reads and writes entries."""

    @property
    def changes_max(self) -> int:
        """Limit of the keys that one write may change, and of its conditions."""

    async def load(self) -> Snapshot:
        """Read all keys as they are now; no earlier write of any client is missed.

        Raises MetadataUnavailable, MetadataError; LogCorrupt, StorageError: data in the broker's own folder is
        damaged, lost, or of an earlier version.
        """

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """Write several keys in one step if each key of `conditions` has the given revision.

        Args:
            changes: the new values by key, JSON or with `msgspec.Struct`s in them, which are written as objects; or
                REMOVED. Removing a key that does not exist is no error.
            conditions: revisions by key; ABSENT: the key must not exist.
            lease: the lease with which the written keys are removed; NO_LEASE: they stay.

        Returns the revision that the written keys now have. Durable when this returns.

        Raises:
            RevisionConflict: a condition does not hold; nothing was written.
            LeaseLost: the lease has ended; nothing was written.
            LimitExceeded: the changes are too many or too large for the store; nothing was written.
            MetadataUnavailable: the store can't be reached; nothing was written.
            MetadataUnknown: the connection was lost before the answer, and the changes may have been written, or may
                still be. Don't repeat them before you have read the keys.
            StorageError: nothing was written.
        Cancellation: all of it may have been written, or nothing.
        """


class MetadataStore(MetadataEntries, Protocol):
    """Small values by key, with revisions. One revision counts all writes of the store and never goes back.

    Every method may be called from several tasks at a time.
    """

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        """Read all keys, and from then on all changes. Raises as `load`."""

    async def grant_lease(self, ttl_s: float) -> int:
        """Make a lease, which ends if it is not renewed for `ttl_s` seconds; returns its number.

        Raises MetadataUnavailable, MetadataError. A lease whose answer was lost ends by itself.
        """

    async def renew_lease(self, lease: int) -> None:
        """Renew a lease for another `ttl_s` from now. Raises LeaseLost: it has ended. MetadataUnavailable."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and remove its keys; no error if it has ended. Raises MetadataUnavailable, MetadataUnknown."""

    async def aclose(self) -> None:
        """Close its connections. Idempotent. Leases end by themselves."""


@dataclass(frozen=True, slots=True)
class MetadataStoreKind:
    """A metadata store for clusters, as a plugin registers it."""

    name: str
    """The value of `store =` in `[cluster]`."""
    settings: type[Any]
    """A frozen msgspec.Struct with a default and a help text for each field: further keys of `[cluster]`."""
    make: Callable[[str, Any, Env], MetadataStore]
    """(name of the cluster, settings, env) -> store. Does no I/O."""
