"""A metadata store whose plugin has a bug: it is away, and the broker goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from linn.core.cluster.guarded_store import GuardedStore
from linn.core.errors.metadata import LeaseLost, MetadataError, MetadataUnavailable, MetadataUnknown
from linn.core.metadata.levels import LEVEL
from linn.core.metadata.store import Changes, MetadataStore, Snapshot, Watch


class Buggy:
    """A store that raises the same from everywhere."""

    changes_max = 7

    def __init__(self, error: Exception, begins: bool = False) -> None:
        self.error = error
        self.begins = begins
        """Whether a watch begins, and fails later."""
        self.snapshot = Snapshot(1, {})

    async def load(self) -> Snapshot:
        raise self.error

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        if not self.begins:
            raise self.error
        yield self

    async def next(self) -> Changes:
        raise self.error

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = 0) -> int:
        raise self.error

    async def grant_lease(self, ttl_s: float) -> int:
        raise self.error

    async def renew_lease(self, lease: int) -> None:
        raise self.error

    async def revoke_lease(self, lease: int) -> None:
        raise self.error

    async def aclose(self) -> None:
        raise self.error


async def watched(store: MetadataStore) -> None:
    async with store.watch() as watch:
        await watch.next()


CALLS: list[tuple[Callable[[MetadataStore], Awaitable[object]], type[MetadataError]]] = [
    (lambda store: store.load(), MetadataUnavailable),
    (watched, MetadataUnavailable),
    (lambda store: store.put_all({}, {}), MetadataUnknown),
    (lambda store: store.grant_lease(1), MetadataUnavailable),
    (lambda store: store.renew_lease(1), MetadataUnavailable),
    (lambda store: store.revoke_lease(1), MetadataUnknown),
    (lambda store: store.aclose(), MetadataUnavailable),
]


@pytest.mark.parametrize(("call", "kind"), CALLS)
@pytest.mark.parametrize("begins", [False, True])
async def test_a_bug_of_a_store_is_a_store_that_is_away(
    call: Callable[[MetadataStore], Awaitable[object]],
    kind: type[MetadataError],
    begins: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = GuardedStore(Buggy(KeyError("bug"), begins), lambda _: 'plugin "buggy"', LEVEL)
    with pytest.raises(kind, match=r"the metadata store fails: KeyError"):
        await call(store)
    assert any('plugin "buggy"' in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    assert store.changes_max == 7


@pytest.mark.parametrize(("call", "kind"), CALLS)
async def test_errors_of_the_port_pass(
    call: Callable[[MetadataStore], Awaitable[object]], kind: type[MetadataError]
) -> None:
    with pytest.raises(LeaseLost):
        await call(GuardedStore(Buggy(LeaseLost("ended")), lambda _: "", LEVEL))
