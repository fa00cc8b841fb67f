"""Folders of topics, as found by a start before it has opened anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from linn.core.errors.names import name_problem

if TYPE_CHECKING:
    from linn.core.config.config import Config
    from linn.core.env.env import Disk


def foreign_topic_folders(disk: Disk, config: Config) -> Iterator[str]:
    """The folders of topics that the TOML file does not name: topics that were made live, or removed from the file.

    An interrupted first start leaves only folders of topics in the file, and linn's own.
    """
    for engine in config.storage:
        folder = f"{config.broker.data_dir}/{engine}"
        for name in disk.list_dir(folder) if disk.exists(folder) else ():
            is_topic = name_problem(name) is None and disk.exists(f"{folder}/{name}/0")
            if is_topic and name not in config.topics:
                yield f"{folder}/{name}"
