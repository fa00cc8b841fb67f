"""A broker as a process: its configuration, its log, its signals.

Laws: "ready" is printed when a client can connect, and not before. The first SIGTERM or SIGINT drains, the second ends
the process at once; a drain that takes longer than `drain_timeout` and a margin ends it as well. Ending at once is
safe: what was confirmed is in the log already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import NoReturn
from urllib.parse import quote

import msgspec
import trio

from linn import __version__
from linn.cli.doctor.machine import file_limits, raise_file_limit
from linn.cli.exit_code import ExitCode, complain
from linn.cli.server.allocator import keep_freed_memory
from linn.cli.server.collector import Collector
from linn.cli.server.log import Log, load_structlog
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.checks import Listener
from linn.core.config.config import Config, load_config, plugin_settings, read_toml
from linn.core.config.toml_source import TomlSource
from linn.core.env.address import parse_address
from linn.core.env.real.env import RealEnv
from linn.core.env.real.net import FILES_SHARE
from linn.core.env.real.process import RealProcess
from linn.core.env.real.watchdog import watched_loop
from linn.core.env.watchdog import Watchdog
from linn.core.plugins.manager import PluginManager, installed

DEFAULT_FILE = "linn.toml"
_CLOSE_MARGIN_S = 5.0
"""What closing logs may take after the drain, before the process ends itself."""
THREAD_SWITCH_S = 0.0005
"""How long a thread that has written or synced a file waits for the loop's thread to let it say so: a turn. Python's
own 5 ms, twice for each file, are most of what a small publish takes beside somebody who keeps the loop busy."""
_STDIN_BYTES = 4096
_LOG_FILES = 2
"""A log's segment and its index are open."""
_OTHER_FILES = 100
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TOPICS_SHOWN_MAX = 10
"""That the line for people names."""

logger = logging.getLogger("linn.serve")


class Server:
    """`linn serve`."""

    def __init__(self, file: str | None, *, data_dir: str | None, listen: Sequence[str], log: Log) -> None:
        """Read and check everything.

        Raises:
            ConfigError, PluginError: the first thing that is wrong with the file.
            AddressInvalid: an address in `listen` is none.
        """
        source = configuration(file)
        self.plugins = PluginManager(plugin_settings(source), installed())
        self.config = overridden(load_config(source, self.plugins), self.plugins, data_dir, listen)
        log.apply(self.config.log)

    def run(self, *, with_parent: bool) -> None:
        """Serve until a signal; `with_parent`: or until stdin is closed.

        Raises LinnError; ends the process where it is told to stop at once.
        """
        keep_freed_memory()
        raise_file_limit()
        sys.setswitchinterval(THREAD_SWITCH_S)
        with Collector(RealProcess().memory_bytes) as collector:
            trio.run(self._main, collector, with_parent)

    async def _main(self, collector: Collector, with_parent: bool) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            _end_at_the_second_signal()
            async with trio.open_nursery() as nursery:
                starting = nursery.cancel_scope
                stopping: list[Broker] = []
                nursery.start_soon(self._obey, signals, starting, stopping)
                if with_parent:
                    nursery.start_soon(_stop_with_parent)
                async with running_broker(self.config, RealEnv(), self.plugins) as broker:
                    stopping.append(broker)
                    collector.keep()
                    nursery.start_soon(trio.to_thread.run_sync, self._say_limits)
                    with self._watched() as watchdog:
                        if watchdog is not None:
                            broker.metrics.loop_held = watchdog.held
                        announce(self.config, self.plugins, broker.addresses, broker.topics)
                        await broker.wait_stopped()
                nursery.cancel_scope.cancel()
            logger.info("stopped")

    def _say_limits(self) -> None:
        """The first line of the log, once the broker serves: what writes it takes a while to load."""
        load_structlog()
        limit, wanted = file_limits().soft, descriptors_wanted(self.config)
        about = {"limit": limit, "wanted": wanted}
        if limit < wanted:
            text = "%(limit)d files and connections may be open, fewer than the configured %(wanted)d: see linn doctor"
            logger.warning(text, about)
        else:
            logger.info("%(limit)d files and connections may be open; up to %(wanted)d are configured", about)

    def _watched(self) -> AbstractContextManager[Watchdog | None]:
        """Have the log name the plugin that holds up the loop. Recovery, which nobody waits behind, is not watched."""
        limit_ms = self.config.broker.loop_held_max_ms
        return nullcontext() if limit_ms is None else watched_loop(self.plugins.code_owners, limit_ms / 1000)

    async def _obey(self, signals: AsyncIterator[int], starting: trio.CancelScope, running: Sequence[Broker]) -> None:
        """Stop in order at the first signal, at once when the time for that is over."""
        first = await anext(signals)
        logger.info("%(signal)s: stopping; once more stops at once", {"signal": signal.Signals(first).name})
        if not running:
            starting.cancel()
            return
        running[0].stop()
        limit_s = self.config.broker.drain_timeout_s + _CLOSE_MARGIN_S
        with trio.move_on_after(limit_s):
            await trio.sleep_forever()
        _end(f"not stopped after {limit_s:g} s, ended now; what was confirmed is kept", ExitCode.FAILED)


