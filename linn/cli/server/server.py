"""Broker process: its configuration, log, signals and memory settings.

Laws: "ready" is printed when a client can connect, and not before. The first SIGTERM or SIGINT drains, the second ends
the process at once; a drain that takes longer than `drain_timeout` and a margin ends it as well. Ending at once is
safe: confirmed records are in the log already.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import EntryPoint
from types import FrameType
from typing import NoReturn
from urllib.parse import quote

import msgspec
import trio

from linn import __version__
from linn.cli.exit_code import ExitCode, complain
from linn.cli.server.collector import Collector
from linn.cli.server.log import Log
from linn.core.broker.broker import Broker, running_broker
from linn.core.broker.data_folder import DataFolder
from linn.core.broker.worker_folders import WorkerFolders, shared_folder
from linn.core.config.config import Config, load_config, plugin_settings, read_toml
from linn.core.config.configured import Listener
from linn.core.config.toml_source import TomlSource
from linn.core.env.address import is_beyond_loopback, open_text
from linn.core.env.env import Env
from linn.core.env.real.env import RealEnv
from linn.core.env.real.file_limits import file_limits, raise_file_limit
from linn.core.env.real.net import FILES_SHARE
from linn.core.env.real.process import RealProcess
from linn.core.env.real.watchdog import watched_loop
from linn.core.env.watchdog import Watchdog
from linn.core.errors.group import raise_once
from linn.core.errors.tree import ConfigError
from linn.core.plugins.manager import PluginManager, installed

DEFAULT_FILE = "linn.toml"
CLOSE_MARGIN_S = 5.0
"""Time limit for closing logs after the drain; then the process ends itself."""
THREAD_SWITCH_S = 0.0005
"""Interval in which Python switches threads: a turn of the loop. Threads that have written or synced a file wait for a
busy loop so long; Python's default of 5 ms, twice for each file, would be most of the latency of a small publish."""
_STDIN_BYTES = 4096
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
KEPT_BYTES_MAX = 64 << 20
"""Freed memory kept at the end of the heap: twice the output buffer of a connection."""
HEAP_BLOCK_BYTES_MAX = 32 << 20
"""Largest block allocated from the heap instead of a mapping of its own; glibc allows no more."""
_LOG_FILES = 2
"""Open files of a log: its segment and index."""
_OTHER_FILES = 100
SIGNALS = (signal.SIGTERM, signal.SIGINT)
TOPICS_SHOWN_MAX = 10
"""Maximum number of topics named in the line for people."""

logger = logging.getLogger("linn.serve")


