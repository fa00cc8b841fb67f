"""The supervisor of `linn serve --workers`: it has no topics, and keeps the workers that have them.

Laws: it serves the metadata store of its workers for as long as one of them runs. The first SIGTERM or SIGINT goes on
to the workers, and the second ends all at once; so does the end of the supervisor, in any way. "ready" is printed when
every worker serves.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec
import trio

from linn import __version__
from linn.cli.exit_code import complain
from linn.cli.server.log import Log
from linn.cli.server.server import (
    CLOSE_MARGIN_S,
    SIGNALS,
    announce,
    configuration,
    end_at_the_second_signal,
    overridden,
    reload_signals,
    wait_parent,
)
from linn.cli.workers.crew import Crew, WorkerLost
from linn.cli.workers.order import WorkerOrder, check, count_of, secret_path, store_address
from linn.core.admin.stored_entries import TOPIC
from linn.core.broker.data_folder import DataFolder
from linn.core.broker.worker_folders import WorkerFolders, shared_folder
from linn.core.config.config import Config, load_config, plugin_settings
from linn.core.env.env import Env
from linn.core.env.real.env import RealEnv
from linn.core.errors.group import raise_once
from linn.core.metadata.store import MetadataStore
from linn.core.metadata.store_server import StoreServer
from linn.core.plugins.manager import PluginManager, installed

SECRET_BYTES = 32

logger = logging.getLogger("linn.workers")


class Supervisor:
    """`linn serve --workers`."""

    def __init__(
        self, file: str | None, *, data_dir: str | None, listen: Sequence[str], log: Log, workers: int | Literal["auto"]
    ) -> None:
        """Read and check the configuration. `workers`: their number, or "auto".

        Raises:
            ConfigError, PluginError: the first problem of the file, or it is none for workers.
            AddressInvalid, ConfigError: an address in `listen` is invalid, or other machines reach it.
        """
        source = configuration(file)
        self.plugins = PluginManager(plugin_settings(source), installed())
        self.config = overridden(load_config(source, self.plugins), self.plugins, data_dir, listen)
        log.apply(self.config.log)
        self.count = count_of(workers)
        check(self.config, self.plugins, self.count)
        self._order = WorkerOrder(0, self.count, file, data_dir, tuple(listen), log.level, log.is_json, {})
        self._stopping = trio.Event()
        self._crew: Crew | None = None

    def run(self, *, with_parent: bool) -> None:
        """Serve until a signal or, `with_parent`, until stdin is closed.

        Raises LinnError; SystemExit: a worker was lost, or did not end in order. Ends the process on a second signal.
        """
        try:
            trio.run(self._main, with_parent)
        except WorkerLost as error:
            complain(str(error))
            raise SystemExit(int(error.status)) from None
        assert self._crew is not None, "it has run"
        if self._crew.status:
            raise SystemExit(int(self._crew.status))

    async def _main(self, with_parent: bool) -> None:
        env, shared = RealEnv(), shared_folder(self.config.broker.data_dir)
        with trio.open_signal_receiver(*SIGNALS) as signals, reload_signals() as reloads:
            end_at_the_second_signal()
            lock = DataFolder(env.disk, shared)
            await lock.lock()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._obey, signals)
                    if with_parent:
                        nursery.start_soon(self._follow_parent)
                    await self._serve(env, nursery, reloads)
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise_once(group)
            finally:
                lock.release()
        logger.info("stopped")

    async def _serve(self, env: Env, nursery: trio.Nursery, reloads: AsyncIterator[int] | None) -> None:
        """Run the workers beside their metadata store until they are stopped. Raises LinnError."""
        data_dir = self.config.broker.data_dir
        folders = WorkerFolders(self.config, env, nursery.start_soon)
        store = folders.store(shared_folder(data_dir))
        await folders.share(store)
        await folders.check_count(store, self.count)
        _write_secret(env, secret_path(data_dir))
        order = msgspec.structs.replace(self._order, addresses=await self._addresses(env))
        listener = await env.net.listen(store_address(data_dir))
        try:
            nursery.start_soon(StoreServer(store, __version__).serve, listener)
            limit_s = self.config.broker.drain_timeout_s + 2 * CLOSE_MARGIN_S
            self._crew = Crew(env, self.count, lambda number: _command(order, number), self._write, limit_s)
            nursery.start_soon(self._announce, self._crew, store)
            nursery.start_soon(self._reload, self._crew, reloads)
            nursery.start_soon(self._stop, self._crew)
            await self._crew.run()
        finally:
            env.disk.unlink(secret_path(data_dir))
            with trio.CancelScope(shield=True):
                await listener.aclose()

    async def _addresses(self, env: Env) -> dict[str, str]:
        """Find the addresses that the workers share. Raises AddressInUse, AddressInvalid."""
        found: dict[str, str] = {}
        for name, listener in self.config.listeners.items():
            if not self.plugins.protocols[listener.protocol].watches and not listener.address.startswith("unix:"):
                bound = await env.net.listen(listener.address)  # Shared, it would be bound beside another broker's.
                found[name] = bound.address
                await bound.aclose()
        return found

    def _write(self, number: int, line: str) -> None:
        """Write a line of a worker to the log."""
        said = line if self._order.is_json and line.startswith("{") else f"worker {number}: {line}"
        with contextlib.suppress(OSError):
            print(said, file=sys.stderr, flush=True)

    async def _announce(self, crew: Crew, store: MetadataStore) -> None:
        await crew.ready.wait()
        entries = (await store.load()).entries
        topics = [key.removeprefix(TOPIC) for key in entries if key.startswith(TOPIC)]
        logger.info("all %(workers)d workers are ready", {"workers": self.count})
        announce(self.config, self.plugins, _bound(crew, self.config), topics)

    async def _reload(self, crew: Crew, signals: AsyncIterator[int] | None) -> None:
        if signals is not None:
            async for _ in signals:
                await crew.reload()

    async def _obey(self, signals: AsyncIterator[int]) -> None:
        first = await anext(signals)
        logger.info("%(signal)s: stopping; once more stops at once", {"signal": signal.Signals(first).name})
        self._stopping.set()

    async def _follow_parent(self) -> None:
        await wait_parent()
        signal.raise_signal(signal.SIGTERM)

    async def _stop(self, crew: Crew) -> None:
        await self._stopping.wait()
        crew.stop()


def _command(order: WorkerOrder, number: int) -> list[str]:
    told = msgspec.json.encode(msgspec.structs.replace(order, number=number)).decode()
    return [sys.executable, "-m", "linn.cli.workers.worker", told]


def _bound(crew: Crew, config: Config) -> list[tuple[str, str]]:
    """The addresses of all listeners of the file, each once: shared ones, and the own ones of each worker."""
    found = [(name, address) for _, bound in sorted(crew.addresses.items()) for name, address in bound.items()]
    return [pair for pair in dict.fromkeys(found) if pair[0] in config.listeners]


def _write_secret(env: Env, path: str) -> None:
    """Write a new secret, by which the workers of this run know each other. Raises StorageError."""
    env.disk.unlink(path)
    file = env.disk.open(path, create=True)
    try:
        file.write([env.rng.bytes(SECRET_BYTES).hex().encode()])
    finally:
        file.close()
