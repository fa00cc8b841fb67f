"""A transaction that is cancelled before its end is asked for is aborted, so that its outcome is known."""

from __future__ import annotations

import anyio
from both_loops import on_both_loops

from linn.client import Client


@on_both_loops
async def test_leaving_a_block_in_a_cancelled_scope_aborts(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    with anyio.CancelScope() as scope:
        async with client.transaction(f"{name}-tx") as tx:
            await tx.publish(name, b"never seen")
            scope.cancel()
    assert scope.cancelled_caught
    async with client.transaction(f"{name}-tx") as tx:
        await tx.publish(name, b"seen")
    assert [value for batch in (await client.fetch(name, 0, 0)).batches for value in batch.values] == [b"seen"]


@on_both_loops
async def test_a_commit_sends_what_waits(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.transaction(f"{name}-tx") as tx:
        (await tx.producer(name)).publish_nowait(b"waits")
    assert [value for batch in (await client.fetch(name, 0, 0)).batches for value in batch.values] == [b"waits"]