class Server:
    """`linn serve`: one broker."""

    own_plugins: Sequence[EntryPoint] = ()
    """Plugins in addition to the installed ones."""

    def __init__(self, file: str | None, *, data_dir: str | None, listen: Sequence[str], log: Log) -> None:
        """Read and check the configuration.

        Raises:
            ConfigError, PluginError: the first problem of the file.
            AddressInvalid, ConfigError: an address in `listen` is invalid, or other machines reach it.
        """
        source = configuration(file)
        self.plugins = PluginManager(plugin_settings(source), [*installed(), *self.own_plugins])
        self.config = overridden(load_config(source, self.plugins), self.plugins, data_dir, listen)
        log.apply(self.config.log)

    def run(self, *, with_parent: bool) -> None:
        """Serve until a signal or, `with_parent`, until stdin is closed.

        Raises LinnError. Ends the process on a second signal.
        """
        keep_freed_memory()
        raise_file_limit()
        sys.setswitchinterval(THREAD_SWITCH_S)
        with Collector(RealProcess().memory_bytes) as collector:
            trio.run(self._main, collector, with_parent)

    async def _main(self, collector: Collector, with_parent: bool) -> None:
        env = RealEnv()
        with trio.open_signal_receiver(*SIGNALS) as signals, reload_signals() as reloads:
            end_at_the_second_signal()
            async with trio.open_nursery() as nursery:
                starting = nursery.cancel_scope
                stopping: list[Broker] = []
                nursery.start_soon(self._obey, signals, starting, stopping)
                nursery.start_soon(_reload, reloads, stopping)
                if with_parent:
                    nursery.start_soon(self.follow_parent)
                if self.config.cluster is None:
                    await end_sharing(self.config, env)
                async with running_broker(self.config, env, self.plugins) as broker:
                    stopping.append(broker)
                    collector.keep()
                    self._say_limits()
                    with self._watched() as watchdog:
                        if watchdog is not None:
                            broker.measurements.loop_held = watchdog.held
                        await self.announce(broker)
                        await broker.wait_stopped()
                nursery.cancel_scope.cancel()
            logger.info("stopped")

    async def announce(self, broker: Broker) -> None:
        """Tell that clients can connect."""
        announce(self.config, self.plugins, broker.addresses.items(), broker.topics)

    async def follow_parent(self) -> None:
        """Stop when the process at the other end of stdin is gone."""
        await wait_parent()
        signal.raise_signal(signal.SIGTERM)

    def _say_limits(self) -> None:
        """Write the first line of the log, once the broker serves."""
        limit, wanted = file_limits().soft, descriptors_wanted(self.config)
        about = {"limit": limit, "wanted": wanted}
        if limit < wanted:
            text = "%(limit)d files and connections may be open, fewer than the configured %(wanted)d: see linn doctor"
            logger.warning(text, about)
        else:
            logger.info("%(limit)d files and connections may be open; up to %(wanted)d are configured", about)

    def _watched(self) -> AbstractContextManager[Watchdog | None]:
        """Log plugins that hold up the loop. Recovery is not watched, as no client waits for it."""
        limit_ms = self.config.broker.loop_held_max_ms
        return nullcontext() if limit_ms is None else watched_loop(self.plugins.code_owners, limit_ms / 1000)

    async def _obey(self, signals: AsyncIterator[int], starting: trio.CancelScope, running: Sequence[Broker]) -> None:
        """Stop in order at the first signal, and end the process after the time limit."""
        first = await anext(signals)
        logger.info("%(signal)s: stopping; once more stops at once", {"signal": signal.Signals(first).name})
        if not running:
            starting.cancel()
            return
        running[0].stop()
        limit_s = self.config.broker.drain_timeout_s + CLOSE_MARGIN_S
        with trio.move_on_after(limit_s):
            await trio.sleep_forever()
        end(f"not stopped after {limit_s:g} s, ended now; what was confirmed is kept", ExitCode.FAILED)


async def end_sharing(config: Config, env: Env) -> None:
    """Take back a data folder that workers have shared, if there is one. Raises ClusterForeign, StorageError."""
    data_dir = config.broker.data_dir
    if env.disk.exists(shared_folder(data_dir)):
        lock = DataFolder(env.disk, shared_folder(data_dir))
        await lock.lock()
        try:
            async with trio.open_nursery() as nursery:
                await WorkerFolders(config, env, nursery.start_soon).end_sharing()
        except BaseExceptionGroup as group:
            raise_once(group)
        finally:
            lock.release()


def reload_signals() -> AbstractContextManager[AsyncIterator[int] | None]:
    """Receive SIGHUP, except on a terminal, whose end it tells."""
    return nullcontext() if sys.stderr.isatty() else trio.open_signal_receiver(signal.SIGHUP)


async def _reload(signals: AsyncIterator[int] | None, running: Sequence[Broker]) -> None:
    """Read certificates and the keys of tokens again at each SIGHUP."""
    if signals is None:
        return
    async for _ in signals:
        for broker in running:
            broker.reload_files()


async def wait_parent() -> None:
    """Wait for the end of stdin, when the process at the other end of the pipe is gone."""
    stdin = sys.stdin.fileno()
    with contextlib.suppress(OSError):  # A closed terminal can't be read (EIO), and counts as the end.
        await trio.lowlevel.wait_readable(stdin)
        while os.read(stdin, _STDIN_BYTES):
            await trio.lowlevel.wait_readable(stdin)


