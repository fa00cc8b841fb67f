"""A program that serves a store, or uses one, until it is killed.

    store_process.py server ADDRESS FOLDER
    store_process.py client ADDRESS NAME TTL_S

A client holds `sessions/NAME` under a lease and counts in `counts/NAME`; it prints each count that is confirmed.
"""

from __future__ import annotations

import sys

import trio
from served_world import VERSION, embedded_store, served

from linn.core.env.real.env import RealEnv
from linn.core.errors.metadata import LeaseLost, MetadataError
from linn.core.metadata.served import ServedStore
from linn.core.metadata.store_server import StoreServer

OUTAGE_S = 0.05


async def serve(address: str, folder: str) -> None:
    env = RealEnv()
    async with embedded_store(env, folder) as store:
        await store.load()
        await StoreServer(store, VERSION).serve(await env.net.listen(address))


class Client:
    """A client with a session and a count."""

    def __init__(self, store: ServedStore, name: str, ttl_s: float) -> None:
        self._store = store
        self._name = name
        self._ttl_s = ttl_s
        self._lease: int | None = None
        self._sessions = self._count = 0

    async def run(self) -> None:
        while True:
            try:
                await self._step()
            except LeaseLost:
                self._lease = None
                print("lost", flush=True)
            except MetadataError as error:
                print(f"{error.code} {self._count}", flush=True)
                await trio.sleep(OUTAGE_S)

    async def _step(self) -> None:
        if self._lease is None:
            self._sessions += 1
            lease = await self._store.grant_lease(self._ttl_s)
            await self._store.put_all({f"sessions/{self._name}": self._sessions}, {}, lease)
            self._lease = lease
        await self._store.renew_lease(self._lease)
        self._count += 1
        await self._store.put_all({f"counts/{self._name}": self._count}, {})
        print(f"confirmed {self._count}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["server", address, folder]:
            trio.run(serve, address, folder)
        case ["client", address, name, ttl_s]:
            trio.run(Client(served(RealEnv(), address), name, float(ttl_s)).run)
