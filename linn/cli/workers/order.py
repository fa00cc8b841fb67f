"""The order of a supervisor to a worker, and the configuration that follows from it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from linn.cli.workers.store import NAME, SupervisorSettings
from linn.core.broker.worker_folders import shared_folder, worker_folder
from linn.core.config.config import Config
from linn.core.config.configured import ClusterSettings, Listener
from linn.core.config.tables import CATCH_UP_BYTES, MIB
from linn.core.env.address import parse_address
from linn.core.env.secret import Secret
from linn.core.errors.tree import AddressInvalid, ConfigError
from linn.core.loop.memory_budget import PART_OF_MACHINE
from linn.core.plugins.manager import PluginManager

LINKS = "__workers"
"""The listener of a worker for the others; no listener of a file has this name."""
PEERS = "peers"
SECRET_FILE = "secret"  # noqa: S105  A name.
SESSION_TIMEOUT_S = 6.0
"""Time after which a worker that is stopped, by SIGSTOP or a blocked loop, is given up. One that ends is at once."""
MEMORY_BYTES_MIN = 16 * MIB
PORT_MAX = 65_535


class WorkerOrder(msgspec.Struct, frozen=True):
    """The whole of what a supervisor tells one worker."""

    number: int
    """From 1 on."""
    count: int
    """The number of workers."""
    file: str | None
    data_dir: str | None
    """The data folder of all workers, instead of the file's."""
    listen: tuple[str, ...]
    level: str | None
    is_json: bool
    """Whether its log is JSON."""
    addresses: Mapping[str, str]
    """The addresses of listeners for clients, with the ports that all workers share."""


def store_address(data_dir: str) -> str:
    """The address of the metadata store of a supervisor."""
    return f"unix:{shared_folder(data_dir)}/store.socket"


def links_address(data_dir: str, number: int) -> str:
    """The address of a worker for the others."""
    return f"unix:{shared_folder(data_dir)}/{number}.socket"


def secret_path(data_dir: str) -> str:
    """The file with the secret by which workers know each other."""
    return f"{shared_folder(data_dir)}/{SECRET_FILE}"


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def count_of(workers: int | Literal["auto"]) -> int:
    """The number of workers, from a setting or an option."""
    return workers if isinstance(workers, int) else cores()


def check(config: Config, plugins: PluginManager, count: int) -> None:
    """Check that the configuration is one for workers.

    Raises ConfigError; AddressInvalid: the path of the data folder is too long for its sockets, or a port too high.
    """
    if config.cluster is not None:
        raise ConfigError("workers are a cluster of one machine: leave out either them or [cluster]")
    if PEERS not in plugins.protocols:
        raise ConfigError(f'workers reach each other by the plugin "{PEERS}": don\'t block it in [plugins]')
    tables = [f"topics.{name}.{min(topic.services)}" for name, topic in config.topics.items() if topic.services]
    for table in [*config.services, *tables]:
        text = f"{table} is for a broker alone, since each worker would carry it out"
        raise ConfigError(f"{text}: leave out either the table or the workers")
    try:
        parse_address(links_address(config.broker.data_dir, count))
        parse_address(store_address(config.broker.data_dir))
    except AddressInvalid as error:
        text = f"the path of the data folder {config.broker.data_dir} is too long for the sockets of its workers"
        raise AddressInvalid(f"{text}: serve it by a shorter one") from error
    for listener in config.listeners.values():
        if plugins.protocols[listener.protocol].watches:
            watching_address(listener, count)


def watching_address(listener: Listener, number: int) -> str:
    """The address at which a worker is monitored: the first one's is the file's, and others follow it.

    Raises AddressInvalid: there is no such port.
    """
    place = parse_address(listener.address)
    if isinstance(place, str):
        return listener.address if number == 1 else f"{listener.address}.{number}"
    if place[1] == 0:
        return listener.address
    port = place[1] + number - 1
    if port > PORT_MAX:
        raise AddressInvalid(f"listeners.{listener.name}: worker {number} would be monitored at port {port}")
    return f"{listener.address.rpartition(':')[0]}:{port}"


def worker_config(config: Config, plugins: PluginManager, order: WorkerOrder, memory_bytes_max: int) -> Config:
    """The configuration of one worker. `memory_bytes_max`: the memory limit of the process."""
    data_dir = config.broker.data_dir
    memory_bytes = (config.broker.memory_bytes_max or memory_bytes_max // PART_OF_MACHINE) // order.count
    broker = msgspec.structs.replace(
        config.broker,
        data_dir=worker_folder(data_dir, order.number),
        memory_bytes_max=max(memory_bytes, MEMORY_BYTES_MIN),
    )
    kind = plugins.protocols[PEERS]
    links = Listener(LINKS, links_address(data_dir, order.number), kind.name, kind.settings())
    cluster = ClusterSettings(
        name="workers",
        node=order.number,
        store=NAME,
        store_settings=SupervisorSettings(store_address(data_dir)),
        listener=LINKS,
        secret=Secret(file=secret_path(data_dir)),
        rack="",
        session_timeout_s=SESSION_TIMEOUT_S,
        catch_up_bytes=CATCH_UP_BYTES,
        replicas=1,
        min_in_sync=1,
        are_workers=True,
    )
    listeners = dict(_listeners(config, plugins, order))
    return dataclasses.replace(config, broker=broker, listeners={**listeners, LINKS: links}, cluster=cluster)


def _listeners(config: Config, plugins: PluginManager, order: WorkerOrder) -> list[tuple[str, Any]]:
    found = []
    for name, listener in config.listeners.items():
        if plugins.protocols[listener.protocol].watches:
            found.append((name, dataclasses.replace(listener, address=watching_address(listener, order.number))))
        elif name in order.addresses:
            address = order.addresses[name]
            found.append((name, dataclasses.replace(listener, address=address, shares_port=True)))
        elif order.number == 1:  # A Unix socket, whose path only one process can have.
            found.append((name, listener))
    return found