def end_at_the_second_signal() -> None:
    """Handle signals without the loop, which may be blocked: a reason to signal twice."""
    receive = signal.getsignal(SIGNALS[0])
    assert callable(receive), "the receiver of signals is open"
    count = itertools.count(1)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if next(count) > 1:
            end("stopped at once; what was confirmed is kept", ExitCode.INTERRUPTED)
        receive(number, frame)

    for number in SIGNALS:
        signal.signal(number, on_signal)


def end(text: str, code: ExitCode) -> NoReturn:
    """Print a line and end the process at once."""
    try:
        complain(text)
    finally:  # A signal may come in the middle of another line.
        os._exit(code)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next batch; without glibc, do nothing.

    By default glibc returns large freed blocks to the kernel, and a broker soon allocates them again. Measured: a
    segmented log, read at 1 MiB a time, was pushed at 1.2 GB/s with glibc's defaults and at 1.4 GB/s with these
    settings; page faults fell to a quarter.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)


def configuration(file: str | None) -> TomlSource:
    """Read the given file, or linn.toml in this folder, or return the defaults. Raises ConfigUnreadable."""
    if file is None and not os.path.exists(DEFAULT_FILE):
        return TomlSource("", "the defaults")
    return read_toml(file if file is not None else DEFAULT_FILE)


def descriptors_wanted(config: Config) -> int:
    """Return the descriptors of a broker with all connections that it allows, without topics created at run time."""
    connections = config.broker.connections_max
    return connections + max(files_wanted(config), connections // (FILES_SHARE - 1) + 1)


def files_wanted(config: Config) -> int:
    """Return the descriptors that are not for connections."""
    logs = sum(2 * topic.partitions for topic in config.topics.values())
    return _LOG_FILES * logs + _OTHER_FILES


def overridden(config: Config, plugins: PluginManager, data_dir: str | None, listen: Sequence[str]) -> Config:
    """Apply the options of the command line to the configuration.

    Raises AddressInvalid; ConfigError: other machines reach an address of the command line, which has no TLS.
    """
    if data_dir is not None:
        config = dataclasses.replace(config, broker=msgspec.structs.replace(config.broker, data_dir=data_dir))
    if listen:
        for address in listen:
            if is_beyond_loopback(address):
                raise ConfigError(f"--listen {address}: {open_text(address)}; both are settings of a file's listener")
        kind = plugins.protocols["capnp"]
        names = ["native", *(f"native-{number}" for number in range(2, len(listen) + 1))]
        listeners = {
            name: Listener(name, address, kind.name, kind.settings and kind.settings())
            for name, address in zip(names, listen, strict=True)
        }
        for name, listener in config.listeners.items():
            if plugins.protocols[listener.protocol].links is not None:  # Other brokers know its address.
                listeners[name] = listener
        config = dataclasses.replace(config, listeners=listeners)
    return config


def announce(
    config: Config, plugins: PluginManager, addresses: Iterable[tuple[str, str]], topic_names: Iterable[str]
) -> None:
    """Print a line per listener of clients for programs, and one for people.

    `addresses`: the bound addresses, each with its listener. `topic_names`: of all topics.
    """
    for name, address in addresses:
        listener = config.listeners[name]
        kind = plugins.protocols[listener.protocol]
        if kind.links is None:  # Brokers find one another by the metadata store.
            print(f"ready {url_of(address, kind.url_scheme + ('s' if listener.tls else ''))}")
    names = sorted(topic_names)
    shown = names[:TOPICS_SHOWN_MAX]
    if len(names) > len(shown):
        shown.append(f"and {len(names) - len(shown):,} more")
    topics = ", ".join(shown) or "none yet"
    print(f"linn {__version__}, data in {config.broker.data_dir}, topics: {topics}. Ctrl-C stops it.", flush=True)


def url_of(address: str, scheme: str = "linn") -> str:
    """Return the URL of a bound address."""
    if address.startswith("unix:"):
        return f"{scheme}+unix://{quote(os.path.abspath(address.removeprefix('unix:')))}"
    return f"{scheme}://{address}"