async def _stop_with_parent() -> None:
    """Once stdin is at its end, which it is when the process at the other end of the pipe is gone: SIGTERM."""
    stdin = sys.stdin.fileno()
    with contextlib.suppress(OSError):  # What can't be read is gone as well, as a terminal that was closed (EIO).
        await trio.lowlevel.wait_readable(stdin)
        while os.read(stdin, _STDIN_BYTES):
            await trio.lowlevel.wait_readable(stdin)
    signal.raise_signal(signal.SIGTERM)


def _end_at_the_second_signal() -> None:
    """Without the loop, which something may hold up: that may be why somebody signals twice."""
    receive = signal.getsignal(_SIGNALS[0])
    assert callable(receive), "the receiver of signals is open"
    count = itertools.count(1)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if next(count) > 1:
            _end("stopped at once; what was confirmed is kept", ExitCode.INTERRUPTED)
        receive(number, frame)

    for number in _SIGNALS:
        signal.signal(number, on_signal)


def _end(text: str, code: ExitCode) -> NoReturn:
    try:
        complain(text)
    finally:  # A signal may come in the middle of another line.
        os._exit(code)


def configuration(file: str | None) -> TomlSource:
    """The file that was named, or linn.toml here, or nothing but defaults. Raises ConfigUnreadable."""
    if file is None and not os.path.exists(DEFAULT_FILE):
        return TomlSource("", "the defaults")
    return read_toml(file if file is not None else DEFAULT_FILE)


def descriptors_wanted(config: Config) -> int:
    """How many descriptors a broker takes with all the connections that it allows; topics made live not counted."""
    connections = config.broker.connections_max
    return connections + max(files_wanted(config), connections // (FILES_SHARE - 1) + 1)


def files_wanted(config: Config) -> int:
    """How many of them are no connections."""
    logs = sum(2 * topic.partitions for topic in config.topics.values())
    return _LOG_FILES * logs + _OTHER_FILES


def overridden(config: Config, plugins: PluginManager, data_dir: str | None, listen: Sequence[str]) -> Config:
    """The configuration with what the command line says instead. Raises AddressInvalid."""
    if data_dir is not None:
        config = dataclasses.replace(config, broker=msgspec.structs.replace(config.broker, data_dir=data_dir))
    if listen:
        for address in listen:
            parse_address(address)
        kind = plugins.protocols["capnp"]
        names = ["native", *(f"native-{number}" for number in range(2, len(listen) + 1))]
        listeners = {
            name: Listener(name, address, kind.name, kind.settings and kind.settings())
            for name, address in zip(names, listen, strict=True)
        }
        config = dataclasses.replace(config, listeners=listeners)
    return config


def announce(config: Config, plugins: PluginManager, addresses: Mapping[str, str], topic_names: Iterable[str]) -> None:
    """One line per listener for programs, and one for people. `topic_names`: also of those made live."""
    for name, address in addresses.items():
        scheme = plugins.protocols[config.listeners[name].protocol].url_scheme
        print(f"ready {url_of(address, scheme)}")
    names = sorted(topic_names)
    shown = names[:TOPICS_SHOWN_MAX]
    if len(names) > len(shown):
        shown.append(f"and {len(names) - len(shown):,} more")
    topics = ", ".join(shown) or "none yet"
    print(f"linn {__version__}, data in {config.broker.data_dir}, topics: {topics}. Ctrl-C stops it.", flush=True)


def url_of(address: str, scheme: str = "linn") -> str:
    """The URL that a client takes for an address as bound."""
    if address.startswith("unix:"):
        return f"{scheme}+unix://{quote(os.path.abspath(address.removeprefix('unix:')))}"
    return f"{scheme}://{address}"
