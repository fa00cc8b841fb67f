"""What `linn recover` does: it opens the storage engines without a broker, under the lock of the data folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import trio

from linn.cli.server.server import configuration, overridden
from linn.core.config.config import Config, load_config, plugin_settings
from linn.core.env.env import Env
from linn.core.env.real.env import RealEnv
from linn.core.errors.texts import counted, did_you_mean
from linn.core.errors.tree import PartitionUnknown
from linn.core.log.storage import DamagedTail, PartitionId, StorageEngine
from linn.core.plugins.manager import PluginManager, installed


def recover_logs(partition: str, file: str | None, data_dir: str | None, *, cut: bool, as_json: bool) -> bool:
    """Look at one log or at all, and print what is found; whether none is damaged now.

    Raises ConfigError, DataDirLocked, PartitionUnknown, StorageError.
    """
    source = configuration(file)
    plugins = PluginManager(plugin_settings(source), installed())
    config = overridden(load_config(source, plugins), plugins, data_dir, ())
    found = trio.run(damaged_logs, config, plugins, RealEnv(), partition, cut)
    if as_json:
        damaged = [{"partition": str(id), "cut": cut} | dataclasses.asdict(tail) for id, tail in found.items()]
        print(json.dumps(damaged, indent=2))
    else:
        for line in _lines(found, cut):
            print(line)
    return cut or not found


async def damaged_logs(
    config: Config, plugins: PluginManager, env: Env, partition: str = "", cut: bool = False
) -> dict[PartitionId, DamagedTail]:
    """The logs that keep a broker from starting, one or all; with `cut` they are cut.

    Raises DataDirLocked, PartitionUnknown, StorageError.
    """
    folder = config.broker.data_dir
    if not env.disk.exists(folder):
        return {}
    unlock = env.disk.lock(f"{folder}/lock")
    try:
        logs = {id: engine for engine in _engines(config, plugins, env) for id in engine.partitions()}
        chosen = [id for id in logs if partition in ("", str(id))]
        if partition and not chosen:
            hint = did_you_mean(partition, map(str, logs))
            raise PartitionUnknown(f"{folder} holds no log of {partition[:80]}{hint}")
        tails = {id: await logs[id].damaged_tail(id, cut=cut) for id in chosen}
        return {id: tail for id, tail in tails.items() if tail is not None}
    finally:
        unlock()


def _engines(config: Config, plugins: PluginManager, env: Env) -> Iterator[StorageEngine]:
    for name, configured in config.storage.items():
        kind = plugins.engines[configured.kind]
        yield plugins.make(kind, f"{config.broker.data_dir}/{name}", configured.settings, env)


def _lines(found: dict[PartitionId, DamagedTail], cut: bool) -> Iterator[str]:
    if not found:
        yield "no log is damaged in a way that keeps a broker from starting"
    for id, tail in found.items():
        yield f"{id}: {tail.place} is damaged at offset {tail.offset}: {tail.reason}"
        records, batches = counted(tail.records, "intact record"), counted(tail.batches, "batch")
        lost = f"{counted(tail.bytes, 'byte')} with {records} in {batches} behind the damage"
        if cut:
            yield f"cut at offset {tail.offset}; kept beside the log: {lost}, in files that end with .cut"
        else:
            yield f"cutting there would set aside {lost}: linn recover {id} --cut"
