"""EtcdStore: the port of metadata stores over etcd.

Laws: reads and conditions are linearizable. Revisions never go back: an etcd that was emptied, restored or replaced
behind the broker's back is noticed, and none of its values is used. A watch asks again from where it stands when its
member is silent, after the store has shown that it has not gone back; in all other cases it is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import trio

from linn.api import (
    NO_LEASE,
    Changes,
    ConnectionLost,
    LeaseLost,
    LimitExceeded,
    LinnError,
    MetadataError,
    MetadataUnavailable,
    RevisionConflict,
    Snapshot,
    Stored,
)
from linn.metadata_stores.etcd.client import EtcdClient
from linn.metadata_stores.etcd.http_connection import HttpConnection
from linn.metadata_stores.etcd.messages import (
    GrantAnswer,
    Header,
    HeaderAnswer,
    Keys,
    RangeAnswer,
    WriteAnswer,
    decoded,
    grant_request,
    lease_request,
    renewed,
)
from linn.metadata_stores.etcd.watch_messages import WatchMessages

CHANGES_MAX = 128
"""etcd's limit of the operations of a transaction, and of its conditions (`--max-txn-ops`)."""
SNAPSHOT_BYTES_MAX = 64 << 20
"""Limit of all keys as etcd sends them: some 100,000 partitions."""
SILENCE_S = 4.0
"""Time after which a watch asks again: a member that hangs, or a cut, must not hide a change for longer. etcd's own
signs of life come every ten minutes unless it is told otherwise."""
A = TypeVar("A", RangeAnswer, WriteAnswer, GrantAnswer, HeaderAnswer)


class EtcdStore:
    """A `MetadataStore` over etcd."""

    changes_max = CHANGES_MAX

    def __init__(self, cluster: str, client: EtcdClient) -> None:
        self._client = client
        self._keys = Keys(cluster)
        self._cluster_id: int | None = None
        self._revision = 0
        """The highest revision that etcd has answered with."""

    async def load(self) -> Snapshot:
        """See `MetadataStore.load`."""
        answer = await self._ask("range", self._keys.range_request(), RangeAnswer, SNAPSHOT_BYTES_MAX)
        entries = dict[str, Stored]()
        for piece in self._keys.read(answer):
            entries.update(piece)
            await trio.lowlevel.checkpoint()
        return Snapshot(answer.header.revision, entries)

    async def check_revision(self) -> None:
        """Check that etcd can be reached, and still has everything that it has told. Raises as `load`."""
        await self._ask("range", self._keys.revision_request(), HeaderAnswer, 1 << 20)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[EtcdWatch]:
        """See `MetadataStore.watch`."""
        watch = EtcdWatch(await self.load(), self, self._client, self._keys)
        try:
            yield watch
        finally:
            await watch.aclose()

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`."""
        for name, count in (("keys", len(changes)), ("conditions", len(conditions))):
            if count > CHANGES_MAX:
                raise LimitExceeded(f"a write has at most {CHANGES_MAX} {name} in etcd, and this one has {count:,}")
        body = self._keys.write_request(changes, conditions, lease)
        answer = await self._client.ask("/v3/kv/txn", body, self._reader(WriteAnswer), changes=True, repeats=False)
        if not answer.succeeded:
            raise RevisionConflict(f"one of {', '.join(conditions)[:200]} has another revision")
        return answer.header.revision

    async def grant_lease(self, ttl_s: float) -> int:
        """See `MetadataStore.grant_lease`. etcd gives at least 1.5 times its election timeout."""
        read = self._reader(GrantAnswer)
        return (await self._client.ask("/v3/lease/grant", grant_request(ttl_s), read)).number

    async def renew_lease(self, lease: int) -> None:
        """See `MetadataStore.renew_lease`."""
        await self._client.ask_beside("/v3/lease/keepalive", lease_request(lease), lambda body: renewed(body, lease))

    async def revoke_lease(self, lease: int) -> None:
        """See `MetadataStore.revoke_lease`."""
        with suppress(LeaseLost):
            read = self._reader(HeaderAnswer)
            await self._client.ask("/v3/lease/revoke", lease_request(lease), read, changes=True)

    async def aclose(self) -> None:
        """See `MetadataStore.aclose`."""
        await self._client.aclose()

    async def _ask(self, what: str, body: bytes, kind: type[A], bytes_max: int) -> A:
        return await self._client.ask(f"/v3/kv/{what}", body, self._reader(kind, reads=True), bytes_max=bytes_max)

    def _reader(self, kind: type[A], *, reads: bool = False) -> Callable[[bytes], A]:
        """Return a function that decodes an answer; made before the request, so that it knows the least revision."""
        least = self._revision if reads else 0

        def read(body: bytes) -> A:
            answer = decoded(body, kind)
            self._check(answer.header, least)
            return answer

        return read

    def _check(self, header: Header, least: int) -> None:
        """Note the revision of an answer. Raises MetadataError: it is of another etcd, or of an earlier state."""
        if self._cluster_id is None:
            self._cluster_id = header.cluster_id
        if header.cluster_id != self._cluster_id:
            raise MetadataError(f"this is another etcd: its cluster id is {header.cluster_id:x}")
        if header.revision < least:
            raise MetadataError(f"etcd went back from revision {least} to {header.revision}: it has lost data")
        self.note(header.revision)

    def note(self, revision: int) -> None:
        """Note a revision of which etcd has told."""
        self._revision = max(self._revision, revision)


class EtcdWatch:
    """A `Watch` of etcd's keys. Unread changes wait in etcd."""

    def __init__(self, snapshot: Snapshot, store: EtcdStore, client: EtcdClient, keys: Keys) -> None:
        self.snapshot = snapshot
        self._store = store
        self._client = client
        self._keys = keys
        self._messages = WatchMessages(keys, snapshot.revision)
        self._waiting: deque[Changes] = deque()
        self._connection: HttpConnection | None = None
        self._lost: str | None = None

    async def next(self) -> Changes:
        """See `Watch.next`."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._lost is not None:
                raise MetadataUnavailable(self._lost)
            try:
                await self._read_on()
            except LinnError as error:
                self._lost = error.text
                await self.aclose()
                raise MetadataUnavailable(error.text) from error
        return self._waiting.popleft()

    async def _read_on(self) -> None:
        """Take the next piece of the answer. Raises LinnError: the watch is lost."""
        if self._connection is None:
            request = self._keys.watch_request(self._messages.begin())
            self._connection = await self._client.begin("/v3/watch", request)
        with trio.move_on_after(SILENCE_S):
            piece = await self._connection.receive()
            if piece is None:
                raise ConnectionLost("etcd has ended a watch")
            self._waiting.extend(self._messages.feed(piece))
            self._store.note(self._messages.seen)
            return
        await self.aclose()
        await self._store.check_revision()

    async def aclose(self) -> None:
        """Close its connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()
