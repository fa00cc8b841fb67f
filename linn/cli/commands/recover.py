"""`linn recover`: report damaged logs, and cut them.

Opens the storage engines without a broker, under the lock of the data folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.options import Json
from linn.cli.render.console import print_json
from linn.core.errors.texts import counted, did_you_mean
from linn.core.errors.tree import PartitionUnknown

if TYPE_CHECKING:
    from linn.core.config.config import Config
    from linn.core.env.env import Env
    from linn.core.log.storage import DamagedTail, PartitionId, StorageEngine
    from linn.core.plugins.manager import PluginManager

Partition = Annotated[
    str,
    typer.Argument(
        metavar="[PARTITION]", help="Partition as named in the error, such as orders/0. Default: check all logs."
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file. Default: linn.toml in this folder, or else all defaults."
    ),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="FOLDER", help="Data folder, instead of the file's data_dir.")
]
Cut = Annotated[bool, typer.Option("--cut", help="Cut the log at the damage, and set the rest aside.")]


def recover(
    partition: Partition = "",
    config: File = None,
    data_dir: DataDir = None,
    cut: Cut = False,
    as_json: Json = False,
) -> None:
    """Report damaged logs and the loss if they are cut; cut one with --cut. The broker must not be running.

    A broker refuses to start over a log that has whole batches behind damage. The part that is cut off is kept in the
    log's folder, in files whose names end with .cut; offsets from there on are assigned again. Ends with 1 if a log is
    damaged and was not cut.
    """
    if cut and not partition:
        raise typer.BadParameter("--cut needs the partition to cut", param_hint="PARTITION")
    import trio

    from linn.cli.server.server import configuration, overridden
    from linn.core.config.config import load_config, plugin_settings
    from linn.core.env.real.env import RealEnv
    from linn.core.plugins.manager import PluginManager, installed

    source = configuration(config)
    plugins = PluginManager(plugin_settings(source), installed())
    loaded = overridden(load_config(source, plugins), plugins, data_dir, ())
    found = trio.run(damaged_logs, loaded, plugins, RealEnv(), partition, cut)
    if as_json:
        import dataclasses

        print_json([{"partition": str(id), "cut": cut} | dataclasses.asdict(tail) for id, tail in found.items()])
    else:
        for line in _lines(found, cut):
            print(line)
    if found and not cut:
        raise typer.Exit(1)


async def damaged_logs(
    config: Config, plugins: PluginManager, env: Env, partition: str = "", cut: bool = False
) -> dict[PartitionId, DamagedTail]:
    """Find the damaged logs, among all or in one partition, that keep a broker from starting. With `cut`, cut them.

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
