"""A served store and its clients, in simulated and in real time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from linn.core.env.env import Env
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.served import ServedStore
from linn.core.metadata.store import MetadataStore
from linn.core.metadata.store_server import StoreServer

VERSION = "1.2.3"
ADDRESS = "store:1"
"""The address of a simulated server."""


@asynccontextmanager
async def embedded_store(
    env: Env, folder: str, kind: type[EmbeddedMetadata] = EmbeddedMetadata
) -> AsyncIterator[MetadataStore]:
    """An embedded store in a folder."""
    async with trio.open_nursery() as nursery:
        env.disk.make_dir(folder)
        yield kind(env.disk, folder, env.clock, nursery.start_soon)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(store: MetadataStore, env: Env, address: str = ADDRESS) -> AsyncIterator[None]:
    """Serve a store at an address."""
    listener = await env.net.listen(address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(StoreServer(store, VERSION).serve, listener)
        try:
            yield
        finally:
            await listener.aclose()


def served(env: Env, address: str = ADDRESS) -> ServedStore:
    """Make a client of the store at an address."""
    return ServedStore(address, env.net, VERSION)


def in_served_world(
    run: Callable[[Callable[[Env], Awaitable[None]]], object], folder: str, address: str
) -> Callable[[Callable[[Env], Awaitable[None]]], object]:
    """Make a function that runs a scenario beside a server of an embedded store."""

    def run_beside(scenario: Callable[[Env], Awaitable[None]]) -> object:
        async def main(env: Env) -> None:
            async with embedded_store(env, folder) as store, serving(store, env, address):
                await scenario(env)

        return run(main)

    return run_beside
